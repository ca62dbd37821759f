"""The Python face of a queue: counters, purge, browse, and the facts that routes copy.

in: the control plane. out: calls on the queue core. Holds one counted reference on its queue_t.
"""

from __future__ import annotations

import cython
from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
from cython.cimports.cpython.ref import Py_INCREF
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
    queue_acquired_failed,
    queue_add_held,
    queue_cold_count,
    queue_consumer_count,
    queue_decref,
    queue_delivered_total,
    queue_dequeue,
    queue_drop_held,
    queue_enqueue,
    queue_enqueued_total,
    queue_failed_count,
    queue_forget_logged,
    queue_get_id,
    queue_hold_at,
    queue_housekeeping,
    queue_is_deleted,
    queue_mark_deleted,
    queue_new,
    queue_next_redelivered,
    queue_peek,
    queue_priorities,
    queue_publish_held,
    queue_purge,
    queue_ready_bytes,
    queue_ready_count,
    queue_release,
    queue_resident_bytes,
    queue_restore_many,
    queue_set_durable,
    queue_set_ports,
    queue_set_tail,
    queue_settle,
    queue_tail,
    queue_take_expired,
    queue_take_head,
    queue_unacked_count,
)
from cython.cimports.flintmq.queue.types import REASON_ACK, RESTORED_HELD, RESTORED_REDELIVERED, delivery_t, restored_t
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
        # queue_t keeps a plain pointer; routes, consumers and unacked deliveries may keep queue_t longer than this handle lives, and the
        # cycle collector frees log and handle in any order: a log that has queues is never freed.
        Py_INCREF(log)
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

    def _read(self, delivery, taken):
        """The delivery's message as bytes; content that is not resident is read now. `taken`: the broker holds it, and what can't be
        read stays with it, out of the way."""
        content: cython.pointer(content_t) = delivery.content
        if content != cython.NULL:
            return content_tuple(content)
        if self.log is None:
            raise KeyError(delivery.message_id)
        try:
            content = self.log.load_now(delivery.message_id)
        except BaseException:
            if taken:
                queue_acquired_failed(self.queue, delivery.position)
            raise
        message: tuple = content_tuple(content)
        content_decref(content)
        return message

    def take_head(self, reason: int, before: object = None) -> tuple | None:
        """Removes the first available message for the broker. Returns (exchange, routing key, header, body) or None.

        `before(message)` runs while the broker holds the message, before its end is logged: where it dead-letters it, a crash in between
        leaves two messages and never none. When it raises, the message goes back to its place.

        Content that is not in memory is read, which may block. Raises StoreError or KeyError when it can't be: the entry then stays
        out of the way (failed_count), the next call goes on behind it. It is not read for a `before` that nobody needs, without a
        dead-letter exchange (`dead_letters`): `before` is not called then, and the result is empty.
        """
        delivery: delivery_t
        if not queue_take_head(self.queue, cython.address(delivery)):
            return None
        return self._end(cython.address(delivery), reason, before)

    def _end(self, delivery, reason, before):
        message: tuple = (b"", b"", b"", b"")
        if before is not None and not self.dead_letters and delivery.content == cython.NULL:
            before = None
        else:
            message = self._read(delivery, True)
        if before is not None:
            try:
                before(message)
            except BaseException:
                queue_release(self.queue, delivery.slot, delivery.position, 0, False)
                raise
        queue_dequeue(self.queue, delivery.slot, delivery.position, 0, reason)
        return message

    def take_expired(self, now_ms: int, reason: int, before: object = None) -> tuple | None:
        """Removes the first expired message (expiry <= now_ms, wall clock). Returns it like take_head, or None; raises like it."""
        delivery: delivery_t
        if not queue_take_expired(self.queue, now_ms, cython.address(delivery)):
            return None
        return self._end(cython.address(delivery), reason, before)

    def peek(self, position: int = 0) -> tuple | None:
        """First message at or after `position`: (position, redelivered, exchange, routing key, header, body), or None.

        Raises KeyError or StoreError when its content is not in memory and can't be read.
        """
        delivery: delivery_t
        failed: uint64_t = 0
        message: tuple
        while queue_peek(self.queue, position, cython.address(delivery)):
            try:
                message = self._read(cython.address(delivery), False)
            except KeyError:
                # It may have been settled since the look: only when it is still there its content is missing.
                if failed == delivery.position:
                    raise
                failed = delivery.position
                continue
            if delivery.content != cython.NULL:
                content_decref(delivery.content)
            return (delivery.position, bool(delivery.redelivered), *message)
        return None

    # --- residency ------------------------------------------------------------------------------------------------------

    @property
    def cold_count(self) -> int:
        """Entries whose content is not in memory (without failed ones and those in doubt)."""
        return queue_cold_count(self.queue)

    @property
    def resident_bytes(self) -> int:
        """Bytes of bodies in memory, those in consumers' hands included."""
        return queue_resident_bytes(self.queue)

    @property
    def failed_count(self) -> int:
        """Entries whose content can't be read: they stay where they are, out of the way."""
        return queue_failed_count(self.queue)

    # --- recovery and transactions --------------------------------------------------------------------------------------

    def tail(self, level: int = 0) -> int:
        """Last index in use of a level, 0 = none yet."""
        return queue_tail(self.queue, level)

    def set_tail(self, level: int, index: int) -> None:
        """New entries of the level come above `index`. Raises ValueError: no such level, or the queue is deleted."""
        if not queue_set_tail(self.queue, level, index):
            raise ValueError(f"level {level} can't go on above {index}")

    def restore(
        self, position: int, message_id: int, body_len: int, redelivered: bool = True, expires_at_ms: int = 0, held: bool = False
    ) -> None:
        """One entry that recovery found, not resident; positions rise inside a level. `held`: of a transaction in doubt.

        Raises ValueError when the position is not above the level's tail.
        """
        restored: restored_t
        restored.position = position
        restored.message_id = message_id
        restored.expires_at_ms = expires_at_ms
        restored.body_len = body_len
        restored.flags = (RESTORED_REDELIVERED if redelivered else 0) | (RESTORED_HELD if held else 0)
        if queue_restore_many(self.queue, cython.address(restored), 1) != 1:
            raise ValueError(f"position {position} can't be restored")

    def hold(self, position: int) -> bool:
        """Acquires the available entry for the broker (a dequeue in doubt). False when it is not available."""
        return queue_hold_at(self.queue, position) != cython.NULL

    def add_held(
        self, exchange: bytes, routing_key: bytes, header: bytes, body: bytes, flags: int, priority: int, expires_at_ms: int = 0
    ) -> tuple[int, HeldMessage]:
        """An entry at its final position that nobody sees: (position, HeldMessage). Raises ValueError: the queue is deleted."""
        content: cython.pointer(content_t) = content_from_bytes(exchange, routing_key, header, body, flags, priority)
        held: HeldMessage = HeldMessage.__new__(HeldMessage)
        held.slot = queue_add_held(self.queue, content, expires_at_ms, cython.address(held.position))
        content_decref(content)
        if held.slot == cython.NULL:
            raise ValueError("the queue takes no entry")
        held.handle = self
        held.expires_at_ms = expires_at_ms
        return (held.position, held)

    def publish_held(self, position: int, logged: bool = True) -> bool:
        """A held entry becomes available in its place; `logged`: the log is told when it goes. False when it is not held."""
        return queue_publish_held(self.queue, cython.NULL, position, logged) != 0

    def drop_held(self, position: int) -> bool:
        """A held entry goes; the log is told nothing. False when it is not held."""
        return queue_drop_held(self.queue, cython.NULL, position) != 0

    def release_held(self, position: int) -> bool:
        """What `hold` acquired is available again."""
        return queue_release(self.queue, cython.NULL, position, 0, False) != 0

    def settle_held(self, position: int, reason: int = REASON_ACK, logged: bool = True) -> bool:
        """What `hold` acquired goes. `logged`: the transaction logged that already, so the log is not told again."""
        if logged:
            queue_forget_logged(self.queue, cython.NULL, position, 0)
        return queue_settle(self.queue, cython.NULL, position, 0, reason, 0) != 0

    def redelivered_runs(self) -> list[tuple[int, int]]:
        """(first, last) position of every run of logged entries that were delivered before; for a stop."""
        runs: list = []
        first: uint64_t = 0
        last: uint64_t = 0
        while queue_next_redelivered(self.queue, last + 1, cython.address(first), cython.address(last)):
            runs.append((first, last))
        return runs


@cython.cclass
class HeldMessage:
    """An entry of a transaction that is not decided (see QueueHandle.add_held)."""

    @property
    def message_id(self) -> int:
        """Persistence id once the transaction wrote it, else 0. Not to be asked after the entry was published or dropped."""
        return self.slot.message_id
