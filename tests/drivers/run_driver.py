"""Index runs as Python values, an index log that can't be read, and moments at which a checkpoint may come."""

from __future__ import annotations

from cython import address, bint, cast, cfunc, declare, exceptval, gil, nogil, p_char, p_void, pointer, sizeof
from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
from cython.cimports.flintmq.core.content import CONTENT_PERSISTENT, content_decref, content_from_bytes, content_t
from cython.cimports.flintmq.queue.types import queue_t, restored_t, swept_t
from cython.cimports.flintmq.store.index_log import index_log_t
from cython.cimports.flintmq.store.index_run import RUN_BYTES_MAX, run_decode, run_encode
from cython.cimports.flintmq.store.log.log import content_write, log_begin, log_end
from cython.cimports.flintmq.store.log.record import RECORD_START
from cython.cimports.flintmq.store.log_store import LogStore
from cython.cimports.flintmq.store.message_log import ENQUEUE_MOST, list_new, message_log_t, message_t, ml_sweep
from cython.cimports.libc.stdint import uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import calloc, free, malloc

_nothing = declare(index_log_t)
_before: list = []


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


@cfunc
@nogil
@exceptval(check=False)
def _sweep(context: p_void, queue: pointer[queue_t], swept: pointer[swept_t], count: uint32_t, ended: bint) -> uint64_t:
    with gil:
        for call in _before:
            call()
    return ml_sweep(context, queue, swept, count, ended)


def before_sweep(store: LogStore, call: object) -> None:
    """`call` is called when a sweep has dequeued entries, and the log is not told yet."""
    _before[:] = [call]
    store.port.sweep = _sweep


def append_divided(store: LogStore, size: int) -> int:
    """A long message without a place, as a transaction writes it: other threads run between its chunks. Returns its id."""
    content: pointer[content_t] = content_from_bytes(b"", b"key", b"", bytes(size), CONTENT_PERSISTENT, 0)
    ml: pointer[message_log_t] = address(store.logs.ml)
    message: pointer[message_t]
    message_id: uint64_t
    with nogil:
        log_begin(ml.log)
        message_id = content_write(ml.log, RECORD_START, ml.split_above, ENQUEUE_MOST, content)
        message = list_new(address(ml.messages), message_id)
        message.holds = 1
        log_end(ml.log)
    content_decref(content)
    return message_id


def is_divided(store: LogStore, end: int) -> bool:
    """Waits until some chunks of a content are written: True; or until the log's tail has passed `end`."""
    ml: pointer[message_log_t] = address(store.logs.ml)
    until: uint64_t = end
    dividing: bint = False
    passed: bint = False
    with nogil:
        while not dividing and not passed:
            log_begin(ml.log)
            dividing = ml.log.dividing != 0
            passed = ml.log.tail > until
            log_end(ml.log)
    return dividing


def divide(store: LogStore, begun: bool) -> None:
    """What is told of a long content when its first chunk is written, and when the last one is: checkpoints look at nothing else."""
    ml: pointer[message_log_t] = address(store.logs.ml)
    log_begin(ml.log)
    ml.log.dividing = 1 if begun else 0
    log_end(ml.log)
