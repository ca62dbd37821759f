"""Runs that are held, blocks that are staged, and decisions over several branches do what the same calls one by one would do."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flintmq.store.log_store")

from flintmq.config import Limits
from flintmq.queue.control import new_owner
from flintmq.transactions import BlockFacts, RunFacts, TransactionRefused, XaStatus, Xid
from flintmq.transactions.bulk import BLOCK_ENTRY, ROW
from tests.oracle.log import open_store
from tests.oracle.records import fields_of
from tests.support import blocks

from .on_disk import OnDisk

X = Xid(1, b"set", b"1")
Y = Xid(1, b"stage", b"1")
Z = Xid(1, b"stage", b"2")
S = "session"
ROUTES = [(b"", b"q"), (b"ex", b"key")]


def entry(body: bytes, route: int = 0, *, priority: int = 0, flags: int = 1, expiration_ms: int = -1) -> bytes:
    properties = {"delivery_mode": 2 if flags & 1 else 1}
    if flags & 16:
        properties["priority"] = priority
    return blocks.entry(body, route, properties | ({} if expiration_ms == -1 else {"expiration": str(expiration_ms)}))


@pytest.fixture
def broker(tmp_path: Path) -> OnDisk:
    (tmp_path / "store").mkdir()
    disk = OnDisk(tmp_path / "store")
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
    assert [view.state.value for view in broker.coordinator.list()] == ["prepared", "active"]


def test_consumers_get_what_a_run_left_and_what_it_gives_back(broker: OnDisk) -> None:
    """A message taken before is skipped; after the rollback everything is in its old place, flagged redelivered."""
    positions = [broker.put(1, b"%d" % n) for n in range(6)]
    other = new_owner()
    assert broker.queues[1].core.take_at(positions[1], other)
    assert hold(broker, X, count=3) == RunFacts(3, 3, positions[0], positions[3])
    assert broker.coordinator.runs(X)[0].ranges() == [(positions[0], 1), (positions[2], 2)]
    assert broker.available(1) == positions[4:]
    assert broker.queues[1].core.release_held(positions[1], True, other)
    assert done(broker, broker.coordinator.rollback(X)) is XaStatus.XA_OK
    assert broker.available(1) == positions
    assert [broker.queues[1].core.peek(position)[1] for position in positions] == [True, True, True, True, False, False]


def test_a_message_larger_than_the_bound_is_taken_alone(broker: OnDisk) -> None:
    broker.put(1, b"x" * 100)
    broker.put(1, b"y")
    assert hold(broker, X, size=10).count == 1
    assert hold(broker, Y, size=10) == RunFacts(1, 1, 2, 2)


def test_levels_are_held_in_order_and_upto_a_position(broker: OnDisk) -> None:
    low, high = broker.put(2, b"low", priority=0, flags=17), broker.put(2, b"high", priority=3, flags=17)
    assert hold(broker, X, 2, upto=high) == RunFacts(1, 4, high, high)
    assert hold(broker, Y, 2) == RunFacts(1, 3, low, low)


def test_a_run_of_a_deleted_queue_ends_its_messages(broker: OnDisk) -> None:
    """A prepared set keeps the rest of its work; nothing of the deleted queue stays alive in the log."""
    for queue in (1, 1, 3):
        broker.put(queue, b"m")
    broker.settle()
    alive = broker.store.messages.live_bytes
    hold(broker, X)
    broker.coordinator.start(S, X, join=True)
    broker.coordinator.hold_run(S, X, 3, messages_max=9, bytes_max=99)
    broker.coordinator.end(S, X)
    done(broker, broker.coordinator.prepare(X))
    gone = broker.queues.pop(1)
    gone.core.mark_deleted()
    broker.coordinator.queue_deleted(1, lambda: broker.store.drop_queue(1))
    assert [run.queue_id for run in broker.coordinator.runs(X)] == [3]
    broker.settle()
    assert 0 < broker.store.messages.live_bytes < alive
    assert done(broker, broker.coordinator.commit(X)) is XaStatus.XA_OK
    broker.settle()
    assert broker.store.messages.live_bytes == 0
    assert not broker.coordinator.list()


def test_a_stage_loses_what_it_has_for_a_deleted_queue(broker: OnDisk) -> None:
    stage(broker, Y, entry(b"both") + entry(b"one", 1), [[1, 3], [1]])
    done(broker, broker.coordinator.prepare(Y))
    gone = broker.queues.pop(1)
    gone.core.mark_deleted()
    broker.coordinator.queue_deleted(1, lambda: broker.store.drop_queue(1))
    assert done(broker, broker.coordinator.commit(Y)) is XaStatus.XA_OK
    assert broker.available(3) == [1]
    assert broker.queues[3].core.message_at(1)[3] == b"both"


def test_staged_messages_expire_by_the_shorter_of_both_times(broker: OnDisk) -> None:
    broker.queues[1].core.ttl_ms = 500
    blocks = entry(b"both", expiration_ms=100) + entry(b"queue's") + entry(b"later", expiration_ms=900) + entry(b"never", 1)
    stage(broker, Y, blocks, [[1], [3]])
    now = broker.coordinator._clock.wall_ms()
    done(broker, broker.coordinator.commit(Y, one_phase=True))
    core = broker.queues[1].core
    assert [core.entry_facts(position)[2] - now for position in broker.available(1)] == [100, 500, 500]
    assert broker.queues[3].core.entry_facts(1)[2] == 0
    assert core.take_expired(now + 499, 3)[3] == b"both"
    assert core.take_expired(now + 499, 3) is None


def test_a_limited_queue_drops_its_head_after_a_stage(broker: OnDisk) -> None:
    broker.queues[1].core.max_length = 2
    broker.queues[1].core.destination_flags = 1
    stage(broker, Y, b"".join(entry(b"%d" % n) for n in range(5)), [[1], []])
    done(broker, broker.coordinator.commit(Y, one_phase=True))
    assert broker.bodies()[0] == [b"3", b"4"]


def test_staged_priorities_give_few_rows(broker: OnDisk) -> None:
    """Messages of levels by turns: each level's are neighbours, in their order."""
    stage(broker, Y, b"".join(entry(b"%d" % n, priority=n % 4, flags=17) for n in range(40)), [[2], []])
    tx = broker.store.transaction_of(Y.encode())
    done(broker, broker.coordinator.prepare(Y))
    broker.coordinator.commit(Y)
    assert len(broker.store.transactions.table[tx].rows) == 4
    broker.settle()
    assert [int(body) % 4 for body in broker.bodies()[1]] == sorted((n % 4 for n in range(40)), reverse=True)
    assert [int(body) for body in broker.bodies()[1][:10]] == list(range(3, 40, 4))


