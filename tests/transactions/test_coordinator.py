"""Sessions, time, operators, restarts: each changes a branch as promised, and no reply runs ahead of the disk."""

from __future__ import annotations

import threading

import pytest

from flintmq.config import Limits
from flintmq.errors import ReplyCode, StoreError
from flintmq.transactions import BranchState, Condition, Outcome, TransactionRefused, XaStatus, Xid
from tests.support.blocks import enrol

from .broker import OK, Broker, X, Y, status

RB, TIMED_OUT = XaStatus.XA_RBROLLBACK, XaStatus.XA_RBTIMEOUT


def refused(call, *args, **kwargs) -> str:
    with pytest.raises(TransactionRefused) as error:
        call(*args, **kwargs)
    return error.value.condition.name


@pytest.fixture
def broker() -> Broker:
    return Broker()


# --- sessions ----------------------------------------------------------------------------------------------------------------


def test_two_sessions_work_in_one_branch_and_both_must_end(broker: Broker) -> None:
    first, second, c = broker.session(), broker.session(), broker.coordinator
    broker.with_work(first)
    assert c.start(second, X, join=True) is OK
    enrol(c, second, X, (1,), b"second")
    assert c.end(first, X) is OK
    assert refused(c.prepare, X) == "ILLEGAL_STATE"
    assert c.end(second, X) is OK
    assert c.commit(X, one_phase=True).result(0) is OK
    assert broker.labels(1) == ["new", "second"]


def test_a_suspended_session_may_work_elsewhere_and_resume(broker: Broker) -> None:
    session, c = broker.session(), broker.coordinator
    broker.with_work(session)
    assert refused(c.start, session, Y) == "ILLEGAL_STATE"
    assert c.end(session, X, suspend=True) is OK
    assert refused(enrol, c, session, X, (1,), b"no") == "ILLEGAL_STATE"
    assert c.start(session, Y) is OK
    assert refused(c.start, session, X, resume=True) == "ILLEGAL_STATE"
    assert c.end(session, Y) is OK
    assert c.start(session, X, resume=True) is OK
    enrol(c, session, X, (1,), b"again")
    assert c.end(session, X) is OK
    assert c.commit(X, one_phase=True).result(0) is OK
    assert broker.labels(1) == ["new", "again"]


def test_a_suspended_association_does_not_block_and_is_cleared(broker: Broker) -> None:
    session, c = broker.session(), broker.coordinator
    broker.with_work(session)
    c.end(session, X, suspend=True)
    assert c.prepare(X).result(0) is OK
    assert next(iter(c.list())).sessions_suspended == 0
    assert refused(c.start, session, X, resume=True) == "ILLEGAL_STATE"
    c.session_closed(session)
    assert list(c.recover()) == [X]


@pytest.mark.parametrize("suspended", [True, False])
def test_a_closed_session_rolls_its_branches_back_at_once(broker: Broker, suspended: bool) -> None:
    first, second, c = broker.session(), broker.session(), broker.coordinator
    broker.with_work(first)
    c.start(second, X, join=True)
    if suspended:
        c.end(first, X, suspend=True)
    c.session_closed(first)
    assert broker.labels(3) == ["old"]
    assert next(iter(c.list())).queues == {}
    assert refused(enrol, c, second, X, (1,), b"no") == "ILLEGAL_STATE"
    assert c.end(second, X) is RB
    assert c.prepare(X).result(0) is RB
    assert refused(c.rollback, X) == "NOT_FOUND"
    assert broker.labels(1) == []


def test_a_closed_session_does_not_touch_what_it_ended(broker: Broker) -> None:
    session, c = broker.session(), broker.coordinator
    broker.with_work(session)
    c.end(session, X)
    c.session_closed(session)
    c.session_closed("never seen")
    assert refused(c.start, session, Y) == "COMMAND_INVALID"  # the selection went with it
    assert c.commit(X, one_phase=True).result(0) is OK


