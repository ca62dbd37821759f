"""Real threads on one queue of the core: what producers, consumers, removers and browsers do, and what must hold afterwards.

Used by tests/queue/stress.py, also under ThreadSanitizer. Every loop runs without the GIL.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cclass, cfunc, exceptval, nogil, pointer, sizeof, void
from cython.cimports.flintmq.core.atomics import at_add32, at_add64, at_load32, at_load64, at_store32, at_swap32
from cython.cimports.flintmq.core.content import (
    CONTENT_PERSISTENT, CONTENT_PRIORITY, arena_free, arena_new, arena_t, content_body, content_decref, content_from_bytes, content_incref,
    content_new, content_t,
)  # fmt: skip
from cython.cimports.flintmq.queue.owner_ids import owner_id_new
from cython.cimports.flintmq.queue.purge import queue_purge
from cython.cimports.flintmq.queue.queue_core import (
    consumer_decref, consumer_give_back_credit, consumer_has_credit, consumer_new, entry_sent, queue_add_consumer, queue_add_held,
    queue_add_waiter, queue_consumer_leaves, queue_deliver_single, queue_dequeue, queue_enqueue, queue_enqueue_immediate, queue_hold_at,
    queue_publish_held, queue_pull, queue_ready_count, queue_release, queue_remove_consumer, queue_remove_waiter, queue_restore_many,
    queue_set_notify_work_desired, queue_set_ports, queue_take_head,
)  # fmt: skip
from cython.cimports.flintmq.queue.sweep import queue_sweep, sweep_end, sweep_t
from cython.cimports.flintmq.queue.types import (
    CONSUMER_NOT_INTERESTED, REASON_ACK, REASON_DROP, consumer_t, delivery_t, log_port_t, queue_t, restored_t, slot_t,
)  # fmt: skip
from cython.cimports.libc.stdint import uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import calloc, free
from cython.cimports.libc.string import memcpy, memset
from cython.cimports.posix.time import CLOCK_MONOTONIC, clock_gettime, timespec
from cython.cimports.posix.unistd import usleep
from cython.cimports.tests.drivers.queue_driver import Consumer, Queue, Target, Waiter
from cython.cimports.tests.drivers.queue_parts import evict_content
from cython.cimports.tests.drivers.queue_ports import count_wake
from cython.cimports.tests.twins.memory_log import memory_log_answer, memory_log_find, memory_log_t, memory_log_write


@cclass
class Stress:
    """One queue worked by real threads. Bodies are (producer, number); every message must be finished exactly once.

    Each method is the body of one thread and runs without the GIL.
    """

    def __init__(self, queue: Queue, producers: int, per_producer: int):
        self.queue = queue
        self.state.producers = producers
        self.state.per_producer = per_producer
        self.state.seen = cast(pointer[uint32_t], calloc(producers * per_producer, sizeof(uint32_t)))

    def __dealloc__(self):
        free(self.state.seen)

    def stop(self) -> None:
        at_store32(address(self.state.stop), 1)

    @property
    def results(self) -> dict:
        return {
            "finished": at_load64(address(self.state.finished)),
            "delivered": at_load64(address(self.state.delivered)),
            "duplicates": at_load64(address(self.state.duplicates)),
            "disorder": at_load64(address(self.state.disorder)),
            "leaked": at_load64(address(self.state.leaked)),
            "returned": at_load64(address(self.state.returned)),
        }

    def produce(
        self, number: int, immediate_every: int = 0, levels: int = 1, window: int = 0, persistent_every: int = 0, held_every: int = 0
    ) -> None:
        """`window` > 0: at most so many of its messages are unfinished, so the queue falls idle again and again. `persistent_every`
        and `held_every`: one of so many is logged, or added as a transaction does (with a log only)."""
        state: pointer[stress_t] = address(self.state)
        producer: uint64_t = number
        every: uint64_t = immediate_every
        persistent: uint64_t = persistent_every
        held: uint64_t = held_every
        slot: pointer[slot_t]
        position: uint64_t = 0
        log: pointer[memory_log_t] = NULL
        level_count: uint32_t = levels
        unfinished: uint64_t = window
        queue: pointer[queue_t] = self.queue.queue
        i: uint64_t
        content: pointer[content_t]
        arena: pointer[arena_t] = arena_new()
        body: pointer[uint64_t]
        if self.queue.log is not None:
            log = address(self.queue.log.log)
        with nogil:
            for i in range(state.per_producer):
                while (
                    unfinished
                    and (i - unfinished) * state.producers > at_load64(address(state.finished))
                    and i > unfinished
                    and not at_load32(address(state.stop))
                ):
                    usleep(0)
                content = content_new(arena, 0, 0, 16)
                body = cast(pointer[uint64_t], content_body(content))
                memcpy(body, address(producer), 8)
                memcpy(body + 1, address(i), 8)
                content.priority = cast(uint8_t, i % level_count)
                content.flags = CONTENT_PRIORITY
                if persistent and i % persistent == 0:
                    content.flags |= CONTENT_PERSISTENT
                if every and i % every == 0:
                    if queue_enqueue_immediate(queue, content, 0, 0, NULL) == 0:
                        at_add64(address(state.returned), 1)
                        _finish(state, producer, i)
                elif held and i % held == 0:
                    slot = queue_add_held(queue, content, 0, address(position))
                    memory_log_write(log, slot)
                    queue_publish_held(queue, slot, position, True)
                else:
                    queue_enqueue(queue, content, 0, 0, NULL)
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
        idle_suspend: bool = False,
    ) -> None:
        """Until stopped: waits to be notified, pulls until nothing comes, settles (the oldest first once it holds `hold` entries).

        Reattaching closes and adds a fresh consumer. `idle_suspend`: while it waits it is suspended and resumed all the time, so that
        nothing but the hand-over itself brings back an offer that lands meanwhile.
        """
        state: pointer[stress_t] = address(self.state)
        queue: pointer[queue_t] = self.queue.queue
        raw: pointer[consumer_t] = consumer.consumer
        fresh: pointer[consumer_t]
        notified: pointer[uint32_t] = address(consumer.target.notified)
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
        ordered: bint = check_order
        restless: bint = idle_suspend
        last: pointer[uint64_t] = cast(pointer[uint64_t], calloc(state.producers, 8))
        held: pointer[delivery_t] = cast(pointer[delivery_t], calloc(room, sizeof(delivery_t)))
        body: pointer[uint64_t]
        with nogil:
            while True:
                if not at_swap32(notified, 0):
                    if at_load32(address(state.stop)):
                        break
                    if restless:
                        at_store32(address(raw.target.suspended), 1)
                        queue_set_notify_work_desired(queue, raw, False)
                        at_store32(address(raw.target.suspended), 0)
                        if consumer_has_credit(raw):
                            queue_set_notify_work_desired(queue, raw, True)
                    else:
                        usleep(20)
                    continue
                while queue_deliver_single(queue, raw, address(delivery)):
                    body = cast(pointer[uint64_t], content_body(delivery.content))
                    memcpy(address(producer), body, 8)
                    memcpy(address(number), body + 1, 8)
                    if ordered and not delivery.redelivered:
                        if number + 1 <= last[producer]:
                            at_add64(address(state.disorder), 1)
                        last[producer] = number + 1
                    content_incref(delivery.content)  # sent, it may leave memory (sweep) or the queue's hands at any time
                    entry_sent(delivery.slot)
                    held[count % room] = delivery
                    count += 1
                    if count - settled == room:
                        _settle(state, queue, raw, held + settled % room, release and settled % release == release - 1)
                        settled += 1
                    if suspend and count % suspend == 0:
                        at_store32(address(raw.target.suspended), 1)
                        queue_set_notify_work_desired(queue, raw, False)
                        at_store32(address(raw.target.suspended), 0)
                        queue_set_notify_work_desired(queue, raw, True)
                while settled < count:
                    _settle(state, queue, raw, held + settled % room, release and settled % release == release - 1)
                    settled += 1
                turns += 1
                if reattach and turns % reattach == 0:
                    fresh = consumer_new(queue, raw.target, raw.priority, raw.flags, raw.credit.limit)
                    queue_remove_consumer(queue, raw)
                    while queue_consumer_leaves(queue, raw):
                        pass
                    if raw.credit.used:
                        at_add64(address(state.leaked), raw.credit.used)
                    consumer_decref(raw)
                    raw = fresh
                    memset(last, 0, state.producers * 8)
                    queue_add_consumer(queue, raw)
            at_add64(address(state.delivered), count)
        consumer.consumer = raw
        free(last)
        free(held)

    def remove(self, every_us: int = 50) -> None:
        """A remover of the broker: takes heads and dequeues them, and housekeeps."""
        state: pointer[stress_t] = address(self.state)
        queue: pointer[queue_t] = self.queue.queue
        delivery: delivery_t
        pause: uint32_t = every_us
        producer: uint64_t
        number: uint64_t
        body: pointer[uint64_t]
        rounds: uint64_t = 0
        content: pointer[content_t]
        log: pointer[memory_log_t] = NULL
        if self.queue.log is not None:
            log = address(self.queue.log.log)
        with nogil:
            while not at_load32(address(state.stop)):
                rounds += 1
                if queue_take_head(queue, address(delivery)):
                    content = delivery.content
                    if content == NULL:
                        content = memory_log_find(log, delivery.message_id)  # cold: read, as the broker would
                    body = cast(pointer[uint64_t], content_body(content))
                    memcpy(address(producer), body, 8)
                    memcpy(address(number), body + 1, 8)
                    if delivery.content == NULL:
                        content_decref(content)
                    if queue_dequeue(queue, delivery.slot, delivery.position, 0, REASON_DROP):
                        _finish(state, producer, number)
                    else:
                        at_add64(address(state.duplicates), 1)
                # Only memory: a lost wake-up must not be repaired by the asynchronous delivery job here.
                queue_ready_count(queue)
                usleep(pause)

    def load(self, run: int = 8, hot: int = 64) -> None:
        """The store's loader: answers loads, and loads what follows while the window has room."""
        state: pointer[stress_t] = address(self.state)
        log: pointer[memory_log_t] = address(self.queue.log.log)
        ahead: uint32_t = run
        window: uint64_t = hot
        with nogil:
            while not at_load32(address(state.stop)):
                if not memory_log_answer(log, ahead, window):
                    usleep(20)

    def evict(self, seed: int = 1, holds: bool = False) -> None:
        """Takes content out of memory near the head, at random. `holds`: also entries, for a moment, as a transaction in doubt does."""
        state: pointer[stress_t] = address(self.state)
        queue: pointer[queue_t] = self.queue.queue
        random: uint64_t = seed
        level: uint64_t
        position: uint64_t
        hold: bint = holds
        with nogil:
            while not at_load32(address(state.stop)):
                random ^= random << 13
                random ^= random >> 7
                random ^= random << 17
                level = (random >> 40) % queue.entries.level_count
                position = (level << 56) | (at_load64(address(queue.entries.levels[level].floor)) + (random >> 33) % 32)
                evict_content(queue, position)
                if hold and (random >> 50) % 4 == 0 and queue_hold_at(queue, position) != NULL:
                    queue_release(queue, NULL, position, 0, False)
                usleep(cast(uint32_t, random >> 62))

    def sweep(self) -> int:
        """The memory keeper with memory always short. Returns how many bodies it evicted or moved."""
        state: pointer[stress_t] = address(self.state)
        queue: pointer[queue_t] = self.queue.queue
        sweep: sweep_t
        position: uint64_t = 1
        memset(address(sweep), 0, sizeof(sweep_t))
        sweep.arena = arena_new()
        with nogil:
            while not at_load32(address(state.stop)):
                position = queue_sweep(queue, address(sweep), position, 64, True)
                if position == 0:
                    sweep_end(address(sweep))
                    usleep(50)
            sweep_end(address(sweep))
            arena_free(sweep.arena)
        return sweep.evicted + sweep.copied

    def get(self) -> int:
        """basic.get, over and over; a cold head is waited for. Returns how many it got."""
        state: pointer[stress_t] = address(self.state)
        queue: pointer[queue_t] = self.queue.queue
        owner: uint32_t = owner_id_new()
        delivery: delivery_t
        waiter: Waiter = Waiter()
        got: uint64_t = 0
        waiting: bint = False
        waiter.waiter.context = address(waiter.woken)
        waiter.waiter.wake = count_wake
        with nogil:
            while not at_load32(address(state.stop)):
                if queue_pull(queue, owner, address(delivery)):
                    if waiting:
                        queue_remove_waiter(queue, address(waiter.waiter))
                        waiting = False
                    content_incref(delivery.content)
                    entry_sent(delivery.slot)
                    got += 1
                    _settle_got(state, queue, owner, address(delivery), got % 7 == 0)
                elif delivery.position == 0:
                    usleep(20)  # empty
                elif not waiting:
                    waiting = True
                    at_store32(address(waiter.woken), 0)
                    queue_add_waiter(queue, address(waiter.waiter))
                else:
                    # Nobody but the queue ends this: a lost wake-up would leave the last messages where they are.
                    while not at_swap32(address(waiter.woken), 0) and not at_load32(address(state.stop)):
                        usleep(20)
            if waiting:
                queue_remove_waiter(queue, address(waiter.waiter))
        return got

    def browse(self, consumer: Consumer) -> int:
        """Walks the queue as a browser until stopped; returns how many it saw."""
        state: pointer[stress_t] = address(self.state)
        queue: pointer[queue_t] = self.queue.queue
        raw: pointer[consumer_t] = consumer.consumer
        delivery: delivery_t
        seen: uint64_t = 0
        with nogil:
            while not at_load32(address(state.stop)):
                if queue_deliver_single(queue, raw, address(delivery)):
                    seen += 1
                    content_decref(delivery.content)
                else:
                    usleep(20)
        return seen


