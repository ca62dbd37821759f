"""Consumers of a stream driven from Python, one call per verb (tests only). Offsets here, not positions."""

from __future__ import annotations

from cython import NULL, address, bint, cast, cclass, cfunc, exceptval, nogil, p_char, pointer, void
from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
from cython.cimports.flintmq.core.atomics import at_add32, at_load32, at_store32, at_swap32
from cython.cimports.flintmq.core.content import content_body, content_header
from cython.cimports.flintmq.queue.queue_core import (
    consumer_decref, consumer_give_back_credit, consumer_has_credit, consumer_new, entry_sent, queue_add_consumer, queue_deliver_single,
    queue_release, queue_remove_consumer, queue_set_notify_work_desired, queue_settle,
)  # fmt: skip
from cython.cimports.flintmq.queue.types import CONSUMER_ACQUIRES, CONSUMER_NOT_INTERESTED, REASON_ACK, REASON_REJECT, delivery_t, target_t
from cython.cimports.flintmq.streams.control import Seat, StreamQueue, seat_give
from cython.cimports.flintmq.streams.stream_queue import stream_release_after
from cython.cimports.libc.stdint import uint32_t

LIST_NAMES = ("REMOVED", "INTERESTED", "NOT_INTERESTED", "NOTIFIED", "NON_ACQUIRING")


@cfunc
@nogil
@exceptval(check=False)
def _notify(target: pointer[target_t]) -> void:
    at_add32(cast(pointer[uint32_t], target.context), 1)


@cclass
class StreamConsumer:
    """One consumer with a seat. `prefetch` 0: no limit. Attached at once."""

    def __cinit__(self, stream: StreamQueue, seat: Seat, prefetch: int = 0, attach: bool = True):
        self.stream = stream
        self.target.context = address(self.notified)
        self.target.notify_work = _notify
        self.target.consumers = self.consumers
        self.target.consumer_count = 1
        self.consumer = consumer_new(stream.handle.queue, address(self.target), 0, CONSUMER_ACQUIRES, prefetch)
        if self.consumer == NULL:
            raise MemoryError
        self.consumers[0] = self.consumer
        seat_give(seat, self.consumer)
        if attach:
            self.attach()

    def __dealloc__(self):
        if self.consumer != NULL:
            if self.attached:
                queue_remove_consumer(self.consumer.queue, self.consumer)
            consumer_decref(self.consumer)

    def attach(self) -> bool:
        self.attached = queue_add_consumer(self.stream.handle.queue, self.consumer)
        return self.attached

    def detach(self) -> None:
        self.attached = False
        queue_remove_consumer(self.stream.handle.queue, self.consumer)

    @property
    def id(self) -> int:
        return self.consumer.id

    @property
    def list(self) -> str:
        return LIST_NAMES[self.consumer.list]

    def told(self) -> int:
        """notify_work calls since the last look."""
        return at_swap32(address(self.notified), 0)

    def suspend(self, suspended: bool) -> None:
        at_store32(address(self.target.suspended), 1 if suspended else 0)
        queue_set_notify_work_desired(self.stream.handle.queue, self.consumer, not suspended)

    def desired(self, desired: bool) -> None:
        queue_set_notify_work_desired(self.stream.handle.queue, self.consumer, desired)

    def deliver(self):
        """(offset, body, redelivered, earlier deliveries) or None."""
        full: tuple = self.deliver_full()
        return None if full is None else full[:4]

    def deliver_full(self):
        """(offset, body, redelivered, earlier deliveries, rotate, header) or None."""
        delivery: delivery_t
        got: bint
        with nogil:
            got = queue_deliver_single(self.stream.handle.queue, self.consumer, address(delivery))
        if not got:
            return None
        self.slot = delivery.slot
        entry_sent(delivery.slot)
        return (
            delivery.position - 1,
            PyBytes_FromStringAndSize(cast(p_char, content_body(delivery.content)), delivery.content.body_len),
            delivery.redelivered != 0,
            delivery.delivery_count,
            delivery.rotate != 0,
            PyBytes_FromStringAndSize(cast(p_char, content_header(delivery.content)), delivery.content.header_len),
        )

    def settled(self, done: bint) -> object:
        # What the session does after a settlement, whether it still held the message or not.
        consumer_give_back_credit(self.consumer)
        if (
            self.attached
            and self.consumer.list == CONSUMER_NOT_INTERESTED
            and consumer_has_credit(self.consumer)
            and not at_load32(address(self.target.suspended))
        ):
            queue_set_notify_work_desired(self.stream.handle.queue, self.consumer, True)
        return done != 0

    def ack(self, offset: int) -> bool:
        return self.settled(queue_settle(self.stream.handle.queue, self.slot, offset + 1, self.consumer.id, REASON_ACK, 0))

    def reject(self, offset: int) -> bool:
        return self.settled(queue_settle(self.stream.handle.queue, self.slot, offset + 1, self.consumer.id, REASON_REJECT, 0))

    def nack(self, offset: int, delay_ms: int = -1, delivered: bool = True) -> bool:
        if delay_ms >= 0:
            return self.settled(stream_release_after(self.stream.handle.queue, self.slot, offset + 1, self.consumer.id, delay_ms))
        return self.settled(queue_release(self.stream.handle.queue, self.slot, offset + 1, self.consumer.id, delivered))
