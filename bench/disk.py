"""What the disk under the store can do, measured beside the broker: the yardstick of every row that waits for a sync.

in: a directory on the disk. out: rates, durations and bytes.

The probe's file is preallocated and filled with zeros first, as a log container is: a sync then has no block to allocate.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MIB = 1024 * 1024
# bytes of the probe's file; it starts over at the end
PROBE_FILE = 64 * MIB
# file systems that keep nothing: a sync there costs nothing and proves nothing
MEMORY_FILE_SYSTEMS = ("tmpfs", "ramfs")
# bytes of one part of a probe's writev
PART = 16 * 1024
# bytes of a sector in /proc/diskstats, whatever the device's own are
SECTOR = 512


def filesystem(directory: Path) -> str:
    """Type of the file system that holds `directory`, as `ext4`; `?` when it can't be told."""
    found, kind = "", "?"
    path = str(directory.resolve())
    for line in Path("/proc/mounts").read_text().splitlines():
        fields = line.split()
        mounted = fields[1].encode().decode("unicode_escape")
        if (path == mounted or path.startswith(mounted.rstrip("/") + "/")) and len(mounted) >= len(found):
            found, kind = mounted, fields[2]
    return kind


def written_bytes(directory: Path) -> int | None:
    """Bytes that the device under `directory` has written since the machine started, by whomever; None when it can't be told.

    A process's own `write_bytes` counts what it dirties in the page cache by whole folios: up to 1 MiB for one small write.
    """
    device = os.stat(directory).st_dev
    for line in Path("/proc/diskstats").read_text().splitlines():
        fields = line.split()
        if (int(fields[0]), int(fields[1])) == (os.major(device), os.minor(device)):
            return int(fields[9]) * SECTOR
    return None


@contextlib.contextmanager
def _prepared(directory: Path) -> Iterator[int]:
    """A descriptor of an unnamed file, PROBE_FILE bytes, allocated and zeroed."""
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, PROBE_FILE)
        zeros = bytes(MIB)
        for offset in range(0, PROBE_FILE, MIB):
            os.pwrite(file.fileno(), zeros, offset)
        os.fsync(file.fileno())
        yield file.fileno()


def synced_writes(directory: Path, size: int, *, seconds: float = 0.0, count: int = 0) -> dict[str, Any]:
    """One write of `size` bytes and one fdatasync, again and again, in a row, for `seconds` or `count` times.

    Out: `rate` (per second), `bytes_per_s`, `p50_us`, `p99_us`, `count`. Records of 16 KiB go out in one writev, as a log's groups do.
    """
    # Each part has memory of its own: a group of records comes out of a buffer, not out of the processor's first cache.
    whole_group = memoryview(bytes(range(256)) * (size // 256 + 1))[:size]
    parts = [whole_group[at : at + PART] for at in range(0, size, PART)]
    spans: list[float] = []
    at = 0
    with _prepared(directory) as fd:
        began = last = time.perf_counter()
        while len(spans) < count or last - began < seconds:
            if at + size > PROBE_FILE:
                at = 0
            if os.pwritev(fd, parts, at) != size:
                raise OSError(f"a write of {size} bytes was cut short")
            os.fdatasync(fd)
            now = time.perf_counter()
            spans.append(now - last)
            last = now
            at += size
    whole = last - began
    spans.sort()
    return {
        "rate": round(len(spans) / whole, 1),
        "bytes_per_s": round(len(spans) * size / whole),
        "p50_us": round(spans[len(spans) // 2] * 1e6, 1),
        "p99_us": round(spans[len(spans) * 99 // 100] * 1e6, 1),
        "count": len(spans),
    }


def folder_bytes(folder: Path, suffix: str) -> tuple[int, int]:
    """(bytes, files) of the files with this ending in a folder, as their sizes say; a file that goes meanwhile counts as nothing."""
    total = files = 0
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(suffix):
                with contextlib.suppress(FileNotFoundError):
                    total += entry.stat().st_size
                    files += 1
    return total, files
