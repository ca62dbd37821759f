"""A log in memory: appending, write buffers, the table of containers and what is live in them (see log.pxd).

in: records from any thread, finished writes from the writer, containers from the maintenance. out: blocks for the writer.

I1  LSNs only grow, and an LSN given out is final.
I2  A block lies in one window, a record in one block; a block starts on a sector that no earlier block has touched.
I3  `durable` never passes a byte that is not synced, and never moves after a failure.
I4  A buffer is given back only when everything in it is durable (or, for a log that doesn't sync, written).
I5  A container has a bit for each thing that died in it, while something there lives or the tail is there; `live_count` counts the
    others. Nothing lives below the base.
I6  Buffers, spare ones among them, are counted.
I7  A piece that is copied into or out of a content lies in it: lengths that were read are compared before.

Source: seed 003 (CLFS containers, LSNs, base LSN, write buffers); layout in docs/FORMAT.md.
"""

from __future__ import annotations

import cython
from cython import NULL, address, bint, cast, cfunc, declare, exceptval, inline, nogil, pointer, sizeof, void
from cython.cimports.flintmq.core.atomics import at_load32, at_load64, at_store64, spin_lock, spin_unlock
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.clock import wall_us
from cython.cimports.flintmq.core.content import arena_t, content_body, content_frame, content_header, content_new, content_route, content_t
from cython.cimports.flintmq.core.hash64 import map64_free, map64_get, map64_init
from cython.cimports.flintmq.store.log.file_port import HUGE_PAGE, direct_memory
from cython.cimports.flintmq.store.log.record import (
    BLOCK_HEADER, BLOCK_LOG_SHIFT, CONTAINER_HEADER, CONTENT_FIXED, RECORD_CHUNK, RECORD_HEADER, RECORD_START, align8, align_sector,
    block_encode, block_t, content_head, head_t, le32, record_crc, record_encode, record_t, set16, set32,
)  # fmt: skip
from cython.cimports.libc.stdint import uint16_t, uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import calloc, free, realloc
from cython.cimports.libc.string import memcpy, memmove, memset

LSN_NEVER = declare(uint64_t, 0x7FFFFFFFFFFFFFFF)
# id of the log of messages: the others seldom fill a buffer
BUSY_LOG = declare(uint32_t, 1)
# bytes of write buffers kept for reuse (one at least): their pages are mapped already
SPARE_BYTES = declare(uint64_t, 8 << 20)


# --- life -------------------------------------------------------------------------------------------------------------------


def log_new(log_id: uint32_t, container_size: uint64_t, buffer_size: uint64_t, syncs: bint) -> pointer[log_t]:
    log: pointer[log_t] = cast(pointer[log_t], calloc(1, sizeof(log_t)))
    if log == NULL:
        return NULL
    log.id = log_id
    log.container_size = container_size
    log.buffer_size = buffer_size if buffer_size < container_size else container_size
    log.syncs = syncs
    log.first_sequence = 1
    log_continue(log, container_size + CONTAINER_HEADER, 0, 1, container_size)
    map64_init(address(log.moved))
    return log


@cfunc
@nogil
@exceptval(check=False)
def _buffer_free(buffer: pointer[buffer_t]) -> void:
    free(buffer.bytes)
    free(buffer)


@cfunc
@nogil
@exceptval(check=False)
def _buffers_free(buffer: pointer[buffer_t]) -> void:
    """A list of buffers that nobody finds any more."""
    following: pointer[buffer_t]
    while buffer != NULL:
        following = buffer.next
        _buffer_free(buffer)
        buffer = following


def log_free(log: pointer[log_t]) -> void:
    i: uint32_t
    _buffers_free(log.first)
    _buffers_free(log.spare)
    for i in range(log.container_count):
        log_forget_deaths(address(log.containers[i]))
    free(log.containers)
    map64_free(address(log.moved))
    free(log)


def log_continue(log: pointer[log_t], tail: uint64_t, last_block: uint64_t, epoch: uint32_t, base: uint64_t) -> void:
    log.tail = tail
    log.shape_floor = tail
    log.last_block = last_block
    log.epoch = epoch
    log.base_closed = base
    log.base_taken = base
    at_store64(address(log.base), base)
    at_store64(address(log.base_durable), base)
    at_store64(address(log.durable), tail)
    at_store64(address(log.ready_end), tail - tail % log.container_size)


# --- append -----------------------------------------------------------------------------------------------------------------


