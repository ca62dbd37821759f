"""The nodes of a cluster as rows of an engine in memory.

Properties: M1 to M4 of shared/members.py.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flintmq.config import Limits
from flintmq.shared.keys import MEMBERS, text
from flintmq.shared.members import (
    DRAINING,
    UP,
    Member,
    NameTaken,
    NoMember,
    NotUp,
    StillUp,
    is_ordered,
    order_drain,
    read_members,
    remove_member,
    unpack,
    write_member,
)
from flintmq.shared.owners import Owners
from flintmq.shared.queue import Fenced
from tests.twins.memory_engine import MemoryEngine

LIMITS = Limits().replace(shared_retry_ms=0)
PATIENCE_MS = 1_000


class Node:
    """A node of a cluster. Args: store: a letter of its store's id."""

    def __init__(self, engine: MemoryEngine, name: str, store: str) -> None:
        self.engine, self.now = engine, 0.0
        self.owners = Owners(engine, LIMITS, lambda: self.now)
        addresses = {"amqp": "10.0.0.1:5672", "http": "[fd00::1]:15672"}
        self.member = Member(name, store * 32, self.owners.register(), UP, "1.2.3", addresses, 7)

    def write(self, **changes: Any) -> Node:
        self.member = replace(self.member, **changes)
        write_member(self.engine, self.member, PATIENCE_MS)
        return self

    def end_of(self, other: Node) -> None:
        """The other one gives no sign of life for a lease."""
        self.owners.look()
        self.now += LIMITS.shared_lease_ms / 1000
        self.owners.look()
        assert other.owners.owner not in self.owners.nodes()


def states(engine: MemoryEngine) -> dict[str, tuple[str, bool]]:
    return {member.name: (member.state, lives) for member, lives in read_members(engine, LIMITS)[0]}


def test_a_node_is_seen_with_all_that_it_says_and_is_down_when_its_life_is_over() -> None:
    engine = MemoryEngine()
    one, other = Node(engine, "one", "a").write(), Node(engine, "other", "b").write(state=DRAINING, left=3)
    assert read_members(engine, LIMITS) == ([(one.member, True), (other.member, True)], 0)
    one.end_of(other)
    assert states(engine) == {"one": (UP, True), "other": (DRAINING, False)}
    with pytest.raises(Fenced):
        other.write(state=UP)


def test_a_name_is_one_node_s_while_it_lives() -> None:
    engine = MemoryEngine()
    one, other = Node(engine, "same", "a").write(), Node(engine, "same", "b")
    with pytest.raises(NameTaken):
        other.write()
    assert read_members(engine, LIMITS)[0] == [(one.member, True)]
    other.end_of(one)
    other.write()
    assert read_members(engine, LIMITS)[0] == [(other.member, True)]


def test_a_node_that_comes_back_ends_its_former_life_at_once() -> None:
    engine = MemoryEngine()
    before = Node(engine, "same", "a").write()
    Node(engine, "same", "a").write()
    with pytest.raises(Fenced):
        before.owners.beat()


def test_an_order_is_for_one_life() -> None:
    engine = MemoryEngine()
    one, other = Node(engine, "one", "a").write(), Node(engine, "other", "b").write()
    order_drain(engine, "one", PATIENCE_MS)
    assert is_ordered(engine, "one", one.owners.owner)
    assert not is_ordered(engine, "other", other.owners.owner)
    again = Node(engine, "one", "a").write()
    assert not is_ordered(engine, "one", again.owners.owner)
    other.end_of(again)
    with pytest.raises(NotUp):
        order_drain(engine, "one", PATIENCE_MS)
    with pytest.raises(NoMember):
        order_drain(engine, "nobody", PATIENCE_MS)


def test_a_node_is_forgotten_when_it_is_down() -> None:
    engine = MemoryEngine()
    one, other = Node(engine, "one", "a").write(), Node(engine, "other", "b").write()
    order_drain(engine, "one", PATIENCE_MS)
    with pytest.raises(StillUp):
        remove_member(engine, "one", PATIENCE_MS)
    other.end_of(one)
    remove_member(engine, "one", PATIENCE_MS)
    assert states(engine) == {"other": (UP, True)}
    assert not is_ordered(engine, "one", one.owners.owner)
    with pytest.raises(NoMember):
        remove_member(engine, "one", PATIENCE_MS)


GOOD = {
    "format": 1,
    "store": "ab" * 16,
    "life": "0102030405060708",
    "state": "up",
    "version": "1.0.0",
    "addresses": {"amqp": "host:5672"},
    "since_ms": 1,
    "left": 0,
}


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"store": 5},
        {"store": "xy"},
        {"life": "01"},
        {"life": "zz02030405060708"},
        {"state": "down"},
        {"version": "1\x1b[2J"},
        {"version": "9" * 65},
        {"addresses": ["host:1"]},
        {"addresses": {"amqp": "host"}},
        {"addresses": {"amqp": "host:0"}},
        {"addresses": {"amqp": "host:70000"}},
        {"addresses": {"amqp": "ho st:1"}},
        {"addresses": {"amqp": "a,b:1"}},
        {"addresses": {"amqp": "host:1\n"}},
        {"addresses": {"telnet": "host:1"}},
        {"since_ms": -1},
        {"left": True},
        {"left": "1"},
    ],
    ids=str,
)
def test_a_row_that_is_none_is_left_out_and_the_others_stand(change: dict[str, Any]) -> None:
    engine = MemoryEngine()
    Node(engine, "one", "a").write()
    rows = {b"two\0\0": json.dumps(GOOD | change).encode()}
    transaction = engine.begin()
    for key, value in rows.items():
        transaction.set(MEMBERS + key, value)
    transaction.commit()
    assert states(engine) == {"one": (UP, True)}
    assert read_members(engine, LIMITS)[1] == 1
    remove_member(engine, "two", PATIENCE_MS)
    assert read_members(engine, LIMITS)[1] == 0


@pytest.mark.parametrize("name", [b"", b"bad name\0\0", b"\xff\0\0", b"x" * 200 + b"\0\0", b"no end"])
def test_a_name_that_is_none_is_left_out(name: bytes) -> None:
    engine = MemoryEngine()
    transaction = engine.begin()
    transaction.set(MEMBERS + name, json.dumps(GOOD).encode())
    transaction.commit()
    assert read_members(engine, LIMITS) == ([], 1)


_JSON = st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))


def test_brackets_do_no_harm() -> None:
    for value in (b"[" * 4_000, b'{"a":' * 800):
        with pytest.raises(ValueError):
            unpack("one", value)


@given(st.one_of(st.binary(max_size=200), _JSON.map(lambda value: json.dumps(value).encode())))
def test_no_bytes_of_another_node_do_harm(value: bytes) -> None:
    with pytest.raises(ValueError):
        unpack("one", value)


def test_what_is_written_can_be_read() -> None:
    assert unpack("two", json.dumps(GOOD).encode()).addresses == {"amqp": "host:5672"}
    member = Node(MemoryEngine(), "a.b-c_d@host", "c").member
    assert unpack(member.name, member.pack()) == member
    assert text(member.name).endswith(b"\0\0")
