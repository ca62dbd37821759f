"""The mirror of a shared queue on the node that owns it (see mirror.pyi).

in: arrivals and ends of the queue core, on any thread without the GIL; answers of the engine. out: segments and ends for the engine;
entries of the queue.

M1  What is in the queue is in one row or behind `sent`: a row stands in its lane before its slots are looked at, so an end is noted in it,
    or is seen in the slot.
M2  `settled` rises in the order of batches.
M3  An entry leaves memory after its row is settled, and has message id 1 from its batch on: the core tells of its end.
M4  What waits for the engine is counted once when it comes, and once when its row is settled, or when it ends and is in no row.
"""

from __future__ import annotations

import os

from cython import NULL, address, bint, cast, cclass, cfunc, declare, exceptval, no_gc_clear, nogil, p_char, p_void, pointer, sizeof, void
from cython import int as c_int
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cython.cimports.flintmq.core.atomics import (
    at_add32, at_add64, at_load64, at_store32, at_store64, at_sub32, at_sub64, spin_lock, spin_unlock,
)  # fmt: skip
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.content import arena_free, arena_new, content_decref, content_t
from cython.cimports.flintmq.core.content_view import content_view
from cython.cimports.flintmq.core.memory_account import MEMORY_ENTRIES, memory_add
from cython.cimports.flintmq.mirror.rows import (
    MESSAGE_REDELIVERED, ROW_FORMAT, ROW_PLACES, row_content, row_cost, row_describe, row_head_t, row_message_t, row_next, row_open,
    row_reader_t, row_write,
)  # fmt: skip
from cython.cimports.flintmq.mirror.segments import (
    MESSAGE_OVERHEAD, MIRROR_SETTLED, PLACES_WORDS, ROW_DIRTY, ROW_ENDS, ROW_LISTED, ROW_MAKING, ROW_SETTLED, ROW_WANTED, allowance_t,
    hub_t, lane_append, lane_find, lane_free, lane_remove, lane_t, mirror_admits, mirror_outcome, mirror_soil, mirror_t, mirror_tell,
    row_end, row_has_ended, row_t,
)  # fmt: skip
from cython.cimports.flintmq.queue.consumer_manager import manager_available, manager_wake_waiters
from cython.cimports.flintmq.queue.control import QueueHandle
from cython.cimports.flintmq.queue.due import due_expiry, due_worked
from cython.cimports.flintmq.queue.entry_list import list_past_window, list_slot_locked
from cython.cimports.flintmq.queue.log_port import LogPort, log_port_wake
from cython.cimports.flintmq.queue.queue_core import queue_keep, queue_set_ports, queue_set_tail
from cython.cimports.flintmq.queue.residency import queue_content_loaded, queue_cool, queue_next_cold
from cython.cimports.flintmq.queue.restoring import list_insert
from cython.cimports.flintmq.queue.slot import slot_body_len, slot_borrow
from cython.cimports.flintmq.queue.types import (
    ENTRY_ACQUIRED, ENTRY_AVAILABLE, ENTRY_COUNT_SHIFT, ENTRY_HELD, ENTRY_LOGGED, ENTRY_REDELIVERED, ENTRY_STATE_MASK, ENTRY_UNSTEALABLE,
    INDEX_MASK, LEVEL_SHIFT, PRESSURE_NONE, QUEUE_MIRRORED, RETURNS_DELAY_CALM, RETURNS_DELAY_FAILED, queue_t, segment_t, slot_t, swept_t,
)  # fmt: skip
from cython.cimports.libc.stdint import int64_t, uint16_t, uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import calloc, free
from cython.cimports.libc.string import memcpy, memset

# entries in one section under the list's lock: some microseconds
SECTION = declare(uint32_t, 64)
# the message id of every entry whose batch was made: the core tells of its end, and it may leave memory
MIRRORED = declare(uint64_t, 1)
# a row is written anew when what ended is more than half of it, and the row has at least so many bytes
THIN_LEAST = declare(uint64_t, 4096)
ENDS_FORMAT = declare(uint8_t, 1)
# bytes of a row of ends before its counts
ENDS_HEAD = declare(uint32_t, 68)


# --- what the core tells -------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _arrived(context: p_void, queue: pointer[queue_t], position: uint64_t, slot: pointer[slot_t], expires_at_ms: int64_t) -> uint64_t:
    mirror: pointer[mirror_t] = mirror_of(queue)
    size: uint64_t = cast(uint64_t, slot_body_len(slot)) + MESSAGE_OVERHEAD
    at_add64(address(mirror.waiting), size)
    at_add64(address(mirror.allowance.bytes), size)
    mirror_tell(mirror)
    return 0


