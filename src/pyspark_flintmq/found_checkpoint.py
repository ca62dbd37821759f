"""Where Spark keeps the query's checkpoint, found without being told: the process that runs the query opens its files to write them.

In: the process that started the reader (Spark's JVM, on the driver's machine). Out: directories that may be a checkpoint; their logs say
whether they are this query's (`CommitLog.knows`).
Why: Spark gives a Python source neither the path nor the query. It writes `offsets/N` after the reader named an offset, and `commits/N` at
the batch's end, each under another name first; with Hadoop's file system in Java the file stays open for milliseconds.
Invariants: only names are looked at, those of the files that the parent has open; what is not Linux, or not allowed, finds nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

# A file of one of the two logs, also under the name that it has until it is complete, and its checksum.
_LOG_FILE = re.compile(r"(/.*)/(?:offsets|commits)/\.*\d+(?:\.[0-9a-f-]+\.tmp)?(?:\.crc)?")
# Directories that are remembered until they were looked into: a JVM runs several queries.
_KNOWN_MAX = 64
# The system gives a file that is opened the lowest free number. Free numbers that a look tries, and looks until all are counted again.
_FREE, _COUNT_AFTER = 16, 100


class Finder:
    """Args: pid: of the process; proc: where the system shows its processes."""

    def __init__(self, pid: int, proc: str = "/proc") -> None:
        self._open_files = f"{proc}/{pid}/fd"
        self.places: dict[str, None] = {}
        self._free: list[int] = []
        self._looks = 0

    def look(self) -> bool:
        """Takes note of the directories whose logs are written now. False: nothing can be seen here.

        Cost: some 50 us; one look of _COUNT_AFTER is O(open files), two milliseconds for hundreds.
        """
        try:
            if self._looks % _COUNT_AFTER == 0:
                taken = {int(name) for name in os.listdir(self._open_files)}
                self._note(taken)
                self._free = [number for number in range(len(taken) + _FREE) if number not in taken][:_FREE]
            else:
                self._note(self._free)
            self._looks += 1
        except OSError:
            return False
        return True

    def _note(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            try:
                path = os.readlink(f"{self._open_files}/{number}")
            except OSError:  # free, or closed meanwhile
                continue
            match = _LOG_FILE.fullmatch(path)
            if match is not None and len(self.places) < _KNOWN_MAX:
                self.places[match[1]] = None
