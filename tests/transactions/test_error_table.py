"""Every command in every state of a branch gives the answer of the published table (docs/TRANSACTIONS.md), and goes where it says."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from flintmq.transactions import BranchState, Outcome, TransactionRefused, XaStatus, Xid
from flintmq.transactions.branch import TRANSITIONS, Event
from tests.support.blocks import enrol

from .broker import OK, Broker, X

OTHER = "other session"  # selected, never associated

# Columns: states, made by the functions below. "own" commands come from the session that made the state, others from OTHER.
# A cell: answer, or answer>state. "." = NOT_FOUND. ILL ILLEGAL_STATE, ALW NOT_ALLOWED, INV COMMAND_INVALID; wait: the reply waits
# for the disk; ok rb rto hc hr: XA_OK, XA_RBROLLBACK, XA_RBTIMEOUT, XA_HEURCOM, XA_HEURRB; gone: the branch is unknown afterwards.
TABLE = """
command             unknown    working  suspend  active   prep     fail     fail+  late      late+  hcom     hrb      commits  rolls  forgot
start               ok>active  ALW      ALW      ALW      ALW      ALW      ALW    ALW       ALW    ALW      ALW      ALW      ALW    ALW
start_join          ALW        ok       ok       ok       ILL      rb       rb     rto       rto    ILL      ILL      ILL      ILL    ILL
start_resume        ALW        ILL      ILL      ILL      ILL      ILL      ILL    ILL       ILL    ILL      ILL      ILL      ILL    ILL
start_both          INV        INV      INV      INV      INV      INV      INV    INV       INV    INV      INV      INV      INV    INV
own_start           ok>active  ALW      ALW      ALW      ALW      ALW      ALW    ALW       ALW    ALW      ALW      ALW      ALW    ALW
own_join            ALW        ILL      ILL      ok       ILL      rb       ILL    rto       ILL    ILL      ILL      ILL      ILL    ILL
own_resume          ALW        ILL      ok       ILL      ILL      ILL      ILL    ILL       ILL    ILL      ILL      ILL      ILL    ILL
end                 ILL        ILL      ILL      ILL      ILL      ILL      ILL    ILL       ILL    ILL      ILL      ILL      ILL    ILL
own_end             ILL        ok       ok       ILL      ILL      ILL      rb     ILL       rto    ILL      ILL      ILL      ILL    ILL
own_end_fail        ILL        rb>fail  rb>fail  ILL      ILL      ILL      rb     ILL       rto    ILL      ILL      ILL      ILL    ILL
own_suspend         ILL        ok       ILL      ILL      ILL      ILL      rb     ILL       rto    ILL      ILL      ILL      ILL    ILL
own_end_both        INV        INV      INV      INV      INV      INV      INV    INV       INV    INV      INV      INV      INV    INV
own_work            .          ok       ILL      ILL      ILL      ILL      ILL    ILL       ILL    ILL      ILL      ILL      ILL    ILL
prepare             .          ILL      ok>prep  ok>prep  ILL      rb>gone  ILL    rto>gone  ILL    ILL      ILL      ILL      ILL    ILL
commit              .          ILL      ILL      ILL      ok>gone  rb>gone  ILL    rto>gone  ILL    hc       hr       wait     ILL    ILL
commit_one_phase    .          ILL      ok>gone  ok>gone  ILL      rb>gone  ILL    rto>gone  ILL    hc       hr       wait     ILL    ILL
rollback            .          ILL      ok>gone  ok>gone  ok>gone  ok>gone  ILL    rto>gone  ILL    hc       hr       ILL      wait   ILL
forget              .          ILL      ILL      ILL      ILL      ILL      ILL    ILL       ILL    ok>gone  ok>gone  ILL      ILL    wait
get_timeout         .          60       60       60       60       60       60     60        60     60       60       60       60     60
set_timeout         .          none     none     none     none     none     none   none      none   none     none     none     none   none
set_timeout_long    .          INV      INV      INV      INV      INV      INV    INV       INV    INV      INV      INV      INV    INV
set_timeout_minus   .          INV      INV      INV      INV      INV      INV    INV       INV    INV      INV      INV      INV    INV
heuristic_commit    .          ILL      ILL      ILL      hc>hcom  ILL      ILL    ILL       ILL    ILL      ILL      ILL      ILL    ILL
heuristic_rollback  .          rb>fail  rb>fail  rb>fail  hr>hrb   ILL      ILL    ILL       ILL    ILL      ILL      ILL      ILL    ILL
"""

STATUS = {
    "ok": XaStatus.XA_OK,
    "rb": XaStatus.XA_RBROLLBACK,
    "rto": XaStatus.XA_RBTIMEOUT,
    "hc": XaStatus.XA_HEURCOM,
    "hr": XaStatus.XA_HEURRB,
}
REFUSAL = {"ILL": "ILLEGAL_STATE", "ALW": "NOT_ALLOWED", "INV": "COMMAND_INVALID", ".": "NOT_FOUND"}
STATE = {
    "unknown": None,
    "gone": None,
    "working": BranchState.ACTIVE,
    "suspend": BranchState.ACTIVE,
    "active": BranchState.ACTIVE,
    "prep": BranchState.PREPARED,
    "fail": BranchState.ROLLBACK_ONLY,
    "fail+": BranchState.ROLLBACK_ONLY,
    "late": BranchState.TIMED_OUT,
    "late+": BranchState.TIMED_OUT,
    "hcom": BranchState.HEURISTIC_COMMIT,
    "hrb": BranchState.HEURISTIC_ROLLBACK,
    "commits": BranchState.COMMITTING,
    "rolls": BranchState.ROLLING_BACK,
    "forgot": BranchState.FORGOTTEN,
}


def bring(broker: Broker, session: str, state: str) -> None:
    """Takes branch X to a column's state, by commands only. The session is the one that worked in it."""
    c = broker.coordinator
    if state == "unknown":
        return
    broker.with_work(session)
    if state in ("working", "fail+", "late+"):
        if state == "fail+":  # a second session, which joined, failed it
            c.start(OTHER, X, join=True)
            c.end(OTHER, X, fail=True)
        if state == "late+":
            broker.clock.advance(ms=60_000)
            assert c.tick() == 1
        return
    if state == "suspend":
        assert c.end(session, X, suspend=True) is OK
        return
    c.end(session, X, fail=state == "fail")
    if state == "late":
        broker.clock.advance(ms=60_000)
        assert c.tick() == 1
    if state in ("prep", "hcom", "hrb", "commits", "rolls", "forgot"):
        assert c.prepare(X).result(0) is OK
    if state in ("hcom", "forgot"):
        c.heuristic_commit(X)
    if state == "hrb":
        c.heuristic_rollback(X)
    if state in ("commits", "rolls", "forgot"):
        broker.store.hold()
        {"commits": c.commit, "rolls": c.rollback, "forgot": c.forget}[state](X)


