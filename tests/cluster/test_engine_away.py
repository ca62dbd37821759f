"""Shared queues of a broker whose engine stands still, is away, comes back.

Properties: an engine that is away costs shared queues alone, and neither a loop nor the start of the broker waits for it; what waits is
bounded and counted, and goes on by itself; dead letters, times to live, policies and requests over HTTP do what they do on other queues.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from flintmq.core.memory_account import bytes_by_kind
from flintmq.testing.broker import Broker
from tests.admin.conftest import Client
from tests.cluster.own_engine import SHARED, OwnEngine, begin, engine, get, log_of, queue_of
from tests.support.broker import wait_until
from tests.support.inprocess import connect, heap_of_others, start

__all__ = ["begin", "connect", "engine", "heap_of_others", "start"]


def waiting(broker: Broker) -> int:
    """Bytes of messages that wait for the engine."""
    return int(broker.node.broker.shared.facts()["waiting_bytes"])


def declare(raw: Any, *names: str, **arguments: Any) -> Any:
    channel = raw.channel()
    for name in names:
        channel.queue(name, durable=True, arguments={**SHARED, **arguments})
    channel.call("confirm.select")
    return channel


def publish(channel: Any, body: bytes, name: str = "s", **properties: Any) -> None:
    channel.publish(body, routing_key=name, delivery_mode=2, **properties)


def test_an_engine_that_is_away_keeps_confirms_waiting_refuses_declarations_and_goes_on_by_itself(
    begin: Any, connect: Any, engine: OwnEngine
) -> None:
    broker = begin(shared_waiting_ms_max=100)
    channel = declare(connect(broker), "s")
    publish(channel, b"before")
    channel.expect("basic.ack")
    engine.plan.away = True
    publish(channel, b"waits")
    other = connect(broker)
    other.channel().send("queue.declare", queue="n", durable=True, arguments=SHARED)
    other.expect_close(541, "the engine of shared queues does not answer")
    channel.nothing()
    engine.plan.away = False
    channel.expect("basic.ack")
    publish(channel, b"after")
    channel.expect("basic.ack")
    assert [get(channel).body for _ in range(3)] == [b"before", b"waits", b"after"]


def test_a_broker_starts_without_its_engine(begin: Any, connect: Any, engine: OwnEngine) -> None:
    channel = declare(connect(first := begin()), "s")
    publish(channel, b"kept")
    channel.expect("basic.ack")
    first.node.stop()
    engine.plan.away = True
    second = begin(shared_waiting_ms_max=100)
    other = connect(second).channel()
    other.queue("plain", durable=True)
    publish(other, b"p", "plain")
    assert get(other, "plain").body == b"p"
    refused = connect(second)
    refused.channel().send("basic.get", queue="s", no_ack=True)
    refused.expect_close(541, "the engine of shared queues does not answer")
    engine.plan.away = False
    wait_until(lambda: log_of(second) is not None)
    assert get(other).body == b"kept"


def test_what_waits_is_bounded_by_queue_and_virtual_host_and_counted(begin: Any, connect: Any, engine: OwnEngine) -> None:
    broker = begin(shared_waiting_bytes_max=10_000, shared_vhost_waiting_bytes_max=15_000)
    channel = declare(connect(broker), "s", "t", "u")
    before = bytes_by_kind()["entries"]
    engine.hold("commit")
    for _ in range(4):  # some 4,500 bytes each: two fit
        publish(channel, bytes(4_000))
    for _ in range(3):  # one more of the virtual host
        publish(channel, bytes(4_000), "t")
    publish(channel, bytes(4_000), "u")
    channel.call("basic.qos", prefetch_count=1)  # its answer comes behind the publishes
    assert 12_000 <= waiting(broker) <= 15_000
    assert sum(bytes_by_kind().values()) > 0 and bytes_by_kind()["entries"] >= before
    engine.go_on()
    wait_until(lambda: waiting(broker) == 0)
    publish(channel, bytes(20_000))  # larger than the bound: alone it is taken
    answers = [channel.connection.recv(1)]
    while answers[-1].delivery_tag < 9 or answers[-1].name == "basic.nack":
        answers.append(channel.connection.recv(1))
    assert sorted(one.delivery_tag for one in answers if one.name == "basic.nack") == [3, 4, 6, 7, 8]
    assert queue_of(broker).core.ready_count() == 3


def test_a_publisher_that_goes_leaves_nothing_behind(begin: Any, connect: Any, engine: OwnEngine) -> None:
    broker = begin()
    gone, channel = connect(broker), declare(connect(broker), "s")
    leaving = gone.channel()
    leaving.call("confirm.select")
    engine.hold("commit")
    publish(leaving, b"a")
    publish(leaving, b"b")
    wait_until(lambda: waiting(broker) > 0)
    leaving.call("basic.qos", prefetch_count=1)  # its answer comes behind the publishes
    gone.drop()
    wait_until(lambda: len(broker.node.broker.connections) == 1)
    engine.go_on()
    wait_until(lambda: waiting(broker) == 0)
    assert [get(channel).body for _ in range(2)] == [b"a", b"b"]


def test_a_deleted_queue_refuses_what_waits(begin: Any, connect: Any, engine: OwnEngine) -> None:
    broker = begin()
    channel = declare(connect(broker), "s")
    publish(channel, b"a")
    channel.expect("basic.ack")
    engine.plan.away = True
    publish(channel, b"b")
    wait_until(lambda: waiting(broker) > 0)
    vhost = broker.node.broker.vhosts["/"]
    vhost.run(vhost.delete_queue("s"))  # as its virtual host's end does: without the engine
    channel.expect("basic.nack")
    engine.plan.away = False
    wait_until(lambda: not engine.store.rows, what="its rows go when the engine is back")
    publish(channel, b"c")  # its connection remembered the queue until now
    channel.expect("basic.ack")
    wait_until(lambda: waiting(broker) == 0)


def test_a_paused_queue_delivers_nothing(begin: Any, connect: Any, engine: OwnEngine) -> None:
    broker = begin()
    channel = declare(connect(broker), "s")
    broker.node.broker.pauses.set(queue_of(broker), True)
    channel.consume("s", no_ack=True)
    for number in range(3):
        publish(channel, b"%d" % number)
    while channel.expect("basic.ack").delivery_tag < 3:
        pass
    channel.nothing()
    broker.node.broker.pauses.set(queue_of(broker), False)
    assert [one.body for one in channel.deliveries(3)] == [b"0", b"1", b"2"]


def test_time_to_live_of_queue_and_message(begin: Any, connect: Any, engine: OwnEngine) -> None:
    broker = begin()
    channel = declare(connect(broker), "s", **{"x-message-ttl": 1})
    channel.queue("t", durable=True, arguments=SHARED)
    publish(channel, b"by the queue")
    publish(channel, b"by itself", "t", expiration="1")
    publish(channel, b"stays", "t")
    while channel.expect("basic.ack").delivery_tag < 3:
        pass
    wait_until(lambda: queue_of(broker).core.ready_count() == 0, what="nobody consumes, and it ends all the same")
    wait_until(lambda: queue_of(broker, "t").core.ready_count() == 1)
    assert get(channel, "t").body == b"stays"
    assert get(channel).name == "basic.get-empty"
    wait_until(lambda: broker.node.broker.counters.drops["expired"] == 2)


@pytest.mark.parametrize("strategy", ["at-most-once", "at-least-once"])
def test_dead_letters_of_other_kinds_go_into_a_shared_queue(begin: Any, connect: Any, engine: OwnEngine, strategy: str) -> None:
    broker = begin(dead_letter_retry_ms=5)
    channel = declare(connect(broker), "s")
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "s", "x-dead-letter-strategy": strategy}
    if strategy == "at-least-once":
        letters |= {"x-queue-type": "quorum", "x-overflow": "reject-publish"}
        engine.hold("commit")
    channel.queue("q", durable=True, arguments=letters)
    for number in range(3):
        publish(channel, b"%d" % number, "q")
        channel.expect("basic.ack")
        channel.send("basic.get", queue="q")
        channel.send("basic.reject", delivery_tag=channel.connection.recv(1).delivery_tag, requeue=False)
    engine.go_on()
    wait_until(lambda: queue_of(broker).core.ready_count() == 3)
    got = [get(channel) for _ in range(3)]
    assert sorted(one.body for one in got) == [b"0", b"1", b"2"]
    wait_until(lambda: queue_of(broker, "q").core.ready_count() + queue_of(broker, "q").core.unacked_count() == 0)
    assert get(channel).name == "basic.get-empty"


def test_http_publishes_purges_and_deletes(begin: Any, connect: Any, engine: OwnEngine) -> None:
    broker = begin()
    channel = declare(connect(broker), "s")
    client = Client(broker)
    answer = client.post("/api/v1/queues/%2F/s/messages", {"body": "one"})
    assert answer.status == 201, answer.raw
    assert answer.json["durable"] is True
    publish(channel, b"two")
    channel.expect("basic.ack")
    assert get(channel).body == b"one"
    wait_until(lambda: client.get("/api/queues/%2F/s").json["messages_ready"] == 1)
    assert client.request("DELETE", "/api/queues/%2F/s/contents").status == 204
    wait_until(lambda: queue_of(broker).core.ready_count() == 0)
    publish(channel, b"three")
    channel.expect("basic.ack")
    refused = client.request("DELETE", "/api/queues/%2F/s?if-empty=true")
    assert refused.status == 400 and b"not empty" in refused.raw
    assert client.request("DELETE", "/api/queues/%2F/s").status == 204
    assert client.get("/api/queues/%2F/s").status == 404
    wait_until(lambda: not engine.store.rows)


def test_delete_if_unused_and_one_queue_too_many(begin: Any, connect: Any, engine: OwnEngine) -> None:
    broker = begin(shared_queues_max=1)
    channel = declare(connect(broker), "s")
    connect(broker).channel().refuse(406, "limit (1)", "queue.declare", queue="u", durable=True, arguments=SHARED)
    consumer = connect(broker)
    consumer.channel().consume("s")
    connect(broker).channel().refuse(406, "queue 's' in vhost '/' in use", "queue.delete", queue="s", if_unused=True)
    consumer.drop()
    wait_until(lambda: queue_of(broker).core.consumer_count() == 0)
    assert channel.call("queue.delete", queue="s", if_empty=True, if_unused=True).message_count == 0


def test_policies_are_those_of_the_queue(begin: Any, connect: Any, engine: OwnEngine) -> None:
    broker = begin()
    channel = declare(connect(broker), "s")
    body = {"pattern": ".*", "definition": {"message-ttl": 1, "max-length": 1}, "apply-to": "queues", "priority": 1}
    assert Client(broker).request("PUT", "/api/policies/%2F/p", json.dumps(body).encode()).status in (201, 204)
    wait_until(lambda: queue_of(broker).core.ttl_ms == 1)
    assert queue_of(broker).policy.max_length == 1
    for _ in range(3):
        publish(channel, b"x")
    while channel.expect("basic.ack").delivery_tag < 3:
        pass
    wait_until(lambda: queue_of(broker).core.ready_count() == 0)
