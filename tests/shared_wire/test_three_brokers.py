"""Three brokers on one etcd, clients of pika on all of them, and one broker is killed in the middle.

Properties: nothing that was confirmed is lost; what a consumer sees twice is flagged, or its publisher sent it twice; each consumer sees
the messages of a publisher in their order, but for those that come back; clients that reconnect to another broker declare nothing there.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import pika

from tests.shared_wire.test_shared_queues import PERSISTENT, SHARED, on
from tests.support.broker import Broker, wait_until
from tests.support.etcd import EtcdCluster

MESSAGES = 400
HELD = 5
WAIT_S = 60
Seen = list[tuple[int, bool]]


@contextlib.contextmanager
def connected(url: str) -> Iterator[Any]:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    try:
        yield connection.channel()
    finally:
        with contextlib.suppress(pika.exceptions.AMQPError, OSError):
            connection.close()


class Clients:
    """A publisher and consumers, each of which goes to the next broker when its own is lost."""

    def __init__(self, brokers: list[Broker], queue: str) -> None:
        self.urls = [broker.url for broker in brokers]
        self.queue = queue
        self.confirmed: set[int] = set()
        self.sent_again: set[int] = set()
        self.seen: dict[str, Seen] = {}
        self.errors: list[BaseException] = []
        self.reconnects = 0
        self.killed = threading.Event()
        self.over = threading.Event()
        self._until = time.monotonic() + 4 * WAIT_S

    def _channels(self, first: int) -> Iterator[Any]:
        """A channel on the first broker, then, when the caller lost it, on the next one that answers."""
        number = first
        while time.monotonic() < self._until:
            with contextlib.suppress(pika.exceptions.AMQPError, OSError), connected(self.urls[number % len(self.urls)]) as channel:
                yield channel
            number += 1
            self.reconnects += 1
        raise AssertionError("no broker answers")

    def publish(self, first: int) -> None:
        number = 0
        for channel in self._channels(first):
            with contextlib.suppress(pika.exceptions.AMQPError, OSError):
                channel.confirm_delivery()
                while number < MESSAGES:
                    if number == MESSAGES // 2:
                        self.killed.wait(WAIT_S)
                    channel.basic_publish("orders", "new", b"%d" % number, PERSISTENT, mandatory=True)
                    self.confirmed.add(number)
                    number += 1
                return
            self.sent_again.add(number)

    def consume(self, first: int, name: str, held: int) -> None:
        """`held`: messages that are not acked before the broker is killed."""
        seen = self.seen[name] = []
        for channel in self._channels(first):
            with contextlib.suppress(pika.exceptions.AMQPError, OSError):
                channel.basic_qos(prefetch_count=20)
                for method, _, body in channel.consume(self.queue, inactivity_timeout=0.1):
                    if method is not None:
                        seen.append((int(body), method.redelivered))
                        if len(seen) > held:
                            channel.basic_ack(method.delivery_tag)
                    elif self.over.is_set():
                        channel.cancel()
                        return

    def start(self, target: Any, *arguments: Any) -> threading.Thread:
        def run() -> None:
            try:
                target(*arguments)
            except BaseException as error:
                self.errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def all_seen(self) -> list[tuple[int, bool]]:
        return [one for seen in self.seen.values() for one in list(seen)]


def test_nothing_is_lost_when_one_of_three_brokers_is_killed(cluster: EtcdCluster) -> None:
    with Broker(*on(cluster)) as one, Broker(*on(cluster)) as two, Broker(*on(cluster)) as three:
        brokers = [one, two, three]
        with connected(one.url) as channel:
            channel.exchange_declare("orders", "topic", durable=True)
            channel.queue_declare("three", durable=True, arguments=SHARED)
            channel.queue_bind("three", "orders", "#")
        for broker in brokers[1:]:
            wait_until(lambda broker=broker: has_route(broker), WAIT_S, 0.1, "definitions on the other brokers")
        clients = Clients(brokers, "three")
        consumers = [clients.start(clients.consume, 0, "first", HELD)]
        publisher = clients.start(clients.publish, 0)
        wait_until(lambda: len(clients.all_seen()) >= HELD, WAIT_S, 0.01, "messages at the first consumer")
        held = {number for number, _ in clients.seen["first"][:HELD]}
        consumers.append(clients.start(clients.consume, 1, "second", 0))
        wait_until(lambda: len(clients.confirmed) >= MESSAGES // 4, WAIT_S, 0.01, "confirms")
        one.kill()
        clients.killed.set()
        publisher.join(WAIT_S)
        assert not publisher.is_alive()
        numbers = set(range(MESSAGES))
        wait_until(lambda: {number for number, _ in clients.all_seen()} >= numbers, WAIT_S, 0.1, "all messages at consumers")
        wait_until(lambda: {number for number, again in clients.all_seen() if again} >= held, WAIT_S, 0.1, "what was not acked")
        clients.over.set()
        for consumer in consumers:
            consumer.join(WAIT_S)
        assert not clients.errors
        assert clients.confirmed == numbers
        assert clients.reconnects >= 2, "the publisher and a consumer had the broker that was killed"
        check_order(clients)
        check_times(clients)
        with connected(two.url) as channel:
            channel.queue_delete("three")


def has_route(broker: Broker) -> bool:
    """Whether a broker that was told nothing has the queue and its binding."""
    with connected(broker.url) as channel:
        channel.confirm_delivery()
        try:
            channel.basic_publish("orders", "probe", b"-1", pika.BasicProperties(delivery_mode=2), mandatory=True)
        except pika.exceptions.UnroutableError:
            return False
        except pika.exceptions.ChannelClosedByBroker:  # not even the exchange is there
            return False
        return True


def check_order(clients: Clients) -> None:
    for seen in clients.seen.values():
        fresh = [number for number, redelivered in seen if not redelivered and number >= 0]
        fresh = [number for at, number in enumerate(fresh) if number not in clients.sent_again or number not in fresh[:at]]
        assert fresh == sorted(fresh), "the order of the publisher"


def check_times(clients: Clients) -> None:
    times: dict[int, list[bool]] = {}
    for number, redelivered in clients.all_seen():
        times.setdefault(number, []).append(redelivered)
    for number, flags in times.items():
        if number >= 0:
            assert flags.count(False) <= (2 if number in clients.sent_again else 1), f"{number} came twice without a flag"
