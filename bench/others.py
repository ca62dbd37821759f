"""What others wait while one client floods the broker: round trip p50 / p99 / longest, and the longest connect, through each flood.

in: a broker (FlintMQ, with --rabbitmq RabbitMQ after it). out: a table, or one JSON line a row with --json. Others are a process of
their own on a connection and queue of their own: publish one message, wait for its delivery, again (with --others passive: declare their
queue passively); beside that a new connection each half second. A row takes under 15 s; with `--many` messages to purge, delete or expire
it needs more `--seconds`. `python -m bench.others --rows passive,get --seconds 3`; what a storm of declares does to the other I/O loop:
`--rows declare,churn,passive --io-threads 2 --others passive`
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

from bench import others_http
from bench.brokers import FLINTMQ, RABBITMQ, Broker
from bench.others_ends import ENDS
from bench.others_http import HttpRow, asking
from bench.others_letters import LETTERS
from bench.others_row import HOST, Row, repeat
from tests.support import servers
from tests.support.rawamqp import RawChannel, RawConnection
from tests.support.rawcodec import method_frame, publish_bytes

# messages of the queue that is dead-lettered
FEWER = 100_000
# deliveries that are settled or given back by one frame, and consumers that go with a connection
HELD = 200_000
CONSUMERS = 10_000
# milliseconds until messages expire for each million of them, which must be there by then, and at least
EXPIRY_MS = 2_000
EXPIRY_MS_LEAST = 3_000
# seconds between two connects of the others
CONNECT_S = 0.5
# what a round trip of the others is: a message to themselves, or a passive declare of their queue
KINDS = ("message", "passive")


class Sizes:
    """many: messages of the queues that are purged, deleted, expired."""

    many = 500_000


def fill(channel: RawChannel, queue: str, count: int, **properties: object) -> None:
    """Puts messages of 16 bytes on a queue and waits until they are there."""
    frames = publish_bytes(channel.number, bytes(16), routing_key=queue, **properties)
    for at in range(0, count, 5_000):
        channel.connection.send(frames * min(5_000, count - at))
    while channel.ready(queue) < count:
        time.sleep(0.05)


def declares(channel: RawChannel) -> bytes:
    return b"".join(method_frame(1, "queue.declare", queue=f"others-{number}", durable=True) for number in range(5_000))


def passive(channel: RawChannel) -> bytes:
    channel.queue("others-q")
    return repeat(method_frame(1, "queue.declare", queue="others-q", passive=True))


def declare_delete(channel: RawChannel) -> bytes:
    return repeat(method_frame(1, "queue.declare", queue="others-x") + method_frame(1, "queue.delete", queue="others-x"))


def headers(channel: RawChannel) -> bytes:
    channel.call("exchange.declare", exchange="others-h", type="headers")
    channel.queue("others-q")
    for number in range(10):
        channel.call("queue.bind", queue="others-q", exchange="others-h", arguments={"x-match": "all", "n": number})
    return repeat(publish_bytes(1, b"x", exchange="others-h", headers={"n": -1}))


def get_empty(channel: RawChannel) -> bytes:
    channel.queue("others-q")
    return repeat(method_frame(1, "basic.get", queue="others-q"))


def publishes(channel: RawChannel) -> bytes:
    channel.queue("others-q", arguments={"x-max-length": 1_000})
    return repeat(publish_bytes(1, bytes(16), routing_key="others-q"))


def purge(channel: RawChannel) -> bytes:
    channel.queue("others-big", durable=True)
    fill(channel, "others-big", Sizes.many, delivery_mode=2)
    return method_frame(1, "queue.purge", queue="others-big")


def delete(channel: RawChannel) -> bytes:
    purge(channel)
    return method_frame(1, "queue.delete", queue="others-big")


def dead_letters(channel: RawChannel) -> bytes:
    """All deliveries are refused by one nack."""
    channel.queue("others-dead")
    channel.queue("others-big", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "others-dead"})
    fill(channel, "others-big", FEWER)
    channel.send("basic.consume", queue="others-big", consumer_tag="c")
    for _ in range(FEWER + 1):
        message = channel.connection.recv(channel.number, 60)
    return method_frame(1, "basic.nack", delivery_tag=message.delivery_tag, multiple=True, requeue=False)


def unacked(channel: RawChannel) -> None:
    channel.queue("others-big")
    fill(channel, "others-big", HELD)
    channel.send("basic.consume", queue="others-big", consumer_tag="c")
    for _ in range(HELD + 1):
        channel.connection.recv(channel.number, 60)


def ack(channel: RawChannel) -> bytes:
    unacked(channel)
    return method_frame(1, "basic.ack", delivery_tag=0, multiple=True)


def close(channel: RawChannel) -> bytes:
    """The connection ends with CONSUMERS on three channels, and with HELD deliveries."""
    unacked(channel)
    for number in (2, 3, 4):
        channel.connection.channel(number)
        for at in range(CONSUMERS // 3):
            channel.connection.send(method_frame(number, "basic.consume", queue="others-big", consumer_tag=f"c-{at}", no_wait=True))
    return method_frame(0, "connection.close", reply_code=200, reply_text="")


def expiry(channel: RawChannel) -> bytes:
    """They expire as fast as they came, half a million from the second second of the row on."""
    ttl = max(EXPIRY_MS_LEAST, Sizes.many * EXPIRY_MS // 1_000_000)
    channel.queue("others-big", durable=True, arguments={"x-message-ttl": ttl})
    frames = publish_bytes(1, bytes(16), routing_key="others-big", delivery_mode=2)
    for _ in range(Sizes.many // 5_000):
        channel.connection.send(frames * 5_000)
    return method_frame(1, "basic.qos", prefetch_count=0)


def nothing(channel: RawChannel) -> bytes:
    """What the machine itself makes the others wait."""
    return method_frame(1, "basic.qos", prefetch_count=0)


ROWS: dict[str, Row | HttpRow] = {
    "nothing": Row("nothing", nothing, once=True),
    "publish": Row("plain publishes", publishes),
    "passive": Row("passive declares", passive),
    "declare": Row("5,000 durable declares", declares, once=True, durable=True),
    "churn": Row("declare and delete", declare_delete),
    "headers": Row("headers exchange, 10 bindings", headers),
    "get": Row("basic.get of an empty queue", get_empty),
    "purge": Row("purge of {many:,} durable", purge, once=True, durable=True),
    "delete": Row("delete of {many:,} durable", delete, once=True, durable=True),
    "dead": Row(f"dead-lettering of {FEWER:,}", dead_letters, once=True),
    "ack": Row(f"one ack of {HELD:,}", ack, once=True),
    "close": Row(f"close: {CONSUMERS:,} consumers, {HELD:,} unacked", close, once=True),
    "expiry": Row("expiry of {many:,} durable", expiry, once=True, durable=True),
    **ENDS,
    **{name: Row(title, setup, once=True, durable=True) for name, (title, setup) in LETTERS.items()},
}


ROWS |= others_http.ROWS


def probe(port: int, seconds: float, kind: str) -> dict[str, float]:
    """The others: what they measured, milliseconds. kind: what a round trip is, one of KINDS."""
    connection = RawConnection(HOST, port).open()
    connection.timeout = 120
    channel = connection.channel()
    channel.queue("others-own", exclusive=True)
    channel.consume("others-own", no_ack=True)
    trips: list[float] = []
    connects: list[float] = []
    end = time.monotonic() + seconds
    next_connect = time.monotonic() + CONNECT_S
    while (before := time.monotonic()) < end:
        if kind == "passive":
            channel.call("queue.declare", queue="others-own", passive=True)
        else:
            channel.publish(b"ping", routing_key="others-own")
            channel.expect("basic.deliver", 120)
        trips.append((time.monotonic() - before) * 1000)
        if before >= next_connect:
            again = time.monotonic()
            RawConnection(HOST, port).open().drop()
            connects.append((time.monotonic() - again) * 1000)
            next_connect = time.monotonic() + CONNECT_S
    trips.sort()
    return {
        "n": len(trips),
        "p50": trips[len(trips) // 2],
        "p99": trips[min(len(trips) - 1, len(trips) * 99 // 100)],
        "max": trips[-1],
        "connect_max": max(connects, default=0.0),
    }


@contextlib.contextmanager
def flood(row: Row, connection: RawConnection, frames: bytes) -> Iterator[None]:
    """Sends from a thread, and throws the answers away in another."""
    stop = threading.Event()
    sock = connection.sock.dup()
    sock.settimeout(None)

    def send() -> None:
        with contextlib.suppress(OSError):
            sock.sendall(frames)
            while not row.once and not stop.is_set():
                sock.sendall(frames)

    def receive() -> None:
        with contextlib.suppress(OSError):
            while sock.recv(1 << 20):
                pass

    for target in (receive, send):
        threading.Thread(target=target, daemon=True).start()
    if row.begin is not None:
        row.begin()
    try:
        yield
    finally:
        stop.set()
        connection.drop()
        with contextlib.suppress(OSError):
            sock.shutdown(2)
        sock.close()


def measure(row: Row | HttpRow, port: int, seconds: float, kind: str, http_port: int) -> dict[str, float]:
    connection = RawConnection(HOST, port).open()
    connection.timeout = 120
    frames = row.setup(connection.channel())
    command = [sys.executable, "-m", "bench.others", "--probe", str(port), "--seconds", str(seconds), "--others", kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as others:
        time.sleep(1)  # its start is not measured, and some quiet round trips are
        with flood(row, connection, frames or b"") if isinstance(row, Row) else asking(row, http_port):
            answer, _ = others.communicate(timeout=seconds + 240)
    result: dict[str, float] = json.loads(answer)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default=",".join(ROWS), help="which, separated by commas")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each row")
    parser.add_argument("--rabbitmq", action="store_true", help="RabbitMQ too")
    parser.add_argument("--json", action="store_true", help="one JSON line a row")
    parser.add_argument("--others", choices=KINDS, default=KINDS[0], help="what a round trip of the others is (default %(default)s)")
    parser.add_argument(
        "--io-threads", type=int, default=1, help="FlintMQ's I/O loops; with 2 the others are on another one than the flood"
    )
    parser.add_argument("--many", type=int, default=Sizes.many, help="messages that are purged, deleted, expired (default %(default)s)")
    parser.add_argument("--probe", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.probe is not None:
        print(json.dumps(probe(options.probe, options.seconds, options.others)))
        return 0
    Sizes.many = options.many
    if not options.json:
        print(f"{'flood':40} {'broker':9} {'p50 ms':>9} {'p99 ms':>9} {'max ms':>9} {'connect':>9} {'trips':>8}")
    for name in (FLINTMQ, RABBITMQ) if options.rabbitmq else (FLINTMQ,):
        http_port = servers.free_ports(1)[0]
        # of an option that is given twice the last one counts
        broker = Broker(name, always=("--io-threads", str(options.io_threads), "--http-port", str(http_port)))
        try:
            for key in options.rows.split(","):
                row = ROWS[key]
                if name == RABBITMQ and isinstance(row, HttpRow):
                    continue
                server = broker.server(fresh=True, durable=isinstance(row, Row) and row.durable)
                got = measure(row, server.port, options.seconds, options.others, http_port)
                if options.json:
                    print(json.dumps({"row": key, "broker": name, **got}), flush=True)
                else:
                    figures = " ".join(f"{got[one]:9.2f}" for one in ("p50", "p99", "max", "connect_max"))
                    print(f"{row.title.format(many=options.many):40} {name:9} {figures} {got['n']:8.0f}", flush=True)
        finally:
            broker.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
