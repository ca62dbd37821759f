"""Drives the queue core from Python, one call per verb, and from real threads without the GIL (tests only).

in: plain Python values. out: plain Python values; every C record is owned here.
"""

from __future__ import annotations

import cython
from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
from cython.cimports.flintmq.core.atomics import at_add32, at_add64, at_load32, at_load64, at_store32, at_swap32, spin_lock, spin_unlock
from cython.cimports.flintmq.core.content import (
    CONTENT_PRIORITY,
    arena_free,
    arena_new,
    arena_t,
    content_body,
    content_decref,
    content_from_bytes,
    content_new,
    content_t,
)
from cython.cimports.flintmq.queue.queue_core import (
    consumer_decref,
    consumer_give_back_credit,
    consumer_has_credit,
    consumer_id_new,
    consumer_new,
    entry_sent,
    queue_add_consumer,
    queue_consumer_count,
    queue_content_loaded,
    queue_decref,
    queue_deliver_single,
    queue_delivered_total,
    queue_dequeue,
    queue_enqueue,
    queue_enqueue_immediate,
    queue_enqueued_total,
    queue_evict_content,
    queue_housekeeping,
    queue_mark_deleted,
    queue_memory,
    queue_new,
    queue_next_expiry,
    queue_peek,
    queue_priorities,
    queue_pull,
    queue_purge,
    queue_ready_bytes,
    queue_ready_count,
    queue_release,
    queue_remove_consumer,
    queue_restore,
    queue_set_notify_work_desired,
    queue_set_ports,
    queue_take_expired,
    queue_take_head,
    queue_unacked_count,
)
from cython.cimports.flintmq.queue.types import (
    CONSUMER_ACQUIRES,
    CONSUMER_EXCLUSIVE,
    CONSUMER_NO_ACK,
    CONSUMER_NOT_INTERESTED,
    LEVEL_QPID,
    LEVEL_RABBITMQ,
    LIST_PRIORITY,
    LIST_STANDARD,
    REASON_ACK,
    REASON_DROP,
    consumer_t,
    delivery_t,
    found_t,
    queue_t,
    slot_t,
    target_t,
)
from cython.cimports.libc.stdint import int64_t, uint8_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import calloc, free
from cython.cimports.libc.string import memcpy, memset
from cython.cimports.posix.time import CLOCK_MONOTONIC, clock_gettime, timespec
from cython.cimports.posix.unistd import usleep


LIST_NAMES = ("REMOVED", "INTERESTED", "NOT_INTERESTED", "NOTIFIED", "NON_ACQUIRING")


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _count_notify(target: cython.pointer(target_t)) -> cython.void:
    at_add32(cython.cast(cython.pointer(uint32_t), target.context), 1)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _first_byte(context: cython.p_void, content: cython.pointer(content_t)) -> cython.bint:
    return content.body_len > 0 and content_body(content)[0] == cython.cast(cython.pointer(uint8_t), context)[0]


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _note_load(context: cython.p_void, queue: cython.pointer(queue_t), position: uint64_t, message_id: uint64_t) -> cython.void:
    loads: cython.pointer(loads_t) = cython.cast(cython.pointer(loads_t), context)
    spin_lock(cython.address(loads.lock))
    if loads.count < 256:
        loads.positions[loads.count] = position
        loads.count += 1
    spin_unlock(cython.address(loads.lock))


@cython.cfunc
def _body(content: cython.pointer(content_t)):
    if content == cython.NULL:
        return None
    if content.body_len == 0:
        return b""
    return PyBytes_FromStringAndSize(cython.cast(cython.p_char, content_body(content)), content.body_len)


