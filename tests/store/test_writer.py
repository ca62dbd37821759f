"""The writer: one sync per touched container and pass, messages before transactions, nothing after a failure."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.store.rig import STORE, Rig
from tests.store.test_maintenance import queue_of
from tests.support.broker import wait_until
from tests.twins.sim_disk import SimDisk


def data_calls(rig: Rig, start: int) -> list[tuple[str, str]]:
    """(write or sync, log) of the journal's operations on containers' data from `start` on."""
    state = rig.disk.state()
    names: dict[int, str] = {}
    for log in ("messages", "transactions"):
        for name in rig.disk.list_dir(f"{STORE}/{log}"):
            names[inode(rig.disk, f"{STORE}/{log}/{name}")] = log
    assert state is not None
    return [(one[0], names[one[1]]) for one in rig.disk.journal[start:] if one[0] in ("write", "sync") and one[1] in names]


def inode(disk: Any, path: str) -> int:
    """Found by an empty rename-free trick: a sync of the file says its number in the journal."""
    fd = disk.open(path)
    disk.sync(fd)
    disk.close(fd)
    return int(disk.journal.pop()[1])


def test_one_sync_per_container_and_pass() -> None:
    """A hundred publishes in one container are one write and one sync; an idle pass is none."""
    rig = Rig(size=65536)
    rig.settle()
    start = len(rig.disk.journal)
    for _ in range(100):
        rig.publish(1)
    assert rig.store.flush() == 1
    assert data_calls(rig, start) == [("write", "messages"), ("sync", "messages")]
    assert rig.store.flush() == 0
    assert len(data_calls(rig, start)) == 2


def test_a_pass_ends_with_its_container() -> None:
    """A group ends where a container does: one write and one sync, and the rest is the next pass's; nothing is durable before its sync."""
    rig = Rig(size=4096)
    rig.settle()
    start = len(rig.disk.journal)
    before = rig.messages.durable_lsn
    for _ in range(4):
        rig.publish(1, body=bytes(900))
    tail = rig.messages.tail
    assert rig.store.flush() == 1
    assert data_calls(rig, start) == [("write", "messages"), ("sync", "messages")]
    assert before < rig.messages.durable_lsn < tail
    assert rig.store.flush() == 1
    assert data_calls(rig, start) == [("write", "messages"), ("sync", "messages")] * 2
    assert rig.messages.durable_lsn // 4096 > before // 4096


@pytest.mark.parametrize("starved", [False, True])
def test_transactions_reach_the_disk_after_their_messages(starved: bool) -> None:
    """A Commit is written only after its messages are synced, also when a container for the messages is missing for a while."""
    rig = Rig(size=4096)
    rig.settle()
    start = len(rig.disk.journal)
    tx = rig.driver.tx_begin()
    count = 40 if starved else 2
    for position in range(1, count + 1):
        rig.driver.tx_publish(tx, [(1, position, 0)], b"x", b"key", b"header", bytes(500))
    ticket = rig.driver.tx_commit(tx)
    passes = 0
    while rig.store.durable_lsn < ticket:
        what = rig.store.flush()
        if what == 2:
            assert "transactions" not in {log for _, log in data_calls(rig, start)}
            passes += 1
            rig.store.maintain()
    assert bool(passes) == starved
    calls = data_calls(rig, start)
    first = calls.index(("write", "transactions"))
    assert ("write", "messages") not in calls[first:]
    assert calls[first - 1] == ("sync", "messages")


@pytest.mark.parametrize("kind", ["write", "sync"])
def test_nothing_follows_a_failure(kind: str) -> None:
    """After the first failed call no log is written or synced again, the transaction log included."""
    rig = Rig(size=8192, disk=SimDisk())
    rig.settle()
    tx = rig.driver.tx_begin()
    rig.driver.tx_publish(tx, [(1, 1, 0)], b"x", b"key", b"header", b"body")
    rig.driver.tx_commit(tx)
    rig.disk.fail(kind, 1, path="/messages/")
    assert rig.store.flush() == 3
    start = len(rig.disk.journal)
    for _ in range(3):
        rig.store.flush()
    assert rig.disk.journal[start:] == []
    assert rig.store.failure is not None
    rig.reopen(clean=False)
    assert rig.recovered() == rig.model  # nothing was confirmed, and nothing of the transaction shows


