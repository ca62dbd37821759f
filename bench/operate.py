"""What running a broker costs beside its messages: the management API, metrics, consoles, idling, the start, backups.

    python -m bench.operate                                  all rows; some six minutes, and a backup of 10 GB
    python -m bench.operate --only queues,metrics --queues 10000
    python -m bench.operate --only backup --messages 200000 --body 10000

| row | what | goal |
|---|---|---|
| start | from the command to the ready line, an empty store, AMQP, HTTP and Flight listen; the median of 5 | 350 ms |
| idle | RSS and processor of all processes of a broker where AMQP, HTTP and Flight listen, nobody connected | 48 MiB, 0.5 % of a core |
| | then what the first call over Flight takes, which starts its service | |
| queues | GET /api/queues?page=1&page_size=100 of `--queues` queues; what five polls a second take of a core | 50 ms |
| metrics | GET /metrics/per-object of as many queues | 300 ms |
| beside | W6b (10,000 messages/s, 256 B) while that page is polled five times a second: its p99 against the quiet one | 1.3 |
| tls | W1b (1 KiB, transient) over TLS against plain; `flintmq perf` speaks TLS by a relay, so both go through one | 50 % |
| consoles | `--consoles` readers of the events (SSE): what they take of a core, and of memory | 10 %, 32 MiB |
| backup | `flintmq backup` of a store with `--messages` messages, while `flintmq perf` goes on: its rate against the rate before | 80 % |

Times are the client's, on the same machine; processor time is the broker's process tree, which other work does not change. Exit code 1: a
goal is missed; 69: the broker can't be had.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import http.client
import importlib
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.brokers import disk_directory
from flintmq.flight.client import DataPlane
from flintmq.perf.process import tree, usage
from tests.support import servers
from tests.support.broker import self_signed_certificate

AUTHORIZATION = "Basic " + base64.b64encode(b"guest:guest").decode()
MIB = 1 << 20
# seconds of a measured rate
SECONDS = 10.0
EX_UNAVAILABLE = 69

Row = tuple[str, float, str, float, bool]  # what, value, unit, goal, whether more is better


@contextlib.contextmanager
def broker(*options: str, directory: Path | None = None) -> Iterator[servers.Server]:
    where = ("--memory",) if directory is None else ("--data-dir", str(directory / "store"))
    with servers.flintmq("--http-port", "0", *where, *options, data_dir=directory) as server:
        yield server


def http_port(server: servers.Server) -> int:
    return int(str(server.ready["http_port"]))


def _http(server: servers.Server) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", http_port(server), timeout=60)


def cpu_s(pid: int) -> float:
    return usage(tree(pid)).cpu_s


def rss_bytes(pid: int) -> int:
    return usage(tree(pid)).rss


def ask(connection: http.client.HTTPConnection, path: str) -> bytes:
    connection.request("GET", path, headers={"Authorization": AUTHORIZATION})
    answer = connection.getresponse()
    body = answer.read()
    if answer.status != 200:
        raise RuntimeError(f"GET {path}: {answer.status} {body[:200]!r}")
    return body


def rate_of(server: servers.Server, seconds: float) -> float:
    """Share of a core that the broker takes in that time."""
    before, start_s = cpu_s(server.pid), time.monotonic()
    time.sleep(seconds)
    return (cpu_s(server.pid) - before) / (time.monotonic() - start_s)


def declare(server: servers.Server, count: int) -> None:
    import pika

    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", server.port)) as connection:
        channel = connection.channel()
        for number in range(count):
            channel.queue_declare(f"queue-{number}")


# --- rows -----------------------------------------------------------------------------------------------------------------------


def start(options: argparse.Namespace) -> Iterator[Row]:
    times = []
    for _ in range(5):
        with tempfile.TemporaryDirectory(dir=disk_directory()) as directory:
            begin_s = time.monotonic()
            with broker("--flight-port", "0", directory=Path(directory)):
                times.append(time.monotonic() - begin_s)
    yield "ready after", statistics.median(times) * 1000, "ms", 350, False


def idle(options: argparse.Namespace) -> Iterator[Row]:
    with tempfile.TemporaryDirectory(dir=disk_directory()) as directory, broker("--flight-port", "0", directory=Path(directory)) as server:
        time.sleep(5)
        processes = len(tree(server.pid))
        yield f"RSS of the tree, {processes} process, Flight listens", rss_bytes(server.pid) / MIB, "MiB", 48, False
        yield "processor", rate_of(server, SECONDS) * 100, "% of a core", 0.5, False
        importlib.import_module("pyarrow.flight")  # the client's own: not the broker's time
        begin_s = time.monotonic()
        with DataPlane("127.0.0.1", int(str(server.ready["flight_port"]))) as plane:
            plane.status()
        yield "the first call over Flight", (time.monotonic() - begin_s) * 1000, "ms", 0, False
        yield f"RSS of the tree after it, {len(tree(server.pid))} processes", rss_bytes(server.pid) / MIB, "MiB", 0, False


def _asked(options: argparse.Namespace, path: str, what: str, goal_ms: float) -> Iterator[Row]:
    with broker("--flight-port", "off") as server, contextlib.closing(_http(server)) as connection:
        declare(server, options.queues)
        first_s = time.monotonic()
        size = len(ask(connection, path))
        yield f"{what}: first", (time.monotonic() - first_s) * 1000, "ms", 0, False
        times = []
        before, begin_s = cpu_s(server.pid), time.monotonic()
        while time.monotonic() - begin_s < SECONDS:
            asked_s = time.monotonic()
            ask(connection, path)
            times.append(time.monotonic() - asked_s)
            time.sleep(max(0.0, 0.2 - times[-1]))
        share = (cpu_s(server.pid) - before) / (time.monotonic() - begin_s)
        yield f"{what}: median, {size} bytes", statistics.median(times) * 1000, "ms", goal_ms, False
        yield f"{what}: slowest of {len(times)}", max(times) * 1000, "ms", 0, False
        yield f"{what}: five a second", share * 100, "% of a core", 0, False


def queues(options: argparse.Namespace) -> Iterator[Row]:
    yield from _asked(options, "/api/queues?page=1&page_size=100", f"first page of {options.queues} queues", 50)


def metrics(options: argparse.Namespace) -> Iterator[Row]:
    yield from _asked(options, "/metrics/per-object", f"metrics of {options.queues} queues", 300)


def _polled(server: servers.Server, over: threading.Event) -> None:
    with contextlib.closing(_http(server)) as connection:
        while not over.wait(0.2):
            ask(connection, "/api/queues?page=1&page_size=100")


def beside(options: argparse.Namespace) -> Iterator[Row]:
    load = ("--size", "256", "--rate", "10000", "--time", str(SECONDS / 2))
    p99s: dict[bool, list[float]] = {False: [], True: []}
    with broker("--flight-port", "off") as server:
        declare(server, options.queues)
        with contextlib.closing(_http(server)) as connection:  # the libraries are there, and the order of names
            ask(connection, "/api/queues?page=1&page_size=100")
        for polls in (False, True) * 3:
            over = threading.Event()
            poller = threading.Thread(target=_polled, args=(server, over), daemon=True)
            if polls:
                poller.start()
            p99s[polls].append(float(_perf(server, *load)["latency_us"]["p99"]))
            over.set()
            if polls:
                poller.join(60)
    quiet, polled = (statistics.median(p99s[polls]) for polls in (False, True))
    yield "W6b quiet, p99", quiet / 1000, "ms", 0, False
    yield f"W6b beside five polls a second of {options.queues} queues, p99", polled / 1000, "ms", 0, False
    yield "W6b: p99 beside polls against quiet", polled / quiet, "times", 1.3, False


@contextlib.contextmanager
def _relay(port: int, *options: str) -> Iterator[int]:
    """The port of a relay (bench.tls_relay) to that port."""
    command = [sys.executable, "-m", "bench.tls_relay", "--port", str(port), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as relay:
        try:
            assert relay.stdout is not None
            yield int(relay.stdout.readline())
        finally:
            relay.terminate()


def tls(options: argparse.Namespace) -> Iterator[Row]:
    load = ("--size", "1024", "--time", str(SECONDS / 3), "--drain-timeout", "20")
    with self_signed_certificate() as (certificate, key):
        secure = ("--tls-port", "0", "--tls-cert", certificate, "--tls-key", key)
        with broker("--flight-port", "off", *secure) as server:
            pid = ("--pid", str(server.pid))
            rates: dict[str, list[float]] = {}
            cpus: dict[str, list[float]] = {}
            with _relay(server.port, "--plain") as plain, _relay(int(str(server.ready["amqps_port"]))) as over_tls:
                for _ in range(3):
                    for name, port in (("direct", server.port), ("plain", plain), ("tls", over_tls)):
                        result = _perf(server, *load, *pid, port=port)
                        rates.setdefault(name, []).append(float(result["end_to_end_rate"]))
                        cpus.setdefault(name, []).append(float(result["broker"]["cpu_s_per_million"]))
    direct, plain_rate, rate = (statistics.median(rates[name]) for name in ("direct", "plain", "tls"))
    yield "W1b without TLS and relay", direct, "messages/s", 0, True
    yield "W1b without TLS, through a relay", plain_rate, "messages/s", 0, True
    yield "W1b over TLS, through a relay", rate, "messages/s", 0, True
    yield "W1b over TLS against plain", 100 * rate / plain_rate, "%", 50, True
    yield (
        "broker's processor for a message, over TLS against plain",
        statistics.median(cpus["tls"]) / statistics.median(cpus["direct"]),
        "times",
        0,
        False,
    )


def consoles(options: argparse.Namespace) -> Iterator[Row]:
    with broker("--flight-port", "off") as server, contextlib.ExitStack() as stack:
        with contextlib.closing(_http(server)) as connection:
            ask(connection, "/api/overview")
        time.sleep(2)
        memory, quiet = rss_bytes(server.pid), rate_of(server, 5)
        head = (
            f"GET /api/v1/events?topics=overview,events,logs HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {AUTHORIZATION}\r\n\r\n".encode()
        )
        readers = []
        for _ in range(options.consoles):
            one = stack.enter_context(socket.create_connection(("127.0.0.1", http_port(server))))
            one.sendall(head)
            if not one.recv(64).startswith(b"HTTP/1.1 200"):
                raise RuntimeError("the events are refused")
            one.setblocking(False)
            readers.append(one)
        begin_s, before, came = time.monotonic(), cpu_s(server.pid), 0
        while time.monotonic() - begin_s < SECONDS:
            time.sleep(0.1)
            for one in readers:
                with contextlib.suppress(BlockingIOError):
                    came += len(one.recv(1 << 20))
        share = (cpu_s(server.pid) - before) / (time.monotonic() - begin_s)
        yield f"{options.consoles} consoles, {came / SECONDS / 1024:.0f} KiB/s", (share - quiet) * 100, "% of a core", 10, False
        yield "memory of them", (rss_bytes(server.pid) - memory) / MIB, "MiB", 32, False


def _perf(server: servers.Server, *arguments: str, port: int = 0) -> dict[str, Any]:
    command = [sys.executable, "-m", "flintmq.cli.main", "perf", "--json", "--port", str(port or server.port), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise RuntimeError(f"flintmq perf failed: {done.stderr[-300:]}") from None
    return found


def backup(options: argparse.Namespace) -> Iterator[Row]:
    base = Path(tempfile.mkdtemp(prefix="operate-", dir=disk_directory()))
    try:
        with broker("--flight-port", "0", directory=base) as server:
            fill = ("--mode", "publish", "--durable", "--persistent", "--confirm", "1000", "--keep", "--prefix", "kept")
            _perf(server, *fill, "--size", str(options.body), "--count", str(options.messages))
            load = ("--durable", "--persistent", "--confirm", "1000", "--size", "1024", "--time", str(SECONDS))
            plain = _perf(server, *load)
            where = f"http://127.0.0.1:{http_port(server)}"
            command = [sys.executable, "-m", "flintmq.cli.main", "backup", str(base / "copy"), "--uri", where, "-q"]
            begin_s = time.monotonic()
            with subprocess.Popen(command, env=os.environ | {"FLINTMQ_PASSWORD": "guest"}, stdout=subprocess.DEVNULL) as copying:
                beside = _perf(server, *load)
                code = copying.wait()
            if code:
                raise RuntimeError(f"flintmq backup ended with {code}")
            size = sum(one.stat().st_size for one in (base / "copy").rglob("*") if one.is_file())
            yield f"backup of {size / MIB:.0f} MiB, with its load", time.monotonic() - begin_s, "s", 0, False
            yield "rate beside the backup", 100 * _rate(beside) / _rate(plain), "% of the rate before", 80, True
    finally:
        shutil.rmtree(base, ignore_errors=True)


def _rate(result: dict[str, Any]) -> float:
    return float(result["publish_rate"])


ROWS: dict[str, Callable[[argparse.Namespace], Iterator[Row]]] = {
    "start": start,
    "idle": idle,
    "queues": queues,
    "metrics": metrics,
    "beside": beside,
    "tls": tls,
    "consoles": consoles,
    "backup": backup,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(ROWS), help="rows, with commas between")
    parser.add_argument("--queues", type=int, default=10_000)
    parser.add_argument("--consoles", type=int, default=200)
    parser.add_argument("--messages", type=int, default=1_000_000, help="of the store that is backed up")
    parser.add_argument("--body", type=int, default=10_000, help="bytes of each")
    parser.add_argument("--json", action="store_true", help="one JSON line for each row")
    options = parser.parse_args()
    unknown = set(options.only.split(",")) - set(ROWS)
    if unknown:
        parser.error(f"unknown rows: {', '.join(sorted(unknown))}")
    missed = 0
    try:
        for name in options.only.split(","):
            for what, value, unit, goal, more in ROWS[name](options):
                good = not goal or (value >= goal if more else value <= goal)
                missed += not good
                if options.json:
                    print(
                        json.dumps({"row": name, "what": what, "value": value, "unit": unit, "goal": goal or None, "ok": good}), flush=True
                    )
                    continue
                target = f"  (goal: {'at least' if more else 'at most'} {goal:g}: {'ok' if good else 'MISSED'})" if goal else ""
                print(f"{name:9} {what}: {value:.1f} {unit}{target}", flush=True)
    except servers.Unavailable as reason:
        print(f"not measured: {reason}", file=sys.stderr)
        return EX_UNAVAILABLE
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