@cfunc
@nogil
@exceptval(check=False)
def _cover(mirror: pointer[mirror_t], size: uint64_t) -> void:
    """So much waits no more: it is settled, or it had ended before (M4)."""
    at_sub64(address(mirror.waiting), size)
    at_sub64(address(mirror.allowance.bytes), size)


@cfunc
@nogil
@exceptval(check=False)
def _end(mirror: pointer[mirror_t], position: uint64_t, body_len: uint32_t) -> bint:
    """Notes an end. True: there is something to write."""
    lane: pointer[lane_t] = mirror.lanes + (position >> LEVEL_SHIFT)
    index: uint64_t = position & INDEX_MASK
    row: pointer[row_t]
    row = lane_find(lane, index) if index <= lane.sent else NULL
    if row == NULL or not row_end(row, index, body_len):
        # In no batch: whoever makes it sees, or saw, that the message ended.
        _cover(mirror, cast(uint64_t, body_len) + MESSAGE_OVERHEAD)
        return False
    if row.state & ROW_MAKING:
        mirror.hub.early[mirror.hub.early_count].index = index
        mirror.hub.early[mirror.hub.early_count].body_len = body_len
        mirror.hub.early_count += 1
    mirror_soil(mirror, row)
    return row.state & ROW_LISTED != 0


@cfunc
@nogil
@exceptval(check=False)
def _ended(
    context: p_void,
    queue: pointer[queue_t],
    position: uint64_t,
    slot: pointer[slot_t],
    owner: uint32_t,
    reason: c_int,
    delivered_us: uint64_t,
) -> uint64_t:
    mirror: pointer[mirror_t] = mirror_of(queue)
    news: bint
    spin_lock(address(mirror.lock))
    news = _end(mirror, position, slot_body_len(slot))
    spin_unlock(address(mirror.lock))
    if news:
        mirror_tell(mirror)
    return 0


@cfunc
@nogil
@exceptval(check=False)
def _swept(context: p_void, queue: pointer[queue_t], swept: pointer[swept_t], count: uint32_t, ended: bint) -> uint64_t:
    mirror: pointer[mirror_t] = mirror_of(queue)
    i: uint32_t
    news: bint = False
    spin_lock(address(mirror.lock))
    for i in range(count):
        news = _end(mirror, swept[i].position, swept[i].body_len) or news
    spin_unlock(address(mirror.lock))
    if news:
        mirror_tell(mirror)
    return 0


@cfunc
@nogil
@exceptval(check=False)
def _counted(context: p_void, queue: pointer[queue_t], position: uint64_t, count: uint32_t) -> bint:
    mirror: pointer[mirror_t] = mirror_of(queue)
    row: pointer[row_t]
    spin_lock(address(mirror.lock))
    row = lane_find(mirror.lanes + (position >> LEVEL_SHIFT), position & INDEX_MASK)
    if row != NULL and not row_has_ended(row, position & INDEX_MASK):
        mirror_soil(mirror, row)
    spin_unlock(address(mirror.lock))
    mirror_tell(mirror)
    return True


@cfunc
@nogil
@exceptval(check=False)
def _wanted(context: p_void, queue: pointer[queue_t], position: uint64_t, message_id: uint64_t) -> void:
    """load_content_t: the row of a cold entry is to be read."""
    mirror: pointer[mirror_t] = mirror_of(queue)
    row: pointer[row_t]
    if message_id == 0 and not queue_next_cold(queue, position, address(position), address(message_id)):
        return
    spin_lock(address(mirror.lock))
    row = lane_find(mirror.lanes + (position >> LEVEL_SHIFT), position & INDEX_MASK)
    if row != NULL and not row.state & ROW_WANTED:
        row.state |= ROW_WANTED
        row.next_wanted = mirror.wanted
        mirror.wanted = row
    spin_unlock(address(mirror.lock))
    mirror_tell(mirror)


@cfunc
@nogil
@exceptval(check=False)
def _no_pressure(context: p_void) -> c_int:
    return PRESSURE_NONE


