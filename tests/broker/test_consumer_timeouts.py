"""x-consumer-timeout: what is not settled in time goes back, flagged and counted; the channel lives, and late answers mean nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flintmq.broker.timeouts import _Least
from flintmq.vhost.policies import made
from tests.support.broker import wait_until
from tests.support.clocks import HeldClock
from tests.support.rawamqp import RawChannel

Connect = Callable[..., Any]
QUICK = {"housekeeping_ms": 20}
TIMEOUT = {"x-consumer-timeout": 100}
KINDS = [{}, {"x-queue-type": "quorum"}, {"x-max-priority": 3}]


@pytest.fixture
def broker(start: Callable[..., Any]) -> Any:
    clock = HeldClock()
    clock.hold()
    return start(QUICK, clock=clock)


def passes(broker: Any, ms: int = 100) -> None:
    """What was delivered until now is as old as that, and stays so; what comes afterwards is younger, however long the test takes."""
    now_ms = int(time.time() * 1000)
    wait_until(lambda: time.time() * 1000 > now_ms + 3)
    broker.node.broker.clock.held_ms = now_ms + 1 + ms


def two(broker: Any, connect: Connect) -> tuple[RawChannel, RawChannel]:
    return connect(broker).channel(), connect(broker).channel()


@pytest.mark.parametrize("kind", KINDS)
def test_it_goes_to_somebody_else_and_the_channel_lives(broker: Any, connect: Connect, kind: dict[str, Any]) -> None:
    slow, quick = two(broker, connect)
    slow.queue("q", durable=True, arguments={**kind, **TIMEOUT})
    slow.call("basic.qos", prefetch_count=1)
    slow.consume("q", "slow")
    slow.publish(b"job", routing_key="q", delivery_mode=2)
    first = slow.expect("basic.deliver")
    quick.consume("q", "quick")
    passes(broker)
    again = quick.expect("basic.deliver")
    assert (again.body, bool(again.redelivered)) == (b"job", True)
    if kind.get("x-queue-type") == "quorum":
        assert again.properties["headers"]["x-delivery-count"] == 1
    quick.send("basic.ack", delivery_tag=again.delivery_tag)
    quick.call("basic.cancel", consumer_tag="quick")
    slow.publish(b"next", routing_key="q")
    slow.nothing(0.05)  # its credit is used until it says something of the first one
    slow.send("basic.ack", delivery_tag=first.delivery_tag)
    assert slow.expect("basic.deliver").body == b"next"
    assert broker.node.broker.timeouts.ended == 1


@pytest.mark.parametrize("how", ["ack", "nack", "reject", "multiple"])
@pytest.mark.parametrize("prefetch", [0, 5])
def test_a_late_answer_is_no_mistake_and_has_no_effect(broker: Any, connect: Connect, how: str, prefetch: int) -> None:
    """Above all it settles nothing that the same consumer was given since."""
    ch, _ = two(broker, connect)
    ch.queue("dead")
    ch.queue("q", arguments={**TIMEOUT, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    ch.call("basic.qos", prefetch_count=prefetch)
    ch.consume("q", "c")
    ch.publish(b"x", routing_key="q")
    first = ch.expect("basic.deliver")
    passes(broker)
    second = ch.expect("basic.deliver")
    assert second.delivery_tag > first.delivery_tag and bool(second.redelivered)
    if how in ("ack", "multiple"):
        ch.send("basic.ack", delivery_tag=first.delivery_tag, multiple=how == "multiple")
    else:
        rest = {} if how == "reject" else {"multiple": False}
        ch.send(f"basic.{how}", delivery_tag=first.delivery_tag, requeue=False, **rest)
    passes(broker)
    third = ch.expect("basic.deliver")
    ch.send("basic.ack", delivery_tag=third.delivery_tag)
    wait_until(lambda: broker.node.broker.timeouts.ended == 2, what="two deliveries were too slow")
    assert ch.ready("dead") == 0
    assert ch.ready("q") == 0
    ch.refuse(406, "unknown delivery tag 99", "basic.ack", delivery_tag=99)


def test_basic_get_has_it_too(broker: Any, connect: Connect) -> None:
    ch, _ = two(broker, connect)
    ch.queue("q", arguments=TIMEOUT)
    ch.publish(b"x", routing_key="q")
    tag = ch.call("basic.get", queue="q").delivery_tag
    passes(broker)
    ch.wait_ready("q", 1)
    ch.send("basic.ack", delivery_tag=tag)
    again = ch.call("basic.get", queue="q")
    assert bool(again.redelivered)
    ch.send("basic.ack", delivery_tag=again.delivery_tag)
    ch.refuse(406, f"unknown delivery tag {tag}", "basic.ack", delivery_tag=tag)  # once: a second answer is a mistake again


def test_a_consumer_has_its_own(broker: Any, connect: Connect) -> None:
    ch, _ = two(broker, connect)
    ch.queue("q")
    ch.call("basic.qos", prefetch_count=1)
    ch.consume("q", "c", arguments={"x-consumer-timeout": 50})
    ch.publish(b"x", routing_key="q")
    tag = ch.expect("basic.deliver").delivery_tag
    passes(broker, 50)
    ch.wait_ready("q", 1)
    ch.send("basic.ack", delivery_tag=tag)
    assert bool(ch.expect("basic.deliver").redelivered)
    ch.refuse(406, "invalid arg 'x-consumer-timeout'", "basic.consume", queue="q", arguments={"x-consumer-timeout": 0})


def test_a_policy_counts_for_deliveries_under_way(broker: Any, connect: Connect) -> None:
    ch, _ = two(broker, connect)
    ch.queue("q")
    ch.publish(b"x", routing_key="q")
    ch.call("basic.get", queue="q")
    core = broker.node.broker
    vhost = core.vhosts["/"]
    vhost.policies.put(made("p", {"pattern": "^q$", "definition": {"consumer-timeout": 60}}), False)
    vhost.follow_policies("queue", ["q"])
    passes(broker, 60)
    ch.wait_ready("q", 1)
    assert core.queues[vhost.queues["q"].queue_id].core.consumer_timeout_ms == 60


def test_it_counts_for_the_delivery_limit(broker: Any, connect: Connect) -> None:
    ch, _ = two(broker, connect)
    ch.queue("dead")
    ch.queue("q", arguments={**TIMEOUT, "x-delivery-limit": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    ch.call("basic.qos", prefetch_count=5)
    ch.consume("q", "c")
    ch.publish(b"x", routing_key="q")
    for _ in range(2):
        ch.expect("basic.deliver")
        passes(broker)
    ch.wait_ready("dead", 1)
    dead = ch.call("basic.get", queue="dead", no_ack=True)
    assert dead.properties["headers"]["x-death"][0]["reason"] == "delivery_limit"


def test_what_a_transaction_has_settled_stays_settled(broker: Any, connect: Connect) -> None:
    ch, _ = two(broker, connect)
    ch.queue("q", arguments=TIMEOUT)
    ch.publish(b"a", routing_key="q")
    ch.publish(b"b", routing_key="q")
    ch.call("tx.select")
    first, second = (ch.call("basic.get", queue="q").delivery_tag for _ in range(2))
    ch.send("basic.ack", delivery_tag=first)
    assert ch.ready("q") == 0
    passes(broker)
    ch.wait_ready("q", 1)  # the second one is too late, the first one is the transaction's
    ch.send("basic.ack", delivery_tag=second)
    ch.call("tx.commit")
    got = ch.call("basic.get", queue="q")
    assert (got.body, bool(got.redelivered)) == (b"b", True)
    assert broker.node.broker.timeouts.ended == 1


def test_nothing_is_looked_at_while_nobody_asks(broker: Any, connect: Connect) -> None:
    ch, _ = two(broker, connect)
    ch.queue("q")
    timeouts = broker.node.broker.timeouts
    looked: list[object] = []
    timeouts._look = lambda *args: looked.append(args) or iter(())
    timeouts.tick()
    assert not looked
    ch.queue("t", arguments=TIMEOUT)
    timeouts.tick()
    assert looked
    ch.call("queue.delete", queue="t")
    looked.clear()
    timeouts.tick()
    assert not looked


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)), max_size=300))
def test_the_least_timeout_is_known_without_a_look_at_all(changes: list[tuple[int, int]]) -> None:
    least, model = _Least(), {}
    for owner, number in changes:
        least.set(owner, number)
        model[owner] = number
        assert least.least() == min((one for one in model.values() if one), default=0) and least.get(owner) == number
    assert len(least._heap) <= 2 * 5 + 65


def test_the_nodes_timeout_is_for_queues_that_say_nothing(start: Callable[..., Any], connect: Connect) -> None:
    """An argument, or a policy, says otherwise; a stream has none of it."""
    clock = HeldClock()
    clock.hold()
    broker = start({**QUICK, "consumer_timeout_ms": 100}, clock=clock)
    ch = connect(broker).channel()
    vhost = broker.node.broker.vhosts["/"]
    vhost.policies.put(made("long", {"pattern": "^long", "definition": {"consumer-timeout": 5_000}, "apply-to": "queues"}), operator=False)
    ch.queue("q")
    ch.queue("own", arguments={"x-consumer-timeout": 7_000})
    ch.queue("long")
    assert [vhost.queues[name].policy.consumer_timeout_ms for name in ("q", "own", "long")] == [100, 7_000, 5_000]
    for name in ("q", "own", "long"):
        ch.consume(name, name)
        ch.publish(name.encode(), routing_key=name)
    assert {ch.expect("basic.deliver").body for _ in range(3)} == {b"q", b"own", b"long"}
    passes(broker)
    again = ch.expect("basic.deliver")
    assert (again.body, bool(again.redelivered), broker.node.broker.timeouts.ended) == (b"q", True, 1)
    ch.queue("q")  # the same declaration is the same queue
    vhost.policies.remove("long", operator=False)
    vhost.follow_policies("queue", ["long"])
    assert vhost.queues["long"].policy.consumer_timeout_ms == 100
