"""Calls of an index log as the pager makes them, as Python functions."""

from __future__ import annotations

from cython import address, cast, nogil, p_char, pointer
from cython.cimports.flintmq.store.index_log import IndexLog, index_append_run, index_read_run, index_run_at, index_run_dead, index_run_most
from cython.cimports.libc.stdint import uint32_t, uint64_t, uint8_t


def append_run(index: IndexLog, data: bytes) -> int:
    """Its name; 0: not taken."""
    lsn: uint64_t
    size: uint32_t = len(data)
    bytes_: p_char = data
    with nogil:
        lsn = index_append_run(address(index.index), cast(pointer[uint8_t], bytes_), size)
    return lsn


def read_run(index: IndexLog, name: int, room: int) -> bytes:
    """Its bytes; empty: it can't be read."""
    lsn: uint64_t = name
    size: uint32_t = room
    got: uint32_t
    buffer = bytearray(max(room, 1))
    bytes_: p_char = buffer
    with nogil:
        got = index_read_run(address(index.index), lsn, cast(pointer[uint8_t], bytes_), size)
    return bytes(buffer[:got])


def run_dead(index: IndexLog, name: int) -> None:
    """Nothing in memory names it."""
    index_run_dead(address(index.index), name)


def run_at(index: IndexLog, name: int) -> int:
    """LSN of its newest copy."""
    return index_run_at(address(index.index), name)


def run_most(index: IndexLog) -> int:
    """Bytes of a run at most."""
    return index_run_most(address(index.index))


def limit_unwritten(index: IndexLog, count: int) -> None:
    """Bytes that may wait for the writer."""
    index.index.unwritten_max = count
