"""A connection as the method handlers see it: the operations they call on its compiled state.

in: handlers, on the loop's thread with the GIL. out: frames in the output buffer, consumers on queues, settled deliveries.
"""

from __future__ import annotations

import cython
from cython import NULL, address, bint, cast, cclass, cfunc, declare, exceptval, nogil, p_char, p_void, pointer, size_t, sizeof, void
from cython import int as c_int
from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
from cython.cimports.flintmq.channel.channel import (
    authorization_changed, channel_accept, channel_free, channel_new, channel_release_some, channel_set_route, channels_add, channels_free,
    channels_remove, session_sink,
)  # fmt: skip
from cython.cimports.flintmq.channel.deciding import DECIDING_ROOM, channel_exchange, channel_found_by
from cython.cimports.flintmq.channel.delivery import write_get_ok
from cython.cimports.flintmq.channel.settlement import (
    channel_pass_on, channel_resume, channel_settle_item, channel_settle_some, channel_time_out, part_t, unacked_add, unacked_content,
    unacked_find, unacked_next,
)  # fmt: skip
from cython.cimports.flintmq.channel.slow import SLOW_NONE
from cython.cimports.flintmq.channel.subscription import subscription_attach, subscription_detach, subscription_find, subscription_new
from cython.cimports.flintmq.channel.tracing import note_delivery, tracer_free, tracer_new
from cython.cimports.flintmq.channel.turns import ask_again, connection_leave, expire_now, forget_channel, suspend_subscription
from cython.cimports.flintmq.channel.tx_buffer import tx_rollback
from cython.cimports.flintmq.channel.types import (
    AUTHORIZED_MAX, REPLY_NAME_MAX, SLOWLY_BY_CONTENT, SLOWLY_IN_PYTHON, channel_t, connection_channel, connection_t, refused_t,
    subscription_t, unacked_t,
)  # fmt: skip
from cython.cimports.flintmq.core.atomics import at_add64, at_load32, at_load64, at_store32
from cython.cimports.flintmq.core.buffer import out_pending, out_release, out_reserve
from cython.cimports.flintmq.core.clock import wall_ms, wall_us
from cython.cimports.flintmq.core.content import (
    arena_t, content_body, content_copy, content_decref, content_frame, content_header, content_is_thin, content_new, content_route,
    content_t,
)  # fmt: skip
from cython.cimports.flintmq.core.counters import counters_t
from cython.cimports.flintmq.core.header_field import content_with_field
from cython.cimports.flintmq.protocol.v0_9_1.codec import decode_method_at, encode_method
from cython.cimports.flintmq.protocol.v0_9_1.engine import (
    FEED_ERROR, FEED_PAUSE, PHASE_CLOSED, PHASE_CLOSING, PHASE_OPEN, RX_CLOSED, RX_CLOSING, RX_OPEN, engine_free, engine_init,
    engine_set_channel_state,
)  # fmt: skip
from cython.cimports.flintmq.queue.control import QueueHandle, content_tuple
from cython.cimports.flintmq.queue.log_port import LogPort
from cython.cimports.flintmq.queue.owner_ids import owner_id_new
from cython.cimports.flintmq.queue.queue_core import (
    consumer_select, entry_sent, queue_add_waiter, queue_decref, queue_get_id, queue_incref, queue_is_deleted, queue_is_durable,
    queue_next_expiry, queue_pull, queue_ready_count, queue_release, queue_remove_waiter, queue_settle,
)  # fmt: skip
from cython.cimports.flintmq.queue.types import (
    CONSUMER_ACQUIRES, CONSUMER_EXCLUSIVE, CONSUMER_NO_ACK, CONSUMER_SEES_REQUEUES, REASON_ACK, RETURNS_COUNTED, consumer_t, delivery_t,
    queue_t, waiter_t,
)  # fmt: skip
from cython.cimports.flintmq.routing.kept import Kept, KeptUser, kept_user_decref, kept_user_incref
from cython.cimports.flintmq.routing.route_cache import (
    RouteCache, exchange_decref, exchange_incref, exchange_t, route_decref, route_is_valid, route_new, route_t,
)  # fmt: skip
from cython.cimports.flintmq.selectors.program import Selector
from cython.cimports.flintmq.streams.control import Seat, seat_give
from cython.cimports.libc.stdint import uint16_t, uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import free
from cython.cimports.libc.string import memcmp, memcpy, memset

from flintmq.errors import PeerError, ReplyCode
from flintmq.channel.letters import REASONS
from flintmq.channel.placing import pack_keys

# of connections that no loop has
_uncounted = declare(counters_t)
DROP_NAMES = ("unroutable", "refused", "maxlen", "rejected", "dead_letter_cycle", "dead_letter_refused", "passed_on")


@cfunc
@exceptval(check=False)
def _same_name(exchange: pointer[exchange_t], cache: RouteCache) -> bint:
    return exchange.name_len == cache.exchange.name_len and memcmp(exchange.name, cache.exchange.name, exchange.name_len) == 0


