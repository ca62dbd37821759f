"""Stores of before: branches that were prepared with single enqueues and dequeues are recovered, listed, and decided like any other."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flintmq.store.log_store")

from flintmq.broker.branch_queues import BranchQueues
from flintmq.config import Limits
from flintmq.transactions import BranchState, XaStatus, Xid
from tests.drivers.store_driver import DrivenStore
from tests.store import test_store_fixture as fixture
from tests.support import logbytes as lb
from tests.support.stored import StoredContent

from .on_disk import OnDisk, queue_of

X = Xid(1, b"single", b"branch")
HEADER = b"\x00\x3c\x00\x00" + bytes(10)
BEFORE = [[b"a"], [b"low"], [b"old", b"other"]]
HELD = [[b"a"], [b"low"], [b"other"]]
AFTER = [[b"a", b"one", b"two"], [b"high", b"low"], [b"other"]]


@pytest.fixture
def opened() -> Iterator[Callable[[Path], OnDisk]]:
    brokers: list[OnDisk] = []

    def make(directory: Path) -> OnDisk:
        brokers.append(OnDisk(directory))
        return brokers[-1]

    yield make
    for broker in brokers:
        broker.kill()


def prepared(directory: Path) -> Path:
    """A store that a broker of before left: two messages for queue 1, one for 2 at a high priority; takes queue 3's first."""
    directory.mkdir()
    broker = OnDisk(directory)
    store: DrivenStore = broker.store
    broker.put(1, b"a")
    broker.put(2, b"low")
    positions = [broker.put(3, body) for body in (b"old", b"other")]
    broker.settle()
    tx = store.begin(X.encode())
    one, two, high = (
        store.append_content(StoredContent(b"", b"q", HEADER, body), priority=priority)
        for body, priority in ((b"one", None), (b"two", None), (b"high", 3))
    )
    store.enqueue(1, 0, one, tx=tx)
    store.dequeue(3, positions[0], 1, tx=tx)
    store.enqueue(1, 0, two, tx=tx)
    store.enqueue(2, 0, high, tx=tx)
    store.prepare(tx)
    broker.settle()
    broker.kill()
    return directory


@pytest.mark.parametrize("restarts", [1, 3])
@pytest.mark.parametrize("decision", ["commit", "rollback", "heuristic_commit", "heuristic_rollback"])
def test_what_was_prepared_is_decided(tmp_path: Path, opened: Callable[[Path], OnDisk], decision: str, restarts: int) -> None:
    """Held over restarts, then all of it or nothing, over two more; and nothing of it holds the log back."""
    broker = opened(prepared(tmp_path / "0"))
    for number in range(restarts):
        assert broker.bodies() == HELD
        (view,) = broker.coordinator.list()
        assert (view.xid, view.state, view.queues) == (X, BranchState.PREPARED, {1: (2, 0), 2: (1, 0), 3: (0, 1)})
        broker.settle()
        broker = opened(broker.image(tmp_path / f"again-{number}"))
    outcome = getattr(broker.coordinator, decision)(X)
    broker.settle()
    wanted = AFTER if "commit" in decision else BEFORE
    assert (outcome.done, broker.bodies()) == (True, wanted)
    if "heuristic" in decision:
        broker.coordinator.forget(X)
        broker.settle()
    assert [broker.queues[queue].core.unacked_count() for queue in (1, 2, 3)] == [0, 0, 0]
    for number in range(2):
        broker = opened(broker.image(tmp_path / f"decided-{number}"))
        assert broker.bodies() == wanted and not broker.coordinator.list()
        broker.settle()
    for queue in (1, 2, 3):
        while broker.queues[queue].core.take_head(1) is not None:
            pass
    broker.settle()
    assert broker.store.messages.live_count == broker.store.transaction_records.live_count == 0


