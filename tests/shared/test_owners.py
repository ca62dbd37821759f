"""Nodes that live and nodes that are gone, on the engine in memory: what one node left holds up no other.

Properties: a row that can't be read goes back as it is; a node whose rows make no sense is told of, after the others had their turn.
O1 to O3 are held by test_queue_model.py and test_station.py.
"""

from __future__ import annotations

import struct

import pytest

from flintmq.config import Limits
from flintmq.shared.keys import META_FORMAT, QueueKeys
from flintmq.shared.owners import Owners
from flintmq.shared.queue import Message, SharedQueue, declare_queue
from tests.twins.memory_engine import MemoryEngine

LIMITS = Limits().replace(shared_retry_ms=0)


class Node:
    """A node that took a message of the queue."""

    def __init__(self, engine: MemoryEngine, keys: QueueKeys, content: bytes) -> None:
        owners = Owners(engine, LIMITS)
        owners.register()
        self.owner = owners.uses(keys.life)
        self.queue = SharedQueue(engine, keys, self.owner, LIMITS)
        self.queue.enqueue([Message(content)])
        (self.taken,), _ = self.queue.take(1, 100)


@pytest.fixture
def engine() -> MemoryEngine:
    return MemoryEngine()


@pytest.fixture
def keys(engine: MemoryEngine) -> QueueKeys:
    return declare_queue(engine, "/", "q")


def change(engine: MemoryEngine, key: bytes, value: bytes) -> None:
    transaction = engine.begin()
    transaction.set(key, value)
    transaction.commit()


def others_are_swept(engine: MemoryEngine) -> int:
    return Owners(engine, LIMITS).look(others_are_gone=True)


@pytest.mark.parametrize("row", [bytes([META_FORMAT + 1]) + bytes(30), b"", b"\x01"])
def test_a_message_of_a_later_version_goes_back_as_it_is(engine: MemoryEngine, keys: QueueKeys, row: bytes) -> None:
    later, other = Node(engine, keys, b"later"), Node(engine, keys, b"plain")
    change(engine, keys.leases(later.owner) + later.taken.order, row)
    assert others_are_swept(engine) == 2
    assert engine.state[keys.ready + later.taken.order][0] == row
    assert engine.state[keys.ready + other.taken.order][0].endswith(b"plain")


def test_a_node_whose_rows_make_no_sense_holds_up_no_other(engine: MemoryEngine, keys: QueueKeys) -> None:
    nodes = [Node(engine, keys, b"%d" % number) for number in range(3)]
    first = sorted(nodes, key=lambda node: node.owner)[0]  # the one that is looked at first
    change(engine, keys.counts(first.owner), b"no counts")
    with pytest.raises(struct.error):
        others_are_swept(engine)
    ready = [key for key in engine.state if key.startswith(keys.ready)]
    assert len(ready) == 2
    assert not [key for node in nodes if node is not first for key in engine.state if key.startswith(keys.leases(node.owner))]
