"""The message log: Message, Message-Start, -Chunk, -Enqueue, -Dequeue, -Delete as the message path writes them (see message_log.pxd).

in: enqueues and dequeues of the queue core, transactions of the store. out: records in the log's write buffers, LSNs.

I1  A message's id is the LSN of its Message-Start or Message; the container counts it as live before anybody else can know the id.
I2  A message that is not in the message list has exactly one place ever: in its Message, or in the Message-Enqueue that directly follows
    its Message-Start.
I3  What ends a message (flag LAST, Message-Delete) is written under the same lock as its removal from the list and its death in the log.
I4  A logged position is not 0; an id of the page log has its bit.
I5  A listed message without locations and holds is dead; the caller that took the last one removes its entry from the message list.
I6  Places and names of a listed message are counted, and have their room.
I7  An entry that the message list forgets was in it.

Source: seed 003, "Message Log Records" and "In-Memory Objects"; layout in docs/FORMAT.md.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cfunc, declare, exceptval, inline, nogil, p_void, pointer, size_t, sizeof, void
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import at_add64, at_load32, at_load64, at_store32, at_store64
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.content import CONTENT_SHARED, content_t
from cython.cimports.flintmq.core.hash64 import map64_free, map64_get, map64_next, map64_put, map64_remove, map64_t
from cython.cimports.flintmq.queue.slot import slot_content
from cython.cimports.flintmq.queue.types import (
    ENTRY_COUNT_SHIFT, MESSAGE_SPILLED_BIT, PRESSURE_BUFFERS, PRESSURE_DISK, PRESSURE_NONE, SWEPT_MAX, original_t, queue_t, restored_t,
    slot_t, swept_t,
)  # fmt: skip
from cython.cimports.flintmq.store.log.log import (
    LSN_NEVER, content_total, content_write, log_append, log_append_done, log_begin, log_dead, log_end, log_is_live, log_room, log_t,
    log_time, log_where,
)  # fmt: skip
from cython.cimports.flintmq.store.log.record import (
    RECORD_DELIVERED, RECORD_DEQUEUE, RECORD_ENQUEUE, RECORD_EXPIRES, RECORD_HEADER, RECORD_LAST, RECORD_MESSAGE_DELETE,
    RECORD_PAGE_CONTENT, RECORD_QUEUE_PURGE, RECORD_START, RECORD_TRANSACTION, record_encode, record_prefix, set16, set32, set64,
)  # fmt: skip
from cython.cimports.flintmq.store.log.shapes import shapes_write
from cython.cimports.flintmq.store.log.writer import writer_has_work, writer_kick, writer_kick_soon
from cython.cimports.libc.stdint import int64_t, uint16_t, uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import calloc, free, malloc, realloc
from cython.cimports.libc.string import memcpy

# ranges of positions in one Queue-Purge: it must fit into the smallest write buffer
PURGE_RANGES = declare(uint32_t, 128)


@cfunc
@inline
@nogil
@exceptval(check=False)
def _ml(context: p_void) -> pointer[message_log_t]:
    return cast(pointer[message_log_t], context)


# --- records ----------------------------------------------------------------------------------------------------------------


def ml_write_enqueue(
    log: pointer[log_t], message_id: uint64_t, queue_id: uint64_t, position: uint64_t, expires_at_ms: int64_t, tx: uint64_t
) -> uint64_t:
    check(position != 0, b"message_log I4 an enqueue has a position", message_id, queue_id)
    flags: uint16_t = (RECORD_EXPIRES if expires_at_ms else 0) | (RECORD_TRANSACTION if tx else 0)
    length: uint32_t = record_prefix(flags) + 16
    lsn: uint64_t = 0
    own: pointer[uint8_t]
    record: pointer[uint8_t] = log_append(log, length, address(lsn))
    if record == NULL:
        return LSN_NEVER
    own = record_encode(record, length, RECORD_ENQUEUE, 0, flags, log_time(log), message_id, tx, expires_at_ms)
    set64(own, queue_id)
    set64(own + 8, position)
    log_append_done(log, record, length, lsn)
    return lsn + length


@cfunc
@nogil
@exceptval(check=False)
def _write_dequeue(
    log: pointer[log_t],
    message_id: uint64_t,
    queue_id: uint64_t,
    position: uint64_t,
    owner: uint32_t,
    reason: c_int,
    delivered_us: uint64_t,
    delivery_count: uint32_t,
    tx: uint64_t,
    last: bint,
) -> uint64_t:
    flags: uint16_t = (RECORD_TRANSACTION if tx else 0) | (RECORD_LAST if last else 0)
    length: uint32_t = record_prefix(flags) + 32
    lsn: uint64_t = 0
    own: pointer[uint8_t]
    record: pointer[uint8_t] = log_append(log, length, address(lsn))
    if record == NULL:
        return LSN_NEVER
    own = record_encode(record, length, RECORD_DEQUEUE, 0, flags, log_time(log), message_id, tx, 0)
    set64(own, queue_id)
    set64(own + 8, position)
    set64(own + 16, delivered_us)
    set32(own + 24, owner)
    set16(own + 28, cast(uint16_t, delivery_count))
    own[30] = cast(uint8_t, reason)
    own[31] = 0
    log_append_done(log, record, length, lsn)
    return lsn + length


def ml_write_delete(log: pointer[log_t], message_id: uint64_t) -> uint64_t:
    lsn: uint64_t = 0
    record: pointer[uint8_t] = log_append(log, RECORD_HEADER, address(lsn))
    if record == NULL:
        return LSN_NEVER
    record_encode(record, RECORD_HEADER, RECORD_MESSAGE_DELETE, 0, RECORD_LAST, log_time(log), message_id, 0, 0)
    log_append_done(log, record, RECORD_HEADER, lsn)
    return lsn + RECORD_HEADER


def ml_release_name(ml: pointer[message_log_t], tx: uint64_t) -> void:
    room: uint32_t
    released: pointer[released_t]
    if ml.released_count and ml.released[ml.released_count - 1].tx == tx:
        ml.released[ml.released_count - 1].messages += 1
        return
    if ml.released_count == ml.released_room:
        room = ml.released_room * 2 if ml.released_room else 64
        released = cast(pointer[released_t], realloc(ml.released, room * sizeof(released_t)))
        if released == NULL:
            return  # the transaction's record stays until the next restart: space, not safety
        ml.released = released
        ml.released_room = room
    check(ml.released_count < ml.released_room, b"message_log I3 released names have their room", ml.released_count, tx)
    ml.released[ml.released_count].tx = tx
    ml.released[ml.released_count].messages = 1
    at_store32(address(ml.released_count), ml.released_count + 1)


@cfunc
@nogil
@exceptval(check=False)
def _release_names(ml: pointer[message_log_t], message: pointer[message_t]) -> void:
    """A dead message names its transactions no longer: they are told later, by a holder of the GIL."""
    i: uint32_t
    for i in range(message.named_count):
        ml_release_name(ml, message.named[i])


def ml_ended(ml: pointer[message_log_t], message_id: uint64_t, message: pointer[message_t], by: uint64_t) -> void:
    """The message's life is over, by the record before LSN `by` (I3). `message`: its list entry or NULL."""
    log_dead(ml.log, log_where(ml.log, message_id), by)
    if ml.log.moved.count:
        map64_remove(address(ml.log.moved), message_id)
    if message != NULL:
        check(message.count == 0 and message.holds == 0, b"message_log I3 a message that ends has no place", message_id, message.count)
        check(message.id == message_id, b"message_log I1 a message is listed under its id", message_id, message.id)
        _release_names(ml, message)
        list_forget(address(ml.messages), message)
    at_add64(address(ml.deaths), 1)


