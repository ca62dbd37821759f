"""Shared queues by their owner: what is confirmed is in the engine, and what the engine does costs shared queues alone.

Properties: confirms wait for the engine; deliveries wait until it knows of consumers; a restart flags what may have been delivered; a queue
that is lost refuses, closes its consumers, and is served again; a name that was deleted is another queue.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from flintmq.config import Limits
from flintmq.engines.engine import Commit
from flintmq.engines.memory import MemoryEngine
from flintmq.shared.layout import Owner, owner_key
from flintmq.testing.broker import Broker
from tests.admin.conftest import Client
from tests.cluster.own_engine import SHARED, OwnEngine, begin, engine, get, log_of
from tests.support.broker import wait_until
from tests.support.inprocess import connect, heap_of_others, start

__all__ = ["begin", "connect", "engine", "heap_of_others", "start"]


def declared(broker: Broker, connect: Any, *names: str, **arguments: Any) -> Any:
    channel = connect(broker).channel()
    for name in names or ("s",):
        channel.queue(name, durable=True, arguments={**SHARED, **arguments})
    channel.call("confirm.select")
    return channel


def publish(channel: Any, *bodies: bytes, name: str = "s") -> None:
    for body in bodies:
        channel.publish(body, routing_key=name)
        channel.expect("basic.ack")


def test_a_confirm_waits_for_the_engine_and_others_do_not(begin: Any, connect: Any, engine: OwnEngine) -> None:
    broker = begin()
    channel, other = declared(broker, connect), connect(broker).channel()
    other.queue("plain", durable=True)
    other.call("confirm.select")
    engine.hold()
    channel.publish(b"waits", routing_key="s")
    waiting = connect(broker).channel()
    waiting.send("queue.declare", queue="new", durable=True, arguments=SHARED)
    for number in range(1, 4):
        other.publish(b"plain", routing_key="plain", delivery_mode=2)
        assert other.expect("basic.ack").delivery_tag == number
        assert get(other, "plain").body == b"plain"
    channel.nothing()
    engine.go_on()
    channel.expect("basic.ack")
    waiting.expect("queue.declare-ok")


def test_deliveries_and_gets_wait_until_the_engine_knows_of_them(begin: Any, connect: Any, engine: OwnEngine) -> None:
    broker = begin()
    channel = declared(broker, connect)
    publish(channel, b"1", b"2", b"3")
    consumer, getter = connect(broker).channel(), connect(broker).channel()
    engine.hold("commit")
    consumer.consume("s", "c")
    getter.send("basic.get", queue="s", no_ack=True)
    assert engine.waiting.wait(20)
    consumer.nothing()
    getter.nothing()
    engine.go_on()
    bodies = {consumer.expect("basic.deliver").body for _ in range(2)}
    bodies.add(getter.connection.recv(getter.number).body if len(bodies) < 3 else b"")
    assert bodies - {b"1", b"2", b"3", b""} == set()


def test_a_restart_flags_what_consumers_had_and_nothing_else(begin: Any, connect: Any, engine: OwnEngine) -> None:
    broker = begin()
    channel = declared(broker, connect, "s", "unseen")
    publish(channel, b"1", b"2", b"3")
    publish(channel, b"1", name="unseen")
    assert get(channel, no_ack=False).body == b"1"
    broker.node.stop()
    channel = connect(begin()).channel()
    assert [(one.body, one.redelivered) for one in (get(channel) for _ in range(3))] == [(b"1", True), (b"2", False), (b"3", False)]
    assert get(channel, "unseen").redelivered is False


def test_after_a_crash_all_is_flagged_that_may_have_been_delivered(begin: Any, connect: Any, engine: OwnEngine) -> None:
    broker = begin()
    channel = declared(broker, connect, "s", "unseen")
    publish(channel, b"1", b"2")
    publish(channel, b"1", name="unseen")
    assert get(channel).body == b"1"
    wait_until(lambda: log_of(broker)._mirror.ended_rows == 0 and log_of(broker)._line is None)
    broker.node.broker.shared._leave = _nothing  # as when the process is killed
    broker.node.stop()
    again = begin()
    channel = connect(again).channel()
    assert (get(channel).redelivered, get(channel).name) == (True, "basic.get-empty")
    assert get(channel, "unseen").redelivered is False


async def _nothing() -> None:
    pass


def test_an_owner_that_lost_its_queue_refuses_closes_its_consumers_and_serves_it_again(begin: Any, connect: Any, engine: OwnEngine) -> None:
    broker = begin()
    channel = declared(broker, connect)
    publish(channel, b"1")
    consumer = connect(broker)
    reader = consumer.channel()
    reader.consume("s", "c")
    assert reader.expect("basic.deliver").body == b"1"
    key = owner_key(log_of(broker)._queue)
    engine.hold("commit")
    other = Owner(99, "other", "life").pack()
    _put(engine, key, other)
    channel.publish(b"2", routing_key="s")
    engine.go_on()
    channel.expect("basic.nack")
    consumer.expect_close(320, "moved")
    wait_until(lambda: log_of(broker) is not None)
    assert log_of(broker).owner.epoch == 100
    publish(channel, b"3")
    got = [get(channel), get(channel)]
    assert [(one.body, one.redelivered) for one in got] == [(b"1", True), (b"3", False)]


def _put(engine: OwnEngine, key: bytes, value: bytes) -> None:
    asyncio.run(MemoryEngine(engine.store, Limits()).commit(Commit((), {key: value})))


def test_a_name_that_was_deleted_is_another_queue_and_leaves_no_row(begin: Any, connect: Any, engine: OwnEngine) -> None:
    broker = begin()
    channel = declared(broker, connect)
    publish(channel, b"1")
    channel.call("queue.delete", queue="s")
    assert not engine.store.rows
    channel = declared(broker, connect)
    assert get(channel).name == "basic.get-empty"
    publish(channel, b"2")
    assert get(channel).body == b"2"


def _request(admin: Client, method: str, path: str, value: dict[str, str]) -> None:
    assert admin.request(method, path, json.dumps(value).encode()).status < 300


def test_what_goes_with_its_virtual_host_leaves_no_row(begin: Any, connect: Any, engine: OwnEngine) -> None:
    broker = begin()
    admin = Client(broker)
    _request(admin, "PUT", "/api/vhosts/v", {})
    _request(admin, "PUT", "/api/permissions/v/guest", {"configure": ".*", "write": ".*", "read": ".*"})
    channel = connect(broker, vhost="v").channel()
    channel.queue("s", durable=True, arguments=SHARED)
    assert engine.store.rows
    _request(admin, "DELETE", "/api/vhosts/v", {})
    wait_until(lambda: not engine.store.rows)


def test_a_deletion_if_empty_asks_the_owner(begin: Any, connect: Any, engine: OwnEngine) -> None:
    broker = begin()
    channel = declared(broker, connect)
    publish(channel, b"1")
    second = connect(broker).channel()
    second.send("queue.delete", queue="s", if_empty=True)
    second.expect_close(406, "not empty")
    publish(channel, b"2")
    assert [get(channel).body, get(channel).body] == [b"1", b"2"]
    channel.call("queue.delete", queue="s", if_empty=True)


def test_another_declaration_has_to_agree(begin: Any, connect: Any, engine: OwnEngine) -> None:
    broker = begin()
    declared(broker, connect)
    channel = connect(broker).channel()
    channel.send("queue.declare", queue="s", durable=True, arguments={**SHARED, "x-max-length": 7})
    channel.expect_close(406, "x-max-length")


def test_a_publish_over_http_is_answered_when_the_engine_has_it_and_a_get_takes_it(begin: Any, connect: Any, engine: OwnEngine) -> None:
    broker = begin()
    declared(broker, connect)
    admin = Client(broker)
    body = {"properties": {}, "routing_key": "s", "payload": "over HTTP", "payload_encoding": "string"}
    assert admin.post("/api/exchanges/%2F/amq.default/publish", body).json == {"routed": True}
    assert b"over HTTP" in b"".join(engine.store.rows.values())
    got = admin.post("/api/queues/%2F/s/get", {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}).json
    assert [one["payload"] for one in got] == ["over HTTP"]


def test_a_purge_is_that_of_the_core(begin: Any, connect: Any, engine: OwnEngine) -> None:
    broker = begin()
    channel = declared(broker, connect)
    publish(channel, b"1", b"2")
    assert channel.call("queue.purge", queue="s").message_count == 2
    publish(channel, b"3")
    assert get(channel).body == b"3"


def test_an_engine_that_does_not_answer_refuses_who_waits_for_it_in_time(begin: Any, connect: Any, engine: OwnEngine) -> None:
    broker = begin(shared_waiting_ms_max=50)
    declared(broker, connect)
    engine.hold()
    for method, arguments in (("queue.declare", {"queue": "t", "durable": True, "arguments": SHARED}), ("basic.get", {"queue": "s"})):
        channel = connect(broker).channel()
        channel.send(method, **arguments)
        channel.connection.expect_close(541, "does not answer")


def test_a_queue_that_was_made_in_the_engine_and_not_here_is_taken_back(begin: Any, connect: Any, engine: OwnEngine) -> None:
    broker = begin(shared_waiting_ms_max=100)
    admin = Client(broker)
    _request(admin, "PUT", "/api/vhost-limits/%2F/max-queues", {"value": 0})  # type: ignore[dict-item]
    channel = connect(broker).channel()
    channel.send("queue.declare", queue="s", durable=True, arguments=SHARED)
    channel.expect_close(406, "queue limit")
    wait_until(lambda: not engine.store.rows)
    _request(admin, "DELETE", "/api/vhost-limits/%2F/max-queues", {})
    publish(declared(broker, connect), b"1")


def test_a_start_waits_for_an_engine_no_longer_than_it_may(begin: Any, connect: Any, engine: OwnEngine) -> None:
    broker = begin()
    publish(declared(broker, connect, "s", "t", "u"), b"1")
    broker.node.stop()
    engine.hold()
    again = begin(shared_waiting_ms_max=100)
    other = connect(again).channel()
    other.queue("plain", durable=True)
    engine.go_on()
    channel = connect(again).channel()
    wait_until(lambda: log_of(again) is not None)
    assert get(channel).body == b"1"
