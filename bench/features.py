"""What a message costs with a feature in its way: the broker's processor time, as microseconds a message and as a multiple of a plain one.

    python -m bench.features [--only letters-expired,cc] [--rounds 3] [--scale 0.25] [--brokers flintmq,rabbitmq]

in: brokers that are started here, FlintMQ with a store. out: one JSON line for each row and broker. Exit code 1 when a row of FlintMQ is
above its limit. Frames are made before and sent by one connection; deliveries, which have one size, are counted by their bytes:
a client costs next to nothing, and on two cores a broker has one to itself. `plain` is measured first in each round: ratios are of that.
"""

from __future__ import annotations

import argparse
import base64
import json
import statistics
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from bench.brokers import FLINTMQ, Broker
from bench.delay_chain import cpu_seconds
from tests.support.rawamqp import RawChannel, RawConnection
from tests.support.rawcodec import method_frame, publish_bytes
from tests.support.servers import Server, Unavailable

BODY = b"x" * 100
# class and method of basic.deliver
DELIVER = b"\0\x3c\0\x3c"
# bytes sent at once
PIECE = 64 * 1024
WAIT_S_MAX = 120.0
LETTERS = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"}


@dataclass(frozen=True)
class Row:
    """queues: name -> arguments; exchange: kind and arguments of x; bindings: (queue, key, arguments); messages: what is sent in turn;
    copies: deliveries of a message; most: the limit, as a multiple of plain; lacks: brokers without it; rejects: a consumer of `source`
    refuses all, in groups; returns: a consumer of q gives a thousand back, again and again; traced: the firehose is on, and two queues
    read it."""

    messages: list[dict[str, Any]]
    most: float
    queues: dict[str, dict[str, Any]] = field(default_factory=lambda: {"q": {}})
    exchange: tuple[str, dict[str, Any]] | None = None
    bindings: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    consumers: tuple[str, ...] = ("q",)
    copies: int = 1
    count: int = 200_000
    durable: bool = False
    lacks: tuple[str, ...] = ()
    rejects: bool = False
    traced: bool = False
    returns: bool = False


@dataclass(frozen=True)
class Asked:
    """Requests in groups, each group sent when the one before is answered. request: bytes of a group, by its number; per: messages or
    requests in a group, whose answers take `answer` bytes; most_us: the limit, microseconds of processor time of each; methods: called
    before, with their arguments."""

    request: Callable[[int], bytes]
    per: int
    answer: int
    most_us: float
    count: int
    methods: tuple[tuple[str, dict[str, Any]], ...] = ()


def _transaction(per: int) -> Callable[[int], bytes]:
    frames = publish_bytes(1, BODY, routing_key="q", delivery_mode=2) * per + method_frame(1, "tx.commit")
    return lambda number: frames


def _declare(passive: bool) -> Callable[[int], bytes]:
    frames = method_frame(1, "queue.declare", queue="q", passive=passive) * 200
    return lambda number: frames


def _bind(number: int) -> bytes:
    return b"".join(method_frame(1, "queue.bind", queue="q", exchange="x", routing_key=f"a.{number}.{one}") for one in range(200))


# bytes of an answer without arguments, and of queue.declare-ok for a queue with a name of one letter
EMPTY_OK = 12
DECLARE_OK = EMPTY_OK + 2 + 8
DURABLE = (("queue.declare", {"queue": "q", "durable": True}), ("tx.select", {}))
PASSING = (("queue.declare", {"queue": "q"}), ("exchange.declare", {"exchange": "x", "type": "topic"}))
ASKED: dict[str, Asked] = {
    "tx-100": Asked(_transaction(100), 100, EMPTY_OK, 5.0, 100_000, DURABLE),
    "tx-1": Asked(_transaction(1), 1, EMPTY_OK, 60.0, 10_000, DURABLE),
    "declare-passive": Asked(_declare(True), 200, 200 * DECLARE_OK, 4.0, 40_000, PASSING),
    "declare-again": Asked(_declare(False), 200, 200 * DECLARE_OK, 4.0, 40_000, PASSING),
    "bind": Asked(_bind, 200, 200 * EMPTY_OK, 6.0, 40_000, PASSING),
}


