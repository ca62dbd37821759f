"""Purges and deleted queues: their slices, what the log says of them, and what a restart finds."""

from __future__ import annotations

from typing import Any

import pytest

from flintmq.queue.control import QueueHandle, new_owner
from flintmq.queue.purge_slices import Sweep
from tests.store.rig import STORE, Rig, TellingDisk
from tests.support import logbytes as lb

PERSISTENT = 1
BIG = 2**40


def queue_of(rig: Rig, number: int = 1, levels: int = 1) -> Any:
    core: Any = QueueHandle(number, 1 if levels > 1 else 0, levels)
    core.set_durable(True)
    core.attach_log(rig.store)
    rig.store.attach(core)
    return core


def fill(core: Any, count: int, body: bytes = b"body", priority: int = 0) -> None:
    for _ in range(count):
        assert core.publish(b"", b"key", b"\0\x3c" + bytes(12), body, PERSISTENT | (16 if priority else 0), priority)


def swept(core: Any, ending: bool = False, most: int = BIG) -> Any:
    sweep: Any = Sweep(core, ending)
    while not sweep.step(most):
        pass
    return sweep


def test_a_purge_is_a_few_records_and_stays_purged() -> None:
    rig = Rig(size=65536)
    core = queue_of(rig)
    fill(core, 1000)
    before = rig.messages.tail
    sweep = swept(core)
    assert (sweep.removed, core.ready_count(), rig.messages.live_count) == (1000, 0, 0)
    assert rig.messages.tail - before < 1000  # bytes: 1000 dequeues would take 56 each
    assert before < sweep.lsn <= rig.messages.tail
    rig.flush()
    assert rig.messages.durable_lsn >= sweep.lsn
    rig.reopen(clean=False)
    assert rig.recovered()[1] == {}
    again = queue_of(rig)
    rig.store.restore(again)
    assert again.publish(b"", b"key", b"", b"", PERSISTENT, 0) == 1001  # the positions of what was purged are not used again


def test_slices_end_what_was_there_when_the_purge_began_and_nothing_else() -> None:
    rig = Rig(size=65536)
    core = queue_of(rig)
    fill(core, 600)
    sweep: Any = Sweep(core, False)
    assert not sweep.step(100)
    assert 0 < sweep.removed < 600
    fill(core, 5)
    while not sweep.step(100):
        pass
    assert (sweep.removed, core.ready_count()) == (600, 5)
    rig.flush()
    rig.reopen(clean=False)
    assert list(rig.recovered()[1]) == [601, 602, 603, 604, 605]


def test_what_was_purged_before_a_crash_stays_purged_the_rest_comes_back() -> None:
    rig = Rig(size=65536)
    core = queue_of(rig)
    fill(core, 1000)
    sweep: Any = Sweep(core, False)
    assert not sweep.step(300)
    rig.flush()
    left = core.ready_count()
    assert 0 < left < 1000
    rig.reopen(clean=False)
    assert list(rig.recovered()[1]) == list(range(1001 - left, 1001))


def test_entries_in_consumers_hands_stay() -> None:
    rig = Rig(size=65536)
    core = queue_of(rig)
    fill(core, 300)
    owner = new_owner()
    taken = [position for position in range(1, 301) if position % 2]  # every run has one position: more than one record takes
    assert all(core.take_at(position, owner) for position in taken)
    assert swept(core).removed == 150
    rig.flush()
    assert rig.messages.live_count == 150
    assert core.release_held(1, True, owner)
    rig.reopen(clean=False)
    assert list(rig.recovered()[1]) == taken


