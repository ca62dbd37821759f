"""Shared queues over the wire: pika against brokers, on the embedded engine and on etcd.

Properties: a confirm means that the engine has the message; nothing confirmed is lost by kill -9; what comes twice is flagged; two brokers
serve one queue; what shared queues do not do yet is refused in words.
"""

from __future__ import annotations

import base64
import contextlib
import os
import signal
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.support.broker import Broker, wait_until
from tests.support.etcd import EtcdCluster

SHARED = {"x-queue-type": "shared"}
PERSISTENT = pika.BasicProperties(delivery_mode=2)
WAIT_S = 60


@contextlib.contextmanager
def channel_of(broker: Broker) -> Iterator[Any]:
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    channel = connection.channel()
    channel.confirm_delivery()
    try:
        yield channel
    finally:
        with contextlib.suppress(pika.exceptions.AMQPError):
            connection.close()


def drain(channel: Any, queue: str, count: int, ack: bool = True) -> list[tuple[bytes, bool]]:
    got: list[tuple[bytes, bool]] = []
    for method, _, body in channel.consume(queue, inactivity_timeout=WAIT_S):
        if method is None:
            break
        got.append((body, method.redelivered))
        if ack:
            channel.basic_ack(method.delivery_tag)
        if len(got) == count:
            break
    channel.cancel()
    return got


def publish(channel: Any, queue: str, *bodies: bytes) -> None:
    for body in bodies:
        channel.basic_publish("", queue, body, PERSISTENT, mandatory=True)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as made:
        yield made


@pytest.fixture
def queue(broker: Broker, request: pytest.FixtureRequest) -> Iterator[str]:
    name = request.node.name
    with channel_of(broker) as channel:
        channel.queue_declare(name, durable=True, arguments=SHARED)
    yield name
    with channel_of(broker) as channel:
        channel.queue_delete(name)


def test_messages_come_in_order_and_as_they_were(broker: Broker, queue: str) -> None:
    bodies = [b"%d" % number for number in range(50)] + [b"", bytes(5_000), bytes(300_000)]
    properties = pika.BasicProperties(headers={"a": [1, "b"]}, content_type="text/plain", priority=3)
    with channel_of(broker) as channel:
        for body in bodies:
            channel.basic_publish("", queue, body, properties)
        assert channel.queue_declare(queue, passive=True).method.message_count == len(bodies)
        method, got, body = channel.basic_get(queue)
        assert (body, got.headers, got.content_type, got.priority) == (b"0", {"a": [1, "b"]}, "text/plain", 3)
        channel.basic_ack(method.delivery_tag)
        assert drain(channel, queue, len(bodies) - 1) == [(body, False) for body in bodies[1:]]
        assert channel.basic_get(queue) == (None, None, None)


def test_reject_and_nack(broker: Broker, queue: str) -> None:
    with channel_of(broker) as channel:
        publish(channel, queue, b"one", b"two")
        method, _, _ = channel.basic_get(queue)
        channel.basic_nack(method.delivery_tag, requeue=True)
        assert drain(channel, queue, 2, ack=False) == [(b"one", True), (b"two", False)]
    with channel_of(broker) as channel:  # the channel ended with both unacked
        method, _, body = channel.basic_get(queue)
        assert (body, method.redelivered) == (b"one", True)
        channel.basic_reject(method.delivery_tag, requeue=False)
        assert drain(channel, queue, 1) == [(b"two", True)]


def test_purge_takes_what_nobody_has(broker: Broker, queue: str) -> None:
    with channel_of(broker) as channel:
        publish(channel, queue, *(b"%d" % number for number in range(30)))
        held, _, _ = channel.basic_get(queue)
        assert channel.queue_purge(queue).method.message_count == 29
        channel.basic_nack(held.delivery_tag, requeue=True)
        assert drain(channel, queue, 1) == [(b"0", True)]


def test_a_deleted_queue_comes_back_empty(broker: Broker) -> None:
    with channel_of(broker) as channel:
        channel.queue_declare("again", durable=True, arguments=SHARED)
        publish(channel, "again", b"old")
        assert channel.queue_delete("again").method.message_count == 1
        channel.queue_declare("again", durable=True, arguments=SHARED)
        publish(channel, "again", b"new")
        assert drain(channel, "again", 1) == [(b"new", False)]
        channel.queue_delete("again")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"durable": False}, "non-durable"),
        ({"durable": True, "auto_delete": True}, "auto-delete"),
        ({"durable": True, "exclusive": True}, "exclusive-owner"),
        ({"durable": True, "arguments": {"x-last-value-key": "k"}}, "x-last-value-key"),
        ({"durable": True, "arguments": {"x-overflow": "block"}}, "x-overflow"),
        ({"durable": True, "arguments": {"x-shared-order": "none"}}, "x-shared-order"),
    ],
)
def test_what_shared_queues_do_not_do_is_refused(broker: Broker, options: dict[str, Any], told: str) -> None:
    arguments = {**SHARED, **options.pop("arguments", {})}
    with channel_of(broker) as channel:
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match=told):
            channel.queue_declare("refused", arguments=arguments, **options)


