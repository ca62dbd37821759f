"""The Flight service as a child process: started when somebody needs it, restarted when it dies, taken down with the broker.

in: the node's configuration, a Service that answers. out: the port, the child with its socket pairs, its log lines on our standard error.

C1  The child has one end of each pair, the broker the other, and nobody else has either: when the broker is gone, however that came, the
    child reads the end of its first channel and exits.
C2  Any channel that ends takes the whole child with it: a child with fewer channels would only be slower without anybody knowing.
C3  A child that can't run costs the broker nothing but log lines: the start goes on without it, and it is tried again with back-off.
C4  On demand (`--flight-start`) the first connection starts the child. One that was up and died is started again at once, one that never
    came up by the next connection, after the back-off. There is one child at most, whatever connects.
C5  The broker holds the port (flight_port.py). Where the child can't take that socket over, because LD_PRELOAD has no effect, it binds the
    port itself, and starts at once.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from flintmq.arguments import is_whole
from flintmq.config import AT_ONCE, Config
from flintmq.dataplane.flight_port import FlightPort
from flintmq.dataplane.wire import EXIT_NOT_ADOPTED, Channel, ChannelClosed, WireError
from flintmq.endpoint import endpoint
from flintmq.errors import FlintError

log = logging.getLogger("flintmq.flight")

MODULE = "flintmq.flight"
# bytes of one log line of the child
_LINE_MAX = 16_384
# seconds between two looks at whether a port is free
_LOOK_S = 0.05


def flight_is_installed() -> bool:
    """Whether the child could import what it needs. Nothing is imported here."""
    return importlib.util.find_spec("pyarrow") is not None


def adopting_library() -> str | None:
    """Path of what lets gRPC serve a socket that listens already (flight/_adopt.c); None: it is not there, or its path has a character that
    separates paths in LD_PRELOAD."""
    spec = importlib.util.find_spec(f"{MODULE}._adopt")
    path = None if spec is None else spec.origin
    return None if path is None or re.search(r"[\s:]", path) else path


class Child:
    """One life of the Flight service. Args: command: without descriptors; config; listener: descriptor of the socket that it takes over and
    the library that it needs for that, None: it binds the port that the command names."""

    def __init__(self, command: Sequence[str], config: Config, listener: tuple[int, str] | None) -> None:
        pairs = [socket.socketpair() for _ in range(config.limits.dataplane_channels)]
        theirs = [pair[1] for pair in pairs]
        self.channels = [Channel(pair[0], config.limits) for pair in pairs]
        self._end_s, self._term_s = config.limits.flight_end_ms / 1000, config.limits.flight_term_ms / 1000
        descriptors = [one.fileno() for one in theirs]
        words = [*command, "--channels", ",".join(map(str, descriptors))]
        environment = dict(os.environ)
        if listener is not None:
            descriptors.append(listener[0])
            words += ["--listener", str(listener[0])]
            environment["LD_PRELOAD"] = f"{environment.get('LD_PRELOAD', '')} {listener[1]}".strip()
        try:
            self.process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=descriptors,
                env=environment,
            )
        except BaseException:
            self.close()
            raise
        finally:
            for one in theirs:
                one.close()

    def close(self) -> None:
        """Tells the child to end."""
        for channel in self.channels:
            channel.close()

    def end(self) -> int:
        """Ends the child, by force if it must be. Returns its exit code (negative: a signal)."""
        self.close()
        for wait_s, act in ((self._end_s, self.process.terminate), (self._term_s, self.process.kill)):
            try:
                return self.process.wait(wait_s)
            except subprocess.TimeoutExpired:
                act()
        return self.process.wait()


class Supervisor:
    """See module. Args: config; store_dir: for the child; serve: answers the requests of a channel until it ends; command: of the child,
    without its descriptors (tests)."""

    def __init__(self, config: Config, store_dir: str, serve: Callable[[Channel], None], command: Sequence[str] | None = None) -> None:
        self._config = config
        self._store_dir = store_dir
        self._serve = serve
        self._command = command
        # None: the child binds its port itself
        self._library = adopting_library()
        self._held = FlightPort(config)
        self._at_once = self._library is None or config.flight_start == AT_ONCE
        self._port = config.flight_port or 0
        self._stopping = threading.Event()
        self._changed = threading.Condition()
        self._listening: int | None = None
        self._attempts = 0
        self._pid: int | None = None
        self._starting = False
        self._was_up = False
        self._thread: threading.Thread | None = None
        self._serving: list[threading.Thread] = []

    # --- the node -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Takes the port, then starts the child or waits until somebody needs it; returns at once."""
        if self._library is None:
            log.warning(
                "the Flight service binds its port itself, and starts at once: %s._adopt can't be preloaded from where it is", MODULE
            )
        self._take_port()  # the thread says why when it can't, and tries again
        self._thread = threading.Thread(target=self._run, name="flintmq-flight", daemon=True)
        self._thread.start()

    def wait_ready(self, timeout_s: float, given_up: Callable[[], bool] = lambda: False) -> int | None:
        """The service's port: on demand at once, else when the child listens. None when the first try failed or took too long (it is tried
        on), or `given_up()`."""
        until = time.monotonic() + timeout_s
        with self._changed:
            while self._listening is None and self._attempts == 0 and not self._stopping.is_set() and not given_up():
                rest_s = until - time.monotonic()
                if rest_s <= 0:
                    break
                self._changed.wait(min(rest_s, 0.2))
            if self._listening is None and self._attempts == 0 and not given_up():
                log.warning("the Flight service is not up after %g s: the broker goes on without it until it is", timeout_s)
            return self._listening

    @property
    def port(self) -> int | None:
        """Where clients are served, or on demand wait for the child; None while neither is so."""
        return self._listening

    def status(self) -> dict[str, Any]:
        """For the call `status`, metrics and the diagnosis. state: up; starting; waiting, for the first connection; down."""
        state = "up" if self._pid is not None else "starting" if self._starting else "down" if self._listening is None else "waiting"
        return {"port": self._listening, "pid": self._pid, "failed_starts": self._attempts, "state": state}

    def stop(self) -> None:
        """Takes the child down; it is gone, and no call of it runs any more, when this returns. Again is no error."""
        limits = self._config.limits
        end_s = limits.flight_end_ms / 1000
        if not self._stopping.is_set():
            self._held.stop()
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(end_s + limits.flight_term_ms / 1000 + 5)
        for thread in self._serving:
            thread.join(end_s)
        if self._thread is None or not self._thread.is_alive():
            self._listens(None, None)
            self._held.close()

    # --- the child's life -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        limits = self._config.limits
        pause_ms = limits.flight_restart_ms
        while not self._stopping.is_set():
            began, when = time.monotonic(), "in"
            # The service of a broker that was killed has the port for a moment longer.
            while (why := self._take_port()) and time.monotonic() - began < limits.flight_port_ms / 1000:
                if self._stopping.wait(_LOOK_S):
                    return
            if not why:
                if not (self._at_once or self._was_up or self._held.wait()):
                    return
                began = time.monotonic()
                why = self._one_life()
                if not (self._at_once or self._was_up):
                    when = "when somebody connects, but not within"
            if self._stopping.is_set():
                return
            if time.monotonic() - began > limits.flight_well_s:
                pause_ms = limits.flight_restart_ms
            log.error("the Flight service %s; it is started again %s %d ms", why, when, pause_ms)
            with self._changed:
                self._attempts += 1
                self._changed.notify_all()
            self._stopping.wait(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, limits.flight_restart_ms_max)

    def _take_port(self) -> str:
        """Listens, unless that is the child's affair. Returns: why that can't be, "" when it is so."""
        if self._library is None:
            return ""
        try:
            self._port = self._held.open()
        except OSError as error:
            self._listens(None, None)
            where = endpoint(*self._held.address)
            return (
                f"can't listen on {where}: {error.strerror} (choose another --flight-port, 0 picks a free one, 'off' goes without;"
                " or stop what uses it)"
            )
        if not self._at_once:
            self._listens(self._port, None)
        return ""

    def _one_life(self) -> str:
        """Of a child, from its start to its end. Returns: why it ended."""
        self._was_up, self._starting = False, True
        code = 0
        try:
            code = self._live()
            why = f"ended with exit code {code}" if code >= 0 else f"was ended by signal {-code}"
        except OSError as error:
            why = f"could not be started: {error.strerror}"
        except (FlintError, ValueError, RuntimeError, MemoryError) as error:  # RuntimeError: no thread can be started
            why = f"could not be started: {error}"
        finally:
            self._starting = False
        if code == EXIT_NOT_ADOPTED and self._library is not None:
            self._library, self._at_once = None, True
            self._listens(None, None)
            self._held.release()
            return "can't take over the broker's listening socket, because LD_PRELOAD has no effect: it binds its port itself from now on"
        lost = self._take_port()  # the child may have shut the listener down
        if lost or self._at_once:
            self._listens(None, None)
        if not lost and self._library is not None and not self._was_up:
            self._held.turn_away()  # those who wait for a child that never came up
        return why

    def _live(self) -> int:
        """From start to end. Returns the exit code."""
        listener = None if self._library is None else (self._held.fileno(), self._library)
        child = Child(self._command_line(), self._config, listener)
        try:
            threading.Thread(target=self._copy_log, args=(child.process,), name="flintmq-flight-log", daemon=True).start()
            self._await_ready(child)
            ended = threading.Event()
            self._serving = [thread for thread in self._serving if thread.is_alive()]
            for number, channel in enumerate(child.channels):
                name = f"flintmq-dataplane-{number}"
                thread = threading.Thread(target=self._serve_channel, args=(channel, ended), name=name, daemon=True)
                self._serving.append(thread)
                thread.start()
            while not ended.wait(0.2) and not self._stopping.is_set():
                pass
        except WireError as error:
            if not self._stopping.is_set():
                log.error("the Flight service: %s", error)
        finally:
            code = child.end()
        return code

    def _await_ready(self, child: Child) -> None:
        """The first frame says the port. A child that ends before it is told by its exit code."""
        first = child.channels[0]
        done = threading.Event()
        guard = threading.Thread(target=self._end_late, args=(child, done), name="flintmq-flight-start", daemon=True)
        guard.start()
        try:
            head, _ = first.receive()
        except ChannelClosed:
            raise WireError("it ended before it listened") from None
        finally:
            done.set()
        port = head.get("port")
        if head.get("call") != "ready" or not is_whole(port, 1, 65_535):
            raise WireError(f"its first frame is not the one that says its port: {str(head)[:200]}")
        if self._library is not None and port != self._port:
            raise WireError(f"it listens at port {port}, not at {self._port}")
        self._port = port  # a later child takes the same one: clients know it
        self._was_up, self._starting = True, False
        self._listens(port, child.process.pid)
        log.info("Arrow Flight on %s (process %d)", endpoint(self._config.host, port), child.process.pid)

    def _end_late(self, child: Child, done: threading.Event) -> None:
        """A child that never says anything, or a broker that stops meanwhile, must not keep us."""
        until = time.monotonic() + 2 * self._config.limits.flight_start_s
        while not done.wait(0.1):
            if self._stopping.is_set() or time.monotonic() > until:
                child.close()
                return

    def _serve_channel(self, channel: Channel, ended: threading.Event) -> None:
        try:
            self._serve(channel)
        finally:
            channel.close()
            ended.set()

    def _listens(self, port: int | None, pid: int | None) -> None:
        with self._changed:
            self._listening, self._pid = port, pid
            if pid is not None:
                self._attempts = 0
            self._changed.notify_all()

    def _command_line(self) -> list[str]:
        if self._command is not None:
            return [*self._command, "--port", str(self._port)]
        config = self._config
        command = [sys.executable, "-m", MODULE, "--host", config.host, "--port", str(self._port), "--store-dir", self._store_dir]
        if config.tls_cert:
            command += ["--tls-cert", config.tls_cert]
            if config.tls_key:
                command += ["--tls-key", config.tls_key]
        return [*command, "--log-level", config.log_level]

    @staticmethod
    def _copy_log(process: subprocess.Popen[bytes]) -> None:
        """The child's lines, each behind `flight: `."""
        stream = process.stderr
        assert stream is not None
        with stream:
            while line := stream.readline(_LINE_MAX):
                text = line.decode("utf-8", "replace").rstrip("\n")
                sys.stderr.write(f"flight: {text}\n")
                sys.stderr.flush()