def test_a_message_of_several_queues_lives_as_long_as_it_has_a_place() -> None:
    rig = Rig()
    rig.publish(1, 2)
    rig.publish(1, 2)
    core = queue_of(rig, 1)
    rig.flush()
    rig.reopen(clean=False)
    core = queue_of(rig, 1)
    rig.store.restore(core)
    assert swept(core).removed == 2
    rig.flush()
    assert rig.messages.live_count == 2
    rig.reopen(clean=False)
    assert (rig.recovered()[1], len(rig.recovered()[2])) == ({}, 2)
    other = queue_of(rig, 2)
    rig.store.restore(other)
    assert swept(other).removed == 2
    rig.flush()
    assert rig.messages.live_count == 0
    rig.reopen(clean=False)
    assert rig.recovered() == {1: {}, 2: {}, 3: {}}


def test_levels_of_a_priority_queue_are_purged_each_to_its_end() -> None:
    rig = Rig(size=65536)
    core = queue_of(rig, levels=4)
    for priority in (0, 3, 1):
        fill(core, 10, priority=priority)
    sweep: Any = Sweep(core, False)
    fill(core, 3, priority=3)
    while not sweep.step(7):
        pass
    assert (sweep.removed, core.ready_count()) == (30, 3)
    rig.flush()
    rig.reopen(clean=False)
    assert [position & 0xFF for position in rig.recovered()[1]] == [11, 12, 13]


def test_the_end_of_a_queue_ends_what_consumers_hold_and_costs_one_record() -> None:
    rig = Rig(size=8192)
    core = queue_of(rig)
    fill(core, 400, bytes(100))
    rig.settle()
    owner = new_owner()
    assert all(core.take_at(position, owner) for position in range(1, 400, 7))
    core.mark_deleted()
    rig.store.drop_queue(1)
    before = rig.messages.tail
    sweep = swept(core, ending=True)
    assert rig.messages.tail == before
    assert rig.messages.live_count == 0
    assert sweep.removed == 400 - len(range(1, 400, 7))
    rig.settle()
    assert len(rig.files()) <= 6  # nothing pins the log
    # what was delivered can still be settled, to no effect
    assert core.settle_held(1, logged=False) is False
    assert core.release_held(8, True, owner)
    assert (core.unacked_count(), rig.messages.tail - before < 8192) == (len(range(1, 400, 7)) - 1, True)
    rig.queues = {2, 3}
    rig.reopen(clean=False)
    assert rig.recovered() == {2: {}, 3: {}}


def test_a_purge_on_a_full_disk_gives_its_room_back() -> None:
    """Neither of two queues whose messages lie between each other's is alone in a container: only the purge's few bytes go to the log."""
    size = 65536
    rig = Rig(size=size, disk=TellingDisk(clock=None, budget=None))
    first, second = queue_of(rig, 1), queue_of(rig, 2)
    for _ in range(600):
        fill(first, 1, bytes(200))
        fill(second, 1, bytes(200))
        rig.store.flush()
    rig.settle()
    rig.disk.budget = 0
    rig.settle()
    room = rig.messages.ready_bytes
    before = rig.messages.tail
    sweep = swept(first)
    assert sweep.removed == 600
    assert rig.messages.tail - before < min(room, 1024)
    rig.flush()
    assert rig.messages.durable_lsn >= sweep.lsn
    rig.reopen(clean=False)
    assert (len(rig.recovered()[1]), len(rig.recovered()[2])) == (0, 600)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_store_of_an_older_format_opens_and_is_one_of_the_present(version: int) -> None:
    rig = Rig(size=8192)
    rig.publish(1)
    rig.store.close()
    for name in rig.files():
        path = f"{STORE}/messages/{name}"
        fd = rig.disk.open(path)
        head = rig.disk.read(fd, 508, 0)
        head = head[:8] + version.to_bytes(4, "little") + head[12:]
        rig.disk.write(fd, head + lb.crc32c(head).to_bytes(4, "little"), 0)
        rig.disk.sync(fd)
        rig.disk.close(fd)
    rig.open()
    assert len(rig.recovered()[1]) == 1
    for name in rig.files():
        fd = rig.disk.open(f"{STORE}/messages/{name}")
        assert rig.disk.read(fd, 12, 0)[8:] == b"\3\0\0\0"  # an older program, which knows no Message-Shape, must not open it
        rig.disk.close(fd)
