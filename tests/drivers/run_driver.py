"""Index runs as Python values, and an index log that can't be read."""

from __future__ import annotations

from cython import address, cast, declare, p_char, pointer, sizeof
from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
from cython.cimports.flintmq.queue.types import restored_t
from cython.cimports.flintmq.store.index_log import index_log_t
from cython.cimports.flintmq.store.index_run import RUN_BYTES_MAX, run_decode, run_encode
from cython.cimports.flintmq.store.log_store import LogStore
from cython.cimports.libc.stdint import uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import calloc, free, malloc

_nothing = declare(index_log_t)


def encode_run(queue_id: int, rows: list) -> bytes:
    """Rows: (position, message id, expires at, body length, flags)."""
    count: uint32_t = len(rows)
    entries: pointer[restored_t] = cast(pointer[restored_t], calloc(count, sizeof(restored_t)))
    out: pointer[uint8_t] = cast(pointer[uint8_t], malloc(RUN_BYTES_MAX))
    i: uint32_t
    size: uint32_t
    for i in range(count):
        entries[i].position, entries[i].message_id, entries[i].expires_at_ms, entries[i].body_len, entries[i].flags = rows[i]
    size = run_encode(queue_id, entries, count, out, RUN_BYTES_MAX)
    data = PyBytes_FromStringAndSize(cast(p_char, out), size)
    free(entries)
    free(out)
    return data


def decode_run(data: bytes) -> tuple | None:
    """(queue id, rows), None: malformed."""
    entries: pointer[restored_t] = cast(pointer[restored_t], calloc(1365, sizeof(restored_t)))
    bytes_: p_char = data
    queue_id: uint64_t = 0
    i: uint32_t
    count: uint32_t = run_decode(cast(pointer[uint8_t], bytes_), len(data), entries, 1365, address(queue_id))
    rows: list = []
    for i in range(count):
        rows.append((entries[i].position, entries[i].message_id, entries[i].expires_at_ms, entries[i].body_len, entries[i].flags))
    free(entries)
    return (queue_id, rows) if count else None


def lose_index(store: LogStore) -> None:
    """No run can be read any more."""
    store.pager.pager.index = address(_nothing)
