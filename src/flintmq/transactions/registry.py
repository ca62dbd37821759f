"""The branches of a node, and how each session stands to each of them.

in: the coordinator's decisions. out: lookups by xid and by session. Guarded by the coordinator's lock.

R1  A session is in branch.sessions exactly when the branch is in the session's set here.
R2  A session is ACTIVE in at most one branch.
R3  A branch that is removed was there.
R4  What time ends, and what a queue's end touches, is found without a look at all branches: `timed` and `touching` have at least those.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from flintmq.invariant import check
from flintmq.slotted import slotted
from flintmq.transactions.branch import TOMBSTONES, Association, BranchState
from flintmq.transactions.outcome import Outcome
from flintmq.transactions.ports import Enrolment, Session
from flintmq.transactions.xa_status import Condition, TransactionRefused
from flintmq.transactions.xid import Xid


@slotted(frozen=True)
class BranchView:
    """A branch as an operator sees it. `queues`: id -> (messages that would enter, entries that are held); ages in seconds."""

    xid: Xid
    state: BranchState
    durable: bool
    age_s: float
    timeout_s: int
    sessions_active: int
    sessions_suspended: int
    enqueues: int
    dequeues: int
    queues: dict[int, tuple[int, int]]


class Branch:
    """A branch of a distributed transaction. Times are of Clock.monotonic_ns."""

    __slots__ = (
        "claimed",
        "counted",
        "deadline_ns",
        "ending",
        "enrolment",
        "lsn",
        "sessions",
        "since_ns",
        "started_ns",
        "state",
        "timeout_s",
        "touched",
        "xid",
    )

    def __init__(self, xid: Xid, enrolment: Enrolment, state: BranchState, now_ns: int, counted: bool = True) -> None:
        self.xid = xid
        self.counted = counted  # against dtx_branches_max
        self.enrolment = enrolment
        self.state = state
        self.started_ns = now_ns
        self.since_ns = now_ns  # when it became a tombstone
        self.sessions: dict[Session, Association] = {}
        self.claimed = False  # a decision about several branches commits it
        self.lsn = 0  # of its last record: replies that tell of the state wait for it
        self.timeout_s = 0
        self.deadline_ns: int | None = None
        self.ending: Outcome | None = None  # of the command that ends it
        self.touched: set[int] = set()  # ids of queues, see Registry.touch

    def has_active_session(self) -> bool:
        """True while a session works in it."""
        return Association.ACTIVE in self.sessions.values()

    def late(self, now_ns: int) -> bool:
        """True when its time is over and it was not prepared."""
        return self.state is BranchState.ACTIVE and self.deadline_ns is not None and now_ns >= self.deadline_ns

    def view(self, now_ns: int, durable_lsn: int) -> BranchView:
        """A snapshot. A branch that was committed or rolled back is not shown any more."""
        active = sum(association is Association.ACTIVE for association in self.sessions.values())
        return BranchView(
            xid=self.xid,
            state=self.state,
            durable=self.lsn <= durable_lsn,
            age_s=(now_ns - self.started_ns) / 1e9,
            timeout_s=self.timeout_s,
            sessions_active=active,
            sessions_suspended=len(self.sessions) - active,
            enqueues=self.enrolment.enqueue_count,
            dequeues=self.enrolment.dequeue_count,
            queues=self.enrolment.queue_counts(),
        )


class Registry:
    """Branches by xid, in the order they were started; sessions that selected distributed transactions."""

    def __init__(self) -> None:
        self._branches: dict[Xid, Branch] = {}
        self._sessions: dict[Session, dict[Xid, Branch]] = {}
        self.counted = 0
        self._timed: dict[Xid, Branch] = {}
        self._touching: dict[int, dict[Xid, Branch]] = {}

    def __len__(self) -> int:
        return len(self._branches)

    def __iter__(self) -> Iterator[Branch]:
        return iter(self._branches.values())

    def get(self, xid: Xid) -> Branch | None:
        """The branch, None when it is unknown."""
        return self._branches.get(xid)

    def add(self, branch: Branch) -> None:
        """Raises: ValueError when the xid is known."""
        if branch.xid in self._branches:
            raise ValueError(f"transaction {branch.xid} is known")
        self._branches[branch.xid] = branch
        self.counted += branch.counted

    def remove(self, branch: Branch) -> None:
        """The branch has ended."""
        check(self._branches.get(branch.xid) is branch, "registry R3 a branch that goes was known", branch.xid)
        self.dissociate_all(branch)
        del self._branches[branch.xid]
        self.counted -= branch.counted
        self._timed.pop(branch.xid, None)
        for queue_id in branch.touched:
            touching = self._touching[queue_id]
            del touching[branch.xid]
            if not touching:
                del self._touching[queue_id]

    def touch(self, branch: Branch, queue_ids: Iterable[int]) -> None:
        """The branch has work on these queues, or is about to."""
        for queue_id in queue_ids:
            branch.touched.add(queue_id)
            self._touching.setdefault(queue_id, {})[branch.xid] = branch

    def touching(self, queue_id: int) -> list[Branch]:
        """Branches with work on a queue, and perhaps some that have none."""
        return list(self._touching.get(queue_id, {}).values())

    def time(self, branch: Branch, ends: bool) -> None:
        """Whether time ends the branch as it is now: an unprepared one with a timeout, a tombstone."""
        if ends:
            self._timed[branch.xid] = branch
        else:
            self._timed.pop(branch.xid, None)

    def late(self, now_ns: int) -> list[Branch]:
        """Unprepared branches whose time is over."""
        return [branch for branch in self._timed.values() if branch.late(now_ns)]

    def drop_tombstones(self, until_ns: int) -> None:
        """Forgets rolled back branches that no session is associated with, entered at or before `until_ns`."""
        for branch in list(self._timed.values()):
            if branch.state in TOMBSTONES and not branch.sessions and branch.since_ns <= until_ns:
                self.remove(branch)

    # --- sessions -------------------------------------------------------------------------------------------------------

    def select(self, session: Session) -> None:
        """The session may start branches."""
        self._sessions.setdefault(session, {})

    def selected(self, session: Session) -> bool:
        """True after `select`."""
        return session in self._sessions

    def branches_of(self, session: Session) -> list[Branch]:
        """Branches the session is associated with, suspended ones included."""
        return list(self._sessions.get(session, {}).values())

    def active_branch(self, session: Session) -> Branch | None:
        """The branch the session works in."""
        for branch in self._sessions.get(session, {}).values():
            if branch.sessions[session] is Association.ACTIVE:
                return branch
        return None

    def associate(self, session: Session, branch: Branch) -> None:
        """The session works in the branch. Raises: TransactionRefused when it works in another one."""
        active = self.active_branch(session)
        if active is not None and active is not branch:
            raise TransactionRefused(Condition.ILLEGAL_STATE, f"the session is active in transaction {active.xid}")
        branch.sessions[session] = Association.ACTIVE
        self._sessions[session][branch.xid] = branch

    def suspend(self, session: Session, branch: Branch) -> None:
        """The session pauses its work in the branch."""
        branch.sessions[session] = Association.SUSPENDED

    def dissociate(self, session: Session, branch: Branch) -> None:
        """The session has no more to do with the branch. Not associated is no error."""
        if branch.sessions.pop(session, None) is not None:
            check(self._sessions[session].get(branch.xid) is branch, "registry R1 a session knows its branches", branch.xid)
            del self._sessions[session][branch.xid]

    def dissociate_all(self, branch: Branch) -> None:
        """No session has."""
        for session in list(branch.sessions):
            self.dissociate(session, branch)

    def remove_session(self, session: Session) -> None:
        """The session is gone."""
        for branch in self.branches_of(session):
            self.dissociate(session, branch)
        self._sessions.pop(session, None)