@cfunc
@nogil
@exceptval(check=False)
def _new_message(ml: pointer[message_log_t], content: pointer[content_t], listed: bint, holds: uint32_t, follows: uint32_t) -> uint64_t:
    """Writes the content; with `listed`, or when it is long, an entry in the message list. follows: as content_write. Log lock held.
    Returns its id, or LSN_NEVER."""
    message: pointer[message_t]
    long_: bint = content_total(content) > ml.split_above
    message_id: uint64_t = content_write(ml.log, RECORD_START, ml.split_above, follows, content)
    if message_id == LSN_NEVER:
        return LSN_NEVER
    if listed or long_:
        check(
            list_find(address(ml.messages), message_id) == NULL,
            b"message_log I1 a new message has an id of its own",
            message_id,
            0,
        )
        message = list_new(address(ml.messages), message_id)
        if message == NULL:
            log_dead(ml.log, message_id, ml_write_delete(ml.log, message_id))
            return LSN_NEVER
        message.holds = holds
    content.message_id = message_id
    return message_id


# --- ports of the message path ------------------------------------------------------------------------------------------------


def ml_enqueue(context: p_void, queue: pointer[queue_t], position: uint64_t, slot: pointer[slot_t], expires_at_ms: int64_t) -> uint64_t:
    ml: pointer[message_log_t] = _ml(context)
    lsn: uint64_t
    log_begin(ml.log)
    lsn = _enqueue(ml, queue, position, slot, expires_at_ms, 0)
    log_end(ml.log)
    return lsn


