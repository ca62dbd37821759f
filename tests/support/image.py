"""A copy of a store's directory as it stood at one moment, while a broker writes to it: what kill -9 would have left.

In: the directory. Out: its copy.

M1  There was a moment at which all files were what the copy has. A plain copy takes one file after the other: the log that is copied last
    may tell that something is done which the log that was copied first does not have yet. No kill leaves that, since the logs are
    written in an order.
"""

from __future__ import annotations

import filecmp
import fnmatch
import shutil
from pathlib import Path

# made anew by whoever opens the store, or not a part of it yet
LEFT_OUT = ("pages", "*.tmp")


def image_of(directory: Path, target: Path) -> Path:
    """Copies until nothing has changed between the first byte that was copied and the last one. Returns `target`."""
    while True:
        try:
            shutil.copytree(directory, target, ignore=shutil.ignore_patterns(*LEFT_OUT))
            if _same(directory, target):
                return target
        except (shutil.Error, FileNotFoundError):
            pass  # maintenance has renamed a file, or removed it
        shutil.rmtree(target, ignore_errors=True)


def _same(directory: Path, target: Path) -> bool:
    """Whether both hold the same. No file goes back to what it was: one that is equal now has been so since it was copied."""
    names = _files(directory)
    return names == _files(target) and all(_equal(directory / name, target / name) for name in names)


def _equal(one: Path, other: Path) -> bool:
    filecmp.clear_cache()  # it goes by the time of the last change, which is not exact enough
    return filecmp.cmp(one, other, shallow=False)


def _files(directory: Path) -> list[Path]:
    names = sorted(path.relative_to(directory) for path in directory.rglob("*") if not path.is_dir())
    return [name for name in names if not any(fnmatch.fnmatch(part, pattern) for part in name.parts for pattern in LEFT_OUT)]
