"""Brokers that a campaign starts, kills and starts again on the same data: FlintMQ as a child process, RabbitMQ, the fake one.

in: a data directory, environment and arguments. out: a port per life; how long the start took; how the process ended.
Invariants: only processes started here are signalled; a life ends before the next begins.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol
from unittest import mock

from tests.support import servers
from tools.faults.broken import FakeBroker

START_S_MAX = 60.0
STOP_S_MAX = 60.0
HUNG = 124


class DidNotStart(Exception):
    """The process ended, or stayed silent, before its ready line. `code`: exit status, negative for a signal."""

    def __init__(self, text: str, code: int | None) -> None:
        super().__init__(text)
        self.code = code


class Target(Protocol):
    """A broker with lives. `ends_itself`: a failpoint can make it."""

    start_s: float

    def start(self, env: Mapping[str, str] = {}) -> int:
        """Begins a life; the port it listens on."""

    def kill(self) -> None:
        """Ends it at once, without a word."""

    def stop(self) -> int:
        """Asks it to end; its exit status, HUNG when it had to be killed after STOP_S_MAX."""

    def wait(self, seconds: float) -> bool:
        """Whether it ended by itself within so long."""

    def code(self) -> int | None:
        """Exit status of the life that ended, negative for a signal; None while it runs, or unknown."""

    def stderr(self) -> str:
        """What this life wrote to stderr; empty when unknown."""

    def complaints(self) -> str:
        """What this life itself called wrong with its store, or a traceback; empty is good."""


class Flint:
    """`flintmq serve` on a data directory (None: `--memory`). `command`: what runs it, to put a tracer in front."""

    def __init__(self, data_dir: Path | None, extra: Sequence[str] = (), env: Mapping[str, str] = {}, command: Sequence[str] = ()) -> None:
        self.data_dir, self.extra, self.env, self.command = data_dir, list(extra), dict(env), list(command)
        self.start_s = 0.0
        self.process: subprocess.Popen[bytes] | None = None
        self.ready: dict[str, Any] = {}
        self.of_life: Sequence[str] = ()  # arguments of the next start, and of those behind it
        self._errors = -1

    def start(self, env: Mapping[str, str] = {}) -> int:
        assert self.process is None or self.process.poll() is not None
        where = ["--memory"] if self.data_dir is None else ["--data-dir", str(self.data_dir)]
        command = [*self.command, sys.executable, "-m", "flintmq.cli.main", "serve", "--port", "0", "--http-port", "off"]
        command += ["--flight-port", "off", *where, *self.extra, *self.of_life]
        begun = time.monotonic()
        self.close()
        errors = os.memfd_create("stderr")
        try:
            process = self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, env={**os.environ, **self.env, **env}
            )
        except BaseException:
            os.close(errors)
            raise
        self._errors = errors
        assert process.stdout is not None
        line = b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([process.stdout], [], [], max(0.0, begun + START_S_MAX - time.monotonic()))
            part = os.read(process.stdout.fileno(), 65536) if ready else b""
            if not part:
                if not ready:
                    process.kill()
                code = process.wait()
                process.stdout.close()
                text = f"no ready line within {START_S_MAX} s" if not ready else f"ended with {code} before its ready line"
                raise DidNotStart(f"{text}; stderr ends:\n{self.stderr()[-2000:]}", code)
            line += part
        self.start_s = time.monotonic() - begun
        self.ready = json.loads(line)
        return int(self.ready["amqp_port"])

    @property
    def pid(self) -> int:
        """Of the running process (the tracer's, when there is one)."""
        assert self.process is not None
        return self.process.pid

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self._wait(None)

    def stop(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        try:
            return self._wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            return HUNG

    def wait(self, seconds: float) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._wait(seconds)
            return True
        return False

    def _wait(self, seconds: float | None) -> int:
        assert self.process is not None and self.process.stdout is not None
        code = self.process.wait(seconds)
        self.process.stdout.close()
        return code

    def code(self) -> int | None:
        return None if self.process is None else self.process.poll()

    def stderr(self) -> str:
        return os.pread(self._errors, 1 << 20, 0).decode("utf-8", "replace")

    def complaints(self) -> str:
        """What this life itself called wrong with its store, or a traceback; empty is good."""
        said = self.stderr()
        for sign in ("Traceback (most recent call last)", "[ERROR] flintmq.store", "[CRITICAL]"):
            if sign in said:
                at = said.index(sign)
                return f"{said.count(sign)} times: {said[max(0, at - 30) : at + 2000]}"
        return ""

    def rss(self) -> int:
        """Resident bytes of the process now."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise ValueError("no VmRSS line")

    def close(self) -> None:
        """Closes what is left of the last life; it has ended. Idempotent."""
        if self._errors >= 0:
            os.close(self._errors)
            self._errors = -1
        if self.process is not None and self.process.stdout is not None:
            self.process.stdout.close()


class Rabbit:
    """RabbitMQ on a data directory of its own; its node name holds its port, so the ports stay the same in all lives."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir, self.start_s = data_dir, 0.0
        self.ports = servers.free_ports(3)
        self.stack: contextlib.ExitStack | None = None
        self.pid = 0

    def start(self, env: Mapping[str, str] = {}) -> int:
        begun = time.monotonic()
        self.stack = contextlib.ExitStack()
        with mock.patch.object(servers, "free_ports", lambda count: self.ports[:count]):
            server = self.stack.enter_context(servers.rabbitmq(data_dir=self.data_dir))
        self.pid, self.start_s = server.pid, time.monotonic() - begun
        return server.port

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        assert self.stack is not None
        self.stack.close()

    def stop(self) -> int:
        assert self.stack is not None
        self.stack.close()
        return 0

    def wait(self, seconds: float) -> bool:
        time.sleep(seconds)
        return False

    def code(self) -> int | None:
        return None

    def stderr(self) -> str:
        return ""

    def complaints(self) -> str:
        return ""


class Fake:
    """The broker of tools.faults.broken in this process."""

    def __init__(self, broker: FakeBroker) -> None:
        self.broker, self.start_s = broker, 0.0

    def start(self, env: Mapping[str, str] = {}) -> int:
        return self.broker.start()

    def kill(self) -> None:
        self.broker.crash()

    def stop(self) -> int:
        self.broker.crash()
        return 0

    def wait(self, seconds: float) -> bool:
        time.sleep(seconds)
        return False

    def code(self) -> int | None:
        return None

    def stderr(self) -> str:
        return ""

    def complaints(self) -> str:
        return ""
