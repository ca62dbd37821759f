"""The fault shim from Python: compiled when needed, loaded into a broker by environment, steered through a shared file.

in: the directory to watch. out: `Shim.env` for the child process; faults and delays set and counted while it runs.
Needs gcc (`missing` names what is not there). The layout of `_Shared` is that of shared_t in shim.c; `Shim` checks the magic.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import mmap
import os
import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("shim.c")
BUILD = Path(__file__).resolve().parents[2] / "build" / "faults"
MAGIC = 0x31484D5453544C46
LOG_BYTES = 1 << 30  # sparse; what one life leaves unsynced, old content included
OPS = ("pwrite", "sync", "rename", "create", "fallocate", "unlink", "truncate", "dirsync")


class File(ctypes.Structure):
    """file_t."""

    _fields_ = [("ino", ctypes.c_uint64), ("id", ctypes.c_uint64), ("last", ctypes.c_uint64), ("synced", ctypes.c_uint64),
                ("name", ctypes.c_char * 96)]  # fmt: skip


class Shared(ctypes.Structure):
    """shared_t."""

    _fields_ = [
        ("magic", ctypes.c_uint64), ("size", ctypes.c_uint64), ("first", ctypes.c_uint64), ("tail", ctypes.c_uint64),
        ("seq", ctypes.c_uint64), ("next_id", ctypes.c_uint64), ("overflow", ctypes.c_uint32), ("poisoned", ctypes.c_uint32),
        ("delay_min_us", ctypes.c_uint32), ("delay_max_us", ctypes.c_uint32), ("stall_ms", ctypes.c_uint32), ("record", ctypes.c_uint32),
        ("fail_mask", ctypes.c_uint32), ("fail_errno", ctypes.c_int32), ("fail_forever", ctypes.c_uint32), ("fail_short", ctypes.c_uint32),
        ("fail_after", ctypes.c_int64), ("fail_suffix", ctypes.c_char * 32),
        ("lie_suffix", ctypes.c_char * 32), ("lie_mask", ctypes.c_uint32), ("unused", ctypes.c_uint32),
        ("stall_prefix", ctypes.c_char * 32), ("stall_suffix", ctypes.c_char * 32), ("failed_name", ctypes.c_char * 96),
        ("count", ctypes.c_uint64 * len(OPS)), ("failed", ctypes.c_uint64 * len(OPS)), ("bytes", ctypes.c_uint64),
        ("files", File * 4096),
    ]  # fmt: skip


FIRST = (ctypes.sizeof(Shared) + 4095) // 4096 * 4096


def missing() -> str | None:
    """Why there can be no shim here, or None."""
    return None if shutil.which("gcc") else "gcc is missing: apt-get install gcc libc6-dev"


def build(source: Path = SOURCE) -> Path:
    """The compiled shim, kept by the hash of its source. Raises: RuntimeError with the compiler's words."""
    target = BUILD / f"{source.stem}-{hashlib.sha256(source.read_bytes()).hexdigest()[:16]}.so"
    if not target.exists():
        BUILD.mkdir(parents=True, exist_ok=True)
        part = target.with_suffix(f".{os.getpid()}")
        command = ["gcc", "-O2", "-Wall", "-shared", "-fPIC", "-o", str(part), str(source), "-ldl", "-lpthread"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(done.stderr)
        part.replace(target)
    return target


class Shim:
    """The shared file of one directory under test. `folder` (its own, same file system) holds it and what unlinks kept aside."""

    def __init__(self, watched: Path, folder: Path, *, record: bool) -> None:
        self.watched, self.folder = watched.resolve(), folder.resolve()
        self.library = build()
        self.side = self.folder / "aside"
        self.record = record
        self.map: mmap.mmap | None = None
        self.reset()

    def reset(self) -> None:
        """A new life: no records, no faults, counters at zero. Not while a process uses the shim."""
        self.close()
        shutil.rmtree(self.side, ignore_errors=True)
        self.side.mkdir(parents=True)
        path = self.folder / "undo"
        path.unlink(missing_ok=True)
        with path.open("w+b") as file:
            file.truncate(LOG_BYTES if self.record else FIRST)
            self.map = mmap.mmap(file.fileno(), 0)
        self.shared = Shared.from_buffer(self.map)
        shared = self.shared
        shared.size, shared.first, shared.tail, shared.record = len(self.map), FIRST, FIRST, int(self.record)
        shared.magic = MAGIC

    def close(self) -> None:
        """Gives the mapping back. Idempotent."""
        if self.map is not None:
            del self.shared
            self.map.close()
            self.map = None

    @property
    def env(self) -> dict[str, str]:
        """Environment of the process to watch."""
        return {
            "LD_PRELOAD": str(self.library), "FLINT_FAULT_DIR": str(self.watched), "FLINT_FAULT_LOG": str(self.folder / "undo"),
            "FLINT_FAULT_SIDE": str(self.side) if self.record else "",
        }  # fmt: skip

    # --- faults -----------------------------------------------------------------------------------------------------
    def fail(self, *ops: str, code: int = errno.EIO, after: int = 0, forever: bool = False, short: bool = False, suffix: str = "") -> None:
        """Lets `after` operations of these kinds on files that end with `suffix` pass and fails the next, or all from then on.

        `short`: the first failing write writes half of its bytes instead (a disk that fills up within a write).
        """
        shared = self.shared
        shared.fail_mask = 0
        shared.fail_errno, shared.fail_after, shared.fail_forever, shared.fail_short = code, after, int(forever), int(short)
        shared.fail_suffix = suffix.encode()
        shared.fail_mask = sum(1 << OPS.index(op) for op in ops)

    def lie(self, *ops: str, suffix: str = "") -> None:
        """Syncs of these kinds (sync, dirsync) on files that end with `suffix` say they are done and do nothing."""
        self.shared.lie_suffix = suffix.encode()
        self.shared.lie_mask = sum(1 << OPS.index(op) for op in ops)

    def heal(self) -> None:
        """No more faults, delays and stalls."""
        self.shared.fail_mask = 0
        self.delay(0, 0)
        self.shared.stall_ms = 0

    def delay(self, least_ms: float, most_ms: float) -> None:
        """Every sync waits so long first (evenly distributed)."""
        self.shared.delay_min_us, self.shared.delay_max_us = 0, int(most_ms * 1000)
        self.shared.delay_min_us = int(least_ms * 1000)

    def stall(self, ms: int, prefix: str = "", suffix: str = "") -> None:
        """The next sync of a file so called (relative to the watched directory) waits this long in addition, once."""
        self.shared.stall_prefix, self.shared.stall_suffix = prefix.encode(), suffix.encode()
        self.shared.stall_ms = ms

    def count(self, op: str) -> int:
        """Operations of this kind so far."""
        return int(self.shared.count[OPS.index(op)])

    def failed_name(self) -> str:
        """The file of the first operation that was made to fail (relative to the watched directory), or empty."""
        return bytes(self.shared.failed_name).decode(errors="replace")

    def failed(self) -> int:
        """Operations that were made to fail so far."""
        return sum(self.shared.failed)
