"""Copy-forward of live messages (see copy_forward.pxd): one old message must not pin the log.

in: the oldest container. out: Message-Copy records at the tail; after they are durable the base passes the container.

The container is sealed, so it is read without a lock; each message is copied under the log's lock only if it still lives there.
Its records say what was in it, the log says what of that died.
"""

from __future__ import annotations

import logging
import os

from cython import NULL, address, bint, cast, cfunc, exceptval, nogil, pointer, sizeof, void
from cython import int as c_int
from cython.cimports.flintmq.core.content import content_decref, content_t
from cython.cimports.flintmq.core.failpoints import FAIL_COPY_FORWARD, failpoint
from cython.cimports.flintmq.store.content_reader import ContentReader
from cython.cimports.flintmq.store.log.file_port import FilePort
from cython.cimports.flintmq.store.log.log import log_begin, log_end, log_may_copy, log_t, log_where
from cython.cimports.flintmq.store.log.reader import (
    STEP_BAD, STEP_RECORD, log_reader_t, reader_begin, reader_fill, reader_pass, reader_read, reader_record_at, reader_salvage, reader_step,
)  # fmt: skip
from cython.cimports.flintmq.store.log.record import (
    PLACE_SIZE, RECORD_COPY, RECORD_ENQUEUE, RECORD_MESSAGE, RECORD_START, SALVAGE_EFFORT, align8, brief_head, content_head, head_t, le32,
    le64, record_t, shape_head, shape_t,
)  # fmt: skip
from cython.cimports.flintmq.store.logs import Logs
from cython.cimports.flintmq.store.message_copy import ml_copy
from cython.cimports.flintmq.store.message_log import list_find, location_t
from cython.cimports.libc.errno import ENOMEM
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import free, realloc
from cython.cimports.libc.string import memset

log = logging.getLogger("flintmq.store")


@cfunc
@nogil
@exceptval(check=False)
def _load(walk: pointer[log_reader_t], lsn: uint64_t, least: uint64_t) -> uint64_t:
    """Reads `least` bytes of the container, no more (see reader_load_t)."""
    source: pointer[copied_t] = cast(pointer[copied_t], walk.context)
    offset: uint64_t = lsn % walk.container_size
    size: uint64_t = min(least, walk.container_size - offset)
    grown: pointer[uint8_t]
    walk.window_end = 0
    if lsn // walk.container_size != source.sequence:
        return 0
    if size > source.room:
        grown = cast(pointer[uint8_t], realloc(source.bytes, size))
        if grown == NULL:
            walk.error = ENOMEM
            return 0
        source.bytes = grown
        source.room = size
    return reader_read(walk, source.read_at, source.files, source.fd, source.bytes, lsn, size)


@cfunc
@nogil
@exceptval(check=False)
def _plain_place(walk: pointer[log_reader_t], first: pointer[record_t], out: pointer[location_t]) -> bint:
    """The only place of an unlisted message: in its Message-Copy or Message, or in the Message-Enqueue that follows its Message-Start."""
    record: record_t
    shape: shape_t
    distance: uint32_t = 0
    out.enqueued_by = 0
    out.dequeued_by = 0
    if first.type == RECORD_COPY:
        if first.size < 8 + PLACE_SIZE or le32(first.data) != 1:
            return False
        out.queue_id = le64(first.data + 8)
        out.position = le64(first.data + 16)
        out.expires_at_ms = cast(int64_t, le64(first.data + 24))
        return True
    if first.type == RECORD_MESSAGE:
        out.expires_at_ms = first.expires_at_ms
        if (
            not brief_head(first, address(distance))
            or first.undo_prev // walk.container_size != first.lsn // walk.container_size
            or not reader_record_at(walk, first.undo_prev, address(record))
            or not shape_head(address(record), address(shape))
        ):
            return False
        out.queue_id = shape.queue_id
        out.position = shape.position + distance
        return True
    if not reader_record_at(walk, first.lsn + align8(first.length), address(record)):
        return False
    if record.type != RECORD_ENQUEUE or record.undo_prev != first.lsn or record.size < 16 or record.tx:
        return False
    out.queue_id = le64(record.data)
    out.position = le64(record.data + 8)
    out.expires_at_ms = record.expires_at_ms
    return True


@cfunc
@nogil
@exceptval(check=False)
def _begins(record: pointer[record_t]) -> bint:
    """Whether a message begins with this record, or goes on as a copy."""
    return record.type == RECORD_START or record.type == RECORD_MESSAGE or record.type == RECORD_COPY