def revoke_authorizations() -> None:
    """Permissions changed: every channel is authorized again at its next publish."""
    authorization_changed()


@cfunc
@nogil
@exceptval(check=False)
def _head_came(waiter: pointer[waiter_t]) -> void:
    """waiter_t.wake: any thread. The connection gets a turn, which asks its handler to look again."""
    ask_again(cast(pointer[connection_t], waiter.context))


def unacked_tuple(item: pointer[unacked_t], log: LogPort | None) -> tuple:
    message_id: uint64_t = 0
    content: pointer[content_t] = unacked_content(item, address(message_id))
    if content == NULL:
        if item.queue.ops != NULL:
            return None
        if log is None:
            raise KeyError(message_id)
        content = log.load_now(message_id)
    try:
        return content_tuple(content)
    finally:
        content_decref(content)


@cfunc
def _octets(data: bytes) -> pointer[uint8_t]:
    """The bytes' own memory: valid while the caller holds them."""
    return cast(pointer[uint8_t], cast(p_char, data))


@cfunc
@nogil
@exceptval(check=False)
def _moved(arena: pointer[arena_t], content: pointer[content_t]) -> pointer[content_t]:
    """A copy elsewhere that takes the place of a content which only its channel knows, if its chunk is thin; else the content."""
    copy: pointer[content_t]
    if at_load32(address(content.refs)) != 1 or not content_is_thin(content):
        return content
    copy = content_copy(arena, content)
    if copy == NULL:
        return content
    content_decref(content)
    return copy


