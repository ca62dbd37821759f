"""One HTTP connection: uvicorn's protocol with a bound on connections and on the time until a request's head is there.

in: sockets. out: requests to the application. uvicorn alone lets a peer that says nothing, or says it slowly, stay for ever.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol


class BoundedProtocol(H11Protocol):
    """Class attributes are set per server by `bounded`."""

    connections_max = 1_000
    request_s = 20.0
    refused: list[int] = [0]  # one cell, shared by all of a server

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self.connections_max:
            self.refused[0] += 1
            transport.abort()
            return
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._there()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        super().handle_events()
        if self.cycle is not None and not self.cycle.response_complete:
            self._there()

    def on_response_complete(self) -> None:
        self._wait()
        super().on_response_complete()

    def _wait(self) -> None:
        self._there()
        if not self.transport.is_closing():
            self._late = self.loop.call_later(self.request_s, self.transport.abort)

    def _there(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


def bounded(connections_max: int, request_s: float) -> type[BoundedProtocol]:
    """The protocol class of one server."""
    return type("Protocol", (BoundedProtocol,), {"connections_max": connections_max, "request_s": request_s, "refused": [0]})
