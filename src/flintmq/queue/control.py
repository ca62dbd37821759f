"""A queue for the control plane: its counters and rules, purge, browse, and the facts that routes copy.

in: the control plane. out: calls on the queue core. Holds one counted reference on its queue_t.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cclass, cfunc, nogil, p_char, pointer, sizeof, uchar
from cython import int as c_int
from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
from cython.cimports.flintmq.core.atomics import at_add64, at_load32, at_load64, at_load_ptr, at_store64, spin_lock, spin_unlock
from cython.cimports.flintmq.core.content import (
    COPY_BARE, content_body, content_decref, content_from_bytes, content_header, content_route, content_t,
)  # fmt: skip
from cython.cimports.flintmq.core.content_view import ContentView, content_view
from cython.cimports.flintmq.queue.deduplication import once_new
from cython.cimports.flintmq.queue.delivered import delivered_show
from cython.cimports.flintmq.queue.due_index import DueIndex
from cython.cimports.flintmq.queue.limits import queue_limit_due, queue_limit_waits, queue_over_limit, queue_refuses, queue_take_excess
from cython.cimports.flintmq.queue.log_port import LogPort
from cython.cimports.flintmq.queue.owner_ids import owner_id_free, owner_id_new
from cython.cimports.flintmq.queue.paging import PAGE_BUSY, PAGE_CAME, PAGE_FAILED, PAGE_NO_MEMORY, queue_page_in
from cython.cimports.flintmq.queue.purge import queue_purge
from cython.cimports.flintmq.queue.queue_core import (
    queue_acquired_failed, queue_borrow, queue_cold_count, queue_consumer_count, queue_decref, queue_delivered_total, queue_dequeue,
    queue_enqueue, queue_enqueue_letter, queue_enqueue_once, queue_enqueued_total, queue_expire_many, queue_facts, queue_failed_count,
    queue_flows, queue_forget_logged, queue_get_id, queue_hold_arrivals, queue_hold_at, queue_housekeeping, queue_is_deleted, queue_keep,
    queue_mark_deleted, queue_new, queue_next_available, queue_peek, queue_priorities, queue_publish_held, queue_ready_bytes,
    queue_ready_count, queue_rearm, queue_release, queue_resident_bytes, queue_restore_many, queue_set_durable, queue_set_letters,
    queue_set_name, queue_set_ports, queue_settle, queue_tail, queue_take_at, queue_take_expired, queue_take_head, queue_unacked_bytes,
    queue_unacked_count,
)  # fmt: skip
from cython.cimports.flintmq.queue.restoring import original_of, queue_held_bytes
from cython.cimports.flintmq.queue.returns import queue_pass_on, queue_set_count, queue_set_returns, queue_take_return
from cython.cimports.flintmq.queue.types import (
    ENTRY_COUNT_SHIFT, ENTRY_LOGGED, ENTRY_REDELIVERED, MESSAGE_STUB_BIT, REASONS, REASON_ACK, REASON_DROP, REASON_EXPIRE, REASON_MOVE,
    REASON_NONE, REASON_PURGE, REASON_REJECT, RESTORED_HELD, RESTORED_REDELIVERED, RETURNS_COUNTED, RETURNS_DELAY_CALM,
    RETURNS_DELAY_FAILED, RETURNS_LIMITED, RETURNS_NOTED, RETURN_WAITED, delivery_t, flows_t, group_t, original_t, queue_t, restored_t,
    returned_t,
)  # fmt: skip
from cython.cimports.libc.stdint import int32_t, int64_t, uint32_t, uint64_t, uint8_t
from cython.cimports.libc.string import memcpy, memset

from flintmq.errors import StoreBusyError, StoreError


def content_tuple(content: pointer[content_t]) -> tuple:
    """(exchange, routing key, content header payload, body), all bytes."""
    route: p_char = cast(p_char, content_route(content))
    exchange_len: c_int = cast(uchar, route[0])
    key_len: c_int = cast(uchar, route[1 + exchange_len])
    body: bytes = b""
    room: p_char
    if content.body_len > COPY_BARE:
        body = PyBytes_FromStringAndSize(NULL, content.body_len)
        room = cast(p_char, body)
        with nogil:  # 128 MiB take 30 ms: others need the interpreter
            memcpy(room, content_body(content), content.body_len)
    elif content.body_len:
        body = PyBytes_FromStringAndSize(cast(p_char, content_body(content)), content.body_len)
    return (
        PyBytes_FromStringAndSize(route + 1, exchange_len),
        PyBytes_FromStringAndSize(route + 2 + exchange_len, key_len),
        PyBytes_FromStringAndSize(cast(p_char, content_header(content)), content.header_len),
        body,
    )


@cfunc
def _content_at(queue: pointer[queue_t], log: LogPort | None, position: uint64_t) -> pointer[content_t]:
    """One reference for the caller; read from the log when it is not in memory."""
    message_id: uint64_t = 0
    content: pointer[content_t] = queue_borrow(queue, position, address(message_id))
    if content == NULL:
        if log is None or message_id == 0:
            raise KeyError(position)
        content = log.load_now(message_id)
    return content


def queue_message(queue: pointer[queue_t], log: LogPort | None, position: uint64_t) -> tuple:
    content: pointer[content_t] = _content_at(queue, log, position)
    message: tuple = content_tuple(content)
    content_decref(content)
    return message


def new_owner() -> int:
    """An id for QueueHandle.take_at that nobody uses; to be given back with `free_owner`. Raises MemoryError."""
    owner: uint32_t = owner_id_new()
    if owner == 0:
        raise MemoryError("no memory for an owner id")
    return owner


def free_owner(owner: int) -> None:
    """Gives back an id of `new_owner`; no entry is held under it any more."""
    number: uint32_t = owner
    owner_id_free(number)


@cclass
class QueueHandle:
    """One queue of the core.

    Args: queue_id: never reused; list_kind: 0 standard, 1 priority; levels: 1..256; level_rule: 0 RabbitMQ, 1 Qpid.
    """

    def __cinit__(self, queue_id: int, list_kind: int = 0, levels: int = 1, level_rule: int = 0):
        self.queue = queue_new(queue_id, list_kind, levels, level_rule)
        if self.queue == NULL:
            raise MemoryError("no memory for a queue")
        self.ttl_ms = -1

    def __dealloc__(self):
        if self.queue != NULL:
            queue_decref(self.queue)

    @property
    def queue_id(self) -> int:
        return queue_get_id(self.queue)

    def set_durable(self, durable: bool) -> None:
        queue_set_durable(self.queue, durable)

    def set_returns(
        self, counted: bool, limit: int, limited: bool, delay_failed: bool = False, delay_calm: bool = False, noted: bool = False
    ) -> None:
        """What delivered entries that come back mean here, before anybody uses the queue. counted: `take_returns` tells how often, and
        consumers are told; limit: returns that an entry may have, below 0: any number; limited: the queue has a length limit;
        delay_failed, delay_calm (with counted): what was rejected, or given back otherwise, is held until `release_waited`; noted (with
        counted): the counts of all entries are told."""
        queue_set_returns(
            self.queue,
            (RETURNS_COUNTED if counted else 0)
            | (RETURNS_LIMITED if limited else 0)
            | (RETURNS_DELAY_FAILED if delay_failed else 0)
            | (RETURNS_DELAY_CALM if delay_calm else 0)
            | (RETURNS_NOTED if noted else 0),
            0xFFFFFFFF if limit < 0 else min(limit, 0xFFFFFFFF),
        )

    @property
    def returned_count(self) -> int:
        """Notes that `take_returns` would give."""
        return self.queue.returned_count

    def take_returns(self, most: int) -> list[tuple[int, int, bool, bool]]:
        """(position, count, over, delayed) of delivered entries that came back and are over the limit or delayed (or
        `noted`), oldest first, at most `most`; they are forgotten here. over: above the limit; delayed: it waits before its next delivery.
        The broker holds the entry then, and the caller ends it (`settle_held`) or gives it back (`release_held`, `release_waited`)."""
        note: returned_t
        returns: list = []
        while len(returns) < most and queue_take_return(self.queue, address(note)):
            returns.append((note.position, note.count, bool(note.over), bool(note.delayed)))
        return returns

    def set_count(self, position: int, count: int) -> bool:
        """An entry that was restored has come back `count` times. False when it is not there."""
        self._page_in(position)
        return bool(queue_set_count(self.queue, position, count))

    def attach_log(self, log: LogPort) -> None:
        """Logs persistent messages from now on, while the queue is durable."""
        self.log = log
        queue_set_ports(self.queue, address(log.port))
        # Routes, consumers and unacked deliveries may keep queue_t longer than this handle lives, and the cycle collector frees log and
        # handle in any order. It does not see this reference: a log that still leads to its queues is never freed (LogStore.close).
        queue_keep(address(self.queue.port_owner), log)

    def watch(self, due: DueIndex) -> None:
        """Tells `due` from now on when it has something to do. Once, before the queue is used."""
        self.queue.due = address(due.index)
        queue_keep(address(self.queue.due_owner), due)  # as with a log

    @property
    def retry_min_ms(self) -> int:
        """Milliseconds that an entry waits after its first return, and as long again after each further one (x-delayed-retry-min)."""
        return at_load64(address(self.queue.retry_min_ms))

    @retry_min_ms.setter
    def retry_min_ms(self, value: int) -> None:
        at_store64(address(self.queue.retry_min_ms), value)

    @property
    def retry_max_ms(self) -> int:
        """Milliseconds that it waits at most (x-delayed-retry-max)."""
        return at_load64(address(self.queue.retry_max_ms))

    @retry_max_ms.setter
    def retry_max_ms(self, value: int) -> None:
        at_store64(address(self.queue.retry_max_ms), value)

    @property
    def consumer_timeout_ms(self) -> int:
        """Milliseconds that a consumer may take to settle a delivery (x-consumer-timeout); 0: any time."""
        return at_load64(address(self.queue.consumer_timeout_us)) // 1000

    @consumer_timeout_ms.setter
    def consumer_timeout_ms(self, value: int) -> None:
        at_store64(address(self.queue.consumer_timeout_us), value * 1000)

    @property
    def name_hash(self) -> int:
        """What cycles of dead letters know its name by (death.queue_hash); 0: it was not told. Set before the queue is used."""
        return self.queue.name_hash

    @name_hash.setter
    def name_hash(self, value: int) -> None:
        self.queue.name_hash = value

    def set_name(self, name: bytes) -> None:
        """The message path knows the queue's name from now on (at most 255 bytes; it never changes). Raises: MemoryError."""
        if not queue_set_name(self.queue, cast(pointer[uint8_t], cast(p_char, name)), len(name)):
            raise MemoryError("no memory for the name of a queue")

    def forget_letters(self) -> None:
        """Where its dead letters go is found out anew with the next one: its policy changed."""
        queue_set_letters(self.queue, NULL)

    @property
    def max_length(self) -> int:
        """Messages (x-max-length); 2**64-1: any number. Set before the queue is used."""
        return self.queue.max_length

    @max_length.setter
    def max_length(self, value: int) -> None:
        self.queue.max_length = value

    @property
    def max_bytes(self) -> int:
        """Bytes of bodies (x-max-length-bytes); 2**64-1: any number. Set before the queue is used."""
        return self.queue.max_bytes

    @max_bytes.setter
    def max_bytes(self, value: int) -> None:
        self.queue.max_bytes = value

    def over_limit(self) -> bool:
        """Above `max_length` or `max_bytes`."""
        return queue_over_limit(self.queue)

    def limit_waits(self) -> bool:
        """Above its limit, and consumers have their turn before its head is dropped; the index looks at it again."""
        return queue_over_limit(self.queue) and queue_limit_waits(self.queue)

    def limit_due(self) -> bool:
        """What the index asks when it looks: the head is to be dropped now."""
        return queue_limit_due(self.queue)

    def refuses(self, size: int, messages_before: int = 0, bytes_before: int = 0) -> bool:
        """reject-publish: whether a message with a body of `size` bytes is refused now. *_before: what is to be put there before it."""
        return queue_refuses(self.queue, size, messages_before, bytes_before)

    def rearm(self) -> int:
        """When its next entry expires (wall clock, milliseconds): what the index knows from now on. 0: it has told the index itself, or
        nothing expires."""
        return queue_rearm(self.queue)

    def expire_many(self, now_ms: int, most: int) -> int:
        """Ends up to `most` messages whose time is over (now_ms: wall clock), without their contents; returns how many."""
        now: int64_t = now_ms
        limit: uint64_t = most
        expired: uint64_t
        with nogil:
            expired = queue_expire_many(self.queue, now, limit)
        return expired

    def ready_count(self) -> int:
        """Messages that nobody has."""
        return queue_ready_count(self.queue)

    def unacked_count(self) -> int:
        return queue_unacked_count(self.queue)

    def ready_bytes(self) -> int:
        return queue_ready_bytes(self.queue)

    def unacked_bytes(self) -> int:
        """Bytes of bodies in consumers' hands. O(consumers)."""
        return queue_unacked_bytes(self.queue)

    def flows(self) -> dict:
        """Counts of its messages by their ends and deliveries, since it is in memory (flows_t). O(consumers)."""
        flows: flows_t
        queue_flows(self.queue, address(flows))
        others: uint64_t = 0
        i: c_int
        for i in range(REASONS):
            others += flows.ended[i]
        return {
            "deliver": flows.delivered - flows.delivered_auto,
            "deliver_no_ack": flows.delivered_auto,
            "get": flows.got - flows.got_auto,
            "get_no_ack": flows.got_auto,
            "redeliver": flows.redelivered,
            "ack": flows.dequeued - others - flows.delivered_auto - flows.got_auto,
            "reject": flows.ended[REASON_REJECT],
            "expire": flows.ended[REASON_EXPIRE],
            "drop": flows.ended[REASON_DROP],
            "purge": flows.ended[REASON_PURGE],
            "move": flows.ended[REASON_MOVE],
            "delete": flows.ended[REASON_NONE],
        }

    def consumer_count(self) -> int:
        return queue_consumer_count(self.queue)

    def takers(self, priority: int) -> int:
        """Consumers of this priority, or a higher one, that would take a message now. O(priorities)."""
        count: uint64_t = 0
        least: int32_t = priority
        group: pointer[group_t]
        spin_lock(address(self.queue.manager.lock))
        group = self.queue.manager.groups
        while group != NULL and group.priority >= least:
            count += at_load32(address(group.interested.count)) + at_load32(address(group.notified.count))
            group = group.next
        spin_unlock(address(self.queue.manager.lock))
        return count

    def exclusive_use(self) -> bool:
        """Whether an exclusive consumer is attached."""
        return at_load_ptr(address(self.queue.manager.exclusive)) != NULL

    def priorities(self) -> int:
        return queue_priorities(self.queue)

    def enqueued_total(self) -> int:
        return queue_enqueued_total(self.queue)

    def delivered_total(self) -> int:
        return queue_delivered_total(self.queue)

    def purge(self) -> int:
        """Removes every available message, in one go (queue/purge.py: in slices). Returns how many."""
        return queue_purge(self.queue)

    def set_once(self, most: int) -> None:
        """Makes a new queue one that drops duplicates; it remembers `most` values. Before anyone uses it. Raises: MemoryError."""
        self.queue.once = once_new(most)
        if self.queue.once == NULL:
            raise MemoryError("no memory for a queue with deduplication")

    def once_figures(self) -> tuple:
        """(values that are remembered, messages that were dropped) of such a queue."""
        return (self.queue.once.values.positions.count, self.queue.once.duplicates)

    def mark_deleted(self) -> None:
        """Refuses further messages; what is in consumers' hands can still be settled."""
        queue_mark_deleted(self.queue)

    def hold_arrivals(self, held: bool) -> None:
        """While held, new messages are refused as by a full queue. No effect on a stream."""
        queue_hold_arrivals(self.queue, held)

    def is_deleted(self) -> bool:
        return queue_is_deleted(self.queue)

    def housekeeping(self) -> None:
        queue_housekeeping(self.queue)

    def publish(
        self,
        exchange: bytes,
        routing_key: bytes,
        header: bytes,
        body: bytes,
        flags: int,
        priority: int,
        expires_at_ms: int = 0,
        original: tuple | None = None,
    ) -> int:
        """Enqueues a message built from bytes; returns its position, 0 when refused. original: (core, position, holder, DequeueReason,
        wall clock of its delivery in microseconds) of a held entry whose dead letter it is: the log gets the end of that one with it, and
        the caller ends it."""
        content: pointer[content_t] = content_from_bytes(exchange, routing_key, header, body, flags, priority)
        position: uint64_t
        lsn: uint64_t = 0
        if self.queue.once != NULL:
            position = queue_enqueue_once(self.queue, content, expires_at_ms, False, address(lsn))
        elif original is not None:
            position = self._publish_letter(content, expires_at_ms, original, address(lsn))
        else:
            position = queue_enqueue(self.queue, content, 0, expires_at_ms, NULL)
        content_decref(content)
        return position

    def _publish_letter(self, content: pointer[content_t], expires_at_ms: int64_t, ended: tuple, lsn: pointer[uint64_t]) -> uint64_t:
        core: QueueHandle = ended[0]
        original: original_t
        position: uint64_t
        if not original_of(core.queue, ended[1], ended[2], ended[3], ended[4], address(original)):
            return queue_enqueue(self.queue, content, 0, expires_at_ms, lsn)
        position = queue_enqueue_letter(self.queue, content, expires_at_ms, lsn, address(original))
        if original.ended:
            queue_forget_logged(core.queue, NULL, original.position, original.owner)
        return position

    def _read(self, delivery: pointer[delivery_t], taken: bint) -> tuple:
        """The delivery's message as bytes; content that is not resident is read now. `taken`: the broker holds it, and what can't be
        read stays with it, out of the way; what can't be read now goes back to its place."""
        content: pointer[content_t] = delivery.content
        if content != NULL:
            return content_tuple(content)
        if self.log is None:
            raise KeyError(delivery.message_id)
        try:
            content = self.log.load_now(delivery.message_id)
        except StoreBusyError:
            if taken:
                queue_release(self.queue, delivery.slot, delivery.position, 0, False)
            raise
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
        while not queue_take_head(self.queue, address(delivery)):
            if delivery.position == 0 or not self._page_in(delivery.position):
                return None
        return self._end(address(delivery), reason, before)

    def take_excess(self, reason: int, before: object = None) -> tuple | None:
        """As take_head, while the queue is over its limit: of one with `drops_lowest` the oldest message of the lowest priority."""
        delivery: delivery_t
        if not queue_take_excess(self.queue, address(delivery)):
            return None
        return self._end(address(delivery), reason, before)

    @property
    def drops_lowest(self) -> bool:
        """x-overflow ring: what is over the limit is dropped from the lowest priority, not from the head."""
        return bool(self.queue.drops_lowest)

    @drops_lowest.setter
    def drops_lowest(self, value: bool) -> None:
        self.queue.drops_lowest = 1 if value else 0

    def keep(self, count: int, size: int) -> None:
        """Dead letters that wait for their targets, more of them or fewer: they count for the limit of `refuses`."""
        at_add64(address(self.queue.kept), cast(uint64_t, cast(int64_t, count)))
        at_add64(address(self.queue.kept_bytes), cast(uint64_t, cast(int64_t, size)))

    def pass_on(self, position: int, owner: int) -> bool:
        """What `owner` holds is the broker's from now on, as after `hold`. False when `owner` does not hold it."""
        return bool(queue_pass_on(self.queue, position, owner))

    def held_bytes(self, position: int) -> int:
        """Bytes of the body of a message that the broker holds."""
        return queue_held_bytes(self.queue, position)

    def _end(self, delivery: pointer[delivery_t], reason: c_int, before: object) -> tuple:
        message: tuple = (b"", b"", b"", b"")
        if before is not None and not self.dead_letters and delivery.content == NULL:
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

    def end_held(self, position: int, reason: int, before: object = None) -> tuple:
        """As take_head, for an entry that the broker holds already."""
        delivery: delivery_t
        content: pointer[content_t]
        memset(address(delivery), 0, sizeof(delivery_t))
        delivery.position = position
        content = queue_borrow(self.queue, position, address(delivery.message_id))
        delivery.content = content
        try:
            return self._end(address(delivery), reason, before)
        finally:
            if content != NULL:
                content_decref(content)

    def take_expired(self, now_ms: int, reason: int, before: object = None) -> tuple | None:
        """Removes the first expired message (expiry <= now_ms, wall clock). Returns it like take_head, or None; raises like it."""
        delivery: delivery_t
        if not queue_take_expired(self.queue, now_ms, address(delivery)):
            return None
        return self._end(address(delivery), reason, before)

    def peek(self, position: int = 0) -> tuple | None:
        """First message at or after `position`: (position, redelivered, exchange, routing key, header, body), or None.

        Raises KeyError or StoreError when its content is not in memory and can't be read.
        """
        delivery: delivery_t
        failed: uint64_t = 0
        message: tuple
        while queue_peek(self.queue, position, address(delivery)):
            if delivery.message_id >> MESSAGE_STUB_BIT == 1:
                self._page_in(delivery.position)
                continue
            try:
                message = self._read(address(delivery), False)
            except KeyError:
                # It may have been settled since the look: only when it is still there its content is missing.
                if failed == delivery.position:
                    raise
                failed = delivery.position
                continue
            if delivery.content != NULL:
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
        if queue_restore_many(self.queue, address(restored), 1) != 1:
            raise ValueError(f"position {position} can't be restored")

    def hold(self, position: int) -> bool:
        """Acquires the available entry for the broker (a dequeue in doubt). False when it is not available."""
        self._page_in(position)
        return queue_hold_at(self.queue, position) != NULL

    def show(self, position: int) -> int:
        """Before a client sees an entry that `hold` acquired: the LSN that must be durable then (LogPort.when_durable), 0: it is."""
        return delivered_show(self.queue, position)

    def publish_held(self, position: int, logged: bool = True) -> bool:
        """A held entry becomes available in its place; `logged`: the log is told when it goes. False when it is not held."""
        return queue_publish_held(self.queue, NULL, position, logged) != 0

    def release_held(self, position: int, delivered: bool = False, owner: int = 0) -> bool:
        """What `hold` (or `take_at` for `owner`) acquired is available again. `delivered`: flagged redelivered and counted."""
        return queue_release(self.queue, NULL, position, owner, delivered) != 0

    def release_waited(self, position: int) -> bool:
        """A delayed entry (`take_returns`) is available again in its place, flagged redelivered and counted. False when it is gone."""
        return queue_release(self.queue, NULL, position, 0, RETURN_WAITED) != 0

    def settle_held(self, position: int, reason: int = REASON_ACK, logged: bool = True) -> bool:
        """What `hold` acquired goes. `logged`: the transaction logged that already, so the log is not told again."""
        if logged:
            queue_forget_logged(self.queue, NULL, position, 0)
        return queue_settle(self.queue, NULL, position, 0, reason, 0) != 0

    def take_at(self, position: int, owner: int) -> bool:
        """As `hold`, for a consumer id (`new_owner`): what it holds counts as unacked until it is released or settled."""
        self._page_in(position)
        return queue_take_at(self.queue, position, owner) != NULL

    def entry_facts(self, position: int) -> tuple[bool, int, int] | None:
        """(logged, earlier deliveries, expires_at_ms) of an entry that is available or acquired, else None."""
        message_id: uint64_t = 0
        expires_at_ms: int64_t = 0
        state: uint64_t
        self._page_in(position)
        state = queue_facts(self.queue, position, address(message_id), address(expires_at_ms))
        if state == 0:
            return None
        return ((state & ENTRY_LOGGED) != 0, (state >> ENTRY_COUNT_SHIFT) & 0xFFFF, expires_at_ms)

    def is_redelivered(self, position: int) -> bool:
        """Whether an entry that is available or acquired has that flag."""
        message_id: uint64_t = 0
        expires_at_ms: int64_t = 0
        self._page_in(position)
        return queue_facts(self.queue, position, address(message_id), address(expires_at_ms)) & ENTRY_REDELIVERED != 0

    def message_id_at(self, position: int) -> int:
        """Persistence id of the logged entry at this position; 0 when there is none."""
        message_id: uint64_t = 0
        expires_at_ms: int64_t = 0
        state: uint64_t
        self._page_in(position)
        state = queue_facts(self.queue, position, address(message_id), address(expires_at_ms))
        return message_id if state & ENTRY_LOGGED else 0

    def message_at(self, position: int) -> tuple[bytes, bytes, bytes, bytes]:
        """(exchange, routing key, header, body) of an entry, available or acquired; may read the disk.

        Raises: KeyError it is not there or can't be read; StoreError.
        """
        self._page_in(position)
        return queue_message(self.queue, self.log, position)

    def view_at(self, position: int) -> ContentView:
        """As message_at, without a copy of the body."""
        self._page_in(position)
        return content_view(_content_at(self.queue, self.log, position))

    def head_header(self) -> bytes | None:
        """Content header payload of the first available message; None: there is none, or it is not in memory. O(length)."""
        message_id: uint64_t = 0
        position: uint64_t = queue_next_available(self.queue, 0)
        content: pointer[content_t] = NULL
        if position:
            content = queue_borrow(self.queue, position, address(message_id))
        if content == NULL:
            return None
        view: ContentView = content_view(content)  # which takes the reference
        return view.header

    def next_available(self, position: int = 0) -> int:
        """Position of the first available entry at or after `position`, 0 at the end. Reads entries that left memory from the disk.
        Raises: StoreError."""
        start: uint64_t = position
        place: uint64_t
        while True:
            place = queue_next_available(self.queue, start)
            if place == 0 or not self._page_in(place):
                return place

    def _page_in(self, position: uint64_t) -> bint:
        """Brings entries back that left memory (paging.pxd). Whether they had. Raises: MemoryError; StoreError: they can't be read."""
        outcome: c_int = PAGE_BUSY
        if at_load64(address(self.queue.entries.shells)) == 0:
            return False
        with nogil:
            while outcome == PAGE_BUSY:
                outcome = queue_page_in(self.queue, position)
        if outcome == PAGE_NO_MEMORY:
            raise MemoryError("no memory for entries of a queue")
        if outcome == PAGE_FAILED:
            raise StoreError(f"entries of queue {self.queue.id} at position {position} can't be read from the index log")
        return outcome == PAGE_CAME
