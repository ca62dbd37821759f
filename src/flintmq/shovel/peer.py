"""One AMQP connection of a link, as a client, on asyncio: handshake, methods one after the other, messages by a Mover, heartbeats.

in: a connected socket. out: answers, and a future that fails once when the connection ends.

P1  The peer is a stranger: frames have the size that was agreed, each wait has an end, and what is not expected ends the connection.
P2  The input buffer holds one frame at least and `shovel_input_bytes` at most. Reading pauses while the other side takes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from flintmq import __version__
from flintmq.config import Limits
from flintmq.errors import PeerError
from flintmq.moves.uri import Uri
from flintmq.protocol.v0_9_1 import spec
from flintmq.protocol.v0_9_1.codec import decode_method, encode_frame, encode_table, method_frame
from flintmq.shovel.mover import MoverError

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
HEARTBEAT = b"\x08\x00\x00\x00\x00\x00\x00\xce"
# bytes of a new input buffer, doubled when a read fills it
FIRST_BUFFER = 16 * 1024
# specification 4.2.6: what each peer takes (frame-min-size)
FRAME_MAX_LEAST = 4_096
# characters of a peer's own words that a reason shows
WORDS_MAX = 300

# (buffer, start, end) -> where it stopped
Intake = Callable[[bytearray, int, int], int]


class LinkFailure(Exception):
    """The link can't go on. `str` is for people, and has no secret in it."""


