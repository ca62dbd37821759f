"""Large sets and stages with the log's own threads: outcomes come, others go on, and a stop in the middle loses nothing."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flintmq.store.log_store")

from flintmq.transactions import XaStatus, Xid

from .on_disk import OnDisk
from .test_bulk import ROUTES, entry

MESSAGES = 20_000
SET, STAGE = Xid(1, b"set"), Xid(1, b"stage")
ME = "me"


def opened(directory: Path) -> OnDisk:
    directory.mkdir(exist_ok=True)
    disk = OnDisk(directory, container_size=1 << 20, threads=True)
    disk.coordinator.select(ME)
    return disk


def staged(disk: OnDisk, xid: Xid, count: int, destinations: list[list[int]]) -> None:
    disk.coordinator.start(ME, xid)
    block = b"".join(entry(b"%d" % number) for number in range(count))
    assert disk.coordinator.enqueue_block(ME, xid, block, ROUTES, destinations).enqueues == count * len(destinations[0])
    disk.coordinator.end(ME, xid)


def held(disk: OnDisk, xid: Xid, queue: int) -> int:
    disk.coordinator.start(ME, xid)
    facts = disk.coordinator.hold_run(ME, xid, queue, messages_max=10 * MESSAGES, bytes_max=1 << 40, consumer="sub")
    disk.coordinator.end(ME, xid)
    return facts.count


def test_a_stage_and_a_set_end_while_others_publish(tmp_path: Path) -> None:
    """Publishers and a consumer of the same queue meanwhile: each message comes out once, those of the stage in their order."""
    disk = opened(tmp_path / "store")
    core = disk.queues[1].core
    stop = threading.Event()
    published: list[bytes] = []
    consumed: list[bytes] = []

    def publish() -> None:
        while not stop.is_set() and len(published) < 50_000:
            published.append(b"p%d" % len(published))
            disk.put(1, published[-1])

    def consume() -> None:
        while not stop.is_set():
            message = core.take_head(1)
            if message is not None:
                consumed.append(message[3])

    threads = [threading.Thread(target=publish), threading.Thread(target=consume)]
    for thread in threads:
        thread.start()
    staged(disk, STAGE, MESSAGES, [[1], []])
    assert disk.coordinator.prepare(STAGE).result(60) is XaStatus.XA_OK
    assert disk.coordinator.decide((2, b"scope", b"1"), [STAGE]).result(60) is XaStatus.XA_OK
    found: list[bytes] = []
    for number in range(3):
        xid = Xid(1, b"set", b"%d" % number)
        held(disk, xid, 1)
        assert disk.coordinator.prepare(xid).result(60) is XaStatus.XA_OK
        bodies = [core.message_at(first + at)[3] for run in disk.coordinator.runs(xid) for first, n in run.ranges() for at in range(n)]
        if number == 1:
            assert disk.coordinator.rollback(xid).result(60) is XaStatus.XA_OK
        else:
            found += bodies
            assert disk.coordinator.commit(xid).result(60) is XaStatus.XA_OK
    stop.set()
    for thread in threads:
        thread.join()
    left = disk.bodies()[0]
    everything = [*consumed, *found, *left]
    assert len(everything) == len(set(everything)) == MESSAGES + len(published)
    assert core.unacked_count() == 0
    disk.store.close()


@pytest.mark.parametrize("clean", [True, False])
def test_a_stop_right_after_a_large_decision(tmp_path: Path, clean: bool) -> None:
    """The broker stops while outcomes are under way: after the restart they are whole, or still in doubt."""
    disk = opened(tmp_path / "store")
    staged(disk, STAGE, MESSAGES, [[1, 3], []])
    assert disk.coordinator.prepare(STAGE).result(60) is XaStatus.XA_OK
    assert disk.coordinator.commit(STAGE).result(60) is XaStatus.XA_OK
    assert held(disk, SET, 1) == MESSAGES
    assert disk.coordinator.prepare(SET).result(60) is XaStatus.XA_OK
    outcome: Any = disk.coordinator.decide((2, b"scope", b"1"), [SET])
    disk.store.close(clean)
    again = opened(tmp_path / "store")
    doubt = again.coordinator.recover()
    assert len(again.available(3)) == MESSAGES
    assert again.available(1) == []
    assert again.queues[1].core.unacked_count() == (MESSAGES if doubt else 0)
    assert not (outcome.done and doubt)
    if doubt:
        assert again.coordinator.commit(SET).result(60) is XaStatus.XA_OK
    assert again.queues[1].core.unacked_count() == 0
    again.store.close()
    last = opened(tmp_path / "store")
    assert (last.available(1), last.coordinator.list()) == ([], [])
    last.store.close()


@pytest.mark.parametrize("prepared", [False, True])
def test_an_operators_answer_comes_when_the_queue_has_changed(tmp_path: Path, prepared: bool) -> None:
    """The outcome of a decision over a large set means that its entries are back."""
    disk = opened(tmp_path / "store")
    staged(disk, STAGE, MESSAGES, [[1], []])
    assert disk.coordinator.commit(STAGE, one_phase=True).result(60) is XaStatus.XA_OK
    for _ in range(5):
        assert held(disk, SET, 1) == MESSAGES
        if prepared:
            disk.coordinator.prepare(SET).result(60)
        status = disk.coordinator.heuristic_rollback(SET).result(60)
        assert disk.queues[1].core.ready_count() == MESSAGES
        assert status is (XaStatus.XA_HEURRB if prepared else XaStatus.XA_RBROLLBACK)
        (disk.coordinator.forget if prepared else disk.coordinator.rollback)(SET).result(60)
    disk.store.close()