def test_long_messages_are_staged(broker: OnDisk) -> None:
    bodies = [bytes([n]) * (3000 * n) for n in range(1, 6)]
    stage(broker, Y, b"".join(map(entry, bodies)), [[1, 3], []])
    done(broker, broker.coordinator.prepare(Y))
    assert done(broker, broker.coordinator.commit(Y)) is XaStatus.XA_OK
    assert broker.bodies() == [bodies, [], bodies]


@pytest.mark.parametrize(
    "block",
    [
        b"\0",
        entry(b"m", 2),
        entry(b"m")[:-8],
        entry(b"m") + entry(b"n")[:20],
        BLOCK_ENTRY.pack(5, 0, 6, 0, 0, 0, -1) + bytes(8),
        entry(b"m", expiration_ms=-2),
        entry(b"abc").replace((3).to_bytes(8, "big"), (4).to_bytes(8, "big")),
        b"\xff" * 64,
    ],
)
def test_a_malformed_block_enrols_nothing(broker: OnDisk, block: bytes) -> None:
    broker.coordinator.start(S, Y)
    before = broker.store.messages.tail
    with pytest.raises(ValueError):
        broker.coordinator.enqueue_block(S, Y, entry(b"good") + block, ROUTES, [[1], [2]])
    with pytest.raises(ValueError):
        broker.coordinator.enqueue_block(S, Y, entry(b"good"), ROUTES, [[1]])
    assert broker.store.messages.tail == before
    assert broker.coordinator.enqueue_block(S, Y, entry(b"good"), ROUTES, [[1], [2]]) == BlockFacts(1, 1, 4, 0)


