"""A crash behind any pass of the log's writer leaves a transaction whole or not there, on real files and real queues."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flintmq.store.log_store")

from flintmq.transactions import BranchState, XaStatus, Xid
from tests.oracle.log import Damage, open_store
from tests.oracle.records import Kind
from tests.support.blocks import enrol, take

from .on_disk import LEVELS, OnDisk

X = Xid(1, b"global", b"branch")
ME = "me"
BEFORE = [[b"a"], [b"low"], [b"old", b"other"]]
AFTER = [[b"a", b"new"], [b"new", b"low"], [b"other"]]
HELD = [[b"a"], [b"low"], [b"other"]]


@pytest.fixture
def scratch(tmp_path: Path) -> Any:
    yield tmp_path
    shutil.rmtree(tmp_path, ignore_errors=True)


@pytest.fixture
def opened(scratch: Path) -> Any:
    """`opened(directory)`: a broker on it, killed when the test ends."""
    brokers: list[OnDisk] = []

    def make(directory: Path, **more: Any) -> OnDisk:
        directory.mkdir(exist_ok=True)
        brokers.append(OnDisk(directory, **more))
        return brokers[-1]

    yield make
    for broker in brokers:
        broker.kill()


def work(broker: OnDisk) -> None:
    """One message for queues 1 and 2, at a high priority there; takes the first of queue 3."""
    coordinator = broker.coordinator
    coordinator.select(ME)
    coordinator.start(ME, X)
    enrol(coordinator, ME, X, (1, 2), b"new", priority=LEVELS - 1)
    take(coordinator, ME, X, 3)
    coordinator.end(ME, X)


def filled(broker: OnDisk) -> OnDisk:
    broker.put(1, b"a")
    broker.put(2, b"low")
    broker.put(3, b"old")
    broker.put(3, b"other")
    broker.settle()
    assert broker.bodies() == BEFORE
    return broker


SCRIPTS: dict[str, list[Callable[[OnDisk], object]]] = {
    "two phases, committed": [work, lambda b: b.coordinator.prepare(X), lambda b: b.coordinator.commit(X)],
    "two phases, rolled back": [work, lambda b: b.coordinator.prepare(X), lambda b: b.coordinator.rollback(X)],
    "one phase": [work, lambda b: b.coordinator.commit(X, one_phase=True)],
    "rolled back": [work, lambda b: b.coordinator.rollback(X)],
    "by an operator": [
        work,
        lambda b: b.coordinator.prepare(X),
        lambda b: b.coordinator.heuristic_commit(X),
        lambda b: b.coordinator.forget(X),
    ],
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_whole_or_not_at_all_at_every_pass(opened: Callable[..., OnDisk], scratch: Path, name: str) -> None:
    """Every image holds the transaction whole, in doubt, or not at all; in doubt, both decisions make it so, and a restart agrees."""
    broker = filled(opened(scratch / "live"))
    images: list[tuple[Path, list[XaStatus | None]]] = []
    answers: list[XaStatus | None] = []

    def take() -> None:
        images.append((broker.image(scratch / f"image-{len(images)}"), list(answers)))

    for step in SCRIPTS[name]:
        outcome: Any = step(broker)
        take()
        while broker.step():
            take()
        broker.settle()
        assert outcome is None or outcome.done
        answers.append(outcome and outcome.result(0))
        take()
    last = AFTER if answers[-1] is not None and "rolled back" not in name else BEFORE
    assert sorted(broker.bodies()) == sorted(last)
    seen: set[str] = set()
    for path, answered in images:
        again = opened(path)
        found = again.bodies()
        doubt = [view.state for view in again.coordinator.list()]
        prepared = BranchState.PREPARED in doubt
        seen.add("in doubt" if prepared else "there" if found == AFTER else "not there")
        assert found == (HELD if prepared else AFTER if found == AFTER else BEFORE)
        if len(answered) == len(SCRIPTS[name]):
            assert found == last and not doubt
        if name.startswith("two") and len(answered) == 2:
            assert prepared or found == last
        if not prepared:
            continue
        assert list(again.coordinator.recover("/")) == [X]
        other = opened(again.image(path.parent / f"{path.name}-other"))
        for one, status, wanted in (
            (again, again.coordinator.commit(X), AFTER),
            (other, other.coordinator.rollback(X), BEFORE),
        ):
            one.settle()
            assert status.result(0) is XaStatus.XA_OK
            assert one.bodies() == wanted
            third = opened(one.image(path.parent / f"{one.directory.name}-third"))
            assert third.bodies() == wanted and list(third.coordinator.list()) == []
    assert seen >= ({"there", "not there"} if last == AFTER else {"not there"})
    assert ("in doubt" in seen) == any(text in name for text in ("two", "operator"))


def test_an_operator_s_decision_survives_until_forgotten(opened: Callable[..., OnDisk], scratch: Path) -> None:
    """The outcome is listed after two crashes, its work is done once, and it is gone after forget."""
    broker = filled(opened(scratch / "0"))
    work(broker)
    broker.coordinator.prepare(X)
    broker.coordinator.heuristic_rollback(X)
    for number in (1, 2):
        broker.settle()
        broker = opened(broker.image(scratch / str(number)))
        assert [view.state for view in broker.coordinator.list()] == [BranchState.HEURISTIC_ROLLBACK]
        assert broker.bodies() == BEFORE and list(broker.coordinator.recover()) == [X]
    forgotten = broker.coordinator.forget(X)
    broker.settle()
    assert forgotten.result(0) is XaStatus.XA_OK
    assert list(opened(broker.image(scratch / "3")).coordinator.list()) == []


def test_a_held_entry_returns_redelivered_after_a_restart(opened: Callable[..., OnDisk], scratch: Path) -> None:
    """What a prepared branch took counts as unacked after the restart, and comes back in its place, flagged, when it is rolled back."""
    broker = filled(opened(scratch / "live"))
    work(broker)
    broker.coordinator.prepare(X)
    broker.settle()
    broker.store.close(clean=True)
    broker = opened(scratch / "live")
    core = broker.queues[3].core
    assert (core.ready_count(), core.unacked_count(), core.purge()) == (1, 1, 1)
    broker.coordinator.rollback(X)
    broker.settle()
    position, redelivered, _, _, _, body = core.peek()
    assert (position, redelivered, body, core.ready_count(), core.unacked_count()) == (1, True, b"old", 1, 0)


def test_order_of_commits_is_the_order_of_positions_over_a_restart(opened: Callable[..., OnDisk], scratch: Path) -> None:
    """Publishes between reservation and durability keep their places: the queue has one order, before and after a crash."""
    broker = opened(scratch / "live")
    coordinator = broker.coordinator
    coordinator.select(ME)
    for number in range(3):
        xid = Xid(1, b"%d" % number)
        coordinator.start(ME, xid)
        for body in (b"tx%d" % number, b"tx%d again" % number):
            enrol(coordinator, ME, xid, (1,), body)
        coordinator.end(ME, xid)
        coordinator.commit(xid, one_phase=True)
        broker.put(1, b"plain%d" % number)
        assert b"tx%d" % number not in broker.bodies()[0]
    broker.settle()
    found = broker.bodies()[0]
    assert found == [b"%s%s" % (kind, tail) for number in range(3) for kind, tail in
                     ((b"tx%d" % number, b""), (b"tx%d" % number, b" again"), (b"plain%d" % number, b""))]  # fmt: skip
    assert opened(broker.image(scratch / "image")).bodies()[0] == found


def traffic(broker: OnDisk, messages: int = 200) -> None:
    """Messages that come and go on queue 3, so that the logs move on."""
    core = broker.queues[3].core
    for number in range(messages):
        position = broker.put(3, b"%0500d" % number)
        assert core.hold(position) and core.settle_held(position, logged=False)
        if number % 10 == 9:
            broker.settle()


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("enqueues", [True, False])
def test_a_branch_in_doubt_while_the_log_moves_on(opened: Callable[..., OnDisk], scratch: Path, commits: bool, enqueues: bool) -> None:
    """What it took is copied forward, restarts included; what waits for its position is not lost; the outcome is right."""
    broker = filled(opened(scratch / "0"))
    if enqueues:
        work(broker)
    else:
        broker.coordinator.select(ME)
        broker.coordinator.start(ME, X)
        take(broker.coordinator, ME, X, 3)
        broker.coordinator.end(ME, X)
    broker.coordinator.prepare(X)
    for number in (1, 2):
        broker.settle()
        before = broker.store.messages.base
        traffic(broker)
        assert enqueues or broker.store.messages.base > before
        broker = opened(broker.image(scratch / str(number)))
        assert broker.bodies() == HELD and list(broker.coordinator.recover()) == [X]
    outcome = broker.coordinator.commit(X) if commits else broker.coordinator.rollback(X)
    broker.settle()
    assert outcome.result(0) is XaStatus.XA_OK
    wanted = BEFORE if not commits else AFTER if enqueues else HELD
    assert broker.bodies() == wanted
    before = broker.store.messages.base
    traffic(broker)
    assert broker.store.messages.base > before, "nothing of it holds the log back any more"
    last = opened(broker.image(scratch / "last"))
    assert last.bodies() == wanted and list(last.coordinator.list()) == []


def test_the_log_has_each_dequeue_once(opened: Callable[..., OnDisk], scratch: Path) -> None:
    """A plain record behind the Commit is the only one: settling the entry in its queue writes no second."""
    broker = filled(opened(scratch / "live"))
    work(broker)
    broker.coordinator.commit(X, one_phase=True)
    broker.settle()
    assert broker.bodies() == AFTER
    records = [item for item in open_store(scratch / "live")["messages"].records() if not isinstance(item, Damage)]
    assert [record.tx != 0 for record in records if record.type == Kind.MESSAGE_DEQUEUE] == [False]
