"""Sets of subscriptions on a queue that another node serves: its node is asked over a link, and whoever serves the queue next goes on.

Properties: a set is the same through each node, and after its queue has moved; a decision that its owner was not told of is made before the
next one; a refusal of the owner is that of the call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flintmq.cluster.set_calls import _packed, _unpacked
from flintmq.dataplane.wire import Refused
from flintmq.engines.engine import Unavailable
from flintmq.shared.batches import Entry
from flintmq.testing.broker import Broker
from tests.cluster.test_two_nodes import begin, declared, etcd, publish, queue
from tests.dataplane.rig import contents_of
from tests.support.broker import wait_until
from tests.support.inprocess import connect, heap_of_others, start

__all__ = ["begin", "connect", "etcd", "heap_of_others", "queue", "start"]


class Plane:
    """The data plane of a node, as its Flight service asks it."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        assert broker.node.dataplane is not None
        self.service = broker.node.dataplane.service
        self.service.plane.limits = self.service.plane.limits.replace(shared_set_look_ms=0)

    def ask(self, call: str, **arguments: Any) -> tuple[Any, bytes]:
        answer, parts = self.service.dispatch({"user": "guest", "vhost": "/", **arguments, "call": call})
        if "error" in answer:
            raise Refused(answer["error"], answer["text"])
        return answer["ok"], b"".join(parts)

    def call(self, call: str, **arguments: Any) -> Any:
        return self.ask(call, **arguments)[0]

    def code(self, call: str, **arguments: Any) -> str:
        try:
            self.ask(call, **arguments)
        except Refused as refused:
            return refused.code
        return ""

    def surely(self, call: str, **arguments: Any) -> Any:
        """Until the queue is served again."""
        answers: list[Any] = []

        def is_done() -> bool:
            try:
                answers.append(self.call(call, **arguments))
            except Refused as refused:
                assert refused.code in ("UNAVAILABLE", "BUSY"), refused
            return bool(answers)

        wait_until(is_done)
        return answers[0]

    def open(self, queue: str) -> dict[str, Any]:
        answer = self.call("sub.open", name=f"of {queue}", queues=[queue])
        return {"sub_id": answer["sub_id"], "epoch": answer["epoch"]}

    def read(self, reader: dict[str, Any], seq: int, slices: int = 1) -> list[str]:
        tickets = self.call("sub.plan", **reader, seq=seq, slices=slices)["tickets"]
        return [body for ticket in tickets for body in self.rows(ticket)]

    def rows(self, ticket: dict[str, Any]) -> list[str]:
        bodies: list[str] = []
        more = True
        while more:
            answer, data = self.ask("rows", **ticket, first=len(bodies), count=3)
            bodies += [row[-1].decode() for row in contents_of(answer, data)]
            more = answer["more"]
        return bodies

    def counts(self, queue: str) -> tuple[int, int]:
        """Ready, held."""
        core = self.broker.node.broker.vhosts["/"].queues[queue].core
        return core.ready_count(), core.unacked_count()


class Two:
    """Node `owner` serves the queue and has the messages; `other` is asked."""

    def __init__(self, begin: Callable[..., Broker], connect: Any, queue: str, *bodies: str) -> None:
        self.queue = queue
        self.owner = Plane(begin("a"))
        channel = declared(connect, self.owner.broker, queue)
        self.other = Plane(begin("b"))
        declared(connect, self.other.broker, queue)
        publish(channel, queue, *(body.encode() for body in bodies))


def names(*numbers: int) -> list[str]:
    return [f"m{number}" for number in numbers]


def test_a_set_is_taken_read_and_committed_through_either_node(begin: Any, connect: Any, queue: str) -> None:
    two = Two(begin, connect, queue, *names(*range(10)), "x" * 300_000)
    other, owner = two.other, two.owner
    reader = other.open(queue)
    assert other.call("sub.tail", **reader)["behind_messages"] == 11
    assert other.call("sub.acquire", **reader, seq=1, max_messages=8)["count"] == 8
    assert owner.call("sub.acquire", **reader, seq=1, max_messages=3)["count"] == 8
    assert other.read(reader, 1, slices=2) == owner.read(reader, 1, slices=3) == names(*range(8))
    assert owner.counts(queue) == (3, 8)
    assert other.call("sub.commit", **reader, upto=1) == owner.call("sub.commit", **reader, upto=1) == {"committed": 1}
    assert owner.counts(queue) == (3, 0)
    assert other.call("sub.acquire", **reader, seq=2)["count"] == 3
    assert other.read(reader, 2) == ["m8", "m9", "x" * 300_000]
    other.call("sub.reset", name=f"of {queue}", action="redeliver")
    assert owner.counts(queue) == (3, 0)