@cclass
class Connection:
    """One client connection as the handlers see it. Owned by its loop's thread; every method needs that thread.

    Methods that name a channel raise KeyError when it is not open.
    """

    def __init__(self, peer: object, limits: object):
        self.peer = peer
        self.committing = {}
        memset(address(self.connection), 0, sizeof(connection_t))
        engine_init(
            address(self.connection.engine),
            session_sink(),
            address(self.connection),
            limits.frame_size_max_before_open,
            limits.handshake_bytes_max,
            limits.message_size_max,
        )
        self.connection.frame_size_max = limits.frame_size_max_before_open
        self.connection.output_high = limits.output_bytes_high
        self.connection.output_low = limits.output_bytes_low
        self.connection.tx_bytes_max = limits.tx_bytes_max
        self.table_depth_max = limits.table_depth_max
        self.table_fields_max = limits.table_fields_max
        self.connection.owner = cast(p_void, self)
        self.connection.counters = address(_uncounted)

    def __dealloc__(self):
        channel: pointer[channel_t]
        self._stop_waiting()
        for ending in range(2):
            # Left behind by a loop that ended: the entries are its broker's, which ends, too.
            while (self.ending if ending else self.leaving) != NULL:
                channel = self.ending if ending else self.leaving
                if ending:
                    self.ending = channel.next_open
                else:
                    self.leaving = channel.next_open
                channel_free(channel)
        channels_free(address(self.connection))
        while not self.reap() or self.take_refused(64):
            pass
        tracer_free(self.connection.tracer)
        kept_user_decref(self.connection.kept_user)
        engine_free(address(self.connection.engine))
        out_release(address(self.connection.out))

    def set_user(self, user: bytes) -> None:
        """The name that a message's user-id is compared with."""
        self.user = user
        self.connection.user = _octets(user)
        self.connection.user_len = len(user)

    def know_user(self, kept: Kept, user: object) -> None:
        """What exchanges of its virtual host remember of its messages counts for this user."""
        if self.connection.kept_user == NULL:
            self.connection.kept_user = kept_user_incref(cast(KeptUser, kept.user(user)).user)

    def attach_log(self, log: LogPort) -> None:
        """Confirms of logged messages wait for this log's durable LSN."""
        self.log = log
        self.connection.port = address(log.port)

    @property
    def waiting(self) -> bool:
        """True while an answer is still to come: what the client sends meanwhile is not looked at. When it is there: Loop.resume."""
        return self.connection.waiting

    @waiting.setter
    def waiting(self, value: bool) -> None:
        self.connection.waiting = value
        self.connection.joins = False

    def let_join(self) -> None:
        """While it waits now, methods that may be under way with others are looked at (session/underway.py)."""
        self.connection.joins = True

    # --- output -----------------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Appends frames to the output. Raises MemoryError."""
        size: size_t = len(data)
        place: pointer[uint8_t] = out_reserve(address(self.connection.out), size)
        if place == NULL:
            raise MemoryError("no memory for output")
        memcpy(place, cast(p_char, data), size)
        self.connection.out.end += size

    def decode(self, payload: bytes) -> object:
        """The method of a method frame. Raises: PeerError COMMAND_INVALID, SYNTAX_ERROR (see codec.decode_method), FRAME_ERROR."""
        data: pointer[uint8_t] = cast(pointer[uint8_t], cast(p_char, payload))
        return decode_method_at(data, len(payload), self.table_depth_max, self.table_fields_max, True)

    def send(self, number: uint16_t, method: object) -> None:
        """Appends a method (protocol.v0_9_1.spec.Method). Raises: ValueError or TypeError when an argument does not fit; MemoryError."""
        self.write_method(number, encode_method(method))

    def write_method(self, number: uint16_t, payload: bytes) -> object:
        """Appends one method frame (`payload`: class id, method id, arguments)."""
        size: size_t = len(payload)
        place: pointer[uint8_t] = out_reserve(address(self.connection.out), size + 8)
        if place == NULL:
            raise MemoryError("no memory for output")
        place[0] = 1
        place[1] = (number >> 8) & 255
        place[2] = number & 255
        place[3] = (size >> 24) & 255
        place[4] = (size >> 16) & 255
        place[5] = (size >> 8) & 255
        place[6] = size & 255
        memcpy(place + 7, cast(p_char, payload), size)
        place[7 + size] = 0xCE
        self.connection.out.end += size + 8

    @property
    def output_size(self) -> int:
        """Bytes that wait to be sent."""
        return out_pending(address(self.connection.out))

    # --- phases -----------------------------------------------------------------------------------------------------

    def tuned(self, frame_size_max: int) -> None:
        """connection.tune-ok: the frame size (bytes) that both sides agreed on."""
        self.connection.frame_size_max = frame_size_max

    def opened(self) -> None:
        """connection.open succeeded: larger frames, all classes."""
        self.connection.engine.phase = PHASE_OPEN
        self.connection.engine.frame_size_max = self.connection.frame_size_max

    def closing(self) -> None:
        """connection.close was sent: only its answer is read from now on."""
        if self.connection.engine.phase != PHASE_CLOSED:
            self.connection.engine.phase = PHASE_CLOSING
        self.connection.publisher = 0

    def finished(self, awaits_end: bint) -> None:
        """Nothing is looked at any more. When the output is sent the socket lingers: what the client still sends is thrown away until it
        hangs up, because a reset for unread input would take our last words from it.

        Args: awaits_end: the client asked for the close and ends the stream after our close-ok; an end from us first is an error to some.
        """
        self.connection.awaits_end = awaits_end
        self.connection.engine.phase = PHASE_CLOSED
        self.connection.publisher = 0

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

    def take_drops(self) -> dict[str, int]:
        """Messages of this connection that were dropped since the last call, by reason; empty when there were none."""
        drops: dict = {name: count for name, count in zip(DROP_NAMES, self.connection.dropped, strict=True) if count}
        memset(self.connection.dropped, 0, sizeof(self.connection.dropped))
        return drops

    def take_letters(self) -> dict[str, int]:
        """Messages that it had dead-lettered since the last call, by reason; empty when there were none."""
        letters: dict = {name: count for name, count in zip(REASONS, self.connection.letters, strict=True) if count}
        memset(self.connection.letters, 0, sizeof(self.connection.letters))
        return letters

    # --- channels -------------------------------------------------------------------------------------------------------

    def channel(self, number: uint16_t) -> pointer[channel_t]:
        channel: pointer[channel_t] = connection_channel(address(self.connection), number)
        if channel == NULL:
            raise KeyError(number)
        return channel

    def open_channel(self, number: int, aimed: bool = False) -> None:
        """channel.open. Args: aimed: see types.pxd. Raises MemoryError."""
        channel: pointer[channel_t] = channel_new(address(self.connection), number)
        if channel == NULL:
            raise MemoryError
        channel.aimed = aimed
        if engine_set_channel_state(address(self.connection.engine), number, RX_OPEN) != 0 or not channels_add(
            address(self.connection), channel
        ):
            channel_free(channel)
            raise MemoryError

    @property
    def held_bytes(self) -> int:
        """Bytes that it makes the broker hold by itself: output, incomplete messages, open transactions, unacked maps. O(channels)."""
        total: uint64_t = self.connection.out.size
        channel: pointer[channel_t] = self.connection.open_channels
        while channel != NULL:
            total += sizeof(channel_t) + channel.tx_bytes + channel.unacked.count * sizeof(unacked_t)
            if channel.content != NULL:
                total += channel.content.body_len
            channel = channel.next_open
        return total

    def leave_thin_chunks(self) -> None:
        """Messages that are not complete, or wait for a commit, are copied out of chunks that are kept for little else. O(messages)."""
        channel: pointer[channel_t] = self.connection.open_channels
        i: uint32_t
        while channel != NULL:
            if channel.content != NULL:
                channel.content = _moved(self.connection.arena, channel.content)
            for i in range(channel.tx_publish_count):
                channel.tx_publishes[i].content = _moved(self.connection.arena, channel.tx_publishes[i].content)
            channel = channel.next_open

    def channel_numbers(self) -> list[int]:
        """Numbers of the open channels."""
        numbers: list = []
        channel: pointer[channel_t] = self.connection.open_channels
        while channel != NULL:
            numbers.append(channel.number)
            channel = channel.next_open
        numbers.sort()
        return numbers

    def leave_channel(self, number: int, wait_for_ok: bool) -> None:
        """A channel ends: nothing more is delivered to it, its number is free, and `end_some` gives back what it holds.

        Args: wait_for_ok: channel.close was sent, so what still arrives on it is ignored until close-ok.
        """
        channel: pointer[channel_t] = self.channel(number)
        self._leave(channel)
        engine_set_channel_state(address(self.connection.engine), number, RX_CLOSING if wait_for_ok else RX_CLOSED)

    def _leave(self, channel: pointer[channel_t]) -> void:
        # An answer that nobody waits for any more; what is committed takes effect all the same.
        for transaction in self.committing.pop(channel.number, ()):
            transaction.detach()
        if channel.publishing:
            channel.publishing = False
            self.connection.counters.publishers -= 1
        forget_channel(address(self.connection), channel)
        channels_remove(address(self.connection), channel)
        channel.next_open = self.leaving
        self.leaving = channel

    def channel_closed(self, number: int) -> None:
        """channel.close-ok arrived: the number may be used again."""
        engine_set_channel_state(address(self.connection.engine), number, RX_CLOSED)

    def leave(self) -> None:
        """The connection ends: nothing more is delivered, and `end_some` gives back what its channels hold. O(1)."""
        connection_leave(address(self.connection))
        self._stop_waiting()

    def end_some(self, most: int) -> bool:
        """A slice of the end of channels: consumers go, then unacked deliveries return to their places, `most` of them together.

        Returns True when nothing is left. O(most), however much the channels hold.
        """
        remaining: uint32_t = most
        channel: pointer[channel_t]
        while remaining:
            if self.leaving != NULL:
                channel = self.leaving
                if channel.subscriptions != NULL:
                    self._remove(channel, channel.subscriptions)
                else:
                    self.leaving = channel.next_open
                    channel.next_open = self.ending
                    self.ending = channel
                    self.ending_at = 1
                remaining -= 1
            elif self.connection.closed and self.connection.open_channels != NULL:
                self._leave(self.connection.open_channels)
            elif self.ending != NULL:
                remaining = channel_release_some(self.ending, address(self.ending_at), remaining)
                if self.ending_at == 0:
                    channel = self.ending
                    self.ending = channel.next_open
                    self.ending_at = 1
                    channel_free(channel)
            else:
                return True
        return False

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
        *,
        group: bytes = b"",
        seat: Seat | None = None,
        selector: Selector | None = None,
        browse: bool = False,
    ) -> bool:
        """Adds a consumer with the channel's prefetch; a `waiting` one gets nothing until `activate`. `group`: told to the log.
        `seat`: its place in the stream that the queue is. `selector`: what it wants; None: everything. `browse`: it takes nothing.

        False when exclusivity or the queue's deletion forbids it. Raises MemoryError, StoreError.
        """
        channel: pointer[channel_t] = self.channel(number)
        flags: uint32_t = 0 if browse else CONSUMER_ACQUIRES | CONSUMER_SEES_REQUEUES
        subscription: pointer[subscription_t]
        flags |= CONSUMER_NO_ACK if no_ack else 0
        flags |= CONSUMER_EXCLUSIVE if exclusive else 0
        subscription = subscription_new(channel, handle.queue, _octets(tag), len(tag), flags, priority, waiting)
        if subscription == NULL:
            raise MemoryError
        # What dies in a group of a stream is the stream's to dead-letter: its deliveries have no entry to read the message from.
        subscription.dead_letters = handle.dead_letters and seat is None
        if seat is not None:
            seat_give(seat, subscription.consumer)
        if selector is not None:
            consumer_select(subscription.consumer, selector.program)
        if not subscription_attach(subscription):
            free(subscription)
            return False
        if self.log is not None and seat is None and queue_is_durable(handle.queue):
            try:
                self.log.note_consumer(subscription.consumer.id, tag, group)
            except BaseException:
                self._remove(channel, subscription)
                raise
        return True

    def set_timeout(self, number: int, tag: bytes, timeout_ms: int) -> None:
        """x-consumer-timeout of one consumer, instead of its queue's. Before it is given anything."""
        subscription: pointer[subscription_t] = self._find(self.channel(number), tag)
        if subscription != NULL:
            subscription.consumer.timeout_us = timeout_ms * 1000

    def time_out(self, number: int, tag: int, now_us: int, least_us: int, most: int) -> tuple[int, int]:
        """A slice of the look at deliveries of a channel from tag `tag` on, `most` of them: those whose consumer timeout is over go back.
        Args: now_us: wall clock; least_us: the shortest timeout. Returns (first tag that is left, 0: none is; how many went back)."""
        remaining: uint32_t = most
        ended: uint32_t = 0
        tag = channel_time_out(address(self.connection), self.channel(number), tag, now_us, least_us, address(remaining), address(ended))
        return tag, ended

    def set_dead_letters(self, number: int, tag: bytes, handle: QueueHandle) -> None:
        """The policy of a consumer's queue changed: what it is given from now on is dead-lettered when it is refused, or is not."""
        subscription: pointer[subscription_t] = self._find(self.channel(number), tag)
        if subscription != NULL:
            subscription.dead_letters = handle.dead_letters

    def figures(self, number: int) -> tuple:
        """(deliveries that are not settled, publishes that are not confirmed, publishes and settlements of an open transaction)."""
        channel: pointer[channel_t] = self.channel(number)
        return (channel.unacked.count, channel.pending_count, channel.tx_publish_count, channel.tx_settle_count)

    def totals(self, number: int) -> tuple:
        """Messages of an open channel: (published, confirmed, delivered, redelivered, acknowledged, returned, unroutable and dropped)."""
        one: pointer[channel_t] = self.channel(number)
        return one.published, one.answered, one.delivered, one.redelivered, one.acknowledged, one.returned, one.unroutable

    def consumer_figures(self, number: int, tag: bytes) -> tuple:
        """(messages that a consumer took, those that it has not settled, its prefetch); zeros when there is no such consumer."""
        subscription: pointer[subscription_t] = self._find(self.channel(number), tag)
        if subscription == NULL:
            return (0, 0, 0)
        consumer: pointer[consumer_t] = subscription.consumer
        return at_load64(address(consumer.acquired)), at_load32(address(consumer.credit.used)), consumer.credit.limit

    def _find(self, channel: pointer[channel_t], tag: bytes | None) -> pointer[subscription_t]:
        return subscription_find(channel, _octets(tag), len(tag))

    def _remove(self, channel: pointer[channel_t], subscription: pointer[subscription_t]) -> void:
        subscription_detach(subscription)
        # A queue on another loop may be inside notify_work: the memory waits for the next reap().
        subscription.next = self.graves
        self.graves = subscription

    def activate(self, number: int, tag: bytes, active: bool = True) -> None:
        """A consumer gets messages from now on, or waits (x-single-active-consumer, queues that rest)."""
        channel: pointer[channel_t] = self.channel(number)
        subscription: pointer[subscription_t] = self._find(channel, tag)
        if subscription != NULL and subscription.waiting == active:
            subscription.waiting = not active
            suspend_subscription(subscription, channel.flow_stopped or self.connection.write_blocked)

    def reap(self, most: int = 1024) -> bool:
        """Frees subscriptions that were cancelled, `most` at most; the loop's housekeeping calls it, long after their last use. True: that
        was all of them."""
        subscription: pointer[subscription_t]
        while self.graves != NULL and most:
            subscription = self.graves
            self.graves = subscription.next
            free(subscription)
            most -= 1
        return self.graves == NULL

    def cancel(self, number: int, tag: bytes) -> bool:
        """basic.cancel. Deliveries under way stay unacked. False when there is no such consumer."""
        channel: pointer[channel_t] = self.channel(number)
        subscription: pointer[subscription_t] = self._find(channel, tag)
        if subscription == NULL:
            return False
        self._remove(channel, subscription)
        return True

    def set_prefetch(self, number: int, count: int, shared: bool, live: bool) -> None:
        """basic.qos.

        Args: count: messages, 0 = unlimited; shared: one limit for the whole channel; live: change running consumers too
        (py-amqp expects that of `global=false`, see docs/COMPATIBILITY.md).
        """
        channel: pointer[channel_t] = self.channel(number)
        subscription: pointer[subscription_t]
        if shared:
            channel.credit.limit = count
        else:
            channel.prefetch = count
            if live:
                subscription = channel.subscriptions
                while subscription != NULL:
                    if not subscription.no_ack:
                        subscription.consumer.credit.limit = count
                    subscription = subscription.next
        channel_resume(channel)

    def prefetch(self, number: int) -> int:
        """Messages that a new consumer of the channel may have unsettled, by its own limit or the channel's; 0 = any number."""
        channel: pointer[channel_t] = self.channel(number)
        return channel.prefetch or channel.credit.limit

    def set_flow(self, number: int, active: bool) -> None:
        """channel.flow from the client: stops or resumes deliveries of the channel."""
        channel: pointer[channel_t] = self.channel(number)
        subscription: pointer[subscription_t] = channel.subscriptions
        channel.flow_stopped = not active
        while subscription != NULL:
            suspend_subscription(subscription, channel.flow_stopped or self.connection.write_blocked)
            subscription = subscription.next

    def _pull(self, queue: pointer[queue_t], getter: uint32_t, delivery: pointer[delivery_t]) -> bint:
        """Takes the queue's head. When its content is not in memory this connection waits for it: then delivery.position is set."""
        if queue_pull(queue, getter, delivery):
            self._stop_waiting()
            return True
        if delivery.position and self.waited != queue:
            # First the waiter, then another look: whoever brings the content later finds the waiter.
            self._stop_waiting()
            queue_incref(queue)
            self.waited = queue
            self.waiter.context = address(self.connection)
            self.waiter.wake = _head_came
            queue_add_waiter(queue, address(self.waiter))
            if queue_pull(queue, getter, delivery):
                self._stop_waiting()
                return True
        if delivery.position == 0:
            self._stop_waiting()
        return False

    def _stop_waiting(self) -> void:
        if self.waited != NULL:
            queue_remove_waiter(self.waited, address(self.waiter))
            queue_decref(self.waited)
            self.waited = NULL

    def get(self, number: int, handle: QueueHandle, no_ack: bool) -> bool | None:
        """basic.get: writes get-ok with the first message, or returns False when the queue has none.

        None: the first message has to be read from disk, others have to expire first, or there is more to look at. handler.head_came is
        called when it may be there; then ask again.
        """
        channel: pointer[channel_t] = self.channel(number)
        delivery: delivery_t
        item: pointer[unacked_t]
        if 0 < queue_next_expiry(handle.queue) <= wall_ms() and not expire_now(address(self.connection), handle.queue):
            # More are past their time: the request is made again after the next pass, for the next slice of them.
            ask_again(address(self.connection))
            return None
        if channel.getter == 0:
            channel.getter = owner_id_new()
            if channel.getter == 0:
                raise MemoryError
        if not self._pull(handle.queue, channel.getter, address(delivery)):
            if delivery.rotate:
                ask_again(address(self.connection))  # a long look, too, is taken in slices
                return None
            return None if delivery.position else False
        if no_ack:
            channel.unacked.last_tag += 1
        else:
            item = unacked_add(address(channel.unacked))
            if item == NULL:
                queue_release(handle.queue, delivery.slot, delivery.position, channel.getter, False)
                raise MemoryError
            queue_incref(handle.queue)
            item.slot = delivery.slot
            item.position = delivery.position
            item.queue = handle.queue
            item.consumer = NULL
            item.owner = channel.getter
            item.dead_letters = handle.dead_letters
            item.in_tx = 0
            item.lost = 0
            item.delivered_us = wall_us()
        counted: pointer[content_t] = NULL
        if delivery.delivery_count and handle.queue.returns & RETURNS_COUNTED:
            counted = content_with_field(self.connection.arena, delivery.content, b"x-delivery-count", delivery.delivery_count)
            if counted != NULL:
                delivery.content = counted
        ready: uint32_t = cast(uint32_t, min(queue_ready_count(handle.queue), 0xFFFFFFFF))
        written: bint = write_get_ok(address(self.connection), number, address(delivery), channel.unacked.last_tag, ready)
        if written and at_load32(address(self.connection.traced)):
            note_delivery(address(self.connection), number, handle.queue, delivery.redelivered, delivery.content)
        if counted != NULL:
            content_decref(counted)
        if not written:
            raise MemoryError
        if no_ack:
            queue_settle(handle.queue, delivery.slot, delivery.position, channel.getter, REASON_ACK, 0 if self.log is None else wall_us())
            self.connection.counters.got_auto += 1
            at_add64(address(handle.queue.puller.auto_acked), 1)  # its own since the take
        else:
            entry_sent(delivery.slot)
            self.connection.counters.got_manual += 1
        self.connection.counters.redelivered += 1 if delivery.redelivered else 0
        channel.redelivered += 1 if delivery.redelivered else 0
        channel.delivered += 1
        return True

    def last_tag(self, number: int) -> int:
        """The latest delivery tag of a channel; 0 = none yet."""
        return self.channel(number).unacked.last_tag

    def first_unacked(self, number: int) -> int:
        """The oldest delivery tag that is not settled; 0 = none."""
        return unacked_next(address(self.channel(number).unacked), 1)

    def is_unacked(self, number: int, tag: int) -> bool:
        """Whether a delivery tag is known and not settled."""
        return unacked_find(address(self.channel(number).unacked), tag) != NULL

    def settle_some(self, number: int, method: int, requeue: bool, tag: int, upto: int, most: int) -> tuple[int, int, bool]:
        """A slice of a settlement of many: the deliveries from tag `tag` to `upto`, `most` of them, but for those of an open transaction.

        Returns (first tag that is left, 0 when none is; what is left of `most`; whether that tag must be dead-lettered before it goes on).
        """
        part: part_t
        part.at = tag
        part.upto = upto
        part.most = most
        part.in_tx = False
        channel_settle_some(address(self.connection), self.channel(number), method, requeue, address(part))
        return part.at, part.most, part.dead

    def pass_on(self, number: int, tag: int) -> int:
        """A delivery is settled as far as its consumer goes, and the broker holds its entry. Returns its position; 0: its time was over."""
        return channel_pass_on(address(self.connection), self.channel(number), tag)

    def unacked_message(self, number: int, tag: int) -> tuple | None:
        """(queue id, exchange, routing key, content header payload, body) of an unacked delivery that is dead-lettered when it is refused.

        None: its queue has no dead-letter exchange, was deleted, or is a stream, which dead-letters by itself. A message that is not in
        memory is read, which may block. Raises StoreError, KeyError when it can't be.
        """
        channel: pointer[channel_t] = self.channel(number)
        item: pointer[unacked_t] = unacked_find(address(channel.unacked), tag)
        if item == NULL:
            raise KeyError(tag)
        if not item.dead_letters or queue_is_deleted(item.queue):  # a queue that is gone dead-letters nothing, and its content may be gone
            return None
        message: tuple | None = unacked_tuple(item, self.log)
        return None if message is None else (queue_get_id(item.queue), *message)

    def unacked_place(self, number: int, tag: int) -> tuple[int, int, int]:
        """(position; the consumer's id; wall clock in microseconds) of an unacked delivery. Raises: KeyError."""
        item: pointer[unacked_t] = unacked_find(address(self.channel(number).unacked), tag)
        if item == NULL:
            raise KeyError(tag)
        return item.position, item.owner, item.delivered_us

    def settle(self, number: int, method: int, tag: int, requeue: bool) -> None:
        """Settles one delivery. method: the id of basic.ack, nack or reject (spec.BasicAck.ID)."""
        channel_settle_item(address(self.connection), self.channel(number), tag, method, requeue)

    # --- publishing -------------------------------------------------------------------------------------------------

    def set_route(self, number: int, cache: RouteCache, key: bytes, handles: list | None, cacheable: bool) -> None:
        """Answers a publish whose route was unknown; the channel's user is authorized for the exchange.

        Args: key: exchange and routing key shortstrs; handles: QueueHandle list, None: headers decide; cacheable: False when Python
        routes each message, which then comes back complete as a slow publish.
        """
        channel: pointer[channel_t] = self.channel(number)
        i: c_int
        known: bint = False
        octets: pointer[uint8_t] = cast(pointer[uint8_t], cast(p_char, key))
        channel_set_route(channel, cache.put(octets, len(key), handles) if cacheable else route_new(octets, len(key), handles, b""))
        channel.slow_publish = channel.route.how if cacheable else SLOWLY_IN_PYTHON
        self._check_generation(channel)
        if not cacheable:
            return
        for i in range(AUTHORIZED_MAX):
            known = known or channel.authorized[i] == cache.exchange
            if channel.authorized[i] != NULL and channel.authorized[i] != cache.exchange and _same_name(channel.authorized[i], cache):
                # The exchange of that name was deleted and declared anew: a publish that finds the old one would go the long way for ever.
                exchange_decref(channel.authorized[i])
                channel.authorized[i] = NULL
        if not known:
            i = channel.authorized_next
            channel.authorized_next = (channel.authorized_next + 1) % AUTHORIZED_MAX
            if channel.authorized[i] != NULL:
                exchange_decref(channel.authorized[i])
            exchange_incref(cache.exchange)
            channel.authorized[i] = cache.exchange

    def resolve_route(self) -> bint:
        cache: RouteCache
        channel: pointer[channel_t] = connection_channel(address(self.connection), self.connection.slow_channel)
        route: pointer[cython.const[uint8_t]] = self.connection.slow_payload
        if self.connection.slow_exchange.owner == NULL:
            return False
        cache = cast(RouteCache, self.connection.slow_exchange.owner)
        if cache.resolver is None:
            return False
        key: bytes = PyBytes_FromStringAndSize(cast(p_char, cast(p_void, route)) + 2 + route[0], self.connection.slow_size - 2 - route[0])
        broker = self.handler.broker
        routes = broker.routes
        broker.counters.in_python["route"] += 1
        while True:
            version = routes.version
            if not at_load32(address(cache.exchange.usable)):
                return False  # another loop deleted the exchange just now, or led it to one that looks at headers
            try:
                handles: list | None = cache.resolver(key)
            except PeerError:  # another loop deleted the exchange just now
                return False
            channel_set_route(channel, cache.put(route, self.connection.slow_size, handles))
            channel.slow_publish = channel.route.how
            if version is routes.version:
                return True
            # Another loop changed a binding meanwhile and has cleared the cache already: what was just put may be stale.
            cache.forget(PyBytes_FromStringAndSize(cast(p_char, cast(p_void, route)), self.connection.slow_size))

    def _check_generation(self, channel: pointer[channel_t]) -> void:
        fresh: pointer[channel_t] = channel_new(NULL, 0)
        i: c_int
        if fresh == NULL:
            return
        if fresh.authorized_generation != channel.authorized_generation:
            channel.authorized_generation = fresh.authorized_generation
            for i in range(AUTHORIZED_MAX):
                if channel.authorized[i] != NULL:
                    exchange_decref(channel.authorized[i])
                    channel.authorized[i] = NULL
        channel_free(fresh)

    def message(self, number: int) -> tuple:
        """The complete message that waits for a slow publish: (exchange, routing key, content header payload, body)."""
        channel: pointer[channel_t] = self.channel(number)
        if channel.content == NULL:
            raise KeyError(number)
        return content_tuple(channel.content)

    def replace_header(self, number: int, header: bytes) -> None:
        """Exchanges the content header of the waiting message (direct reply-to, BCC): a new content, same body."""
        channel: pointer[channel_t] = self.channel(number)
        old: pointer[content_t] = channel.content
        new: pointer[content_t] = content_new(self.connection.arena, old.route_len, len(header), old.body_len)
        if new == NULL:
            raise MemoryError
        memcpy(content_route(new), content_route(old), old.route_len)
        memcpy(content_header(new), cast(p_char, header), len(header))
        if old.body_len:
            memcpy(content_body(new), content_body(old), old.body_len)
        new.flags = old.flags
        new.priority = old.priority
        content_frame(new)
        channel.content = new
        content_decref(old)

    def found_by(self, number: int) -> bytes:
        """What the route of the waiting message may be kept by (`accept`), before its header is changed; empty: its headers do not decide
        it, or there are too many bytes of them."""
        channel: pointer[channel_t] = self.channel(number)
        out: uint8_t[DECIDING_ROOM]
        size: uint32_t = channel_found_by(channel, out) if channel.slow_publish == SLOWLY_BY_CONTENT else 0
        return PyBytes_FromStringAndSize(cast(p_char, cast(p_void, address(out[0]))), size)

    def accept(self, number: int, handles: list, more_keys: list, found_by: bytes = b"") -> bool:
        """Publishes the waiting message to `handles` (or puts it into the transaction). True when a policy pass is due.

        Args: more_keys: its routing keys besides the one of basic.publish (CC, BCC), should it have to be routed again; found_by: what the
        route is kept by for others like it.
        Raises: PeerError: the transaction is too large (406), no memory for it (506).
        """
        channel: pointer[channel_t] = self.channel(number)
        route: pointer[route_t] = NULL
        exchange: pointer[exchange_t] = channel_exchange(channel) if found_by and route_is_valid(channel.route) else NULL
        if exchange != NULL and exchange.owner != NULL:
            route = cast(RouteCache, exchange.owner).put_content(found_by, channel.route.key_len, handles, pack_keys(more_keys))
        else:
            route = route_new(channel.route.key, channel.route.key_len, handles, pack_keys(more_keys))
        result: c_int = channel_accept(address(self.connection), channel, route)
        route_decref(route)
        if result == FEED_ERROR:
            code, text, number, _, _ = self.engine_error()
            raise PeerError(ReplyCode(code), text, hard=number == 0)
        if result == FEED_PAUSE and self.connection.slow == SLOW_NONE:
            self.connection.wide = 0  # wide publishes used up the turn; the loop measures the time of Python anyway
            return False
        self.connection.slow = SLOW_NONE
        return result == FEED_PAUSE

    def take_refused(self, most: int) -> list[tuple[int, int, tuple | None]]:
        """(queue id, REASON_*, message) of each dead letter that is due after this event, oldest first, at most `most`, which are forgotten
        here: each message is a copy. Message None: the queue is over its limit."""
        taken: list = []
        refused: pointer[refused_t]
        while self.connection.refused != NULL and len(taken) < most:
            refused = self.connection.refused
            self.connection.refused = refused.next
            message: tuple | None = None
            if refused.content != NULL:
                message = content_tuple(refused.content)
                content_decref(refused.content)
            taken.append((queue_get_id(refused.queue), refused.reason, message))
            queue_decref(refused.queue)
            free(refused)
        return taken

    def set_tracer(self, cache: RouteCache, place: bytes, user: bytes) -> None:
        """What the firehose's copies of its messages have in common, before `set_traced` first says that there are any. Any thread.

        Args: cache: of amq.rabbitmq.trace; place, user: the fields node, vhost and connection, and user, as a table has them."""
        if self.connection.tracer == NULL:
            self.connection.tracer = tracer_new(cache, place, user)

    def set_traced(self, bits: int) -> None:
        """What messages are searched for from now on (broker.spans.traced_bits): the firehose, spans. Any thread."""
        at_store32(address(self.connection.traced), cast(uint32_t, bits))

    def discard(self, number: int) -> None:
        """Drops the waiting message (it was refused)."""
        channel: pointer[channel_t] = self.channel(number)
        if channel.content != NULL:
            content_decref(channel.content)
            channel.content = NULL

    def set_reply_to(self, number: int, name: bytes) -> None:
        """Direct reply-to: the name of the channel's reply queue, which messages that ask for it get; empty: there is none."""
        channel: pointer[channel_t] = self.channel(number)
        if len(name) > REPLY_NAME_MAX:
            raise ValueError("the name of a reply queue is too long")
        memcpy(address(channel.reply_to[0]), _octets(name), len(name))
        channel.reply_to_len = len(name)

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
