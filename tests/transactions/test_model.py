"""Sessions, commands, time, operators and restarts in any order agree with a small model, and no message is lost or doubled."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flintmq.transactions import BranchState, TransactionRefused, Xid
from tests.support.blocks import enrol, take

from .broker import Broker

XIDS = [Xid(1, b"g", bytes((number,))) for number in range(3)]
SESSIONS = ["s1", "s2"]
QUEUES = [1, 2, 3]

xids = st.sampled_from(XIDS)
sessions = st.sampled_from(SESSIONS)
queue_ids = st.sampled_from(QUEUES)
flags = st.booleans()


@dataclass
class ModelBranch:
    state: str = "active"  # active, prepared, dead (rollback-only), late, hc, hr
    left_ms: int | None = 60_000
    sessions: dict[str, str] = field(default_factory=dict)
    enqueues: list[tuple[int, str]] = field(default_factory=list)
    dequeues: list[tuple[int, str]] = field(default_factory=list)


class Model:
    """The rules once more, as plain conditions. A method returns the name of a status or refusal."""

    def __init__(self) -> None:
        self.branches: dict[Xid, ModelBranch] = {}
        # Queue -> labels in order; those in `held` belong to a branch.
        self.queues: dict[int, list[str]] = {queue_id: [] for queue_id in QUEUES}
        self.held: set[str] = set()

    def undo(self, branch: ModelBranch, state: str) -> None:
        self.held -= {label for _, label in branch.dequeues}
        branch.enqueues, branch.dequeues, branch.state = [], [], state

    def do(self, branch: ModelBranch) -> None:
        for queue_id, label in branch.dequeues:
            self.queues[queue_id].remove(label)
            self.held.discard(label)
        for queue_id, label in branch.enqueues:
            self.queues[queue_id].append(label)
        branch.enqueues, branch.dequeues = [], []

    def active_in(self, session: str) -> list[Xid]:
        return [xid for xid, branch in self.branches.items() if branch.sessions.get(session) == "active"]

    def start(self, session: str, xid: Xid, join: bool, resume: bool) -> str:
        branch = self.branches.get(xid)
        if join and resume:
            return "COMMAND_INVALID"
        if (branch is None) == (join or resume):
            return "NOT_ALLOWED"
        if self.active_in(session):
            return "ILLEGAL_STATE"
        if branch is None:
            self.branches[xid] = ModelBranch(sessions={session: "active"})
            return "XA_OK"
        suspended = branch.sessions.get(session) == "suspended"
        if suspended != resume or branch.state not in ("active", "dead", "late"):
            return "ILLEGAL_STATE"
        if branch.state == "active":
            branch.sessions[session] = "active"
            return "XA_OK"
        branch.sessions.pop(session, None)
        return {"dead": "XA_RBROLLBACK", "late": "XA_RBTIMEOUT"}[branch.state]

    def end(self, session: str, xid: Xid, fail: bool, suspend: bool) -> str:
        branch = self.branches.get(xid)
        if fail and suspend:
            return "COMMAND_INVALID"
        if branch is None or session not in branch.sessions:
            return "ILLEGAL_STATE"
        if branch.state != "active":
            del branch.sessions[session]
            return {"dead": "XA_RBROLLBACK", "late": "XA_RBTIMEOUT"}[branch.state]
        if suspend:
            if branch.sessions[session] == "suspended":
                return "ILLEGAL_STATE"
            branch.sessions[session] = "suspended"
            return "XA_OK"
        del branch.sessions[session]
        if fail:
            self.undo(branch, "dead")
            return "XA_RBROLLBACK"
        return "XA_OK"

    def decide(self, xid: Xid, command: str) -> str:
        branch = self.branches.get(xid)
        if branch is None:
            return "NOT_FOUND"
        state = branch.state
        if command.startswith("heuristic"):
            if state == "prepared":
                if command == "heuristic_commit":
                    self.do(branch)
                    branch.state = "hc"
                    return "XA_HEURCOM"
                self.undo(branch, "hr")
                return "XA_HEURRB"
            if state == "active" and command == "heuristic_rollback":
                self.undo(branch, "dead")
                return "XA_RBROLLBACK"
            return "ILLEGAL_STATE"
        if "active" in branch.sessions.values():
            return "ILLEGAL_STATE"
        if command == "forget":
            if state not in ("hc", "hr"):
                return "ILLEGAL_STATE"
            del self.branches[xid]
            return "XA_OK"
        if state in ("hc", "hr"):
            return "ILLEGAL_STATE" if command == "prepare" else {"hc": "XA_HEURCOM", "hr": "XA_HEURRB"}[state]
        if state in ("dead", "late"):
            del self.branches[xid]
            if command == "rollback" and state == "dead":
                return "XA_OK"
            return {"dead": "XA_RBROLLBACK", "late": "XA_RBTIMEOUT"}[state]
        if command == "rollback":
            self.undo(branch, "dead")
            del self.branches[xid]
        elif command == "prepare" and state == "active":
            branch.state, branch.sessions = "prepared", {}
        elif (command, state) in (("commit", "prepared"), ("one_phase", "active")):
            self.do(branch)
            del self.branches[xid]
        else:
            return "ILLEGAL_STATE"
        return "XA_OK"

    def works(self, session: str, xid: Xid) -> str:
        branch = self.branches.get(xid)
        if branch is None:
            return "NOT_FOUND"
        return "XA_OK" if branch.sessions.get(session) == "active" and branch.state == "active" else "ILLEGAL_STATE"

    def advance(self, ms: int) -> None:
        for branch in self.branches.values():
            if branch.state == "active" and branch.left_ms is not None:
                branch.left_ms -= ms
                if branch.left_ms <= 0:
                    self.undo(branch, "late")

    def close(self, session: str) -> None:
        for branch in self.branches.values():
            if branch.sessions.pop(session, None) and branch.state == "active":
                self.undo(branch, "dead")

    def restart(self) -> None:
        for branch in self.branches.values():
            if branch.state == "active":
                self.undo(branch, "dead")
            branch.sessions = {}
        self.branches = {xid: branch for xid, branch in self.branches.items() if branch.state in ("prepared", "hc", "hr")}


STATES = {
    "active": BranchState.ACTIVE,
    "prepared": BranchState.PREPARED,
    "dead": BranchState.ROLLBACK_ONLY,
    "late": BranchState.TIMED_OUT,
    "hc": BranchState.HEURISTIC_COMMIT,
    "hr": BranchState.HEURISTIC_ROLLBACK,
}


class Transactions(RuleBasedStateMachine):
    """One broker and the model side by side."""

    @initialize()
    def begin(self) -> None:
        self.broker = Broker()
        self.model = Model()
        self.labels = 0
        self.select()

    def select(self) -> None:
        for session in SESSIONS:
            self.broker.coordinator.select(session)

    def same(self, expected: str, call, *args, **kwargs):
        """Runs a call; its status or refusal must be the model's. Returns True when it was not refused."""
        try:
            found = call(*args, **kwargs)
        except TransactionRefused as refused:
            assert refused.condition.name == expected
            return False
        assert (found.result(0) if hasattr(found, "result") else found).name == expected
        return True

    @rule(session=sessions, xid=xids, join=flags, resume=flags)
    def start(self, session, xid, join, resume) -> None:
        self.same(self.model.start(session, xid, join, resume), self.broker.coordinator.start, session, xid, join=join, resume=resume)

    @rule(session=sessions, xid=xids)
    def start_somehow(self, session, xid) -> None:
        """As a client would: new, resumed or joined, whatever fits."""
        branch = self.model.branches.get(xid)
        resume = branch is not None and branch.sessions.get(session) == "suspended"
        self.start(session, xid, branch is not None and not resume, resume)

    @rule(session=sessions, xid=xids, fail=flags, suspend=flags)
    def end(self, session, xid, fail, suspend) -> None:
        self.same(self.model.end(session, xid, fail, suspend), self.broker.coordinator.end, session, xid, fail=fail, suspend=suspend)

    @rule(session=sessions)
    def end_what_is_active(self, session) -> None:
        for xid in self.model.active_in(session):
            self.end(session, xid, False, False)

    @rule(session=sessions)
    def suspend_what_is_active(self, session) -> None:
        for xid in self.model.active_in(session):
            self.end(session, xid, False, True)

    @rule(session=sessions, queue_id=queue_ids, count=st.integers(1, 3))
    def work_where_it_is_active(self, session, queue_id, count) -> None:
        for xid in self.model.active_in(session):
            self.enqueue(session, xid, queue_id)
            self.dequeue(session, xid, queue_id, count)

    @rule(session=sessions, xid=xids, queue_id=queue_ids)
    def enqueue(self, session, xid, queue_id) -> None:
        expected = self.model.works(session, xid)
        label = f"m{self.labels}"
        self.labels += 1
        try:
            enrol(self.broker.coordinator, session, xid, (queue_id,), label.encode())
        except TransactionRefused as refused:
            assert refused.condition.name == expected
        else:
            assert expected == "XA_OK"
            self.model.branches[xid].enqueues.append((queue_id, label))

    @rule(session=sessions, xid=xids, queue_id=queue_ids, count=st.integers(1, 3))
    def dequeue(self, session, xid, queue_id, count) -> None:
        expected = self.model.works(session, xid)
        labels = [label for label in self.model.queues[queue_id] if label not in self.model.held][:count]
        try:
            facts = take(self.broker.coordinator, session, xid, queue_id, count)
        except TransactionRefused as refused:
            assert refused.condition.name == expected
        else:
            assert (expected, facts.count) == ("XA_OK", len(labels))
            self.model.branches[xid].dequeues += [(queue_id, label) for label in labels]
            self.model.held |= set(labels)

    @rule(queue_id=queue_ids)
    def put(self, queue_id) -> None:
        label = f"p{self.labels}"
        self.labels += 1
        self.broker.put(queue_id, label)
        self.model.queues[queue_id].append(label)

    @rule(xid=xids, command=st.sampled_from(["prepare", "commit", "rollback", "forget"]))
    def decide(self, xid, command) -> None:
        self.same(self.model.decide(xid, command), getattr(self.broker.coordinator, command), xid)

    @rule(xid=xids)
    def commit_in_one_phase(self, xid) -> None:
        self.same(self.model.decide(xid, "one_phase"), self.broker.coordinator.commit, xid, one_phase=True)

    @rule(xid=xids, command=st.sampled_from(["heuristic_commit", "heuristic_rollback"]))
    def operator(self, xid, command) -> None:
        self.same(self.model.decide(xid, command), getattr(self.broker.coordinator, command), xid)

    @rule(seconds=st.integers(1, 40))
    def time_goes_by(self, seconds) -> None:
        self.broker.clock.advance(ms=seconds * 1_000)
        self.model.advance(seconds * 1_000)
        self.broker.coordinator.tick()

    @rule(xid=xids, seconds=st.integers(0, 90))
    def set_timeout(self, xid, seconds) -> None:
        branch = self.model.branches.get(xid)
        try:
            self.broker.coordinator.set_timeout(xid, seconds)
        except TransactionRefused as refused:
            assert branch is None and refused.condition.name == "NOT_FOUND"
        else:
            assert branch is not None
            branch.left_ms = seconds * 1_000 or None

    @rule(session=sessions)
    def session_closes(self, session) -> None:
        self.broker.coordinator.session_closed(session)
        self.broker.coordinator.select(session)
        self.model.close(session)

    @precondition(lambda self: self.labels > 0)
    @rule()
    def crash(self) -> None:
        self.broker = self.broker.crash()
        self.model.restart()
        self.select()

    @invariant()
    def branches_are_those_of_the_model(self) -> None:
        found = {view.xid: (view.state, view.sessions_active, view.sessions_suspended) for view in self.broker.coordinator.list()}
        assert found == {
            xid: (
                STATES[branch.state],
                list(branch.sessions.values()).count("active"),
                list(branch.sessions.values()).count("suspended"),
            )
            for xid, branch in self.model.branches.items()
        }
        waiting = {xid for xid, branch in self.model.branches.items() if branch.state in ("prepared", "hc", "hr")}
        assert set(self.broker.coordinator.recover()) == waiting

    @invariant()
    def queues_are_those_of_the_model(self) -> None:
        for queue_id, labels in self.model.queues.items():
            assert self.broker.labels(queue_id) == [label for label in labels if label not in self.model.held]
            assert self.broker.stored(queue_id) == labels


Transactions.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestTransactions = Transactions.TestCase
