"""How fast a shovel moves: a queue full of messages, a shovel with confirms to a second broker, until the second one has them all.

python -m bench.shovel [--messages N] [--size BYTES] [--durable] [--rounds N] [--rabbitmq source|destination]

in: two brokers that are started here, on this machine, with the process that moves messages beside them. out: messages a second, and the
CPU seconds per million messages of the process and of the two brokers. The queues are filled before the clock begins.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench.brokers import disk_directory
from flintmq.perf import wire
from tests.support import servers

_BATCH = 500
# seconds that all messages of a round may take
ROUND_S_MAX = 300.0


class Api:
    """The management of the broker that runs the shovel."""

    def __init__(self, port: int) -> None:
        self._port = port

    def ask(self, method: str, path: str, value: Any = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        login = {"Authorization": "Basic " + base64.b64encode(b"guest:guest").decode(), "Content-Type": "application/json"}
        try:
            connection.request(method, f"/api/{path}", None if value is None else json.dumps(value), login)
            raw = connection.getresponse().read()
        finally:
            connection.close()
        return json.loads(raw) if raw else None


def fill(client: wire.Client, queue: str, count: int, size: int, durable: bool) -> None:
    """`count` messages, there when this returns."""
    client.declare_queue(queue, durable=True)
    one = wire.publish_method("", queue) + wire.content(b"x" * size, frame_max=client.frame_max, persistent=durable)
    left = count
    while left:
        now = min(left, _BATCH)
        client.send(one * now)
        left -= now
    wait_for(client, queue, count)


def wait_for(client: wire.Client, queue: str, count: int) -> None:
    end = time.monotonic() + ROUND_S_MAX
    while client.declare_queue(queue, durable=True, passive=True) < count:
        if time.monotonic() > end:
            raise SystemExit(f"{queue} has not {count} messages after {ROUND_S_MAX:.0f} s")
        time.sleep(0.005)


def cpu_s(pids: list[int]) -> list[float]:
    """User and system time of processes."""
    tick = os.sysconf("SC_CLK_TCK")
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return [(int(one[11]) + int(one[12])) / tick for one in fields]


def child_of(pid: int) -> int:
    """The process that moves messages."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"flintmq.shovel" in entry.read_bytes() and int((entry.parent / "stat").read_text().rpartition(")")[2].split()[1]) == pid:
                return int(entry.parent.name)
        except OSError:
            continue
    raise SystemExit("no process moves messages")


@contextmanager
def brokers(options: argparse.Namespace) -> Iterator[tuple[servers.Server, servers.Server, Api, bool]]:
    """(source, destination, API of the FlintMQ that runs the shovel, whether that is the source)."""
    with ExitStack() as stack:

        def flintmq() -> servers.Server:
            where = ["--memory"]
            if options.durable:
                where = ["--data-dir", stack.enter_context(tempfile.TemporaryDirectory(dir=disk_directory()))]
            return stack.enter_context(servers.flintmq("--http-port", "0", "--flight-port", "off", *where))

        ours = flintmq()
        other = stack.enter_context(servers.rabbitmq()) if options.rabbitmq else flintmq()
        source, destination = (other, ours) if options.rabbitmq == "source" else (ours, other)
        yield source, destination, Api(int(str(ours.ready["http_port"]))), source is ours


def one_round(options: argparse.Namespace, number: int, parts: tuple[servers.Server, servers.Server, Api, bool]) -> None:
    source, destination, api, is_source = parts
    clients = [wire.Client("127.0.0.1", server.port, "guest", "guest", "/") for server in (source, destination)]
    fill(clients[0], f"from{number}", options.messages, options.size, options.durable)
    clients[1].declare_queue(f"to{number}", durable=True)
    far = f"amqp://guest:guest@127.0.0.1:{(destination if is_source else source).port}/%2F"
    value = {
        "src-uri": "amqp://" if is_source else far,
        "src-queue": f"from{number}",
        "dest-uri": far if is_source else "amqp://",
        "dest-queue": f"to{number}",
        "src-prefetch-count": options.prefetch,
    }
    began = time.monotonic()
    api.ask("PUT", "parameters/shovel/%2F/bench", {"value": value})
    while (there := clients[1].declare_queue(f"to{number}", durable=True, passive=True)) == 0:
        time.sleep(0.002)
    pids = [child_of((source if is_source else destination).pid), source.pid, destination.pid]
    first, cpu = time.monotonic(), cpu_s(pids)
    wait_for(clients[1], f"to{number}", options.messages)
    last = time.monotonic()
    moved = options.messages - there
    used = [(after - before) / moved * 1e6 for before, after in zip(cpu, cpu_s(pids), strict=True)]
    api.ask("DELETE", "parameters/shovel/%2F/bench")
    for client, queue in zip(clients, (f"from{number}", f"to{number}"), strict=True):
        client.delete_queue(queue)
        client.close()
    print(
        f"{moved / (last - first):,.0f} messages/s (begun {first - began:.2f} s after it was set); CPU s per million: "
        f"shovel {used[0]:.2f}, source {used[1]:.2f}, destination {used[2]:.2f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=100, help="bytes of a body")
    parser.add_argument("--prefetch", type=int, default=5_000)
    parser.add_argument("--durable", action="store_true", help="persistent messages on the disk, on both sides")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rabbitmq", choices=("source", "destination"), help="the other broker is Debian's RabbitMQ")
    options = parser.parse_args()
    with brokers(options) as parts:
        for number in range(options.rounds):
            one_round(options, number, parts)


if __name__ == "__main__":
    main()