@cython.cclass
class Queue:
    """One queue. `levels` > 1 or `rule` makes it a priority queue; rule "rabbitmq" or "qpid"."""

    def __cinit__(self, levels: cython.int = 1, rule: str | None = None, queue_id: int = 1):
        kind: cython.int = LIST_PRIORITY if levels > 1 or rule is not None else LIST_STANDARD
        self.queue = queue_new(queue_id, kind, levels, LEVEL_QPID if rule == "qpid" else LEVEL_RABBITMQ)
        if self.queue == cython.NULL:
            raise MemoryError("queue_new refused")
        queue_set_ports(self.queue, cython.address(self.loads), _note_load, cython.NULL, cython.NULL)

    def __dealloc__(self):
        if self.queue != cython.NULL:
            queue_decref(self.queue)

    def delivery_of(self, delivery):
        return (delivery.position, _body(delivery.content), delivery.redelivered != 0, delivery.delivery_count, delivery.rotate != 0)

    def enqueue(self, body: bytes, priority: int | None = None, expires_at: int = 0, immediate: bool = False) -> int:
        flags: uint8_t = CONTENT_PRIORITY if priority is not None else 0
        content: cython.pointer(content_t) = content_from_bytes(b"", b"q", b"", body, flags, priority or 0)
        position: uint64_t
        if immediate:
            position = queue_enqueue_immediate(self.queue, content, 0, expires_at, cython.NULL)
        else:
            position = queue_enqueue(self.queue, content, 0, expires_at, cython.NULL)
        content_decref(content)
        return position

    def restore(self, position: int, body: bytes | None, redelivered: bool = False, expires_at: int = 0) -> int:
        content: cython.pointer(content_t) = cython.NULL
        if body is not None:
            content = content_from_bytes(b"", b"q", b"", body, 0, 0)
        restored: uint64_t = queue_restore(self.queue, content, 0, position, redelivered, expires_at)
        if content != cython.NULL:
            content_decref(content)
        return restored

    def pull(self, owner: int):
        """basic.get: (position, body, redelivered, count, rotate) or None."""
        delivery: delivery_t
        if not queue_pull(self.queue, owner, cython.address(delivery)):
            return None
        entry_sent(delivery.slot)
        return self.delivery_of(cython.address(delivery))

    def take_head(self):
        delivery: delivery_t
        if not queue_take_head(self.queue, cython.address(delivery)):
            return None
        return self.delivery_of(cython.address(delivery))

    def take_expired(self, now: int):
        delivery: delivery_t
        if not queue_take_expired(self.queue, now, cython.address(delivery)):
            return None
        return self.delivery_of(cython.address(delivery))

    def dequeue(self, position: int, owner: int = 0) -> bool:
        return queue_dequeue(self.queue, cython.NULL, position, owner, REASON_ACK) != 0

    def release(self, position: int, owner: int = 0, delivered: bool = True) -> bool:
        return queue_release(self.queue, cython.NULL, position, owner, delivered) != 0

    def peek(self, position: int = 0):
        delivery: delivery_t
        if not queue_peek(self.queue, position, cython.address(delivery)):
            return None
        result = (delivery.position, _body(delivery.content), delivery.redelivered != 0)
        if delivery.content != cython.NULL:
            content_decref(delivery.content)
        return result

    def purge(self) -> int:
        return queue_purge(self.queue)

    def evict(self, position: int) -> bool:
        return queue_evict_content(self.queue, position) != 0

    def loaded(self, position: int, body: bytes | None) -> None:
        content: cython.pointer(content_t) = cython.NULL
        if body is not None:
            content = content_from_bytes(b"", b"q", b"", body, 0, 0)
        queue_content_loaded(self.queue, position, content)
        if content != cython.NULL:
            content_decref(content)

    def take_loads(self) -> list:
        """Positions whose content was asked for since the last call."""
        result = [self.loads.positions[i] for i in range(self.loads.count)]
        self.loads.count = 0
        return result

    def housekeeping(self) -> None:
        queue_housekeeping(self.queue)

    def mark_deleted(self) -> None:
        queue_mark_deleted(self.queue)

    @property
    def ready(self) -> int:
        return queue_ready_count(self.queue)

    @property
    def ready_bytes(self) -> int:
        return queue_ready_bytes(self.queue)

    @property
    def unacked(self) -> int:
        return queue_unacked_count(self.queue)

    @property
    def consumer_count(self) -> int:
        return queue_consumer_count(self.queue)

    @property
    def priorities(self) -> int:
        return queue_priorities(self.queue)

    @property
    def enqueued_total(self) -> int:
        return queue_enqueued_total(self.queue)

    @property
    def delivered_total(self) -> int:
        return queue_delivered_total(self.queue)

    @property
    def next_expiry(self) -> int:
        return queue_next_expiry(self.queue)

    @property
    def memory(self) -> int:
        return queue_memory(self.queue)

    @property
    def wanted(self) -> int:
        """Consumers that an arrival would wake, as the producers' side sees it."""
        return at_load32(cython.address(self.queue.entries.wanted))

    def list_counts(self) -> dict:
        """List name -> consumers on it, from the manager's own counters."""
        counts = {"INTERESTED": 0, "NOTIFIED": 0}
        group = self.queue.manager.groups
        while group != cython.NULL:
            counts["INTERESTED"] += group.interested.count
            counts["NOTIFIED"] += group.notified.count
            group = group.next
        counts["NOT_INTERESTED"] = self.queue.manager.not_interested.count
        counts["NON_ACQUIRING"] = self.queue.manager.non_acquiring.count
        return counts

    def flow(self, count: int) -> float:
        """Nanoseconds per message of enqueue + deliver + dequeue with one attached no-ack consumer, messages going one by one."""
        target = Target()
        consumer = Consumer(self, target, no_ack=True)
        delivery: delivery_t
        content: cython.pointer(content_t) = content_from_bytes(b"", b"q", b"", b"0123456789abcdef", 0, 0)
        total: uint64_t = count
        i: uint64_t
        begin: timespec
        end: timespec
        raw: cython.pointer(consumer_t) = consumer.consumer
        queue: cython.pointer(queue_t) = self.queue
        delivered: uint64_t = 0
        with cython.nogil:
            queue_enqueue(queue, content, 0, 0, cython.NULL)
            clock_gettime(CLOCK_MONOTONIC, cython.address(begin))
            for i in range(total):
                queue_enqueue(queue, content, 0, 0, cython.NULL)
                if queue_deliver_single(queue, raw, cython.address(delivery)):
                    delivered += 1
                    queue_dequeue(queue, delivery.slot, delivery.position, raw.id, REASON_ACK)
            clock_gettime(CLOCK_MONOTONIC, cython.address(end))
        content_decref(content)
        consumer.close()
        queue_purge(queue)
        if delivered != total:
            raise AssertionError("messages went missing")
        return ((end.tv_sec - begin.tv_sec) * 1e9 + (end.tv_nsec - begin.tv_nsec)) / count

    def fill(self, count: int) -> None:
        """Enqueues `count` references of one message."""
        content: cython.pointer(content_t) = content_from_bytes(b"", b"q", b"", b"0123456789abcdef", 0, 0)
        total: uint64_t = count
        i: uint64_t
        with cython.nogil:
            for i in range(total):
                queue_enqueue(self.queue, content, 0, 0, cython.NULL)
        content_decref(content)


