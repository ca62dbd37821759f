"""Room on a disk: publishers are blocked while there is enough for what is under way, and nothing holds room that nobody uses."""

from __future__ import annotations

import errno
import os

import pytest

from flintmq.errors import NoRoomError, StoreError
from flintmq.store.log.space import Reserves, message_reserves, page_reserves
from tests.store.rig import STORE, Rig, TellingDisk
from tests.twins.sim_disk import SimDisk

SIZE = 8192
RESERVES = Reserves(last=2 * SIZE, tight=4 * SIZE, roomy=10 * SIZE, resume=12 * SIZE)


def small_rig(containers: int) -> Rig:
    rig = Rig(size=SIZE, disk=TellingDisk(budget=1 << 30))
    for one in (rig.store.messages, rig.store.transaction_records):
        one.set_reserves(RESERVES)
    rig.disk.budget = containers * SIZE
    return rig


def test_reserves_leave_room_for_buffers_definitions_and_the_next_start() -> None:
    """At the moment of blocking the write buffers, two containers and the tail's copy fit; the page log stops before that."""
    reserves = message_reserves(1 << 20, 10 << 20)
    assert reserves.last >= (1 << 20) + (1 << 20)
    assert reserves.tight >= reserves.last + (1 << 20)
    assert reserves.roomy >= reserves.tight + (10 << 20) + 2 * (1 << 20)
    assert reserves.resume > reserves.roomy
    assert page_reserves(reserves).last == reserves.roomy


def test_an_operators_limit_blocks_publishers_earlier_and_leaves_acks_their_room() -> None:
    """One below the log's own need changes nothing."""
    own = message_reserves(1 << 20, 10 << 20)
    assert message_reserves(1 << 20, 10 << 20, own.roomy - 1) == own
    more = message_reserves(1 << 20, 10 << 20, 5 << 30)
    assert (more.last, more.tight, more.roomy) == (own.last, own.tight, 5 << 30) and more.resume > more.roomy


def test_publishers_are_blocked_before_the_disk_is_full() -> None:
    """The pressure says disk at `roomy`, not at the first failure; what is ready then is `needed`, and no call failed for space."""
    rig = small_rig(40)
    while not rig.store.disk_low:
        for _ in range(5):
            rig.publish(1, body=bytes(300))
        rig.flush()
        rig.store.maintain()
    assert RESERVES.roomy - 2 * SIZE <= rig.disk.budget < RESERVES.roomy
    assert rig.messages.ready_ahead >= 2
    assert not rig.disk.failures
    for position in list(rig.model[1]):
        rig.ack(1, position)
    rig.settle()
    assert not rig.store.disk_low
    assert rig.disk.budget >= RESERVES.resume
    assert rig.entries() == rig.model


def test_ready_containers_are_given_back_when_the_disk_is_tight() -> None:
    """A log that was made ready far ahead gives all but `needed` back, and goes on in what is left."""
    rig = small_rig(40)
    rig.messages.set_ahead(12)
    rig.store.maintain()
    assert rig.messages.ready_ahead == 12
    rig.disk.budget = RESERVES.roomy - SIZE
    rig.messages.set_ahead(2)
    rig.store.maintain()
    assert rig.messages.ready_ahead == rig.messages.needed
    assert len(rig.files()) == 1 + rig.messages.needed
    rig.store.maintain()
    assert not rig.store.disk_low
    for _ in range(60):
        rig.publish(1, body=bytes(300))
    rig.settle()
    rig.reopen(clean=False)
    assert rig.recovered() == rig.model


def test_a_stop_does_not_wait_for_room() -> None:
    """With no room at all and unwritten messages, close ends; the start after it finds what was durable and nothing of the rest."""
    rig = small_rig(40)
    rig.publish(1)
    rig.flush()
    durable = {queue: dict(found) for queue, found in rig.model.items()}
    rig.disk.budget = 0
    while rig.store.messages.ready_ahead:
        rig.publish(1, body=bytes(3000))
    for _ in range(10):
        rig.publish(1, body=bytes(3000))
    rig.store.close(True)
    rig.disk.budget = 1 << 30
    rig.model = durable
    rig.open()
    found = rig.recovered()
    assert found[1].items() >= durable[1].items()
    assert not rig.store.was_clean


