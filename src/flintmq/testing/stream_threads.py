"""Real threads on one stream: producers, members of groups that ack, return and leave, and what must hold afterwards.

Used by tests/streams and bench/streams.py. Every loop runs without the GIL.
"""

from __future__ import annotations

import cython
from cython.cimports.flintmq.core.atomics import at_add32, at_add64, at_load32, at_load64, at_store32, at_sub32, at_swap32
from cython.cimports.flintmq.core.content import (
    arena_free,
    arena_new,
    arena_t,
    content_body,
    content_decref,
    content_frame,
    content_header,
    content_new,
    content_route,
    content_t,
)
from cython.cimports.flintmq.queue.queue_core import (
    consumer_give_back_credit,
    consumer_has_credit,
    entry_sent,
    queue_deliver_single,
    queue_enqueue,
    queue_release,
    queue_set_notify_work_desired,
    queue_settle,
)
from cython.cimports.flintmq.queue.types import CONSUMER_NOT_INTERESTED, REASON_ACK, consumer_t, delivery_t, queue_t
from cython.cimports.flintmq.streams.handle import StreamQueue
from cython.cimports.flintmq.testing.memory_stream import MemoryStream, memory_stream_publish, memory_stream_t
from cython.cimports.flintmq.testing.stream_driver import StreamConsumer
from cython.cimports.libc.stdint import uint8_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import calloc, free
from cython.cimports.libc.string import memcpy, memset
from cython.cimports.posix.unistd import usleep

HANDS = cython.declare(uint32_t, 512)
TURN = cython.declare(uint32_t, 256)