def _to(key: str = "q", **properties: Any) -> dict[str, Any]:
    return {"routing_key": key, **properties}


def _x(key: str = "", **properties: Any) -> dict[str, Any]:
    return {"exchange": "x", "routing_key": key, **properties}


_TEN = [_x(headers={"type": f"t{number}", "n": number}) for number in range(10)]
_ANY = [_x(headers={"type": f"t{number % 10}", "n": number}) for number in range(4_000)]


def _bindings(count: int) -> list[tuple[str, str, dict[str, Any]]]:
    return [("q", "", {"x-match": "all", "type": f"t{number}", "n": number}) for number in range(count)]


ROWS: dict[str, Row] = {
    "plain": Row([_to()], 1.0, count=1_000_000),
    "user-id": Row([_to(user_id="guest")], 1.5),
    "cc": Row([_to(headers={"CC": ["r"]})], 3.0, queues={"q": {}, "r": {}}, consumers=("q", "r"), copies=2),
    "bcc": Row([_to(headers={"BCC": ["r"]})], 4.0, queues={"q": {}, "r": {}}, consumers=("q", "r"), copies=2),
    "headers-exchange": Row(_TEN, 3.0, exchange=("headers", {}), bindings=_bindings(10)),
    "headers-exchange-100": Row(_TEN, 4.0, exchange=("headers", {}), bindings=_bindings(100)),
    "headers-that-differ": Row(
        _ANY, 4.0, exchange=("headers", {}), bindings=[("q", "", {"x-match": "all", "type": f"t{number}"}) for number in range(10)]
    ),
    "random-exchange": Row(
        [_x("k")], 2.0, queues={"q": {}, "r": {}}, exchange=("x-random", {}), bindings=[("q", "", {}), ("r", "", {})],
        consumers=("q", "r"), lacks=("rabbitmq",),
    ),
    "delayed": Row(
        [_x("k", headers={"x-delay": 50})], 5.0, exchange=("x-delayed-message", {"x-delayed-type": "direct"}), bindings=[("q", "k", {})],
        count=100_000, lacks=("rabbitmq",),
    ),
    # RabbitMQ has it, too; what turns it on there needs the node's name and cookie
    "traced": Row(
        [_to()], 8.0, queues={"q": {}, "t": {}, "u": {}}, consumers=("q", "t", "u"), copies=3, lacks=("rabbitmq",), traced=True
    ),
    "drop-head": Row([_to()], 2.0, queues={"q": {"x-max-length": 1000}}, consumers=()),
    "expiry-1ms": Row([_to()], 2.0, queues={"q": {"x-message-ttl": 1}}, consumers=()),
    "letters-maxlen": Row([_to("source")], 5.0, queues={"q": {}, "source": {"x-max-length": 1, **LETTERS}}, count=100_000),
    "letters-expired": Row([_to("source")], 5.0, queues={"q": {}, "source": {"x-message-ttl": 1, **LETTERS}}, count=100_000),
    "letters-durable": Row(
        [_to("source", delivery_mode=2)], 8.0, queues={"q": {}, "source": {"x-message-ttl": 1, **LETTERS}}, count=100_000, durable=True
    ),
    "letters-nacked": Row([_to("source")], 5.0, queues={"q": {}, "source": LETTERS}, count=100_000, rejects=True),
    "returns": Row([_to()], 3.0, consumers=(), count=200_000, returns=True),
    "returns-counted-durable": Row(
        [_to(delivery_mode=2)], 3.0, queues={"q": {"x-queue-type": "quorum", "x-delivery-limit": 60_000}}, consumers=(), count=200_000,
        durable=True, returns=True,
    ),
    "letters-that-died-50-times": Row(
        [_to("source", headers={"x-death": [{"count": 50, "queue": "source", "reason": "expired"}]})],
        5.0, queues={"q": {}, "source": {"x-message-ttl": 1, **LETTERS}}, count=100_000,
    ),
}  # fmt: skip


