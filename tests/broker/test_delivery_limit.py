"""x-delivery-limit ends what comes back too often, x-delivery-count tells how often it did: on queues of every kind, and over restarts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flintmq.testing.broker import Broker
from tests.support.broker import wait_until
from tests.support.rawamqp import RawChannel

Connect = Callable[..., Any]
TO_DEAD = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
LIMIT = {"x-delivery-limit": 2}
KINDS = [{}, {"x-queue-type": "quorum"}, {"x-max-priority": 3}, {"x-queue-type": "classic", "x-queue-mode": "lazy"}]


@pytest.fixture
def broker(start: Callable[..., Any]) -> Any:
    return start()


@pytest.fixture
def ch(broker: Any, connect: Connect) -> RawChannel:
    return connect(broker).channel()


def count_of(message: Any) -> Any:
    return (message.properties.get("headers") or {}).get("x-delivery-count")


def give_back(ch: RawChannel, how: str, tag: int) -> None:
    if how == "recover":
        ch.call("basic.recover", requeue=True)
    elif how == "reject":
        ch.send("basic.reject", delivery_tag=tag, requeue=True)
    else:
        ch.send("basic.nack", delivery_tag=tag, multiple=how == "multiple", requeue=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["reject", "nack", "multiple", "recover"])
def test_the_third_return_is_one_too_many(ch: RawChannel, broker: Any, kind: dict[str, Any], how: str) -> None:
    ch.queue("dead")
    ch.queue("q", durable=True, arguments={**kind, **LIMIT, **TO_DEAD})
    ch.publish(b"poison", routing_key="q", headers={"x-delivery-count": "mine", "kept": 5}, delivery_mode=2)
    ch.consume("q", "c")
    counts = []
    for _ in range(3):
        got = ch.expect("basic.deliver")
        assert got.properties["headers"]["kept"] == 5
        counts.append(count_of(got))
        give_back(ch, how, got.delivery_tag)
    assert counts == ["mine", 1, 2]  # as on RabbitMQ: the field is set with the first redelivery
    ch.wait_ready("dead", 1)
    dead = ch.call("basic.get", queue="dead", no_ack=True)
    assert dead.body == b"poison" and dead.properties["headers"]["x-death"][0]["reason"] == "delivery_limit"
    assert ch.ready("q") == 0
    counters = broker.node.broker.counters
    wait_until(lambda: counters.dead_lettered["delivery_limit"] == 1)
    assert counters.drops["delivery_limit"] == 0
    ch.nothing(0.05)


def test_without_a_dead_letter_exchange_it_is_dropped_and_counted(ch: RawChannel, broker: Any) -> None:
    ch.queue("q", arguments={"x-delivery-limit": 0})
    ch.publish(b"x", routing_key="q")
    ch.send("basic.nack", delivery_tag=ch.call("basic.get", queue="q").delivery_tag, requeue=True)
    assert ch.call("basic.get", queue="q").name == "basic.get-empty"
    assert broker.node.broker.counters.drops["delivery_limit"] == 1


@pytest.mark.parametrize("how", ["channel", "connection"])
def test_a_consumer_that_ends_counts(broker: Any, connect: Connect, how: str) -> None:
    ch = connect(broker).channel()
    ch.queue("dead")
    ch.queue("q", arguments={"x-delivery-limit": 1, **TO_DEAD})
    ch.publish(b"x", routing_key="q")
    for expected in (None, 1):
        other = connect(broker)
        one = other.channel()
        ch.wait_ready("q", 1)
        assert count_of(one.call("basic.get", queue="q")) == expected
        if how == "channel":
            one.call("channel.close", reply_code=200, reply_text="", class_id=0, method_id=0)
        else:
            other.drop()
    ch.wait_ready("dead", 1)


def test_no_limit_and_no_header_unless_asked_for(ch: RawChannel) -> None:
    ch.queue("plain")
    ch.queue("quorum", durable=True, arguments={"x-queue-type": "quorum"})
    for name in ("plain", "quorum"):
        ch.publish(b"x", routing_key=name)
    for round_number in range(30):
        for name in ("plain", "quorum"):
            got = ch.call("basic.get", queue=name)
            assert count_of(got) == (round_number or None if name == "quorum" else None)
            ch.send("basic.nack", delivery_tag=got.delivery_tag, requeue=True)


def test_in_a_transaction(ch: RawChannel) -> None:
    ch.queue("dead")
    ch.queue("q", arguments={"x-delivery-limit": 0, **TO_DEAD})
    ch.publish(b"x", routing_key="q")
    ch.call("tx.select")
    ch.send("basic.nack", delivery_tag=ch.call("basic.get", queue="q").delivery_tag, requeue=True)
    ch.call("tx.commit")
    ch.wait_ready("dead", 1)


def test_another_limit_at_redeclaration_is_refused(ch: RawChannel) -> None:
    ch.queue("q", arguments=LIMIT)
    ch.queue("q", arguments=LIMIT)
    ch.refuse(406, "inequivalent arg 'x-delivery-limit'", "queue.declare", queue="q", arguments={"x-delivery-limit": 3})


def test_counts_survive_restarts(start: Callable[..., Any], connect: Connect, tmp_path: Path) -> None:
    """Two returns before the first restart, one after it: the next one is over the limit. Notes of what ended go."""
    arguments = {"x-queue-type": "quorum", "x-delivery-limit": 3, **TO_DEAD}
    with Broker(data_dir=str(tmp_path)) as first:
        ch = connect(first).channel()
        ch.queue("dead", durable=True)
        ch.queue("q", durable=True, arguments=arguments)
        for body in (b"poison", b"fine"):
            ch.publish(body, routing_key="q", delivery_mode=2)
        for expected in (None, 1):
            both = [ch.call("basic.get", queue="q") for _ in range(2)]
            assert [count_of(one) for one in both] == [expected, expected]
            ch.send("basic.nack", delivery_tag=both[1].delivery_tag, multiple=True, requeue=True)
        assert ch.ready("q") == 2
    again = start(data_dir=str(tmp_path))
    ch = connect(again).channel()
    for expected in (2, 3):
        got = ch.call("basic.get", queue="q")
        assert (got.body, count_of(got), bool(got.redelivered)) == (b"poison", expected, True)
        ch.send("basic.nack", delivery_tag=got.delivery_tag, requeue=True)
    ch.wait_ready("dead", 1)
    fine = ch.call("basic.get", queue="q")
    assert (fine.body, count_of(fine)) == (b"fine", 2)
    ch.send("basic.ack", delivery_tag=fine.delivery_tag)
    wait_until(lambda: len(again.node.broker.delivery_counts) == 0, what="the notes of what ended are removed")


@pytest.mark.parametrize("dead_letters", [False, True])
@pytest.mark.parametrize("how", ["multiple", "recover", "close"])
def test_a_requeue_keeps_the_length_limit_at_once(broker: Any, connect: Connect, dead_letters: bool, how: str) -> None:
    """Nobody publishes, and the housekeeping's next look is not waited for: the answer after the requeue shows it."""
    connection = connect(broker)
    ch, one = connection.channel(1), connection.channel(2)
    ch.queue("dead")
    ch.queue("q", arguments={"x-max-length": 2, **(TO_DEAD if dead_letters else {})})
    broker.node.broker.limited_queues.clear()  # what the housekeeping looks at
    for number in range(6):
        ch.publish(b"%d" % number, routing_key="q")
        if number < 4:
            got = one.call("basic.get", queue="q")
    if how == "close":
        one.call("channel.close", reply_code=200, reply_text="", class_id=0, method_id=0)
    else:
        give_back(one, how, got.delivery_tag)
    if how == "multiple":
        one.call("basic.qos", prefetch_count=0)  # served after the nack
    assert ch.ready("q") == 2
    assert [ch.call("basic.get", queue="q", no_ack=True).body for _ in range(2)] == [b"4", b"5"]
    assert ch.ready("dead") == (4 if dead_letters else 0)
