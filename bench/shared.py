"""One queue on several nodes: the three ways to dequeue on each engine against the number of clients, and three brokers beside RabbitMQ's
quorum queue on three nodes, by the same client.

    python -m bench.shared [--messages N] [--clients 1,4,16] [--size BYTES] [--only engines|brokers] [--svg FILE]

in: nothing. out: one line of JSON for each measurement; a chart of messages taken a second against clients. FlintMQ and RabbitMQ alternate.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pika

from bench.shared_svg import chart
from flintmq.config import Limits
from flintmq.kv.etcd_engine import EtcdEngine
from flintmq.kv.sqlite_engine import SqliteEngine
from flintmq.shared.measure import WAYS, measure
from tests.support.etcd import etcd_cluster
from tests.support.rabbitmq_cluster import rabbitmq_cluster
from tests.support.servers import Unavailable, flintmq

QUEUE = "bench-shared"
_PREFETCH, _PUBLISHERS = 200, 15
_QUIET_S = 120.0
Figure = dict[str, Any]


def tell(figure: Figure) -> Figure:
    print(json.dumps({**figure, "load": round(os.getloadavg()[0], 1)}), flush=True)
    return figure


def engines(options: argparse.Namespace, clients: Sequence[int]) -> Iterator[Figure]:
    """The queue's algorithm alone: threads, each a node of its own, empty a queue that is full."""
    limits = Limits()
    with tempfile.TemporaryDirectory(prefix="flintmq-bench-") as place, etcd_cluster(3) as cluster:
        for name, engine in (
            ("embedded", SqliteEngine(Path(place) / "shared.db", limits)),
            ("etcd, 3 members", EtcdEngine(cluster.endpoints, limits)),
        ):
            for way in WAYS:
                for count in clients:
                    messages = options.messages if way == "batched" else max(20, options.messages // 10)
                    found = measure(engine, limits, way, messages, count, options.size)
                    yield tell({"line": f"{name}: {way}", "clients": count, "rate": found["dequeued_per_s"], **found})
            engine.close()


@contextlib.contextmanager
def three_brokers() -> Iterator[list[int]]:
    """Ports of three FlintMQ brokers on three members of etcd."""
    with etcd_cluster(3) as cluster, contextlib.ExitStack() as stack:
        engine = "etcd://" + ",".join(one.removeprefix("http://") for one in cluster.endpoints)
        ports = []
        for _ in range(3):
            place = stack.enter_context(tempfile.TemporaryDirectory(prefix="flintmq-bench-"))
            options = ["--http-port", "off", "--flight-port", "off", "--data-dir", place, "--shared-engine", engine]
            ports.append(stack.enter_context(flintmq(*options)).port)
        yield ports


class Load:
    """One queue that is filled with confirms and emptied with acks, by `count` clients over all brokers."""

    def __init__(self, ports: Sequence[int], arguments: dict[str, Any], messages: int, size: int) -> None:
        self.ports = ports
        self.arguments = arguments
        self.messages = messages
        self.body = bytes(size)
        self.taken = 0
        self.errors: list[BaseException] = []
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def channel(self, number: int) -> Iterator[Any]:
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.ports[number % len(self.ports)], heartbeat=0))
        try:
            yield connection.channel()
        finally:
            with contextlib.suppress(pika.exceptions.AMQPError, OSError):
                connection.close()

    def run(self, count: int) -> tuple[float, float]:
        """(messages confirmed a second by _PUBLISHERS that wait for each confirm, messages taken and acked a second by `count` clients)."""
        with self.channel(0) as channel:
            channel.queue_declare(QUEUE, durable=True, arguments=self.arguments)
        time.sleep(2)  # until the other nodes have it
        share = max(1, self.messages // _PUBLISHERS)
        self.taken, self.messages = 0, share * _PUBLISHERS
        filled_s = self._all(_PUBLISHERS, lambda number: self._publish(number, share))
        taken_s = self._all(count, self._take)
        with self.channel(0) as channel:
            channel.queue_delete(QUEUE)
        return self.messages / filled_s, self.messages / taken_s

    def _all(self, count: int, body: Any) -> float:
        def run(number: int) -> None:
            try:
                body(number)
            except BaseException as error:
                self.errors.append(error)

        began = time.monotonic()
        threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.errors:
            raise self.errors[0]
        return time.monotonic() - began

    def _publish(self, number: int, share: int) -> None:
        """Each publish waits for its confirm."""
        with self.channel(number) as channel:
            channel.confirm_delivery()
            properties = pika.BasicProperties(delivery_mode=2)
            for _ in range(share):
                channel.basic_publish("", QUEUE, self.body, properties)

    def _take(self, number: int) -> None:
        with self.channel(number) as channel:
            channel.basic_qos(prefetch_count=_PREFETCH)
            until = time.monotonic() + _QUIET_S
            for method, _, _ in channel.consume(QUEUE, inactivity_timeout=0.2):
                if method is not None:
                    channel.basic_ack(method.delivery_tag)
                    until = time.monotonic() + _QUIET_S
                    with self._lock:
                        self.taken += 1
                if self.taken >= self.messages or time.monotonic() > until:
                    break
            channel.cancel()


def brokers(options: argparse.Namespace, clients: Sequence[int]) -> Iterator[Figure]:
    """Three brokers on three members of etcd, and RabbitMQ's three nodes, in turn, by the same client."""
    with three_brokers() as ours, rabbitmq_cluster(3) as theirs:
        for count in clients:
            for name, ports, kind in (("FlintMQ, 3 brokers on etcd", ours, "shared"), ("RabbitMQ, quorum queue of 3", theirs, "quorum")):
                filled, taken = Load(ports, {"x-queue-type": kind}, options.messages, options.size).run(count)
                yield tell({"line": name, "clients": count, "rate": round(taken), "confirmed_per_s": round(filled), "bytes": options.size})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=5_000)
    parser.add_argument("--clients", default="1,4,16,64")
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--only", choices=("engines", "brokers"))
    parser.add_argument("--svg", type=Path)
    options = parser.parse_args()
    clients = [int(part) for part in options.clients.split(",")]
    figures: list[Figure] = []
    try:
        if options.only != "brokers":
            figures += engines(options, clients)
        if options.only != "engines":
            figures += brokers(options, clients)
    except Unavailable as error:
        print(error, file=sys.stderr)
        return 69
    finally:
        if options.svg is not None and figures:
            options.svg.write_text(chart(figures, _commit()))
    return 0


def _commit() -> str:
    done = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return f"{time.strftime('%Y-%m-%d')}, {done.stdout.strip() or 'no commit'}, load {os.getloadavg()[0]:.0f}, {os.cpu_count()} cores"


if __name__ == "__main__":
    sys.exit(main())