def run(broker: Broker, session: str, command: str) -> object:
    c = broker.coordinator
    commands: dict[str, Callable[[], object]] = {
        "start": lambda: c.start(OTHER, X),
        "start_join": lambda: c.start(OTHER, X, join=True),
        "start_resume": lambda: c.start(OTHER, X, resume=True),
        "start_both": lambda: c.start(OTHER, X, join=True, resume=True),
        "own_start": lambda: c.start(session, X),
        "own_join": lambda: c.start(session, X, join=True),
        "own_resume": lambda: c.start(session, X, resume=True),
        "end": lambda: c.end(OTHER, X),
        "own_end": lambda: c.end(session, X),
        "own_end_fail": lambda: c.end(session, X, fail=True),
        "own_suspend": lambda: c.end(session, X, suspend=True),
        "own_end_both": lambda: c.end(session, X, suspend=True, fail=True),
        "own_work": lambda: enrol(c, session, X, (1,), b"more") and OK,
        "prepare": lambda: c.prepare(X),
        "commit": lambda: c.commit(X),
        "commit_one_phase": lambda: c.commit(X, one_phase=True),
        "rollback": lambda: c.rollback(X),
        "forget": lambda: c.forget(X),
        "get_timeout": lambda: c.get_timeout(X),
        "set_timeout": lambda: c.set_timeout(X, 3600),
        "set_timeout_long": lambda: c.set_timeout(X, 3601),
        "set_timeout_minus": lambda: c.set_timeout(X, -1),
        "heuristic_commit": lambda: c.heuristic_commit(X),
        "heuristic_rollback": lambda: c.heuristic_rollback(X),
    }
    return commands[command]()