@no_gc_clear  # its allowances are needed to the end
@cclass
class MirrorPort(LogPort):
    """See mirror.pyi."""

    def __cinit__(self, hot_bytes: int, queue_bytes_max: int, vhost_bytes_max: int, log: LogPort | None = None):
        memset(address(self.hub), 0, sizeof(hub_t))
        self.messages = cast(pointer[row_message_t], calloc(ROW_PLACES, sizeof(row_message_t)))
        self.arena = arena_new()
        if self.messages == NULL or self.arena == NULL:
            raise MemoryError("no memory for the mirrors of shared queues")
        memory_add(MEMORY_ENTRIES, ROW_PLACES * sizeof(row_message_t))
        self.hub.descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.queue_bytes_max = queue_bytes_max
        self.vhost_bytes_max = vhost_bytes_max
        self.allowances = {}
        self.log = log
        self.port.context = address(self.hub)
        self.port.hot_bytes = hot_bytes
        self.port.enqueue = _arrived
        self.port.dequeue = _ended
        self.port.sweep = _swept
        self.port.counted = _counted
        self.port.load = _wanted
        self.port.pressure = _no_pressure

    def __dealloc__(self):
        # The last mirror is gone.
        if self.hub.descriptor > 0:
            os.close(self.hub.descriptor)
            memory_add(MEMORY_ENTRIES, -cast(int64_t, ROW_PLACES * sizeof(row_message_t)))
        free(self.messages)
        if self.arena != NULL:
            arena_free(self.arena)
        for number in self.allowances.values():
            place: uint64_t = number
            free(cast(pointer[allowance_t], place))

    def wake(self) -> None:
        if self.log is not None:
            log_port_wake(address(self.log.port))

    def rest(self, level: int) -> None:
        self.rests = level
        for number in list(self.allowances.values()):
            place: uint64_t = number
            at_store32(address(cast(pointer[allowance_t], place).rests), self.rests)

    def waiting_bytes(self) -> int:
        total: uint64_t = 0
        for number in list(self.allowances.values()):
            place: uint64_t = number
            total += at_load64(address(cast(pointer[allowance_t], place).bytes))
        return total

    def _allowance(self, vhost: str) -> pointer[allowance_t]:
        number: uint64_t = self.allowances.get(vhost, 0)
        allowance: pointer[allowance_t] = cast(pointer[allowance_t], number)
        if allowance == NULL:
            allowance = cast(pointer[allowance_t], calloc(1, sizeof(allowance_t)))
            if allowance == NULL:
                raise MemoryError("no memory for the shared queues of a virtual host")
            allowance.bytes_max = self.vhost_bytes_max
            allowance.rests = self.rests
            self.allowances[vhost] = cast(uint64_t, allowance)
        return allowance

    @property
    def descriptor(self) -> int:
        return self.hub.descriptor

    def take_told(self) -> list:
        mirror: pointer[mirror_t]
        ids: list = []
        try:
            os.eventfd_read(self.hub.descriptor)
        except BlockingIOError:
            return ids
        spin_lock(address(self.hub.lock))
        mirror = self.hub.told
        self.hub.told = NULL
        spin_unlock(address(self.hub.lock))
        while mirror != NULL:
            ids.append(mirror.queue.id)
            # Before its news are looked at: what comes from here on tells again.
            following: pointer[mirror_t] = mirror.next_told
            at_store32(address(mirror.told), 0)
            mirror = following
        return ids


# --- one queue -----------------------------------------------------------------------------------------------------------


@cfunc
@exceptval(-1)
def _open(data: bytes, reader: pointer[row_reader_t]) -> c_int:
    """Raises: ValueError: it is no row."""
    source: p_char = data
    if not row_open(reader, cast(pointer[uint8_t], source), len(data)):
        raise ValueError("a row of a shared queue is damaged, or of another version")
    return 0


@cfunc
@nogil
@exceptval(check=False)
def _counts_of(queue: pointer[queue_t], row: pointer[row_t], counts: pointer[uint16_t]) -> uint16_t:
    """(place, returns) of the entries of a row that came back, two numbers each; returns how many."""
    segment: pointer[segment_t] = NULL
    slot: pointer[slot_t]
    state: uint64_t
    number: uint16_t = 0
    count: uint16_t
    waits: bint
    index: uint64_t = row.first
    last: uint64_t = row.first + row.places - 1
    end: uint64_t
    while index <= last:
        end = min(last, index + SECTION - 1)
        spin_lock(address(queue.entries.lock))
        while index <= end:
            slot = list_slot_locked(address(queue.entries), (cast(uint64_t, row.level) << LEVEL_SHIFT) | index, address(segment))
            state = at_load64(address(slot.state)) if slot != NULL else 0
            if state & ENTRY_STATE_MASK != ENTRY_AVAILABLE and state & ENTRY_STATE_MASK != ENTRY_ACQUIRED:
                state = 0
            count = cast(uint16_t, (state >> ENTRY_COUNT_SHIFT) & 0xFFFF)
            # One that waits for its next delivery came back once more than it was released.
            waits = state & (ENTRY_STATE_MASK | ENTRY_UNSTEALABLE | ENTRY_HELD) == ENTRY_ACQUIRED | ENTRY_UNSTEALABLE
            if waits and count != 0xFFFF:
                count += 1
            if count:
                counts[2 * number] = cast(uint16_t, index - row.first)
                counts[2 * number + 1] = count
                number += 1
            index += 1
        spin_unlock(address(queue.entries.lock))
    return number


