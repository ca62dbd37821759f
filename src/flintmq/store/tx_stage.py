"""Stages: the messages that a distributed transaction enqueues by blocks (see tx_stage.pxd).

in: blocks of the data plane. out: messages in the log, their places; positions when the transaction commits, entries in their queues.

T1  A staged message is in the message list like any enqueue of a transaction; its content stays in the log only.
T2  The log's lock is held for at most SECTION messages; the GIL not at all while messages are gone through.
T3  In a queue with priorities, neighbours of one level get neighbouring numbers: a Commit needs few rows.
"""

from __future__ import annotations

import cython
from cython import NULL, address, bint, cast, cclass, cfunc, declare, exceptval, inline, nogil, pointer, sizeof, void
from cython.cimports.cpython.bytes import PyBytes_AS_STRING
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.content import (
    CONTENT_EXPIRES, CONTENT_HEADERS, CONTENT_PERSISTENT, CONTENT_PRIORITY, CONTENT_REPLY_TO, arena_free, arena_new, content_body,
    content_decref, content_frame, content_header, content_new, content_route, content_t,
)  # fmt: skip
from cython.cimports.flintmq.protocol.v0_9_1.scan import (
    EXPIRATION_INVALID, PRIORITY_ABSENT, PROP_EXPIRATION, PROP_HEADERS, PROP_PRIORITY, PROP_REPLY_TO, props_scan_t, scan_properties,
)  # fmt: skip
from cython.cimports.flintmq.queue.control import QueueHandle
from cython.cimports.flintmq.queue.held_runs import placed_t, run_level, run_publish, run_reserve
from cython.cimports.flintmq.queue.queue_core import queue_tail
from cython.cimports.flintmq.store.log.log import LSN_NEVER, content_write, content_write_small, log_begin, log_dead, log_end
from cython.cimports.flintmq.store.log.record import RECORD_START, le16, le32, le64, position_waiting
from cython.cimports.flintmq.store.logs import Logs
from cython.cimports.flintmq.store.message_log import (
    ENQUEUE_MOST, list_find, list_new, location_t, message_add, message_log_t, message_name, message_t, ml_settle_tx, ml_write_delete,
    ml_write_enqueue,
)  # fmt: skip
from cython.cimports.flintmq.store.stream_inbox import StreamInbox
from cython.cimports.libc.stdint import int32_t, int64_t, uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import calloc, free, realloc
from cython.cimports.libc.string import memcpy, memset

from flintmq.errors import StoreError

# messages and bytes staged in one piece, under the locks of transactions (about 1 ms)
PIECE_MESSAGES = declare(uint64_t, 512)
PIECE_BYTES = declare(uint64_t, 512 << 10)
# places that are reserved together (queue/held_runs.py, CHUNK): others may come in between after so many, and a row of the Commit ends
ROW_LEAST = declare(uint64_t, 256)
LEVEL_NONE = declare(uint32_t, 0xFFFFFFFF)
# a block's entry before its bytes (transactions/bulk.py)
ENTRY = declare(uint32_t, 24)


@cfunc
@nogil
@exceptval(check=False)
def _fits(data: pointer[cython.const[uint8_t]], left: uint64_t, routes: uint32_t) -> uint64_t:
    """Bytes of the entry of a block at `data`, padding included; 0: it is none.

    The header is scanned, and what the entry says about it must be what it says: who made the block read a client's batch, and is not
    believed.
    """
    found: props_scan_t
    flags: uint8_t = 0
    length: uint64_t
    header_len: uint32_t
    body_len: uint64_t = 0
    i: uint32_t
    if left < ENTRY:
        return 0
    length = le32(data)
    header_len = le32(data + 8)
    if (
        length > left - ENTRY
        or (length + 7) // 8 * 8 > left - ENTRY
        or header_len > length
        or header_len < 14
        or le32(data + 4) >= routes
        or le16(data + 14) != 0
        or le32(data + ENTRY) != 0x00003C00  # class 60 and weight 0, big endian
    ):
        return 0
    for i in range(8):
        body_len = body_len << 8 | data[ENTRY + 4 + i]
    if body_len != length - header_len or scan_properties(data + ENTRY, header_len, address(found)) != 0:
        return 0
    if found.delivery_mode == 2:
        flags |= CONTENT_PERSISTENT
    if found.flags & PROP_EXPIRATION:
        flags |= CONTENT_EXPIRES
    if found.flags & PROP_HEADERS:
        flags |= CONTENT_HEADERS
    if found.flags & PROP_REPLY_TO:
        flags |= CONTENT_REPLY_TO
    if found.flags & PROP_PRIORITY:
        flags |= CONTENT_PRIORITY
    if data[12] != flags or data[13] != (0 if found.priority == PRIORITY_ABSENT else found.priority):
        return 0
    if found.expiration_ms == EXPIRATION_INVALID or cast(int64_t, le64(data + 16)) != found.expiration_ms:
        return 0
    return ENTRY + (length + 7) // 8 * 8


