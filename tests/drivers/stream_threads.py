"""Real threads on one stream: producers, members of groups that ack, return and leave, and what must hold afterwards.

Used by tests/streams and bench/streams.py. Every loop runs without the GIL.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cclass, cfunc, declare, exceptval, nogil, p_char, pointer, sizeof, void
from cython.cimports.flintmq.core.atomics import at_add32, at_add64, at_load32, at_load64, at_store32, at_sub32, at_swap32
from cython.cimports.flintmq.core.content import (
    arena_free, arena_new, arena_t, content_body, content_decref, content_frame, content_header, content_new, content_route, content_t,
)  # fmt: skip
from cython.cimports.flintmq.queue.queue_core import (
    consumer_give_back_credit, consumer_has_credit, entry_sent, queue_deliver_single, queue_enqueue, queue_release,
    queue_set_notify_work_desired, queue_settle,
)  # fmt: skip
from cython.cimports.flintmq.queue.types import CONSUMER_NOT_INTERESTED, REASON_ACK, consumer_t, delivery_t, queue_t
from cython.cimports.flintmq.streams.control import StreamQueue
from cython.cimports.libc.stdint import uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import calloc, free
from cython.cimports.libc.string import memcpy, memset
from cython.cimports.posix.unistd import usleep
from cython.cimports.tests.drivers.stream_driver import StreamConsumer
from cython.cimports.tests.twins.memory_stream import MemoryStream, memory_stream_publish, memory_stream_t

HANDS = declare(uint32_t, 512)
TURN = declare(uint32_t, 256)


@cclass
class StreamThreads:
    """`total` messages through `lanes` groups. `keep`: every offset's fate is kept (stress); else only counted (bench)."""

    def __init__(self, stream: StreamQueue, total: int, lanes: int, keep: bool = True, log: MemoryStream | None = None):
        i: uint32_t
        self.stream = stream
        self.log = log
        self.state.total = total
        self.state.lanes = lanes
        self.state.lane = cast(pointer[lane_t], calloc(lanes, sizeof(lane_t)))
        if keep:
            for i in range(lanes):
                self.state.lane[i].seen = cast(pointer[uint32_t], calloc(total, sizeof(uint32_t)))
                self.state.lane[i].hands = cast(pointer[uint32_t], calloc(total, sizeof(uint32_t)))

    def __dealloc__(self):
        i: uint32_t
        for i in range(self.state.lanes):
            free(self.state.lane[i].seen)
            free(self.state.lane[i].hands)
        free(self.state.lane)

    def stop(self) -> None:
        at_store32(address(self.state.stop), 1)

    def results(self, lane: int) -> dict[str, int]:
        at: pointer[lane_t] = address(self.state.lane[lane])
        wrong: uint64_t = 0
        i: uint64_t
        if at.seen != NULL:
            for i in range(self.state.total):
                wrong += 1 if at_load32(address(at.seen[i])) != 1 else 0
        return {
            "done": at_load64(address(at.done)),
            "delivered": at_load64(address(at.delivered)),
            "redelivered": at_load64(address(at.redelivered)),
            "disorder": at_load64(address(at.disorder)),
            "twice": at_load64(address(at.twice)),
            "wrong": wrong,
        }

    def produce(self, count: int, size: int = 100, publish_every: int = 64, pause_us: int = 0, ahead: int = 0) -> None:
        """One producer's thread. `publish_every`: so many appends make one pass of the (pretended) writer; with a log on disk its own
        writer decides. `ahead` > 0: no more than so many messages before the slowest group."""
        queue: pointer[queue_t] = self.stream.handle.queue
        log: pointer[memory_stream_t] = NULL
        arena: pointer[arena_t] = arena_new()
        content: pointer[content_t]
        messages: uint64_t = count
        body_len: uint32_t = size
        every: uint64_t = publish_every
        pause: uint32_t = pause_us
        window: uint64_t = ahead
        slowest: uint64_t
        i: uint64_t
        lane: uint32_t
        if self.log is not None:
            log = address(self.log.log)
        with nogil:
            for i in range(messages):
                while window and not at_load32(address(self.state.stop)):
                    slowest = ~cast(uint64_t, 0)
                    for lane in range(self.state.lanes):
                        slowest = min(slowest, at_load64(address(self.state.lane[lane].done)))
                    if i < slowest + window:
                        break
                    if log != NULL:
                        memory_stream_publish(log, ~cast(uint64_t, 0))
                    usleep(50)
                content = content_new(arena, 3, 14, body_len)
                memcpy(content_route(content), cast(p_char, b"\0\1q"), 3)
                memset(content_header(content), 0, 14)
                content_header(content)[1] = 60
                memset(content_body(content), 120, body_len)
                content_frame(content)
                content.flags = 1
                while queue_enqueue(queue, content, 0, 0, NULL) == 0 and not at_load32(address(self.state.stop)):
                    usleep(100)
                content_decref(content)
                if log != NULL and i % every == every - 1:
                    memory_stream_publish(log, ~cast(uint64_t, 0))
                if queue.port != NULL and i % every == every - 1:
                    queue.port.kick(queue.port.context, True)
                if pause and i % every == every - 1:
                    usleep(pause)
            if log != NULL:
                memory_stream_publish(log, ~cast(uint64_t, 0))
            if queue.port != NULL:
                queue.port.kick(queue.port.context, True)
            arena_free(arena)

    def consume(self, consumers: list, lanes: list, return_every: int = 0, leave_after: int = 0, hold: int = 1, copy: bool = False) -> int:
        """One loop's thread: turns for those of its consumers that were told, until their groups are done or, with `leave_after`, so many
        messages were delivered. `hold`: acks come when so many are in hand, in reverse order; `return_every`: one of so many goes back.

        Returns how many it delivered. What is in hand then is released, as a channel that closes does.
        """
        count: uint32_t = len(consumers)
        mine: pointer[pointer[consumer_t]] = cast(pointer[pointer[consumer_t]], calloc(count, sizeof(pointer[consumer_t])))
        lane: pointer[uint32_t] = cast(pointer[uint32_t], calloc(count, sizeof(uint32_t)))
        delivered: uint64_t = 0
        every: uint64_t = return_every
        most: uint64_t = leave_after
        in_hand: uint32_t = hold
        copied: bint = copy
        i: uint32_t
        for i in range(count):
            mine[i] = cast(StreamConsumer, consumers[i]).consumer
            lane[i] = lanes[i]
        with nogil:
            delivered = _loop(address(self.state), mine, lane, count, every, most, in_hand, copied)
        free(mine)
        free(lane)
        return delivered


