"""Index runs and rows of segments as Python values, an index log that can't be read, and moments at which a checkpoint may come."""

from __future__ import annotations

from cython import address, bint, cast, cfunc, declare, exceptval, gil, nogil, p_char, p_void, pointer, sizeof
from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
from cython.cimports.flintmq.core.content import CONTENT_PERSISTENT, content_decref, content_from_bytes, content_t
from cython.cimports.flintmq.queue.paging import shell_t
from cython.cimports.flintmq.queue.types import queue_t, restored_t, swept_t
from cython.cimports.flintmq.store.index_log import index_log_t
from cython.cimports.flintmq.store.index_run import RUN_BYTES_MAX, run_decode, run_encode
from cython.cimports.flintmq.store.log.log import content_write, log_begin, log_end
from cython.cimports.flintmq.store.log.record import RECORD_START
from cython.cimports.flintmq.store.log_store import LogStore
from cython.cimports.flintmq.store.message_log import ENQUEUE_MOST, list_new, message_log_t, message_t, ml_sweep
from cython.cimports.flintmq.store.segment_rows import (
    SEGMENTS_HEAD, SEGMENT_MOST, segment_get, segment_put, segment_rows_t, segments_begin, segments_get_head, segments_put_head,
)  # fmt: skip
from cython.cimports.libc.stdint import uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import calloc, free, malloc
from cython.cimports.libc.string import memcpy, memset

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


def encode_segments(queue_id: int, level: int, rows: list) -> bytes:
    """Rows: (first index, slots, entries, bytes, delivered before, spilled, earliest expiry, flagged up to, run)."""
    out: pointer[uint8_t] = cast(pointer[uint8_t], malloc(SEGMENTS_HEAD + len(rows) * SEGMENT_MOST))
    written: segment_rows_t
    facts: shell_t
    size: uint32_t = SEGMENTS_HEAD
    memset(address(facts), 0, sizeof(shell_t))
    segments_begin(address(written), queue_id, level)
    for row in rows:
        facts.base, facts.count, facts.live, facts.bytes, facts.redelivered, facts.spilled = row[:6]
        facts.expiry_min, facts.flagged_upto, facts.run = row[6:]
        size += segment_put(address(written), address(facts), out + size)
    segments_put_head(address(written), out)
    data = PyBytes_FromStringAndSize(cast(p_char, out), size)
    free(out)
    return data


def decode_segments(data: bytes) -> tuple | None:
    """(queue id, level, rows), None: malformed. The bytes are read from memory of their own: a read beyond them is seen by `make asan`."""
    copy: pointer[uint8_t] = cast(pointer[uint8_t], malloc(len(data) or 1))
    bytes_: p_char = data
    rows: segment_rows_t
    facts: shell_t
    place: uint32_t = SEGMENTS_HEAD
    length: uint32_t = 1
    size: uint32_t = len(data)
    back: list = []
    memcpy(copy, bytes_, size)
    if segments_get_head(address(rows), copy, size):
        while length and len(back) < rows.count:
            length = segment_get(address(rows), copy + place, size - place, address(facts))
            place += length
            back.append(
                (facts.base, facts.count, facts.live, facts.bytes, facts.redelivered, facts.spilled, facts.expiry_min, facts.flagged_upto)
                + (facts.run,)
            )
    else:
        length = 0
    free(copy)
    return (rows.queue_id, rows.level, back) if length and place == size else None


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