def ml_letter(
    context: p_void,
    queue: pointer[queue_t],
    position: uint64_t,
    slot: pointer[slot_t],
    expires_at_ms: int64_t,
    original: pointer[original_t],
) -> uint64_t:
    ml: pointer[message_log_t] = _ml(context)
    lsn: uint64_t
    end: uint64_t = 0
    log_begin(ml.log)
    lsn = _enqueue(ml, queue, position, slot, expires_at_ms, DEQUEUE_PLAIN)
    if lsn != LSN_NEVER and original.message_id:
        # The writer takes whole blocks, and the room was found before: both are in one, and a block that is torn is cut off whole.
        end = ml_dequeue_locked(
            ml, original.queue.id, original.position, original.message_id, original.owner, original.reason, original.delivered_us,
            original.delivery_count,
        )  # fmt: skip
        original.ended = end != 0 and end != LSN_NEVER
        if original.ended:
            lsn = end
    log_end(ml.log)
    return lsn


@cfunc
@inline
@nogil
@exceptval(check=False)
def _logged(ml: pointer[message_log_t], queue: pointer[queue_t], lsn: uint64_t) -> void:
    """The queue has an entry more, whose record ends before this LSN."""
    at_store64(address(queue.logged_at), lsn)
    if at_load64(address(queue.entries.cold_count)) == 0:
        at_store64(address(ml.hot_arrivals), ml.hot_arrivals + 1)


@cfunc
@inline
@nogil
@exceptval(check=False)
def _enqueue(
    ml: pointer[message_log_t],
    queue: pointer[queue_t],
    position: uint64_t,
    slot: pointer[slot_t],
    expires_at_ms: int64_t,
    follows: uint32_t,
) -> uint64_t:
    """The content, unless it is written, and its place. follows: bytes of a record that stands in the same window as the place's, 0: none.
    Log lock held."""
    content: pointer[content_t] = slot_content(slot)
    message: pointer[message_t]
    lsn: uint64_t = LSN_NEVER
    shared: bint = content.flags & CONTENT_SHARED != 0
    message_id: uint64_t = 0
    if not shared and content_total(content) <= ml.split_above:
        check(position != 0, b"message_log I4 a message has a position", queue.id, content.message_id)
        message_id = shapes_write(address(ml.shapes), ml.log, content, queue.id, position, expires_at_ms, follows, address(lsn))
    if message_id:
        if message_id != LSN_NEVER:
            content.message_id = message_id
            slot.message_id = message_id
            _logged(ml, queue, lsn)
        return lsn
    message_id = content.message_id
    if message_id == 0 or not shared:
        message_id = _new_message(ml, content, shared, 1 if shared else 0, ENQUEUE_MOST + follows)
    if message_id != LSN_NEVER:
        slot.message_id = message_id
        message = list_find(address(ml.messages), message_id)
        if message == NULL or message_add(message, queue.id, position, expires_at_ms) != NULL:
            if follows:
                log_room(ml.log, ENQUEUE_MOST + follows)
            lsn = ml_write_enqueue(ml.log, message_id, queue.id, position, expires_at_ms, 0)
            _logged(ml, queue, lsn)
    return lsn


def ml_dequeue(
    context: p_void,
    queue: pointer[queue_t],
    position: uint64_t,
    slot: pointer[slot_t],
    owner: uint32_t,
    reason: c_int,
    delivered_us: uint64_t,
) -> uint64_t:
    return ml_dequeue_plain(
        _ml(context),
        queue.id,
        position,
        slot.message_id,
        owner,
        reason,
        delivered_us,
        cast(uint32_t, (at_load64(address(slot.state)) >> ENTRY_COUNT_SHIFT) & 0xFFFF),
    )


