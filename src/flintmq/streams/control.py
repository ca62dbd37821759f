"""A stream and its groups for the control plane, the session layer and tests (see control.pyi for what each promises).

in: a queue handle and a source; consumers that want a seat; saved states of groups; ticks. out: seats, states to save, dead messages,
losses, figures. Holds the queue through its handle, so the C records live at least as long.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cclass, cfunc, exceptval, nogil, p_char, p_void, pointer, sizeof, void
from cython import int as c_int
from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
from cython.cimports.flintmq.core.atomics import at_add32, at_load32, at_load64, at_store32, at_store64, spin_lock, spin_unlock
from cython.cimports.flintmq.core.content import content_decref, content_t
from cython.cimports.flintmq.core.content_view import ContentView, content_view
from cython.cimports.flintmq.core.memory_account import MEMORY_STREAMS, memory_add
from cython.cimports.flintmq.queue.control import QueueHandle, content_tuple
from cython.cimports.flintmq.queue.queue_core import queue_decref, queue_incref
from cython.cimports.flintmq.queue.types import CONSUMER_ACQUIRES, consumer_t
from cython.cimports.flintmq.scheduler.due_clock import DueClock, due_clock_incref
from cython.cimports.flintmq.store.stream.stream_batch import (
    stream_batch_clear, stream_batch_free, stream_batch_t, stream_filter_free, stream_filter_new, stream_filter_t,
)  # fmt: skip
from cython.cimports.flintmq.store.stream.stream_files import StreamSource
from cython.cimports.flintmq.store.stream.stream_log import STREAM_COLD, STREAM_MESSAGES
from cython.cimports.flintmq.store.stream.stream_reader import stream_reader_t
from cython.cimports.flintmq.streams.cursor import cursor_forget, cursor_init, cursor_move, cursor_position, cursor_read
from cython.cimports.flintmq.streams.group import group_base, group_dead_done, group_new, group_next_dead, group_tick, open_cut
from cython.cimports.flintmq.streams.group_state import group_read, group_room, group_write
from cython.cimports.flintmq.streams.stream_queue import (
    cursor_answered, cursor_refused, seat_free, stream_install, stream_next_group, stream_wake_all, stream_wake_group,
)  # fmt: skip
from cython.cimports.flintmq.streams.types import DEAD_LIMIT, GROUP_NAME_MAX, SEAT_BESIDE, cursor_t, group_t, seat_t, stream_queue_t
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import calloc, free, malloc
from cython.cimports.libc.string import memcmp

REASON_LIMIT = DEAD_LIMIT
# the highest offset that a consumer may wait for
OFFSET_MAX = 1 << 55


class FilterDiffers(ValueError):
    """The members of a group all have the same x-stream-filter."""


def seat_give(seat: Seat | None, consumer: pointer[consumer_t]) -> c_int:
    if seat.seat == NULL:
        raise ValueError("the seat is taken")
    if consumer.queue != seat.owner.handle.queue or not consumer.flags & CONSUMER_ACQUIRES or consumer.reader != NULL:
        raise ValueError("no consumer for this seat")
    consumer.reader = seat.seat
    seat.seat.consumer = consumer
    seat.seat = NULL
    return 0


@cfunc
@nogil
@exceptval(check=False)
def _keep(context: p_void, cursor: pointer[cursor_t]) -> void:
    """Manual reads: the request waits for StreamQueue.step_reads."""
    owner: pointer[kept_t] = cast(pointer[kept_t], context)
    spin_lock(address(owner.lock))
    cursor.next_asked = owner.first
    owner.first = cursor
    spin_unlock(address(owner.lock))


@cclass
class Seat:
    """A place in the stream for one consumer, until seat_give gives it away. Dropped without, it is given back."""

    def __dealloc__(self):
        if self.seat != NULL:
            seat_free(self.seat)
        if self.queue != NULL:
            queue_decref(self.queue)


@cclass
class StreamQueue:
    """See control.pyi."""

    def __cinit__(
        self,
        handle: QueueHandle,
        source: StreamSource,
        open_max: int = 65_536,
        batch_messages: int = 256,
        batch_bytes: int = 262_144,
        dead_letters: bool = False,
        delivery_limit: int = -1,
        delay_ms: int = 0,
        visibility_ms: int = 0,
        manual_clock: bool = False,
        manual_reads: bool = False,
    ):
        stream: pointer[stream_queue_t]
        if handle.queue.ops != NULL:
            raise ValueError("the queue is a stream already")
        if open_max < 1 or batch_messages < 1 or batch_bytes < 1:
            raise ValueError("limits begin at 1")
        stream = cast(pointer[stream_queue_t], calloc(1, sizeof(stream_queue_t)))
        if stream == NULL:
            raise MemoryError("no memory for a stream")
        self.handle = handle
        self.source = source
        self.filters = {}
        self.visibility_ms = visibility_ms
        stream.source = source.source
        stream.open_max = open_max
        stream.batch_messages = batch_messages
        stream.batch_bytes = batch_bytes
        stream.dead_letters = dead_letters
        stream.delivery_limit = delivery_limit
        stream.delay_ms = delay_ms
        self.stream = stream
        if manual_clock:
            stream.clock = address(self.clock)
            self.clock = 1
        if manual_reads:
            stream.ask = _keep
            stream.ask_context = address(self.kept)
        stream.source.incref(stream.source.log)
        stream_install(handle.queue, stream)
        self.queue = handle.queue
        queue_incref(self.queue)

    def __dealloc__(self):
        cursor: pointer[cursor_t]
        if self.queue == NULL:
            return
        # Consumers may live longer: what they would call of this object is no more.
        if self.stream.clock == address(self.clock):
            self.stream.clock = NULL
        if self.stream.ask_context == address(self.kept):
            self.stream.ask = NULL
            while self.kept.first != NULL:
                cursor = self.kept.first
                self.kept.first = cursor.next_asked
                cursor_refused(cursor)
        queue_decref(self.queue)

    def use_clock(self, clock: DueClock) -> None:
        if self.stream.due != NULL:
            raise ValueError("the stream has a clock already")
        due_clock_incref(clock.clock)
        self.stream.due = clock.clock

    # --- seats ----------------------------------------------------------------------------------------------------------

    def find(self, name: bytes | None) -> pointer[group_t]:
        group: pointer[group_t] = stream_next_group(self.stream, NULL)
        while group != NULL:
            if group.name_len == len(name) and memcmp(group.name, cast(p_char, name), group.name_len) == 0:
                return group
            group = stream_next_group(self.stream, group)
        return NULL

    def named(self, name: bytes | None) -> pointer[group_t]:
        """The group, made if need be. Under the GIL, so one maker at a time."""
        group: pointer[group_t] = self.find(name)
        if group != NULL:
            return group
        if not 0 < len(name) <= GROUP_NAME_MAX:
            raise ValueError(f"a group's name has 1 to {GROUP_NAME_MAX} bytes")
        group = group_new(self.stream, cast(pointer[uint8_t], cast(p_char, name)), len(name))
        if group == NULL:
            raise MemoryError("no memory for a group")
        group.visibility_ms = self.visibility_ms
        spin_lock(address(self.handle.queue.manager.lock))
        group.next_group = self.stream.groups
        self.stream.groups = group
        spin_unlock(address(self.handle.queue.manager.lock))
        return group

    def start_offset(self, start: str, value: int = 0) -> int:
        first: uint64_t = self.stream.source.first(self.stream.source.log)
        visible: uint64_t = self.stream.source.visible(self.stream.source.log)
        place: pointer[stream_reader_t]
        offset: uint64_t
        ms: int64_t
        if start == "first":
            return first
        if start == "next":
            return visible
        if start == "last":
            return visible - 1 if visible > first else visible
        if start == "offset":
            if value < 0:
                raise ValueError("an offset is not negative")
            return max(first, min(value, OFFSET_MAX))  # a lone consumer waits for one that is not there yet, as on RabbitMQ
        if start != "time":
            raise ValueError(f"unknown start: {start}")
        ms = value
        place = self.stream.source.new_reader(self.stream.source.log)
        if place == NULL:
            raise MemoryError("no memory to look for a time")
        with nogil:
            offset = self.stream.source.find_time(self.stream.source.log, place, cast(uint64_t, ms) if ms > 0 else 0)
            self.stream.source.free_reader(place)
        return offset

    def open_seat(
        self,
        start: str = "next",
        value: int = 0,
        group: bytes | None = None,
        filters: list[bytes] | None = None,
        match_unfiltered: bool = False,
        visibility_ms: int = -1,
    ) -> Seat:
        wanted = (tuple(sorted(set(filters))), bool(match_unfiltered)) if filters else None
        offset: uint64_t = 0
        group_of: pointer[group_t] = NULL
        seat: Seat
        filter: pointer[stream_filter_t] = NULL
        if group is not None:
            group_of = self.named(group)
            if self.filters.get(group) != wanted and at_load32(address(group_of.member_count)):
                raise FilterDiffers("the members of a group have the same filter")
        if group_of == NULL or not at_load32(address(group_of.started)):
            offset = self.start_offset(start, value)
        seat = Seat.__new__(Seat)
        seat.owner = self
        seat.queue = self.queue
        queue_incref(self.queue)
        seat.seat = cast(pointer[seat_t], calloc(1, sizeof(seat_t)))
        if seat.seat == NULL:
            raise MemoryError("no memory for a seat")
        memory_add(MEMORY_STREAMS, sizeof(seat_t) + SEAT_BESIDE)
        seat.seat.stream = self.stream
        seat.seat.visibility_ms = visibility_ms
        if group_of == NULL:
            cursor_init(address(seat.seat.own), self.stream, NULL, seat.seat, address(seat.seat.lock), offset)
            if wanted is not None:
                seat.seat.filter = stream_filter_new(wanted[0], wanted[1])
            return seat
        if self.filters.get(group) != wanted:
            filter = stream_filter_new(wanted[0], wanted[1]) if wanted is not None else NULL
            self.set_filter(group_of, filter)
            self.filters[group] = wanted
        seat.seat.group = group_of
        at_add32(address(group_of.member_count), 1)
        spin_lock(address(group_of.lock))
        if not group_of.started:
            # The place of a group is noted and shown, so it is one that the stream has.
            cursor_move(address(group_of.fresh), min(offset, self.stream.source.visible(self.stream.source.log)))
            at_store32(address(group_of.started), 1)
            at_store32(address(group_of.changed), 1)
        spin_unlock(address(group_of.lock))
        return seat

    def set_filter(self, group: pointer[group_t], filter: pointer[stream_filter_t]) -> c_int:
        old: pointer[stream_filter_t]
        spin_lock(address(group.lock))
        old = group.filter
        group.filter = filter
        if cursor_forget(address(group.fresh)):
            old = NULL  # the read that is under way still uses it
        spin_unlock(address(group.lock))
        stream_filter_free(old)
        return 0

    # --- time and rules -------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        self.handle.housekeeping()

    def give_back(self) -> int:
        group: pointer[group_t] = stream_next_group(self.stream, NULL)
        due_ms: int64_t = 0
        first_ms: int64_t = 0
        while group != NULL:
            if group_tick(group, address(due_ms)):
                stream_wake_group(group, False)
            if due_ms and (first_ms == 0 or due_ms < first_ms):
                first_ms = due_ms
            group = stream_next_group(self.stream, group)
        return first_ms * 1_000_000

    def set_clock(self, ms: int) -> None:
        at_store64(cast(pointer[uint64_t], address(self.clock)), ms)

    def set_rules(self, dead_letters: bool, delivery_limit: int, delay_ms: int, visibility_ms: int) -> None:
        group: pointer[group_t] = stream_next_group(self.stream, NULL)
        self.stream.dead_letters = dead_letters
        self.stream.delivery_limit = delivery_limit
        self.stream.delay_ms = delay_ms
        self.visibility_ms = visibility_ms
        while group != NULL:
            group.visibility_ms = visibility_ms
            group = stream_next_group(self.stream, group)

    def step_reads(self, most: int = 1_000_000) -> int:
        """Manual reads: processes requests that wait, the last one first. Returns how many."""
        cursor: pointer[cursor_t]
        done: int = 0
        while done < most:
            spin_lock(address(self.kept.lock))
            cursor = self.kept.first
            if cursor != NULL:
                self.kept.first = cursor.next_asked
            spin_unlock(address(self.kept.lock))
            if cursor == NULL:
                break
            with nogil:
                cursor_read(cursor)
                cursor_answered(cursor)
            done += 1
        return done

    @property
    def reads_waiting(self) -> bool:
        return self.kept.first != NULL

    def wake(self) -> None:
        stream_wake_all(self.stream)

    # --- states of groups -----------------------------------------------------------------------------------------------

    def state_of(self, name: bytes, clean: bool = False) -> bytes:
        group: pointer[group_t] = self.find(name)
        buffer: pointer[uint8_t]
        room: uint32_t
        size: uint32_t = 0
        if group == NULL:
            raise KeyError(name)
        while True:
            room = group_room(group) + 1024
            buffer = cast(pointer[uint8_t], malloc(room))
            if buffer == NULL:
                raise MemoryError("no memory for a group's state")
            size = group_write(group, buffer, room, clean)
            if size:
                break
            free(buffer)
        state: bytes = PyBytes_FromStringAndSize(cast(p_char, buffer), size)
        free(buffer)
        return state

    def changed(self, clean: bool = False) -> list[tuple[bytes, bytes]]:
        groups: list = []
        group: pointer[group_t] = stream_next_group(self.stream, NULL)
        while group != NULL:
            if at_load32(address(group.started)) and (clean or at_load32(address(group.changed))):
                name: bytes = self.name_of(group)
                groups.append((name, self.state_of(name, clean)))
            group = stream_next_group(self.stream, group)
        return groups

    def not_saved(self, name: bytes) -> None:
        group: pointer[group_t] = self.find(name)
        if group != NULL:
            at_store32(address(group.changed), 1)

    def restore(self, name: bytes, state: bytes, unclean: bool = False) -> None:
        group: pointer[group_t] = self.find(name)
        visible: uint64_t = self.stream.source.visible(self.stream.source.log)
        if group != NULL and at_load32(address(group.started)):
            raise ValueError("the group is in use")
        group = self.named(name)
        if not group_read(group, cast(pointer[uint8_t], cast(p_char, state)), len(state)):
            raise ValueError("a group's state that can't be read")
        spin_lock(address(group.lock))
        if group.fresh.next > visible:
            cursor_move(address(group.fresh), visible)  # the stream lost its end: what comes there now is new
            open_cut(address(group.open), visible)
        if unclean or group.flagged > visible:
            group.flagged = visible
        at_store32(address(group.started), 1)
        spin_unlock(address(group.lock))

    def reset(self, name: bytes, offset: int) -> int:
        group: pointer[group_t] = self.find(name)
        first: uint64_t = self.stream.source.first(self.stream.source.log)
        visible: uint64_t = self.stream.source.visible(self.stream.source.log)
        goal: uint64_t = min(max(cast(uint64_t, offset), first), visible)
        before: uint64_t
        free_of_members: bint
        if group == NULL or not at_load32(address(group.started)):
            raise KeyError(name)
        spin_lock(address(group.lock))
        # Who joins from here on begins at the new place. A dead letter that waits would be lost with its offset.
        free_of_members = at_load32(address(group.member_count)) == 0 and group.open.held == 0 and group.open.dead == 0
        if free_of_members:
            before = cursor_position(address(group.fresh))
            open_cut(address(group.open), 0)
            group.full = False
            cursor_move(address(group.fresh), goal)  # a read that is under way is dropped when it comes: it was asked for elsewhere
            if group.flagged < before:
                group.flagged = before
            at_store32(address(group.changed), 1)
        spin_unlock(address(group.lock))
        if not free_of_members:
            raise ValueError("the group is in use")
        return goal

    def name_of(self, group: pointer[group_t]) -> bytes:
        return PyBytes_FromStringAndSize(cast(p_char, group.name), group.name_len)

    # --- dead and lost --------------------------------------------------------------------------------------------------

    def take_dead(self, most: int = 100, behind: tuple[bytes, int] | None = None) -> list[tuple[bytes, int, int, int]]:
        dead: list = []
        passed: bint = behind is None or self.find(behind[0]) == NULL
        offset: uint64_t
        reason: c_int = 0
        count: uint32_t = 0
        group: pointer[group_t] = stream_next_group(self.stream, NULL)
        while group != NULL and len(dead) < most:
            offset = 0
            if not passed:
                passed = self.name_of(group) == behind[0]
                if not passed:
                    group = stream_next_group(self.stream, group)
                    continue
                offset = cast(uint64_t, behind[1]) + 1
            while len(dead) < most and group_next_dead(group, address(offset), address(reason), address(count)):
                dead.append((self.name_of(group), offset, reason, count))
                offset += 1
            group = stream_next_group(self.stream, group)
        return dead

    def dead_done(self, name: bytes, offset: int) -> bool:
        group: pointer[group_t] = self.find(name)
        return group != NULL and group_dead_done(group, offset)

    def read(self, offset: uint64_t) -> pointer[content_t]:
        batch: stream_batch_t
        content: pointer[content_t] = NULL
        place: pointer[stream_reader_t] = NULL
        outcome: c_int
        batch.items = NULL
        batch.count = 0
        batch.room = 0
        batch.error = 0
        batch.bytes = 0
        batch.io_ns = 0
        with nogil:
            outcome = self.stream.source.hot_read(self.stream.source.log, offset, 1, 1, NULL, address(batch))
            if outcome == STREAM_COLD:
                place = self.stream.source.new_reader(self.stream.source.log)
                if place != NULL:
                    outcome = self.stream.source.read(self.stream.source.log, place, offset, 1, 1, NULL, address(batch))
                    self.stream.source.free_reader(place)
            if outcome == STREAM_MESSAGES and batch.count and batch.items[0].offset == offset:
                content = batch.items[0].content
                batch.items[0].content = batch.items[batch.count - 1].content
                batch.count -= 1
            stream_batch_clear(address(batch))
            stream_batch_free(address(batch))
        if content == NULL:
            raise KeyError(offset)
        return content

    def message(self, offset: int) -> tuple[bytes, bytes, bytes, bytes]:
        content: pointer[content_t] = self.read(offset)
        message: tuple = content_tuple(content)
        content_decref(content)
        return message

    def view(self, offset: int) -> ContentView:
        """As message, without a copy of the body."""
        return content_view(self.read(offset))

    def take_lost(self) -> list[tuple[bytes | None, int, int]]:
        """(group or None, offsets lost since the last call, first offset behind the last of them) of every cursor that was overtaken."""
        losses: list = []
        group: pointer[group_t] = stream_next_group(self.stream, NULL)
        seat: pointer[seat_t]
        lost: uint64_t
        upto: uint64_t
        while group != NULL:
            spin_lock(address(group.lock))
            lost = group.fresh.lost_all - group.told
            group.told = group.fresh.lost_all
            upto = group.fresh.lost_upto
            spin_unlock(address(group.lock))
            if lost:
                losses.append((self.name_of(group), lost, upto))
            group = stream_next_group(self.stream, group)
        lost = 0
        upto = 0
        spin_lock(address(self.handle.queue.manager.lock))
        seat = self.stream.lone.first
        while seat != NULL:
            if at_load64(address(seat.own.lost_all)) != seat.told:
                lost += at_load64(address(seat.own.lost_all)) - seat.told
                seat.told = at_load64(address(seat.own.lost_all))
                upto = at_load64(address(seat.own.lost_upto))
            seat = seat.next
        spin_unlock(address(self.handle.queue.manager.lock))
        if lost:
            losses.append((None, lost, upto))
        return losses

    # --- figures --------------------------------------------------------------------------------------------------------

    @property
    def first_offset(self) -> int:
        return self.stream.source.first(self.stream.source.log)

    @property
    def next_offset(self) -> int:
        return self.stream.source.visible(self.stream.source.log)

    @property
    def bytes(self) -> int:
        return self.stream.source.bytes(self.stream.source.log)

    @property
    def wakes(self) -> int:
        return at_load64(address(self.stream.wakes))

    @property
    def lone_acked(self) -> int:
        return at_load64(address(self.stream.lone_acked))

    def group_figures(self, group: pointer[group_t]) -> dict:
        visible: uint64_t = self.stream.source.visible(self.stream.source.log)
        base: uint64_t = group_base(group)
        next: uint64_t
        copy: group_t
        spin_lock(address(group.lock))
        next = cursor_position(address(group.fresh))
        copy = group[0]
        spin_unlock(address(group.lock))
        figures: dict = {
            "members": copy.member_count,
            "members_looked_at": copy.looked,
            "base": base,
            "next": next,
            "lag": visible - next if visible > next else 0,
            "unfinished": (visible - next if visible > next else 0) + copy.open.count,
            "in_flight": copy.open.held,
            "returned": copy.open.ready,
            "delayed": copy.open.delayed,
            "dead_waiting": copy.open.dead,
            "delivered": copy.delivered,
            "redelivered": copy.redelivered,
            "acked": copy.acked,
            "nacked": copy.nacked,
            "expired": copy.expired,
            "dead": copy.dead,
            "dropped": copy.dropped,
            "lost": copy.fresh.lost_all,
            "full_waits": copy.full_waits,
            "cold_reads": copy.fresh.cold_reads + copy.again.cold_reads,
            "cold_messages": copy.fresh.cold_messages + copy.again.cold_messages,
            "failed_reads": copy.fresh.failed_reads + copy.again.failed_reads,
        }
        return figures

    def lag(self) -> int:
        visible: uint64_t = self.stream.source.visible(self.stream.source.log)
        next: uint64_t
        largest: uint64_t = 0
        group: pointer[group_t] = stream_next_group(self.stream, NULL)
        while group != NULL:
            if at_load32(address(group.started)):
                spin_lock(address(group.lock))
                next = cursor_position(address(group.fresh))
                spin_unlock(address(group.lock))
                if visible > next and visible - next > largest:
                    largest = visible - next
            group = stream_next_group(self.stream, group)
        return largest

    def groups(self) -> dict[bytes, dict[str, int]]:
        figures: dict = {}
        group: pointer[group_t] = stream_next_group(self.stream, NULL)
        while group != NULL:
            if at_load32(address(group.started)):
                figures[self.name_of(group)] = self.group_figures(group)
            group = stream_next_group(self.stream, group)
        return figures
