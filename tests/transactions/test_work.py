"""Work in a branch touches queues only when its outcome is durable, whole, in order, once per (message, queue)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flintmq.config import Limits
from flintmq.transactions import TransactionRefused
from tests.support.blocks import enrol, take

from .broker import OK, Broker, X, Y, status
from .stored_broker import StoredBroker


def refused(call, *args, **kwargs) -> str:
    with pytest.raises(TransactionRefused) as error:
        call(*args, **kwargs)
    return error.value.condition.name


@pytest.fixture(params=["twin", "store"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """The twin that the coordinator's tests stand on, and the store's enrolments over real queues."""
    if request.param == "twin":
        yield Broker()
        return
    with StoredBroker(tmp_path) as found:
        yield found


def commit(broker: Broker, session: str, xid=X, *, one_phase: bool = True) -> None:
    assert broker.coordinator.end(session, xid) is OK
    if not one_phase:
        assert broker.coordinator.prepare(xid).result(0) is OK
    assert broker.coordinator.commit(xid, one_phase=one_phase).result(0) is OK


@pytest.mark.parametrize("one_phase", [True, False])
def test_nothing_shows_before_the_commit_is_durable_and_then_all_of_it(broker: Broker, one_phase: bool) -> None:
    session = broker.session()
    broker.with_work(session)
    broker.coordinator.end(session, X)
    if not one_phase:
        broker.coordinator.prepare(X)
    broker.store.hold()
    outcome = broker.coordinator.commit(X, one_phase=one_phase)
    assert (broker.labels(1), broker.labels(2), broker.labels(3), outcome.done) == ([], [], [], False)
    broker.store.release()
    assert (broker.labels(1), broker.labels(2), broker.labels(3), status(outcome)) == (["new"], ["new"], [], OK)
    assert (broker.stored(1), broker.stored(2), broker.stored(3)) == (["new"], ["new"], [])


@pytest.mark.parametrize("prepared", [True, False])
def test_rollback_puts_entries_back_where_they_were_flagged(broker: Broker, prepared: bool) -> None:
    session = broker.session()
    position = broker.put(3, "before")
    broker.with_work(session)
    broker.put(3, "after")
    broker.coordinator.end(session, X)
    if prepared:
        broker.coordinator.prepare(X)
    broker.store.hold()
    outcome = broker.coordinator.rollback(X)
    assert broker.labels(3) == ["old", "after"]
    broker.store.release()
    assert status(outcome) is OK
    assert (broker.labels(1), broker.labels(2), broker.labels(3)) == ([], [], ["before", "old", "after"])
    assert broker.redelivered(3, position)
    assert broker.stored(1) == broker.stored(2) == []


def test_a_message_on_many_queues_is_written_once(broker: Broker) -> None:
    session, c = broker.session(), broker.coordinator
    c.start(session, X)
    enrol(c, session, X, (1, 2, 3), b"m")
    assert next(iter(c.list())).queues == {1: (1, 0), 2: (1, 0), 3: (1, 0)}
    commit(broker, session)
    for queue_id in (1, 2, 3):
        assert broker.labels(queue_id) == broker.stored(queue_id) == ["m"]
    assert len({entry.message_id for queue in (1, 2, 3) for entry in broker.store.entries(queue)}) == 1


def test_an_entry_is_taken_by_one_branch(broker: Broker) -> None:
    first, second, c = broker.session(), broker.session(), broker.coordinator
    broker.with_work(first)
    assert take(c, first, X, 3).count == 0
    c.start(second, Y)
    assert take(c, second, Y, 3).count == 0
    assert [view.dequeues for view in c.list()] == [1, 0]
    c.end(second, Y)
    assert c.rollback(Y).result(0) is OK
    assert broker.labels(3) == []
    commit(broker, first)
    assert broker.stored(3) == []


def test_what_a_consumer_has_is_not_taken(broker: Broker) -> None:
    session, c = broker.session(), broker.coordinator
    theirs, mine = broker.put(3, "theirs"), broker.put(3, "mine")
    broker.acquire(3, theirs)
    c.start(session, X)
    facts = take(c, session, X, 3, 9)
    assert (facts.count, facts.first) == (1, mine)
    assert refused(take, c, session, X, 99) == refused(enrol, c, session, X, (1, 99), b"m") == "NOT_FOUND"
    commit(broker, session)
    assert broker.stored(3) == ["theirs"]


def test_positions_follow_the_order_of_commits_on_every_queue(broker: Broker) -> None:
    first, second, c = broker.session(), broker.session(), broker.coordinator
    c.start(first, X)
    c.start(second, Y)
    for label in ("a", "b"):
        for session, xid, mark in ((first, X, "x"), (second, Y, "y")):
            enrol(c, session, xid, (1, 2), (mark + label).encode())
    broker.put(1, "between")
    broker.store.hold()
    c.end(second, Y)
    c.end(first, X)
    c.commit(Y, one_phase=True)
    c.commit(X, one_phase=True)
    broker.put(1, "later")
    broker.store.release()
    assert broker.labels(1) == broker.stored(1) == ["between", "ya", "yb", "xa", "xb", "later"]
    assert broker.labels(2) == broker.stored(2) == ["ya", "yb", "xa", "xb"]


def test_order_holds_with_priorities() -> None:
    broker = Broker(levels=3)
    session, c = broker.session(), broker.coordinator
    c.start(session, X)
    for label, priority in (("p1", 0), ("high", 2), ("p2", None), ("again", 2), ("p3", 0)):
        enrol(c, session, X, (1,), label.encode(), **({} if priority is None else {"priority": priority}))
    commit(broker, session, one_phase=False)
    assert broker.labels(1) == broker.stored(1) == ["high", "again", "p1", "p2", "p3"]


@pytest.mark.parametrize("one_phase", [True, False])
def test_a_transient_entry_that_was_taken_goes_with_the_outcome(broker: Broker, one_phase: bool) -> None:
    session, c = broker.session(), broker.coordinator
    broker.put(3, "transient", durable=False)
    c.start(session, X)
    take(c, session, X, 3)
    commit(broker, session, one_phase=one_phase)
    assert (broker.labels(3), broker.stored(3)) == ([], [])


def test_a_transient_entry_of_a_prepared_branch_is_gone_after_a_crash(broker: Broker) -> None:
    session, c = broker.session(), broker.coordinator
    broker.put(3, "transient", durable=False)
    broker.put(3, "persistent")
    c.start(session, X)
    assert take(c, session, X, 3, 2).count == 2
    c.end(session, X)
    assert c.prepare(X).result(0) is OK
    after = broker.crash()
    assert next(iter(after.coordinator.list())).dequeues == 1
    assert after.coordinator.rollback(X).result(0) is OK
    assert after.labels(3) == ["persistent"]


def test_limits_refuse_and_leave_the_branch_as_it_was() -> None:
    broker = Broker(limits=Limits(dtx_branches_max=2, dtx_enrolments_max=3))
    session, c = broker.session(), broker.coordinator
    position = broker.with_work(session)  # three enrolments
    broker.put(3, "next")
    assert refused(enrol, c, session, X, (1,), b"x") == refused(take, c, session, X, 3) == "RESOURCE_LIMIT_EXCEEDED"
    c.end(session, X)
    c.start(session, Y)
    c.end(session, Y)
    assert refused(c.start, session, type(X)(9, b"third")) == "RESOURCE_LIMIT_EXCEEDED"
    c.commit(X, one_phase=True)
    c.commit(Y, one_phase=True)
    assert broker.labels(1) == broker.labels(2) == ["new"]
    assert broker.labels(3) == ["next"]
    assert position not in broker.effects.queues[3]


def test_a_deleted_queue_fails_active_branches_and_leaves_prepared_ones_the_rest(broker: Broker) -> None:
    first, second, third, c = broker.session(), broker.session(), broker.session(), broker.coordinator
    broker.with_work(first, X)
    broker.with_work(second, Y)
    z = type(X)(3, b"elsewhere")
    c.start(third, z)
    enrol(c, third, z, (2,), b"elsewhere")
    c.end(second, Y)
    c.prepare(Y)
    broker.delete(1)
    c.queue_deleted(1)
    assert c.end(first, X).name == "XA_RBROLLBACK"
    c.end(third, z)
    assert c.commit(z, one_phase=True).result(0) is OK
    assert c.commit(Y).result(0) is OK
    assert (broker.labels(2), broker.labels(3)) == (["elsewhere", "new"], ["old"])
    assert c.rollback(X).result(0) is OK


@pytest.mark.parametrize("crashes", [True, False])
def test_a_prepared_set_of_a_deleted_queue_can_be_rolled_back(broker: Broker, crashes: bool) -> None:
    session, c = broker.session(), broker.coordinator
    c.start(session, X)
    for queue_id in (2, 3):
        broker.put(queue_id, "old")
        take(c, session, X, queue_id)
    enrol(c, session, X, (1,), b"new")
    c.end(session, X)
    c.prepare(X)
    after = broker.crash() if crashes else broker
    for queue_id in (1, 3):
        after.delete(queue_id)
        after.coordinator.queue_deleted(queue_id)
    assert next(iter(after.coordinator.list())).queues == {2: (0, 1)}
    assert after.coordinator.rollback(X).result(0) is OK
    assert after.labels(2) == ["old"]


def test_a_queue_deleted_while_a_commit_waits_for_the_disk_takes_its_part_along(broker: Broker) -> None:
    session, c = broker.session(), broker.coordinator
    broker.with_work(session)
    c.end(session, X)
    broker.store.hold()
    outcome = c.commit(X, one_phase=True)
    broker.delete(1)
    c.queue_deleted(1)
    broker.store.release()
    assert (status(outcome), broker.labels(2), broker.labels(3)) == (OK, ["new"], [])
