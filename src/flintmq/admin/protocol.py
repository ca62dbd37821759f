"""One HTTP connection: uvicorn's protocol with bounds on connections and on peers that neither speak nor read.

in: sockets. out: requests to the application. uvicorn alone lets a peer that says nothing, or says it slowly, stay for ever; and one that
does not read its answer keep the answer.

B1  A connection is cut when no request's head came for `request_s` after the last answer, or when nothing of an answer was read for
    that long. One that reads its answer slowly, or waits for messages, is not.
B2  What is no HTTP is answered like any refused request, or cut when an answer has begun; never a trace.
B3  At the limit of connections the newcomer is let in when another address has more than its own: of the address with most the oldest
    connection that asks nothing is cut; where all of them ask, one goes only for an address with less than half as many.
"""

from __future__ import annotations

import asyncio
import fcntl
import termios
from array import array
from collections.abc import Callable
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from flintmq.access.checks import source_of
from flintmq.admin.answers import small
from flintmq.admin.errors import bad


class BoundedProtocol(H11Protocol):
    """Class attributes are set per server by `bounded`."""

    connections_max = 1_000
    request_s = 20.0
    refused: list[int] = [0]  # one cell, shared by all of a server
    sources: dict[str, dict[BoundedProtocol, None]] = {}  # address (access.checks.source_of) -> its connections, the oldest first
    leaving: dict[Any, Callable[[], object]] = {}  # Parts.leaving

    # the client whom a trusted proxy speaks for (admin.front)
    proxied: tuple[str, int] | None = None

    _source = ""
    _late: asyncio.TimerHandle | None = None
    _unread: int | None = None  # bytes of answers that the peer had not read at the last look

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if self.proxied is not None:
            self.client = self.proxied
        self._source = source_of(self.client[0]) if self.client else ""
        if len(self.connections) > self.connections_max:
            self.refused[0] += 1
            loser = self._loser()
            if loser is None:
                transport.abort()
                return
            loser.transport.abort()
        self.sources.setdefault(self._source, {})[self] = None
        self._wait()

    def _loser(self) -> BoundedProtocol | None:
        """B3. The connection that makes room for this one; None: there is none. O(addresses and connections of one of them)."""
        most = max(self.sources.values(), key=len, default={})
        own = len(self.sources.get(self._source, ()))
        if len(most) <= own + 1:
            return None
        idle = next((one for one in most if one.cycle is None or one.cycle.response_complete), None)
        if idle is None and 2 * own < len(most):
            return next(iter(most))
        return idle

    def connection_lost(self, exc: Exception | None) -> None:
        here = self.sources.get(self._source)
        if here is not None:
            here.pop(self, None)
            if not here:
                del self.sources[self._source]
        if self._late is not None:
            self._late.cancel()
            self._late = None
        told = self.leaving.pop(self.client, None)
        if told is not None:
            told()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self._unread = None
        self._wait()
        super().on_response_complete()

    def timeout_keep_alive_handler(self) -> None:
        """uvicorn's; `_look` does it, and sees to answers that are on their way."""

    def send_400_response(self, msg: str) -> None:
        """B2. uvicorn's own raises when an answer has begun."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()
            return
        value = bad("this is no HTTP/1.1 request, or its head is too long", "send a request as docs/HTTP.md shows").body
        body = small(value)
        headers = [("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close")]
        for event in (h11.Response(status_code=400, headers=headers, reason=b"Bad Request"), h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _wait(self) -> None:
        if self._late is not None:
            self._late.cancel()
        self._late = self.loop.call_later(self.request_s, self._look)

    def _not_read(self) -> int:
        """Bytes of answers that the peer's machine has not taken: ours and the kernel's. The kernel asks for more only when a good part of
        its own (megabytes) is free: our buffer alone would seem to stand still."""
        sock = self.transport.get_extra_info("socket")
        size = array("i", [0])
        if sock is not None and sock.fileno() >= 0:
            fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, size)
        return self.transport.get_write_buffer_size() + size[0]

    def _look(self) -> None:
        """B1."""
        unread = self._not_read()
        answering = self.cycle is not None and not self.cycle.response_complete
        stuck = self._unread is not None and unread >= self._unread if unread else not answering
        if stuck:
            self.transport.abort()
            return
        self._unread = unread or None
        self._wait()


def bounded(connections_max: int, request_s: float, leaving: dict[Any, Callable[[], object]]) -> type[BoundedProtocol]:
    """The protocol class of one server."""
    values = {"connections_max": connections_max, "request_s": request_s, "refused": [0], "leaving": leaving, "sources": {}}
    return type("Protocol", (BoundedProtocol,), values)
