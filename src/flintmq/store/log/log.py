"""A log in memory: appending, write buffers, the table of containers and what is live in them (see log.pxd).

in: records from any thread, finished writes from the writer, containers from the maintenance. out: blocks for the writer.

I1  LSNs only grow, and an LSN given out is final.
I2  A block lies in one window, a record in one block; a block starts on a sector that no earlier block has touched.
I3  `durable` never passes a byte that is not synced, and never moves after a failure.
I4  A buffer is given back only when everything in it is durable (or, for a log that doesn't sync, written).

Source: seed 003 (CLFS containers, LSNs, base LSN, write buffers); layout in docs/FORMAT.md.
"""

from __future__ import annotations

import cython
from cython.cimports.flintmq.core.atomics import at_load32, at_load64, at_store64, spin_lock, spin_unlock
from cython.cimports.flintmq.core.clock import wall_us
from cython.cimports.flintmq.core.hash64 import map64_free, map64_get, map64_init, map64_remove
from cython.cimports.flintmq.store.log.file_port import HUGE_PAGE, direct_memory
from cython.cimports.flintmq.store.log.record import (
    BLOCK_HEADER,
    BLOCK_LOG_SHIFT,
    CONTAINER_HEADER,
    align8,
    align_sector,
    block_encode,
    block_t,
    record_crc,
    set32,
)
from cython.cimports.libc.stdint import uint8_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import calloc, free, realloc
from cython.cimports.libc.string import memcpy, memmove, memset

LSN_NEVER = cython.declare(uint64_t, 0x7FFFFFFFFFFFFFFF)
# id of the log of messages: the others seldom fill a buffer
BUSY_LOG = cython.declare(uint32_t, 1)
# bytes of write buffers kept for reuse (one at least): their pages are mapped already
SPARE_BYTES = cython.declare(uint64_t, 8 << 20)


# --- life -------------------------------------------------------------------------------------------------------------------


def log_new(log_id, container_size, buffer_size, syncs):
    log: cython.pointer(log_t) = cython.cast(cython.pointer(log_t), calloc(1, cython.sizeof(log_t)))
    if log == cython.NULL:
        return cython.NULL
    log.id = log_id
    log.container_size = container_size
    log.buffer_size = buffer_size if buffer_size < container_size else container_size
    log.syncs = syncs
    log.first_sequence = 1
    log_continue(log, container_size + CONTAINER_HEADER, 0, 1, container_size)
    map64_init(cython.address(log.moved))
    return log


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _buffer_free(buffer: cython.pointer(buffer_t)) -> cython.void:
    free(buffer.bytes)
    free(buffer)


def log_free(log):
    i: uint32_t
    buffer: cython.pointer(buffer_t)
    while log.first != cython.NULL:
        buffer = log.first
        log.first = buffer.next
        _buffer_free(buffer)
    while log.spare != cython.NULL:
        buffer = log.spare
        log.spare = buffer.next
        _buffer_free(buffer)
    for i in range(log.container_count):
        free(log.containers[i].live)
    free(log.containers)
    map64_free(cython.address(log.moved))
    free(log)


def log_continue(log, tail, last_block, epoch, base):
    log.tail = tail
    log.last_block = last_block
    log.epoch = epoch
    log.base_closed = base
    log.base_taken = base
    at_store64(cython.address(log.base), base)
    at_store64(cython.address(log.base_durable), base)
    at_store64(cython.address(log.durable), tail)
    at_store64(cython.address(log.ready_end), tail - tail % log.container_size)


# --- append -----------------------------------------------------------------------------------------------------------------


def log_begin(log):
    spin_lock(cython.address(log.lock))
    if log.syncs:  # who reads the page log does not ask when
        log.now_us = wall_us()


