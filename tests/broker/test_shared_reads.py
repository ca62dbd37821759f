"""A message that waits in several queues is read back once for all that want it soon (store/shared_reads.py)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.broker import wait_until

QUEUES = ("a", "b", "c", "d")
BODY = 1024


def fan_out(broker: Any, connect: Callable[..., Any], messages: int) -> Any:
    """A channel after so many messages, each of them on all queues."""
    channel = connect(broker).channel()
    channel.call("exchange.declare", exchange="x", type="fanout", durable=True)
    for name in QUEUES:
        channel.queue(name, durable=True)
        channel.call("queue.bind", queue=name, exchange="x")
    channel.call("confirm.select")
    for number in range(messages):
        channel.publish(b"%0*d" % (BODY, number), exchange="x", delivery_mode=2)
    confirmed = 0
    while confirmed < messages:
        confirmed = channel.expect("basic.ack").delivery_tag
    return channel


def drain(channel: Any, queue: str, messages: int) -> list[bytes]:
    tag = channel.consume(queue, no_ack=True)
    bodies = [one.body for one in channel.deliveries(messages)]
    channel.call("basic.cancel", consumer_tag=tag)
    return bodies


def test_a_fan_out_is_read_once_for_all_its_queues(start: Callable[..., Any], connect: Callable[..., Any], tmp_path: Path) -> None:
    count = 400
    broker = start(data_dir=tmp_path, limits={"queue_hot_bytes": 4 * BODY})
    channel = fan_out(broker, connect, count)
    loader = broker.node.store.logs.loader
    expected = [b"%0*d" % (BODY, number) for number in range(count)]
    for name in QUEUES:
        assert drain(channel, name, count) == expected
    assert loader.figures["shared"] >= 0.7 * (len(QUEUES) - 1) * count


def test_no_more_is_kept_than_the_limit_and_nothing_that_nobody_asks_for(
    start: Callable[..., Any], connect: Callable[..., Any], tmp_path: Path
) -> None:
    count = 400
    broker = start(data_dir=tmp_path, limits={"queue_hot_bytes": 4 * BODY, "cold_shared_bytes": 32 * BODY})
    channel = fan_out(broker, connect, count)
    loader = broker.node.store.logs.loader
    expected = [b"%0*d" % (BODY, number) for number in range(count)]
    assert drain(channel, "a", count) == expected
    assert 0 < loader.kept_bytes <= 32 * BODY
    assert drain(channel, "b", count) == expected
    wait_until(lambda: loader.kept_bytes == 0)
    assert drain(channel, "c", count) == expected