def check_block(block: bytes, routes: int) -> tuple:
    """(messages, bytes of bodies, messages per route). Raises: ValueError: it is malformed."""
    data: pointer[cython.const[uint8_t]] = cast(pointer[uint8_t], PyBytes_AS_STRING(block))
    size: uint64_t = len(block)
    at: uint64_t = 0
    step: uint64_t = 1
    messages: uint64_t = 0
    bodies: uint64_t = 0
    number: uint32_t = routes
    by_route: pointer[uint64_t] = cast(pointer[uint64_t], calloc(max(1, number), 8))
    if by_route == NULL:
        raise MemoryError
    with nogil:
        while at < size:
            step = _fits(data + at, size - at, number)
            if step == 0:
                break
            messages += 1
            bodies += le32(data + at) - le32(data + at + 8)
            by_route[le32(data + at + 4)] += 1
            at += step
    counts = [by_route[i] for i in range(number)]
    free(by_route)
    if step == 0:
        raise ValueError(f"malformed entry of a block at byte {at} of {size}")
    return messages, bodies, counts


@cclass
class Stage:
    """The messages that one transaction enqueues by blocks. Threading: one thread at a time, but for `rows` and figures."""

    def __cinit__(self, logs: Logs, tx: int):
        self.logs = logs
        self.tx = tx
        self.numbers = {}
        self.arena = arena_new()
        if self.arena == NULL:
            raise MemoryError

    def __dealloc__(self):
        i: uint32_t
        for i in range(self.queue_count):
            free(self.queues[i].placed)
        free(self.queues)
        if self.arena != NULL:
            arena_free(self.arena)

    def queue_counts(self) -> dict:
        """Queue id -> messages that enter it."""
        return {self.queues[i].queue_id: self.queues[i].count for i in range(self.queue_count) if self.queues[i].queue_id}

    def _queue(self, core: QueueHandle):
        """Index of the queue in `queues`."""
        queues: pointer[stage_queue_t]
        queue_id = core.queue.id
        found = self.numbers.get(queue_id)
        if found is not None:
            return found
        queues = cast(pointer[stage_queue_t], realloc(self.queues, (self.queue_count + 1) * sizeof(stage_queue_t)))
        if queues == NULL:
            raise MemoryError
        self.queues = queues
        memset(queues + self.queue_count, 0, sizeof(stage_queue_t))
        queues[self.queue_count].queue_id = queue_id
        queues[self.queue_count].last = LEVEL_NONE
        self.queue_count += 1
        self.numbers[queue_id] = self.queue_count - 1
        return self.queue_count - 1

    def plan(self, routes: object, destinations: object, ttls: object) -> object:
        """Where a block's messages go. Args: routes: (exchange, routing key); destinations: by route, cores of queues; ttls: by route, one
        for each, -1: none. Raises: ValueError an exchange's name or a routing key is too long; MemoryError."""
        return Plan(self, routes, destinations, ttls)

    def add(self, plan: Plan, block: bytes, at: int, now_ms: int) -> int:
        """Stages a piece of a checked block from byte `at` on. Returns where to go on.

        Raises: StoreError: the branch can only be rolled back then.
        """
        data: pointer[cython.const[uint8_t]] = cast(pointer[uint8_t], PyBytes_AS_STRING(block))
        size: uint64_t = len(block)
        here: uint64_t = at
        now: int64_t = now_ms
        ok: bint
        messages: uint64_t = self.messages
        with nogil:
            ok = self._add(plan, data, size, address(here), now)
        transaction = self.logs.transactions.table.get(self.tx)
        if transaction is not None:
            transaction.references += self.messages - messages
        if not ok:
            raise self.logs.failure or StoreError("the log has failed, or memory is exhausted")
        return here

    def _add(self, plan: Plan | None, data: pointer[cython.const[uint8_t]], size: uint64_t, at: pointer[uint64_t], now_ms: int64_t) -> bint:
        ml: pointer[message_log_t] = address(self.logs.ml)
        end: uint64_t = at[0]
        here: uint64_t
        count: uint64_t = 0
        section: uint64_t
        route: pointer[plan_route_t]
        i: uint32_t
        ok: bint = True
        for i in range(plan.queue_count):
            memset(plan.queues[i].levels, 0, plan.queues[i].level_count * 8)
        # How many of this piece go to which level of which queue: messages of one level get neighbouring numbers.
        while end < size and count < PIECE_MESSAGES and end - at[0] < PIECE_BYTES:
            route = plan.routes + le32(data + end + 4)
            for i in range(route.first, route.first + route.count):
                self._count(plan, i, _priority(data + end))
            end += ENTRY + (cast(uint64_t, le32(data + end)) + 7) // 8 * 8
            count += 1
        if not self._give_room(plan):
            return False
        while at[0] < end and ok:
            section = 0
            log_begin(ml.log)
            while at[0] < end and section < SECTION and ok:
                here = at[0]
                at[0] += ENTRY + (cast(uint64_t, le32(data + here)) + 7) // 8 * 8
                ok = self._one(plan, data + here, now_ms)
                section += 1
            log_end(ml.log)
        return ok

    def _count(self, plan: Plan | None, place: uint32_t, priority: int32_t) -> void:
        one: pointer[plan_queue_t] = plan.queues + plan.places[place].queue
        one.levels[run_level(one.core, priority) if one.level_count > 1 else 0] += 1

    def _give_room(self, plan: Plan | None) -> bint:
        """Numbers for what was counted: `levels` becomes the next number of each level."""
        i: uint32_t
        level: uint32_t
        number: uint64_t
        count: uint64_t
        room: uint64_t
        queue: pointer[stage_queue_t]
        placed: pointer[placed_t]
        for i in range(plan.queue_count):
            queue = self.queues + plan.queues[i].index
            number = queue.count
            for level in range(plan.queues[i].level_count):
                count = plan.queues[i].levels[level]
                plan.queues[i].levels[level] = number
                number += count
                if count:
                    self.rows += level != queue.last
                    queue.last = level
            self.rows += number // ROW_LEAST - queue.count // ROW_LEAST
            if number > queue.room:
                room = max(number, queue.room * 2)
                placed = cast(pointer[placed_t], realloc(queue.placed, room * sizeof(placed_t)))
                if placed == NULL:
                    return False
                queue.placed = placed
                queue.room = room
            check(number <= queue.room, b"tx_stage T1 there is room for staged messages", number, queue.room)
            memset(queue.placed + queue.count, 0, (number - queue.count) * sizeof(placed_t))
            queue.count = number
        return True

    def _one(self, plan: Plan | None, data: pointer[cython.const[uint8_t]], now_ms: int64_t) -> bint:
        """One message. The log's lock is held (a long message lets go of it between its chunks)."""
        ml: pointer[message_log_t] = address(self.logs.ml)
        route: pointer[plan_route_t] = plan.routes + le32(data + 4)
        length: uint32_t = le32(data)
        header_len: uint32_t = le32(data + 8)
        flags: uint8_t = data[12]
        priority: int32_t = _priority(data)
        expiration: int64_t = cast(int64_t, le64(data + 16))
        ttl: int64_t
        own: int64_t
        expires: int64_t
        message_id: uint64_t
        message: pointer[message_t]
        location: pointer[location_t]
        place: pointer[plan_place_t]
        one: pointer[plan_queue_t]
        queue: pointer[stage_queue_t]
        number: uint64_t
        level: uint32_t
        i: uint32_t
        if route.count == 0:
            return True
        if route.length + length <= ml.split_above:
            message_id = content_write_small(
                ml.log, ENQUEUE_MOST, route.bytes, route.length, data + ENTRY, header_len, length, flags, data[13]
            )
        else:
            message_id = self._long(route, data)
        if message_id == LSN_NEVER:
            return False
        message = list_new(address(ml.messages), message_id)
        if message == NULL:
            log_dead(ml.log, message_id, ml_write_delete(ml.log, message_id))
            return False
        self.messages += 1
        message_name(message, self.tx)
        for i in range(route.first, route.first + route.count):
            place = plan.places + i
            one = plan.queues + place.queue
            queue = self.queues + one.index
            level = run_level(one.core, priority) if one.level_count > 1 else 0
            number = one.levels[level]
            one.levels[level] += 1
            ttl = place.ttl_ms
            own = expiration
            if own >= 0 and own < place.ttl_least_ms:
                own = place.ttl_least_ms
            if ttl < 0 or (own >= 0 and own < ttl):
                ttl = own
            expires = now_ms + ttl if ttl >= 0 else 0
            check(number < queue.count, b"tx_stage T1 a staged message has its place", number, queue.count)
            queue.placed[number].message_id = message_id
            queue.placed[number].expires_at_ms = expires
            queue.placed[number].body_len = length - header_len
            queue.placed[number].number = cast(uint32_t, number)
            queue.placed[number].priority = priority
            location = message_add(message, queue.queue_id, position_waiting(cast(uint32_t, number)), expires)
            if location == NULL:
                return False
            location.enqueued_by = self.tx
            self.enqueues += 1
            if (
                ml_write_enqueue(ml.log, message_id, queue.queue_id, position_waiting(cast(uint32_t, number)), expires, self.tx)
                == LSN_NEVER
            ):
                return False
        return True

    def _long(self, route: pointer[plan_route_t], data: pointer[cython.const[uint8_t]]) -> uint64_t:
        """Writes a message that is cut into chunks. Returns its id."""
        ml: pointer[message_log_t] = address(self.logs.ml)
        length: uint32_t = le32(data)
        header_len: uint32_t = le32(data + 8)
        message_id: uint64_t
        content: pointer[content_t] = content_new(self.arena, route.length, header_len, length - header_len)
        if content == NULL:
            return LSN_NEVER
        content.flags = data[12]
        content.priority = data[13]
        memcpy(content_route(content), route.bytes, route.length)
        memcpy(content_header(content), data + ENTRY, header_len)
        memcpy(content_body(content), data + ENTRY + header_len, length - header_len)
        content_frame(content)
        message_id = content_write(ml.log, RECORD_START, ml.split_above, ENQUEUE_MOST, content)
        content_decref(content)
        return message_id

    def adopt(self, core: QueueHandle, waiting: object) -> None:
        """Takes over what a prepared transaction enqueues on a queue after a restart. Args: waiting: (number, message id, expires_at_ms,
        priority or None, body length), by ascending numbers. Raises: MemoryError."""
        at: uint32_t = self._queue(core)
        queue: pointer[stage_queue_t] = self.queues + at
        one: pointer[placed_t]
        room: uint64_t = len(waiting)
        queue.placed = cast(pointer[placed_t], calloc(max(room, 1), sizeof(placed_t)))
        if queue.placed == NULL:
            raise MemoryError
        queue.room = room
        for number, message_id, expires_at_ms, priority, body_len in waiting:
            one = queue.placed + queue.count
            one.number = number
            one.message_id = message_id
            one.expires_at_ms = expires_at_ms
            one.priority = -1 if priority is None else priority
            one.body_len = body_len
            queue.count += 1
        self.enqueues += room

    # --- outcome ------------------------------------------------------------------------------------------------------------

    def drop_queue(self, queue_id: int) -> None:
        """The queue was deleted."""
        found = self.numbers.pop(queue_id, None)
        if found is not None:
            at: uint32_t = found
            self.queues[at].queue_id = 0

    def reserve(self, core: QueueHandle, inbox: StreamInbox | None = None) -> list:
        """Gives its messages for this queue, or the stream whose `inbox` that is, their positions. Returns the rows of the Commit: (queue
        id, first position, count)."""
        queue: pointer[stage_queue_t] = self.queues + cast(uint32_t, self.numbers[core.queue.id])
        done: uint64_t
        i: uint64_t
        free_: uint64_t
        first: uint64_t = 0
        count: uint64_t = 0
        number: uint32_t = 0
        last: uint32_t = core.queue.entries.level_count - 1
        rows: list = []
        if inbox is not None:
            done = inbox.reserve(queue.placed, queue.count)
        else:
            with nogil:
                done = run_reserve(core.queue, queue.placed, queue.count)
        if done < queue.count:
            if not core.is_deleted():
                raise MemoryError("no memory for entries")
            # It is being deleted: its end is not in the log yet, where the commit must still say a position for each entry. Nobody adds to
            # it any more, so the ones behind its end are free, and nothing will stand there.
            free_ = (cast(uint64_t, last) << 56) + queue_tail(core.queue, last)
            for i in range(done, queue.count):
                queue.placed[i].position = free_ + 1 + i
        for i in range(queue.count):
            if queue.placed[i].number == number and count and queue.placed[i].position == first + count:
                count += 1
                number += 1
                continue
            if count:
                rows.append((queue.queue_id, first, count))
            if queue.placed[i].number > number:  # damage took their records: they take no position
                rows.append((queue.queue_id, 0, queue.placed[i].number - number))
            number = queue.placed[i].number + 1
            first = queue.placed[i].position
            count = 1
        if count:
            rows.append((queue.queue_id, first, count))
        return rows

    def publish(self, core: QueueHandle, between: object) -> None:
        """Its messages for this queue appear, a chunk at a time; `between()` is called after each."""
        queue: pointer[stage_queue_t]
        at: uint64_t = 0
        count: uint64_t
        found = self.numbers.get(core.queue.id)
        if found is None:
            return
        queue = self.queues + cast(uint32_t, found)
        while at < queue.count:
            count = min(CHUNK, queue.count - at)
            with nogil:
                run_publish(core.queue, queue.placed + at, count)
            at += count
            between()

    def deliver(self, queue_id: int, inbox: StreamInbox) -> None:
        """Its messages for a stream go there."""
        found = self.numbers.get(queue_id)
        if found is not None:
            inbox.take(self.queues[cast(uint32_t, found)].placed, self.queues[cast(uint32_t, found)].count, self)

    def _settle(self, queue: pointer[stage_queue_t], at: uint64_t, until: uint64_t) -> void:
        """Committed: places get their positions and are plain."""
        ml: pointer[message_log_t] = address(self.logs.ml)
        one: pointer[placed_t]
        message: pointer[message_t]
        location: pointer[location_t]
        section: uint64_t
        i: uint32_t
        while at < until:
            section = min(until, at + SECTION)
            log_begin(ml.log)
            while at < section:
                one = queue.placed + at
                at += 1
                if one.message_id == 0:
                    continue
                message = list_find(address(ml.messages), one.message_id)
                if message == NULL:
                    continue
                for i in range(message.count):
                    location = message.locations + i
                    if (
                        location.enqueued_by == self.tx
                        and location.queue_id == queue.queue_id
                        and location.position == position_waiting(one.number)
                    ):
                        location.position = one.position
                        location.enqueued_by = 0
                        break
            log_end(ml.log)

    def _undo(self, queue: pointer[stage_queue_t], at: uint64_t, until: uint64_t) -> void:
        while at < until:
            if queue.placed[at].message_id:
                ml_settle_tx(address(self.logs.ml), self.tx, queue.placed[at].message_id, False)
            at += 1

    def settle(self, committed: bool, let_write: object) -> None:
        """The outcome, in the log's own tables; `let_write()` is called from time to time."""
        queue: pointer[stage_queue_t]
        i: uint32_t
        at: uint64_t
        until: uint64_t
        for i in range(self.queue_count):
            queue = self.queues + i
            at = 0
            while at < queue.count and (queue.queue_id or not committed):
                until = min(queue.count, at + CHUNK)
                with nogil:
                    if committed:
                        self._settle(queue, at, until)
                    else:
                        self._undo(queue, at, until)
                at = until
                let_write()


