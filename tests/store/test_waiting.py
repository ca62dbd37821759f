"""The positions of a distributed transaction's entries: each is told from one record and the Commit, whatever happens in between."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from flintmq.store.copy_forward import copy_container
from flintmq.store.transaction_log import Row
from tests.drivers.store_driver import DrivenStore
from tests.store.rig import Rig
from tests.store.test_recovery import Logs
from tests.support import logbytes as lb
from tests.support.stored import StoredContent, rows_of
from tests.twins.sim_disk import SimDisk

CONTENT = StoredContent(b"x", b"k", b"h", b"body")


def counted(rows: list[Row], number: int) -> int:
    """The position of the `number`-th enqueue, as docs/FORMAT.md counts it."""
    given_ = [row.first + n if row.first else 0 for row in rows for n in range(row.length)]
    return given_[number] if number < len(given_) else 0


@given(st.dictionaries(st.integers(0, 30), st.integers(1, 60), min_size=1))
def test_rows_give_each_number_its_position(places: dict[int, int]) -> None:
    """Any numbers with any positions: each finds its own, the missing ones find none, and neighbours share a row."""
    numbers = sorted(places)
    rows = rows_of(7, numbers, [places[number] for number in numbers])
    for number in range(32):
        assert counted(rows, number) == places.get(number, 0)
    assert all(row.queue_id == 7 and row.length > 0 for row in rows)
    assert not any(a.first and a.first + a.length == b.first for a, b in pairwise(rows))


def test_a_copy_tells_no_position_before_its_commit_is_durable() -> None:
    """Messages are copied forward while their Commit is on its way: at any crash they are there or in doubt, and what is in doubt can be
    committed to other positions, which the next restart finds."""
    rig = Rig(size=4096)
    tx = rig.store.begin(b"xid")
    waiting = [rig.store.append_content(CONTENT) for _ in range(3)]
    for message in waiting:
        rig.store.enqueue(1, 0, message, tx=tx)
    rig.store.prepare(tx)
    rig.flush()
    before = rig.disk.position
    rig.store.commit(tx, {1: 5})
    assert copy_container(rig.store.logs, 1)[0] == 3
    rig.flush()
    outcomes = set()
    for position in range(before, rig.disk.position + 1):
        crashed = Rig(size=4096, disk=SimDisk(rig.disk.state(position)))
        first = 5
        doubt = list(crashed.store.in_doubt())
        if doubt:
            first = 9
            crashed.store.commit(tx, {1: 9})
        crashed.settle()
        crashed.reopen(clean=False)
        assert crashed.recovered()[1] == dict(enumerate(waiting, first))
        outcomes.add(bool(doubt))
    assert outcomes == {True, False}


def test_entries_are_found_once_their_commit_is_durable() -> None:
    """After the outcome was told each entry can be dequeued at its position, also when its message was copied while it waited."""
    rig = Rig(size=4096)
    tx = rig.store.begin(b"xid")
    waiting = [rig.store.append_content(CONTENT) for _ in range(3)]
    for message in waiting:
        rig.store.enqueue(1, 0, message, tx=tx)
        rig.store.enqueue(2, 0, message, tx=tx)
    rig.store.prepare(tx)
    rig.flush()
    assert copy_container(rig.store.logs, 1)[0] == 3
    rig.store.commit(tx, {1: 5, 2: 50})
    rig.flush()
    rig.store.dequeue(1, 6, 1, message_id=waiting[1])
    rig.store.dequeue(2, 52, 1, message_id=waiting[2])
    rig.settle()
    rig.reopen(clean=False)
    assert rig.recovered()[1] == {5: waiting[0], 7: waiting[2]}
    assert rig.recovered()[2] == {50: waiting[0], 51: waiting[1]}


def test_what_damage_took_leaves_the_others_their_positions(tmp_path: Path) -> None:
    """A prepared transaction lost one of its enqueues: the others are committed to the positions that were asked for, over restarts."""
    logs = Logs()
    tx = logs.begin(b"xid")
    kept = [logs.start() for _ in range(3)]
    for number, message in zip((0, 2, 3), kept):
        logs.enqueue(message, 1, lb.waiting(number), tx=tx)
    logs.outcome(lb.PREPARE, tx)
    logs.write(tmp_path)
    for clean in (False, True):
        store = DrivenStore.open(
            None,
            str(tmp_path),
            container_size=4096,
            store_uuid=lb.UUID,
            known_queues={1},
            threads=False,
            spill=False,
        )
        if store.in_doubt():
            store.commit(tx, {1: 10})
            store.flush()
        assert {one.position: one.message_id for one in store.entries(1)} == dict(enumerate(kept, 10))
        store.close(clean)
