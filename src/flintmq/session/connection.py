"""A connection as the method handlers see it: the operations they call on its compiled state.

in: handlers, on the loop's thread with the GIL. out: frames in the output buffer, consumers on queues, settled deliveries.
"""

from __future__ import annotations

import cython
from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
from cython.cimports.flintmq.core.atomics import at_store32, at_swap32
from cython.cimports.flintmq.core.buffer import out_release, out_reserve
from cython.cimports.flintmq.core.clock import wall_ms
from cython.cimports.flintmq.core.content import (
    content_body,
    content_decref,
    content_header,
    content_new,
    content_frame,
    content_route,
    content_t,
)
from cython.cimports.flintmq.protocol.v0_9_1.engine import (
    PHASE_CLOSED,
    PHASE_CLOSING,
    PHASE_OPEN,
    RX_CLOSED,
    RX_CLOSING,
    RX_OPEN,
    engine_free,
    engine_init,
    engine_set_channel_state,
)
from cython.cimports.flintmq.queue.handle import QueueHandle, content_tuple
from cython.cimports.flintmq.queue.log_port import LogPort
from cython.cimports.flintmq.queue.queue_core import (
    consumer_id_new,
    entry_sent,
    queue_add_waiter,
    queue_decref,
    queue_dequeue,
    queue_get_id,
    queue_incref,
    queue_is_durable,
    queue_next_expiry,
    queue_pull,
    queue_ready_count,
    queue_release,
    queue_remove_waiter,
)
from cython.cimports.flintmq.queue.types import (
    CONSUMER_ACQUIRES,
    CONSUMER_EXCLUSIVE,
    CONSUMER_NO_ACK,
    CONSUMER_SEES_REQUEUES,
    REASON_ACK,
    delivery_t,
    waiter_t,
)
from cython.cimports.flintmq.routing.route_cache import RouteCache, exchange_decref, exchange_incref, route_t
from cython.cimports.flintmq.session.channel import (
    authorization_changed,
    channel_accept,
    channel_free,
    channel_new,
    channel_release_all,
    channel_set_route,
    session_sink,
)
from cython.cimports.flintmq.session.delivery import write_get_ok
from cython.cimports.flintmq.session.settlement import channel_recover, channel_resume, channel_settle_item
from cython.cimports.flintmq.session.subscription import (
    subscription_attach,
    subscription_detach,
    subscription_find,
    subscription_new,
)
from cython.cimports.flintmq.session.types import (
    AUTHORIZED_MAX,
    channel_t,
    connection_t,
    refused_t,
    subscription_t,
    unacked_t,
)
from cython.cimports.flintmq.session.tx_buffer import tx_rollback
from cython.cimports.flintmq.session.work import expire_now, forget_channel, suspend_subscription
from cython.cimports.flintmq.session.unacked import unacked_add, unacked_find, unacked_next
from cython.cimports.libc.stdint import uint8_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import free, realloc
from cython.cimports.libc.string import memcpy, memset
from flintmq.errors import PeerError


def revoke_authorizations() -> None:
    """Permissions changed: every channel is authorized again at its next publish."""
    authorization_changed()


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _head_came(waiter: cython.pointer(waiter_t)) -> cython.void:
    """waiter_t.wake: any thread. The connection gets a turn, which asks its handler to look again."""
    connection: cython.pointer(connection_t) = cython.cast(cython.pointer(connection_t), waiter.context)
    at_store32(cython.address(connection.head_came), 1)
    if not at_swap32(cython.address(connection.scheduled), 1):
        connection.schedule(connection)


DROP_NAMES = ("unroutable", "refused", "maxlen", "rejected")


@cython.cfunc
def _octets(data: bytes) -> cython.pointer(uint8_t):
    """The bytes' own memory: valid while the caller holds them."""
    return cython.cast(cython.pointer(uint8_t), cython.cast(cython.p_char, data))


