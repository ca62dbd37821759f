"""A connection's output, phases and publishes: what its handlers call that has nothing to do with consumers (connection_base.pxd).

in: handlers, on the loop's thread with the GIL. out: frames in the output buffer, routes for publishes.
"""

from __future__ import annotations

import cython
from cython import NULL, address, bint, cast, cclass, cfunc, exceptval, p_char, p_void, pointer, size_t, sizeof, void
from cython import int as c_int
from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
from cython.cimports.flintmq.core.atomics import at_load32
from cython.cimports.flintmq.core.buffer import out_pending, out_release, out_reserve
from cython.cimports.flintmq.core.content import (
    content_body,
    content_decref,
    content_frame,
    content_header,
    content_new,
    content_route,
    content_t,
)
from cython.cimports.flintmq.protocol.v0_9_1.codec import decode_method_at, encode_method
from cython.cimports.flintmq.protocol.v0_9_1.engine import (
    FEED_ERROR,
    FEED_PAUSE,
    PHASE_CLOSED,
    PHASE_CLOSING,
    PHASE_OPEN,
    engine_free,
    engine_init,
)
from cython.cimports.flintmq.queue.handle import content_tuple
from cython.cimports.flintmq.queue.log_port import LogPort
from cython.cimports.flintmq.queue.queue_core import queue_decref, queue_get_id
from cython.cimports.flintmq.routing.route_cache import (
    RouteCache,
    exchange_decref,
    exchange_incref,
    exchange_t,
    route_decref,
    route_new,
    route_t,
)
from cython.cimports.flintmq.session.channel import channel_accept, channel_free, channel_new, channel_set_route, session_sink
from cython.cimports.flintmq.session.slow import SLOW_NONE
from cython.cimports.flintmq.session.tx_buffer import tx_rollback
from cython.cimports.flintmq.session.types import AUTHORIZED_MAX, channel_t, connection_channel, connection_t, refused_t
from cython.cimports.libc.stdint import uint8_t, uint16_t
from cython.cimports.libc.stdlib import free
from cython.cimports.libc.string import memcmp, memcpy, memset

from flintmq.errors import PeerError, ReplyCode
from flintmq.session.placing import pack_keys

DROP_NAMES = ("unroutable", "refused", "maxlen", "rejected")


@cfunc
@exceptval(check=False)
def _same_name(exchange: pointer[exchange_t], cache: RouteCache) -> bint:
    return exchange.name_len == cache.exchange.name_len and memcmp(exchange.name, cache.exchange.name, exchange.name_len) == 0


@cclass
class ConnectionBase:
    """See Connection, which every connection is."""

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

    def __dealloc__(self):
        self.take_refused()
        engine_free(address(self.connection.engine))
        out_release(address(self.connection.out))

    def attach_log(self, log: LogPort) -> None:
        """Confirms of logged messages wait for this log's durable LSN."""
        self.log = log
        self.connection.port = address(log.port)

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
        size: size_t = len(data)
        place: pointer[uint8_t] = out_reserve(address(self.connection.out), size)
        if place == NULL:
            raise MemoryError("no memory for output")
        memcpy(place, cast(p_char, data), size)
        self.connection.out.end += size

    def decode(self, payload: bytes) -> object:
        """The method of a method frame. Raises: PeerError COMMAND_INVALID, SYNTAX_ERROR (see codec.decode_method)."""
        return decode_method_at(cast(pointer[uint8_t], cast(p_char, payload)), len(payload), self.table_depth_max, self.table_fields_max)

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

    def finished(self) -> None:
        """Nothing is looked at any more. When the output is sent the socket is shut down for sending and lingers: what the client still
        sends is thrown away until it hangs up, because a reset for unread input would take our last words from it.
        """
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

    # --- channels -------------------------------------------------------------------------------------------------------

    def channel(self, number: uint16_t) -> pointer[channel_t]:
        channel: pointer[channel_t] = connection_channel(address(self.connection), number)
        if channel == NULL:
            raise KeyError(number)
        return channel

    # --- publishing -------------------------------------------------------------------------------------------------

    def set_route(self, number: int, cache: RouteCache, key: bytes, handles: list, cacheable: bool) -> None:
        """Answers a publish whose route was unknown; the channel's user is authorized for the exchange.

        Args: key: exchange and routing key shortstrs; handles: QueueHandle list; cacheable: False when the route depends on the
        message, which then comes back complete as a slow publish.
        """
        channel: pointer[channel_t] = self.channel(number)
        i: c_int
        known: bint = False
        octets: pointer[uint8_t] = cast(pointer[uint8_t], cast(p_char, key))
        channel_set_route(channel, cache.put(octets, len(key), handles) if cacheable else route_new(octets, len(key), handles, b""))
        channel.slow_publish = not cacheable
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
        while True:
            version = broker.routes_version
            if not at_load32(address(cache.exchange.usable)):
                return False  # another loop deleted the exchange just now, or led it to one that looks at headers
            try:
                handles: list = cache.resolver(key)
            except PeerError:  # another loop deleted the exchange just now
                return False
            channel_set_route(channel, cache.put(route, self.connection.slow_size, handles))
            if version is broker.routes_version:
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

    def accept(self, number: int, handles: list, more_keys: list) -> bool:
        """Publishes the waiting message to `handles` (or puts it into the transaction). True when a policy pass is due.

        Args: more_keys: its routing keys besides the one of basic.publish (CC, BCC), should it have to be routed again.
        Raises: PeerError: the transaction is too large (406), no memory for it (506).
        """
        channel: pointer[channel_t] = self.channel(number)
        route: pointer[route_t] = route_new(channel.route.key, channel.route.key_len, handles, pack_keys(more_keys))
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

    def take_refused(self) -> list[tuple[int, int, tuple | None]]:
        """(queue id, REASON_*, message) of what is to be dead-lettered after this event, oldest first; it is forgotten here. Message
        None: the queue is over its limit."""
        taken: list = []
        refused: pointer[refused_t]
        while self.connection.refused != NULL:
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

    def discard(self, number: int) -> None:
        """Drops the waiting message (it was refused)."""
        channel: pointer[channel_t] = self.channel(number)
        if channel.content != NULL:
            content_decref(channel.content)
            channel.content = NULL

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