class ChannelClosed(LinkFailure):
    """The peer closed the channel."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"channel closed by the broker: {code} {words(text)}")
        self.code = code


def words(text: str) -> str:
    """What a peer said, bounded and printable."""
    return "".join(one if one.isprintable() else "?" for one in text[:WORDS_MAX])


def client_properties(name: str) -> dict[str, object]:
    names = ("publisher_confirms", "exchange_exchange_bindings", "basic.nack", "consumer_cancel_notify", "connection.blocked")
    capabilities: dict[str, object] = dict.fromkeys((*names, "authentication_failure_close"), True)
    return {"product": "FlintMQ shovel", "version": __version__, "connection_name": name, "capabilities": capabilities}


class Peer(asyncio.BufferedProtocol):
    """Args: side: "source" or "destination", for reasons; name: of the connection; limits."""

    def __init__(self, side: str, name: str, limits: Limits) -> None:
        self.side = side
        self._name = name
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._transport: Any = None
        self._buffer = bytearray(FIRST_BUFFER)
        self._start = self._end = 0
        self._filled = False
        self._waiting: tuple[tuple[type[spec.Method], ...], asyncio.Future[spec.Method]] | None = None
        self._pauses: set[str] = set()
        self._beat: asyncio.TimerHandle | None = None
        self._received_s = self._sent_s = self._loop.time()
        self._heartbeat_s = 0
        self._closing = False
        self.frame_max = limits.shovel_frame_max
        self.server: dict[str, Any] = {}
        self.lost: asyncio.Future[None] = self._loop.create_future()
        self.lost.add_done_callback(lambda future: future.cancelled() or future.exception())  # nobody has to wait for it
        # of the link: frames of messages and confirms; whether they can't be taken now; what is done after each read
        self.intake: Intake | None = None
        self.is_full: Callable[[], bool] = lambda: False
        self.after: Callable[[], object] = lambda: None
        # what the peer, or its socket, says: it takes no more; it does again
        self.on_flow: Callable[[bool], object] = lambda held: None
        self.on_method: Callable[[spec.Method], bool] = lambda method: False
        self.blocked = ""

    # --- asyncio --------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        """P2. The view of the last read is gone by now."""
        if self._start == self._end:
            self._start = self._end = 0
        size = len(self._buffer)
        if self._filled or size - self._end < size // 4:
            held = self._buffer[self._start : self._end]
            grows = self._filled or len(held) > size // 2
            wanted = min(2 * size, self._limits.shovel_input_bytes) if grows else size
            self._filled = False
            self._buffer = bytearray(wanted)
            self._buffer[: len(held)] = held
            self._start, self._end = 0, len(held)
        return memoryview(self._buffer)[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        self._end += nbytes
        self._filled = self._end == len(self._buffer) < self._limits.shovel_input_bytes
        self._received_s = self._loop.time()
        self._guarded_read()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self._beat is not None:
            self._beat.cancel()
        self._end_with("closed" if self._closing else f"the connection was lost{f': {exc}' if exc else ''}")

    def pause_writing(self) -> None:
        self.on_flow(True)

    def resume_writing(self) -> None:
        self.on_flow(False)

    # --- for the link ---------------------------------------------------------------------------------------------------

    async def open(self, uri: Uri, frame_max: int) -> None:
        """The handshake, and channel 1. A URI without host and login means this node, which knows whom the socket is for.

        Args: frame_max: bytes of a frame that may come, at most. Raises: LinkFailure.
        """
        limits = self._limits
        self._transport.write(PROTOCOL_HEADER)
        start = await self._answer((spec.ConnectionStart,), limits.shovel_connect_ms)
        self.server = start.server_properties
        known = uri.host is None and uri.user is None
        mechanism = "EXTERNAL" if known else uri.options.get("auth_mechanism", "plain").upper()
        if not known and mechanism not in start.mechanisms.decode("ascii", "replace").split():
            raise LinkFailure(f"{self.side}: the broker does not offer the mechanism {mechanism}")
        self._write(0, spec.ConnectionStartOk(client_properties(self._name), mechanism, _response(mechanism, uri), "en_US"))
        tune = await self._answer((spec.ConnectionTune,), limits.shovel_connect_ms)
        if 0 < tune.frame_max < FRAME_MAX_LEAST:
            raise LinkFailure(f"{self.side}: the broker takes frames of {tune.frame_max} bytes, and AMQP's least is {FRAME_MAX_LEAST}")
        self.frame_max = min(tune.frame_max or limits.shovel_frame_max, frame_max)
        heartbeat = int(uri.options.get("heartbeat", limits.shovel_heartbeat_s))
        self._heartbeat_s = min(heartbeat, tune.heartbeat) if heartbeat and tune.heartbeat else max(heartbeat, tune.heartbeat)
        self._write(0, spec.ConnectionTuneOk(tune.channel_max, self.frame_max, self._heartbeat_s))
        self._write(0, spec.ConnectionOpen(uri.vhost))
        await self._answer((spec.ConnectionOpenOk,), limits.shovel_connect_ms)
        if self._heartbeat_s:
            self._pulse()
        await self.call(spec.ChannelOpen(), spec.ChannelOpenOk)

    async def call(self, method: spec.Method, answer: type[spec.Method], table: bytes | None = None) -> Any:
        """A method on channel 1 and its answer.

        Args: table: wire bytes of its last argument, where the types of numbers count.
        Raises: ChannelClosed (channel 1 is open again), LinkFailure.
        """
        if table is None:
            self._write(1, method)
        else:
            payload = method_frame(1, method)[7:-5] + len(table).to_bytes(4, "big") + table
            self.send(encode_frame(spec.FRAME_METHOD, 1, payload))
        try:
            return await self._answer((answer,), self._limits.shovel_answer_ms)
        except ChannelClosed:
            self._write(1, spec.ChannelOpen())
            await self._answer((spec.ChannelOpenOk,), self._limits.shovel_answer_ms)
            raise

    def send(self, frames: bytes) -> None:
        """Frames that are ready."""
        if frames and not self.lost.done():
            self._sent_s = self._loop.time()
            self._transport.write(frames)

    def post(self, method: spec.Method) -> None:
        """A method on channel 1 whose answer, if there is one, goes to `on_method`."""
        if not self.lost.done():
            self._write(1, method)

    def pause(self, reason: str, on: bool) -> None:
        """Reading stops while there is a reason."""
        before = bool(self._pauses)
        (self._pauses.add if on else self._pauses.discard)(reason)
        if self.lost.done() or before == bool(self._pauses):
            return
        if self._pauses:
            self._transport.pause_reading()
        else:
            self._received_s = self._loop.time()
            self._transport.resume_reading()

    def read_on(self) -> None:
        """The buffered bytes are looked at again: there may be room for it now."""
        self._guarded_read()

    def fail(self, text: str) -> None:
        """Ends the connection."""
        self._end_with(text)
        self._transport.abort()

    async def close(self) -> None:
        """A polite end. Never raises."""
        if not self.lost.done() and self._transport is not None:
            self._closing = True
            for reason in list(self._pauses):
                self.pause(reason, False)
            self.intake = None
            self._write(0, spec.ConnectionClose(200, "Goodbye"))
            await asyncio.wait([self.lost], timeout=self._limits.shovel_close_ms / 1000)
        if self._transport is not None:
            self._transport.abort()

    # --- inside -----------------------------------------------------------------------------------------------------------

    def _write(self, channel: int, method: spec.Method) -> None:
        self._sent_s = self._loop.time()
        self._transport.write(method_frame(channel, method))

    async def _answer(self, kinds: tuple[type[spec.Method], ...], wait_ms: int) -> Any:
        if self.lost.done():
            self.lost.result()
        future: asyncio.Future[spec.Method] = self._loop.create_future()
        self._waiting = kinds, future
        try:
            return await asyncio.wait_for(future, wait_ms / 1000)
        except TimeoutError:
            raise LinkFailure(f"{self.side}: no answer within {wait_ms / 1000:g} s") from None
        finally:
            self._waiting = None

    def _end_with(self, text: str) -> None:
        if self.lost.done():
            return
        error = LinkFailure(f"{self.side}: {text}")
        self.lost.set_exception(error)
        if self._waiting is not None and not self._waiting[1].done():
            self._waiting[1].set_exception(error)

    def _guarded_read(self) -> None:
        if self.lost.done():
            return
        try:
            self._read()
        except (MoverError, PeerError, LinkFailure) as error:
            self.fail(words(str(error)))

    def _read(self) -> None:
        while not self.lost.done():
            if self.intake is not None:
                self._start = self.intake(self._buffer, self._start, self._end)
                if self.is_full():
                    self.pause("full", True)
                    break
            frame = self._frame()
            if frame is None:
                break
            self._on_frame(*frame)
        self.after()

    def _frame(self) -> tuple[int, int, bytes] | None:
        """The next frame: type, channel, payload. Raises: LinkFailure."""
        start, buffer = self._start, self._buffer
        if self._end - start < 8:
            return None
        size = int.from_bytes(buffer[start + 3 : start + 7], "big")
        if size > self.frame_max:
            raise LinkFailure("the broker's answer is no AMQP 0-9-1, or a frame is larger than was agreed")
        if self._end - start < size + 8:
            return None
        if buffer[start + size + 7] != spec.FRAME_END:
            raise LinkFailure("a frame has no end octet")
        self._start = start + size + 8
        return buffer[start], int.from_bytes(buffer[start + 1 : start + 3], "big"), bytes(buffer[start + 7 : start + 7 + size])

    def _on_frame(self, kind: int, channel: int, payload: bytes) -> None:
        if kind == spec.FRAME_HEARTBEAT:
            return
        if kind != spec.FRAME_METHOD or channel > 1:
            if self._closing:
                return  # messages that nobody wants any more
            raise LinkFailure(f"an unexpected frame of type {kind} on channel {channel}")
        method: Any = decode_method(payload)
        if isinstance(method, spec.ConnectionClose):
            self._transport.write(method_frame(0, spec.ConnectionCloseOk()))
            raise LinkFailure(f"closed by the broker: {method.reply_code} {words(method.reply_text)}")
        if isinstance(method, spec.ConnectionBlocked | spec.ConnectionUnblocked):
            self.blocked = words(method.reason) if isinstance(method, spec.ConnectionBlocked) else ""
        elif isinstance(method, spec.ChannelClose):
            self._write(1, spec.ChannelCloseOk())
            closed = ChannelClosed(method.reply_code, method.reply_text)
            if self._waiting is None or self._waiting[1].done():
                raise closed
            self._waiting[1].set_exception(closed)
        elif isinstance(method, spec.ChannelFlow):
            self._write(1, spec.ChannelFlowOk(method.active))
        elif self._waiting is not None and isinstance(method, self._waiting[0]) and not self._waiting[1].done():
            self._waiting[1].set_result(method)
        elif isinstance(method, spec.ConnectionCloseOk) or self._closing:
            if isinstance(method, spec.ConnectionCloseOk):
                self._transport.abort()
        elif isinstance(method, spec.BasicCancel):
            raise LinkFailure("the broker cancelled the consumer: its queue was deleted, or is not available")
        elif isinstance(method, spec.BasicReturn):
            raise LinkFailure(f"a message can't be routed: {method.reply_code} {words(method.reply_text)}")
        elif not self.on_method(method):
            raise LinkFailure(f"an unexpected {method.NAME}")

    def _pulse(self) -> None:
        """Heartbeats: two intervals without a byte, and the peer is gone (specification 4.2.7)."""
        now = self._loop.time()
        if self.lost.done():
            return
        if not self._pauses and now - self._received_s > 2 * self._heartbeat_s:
            self.fail(f"no heartbeat for {2 * self._heartbeat_s} s")
            return
        if now - self._sent_s >= self._heartbeat_s / 2:
            self.send(HEARTBEAT)
        self._beat = self._loop.call_later(self._heartbeat_s / 2, self._pulse)


def _response(mechanism: str, uri: Uri) -> bytes:
    user = "guest" if uri.user is None else uri.user
    password = "guest" if uri.user is None else uri.password
    if mechanism == "PLAIN":
        return b"\x00" + user.encode() + b"\x00" + password.encode()
    if mechanism == "AMQPLAIN":
        return encode_table({"LOGIN": user, "PASSWORD": password})
    return b""