@cython.cclass
class StreamThreads:
    """`total` messages through `lanes` groups. `keep`: every offset's fate is kept (stress); else only counted (bench)."""

    def __init__(self, stream: StreamQueue, total: int, lanes: int, keep: bool = True, log: MemoryStream | None = None):
        i: uint32_t
        self.stream = stream
        self.log = log
        self.state.total = total
        self.state.lanes = lanes
        self.state.lane = cython.cast(cython.pointer(lane_t), calloc(lanes, cython.sizeof(lane_t)))
        if keep:
            for i in range(lanes):
                self.state.lane[i].seen = cython.cast(cython.pointer(uint32_t), calloc(total, cython.sizeof(uint32_t)))
                self.state.lane[i].hands = cython.cast(cython.pointer(uint32_t), calloc(total, cython.sizeof(uint32_t)))

    def __dealloc__(self):
        i: uint32_t
        for i in range(self.state.lanes):
            free(self.state.lane[i].seen)
            free(self.state.lane[i].hands)
        free(self.state.lane)

    def stop(self) -> None:
        at_store32(cython.address(self.state.stop), 1)

    def results(self, lane: int) -> dict[str, int]:
        at: cython.pointer(lane_t) = cython.address(self.state.lane[lane])
        wrong: uint64_t = 0
        i: uint64_t
        if at.seen != cython.NULL:
            for i in range(self.state.total):
                wrong += 1 if at_load32(cython.address(at.seen[i])) != 1 else 0
        return {
            "done": at_load64(cython.address(at.done)),
            "delivered": at_load64(cython.address(at.delivered)),
            "redelivered": at_load64(cython.address(at.redelivered)),
            "disorder": at_load64(cython.address(at.disorder)),
            "twice": at_load64(cython.address(at.twice)),
            "wrong": wrong,
        }

    def produce(self, count: int, size: int = 100, publish_every: int = 64, pause_us: int = 0, ahead: int = 0) -> None:
        """One producer's thread. `publish_every`: so many appends make one pass of the (pretended) writer; with a log on disk its own
        writer decides. `ahead` > 0: no more than so many messages before the slowest group."""
        queue: cython.pointer(queue_t) = self.stream.handle.queue
        log: cython.pointer(memory_stream_t) = cython.NULL
        arena: cython.pointer(arena_t) = arena_new()
        content: cython.pointer(content_t)
        messages: uint64_t = count
        body_len: uint32_t = size
        every: uint64_t = publish_every
        pause: uint32_t = pause_us
        window: uint64_t = ahead
        slowest: uint64_t
        i: uint64_t
        lane: uint32_t
        if self.log is not None:
            log = cython.address(self.log.log)
        with cython.nogil:
            for i in range(messages):
                while window and not at_load32(cython.address(self.state.stop)):
                    slowest = ~cython.cast(uint64_t, 0)
                    for lane in range(self.state.lanes):
                        slowest = min(slowest, at_load64(cython.address(self.state.lane[lane].done)))
                    if i < slowest + window:
                        break
                    if log != cython.NULL:
                        memory_stream_publish(log, ~cython.cast(uint64_t, 0))
                    usleep(50)
                content = content_new(arena, 3, 14, body_len)
                memcpy(content_route(content), cython.cast(cython.p_char, b"\0\1q"), 3)
                memset(content_header(content), 0, 14)
                content_header(content)[1] = 60
                memset(content_body(content), 120, body_len)
                content_frame(content)
                content.flags = 1
                while queue_enqueue(queue, content, 0, 0, cython.NULL) == 0 and not at_load32(cython.address(self.state.stop)):
                    usleep(100)
                content_decref(content)
                if log != cython.NULL and i % every == every - 1:
                    memory_stream_publish(log, ~cython.cast(uint64_t, 0))
                if queue.port != cython.NULL and i % every == every - 1:
                    queue.port.kick(queue.port.context, True)
                if pause and i % every == every - 1:
                    usleep(pause)
            if log != cython.NULL:
                memory_stream_publish(log, ~cython.cast(uint64_t, 0))
            if queue.port != cython.NULL:
                queue.port.kick(queue.port.context, True)
            arena_free(arena)

    def consume(self, consumers: list, lanes: list, return_every: int = 0, leave_after: int = 0, hold: int = 1, copy: bool = False) -> int:
        """One loop's thread: turns for those of its consumers that were told, until their groups are done or, with `leave_after`, so many
        messages were delivered. `hold`: acks come when so many are in hand, in reverse order; `return_every`: one of so many goes back.

        Returns how many it delivered. What is in hand then is released, as a channel that closes does.
        """
        count: uint32_t = len(consumers)
        mine: cython.pointer(cython.pointer(consumer_t)) = cython.cast(
            cython.pointer(cython.pointer(consumer_t)), calloc(count, cython.sizeof(cython.pointer(consumer_t)))
        )
        lane: cython.pointer(uint32_t) = cython.cast(cython.pointer(uint32_t), calloc(count, cython.sizeof(uint32_t)))
        delivered: uint64_t = 0
        every: uint64_t = return_every
        most: uint64_t = leave_after
        in_hand: uint32_t = hold
        copied: cython.bint = copy
        i: uint32_t
        for i in range(count):
            mine[i] = cython.cast(StreamConsumer, consumers[i]).consumer
            lane[i] = lanes[i]
        with cython.nogil:
            delivered = _loop(cython.address(self.state), mine, lane, count, every, most, in_hand, copied)
        free(mine)
        free(lane)
        return delivered


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _settle(
    state: cython.pointer(threads_t),
    consumer: cython.pointer(consumer_t),
    lane: cython.pointer(lane_t),
    delivery: cython.pointer(delivery_t),
    back: cython.bint,
) -> cython.void:
    offset: uint64_t = delivery.position - 1
    if lane.hands != cython.NULL:
        at_sub32(cython.address(lane.hands[offset]), 1)
    if back:
        queue_release(consumer.queue, delivery.slot, delivery.position, consumer.id, True)
    elif queue_settle(consumer.queue, delivery.slot, delivery.position, consumer.id, REASON_ACK, 0):
        if lane.seen != cython.NULL:
            at_add32(cython.address(lane.seen[offset]), 1)
        at_add64(cython.address(lane.done), 1)
    consumer_give_back_credit(consumer)
    if at_load32(cython.address(consumer.list)) == CONSUMER_NOT_INTERESTED and consumer_has_credit(consumer):
        queue_set_notify_work_desired(consumer.queue, consumer, True)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _loop(
    state: cython.pointer(threads_t),
    mine: cython.pointer(cython.pointer(consumer_t)),
    lanes: cython.pointer(uint32_t),
    count: uint32_t,
    return_every: uint64_t,
    leave_after: uint64_t,
    hold: uint32_t,
    copy: cython.bint,
) -> uint64_t:
    hands: cython.pointer(delivery_t) = cython.cast(cython.pointer(delivery_t), calloc(count * HANDS, cython.sizeof(delivery_t)))
    held: cython.pointer(uint32_t) = cython.cast(cython.pointer(uint32_t), calloc(count, cython.sizeof(uint32_t)))
    again: cython.pointer(uint32_t) = cython.cast(cython.pointer(uint32_t), calloc(count, cython.sizeof(uint32_t)))
    last: cython.pointer(uint64_t) = cython.cast(cython.pointer(uint64_t), calloc(count, cython.sizeof(uint64_t)))
    buffer: cython.pointer(uint8_t) = cython.cast(cython.pointer(uint8_t), calloc(1, 65536))
    consumer: cython.pointer(consumer_t)
    lane: cython.pointer(lane_t)
    delivery: delivery_t
    delivered: uint64_t = 0
    size: uint32_t
    turn: uint32_t
    i: uint32_t
    idle: cython.bint
    finished: cython.bint = False
    while not finished and not at_load32(cython.address(state.stop)) and not (leave_after and delivered >= leave_after):
        idle = True
        finished = True
        for i in range(count):
            consumer = mine[i]
            lane = cython.address(state.lane[lanes[i]])
            if at_load64(cython.address(lane.done)) < state.total:
                finished = False
            if not at_swap32(cython.cast(cython.pointer(uint32_t), consumer.target.context), 0) and not again[i]:
                while held[i]:
                    held[i] -= 1
                    _settle(state, consumer, lane, cython.address(hands[i * HANDS + held[i]]), False)
                continue
            idle = False
            again[i] = 0
            for turn in range(TURN):
                if not queue_deliver_single(consumer.queue, consumer, cython.address(delivery)):
                    break
                entry_sent(delivery.slot)
                delivered += 1
                at_add64(cython.address(lane.delivered), 1)
                if delivery.redelivered:
                    at_add64(cython.address(lane.redelivered), 1)
                else:
                    if delivery.position <= last[i]:
                        at_add64(cython.address(lane.disorder), 1)
                    last[i] = delivery.position
                if lane.hands != cython.NULL and at_add32(cython.address(lane.hands[delivery.position - 1]), 1):
                    at_add64(cython.address(lane.twice), 1)
                if copy:
                    size = delivery.content.header_len + delivery.content.body_len + 16
                    if size < 65536:
                        memcpy(buffer, content_header(delivery.content) - 7, size)
                hands[i * HANDS + held[i]] = delivery
                held[i] += 1
                if return_every and delivered % return_every == 0:
                    held[i] -= 1
                    _settle(state, consumer, lane, cython.address(delivery), True)
                if held[i] >= hold:
                    while held[i]:
                        held[i] -= 1
                        _settle(state, consumer, lane, cython.address(hands[i * HANDS + held[i]]), False)
                if delivery.rotate or turn == TURN - 1 or (leave_after and delivered >= leave_after):
                    again[i] = 1
                    break
        if idle:
            usleep(20)
    for i in range(count):
        while held[i]:
            held[i] -= 1
            _settle(state, mine[i], cython.address(state.lane[lanes[i]]), cython.address(hands[i * HANDS + held[i]]), True)
    free(hands)
    free(held)
    free(again)
    free(last)
    free(buffer)
    return delivered
