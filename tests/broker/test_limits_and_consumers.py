"""Ready consumers first, then the limit: what a consumer with credit can be given does not count against x-max-length."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.broker import wait_until
from tests.support.rawamqp import RawChannel, RawConnection
from tests.support.rawcodec import publish_bytes

BURST, LIMIT, PREFETCH = 300, 5, 10
TO_DEAD = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
PATIENT = {"over_limit_ms": 600_000, "housekeeping_ms": 600_000}  # only the end of a consumer's turn brings a queue back under its limit
BODIES = [b"%03d" % number for number in range(BURST)]


def burst(connection: RawConnection, bodies: list[bytes] = BODIES, **arguments: Any) -> None:
    connection.send(b"".join(publish_bytes(1, body, routing_key="q", **arguments) for body in bodies))


def taken(channel: RawChannel, count: int) -> list[bytes]:
    return [message.body for message in channel.deliveries(count)]


def drain(channel: RawChannel, queue: str) -> list[bytes]:
    got = []
    while (message := channel.call("basic.get", queue=queue, no_ack=True)).name != "basic.get-empty":
        got.append(message.body)
    return got


@pytest.mark.parametrize("dead_letters", [False, True], ids=["gone", "dead-lettered"])
@pytest.mark.parametrize(
    "arguments",
    [{"x-max-length": LIMIT}, {"x-max-length-bytes": LIMIT * 3}, {"x-max-length": LIMIT, "x-max-priority": 3}],
    ids=["messages", "bytes", "priorities"],
)
def test_a_burst_goes_to_its_consumer_and_then_to_the_limit(
    start: Callable[..., Any], connect: Callable[..., Any], arguments: dict[str, Any], dead_letters: bool
) -> None:
    broker = start(PATIENT)
    connection = connect(broker)
    one, two = connection.channel(1), connection.channel(2)
    one.queue("dead")
    one.queue("q", arguments={**arguments, **(TO_DEAD if dead_letters else {})})
    two.call("basic.qos", prefetch_count=PREFETCH)
    two.consume("q")
    burst(connection)
    assert taken(two, PREFETCH) == BODIES[:PREFETCH]
    one.wait_ready("q", LIMIT)
    assert drain(one, "q") == BODIES[-LIMIT:]
    assert drain(one, "dead") == (BODIES[PREFETCH:-LIMIT] if dead_letters else [])
    two.nothing(0.02)
    if not dead_letters:
        connection.drop()
        # What its consumer held is back, and above the limit again.
        wait_until(lambda: broker.node.broker.counters.drops["maxlen"] == BURST - 2 * LIMIT, what="all drops are counted")


@pytest.mark.parametrize("limit", [{"x-max-length": LIMIT}, {"x-max-length": 0}, {"x-max-length-bytes": 0}, {"x-max-length": 0, **TO_DEAD}])
@pytest.mark.parametrize("loops", [1, 2])
def test_a_consumer_without_a_prefetch_limit_gets_all(
    start: Callable[..., Any], connect: Callable[..., Any], limit: dict[str, int], loops: int
) -> None:
    broker = start(PATIENT, io_threads=loops)
    publisher, reader = connect(broker), connect(broker)
    one, two = publisher.channel(1), reader.channel(1)
    one.queue("q", arguments=limit)
    two.consume("q", no_ack=True)
    burst(publisher)
    assert taken(two, BURST) == BODIES
    assert one.ready("q") == 0


@pytest.mark.parametrize(("limit", "kept"), [(LIMIT, PREFETCH + LIMIT), (0, 0)])
def test_reject_publish_counts_what_no_consumer_can_take(
    start: Callable[..., Any], connect: Callable[..., Any], limit: int, kept: int
) -> None:
    """At limit 0 nothing is taken, whoever waits: RabbitMQ asks for the limit before it looks for a consumer."""
    connection = connect(start(PATIENT))
    one, two = connection.channel(1), connection.channel(2)
    one.queue("q", arguments={"x-max-length": limit, "x-overflow": "reject-publish"})
    two.call("basic.qos", prefetch_count=PREFETCH)
    two.consume("q")
    one.call("confirm.select")
    burst(connection)
    answers: dict[int, str] = {}
    while len(answers) < BURST:
        method = connection.recv(1)
        for tag in range(len(answers) + 1, method.delivery_tag + 1):
            answers[tag] = method.name
    assert [tag for tag, name in answers.items() if name == "basic.ack"] == list(range(1, kept + 1))
    if kept:
        assert taken(two, PREFETCH) == BODIES[:PREFETCH]
        assert drain(one, "q") == BODIES[PREFETCH:kept]


def test_channel_wide_credit_counts_once(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    connection = connect(start(PATIENT))
    one, two = connection.channel(1), connection.channel(2)
    one.queue("q", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    two.call("basic.qos", prefetch_count=3, global_=True)
    for tag in ("a", "b", "c"):
        two.consume("q", tag)
    one.call("confirm.select")
    burst(connection, BODIES[:6])
    answers: list[str] = []
    while len(answers) < 6:
        method = connection.recv(1)
        answers += [method.name] * (method.delivery_tag - len(answers))
    assert answers == ["basic.ack"] * 4 + ["basic.nack"] * 2


@pytest.mark.parametrize("dead_letters", [False, True])
def test_a_commit_gives_to_consumers_first(start: Callable[..., Any], connect: Callable[..., Any], dead_letters: bool) -> None:
    connection = connect(start(PATIENT))
    one, two = connection.channel(1), connection.channel(2)
    one.queue("dead")
    one.queue("q", arguments={"x-max-length": LIMIT, **(TO_DEAD if dead_letters else {})})
    two.call("basic.qos", prefetch_count=PREFETCH)
    two.consume("q")
    one.call("tx.select")
    burst(connection, BODIES[:30])
    one.call("tx.commit")
    assert taken(two, PREFETCH) == BODIES[:PREFETCH]
    one.wait_ready("q", LIMIT)
    assert drain(one, "q") == BODIES[30 - LIMIT : 30]
    assert len(drain(one, "dead")) == (30 - PREFETCH - LIMIT if dead_letters else 0)


def test_a_commit_is_refused_for_what_no_consumer_can_take(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    connection = connect(start(PATIENT))
    one, two = connection.channel(1), connection.channel(2)
    one.queue("q", arguments={"x-max-length": LIMIT, "x-overflow": "reject-publish"})
    two.call("basic.qos", prefetch_count=PREFETCH)
    two.consume("q")
    one.call("tx.select")
    burst(connection, BODIES[: PREFETCH + LIMIT])
    one.call("tx.commit")
    assert taken(two, PREFETCH) == BODIES[:PREFETCH]
    burst(connection, [b"one more"])
    one.send("tx.commit")
    one.expect_close(406)


@pytest.mark.parametrize("dead_letters", [False, True])
def test_a_queue_above_its_limit_is_looked_at_when_its_consumer_leaves_before_its_turn(
    start: Callable[..., Any], connect: Callable[..., Any], dead_letters: bool
) -> None:
    """Nobody publishes any more, and nobody has a turn: only the index can bring the queue back."""
    broker = start({"over_limit_ms": 1, "housekeeping_ms": 600_000})
    inner = broker.node.broker
    one = connect(broker).channel(1)
    one.queue("dead")
    one.queue("q", arguments={"x-max-length": LIMIT, **(TO_DEAD if dead_letters else {})})
    reader = connect(broker).channel(1)
    reader.consume("q", "c")
    core = inner.vhosts["/"].queues["q"].core
    waited: list[bool] = []

    def on_the_loop() -> None:
        # In one step of the loop, so that the consumer has no turn in between.
        for body in BODIES:
            core.publish(b"", b"q", struct.pack(">HHQH", 60, 0, len(body), 0), body, 0, 0)
        waited.append(core.limit_waits())
        for handler in inner.connections.values():
            for state in handler.channels.values():
                for consumer in list(state.consumers.values()):
                    handler.connection.cancel(consumer.channel, consumer.tag.encode())

    inner.loops.call_home(on_the_loop)
    wait_until(lambda: waited and core.ready_count() == LIMIT, what="the queue is back at its limit")
    assert waited == [True]
    assert drain(one, "q") == BODIES[-LIMIT:]
    assert drain(one, "dead") == (BODIES[:-LIMIT] if dead_letters else [])