def ml_dequeue_locked(
    ml: pointer[message_log_t],
    queue_id: uint64_t,
    position: uint64_t,
    message_id: uint64_t,
    owner: uint32_t,
    reason: c_int,
    delivered_us: uint64_t,
    delivery_count: uint32_t,
) -> uint64_t:
    lsn: uint64_t
    location: pointer[location_t]
    message: pointer[message_t]
    last: bint = True
    message = list_find(address(ml.messages), message_id)
    if message != NULL:
        location = message_find(message, queue_id, position)
        if location == NULL or (location.dequeued_by and not location.dequeued_by & PLACE_FREED):
            return 0
        message_drop(message, location)
        last = message.count == 0 and message.holds == 0
    lsn = _write_dequeue(ml.log, message_id, queue_id, position, owner, reason, delivered_us, delivery_count, 0, last)
    if last:
        ml_ended(ml, message_id, message, lsn)
    return lsn


def ml_dequeue_plain(
    ml: pointer[message_log_t],
    queue_id: uint64_t,
    position: uint64_t,
    message_id: uint64_t,
    owner: uint32_t,
    reason: c_int,
    delivered_us: uint64_t,
    delivery_count: uint32_t,
) -> uint64_t:
    lsn: uint64_t
    if message_id == 0:
        return LSN_NEVER  # its enqueue found a failed log
    log_begin(ml.log)
    lsn = ml_dequeue_locked(ml, queue_id, position, message_id, owner, reason, delivered_us, delivery_count)
    log_end(ml.log)
    return lsn


@cfunc
@nogil
@exceptval(check=False)
def _write_purge(log: pointer[log_t], queue_id: uint64_t, swept: pointer[swept_t], count: uint32_t, taken: pointer[uint32_t]) -> uint64_t:
    """One Queue-Purge over the first entries of `swept`, as runs of positions; `*taken`: how many. LSN_NEVER: the log has failed."""
    i: uint32_t
    runs: uint32_t = 0
    length: uint32_t
    lsn: uint64_t = 0
    own: pointer[uint8_t]
    record: pointer[uint8_t]
    taken[0] = count
    for i in range(count):
        if i == 0 or swept[i].position != swept[i - 1].position + 1:
            if runs == PURGE_RANGES:
                taken[0] = i
                break
            runs += 1
    length = RECORD_HEADER + 16 + runs * 16
    check(runs > 0 and taken[0] > 0, b"message_log I4 a purge names positions", queue_id, count)
    record = log_append(log, length, address(lsn))
    if record == NULL:
        return LSN_NEVER
    own = record_encode(record, length, RECORD_QUEUE_PURGE, 0, 0, log_time(log), 0, 0, 0)
    set64(own, queue_id)
    set32(own + 8, runs)
    set32(own + 12, 0)
    for i in range(taken[0]):
        if i == 0 or swept[i].position != swept[i - 1].position + 1:
            own += 16
            set64(own, swept[i].position)
        set64(own + 8, swept[i].position)
    log_append_done(log, record, length, lsn)
    return lsn + length


@cfunc
@nogil
@exceptval(check=False)
def _end_place(ml: pointer[message_log_t], queue_id: uint64_t, position: uint64_t, message_id: uint64_t, by: uint64_t) -> void:
    """A record before LSN `by` ended this place without naming the message; position 0: all its places on the queue. Log lock held."""
    message: pointer[message_t] = list_find(address(ml.messages), message_id)
    i: uint32_t = 0
    if message == NULL:
        if position and log_is_live(ml.log, log_where(ml.log, message_id)):
            ml_ended(ml, message_id, NULL, by)
        return
    while i < message.count:
        if message.locations[i].queue_id == queue_id and (position == 0 or message.locations[i].position == position):
            message_drop(message, address(message.locations[i]))
        else:
            i += 1
    if message.count == 0 and message.holds == 0:
        # A message that names transactions needs an end of its own: as long as it lives they are valid.
        ml_ended(ml, message_id, message, ml_write_delete(ml.log, message_id) if message.named_count else by)


