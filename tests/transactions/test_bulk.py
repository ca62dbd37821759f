"""Runs that are held, blocks that are staged, and decisions over several branches do what the same calls one by one would do."""

from __future__ import annotations

from pathlib import Path

import pytest

from flintmq.transactions import RunFacts, TransactionRefused, XaStatus, Xid
from flintmq.transactions.bulk import BLOCK_ENTRY, ROW

from .on_disk import OnDisk

X = Xid(1, b"set", b"1")
Y = Xid(1, b"stage", b"1")
Z = Xid(1, b"stage", b"2")
S = "session"
ROUTES = [(b"", b"q"), (b"ex", b"key")]


def entry(body: bytes, route: int = 0, *, priority: int = 0, flags: int = 1, expiration_ms: int = -1) -> bytes:
    header = b"\0\x3c\0\0" + len(body).to_bytes(8, "big") + b"\0\0"
    raw = header + body
    return BLOCK_ENTRY.pack(len(raw), route, len(header), flags, priority, 0, expiration_ms) + raw + bytes(-len(raw) % 8)


@pytest.fixture
def broker(tmp_path: Path) -> OnDisk:
    disk = OnDisk(tmp_path)
    disk.coordinator.select(S)
    return disk


def hold(disk: OnDisk, xid: Xid, queue: int = 1, count: int = 1000, size: int = 1 << 30, upto: int = 0):
    disk.coordinator.start(S, xid)
    facts = disk.coordinator.hold_run(S, xid, queue, messages_max=count, bytes_max=size, consumer="sub", upto=upto)
    disk.coordinator.end(S, xid)
    return facts


def stage(disk: OnDisk, xid: Xid, block: bytes, destinations: list[list[int]]):
    disk.coordinator.start(S, xid)
    facts = disk.coordinator.enqueue_block(S, xid, block, ROUTES, destinations)
    disk.coordinator.end(S, xid)
    return facts


def done(disk: OnDisk, outcome) -> XaStatus:
    while disk.step() or not outcome.done:
        pass
    return outcome.result(0)


def test_a_run_takes_the_head_and_leaves_the_rest(broker: OnDisk) -> None:
    positions = [broker.put(1, b"%d" % n) for n in range(10)]
    facts = hold(broker, X, count=4)
    assert facts == RunFacts(4, 4, positions[0], positions[3])
    assert broker.available(1) == positions[4:]
    assert done(broker, broker.coordinator.prepare(X)) is XaStatus.XA_OK
    (run,) = broker.coordinator.runs(X)
    rows, _ = run.rows(0, 10)
    assert [ROW.unpack_from(rows, at)[0] for at in range(0, len(rows), ROW.size)] == positions[:4]
    assert done(broker, broker.coordinator.commit(X)) is XaStatus.XA_OK
    assert broker.bodies()[0] == [b"%d" % n for n in range(4, 10)]


def test_a_decision_commits_several_branches_and_rolls_others_back(broker: OnDisk) -> None:
    for n in range(3):
        broker.put(1, b"%d" % n)
    hold(broker, X)
    stage(broker, Y, entry(b"a") + entry(b"b", 1, priority=2, flags=17), [[2], [2, 3]])
    stage(broker, Z, entry(b"lost"), [[3], []])
    for xid in (X, Y, Z):
        done(broker, broker.coordinator.prepare(xid))
    assert done(broker, broker.coordinator.decide((2, b"scope", b"7"), [X, Y], [Z])) is XaStatus.XA_OK
    assert broker.store.notes(2) == {b"scope": b"7"}
    assert broker.bodies() == [[], [b"b", b"a"], [b"b"]]
    assert not broker.coordinator.list()


def test_a_decision_with_a_branch_that_is_not_prepared_changes_nothing(broker: OnDisk) -> None:
    broker.put(1, b"m")
    hold(broker, X)
    stage(broker, Y, entry(b"a"), [[2], []])
    done(broker, broker.coordinator.prepare(X))
    with pytest.raises(TransactionRefused):
        broker.coordinator.decide((2, b"scope", b"7"), [X, Y])
    assert broker.store.notes(2) == {}
    assert broker.coordinator.recover() == [] or [view.state.value for view in broker.coordinator.list()] == ["prepared", "active"]
