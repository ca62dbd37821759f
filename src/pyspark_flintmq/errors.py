"""Errors of the Spark source.

Spark wraps a Python error into a long Java trace, so each of ours starts with one searchable code and says in the same line what to do.
In: a code from the tables in docs/PIPELINE.md and docs/pipeline and a text. Out: `FLINTMQ_CODE: text`; the same line stands above the
trace that Spark shows.
"""

from __future__ import annotations

# What to do without the checkpoint. Spark counts batches from 0 again then, and its file sink leaves out those whose numbers its path has.
NEW_CHECKPOINT = "begin with a new checkpoint (a file sink also with a new path)"
# What to do with a new checkpoint whose path is an old one.
UNREAD = (
    "Go on with the checkpoint that belongs to the path, or begin with another new checkpoint and a new path (with option "
    "onNewCheckpoint=continue where the subscription has served a checkpoint)"
)
# The same of a stream, whose messages stay.
UNREAD_STREAM = "Go on with the checkpoint that belongs to the path, or begin with another new checkpoint and a new path"


class _Line(Exception):
    """The line of an error, without a trace of its own."""

    # as the command line begins its errors
    __module__ = "builtins"
    __qualname__ = "flintmq"


class SourceError(Exception):
    """An error of the source that a user can act on. `code` is stable; the text is not."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"FLINTMQ_{code}: {text}")
        self.code = code
        self.text = text
        self._line = _Line(str(self))

    @property
    def __cause__(self) -> BaseException:  # type: ignore[override]
        """What Python prints above a trace. A worker of Spark sends trace and text as one string: so the line is the first of it."""
        return self._line

    @__cause__.setter
    def __cause__(self, cause: BaseException | None) -> None:
        """Spark takes it off where it shortens traces; the line stays."""

    def __reduce__(self) -> tuple[type[SourceError], tuple[str, str]]:
        """Spark sends errors between processes: rebuild from the two arguments, not from the joined message."""
        return type(self), (self.code, self.text)


class ConnectionLost(SourceError):
    """The broker could not be reached, or the connection ended. Unacknowledged deliveries go back to the queue."""

    def __init__(self, text: str, code: str = "CONNECTION_LOST") -> None:
        super().__init__(code, text)

    def __reduce__(self) -> tuple[type[SourceError], tuple[str, str]]:
        return type(self), (self.text, self.code)