def test_a_topic_reaches_shared_and_other_queues(broker: Broker, queue: str) -> None:
    with channel_of(broker) as channel:
        channel.queue_declare("beside", durable=True)
        channel.exchange_declare("both", "fanout")
        for name in (queue, "beside"):
            channel.queue_bind(name, "both")
        for number in range(20):
            channel.basic_publish("both", "", b"%d" % number, PERSISTENT, mandatory=True)
        assert drain(channel, queue, 20) == drain(channel, "beside", 20)
        channel.queue_delete("beside")


def test_kill_9_loses_nothing_that_was_confirmed(tmp_path: Path) -> None:
    arguments = ("--store-dir", str(tmp_path / "store"))
    with Broker(*arguments) as first:
        with channel_of(first) as channel:
            channel.queue_declare("kept", durable=True, arguments=SHARED)
            publish(channel, "kept", *(b"%03d" % number for number in range(60)))
            assert len(drain(channel, "kept", 20)) == 20
            held = [channel.basic_get("kept") for _ in range(5)]
            assert [body for _, _, body in held] == [b"%03d" % number for number in range(20, 25)]
            first.kill()
    with Broker(*arguments) as second, channel_of(second) as channel:
        got: list[tuple[bytes, bool]] = []
        while not got or got[-1][0] != b"059":
            got += drain(channel, "kept", 1)
        bodies = [body for body, _ in got]
        assert bodies == sorted(set(bodies)), "each once, in order"
        assert bodies[-40:] == [b"%03d" % number for number in range(20, 60)]
        seen = {body for body, redelivered in got if redelivered}
        assert seen >= {body for body in bodies if body < b"025"}, "acks that were on their way, and what was not acked"


def on(cluster: EtcdCluster) -> tuple[str, str]:
    return "--cluster", "etcd://" + ",".join(endpoint.removeprefix("http://") for endpoint in cluster.endpoints)


def test_dead_letters_of_two_brokers_outlive_one_that_is_killed(cluster: EtcdCluster) -> None:
    """Each message is in the dead-letter queue in the end, shared as well, though a broker died with letters on their way."""
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", "x-delivery-limit": 1}
    with Broker(*on(cluster)) as one, Broker(*on(cluster)) as other:
        with channel_of(one) as here, channel_of(other) as there:
            for channel in (here, there):
                channel.queue_declare("dead", durable=True, arguments=SHARED)
                channel.queue_declare("alive", durable=True, arguments={**SHARED, **letters})
            bodies = [b"%02d" % number for number in range(40)]
            publish(here, "alive", *bodies)
            there.basic_qos(prefetch_count=10)
            for count, (method, _, _) in enumerate(there.consume("alive", inactivity_timeout=WAIT_S)):
                there.basic_reject(method.delivery_tag, requeue=False)
                if count == 20:
                    other.kill()
                    break
            until = time.monotonic() + WAIT_S
            dead: set[bytes] = set()
            while dead != set(bodies):
                assert time.monotonic() < until, "the rest never came"
                method, _, _ = here.basic_get("alive")
                if method is not None:
                    here.basic_reject(method.delivery_tag, requeue=False)
                method, _, body = here.basic_get("dead", auto_ack=True)
                if method is not None:
                    dead.add(body)
            for name in ("alive", "dead"):
                here.queue_delete(name)


def test_two_brokers_serve_one_queue_and_one_is_killed(cluster: EtcdCluster) -> None:
    with Broker(*on(cluster)) as one, Broker(*on(cluster)) as other:
        with channel_of(one) as here, channel_of(other) as there:
            for channel in (here, there):
                channel.queue_declare("pair", durable=True, arguments=SHARED)
            publish(here, "pair", b"0", b"1", b"2", b"3")
            publish(there, "pair", b"4", b"5")
            assert [there.basic_get("pair")[2] for _ in range(2)] == [b"0", b"1"]
            assert [body for body, _ in drain(here, "pair", 2)] == [b"2", b"3"]
            other.kill()
            got = drain(here, "pair", 4)
            assert sorted(body for body, _ in got) == [b"0", b"1", b"4", b"5"]
            assert {body for body, redelivered in got if redelivered} >= {b"0", b"1"}
            here.queue_delete("pair")