def test_each_pass_of_the_writer_leaves_it_whole(tmp_path: Path, opened: Callable[[Path], OnDisk]) -> None:
    """A crash behind any pass after the commit: in doubt, or done."""
    broker = opened(prepared(tmp_path / "live"))
    outcome = broker.coordinator.commit(X)
    images = [broker.image(tmp_path / "image-0")]
    while broker.step():
        images.append(broker.image(tmp_path / f"image-{len(images)}"))
    assert outcome.done
    found = [opened(image) for image in images]
    assert [one.bodies() for one in found] == [AFTER if not one.coordinator.list() else HELD for one in found]
    assert found[0].coordinator.list() and not found[-1].coordinator.list()


def test_a_deleted_queue_takes_its_part_along(tmp_path: Path, opened: Callable[[Path], OnDisk]) -> None:
    """What was to enter it, and what was taken from it; the rest is committed."""
    broker = opened(prepared(tmp_path / "live"))
    for queue in (1, 3):
        core = broker.queues.pop(queue).core
        core.mark_deleted()
        broker.coordinator.queue_deleted(queue, lambda queue=queue: broker.store.drop_queue(queue))
    assert broker.coordinator.list()[0].queues == {2: (1, 0)}
    outcome = broker.coordinator.commit(X)
    broker.settle()
    assert outcome.result(0) is XaStatus.XA_OK
    assert broker.bodies() == [[b"high", b"low"]]


def test_numbers_whose_records_are_lost_take_no_position(tmp_path: Path, opened: Callable[[Path], OnDisk]) -> None:
    """The Commit says of a hole that it is lost, and the messages behind it stand where it says, before and after a restart."""
    directory = tmp_path / "holes"
    directory.mkdir()
    messages, transactions = (lb.LogBytes(16384, log, uuid=bytes(16)) for log in (lb.MESSAGES, lb.TRANSACTIONS))
    encoded = X.encode()
    tx = transactions.add(lb.DTX_START, len(encoded).to_bytes(2, "little") + encoded)
    for number in (1, 2, 5):
        message = messages.add(lb.START, lb.content(b"\0\x01q", HEADER, b"%d" % number))
        messages.add(lb.ENQUEUE, lb.enqueue(1, lb.waiting(number)), undo_prev=message, tx=tx)
    messages.sync()
    transactions.add(lb.PREPARE, undo_prev=tx)
    transactions.sync()
    messages.write(str(directory / "messages"))
    transactions.write(str(directory / "transactions"))
    broker = opened(directory)
    broker.coordinator.commit(X)
    broker.settle()
    for number in range(2):
        assert broker.bodies()[0] == [b"1", b"2", b"5"]
        broker = opened(broker.image(tmp_path / f"again-{number}"))


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("kind", ["clean", "unclean"])
def test_the_store_of_format_1(tmp_path: Path, kind: str, commits: bool) -> None:
    """The transaction in doubt of the fixture: decided by the present code, the store holds what was promised, also after a restart."""
    path = Path(shutil.copytree(fixture.FIXTURES / "store-v3" / kind, tmp_path / kind))
    ((xid, entries),) = fixture.EXPECTED["in_doubt"].items()
    store: Any = fixture.opened(path)
    queues = {int(queue): queue_of(store, int(queue)) for queue in fixture.EXPECTED["queues"]}
    for queue in queues.values():
        store.restore(queue.core)
    store.restored()
    enrolment = store.recovered_branch(bytes.fromhex(xid), BranchQueues(queues), Limits().dtx_enrolments_max)
    before = fixture.held(store)
    enrolment.commit() if commits else enrolment.rollback()
    while store.flush() == 1:
        pass
    (enrolment.apply if commits else enrolment.undo)()
    while store.flush() == 1:
        pass
    store.close(clean=False)
    again: Any = fixture.opened(path)
    found = fixture.held(again)
    assert list(again.in_doubt()) == []
    again.close(clean=False)
    for queue, standing in before.items():
        gone = {str(position) for one, position in entries["dequeues"] if one == int(queue)} if commits else set()
        fresh = entries["enqueues"].count(int(queue)) if commits else 0
        assert {key: value for key, value in found[queue].items() if key in standing} == {
            key: value for key, value in standing.items() if key not in gone
        }
        assert len(set(found[queue]) - set(standing)) == fresh