def test_resume_of_a_branch_that_failed_meanwhile_says_so_and_ends_the_association(broker: Broker) -> None:
    first, second, c = broker.session(), broker.session(), broker.coordinator
    broker.with_work(first)
    c.end(first, X, suspend=True)
    c.start(second, X, join=True)
    assert c.end(second, X, fail=True) is RB
    assert c.start(first, X, resume=True) is RB
    assert refused(c.end, first, X) == "ILLEGAL_STATE"


# --- time --------------------------------------------------------------------------------------------------------------------


def test_an_unprepared_branch_times_out_and_its_entries_go_back(broker: Broker) -> None:
    session, c = broker.session(), broker.coordinator
    broker.with_work(session)
    broker.clock.advance(ms=59_999)
    assert c.tick() == 0
    broker.clock.advance(ms=1)
    assert c.tick() == 1
    assert c.tick() == 0
    assert broker.labels(3) == ["old"]
    assert c.end(session, X) is TIMED_OUT
    assert c.commit(X, one_phase=True).result(0) is TIMED_OUT
    assert refused(c.commit, X, one_phase=True) == "NOT_FOUND"


def test_a_command_after_the_deadline_sees_it_also_before_housekeeping(broker: Broker) -> None:
    session, c = broker.session(), broker.coordinator
    broker.with_work(session)
    c.end(session, X)
    broker.clock.advance(ms=60_000)
    assert c.prepare(X).result(0) is TIMED_OUT
    assert (broker.labels(1), broker.labels(3)) == ([], ["old"])


def test_a_prepared_branch_never_times_out(broker: Broker) -> None:
    session, c = broker.session(), broker.coordinator
    broker.with_work(session)
    c.end(session, X)
    c.prepare(X)
    c.set_timeout(X, 1)
    broker.clock.advance(ms=100 * 3_600_000)
    assert c.tick() == 0
    after = broker.crash()
    after.clock.advance(ms=100 * 3_600_000)
    assert after.coordinator.tick() == 0
    assert after.coordinator.commit(X).result(0) is OK


def test_timeouts_are_set_counted_from_now_and_zero_is_none(broker: Broker) -> None:
    session, c = broker.session(), broker.coordinator
    c.start(session, X)
    broker.clock.advance(ms=59_000)
    c.set_timeout(X, 2)
    broker.clock.advance(ms=1_999)
    assert c.tick() == 0
    c.set_timeout(X, 0)
    broker.clock.advance(ms=10**9)
    assert (c.tick(), c.get_timeout(X)) == (0, 0)
    c.set_timeout(X, 3_600)
    assert c.get_timeout(X) == 3_600
    assert refused(c.set_timeout, X, 3_601) == "COMMAND_INVALID"
    assert c.get_timeout(X) == 3_600
    broker.clock.advance(ms=3_600_000)
    assert c.tick() == 1


def test_tombstones_are_remembered_for_a_while_and_then_forgotten(broker: Broker) -> None:
    first, second, c = broker.session(), broker.session(), broker.coordinator
    c.start(first, X)
    c.end(first, X, fail=True)
    c.start(second, Y)
    broker.clock.advance(ms=60_000)
    c.tick()
    broker.clock.advance(ms=3_540_000)
    c.tick()
    assert [view.xid for view in c.list()] == [Y]
    broker.clock.advance(ms=3_600_000)
    c.tick()
    assert [view.xid for view in c.list()] == [Y]  # its session has not been told yet
    assert c.end(second, Y) is TIMED_OUT
    c.tick()
    assert list(c.list()) == []


def test_a_tombstone_is_remembered_from_the_time_it_became_one(broker: Broker) -> None:
    session, c = broker.session(), broker.coordinator
    c.start(session, X)
    c.set_timeout(X, 3_600)
    c.end(session, X)
    broker.clock.advance(ms=3_600_000)
    assert c.tick() == 1
    assert c.rollback(X).result(0) is TIMED_OUT


def test_tombstones_make_room_for_new_branches() -> None:
    broker = Broker(limits=Limits(dtx_branches_max=2))
    c = broker.coordinator
    for number in range(5):
        session = broker.session()
        assert c.start(session, Xid(1, bytes((number,)))) is OK
        c.session_closed(session)
    session = broker.session()
    for number in (10, 11):
        c.start(session, Xid(1, bytes((number,))))
        c.end(session, Xid(1, bytes((number,))))
    assert refused(c.start, session, X) == "RESOURCE_LIMIT_EXCEEDED"