def test_an_owner_that_was_stopped_past_its_lease_settles_nothing(cluster: EtcdCluster) -> None:
    """Its client acks a message that another broker gave to somebody else meanwhile: the ack of the one who has it counts."""
    with Broker(*on(cluster)) as one, Broker(*on(cluster)) as other:
        with channel_of(one) as here, channel_of(other) as there:
            for channel in (here, there):
                channel.queue_declare("owned", durable=True, arguments=SHARED)
            publish(here, "owned", b"a", b"b")
            stale = [there.basic_get("owned")[0] for _ in range(2)]
            assert other.pid is not None
            os.kill(other.pid, signal.SIGSTOP)
            try:
                got = [next(here.consume("owned", inactivity_timeout=WAIT_S)) for _ in range(2)]
            finally:
                os.kill(other.pid, signal.SIGCONT)
            assert [(body, method.redelivered) for method, _, body in got] == [(b"a", True), (b"b", True)]
            for method in stale:
                there.basic_ack(method.delivery_tag)
            publish(there, "owned", b"the other one lives again")
            there.connection.close()
            here.basic_nack(got[0][0].delivery_tag, requeue=True)
            here.basic_ack(got[1][0].delivery_tag)
            assert sorted(drain(here, "owned", 2)) == [(b"a", True), (b"the other one lives again", False)]
            here.queue_delete("owned")


def test_a_queue_deleted_on_one_broker_goes_on_the_other(cluster: EtcdCluster) -> None:
    with Broker(*on(cluster)) as one, Broker(*on(cluster)) as other:
        with channel_of(one) as here, channel_of(other) as there:
            for channel in (here, there):
                channel.queue_declare("gone", durable=True, arguments=SHARED)
            publish(there, "gone", b"x")
            here.queue_delete("gone")

            def is_gone() -> bool:
                probe = there.connection.channel()
                try:
                    probe.queue_declare("gone", passive=True)
                    return False
                except pika.exceptions.ChannelClosedByBroker:
                    return True

            wait_until(is_gone, WAIT_S, 0.2, "the queue is there")


def metrics(broker: Broker) -> dict[str, float]:
    """Figures of shared queues by name."""
    request = urllib.request.Request(f"http://127.0.0.1:{broker.ready['http_port']}/metrics")
    request.add_header("Authorization", "Basic " + base64.b64encode(b"guest:guest").decode())
    with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, _, value in (line.partition(" ") for line in lines if line.startswith("flintmq_shared_"))}


def test_many_takers_of_two_brokers_get_each_message_once(cluster: EtcdCluster) -> None:
    """64 consumers that take one message at a time."""
    messages, takers = 320, 32
    got: list[tuple[bytes, bool]] = []

    def take(channel: Any, method: Any, properties: Any, body: bytes) -> None:
        got.append((body, method.redelivered))
        channel.basic_ack(method.delivery_tag)

    with Broker(*on(cluster), "--http-port", "0") as one, Broker(*on(cluster), "--http-port", "0") as other:
        with channel_of(one) as here, channel_of(other) as there:
            for channel in (here, there):
                channel.queue_declare("many", durable=True, arguments=SHARED)
            publish(here, "many", *(b"%d" % number for number in range(messages)))
            for channel in (here, there):
                for _ in range(takers):
                    consumer = channel.connection.channel()
                    consumer.basic_qos(prefetch_count=1)
                    consumer.basic_consume("many", take)
            until = time.monotonic() + WAIT_S
            while len(got) < messages and time.monotonic() < until:
                for channel in (here, there):
                    channel.connection.process_data_events(0.01)
            assert sorted(int(body) for body, _ in got) == list(range(messages))
            assert not any(redelivered for _, redelivered in got)
            assert [metrics(broker)["flintmq_shared_engine_failures_total"] for broker in (one, other)] == [0, 0]
            here.queue_delete("many")


def test_the_active_consumer_of_a_killed_broker_is_followed_in_priority_order(cluster: EtcdCluster) -> None:
    arguments = {**SHARED, "x-single-active-consumer": True, "x-max-priority": 3}
    with Broker(*on(cluster)) as one, Broker(*on(cluster)) as other:
        with channel_of(one) as here, channel_of(other) as there:
            for channel in (here, there):
                channel.queue_declare("single", durable=True, arguments=arguments)
            for body, priority in ((b"low", 0), (b"top", 3), (b"mid", 1)):
                here.basic_publish("", "single", body, pika.BasicProperties(delivery_mode=2, priority=priority), mandatory=True)
            there.basic_qos(prefetch_count=2)
            held = [next(there.consume("single", inactivity_timeout=WAIT_S))[2] for _ in range(2)]
            assert held == [b"top", b"mid"]
            here.basic_qos(prefetch_count=10)
            assert next(here.consume("single", inactivity_timeout=1)) == (None, None, None), "the other node is active"
            other.kill()
            began = time.monotonic()
            got = [next(here.consume("single", inactivity_timeout=WAIT_S)) for _ in range(3)]
            assert time.monotonic() - began < 5 + 15, "a lease, and a look; the machine may be busy"
            assert [(body, method.redelivered) for method, _, body in got] == [(b"top", True), (b"mid", True), (b"low", False)]
            here.cancel()
            here.queue_delete("single")
