"""A connection to another node: login, channels, frames, heartbeats, its end.

in: the address and id of a node; frames of the channels' users. out: what the node sends, to the user of its channel; word of the end.

L1  A user of a channel hears of its end once: `on_closed` (the other node closed it) or `on_lost` (the connection ended), unless it closed
    the channel itself. Nothing comes to it after that.
L2  Nothing waits: what is written is sent with what else the turn of the event loop writes, and is bounded by its writers.

All of it is of one event loop.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from flintmq import __version__
from flintmq.cluster.link_wire import HEARTBEAT, Message, Reader, WireError
from flintmq.cluster.node_door import MECHANISM, Caller
from flintmq.config import Limits
from flintmq.errors import FlintError, PeerError, ReplyCode
from flintmq.guard import guarded
from flintmq.protocol.v0_9_1 import spec
from flintmq.protocol.v0_9_1.codec import method_frame
from flintmq.shared.node_secret import NodeId

_PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
_CAPABILITIES = ("publisher_confirms", "basic.nack", "consumer_cancel_notify", "authentication_failure_close", "consumer_priorities")
# characters of the other node's own words that a reason shows
_WORDS_MAX = 300


class LinkLost(FlintError):
    """The other node is not reached, or the connection to it ended. `str` is for people."""


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """Where a node is. secure: None: without TLS."""

    id: NodeId
    host: str
    port: int
    secure: ssl.SSLContext | None = None


class ChannelUser(Protocol):
    """The user of one channel of a link. No method may wait; a WireError ends the link."""

    def on_answer(self, tag: int, multiple: bool, taken: bool) -> None:
        """basic.ack and basic.nack: of publishes."""

    def on_message(self, tag: int, redelivered: bool, message: Message) -> None: ...
    def on_method(self, method: Any) -> None:
        """Any other method but channel.close."""

    def on_read(self) -> None:
        """All that came at once has been told: called once after `on_answer`."""

    def on_closed(self, error: PeerError) -> None: ...
    def on_lost(self, reason: str) -> None: ...


def refusal(code: int, text: str) -> PeerError:
    """The other node's refusal, as one of this node."""
    text = _words(text)
    try:
        known = ReplyCode(code)
    except ValueError:
        known = ReplyCode.INTERNAL_ERROR
    return PeerError(known, text.removeprefix(f"{known.name} - "))


def _words(text: str) -> str:
    return "".join(one if one.isprintable() else "?" for one in text[:_WORDS_MAX])


