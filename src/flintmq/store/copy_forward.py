"""Copy-forward of live messages (see copy_forward.pxd): one old message must not pin the log.

in: the oldest container. out: Message-Copy records at the tail; after they are durable the base passes the container.

The container is sealed, so it is read without a lock; each message is copied under the log's lock only if it still lives there.
"""

from __future__ import annotations

import cython
from cython.cimports.flintmq.core.content import content_decref, content_t
from cython.cimports.flintmq.store.content_reader import ContentReader
from cython.cimports.flintmq.store.failpoints import FAIL_COPY_FORWARD, failpoint
from cython.cimports.flintmq.store.log.log import log_begin, log_end, log_is_live, log_where
from cython.cimports.flintmq.store.log.record import (
    BLOCK_HEADER,
    CONTAINER_HEADER,
    PLACE_SIZE,
    RECORD_COPY,
    RECORD_ENQUEUE,
    RECORD_START,
    SECTOR,
    align8,
    align_sector,
    block_decode,
    block_t,
    le32,
    le64,
    record_decode,
    record_t,
)
from cython.cimports.flintmq.store.log_store import LogStore
from cython.cimports.flintmq.store.message_list import list_find, location_t, message_t
from cython.cimports.flintmq.store.message_copy import ml_copy
from cython.cimports.libc.stdint import int64_t, uint8_t, uint32_t, uint64_t

import logging

log = logging.getLogger("flintmq.store")


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _plain_place(
    found: cython.pointer(record_t),
    data: cython.pointer(cython.const[uint8_t]),
    start: uint64_t,
    end: uint64_t,
    out: cython.pointer(location_t),
) -> cython.bint:
    """The only place of an unlisted message: in its Copy record, or in the Message-Enqueue that follows its Message-Start."""
    following: record_t
    at: uint64_t
    out.enqueued_by = 0
    out.dequeued_by = 0
    if found.type == RECORD_COPY:
        if found.size < 8 + PLACE_SIZE or le32(found.data) != 1:
            return False
        out.queue_id = le64(found.data + 8)
        out.position = le64(found.data + 16)
        out.expires_at_ms = cython.cast(int64_t, le64(found.data + 24))
        return True
    at = found.lsn + align8(found.length)
    if at >= end or not record_decode(data + (at - start), at, end - at, 0, True, cython.address(following)):
        return False
    if following.type != RECORD_ENQUEUE or following.undo_prev != found.lsn or following.size < 16 or following.tx:
        return False
    out.queue_id = le64(following.data)
    out.position = le64(following.data + 8)
    out.expires_at_ms = following.expires_at_ms
    return True


def copy_container(store_object, sequence):
    store: LogStore = store_object
    size: uint64_t = store.messages.log.container_size
    start: uint64_t = sequence * size
    end: uint64_t = start + size
    at: uint64_t = start + CONTAINER_HEADER
    record_at: uint64_t
    block_end: uint64_t
    block: block_t
    record: record_t
    plain: location_t
    thing: uint64_t
    written: uint64_t
    total: uint64_t = 0
    copied: uint32_t = 0
    alive: cython.bint
    listed: cython.bint
    known: cython.bint
    content: cython.pointer(content_t)
    reader: ContentReader = ContentReader(store.messages, None)
    fd = store.files.open(store.messages.path_of(sequence))
    try:
        raw: bytes = store.files.read(fd, size, 0)
    finally:
        store.files.close(fd)
    data: cython.pointer(cython.const[uint8_t]) = cython.cast(cython.pointer(uint8_t), cython.cast(cython.p_char, raw))
    end = start + len(raw)
    while at + BLOCK_HEADER <= end:
        if not block_decode(data + (at - start), at, end - at, cython.address(block)):
            at += SECTOR
            continue
        record_at = at + BLOCK_HEADER
        block_end = at + block.length
        while record_at < block_end and record_decode(
            data + (record_at - start), record_at, block_end - record_at, 0, True, cython.address(record)
        ):
            record_at += align8(record.length)
            if record.type != RECORD_START and record.type != RECORD_COPY:
                continue
            thing = record.lsn if record.type == RECORD_START else record.undo_prev
            log_begin(store.messages.log)
            alive = log_is_live(store.messages.log, record.lsn) and log_where(store.messages.log, thing) == record.lsn
            listed = list_find(cython.address(store.ml.messages), thing) != cython.NULL
            log_end(store.messages.log)
            if not alive:
                continue
            known = _plain_place(cython.address(record), data, start, block_end, cython.address(plain))
            if not known and not listed:
                log.error("message %d in %s has no readable place: it is not copied", thing, store.messages.path_of(sequence))
                continue
            with cython.nogil:
                content = reader.read(thing)
            if content == cython.NULL:
                log.error("message %d in %s can't be read: it is not copied", thing, store.messages.path_of(sequence))
                continue
            with cython.nogil:
                written = ml_copy(cython.address(store.ml), content, thing, record.lsn, cython.address(plain) if known else cython.NULL)
            content_decref(content)
            total += written
            copied += 1 if written else 0
            failpoint(FAIL_COPY_FORWARD)
        at = align_sector(at + block.length)
    reader.close()
    return copied, total