class Counter(threading.Thread):
    """Counts deliveries of one size by their bytes: the first is parsed."""

    def __init__(self, port: int, queue: str) -> None:
        super().__init__(daemon=True)
        self.connection = opened(port)
        self.channel = self.connection.channel(1)
        self.channel.consume(queue, no_ack=True)
        self.count = 0
        self.over = False
        self.start()

    def run(self) -> None:
        sock = self.connection.sock
        sock.settimeout(0.5)
        data, size, received = bytearray(), 0, 0
        while not self.over:
            try:
                octets = sock.recv(1 << 20)
            except TimeoutError:
                continue
            except OSError:
                return
            if not octets:
                return
            received += len(octets)
            if not size:
                data += octets
                size = whole(data)
            if size:
                self.count = received // size


def whole(data: bytearray) -> int:
    """Bytes of the first delivery, three frames; 0: they are not there yet."""
    end = 0
    for _ in range(3):
        if len(data) < end + 7:
            return 0
        end += int.from_bytes(data[end + 3 : end + 7], "big") + 8
    return end if len(data) >= end else 0


def opened(port: int) -> RawConnection:
    connection = RawConnection("127.0.0.1", port, timeout=WAIT_S_MAX)
    connection.open()
    return connection


def declare(channel: RawChannel, row: Row) -> None:
    for name, arguments in row.queues.items():
        channel.queue(name, arguments=arguments, durable=row.durable)
    if row.exchange is not None:
        channel.call("exchange.declare", exchange="x", type=row.exchange[0], arguments=row.exchange[1])
    for queue, key, arguments in row.bindings:
        channel.call("queue.bind", queue=queue, exchange="x", routing_key=key, arguments=arguments)
    if row.traced:
        for queue, key in (("t", "publish.#"), ("u", "deliver.#")):
            channel.call("queue.bind", queue=queue, exchange="amq.rabbitmq.trace", routing_key=key)


def turn_on_firehose(server: Server) -> None:
    """Raises: OSError."""
    headers = {"authorization": f"Basic {base64.b64encode(b'guest:guest').decode()}", "content-type": "application/json"}
    url = f"http://127.0.0.1:{server.ready['http_port']}/api/vhosts/%2F"
    request = urllib.request.Request(url, b'{"tracing": true}', headers, method="PUT")
    urllib.request.urlopen(request, timeout=WAIT_S_MAX).close()