def churned(rig: Rig, count: int) -> int:
    """Messages come and go, with a pass of the maintenance wherever a container is begun. Returns the most files seen after a pass."""
    most = 0
    for _ in range(count):
        rig.publish(2, body=bytes(300))
        rig.ack(2, rig.next[2] - 1)
        rig.flush()
        rig.store.maintain()
        most = max(most, len(rig.files()) - 2 * rig.messages.live_bytes // SIZE)
    return most


def test_the_files_of_a_log_are_within_its_bound_while_the_disk_has_room() -> None:
    """With much of the disk free the reserve needs no files: with one message held, those from the base to the last ready one and the
    dead ones are never more than twice what is live and four; a restart finds the message."""
    rig = Rig(size=SIZE, disk=TellingDisk(budget=4 << 30))
    held = rig.publish(1, body=b"held")
    assert churned(rig, 600) <= 4
    assert rig.messages.base > 20 * SIZE
    assert rig.store.maintenance.copied_messages >= 20
    rig.reopen(clean=False)
    assert rig.recovered() == rig.model
    assert rig.store.content(held).body == b"held"


def test_the_reserve_stands_ready_where_a_disk_could_fill() -> None:
    """With less free, the same log has containers ready for what acks and outcomes need, on top of the bound."""
    rig = small_rig(200)
    rig.publish(1, body=b"held")
    most = churned(rig, 300)
    assert rig.messages.ready_ahead >= rig.messages.needed >= 3
    assert 4 < most <= 4 + rig.messages.needed


def test_what_a_backlog_made_ready_is_given_back() -> None:
    """A log with much live may have many files; when that is consumed, the bound is that of an empty log again."""
    rig = Rig(size=SIZE, disk=TellingDisk(budget=4 << 30))
    for _ in range(400):
        rig.publish(1, body=bytes(300))
        rig.flush()
        rig.store.maintain()
    rig.messages.set_ahead(8)
    rig.store.maintain()
    assert rig.messages.ready_ahead == 8
    for position in list(rig.model[1]):
        rig.ack(1, position)
    rig.settle()
    assert len(rig.files()) <= 4


def test_a_flood_is_stopped_before_it_takes_the_room_of_who_ends_messages() -> None:
    """Publishers who fill containers as quickly as they are made are blocked at `roomy`, too: a pass that makes them ends there."""
    rig = small_rig(40)
    rig.store.maintain()
    maintenance = rig.store.maintenance
    move_base = maintenance._move_base

    def flooded() -> None:
        move_base()
        rig.flush()
        while not rig.store.disk_low and rig.messages.tail - rig.messages.durable_lsn < 2 * SIZE:  # what write buffers hold
            for _ in range(10):
                rig.publish(1, body=bytes(300))
            rig.flush()

    maintenance._move_base = flooded
    for _ in range(200):
        rig.store.maintain()
        if rig.store.disk_low:
            break
    assert rig.store.disk_low
    assert rig.disk.budget >= RESERVES.roomy - 3 * SIZE
    maintenance._move_base = move_base
    for position in list(rig.model[1]):
        rig.ack(1, position)
        if position % 20 == 0:
            rig.flush()
            rig.store.maintain()
    rig.settle()
    assert not rig.store.disk_low
    assert rig.entries() == rig.model


# --- outcomes ---------------------------------------------------------------------------------------------------------------


def prepared(rig: Rig, number: int) -> int:
    tx: int = rig.store.begin(b"xid %d" % number)
    rig.store.prepare(tx)
    return tx


def in_the_last_container(rig: Rig) -> None:
    """Notes, without a pass of the maintenance, until the tail of the transaction log is in the last container that is ready."""
    while rig.store.transaction_records.ready_ahead:
        rig.store.note(99, b"key", bytes(500))
        rig.flush()


@pytest.mark.parametrize("free", [200, 4 << 30])
def test_what_is_prepared_does_not_wait_for_a_container_that_is_only_not_made_yet(free: int) -> None:
    """The log is in the last container that is ready: with room on the disk nothing is refused, and the outcome is written."""
    rig = small_rig(max(200, free // SIZE))
    for number in range(5):
        in_the_last_container(rig)
        tx = prepared(rig, number)
        in_the_last_container(rig)
        rig.store.commit(tx, ())
        rig.settle()
        assert not rig.store.in_doubt()


def test_nothing_is_prepared_while_the_disk_has_no_room_for_the_outcome() -> None:
    """Nothing is written then, and the same transaction is prepared when there is room again."""
    rig = small_rig(200)
    tx = rig.store.begin(b"xid")
    rig.disk.budget = 0
    in_the_last_container(rig)
    rig.store.maintain()
    tail = rig.store.transaction_records.tail
    with pytest.raises(NoRoomError, match="free disk space"):
        rig.store.prepare(tx)
    assert rig.store.transaction_records.tail == tail
    rig.disk.budget = 200 * SIZE
    rig.store.maintain()
    rig.store.prepare(tx)
    rig.settle()
    assert rig.store.in_doubt() == [b"xid"]


@pytest.mark.parametrize("log", ["messages", "transactions"])
def test_a_new_store_without_room_for_its_logs_does_not_begin(log: str) -> None:
    """No message of a transaction is on disk while the log that would tell of its end has no place. With room the next start begins."""
    disk = SimDisk(clock=None)
    disk.fail("allocate", 1, errno.ENOSPC, True, path=f"/{log}/")
    with pytest.raises(StoreError, match=f"first container in {STORE}/{log}: {os.strerror(errno.ENOSPC)}; 8,192 bytes"):
        Rig(size=8192, disk=disk, initial_containers=1)
    disk.heal()
    rig = Rig(size=8192, disk=disk, initial_containers=1)
    rig.publish(1, body=b"here")
    rig.settle()
    assert rig.entries() == rig.model
