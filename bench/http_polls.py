"""Held polls: 2,000 pulls that wait, one message at a time, and how long it takes from the message to the answer.

    python -m bench.http_polls                     pull layer and HTTP; about half a minute
    python -m bench.http_polls --only layer        the pull layer alone: publish -> answer, inside one process
    python -m bench.http_polls --polls 2000 --messages 2000 --json

Layer: a broker's queues, actor system and pull service in this process; measured from before the message is put on its queue to the answer
of the pull (its own time stamp, and the moment the waiting thread has it). HTTP: `flintmq serve` as a child with as many held GETs, each on
a connection of its own; measured from before an AMQP publish to the last byte of the response. The broker idles otherwise.

Goal: p99 below 5 ms at the pull layer, every poll answered exactly once. Exit code 1 when it is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import resource
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results" / "http_polls.json"
GOAL_MS = 5.0
QUEUES = 20
# between two messages: everybody is asleep again
PAUSE_S = 0.002
AUTHORIZATION = "Basic " + base64.b64encode(b"guest:guest").decode()


def quantiles(values_ns: list[int]) -> dict[str, float]:
    """Milliseconds."""
    ordered = sorted(values_ns)
    at = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
    found = {name: round(ordered[min(len(ordered) - 1, int(len(ordered) * share))] / 1e6, 3) for name, share in at.items()}
    return {**found, "max": round(ordered[-1] / 1e6, 3)}


# --- the pull layer ---------------------------------------------------------------------------------------------------------


def layer(polls: int, messages: int) -> dict[str, Any]:
    """`polls` pulls held on as many groups of QUEUES queues; `messages` messages, one at a time; a pull that was answered asks again."""
    from flintmq.pulls.requests import MESSAGES, Answers
    from flintmq.testing.broker import Broker

    answers = Answers()
    broker = Broker()
    node = broker.node
    with broker:
        vhost = node.broker.vhosts["/"]
        queues = [vhost.run(vhost.declare_queue(f"q{n}")) for n in range(QUEUES)]
        hold = {"most": 1, "bytes_max": 1, "visibility_ms": 600_000, "hold_ms": 60_000}
        for n in range(polls):
            node.pulls.pull(queues[n % QUEUES], f"g{n}", answers, n, **hold)
        while node.actors.gauges()["parked"] < polls:
            time.sleep(0.01)
        answered, received = [], []
        for n in range(messages):
            time.sleep(PAUSE_S)
            queue = queues[n % QUEUES]
            before = time.monotonic_ns()
            queue.core.publish(b"", b"", HEADER, b"x", 0, 0)
            if not answers.wait(10_000):
                raise SystemExit("a poll was not answered in 10 s: a lost wake")
            now = time.monotonic_ns()
            [pull] = answers.take()
            assert pull.outcome == MESSAGES, pull.outcome
            answered.append(pull.answered_ns - before)
            received.append(now - before)
            pull.pull_group.settle(pull.messages()[0][0], 1)
            node.pulls.pull(queue, pull.pull_group.group, answers, pull.context, **hold)
        gauges = node.actors.gauges()
    return {
        "polls": polls,
        "messages": messages,
        "answered_ms": quantiles(answered),
        "received_ms": quantiles(received),
        "wakes_lost": gauges["wakes_lost_total"],
        "looks_in_vain": gauges["wakes_spurious_total"],
    }


HEADER = bytes.fromhex("003c00000000000000000001" + "0000")


# --- over HTTP --------------------------------------------------------------------------------------------------------------


class Poller:
    """One connection: polls, notes when each message arrived, acks nothing (the leases outlive the bench)."""

    def __init__(self, port: int, number: int, arrived: dict[str, int], came: asyncio.Event) -> None:
        self.port = port
        path = f"/api/v1/queues/%2F/q{number % QUEUES}/messages?hold=60&visibility=600&group=g{number}"
        self.request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nX-FlintMQ-Request: 1\r\nAuthorization: {AUTHORIZATION}\r\n\r\n".encode()
        self.arrived = arrived
        self.came = came
        self.errors = 0

    async def run(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        with closing(writer):
            while True:
                writer.write(self.request)
                head = await reader.readuntil(b"\r\n\r\n")
                size = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
                body = await reader.readexactly(size)
                now = time.monotonic_ns()
                messages = json.loads(body).get("messages") if head.startswith(b"HTTP/1.1 200") else None
                if messages is None:
                    self.errors += 1
                    return
                for message in messages:
                    if message["body"] in self.arrived:
                        self.errors += 1  # twice
                    self.arrived[message["body"]] = now
                    self.came.set()


def proc(pid: int) -> tuple[float, int]:
    """CPU seconds and resident bytes of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return ticks / 100, pages * resource.getpagesize()