# --- durability of replies -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["prepare", "one phase", "commit", "rollback", "heuristic_commit", "heuristic_rollback", "forget"])
def test_no_reply_before_the_disk_has_it(broker: Broker, command: str) -> None:
    session, c = broker.session(), broker.coordinator
    broker.with_work(session)
    c.end(session, X)
    if command not in ("prepare", "one phase"):
        c.prepare(X)
    if command == "forget":
        c.heuristic_commit(X)
    broker.store.hold()
    seen: list[XaStatus] = []
    outcome = c.commit(X, one_phase=True) if command == "one phase" else getattr(c, command)(X)
    outcome.add_callback(seen.append)
    with pytest.raises(TimeoutError):
        outcome.result(0)
    broker.store.release(broker.store.durable_lsn)
    assert (seen, outcome.done) == ([], False)
    broker.store.release()
    assert seen == [outcome.result(0)]
    late: list[XaStatus] = []
    outcome.add_callback(late.append)
    assert late == seen


def test_entries_go_back_only_when_the_rollback_is_durable(broker: Broker) -> None:
    first, second, c = broker.session(), broker.session(), broker.coordinator
    broker.with_work(first, X)
    broker.with_work(second, Y)
    broker.store.hold()
    c.session_closed(first)
    assert c.end(second, Y, fail=True) is RB
    assert broker.labels(3) == []
    broker.store.release()
    assert broker.labels(3) == ["old", "old"]


@pytest.mark.parametrize("commits", [True, False])
def test_an_operators_decision_shows_only_when_it_is_durable(broker: Broker, commits: bool) -> None:
    session, c = broker.session(), broker.coordinator
    broker.with_work(session)
    c.end(session, X)
    c.prepare(X)
    broker.store.hold()
    (c.heuristic_commit if commits else c.heuristic_rollback)(X)
    assert (broker.labels(1), broker.labels(3)) == ([], [])
    broker.store.release()
    assert (broker.labels(1), broker.labels(3)) == ((["new"], []) if commits else ([], ["old"]))


def test_an_outcome_is_resolved_once() -> None:
    outcome = Outcome()
    outcome.resolve(RB)
    with pytest.raises(ValueError):
        outcome.resolve(OK)
    assert outcome.result(0) is RB


def test_recover_and_a_heuristic_answer_wait_for_the_disk_too(broker: Broker) -> None:
    session, c = broker.session(), broker.coordinator
    broker.with_work(session)
    c.end(session, X)
    broker.store.hold()
    c.prepare(X)
    assert list(c.recover()) == []
    assert [view.durable for view in c.list()] == [False]
    broker.store.release()
    assert list(c.recover()) == [X]
    broker.store.hold()
    c.heuristic_rollback(X)
    answer = c.commit(X)
    assert (answer.done, list(c.recover())) == (False, [])
    broker.store.release()
    assert status(answer) is XaStatus.XA_HEURRB


def test_a_command_asked_twice_while_the_disk_is_slow_gets_one_answer(broker: Broker) -> None:
    session, c = broker.session(), broker.coordinator
    broker.with_work(session)
    c.end(session, X)
    c.prepare(X)
    broker.store.hold()
    first, second = c.commit(X), c.commit(X)
    assert refused(c.rollback, X) == "ILLEGAL_STATE"
    assert refused(c.start, session, X) == "NOT_ALLOWED"
    broker.store.release()
    assert (status(first), status(second), broker.store.written) == (OK, OK, ["prepare", "commit"])
    assert c.start(session, X) is OK  # the name is free again


def test_a_waiting_thread_gets_the_result(broker: Broker) -> None:
    session, c = broker.session(), broker.coordinator
    broker.with_work(session)
    c.end(session, X)
    broker.store.hold()
    outcome = c.commit(X, one_phase=True)
    results: list[XaStatus] = []
    thread = threading.Thread(target=lambda: results.append(outcome.result(60)))
    thread.start()
    broker.store.release()
    thread.join(60)
    assert results == [OK]


