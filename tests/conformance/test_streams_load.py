"""Streams under load, with several I/O threads and clients that come and go: every confirmed message reaches every group, once unless it is
flagged; then the same over kill -9 of the broker."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker import Broker, wait_until
from tests.support.effort import tries
from tests.support.rawamqp import ConnectionLost, RawChannel, RawConnection

ARGUMENTS = {"x-queue-type": "stream", "x-retry-delay": 10, "x-stream-max-segment-size-bytes": 600_000}
pytestmark = pytest.mark.flintmq_only("groups")


_opened: list[RawConnection] = []


@pytest.fixture(autouse=True)
def _close() -> Iterator[None]:
    """Drops the connections of the test."""
    yield
    while _opened:
        _opened.pop().drop()


def open_channel(broker: Broker, prefetch: int = 50) -> RawChannel:
    connection = RawConnection(broker.host, broker.port)
    _opened.append(connection)
    channel = connection.open().channel()
    channel.call("basic.qos", prefetch_count=prefetch)
    return channel


class Producer(threading.Thread):
    """Publishes numbered messages with confirms until it has `count`, or the broker is gone."""

    def __init__(self, broker: Broker, name: str, count: int) -> None:
        super().__init__(daemon=True)
        self.name, self.count = name, count
        self.confirmed: set[bytes] = set()
        self.sent: set[bytes] = set()
        self.channel = open_channel(broker)
        self.channel.call("confirm.select")

    def run(self) -> None:
        waiting: dict[int, bytes] = {}
        tag = 0
        try:
            while tag < self.count or waiting:
                if tag < self.count and len(waiting) < 200:
                    tag += 1
                    waiting[tag] = body = f"{self.name}:{tag}:".encode().ljust(200 if tag % 50 else 9000, b".")
                    self.sent.add(body)
                    self.channel.publish(body, routing_key="s", delivery_mode=2)
                    continue
                method = self.channel.expect("basic.ack")
                for done in [one for one in waiting if one == method.delivery_tag or (method.multiple and one < method.delivery_tag)]:
                    self.confirmed.add(waiting.pop(done))
        except (ConnectionLost, OSError):
            pass


class Member(threading.Thread):
    """A consumer of a group that acknowledges, requeues, or drops its connection without a word, at random, until it is told to stop."""

    def __init__(self, broker: Broker, group: str, seed: int, drops: bool = True) -> None:
        super().__init__(daemon=True)
        self.broker, self.group, self.random, self.drops = broker, group, random.Random(seed), drops
        self.acked: Counter[int] = Counter()
        self.bodies: dict[int, bytes] = {}
        self.first: Counter[int] = Counter()  # deliveries that were not flagged
        self.error: BaseException | None = None
        self.stopping = threading.Event()

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                channel = open_channel(self.broker, self.random.choice((1, 7, 60)))
                channel.consume("s", arguments={"x-group": self.group, "x-stream-offset": "first"})
                self._work(channel)
        except (ConnectionLost, OSError):
            pass
        except BaseException as error:  # the test's thread tells
            self.error = error

    def _work(self, channel: RawChannel) -> None:
        while not self.stopping.is_set():
            try:
                method = channel.expect("basic.deliver", 0.1)
            except TimeoutError:
                continue
            offset = method.properties["headers"]["x-stream-offset"]
            assert self.bodies.setdefault(offset, method.body) == method.body
            if not method.redelivered:
                self.first[offset] += 1
            choice = self.random.random()
            if choice < 0.002 and self.drops:
                channel.connection.drop()
                return
            if choice < 0.05:
                channel.send("basic.nack", delivery_tag=method.delivery_tag, requeue=True)
            else:
                self.acked[offset] += 1
                channel.send("basic.ack", delivery_tag=method.delivery_tag)
        channel.connection.close()


def finished(members: list[Member], wanted: int) -> bool:
    return len(set().union(*(member.acked for member in members))) >= wanted


def wait_for(members: list[Member], count: int) -> None:
    for _ in range(2000):
        if finished(members, count) or any(member.error for member in members):
            break
        members[0].join(0.05)


def check(members: list[Member], total: int) -> dict[int, bytes]:
    """Each offset was acknowledged, delivered unflagged at most once, and is the same message for all. Returns them."""
    for member in members:
        assert member.error is None, member.error
    bodies: dict[int, bytes] = {}
    first: Counter[int] = Counter()
    for member in members:
        first += member.first
        for offset, body in member.bodies.items():
            assert bodies.setdefault(offset, body) == body
    assert set().union(*(member.acked for member in members)) == set(range(total))
    assert first and max(first.values()) == 1, [offset for offset, count in first.items() if count > 1][:5]
    return bodies


def stop(members: list[Member]) -> None:
    for member in members:
        member.stopping.set()
    for member in members:
        member.join(60)


@pytest.mark.timeout(300)
def test_load_on_three_threads() -> None:
    """Three producers, two groups of three members that drop, requeue and reconnect: both groups settle every message."""
    with Broker("--io-threads", "3") as broker:
        setup = open_channel(broker)
        setup.queue("s", durable=True, arguments=ARGUMENTS)
        producers = [Producer(broker, f"p{number}", 2000) for number in range(3)]
        groups = {name: [Member(broker, name, seed + ord(name)) for seed in range(3)] for name in "ab"}
        for thread in (*producers, *groups["a"], *groups["b"]):
            thread.start()
        for producer in producers:
            producer.join(150)
            assert len(producer.confirmed) == 2000
        assert setup.ready("s") == 6000
        for members in groups.values():
            wait_for(members, 6000)
            stop(members)
            bodies = check(members, 6000)
            assert set(bodies.values()) == set().union(*(producer.sent for producer in producers))
            for name in ("p0", "p1", "p2"):  # a producer's messages are in its order
                mine = [int(body.split(b":")[1]) for _, body in sorted(bodies.items()) if body.startswith(name.encode())]
                assert mine == sorted(mine)


@pytest.mark.timeout(300)
def test_kill_9_under_load(tmp_path: Path) -> None:
    """The broker is killed again and again while clients publish and settle: every confirmed message is there, at one offset for ever; the
    group settles all of them, and what comes a second time is flagged."""
    confirmed: set[bytes] = set()
    sent: set[bytes] = set()
    acked: set[int] = set()
    bodies: dict[int, bytes] = {}
    unflagged: Counter[int] = Counter()
    store = ("--data-dir", str(tmp_path / "data"), "--io-threads", "2")
    dice = random.Random(5)

    def collect(members: list[Member]) -> None:
        nonlocal acked, unflagged
        for member in members:
            assert member.error is None, member.error
            acked |= set(member.acked)
            unflagged += member.first
            for offset, body in member.bodies.items():
                assert bodies.setdefault(offset, body) == body, f"offset {offset} is another message now"

    for life in range(tries(3, 6)):
        with Broker(*store) as broker:
            open_channel(broker).queue("s", durable=True, arguments=ARGUMENTS)
            members = [Member(broker, "g", life * 10 + number, drops=False) for number in range(2)]
            producers = [Producer(broker, f"p{life}-{number}", 100_000) for number in range(2)]
            threads: list[Any] = [*members, *producers]
            for thread in threads:
                thread.start()
            wait_until(lambda busy=producers: all(len(one.confirmed) > 20 for one in busy) or not all(one.is_alive() for one in busy))
            threads[0].join(0.2 + dice.random() * 0.5)
            broker.kill()
            for thread in threads:
                thread.join(60)
            for producer in producers:
                confirmed |= producer.confirmed
                sent |= producer.sent
            collect(members)
    with Broker(*store) as broker:
        total = open_channel(broker).ready("s")
        members = [Member(broker, "g", 100, drops=False)]
        reader = Member(broker, "all", 101, drops=False)
        for member in (*members, reader):
            member.start()
        for _ in range(2000):
            members[0].join(0.05)
            if len(acked | set(members[0].acked)) >= total and finished([reader], total):
                break
        stop([*members, reader])
        collect([*members])
        assert reader.error is None
    assert set(reader.bodies) == set(range(total)) and len(confirmed) > 100
    for offset, body in bodies.items():
        assert reader.bodies[offset] == body
    kept = list(reader.bodies.values())
    assert len(kept) == len(set(kept)) and confirmed <= set(kept) <= sent
    assert acked == set(range(total))
    assert max(unflagged.values()) == 1
