"""Memory that many threads freed goes back to the kernel, and what an operator set stays."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

import flintmq.allocator

SOURCE = str(Path(flintmq.allocator.__file__).resolve().parents[1])
MIB = 1024 * 1024

# Eight threads, which stay, hold 16 MiB each in blocks of 64 KiB, with something small that lives on between them: no heap can shrink.
HEAPS = """
import sys, threading
from flintmq.allocator import give_back, limit_kept
assert limit_kept(1 << 20, 2 << 20)
def anonymous():
    (line,) = [line for line in open("/proc/self/status") if line.startswith("RssAnon")]
    return int(line.split()[1]) * 1024
held, small, go, end = [], [], threading.Barrier(9), threading.Event()
def work():
    mine = []
    for _ in range(256):
        mine.append(bytearray(b"x" * 65_536))
        small.append(bytearray(b"y" * 1_000))
    held.append(mine)
    del mine
    go.wait()
    end.wait()
threads = [threading.Thread(target=work) for _ in range(8)]
before = anonymous()
for thread in threads: thread.start()
go.wait()
full = anonymous()
held.clear()
freed = anonymous()
told = give_back()
after = anonymous()
end.set()
for thread in threads: thread.join()
print(before, full, freed, after, told)
"""

# A block that was freed once raises no limit: the next ones of its size go back as well.
LARGE = """
from flintmq.allocator import limit_kept
import ctypes
assert limit_kept(1 << 20, 2 << 20)
for _ in range(3):
    bytearray(24 << 20)
libc = ctypes.CDLL(None)
class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]
libc.mallinfo2.restype = Info
before = libc.mallinfo2()
block = bytearray(24 << 20)
after = libc.mallinfo2()
print(after.hblkhd - before.hblkhd, after.arena - before.arena)
"""


def run(code: str, **environment: str) -> list[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_") and name != "GLIBC_TUNABLES"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=kept | {"PYTHONPATH": SOURCE} | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.fixture(autouse=True)
def glibc() -> None:
    if not hasattr(os, "confstr") or "glibc" not in (os.confstr("CS_GNU_LIBC_VERSION") or ""):
        pytest.skip("the C library is another one")


def test_what_the_threads_freed_goes_back() -> None:
    before, full, _, after, told = run(HEAPS)
    assert int(full) - int(before) >= 120 * MIB, "they did hold it"
    assert told == "True"
    assert int(after) - int(before) <= 40 * MIB


def test_a_large_block_comes_from_the_kernel_each_time() -> None:
    if not hasattr(ctypes.CDLL(None), "mallinfo2"):
        pytest.skip("glibc before 2.33 does not tell")
    mapped, heap = run(LARGE)
    assert int(mapped) >= 24 * MIB
    assert int(heap) == 0


@pytest.mark.parametrize(
    "environment",
    [{"GLIBC_TUNABLES": "glibc.malloc.arena_max=4"}, {"MALLOC_MMAP_THRESHOLD_": "4096", "MALLOC_TRIM_THRESHOLD_": "4096"}],
)
def test_what_an_operator_set_stays(environment: dict[str, str]) -> None:
    code = "from flintmq.allocator import limit_kept; print(limit_kept(1 << 20, 2 << 20))"
    assert run(code) == ["True"]
    assert run(code, **environment) == ["False"]