def log_begin(log: pointer[log_t]) -> void:
    spin_lock(address(log.lock))
    if log.syncs:  # who reads the page log does not ask when
        log.now_us = wall_us()


def log_end(log: pointer[log_t]) -> void:
    spin_unlock(address(log.lock))


@cfunc
@nogil
@exceptval(check=False)
def _close_block(log: pointer[log_t]) -> void:
    """Finishes the open block: header, padding to the sector. O(sector)."""
    _close_block_as(log, 0)


@cfunc
@nogil
@exceptval(check=False)
def _close_block_as(log: pointer[log_t], flags: uint32_t) -> void:
    block: block_t
    buffer: pointer[buffer_t] = log.last
    end: uint64_t
    if log.block == 0:
        return
    check(
        log.tail > log.block and log.block >= buffer.start and align_sector(log.tail) <= buffer.end,
        b"log I2 a block lies in its window",
        log.block,
        log.tail,
    )
    check(log.block >= buffer.used, b"log I2 a block begins behind the one before it", log.block, buffer.used)
    block.lsn = log.block
    block.length = cast(uint32_t, log.tail - log.block)
    block.epoch = log.epoch
    block.records = log.block_records
    block.durable_hint = at_load64(address(log.durable))
    block.base = at_load64(address(log.base))
    block.time_us = log.block_us
    block.previous = log.last_block
    block.flags = flags | log.id << BLOCK_LOG_SHIFT
    check(block.previous < block.lsn, b"log I1 blocks have rising LSNs", block.previous, block.lsn)
    check(block.durable_hint <= block.lsn, b"log I3 what a block tells as durable is before it", block.durable_hint, block.lsn)
    check(block.base <= block.lsn, b"log I1 the base is not above a block that tells it", block.base, block.lsn)
    block_encode(buffer.bytes + (log.block - buffer.start), address(block))
    end = align_sector(log.tail)
    memset(buffer.bytes + (log.tail - buffer.start), 0, end - log.tail)
    log.tail = end
    buffer.used = end
    log.last_block = log.block
    log.base_closed = block.base
    log.block = 0
    log.block_records = 0
    log.blocks += 1