def new_owner() -> int:
    """A consumer id for Queue.pull."""
    return consumer_id_new()


@cython.cclass
class Credit:
    """A prefetch that several consumers share; limit 0 = unlimited."""

    def __init__(self, limit: int):
        self.credit.limit = limit

    @property
    def used(self) -> int:
        return self.credit.used


@cython.cclass
class Target:
    """Counts notify_work calls; `take` reads and clears."""

    def __cinit__(self):
        memset(cython.address(self.target), 0, cython.sizeof(target_t))
        self.target.notify_work = _count_notify
        self.target.context = cython.address(self.notified)
        self.members = []

    def take(self) -> int:
        return at_swap32(cython.address(self.notified), 0)

    @property
    def suspended(self) -> bool:
        return self.target.suspended != 0


@cython.cclass
class Consumer:
    """A consumer attached to a queue; `wants`: takes only bodies that begin with this byte. Raises ValueError when refused."""

    def __init__(
        self,
        queue: Queue,
        target: Target | None = None,
        priority: int = 0,
        browser: bool = False,
        no_ack: bool = False,
        exclusive: bool = False,
        prefetch: int = 0,
        shared: Credit | None = None,
        wants: bytes | None = None,
        suspended: bool = False,
    ):
        flags: uint32_t = 0 if browser else CONSUMER_ACQUIRES
        if no_ack:
            flags |= CONSUMER_NO_ACK
        if exclusive:
            flags |= CONSUMER_EXCLUSIVE
        self.queue = queue
        self.target = target if target is not None else Target()
        if suspended:
            self.target.target.suspended = 1
        self.consumer = consumer_new(queue.queue, cython.address(self.target.target), priority, flags, prefetch)
        if self.consumer == cython.NULL:
            raise MemoryError("consumer_new")
        if shared is not None:
            self.shared = shared
            self.consumer.shared_credit = cython.address(shared.credit)
        if wants is not None:
            self.wanted_first = wants[0]
            self.consumer.interest = _first_byte
            self.consumer.interest_context = cython.address(self.wanted_first)
        if not queue_add_consumer(queue.queue, self.consumer):
            raise ValueError("refused")

    def __dealloc__(self):
        if self.consumer != cython.NULL:
            queue_remove_consumer(self.consumer.queue, self.consumer)
            consumer_decref(self.consumer)

    def pull(self, sent: bool = True):
        """(position, body, redelivered, count, rotate) or None. No-ack: settled at once. `sent`: makes it stealable."""
        delivery: delivery_t
        if not queue_deliver_single(self.queue.queue, self.consumer, cython.address(delivery)):
            return None
        result = self.queue.delivery_of(cython.address(delivery))
        if not self.consumer.flags & CONSUMER_ACQUIRES:
            content_decref(delivery.content)
        elif self.consumer.flags & CONSUMER_NO_ACK:
            queue_dequeue(self.queue.queue, delivery.slot, delivery.position, self.consumer.id, REASON_ACK)
        elif sent:
            entry_sent(delivery.slot)
        return result

    def _credit_back(self):
        consumer_give_back_credit(self.consumer)
        if self.consumer.list == CONSUMER_NOT_INTERESTED and consumer_has_credit(self.consumer) and not self.target.suspended:
            queue_set_notify_work_desired(self.queue.queue, self.consumer, True)

    def ack(self, position: int) -> bool:
        if not queue_dequeue(self.queue.queue, cython.NULL, position, self.consumer.id, REASON_ACK):
            return False
        self._credit_back()
        return True

    def release(self, position: int, delivered: bool = True) -> bool:
        if not queue_release(self.queue.queue, cython.NULL, position, self.consumer.id, delivered):
            return False
        self._credit_back()
        return True

    def set_desired(self, desired: bool) -> None:
        queue_set_notify_work_desired(self.queue.queue, self.consumer, desired)

    def suspend(self, suspended: bool = True) -> None:
        """Transport blocked or not: as the session does it."""
        at_store32(cython.address(self.target.target.suspended), 1 if suspended else 0)
        if suspended or consumer_has_credit(self.consumer):
            queue_set_notify_work_desired(self.queue.queue, self.consumer, not suspended)

    def set_prefetch(self, limit: int) -> None:
        at_store32(cython.address(self.consumer.credit.limit), limit)
        if self.consumer.list == CONSUMER_NOT_INTERESTED and consumer_has_credit(self.consumer) and not self.target.suspended:
            queue_set_notify_work_desired(self.queue.queue, self.consumer, True)

    def close(self) -> None:
        queue_remove_consumer(self.queue.queue, self.consumer)

    @property
    def id(self) -> int:
        return self.consumer.id

    @property
    def list(self) -> str:
        return LIST_NAMES[at_load32(cython.address(self.consumer.list))]

    @property
    def used(self) -> int:
        return at_load32(cython.address(self.consumer.credit.used))

    @property
    def has_credit(self) -> bool:
        return consumer_has_credit(self.consumer) != 0

    @property
    def has_offer(self) -> bool:
        return self.consumer.offered != cython.NULL

    @property
    def pointers(self) -> tuple:
        """(last_seen, released)."""
        return (self.consumer.last_seen, self.consumer.released)


