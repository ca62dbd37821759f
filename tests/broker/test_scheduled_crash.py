"""kill -9 of a broker while scheduled messages are confirmed and routed."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pika
import pytest

from tests.support.broker import Broker

KILLS = 4
MESSAGES = 120
PERSISTENT_MODE = 2


def _publish(broker: Broker, first: int, rng: random.Random) -> dict[int, int]:
    """Publishes numbers with confirms, to two queues each, until all are confirmed. Returns number -> when it is due at the earliest."""
    due = {}
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        for name in ("a", "b"):
            channel.queue_declare(name, durable=True)
            channel.queue_bind(name, "amq.fanout")
        channel.confirm_delivery()
        for number in range(first, first + MESSAGES):
            delay = rng.randrange(20, 2_500)
            due[number] = int(time.time() * 1000) + delay
            properties = pika.BasicProperties(delivery_mode=PERSISTENT_MODE, headers={"x-delay": delay})
            channel.basic_publish("amq.fanout", "", b"%d" % number, properties)
    return due


def _drain(broker: Broker, queue: str, count: int) -> list[tuple[int, bool, int]]:
    """(number, redelivered, wall clock) of messages, until `count` came or nothing comes any more."""
    got = []
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        for method, _, body in channel.consume(queue, auto_ack=False, inactivity_timeout=60):
            if method is None:
                break
            got.append((int(body), method.redelivered, int(time.time() * 1000)))
            if len(got) == count:
                break
    return got


@pytest.mark.timeout(180)
def test_kill_loses_nothing_and_routes_nothing_twice(tmp_path: Path) -> None:
    rng = random.Random(18)
    due: dict[int, int] = {}
    args = ("--store-dir", str(tmp_path / "store"))
    for kill in range(KILLS):
        with Broker(*args) as broker:
            due.update(_publish(broker, kill * MESSAGES, rng))
            time.sleep(rng.random() * 1.2)  # the kill comes while some of them are routed
            broker.kill()
    with Broker(*args) as broker:
        for name in ("a", "b"):
            got = _drain(broker, name, len(due))
            numbers = [number for number, _, _ in got]
            assert sorted(numbers) == sorted(due), "each confirmed message once, on each queue"
            assert all(at >= due[number] for number, _, at in got), "none before its time"