@cfunc
@nogil
@exceptval(check=False)
def _new_buffer(log: pointer[log_t]) -> bint:
    """Opens the window that the tail is in, and the container when it is the first window of one."""
    container_start: uint64_t = log.tail - log.tail % log.container_size
    start: uint64_t = container_start + (log.tail - container_start) // log.buffer_size * log.buffer_size
    buffer: pointer[buffer_t] = log.spare
    # A log that fills its buffers has them in huge pages.
    huge: bint = log.id == BUSY_LOG and log.buffer_size % HUGE_PAGE == 0
    check(log.last == NULL or start >= log.last.end, b"log I2 windows follow each other", start, log.tail)
    if log_container(log, container_start // log.container_size) == NULL:
        return False
    if buffer != NULL:
        log.spare = buffer.next
        check(log.spare_count > 0, b"log I6 a spare buffer was counted", log.spare_count, log.id)
        log.spare_count -= 1
    else:
        buffer = cast(pointer[buffer_t], calloc(1, sizeof(buffer_t)))
        if buffer == NULL:
            return False
        buffer.bytes = cast(pointer[uint8_t], direct_memory(log.buffer_size, huge))
        if buffer.bytes == NULL:
            free(buffer)
            return False
    if log.tail == container_start:
        log.tail += CONTAINER_HEADER
        log.shape_floor = log.tail
    buffer.start = start
    buffer.end = start + log.buffer_size
    if buffer.end > container_start + log.container_size:
        buffer.end = container_start + log.container_size
    buffer.origin = log.tail
    buffer.used = log.tail
    buffer.taken = log.tail
    buffer.next = NULL
    if log.last == NULL:
        log.first = buffer
    else:
        log.last.next = buffer
    log.last = buffer
    log.buffers += 1
    return True


@cfunc
@nogil
@exceptval(check=False)
def _make_room(log: pointer[log_t], need: uint64_t) -> bint:
    """After this the present window has room for `need` bytes of records, and the block header if none is open."""
    total: uint64_t
    while True:
        if log.last == NULL or log.tail >= log.last.end:
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


def log_append(log: pointer[log_t], length: uint32_t, lsn: pointer[uint64_t]) -> pointer[uint8_t]:
    need: uint64_t = align8(length)
    byte: pointer[uint8_t]
    lsn[0] = LSN_NEVER
    if at_load32(address(log.failed)) or not _make_room(log, need):
        return NULL
    if log.block == 0:
        log.block = log.tail
        log.block_us = log.now_us
        log.tail += BLOCK_HEADER
    lsn[0] = log.tail
    byte = log.last.bytes + (log.tail - log.last.start)
    log.tail += need
    if need > length:
        memset(byte + length, 0, need - length)
    return byte


def log_append_done(log: pointer[log_t], record: pointer[uint8_t], length: uint32_t, lsn: uint64_t) -> void:
    set32(record + 4, record_crc(record, length, lsn))
    log.block_records += 1
    log.appended += 1


def log_room(log: pointer[log_t], least: uint32_t) -> uint32_t:
    if not _make_room(log, least):
        return 0
    return cast(uint32_t, log.last.end - log.tail - (0 if log.block else BLOCK_HEADER))


def log_time(log: pointer[log_t]) -> uint32_t:
    # The wall clock may be set back; a record then gets the block's own time.
    if log.block == 0 or log.now_us <= log.block_us:
        return 0
    return cast(uint32_t, log.now_us - log.block_us)


# --- the writer -------------------------------------------------------------------------------------------------------------


def log_take(log: pointer[log_t], pieces: pointer[piece_t], upto: pointer[uint64_t], complete: pointer[bint], flags: uint32_t) -> uint32_t:
    count: uint32_t = 0
    buffer: pointer[buffer_t]
    container: pointer[container_t]
    complete[0] = True
    upto[0] = 0
    spin_lock(address(log.lock))
    if log.syncs:
        _close_block_as(log, flags)
    buffer = log.first
    while buffer != NULL:
        if not log.syncs and buffer == log.last:
            break  # nobody waits: a window is written when it is full, and what went before that is never written
        if buffer.taken < buffer.used:
            container = log_container(log, buffer.start // log.container_size)
            # One container a pass: its end is a good place for a group to end, else it would take two syncs.
            if count or container == NULL or container.state != CONTAINER_READY or container.fd < 0:
                complete[0] = False
                break
            check(
                buffer.taken >= buffer.origin and buffer.used <= buffer.end,
                b"log I4 what is taken out of a buffer lies in it",
                buffer.taken,
                buffer.used,
            )
            check(
                container.sequence == buffer.start // log.container_size,
                b"log I2 the table knows the container of a window",
                container.sequence,
                buffer.start,
            )
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
    spin_unlock(address(log.lock))
    return count


def log_written(log: pointer[log_t], upto: uint64_t) -> void:
    buffer: pointer[buffer_t]
    spin_lock(address(log.lock))
    check(upto >= log.durable and upto <= log.tail, b"log I3 what is durable grows and was appended", upto, log.durable)
    at_store64(address(log.durable), upto)
    at_store64(address(log.base_durable), log.base_taken)
    while log.first != log.last and log.first.used <= upto:
        check(
            log.buffers > 0 and log.first.taken == log.first.used,
            b"log I4 a buffer that is given back was written",
            log.first.taken,
            log.first.used,
        )
        buffer = log.first
        log.first = buffer.next
        log.buffers -= 1
        if log.spare_count == 0 or (log.spare_count + 1) * log.buffer_size <= SPARE_BYTES:
            buffer.next = log.spare
            log.spare = buffer
            log.spare_count += 1
        else:
            _buffer_free(buffer)
    spin_unlock(address(log.lock))


def log_dirty(log: pointer[log_t]) -> bint:
    dirty: bint
    buffer: pointer[buffer_t]
    spin_lock(address(log.lock))
    dirty = log.block != 0
    buffer = log.first
    while buffer != NULL and not dirty:
        dirty = buffer.taken < buffer.used
        buffer = buffer.next
    spin_unlock(address(log.lock))
    return dirty


def log_release(log: pointer[log_t]) -> bint:
    buffer: pointer[buffer_t] = NULL
    idle: bint
    spin_lock(address(log.lock))
    idle = log.block == 0 and (
        log.first == NULL or (log.first == log.last and log.first.taken == log.first.used and log.durable >= log.tail)
    )
    if idle:
        buffer = log.first
        if buffer != NULL:
            buffer.next = log.spare
            log.spare = buffer
        buffer = log.spare
        log.first = NULL
        log.last = NULL
        log.spare = NULL
        log.buffers = 0
        log.spare_count = 0
    spin_unlock(address(log.lock))
    _buffers_free(buffer)
    return idle


def log_trim(log: pointer[log_t]) -> void:
    buffer: pointer[buffer_t]
    spin_lock(address(log.lock))
    buffer = log.spare
    log.spare = NULL
    log.spare_count = 0
    spin_unlock(address(log.lock))
    _buffers_free(buffer)


# --- containers and what is live in them --------------------------------------------------------------------------------------


def log_container(log: pointer[log_t], sequence: uint64_t) -> pointer[container_t]:
    room: uint32_t
    containers: pointer[container_t]
    index: uint64_t
    if sequence < log.first_sequence:
        return NULL
    index = sequence - log.first_sequence
    if index < log.container_count:
        return address(log.containers[index])
    if log.container_count == 0:
        log.first_sequence = sequence
        index = 0
    if index != log.container_count:
        return NULL
    if log.container_count == log.container_room:
        room = log.container_room * 2 if log.container_room else 16
        containers = cast(pointer[container_t], realloc(log.containers, room * sizeof(container_t)))
        if containers == NULL:
            return NULL
        log.containers = containers
        log.container_room = room
    check(log.container_count < log.container_room, b"log I6 there is room for a container", log.container_count, sequence)
    memset(address(log.containers[index]), 0, sizeof(container_t))
    log.containers[index].sequence = sequence
    log.containers[index].fd = -1
    log.container_count += 1
    return address(log.containers[index])


def log_forget_containers(log: pointer[log_t], sequence: uint64_t) -> void:
    count: uint32_t
    i: uint32_t
    if sequence <= log.first_sequence:
        return
    count = cast(uint32_t, sequence - log.first_sequence)
    if count > log.container_count:
        count = log.container_count
    for i in range(count):
        check(log.containers[i].live_count == 0, b"log I5 nothing lives in a container that goes", log.containers[i].sequence, sequence)
        log_forget_deaths(address(log.containers[i]))
    memmove(log.containers, log.containers + count, (log.container_count - count) * sizeof(container_t))
    log.container_count -= count
    log.first_sequence = sequence


def log_live(log: pointer[log_t], lsn: uint64_t, size: uint64_t) -> void:
    container: pointer[container_t] = log_container(log, lsn // log.container_size)
    grain: uint32_t
    if container == NULL:
        return
    grain = _grain(log, lsn)
    if container.doubtful:
        container.dead[grain >> 6] &= ~(cast(uint64_t, 1) << (grain & 63))
    check(not _died(container, grain), b"log I5 nothing died at the place of a new record", lsn, size)
    container.live_count += 1
    container.count += 1
    container.bytes += size
    log.live_count += 1


@cfunc
@inline
@nogil
@exceptval(check=False)
def _grain(log: pointer[log_t], lsn: uint64_t) -> uint32_t:
    return cast(uint32_t, lsn % log.container_size // DEAD_GRAIN)


@cfunc
@inline
@nogil
@exceptval(check=False)
def _death_at(container: pointer[container_t], grain: uint32_t) -> uint32_t:
    """Index of the first listed death at this grain or behind it. Most deaths come in the order of the log."""
    low: uint32_t = 0
    high: uint32_t = container.death_count
    middle: uint32_t
    if high == 0 or container.deaths[high - 1] < grain:
        return high
    while low < high:
        middle = (low + high) // 2
        if container.deaths[middle] < grain:
            low = middle + 1
        else:
            high = middle
    return low


@cfunc
@inline
@nogil
@exceptval(check=False)
def _died(container: pointer[container_t], grain: uint32_t) -> bint:
    index: uint32_t
    if container.dead != NULL:
        return container.dead[grain >> 6] >> (grain & 63) & 1 != 0
    index = _death_at(container, grain)
    return index < container.death_count and container.deaths[index] == grain


@cfunc
@nogil
@exceptval(check=False)
def _map_deaths(log: pointer[log_t], container: pointer[container_t]) -> bint:
    """The list of deaths becomes a map. False: no memory."""
    i: uint32_t
    dead: pointer[uint64_t] = cast(pointer[uint64_t], calloc((log.container_size // DEAD_GRAIN + 63) // 64, 8))
    if dead == NULL:
        return False
    for i in range(container.death_count):
        dead[container.deaths[i] >> 6] |= cast(uint64_t, 1) << (container.deaths[i] & 63)
    log_forget_deaths(container)
    container.dead = dead
    return True


@cfunc
@nogil
@exceptval(check=False)
def _note_death(log: pointer[log_t], container: pointer[container_t], grain: uint32_t) -> bint:
    """False: no memory. O(DEATHS_MAX) at most."""
    index: uint32_t
    room: uint32_t
    deaths: pointer[uint32_t]
    # A list that takes a quarter of the map's bytes is as good as the map.
    if (
        container.dead == NULL
        and container.death_count >= min(cast(uint64_t, DEATHS_MAX), log.container_size // DEAD_GRAIN // 8 // 16)
        and not _map_deaths(log, container)
    ):
        return False
    if container.dead != NULL:
        container.dead[grain >> 6] |= cast(uint64_t, 1) << (grain & 63)
        return True
    if container.death_count == container.death_room:
        room = container.death_room * 2 if container.death_room else 8
        deaths = cast(pointer[uint32_t], realloc(container.deaths, room * sizeof(uint32_t)))
        if deaths == NULL:
            return False
        container.deaths = deaths
        container.death_room = room
    index = _death_at(container, grain)
    memmove(container.deaths + index + 1, container.deaths + index, (container.death_count - index) * sizeof(uint32_t))
    container.deaths[index] = grain
    container.death_count += 1
    check(container.death_count <= container.death_room, b"log I5 listed deaths have their room", container.death_count, grain)
    return True


def log_forget_deaths(container: pointer[container_t]) -> void:
    free(container.dead)
    free(container.deaths)
    container.dead = NULL
    container.deaths = NULL
    container.death_count = 0
    container.death_room = 0
    container.doubtful = False


def log_dead(log: pointer[log_t], lsn: uint64_t, by: uint64_t) -> void:
    container: pointer[container_t] = log_container(log, lsn // log.container_size) if lsn < log.tail else NULL
    is_tail: bint
    if container == NULL:
        return
    is_tail = log.tail // log.container_size == container.sequence
    if (container.live_count == 0 and not is_tail) or _died(container, _grain(log, lsn)):
        return
    check(container.live_count > 0, b"log I5 what ends was counted as live", lsn, by)
    check(container.live_count <= container.count, b"log I5 no more lives than ever was there", container.live_count, container.count)
    if not _note_death(log, container, _grain(log, lsn)):
        container.blurred = True  # it counts as alive until the next start: space, not safety, if nobody copies it
        return
    container.live_count -= 1
    log.live_count -= 1
    if by > container.ended_at:
        container.ended_at = by
    if container.live_count == 0 and not is_tail:
        log_forget_deaths(container)


def log_doubt(log: pointer[log_t], sequence: uint64_t) -> bint:
    container: pointer[container_t] = log_container(log, sequence) if sequence <= log.tail // log.container_size else NULL
    if container == NULL or container.doubtful:
        return True
    if not _map_deaths(log, container):
        return False
    memset(container.dead, 0xFF, (log.container_size // DEAD_GRAIN + 63) // 64 * 8)
    container.doubtful = True
    return True


def log_died(log: pointer[log_t], lsn: uint64_t, size: uint64_t) -> bint:
    container: pointer[container_t] = log_container(log, lsn // log.container_size) if lsn < log.tail else NULL
    if container == NULL:
        return True
    container.count += 1
    container.bytes += size
    if container.live_count == 0 and log.tail // log.container_size != container.sequence:
        return True
    return _died(container, _grain(log, lsn)) or _note_death(log, container, _grain(log, lsn))


def log_restore_container(log: pointer[log_t], sequence: uint64_t, count: uint64_t, live: uint64_t, bytes: uint64_t) -> bint:
    container: pointer[container_t] = log_container(log, sequence) if sequence <= log.tail // log.container_size else NULL
    if container == NULL:  # it is below the base: nothing in it lived
        return sequence < log.first_sequence
    container.count += count
    container.bytes += bytes
    container.live_count += live
    log.live_count += live
    return True


def log_restore_death(log: pointer[log_t], sequence: uint64_t, grain: uint32_t) -> bint:
    container: pointer[container_t] = log_container(log, sequence) if sequence <= log.tail // log.container_size else NULL
    if container == NULL or grain >= log.container_size // DEAD_GRAIN or _died(container, grain):
        return True
    return _note_death(log, container, grain)


def log_is_live(log: pointer[log_t], lsn: uint64_t) -> bint:
    container: pointer[container_t] = log_container(log, lsn // log.container_size) if lsn < log.tail else NULL
    return container != NULL and container.live_count != 0 and not _died(container, _grain(log, lsn))


def log_may_copy(log: pointer[log_t], lsn: uint64_t) -> bint:
    container: pointer[container_t]
    if not log_is_live(log, lsn):
        return False
    container = log_container(log, lsn // log.container_size)
    return not container.blurred


def log_where(log: pointer[log_t], thing: uint64_t) -> uint64_t:
    lsn: uint64_t = 0
    if log.moved.count and map64_get(address(log.moved), thing, address(lsn)):
        return lsn
    return thing


def log_live_bytes(log: pointer[log_t]) -> uint64_t:
    total: uint64_t = 0
    i: uint32_t
    for i in range(log.container_count):
        if log.containers[i].live_count:
            total += log.containers[i].bytes // log.containers[i].count * log.containers[i].live_count
    return total


def log_read_buffered(log: pointer[log_t], lsn: uint64_t, out: pointer[uint8_t], size: uint64_t) -> uint64_t:
    count: uint64_t = 0
    buffer: pointer[buffer_t]
    end: uint64_t
    spin_lock(address(log.lock))
    buffer = log.first
    while buffer != NULL:
        if buffer.origin <= lsn and lsn < buffer.end:
            end = log.tail if buffer == log.last else buffer.used
            if lsn < end:
                count = min(size, end - lsn)
                memcpy(out, buffer.bytes + (lsn - buffer.start), count)
            break
        buffer = buffer.next
    spin_unlock(address(log.lock))
    return count


# --- contents as records ------------------------------------------------------------------------------------------------------------


def content_total(content: pointer[content_t]) -> uint32_t:
    return content.route_len + content.header_len + content.body_len


def content_copy_out(content: pointer[content_t], offset: uint32_t, size: uint32_t, out: pointer[uint8_t]) -> void:
    """Bytes [offset, offset + size) of the content: route, header, body one after the other."""
    part: uint32_t
    header_end: uint32_t = content.route_len + content.header_len
    if offset < content.route_len and size:
        part = min(size, content.route_len - offset)
        memcpy(out, content_route(content) + offset, part)
        out += part
        offset += part
        size -= part
    if offset < header_end and size:
        part = min(size, header_end - offset)
        memcpy(out, content_header(content) + (offset - content.route_len), part)
        out += part
        offset += part
        size -= part
    if size:
        memcpy(out, content_body(content) + (offset - header_end), size)


@cfunc
@nogil
@exceptval(check=False)
def _copy_in(content: pointer[content_t], offset: uint32_t, size: uint32_t, data: pointer[cython.const[uint8_t]]) -> void:
    part: uint32_t
    header_end: uint32_t = content.route_len + content.header_len
    check(
        cast(uint64_t, offset) + size <= cast(uint64_t, content.route_len) + content.header_len + content.body_len,
        b"log I7 a piece that is put in lies in its content",
        offset,
        size,
    )
    if offset < content.route_len and size:
        part = min(size, content.route_len - offset)
        memcpy(content_route(content) + offset, data, part)
        data += part
        offset += part
        size -= part
    if offset < header_end and size:
        part = min(size, header_end - offset)
        memcpy(content_header(content) + (offset - content.route_len), data, part)
        data += part
        offset += part
        size -= part
    if size:
        memcpy(content_body(content) + (offset - header_end), data, size)


def content_from_record(arena: pointer[arena_t], record: pointer[record_t], filled: pointer[uint32_t]) -> pointer[content_t]:
    head: head_t
    content: pointer[content_t]
    filled[0] = 0
    if not content_head(record, address(head)):
        return NULL
    content = content_new(arena, head.route_len, head.header_len, head.body_len)
    if content == NULL:
        return NULL
    content.flags = head.flags
    content.priority = head.priority
    _copy_in(content, 0, head.here, head.run)
    content_frame(content)
    filled[0] = head.here
    return content


def content_add_chunk(content: pointer[content_t], record: pointer[record_t]) -> bint:
    offset: uint64_t
    if record.size < 4:
        return False
    offset = le32(record.data)
    if offset + record.size - 4 > content_total(content):
        return False
    _copy_in(content, cast(uint32_t, offset), record.size - 4, record.data + 4)
    return True


def content_write(log: pointer[log_t], kind: uint8_t, split_above: uint32_t, follows: uint32_t, content: pointer[content_t]) -> uint64_t:
    """Writes Message-Start (or Page-Content) and its chunks, and marks it live. Log lock held; let go between chunks.

    follows: bytes of records that must fit behind an undivided one in the same window (I2). Returns its LSN, or LSN_NEVER.
    """
    total: uint32_t = content_total(content)
    piece: uint32_t = total
    room: uint32_t
    length: uint32_t
    size: uint64_t
    first: uint64_t = 0
    record: pointer[uint8_t]
    own: pointer[uint8_t]
    length = RECORD_HEADER + CONTENT_FIXED + total
    if total <= split_above:
        log_room(log, cast(uint32_t, align8(length)) + follows)
    else:
        room = log_room(log, split_above // 4)
        if room < RECORD_HEADER + CONTENT_FIXED + 64:
            return LSN_NEVER
        piece = min(min(total, PIECE_MAX), room - RECORD_HEADER - CONTENT_FIXED)
        length = RECORD_HEADER + CONTENT_FIXED + piece
    record = log_append(log, length, address(first))
    if record == NULL:
        return LSN_NEVER
    own = record_encode(record, length, kind, 0, 0, log_time(log), 0, 0, 0)
    set32(own, content.body_len)
    set32(own + 4, content.header_len)
    set16(own + 8, content.route_len)
    own[10] = content.flags
    own[11] = content.priority
    set32(own + 12, piece)
    content_copy_out(content, 0, piece, own + CONTENT_FIXED)
    log_append_done(log, record, length, first)
    size = align8(length)
    log_live(log, first, size + (follows if piece == total else total - piece))
    check(piece <= total, b"log I7 the first piece is not longer than its content", piece, total)
    if piece < total:
        log.dividing += 1
        if not _write_chunks(log, split_above, content, first, piece):
            first = LSN_NEVER
        log.dividing -= 1
    return first


@cfunc
@nogil
@exceptval(check=False)
def _write_chunks(log: pointer[log_t], split_above: uint32_t, content: pointer[content_t], first: uint64_t, offset: uint32_t) -> bint:
    """The content from `offset` on, in chunks, between which the lock is let go. False: the log has no room, or has failed."""
    total: uint32_t = content_total(content)
    piece: uint32_t
    room: uint32_t
    length: uint32_t
    lsn: uint64_t = 0
    record: pointer[uint8_t]
    own: pointer[uint8_t]
    while offset < total:
        log_end(log)
        log_begin(log)
        room = log_room(log, split_above // 4)
        if room < RECORD_HEADER + 4 + 64:
            return False
        piece = min(min(total - offset, PIECE_MAX), room - RECORD_HEADER - 4)
        length = RECORD_HEADER + 4 + piece
        record = log_append(log, length, address(lsn))
        if record == NULL:
            return False
        own = record_encode(record, length, RECORD_CHUNK, 0, 0, log_time(log), first, 0, 0)
        set32(own, offset)
        content_copy_out(content, offset, piece, own + 4)
        log_append_done(log, record, length, lsn)
        offset += piece
        check(offset <= total, b"log I7 pieces are not longer than their content", offset, total)
    return True


def content_write_small(
    log: pointer[log_t],
    follows: uint32_t,
    route: pointer[cython.const[uint8_t]],
    route_len: uint16_t,
    data: pointer[cython.const[uint8_t]],
    header_len: uint32_t,
    length: uint32_t,
    flags: uint8_t,
    priority: uint8_t,
) -> uint64_t:
    total: uint32_t = route_len + length
    size: uint32_t = RECORD_HEADER + CONTENT_FIXED + total
    lsn: uint64_t = 0
    record: pointer[uint8_t]
    own: pointer[uint8_t]
    log_room(log, cast(uint32_t, align8(size)) + follows)
    record = log_append(log, size, address(lsn))
    if record == NULL:
        return LSN_NEVER
    own = record_encode(record, size, RECORD_START, 0, 0, log_time(log), 0, 0, 0)
    set32(own, length - header_len)
    set32(own + 4, header_len)
    set16(own + 8, route_len)
    own[10] = flags
    own[11] = priority
    set32(own + 12, total)
    memcpy(own + CONTENT_FIXED, route, route_len)
    memcpy(own + CONTENT_FIXED + route_len, data, length)
    log_append_done(log, record, size, lsn)
    log_live(log, lsn, align8(size) + follows)
    return lsn