def ml_sweep(context: p_void, queue: pointer[queue_t], swept: pointer[swept_t], count: uint32_t, ended: bint) -> uint64_t:
    ml: pointer[message_log_t] = _ml(context)
    i: uint32_t
    taken: uint32_t = count
    lsn: uint64_t = 0
    log_begin(ml.log)
    while count:
        # Of the end of a queue the log has a record already: before its present tail, whatever came after it.
        lsn = ml.log.tail if ended else _write_purge(ml.log, queue.id, swept, count, address(taken))
        if lsn == LSN_NEVER:
            break
        for i in range(taken):
            _end_place(ml, queue.id, swept[i].position, swept[i].message_id, lsn)
        swept += taken
        count -= taken
    log_end(ml.log)
    return lsn


def ml_delivered(context: p_void, queue: pointer[queue_t]) -> uint64_t:
    log: pointer[log_t] = _ml(context).log
    count: uint32_t = queue.entries.level_count
    i: uint32_t
    length: uint32_t
    lsn: uint64_t = 0
    own: pointer[uint8_t]
    record: pointer[uint8_t]
    while count > 1 and queue.entries.levels[count - 1].reserved == 0:
        count -= 1
    length = RECORD_HEADER + 16 + count * 8
    log_begin(log)
    record = log_append(log, length, address(lsn))
    if record != NULL:
        own = record_encode(record, length, RECORD_DELIVERED, 0, 0, log_time(log), 0, 0, 0)
        set64(own, queue.id)
        set32(own + 8, count)
        set32(own + 12, 0)
        for i in range(count):
            set64(own + 16 + i * 8, queue.entries.levels[i].reserved)
        log_append_done(log, record, length, lsn)
    log_end(log)
    return LSN_NEVER if record == NULL else lsn + length


def ml_listed(ml: pointer[message_log_t], entries: pointer[restored_t], count: uint32_t) -> bint:
    i: uint32_t = 0
    end: uint32_t
    listed: bint = False
    while i < count and not listed:
        end = min(count, i + SWEPT_MAX)
        log_begin(ml.log)
        while i < end and not listed:
            listed = list_find(address(ml.messages), entries[i].message_id) != NULL
            i += 1
        log_end(ml.log)
    return listed


def ml_purge_range(ml: pointer[message_log_t], queue_id: uint64_t, first: uint64_t, last: uint64_t) -> uint64_t:
    length: uint32_t = RECORD_HEADER + 32
    lsn: uint64_t = 0
    own: pointer[uint8_t]
    record: pointer[uint8_t] = log_append(ml.log, length, address(lsn))
    if record == NULL:
        return LSN_NEVER
    own = record_encode(record, length, RECORD_QUEUE_PURGE, 0, 0, log_time(ml.log), 0, 0, 0)
    set64(own, queue_id)
    set32(own + 8, 1)
    set32(own + 12, 0)
    set64(own + 16, first)
    set64(own + 24, last)
    log_append_done(ml.log, record, length, lsn)
    return lsn + length


def ml_count_out(ml: pointer[message_log_t], queue_id: uint64_t, entries: pointer[restored_t], count: uint32_t, by: uint64_t) -> void:
    i: uint32_t = 0
    end: uint32_t
    while i < count:
        end = min(count, i + SWEPT_MAX)
        log_begin(ml.log)
        while i < end:
            if not entries[i].message_id >> MESSAGE_SPILLED_BIT:
                _end_place(ml, queue_id, entries[i].position, entries[i].message_id, by)
            i += 1
        log_end(ml.log)


def ml_placed(context: p_void, content: pointer[content_t]) -> void:
    ml: pointer[message_log_t] = _ml(context)
    message: pointer[message_t]
    log_begin(ml.log)
    message = list_find(address(ml.messages), content.message_id)
    if message != NULL and message.holds:
        message.holds = 0
        if message.count == 0:
            ml_ended(ml, message.id, message, ml_write_delete(ml.log, message.id))
    log_end(ml.log)


def ml_spill(context: p_void, content: pointer[content_t]) -> uint64_t:
    ml: pointer[message_log_t] = _ml(context)
    lsn: uint64_t
    if ml.pages == NULL or at_load32(address(ml.disk_low)):
        return 0
    log_begin(ml.pages)
    lsn = content_write(ml.pages, RECORD_PAGE_CONTENT, ml.split_above, 0, content)
    log_end(ml.pages)
    if lsn // ml.pages.buffer_size != ml.spill_window:
        # A window is full. Nobody waits for spilled content, so nobody else says that there is some.
        ml.spill_window = lsn // ml.pages.buffer_size
        writer_kick(ml.writer)
    if lsn == LSN_NEVER:
        return 0
    return lsn | cast(uint64_t, 1) << MESSAGE_SPILLED_BIT


