"""Spark's own record of a streaming query: which batches are in the commit log of its checkpoint.

In: the query's `checkpointLocation`. Out: whether the batch that ends at an offset was committed.
Invariants: only read; a batch counts as committed when `commits/N` is there and `offsets/N` names the offset, and never before.
"""

from __future__ import annotations

import json
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

    def _batch(self, end: dict[str, Any]) -> int | None:
        for number in sorted(self._numbers("offsets"), reverse=True)[:_NEWEST]:
            if any(_names(line, end) for line in self._read(f"offsets/{number}").splitlines()):
                return number
        return None

    # --- files --------------------------------------------------------------------------------------------------------

    def _numbers(self, folder: str) -> list[int]:
        if self._files is None:
            path = Path(self._base, folder)
            names = [one.name for one in path.iterdir()] if path.is_dir() else []
        else:
            from pyarrow.fs import FileSelector

            found = self._files.get_file_info(FileSelector(f"{self._base}/{folder}", allow_not_found=True))
            names = [one.base_name for one in found]
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


def _names(line: str, end: dict[str, Any]) -> bool:
    """Whether a line of an offset log is this offset: alone in older versions, in a map of sources in newer ones."""
    try:
        value = json.loads(line)
    except ValueError:
        return False
    inner = value.values() if isinstance(value, dict) else ()
    return any(_same(one, end) for one in (value, *inner))


def _same(value: Any, end: dict[str, Any]) -> bool:
    if isinstance(value, str) and value.startswith("{"):
        try:
            value = json.loads(value)
        except ValueError:
            return False
    return bool(value == end)
