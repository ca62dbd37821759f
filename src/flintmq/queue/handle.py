"""The Python face of a queue: counters, purge, browse, and the facts that routes copy.

in: the control plane. out: calls on the queue core. Holds one counted reference on its queue_t.
"""

from __future__ import annotations

import cython
from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
from cython.cimports.flintmq.core.content import (
    content_body,
    content_decref,
    content_from_bytes,
    content_header,
    content_route,
    content_t,
)
from cython.cimports.flintmq.queue.log_port import LogPort
from cython.cimports.flintmq.queue.queue_core import (
    queue_consumer_count,
    queue_decref,
    queue_delivered_total,
    queue_dequeue,
    queue_enqueue,
    queue_enqueued_total,
    queue_get_id,
    queue_housekeeping,
    queue_is_deleted,
    queue_mark_deleted,
    queue_new,
    queue_peek,
    queue_priorities,
    queue_purge,
    queue_ready_bytes,
    queue_ready_count,
    queue_set_durable,
    queue_set_ports,
    queue_take_expired,
    queue_take_head,
    queue_unacked_count,
)
from cython.cimports.flintmq.queue.types import delivery_t
from cython.cimports.libc.stdint import uint64_t

NO_LIMIT = 0xFFFFFFFFFFFFFFFF


def content_tuple(content):
    """(exchange, routing key, content header payload, body), all bytes."""
    route: cython.p_char = cython.cast(cython.p_char, content_route(content))
    exchange_len: cython.int = cython.cast(cython.uchar, route[0])
    key_len: cython.int = cython.cast(cython.uchar, route[1 + exchange_len])
    body: bytes = b""
    if content.body_len:
        body = PyBytes_FromStringAndSize(cython.cast(cython.p_char, content_body(content)), content.body_len)
    return (
        PyBytes_FromStringAndSize(route + 1, exchange_len),
        PyBytes_FromStringAndSize(route + 2 + exchange_len, key_len),
        PyBytes_FromStringAndSize(cython.cast(cython.p_char, content_header(content)), content.header_len),
        body,
    )


@cython.cclass
class QueueHandle:
    """One queue of the core.

    Args: queue_id: never reused; list_kind: 0 standard, 1 priority; levels: 1..256; level_rule: 0 RabbitMQ, 1 Qpid.
    """

    def __cinit__(self, queue_id: int, list_kind: int = 0, levels: int = 1, level_rule: int = 0):
        self.queue = queue_new(queue_id, list_kind, levels, level_rule)
        if self.queue == cython.NULL:
            raise MemoryError("no memory for a queue")
        self.ttl_ms = -1
        self.max_length = NO_LIMIT
        self.max_bytes = NO_LIMIT

    def __dealloc__(self):
        if self.queue != cython.NULL:
            queue_decref(self.queue)

    @property
    def queue_id(self) -> int:
        return queue_get_id(self.queue)

    def set_durable(self, durable: bool) -> None:
        queue_set_durable(self.queue, durable)

    def attach_log(self, log: LogPort) -> None:
        """Logs persistent messages from now on, while the queue is durable."""
        self.log = log
        queue_set_ports(self.queue, cython.address(log.port))

    def ready_count(self) -> int:
        return queue_ready_count(self.queue)

    def unacked_count(self) -> int:
        return queue_unacked_count(self.queue)

    def ready_bytes(self) -> int:
        return queue_ready_bytes(self.queue)

    def consumer_count(self) -> int:
        return queue_consumer_count(self.queue)

    def priorities(self) -> int:
        return queue_priorities(self.queue)

    def enqueued_total(self) -> int:
        return queue_enqueued_total(self.queue)

    def delivered_total(self) -> int:
        return queue_delivered_total(self.queue)

    def purge(self) -> int:
        """Removes every available message. Returns how many."""
        return queue_purge(self.queue)

    def mark_deleted(self) -> None:
        """Refuses further messages; what is in consumers' hands can still be settled."""
        queue_mark_deleted(self.queue)

    def is_deleted(self) -> bool:
        return queue_is_deleted(self.queue)

    def housekeeping(self) -> None:
        queue_housekeeping(self.queue)

    def publish(
        self, exchange: bytes, routing_key: bytes, header: bytes, body: bytes, flags: int, priority: int, expires_at_ms: int = 0
    ) -> int:
        """Enqueues a message built from bytes; returns its position, 0 when refused."""
        content: cython.pointer(content_t) = content_from_bytes(exchange, routing_key, header, body, flags, priority)
        position: uint64_t = queue_enqueue(self.queue, content, 0, expires_at_ms, cython.NULL)
        content_decref(content)
        return position

    def take_head(self, reason: int) -> tuple | None:
        """Removes the first available message for the broker. Returns (exchange, routing key, header, body) or None."""
        delivery: delivery_t
        if not queue_take_head(self.queue, cython.address(delivery)):
            return None
        message: tuple = content_tuple(delivery.content)
        queue_dequeue(self.queue, delivery.slot, delivery.position, 0, reason)
        return message

    def take_expired(self, now_ms: int, reason: int) -> tuple | None:
        """Removes the first expired message (expiry <= now_ms, wall clock). Returns it like take_head, or None."""
        delivery: delivery_t
        if not queue_take_expired(self.queue, now_ms, cython.address(delivery)):
            return None
        message: tuple = content_tuple(delivery.content)
        queue_dequeue(self.queue, delivery.slot, delivery.position, 0, reason)
        return message

    def peek(self, position: int = 0) -> tuple | None:
        """First message at or after `position`: (position, redelivered, exchange, routing key, header, body), or None."""
        delivery: delivery_t
        if not queue_peek(self.queue, position, cython.address(delivery)):
            return None
        message: tuple = content_tuple(delivery.content)
        content_decref(delivery.content)
        return (delivery.position, bool(delivery.redelivered), *message)