def cells() -> list[tuple[str, str, str]]:
    head, *rows = [line.split() for line in TABLE.strip().splitlines()]
    assert all(len(row) == len(head) for row in rows)
    return [(row[0], state, cell) for row in rows for state, cell in zip(head[1:], row[1:], strict=True)]


@pytest.mark.parametrize(("command", "state", "cell"), cells(), ids=lambda value: value)
def test_the_answer_is_that_of_the_table(command: str, state: str, cell: str) -> None:
    broker = Broker()
    broker.coordinator.select(OTHER)
    session = broker.session()
    bring(broker, session, state)
    before = observe(broker)
    answer, _, after = cell.partition(">")
    if answer in REFUSAL:
        with pytest.raises(TransactionRefused) as refused:
            run(broker, session, command)
        assert refused.value.condition.name == REFUSAL[answer]
        assert observe(broker) == before
        return
    found = run(broker, session, command)
    if isinstance(found, Outcome):
        assert found.done == (answer != "wait")
        found = "wait" if answer == "wait" else found.result(0)
    assert found == {"wait": "wait", "60": 60, "none": None, **STATUS}[answer]
    if command == "start" and state == "unknown":
        broker.coordinator.end(OTHER, X)
    states = [view.state for view in broker.coordinator.list()]
    expected = STATE[after or state]
    assert states == ([] if expected is None else [expected])


def observe(broker: Broker) -> tuple:
    """What a refused command must not change: branches, queues, and what the store has."""
    queues = [(broker.labels(queue_id), broker.stored(queue_id)) for queue_id in broker.queue_ids]
    return list(broker.coordinator.list()), queues, list(broker.store.in_doubt())


@pytest.mark.parametrize("command", ["start", "end"])
def test_a_session_that_did_not_select_is_refused(command: str) -> None:
    broker = Broker()
    with pytest.raises(TransactionRefused) as refused:
        getattr(broker.coordinator, command)("nobody", X)
    assert refused.value.condition.name == {"start": "COMMAND_INVALID", "end": "ILLEGAL_STATE"}[command]
    assert list(broker.coordinator.list()) == []


def test_the_transition_table_is_total_and_states_with_work_lead_on() -> None:
    assert set(TRANSITIONS) == {(event, state) for event in Event for state in BranchState}
    reached = {step.next for step in TRANSITIONS.values() if step.next}
    assert reached == set(BranchState) - {BranchState.ACTIVE}
    for (_, state), step in TRANSITIONS.items():
        if step.refusal or step.shared:
            assert step.next is None
        if state is BranchState.PREPARED and step.next:
            assert step.next in (
                BranchState.COMMITTING,
                BranchState.ROLLING_BACK,
                BranchState.HEURISTIC_COMMIT,
                BranchState.HEURISTIC_ROLLBACK,
            )


def test_the_format_id_is_part_of_the_identity() -> None:
    broker = Broker()
    session = broker.session()
    broker.with_work(session)
    broker.coordinator.end(session, X)
    with pytest.raises(TransactionRefused) as refused:
        broker.coordinator.prepare(Xid(X.format + 1, X.global_id, X.branch_id))
    assert refused.value.condition.name == "NOT_FOUND"
