"""Spark drivers as child processes: one that works, one in reserve with a warm session, so that a killed driver costs no JVM start.

in: the job of driver.py. out: events (lines of JSON), the pid of the JVM. Only sessions of processes started here are ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tools.crash.spark import processes

READY_S_MAX = 240.0
STOP_S_MAX = 60.0


class Driver:
    """One driver process. Args: job; log: file for its stderr."""

    def __init__(self, job: dict[str, Any], log: Path) -> None:
        self.jvm = 0
        self.ids: dict[str, str] = {}
        self.starts = 0
        self.ends: list[dict[str, Any]] = []
        self._events = log.with_name("events.jsonl")
        self._ready = threading.Event()
        self._stopped = threading.Event()
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tools.crash.spark.driver", json.dumps(job)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, start_new_session=True, env=_environment(),
            )  # fmt: skip
        self.session = self._process.pid
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            with self._events.open("a") as file:
                file.write(line.decode())
            kind = event.pop("event", "")
            if kind == "ready":
                self.jvm = event["jvm"]
                self._ready.set()
            elif kind == "started":
                self.ids[event["query"]] = event["id"]
                self.starts += 1
            elif kind == "ended":
                self.ends.append(event)
            elif kind == "stopped":
                self._stopped.set()
        self._ready.set()
        self._stopped.set()

    @property
    def alive(self) -> bool:
        """Whether its JVM lives."""
        return self.jvm > 0 and processes.facts(self.jvm) is not None and self._process.poll() is None

    @property
    def ready(self) -> bool:
        """Whether its session is up."""
        return self._ready.is_set() and self.alive

    def go(self) -> None:
        """Starts its queries. Raises: RuntimeError when its session never came up."""
        if not self._ready.wait(READY_S_MAX) or not self.alive:
            raise RuntimeError("a Spark driver did not come up: see driver.log")
        self.tell("go")

    def tell(self, word: str) -> None:
        """A line for the driver: see driver.py."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(f"{word}\n".encode())
            self._process.stdin.flush()

    def stop(self) -> None:
        """A clean stop of its queries."""
        self.tell("stop")
        self._stopped.wait(STOP_S_MAX)

    def bury(self) -> None:
        """The launcher of a JVM that was killed. Python processes that were left behind stay."""
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        """It and whatever is left of its session is killed."""
        self._process.kill()
        self._process.wait()
        for _ in range(3):
            processes.end_session(self.session)
            time.sleep(0.05)
        self._thread.join(5)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def _environment() -> dict[str, str]:
    root = str(Path(__file__).resolve().parents[3])
    return {**os.environ, "PYTHONPATH": os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])]), "PYTHONFAULTHANDLER": ""}