def published(queue: Any, size: int = 10) -> None:
    """As a loop does for a connection, without a ticket: `Rig.publish` takes one, and a ticket is waited for."""
    assert queue.publish(b"x", b"key", b"header", bytes(size), 1, 0)


def writer_of(size: int, soon_ms: int) -> tuple[Rig, Any]:
    """A store whose writer runs, and a queue in it."""
    rig = Rig(size=size)
    queue = queue_of(rig, 1, 1)
    rig.settle()
    rig.driver.start_writer(soon_ms=soon_ms)
    return rig, queue


def test_a_kick_wakes_the_writer_only_for_work() -> None:
    """Loops kick after each call of Python: the writer sleeps on while all that was appended is durable, of the logs and of streams."""
    rig = Rig(size=65536)
    rig.settle()

    def kicked(awaited: bool = True) -> int:
        before = rig.driver.kicks
        rig.driver.kick(awaited)
        return int(rig.driver.kicks - before)

    assert kicked() == kicked(False) == 0
    rig.publish(1)
    assert kicked() == 1
    assert rig.store.flush() == 1
    assert kicked() == kicked(False) == 0
    tx = rig.driver.tx_begin()
    rig.driver.tx_publish(tx, [(1, rig.next[1], 0)], b"x", b"key", b"header", b"body")
    rig.driver.tx_commit(tx)
    assert kicked() == 1
    while rig.store.flush() == 1:
        pass
    assert kicked() == kicked(False) == 0
    rig.driver.take_ticket()
    assert kicked() == 1


def gathers(rig: Rig, queue: Any) -> bool:
    """Publishes one more that nobody waits for; whether the writer sleeps on it."""
    published(queue)
    rig.driver.kick(awaited=False)
    return bool(rig.driver.gathers)


def test_what_nobody_waits_for_gathers_until_somebody_waits() -> None:
    """Messages without confirms share a group: the writer lets them gather, and stops that at once when somebody waits."""
    rig, queue = writer_of(262144, soon_ms=3_600_000)  # all of it fits into one container, however often the first wait looks
    wait_until(lambda: gathers(rig, queue), what="the writer lets messages gather")
    passes = rig.driver.passes
    for _ in range(10):
        assert gathers(rig, queue)
        time.sleep(0.01)  # the writer could run
    assert rig.driver.passes == passes
    tail = rig.messages.tail
    published(queue)
    rig.driver.kick(awaited=True)
    wait_until(lambda: rig.messages.durable_lsn >= tail, what="all of them are durable")
    rig.store.writer.stop()  # a pass is counted at its end, behind what it makes durable; nothing is left for another one
    assert rig.driver.passes == passes + 1
    rig.store.close()


def test_what_nobody_waits_for_is_written_in_time() -> None:
    """Nobody ever waits, and the messages are durable after a while all the same; a flood of them does not gather."""
    rig, queue = writer_of(262144, soon_ms=1)
    passes = rig.driver.passes
    published(queue)
    rig.driver.kick(awaited=False)
    wait_until(lambda: rig.messages.durable_lsn >= rig.messages.tail and rig.driver.passes > passes, what="it is durable")
    rig.store.close()
    rig, queue = writer_of(524288, soon_ms=3_600_000)
    # Asleep for an hour: else a pass that is under way could take a part of the flood, and what is left would be too little.
    wait_until(lambda: gathers(rig, queue), what="the writer lets messages gather")
    for _ in range(4):
        published(queue, 100_000)  # together more than Limits.log_soon_bytes
    tail = rig.messages.tail
    rig.driver.kick(awaited=False)
    wait_until(lambda: rig.messages.durable_lsn >= tail, what="the flood is durable")
    rig.store.close()