def ml_unspill(context: p_void, message_id: uint64_t) -> void:
    ml: pointer[message_log_t] = _ml(context)
    check(message_id >> MESSAGE_SPILLED_BIT != 0, b"message_log I4 what leaves the page log has an id of it", message_id, 0)
    log_begin(ml.pages)
    log_dead(ml.pages, message_id & ~(cast(uint64_t, 1) << MESSAGE_SPILLED_BIT), 0)
    log_end(ml.pages)


def ml_durable_lsn(context: p_void) -> uint64_t:
    return at_load64(address(_ml(context).log.durable))


@cfunc
@inline
@nogil
@exceptval(check=False)
def _unwritten(log: pointer[log_t]) -> uint64_t:
    durable: uint64_t = at_load64(address(log.durable))
    tail: uint64_t = at_load64(address(log.tail))
    return tail - durable if tail > durable else 0


def ml_kick(context: p_void, awaited: bint) -> void:
    ml: pointer[message_log_t] = _ml(context)
    # A loop kicks after each call of Python, which may have logged anything and mostly has not: the writer sleeps on then.
    if not writer_has_work(ml.writer):
        return
    if awaited or _unwritten(ml.log) > ml.soon_bytes:
        writer_kick(ml.writer)
    else:
        writer_kick_soon(ml.writer)


def ml_pressure(context: p_void) -> c_int:
    ml: pointer[message_log_t] = _ml(context)
    if at_load32(address(ml.disk_low)):
        return PRESSURE_DISK
    if at_load64(address(ml.log.tail)) >= at_load64(address(ml.hold_at)):
        return PRESSURE_BUFFERS
    if _unwritten(ml.log) > ml.unwritten_max or (ml.pages != NULL and _unwritten(ml.pages) > ml.unwritten_max + ml.pages.buffer_size):
        return PRESSURE_BUFFERS
    if ml.stream_unwritten != NULL and at_load64(ml.stream_unwritten) > ml.unwritten_max:
        return PRESSURE_BUFFERS
    return PRESSURE_NONE


# --- transactions ----------------------------------------------------------------------------------------------------------------


def ml_enqueue_tx(
    ml: pointer[message_log_t],
    tx: uint64_t,
    queue_id: uint64_t,
    position: uint64_t,
    slot: pointer[slot_t],
    content: pointer[content_t],
    message_id: pointer[uint64_t],
    expires_at_ms: int64_t,
) -> uint64_t:
    lsn: uint64_t = LSN_NEVER
    message: pointer[message_t]
    location: pointer[location_t]
    log_begin(ml.log)
    if message_id[0] == 0:
        message_id[0] = content.message_id
        if message_id[0] == 0:
            message_id[0] = _new_message(ml, content, True, 0, ENQUEUE_MOST)
    message = NULL
    if message_id[0] != LSN_NEVER:
        message = list_find(address(ml.messages), message_id[0])
    if message != NULL:
        location = message_add(message, queue_id, position, expires_at_ms)
        if location != NULL:
            message.holds = 0
            location.enqueued_by = tx
            message_name(message, tx)
            if slot != NULL:
                slot.message_id = message_id[0]
            lsn = ml_write_enqueue(ml.log, message_id[0], queue_id, position, expires_at_ms, tx)
    log_end(ml.log)
    return lsn


def ml_dequeue_tx(
    ml: pointer[message_log_t],
    tx: uint64_t,
    queue_id: uint64_t,
    position: uint64_t,
    message_id: uint64_t,
    owner: uint32_t,
    reason: c_int,
    delivered_us: uint64_t,
    delivery_count: uint32_t,
) -> uint64_t:
    lsn: uint64_t = 0
    message: pointer[message_t]
    location: pointer[location_t]
    log_begin(ml.log)
    message = list_find(address(ml.messages), message_id)
    if message == NULL:
        # It had one plain place: the caller's. From now on it is listed.
        message = list_new(address(ml.messages), message_id)
        if message != NULL:
            message_add(message, queue_id, position, 0)
    location = NULL
    if message != NULL:
        location = message_find(message, queue_id, position)
    if location != NULL and location.dequeued_by == 0:
        location.dequeued_by = tx
        message_name(message, tx)
        lsn = _write_dequeue(ml.log, message_id, queue_id, position, owner, reason, delivered_us, delivery_count, tx, False)
    log_end(ml.log)
    return lsn