@cfunc
@nogil
@exceptval(check=False)
def _settle(
    state: pointer[stress_t],
    queue: pointer[queue_t],
    consumer: pointer[consumer_t],
    delivery: pointer[delivery_t],
    back: bint,
) -> void:
    """Acks or gives back one delivery, and its credit as the session does."""
    body: pointer[uint64_t] = cast(pointer[uint64_t], content_body(delivery.content))
    producer: uint64_t
    number: uint64_t
    memcpy(address(producer), body, 8)
    memcpy(address(number), body + 1, 8)
    content_decref(delivery.content)
    if back:
        if not queue_release(queue, delivery.slot, delivery.position, consumer.id, True):
            at_add64(address(state.duplicates), 1)
    elif queue_dequeue(queue, delivery.slot, delivery.position, consumer.id, REASON_ACK):
        _finish(state, producer, number)
    else:
        at_add64(address(state.duplicates), 1)
    consumer_give_back_credit(consumer)
    if at_load32(address(consumer.list)) == CONSUMER_NOT_INTERESTED and consumer_has_credit(consumer):
        queue_set_notify_work_desired(queue, consumer, True)


@cfunc
@nogil
@exceptval(check=False)
def _settle_got(
    state: pointer[stress_t],
    queue: pointer[queue_t],
    owner: uint32_t,
    delivery: pointer[delivery_t],
    back: bint,
) -> void:
    body: pointer[uint64_t] = cast(pointer[uint64_t], content_body(delivery.content))
    producer: uint64_t
    number: uint64_t
    memcpy(address(producer), body, 8)
    memcpy(address(number), body + 1, 8)
    content_decref(delivery.content)
    if back:
        if not queue_release(queue, delivery.slot, delivery.position, owner, True):
            at_add64(address(state.duplicates), 1)
    elif queue_dequeue(queue, delivery.slot, delivery.position, owner, REASON_ACK):
        _finish(state, producer, number)
    else:
        at_add64(address(state.duplicates), 1)


