"""Sets of subscriptions on a queue that another node serves: its node is asked, over a link, and nobody else decides."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flintmq.cluster.link import NodeAddress
from flintmq.cluster.links import Links
from flintmq.cluster.node_answers import Answering
from flintmq.cluster.node_door import NodeDoor
from flintmq.cluster.node_requests import NodeRequests
from flintmq.cluster.node_vhost import NodeVhost
from flintmq.cluster.set_calls import _packed, _unpacked
from flintmq.engines.engine import Unavailable
from flintmq.shared.batches import Entry
from flintmq.shared.layout import Owner
from flintmq.shared.node_secret import NodeId
from flintmq.testing.broker import Broker
from tests.cluster.own_engine import FAST, SHARED, OwnEngine
from tests.dataplane.rig import Rig
from tests.support.broker import wait_until
from tests.support.two_nodes import SECRET, WAIT_S

READER = NodeId("b", "life-b")


class TwoNodes:
    """`broker` serves queue `s`; `rig` is another node with the same engine, whose data plane is asked."""

    def __init__(self, broker: Broker, rig: Rig, channel: Any) -> None:
        self.broker, self.rig, self.channel = broker, rig, channel
        self.inner = inner = broker.node.broker
        owner = inner.shared
        address = NodeAddress(NodeId(inner.node_name, owner.life), "127.0.0.1", broker.port)
        vhost = NodeVhost(lambda queue: None, inner.vhosts, lambda: list(inner.connections.values()), 100)
        vhost.answering = Answering(owner._thread, owner.sets.answers(), inner.limits)
        inner.door = NodeDoor(address.id, SECRET, vhost, 100)
        self.alive = True

        def address_of(row: Owner) -> NodeAddress | None:
            return address if self.alive and (row.node, row.life) == (address.id.name, address.id.life) else None

        rig.broker.node_name = READER.name
        reader: Any = rig.broker.shared
        made: list[Any] = []

        async def make() -> None:
            links = Links(READER, SECRET, rig.broker.limits)
            reader.sets.others = NodeRequests(links, rig.broker.limits, address_of)
            made.append(links)

        reader.sets.run(make, lambda result, error: made.append(error), WAIT_S)
        wait_until(lambda: len(made) == 2)
        assert made[1] is None
        self.links = made[0]

    def stop(self) -> None:
        ended: list[Any] = []
        reader: Any = self.rig.broker.shared
        reader.sets.run(self.links.stop, lambda result, error: ended.append(error), WAIT_S)
        wait_until(lambda: ended == [None])

    def fill(self, *bodies: str) -> None:
        for body in bodies:
            self.channel.publish(body.encode(), routing_key="s")
            self.channel.expect("basic.ack")

    @property
    def core(self) -> Any:
        return self.inner.vhosts["/"].queues["s"].core


@pytest.fixture
def two(start: Callable[..., Broker], connect: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TwoNodes]:
    engine = OwnEngine(monkeypatch, alone=False)
    broker = engine.broker(start, tmp_path / "a")
    channel = connect(broker).channel()
    channel.queue("s", durable=True, arguments=SHARED)
    channel.call("confirm.select")
    limits = {**FAST, "shared_set_look_ms": 0, "shared_set_wait_ms": 5_000}
    with Rig(tmp_path / "b", limits=limits, shared_by_owner=True) as rig:
        rig.declare("s", x_queue_type="shared")
        nodes = TwoNodes(broker, rig, channel)
        yield nodes
        nodes.stop()


def test_a_set_of_a_queue_of_another_node_is_read_and_committed_there(two: TwoNodes) -> None:
    two.fill(*(f"m{number}" for number in range(10)), "x" * 300_000)
    rig = two.rig
    reader = rig.open("s", "s")
    assert rig.call("sub.tail", **reader)["behind_messages"] == 11
    assert rig.call("sub.acquire", **reader, seq=1, max_messages=8)["count"] == 8
    assert rig.read(reader, 1, slices=2) == [f"m{number}" for number in range(8)]
    assert (two.core.ready_count(), two.core.unacked_count()) == (3, 8)
    assert rig.twice("sub.commit", **reader, upto=1) == {"committed": 1}
    assert (two.core.ready_count(), two.core.unacked_count()) == (3, 0)
    assert rig.call("sub.acquire", **reader, seq=2)["count"] == 3
    assert rig.read(reader, 2) == ["m8", "m9", "x" * 300_000]
    rig.call("sub.reset", name="s", action="redeliver")
    assert [two.core.is_redelivered(two.core.next_available(0)), two.core.ready_count()] == [True, 3]


def test_a_refusal_of_the_node_that_serves_the_queue_is_that_of_the_call(two: TwoNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    two.fill("a")
    reader = two.rig.open("s", "s")
    monkeypatch.setattr("flintmq.cluster.set_calls.exclusive_use", lambda queue: "an exclusive consumer")
    assert two.rig.code("sub.acquire", **reader, seq=1) == "QUEUE_BUSY"


def test_a_paused_queue_gives_nothing(two: TwoNodes) -> None:
    two.fill("a")
    reader = two.rig.open("s", "s")
    queue = two.inner.vhosts["/"].queues["s"]
    two.inner.paused = frozenset({queue.queue_id})
    assert two.rig.call("sub.acquire", **reader, seq=1)["count"] == 0
    two.inner.paused = frozenset()
    assert two.rig.call("sub.acquire", **reader, seq=1)["count"] == 1


def test_a_set_of_a_node_that_is_gone_is_committed_and_waits_for_the_next_owner(two: TwoNodes) -> None:
    two.fill("a", "b")
    rig = two.rig
    reader = rig.open("s", "s")
    assert rig.call("sub.acquire", **reader, seq=1, max_messages=1)["count"] == 1
    assert rig.read(reader, 1) == ["a"]
    two.alive = False
    assert rig.call("sub.commit", **reader, upto=1) == {"committed": 1}
    assert rig.code("sub.acquire", **reader, seq=2) == rig.code("sub.tail", **reader) == "UNAVAILABLE"
    two.alive = True
    assert rig.call("sub.acquire", **reader, seq=2)["count"] == 1
    assert rig.read(reader, 2) == ["b"]
    assert two.core.unacked_count() == 1, "the end of the first set came before the second one"


def test_a_queue_that_is_deleted_at_its_owner_is_known_from_the_engine(two: TwoNodes) -> None:
    two.fill("a", "b")
    rig = two.rig
    reader = rig.open("s", "s")
    rig.call("sub.acquire", **reader, seq=1)
    (ticket,) = rig.call("sub.plan", **reader, seq=1)["tickets"]
    two.channel.call("queue.delete", queue="s")
    assert rig.code("rows", **ticket, first=0, count=10) == "SET_CHANGED"
    assert rig.call("sub.plan", **reader, seq=1)["tickets"] == []
    assert rig.call("sub.commit", **reader, upto=1) == {"committed": 1}
    assert rig.call("sub.tail", **reader)["queues"] == []


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