@cfunc
@inline
@nogil
@exceptval(check=False)
def _priority(data: pointer[cython.const[uint8_t]]) -> int32_t:
    """Of an entry of a block; -1: not set."""
    return data[13] if data[12] & CONTENT_PRIORITY else -1


@cclass
class Plan:
    """Routes and destinations of one block in C. Args as Stage.add."""

    def __cinit__(self, stage: Stage, routes, destinations, ttls):
        count: uint32_t = len(routes)
        places: uint32_t = sum([len(one) for one in destinations])
        i: uint32_t
        at: uint32_t = 0
        core: QueueHandle
        route: pointer[plan_route_t]
        indexes: dict = {}
        self.cores = []
        self.runs = []
        self.routes = cast(pointer[plan_route_t], calloc(max(1, count), sizeof(plan_route_t)))
        self.places = cast(pointer[plan_place_t], calloc(max(1, places), sizeof(plan_place_t)))
        self.queues = cast(pointer[plan_queue_t], calloc(max(1, places), sizeof(plan_queue_t)))
        if self.routes == NULL or self.places == NULL or self.queues == NULL:
            raise MemoryError
        for i in range(count):
            route = self.routes + i
            exchange, key = routes[i]
            run = bytes([len(exchange)]) + exchange + bytes([len(key)]) + key
            self.runs.append(run)
            route.bytes = cast(pointer[uint8_t], PyBytes_AS_STRING(run))
            route.length = len(run)
            route.first = at
            route.count = len(destinations[i])
            for core, ttl_ms in zip(destinations[i], ttls[i], strict=True):
                queue_id = core.queue.id
                if queue_id not in indexes:
                    indexes[queue_id] = self.queue_count
                    self.cores.append(core)
                    self.queues[self.queue_count].core = core.queue
                    self.queues[self.queue_count].index = stage._queue(core)
                    self.queues[self.queue_count].level_count = core.queue.entries.level_count
                    self.queue_count += 1
                self.places[at].queue = indexes[queue_id]
                self.places[at].ttl_ms = ttl_ms
                self.places[at].ttl_least_ms = core.ttl_least_ms
                at += 1

    def __dealloc__(self):
        free(self.routes)
        free(self.places)
        free(self.queues)
