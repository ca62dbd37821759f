"""The two brokers of a comparison: started when needed, in memory or on a fresh directory of the disk, killed and started again.

in: which of the two, durable or not. out: a `Server` (port, pid, data directory).

B1  A durable broker has a directory of its own on a file system that keeps what is synced, gone with the broker.
B2  Only processes started here are ended, by pid.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from bench import disk
from tests.support import servers

# A broker that pip installed is compiled. Where the environment forbids to keep what is compiled, each start would compile 160 modules.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

ROOT = Path(__file__).resolve().parents[1]
FLINTMQ, RABBITMQ = "flintmq", "rabbitmq"
# seconds between two runs: what a broker does after a run (deleting, collecting garbage) is not charged to the next one
PAUSE_S = 1.0
# seconds for a killed broker to be gone, or for one that starts again to answer
RESTART_S_MAX = 180.0


def disk_directory() -> Path:
    """Where durable brokers keep their data: $FLINTMQ_BENCH_DIR, else build/bench of this checkout. Raises: Unavailable on a tmpfs."""
    base = Path(os.environ.get("FLINTMQ_BENCH_DIR") or ROOT / "build/bench")
    base.mkdir(parents=True, exist_ok=True)
    kind = disk.filesystem(base)
    if kind in disk.MEMORY_FILE_SYSTEMS:
        raise servers.Unavailable(f"{base} is on {kind}, which keeps nothing: set FLINTMQ_BENCH_DIR to a directory on a disk")
    return base


class Broker:
    """One of the two, started when needed and started anew when asked, when it ended, or when durability changes."""

    def __init__(self, name: str, *, options: tuple[str, ...] = (), always: tuple[str, ...] = ()) -> None:
        """name: FLINTMQ or RABBITMQ; options, always: more for the command line of a durable FlintMQ, of any FlintMQ."""
        self.name = name
        self.options = options
        self.always = always
        self.durable = False
        self.directory: Path | None = None
        self._ports: list[int] = []
        self._stack = contextlib.ExitStack()
        self._server: servers.Server | None = None

    def server(self, *, fresh: bool = False, durable: bool = False) -> servers.Server:
        """Raises: RuntimeError when it does not start, Unavailable when it can't be had."""
        if self._server is not None and (fresh or durable != self.durable or not self._server.alive):
            self.stop()
        if self._server is None:
            self.durable = durable
            if durable:
                self.directory = Path(tempfile.mkdtemp(prefix=f"{self.name}-", dir=disk_directory()))
            self._ports = servers.free_ports(3)
            self._server = self._stack.enter_context(self._start())
            time.sleep(PAUSE_S)
        return self._server

    @property
    def store(self) -> Path:
        """FlintMQ's store directory (or RabbitMQ's data directory). Only of a durable broker."""
        assert self.directory is not None
        return self.directory / "store" if self.name == FLINTMQ else self.directory

    def _start(self) -> contextlib.AbstractContextManager[servers.Server]:
        if self.name == FLINTMQ:
            common = ("--port", str(self._ports[0]), "--http-port", "off", "--flight-port", "off", *self.always)
            where = ("--data-dir", str(self.store), *self.options) if self.durable else ("--memory",)
            return servers.flintmq(*common, *where, data_dir=self.directory)
        return self._rabbitmq()

    @contextlib.contextmanager
    def _rabbitmq(self) -> Iterator[servers.Server]:
        # Its node's name, and with it the directory, comes from its port: the same one again after a restart.
        with mock.patch.object(servers, "free_ports", lambda count: self._ports[:count]):
            starting = servers.rabbitmq(data_dir=self.directory)
            server = starting.__enter__()
        try:
            yield server
        finally:
            if server.alive and self.durable:
                os.kill(server.pid, signal.SIGKILL)  # its directory goes: nothing to save
            starting.__exit__(None, None, None)

    def kill(self) -> None:
        """kill -9. Its directory stays."""
        assert self._server is not None
        os.kill(self._server.pid, signal.SIGKILL)
        self._stack.close()
        self._server = None

    def restart(self) -> tuple[int, threading.Thread]:
        """Starts it again on its directory and port, in a thread that ends when it answers. Returns (monotonic ns before, thread)."""
        assert self._server is None and self.directory is not None
        failures: list[BaseException] = []

        def start() -> None:
            try:
                self._server = self._stack.enter_context(self._start())
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=start, name="bench-restart", daemon=True)
        before = time.monotonic_ns()
        thread.start()
        return before, thread

    def stop(self) -> None:
        """Ends it and removes its directory."""
        self._stack.close()
        self._server = None
        if self.directory is not None:
            shutil.rmtree(self.directory, ignore_errors=True)
            self.directory = None