@no_gc_clear  # it needs its port to the end
@cclass
class MirrorRecord:
    """Of one queue, see mirror.pxd."""

    def __cinit__(self, handle: QueueHandle, port: MirrorPort, vhost: str):
        queue: pointer[queue_t] = handle.queue
        level_count: uint32_t = queue.entries.level_count
        memset(address(self.mirror), 0, sizeof(mirror_t))
        self.port = port
        self.mirror.hub = address(port.hub)
        self.mirror.queue = queue
        self.mirror.lanes = cast(pointer[lane_t], calloc(level_count, sizeof(lane_t)))
        if self.mirror.lanes == NULL:
            raise MemoryError("no memory for the mirror of a queue")
        self.mirror.level_count = level_count
        self.mirror.bytes_max = port.queue_bytes_max
        self.mirror.allowance = port._allowance(vhost)
        memory_add(MEMORY_ENTRIES, level_count * sizeof(lane_t))
        queue.durable = QUEUE_MIRRORED
        queue.ops_context = address(self.mirror)
        queue_set_ports(queue, address(port.port))
        queue_keep(address(queue.port_owner), self)

    def __dealloc__(self):
        place: pointer[pointer[mirror_t]]
        i: uint32_t
        if self.mirror.level_count == 0:
            return
        spin_lock(address(self.mirror.hub.lock))
        place = address(self.mirror.hub.told)
        while place[0] != NULL:
            if place[0] == address(self.mirror):
                place[0] = self.mirror.next_told
                break
            place = address(place[0].next_told)
        spin_unlock(address(self.mirror.hub.lock))
        if self.mirror.allowance != NULL:
            at_sub64(address(self.mirror.allowance.bytes), self.mirror.waiting)
        memory_add(MEMORY_ENTRIES, -cast(int64_t, self.mirror.level_count * sizeof(lane_t)))
        for i in range(self.mirror.level_count):
            lane_free(self.mirror.lanes + i)
        free(self.mirror.lanes)