def log_end(log):
    spin_unlock(cython.address(log.lock))


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _close_block(log: cython.pointer(log_t)) -> cython.void:
    """Finishes the open block: header, padding to the sector. O(sector)."""
    _close_block_as(log, 0)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _close_block_as(log: cython.pointer(log_t), flags: uint32_t) -> cython.void:
    block: block_t
    buffer: cython.pointer(buffer_t) = log.last
    end: uint64_t
    if log.block == 0:
        return
    block.lsn = log.block
    block.length = cython.cast(uint32_t, log.tail - log.block)
    block.epoch = log.epoch
    block.records = log.block_records
    block.durable_hint = at_load64(cython.address(log.durable))
    block.base = at_load64(cython.address(log.base))
    block.time_us = log.block_us
    block.previous = log.last_block
    block.flags = flags | log.id << BLOCK_LOG_SHIFT
    block_encode(buffer.bytes + (log.block - buffer.start), cython.address(block))
    end = align_sector(log.tail)
    memset(buffer.bytes + (log.tail - buffer.start), 0, end - log.tail)
    log.tail = end
    buffer.used = end
    log.last_block = log.block
    log.base_closed = block.base
    log.block = 0
    log.block_records = 0
    log.blocks += 1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _new_buffer(log: cython.pointer(log_t)) -> cython.bint:
    """Opens the window that the tail is in, and the container when it is the first window of one."""
    container_start: uint64_t = log.tail - log.tail % log.container_size
    start: uint64_t = container_start + (log.tail - container_start) // log.buffer_size * log.buffer_size
    buffer: cython.pointer(buffer_t) = log.spare
    # A log that fills its buffers has them in huge pages.
    huge: cython.bint = log.id == BUSY_LOG and log.buffer_size % HUGE_PAGE == 0
    if log_container(log, container_start // log.container_size) == cython.NULL:
        return False
    if buffer != cython.NULL:
        log.spare = buffer.next
        log.spare_count -= 1
    else:
        buffer = cython.cast(cython.pointer(buffer_t), calloc(1, cython.sizeof(buffer_t)))
        if buffer == cython.NULL:
            return False
        buffer.bytes = cython.cast(cython.pointer(uint8_t), direct_memory(log.buffer_size, huge))
        if buffer.bytes == cython.NULL:
            free(buffer)
            return False
    if log.tail == container_start:
        log.tail += CONTAINER_HEADER
    buffer.start = start
    buffer.end = start + log.buffer_size
    if buffer.end > container_start + log.container_size:
        buffer.end = container_start + log.container_size
    buffer.origin = log.tail
    buffer.used = log.tail
    buffer.taken = log.tail
    buffer.next = cython.NULL
    if log.last == cython.NULL:
        log.first = buffer
    else:
        log.last.next = buffer
    log.last = buffer
    log.buffers += 1
    return True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _make_room(log: cython.pointer(log_t), need: uint64_t) -> cython.bint:
    """After this the present window has room for `need` bytes of records, and the block header if none is open."""
    total: uint64_t
    while True:
        if log.last == cython.NULL or log.tail >= log.last.end:
            _close_block(log)  # it may end where the window does
            if not _new_buffer(log):
                return False
            continue
        total = need + (0 if log.block else BLOCK_HEADER)
        if log.tail + total <= log.last.end:
            return True
        if log.tail == log.last.start or log.tail == log.last.start + CONTAINER_HEADER:
            return False  # it fits into no window
        _close_block(log)
        log.last.used = log.tail
        log.tail = log.last.end


def log_append(log, length, lsn):
    need: uint64_t = align8(length)
    at: cython.pointer(uint8_t)
    lsn[0] = LSN_NEVER
    if at_load32(cython.address(log.failed)) or not _make_room(log, need):
        return cython.NULL
    if log.block == 0:
        log.block = log.tail
        log.block_us = log.now_us
        log.tail += BLOCK_HEADER
    lsn[0] = log.tail
    at = log.last.bytes + (log.tail - log.last.start)
    log.tail += need
    if need > length:
        memset(at + length, 0, need - length)
    return at


def log_append_done(log, record, length, lsn):
    set32(record + 4, record_crc(record, length, lsn))
    log.block_records += 1
    log.appended += 1


def log_room(log, least):
    if not _make_room(log, least):
        return 0
    return cython.cast(uint32_t, log.last.end - log.tail - (0 if log.block else BLOCK_HEADER))


def log_time(log):
    # The wall clock may be set back; a record then gets the block's own time.
    if log.block == 0 or log.now_us <= log.block_us:
        return 0
    return cython.cast(uint32_t, log.now_us - log.block_us)


# --- the writer -------------------------------------------------------------------------------------------------------------


def log_take(log, pieces, upto, complete, flags):
    count: uint32_t = 0
    buffer: cython.pointer(buffer_t)
    container: cython.pointer(container_t)
    complete[0] = True
    upto[0] = 0
    spin_lock(cython.address(log.lock))
    if log.syncs:
        _close_block_as(log, flags)
    buffer = log.first
    while buffer != cython.NULL:
        if not log.syncs and buffer == log.last:
            break  # nobody waits: a window is written when it is full, and what went before that is never written
        if buffer.taken < buffer.used:
            container = log_container(log, buffer.start // log.container_size)
            # One container a pass: its end is a good place for a group to end, else it would take two syncs.
            if count or container == cython.NULL or container.state != CONTAINER_READY or container.fd < 0:
                complete[0] = False
                break
            pieces[count].lsn = buffer.taken
            pieces[count].size = buffer.used - buffer.taken
            pieces[count].bytes = buffer.bytes + (buffer.taken - buffer.start)
            pieces[count].fd = container.fd
            upto[0] = buffer.used
            buffer.taken = buffer.used
            count += 1
        buffer = buffer.next
    if complete[0]:
        log.base_taken = log.base_closed
    spin_unlock(cython.address(log.lock))
    return count


def log_written(log, upto):
    buffer: cython.pointer(buffer_t)
    spin_lock(cython.address(log.lock))
    at_store64(cython.address(log.durable), upto)
    at_store64(cython.address(log.base_durable), log.base_taken)
    while log.first != log.last and log.first.used <= upto:
        buffer = log.first
        log.first = buffer.next
        log.buffers -= 1
        if log.spare_count == 0 or (log.spare_count + 1) * log.buffer_size <= SPARE_BYTES:
            buffer.next = log.spare
            log.spare = buffer
            log.spare_count += 1
        else:
            _buffer_free(buffer)
    spin_unlock(cython.address(log.lock))


def log_dirty(log):
    dirty: cython.bint
    buffer: cython.pointer(buffer_t)
    spin_lock(cython.address(log.lock))
    dirty = log.block != 0
    buffer = log.first
    while buffer != cython.NULL and not dirty:
        dirty = buffer.taken < buffer.used
        buffer = buffer.next
    spin_unlock(cython.address(log.lock))
    return dirty


def log_release(log):
    buffer: cython.pointer(buffer_t) = cython.NULL
    following: cython.pointer(buffer_t)
    idle: cython.bint
    spin_lock(cython.address(log.lock))
    idle = log.block == 0 and (
        log.first == cython.NULL or (log.first == log.last and log.first.taken == log.first.used and log.durable >= log.tail)
    )
    if idle:
        buffer = log.first
        if buffer != cython.NULL:
            buffer.next = log.spare
            log.spare = buffer
        buffer = log.spare
        log.first = cython.NULL
        log.last = cython.NULL
        log.spare = cython.NULL
        log.buffers = 0
        log.spare_count = 0
    spin_unlock(cython.address(log.lock))
    while buffer != cython.NULL:
        following = buffer.next
        _buffer_free(buffer)
        buffer = following
    return idle


# --- containers and what is live in them --------------------------------------------------------------------------------------


def log_container(log, sequence):
    room: uint32_t
    containers: cython.pointer(container_t)
    at: uint64_t
    if sequence < log.first_sequence:
        return cython.NULL
    at = sequence - log.first_sequence
    if at < log.container_count:
        return cython.address(log.containers[at])
    if log.container_count == 0:
        log.first_sequence = sequence
        at = 0
    if at != log.container_count:
        return cython.NULL
    if log.container_count == log.container_room:
        room = log.container_room * 2 if log.container_room else 16
        containers = cython.cast(cython.pointer(container_t), realloc(log.containers, room * cython.sizeof(container_t)))
        if containers == cython.NULL:
            return cython.NULL
        log.containers = containers
        log.container_room = room
    memset(cython.address(log.containers[at]), 0, cython.sizeof(container_t))
    log.containers[at].sequence = sequence
    log.containers[at].fd = -1
    log.container_count += 1
    return cython.address(log.containers[at])


def log_forget_containers(log, sequence):
    count: uint32_t
    i: uint32_t
    if sequence <= log.first_sequence:
        return
    count = cython.cast(uint32_t, sequence - log.first_sequence)
    if count > log.container_count:
        count = log.container_count
    for i in range(count):
        free(log.containers[i].live)
    memmove(log.containers, log.containers + count, (log.container_count - count) * cython.sizeof(container_t))
    log.container_count -= count
    log.first_sequence = sequence


def log_live(log, lsn, size):
    container: cython.pointer(container_t) = log_container(log, lsn // log.container_size)
    bit: uint64_t = lsn % log.container_size // LIVE_GRAIN
    if container == cython.NULL:
        return
    if container.live == cython.NULL:
        container.live = cython.cast(cython.pointer(uint64_t), calloc((log.container_size // LIVE_GRAIN + 63) // 64, 8))
        if container.live == cython.NULL:
            return
    container.live[bit >> 6] |= cython.cast(uint64_t, 1) << (bit & 63)
    container.live_count += 1
    container.count += 1
    container.bytes += size
    log.live_count += 1


def log_dead(log, lsn, by):
    container: cython.pointer(container_t) = log_container(log, lsn // log.container_size)
    bit: uint64_t = lsn % log.container_size // LIVE_GRAIN
    mask: uint64_t = cython.cast(uint64_t, 1) << (bit & 63)
    if container == cython.NULL or container.live == cython.NULL or not container.live[bit >> 6] & mask:
        return
    container.live[bit >> 6] &= ~mask
    container.live_count -= 1
    log.live_count -= 1
    if by > container.ended_at:
        container.ended_at = by
    if container.live_count == 0 and log.tail // log.container_size != container.sequence:
        free(container.live)
        container.live = cython.NULL


def log_is_live(log, lsn):
    container: cython.pointer(container_t) = log_container(log, lsn // log.container_size)
    bit: uint64_t = lsn % log.container_size // LIVE_GRAIN
    if container == cython.NULL or container.live == cython.NULL:
        return False
    return container.live[bit >> 6] >> (bit & 63) & 1 != 0


def log_where(log, thing):
    found: uint64_t = 0
    if log.moved.count and map64_get(cython.address(log.moved), thing, cython.address(found)):
        return found
    return thing


def log_live_bytes(log):
    total: uint64_t = 0
    i: uint32_t
    for i in range(log.container_count):
        if log.containers[i].live_count:
            total += log.containers[i].bytes // log.containers[i].count * log.containers[i].live_count
    return total


def log_read_buffered(log, lsn, out, size):
    count: uint64_t = 0
    buffer: cython.pointer(buffer_t)
    end: uint64_t
    spin_lock(cython.address(log.lock))
    buffer = log.first
    while buffer != cython.NULL:
        if buffer.origin <= lsn and lsn < buffer.end:
            end = log.tail if buffer == log.last else buffer.used
            if lsn < end:
                count = min(size, end - lsn)
                memcpy(out, buffer.bytes + (lsn - buffer.start), count)
            break
        buffer = buffer.next
    spin_unlock(cython.address(log.lock))
    return count