def test_refusals(tmp_path: Path) -> None:
    """Unknown queues, too much, single and bulk enqueues together: refused, and nothing changed."""
    disk = OnDisk(tmp_path, Limits(dtx_enrolments_max=5))
    c = disk.coordinator
    c.select(S)
    c.start(S, Y)
    for _ in range(4):
        disk.put(1, b"m")
    with pytest.raises(TransactionRefused):
        c.hold_run(S, Y, 99, messages_max=1, bytes_max=1)
    with pytest.raises(TransactionRefused):
        c.enqueue_block(S, Y, entry(b"m"), ROUTES, [[99], []])
    with pytest.raises(TransactionRefused):
        c.enqueue_block(S, Y, entry(b"m") * 6, ROUTES, [[1], []])
    assert c.enqueue_block(S, Y, entry(b"m") * 3, ROUTES, [[1], []]).enqueues == 3
    assert c.hold_run(S, Y, 1, messages_max=9, bytes_max=99).count == 2
    with pytest.raises(TransactionRefused):
        c.hold_run(S, Y, 1, messages_max=9, bytes_max=99)
    (view,) = c.list()
    assert (view.enqueues, view.dequeues, view.queues) == (3, 2, {1: (3, 2)})
    c.session_closed(S)
    disk.settle()
    assert len(disk.available(1)) == 4
    assert disk.store.messages.live_bytes > 0
    assert [len(bodies) for bodies in disk.bodies()] == [4, 0, 0]


def test_a_set_with_many_gaps_ends_where_its_rows_do(broker: OnDisk) -> None:
    """Every second entry is a consumer's: the run has as many pieces as one record of the log may have."""
    limit = broker.store.bulk.rows_max
    positions = [broker.put(1, b"m") for _ in range(2 * limit + 10)]
    other = new_owner()
    for position in positions[::2]:
        assert broker.queues[1].core.take_at(position, other)
    assert hold(broker, X).count == limit
    assert done(broker, broker.coordinator.prepare(X)) is XaStatus.XA_OK
    for name in ("records", "copy"):
        again = OnDisk(broker.image(broker.directory.parent / name))
        assert [run.count for run in again.coordinator.runs(X)] == [limit]
        broker.store.copy_transactions(broker.store.transaction_records.tail)
        broker.step()


def test_the_log_tells_who_consumed_a_set_and_when(broker: OnDisk) -> None:
    """Message-Dequeue records name the consumer of the set, whose name is in the log, and when it was acquired."""
    broker.put(1, b"m")
    hold(broker, X)
    done(broker, broker.coordinator.prepare(X))
    (run,) = broker.coordinator.runs(X)
    done(broker, broker.coordinator.commit(X))
    broker.settle()
    logs = open_store(broker.directory)
    found = [(item, fields_of(item, 1)) for item in logs["messages"].records()]
    (dequeue,) = [values for item, values in found if item.name == "Message-Dequeue"]
    (name,) = [values for item, values in found if item.name == "Name"]
    assert (dequeue["consumer"], dequeue["delivered_us"]) == (name["id"], run.run.acquired_us)
    assert (name["tag"], name["group"], dequeue["reason"]) == (b"sub", b"spark", "ack")
    ends = [item.name for item in logs["transactions"].records()]
    assert [one for one in ends if one != "Note"] == ["Dtx-Start", "Acquire-Set", "Prepare", "Commit", "End", "Delete"]
