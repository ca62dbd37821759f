"""x-overflow block: publishers of a full queue wait and are told, nobody else does; a publisher that consumes never deadlocks. x-overflow
ring: the oldest message of the lowest priority goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flintmq.vhost.policies import made
from tests.support.broker import wait_until
from tests.support.rawamqp import RawChannel

Connect = Callable[..., Any]
BLOCK = {"x-overflow": "block", "x-max-length": 10}
KINDS = [{}, {"x-queue-type": "quorum"}, {"x-max-priority": 3}]


@pytest.fixture
def broker(start: Callable[..., Any]) -> Any:
    return start({"over_limit_messages": 4, "housekeeping_ms": 60_000})


def blocked(broker: Any) -> int:
    return len(broker.node.broker.flow)


def drain(ch: RawChannel, queue: str, count: int) -> list[bytes]:
    return [ch.call("basic.get", queue=queue, no_ack=True).body for _ in range(count)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("limit", [{"x-max-length": 10}, {"x-max-length-bytes": 1000}])
def test_the_publisher_waits_until_four_fifths(broker: Any, connect: Connect, kind: dict[str, Any], limit: dict[str, Any]) -> None:
    connection = connect(broker)
    publisher, reader = connection.channel(), connect(broker).channel()
    reader.queue("q", durable=True, arguments={**kind, "x-overflow": "block", **limit})
    for number in range(30):
        publisher.publish(b"%-100d" % number, routing_key="q")
    assert connection.expect(0, "connection.blocked").reason == "queue 'q' in vhost '/' is full"
    wait_until(lambda: blocked(broker) == 1, what="it waits")
    assert reader.ready("q") == 11  # one above the limit
    bodies = drain(reader, "q", 2)
    publisher.nothing(0.05)
    assert reader.ready("q") == 9 and blocked(broker) == 1
    bodies += drain(reader, "q", 1)
    connection.expect(0, "connection.unblocked")
    connection.expect(0, "connection.blocked")  # it fills the queue again
    while len(bodies) < 30:
        # between two of the gets it may have filled the queue, so that one less than the most is there
        least = min(9, 30 - len(bodies))
        wait_until(lambda least=least: reader.ready("q") >= least, what="it goes on")
        assert reader.ready("q") <= 11
        bodies += drain(reader, "q", min(4, 30 - len(bodies)))
    assert [int(body) for body in bodies] == list(range(30))
    wait_until(lambda: blocked(broker) == 0, what="nobody waits")


def test_a_long_name_is_told_as_far_as_it_fits(broker: Any, connect: Connect) -> None:
    """A reason has 255 bytes, not characters."""
    connection = connect(broker)
    publisher, name = connection.channel(), "\u00e9" * 127
    publisher.queue(name, arguments=BLOCK)
    for _ in range(12):
        publisher.publish(b"x", routing_key=name)
    reason = connection.expect(0, "connection.blocked").reason
    assert reason.startswith("queue '\u00e9\u00e9") and len(reason.encode()) <= 255


def test_others_do_not_wait(broker: Any, connect: Connect) -> None:
    publisher, other, reader = (connect(broker).channel() for _ in range(3))
    reader.queue("q", arguments=BLOCK)
    reader.queue("free")
    for _ in range(30):
        publisher.publish(b"x", routing_key="q")
    wait_until(lambda: blocked(broker) == 1, what="it waits")
    other.call("confirm.select")
    other.publish(b"x", routing_key="free")
    assert other.expect("basic.ack").delivery_tag == 1


def test_confirms_come_for_what_is_on_the_queue(broker: Any, connect: Connect) -> None:
    publisher, reader = connect(broker).channel(), connect(broker).channel()
    reader.queue("q", arguments=BLOCK)
    publisher.call("confirm.select")
    for _ in range(14):
        publisher.publish(b"x", routing_key="q")
    got = publisher.expect("basic.ack")
    while got.delivery_tag < 11:
        got = publisher.expect("basic.ack")
    wait_until(lambda: blocked(broker) == 1, what="it waits")
    assert got.delivery_tag == 11
    drain(reader, "q", 4)
    while got.delivery_tag < 14:
        got = publisher.expect("basic.ack")


def test_a_publisher_that_consumes_is_read_on_and_refused_at_the_bound(broker: Any, connect: Connect) -> None:
    """Its own acks make the room: it would wait for itself. The bound is a quarter above the limit and what the configuration allows."""
    ch = connect(broker).channel()
    ch.queue("q", arguments=BLOCK)
    ch.call("basic.qos", prefetch_count=1)
    ch.consume("q", "c")
    ch.call("confirm.select")
    for _ in range(30):
        ch.publish(b"x", routing_key="q")
    first = ch.expect("basic.deliver")
    taken, refused, answered = 0, 0, 0
    while answered < 30:
        got = ch.connection.recv(ch.number)
        count = got.delivery_tag - answered if got.multiple else 1
        answered += count
        taken, refused = taken + count * (got.name == "basic.ack"), refused + count * (got.name == "basic.nack")
    # 10, a quarter, and over_limit_messages; one is with the consumer
    assert 16 <= taken <= 18 and refused == 30 - taken
    ch.send("basic.ack", delivery_tag=first.delivery_tag)
    for _ in range(taken - 1):
        ch.send("basic.ack", delivery_tag=ch.expect("basic.deliver").delivery_tag)
    wait_until(lambda: blocked(broker) == 0, what="there is room")


@pytest.mark.parametrize("how", ["delete", "policy", "purge", "gone"])
def test_every_end_lets_it_go_on(broker: Any, connect: Connect, how: str) -> None:
    connection = connect(broker)
    publisher, reader = connection.channel(), connect(broker).channel()
    vhost = broker.node.broker.vhosts["/"]
    vhost.policies.put(made("p", {"pattern": "^q$", "definition": {"max-length": 3, "overflow": "block"}}), False)
    reader.queue("q")
    reader.queue("end")
    for _ in range(10):
        publisher.publish(b"x", routing_key="q")
    publisher.publish(b"last", routing_key="end")
    wait_until(lambda: blocked(broker) == 1, what="it waits")
    assert reader.ready("q") == 4
    if how == "gone":
        connection.drop()
        wait_until(lambda: blocked(broker) == 0, what="nothing is left of it")
        return
    if how == "delete":
        reader.call("queue.delete", queue="q")
    elif how == "policy":
        vhost.policies.remove("p", False)
        vhost.follow_policies("queue", ["q"])
    else:
        wait_until(lambda: reader.call("queue.purge", queue="q") and reader.ready("end") == 1, step=0.05, what="the last one came")
    reader.wait_ready("end", 1)
    wait_until(lambda: blocked(broker) == 0, what="nobody waits")


def test_a_transaction_is_refused(broker: Any, connect: Connect) -> None:
    ch = connect(broker).channel()
    ch.queue("q", arguments={**BLOCK, "x-max-length": 1})
    ch.call("tx.select")
    for _ in range(3):
        ch.publish(b"x", routing_key="q")
    ch.refuse(406, "partial tx completion", "tx.commit")


# --- ring -----------------------------------------------------------------------------------------------------------------------


def test_the_ring_drops_the_lowest_priority_first(broker: Any, connect: Connect) -> None:
    ch = connect(broker).channel()
    ch.queue("q", arguments={"x-max-priority": 2, "x-max-length": 3, "x-overflow": "ring"})
    for body, priority in ((b"low1", 0), (b"high1", 2), (b"low2", 0), (b"mid", 1), (b"high2", 2), (b"low3", 0)):
        ch.publish(body, routing_key="q", priority=priority)
    # low1 goes for mid, low2 for high2, and low3 itself: nothing that is there is worth less
    assert drain(ch, "q", 3) == [b"high1", b"high2", b"mid"]
    assert broker.node.broker.counters.drops["maxlen"] == 3 or ch.ready("q") == 0


def test_the_ring_of_one_level_is_drop_head(broker: Any, connect: Connect) -> None:
    ch = connect(broker).channel()
    ch.queue("q", arguments={"x-max-length": 2, "x-overflow": "ring"})
    for number in range(5):
        ch.publish(b"%d" % number, routing_key="q")
    assert drain(ch, "q", 2) == [b"3", b"4"]


def test_what_the_ring_drops_is_dead_lettered(broker: Any, connect: Connect) -> None:
    ch = connect(broker).channel()
    ch.queue("dead")
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    ch.queue("q", arguments={"x-max-priority": 1, "x-max-length": 1, "x-overflow": "ring", **dead})
    ch.publish(b"high", routing_key="q", priority=1)
    ch.publish(b"low", routing_key="q")
    ch.wait_ready("dead", 1)
    got = ch.call("basic.get", queue="dead", no_ack=True)
    assert (got.body, got.properties["headers"]["x-death"][0]["reason"]) == (b"low", "maxlen")


def test_reject_publish_keeps_what_came_back(broker: Any, connect: Connect) -> None:
    """Returns may fill it above its limit: nothing of it is dropped, whether it counts deliveries and dead-letters or not."""
    connection = connect(broker)
    ch, other = connection.channel(1), connection.channel(2)
    ch.queue("dead")
    rules = {"x-overflow": "reject-publish", "x-delivery-limit": 9, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    ch.queue("q", arguments={"x-max-length": 2, **rules})
    for number in range(6):
        ch.publish(b"%d" % number, routing_key="q")
        if number < 4:
            other.call("basic.get", queue="q")
    assert ch.ready("q") == 2
    other.call("channel.close", reply_code=200, reply_text="", class_id=0, method_id=0)
    ch.wait_ready("q", 6)
    assert ch.ready("dead") == 0
