"""One HTTP connection: uvicorn's protocol with bounds on peers that neither speak nor read.

in: sockets. out: requests to the application. uvicorn alone lets a peer that says nothing, or says it slowly, stay for ever; and one that
does not read its answer keep the answer.

B1  A connection is cut when no request's head came for `request_s` after the last answer, or when nothing of an answer was read for
    that long. One that reads its answer slowly, or waits for messages, is not.
B2  What is no HTTP is answered like any refused request, or cut when an answer has begun; never a trace.
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

from flintmq.admin.answers import small
from flintmq.admin.http_refusals import bad
from flintmq.admin.links import LINK, Link


class BoundedProtocol(H11Protocol):
    """Class attributes are set per server by `bounded`."""

    request_s = 20.0
    leaving: dict[Any, Callable[[], object]] = {}  # Parts.leaving

    link: Link  # set before connection_made
    # the client whom a trusted proxy speaks for (admin.front)
    proxied: tuple[str, int] | None = None

    _late: asyncio.TimerHandle | None = None
    _sent = 0  # bytes of answers that were written
    _taken: int | None = None  # those of them that the peer had read at the last look, while there were some that it had not

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if self.proxied is not None:
            self.client = self.proxied
        application, link = self.app, self.link

        async def served(scope: Any, receive: Any, send: Any) -> None:
            scope[LINK] = link
            link.begins()

            async def counted(message: Any) -> None:
                await send(message)
                self._sent += len(message.get("body", b""))

            await application(scope, receive, counted)

        self.app = served
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self.link.end()
        if self._late is not None:
            self._late.cancel()
            self._late = None
        on_leave = self.leaving.pop(self.client, None)
        if on_leave is not None:
            on_leave()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self._taken = None
        self.link.answered()
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
        taken = self._sent - unread  # what is read is followed by more: the unread bytes alone would seem to stand still
        stuck = self._taken is not None and taken <= self._taken if unread else not answering
        if stuck:
            self.transport.abort()
            return
        self._taken = taken if unread else None
        self._wait()


def bounded(request_s: float, leaving: dict[Any, Callable[[], object]]) -> type[BoundedProtocol]:
    """The protocol class of one server."""
    return type("Protocol", (BoundedProtocol,), {"request_s": request_s, "leaving": leaving})
