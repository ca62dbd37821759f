"""Accepts the connections of the HTTP service: counts them first, some at a time, and rests when there is no descriptor.

in: listening sockets. out: connections with a Link (admin.links), handed to a Front. asyncio's own server accepts everything that waits, up
to 2,048 connections in one go, before anybody can count them, and writes a trace for each that has no descriptor.

A1  At most AT_ONCE connections are accepted in one turn of the event loop: what is cut for them has given back its descriptor by the next.
A2  Without a descriptor the listeners rest until a connection ends, for REST_S at most. What that, and refusing, has to say is one line of
    the log in Limits.accept_log_ms.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Mapping
from typing import Any

from flintmq.access.checks import source_of
from flintmq.admin.links import Link, Links

log = logging.getLogger("flintmq.http")

AT_ONCE = 16
REST_S = 0.1
_PASSING = (errno.EAGAIN, errno.ECONNABORTED, errno.EINTR, errno.EPROTO)


class Acceptor:
    """Args: listeners: and whether they are for metrics alone; links; make: the protocol of a connection, a Front; log_s: seconds between
    two lines. For one event loop."""

    def __init__(
        self, listeners: Mapping[socket.socket, bool], links: Links, make: Callable[[Link], asyncio.Protocol], log_s: float
    ) -> None:
        self._listeners = dict(listeners)
        self._links = links
        self._make = make
        self._log_s = log_s
        self._loop: Any = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._resting: asyncio.TimerHandle | None = None
        self._logged_s = float("-inf")
        self._logged = 0, 0
        links.on_room = self._room

    def start(self) -> None:
        """On the running loop."""
        self._loop = asyncio.get_running_loop()
        for listener in self._listeners:
            listener.setblocking(False)
            self._loop.add_reader(listener, self._ready, listener)

    def stop(self) -> None:
        """No more connections. On the loop; again is no error."""
        if self._resting is not None:
            self._resting.cancel()
            self._resting = None
        for listener in self._listeners:
            self._loop.remove_reader(listener)
        self._listeners.clear()

    def _ready(self, listener: socket.socket) -> None:
        for _ in range(AT_ONCE):
            try:
                sock, address = listener.accept()
            except OSError as error:
                if error.errno not in _PASSING:
                    self._rest(error)
                return
            source = source_of(str(address[0])) if isinstance(address, tuple) and address else ""
            self._begin(sock, source, self._listeners[listener])

    def _begin(self, sock: socket.socket, source: str, for_metrics: bool) -> None:
        link = self._links.admit(source)
        if link is None:
            sock.close()
        else:
            link.for_metrics = for_metrics
            sock.setblocking(False)
            task = self._loop.create_task(self._connect(link, sock))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if link is None or link.spare:
            self._tell("HTTP: all %d connections are in use by users who wait for answers", self._links.most)
        elif self._links.evicted > self._logged[1]:
            self._tell("HTTP: all %d connections are in use; idle ones make room", self._links.most)

    async def _connect(self, link: Link, sock: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: self._make(link), sock)
        except OSError:
            sock.close()
            link.end()

    # --- rest -------------------------------------------------------------------------------------------------------------

    def _rest(self, error: OSError) -> None:
        """A2."""
        self._tell("HTTP: accept failed: %s. New connections wait; raise the limit of open files (ulimit -n, LimitNOFILE)", error)
        if self._resting is None:
            for listener in self._listeners:
                self._loop.remove_reader(listener)
            self._resting = self._loop.call_later(REST_S, self._go_on)

    def _room(self) -> None:
        if self._resting is not None:
            self._resting.cancel()
            self._resting = self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._resting = None
        for listener in self._listeners:
            self._loop.add_reader(listener, self._ready, listener)

    def _tell(self, text: str, *values: object) -> None:
        now = self._loop.time()
        if now - self._logged_s < self._log_s:
            return
        refused, evicted = self._links.refused - self._logged[0], self._links.evicted - self._logged[1]
        self._logged_s, self._logged = now, (self._links.refused, self._links.evicted)
        log.warning(text + " (%d refused and %d cut since the last line)", *values, refused, evicted)