def test_a_set_goes_on_when_its_queue_has_moved(begin: Any, connect: Any, queue: str) -> None:
    two = Two(begin, connect, queue, *names(*range(9)))
    other = two.other
    reader = other.open(queue)
    assert other.call("sub.acquire", **reader, seq=1, max_messages=6)["count"] == 6
    (ticket,) = other.call("sub.plan", **reader, seq=1)["tickets"]
    assert other.rows(ticket) == names(*range(6))
    two.owner.broker.node.stop()
    wait_until(lambda: other.broker.node.broker.shared.sets._here(_row(other, queue)) is not None)
    assert other.counts(queue) == (3, 6), "nobody else gets what the set has"
    assert other.rows(ticket) == names(*range(6))
    assert other.call("sub.commit", **reader, upto=1) == {"committed": 1}
    assert other.counts(queue) == (3, 0)
    assert other.call("sub.acquire", **reader, seq=2)["count"] == 3
    assert other.read(reader, 2) == names(6, 7, 8)


def _row(plane: Plane, queue: str) -> str:
    shared: Any = plane.broker.node.broker.shared
    row: bytes = next(key for key, entry in shared.ownership.by_row.items() if entry.name == queue)
    return row.decode()


def test_a_set_that_was_decided_while_its_owner_could_not_be_asked_ends_before_the_next_one(begin: Any, connect: Any, queue: str) -> None:
    two = Two(begin, connect, queue, "a", "b")
    other, owner = two.other, two.owner
    reader = other.open(queue)
    assert other.call("sub.acquire", **reader, seq=1, max_messages=1)["count"] == 1
    assert other.read(reader, 1) == ["a"]
    answering, owner.broker.node.broker.shared.others.vhost.answering = owner.broker.node.broker.shared.others.vhost.answering, None
    assert other.call("sub.commit", **reader, upto=1) == {"committed": 1}
    assert other.code("sub.acquire", **reader, seq=2) == other.code("sub.tail", **reader) == "UNAVAILABLE"
    owner.broker.node.broker.shared.others.vhost.answering = answering
    assert other.surely("sub.acquire", **reader, seq=2)["count"] == 1
    assert other.read(reader, 2) == ["b"]
    assert owner.counts(queue) == (0, 1)


def test_a_refusal_of_the_owner_is_that_of_the_call(begin: Any, connect: Any, queue: str) -> None:
    two = Two(begin, connect, queue, "a")
    reader = two.other.open(queue)
    consumer = connect(two.owner.broker)
    channel = consumer.channel()
    channel.call("basic.qos", prefetch_count=1)
    channel.consume(queue, "c", exclusive=True)
    assert channel.expect("basic.deliver").body == b"a"
    publisher = declared(connect, two.owner.broker, queue)
    publish(publisher, queue, b"b")
    assert two.other.code("sub.acquire", **reader, seq=1) == "QUEUE_BUSY"
    consumer.close()
    wait_until(lambda: two.owner.counts(queue) == (2, 0))
    assert two.other.call("sub.acquire", **reader, seq=1)["count"] == 2


def test_a_queue_that_is_paused_at_its_owner_gives_nothing(begin: Any, connect: Any, queue: str) -> None:
    two = Two(begin, connect, queue, "a")
    reader, inner = two.other.open(queue), two.owner.broker.node.broker
    inner.paused = frozenset({inner.vhosts["/"].queues[queue].queue_id})
    assert two.other.call("sub.acquire", **reader, seq=1)["count"] == 0
    inner.paused = frozenset()
    assert two.other.call("sub.acquire", **reader, seq=1)["count"] == 1


def test_messages_that_came_are_those_that_were_sent_or_none() -> None:
    entries = [Entry(1, 3, True, None), Entry(2, 0, False, None)]
    assert [(one.deliveries, one.is_redelivered, one.content) for one in _unpacked(*_packed(entries))] == [
        (3, True, None),
        (0, False, None),
    ]
    for head, payload in (({}, b""), ({"rows": [[1]]}, b""), ({"rows": [[0, False, [1, 1, 1, 1]]]}, b"abc"), ({"rows": []}, b"x")):
        with pytest.raises(Unavailable):
            _unpacked(head, payload)
    (one,) = _unpacked({"rows": [[0, False, [1, 0, 2, 3]]]}, b"abbccc")
    assert one.content == (b"a", b"", b"bb", b"ccc")
