"""Spark's own record of a streaming query: which batches are in the commit log of its checkpoint.

In: the query's `checkpointLocation`. Out: whether the batch that ends at an offset was committed.
Invariants: only read; a batch counts as committed when `commits/N` is there and `offsets/N` names the offset, and never before.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from pyspark_flintmq.errors import SourceError

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

# Seconds between two looks: of a directory, of another file system.
PAUSE_S, PAUSE_FAR_S = 0.05, 1.0
# The newest batches whose offsets are looked at: the one that is awaited is the last or, when a look came late, the one before.
_NEWEST = 3


class CommitLog:
    """The logs of one checkpoint. Raises: SourceError OPTION_VALUE for a location that this process can't read."""

    def __init__(self, location: str) -> None:
        self._files: FileSystem | None = None
        parts = urlsplit(location)
        if parts.scheme in ("", "file"):
            self._base = Path(unquote(parts.path) if parts.scheme else location).absolute().as_posix()
            self.pause_s = PAUSE_S
        else:
            self.pause_s = PAUSE_FAR_S
            try:
                from pyarrow.fs import FileSystem

                self._files, self._base = FileSystem.from_uri(location)
            except Exception as error:
                raise SourceError(
                    "OPTION_VALUE",
                    f"option 'checkpointLocation': pyarrow has no file system for '{parts.scheme}://' here ({error}). Leave the option "
                    "out: a batch is then committed in the broker when the next one is asked for",
                ) from None
        self._found: tuple[dict[str, Any], int] | None = None

    def has(self, end: dict[str, Any]) -> bool:
        """Whether the batch that ends at `end` is in the commit log. Raises: OSError."""
        if self._found is None or self._found[0] != end:
            batch = self._batch(end)
            if batch is None:
                return False
            self._found = (end, batch)
        return self._is_file(f"commits/{self._found[1]}")

    def knows(self, end: dict[str, Any]) -> bool:
        """Whether these are the logs of the query whose batch ends at `end`. Raises: OSError."""
        return self._batch(end) is not None

    def newest(self, keys: frozenset[str], folder: str = "commits") -> list[dict[str, Any]]:
        """The offsets with these keys in the newest batch, of all sources of the query; none when there is no batch.

        Args: folder: `commits`: of the batches that Spark has committed; `offsets`: of those that it has planned. Raises: OSError.
        """
        batches = self._numbers(folder)
        lines = self._read(f"offsets/{max(batches)}").splitlines() if batches else []
        return [value for line in lines for value in _values(line) if keys <= value.keys()]

    def _batch(self, end: dict[str, Any]) -> int | None:
        for number in sorted(self._numbers("offsets"), reverse=True)[:_NEWEST]:
            if any(value == end for line in self._read(f"offsets/{number}").splitlines() for value in _values(line)):
                return number
        return None

    # --- files --------------------------------------------------------------------------------------------------------

    def _numbers(self, folder: str) -> list[int]:
        if self._files is None:
            path = Path(self._base, folder)
            names = [one.name for one in path.iterdir()] if path.is_dir() else []
        else:
            from pyarrow.fs import FileSelector

            files = self._files.get_file_info(FileSelector(f"{self._base}/{folder}", allow_not_found=True))
            names = [one.base_name for one in files]
        return [int(name) for name in names if name.isdecimal()]

    def _read(self, name: str) -> str:
        if self._files is None:
            return Path(self._base, name).read_text()
        with self._files.open_input_file(f"{self._base}/{name}") as file:
            return bytes(file.read()).decode()

    def _is_file(self, name: str) -> bool:
        if self._files is None:
            return Path(self._base, name).is_file()
        return bool(self._files.get_file_info(f"{self._base}/{name}").is_file)


def _values(line: str) -> Iterator[dict[str, Any]]:
    """What a line of an offset log may be as an offset: all of it in older versions, a value of a map of sources in newer ones."""
    value = _parsed(line)
    if isinstance(value, dict):
        yield value
        for one in value.values():
            inner = _parsed(one) if isinstance(one, str) and one.startswith("{") else one
            if isinstance(inner, dict):
                yield inner


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
