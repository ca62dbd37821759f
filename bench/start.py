"""`make bench-start`: what a start costs until the ready line and the first AMQP answer, what an idle broker holds, what a command costs.

in: options. out: one line per row with the best and the middle of all runs; CPU is that of the process and its children, RSS that of the
process a second after the ready line. Each start has a fresh store and HTTP on. Bytecode is there: pip compiles it, `make build` does.

    python -m bench.start [--runs 20] [--command PATH]

--command: the `flintmq` of another installation, such as one made from a wheel.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HEADER = b"AMQP\x00\x00\x09\x01"
VERBS = (("status",), ("list_queues", "name", "messages"))


def _cpu_ms(pid: int) -> float:
    """Of all threads that live: the clock of the scheduler, which counts nanoseconds."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e6


def _rss_mib(pid: int) -> float:
    (line,) = [one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if one.startswith("VmRSS:")]
    return int(line.split()[1]) / 1024


@contextmanager
def _started(command: str) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, Any], float]]:
    """A broker with a fresh store, its ready line, and seconds until that."""
    with tempfile.TemporaryDirectory() as folder:
        words = [command, "serve", "--port", "0", "--http-port", "0", "--flight-port", "0", "--data-dir", folder]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        began = time.perf_counter()
        broker = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)
        try:
            assert broker.stdout is not None
            line = broker.stdout.readline()
            if not line:
                raise SystemExit(f"{command} serve ended with {broker.wait()}: try it by hand")
            yield broker, json.loads(line), time.perf_counter() - began
        finally:
            broker.terminate()
            broker.wait(60)


def _start(command: str) -> dict[str, float]:
    with _started(command) as (broker, ready, wall_s):
        cpu_ms = _cpu_ms(broker.pid)
        began = time.perf_counter()
        with socket.create_connection(("127.0.0.1", ready["amqp_port"])) as client:
            client.sendall(HEADER)
            assert client.recv(1) == b"\x01"  # connection.start
        header_ms = (time.perf_counter() - began) * 1000
        time.sleep(1)
        return {
            "ready line: CPU, ms": cpu_ms,
            "ready line: wall, ms": wall_s * 1000,
            "first AMQP header answered: wall, ms": wall_s * 1000 + header_ms,
            "idle, HTTP listening: RSS, MiB": _rss_mib(broker.pid),
        }


def _verbs(command: str, runs: int) -> Iterator[dict[str, float]]:
    with _started(command) as (_, ready, _):
        for _ in range(runs):
            row = {}
            for verb in VERBS:
                before = os.times()
                words = [command, "ctl", "--uri", f"http://127.0.0.1:{ready['http_port']}", *verb]
                subprocess.run(words, stdout=subprocess.DEVNULL, check=True)
                after = os.times()
                spent = after.children_user + after.children_system - before.children_user - before.children_system
                row[f"ctl {verb[0]}: CPU, ms"] = spent * 1000
            yield row


def main() -> int:
    """See module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=20, help="starts, and calls of each command (default 20)")
    parser.add_argument("--command", default=str(Path(sys.executable).with_name("flintmq")), help="another installation's flintmq")
    options = parser.parse_args()
    rows: dict[str, list[float]] = {}
    _start(options.command)  # fills the page cache
    for row in (*(_start(options.command) for _ in range(options.runs)), *_verbs(options.command, options.runs)):
        for name, value in row.items():
            rows.setdefault(name, []).append(value)
    for name, values in rows.items():
        print(f"{name:40} best {min(values):7.1f}  median {statistics.median(values):7.1f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
