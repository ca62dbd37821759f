"""Calls to the members of an etcd cluster: one channel to each, one of them in use.

in: the path of a method, the bytes of a request. out: the bytes of the answer, or an error that says whether the request may have had an
effect.

M1  A request that must not happen twice is sent on a channel that is connected, and never again after an error that leaves it open.
M2  Nothing happened (Unavailable, TooLarge): no channel could be connected, or etcd's own text says that it refused the request before it
    gave it to the log (_REFUSED, _ELSEWHERE). Every other error leaves it open: a deadline, a lost connection, a stopped server, "request
    timed out", and etcd's lack of space too, since a request that crosses the quota is made and then answered with that error.
M3  After any error of a member the next call begins with another one. A member that let a call's time run out loses its streams, too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from enum import Enum
from typing import Any

import grpc
import grpc.aio

from flintmq.config import Limits
from flintmq.engines.engine import EngineError, TooLarge, Unavailable, UnknownOutcome
from flintmq.engines.etcd import wire

# texts of etcd's errors: it did nothing; another member may do it
_ELSEWHERE = ("no leader", "not capable", "rpc not supported for learner")
# it did nothing, and would not elsewhere
_REFUSED = (
    "too many requests", "permission denied", "user name is empty", "user name not found", "authentication failed",
    "authentication is not enabled", "corrupt cluster", "key is not provided", "too many operations", "duplicate key", "required revision",
)  # fmt: skip
# it did nothing; with a new token it will
_STALE = ("invalid auth token", "revision of auth store is old", "revision in header is old")
_LARGE = ("request is too large", "larger than max")
_NOSPACE = "database space exceeded"
# gRPC's own text: the request never left this process
_UNSENT = "failed to connect to all addresses"
# bytes of an answer that gRPC takes: the rows of one read, each of them at most a value (engine.py bounds their number)
_ANSWER_MAX = 1 << 30


class NoSpace(UnknownOutcome):
    """etcd is full. The request may have been the one that filled it, and will not happen later."""

    def __init__(self, text: str) -> None:
        super().__init__(text, final=True)


class Compacted(EngineError):
    """The revision that was asked for is gone. Nothing happened."""


class _Kind(Enum):
    ELSEWHERE = 1
    REFUSED = 2
    STALE = 3
    LARGE = 4
    NOSPACE = 5
    OPEN = 6


def judge(code: grpc.StatusCode, text: str) -> _Kind:
    """What an error says of its request (M2)."""
    if any(part in text for part in _STALE) or code is grpc.StatusCode.UNAUTHENTICATED:
        return _Kind.STALE
    if any(part in text for part in _LARGE):
        return _Kind.LARGE
    if _NOSPACE in text:
        return _Kind.NOSPACE
    if text.startswith(_UNSENT) or (text.startswith("etcdserver: ") and any(part in text for part in _ELSEWHERE)):
        return _Kind.ELSEWHERE
    if text.startswith("etcdserver: ") and any(part in text for part in _REFUSED):
        return _Kind.REFUSED
    return _Kind.OPEN


class Members:
    """Args: addresses: HOST:PORT of each; credentials: of TLS, None: without; login: (user, password); limits: of the node."""

    def __init__(
        self, addresses: Sequence[str], credentials: grpc.ChannelCredentials | None, login: tuple[str, str] | None, limits: Limits
    ) -> None:
        self.count = len(addresses)
        self._addresses = tuple(addresses)
        self._credentials = credentials
        self._login = login
        self._limits = limits
        self._channels: list[grpc.aio.Channel | None] = [None] * len(addresses)
        self._current = 0
        self._token = ""
        self._logging_in = asyncio.Lock()
        self._is_closed = False
        self._streams: list[set[Any]] = [set() for _ in addresses]  # the calls of open streams of each

    def _channel(self, member: int) -> grpc.aio.Channel:
        channel = self._channels[member]
        if channel is None:
            keepalive_ms = self._limits.engine_etcd_keepalive_ms
            options: list[tuple[str, Any]] = [
                ("grpc.keepalive_time_ms", keepalive_ms),
                ("grpc.keepalive_timeout_ms", keepalive_ms // 2),
                ("grpc.http2.max_pings_without_data", 0),
                ("grpc.initial_reconnect_backoff_ms", 100),
                ("grpc.max_reconnect_backoff_ms", self._limits.engine_etcd_reconnect_ms),
                ("grpc.max_receive_message_length", _ANSWER_MAX),
                ("grpc.enable_http_proxy", 0),  # a proxy for web pages would see all messages
                ("grpc.use_local_subchannel_pool", 1),  # no connection that another channel of the process gave up
            ]
            address = self._addresses[member]
            if self._credentials is None:
                channel = grpc.aio.insecure_channel(address, options)
            else:
                channel = grpc.aio.secure_channel(address, self._credentials, options)
            self._channels[member] = channel
        return channel

    async def _is_connected(self, member: int, timeout_s: float) -> bool:
        """Whether its channel is, or becomes so in time."""
        channel = self._channel(member)
        try:
            async with asyncio.timeout(timeout_s):
                while (state := channel.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
                    if state in (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN):
                        return False
                    await channel.wait_for_state_change(state)
        except (TimeoutError, grpc.aio.UsageError):  # the second: it was closed meanwhile
            return False
        return True

    def _leave(self, member: int) -> None:
        if self._current == member:
            self._current = (member + 1) % self.count

    def _check_open(self) -> None:
        if self._is_closed:
            raise Unavailable("the engine is closed")

    async def call(self, path: str, request: bytes, repeat: bool = True) -> bytes:
        """One call, to any member. Args: repeat: it may happen twice.

        Raises: Unavailable, TooLarge, Compacted: nothing happened; UnknownOutcome (NoSpace) where it must not happen twice.
        """
        limit_s = self._limits.engine_etcd_request_ms / 1_000
        end = time.monotonic() + limit_s
        reason = "no member answers"
        for _ in range(2 * self.count):
            self._check_open()
            member = self._current
            rest = end - time.monotonic()
            if rest <= 0:
                break
            if not await self._is_connected(member, min(rest, limit_s / 2)):
                reason = f"no connection to {self._addresses[member]}"
                self._leave(member)
                continue
            try:
                # half of the time for the first member of a read: one that hangs must not use up all of it
                if repeat:
                    return await self._send(member, path, request, min(rest, limit_s / 2))
                return await self._send(member, path, request, limit_s, UnknownOutcome)
            except grpc.aio.AioRpcError as error:
                kind = judge(error.code(), error.details() or "")
                reason = f"{self._addresses[member]}: {error.details() or error.code().name}"
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    for stream in self._streams[member]:
                        stream.cancel()
            if kind in (_Kind.ELSEWHERE, _Kind.OPEN):
                self._leave(member)
            self._raise_final(kind, reason)
            if kind in (_Kind.OPEN, _Kind.NOSPACE) and not repeat:
                raise (NoSpace if kind is _Kind.NOSPACE else UnknownOutcome)(reason)
        raise Unavailable(reason)

    def _raise_final(self, kind: _Kind, text: str) -> None:
        """Raises an error that no other try would mend."""
        if kind is _Kind.LARGE:
            raise TooLarge(text)
        if kind is _Kind.REFUSED:
            if "required revision" in text:
                raise Compacted(text)
            if "user name is empty" in text:
                text += ". This etcd asks for a user: etcd://USER:PASSWORD@..."
            raise Unavailable(text)
        if kind is _Kind.STALE and self._login is None:
            raise Unavailable(f"{text}. This etcd asks for a user: etcd://USER:PASSWORD@...")

    async def _send(self, member: int, path: str, request: bytes, timeout_s: float, closed: type[EngineError] = Unavailable) -> bytes:
        """Raises: AioRpcError; closed: the engine was closed meanwhile."""
        token = ""
        try:
            token = await self._authorized(member, timeout_s)
            answer: bytes = await self._channel(member).unary_unary(path)(request, timeout=timeout_s, metadata=_metadata(token))
            return answer
        except (asyncio.CancelledError, grpc.aio.UsageError):
            if _is_cancelled():
                raise
            raise closed("the engine was closed during the call") from None
        except grpc.aio.AioRpcError as error:
            if judge(error.code(), error.details() or "") is _Kind.STALE:
                self.forget(token)
            raise

    async def _authorized(self, member: int, timeout_s: float) -> str:
        """A token, "": none is needed. Raises: AioRpcError."""
        if self._login is None or self._token:
            return self._token
        async with self._logging_in:
            if not self._token:
                try:
                    call = self._channel(member).unary_unary(wire.AUTHENTICATE)
                    self._token = wire.token_answer(await call(wire.login(*self._login), timeout=timeout_s))
                except grpc.aio.AioRpcError as error:
                    if "authentication is not enabled" not in (error.details() or ""):
                        raise _not_sent(error) from None
            return self._token

    def forget(self, token: str | None = None) -> None:
        """The next call asks for a new token, unless another one did so. Args: token: that was refused; None: whichever it is."""
        if token is None or token == self._token:
            self._token = ""

    async def ask(self, member: int, path: str, request: bytes, timeout_ms: int) -> bytes:
        """One call of a certain member, that may happen twice. Raises: Unavailable."""
        self._check_open()
        if not await self._is_connected(member, self._limits.engine_etcd_request_ms / 2_000):
            raise Unavailable(f"no connection to {self._addresses[member]}")
        try:
            return await self._send(member, path, request, timeout_ms / 1_000)
        except grpc.aio.AioRpcError as error:
            raise Unavailable(f"{self._addresses[member]}: {error.details() or error.code().name}") from error

    async def stream(self, path: str, request: bytes) -> AsyncIterator[bytes]:
        """The answers of a stream that begins with one request. Raises: Unavailable, when it ends."""
        self._check_open()
        member = self._current
        try:
            if not await self._is_connected(member, self._limits.engine_etcd_request_ms / 1_000):
                raise Unavailable(f"no connection to {self._addresses[member]}")
            token = await self._authorized(member, self._limits.engine_etcd_request_ms / 1_000)
            call = self._channel(member).stream_stream(path)(metadata=_metadata(token))
            self._streams[member].add(call)
            try:
                await call.write(request)
                while (answer := await call.read()) is not grpc.aio.EOF:
                    yield answer
            finally:
                self._streams[member].discard(call)
                call.cancel()
            raise Unavailable(f"{self._addresses[member]} ended the stream")
        except (asyncio.CancelledError, grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError) as error:
            if _is_cancelled():
                raise
            self._leave(member)
            raise Unavailable(f"{self._addresses[member]}: the stream broke") from error
        except Unavailable:
            self._leave(member)
            raise

    async def close(self) -> None:
        """Idempotent."""
        self._is_closed = True
        channels, self._channels = self._channels, [None] * self.count
        for channel in channels:
            if channel is not None:
                await channel.close()


def _is_cancelled() -> bool:
    """Whether the task is to end. gRPC raises CancelledError for a call that its channel, or another task, ended."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _not_sent(error: grpc.aio.AioRpcError) -> grpc.aio.AioRpcError:
    """The failed login before a request, as an error of which `judge` says that the request was not sent."""
    text = error.details() or error.code().name
    if judge(error.code(), text) is not _Kind.REFUSED:
        text = f"{_UNSENT}: login: {text}"
    return grpc.aio.AioRpcError(error.code(), error.initial_metadata(), error.trailing_metadata(), details=text)


def _metadata(token: str) -> tuple[tuple[str, str], ...]:
    # a member that sees no leader refuses at once instead of keeping the request for seconds
    leader = ("hasleader", "true")
    return (leader, ("token", token)) if token else (leader,)
