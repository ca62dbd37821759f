"""The port of the Flight service: the broker listens there from its start to its end, and lends the listening socket to each child.

in: address and port, or a socket that the service manager opened. out: a listening socket; word that somebody is there.

P1  The port never changes hands, so it is never free while a child starts, dies or is started again: nobody is refused. Connections wait in
    the kernel with the bytes that they bring, and the child accepts them: it sees their true addresses, and nothing is relayed.
P2  What waits is bounded by the kernel's queue (`flight_backlog`), not by us: nothing is accepted here and no thread waits for a client.
P3  Whoever waits for a child that can't be had is told so: `turn_away` closes the connections of that moment.
"""

from __future__ import annotations

import os
import select
import socket

from flintmq.config import Config

# connections that are turned away at once, more than the kernel's queue has (gRPC makes it as long as net.core.somaxconn)
_TURNED_AWAY_MAX = 8_192


class FlightPort:
    """Args: config. Threading: `open` before the thread that waits is started, and by that thread; `close` after its end; `stop` by any."""

    def __init__(self, config: Config) -> None:
        self._host, self._number = config.host, config.flight_port or 0
        self._inherited = dict(config.inherited).get("flight")
        self._backlog = config.limits.flight_backlog
        self._socket: socket.socket | None = None
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def open(self) -> int:
        """Listens, if it does not; at the port that it had before. Returns: the port. Raises: OSError."""
        listener, self._socket = self._socket, None
        # gRPC shuts a listener down when it can't serve: the socket is one, with ours, and listens no more.
        if listener is not None and not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            listener.close()
            listener = None
        if listener is None:
            listener = self._made()
        self._host, self._number = listener.getsockname()[:2]
        self._socket = listener
        return self._number

    @property
    def address(self) -> tuple[str, int]:
        """Host and port, as numbers once it listens."""
        return self._host, self._number

    def fileno(self) -> int:
        """The descriptor of the listening socket."""
        assert self._socket is not None, "it was opened"
        return self._socket.fileno()

    def wait(self) -> bool:
        """Waits until a connection is there, which stays where it is. False: `stop` was called."""
        ready = select.poll()  # select takes no descriptor above 1,023
        for descriptor in (self.fileno(), self._wake):
            ready.register(descriptor, select.POLLIN)
        return all(descriptor != self._wake for descriptor, _ in ready.poll())

    def turn_away(self) -> None:
        """Closes the connections that wait. The client sees a connection that ends, as it would a service that went down."""
        assert self._socket is not None, "it was opened"
        for _ in range(_TURNED_AWAY_MAX):
            try:
                self._socket.accept()[0].close()
            except ConnectionAbortedError:
                continue
            except OSError:  # nobody waits; or there is no descriptor, and they wait on
                return

    def stop(self) -> None:
        """Ends `wait`, and every later one."""
        os.eventfd_write(self._wake, 1)

    def release(self) -> None:
        """Lets the port go, with those who wait."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def close(self) -> None:
        """The end: lets the port go, too. Again is no error."""
        self.release()
        if self._wake >= 0:
            os.close(self._wake)
            self._wake = -1

    def _made(self) -> socket.socket:
        if self._inherited is not None:
            listener = socket.socket(fileno=self._inherited)
            self._inherited = None
        else:
            listener = socket.socket(socket.AF_INET6 if ":" in self._host else socket.AF_INET, socket.SOCK_STREAM)
            try:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind((self._host, self._number))
                listener.listen(self._backlog)
            except BaseException:
                listener.close()
                raise
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # accepted sockets inherit it
        listener.setblocking(False)
        return listener
