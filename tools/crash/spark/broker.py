"""The broker under test, kept up: whoever kills it, it is started again on its ports with its store.

in: a directory. out: ports, pid; `unexpected`: ends other than by SIGKILL.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

START_S_MAX = 60.0
PAUSE_S_MAX = 1.0  # a broker is away for up to so long


class Broker:
    """See module. Threading: `start`, `stop` from one thread; a watcher of its own restarts it."""

    def __init__(self, directory: Path, seed: int, extra: tuple[str, ...] = ()) -> None:
        self.directory = directory
        self.port = self.flight_port = 0
        self.pid = 0
        self.starts = 0
        self.unexpected: list[str] = []
        self.armed = ""  # FLINTMQ_FAILPOINT of the next start
        self._extra = extra
        self._random = random.Random(seed)
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._up = threading.Event()
        self._watcher: threading.Thread | None = None

    @property
    def up(self) -> bool:
        return self._up.is_set()

    def start(self) -> None:
        """Raises: RuntimeError when it does not come up."""
        self._launch()
        self._watcher = threading.Thread(target=self._watch, name="broker-watcher", daemon=True)
        self._watcher.start()

    def _launch(self) -> None:
        command = [sys.executable, "-m", "flintmq.cli.main", "serve", "--data-dir", str(self.directory / "broker"), "--http-port", "off"]
        command += ["--port", str(self.port), "--flight-port", str(self.flight_port), *self._extra]
        environment = dict(os.environ)
        environment.pop("FLINTMQ_FAILPOINT", None)
        if self.armed:
            environment["FLINTMQ_FAILPOINT"], self.armed = self.armed, ""
        with (self.directory / "broker.log").open("ab") as log:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=environment)
        self._process, self.pid = process, process.pid
        self.starts += 1
        watchdog = threading.Timer(START_S_MAX, process.kill)
        watchdog.start()
        assert process.stdout is not None
        line = process.stdout.readline()
        watchdog.cancel()
        try:
            ready: dict[str, Any] = json.loads(line)
            self.port, self.flight_port = int(ready["amqp_port"]), int(ready["flight_port"])
        except (ValueError, KeyError, TypeError):
            if process.poll() == -signal.SIGKILL or environment.get("FLINTMQ_FAILPOINT"):
                return  # killed while it started: the watcher starts it again
            raise RuntimeError(f"the broker printed {line!r} instead of its ready line: see {self.directory}/broker.log") from None
        self._up.set()

    def _watch(self) -> None:
        while True:
            assert self._process is not None
            code = self._process.wait()
            self._up.clear()
            if self._process.stdout is not None:
                self._process.stdout.close()
            if self._stopping.is_set():
                return
            if code != -signal.SIGKILL:
                self.unexpected.append(f"the broker ended with {code}")
                if len(self.unexpected) > 3:
                    return
            time.sleep(self._random.uniform(0, PAUSE_S_MAX))
            try:
                self._launch()
            except RuntimeError as e:
                self.unexpected.append(str(e))
                return

    def kill(self) -> None:
        """SIGKILL; the watcher starts it again."""
        if self._process is not None:
            self._process.kill()

    def stop(self) -> None:
        """SIGTERM; exit code 0 is expected."""
        self._stopping.set()
        process = self._process
        if process is None:
            return
        process.terminate()
        try:
            code = process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        if code != 0:
            self.unexpected.append(f"the broker ended with {code} after SIGTERM")