def test_a_callback_may_call_the_coordinator_and_its_failure_is_nobody_elses(broker: Broker) -> None:
    session, c = broker.session(), broker.coordinator
    broker.with_work(session)
    c.end(session, X)
    broker.store.hold()
    outcome = c.commit(X, one_phase=True)
    seen: list[object] = []
    outcome.add_callback(lambda _: 1 // 0)
    outcome.add_callback(lambda _: seen.append(c.start(session, X)))
    broker.store.release()
    assert seen == [OK]


# --- the log -----------------------------------------------------------------------------------------------------------------


def test_prepare_without_room_rolls_back_and_says_so(broker: Broker) -> None:
    session, c = broker.session(), broker.coordinator
    broker.with_work(session)
    c.end(session, X)
    broker.store.full = True
    assert c.prepare(X).result(0) is RB
    assert (broker.labels(1), broker.labels(3)) == ([], ["old"])
    assert refused(c.commit, X) == "NOT_FOUND"


def test_a_failed_log_answers_nothing(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    session, c = broker.session(), broker.coordinator
    broker.with_work(session)
    c.end(session, X)

    def fail(*args: object) -> int:
        raise StoreError("fdatasync failed")

    for name in ("prepare", "commit", "rollback"):
        monkeypatch.setattr(broker.store, name, fail)
    for call in (lambda: c.prepare(X), lambda: c.commit(X, one_phase=True), lambda: c.rollback(X)):
        with pytest.raises(StoreError):
            call()
    assert (broker.labels(1), broker.labels(3)) == ([], [])


def test_a_restart_refuses_a_transaction_name_it_cannot_have_written(broker: Broker) -> None:
    broker.store.prepare(broker.store.begin(b"?"))
    with pytest.raises(StoreError):
        broker.crash()


# --- restart -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("crashes", [1, 3])
def test_a_prepared_branch_comes_back_with_what_it_holds(broker: Broker, commits: bool, crashes: int) -> None:
    session, c = broker.session(), broker.coordinator
    broker.put(3, "before")
    broker.with_work(session)
    broker.put(3, "after")
    c.end(session, X)
    c.prepare(X)
    for _ in range(crashes):
        broker = broker.crash()
    c = broker.coordinator
    assert list(c.recover()) == [X]
    assert next(iter(c.list())).queues == {1: (1, 0), 2: (1, 0), 3: (0, 1)}
    assert broker.labels(3) == ["old", "after"]
    assert refused(c.start, broker.session(), X) == "NOT_ALLOWED"
    assert refused(c.commit, X, one_phase=True) == "ILLEGAL_STATE"
    outcome = c.commit(X) if commits else c.rollback(X)
    assert outcome.result(0) is OK
    expected = (["new"], ["new"], ["old", "after"]) if commits else ([], [], ["before", "old", "after"])
    assert (broker.labels(1), broker.labels(2), broker.labels(3)) == expected
    after = broker.crash()
    assert (after.labels(1), after.labels(2), after.labels(3)) == expected
    assert after.coordinator.recover() == []


def test_new_positions_after_a_restart_are_behind_the_old_ones(broker: Broker) -> None:
    session, c = broker.session(), broker.coordinator
    broker.put(1, "first")
    broker.with_work(session)
    c.end(session, X)
    c.prepare(X)
    broker = broker.crash()
    broker.put(1, "second")
    broker.coordinator.commit(X)
    assert broker.labels(1) == ["first", "second", "new"]


# --- operators ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commits", [True, False])
def test_a_heuristic_outcome_is_told_until_it_is_forgotten_also_after_a_crash(broker: Broker, commits: bool) -> None:
    session, c = broker.session(), broker.coordinator
    broker.with_work(session)
    c.end(session, X)
    c.prepare(X)
    expected = XaStatus.XA_HEURCOM if commits else XaStatus.XA_HEURRB
    assert (c.heuristic_commit(X) if commits else c.heuristic_rollback(X)).result(0) is expected
    for _ in range(2):
        c = broker.coordinator
        assert (broker.labels(1), broker.labels(3)) == ((["new"], []) if commits else ([], ["old"]))
        assert list(c.recover()) == [X]
        assert next(iter(c.list())).queues == {}
        assert c.commit(X).result(0) is expected
        assert c.rollback(X).result(0) is expected
        assert refused(c.start, broker.session(), X) == "NOT_ALLOWED"
        broker = broker.crash()
    assert broker.coordinator.forget(X).result(0) is OK
    assert refused(broker.coordinator.forget, X) == "NOT_FOUND"
    assert broker.crash().coordinator.recover() == []


@pytest.mark.parametrize("commits", [True, False])
def test_a_crash_within_an_operators_decision_leaves_it_undone_or_done(broker: Broker, commits: bool) -> None:
    session, c = broker.session(), broker.coordinator
    broker.with_work(session)
    c.end(session, X)
    c.prepare(X)
    broker.store.hold()
    (c.heuristic_commit if commits else c.heuristic_rollback)(X)
    states = []
    while True:
        after = broker.crash()
        state = next(iter(after.coordinator.list())).state
        done = {
            BranchState.PREPARED: ([], []),
            BranchState.HEURISTIC_COMMIT: (["new"], []),
            BranchState.HEURISTIC_ROLLBACK: ([], ["old"]),
        }
        assert (after.labels(1), after.labels(3)) == done[state]
        states.append(state)
        if broker.store.durable_lsn == broker.store._lsn:
            break
        broker.store.release(broker.store.durable_lsn + 1)
    decided = BranchState.HEURISTIC_COMMIT if commits else BranchState.HEURISTIC_ROLLBACK
    assert states[:3] == [BranchState.PREPARED, decided, decided]  # nothing, the note alone, note and decision
    assert set(states[3:]) <= {decided}  # what follows a decision


def test_vhosts_do_not_see_each_others_transactions(broker: Broker) -> None:
    session, c = broker.session(), broker.coordinator
    theirs = Xid(X.format, X.global_id, X.branch_id, "theirs")
    broker.with_work(session)
    c.end(session, X)
    c.prepare(X)
    assert refused(c.commit, theirs) == "NOT_FOUND"
    assert c.start(session, theirs) is OK
    c.end(session, theirs)
    c.prepare(theirs)
    c = broker.crash().coordinator
    assert (list(c.recover("/")), list(c.recover("theirs")), list(c.recover("other"))) == ([X], [theirs], [])
    assert list(c.recover()) == [X, theirs]


def test_an_operator_ends_an_active_branch_without_a_heuristic_outcome(broker: Broker) -> None:
    session, c = broker.session(), broker.coordinator
    broker.with_work(session)
    assert refused(c.heuristic_commit, X) == "ILLEGAL_STATE"
    assert c.heuristic_rollback(X).result(0) is RB
    assert broker.labels(3) == ["old"]
    assert c.end(session, X) is RB
    assert c.rollback(X).result(0) is OK
    assert broker.store.heuristics() == []


def test_the_list_shows_what_an_operator_needs(broker: Broker) -> None:
    session, other, c = broker.session(), broker.session(), broker.coordinator
    broker.with_work(session)
    c.start(other, X, join=True)
    c.end(other, X, suspend=True)
    broker.clock.advance(ms=1_500)
    (view,) = c.list()
    assert (view.xid, view.state, view.age_s, view.timeout_s) == (X, BranchState.ACTIVE, 1.5, 60)
    assert (view.sessions_active, view.sessions_suspended) == (1, 1)
    assert (view.enqueues, view.dequeues, view.queues) == (2, 1, {1: (1, 0), 2: (1, 0), 3: (0, 1)})


def test_a_refusal_has_a_name_in_every_protocol() -> None:
    error = TransactionRefused(Condition.ILLEGAL_STATE, "text")
    assert (error.code, error.condition.exception_name, error.condition.exception_code) == (
        ReplyCode.PRECONDITION_FAILED,
        "illegal-state",
        409,
    )
    assert len({condition.amqp_1_0 for condition in Condition}) == len(Condition)
