"""A worker gives free memory back when it has had nothing to do for a while, once, and never while a task reads."""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path

import pytest

from pyspark_flintmq.heap import IDLE_S, Heap, _trim


class Clock:
    """Time passes when somebody sleeps; a sleep ends when it may."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.slept, self.may_end = threading.Event(), threading.Event()
        self.may_end.set()

    def now(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.slept.set()
        self.may_end.wait(30)


def made() -> tuple[Heap, Clock, list[float], threading.Semaphore]:
    clock, told = Clock(), threading.Semaphore(0)
    trims: list[float] = []

    def trim() -> None:
        trims.append(clock.now_s)
        told.release()

    return Heap(trim, clock.now, clock.sleep), clock, trims, told


def test_free_memory_goes_back_a_moment_after_the_last_task() -> None:
    heap, _, trims, told = made()
    for turn in (1, 2):
        with heap.used():
            assert len(trims) == turn - 1, "not while a task reads"
        assert told.acquire(timeout=30)
        assert trims[-1] == 100.0 + turn * IDLE_S


def test_a_task_that_came_meanwhile_keeps_it_until_its_own_end() -> None:
    heap, clock, trims, told = made()
    clock.may_end.clear()
    with heap.used():
        pass
    assert clock.slept.wait(30)
    with heap.used():
        # The thread wakes up: a second is over, and a task reads.
        clock.may_end.set()
        for thread in threading.enumerate():
            if thread.name == "flintmq-heap":
                thread.join(30)
        assert trims == []
    assert told.acquire(timeout=30)
    assert trims == [100.0 + 2 * IDLE_S]


def test_the_work_of_a_task_that_fails_ends_as_well() -> None:
    heap, _, trims, told = made()
    try:
        with heap.used():
            raise RuntimeError("task")
    except RuntimeError:
        pass
    assert told.acquire(timeout=30) and len(trims) == 1


def test_what_is_given_back_is_memory_of_this_process() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

    libc = ctypes.CDLL(None)
    if not hasattr(libc, "malloc_trim"):
        pytest.skip("not glibc")
    libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
    blocks = [libc.malloc(100_000) for _ in range(400)]
    for block in blocks:
        ctypes.memset(block, 1, 100_000)
    for block in blocks[:-1]:  # the last one keeps the heap's end where it is
        libc.free(block)
    full = resident()
    _trim()
    assert full - resident() > 30_000_000
    libc.free(blocks[-1])
