"""Property: streams outlive the broker. After kill -9 nothing confirmed is lost, offsets mean the same messages, groups go on; after a
clean stop they go on exactly where they were."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.support.broker import Broker

STREAM = {"x-queue-type": "stream"}
# seconds after which what has not come is missing
READ_S = 60


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[[], Broker]]:
    """`serve()`: a broker on the test's own data directory. The one before must have ended."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(Broker("--data-dir", str(tmp_path / "data")))


def connect(broker: Broker) -> Any:
    channel = pika.BlockingConnection(pika.URLParameters(broker.url)).channel()
    channel.confirm_delivery()
    channel.basic_qos(prefetch_count=1000)
    return channel


def read(
    channel: Any, stream: str, count: int, settle: Callable[[Any, int], None] | None = None, more_s: float = 0.2, **arguments: Any
) -> list[tuple[int, bytes, bool]]:
    """(offset, body, redelivered) of what a consumer with these arguments gets: `count` messages, and what comes within `more_s` after."""
    got: list[tuple[int, bytes, bool]] = []
    until = time.monotonic() + READ_S
    for method, properties, body in channel.consume(stream, arguments=arguments, inactivity_timeout=more_s):
        if method is None:
            if len(got) >= count or time.monotonic() > until:
                break
            continue
        got.append((properties.headers["x-stream-offset"], body, method.redelivered))
        if settle is not None:
            settle(method, got[-1][0])
    channel.cancel()
    return got


def test_kill_9(serve: Callable[[], Broker]) -> None:
    """Three lives ended by kill -9: every confirmed message is there at its offset, and the offsets are without gaps."""
    known: list[bytes] = []
    numbers = itertools.count()
    for life in range(4):
        broker = serve()
        channel = connect(broker)
        channel.queue_declare("s", durable=True, arguments=STREAM)
        got = read(channel, "s", len(known), **{"x-stream-offset": "first"})
        assert [offset for offset, _, _ in got] == list(range(len(got)))
        assert [body for _, body, _ in got][: len(known)] == known
        known = [body for _, body, _ in got]
        if life == 3:
            break
        for _ in range(100):
            body = b"%d-%d" % (life, next(numbers))
            channel.basic_publish("", "s", body * 20)  # returns when it is confirmed
            known.append(body * 20)
        broker.kill()


def test_groups_after_kill_9(serve: Callable[[], Broker]) -> None:
    """A group goes on: what it did not settle comes again, flagged; what was settled a while ago does not."""
    broker = serve()
    channel = connect(broker)
    channel.queue_declare("s", durable=True, arguments=STREAM)
    for number in range(300):
        channel.basic_publish("", "s", b"%d" % number)
    settled = set()

    def settle(method: Any, offset: int) -> None:
        if offset % 3:  # every third stays open
            channel.basic_ack(method.delivery_tag)
            settled.add(offset)

    got = read(channel, "s", 300, settle, 3.0, **{"x-stream-offset": "first", "x-group": "g"})
    assert len(got) == 300
    # `read` waited three seconds for more: thirty times stream_cursor_ms after the last ack.
    broker.kill()
    channel = connect(serve())
    again = read(channel, "s", 100, **{"x-group": "g"})
    assert [offset for offset, _, _ in again] == list(range(0, 300, 3))
    assert all(redelivered for _, _, redelivered in again) and all(body == b"%d" % offset for offset, body, _ in again)
    channel.basic_publish("", "s", b"new")
    ends = read(channel, "s", 1, **{"x-group": "other", "x-stream-offset": 300})
    assert ends == [(300, b"new", False)]


def test_clean_stop(serve: Callable[[], Broker]) -> None:
    """SIGTERM: a group has exactly its unsettled messages left, lone readers find everything, a deleted stream stays deleted."""
    broker = serve()
    channel = connect(broker)
    for name in ("s", "gone"):
        channel.queue_declare(name, durable=True, arguments={**STREAM, "x-max-age": "1D"})
    for number in range(50):
        channel.basic_publish("", "s", b"%d" % number)
        channel.basic_publish("", "gone", b"%d" % number)
    taken = []

    def settle(method: Any, offset: int) -> None:
        taken.append(offset)
        channel.basic_ack(method.delivery_tag)

    channel.basic_qos(prefetch_count=20)
    for method, properties, _ in channel.consume("s", arguments={"x-stream-offset": "first", "x-group": "g"}):
        settle(method, properties.headers["x-stream-offset"])
        if len(taken) == 30:
            break
    channel.cancel()
    read(channel, "gone", 50, settle, **{"x-stream-offset": "first", "x-group": "g"})
    channel.queue_delete("gone")
    channel.connection.close()
    broker.stop()
    channel = connect(serve())
    assert [offset for offset, _, _ in read(channel, "s", 20, **{"x-group": "g"})] == list(range(30, 50))
    assert len(read(channel, "s", 50, **{"x-stream-offset": "first"})) == 50
    assert channel.queue_declare("gone", durable=True, arguments=STREAM).method.message_count == 0
    channel.basic_publish("", "gone", b"fresh")
    assert read(channel, "gone", 1, **{"x-group": "g", "x-stream-offset": "first"}) == [(0, b"fresh", False)]


def test_beside_queues_after_kill_9(serve: Callable[[], Broker]) -> None:
    """What was confirmed for a stream and a durable queue together is in both."""
    broker = serve()
    channel = connect(broker)
    channel.queue_declare("s", durable=True, arguments=STREAM)
    channel.queue_declare("q", durable=True)
    for queue in ("s", "q"):
        channel.queue_bind(queue, "amq.fanout")
    bodies = [b"%d" % number for number in range(200)]
    for body in bodies:
        channel.basic_publish("amq.fanout", "", body, pika.BasicProperties(delivery_mode=2))
    broker.kill()
    channel = connect(serve())
    assert [body for _, body, _ in read(channel, "s", len(bodies), **{"x-stream-offset": "first"})] == bodies
    assert [channel.basic_get("q", auto_ack=True)[2] for _ in bodies] == bodies