@cfunc
@nogil
@exceptval(check=False)
def _settle(
    state: pointer[threads_t],
    consumer: pointer[consumer_t],
    lane: pointer[lane_t],
    delivery: pointer[delivery_t],
    back: bint,
) -> void:
    offset: uint64_t = delivery.position - 1
    if lane.hands != NULL:
        at_sub32(address(lane.hands[offset]), 1)
    if back:
        queue_release(consumer.queue, delivery.slot, delivery.position, consumer.id, True)
    elif queue_settle(consumer.queue, delivery.slot, delivery.position, consumer.id, REASON_ACK, 0):
        if lane.seen != NULL:
            at_add32(address(lane.seen[offset]), 1)
        at_add64(address(lane.done), 1)
    consumer_give_back_credit(consumer)
    if at_load32(address(consumer.list)) == CONSUMER_NOT_INTERESTED and consumer_has_credit(consumer):
        queue_set_notify_work_desired(consumer.queue, consumer, True)


@cfunc
@nogil
@exceptval(check=False)
def _loop(
    state: pointer[threads_t],
    mine: pointer[pointer[consumer_t]],
    lanes: pointer[uint32_t],
    count: uint32_t,
    return_every: uint64_t,
    leave_after: uint64_t,
    hold: uint32_t,
    copy: bint,
) -> uint64_t:
    hands: pointer[delivery_t] = cast(pointer[delivery_t], calloc(count * HANDS, sizeof(delivery_t)))
    held: pointer[uint32_t] = cast(pointer[uint32_t], calloc(count, sizeof(uint32_t)))
    again: pointer[uint32_t] = cast(pointer[uint32_t], calloc(count, sizeof(uint32_t)))
    last: pointer[uint64_t] = cast(pointer[uint64_t], calloc(count, sizeof(uint64_t)))
    buffer: pointer[uint8_t] = cast(pointer[uint8_t], calloc(1, 65536))
    consumer: pointer[consumer_t]
    lane: pointer[lane_t]
    delivery: delivery_t
    delivered: uint64_t = 0
    size: uint32_t
    turn: uint32_t
    i: uint32_t
    idle: bint
    finished: bint = False
    while not finished and not at_load32(address(state.stop)) and not (leave_after and delivered >= leave_after):
        idle = True
        finished = True
        for i in range(count):
            consumer = mine[i]
            lane = address(state.lane[lanes[i]])
            if at_load64(address(lane.done)) < state.total:
                finished = False
            if not at_swap32(cast(pointer[uint32_t], consumer.target.context), 0) and not again[i]:
                while held[i]:
                    held[i] -= 1
                    _settle(state, consumer, lane, address(hands[i * HANDS + held[i]]), False)
                continue
            idle = False
            again[i] = 0
            for turn in range(TURN):
                if not queue_deliver_single(consumer.queue, consumer, address(delivery)):
                    break
                entry_sent(delivery.slot)
                delivered += 1
                at_add64(address(lane.delivered), 1)
                if delivery.redelivered:
                    at_add64(address(lane.redelivered), 1)
                else:
                    if delivery.position <= last[i]:
                        at_add64(address(lane.disorder), 1)
                    last[i] = delivery.position
                if lane.hands != NULL and at_add32(address(lane.hands[delivery.position - 1]), 1):
                    at_add64(address(lane.twice), 1)
                if copy:
                    size = delivery.content.header_len + delivery.content.body_len + 16
                    if size < 65536:
                        memcpy(buffer, content_header(delivery.content) - 7, size)
                hands[i * HANDS + held[i]] = delivery
                held[i] += 1
                if return_every and delivered % return_every == 0:
                    held[i] -= 1
                    _settle(state, consumer, lane, address(delivery), True)
                if held[i] >= hold:
                    while held[i]:
                        held[i] -= 1
                        _settle(state, consumer, lane, address(hands[i * HANDS + held[i]]), False)
                if delivery.rotate or turn == TURN - 1 or (leave_after and delivered >= leave_after):
                    again[i] = 1
                    break
        if idle:
            usleep(20)
    for i in range(count):
        while held[i]:
            held[i] -= 1
            _settle(state, mine[i], address(state.lane[lanes[i]]), address(hands[i * HANDS + held[i]]), True)
    free(hands)
    free(held)
    free(again)
    free(last)
    free(buffer)
    return delivered
