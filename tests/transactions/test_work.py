"""Work in a branch touches queues only when its outcome is durable, whole, in order, once per (message, queue)."""

from __future__ import annotations

import pytest

from flintmq.config import Limits
from flintmq.transactions import CommitRow, Outcome, TransactionRefused, XaStatus
from flintmq.transactions.work import _rows

from .broker import OK, Broker, X, Y, message, status


def refused(call, *args, **kwargs) -> str:
    with pytest.raises(TransactionRefused) as error:
        call(*args, **kwargs)
    return error.value.condition.name


@pytest.fixture
def broker() -> Broker:
    return Broker()


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
    broker.put(3, "before")
    position = broker.with_work(session)
    broker.put(3, "after")
    broker.coordinator.end(session, X)
    if prepared:
        broker.coordinator.prepare(X)
    broker.store.hold()
    outcome = broker.coordinator.rollback(X)
    assert broker.labels(3) == ["before", "after"]
    broker.store.release()
    assert status(outcome) is OK
    assert (broker.labels(1), broker.labels(2), broker.labels(3)) == ([], [], ["before", "old", "after"])
    assert broker.effects.queues[3][position].redelivered
    assert broker.stored(1) == broker.stored(2) == []


def test_a_message_on_many_queues_is_written_once_and_one_enrolment_per_queue(broker: Broker) -> None:
    session, c = broker.session(), broker.coordinator
    c.start(session, X)
    ref = c.enqueue(session, X, 1, message("m"))
    for queue_id in (1, 2, 2, 3, 1):
        assert c.enqueue(session, X, queue_id, ref) is ref
    assert next(iter(c.list())).queues == {1: (1, 0), 2: (1, 0), 3: (1, 0)}
    commit(broker, session)
    for queue_id in (1, 2, 3):
        assert broker.labels(queue_id) == broker.stored(queue_id) == ["m"]
    assert {entry.message_id for queue in (1, 2, 3) for entry in broker.store.entries(queue)} == {ref.message_id}


def test_a_message_of_another_transaction_is_not_enrolled(broker: Broker) -> None:
    first, second, c = broker.session(), broker.session(), broker.coordinator
    c.start(first, X)
    c.start(second, Y)
    ref = c.enqueue(first, X, 1, message("m"))
    with pytest.raises(ValueError):
        c.enqueue(second, Y, 1, ref)
    assert list(c.list())[1].enqueues == 0


def test_the_second_dequeue_of_an_entry_is_refused_at_the_call(broker: Broker) -> None:
    first, second, c = broker.session(), broker.session(), broker.coordinator
    position = broker.with_work(first)
    with pytest.raises(TransactionRefused, match="already"):
        c.dequeue(first, X, 3, position)
    c.start(second, Y)
    assert refused(c.dequeue, second, Y, 3, position) == "ILLEGAL_STATE"
    local = c.local()
    with pytest.raises(TransactionRefused):
        local.dequeue(3, position)
    assert [view.dequeues for view in c.list()] == [1, 0]
    c.end(second, Y)
    assert c.rollback(Y).result(0) is OK
    assert broker.labels(3) == []
    commit(broker, first)
    assert broker.stored(3) == []


def test_only_own_or_available_entries_can_be_dequeued(broker: Broker) -> None:
    session, c = broker.session(), broker.coordinator
    mine, theirs = broker.put(3, "mine"), broker.put(3, "theirs")
    broker.effects.acquire(3, mine, session)
    broker.effects.acquire(3, theirs, "somebody")
    c.start(session, X)
    c.dequeue(session, X, 3, mine)
    for queue_id, position in ((3, theirs), (3, 999), (99, 1)):
        assert refused(c.dequeue, session, X, queue_id, position) == "ILLEGAL_STATE"
    commit(broker, session)
    assert broker.stored(3) == ["theirs"]


