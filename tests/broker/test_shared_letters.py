"""Dead letters, delivery counts and length limits of shared queues, over the wire, on an engine that does what the test wants.

Properties: a message that died is in its queue, or its letter is with each target for good; a letter that can't be placed waits, or is
dropped, as x-dead-letter-strategy says; what waits is bounded; counts of deliveries and limits are those of the queue.
"""

from __future__ import annotations

from typing import Any

import pytest

from flintmq.broker.shared_letters import _REFUSED_AT_ONCE
from flintmq.testing.broker import Broker
from tests.cluster.own_engine import SHARED, OwnEngine, begin, engine, get, queue_of
from tests.cluster.test_engine_away import declare, publish
from tests.support.broker import wait_until

__all__ = ["begin", "engine"]

LETTERS = {**SHARED, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dlq"}
FAST = {"dead_letter_retry_ms": 5, "dead_letter_retry_max_ms": 5}
STREAM = {"x-queue-type": "stream"}


async def _nothing() -> None:
    """No queue is left as it should be."""


def service(broker: Broker) -> Any:
    return broker.node.broker.shared


def core(broker: Broker, name: str = "s") -> Any:
    return queue_of(broker, name).core


def take(channel: Any, name: str = "s") -> Any:
    """A message of the queue, not acked."""
    channel.send("basic.get", queue=name)
    return channel.connection.recv(channel.number)


def settled(broker: Any, name: str = "s") -> None:
    """Until nothing of the queue is in the engine, nor waits."""

    def is_empty() -> bool:
        counts = service(broker).letters.waiting(broker.node.broker.vhosts["/"].queues[name].queue_id)
        return counts == (0, 0) and core(broker, name).ready_count() == core(broker, name).unacked_count() == 0

    wait_until(is_empty, what=f"{name} is not empty")


def wait_for(broker: Any, name: str, count: int) -> None:
    wait_until(lambda: core(broker, name).ready_count() == count, what=f"{name} has not {count} messages")


def rejected(channel: Any, *bodies: bytes) -> None:
    for body in bodies:
        publish(channel, body)
        channel.expect("basic.ack")
        got = take(channel)
        assert got.body == body
        channel.send("basic.reject", delivery_tag=got.delivery_tag, requeue=False)


def deaths(got: Any) -> list[tuple[str, str, int]]:
    return [(one["queue"], one["reason"], one["count"]) for one in got.properties["headers"]["x-death"]]


@pytest.mark.parametrize("kind", [{}, SHARED, {"x-queue-type": "quorum"}])
def test_what_is_rejected_goes_to_another_queue_and_leaves_its_own(
    begin: Any, connect: Any, engine: OwnEngine, kind: dict[str, str]
) -> None:
    broker = begin(**FAST)
    channel = connect(broker).channel()
    channel.queue("s", durable=True, arguments=LETTERS)
    channel.queue("dlq", durable=True, arguments=kind)
    channel.call("confirm.select")
    rejected(channel, b"one", b"two", bytes(5_000))
    wait_for(broker, "dlq", 3)
    settled(broker)
    got = [get(channel, "dlq") for _ in range(3)]
    assert [one.body for one in got] == [b"one", b"two", bytes(5_000)]
    assert [deaths(one) for one in got] == [[("s", "rejected", 1)]] * 3
    wait_until(lambda: broker.node.broker.counters.dead_lettered["rejected"] == 3)


def test_letters_on_a_stream(begin: Any, connect: Any, engine: OwnEngine) -> None:
    broker = begin(**FAST)
    channel = connect(broker).channel()
    channel.queue("s", durable=True, arguments=LETTERS)
    channel.queue("dlq", durable=True, arguments=STREAM)
    channel.call("confirm.select")
    rejected(channel, b"one", b"two")
    settled(broker)
    wait_for(broker, "dlq", 2)


def test_what_expires_has_a_letter_though_nobody_consumes(begin: Any, connect: Any, engine: OwnEngine) -> None:
    broker = begin(**FAST)
    channel = connect(broker).channel()
    channel.queue("s", durable=True, arguments={**LETTERS, "x-message-ttl": 1})
    channel.queue("dlq", durable=True)
    channel.call("confirm.select")
    for number in range(5):
        publish(channel, b"%d" % number)
        channel.expect("basic.ack")
    wait_for(broker, "dlq", 5)
    settled(broker)
    got = [get(channel, "dlq") for _ in range(5)]
    assert [one.body for one in got] == [b"%d" % number for number in range(5)]
    assert deaths(got[0]) == [("s", "expired", 1)]
    wait_until(lambda: broker.node.broker.counters.dead_lettered["expired"] == 5)
    assert broker.node.broker.counters.drops["expired"] == 0


def test_a_queue_of_retries_that_leads_back(begin: Any, connect: Any, engine: OwnEngine) -> None:
    """Reject to a queue with a time to live, whose letters come back: both are shared."""
    broker = begin(**FAST)
    channel = connect(broker).channel()
    channel.queue("s", durable=True, arguments=LETTERS)
    back = {**SHARED, "x-message-ttl": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "s"}
    channel.queue("dlq", durable=True, arguments=back)
    channel.call("confirm.select")
    rejected(channel, b"again")
    wait_for(broker, "s", 1)
    got = take(channel)
    assert (got.body, deaths(got)) == (b"again", [("dlq", "expired", 1), ("s", "rejected", 1)])


@pytest.mark.parametrize("target", [None, "dlq"])
def test_who_comes_back_too_often_ends(begin: Any, connect: Any, engine: OwnEngine, target: str | None) -> None:
    broker = begin(**FAST)
    channel = connect(broker).channel()
    channel.queue("s", durable=True, arguments={**(LETTERS if target else SHARED), "x-delivery-limit": 2})
    channel.queue("dlq", durable=True)
    channel.call("confirm.select")
    publish(channel, b"poison")
    channel.expect("basic.ack")
    counts = []
    for _ in range(3):
        wait_for(broker, "s", 1)
        got = take(channel)
        counts.append((got.properties.get("headers") or {}).get("x-delivery-count"))
        channel.send("basic.nack", delivery_tag=got.delivery_tag, multiple=False, requeue=True)
    assert counts == [None, 1, 2]
    settled(broker)
    wait_for(broker, "dlq", 1 if target else 0)
    if target:
        assert deaths(get(channel, "dlq")) == [("s", "delivery_limit", 1)]
    counters = broker.node.broker.counters
    wait_until(lambda: counters.drops["delivery_limit"] + counters.dead_lettered["delivery_limit"] == 1)
    assert counters.dead_lettered["delivery_limit"] == (1 if target else 0)


def test_counts_of_deliveries_survive_the_broker(begin: Any, connect: Any, engine: OwnEngine) -> None:
    broker = begin(**FAST)
    channel = declare(connect(broker), "s")
    publish(channel, b"counted")
    channel.expect("basic.ack")
    for _ in range(2):
        wait_for(broker, "s", 1)
        channel.send("basic.nack", delivery_tag=take(channel).delivery_tag, multiple=False, requeue=True)
    channel.call("basic.qos")  # the nack has been read: what is ready elsewhere is counted late
    wait_for(broker, "s", 1)
    broker.node.stop()
    again = begin(**FAST)
    channel = connect(again).channel()
    wait_for(again, "s", 1)
    got = take(channel)
    assert got.properties["headers"]["x-delivery-count"] == 2
    assert got.redelivered


def test_a_letter_waits_for_its_exchange_or_is_dropped(begin: Any, connect: Any, engine: OwnEngine) -> None:
    broker = begin(**FAST)
    channel = connect(broker).channel()
    channel.queue("dlq", durable=True)
    channel.queue("s", durable=True, arguments={**SHARED, "x-dead-letter-exchange": "later"})
    channel.call("confirm.select")
    rejected(channel, b"dropped")
    settled(broker)
    wait_until(lambda: broker.node.broker.counters.drops["no_dead_letter_exchange"] == 1)
    channel.call("queue.delete", queue="s")
    patient = {**SHARED, "x-dead-letter-exchange": "later", "x-dead-letter-strategy": "at-least-once"}
    channel.queue("s", durable=True, arguments=patient)
    rejected(channel, b"one", b"two", b"three")
    queue_id = broker.node.broker.vhosts["/"].queues["s"].queue_id
    wait_until(lambda: service(broker).letters.waiting(queue_id) == (3, 11))
    channel.call("exchange.declare", exchange="later", type="fanout", durable=True)
    channel.call("queue.bind", queue="dlq", exchange="later", routing_key="")
    wait_for(broker, "dlq", 3)
    settled(broker)
    # The first may have been looked at between the exchange and its binding: a look goes on behind what found no route.
    assert sorted(get(channel, "dlq").body for _ in range(3)) == [b"one", b"three", b"two"]


def test_a_broker_that_dies_before_the_end_of_the_original_leaves_both(begin: Any, connect: Any, engine: OwnEngine) -> None:
    """The letter is on disk here, and the engine was never told: at least once."""
    broker = begin(**FAST)
    channel = connect(broker).channel()
    channel.queue("s", durable=True, arguments=LETTERS)
    channel.queue("dlq", durable=True)
    channel.call("confirm.select")
    publish(channel, b"both")
    channel.expect("basic.ack")
    got = take(channel)
    engine.plan.away = True
    channel.send("basic.reject", delivery_tag=got.delivery_tag, requeue=False)
    wait_for(broker, "dlq", 1)
    broker.node.broker.shared._leave = _nothing  # as when the process is killed
    broker.node.stop()
    engine.plan.away = False
    again = begin(**FAST)
    channel = connect(again).channel()
    wait_for(again, "dlq", 1)
    wait_for(again, "s", 1)
    got = take(channel)
    assert (got.body, got.redelivered) == (b"both", True)


def test_the_original_stays_until_the_engine_has_the_letter(begin: Any, connect: Any, engine: OwnEngine) -> None:
    broker = begin(shared_waiting_ms_max=100, **FAST)
    channel = connect(broker).channel()
    for name, arguments in (("s", LETTERS), ("dlq", SHARED)):
        channel.queue(name, durable=True, arguments=arguments)
    channel.call("confirm.select")
    publish(channel, b"x")
    channel.expect("basic.ack")
    got = take(channel)
    engine.plan.away = True
    channel.send("basic.reject", delivery_tag=got.delivery_tag, requeue=False)
    queue_id = broker.node.broker.vhosts["/"].queues["s"].queue_id
    wait_until(lambda: service(broker).letters.waiting(queue_id) == (1, 1))
    wait_until(lambda: core(broker, "dlq").ready_count() == 1, what="the letter is there, and the engine does not have it yet")
    assert service(broker).letters.waiting(queue_id) == (1, 1)
    engine.plan.away = False
    settled(broker)
    wait_for(broker, "dlq", 1)


def test_letters_that_wait_keep_the_node_from_taking_more(begin: Any, connect: Any, engine: OwnEngine) -> None:
    broker = begin(shared_letters_max=3, **FAST)
    channel = connect(broker).channel()
    patient = {**SHARED, "x-dead-letter-exchange": "later", "x-dead-letter-strategy": "at-least-once"}
    channel.queue("s", durable=True, arguments=patient)
    channel.call("confirm.select")
    for number in range(20):
        publish(channel, b"%02d" % number)
    while channel.expect("basic.ack").delivery_tag < 20:
        pass
    consumer = connect(broker).channel()
    consumer.call("basic.qos", prefetch_count=1)
    consumer.consume("s")
    queue_id = broker.node.broker.vhosts["/"].queues["s"].queue_id
    for seen in range(1, 4):
        got = consumer.expect("basic.deliver")
        consumer.send("basic.reject", delivery_tag=got.delivery_tag, requeue=False)
        wait_until(lambda seen=seen: service(broker).letters.waiting(queue_id)[0] == seen)
    assert take(channel).name == "basic.get-empty"
    wait_until(lambda: core(broker).ready_count() >= 16, what="one more may have been on its way")
    channel.call("exchange.declare", exchange="later", type="fanout", durable=True)
    channel.queue("dlq", durable=True)
    channel.call("queue.bind", queue="dlq", exchange="later", routing_key="")
    wait_for(broker, "dlq", 3)
    assert consumer.expect("basic.deliver").body == b"03"


def test_many_without_a_target_do_not_stand_in_front_of_one_that_has_one(begin: Any, connect: Any, engine: OwnEngine) -> None:
    broker = begin(**FAST)
    channel = connect(broker).channel()
    channel.call("exchange.declare", exchange="in", type="fanout", durable=True)
    channel.call("exchange.declare", exchange="later", type="direct", durable=True)
    patient = {**SHARED, "x-dead-letter-exchange": "later", "x-dead-letter-strategy": "at-least-once"}
    channel.queue("s", durable=True, arguments=patient)
    channel.queue("dlq", durable=True)
    channel.call("queue.bind", queue="s", exchange="in", routing_key="")
    channel.call("confirm.select")
    count = 2 * _REFUSED_AT_ONCE + 5
    for number in range(count):
        channel.publish(b"%d" % number, exchange="in", routing_key="good" if number == count - 1 else "bad", delivery_mode=2)
        channel.expect("basic.ack")
        got = take(channel)
        channel.send("basic.reject", delivery_tag=got.delivery_tag, requeue=False)
    queue_id = broker.node.broker.vhosts["/"].queues["s"].queue_id
    wait_until(lambda: service(broker).letters.waiting(queue_id)[0] == count, what="all wait")
    channel.call("queue.bind", queue="dlq", exchange="later", routing_key="good")
    wait_for(broker, "dlq", 1)
    wait_until(lambda: service(broker).letters.waiting(queue_id)[0] == count - 1, what="the others wait still")


def test_a_deleted_queue_forgets_its_letters(begin: Any, connect: Any, engine: OwnEngine) -> None:
    broker = begin(**FAST)
    channel = connect(broker).channel()
    patient = {**SHARED, "x-dead-letter-exchange": "later", "x-dead-letter-strategy": "at-least-once"}
    channel.queue("s", durable=True, arguments=patient)
    channel.call("confirm.select")
    rejected(channel, b"one", b"two")
    queue_id = broker.node.broker.vhosts["/"].queues["s"].queue_id
    wait_until(lambda: service(broker).letters.waiting(queue_id) == (2, 6))
    channel.call("queue.delete", queue="s")
    wait_until(lambda: service(broker).letters.waiting(queue_id) == (0, 0))


@pytest.mark.parametrize("letters", [False, True])
def test_the_oldest_go_above_the_limit(begin: Any, connect: Any, engine: OwnEngine, letters: bool) -> None:
    broker = begin(**FAST)
    channel = connect(broker).channel()
    channel.queue("s", durable=True, arguments={**(LETTERS if letters else SHARED), "x-max-length": 3})
    channel.queue("dlq", durable=True)
    channel.call("confirm.select")
    for number in range(8):
        publish(channel, b"%d" % number)
        channel.expect("basic.ack")
    wait_for(broker, "s", 3)
    counters = broker.node.broker.counters
    wait_until(lambda: (counters.drops["maxlen"], counters.dead_lettered["maxlen"]) == ((0, 5) if letters else (5, 0)))
    assert [get(channel).body for _ in range(3)] == [b"5", b"6", b"7"]
    if letters:
        wait_for(broker, "dlq", 5)
        got = [get(channel, "dlq") for _ in range(5)]
        assert [one.body for one in got] == [b"%d" % number for number in range(5)]
        assert deaths(got[0]) == [("s", "maxlen", 1)]


def test_a_full_queue_refuses_publishes(begin: Any, connect: Any, engine: OwnEngine) -> None:
    broker = begin(**FAST)
    channel = connect(broker).channel()
    channel.queue("s", durable=True, arguments={**SHARED, "x-max-length": 2, "x-overflow": "reject-publish"})
    channel.call("confirm.select")
    answers = []
    for number in range(4):
        publish(channel, b"%d" % number)
        answers.append(channel.connection.recv(channel.number).name)
    assert answers == ["basic.ack", "basic.ack", "basic.nack", "basic.nack"]
    assert get(channel).body == b"0"
    wait_for(broker, "s", 1)
    publish(channel, b"fits")
    channel.expect("basic.ack")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"x-max-length-bytes": -5}, "x-max-length-bytes"),
        ({"x-last-value-key": "k"}, "x-last-value-key"),
        ({"x-overflow": "block", "x-max-length": 5}, "x-overflow"),
        ({"x-dead-letter-routing-key": "a"}, "routing_key_but_no_dlx_defined"),
        ({"x-max-length": -1}, "x-max-length"),
        ({"x-max-priority": 2, "x-qpid-priorities": 5}, "not together"),
    ],
)
def test_what_is_not_served_is_refused(begin: Any, connect: Any, engine: OwnEngine, arguments: dict[str, Any], told: str) -> None:
    channel = connect(begin()).channel()
    channel.refuse(406, told, "queue.declare", queue="s", durable=True, arguments={**SHARED, **arguments})