# --- threads --------------------------------------------------------------------------------------------------------------


@cython.cclass
class Stress:
    """One queue worked by real threads. Bodies are (producer, number); every message must be finished exactly once.

    Each method is the body of one thread and runs without the GIL.
    """

    def __init__(self, queue: Queue, producers: int, per_producer: int):
        self.queue = queue
        self.state.producers = producers
        self.state.per_producer = per_producer
        self.state.seen = cython.cast(cython.pointer(uint32_t), calloc(producers * per_producer, cython.sizeof(uint32_t)))

    def __dealloc__(self):
        free(self.state.seen)

    def stop(self) -> None:
        at_store32(cython.address(self.state.stop), 1)

    @property
    def results(self) -> dict:
        return {
            "finished": at_load64(cython.address(self.state.finished)),
            "delivered": at_load64(cython.address(self.state.delivered)),
            "duplicates": at_load64(cython.address(self.state.duplicates)),
            "disorder": at_load64(cython.address(self.state.disorder)),
            "leaked": at_load64(cython.address(self.state.leaked)),
            "returned": at_load64(cython.address(self.state.returned)),
        }

    def produce(self, number: int, immediate_every: int = 0, levels: int = 1, window: int = 0) -> None:
        """`window` > 0: at most so many of its messages are unfinished, so the queue falls idle again and again."""
        state: cython.pointer(stress_t) = cython.address(self.state)
        producer: uint64_t = number
        every: uint64_t = immediate_every
        level_count: uint32_t = levels
        unfinished: uint64_t = window
        queue: cython.pointer(queue_t) = self.queue.queue
        i: uint64_t
        content: cython.pointer(content_t)
        arena: cython.pointer(arena_t) = arena_new()
        body: cython.pointer(uint64_t)
        with cython.nogil:
            for i in range(state.per_producer):
                while (
                    unfinished
                    and (i - unfinished) * state.producers > at_load64(cython.address(state.finished))
                    and i > unfinished
                    and not at_load32(cython.address(state.stop))
                ):
                    usleep(0)
                content = content_new(arena, 0, 0, 16)
                body = cython.cast(cython.pointer(uint64_t), content_body(content))
                memcpy(body, cython.address(producer), 8)
                memcpy(body + 1, cython.address(i), 8)
                content.priority = cython.cast(uint8_t, i % level_count)
                content.flags = CONTENT_PRIORITY
                if every and i % every == 0:
                    if queue_enqueue_immediate(queue, content, 0, 0, cython.NULL) == 0:
                        at_add64(cython.address(state.returned), 1)
                        _finish(state, producer, i)
                else:
                    queue_enqueue(queue, content, 0, 0, cython.NULL)
                content_decref(content)
            arena_free(arena)

    def consume(
        self,
        consumer: Consumer,
        release_every: int = 0,
        reattach_every: int = 0,
        suspend_every: int = 0,
        check_order: bool = True,
        hold: int = 0,
    ) -> None:
        """Until stopped: waits to be notified, pulls until nothing comes, settles (the oldest first once it holds `hold` entries).

        Reattaching closes and adds a fresh consumer.
        """
        state: cython.pointer(stress_t) = cython.address(self.state)
        queue: cython.pointer(queue_t) = self.queue.queue
        raw: cython.pointer(consumer_t) = consumer.consumer
        fresh: cython.pointer(consumer_t)
        notified: cython.pointer(uint32_t) = cython.address(consumer.target.notified)
        delivery: delivery_t
        turns: uint64_t = 0
        count: uint64_t = 0
        settled: uint64_t = 0
        producer: uint64_t
        number: uint64_t
        release: uint64_t = release_every
        reattach: uint64_t = reattach_every
        suspend: uint64_t = suspend_every
        room: uint64_t = hold + 1
        ordered: cython.bint = check_order
        last: cython.pointer(uint64_t) = cython.cast(cython.pointer(uint64_t), calloc(state.producers, 8))
        held: cython.pointer(delivery_t) = cython.cast(cython.pointer(delivery_t), calloc(room, cython.sizeof(delivery_t)))
        body: cython.pointer(uint64_t)
        with cython.nogil:
            while True:
                if not at_swap32(notified, 0):
                    if at_load32(cython.address(state.stop)):
                        break
                    usleep(20)
                    continue
                while queue_deliver_single(queue, raw, cython.address(delivery)):
                    body = cython.cast(cython.pointer(uint64_t), content_body(delivery.content))
                    memcpy(cython.address(producer), body, 8)
                    memcpy(cython.address(number), body + 1, 8)
                    if ordered and not delivery.redelivered:
                        if number + 1 <= last[producer]:
                            at_add64(cython.address(state.disorder), 1)
                        last[producer] = number + 1
                    entry_sent(delivery.slot)
                    held[count % room] = delivery
                    count += 1
                    if count - settled == room:
                        _settle(state, queue, raw, held + settled % room, release and settled % release == release - 1)
                        settled += 1
                    if suspend and count % suspend == 0:
                        at_store32(cython.address(raw.target.suspended), 1)
                        queue_set_notify_work_desired(queue, raw, False)
                        at_store32(cython.address(raw.target.suspended), 0)
                        queue_set_notify_work_desired(queue, raw, True)
                while settled < count:
                    _settle(state, queue, raw, held + settled % room, release and settled % release == release - 1)
                    settled += 1
                turns += 1
                if reattach and turns % reattach == 0:
                    fresh = consumer_new(queue, raw.target, raw.priority, raw.flags, raw.credit.limit)
                    queue_remove_consumer(queue, raw)
                    if raw.credit.used:
                        at_add64(cython.address(state.leaked), raw.credit.used)
                    consumer_decref(raw)
                    raw = fresh
                    memset(last, 0, state.producers * 8)
                    queue_add_consumer(queue, raw)
            at_add64(cython.address(state.delivered), count)
        consumer.consumer = raw
        free(last)
        free(held)

    def remove(self, every_us: int = 50) -> None:
        """A remover of the broker: takes heads and dequeues them, and housekeeps."""
        state: cython.pointer(stress_t) = cython.address(self.state)
        queue: cython.pointer(queue_t) = self.queue.queue
        delivery: delivery_t
        pause: uint32_t = every_us
        producer: uint64_t
        number: uint64_t
        body: cython.pointer(uint64_t)
        rounds: uint64_t = 0
        with cython.nogil:
            while not at_load32(cython.address(state.stop)):
                rounds += 1
                if queue_take_head(queue, cython.address(delivery)):
                    body = cython.cast(cython.pointer(uint64_t), content_body(delivery.content))
                    memcpy(cython.address(producer), body, 8)
                    memcpy(cython.address(number), body + 1, 8)
                    if queue_dequeue(queue, delivery.slot, delivery.position, 0, REASON_DROP):
                        _finish(state, producer, number)
                    else:
                        at_add64(cython.address(state.duplicates), 1)
                # Only memory: a lost wake-up must not be repaired by the asynchronous delivery job here.
                queue_ready_count(queue)
                usleep(pause)

    def browse(self, consumer: Consumer) -> int:
        """Walks the queue as a browser until stopped; returns how many it saw."""
        state: cython.pointer(stress_t) = cython.address(self.state)
        queue: cython.pointer(queue_t) = self.queue.queue
        raw: cython.pointer(consumer_t) = consumer.consumer
        delivery: delivery_t
        seen: uint64_t = 0
        with cython.nogil:
            while not at_load32(cython.address(state.stop)):
                if queue_deliver_single(queue, raw, cython.address(delivery)):
                    seen += 1
                    content_decref(delivery.content)
                else:
                    usleep(20)
        return seen


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _settle(
    state: cython.pointer(stress_t),
    queue: cython.pointer(queue_t),
    consumer: cython.pointer(consumer_t),
    delivery: cython.pointer(delivery_t),
    back: cython.bint,
) -> cython.void:
    """Acks or gives back one delivery, and its credit as the session does."""
    body: cython.pointer(uint64_t) = cython.cast(cython.pointer(uint64_t), content_body(delivery.content))
    producer: uint64_t
    number: uint64_t
    memcpy(cython.address(producer), body, 8)
    memcpy(cython.address(number), body + 1, 8)
    if back:
        if not queue_release(queue, delivery.slot, delivery.position, consumer.id, True):
            at_add64(cython.address(state.duplicates), 1)
    elif queue_dequeue(queue, delivery.slot, delivery.position, consumer.id, REASON_ACK):
        _finish(state, producer, number)
    else:
        at_add64(cython.address(state.duplicates), 1)
    consumer_give_back_credit(consumer)
    if at_load32(cython.address(consumer.list)) == CONSUMER_NOT_INTERESTED and consumer_has_credit(consumer):
        queue_set_notify_work_desired(queue, consumer, True)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _finish(state: cython.pointer(stress_t), producer: uint64_t, number: uint64_t) -> cython.void:
    if at_add32(state.seen + producer * state.per_producer + number, 1) != 0:
        at_add64(cython.address(state.duplicates), 1)
    at_add64(cython.address(state.finished), 1)
