"""A deep backlog: what it costs in memory and on disk, and how soon it is back after kill -9.

`python -m bench.depth [--count 10000000] [--size 100] [--queues 1] [--peer] [--rounds 1] [--options "..."]`

in: messages of the backlog (persistent, default exchange), how many queues share it. out: one line of JSON for each round: messages a
second in, resident bytes above those of the idle broker before and after it rests, bytes of the store; after kill -9 seconds until the port
answers and until the first delivery, until all are delivered, the peak of resident bytes above idle, messages a second out.

D1  Memory is VmRSS and VmHWM of the broker's process tree; the idle broker's own is measured before the first message.
D2  All messages come back: a missing one ends the run with exit code 1.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from pathlib import Path

from bench.brokers import FLINTMQ, RABBITMQ, Broker
from bench.many_queues import status_kib
from bench.runners import perf
from flintmq.perf import wire
from flintmq.perf.process import tree
from tests.support.servers import Server

PREFIX = "depth"
# seconds that the broker rests after the last publish, before its memory counts
REST_S = 15.0
MIB = 1 << 20


def memory(pid: int, field: str = "VmRSS") -> float:
    """MiB of the process tree: VmRSS now, or VmHWM at its peak."""
    return sum(status_kib(one, field) for one in tree(pid)) / 1024


def disk_mib(directory: Path) -> float:
    """MiB that the files of a directory take."""
    return sum(path.stat().st_blocks * 512 for path in directory.rglob("*") if path.is_file()) / MIB


def first_delivery(port: int, queue: str, limit_s: float = 120.0) -> tuple[float, float]:
    """Seconds from now until the port answers, and until a basic.get brings a message of `queue`. Raises: TimeoutError."""
    start = time.monotonic()
    answered = 0.0
    while time.monotonic() - start < limit_s:
        try:
            client = wire.Client("127.0.0.1", port, "guest", "guest", "/")
        except (OSError, wire.BrokerError):
            time.sleep(0.002)
            continue
        try:
            answered = answered or time.monotonic() - start
            # Without an answer to it the message goes back to its place.
            client.send(wire.method(1, wire.BASIC_GET, b"\x00\x00" + wire.shortstr(queue) + b"\x00"))
            client.wait_for(wire.BASIC_GET_OK)
            return answered, time.monotonic() - start
        finally:
            client.close()
    raise TimeoutError(f"no message of {queue} in {limit_s:.0f} s")


def flow(server: Server, mode: str, options: argparse.Namespace, *more: str) -> float:
    """Publishes or consumes all of it. Returns messages a second. Raises: RuntimeError."""
    size, count, queues = str(options.size), str(options.count), str(options.queues)
    common = ("--durable", "--persistent", "--keep", "--prefix", PREFIX, "--max-time", "1800", "--drain-timeout", "60")
    arguments = ["--mode", mode, *common, "--size", size, "--count", count, "--queues", queues, *more]
    result = perf(server, arguments, 1900.0)
    if not result.get("ok"):
        raise RuntimeError(f"{mode}: {result.get('error') or result}")
    return float(result["publish_rate" if mode == "publish" else "receive_rate"])


def one_round(name: str, options: argparse.Namespace) -> dict[str, object]:
    """See module. Raises: RuntimeError, TimeoutError."""
    broker = Broker(name, options=tuple(options.options.split()))
    try:
        server = broker.server(fresh=True, durable=True)
        time.sleep(1.0)
        idle = memory(server.pid)
        row: dict[str, object] = {"broker": name, "count": options.count, "size": options.size, "queues": options.queues, "idle_mib": idle}
        row["in_per_s"] = flow(server, "publish", options)
        row["rss_at_end_mib"] = memory(server.pid) - idle
        row["peak_mib"] = memory(server.pid, "VmHWM") - idle
        time.sleep(REST_S)
        row["rss_mib"] = memory(server.pid) - idle
        row["disk_mib"] = disk_mib(broker.store)
        if not options.only_in:
            row |= recovery(broker, options, idle)
        return row
    finally:
        broker.stop()


def recovery(broker: Broker, options: argparse.Namespace, idle: float) -> dict[str, object]:
    """kill -9, a start, and the drain."""
    port = broker.server(durable=True).port
    broker.kill()
    row: dict[str, object] = {}
    found: list[tuple[float, float]] = []
    before, thread = broker.restart()
    waiting = threading.Thread(target=lambda: found.append(first_delivery(port, f"{PREFIX}.q00000")))
    waiting.start()
    thread.join()
    waiting.join()
    if not found:
        raise RuntimeError("no message came back")
    row["ready_s"], row["first_s"] = found[0]
    server = broker.server(durable=True)
    row["start_peak_mib"] = memory(server.pid, "VmHWM") - idle
    row["out_per_s"] = flow(server, "consume", options, "--ack", "1000", "--prefetch", "5000")
    row["all_s"] = (time.monotonic_ns() - before) / 1e9
    row["drain_peak_mib"] = memory(server.pid, "VmHWM") - idle
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000_000)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--queues", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--peer", action="store_true", help="RabbitMQ after each round of FlintMQ")
    parser.add_argument("--only-in", action="store_true", help="no kill and no drain")
    parser.add_argument("--options", default="", help="more options of flintmq serve")
    options = parser.parse_args()
    for _ in range(options.rounds):
        for name in (FLINTMQ, RABBITMQ) if options.peer else (FLINTMQ,):
            row = one_round(name, options)
            print(json.dumps({key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()}), flush=True)
    return 0


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
