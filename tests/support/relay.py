"""A listener that passes bytes on to a broker and back, changed on the way: what stands between an unmodified client and a transport."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Any

Change = Callable[[bytes], bytes]


class Relay:
    """Takes one connection. Args: target: (host, port), or a path of a Unix socket; there, back: change what passes; first: said at once;
    greet: called with the socket to the broker before anything passes; its answer goes through `back`."""

    def __init__(
        self, target: tuple[str, int] | str, there: Change, back: Change, first: bytes = b"", greet: Callable[[Any], bytes] | None = None
    ) -> None:
        self._target = target
        self._there = there
        self._back = back
        self._first = first
        self._greet = greet
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        client, _ = self._listener.accept()
        self._listener.close()
        if isinstance(self._target, str):
            broker = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            broker.connect(self._target)
        else:
            broker = socket.create_connection(self._target)
        broker.sendall(self._first)
        early = self._greet(broker) if self._greet is not None else b""
        if early:
            client.sendall(self._back(early))
        threading.Thread(target=self._pump, args=(broker, client, self._back), daemon=True).start()
        self._pump(client, broker, self._there)

    @staticmethod
    def _pump(source: socket.socket, target: socket.socket, change: Change) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(change(data))
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)
