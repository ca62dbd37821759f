"""Messages of a shared queue for programs and people, at its owner: pulls, looks, moves, whether they are in memory or in the engine alone.

Properties: a message that moved is in one place; leases end with the ownership; what is not in memory is read from the engine.
"""

from __future__ import annotations

from typing import Any

from flintmq.shared.layout import Owner, owner_key
from flintmq.testing.broker import Broker
from tests.admin.conftest import Client
from tests.cluster.own_engine import OwnEngine, begin, engine, get, log_of, queue_of
from tests.cluster.test_shared_queues import _put, declared, publish
from tests.support.broker import wait_until
from tests.support.inprocess import connect, heap_of_others, start

__all__ = ["begin", "connect", "engine", "heap_of_others", "start"]
Q = "/api/v1/queues/%2F/s"


def is_empty(broker: Broker, name: str = "s") -> bool:
    core = queue_of(broker, name).core
    return bool(core.ready_count() == core.unacked_count() == 0)


def test_what_is_not_in_memory_is_shown_got_and_pulled_from_the_engine(begin: Any, connect: Any) -> None:
    first = begin()
    publish(declared(first, connect), *(b"%d" % number for number in range(6)))
    first.node.stop()
    broker = begin(shared_hot_bytes=1)
    wait_until(lambda: log_of(broker) is not None)
    client = Client(broker)
    assert queue_of(broker).core.cold_count >= 5
    assert [one["body"] for one in client.get(f"{Q}/peek?count=6").json["messages"]] == [str(number) for number in range(6)]
    asked = {"count": 2, "ackmode": "ack_requeue_false", "encoding": "auto"}
    assert [one["payload"] for one in client.post("/api/queues/%2F/s/get", asked).json] == ["0", "1"]
    pulled = client.post(f"{Q}/messages/pull?count=2&hold=10", {}).json["messages"]
    assert pulled[0]["body"] == "2"
    assert client.post(f"{Q}/messages/ack", {"leases": [one["lease"] for one in pulled]}).json["gone"] == []


def test_messages_move_between_shared_and_other_queues(begin: Any, connect: Any) -> None:
    broker = begin()
    channel, client = declared(broker, connect, "s", "t"), Client(broker)
    channel.queue("plain", durable=True)
    publish(channel, b"1", b"2", b"3")
    for target in ("plain", "t"):
        moved = client.post(f"{Q}/move", {"routing_key": target, "count": 1}).json
        assert (moved["moved"], moved["stopped"]) == (1, None)
    assert (get(channel, "plain").body, get(channel, "t").body) == (b"1", b"2")
    channel.publish(b"4", routing_key="plain", delivery_mode=2)
    channel.expect("basic.ack")
    assert client.post("/api/v1/queues/%2F/plain/move", {"routing_key": "s"}).json["moved"] == 1
    assert [get(channel).body for _ in range(2)] == [b"3", b"4"]
    wait_until(lambda: is_empty(broker))


def test_a_message_whose_copy_the_engine_does_not_take_stays(begin: Any, connect: Any, engine: OwnEngine) -> None:
    broker = begin()
    channel, client = declared(broker, connect), Client(broker)
    channel.queue("plain", durable=True)
    channel.publish(b"1", routing_key="plain", delivery_mode=2)
    channel.expect("basic.ack")
    broker.node.broker.shared.publish = lambda *_: False
    moved = client.post("/api/v1/queues/%2F/plain/move", {"routing_key": "s"}).json
    assert moved["moved"] == 0 and "the engine of shared queues does not take it" in moved["stopped"]
    assert get(channel, "plain").body == b"1"


def test_a_lease_ends_with_the_ownership_and_its_message_is_pulled_again_flagged(begin: Any, connect: Any, engine: OwnEngine) -> None:
    broker = begin()
    channel, client = declared(broker, connect), Client(broker)
    publish(channel, b"1")
    pulled = client.post(f"{Q}/messages/pull?hold=10", {}).json["messages"][0]
    log = log_of(broker)
    _put(engine, owner_key(log._queue), Owner(99, "other", "life").pack())
    channel.publish(b"2", routing_key="s")
    channel.expect("basic.nack")
    wait_until(lambda: log_of(broker) not in (None, log))
    assert client.post(f"{Q}/messages/ack", {"leases": [pulled["lease"]]}).json["gone"] == [pulled["lease"]]
    again = client.post(f"{Q}/messages/pull?hold=10", {}).json["messages"][0]
    assert (again["body"], again["redelivered"]) == ("1", True)
    assert client.post(f"{Q}/messages/ack", {"leases": [again["lease"]]}).json["ok"] == 1