@cfunc
@nogil
@exceptval(check=False)
def _finish(state: pointer[stress_t], producer: uint64_t, number: uint64_t) -> void:
    if at_add32(state.seen + producer * state.per_producer + number, 1) != 0:
        at_add64(address(state.duplicates), 1)
    at_add64(address(state.finished), 1)


# --- speed of one thread --------------------------------------------------------------------------------------------------


def flow(driven: Queue, count: int, ports: bool = False) -> float:
    """Nanoseconds per message of enqueue + deliver + dequeue with one attached no-ack consumer, messages going one by one.

    `ports`: on a durable queue with a log (the messages are transient), else in memory only.
    """
    target = Target()
    consumer = Consumer(driven, target, no_ack=True)
    delivery: delivery_t
    content: pointer[content_t] = content_from_bytes(b"", b"q", b"", b"0123456789abcdef", 0, 0)
    total: uint64_t = count
    i: uint64_t
    begin: timespec
    end: timespec
    raw: pointer[consumer_t] = consumer.consumer
    queue: pointer[queue_t] = driven.queue
    delivered: uint64_t = 0
    port: pointer[log_port_t] = queue.port
    if not ports:
        queue_set_ports(queue, NULL)
    with nogil:
        queue_enqueue(queue, content, 0, 0, NULL)
        clock_gettime(CLOCK_MONOTONIC, address(begin))
        for i in range(total):
            queue_enqueue(queue, content, 0, 0, NULL)
            if queue_deliver_single(queue, raw, address(delivery)):
                delivered += 1
                queue_dequeue(queue, delivery.slot, delivery.position, raw.id, REASON_ACK)
        clock_gettime(CLOCK_MONOTONIC, address(end))
    content_decref(content)
    consumer.close()
    queue_purge(queue)
    queue_set_ports(queue, port)
    if delivered != total:
        raise AssertionError("messages went missing")
    return ((end.tv_sec - begin.tv_sec) * 1e9 + (end.tv_nsec - begin.tv_nsec)) / count


def restore_run(driven: Queue, first: int, count: int) -> float:
    """Restores `count` entries from position `first` on; nanoseconds an entry."""
    total: uint64_t = count
    i: uint64_t
    done: uint64_t
    begin: timespec
    end: timespec
    restored: pointer[restored_t] = cast(pointer[restored_t], calloc(total + 1, sizeof(restored_t)))
    start: uint64_t = first
    for i in range(total):
        restored[i].position = start + i
        restored[i].message_id = i + 1
        restored[i].body_len = 100
    clock_gettime(CLOCK_MONOTONIC, address(begin))
    done = queue_restore_many(driven.queue, restored, total)
    clock_gettime(CLOCK_MONOTONIC, address(end))
    free(restored)
    if done != total:
        raise AssertionError("not all were restored")
    return ((end.tv_sec - begin.tv_sec) * 1e9 + (end.tv_nsec - begin.tv_nsec)) / count
