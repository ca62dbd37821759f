"""Length limits drop, refuse or dead-letter what they say; dead letters carry RabbitMQ's headers and do not go in circles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.broker import wait_until
from tests.support.rawamqp import RawChannel

TO_DEAD = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


@pytest.fixture
def broker(start: Callable[..., Any]) -> Any:
    return start()


@pytest.fixture
def ch(broker: Any, connect: Callable[..., Any]) -> RawChannel:
    return connect(broker).channel()


def drain(channel: RawChannel, queue: str) -> list[bytes]:
    got = []
    while True:
        message = channel.call("basic.get", queue=queue, no_ack=True)
        if message.name == "basic.get-empty":
            return got
        got.append(message.body)


@pytest.mark.parametrize("dead_letters", [False, True])
def test_max_length_drops_the_oldest(ch: RawChannel, dead_letters: bool) -> None:
    ch.queue("dead")
    ch.queue("q", arguments={"x-max-length": 3, **(TO_DEAD if dead_letters else {})})
    for number in range(10):
        ch.publish(b"%d" % number, routing_key="q")
    assert drain(ch, "q") == [b"7", b"8", b"9"]
    assert drain(ch, "dead") == ([b"%d" % number for number in range(7)] if dead_letters else [])


@pytest.mark.parametrize("dead_letters", [False, True])
def test_max_length_bytes_counts_bodies(ch: RawChannel, dead_letters: bool) -> None:
    ch.queue("dead")
    ch.queue("q", arguments={"x-max-length-bytes": 25, **(TO_DEAD if dead_letters else {})})
    for letter in (b"a", b"b", b"c"):
        ch.publish(letter * 10, routing_key="q")
    assert drain(ch, "q") == [b"b" * 10, b"c" * 10]
    assert drain(ch, "dead") == ([b"a" * 10] if dead_letters else [])
    ch.publish(b"z" * 26, routing_key="q")
    assert drain(ch, "q") == []


def test_unacked_messages_do_not_count_for_the_limit(ch: RawChannel) -> None:
    ch.queue("q", arguments={"x-max-length": 2})
    for number in range(2):
        ch.publish(b"%d" % number, routing_key="q")
    held = [ch.call("basic.get", queue="q") for _ in range(2)]
    for number in range(2, 4):
        ch.publish(b"%d" % number, routing_key="q")
    assert ch.ready("q") == 2
    ch.send("basic.nack", delivery_tag=held[1].delivery_tag, multiple=True, requeue=True)
    ch.publish(b"4", routing_key="q")
    assert drain(ch, "q") == [b"3", b"4"]


@pytest.mark.parametrize("limit", [{"x-max-length": 2}, {"x-max-length-bytes": 2}])
def test_reject_publish_nacks_and_keeps_the_oldest(ch: RawChannel, limit: dict[str, int]) -> None:
    ch.queue("q", arguments={**limit, "x-overflow": "reject-publish"})
    ch.call("confirm.select")
    for number in range(4):
        ch.publish(b"%d" % number, routing_key="q")
    results = {}
    while len(results) < 4:
        method = ch.connection.recv(1)
        for tag in range(len(results) + 1, method.delivery_tag + 1):
            results[tag] = method.name
    assert results == {1: "basic.ack", 2: "basic.ack", 3: "basic.nack", 4: "basic.nack"}
    assert drain(ch, "q") == [b"0", b"1"]
    ch.publish(b"5", routing_key="q")
    assert ch.expect("basic.ack").delivery_tag == 5


@pytest.mark.parametrize("mode", ["confirm", "plain"])
def test_reject_publish_dlx_dead_letters_what_it_refuses(ch: RawChannel, mode: str) -> None:
    ch.queue("dead")
    ch.queue("q", arguments={"x-max-length": 1, "x-overflow": "reject-publish-dlx", **TO_DEAD})
    ch.queue("r", arguments={"x-max-length": 0, "x-overflow": "reject-publish-dlx", **TO_DEAD})
    ch.call("exchange.declare", exchange="both", type="fanout")
    for name in ("q", "r"):
        ch.call("queue.bind", queue=name, exchange="both")
    if mode == "confirm":
        ch.call("confirm.select")
    ch.publish(b"0", exchange="both")
    ch.publish(b"1", exchange="both", delivery_mode=2, headers={"a": 1})
    if mode == "confirm":
        assert [ch.connection.recv(1).name for _ in range(2)] == ["basic.nack", "basic.nack"]
    assert drain(ch, "q") == [b"0"]
    dead = [ch.call("basic.get", queue="dead", no_ack=True) for _ in range(3)]
    assert [one.body for one in dead] == [b"0", b"1", b"1"]
    death = dead[1].properties["headers"]["x-death"][0]
    assert (death["reason"], death["count"], death["exchange"]) == ("maxlen", 1, "both")
    assert {one.properties["headers"]["x-death"][0]["queue"] for one in dead[1:]} == {"q", "r"}
    assert dead[1].properties["headers"]["a"] == 1 and dead[1].properties["delivery_mode"] == 2


@pytest.mark.parametrize("how", ["reject", "nack", "nack multiple", "get"])
def test_refused_delivery_is_dead_lettered_with_headers(ch: RawChannel, how: str) -> None:
    ch.call("exchange.declare", exchange="dlx", type="fanout")
    ch.queue("dead")
    ch.call("queue.bind", queue="dead", exchange="dlx")
    ch.queue("q", arguments={"x-dead-letter-exchange": "dlx"})
    ch.publish(b"one", routing_key="q", headers={"mine": "kept"}, content_type="text/plain", priority=3)
    ch.publish(b"two", routing_key="q")
    if how == "get":
        tags = [ch.call("basic.get", queue="q").delivery_tag for _ in range(2)]
    else:
        ch.consume("q", "c")
        tags = [message.delivery_tag for message in ch.deliveries(2)]
    if how == "nack multiple":
        ch.send("basic.nack", delivery_tag=tags[1], multiple=True, requeue=False)
    else:
        for tag in tags:
            ch.send("basic.nack" if how == "nack" else "basic.reject", delivery_tag=tag, requeue=False)
    assert ch.ready("dead") == 2
    first = ch.call("basic.get", queue="dead", no_ack=True)
    headers = first.properties["headers"]
    assert (first.body, first.exchange, first.routing_key) == (b"one", "dlx", "q")
    assert headers["mine"] == "kept" and first.properties["content_type"] == "text/plain" and first.properties["priority"] == 3
    death = headers["x-death"][0]
    assert {name: death[name] for name in ("count", "reason", "queue", "exchange", "routing-keys")} == {
        "count": 1,
        "reason": "rejected",
        "queue": "q",
        "exchange": "",
        "routing-keys": ["q"],
    }
    assert "time" in death
    assert [headers[f"x-first-death-{name}"] for name in ("reason", "queue", "exchange")] == ["rejected", "q", ""]
    assert ch.call("basic.get", queue="dead", no_ack=True).body == b"two"


def test_expired_message_is_dead_lettered_without_its_expiration(ch: RawChannel) -> None:
    ch.queue("dead")
    ch.queue("q", arguments=TO_DEAD)
    ch.publish(b"x", routing_key="q", expiration="20")
    wait_until(lambda: ch.ready("dead") == 1, what="the message is dead-lettered")
    message = ch.call("basic.get", queue="dead")
    assert "expiration" not in message.properties
    death = message.properties["headers"]["x-death"][0]
    assert (death["reason"], death["original-expiration"]) == ("expired", "20")


def test_delayed_retry_counts_and_a_cycle_of_the_broker_alone_ends(ch: RawChannel, broker: Any) -> None:
    # work -reject-> wait -expire-> work: the usual retry loop has a client in it and goes on.
    ch.queue("work", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "wait"})
    ch.queue("wait", arguments={"x-message-ttl": 15, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "work"})
    ch.consume("work", "c")
    ch.publish(b"x", routing_key="work")
    for round_number in range(3):
        message = ch.expect("basic.deliver")
        deaths = (message.properties.get("headers") or {}).get("x-death", [])
        assert [death["count"] for death in deaths] == ([] if round_number == 0 else [round_number, round_number])
        ch.send("basic.reject", delivery_tag=message.delivery_tag, requeue=False)
    ch.send("basic.ack", delivery_tag=ch.expect("basic.deliver").delivery_tag)
    # ring -expire-> ring: nobody but the broker moves it: dropped, counted.
    ch.queue("ring", arguments={"x-message-ttl": 15, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "ring"})
    ch.publish(b"x", routing_key="ring")
    wait_until(lambda: broker.node.broker.counters.drops["dead_letter_cycle"] == 1, what="the cycle is cut")
    assert ch.ready("ring") == 0


def test_dead_letter_queue_keeps_its_own_limit(ch: RawChannel, broker: Any) -> None:
    ch.queue("dead", arguments={"x-max-length": 2})
    ch.queue("full", arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
    ch.call("exchange.declare", exchange="dlx", type="fanout")
    for name in ("dead", "full"):
        ch.call("queue.bind", queue=name, exchange="dlx")
    ch.queue("q", arguments={"x-dead-letter-exchange": "dlx", "x-max-length": 0})
    for number in range(5):
        ch.publish(b"%d" % number, routing_key="q")
    # What is over a limit goes in slices: five letters of q, three that dead drops, three that full refuses.
    counters = broker.node.broker.counters
    wait_until(lambda: (counters.dead_lettered["maxlen"], counters.drops["maxlen"], counters.drops["dead_letter_refused"]) == (5, 3, 3))
    assert drain(ch, "dead") == [b"3", b"4"]
    assert drain(ch, "full") == [b"0", b"1"]


def test_missing_dead_letter_exchange_drops_and_counts(ch: RawChannel, broker: Any) -> None:
    ch.queue("q", arguments={"x-dead-letter-exchange": "nowhere"})
    ch.publish(b"x", routing_key="q")
    ch.send("basic.reject", delivery_tag=ch.call("basic.get", queue="q").delivery_tag, requeue=False)
    assert ch.ready("q") == 0
    assert broker.node.broker.counters.drops["no_dead_letter_exchange"] == 1


def test_rejects_in_a_transaction_are_dead_lettered_at_commit(ch: RawChannel) -> None:
    ch.queue("dead")
    ch.queue("q", arguments=TO_DEAD)
    for number in range(3):
        ch.publish(b"%d" % number, routing_key="q")
    tags = [ch.call("basic.get", queue="q").delivery_tag for _ in range(3)]
    ch.call("tx.select")
    ch.send("basic.reject", delivery_tag=tags[0], requeue=False)
    assert ch.ready("dead") == 0
    ch.call("tx.rollback")
    assert ch.ready("dead") == 0
    ch.send("basic.nack", delivery_tag=tags[1], multiple=True, requeue=False)
    ch.call("tx.commit")
    assert drain(ch, "dead") == [b"0", b"1"]
    ch.send("basic.ack", delivery_tag=tags[2])
    ch.call("tx.commit")
    assert ch.ready("q") == 0


def test_transaction_larger_than_the_limit_is_refused_and_rolled_back(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    channel = connect(start({"tx_bytes_max": 10_000})).channel()
    channel.queue("q")
    channel.call("tx.select")
    for _ in range(9):
        channel.publish(b"x" * 1000, routing_key="q")
    channel.call("tx.commit")
    for _ in range(10):
        channel.publish(b"x" * 1000, routing_key="q")
    channel.expect_close(406, "PRECONDITION_FAILED - transaction is larger than the limit")
    assert channel.connection.channel(2).ready("q") == 9


def test_acks_count_for_the_size_of_a_transaction(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    channel = connect(start({"tx_bytes_max": 1_000})).channel()
    channel.queue("q")
    for _ in range(200):
        channel.publish(b"", routing_key="q")
    channel.consume("q")
    channel.deliveries(200)
    channel.call("tx.select")
    for tag in range(1, 201):
        channel.send("basic.ack", delivery_tag=tag)
    channel.expect_close(406, "transaction is larger than the limit")
    assert channel.connection.channel(2).ready("q") == 200


def test_ack_of_an_unknown_tag_in_a_transaction_is_refused_at_once(ch: RawChannel) -> None:
    ch.queue("q")
    for number in range(3):
        ch.publish(b"%d" % number, routing_key="q")
    ch.consume("q")
    ch.deliveries(3)
    ch.call("tx.select")
    ch.publish(b"never", routing_key="q")
    ch.send("basic.ack", delivery_tag=2)
    ch.refuse(406, "unknown delivery tag 2", "basic.ack", delivery_tag=2)
    assert drain(ch, "q") == [b"0", b"1", b"2"]


def test_rollback_makes_tags_good_again_and_recover_leaves_the_transaction_alone(ch: RawChannel) -> None:
    ch.queue("q")
    for number in range(4):
        ch.publish(b"%d" % number, routing_key="q")
    tag = ch.consume("q")
    ch.deliveries(4)
    ch.call("basic.cancel", consumer_tag=tag)
    ch.call("tx.select")
    ch.send("basic.ack", delivery_tag=2, multiple=True)
    ch.call("tx.rollback")
    ch.send("basic.ack", delivery_tag=1)
    ch.send("basic.ack", delivery_tag=3, multiple=True)
    ch.call("basic.recover", requeue=True)
    assert drain(ch, "q") == [b"3"]
    ch.call("tx.commit")
    assert ch.ready("q") == 0


def test_single_active_consumer_has_the_queue_for_itself(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    broker = start(io_threads=2)
    connections = [connect(broker) for _ in range(3)]
    channels = [connection.channel() for connection in connections]
    channels[0].queue("q", arguments={"x-single-active-consumer": True})
    for number, channel in enumerate(channels):
        channel.consume("q", f"c{number}")
    for number in range(6):
        channels[0].publish(b"%d" % number, routing_key="q")
    assert [message.body for message in channels[0].deliveries(6)] == [b"%d" % number for number in range(6)]
    channels[1].nothing(0.1)
    channels[2].nothing(0.1)
    # The active one goes with what it holds: the next in line gets all of it, in order.
    connections[0].drop()
    assert [(message.body, bool(message.redelivered)) for message in channels[1].deliveries(6)] == [
        (b"%d" % number, True) for number in range(6)
    ]
    channels[2].nothing(0.1)
    channels[1].send("basic.ack", delivery_tag=3, multiple=True)
    channels[1].call("basic.cancel", consumer_tag="c1")
    channels[2].publish(b"new", routing_key="q")
    assert channels[2].expect("basic.deliver").body == b"new"
    channels[1].call("channel.close", reply_code=200, reply_text="", class_id=0, method_id=0)
    assert [message.body for message in channels[2].deliveries(3)] == [b"3", b"4", b"5"]
    assert broker.node.broker.consumers and len(next(iter(broker.node.broker.consumers.values()))) == 1
