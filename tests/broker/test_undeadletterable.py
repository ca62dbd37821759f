"""A message that can't be dead-lettered, or a queue that fails, costs itself: no consumer, no publisher, no other queue, no restart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flintmq.ports import QueueRecord
from flintmq.testing.broker import Broker
from tests.support.broker import wait_until
from tests.support.rawamqp import RawChannel

TO_DEAD = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
Connect = Callable[..., Any]


@pytest.fixture
def broker(start: Callable[..., Any]) -> Any:
    return start()


@pytest.fixture
def ch(broker: Any, connect: Connect) -> RawChannel:
    return connect(broker).channel()


def test_a_dead_letter_routing_key_of_256_bytes_is_refused(ch: RawChannel) -> None:
    ch.queue("fits", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "k" * 255})
    ch.refuse(
        406,
        "invalid arg 'x-dead-letter-routing-key' for queue 'q' in vhost '/': {value_too_large,256}",
        "queue.declare",
        queue="q",
        arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "\N{LATIN SMALL LETTER E WITH ACUTE}" * 128},
    )


HOSTILE = [
    {"x-death": [{"count": 2**63 - 1, "queue": "q", "reason": "rejected"}]},
    {"x-death": [{"count": 2**63 - 1, "queue": "q", "reason": "maxlen"}], "CC": ["nobody"]},
    {"x-death": [{"count": {}, "queue": ["q"], "reason": 5}, 7, None, [[]]]},
    {"x-death": {"count": 1}},
    {"x-death": "text", "x-first-death-queue": 5},
    {"x-death": [{}] * 1000},
    {f"h{number}": number for number in range(1000)},
]


@pytest.mark.parametrize("headers", HOSTILE)
def test_hostile_headers_are_dead_lettered_all_the_same(ch: RawChannel, headers: dict[str, Any]) -> None:
    """By a reject, and by a length limit in the publisher's own pass."""
    ch.queue("dead")
    ch.queue("q", arguments=TO_DEAD)
    ch.queue("limited", arguments={"x-max-length": 0, **TO_DEAD})
    ch.publish(b"r", routing_key="q", headers=headers)
    got = ch.call("basic.get", queue="q")
    ch.send("basic.reject", delivery_tag=got.delivery_tag, requeue=False)
    ch.publish(b"l", routing_key="limited", headers=headers)
    ch.wait_ready("dead", 2)
    death = ch.call("basic.get", queue="dead", no_ack=True).properties["headers"]["x-death"][0]
    assert death["queue"] == "q" and death["reason"] == "rejected" and 1 <= death["count"] <= 2**63 - 1


def test_a_letter_that_fails_is_counted_and_nobody_else_pays(ch: RawChannel, broker: Any, connect: Connect) -> None:
    """The housekeeping expires queues behind the one that fails; the publisher of another limited queue hears nothing of it."""
    inner = broker.node.broker
    ch.queue("dead")
    ch.queue("bad", arguments={"x-message-ttl": 1, "x-max-length": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    queue = next(one for one in inner.queues.values() if one.name == "bad")
    object.__setattr__(queue.policy, "dead_letter_routing_key", b"k" * 256)  # as an earlier version took it
    ch.queue("good", arguments={"x-message-ttl": 1, **TO_DEAD})
    ch.queue("limited", arguments={"x-max-length": 0, **TO_DEAD})
    ch.call("confirm.select")
    for name in ("bad", "bad", "good", "limited"):
        ch.publish(name.encode(), routing_key=name)
    ch.wait_ready("dead", 2)
    wait_until(lambda: inner.counters.drops["dead_letter_failed"] == 2, what="both messages of the bad queue are counted")
    assert ch.ready("bad") == 0
    got = [ch.call("basic.get", queue="dead", no_ack=True).body for _ in range(2)]
    assert sorted(got) == [b"good", b"limited"]


def test_a_publisher_looks_at_its_own_queues_only(ch: RawChannel, broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ch.queue("dead")
    for name in ("mine", "other-1", "other-2"):
        ch.queue(name, arguments={"x-max-length": 1, **TO_DEAD})
    looked: list[str] = []
    limits = broker.node.broker.queue_limits
    inner = limits._enforce

    def look(queue: Any, until_ns: int) -> bool:
        looked.append(queue.name)
        return inner(queue, until_ns)

    monkeypatch.setattr(limits, "_enforce", look)
    for number in range(3):
        ch.publish(b"%d" % number, routing_key="mine")
    ch.call("tx.select")
    for number in range(3, 5):
        ch.publish(b"%d" % number, routing_key="mine")
    ch.call("tx.commit")
    assert ch.ready("mine") == 1 and ch.ready("dead") == 4
    assert set(looked) == {"mine"}


def test_a_chain_of_full_queues_does_not_recurse(ch: RawChannel) -> None:
    """Each dead letter drops the head of the next queue: in a row, or a long chain would end the stack."""
    count = 400
    for number in range(count):
        ch.queue(f"c{number}", arguments={"x-max-length": 0, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"c{number + 1}"})
    ch.queue(f"c{count}")
    ch.publish(b"x", routing_key="c0")
    ch.wait_ready(f"c{count}", 1)  # the chain goes on in slices
    got = ch.call("basic.get", queue=f"c{count}", no_ack=True)
    assert got.body == b"x" and len(got.properties["headers"]["x-death"]) == count


def test_a_failing_queue_does_not_end_the_housekeeping(ch: RawChannel, broker: Any) -> None:
    class Broken:
        """A queue that an error of ours has hit."""

        name = "broken"

        @property
        def core(self) -> Any:
            raise RuntimeError("broken")

    ch.queue("dead")
    ch.queue("q", arguments={"x-message-ttl": 1, **TO_DEAD})
    inner = broker.node.broker
    inner.limited_queues.add(Broken())
    inner.on_housekeeping.insert(0, lambda now_ms: 1 // 0)
    came: list[int] = []
    inner.on_housekeeping.append(came.append)
    ch.publish(b"x", routing_key="q")
    ch.wait_ready("dead", 1)
    wait_until(lambda: len(came) > 1, what="the parts behind the failing one have their turn")


def test_a_stored_queue_that_would_be_refused_today(start: Callable[..., Any], connect: Connect, tmp_path: Path) -> None:
    """It starts; the key is cut; messages reach a fanout exchange, which does not ask for it."""
    with Broker(data_dir=str(tmp_path)) as first:
        definitions = first.node.broker.definitions
        old = {"x-dead-letter-exchange": "amq.fanout", "x-dead-letter-routing-key": "k" * 256, "x-message-ttl": "text"}
        definitions.save_queue(QueueRecord("/", "old", definitions.new_queue_id(), False, old))
    again = start(data_dir=str(tmp_path))
    ch = connect(again).channel()
    ch.queue("dead")
    ch.call("queue.bind", queue="dead", exchange="amq.fanout")
    ch.publish(b"x", routing_key="old")
    ch.send("basic.reject", delivery_tag=ch.call("basic.get", queue="old").delivery_tag, requeue=False)
    ch.wait_ready("dead", 1)
    assert ch.call("basic.get", queue="dead").routing_key == "k" * 255