class Link(asyncio.Protocol):
    """Args: me: this node; secret: of the engine's nodes; purpose: for people; on_end: told once why an open link has ended."""

    def __init__(self, me: NodeId, to: NodeAddress, secret: bytes, purpose: str, limits: Limits, on_end: Callable[[str], object]) -> None:
        self.to = to
        self.frame_max = limits.frame_size_min
        self.used_s = 0.0
        self._name = f"node {me.name}: {purpose}"
        self._limits = limits
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._caller = Caller(me, to.id, secret)
        self._transport: asyncio.Transport | None = None
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self.gone: asyncio.Future[None] = self._loop.create_future()  # the socket is closed
        self._reader = Reader(self, limits.frame_size_max)
        self._users: dict[int, ChannelUser | None] = {}  # None: closed by us, and the other node has not answered
        self._free: list[int] = []
        self._highest = 0
        self._channels_max = 0
        self._output: list[bytes] = []
        self._answered: dict[ChannelUser, None] = {}
        self._beat: asyncio.TimerHandle | None = None
        self._received_s = self._sent_s = self._loop.time()
        self._ended = False
        self._closing = False

    # --- life -----------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Raises: LinkLost: not reached within cluster_connect_ms_max, or refused."""
        to = self.to
        try:
            async with asyncio.timeout(self._limits.cluster_connect_ms_max / 1000):
                hostname = None if to.secure is None else to.host
                await self._loop.create_connection(lambda: self, to.host, to.port, ssl=to.secure, server_hostname=hostname)
                await self._opened
        except TimeoutError:
            self._end("it does not answer")
            raise LinkLost(f"node {to.id.name!r} is not reached: it does not answer") from None
        except OSError as error:
            self._end(str(error))
            raise LinkLost(f"node {to.id.name!r} is not reached: {error.strerror or error}") from None
        except BaseException:
            self._end("not opened")
            raise

    @property
    def is_over(self) -> bool:
        return self._ended

    @property
    def is_idle(self) -> bool:
        """Nobody has a channel."""
        return not any(user is not None for user in self._users.values())

    def close(self) -> None:
        """Ends it; users of channels are told as of any end. Idempotent."""
        if not self._ended and self._transport is not None and self._opened.done():
            self._closing = True
            self.write(method_frame(0, spec.ConnectionClose(200, "no more use")))
            self._flush()
        self._end("closed")

    def _end(self, reason: str) -> None:
        """Nothing comes any more (L1)."""
        if self._ended:
            return
        self._ended = True
        if self._beat is not None:
            self._beat.cancel()
        self._output.clear()
        if self._transport is not None:
            (self._transport.close if self._closing else self._transport.abort)()
        opened = self._opened.done() and not self._opened.cancelled() and self._opened.exception() is None
        if not self._opened.done():
            self._opened.set_exception(LinkLost(f"node {self.to.id.name!r}: {reason}"))
            self._opened.exception()  # whoever waits is told; nobody may
        users, self._users = self._users, {}
        if opened:  # first: whoever hears of it may want a link to that node again
            guarded("links between nodes", self._name, self._on_end, reason)
        for user in users.values():
            if user is not None:
                guarded("links between nodes", self._name, user.on_lost, reason)

    # --- channels -------------------------------------------------------------------------------------------------------

    def open_channel(self, user: ChannelUser, aim: bytes = b"") -> int:
        """Opens a channel, which can be used at once. Args: aim: id of the queue that all its publishes go to.

        Returns: its number. Raises: PeerError 530: there are too many; LinkLost.
        """
        if self._ended:
            raise LinkLost(f"node {self.to.id.name!r}: the connection has ended")
        if self._free:
            number = self._free.pop()
        elif self._highest < self._channels_max:
            self._highest += 1
            number = self._highest
        else:
            raise PeerError(ReplyCode.NOT_ALLOWED, f"this node has {self._channels_max} consumers at node {self.to.id.name!r}, and no more")
        self._users[number] = user
        self.used_s = self._loop.time()
        reserved = b"q:" + aim if aim else b""
        payload = spec.ChannelOpen.ID.to_bytes(4, "big") + bytes((len(reserved),)) + reserved
        self.write(b"\x01" + number.to_bytes(2, "big") + len(payload).to_bytes(4, "big") + payload + b"\xce")
        return number

    def close_channel(self, number: int) -> None:
        """Its user hears nothing any more. A channel that is gone is no error."""
        if self._users.get(number) is not None:
            self._users[number] = None
            self._reader.forget(number)
            self.used_s = self._loop.time()
            self.send(number, spec.ChannelClose(200, "no more use"))

    def send(self, number: int, method: spec.Method) -> None:
        self.write(method_frame(number, method))

    def write(self, frames: bytes) -> None:
        """Sends frames, with what else this turn of the event loop writes (L2)."""
        if self._ended:
            return
        if not self._output:
            self._loop.call_soon(self._flush)
        self._output.append(frames)

    def _flush(self) -> None:
        if self._output and self._transport is not None:
            self._sent_s = self._loop.time()
            self._transport.write(b"".join(self._output))
            self._output.clear()

    # --- what comes -----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self._ended:  # the time was over
            transport.abort()
            return
        transport.write(_PROTOCOL_HEADER)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.gone.done():
            self.gone.set_result(None)
        self._end("the connection was lost" if error is None else f"the connection was lost: {error}")

    def data_received(self, data: bytes) -> None:
        self._received_s = self._loop.time()
        try:
            self._reader.feed(data)
        except (WireError, PeerError, ValueError) as error:
            self._end(_words(str(error)))
        if self._answered:
            answered, self._answered = self._answered, {}
            for user in answered:
                guarded("links between nodes", self._name, user.on_read)

    def on_answer(self, number: int, tag: int, multiple: bool, taken: bool) -> None:
        user = self._users.get(number)
        if user is not None:
            user.on_answer(tag, multiple, taken)
            self._answered[user] = None

    def on_message(self, number: int, tag: int, redelivered: bool, message: Message) -> None:
        user = self._users.get(number)
        if user is not None:
            user.on_message(tag, redelivered, message)

    def on_method(self, number: int, method: Any) -> None:
        if number == 0:
            self._on_connection(method)
            return
        if isinstance(method, spec.ChannelClose):
            self.send(number, spec.ChannelCloseOk())
            user = self._free_number(number)
            if user is not None:
                user.on_closed(refusal(method.reply_code, method.reply_text))
        elif isinstance(method, spec.ChannelCloseOk):
            self._free_number(number)
        elif not isinstance(method, spec.ChannelOpenOk):
            user = self._users.get(number)
            if user is not None:
                user.on_method(method)

    def _free_number(self, number: int) -> ChannelUser | None:
        self._reader.forget(number)
        if number not in self._users:
            return None
        self._free.append(number)
        self.used_s = self._loop.time()
        return self._users.pop(number)

    def _on_connection(self, method: Any) -> None:
        if isinstance(method, spec.ConnectionStart):
            self._start(method)
        elif isinstance(method, spec.ConnectionSecure):
            self.send(0, spec.ConnectionSecureOk(self._caller.answer(method.challenge)))
        elif isinstance(method, spec.ConnectionTune):
            self.frame_max = method.frame_max or self._limits.frame_size_max
            self._reader.frame_max = max(self.frame_max, self._reader.frame_max)
            self._channels_max = method.channel_max or self._limits.cluster_channels_max
            self.send(0, spec.ConnectionTuneOk(method.channel_max, self.frame_max, max(1, self._limits.cluster_heartbeat_ms // 1000)))
            self.send(0, spec.ConnectionOpen("/"))
        elif isinstance(method, spec.ConnectionOpenOk) and not self._opened.done():
            self._opened.set_result(None)
            self._pulse()
        elif isinstance(method, spec.ConnectionClose):
            self.send(0, spec.ConnectionCloseOk())
            self._flush()
            self._end(f"closed by the node: {method.reply_code} {_words(method.reply_text)}")
        elif not isinstance(method, spec.ConnectionBlocked | spec.ConnectionUnblocked | spec.ConnectionCloseOk):
            raise WireError(f"an unexpected {method.NAME}")

    def _start(self, method: spec.ConnectionStart) -> None:
        if MECHANISM not in method.mechanisms.decode("ascii", "replace").split():
            raise WireError("it is no node of a cluster, or has not begun to be one: it offers no login for nodes")
        capabilities: dict[str, object] = dict.fromkeys(_CAPABILITIES, True)
        properties: dict[str, object] = {
            "product": "FlintMQ node",
            "version": __version__,
            "connection_name": self._name,
            "capabilities": capabilities,
        }
        self.send(0, spec.ConnectionStartOk(properties, MECHANISM, self._caller.first, "en_US"))

    def _pulse(self) -> None:
        """Heartbeats: two intervals without a byte, and the other node is gone (specification 4.2.7)."""
        now, interval_s = self._loop.time(), self._limits.cluster_heartbeat_ms / 1000
        if now - self._received_s > 2 * interval_s:
            self._end(f"no sign of life for {2 * interval_s:g} s")
            return
        if now - self._sent_s >= interval_s / 2:
            self.write(HEARTBEAT)
        self._beat = self._loop.call_later(interval_s / 2, self._pulse)