def test_an_entry_is_given_back_when_the_log_refuses_its_dequeue(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    session, c = broker.session(), broker.coordinator
    position = broker.put(3, "old")
    c.start(session, X)

    def fail(*args: object, **kwargs: object) -> int:
        raise OSError("the disk")

    monkeypatch.setattr(broker.store, "dequeue", fail)
    with pytest.raises(OSError):
        c.dequeue(session, X, 3, position)
    assert broker.labels(3) == ["old"]
    assert next(iter(c.list())).dequeues == 0


def test_positions_follow_the_order_of_commits_on_every_queue(broker: Broker) -> None:
    first, second, c = broker.session(), broker.session(), broker.coordinator
    c.start(first, X)
    c.start(second, Y)
    for label in ("a", "b"):
        for session, xid, mark in ((first, X, "x"), (second, Y, "y")):
            ref = c.enqueue(session, xid, 1, message(mark + label))
            c.enqueue(session, xid, 2, ref)
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


def test_order_holds_with_transient_messages_between_and_with_priorities() -> None:
    broker = Broker(levels=3)
    session, c = broker.session(), broker.coordinator
    c.start(session, X)
    messages = (("p1", True, 0), ("t1", False, 0), ("high", True, 2), ("p2", True, None), ("th", False, 2), ("p3", True, 0))
    for label, durable, priority in messages:
        c.enqueue(session, X, 1, message(label), durable=durable, priority=priority)
    commit(broker, session, one_phase=False)
    assert broker.labels(1) == ["high", "th", "p1", "t1", "p2", "p3"]
    assert broker.stored(1) == ["high", "p1", "p2", "p3"]
    positions = {broker._label(1, position): position for position in broker.effects.queues[1]}
    assert [positions[label] for label in broker.stored(1)] == [entry.position for entry in broker.store.entries(1)]


def test_transient_work_happens_with_the_outcome_and_is_not_logged(broker: Broker) -> None:
    session, c = broker.session(), broker.coordinator
    position = broker.put(3, "transient", durable=False)
    c.start(session, X)
    c.enqueue(session, X, 1, message("m"), durable=False)
    c.dequeue(session, X, 3, position)
    broker.store.hold()
    c.end(session, X)
    outcome = c.commit(X, one_phase=True)
    assert status(outcome) is OK  # nothing to wait for
    assert broker.store.written == []
    assert (broker.labels(1), broker.labels(3), broker.stored(1)) == (["m"], [], [])


def test_transient_work_of_a_prepared_branch_is_gone_after_a_crash(broker: Broker) -> None:
    session, c = broker.session(), broker.coordinator
    c.start(session, X)
    c.enqueue(session, X, 1, message("transient"), durable=False)
    c.enqueue(session, X, 1, message("persistent"))
    c.end(session, X)
    assert c.prepare(X).result(0) is OK
    after = broker.crash()
    assert after.coordinator.commit(X).result(0) is OK
    assert after.labels(1) == ["persistent"]


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("crashes", [True, False])
def test_log_transient_keeps_a_prepared_set_whole_over_a_crash(broker: Broker, commits: bool, crashes: bool) -> None:
    session, c = broker.session(), broker.coordinator
    position = broker.put(3, "transient", durable=False)
    c.start(session, X, log_transient=True)
    c.enqueue(session, X, 1, message("m"), durable=False)
    c.dequeue(session, X, 3, position)
    c.end(session, X)
    c.prepare(X)
    after = broker.crash() if crashes else broker
    assert after.labels(1) == after.labels(3) == []
    assert [after.store.content_of(entry.message_id).body for entry in after.store.entries(3)] == [b"transient"]
    outcome = after.coordinator.commit(X) if commits else after.coordinator.rollback(X)
    assert outcome.result(0) is OK
    assert (after.labels(1), after.labels(3)) == ((["m"], []) if commits else ([], ["transient"]))
    # Given back, it is transient again: once it can be consumed, no crash may bring it back.
    assert after.stored(3) == ([] if commits or not crashes else ["transient"])


def test_a_copied_transient_entry_is_released_only_when_its_copy_is_gone_for_good(broker: Broker) -> None:
    session, c = broker.session(), broker.coordinator
    position = broker.put(3, "transient", durable=False)
    c.start(session, X, log_transient=True)
    c.dequeue(session, X, 3, position)
    c.end(session, X)
    broker.store.hold()
    c.rollback(X)
    while not broker.labels(3):
        resurrected = broker.store.crash()
        broker.store.release(broker.store.durable_lsn + 1)
    assert [entry.position for entry in resurrected.entries(3)] == [position]
    assert list(broker.store.crash().entries(3)) == []


def test_limits_refuse_and_leave_the_branch_as_it_was() -> None:
    broker = Broker(limits=Limits(dtx_branches_max=2, dtx_enrolments_max=3, dtx_content_bytes_max=20))
    session, c = broker.session(), broker.coordinator
    position = broker.with_work(session)  # three enrolments, 4 bytes
    assert refused(c.enqueue, session, X, 1, message("x")) == "RESOURCE_LIMIT_EXCEEDED"
    assert refused(c.dequeue, session, X, 3, broker.put(3, "next")) == "RESOURCE_LIMIT_EXCEEDED"
    c.end(session, X)
    c.start(session, Y)
    assert refused(c.enqueue, session, Y, 1, message("x" * 30), durable=False) == "RESOURCE_LIMIT_EXCEEDED"
    big = c.enqueue(session, Y, 1, message("y" * 30))
    assert big.content is None  # read back from the log when it is delivered
    c.enqueue(session, Y, 2, big, durable=False)
    c.end(session, Y)
    assert refused(c.start, session, type(X)(9, b"third")) == "RESOURCE_LIMIT_EXCEEDED"
    c.commit(X, one_phase=True)
    c.commit(Y, one_phase=True)
    assert broker.labels(1) == broker.labels(2) == ["new", "y" * 30]
    assert broker.labels(3) == ["next"]
    assert position not in broker.effects.queues[3]


def test_the_content_limit_counts_all_messages_once_each() -> None:
    broker = Broker(limits=Limits(dtx_content_bytes_max=10))
    session, c = broker.session(), broker.coordinator
    c.start(session, X)
    first = c.enqueue(session, X, 1, message("aaaa"), durable=False)  # with its routing key, 5 bytes
    c.enqueue(session, X, 2, first, durable=False)
    c.enqueue(session, X, 1, message("bbbb"), durable=False)
    assert refused(c.enqueue, session, X, 1, message("c"), durable=False) == "RESOURCE_LIMIT_EXCEEDED"
    assert c.enqueue(session, X, 1, message("c")).content is None


def test_a_commit_record_has_as_few_rows_as_the_positions_allow() -> None:
    assert _rows(7, []) == []
    assert _rows(7, [5, 6, 7]) == [CommitRow(7, 5, 3)]
    assert _rows(7, [5, 6, 8, 1, 2]) == [CommitRow(7, 5, 2), CommitRow(7, 8, 1), CommitRow(7, 1, 2)]


def test_a_deleted_queue_fails_active_branches_and_leaves_prepared_ones_the_rest(broker: Broker) -> None:
    first, second, third, c = broker.session(), broker.session(), broker.session(), broker.coordinator
    broker.with_work(first, X)
    broker.with_work(second, Y)
    z = type(X)(3, b"elsewhere")
    c.start(third, z)
    c.enqueue(third, z, 2, message("elsewhere"))
    c.end(second, Y)
    c.prepare(Y)
    broker.store.drop_queue(1)
    broker.effects.delete(1)
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
    c.start(session, X, log_transient=True)
    c.dequeue(session, X, 3, broker.put(3, "transient", durable=False))
    c.dequeue(session, X, 2, broker.put(2, "old"))
    c.enqueue(session, X, 1, message("new"))
    c.end(session, X)
    c.prepare(X)
    after = broker.crash() if crashes else broker
    for queue_id in (1, 3):
        after.store.drop_queue(queue_id)
        after.effects.delete(queue_id)
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
    broker.store.drop_queue(1)
    broker.effects.delete(1)
    c.queue_deleted(1)
    broker.store.release()
    assert (status(outcome), broker.labels(2), broker.labels(3)) == (OK, ["new"], [])


# --- local transactions ------------------------------------------------------------------------------------------------------


def test_a_local_transaction_is_all_or_nothing_over_queues(broker: Broker) -> None:
    position = broker.put(3, "old")
    with broker.coordinator.local() as transaction:
        transaction.dequeue(3, position)
        transaction.enqueue(2, transaction.enqueue(1, message("new")))
        assert (broker.labels(1), broker.labels(3)) == ([], [])
    assert (broker.labels(1), broker.labels(2), broker.labels(3)) == (["new"], ["new"], [])
    with pytest.raises(ZeroDivisionError), broker.coordinator.local() as transaction:
        transaction.dequeue(1, broker.effects.available(1)[0])
        transaction.enqueue(2, message("never"))
        raise ZeroDivisionError
    assert (broker.labels(1), broker.labels(2)) == (["new"], ["new"])
    with pytest.raises(TransactionRefused):
        transaction.enqueue(1, message("late"))
    with pytest.raises(TransactionRefused):
        transaction.commit()


def test_leaving_a_local_transaction_waits_for_the_disk(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    def result(outcome: Outcome, timeout: float | None = None) -> XaStatus:
        assert not outcome.done
        broker.store.release()
        return OK

    monkeypatch.setattr(Outcome, "result", result)
    broker.store.hold()
    with broker.coordinator.local() as transaction:
        transaction.enqueue(1, message("new"))
    assert broker.labels(1) == ["new"]


def test_an_open_local_transaction_does_not_survive_a_crash(broker: Broker) -> None:
    position = broker.put(3, "old")
    transaction = broker.coordinator.local()
    transaction.dequeue(3, position)
    transaction.enqueue(1, message("new"))
    after = broker.crash()
    assert (after.labels(1), after.labels(3)) == ([], ["old"])
    assert after.coordinator.recover() == []