def pieces(row: Row, count: int) -> Iterator[bytes]:
    """What is sent: `count` messages in all, in pieces."""
    frames = [publish_bytes(1, BODY, **message) for message in row.messages]
    per = max(1, PIECE // sum(map(len, frames)))
    piece = b"".join(frames) * per
    for _ in range(count // (per * len(frames))):
        yield piece


def wait(done: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S_MAX
    while not done():
        if time.monotonic() > end:
            raise TimeoutError("messages did not arrive")
        time.sleep(0.002)


def refuse_all(port: int, count: int, queue: str = "source", requeue: bool = False) -> RawConnection:
    """A consumer refuses what it gets, a thousand at once; what comes back to it arrives once more. Returns its connection."""
    connection = opened(port)
    channel = connection.channel(1)
    channel.call("basic.qos", prefetch_count=1000)
    # Deliveries are counted by what each has once, and tags count them, too.
    channel.send("basic.consume", queue=queue, consumer_tag="c")
    received, rest = 0, b""
    for tag in range(1000, count + 1001 if requeue else count + 1, 1000):
        while received < tag:
            octets = rest + connection.sock.recv(1 << 20)
            received += octets.count(DELIVER)
            rest = octets[-3:]
        if tag <= count:
            channel.send("basic.nack", delivery_tag=tag, multiple=True, requeue=requeue)
    return connection


def run(server: Server, row: Row, scale: float) -> dict[str, float]:
    """One round. Returns messages a second and microseconds of the broker a message."""
    connection = opened(server.port)
    others = [connection]
    channel = connection.channel(1)
    declare(channel, row)
    sent = list(pieces(row, int(row.count * scale)))
    count = len(sent) * (sent[0].count(BODY))
    if row.returns:
        sent, count = sent[: max(1, 2000 // sent[0].count(BODY) + 1)], count // 1000 * 1000
    if row.rejects or row.returns:  # they are there before the clock starts
        for piece in sent:
            connection.send(piece)
        channel.call("basic.qos", prefetch_count=0)
        sent = []
    count = count // 1000 * 1000 if row.rejects else count
    counters = [Counter(server.port, queue) for queue in row.consumers]
    before, start = cpu_seconds(server.pid), time.monotonic()
    for piece in sent:
        connection.send(piece)
    if row.rejects:
        others.append(refuse_all(server.port, count))
    if row.returns:
        others.append(refuse_all(server.port, count, "q", True))
    channel.call("basic.qos", prefetch_count=0)
    if counters:
        wait(lambda: sum(one.count for one in counters) >= 0.999 * count * row.copies)  # a full queue keeps some
    seconds = time.monotonic() - start
    cpu = cpu_seconds(server.pid) - before
    for one in counters:
        one.over = True
        one.join()
        one.connection.drop()
    for other in others:
        other.drop()
    return {"rate": round(count / seconds), "us": round(cpu / count * 1e6, 3)}


def ask(server: Server, row: Asked, scale: float) -> dict[str, float]:
    """As `run`, of requests."""
    connection = opened(server.port)
    channel = connection.channel(1)
    for name, arguments in row.methods:
        channel.call(name, **arguments)
    groups = [row.request(number) for number in range(max(1, int(row.count * scale) // row.per))]
    before, start = cpu_seconds(server.pid), time.monotonic()
    for group in groups:
        connection.send(group)
        received = 0
        while received < row.answer:
            octets = connection.sock.recv(row.answer - received)
            if not octets:
                raise ConnectionError("the broker closed the connection")
            received += len(octets)
    seconds = time.monotonic() - start
    cpu = cpu_seconds(server.pid) - before
    connection.drop()
    count = len(groups) * row.per
    return {"rate": round(count / seconds), "us": round(cpu / count * 1e6, 3)}


def measured(name: str, broker: str, scale: float) -> dict[str, float]:
    """A round with a fresh broker."""
    row = ROWS.get(name, ROWS["plain"])
    one = Broker(broker, always=("--http-port", "0") if row.traced else ())
    try:
        server = one.server(fresh=True, durable=True)
        if name in ASKED:
            return ask(server, ASKED[name], scale)
        if row.traced:
            turn_on_firehose(server)
        return run(server, row, scale)
    finally:
        one.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="rows, separated by commas")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the messages")
    parser.add_argument("--brokers", default=FLINTMQ)
    options = parser.parse_args()
    names = [name for name in options.only.split(",") if name] or [name for name in (*ROWS, *ASKED) if name != "plain"]
    missed = False
    for broker in options.brokers.split(","):
        results: dict[str, list[dict[str, float]]] = {name: [] for name in names}
        for _ in range(options.rounds):
            plain = measured("plain", broker, options.scale)
            for name in names:
                if name in ROWS and broker in ROWS[name].lacks:
                    continue
                result = measured(name, broker, options.scale)
                results[name].append({**result, "times": round(result["us"] / plain["us"], 2)})
        for name, rounds in results.items():
            if not rounds:
                print(json.dumps({"row": name, "broker": broker, "lacks": True}))
                continue
            median = {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}
            figure, limit = ("us", ASKED[name].most_us) if name in ASKED else ("times", ROWS[name].most)
            print(json.dumps({"row": name, "broker": broker, **median, "limit": limit, "of": figure}), flush=True)
            missed = missed or (broker == FLINTMQ and median[figure] > limit)
    return 1 if missed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Unavailable as error:
        sys.exit(str(error))
