"""A program on a machine of the campaign (shared_net.py).

in: a command. out: a process that is killed, stopped and started again; its log.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

from tools.faults.clock_shim import ClockShim
from tools.faults.shared_net import Machine

STOP_S_MAX = 120.0


class Process:
    """A program on a machine. clock: of a broker, which may jump."""

    def __init__(self, name: str, machine: Machine, command: list[str], folder: Path, clock: ClockShim | None = None) -> None:
        self.name = name
        self.machine = machine
        self.clock = clock
        self.log = folder / f"{name}.log"
        self._command = command
        self.process: subprocess.Popen[bytes] | None = None
        self._began = 0
        self.start()

    def start(self) -> None:
        self._began = self.log.stat().st_size if self.log.exists() else 0
        self.process = self.machine.start(self._command, self.log, {} if self.clock is None else self.clock.env)

    def said(self, text: bytes) -> bool:
        """Whether its log has this since its last start."""
        return self.log.exists() and text in self.log.read_bytes()[self._began :]

    def stop(self) -> None:
        """SIGTERM, and the end of the process."""
        self.send(signal.SIGTERM)
        if self.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_S_MAX)
        self.kill()

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def send(self, number: int) -> None:
        if self.runs:
            assert self.process is not None
            os.killpg(self.process.pid, number)

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        if self.process is not None:
            self.process.wait()
