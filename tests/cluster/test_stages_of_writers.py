"""Stages on shared queues through two brokers on etcd: what one node took another one commits, wherever the queues are served.

Properties: a stage that is prepared outlives its node; a batch is published once, on all its queues, by whichever node; the epoch of one
node's driver fences that of another's.
"""

from __future__ import annotations

from typing import Any

from tests.cluster.test_set_calls import Plane
from tests.cluster.test_transactions_of_clients import drained
from tests.cluster.test_two_nodes import Begin, begin, declared, etcd, queue
from tests.dataplane.rig import block
from tests.support.inprocess import connect, heap_of_others, start

__all__ = ["begin", "connect", "etcd", "heap_of_others", "queue", "start"]


class Two:
    """A queue of either node, and the data planes of both."""

    def __init__(self, begin: Begin, connect: Any, queue: str) -> None:
        self.nodes = [begin("a"), begin("b")]
        self.names = [f"{queue}-a", f"{queue}-b"]
        for node, name in zip(self.nodes, self.names, strict=True):
            declared(connect, node, name)
        declared(connect, self.nodes[1], self.names[0])
        declared(connect, self.nodes[0], self.names[1])
        self.first, self.second = map(Plane, self.nodes)


def epoch(plane: Plane) -> int:
    number: int = plane.call("scope.open", shared=True)["epoch"]
    return number


def stage(plane: Plane, scope: str, number: int, batch: int, names: list[str], *bodies: str) -> str:
    stage_id: str = plane.call("stage.begin", scope=scope, epoch=number, batch=batch, shared=True)["stage_id"]
    for name in names:
        head = {"user": "guest", "vhost": "/", "call": "block", "stage_id": stage_id, "routes": [["", name]]}
        answer, _ = plane.service.dispatch(head, block(*bodies))
        assert answer["ok"]["count"] == len(bodies)
    plane.call("stage.prepare", stage_id=stage_id)
    return stage_id


def test_a_stage_of_one_node_is_committed_by_the_other_on_queues_of_both(begin: Begin, connect: Any, queue: str) -> None:
    two = Two(begin, connect, queue)
    mine = epoch(two.first)
    ids = [stage(plane, queue, mine, 0, two.names, body) for plane, body in ((two.first, "1"), (two.second, "2"))]
    for plane in (two.second, two.first):
        answer = plane.call("stage.commit", scope=queue, epoch=mine, batch=0, stage_ids=ids)
        assert answer["committed"] == 0 and answer["already"] is (plane is two.first)
    channel = connect(two.nodes[0]).channel()
    assert [sorted(drained(channel, name)) for name in two.names] == [[b"1", b"2"]] * 2
    assert epoch(two.second) > mine


def test_a_prepared_stage_whose_node_has_stopped_is_committed_by_another(begin: Begin, connect: Any, queue: str) -> None:
    two = Two(begin, connect, queue)
    mine = epoch(two.first)
    stage_id = stage(two.first, queue, mine, 0, two.names, "x", "y")
    two.nodes[0].node.stop()
    assert two.second.call("stage.prepare", stage_id=stage_id)["count"] == 4
    two.second.surely("stage.commit", scope=queue, epoch=mine, batch=0, stage_ids=[stage_id])
    channel = connect(two.nodes[1]).channel()
    assert [drained(channel, name) for name in two.names] == [[b"x", b"y"]] * 2


def test_the_driver_of_one_node_fences_that_of_another(begin: Begin, connect: Any, queue: str) -> None:
    two = Two(begin, connect, queue)
    old = epoch(two.first)
    left = stage(two.first, queue, old, 0, two.names, "old")
    new = epoch(two.second)
    stage_id = stage(two.second, queue, new, 0, two.names, "new")
    assert two.first.code("stage.commit", scope=queue, epoch=old, batch=0, stage_ids=[left]) == "FENCED"
    two.first.call("stage.commit", scope=queue, epoch=new, batch=0, stage_ids=[stage_id])
    assert drained(connect(two.nodes[0]).channel(), two.names[1]) == [b"new"]