def ml_settle_tx(ml: pointer[message_log_t], tx: uint64_t, message_id: uint64_t, committed: bint) -> bint:
    message: pointer[message_t]
    i: uint32_t = 0
    dead: bint = False
    location: pointer[location_t]
    log_begin(ml.log)
    message = list_find(address(ml.messages), message_id)
    if message != NULL:
        while i < message.count:
            location = address(message.locations[i])
            if (location.dequeued_by & ~PLACE_FREED == tx and committed) or (location.enqueued_by == tx and not committed):
                message_drop(message, location)
                continue
            if location.dequeued_by & ~PLACE_FREED == tx:
                location.dequeued_by = 0
            if location.enqueued_by == tx:
                location.enqueued_by = 0
            i += 1
        dead = message.count == 0 and message.holds == 0
        if dead:
            ml_ended(ml, message_id, message, ml_write_delete(ml.log, message_id))
    log_end(ml.log)
    return dead


def ml_undo_dequeues(ml: pointer[message_log_t], tx: uint64_t, message_id: uint64_t, prepared: bint) -> void:
    message: pointer[message_t]
    i: uint32_t
    log_begin(ml.log)
    message = list_find(address(ml.messages), message_id)
    if message != NULL:
        for i in range(message.count):
            if message.locations[i].dequeued_by == tx:
                message.locations[i].dequeued_by = tx | PLACE_FREED if prepared else 0
    log_end(ml.log)


def ml_drop_places(ml: pointer[message_log_t], queue_id: uint64_t, message_id: uint64_t) -> void:
    log_begin(ml.log)
    _end_place(ml, queue_id, 0, message_id, ml.log.tail)
    log_end(ml.log)


def ml_drop_queue(ml: pointer[message_log_t], queue_id: uint64_t) -> void:
    cursor: uint64_t = 0
    i: uint32_t
    n: uint64_t
    count: uint64_t = 256
    message: pointer[message_t]
    dead: pointer[message_t][256]
    while count == 256:
        # A map must not change while it is walked: some dead messages are taken out, then the walk of that map begins anew.
        count = 0
        cursor = cursor >> 48 << 48
        log_begin(ml.log)
        message = list_next_message(address(ml.messages), address(cursor))
        while message != NULL and count < 256:
            i = 0
            while i < message.count:
                if message.locations[i].queue_id == queue_id:
                    message_drop(message, address(message.locations[i]))
                    if message.count == 0 and message.holds == 0:
                        dead[count] = message
                        count += 1
                else:
                    i += 1
            message = list_next_message(address(ml.messages), address(cursor))
        for n in range(count):
            # Queue-End ends its places; this ends the message, which may name transactions.
            ml_ended(ml, dead[n].id, dead[n], ml_write_delete(ml.log, dead[n].id))
        log_end(ml.log)


# --- the message list: where listed messages stand, and which transactions they name --------------------------------------------------

PLACE_FREED = declare(uint64_t, 1 << 63)


@cfunc
@inline
@nogil
@exceptval(check=False)
def _at(word: uint64_t) -> pointer[message_t]:
    return cast(pointer[message_t], cast(p_void, word))


@cfunc
@inline
@nogil
@exceptval(check=False)
def _map(messages: pointer[message_list_t], message_id: uint64_t) -> pointer[map64_t]:
    return address(messages.maps[(message_id >> 8) % LIST_MAPS])


def list_find(messages: pointer[message_list_t], message_id: uint64_t) -> pointer[message_t]:
    word: uint64_t = 0
    map_: pointer[map64_t] = _map(messages, message_id)
    if map_.count == 0 or not map64_get(map_, message_id, address(word)):
        return NULL
    return _at(word)