async def over_http(polls: int, messages: int) -> dict[str, Any]:
    """The same with real sockets on both sides."""
    import pika

    from tests.support.broker import Broker

    with Broker("--http-port", "0", "--memory") as broker:
        assert broker.pid is not None
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        channel = connection.channel()
        for n in range(QUEUES):
            channel.queue_declare(f"q{n}")
        port = broker.ready["http_port"]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)  # loads the libraries
        writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        writer.close()
        _, rss_before = proc(broker.pid)
        arrived: dict[str, int] = {}
        came = asyncio.Event()
        pollers = [Poller(port, n, arrived, came) for n in range(polls)]
        tasks = []
        started = time.monotonic()
        for poller in pollers:
            tasks.append(asyncio.create_task(poller.run()))
            if len(tasks) % 50 == 0:
                await asyncio.sleep(0.02)
        while await waiting(port) < polls:
            await asyncio.sleep(0.1)
        took = time.monotonic() - started
        cpu_before, rss_held = proc(broker.pid)
        await asyncio.sleep(3)
        cpu_idle = proc(broker.pid)[0] - cpu_before
        sent: dict[str, int] = {}
        for n in range(messages):
            await asyncio.sleep(PAUSE_S)
            body = str(n)
            sent[body] = time.monotonic_ns()
            channel.basic_publish("", f"q{n % QUEUES}", body.encode())
            try:
                async with asyncio.timeout(10):
                    while body not in arrived:
                        came.clear()
                        await came.wait()
            except TimeoutError:
                raise SystemExit("a poll was not answered in 10 s: a lost wake") from None
        cpu_all = proc(broker.pid)[0] - cpu_before - cpu_idle
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        connection.close()
    return {
        "polls": polls,
        "messages": messages,
        "received_ms": quantiles([arrived[body] - sent[body] for body in sent]),
        "errors": sum(poller.errors for poller in pollers),
        "seconds_until_all_were_held": round(took, 2),
        "rss_kib_per_held_poll": round((rss_held - rss_before) / polls / 1024, 1),
        "cpu_percent_while_held": round(cpu_idle / 3 * 100, 2),
        "cpu_ms_per_message": round(cpu_all / messages * 1000, 3),
    }


async def waiting(port: int) -> int:
    """Pulls that wait, as the broker counts them."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET /api/v1/actors HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: {AUTHORIZATION}\r\n\r\n".encode())
    body = (await reader.read()).partition(b"\r\n\r\n")[2]
    writer.close()
    return int(json.loads(body)["pulls"]["waiting"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--polls", type=int, default=2_000)
    parser.add_argument("--messages", type=int, default=2_000)
    parser.add_argument("--only", choices=("layer", "http"))
    parser.add_argument("--json", action="store_true", help="print the result as one JSON line")
    options = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2 * options.polls + 1_000)), hard))
    result: dict[str, Any] = {}
    if options.only != "http":
        result["layer"] = layer(options.polls, options.messages)
    if options.only != "layer":
        result["http"] = asyncio.run(over_http(options.polls, options.messages))
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result) if options.json else json.dumps(result, indent=1))
    good = "layer" not in result or (result["layer"]["answered_ms"]["p99"] < GOAL_MS and result["layer"]["wakes_lost"] == 0)
    good = good and ("http" not in result or result["http"]["errors"] == 0)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
