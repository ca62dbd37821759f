"""A broker of our own as a child process, for jobs that need one and were not told where one runs.

In: a log file. Out: where it listens. Invariant: the child ends with the block that started it.
"""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from examples.flights.dataset import EXIT_UNAVAILABLE
from flintmq.errors import OperatorError

START_S_MAX = 30.0
STOP_S_MAX = 15.0
ARGUMENTS = ("serve", "--port", "0", "--http-port", "off", "--flight-port", "0", "--data-dir")


@dataclass(frozen=True)
class Place:
    """Where a broker is. url: AMQP URL; flight_port: of its data plane on the same host, None: it has none; own: we started it."""

    url: str
    flight_port: int | None
    own: bool = False


@contextlib.contextmanager
def local_broker(log: Path) -> Iterator[Place]:
    """Runs `flintmq serve` on free ports, on a durable store of its own that goes with it. Its log goes to `log`.

    Raises: OperatorError (69) when it does not come up within START_S_MAX seconds.
    """
    with open(log, "wb") as stderr, tempfile.TemporaryDirectory(prefix="broker-", dir=log.parent) as store:
        process = subprocess.Popen(
            [sys.executable, "-m", "flintmq.cli.main", *ARGUMENTS, store],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
        )
        try:
            port, flight_port = _ports(process, log)
            yield Place(f"amqp://guest:guest@127.0.0.1:{port}/%2F", flight_port, own=True)
        finally:
            process.terminate()
            try:
                process.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _ports(process: subprocess.Popen[bytes], log: Path) -> tuple[int, int | None]:
    lines: queue.Queue[bytes] = queue.Queue()
    assert process.stdout is not None
    # A thread, because a pipe has no read with a timeout. It also keeps the pipe empty afterwards.
    threading.Thread(target=_pump, args=(process.stdout, lines), daemon=True).start()
    try:
        line = lines.get(timeout=START_S_MAX)
    except queue.Empty:
        raise OperatorError(f"the broker did not come up within {START_S_MAX:.0f} s; see {log}", EXIT_UNAVAILABLE) from None
    try:
        ready = json.loads(line)
        return int(ready["amqp_port"]), None if ready["flight_port"] is None else int(ready["flight_port"])
    except (ValueError, KeyError, TypeError):
        raise OperatorError(f"the broker did not start{_last_line(log)}; see {log}", EXIT_UNAVAILABLE) from None


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return f": {lines[-1]}" if lines else ""


def _pump(stream: object, lines: queue.Queue[bytes]) -> None:
    for line in stream:  # type: ignore[attr-defined]
        lines.put(line)
    lines.put(b"")