def list_new(messages: pointer[message_list_t], message_id: uint64_t) -> pointer[message_t]:
    message: pointer[message_t] = cast(pointer[message_t], calloc(1, sizeof(message_t)))
    if message == NULL:
        return NULL
    message.id = message_id
    message.locations = address(message.first_location)
    message.room = 1
    message.named = address(message.first_named)
    message.named_room = 1
    if not map64_put(_map(messages, message_id), message_id, cast(uint64_t, message)):
        free(message)
        return NULL
    return message


@cfunc
@nogil
@exceptval(check=False)
def _free(message: pointer[message_t]) -> void:
    if message.locations != address(message.first_location):
        free(message.locations)
    if message.named != address(message.first_named):
        free(message.named)
    free(message)


def list_forget(messages: pointer[message_list_t], message: pointer[message_t]) -> void:
    check(map64_remove(_map(messages, message.id), message.id), b"message_log I7 a forgotten message was listed", message.id, message.count)
    _free(message)


def list_free_all(messages: pointer[message_list_t]) -> void:
    cursor: uint64_t = 0
    i: uint32_t
    message: pointer[message_t] = list_next_message(messages, address(cursor))
    while message != NULL:
        _free(message)
        message = list_next_message(messages, address(cursor))
    for i in range(LIST_MAPS):
        map64_free(address(messages.maps[i]))


def list_next_message(messages: pointer[message_list_t], cursor: pointer[uint64_t]) -> pointer[message_t]:
    key: uint64_t = 0
    word: uint64_t = 0
    number: uint64_t = cursor[0] >> 48
    index: uint64_t = (cursor[0] << 16) >> 16
    while number < LIST_MAPS:
        if map64_next(address(messages.maps[number]), address(index), address(key), address(word)):
            cursor[0] = number << 48 | index
            return _at(word)
        number += 1
        index = 0
        cursor[0] = number << 48
    return NULL


@cfunc
@nogil
@exceptval(check=False)
def _grown(old: p_void, inside: bint, count: uint32_t, room: uint32_t, size: size_t) -> p_void:
    """An array with more room. inside: the old one is the message's own."""
    new: p_void
    if not inside:
        return realloc(old, room * size)
    new = malloc(room * size)
    if new != NULL:
        memcpy(new, old, count * size)
    return new


def message_add(message: pointer[message_t], queue_id: uint64_t, position: uint64_t, expires_at_ms: int64_t) -> pointer[location_t]:
    room: uint32_t
    locations: pointer[location_t]
    check(message.count <= message.room, b"message_log I6 places have their room", message.id, message.count)
    if message.count == message.room:
        room = message.room * 2
        locations = cast(pointer[location_t], _grown(message.locations, message.room == 1, message.room, room, sizeof(location_t)))
        if locations == NULL:
            return NULL
        message.locations = locations
        message.room = room
    locations = address(message.locations[message.count])
    locations.queue_id = queue_id
    locations.position = position
    locations.expires_at_ms = expires_at_ms
    locations.enqueued_by = 0
    locations.dequeued_by = 0
    message.count += 1
    return locations


def message_find(message: pointer[message_t], queue_id: uint64_t, position: uint64_t) -> pointer[location_t]:
    i: uint32_t
    for i in range(message.count):
        if message.locations[i].queue_id == queue_id and message.locations[i].position == position:
            return address(message.locations[i])
    return NULL


def message_drop(message: pointer[message_t], location: pointer[location_t]) -> void:
    # The order of places is the order in which they were asked for: keep it.
    check(
        location >= message.locations and location < message.locations + message.count,
        b"message_log I6 a place that goes is the message's",
        message.id,
        message.count,
    )
    last: pointer[location_t] = address(message.locations[message.count - 1])
    while location < last:
        location[0] = location[1]
        location += 1
    message.count -= 1


def message_name(message: pointer[message_t], tx: uint64_t) -> bint:
    i: uint32_t
    room: uint32_t
    named: pointer[uint64_t]
    for i in range(message.named_count):
        if message.named[i] == tx:
            return False
    check(message.named_count <= message.named_room, b"message_log I6 names have their room", message.id, message.named_count)
    if message.named_count == message.named_room:
        room = message.named_room * 2
        named = cast(pointer[uint64_t], _grown(message.named, message.named_room == 1, message.named_room, room, sizeof(uint64_t)))
        if named == NULL:
            return False
        message.named = named
        message.named_room = room
    message.named[message.named_count] = tx
    message.named_count += 1
    return True