@cfunc
@nogil
@exceptval(check=False)
def _published(record: pointer[record_t]) -> uint64_t:
    """Time of the Message-Start or Message, from that or a Message-Copy; 0: not known."""
    head: head_t
    if record.type != RECORD_COPY:
        return record.time_us
    return head.published_us if content_head(record, address(head)) else 0


@cfunc
@nogil
@exceptval(check=False)
def _lives_at(owner: pointer[log_t], thing: uint64_t, lsn: uint64_t) -> bint:
    """Whether the message lives, and its first record is that one."""
    alive: bint
    log_begin(owner)
    alive = log_may_copy(owner, lsn) and log_where(owner, thing) == lsn
    log_end(owner)
    return alive


@cfunc
def _copy(
    logs: Logs,
    reader: ContentReader,
    walk: pointer[log_reader_t],
    record: pointer[record_t],
    published_us: uint64_t,
) -> int64_t:
    """Copies the message whose first record this is, if it lives there. `walk`: a reader of its container; published_us: time of its
    Message-Start, 0 not known. Returns bytes written; -1: the log does not say where it is."""
    plain: location_t
    thing: uint64_t = record.undo_prev if record.type == RECORD_COPY else record.lsn
    written: uint64_t
    listed: bint
    known: bint
    content: pointer[content_t]
    if not _lives_at(logs.messages.log, thing, record.lsn):
        return 0
    log_begin(logs.messages.log)
    listed = list_find(address(logs.ml.messages), thing) != NULL
    log_end(logs.messages.log)
    known = _plain_place(walk, record, address(plain))
    if not known and not listed:
        return -1
    with nogil:
        content = reader.read(thing)
    if content == NULL:
        if not _lives_at(logs.messages.log, thing, record.lsn):
            return 0  # it ended meanwhile, and with it went what said where it had been copied to before
        log.error(
            "message %d in %s can't be read: it is not copied", thing, logs.messages.path_of(record.lsn // logs.messages.container_size)
        )
        return 0
    with nogil:
        written = ml_copy(address(logs.ml), content, thing, record.lsn, address(plain) if known else NULL, published_us)
    content_decref(content)
    failpoint(FAIL_COPY_FORWARD)
    return written


@cfunc
@nogil
@exceptval(check=False)
def _count(counts: pointer[uint64_t], written: int64_t) -> void:
    if written:
        counts[0] += 1
        counts[1] += written


def copy_container(logs: Logs, sequence: uint64_t) -> tuple:
    counts: uint64_t[2]
    walk: log_reader_t
    source: copied_t
    files: FilePort = logs.messages.files
    reader: ContentReader = ContentReader(logs.messages, None)
    counts[0] = counts[1] = 0
    memset(address(walk), 0, sizeof(log_reader_t))
    walk.load = _load
    walk.context = address(source)
    walk.container_size = walk.record_max = logs.messages.log.container_size
    walk.limit = (sequence + 1) * walk.container_size
    walk.log_id = logs.messages.log.id
    walk.effort = SALVAGE_EFFORT
    source.read_at = files.read_at
    source.files = files.context
    source.sequence = sequence
    source.bytes = NULL
    source.room = 0
    source.fd = files.open(logs.messages.path_of(sequence))
    try:
        _copy_all(logs, reader, address(walk), sequence, counts)
        if walk.error:
            raise OSError(walk.error, os.strerror(walk.error), logs.messages.path_of(sequence))
    finally:
        files.close(source.fd)
        free(source.bytes)
        reader.close()
    return counts[0], counts[1]


@cfunc
def _copy_all(logs: Logs, reader: ContentReader, walk: pointer[log_reader_t], sequence: uint64_t, counts: pointer[uint64_t]):
    """Looks at every record of a container."""
    record: record_t
    step: c_int
    written: int64_t
    reader_begin(walk, sequence)
    reader_fill(walk, walk.at, walk.container_size)
    while True:
        step = reader_step(walk, address(record))
        if step == STEP_BAD:
            step = reader_salvage(walk)
            if step == STEP_RECORD:
                continue
        if step != STEP_RECORD:
            return
        reader_pass(walk, address(record))
        if not _begins(address(record)):
            continue
        written = _copy(logs, reader, walk, address(record), _published(address(record)))
        if written < 0:
            log.error("a message at LSN %d in %s has no readable place: it is not copied", record.lsn, logs.messages.path_of(sequence))
            continue
        _count(counts, written)