@cython.cclass
class Connection:
    """One client connection as the handlers see it. Owned by its loop's thread; every method needs that thread.

    Methods that name a channel raise KeyError when it is not open.
    """

    def __init__(self, peer: object, limits: object):
        self.peer = peer
        self.committing = {}
        memset(cython.address(self.connection), 0, cython.sizeof(connection_t))
        engine_init(
            cython.address(self.connection.engine),
            session_sink(),
            cython.address(self.connection),
            limits.frame_size_max_before_open,
            limits.handshake_bytes_max,
            limits.message_size_max,
        )
        self.connection.frame_size_max = limits.frame_size_max_before_open
        self.connection.output_high = limits.output_bytes_high
        self.connection.output_low = limits.output_bytes_low
        self.connection.tx_bytes_max = limits.tx_bytes_max
        self.connection.owner = cython.cast(cython.p_void, self)

    def __dealloc__(self):
        i: uint32_t
        self._stop_waiting()
        for i in range(self.connection.channel_count):
            if self.connection.channels[i] != cython.NULL:
                channel_free(self.connection.channels[i])
        free(self.connection.channels)
        self.take_refused()
        self.reap()
        engine_free(cython.address(self.connection.engine))
        out_release(cython.address(self.connection.out))

    def attach_log(self, log: LogPort) -> None:
        """Confirms of logged messages wait for this log's durable LSN."""
        self.log = log
        self.connection.port = cython.address(log.port)

    @property
    def waiting(self) -> bool:
        """True while an answer of this connection is still to come: what the client sends meanwhile is not looked at.

        Set it in a method's handler; when the answer is there, clear it and call Loop.resume.
        """
        return self.connection.waiting

    @waiting.setter
    def waiting(self, value: bool) -> None:
        self.connection.waiting = value

    # --- output -----------------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Appends frames to the output. Raises MemoryError."""
        size: cython.size_t = len(data)
        place: cython.pointer(uint8_t) = out_reserve(cython.address(self.connection.out), size)
        if place == cython.NULL:
            raise MemoryError("no memory for output")
        memcpy(place, cython.cast(cython.p_char, data), size)
        self.connection.out.end += size

    def write_method(self, number: int, payload: bytes) -> None:
        """Appends one method frame (`payload`: class id, method id, arguments)."""
        size: cython.size_t = len(payload)
        place: cython.pointer(uint8_t) = out_reserve(cython.address(self.connection.out), size + 8)
        if place == cython.NULL:
            raise MemoryError("no memory for output")
        place[0] = 1
        place[1] = (number >> 8) & 255
        place[2] = number & 255
        place[3] = (size >> 24) & 255
        place[4] = (size >> 16) & 255
        place[5] = (size >> 8) & 255
        place[6] = size & 255
        memcpy(place + 7, cython.cast(cython.p_char, payload), size)
        place[7 + size] = 0xCE
        self.connection.out.end += size + 8

    @property
    def output_size(self) -> int:
        """Bytes that wait to be sent."""
        return self.connection.out.end - self.connection.out.start

    # --- phases -----------------------------------------------------------------------------------------------------

    def tuned(self, frame_size_max: int, channel_max: int) -> None:
        """connection.tune-ok: limits that both sides agreed on. frame_size_max bytes, channel_max highest channel number."""
        self.connection.frame_size_max = frame_size_max
        self.connection.engine.channel_max = channel_max

    def opened(self) -> None:
        """connection.open succeeded: larger frames, all classes."""
        self.connection.engine.phase = PHASE_OPEN
        self.connection.engine.frame_size_max = self.connection.frame_size_max

    def closing(self) -> None:
        """connection.close was sent: only its answer is read from now on."""
        if self.connection.engine.phase != PHASE_CLOSED:
            self.connection.engine.phase = PHASE_CLOSING

    def finished(self, hang_up: bool = False) -> None:
        """Nothing is read any more; the loop ends the connection when the output is sent.

        Args: hang_up: the client closed by the rules, so the socket closes at once; else it is shut down and lingers until the client
        has seen our last words, which a reset for unread input would take from it.
        """
        self.connection.engine.phase = PHASE_CLOSED
        self.connection.hang_up = hang_up

    def engine_error(self) -> tuple[int, str, int, int, int]:
        """(reply code, text, channel or 0, method id, value the text is about or 0) of the rule the peer broke."""
        text: bytes = self.connection.engine.error_text
        return (
            self.connection.engine.error_code,
            text.decode(),
            self.connection.engine.error_channel,
            self.connection.engine.error_method,
            self.connection.engine.error_value,
        )

    # --- channels ---------------------------------------------------------------------------------------------------

    def channel(self, number):
        if number >= self.connection.channel_count or self.connection.channels[number] == cython.NULL:
            raise KeyError(number)
        return self.connection.channels[number]

    def open_channel(self, number: int) -> None:
        """channel.open. Raises MemoryError."""
        count: uint32_t = self.connection.channel_count
        wanted: uint32_t = number
        channels: cython.pointer(cython.pointer(channel_t))
        if wanted >= count:
            count = count * 2 if count else 4
            while count <= wanted:
                count *= 2
            channels = cython.cast(
                cython.pointer(cython.pointer(channel_t)),
                realloc(self.connection.channels, count * cython.sizeof(cython.pointer(channel_t))),
            )
            if channels == cython.NULL:
                raise MemoryError
            memset(
                channels + self.connection.channel_count,
                0,
                (count - self.connection.channel_count) * cython.sizeof(cython.pointer(channel_t)),
            )
            self.connection.channels = channels
            self.connection.channel_count = count
        self.connection.channels[wanted] = channel_new(cython.address(self.connection), wanted)
        if (
            self.connection.channels[wanted] == cython.NULL
            or engine_set_channel_state(cython.address(self.connection.engine), wanted, RX_OPEN) != 0
        ):
            raise MemoryError

    def channel_numbers(self) -> list[int]:
        """Numbers of the open channels."""
        return [i for i in range(self.connection.channel_count) if self.connection.channels[cython.cast(uint32_t, i)] != cython.NULL]

    def close_channel(self, number: int, wait_for_ok: bool) -> None:
        """Removes consumers, releases unacked deliveries to their places, frees the channel.

        Args: wait_for_ok: channel.close was sent, so what still arrives on it is ignored until close-ok.
        """
        channel: cython.pointer(channel_t) = self.channel(number)
        for transaction in self.committing.pop(number, ()):
            transaction.detach()
        while channel.subscriptions != cython.NULL:
            self._remove(channel, channel.subscriptions)
        channel_release_all(channel)
        forget_channel(cython.address(self.connection), channel)
        self.connection.channels[cython.cast(uint32_t, number)] = cython.NULL
        channel_free(channel)
        engine_set_channel_state(cython.address(self.connection.engine), number, RX_CLOSING if wait_for_ok else RX_CLOSED)

    def channel_closed(self, number: int) -> None:
        """channel.close-ok arrived: the number may be used again."""
        engine_set_channel_state(cython.address(self.connection.engine), number, RX_CLOSED)

    def close_all(self) -> None:
        """The connection ends: every channel is closed, everything unacked goes back to its place."""
        self.connection.closed = True
        self._stop_waiting()
        for number in self.channel_numbers():
            self.close_channel(number, False)

    # --- publishing -------------------------------------------------------------------------------------------------

    def set_route(self, number: int, cache: RouteCache, key: bytes, handles: list, cacheable: bool) -> None:
        """Answers a publish whose route was unknown; the channel's user is authorized for the exchange.

        Args: key: exchange and routing key shortstrs; handles: QueueHandle list; cacheable: False when the route depends on the
        message, which then comes back complete as a slow publish.
        """
        channel: cython.pointer(channel_t) = self.channel(number)
        i: cython.int
        known: cython.bint = False
        route: cython.pointer(route_t) = cache.put(
            cython.cast(cython.pointer(uint8_t), cython.cast(cython.p_char, key)), len(key), handles, cacheable
        )
        channel_set_route(channel, route)
        channel.slow_publish = not cacheable
        self._check_generation(channel)
        if not cacheable:
            return
        for i in range(AUTHORIZED_MAX):
            known = known or channel.authorized[i] == cache.exchange
        if not known:
            i = channel.authorized_next
            channel.authorized_next = (channel.authorized_next + 1) % AUTHORIZED_MAX
            if channel.authorized[i] != cython.NULL:
                exchange_decref(channel.authorized[i])
            exchange_incref(cache.exchange)
            channel.authorized[i] = cache.exchange

    def resolve_route(self):
        cache: RouteCache
        channel: cython.pointer(channel_t) = self.connection.channels[self.connection.slow_channel]
        route: cython.pointer(cython.const[uint8_t]) = self.connection.slow_payload
        if self.connection.slow_exchange.owner == cython.NULL:
            return False
        cache = cython.cast(RouteCache, self.connection.slow_exchange.owner)
        if cache.resolver is None:
            return False
        key: bytes = PyBytes_FromStringAndSize(
            cython.cast(cython.p_char, cython.cast(cython.p_void, route)) + 2 + route[0], self.connection.slow_size - 2 - route[0]
        )
        broker = self.handler.broker
        while True:
            version = broker.routes_version
            try:
                handles: list = cache.resolver(key)
            except PeerError:  # another loop deleted the exchange just now
                return False
            channel_set_route(channel, cache.put(route, self.connection.slow_size, handles, True))
            if version is broker.routes_version:
                return True
            # Another loop changed a binding meanwhile and has cleared the cache already: what was just put may be stale.
            cache.forget(
                PyBytes_FromStringAndSize(cython.cast(cython.p_char, cython.cast(cython.p_void, route)), self.connection.slow_size)
            )

    def _check_generation(self, channel):
        fresh: cython.pointer(channel_t) = channel_new(cython.NULL, 0)
        i: cython.int
        if fresh == cython.NULL:
            return
        if fresh.authorized_generation != channel.authorized_generation:
            channel.authorized_generation = fresh.authorized_generation
            for i in range(AUTHORIZED_MAX):
                if channel.authorized[i] != cython.NULL:
                    exchange_decref(channel.authorized[i])
                    channel.authorized[i] = cython.NULL
        channel_free(fresh)

    def message(self, number: int) -> tuple:
        """The complete message that waits for a slow publish: (exchange, routing key, content header payload, body)."""
        channel: cython.pointer(channel_t) = self.channel(number)
        if channel.content == cython.NULL:
            raise KeyError(number)
        return content_tuple(channel.content)

    def replace_header(self, number: int, header: bytes) -> None:
        """Exchanges the content header of the waiting message (direct reply-to, BCC): a new content, same body."""
        channel: cython.pointer(channel_t) = self.channel(number)
        old: cython.pointer(content_t) = channel.content
        new: cython.pointer(content_t) = content_new(self.connection.arena, old.route_len, len(header), old.body_len)
        if new == cython.NULL:
            raise MemoryError
        memcpy(content_route(new), content_route(old), old.route_len)
        memcpy(content_header(new), cython.cast(cython.p_char, header), len(header))
        if old.body_len:
            memcpy(content_body(new), content_body(old), old.body_len)
        new.flags = old.flags
        new.priority = old.priority
        content_frame(new)
        channel.content = new
        content_decref(old)

    def accept(self, number: int, cache: RouteCache, handles: list) -> bool:
        """Publishes the waiting message to `handles` (or puts it into the transaction). True when a policy pass is due."""
        channel: cython.pointer(channel_t) = self.channel(number)
        route: cython.pointer(route_t) = cache.put(channel.route.key, channel.route.key_len, handles, False)
        return channel_accept(cython.address(self.connection), channel, route) != 0

    def take_refused(self) -> list[tuple[int, int, tuple]]:
        """(queue id, REASON_*, message) of what is to be dead-lettered after this event, oldest first; it is forgotten here."""
        taken: list = []
        refused: cython.pointer(refused_t)
        while self.connection.refused != cython.NULL:
            refused = self.connection.refused
            self.connection.refused = refused.next
            taken.append((queue_get_id(refused.queue), refused.reason, content_tuple(refused.content)))
            content_decref(refused.content)
            queue_decref(refused.queue)
            free(refused)
        return taken

    def discard(self, number: int) -> None:
        """Drops the waiting message (it was refused)."""
        channel: cython.pointer(channel_t) = self.channel(number)
        if channel.content != cython.NULL:
            content_decref(channel.content)
            channel.content = cython.NULL

    def confirm_select(self, number: int) -> None:
        self.channel(number).confirm = True

    def is_confirm(self, number: int) -> bool:
        return self.channel(number).confirm

    def is_tx(self, number: int) -> bool:
        return self.channel(number).tx

    def tx_select(self, number: int) -> None:
        self.channel(number).tx = True

    def tx_rollback(self, number: int) -> None:
        tx_rollback(self.channel(number))

    # --- consuming --------------------------------------------------------------------------------------------------

    def consume(
        self,
        number: int,
        handle: QueueHandle,
        tag: bytes,
        no_ack: bool,
        exclusive: bool,
        priority: int,
        waiting: bool = False,
        group: bytes = b"",
    ) -> bool:
        """Adds a consumer with the channel's prefetch; a `waiting` one gets nothing until `activate`. `group`: told to the log.

        False when exclusivity or the queue's deletion forbids it. Raises MemoryError, StoreError.
        """
        channel: cython.pointer(channel_t) = self.channel(number)
        flags: uint32_t = CONSUMER_ACQUIRES | CONSUMER_SEES_REQUEUES
        subscription: cython.pointer(subscription_t)
        if no_ack:
            flags |= CONSUMER_NO_ACK
        if exclusive:
            flags |= CONSUMER_EXCLUSIVE
        subscription = subscription_new(channel, handle.queue, _octets(tag), len(tag), flags, priority, waiting)
        if subscription == cython.NULL:
            raise MemoryError
        subscription.dead_letters = handle.dead_letters
        if not subscription_attach(subscription):
            free(subscription)
            return False
        if self.log is not None and queue_is_durable(handle.queue):
            try:
                self.log.note_consumer(subscription.consumer.id, tag, group)
            except BaseException:
                self._remove(channel, subscription)
                raise
        return True

    def _find(self, channel, tag):
        return subscription_find(channel, _octets(tag), len(tag))

    def _remove(self, channel, subscription):
        subscription_detach(subscription)
        # A queue on another loop may be inside notify_work: the memory waits for the next reap().
        subscription.next = self.graves
        self.graves = subscription

    def activate(self, number: int, tag: bytes) -> None:
        """A waiting consumer (x-single-active-consumer) is the active one from now on."""
        channel: cython.pointer(channel_t) = self.channel(number)
        subscription: cython.pointer(subscription_t) = self._find(channel, tag)
        if subscription != cython.NULL and subscription.waiting:
            subscription.waiting = False
            suspend_subscription(subscription, channel.flow_stopped or self.connection.write_blocked)

    def reap(self) -> None:
        """Frees subscriptions that were cancelled; the loop's housekeeping calls it, long after their last use."""
        subscription: cython.pointer(subscription_t)
        while self.graves != cython.NULL:
            subscription = self.graves
            self.graves = subscription.next
            free(subscription)

    def cancel(self, number: int, tag: bytes) -> bool:
        """basic.cancel. Deliveries under way stay unacked. False when there is no such consumer."""
        channel: cython.pointer(channel_t) = self.channel(number)
        subscription: cython.pointer(subscription_t) = self._find(channel, tag)
        if subscription == cython.NULL:
            return False
        self._remove(channel, subscription)
        return True

    def set_prefetch(self, number: int, count: int, shared: bool, live: bool) -> None:
        """basic.qos.

        Args: count: messages, 0 = unlimited; shared: one limit for the whole channel; live: change running consumers too
        (py-amqp expects that of `global=false`, see docs/COMPATIBILITY.md).
        """
        channel: cython.pointer(channel_t) = self.channel(number)
        subscription: cython.pointer(subscription_t)
        if shared:
            channel.credit.limit = count
        else:
            channel.prefetch = count
            if live:
                subscription = channel.subscriptions
                while subscription != cython.NULL:
                    if not subscription.no_ack:
                        subscription.consumer.credit.limit = count
                    subscription = subscription.next
        channel_resume(channel)

    def set_flow(self, number: int, active: bool) -> None:
        """channel.flow from the client: stops or resumes deliveries of the channel."""
        channel: cython.pointer(channel_t) = self.channel(number)
        subscription: cython.pointer(subscription_t) = channel.subscriptions
        channel.flow_stopped = not active
        while subscription != cython.NULL:
            suspend_subscription(subscription, channel.flow_stopped or self.connection.write_blocked)
            subscription = subscription.next

    def _pull(self, queue, getter, delivery):
        """Takes the queue's head. When its content is not in memory this connection waits for it: then delivery.position is set."""
        if queue_pull(queue, getter, delivery):
            self._stop_waiting()
            return True
        if delivery.position and self.waited != queue:
            # First the waiter, then another look: whoever brings the content later finds the waiter.
            self._stop_waiting()
            queue_incref(queue)
            self.waited = queue
            self.waiter.context = cython.address(self.connection)
            self.waiter.wake = _head_came
            queue_add_waiter(queue, cython.address(self.waiter))
            if queue_pull(queue, getter, delivery):
                self._stop_waiting()
                return True
        if delivery.position == 0:
            self._stop_waiting()
        return False

    def _stop_waiting(self):
        if self.waited != cython.NULL:
            queue_remove_waiter(self.waited, cython.address(self.waiter))
            queue_decref(self.waited)
            self.waited = cython.NULL

    def get(self, number: int, handle: QueueHandle, no_ack: bool) -> bool | None:
        """basic.get: writes get-ok with the first message, or returns False when the queue has none.

        None: the first message has to be read from disk. handler.head_came is called when it may be there; then ask again.
        """
        channel: cython.pointer(channel_t) = self.channel(number)
        delivery: delivery_t
        item: cython.pointer(unacked_t)
        if queue_next_expiry(handle.queue) and queue_next_expiry(handle.queue) <= wall_ms():
            expire_now(cython.address(self.connection), handle.queue)
        if channel.getter == 0:
            channel.getter = consumer_id_new()
        if not self._pull(handle.queue, channel.getter, cython.address(delivery)):
            return None if delivery.position else False
        if no_ack:
            channel.unacked.last_tag += 1
        else:
            item = unacked_add(cython.address(channel.unacked))
            if item == cython.NULL:
                queue_release(handle.queue, delivery.slot, delivery.position, channel.getter, False)
                raise MemoryError
            queue_incref(handle.queue)
            item.slot = delivery.slot
            item.position = delivery.position
            item.queue = handle.queue
            item.consumer = cython.NULL
            item.owner = channel.getter
            item.dead_letters = handle.dead_letters
            item.in_tx = 0
        if not write_get_ok(
            cython.address(self.connection),
            number,
            cython.address(delivery),
            channel.unacked.last_tag,
            cython.cast(uint32_t, min(queue_ready_count(handle.queue), 0xFFFFFFFF)),
        ):
            raise MemoryError
        if no_ack:
            queue_dequeue(handle.queue, delivery.slot, delivery.position, channel.getter, REASON_ACK)
        else:
            entry_sent(delivery.slot)
        channel.delivered += 1
        return True

    def recover(self, number: int) -> None:
        """basic.recover(requeue = true): every unacked delivery goes back to its place."""
        channel_recover(cython.address(self.connection), self.channel(number))

    def refused(self, number: int, tag: int, multiple: bool) -> list[int] | None:
        """Tags that a reject or nack without requeue names, oldest first; None when the tag is unknown."""
        channel: cython.pointer(channel_t) = self.channel(number)
        upto: uint64_t = tag
        at: uint64_t
        tags: list = []
        if not multiple:
            return [tag] if unacked_find(cython.address(channel.unacked), upto) != cython.NULL else None
        if upto == 0:
            upto = channel.unacked.last_tag
        at = unacked_next(cython.address(channel.unacked), 1)
        while at and at <= upto:
            tags.append(at)
            at = unacked_next(cython.address(channel.unacked), at + 1)
        return tags if tags or tag == 0 else None

    def unacked_message(self, number: int, tag: int) -> tuple:
        """(queue id, exchange, routing key, content header payload, body) of an unacked delivery."""
        channel: cython.pointer(channel_t) = self.channel(number)
        item: cython.pointer(unacked_t) = unacked_find(cython.address(channel.unacked), tag)
        if item == cython.NULL:
            raise KeyError(tag)
        return (queue_get_id(item.queue), *content_tuple(item.slot.content))

    def settle(self, number: int, method: int, tag: int, requeue: bool) -> None:
        """Settles one delivery: method 80 ack, 90 reject, 120 nack."""
        channel_settle_item(cython.address(self.connection), self.channel(number), tag, method, requeue)

    def take_drops(self) -> dict[str, int]:
        """Messages of this connection that were dropped since the last call, by reason; empty when there were none."""
        drops: dict = {name: count for name, count in zip(DROP_NAMES, self.connection.dropped, strict=True) if count}
        memset(self.connection.dropped, 0, cython.sizeof(self.connection.dropped))
        return drops
