"""The HTTP service of a node: its socket, its thread, its stop. Imports neither asyncio, uvicorn nor starlette before somebody connects.

in: the node's parts. out: a listening port; answers until `stop`.

H1  The socket listens from `open` on, so the ready line tells a port that works; the libraries (half a second of import, 20 MiB) come with
    the first connection, on the service's own thread.
H2  `stop` answers held polls first (503), then waits Limits.http_stop_ms for answers to leave, then cuts.
"""

from __future__ import annotations

import concurrent.futures
import errno
import logging
import os
import select
import socket
import threading
from typing import TYPE_CHECKING, Any

from flintmq.config import Config
from flintmq.endpoint import endpoint
from flintmq.errors import OperatorError

if TYPE_CHECKING:
    import ssl

    from flintmq.admin.front import ReaderOf
    from flintmq.admin.links import Links
    from flintmq.admin.parts import Parts

log = logging.getLogger("flintmq.http")


class HttpServer:
    """See module.

    Args: config: host, http_port (not None), limits; parts: what is served; tls: context of the listener, None: plain HTTP; reader_of: of
    the headers of trusted proxies, None: there are none.
    """

    def __init__(self, config: Config, parts: Parts, tls: ssl.SSLContext | None = None, reader_of: ReaderOf | None = None) -> None:
        self._config = config
        self._parts = parts
        self._tls = tls
        self._reader_of = reader_of
        self._listener: socket.socket | None = None
        # the service's loop, once it answers
        self._loop: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._server: Any = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self.port: int | None = None
        self._metrics_listener: socket.socket | None = None
        self.metrics_port: int | None = None

    def open(self) -> int:
        """Listens; the port. Raises: OperatorError (69) when it can't."""
        inherited = dict(self._config.inherited).get("http")
        if inherited is not None:
            self._listener = socket.socket(fileno=inherited)
            self._listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._listener.setblocking(False)
            self.port = self._listener.getsockname()[1]
            return int(self._listener.getsockname()[1])
        config = self._config
        assert config.http_port is not None
        self._listener = self._listen(config.http_port, "--http-port")
        self.port = self._listener.getsockname()[1]
        if config.metrics_port is not None:
            self._metrics_listener = self._listen(config.metrics_port, "--metrics-port")
            self.metrics_port = self._metrics_listener.getsockname()[1]
        return self.port

    def _listen(self, port: int, option: str) -> socket.socket:
        host = self._config.host
        listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            listener.bind((host, port))
            listener.listen(1024)
        except OSError as error:
            listener.close()
            raise OperatorError(
                f"cannot listen on {endpoint(host, port)} for HTTP: {error.strerror}. "
                f"Choose another {option} (0 picks a free one, 'off' goes without), or stop what uses it.",
                69,
            ) from error
        listener.setblocking(False)
        return listener

    def _listeners(self) -> dict[socket.socket, bool]:
        """All that there are, and whether they are for metrics alone."""
        return {one: one is self._metrics_listener for one in (self._listener, self._metrics_listener) if one is not None}

    def start(self) -> None:
        """Serves, on a thread of its own. After `open`."""
        self._thread = threading.Thread(target=self._run, name="flintmq-http", daemon=True)
        self._thread.start()

    async def answer(self, head: dict[str, Any], payload: bytes) -> tuple[dict[str, Any], bytes]:
        """A call that another node was asked for (admin.forwarding), on any event loop. Raises: KeyError, TypeError, ValueError."""
        import asyncio

        if not self._loop.done():
            os.eventfd_write(self._wake, 1)  # the service begins with its first request
        loop = await asyncio.shield(asyncio.wrap_future(self._loop))
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._parts.forwarded(head, payload), loop))

    def stop(self) -> None:
        """Ends the service; held polls are answered. Again is no error."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        self._parts.pulls.stop()
        os.eventfd_write(self._wake, 1)
        if self._server is not None:
            self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(self._config.limits.http_stop_ms / 1000 + 3)
            if self._thread.is_alive():
                log.error("the HTTP service does not end; the broker goes on without waiting for it")
                return
        for listener in self._listeners():
            listener.close()
        os.close(self._wake)

    def _run(self) -> None:
        try:
            assert self._listener is not None
            ready = select.poll()  # select takes no descriptor above 1,023
            for descriptor in (*(one.fileno() for one in self._listeners()), self._wake):
                ready.register(descriptor, select.POLLIN)
            ready.poll()
            while not self._stopping.is_set():
                if self._imported():
                    self._serve()
                    return
                self._stopping.wait(1)
        except Exception:
            log.critical("the HTTP service ended; the broker goes on without it", exc_info=True)

    def _imported(self) -> bool:
        """Imports the libraries. False: there is no descriptor to open them with, which passes."""
        try:
            import uvicorn  # noqa: F401

            import flintmq.admin.app
            import flintmq.admin.protocol  # noqa: F401
        except (OSError, ImportError) as error:
            # Python opens modules, the dynamic linker opens libraries and says so in words.
            if getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE) or os.strerror(errno.EMFILE) in str(error):
                log.error("the HTTP service can't start yet: %s", error)
                return False
            raise
        return True

    def _serve(self) -> None:
        import asyncio

        import uvicorn

        from flintmq.admin.app import application
        from flintmq.admin.protocol import bounded

        limits = self._config.limits
        # Its errors about peers' requests are answers, not news: they would let any peer fill the log.
        logging.getLogger("uvicorn").setLevel(logging.ERROR)
        links = self._parts.links_of_http = self._links()
        self._server = server = uvicorn.Server(
            uvicorn.Config(
                application(self._parts),
                http=bounded(limits.http_request_ms / 1000, self._parts.leaving),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                # The connected peer is the client. A forwarding header of any client could claim an address of this machine.
                proxy_headers=False,
                # A browser must not run an answer as a script, show it as a picture, or cache it.
                headers=[
                    ("x-content-type-options", "nosniff"),
                    ("cross-origin-resource-policy", "same-origin"),
                    ("cache-control", "no-store"),
                ],
                timeout_keep_alive=max(1, limits.http_request_ms // 1000),
                timeout_graceful_shutdown=max(1, limits.http_stop_ms // 1000),
                h11_max_incomplete_event_size=limits.http_head_bytes_max,
            )
        )
        self._parts.connections = lambda: len(links)
        server.config.load()
        if self._stopping.is_set():  # `stop` may have looked for the server before it was there
            return
        asyncio.run(self._accept_and_serve(server, links))

    def _links(self) -> Links:
        from flintmq.admin.links import SPARE, Links

        most = self._config.limits.http_connections_max
        return Links(most - min(SPARE, most // 8))

    async def _accept_and_serve(self, server: Any, links: Links) -> None:
        """uvicorn serves what the Acceptor hands it; it has no socket of its own."""
        import asyncio

        from flintmq.admin.accepting import Acceptor
        from flintmq.admin.front import Front

        limits, config, state = self._config.limits, server.config, server.server_state
        header_s = limits.tls_handshake_ms_max / 1000

        def http() -> Any:
            return config.http_protocol_class(config=config, server_state=state, app_state={})

        acceptor = Acceptor(
            self._listeners(), links, lambda link: Front(link, http, self._reader_of, self._tls, header_s), limits.accept_log_ms / 1000
        )
        acceptor.start()
        self._loop.set_result(asyncio.get_running_loop())
        try:
            await server.serve(sockets=[])
        finally:
            acceptor.stop()
