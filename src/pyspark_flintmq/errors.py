"""Errors of the Spark source.

Spark wraps a Python error into a long Java trace, so each of ours starts with one searchable code and says in the same line what to do.
In: a code from the table in docs/PIPELINE.md and a text. Out: `FLINTMQ_CODE: text`.
"""

from __future__ import annotations


class SourceError(Exception):
    """An error of the source that a user can act on. `code` is stable; the text is not."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"FLINTMQ_{code}: {text}")
        self.code = code
        self.text = text

    def __reduce__(self) -> tuple[type[SourceError], tuple[str, str]]:
        """Spark sends errors between processes: rebuild from the two arguments, not from the joined message."""
        return type(self), (self.code, self.text)


class ConnectionLost(SourceError):
    """The broker could not be reached, or the connection ended. What was delivered but not acknowledged goes back to the queue."""

    def __init__(self, text: str, code: str = "CONNECTION_LOST") -> None:
        super().__init__(code, text)

    def __reduce__(self) -> tuple[type[SourceError], tuple[str, str]]:
        return type(self), (self.text, self.code)
