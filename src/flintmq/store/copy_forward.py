"""Copy-forward of live messages (see copy_forward.pxd): one old message must not pin the log.

in: the oldest container. out: Message-Copy records at the tail; after they are durable the base passes the container.

The container is sealed, so it is read without a lock; each message is copied under the log's lock only if it still lives there.
A container in which few messages live is not read whole: the map of what lives says where they are.
"""

from __future__ import annotations

import logging

import cython
from cython import NULL, address, bint, cast, cfunc, declare, exceptval, nogil, p_char, pointer, ulonglong, void
from cython import int as c_int
from cython.cimports.flintmq.core.content import content_decref, content_t
from cython.cimports.flintmq.core.failpoints import FAIL_COPY_FORWARD, failpoint
from cython.cimports.flintmq.store.content_reader import ContentReader
from cython.cimports.flintmq.store.log.log import (
    LIVE_GRAIN,
    container_t,
    log_begin,
    log_container,
    log_end,
    log_is_live,
    log_t,
    log_where,
)
from cython.cimports.flintmq.store.log.record import (
    BLOCK_HEADER,
    CONTAINER_HEADER,
    COPY_PUBLISHED,
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
from cython.cimports.flintmq.store.log_engine import LogEngine
from cython.cimports.flintmq.store.message_copy import ml_copy
from cython.cimports.flintmq.store.message_list import list_find, location_t
from cython.cimports.libc.stdint import int64_t, uint8_t, uint32_t, uint64_t

log = logging.getLogger("flintmq.store")

# bytes read for one message: its first record is never longer than one that is not split (log_engine), with its Message-Enqueue
PLACE_BYTES = declare(uint64_t, 32 * 1024)
# bytes before a record in which the header of its block is looked for
NEAR_BYTES = declare(uint64_t, 64 * 1024)


@cfunc
@nogil
@exceptval(check=False)
def _plain_place(
    found: pointer[record_t],
    data: pointer[cython.const[uint8_t]],
    start: uint64_t,
    end: uint64_t,
    out: pointer[location_t],
) -> bint:
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
        out.expires_at_ms = cast(int64_t, le64(found.data + 24))
        return True
    at = found.lsn + align8(found.length)
    if at >= end or not record_decode(data + (at - start), at, end - at, 0, True, address(following)):
        return False
    if following.type != RECORD_ENQUEUE or following.undo_prev != found.lsn or following.size < 16 or following.tx:
        return False
    out.queue_id = le64(following.data)
    out.position = le64(following.data + 8)
    out.expires_at_ms = following.expires_at_ms
    return True


@cfunc
@nogil
@exceptval(check=False)
def _published(record: pointer[record_t]) -> uint64_t:
    """Time of the Message-Start, from that or a Message-Copy; 0: not known."""
    at: uint64_t
    if record.type == RECORD_START:
        return record.time_us
    if record.size < 8 or not le32(record.data + 4) & COPY_PUBLISHED:
        return 0
    at = 8 + cast(uint64_t, le32(record.data)) * PLACE_SIZE
    return le64(record.data + at) if at + 8 <= record.size else 0


@cfunc
def _time_base(store: LogEngine, fd: c_int, sequence: uint64_t, lsn: uint64_t) -> uint64_t:
    """Time base of the block that this record is in; 0: not found. Small blocks begin nearby, and of large ones there are few."""
    start: uint64_t = sequence * store.messages.log.container_size
    end: uint64_t = start + store.messages.log.container_size
    first: uint64_t = start + CONTAINER_HEADER
    at: uint64_t = lsn - lsn % SECTOR
    log_id: uint32_t = store.messages.log.id
    block: block_t
    if at - first > NEAR_BYTES and at > first:
        first = at - NEAR_BYTES
    raw: bytes = store.files.read(fd, at + BLOCK_HEADER - first, first - start)
    data: pointer[cython.const[uint8_t]] = cast(pointer[uint8_t], cast(p_char, raw))
    if len(raw) != at + BLOCK_HEADER - first:
        return 0
    while at >= first:
        if block_decode(data + (at - first), at, end - at, log_id, address(block)):
            return block.time_us if lsn < at + block.length else 0
        at -= SECTOR
    at = start + CONTAINER_HEADER
    while at < first:
        raw = store.files.read(fd, BLOCK_HEADER, at - start)
        if len(raw) < BLOCK_HEADER or not block_decode(cast(pointer[uint8_t], cast(p_char, raw)), at, end - at, log_id, address(block)):
            return 0
        if lsn < at + block.length:
            return block.time_us
        at = align_sector(at + block.length)
    return 0


@cfunc
@nogil
@exceptval(check=False)
def _lives_at(owner: pointer[log_t], thing: uint64_t, lsn: uint64_t) -> bint:
    """Whether the message lives, and its first record is that one."""
    alive: bint
    log_begin(owner)
    alive = log_is_live(owner, lsn) and log_where(owner, thing) == lsn
    log_end(owner)
    return alive


@cfunc
def _copy(
    store: LogEngine,
    reader: ContentReader,
    record: pointer[record_t],
    data: pointer[cython.const[uint8_t]],
    start: uint64_t,
    end: uint64_t,
    published_us: uint64_t,
) -> int64_t:
    """Copies the message whose first record this is, if it lives there. `data`: the bytes of LSNs [start, end); published_us: time of its
    Message-Start, 0 not known. Returns bytes written; -1: those bytes don't say where it is."""
    plain: location_t
    thing: uint64_t = record.lsn if record.type == RECORD_START else record.undo_prev
    written: uint64_t
    listed: bint
    known: bint
    content: pointer[content_t]
    if not _lives_at(store.messages.log, thing, record.lsn):
        return 0
    log_begin(store.messages.log)
    listed = list_find(address(store.ml.messages), thing) != NULL
    log_end(store.messages.log)
    known = _plain_place(record, data, start, end, address(plain))
    if not known and not listed:
        return -1
    with nogil:
        content = reader.read(thing)
    if content == NULL:
        if not _lives_at(store.messages.log, thing, record.lsn):
            return 0  # it ended meanwhile, and with it went what said where it had been copied to before
        log.error(
            "message %d in %s can't be read: it is not copied", thing, store.messages.path_of(record.lsn // store.messages.container_size)
        )
        return 0
    with nogil:
        written = ml_copy(address(store.ml), content, thing, record.lsn, address(plain) if known else NULL, published_us)
    content_decref(content)
    failpoint(FAIL_COPY_FORWARD)
    return written


@cfunc
@nogil
@exceptval(check=False)
def _few_places(owner: pointer[log_t], sequence: uint64_t, offsets: pointer[uint64_t]) -> c_int:
    """Where in a container the first records of its live messages are, to LIVE_GRAIN bytes. Returns how many; -1: more than FEW."""
    container: pointer[container_t]
    words: uint64_t = owner.container_size // LIVE_GRAIN // 64
    at: uint64_t
    bits: uint64_t
    bit: uint32_t
    count: c_int = 0
    log_begin(owner)
    container = log_container(owner, sequence)
    if container == NULL or container.live_count > FEW:
        count = -1
    elif container.live != NULL:
        for at in range(words):
            bits = container.live[at]
            bit = 0
            while bits and count < FEW:
                if bits & 1:
                    offsets[count] = (at * 64 + bit) * LIVE_GRAIN
                    count += 1
                bits >>= 1
                bit += 1
    log_end(owner)
    return count


@cfunc
def _copy_few(store: LogEngine, reader: ContentReader, fd: c_int, sequence: uint64_t, counts: pointer[uint64_t]) -> bint:
    """Copies what lives in a container where that is little. False: the rest must be looked for."""
    offsets: uint64_t[FEW]
    size: uint64_t = store.messages.log.container_size
    start: uint64_t
    within: uint64_t
    written: int64_t
    i: c_int
    count: c_int = _few_places(store.messages.log, sequence, offsets)
    found: bint
    base: uint64_t
    published: uint64_t
    record: record_t
    for i in range(count):
        raw: bytes = store.files.read(fd, min(PLACE_BYTES, size - offsets[i]), offsets[i])
        data: pointer[cython.const[uint8_t]] = cast(pointer[uint8_t], cast(p_char, raw))
        start = sequence * size + offsets[i]
        found = False
        within = 0
        while within < min(LIVE_GRAIN, len(raw)) and not found:
            found = record_decode(data + within, start + within, len(raw) - within, 0, True, address(record)) and (
                record.type == RECORD_START or record.type == RECORD_COPY
            )
            within += 8
        if not found:
            return False
        published = _published(address(record))
        if record.type == RECORD_START:
            base = _time_base(store, fd, sequence, record.lsn)
            published = base + published if base else 0
        written = _copy(store, reader, address(record), data, start, start + len(raw), published)
        if written < 0:
            return False
        _count(counts, written)
    return count >= 0


@cfunc
@nogil
@exceptval(check=False)
def _count(counts: pointer[uint64_t], written: int64_t) -> void:
    if written:
        counts[0] += 1
        counts[1] += written


def copy_container(store_object: object, sequence: ulonglong) -> tuple:
    store: LogEngine = store_object
    counts: uint64_t[2]
    reader: ContentReader = ContentReader(store.messages, None)
    counts[0] = counts[1] = 0
    fd = store.files.open(store.messages.path_of(sequence))
    try:
        if not _copy_few(store, reader, fd, sequence, counts):
            _copy_all(store, reader, store.files.read(fd, store.messages.container_size, 0), sequence, counts)
    finally:
        store.files.close(fd)
        reader.close()
    return counts[0], counts[1]


@cfunc
def _copy_all(store: LogEngine, reader: ContentReader, raw: bytes, sequence: uint64_t, counts: pointer[uint64_t]):
    """Looks at every record of a container."""
    start: uint64_t = sequence * store.messages.log.container_size
    end: uint64_t = start + len(raw)
    at: uint64_t = start + CONTAINER_HEADER
    record_at: uint64_t
    block_end: uint64_t
    block: block_t
    record: record_t
    written: int64_t
    data: pointer[cython.const[uint8_t]] = cast(pointer[uint8_t], cast(p_char, raw))
    while at + BLOCK_HEADER <= end:
        if not block_decode(data + (at - start), at, end - at, store.messages.log.id, address(block)):
            at += SECTOR
            continue
        record_at = at + BLOCK_HEADER
        block_end = at + block.length
        while record_at < block_end and record_decode(
            data + (record_at - start), record_at, block_end - record_at, block.time_us, True, address(record)
        ):
            record_at += align8(record.length)
            if record.type != RECORD_START and record.type != RECORD_COPY:
                continue
            written = _copy(store, reader, address(record), data, start, block_end, _published(address(record)))
            if written < 0:
                log.error("a message at LSN %d in %s has no readable place: it is not copied", record.lsn, store.messages.path_of(sequence))
                continue
            _count(counts, written)
        at = align_sector(at + block.length)