@cclass
class Mirror:
    """See mirror.pyi."""

    def __cinit__(self, handle: QueueHandle, port: MirrorPort, vhost: str):
        self.handle = handle
        self.record = MirrorRecord(handle, port, vhost)
        self.mirror = address(self.record.mirror)
        self.port = port

    # --- batches -----------------------------------------------------------------------------------------------------

    def take(self, epoch: int, batch: int, messages: int, size: int, most_segments: int) -> list:
        head: row_head_t
        lane: pointer[lane_t]
        tail: uint64_t
        level: uint32_t
        least: uint64_t
        most: uint32_t = messages
        rest: uint64_t = size
        segments: list = []
        memset(address(head), 0, sizeof(row_head_t))
        head.epoch = epoch
        head.batch = batch
        for level in range(self.mirror.level_count):
            lane = self.mirror.lanes + level
            tail = at_load64(address(self.mirror.queue.entries.levels[level].tail))
            if lane.sent >= tail or most == 0:
                continue
            least = lane.sent + 1
            head.places = cast(uint32_t, min(min(tail - lane.sent, cast(uint64_t, ROW_PLACES)), cast(uint64_t, most)))
            row: bytes = self._segment(lane, level, address(head), rest)
            if head.places == 0:
                continue  # an entry of a transaction stands there
            segments.append(((cast(uint64_t, level) << LEVEL_SHIFT) | least, row))
            most -= min(most, head.count)
            if head.size >= rest or len(segments) == most_segments:
                break
            rest -= head.size
        return segments

    def _segment(self, lane: pointer[lane_t], level: uint32_t, head: pointer[row_head_t], size_max: uint64_t) -> bytes:
        """The next segment of a level, of head.places places at most; b"": nothing of it is left. Sets what it came to in `head`."""
        row: pointer[row_t]
        i: uint32_t
        place: uint32_t
        made: bytes = b""
        out: pointer[uint8_t]
        spin_lock(address(self.mirror.lock))
        row = lane_append(lane, level, lane.sent + 1, head.places)
        if row != NULL:
            row.state = ROW_MAKING
            self.mirror.hub.early_count = 0
            lane.sent += head.places
        spin_unlock(address(self.mirror.lock))
        if row == NULL:
            raise MemoryError("no memory for a segment of a shared queue")
        head.format = ROW_FORMAT
        head.level = cast(uint8_t, level)
        head.first = row.first
        with nogil:
            self._scan(row, row.first + head.places - 1, head, size_max)
        try:
            if head.count:
                made = PyBytes_FromStringAndSize(NULL, head.size)
                out = cast(pointer[uint8_t], PyBytes_AS_STRING(made))
                with nogil:
                    row_write(out, head, self.port.messages)
        finally:
            spin_lock(address(self.mirror.lock))
            lane.sent = row.first + head.places - 1
            row.places = head.places
            row.state &= ~cast(uint32_t, ROW_MAKING)
            self._cover_early(row, head.count)
            for i in range(PLACES_WORDS):
                # What ended behind the last place is seen by the next scan.
                if i * 64 + 64 > row.places:
                    row.ended[i] &= (cast(uint64_t, 1) << (row.places - i * 64)) - 1 if row.places > i * 64 else 0
            row.live = 0
            row.size = row.live_size = 0
            place = 0
            for i in range(head.count):
                while place < self.port.messages[i].fields.place:
                    row.ended[place >> 6] |= cast(uint64_t, 1) << (place & 63)
                    place += 1
                row.size += cast(uint64_t, self.port.messages[i].fields.body_len) + MESSAGE_OVERHEAD
                if not row_has_ended(row, row.first + place):
                    row.live += 1
                    row.live_size += cast(uint64_t, self.port.messages[i].fields.body_len) + MESSAGE_OVERHEAD
                place += 1
            while place < row.places:
                row.ended[place >> 6] |= cast(uint64_t, 1) << (place & 63)
                place += 1
            if row.live == head.count:
                row.state &= ~cast(uint32_t, ROW_DIRTY)  # a scan saw what ended before
            if row.places == 0:
                lane_remove(lane, row)
            spin_unlock(address(self.mirror.lock))
            for i in range(head.count):
                content_decref(self.port.messages[i].content)
        return made

    def _cover_early(self, row: pointer[row_t], count: uint32_t) -> void:
        """Ends that came while the row was made, of messages that are not in it: it became shorter, or was looked at after the end."""
        hub: pointer[hub_t] = self.mirror.hub
        taken: uint64_t[8]
        place: uint64_t
        i: uint32_t
        memset(taken, 0, sizeof(taken))
        for i in range(count):
            place = self.port.messages[i].fields.place
            taken[place >> 6] |= cast(uint64_t, 1) << (place & 63)
        for i in range(hub.early_count):
            place = hub.early[i].index - row.first
            if place >= row.places or not (taken[place >> 6] >> (place & 63)) & 1:
                _cover(self.mirror, cast(uint64_t, hub.early[i].body_len) + MESSAGE_OVERHEAD)
        hub.early_count = 0

    def _scan(self, row: pointer[row_t], last: uint64_t, head: pointer[row_head_t], size_max: uint64_t) -> void:
        """Borrows the contents of a row's entries, and sets head.places, count and size to what it came to."""
        queue: pointer[queue_t] = self.mirror.queue
        segment: pointer[segment_t] = NULL
        slot: pointer[slot_t]
        message: pointer[row_message_t]
        content: pointer[content_t]
        state: uint64_t
        index: uint64_t = row.first
        end: uint64_t
        stop: bint = False
        head.count = 0
        head.size = sizeof(row_head_t)
        at_add32(address(queue.pins), 1)
        while index <= last and not stop:
            end = min(last, index + SECTION - 1)
            spin_lock(address(queue.entries.lock))
            while index <= end:
                slot = list_slot_locked(address(queue.entries), (cast(uint64_t, row.level) << LEVEL_SHIFT) | index, address(segment))
                state = at_load64(address(slot.state)) if slot != NULL else 0
                if state & ENTRY_HELD and state & ENTRY_STATE_MASK == ENTRY_ACQUIRED:
                    stop = True  # a transaction decides
                    break
                content = NULL
                if state & ENTRY_STATE_MASK == ENTRY_AVAILABLE or state & ENTRY_STATE_MASK == ENTRY_ACQUIRED:
                    content = slot_borrow(slot, True, address(state))
                if content != NULL:
                    message = self.port.messages + head.count
                    message.content = content
                    if head.count and head.size + row_cost(content) > size_max:
                        content_decref(content)  # not the last one: the slot keeps its own
                        stop = True
                        break
                    slot.message_id = MIRRORED
                    message.fields.place = cast(uint16_t, index - row.first)
                    message.fields.deliveries = cast(uint16_t, (state >> ENTRY_COUNT_SHIFT) & 0xFFFF)
                    message.fields.flags = MESSAGE_REDELIVERED if state & ENTRY_REDELIVERED else 0
                    message.fields.expires_at_ms = 0 if segment.expiry == NULL else segment.expiry[index - segment.base]
                    row_describe(message)
                    head.size += cast(uint32_t, row_cost(content))
                    head.count += 1
                index += 1
            spin_unlock(address(queue.entries.lock))
        at_sub32(address(queue.pins), 1)
        head.places = cast(uint32_t, index - row.first)

    def settle(self, positions: list) -> None:
        lane: pointer[lane_t]
        row: pointer[row_t]
        first: uint64_t
        first_position: uint64_t
        places: uint32_t
        for position in positions:
            lane = self._lane(position)
            first = position & INDEX_MASK
            spin_lock(address(self.mirror.lock))
            row = lane_find(lane, first)
            if row == NULL:
                spin_unlock(address(self.mirror.lock))
                raise KeyError(position)
            row.state |= ROW_SETTLED
            check(row.first > at_load64(address(lane.settled)), b"mirror M2 batches settle in order", row.first, lane.settled)
            at_store64(address(lane.settled), row.first + row.places - 1)
            _cover(self.mirror, row.size)
            if row.size == 0:
                lane_remove(lane, row)
                row = NULL
            elif row.state & ROW_DIRTY:
                mirror_soil(self.mirror, row)
            places = 0 if row == NULL else row.places
            spin_unlock(address(self.mirror.lock))
            if places:
                first_position = position
                with nogil:
                    queue_cool(self.mirror.queue, first_position, places)

    def lose(self) -> None:
        at_store32(address(self.mirror.lost), 1)
        self.port.wake()

    def admits(self, size: int) -> bool:
        return mirror_admits(self.mirror, size, 0)

    @property
    def waiting_bytes(self) -> int:
        return at_load64(address(self.mirror.waiting))

    def is_settled(self, position: int) -> bool:
        self._lane(position)
        return mirror_outcome(self.mirror, position) == MIRROR_SETTLED

    def sent_to(self) -> list:
        i: uint32_t
        sent: list = []
        for i in range(self.mirror.level_count):
            sent.append(self.mirror.lanes[i].sent)
        return sent

    @property
    def unsent(self) -> int:
        i: uint32_t
        count: uint64_t = 0
        # Whoever told of an arrival shows its entry, and moves the tail, before he lets go of the lock.
        spin_lock(address(self.mirror.queue.log_lock))
        spin_unlock(address(self.mirror.queue.log_lock))
        for i in range(self.mirror.level_count):
            count += at_load64(address(self.mirror.queue.entries.levels[i].tail)) - self.mirror.lanes[i].sent
        return count

    # --- ends ----------------------------------------------------------------------------------------------------------

    def take_ends(self, most: int) -> list:
        row: pointer[row_t]
        taken: list = []
        while len(taken) < most:
            spin_lock(address(self.mirror.lock))
            row = self.mirror.ended
            if row == NULL:
                spin_unlock(address(self.mirror.lock))
                break
            self.mirror.ended = row.next_ended
            self.mirror.ended_count -= 1
            row.state &= ~cast(uint32_t, ROW_LISTED | ROW_DIRTY)
            # Decided here: nothing lists a row again that has nothing left to end.
            gone: bint = row.live == 0
            thin: bint = row.size >= THIN_LEAST and row.live_size * 2 < row.size
            spin_unlock(address(self.mirror.lock))
            position: uint64_t = (cast(uint64_t, row.level) << LEVEL_SHIFT) | row.first
            if gone:
                taken.append((position, True, b"", False))
            else:
                taken.append((position, False, self._ends_of(row), thin))
        return taken

    def _ends_of(self, row: pointer[row_t]) -> bytes:
        head: uint8_t[68]
        counts: uint16_t[1024]
        number: uint16_t = 0
        memset(head, 0, ENDS_HEAD)
        head[0] = ENDS_FORMAT
        if at_load64(address(self.mirror.queue.entries.released)) or self.mirror.queue.returns & (
            RETURNS_DELAY_FAILED | RETURNS_DELAY_CALM
        ):
            number = _counts_of(self.mirror.queue, row, counts)
        memcpy(head + 2, address(number), sizeof(uint16_t))
        spin_lock(address(self.mirror.lock))
        memcpy(head + 4, row.ended, sizeof(row.ended))
        spin_unlock(address(self.mirror.lock))
        return PyBytes_FromStringAndSize(cast(p_char, head), ENDS_HEAD) + PyBytes_FromStringAndSize(
            cast(p_char, counts), number * 2 * sizeof(uint16_t)
        )

    @property
    def ended_rows(self) -> int:
        return self.mirror.ended_count

    def note_ends(self, position: int) -> None:
        row: pointer[row_t] = self._row(position)
        spin_lock(address(self.mirror.lock))
        row.state |= ROW_ENDS
        spin_unlock(address(self.mirror.lock))

    def has_ends(self, position: int) -> bool:
        return self._row(position).state & ROW_ENDS != 0

    def has_row(self, position: int) -> bool:
        lane: pointer[lane_t] = self._lane(position)
        there: bint
        spin_lock(address(self.mirror.lock))
        there = lane_find(lane, position & INDEX_MASK) != NULL
        spin_unlock(address(self.mirror.lock))
        return there

    def soil(self, position: int) -> None:
        row: pointer[row_t] = self._row(position)
        spin_lock(address(self.mirror.lock))
        mirror_soil(self.mirror, row)
        spin_unlock(address(self.mirror.lock))

    def drop(self, position: int) -> None:
        lane: pointer[lane_t] = self._lane(position)
        row: pointer[row_t] = self._row(position)
        place: pointer[pointer[row_t]]
        spin_lock(address(self.mirror.lock))
        if row.state & ROW_WANTED:
            place = address(self.mirror.wanted)
            while place[0] != row:
                place = address(place[0].next_wanted)
            place[0] = row.next_wanted
            row.state &= ~cast(uint32_t, ROW_WANTED)
        lane_remove(lane, row)
        spin_unlock(address(self.mirror.lock))

    def thin(self, position: int, data: bytes) -> tuple:
        row: pointer[row_t] = self._row(position)
        reader: row_reader_t
        message: row_message_t
        pieces: list = []
        size: uint64_t = sizeof(row_head_t)
        body_size: uint64_t = 0
        count: uint32_t = 0
        begin: uint64_t
        end: c_int
        ended: bint
        _open(data, address(reader))
        while True:
            begin = reader.at
            end = row_next(address(reader), address(message))
            if end <= 0:
                break
            spin_lock(address(self.mirror.lock))
            ended = row_has_ended(row, row.first + message.fields.place)
            spin_unlock(address(self.mirror.lock))
            if ended:
                continue
            pieces.append(data[begin : reader.at])
            size += reader.at - begin
            body_size += cast(uint64_t, message.fields.body_len) + MESSAGE_OVERHEAD
            count += 1
        if end < 0:
            raise ValueError("a row of a shared queue is damaged")
        reader.head.count = count
        reader.head.size = cast(uint32_t, size)
        pieces.insert(0, PyBytes_FromStringAndSize(cast(p_char, address(reader.head)), sizeof(row_head_t)))
        return b"".join(pieces), body_size

    def thinned(self, position: int, size: int) -> None:
        self._row(position).size = size

    # --- a new owner, and contents that are not in memory --------------------------------------------------------------------

    def restore(self, data: bytes, ends: bytes, redelivered: bool) -> int:
        queue: pointer[queue_t] = self.mirror.queue
        reader: row_reader_t
        message: row_message_t
        lane: pointer[lane_t]
        row: pointer[row_t]
        end: c_int
        i: uint32_t
        index: uint64_t
        last: uint64_t
        expected: uint32_t
        flagged: bint = redelivered
        counts: dict = self._read_ends(ends)
        bits: p_char = ends
        restored = 0
        _open(data, address(reader))
        if reader.head.level >= self.mirror.level_count:
            raise ValueError("a row of a shared queue has a priority that the queue has not")
        lane = self.mirror.lanes + reader.head.level
        last = reader.head.first + reader.head.places - 1
        if reader.head.first <= lane.sent:
            raise ValueError("rows of a shared queue overlap")
        spin_lock(address(self.mirror.lock))
        row = lane_append(lane, reader.head.level, reader.head.first, reader.head.places)
        spin_unlock(address(self.mirror.lock))
        if row == NULL:
            raise MemoryError("no memory for a segment of a shared queue")
        row.state = ROW_SETTLED | (ROW_ENDS if ends else 0)
        row.live = 0
        for i in range(PLACES_WORDS):
            row.ended[i] = ~cast(uint64_t, 0)
        while True:
            end = row_next(address(reader), address(message))
            if end <= 0:
                break
            row.size += cast(uint64_t, message.fields.body_len) + MESSAGE_OVERHEAD
            expected = message.fields.place
            if ends and (cast(uint8_t, bits[4 + (expected >> 3)]) >> (expected & 7)) & 1:
                continue
            count: uint64_t = counts.get(expected, message.fields.deliveries)
            index = reader.head.first + expected
            if not self._insert(address(message), index, reader.head.level, count, flagged):
                raise MemoryError("no memory for a message of a shared queue")
            row.ended[expected >> 6] &= ~(cast(uint64_t, 1) << (expected & 63))
            row.live += 1
            row.live_size += cast(uint64_t, message.fields.body_len) + MESSAGE_OVERHEAD
            restored += 1
        if end < 0:
            raise ValueError("a row of a shared queue is damaged")
        lane.sent = last
        at_store64(address(lane.settled), last)
        queue_set_tail(queue, reader.head.level, last)
        if row.live == 0:
            self.soil((cast(uint64_t, row.level) << LEVEL_SHIFT) | row.first)
        return restored

    def _insert(self, message: pointer[row_message_t], index: uint64_t, level: uint32_t, count: uint64_t, flagged: bint) -> bint:
        queue: pointer[queue_t] = self.mirror.queue
        content: pointer[content_t] = NULL
        wanted: uint32_t = 0
        position: uint64_t
        flags: uint64_t = ENTRY_LOGGED | (count << ENTRY_COUNT_SHIFT)
        if flagged or count or message.fields.flags & MESSAGE_REDELIVERED:
            flags |= ENTRY_REDELIVERED
        if not list_past_window(address(queue.entries), message.fields.body_len, at_load64(address(self.mirror.queue.port.hot_bytes))):
            content = row_content(self.port.arena, message)
            if content == NULL:
                return False
        spin_lock(address(queue.log_lock))
        position = list_insert(
            address(queue.entries), level, index, content, MIRRORED, message.fields.body_len, flags, message.fields.expires_at_ms,
            address(wanted), NULL,
        )  # fmt: skip
        spin_unlock(address(queue.log_lock))
        if content != NULL:
            content_decref(content)
        return position != 0

    def _read_ends(self, ends: bytes) -> dict:
        number: uint16_t
        data: p_char = ends
        if not ends:
            return {}
        memcpy(address(number), data + 2, sizeof(uint16_t))
        if len(ends) != ENDS_HEAD + 4 * number or ends[0] != ENDS_FORMAT:
            raise ValueError("a row of ends of a shared queue is damaged")
        return {
            int.from_bytes(ends[begin : begin + 2], "little"): int.from_bytes(ends[begin + 2 : begin + 4], "little")
            for begin in range(ENDS_HEAD, len(ends), 4)
        }

    def restored(self, tails: list) -> None:
        queue: pointer[queue_t] = self.mirror.queue
        level: uint32_t
        index: uint64_t
        for level in range(min(self.mirror.level_count, len(tails))):
            index = tails[level]
            if index > self.mirror.lanes[level].sent:
                self.mirror.lanes[level].sent = index
                at_store64(address(self.mirror.lanes[level].settled), index)
                queue_set_tail(queue, level, index)
        due_worked(queue)
        due_expiry(queue)
        manager_available(queue, 0, NULL, True)
        manager_wake_waiters(queue)

    def take_wanted(self) -> list:
        row: pointer[row_t]
        positions: list = []
        spin_lock(address(self.mirror.lock))
        row = self.mirror.wanted
        self.mirror.wanted = NULL
        spin_unlock(address(self.mirror.lock))
        while row != NULL:
            positions.append((cast(uint64_t, row.level) << LEVEL_SHIFT) | row.first)
            # A reader that wants it from here on asks anew.
            following: pointer[row_t] = row.next_wanted
            spin_lock(address(self.mirror.lock))
            row.state &= ~cast(uint32_t, ROW_WANTED)
            spin_unlock(address(self.mirror.lock))
            row = following
        return positions

    def load(self, data: bytes) -> None:
        reader: row_reader_t
        message: row_message_t
        content: pointer[content_t]
        end: c_int
        _open(data, address(reader))
        while True:
            end = row_next(address(reader), address(message))
            if end <= 0:
                break
            content = row_content(self.port.arena, address(message))
            if content == NULL:
                raise MemoryError("no memory for a message of a shared queue")
            queue_content_loaded(
                self.mirror.queue, (cast(uint64_t, reader.head.level) << LEVEL_SHIFT) | (reader.head.first + message.fields.place), content
            )
            content_decref(content)
        if end < 0:
            raise ValueError("a row of a shared queue is damaged")

    def views(self, data: bytes) -> list:
        reader: row_reader_t
        message: row_message_t
        content: pointer[content_t]
        end: c_int
        position: uint64_t
        views: list = []
        _open(data, address(reader))
        while True:
            end = row_next(address(reader), address(message))
            if end <= 0:
                break
            content = row_content(self.port.arena, address(message))
            if content == NULL:
                raise MemoryError("no memory for a message of a shared queue")
            position = (cast(uint64_t, reader.head.level) << LEVEL_SHIFT) | (reader.head.first + message.fields.place)
            views.append((position, content_view(content)))
        if end < 0:
            raise ValueError("a row of a shared queue is damaged")
        return views

    def _lane(self, position: uint64_t) -> pointer[lane_t]:
        if position >> LEVEL_SHIFT >= self.mirror.level_count:
            raise KeyError(position)
        return self.mirror.lanes + (position >> LEVEL_SHIFT)

    def _row(self, position: uint64_t) -> pointer[row_t]:
        lane: pointer[lane_t] = self._lane(position)
        row: pointer[row_t]
        spin_lock(address(self.mirror.lock))
        row = lane_find(lane, position & INDEX_MASK)
        spin_unlock(address(self.mirror.lock))
        if row == NULL:
            raise KeyError(position)
        return row
