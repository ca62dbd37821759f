"""Distributed transactions as a service of the broker: the commands of AMQP 0-10 class dtx, for every front end.

in: commands of sessions (any protocol, Flight, Python), time, an operator's decisions. out: records of the store, effects on queues,
statuses and refusals.

I1  A reply never reveals a state that is not durable: whatever tells of prepare, commit, rollback or a heuristic outcome waits.
I2  A prepared branch ends by its manager's or an operator's word only; it comes back after a restart, and never times out.
I3  Time, a session's end and a deleted queue change a branch under the same lock as commands do: a commit is either before or after.
I4  Commits have one order: on every queue they touch, and in the log.
I5  A branch that waits for its end is not ended again.
The table in branch.py says which command has which effect in which state.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from flintmq.clock import Clock
from flintmq.config import Limits
from flintmq.errors import EnrolmentRefused, InvariantError, StoreError
from flintmq.guard import guarded
from flintmq.invariant import check
from flintmq.transactions.branch import ENDING, HEURISTIC, TOMBSTONES, TRANSITIONS, Association, BranchState, Event, Step
from flintmq.transactions.bulk import BlockFacts, HeldRun, RunFacts
from flintmq.transactions.outcome import Outcome
from flintmq.transactions.ports import BranchQueues, Session, TransactionStore
from flintmq.transactions.registry import Branch, BranchView, Registry
from flintmq.transactions.serial import Serial
from flintmq.transactions.xa_status import Condition, TransactionRefused, XaStatus
from flintmq.transactions.xid import Xid

_log = logging.getLogger(__name__)
_S = BranchState
_NS = 1_000_000_000
# pause between two pieces of a long command, so that other threads that wait for the lock get it
YIELD_S = 0.00005
# branches that a decision commits in one piece: about a millisecond under the lock
SLICE = 32


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """A command is refused when an enrolment can't take its part."""
    try:
        yield
    except EnrolmentRefused as error:
        raise TransactionRefused(Condition.NOT_FOUND if error.missing else Condition.RESOURCE_LIMIT_EXCEEDED, str(error)) from None


class TransactionCoordinator:
    """See the module. Threading: any thread; no call waits for the disk.

    Commands raise TransactionRefused and then changed nothing; they raise StoreError when the log has failed.
    """

    def __init__(self, store: TransactionStore, queues: BranchQueues, clock: Clock, limits: Limits) -> None:
        self._store = store
        self._queues = queues
        self._clock = clock
        self._limits = limits
        self._serial = Serial(store)
        self._registry = Registry()

    # --- association ----------------------------------------------------------------------------------------------------

    def select(self, session: Session) -> None:
        """The session will use distributed transactions (dtx.select). Again is no error."""
        with self._serial:
            self._registry.select(session)

    def start(self, session: Session, xid: Xid, *, join: bool = False, resume: bool = False, counted: bool = True) -> XaStatus:
        """Associates the session with a branch: a new one, one that others work in (`join`), or one it suspended (`resume`).

        Args: counted: False: a new branch takes no place of `dtx_branches_max`, because its maker has bounds of its own.
        Returns: XA_OK; XA_RBROLLBACK or XA_RBTIMEOUT (no association is made): the branch joined or resumed is rolled back.
        Refused: COMMAND_INVALID join and resume together, or no select; NOT_ALLOWED unknown with join or resume, known without;
        ILLEGAL_STATE the session is active in a branch, or did not suspend this one, or it takes no more work;
        RESOURCE_LIMIT_EXCEEDED too many branches.
        """
        with self._serial:
            if not self._registry.selected(session):
                raise TransactionRefused(Condition.COMMAND_INVALID, "start: the session has not selected distributed transactions")
            if join and resume:
                raise TransactionRefused(Condition.COMMAND_INVALID, "start: join and resume exclude each other")
            branch = self._find(xid)
            if branch is None and (join or resume):
                raise TransactionRefused(Condition.NOT_ALLOWED, f"start: unknown transaction {xid}")
            if branch is not None and not join and not resume:
                self._step(branch, Event.START)
            active = self._registry.active_branch(session)
            if active is not None:
                raise TransactionRefused(Condition.ILLEGAL_STATE, f"start: the session is active in transaction {active.xid}")
            if branch is None:
                branch = self._new_branch(xid, counted)
                self._registry.associate(session, branch)
                return XaStatus.XA_OK
            if (branch.sessions.get(session) is Association.SUSPENDED) != resume:
                text = "has not suspended" if resume else "has suspended, and must resume,"
                raise TransactionRefused(Condition.ILLEGAL_STATE, f"start: the session {text} transaction {xid}")
            step = self._step(branch, Event.JOIN if join else Event.RESUME)
            if step.status is XaStatus.XA_OK:
                self._registry.associate(session, branch)
            else:
                self._registry.dissociate(session, branch)
            return step.status

    def end(self, session: Session, xid: Xid, *, fail: bool = False, suspend: bool = False) -> XaStatus:
        """Ends the session's association, or suspends it; with `fail` the branch can only be rolled back from now on.

        Returns: XA_OK; XA_RBROLLBACK (also for `fail`) or XA_RBTIMEOUT: the branch is rolled back, the association has ended.
        Refused: COMMAND_INVALID suspend and fail together; ILLEGAL_STATE no select, unknown, or not associated.
        """
        with self._serial:
            if suspend and fail:
                raise TransactionRefused(Condition.COMMAND_INVALID, "end: suspend and fail exclude each other")
            branch = self._find(xid)
            association = None if branch is None else branch.sessions.get(session)
            if branch is None or association is None:
                raise TransactionRefused(Condition.ILLEGAL_STATE, f"end: the session is not associated with transaction {xid}")
            if suspend and association is Association.SUSPENDED and branch.state is _S.ACTIVE:
                raise TransactionRefused(Condition.ILLEGAL_STATE, f"end: the session has suspended transaction {xid} already")
            step = self._step(branch, Event.SUSPEND if suspend else Event.END_FAIL if fail else Event.END)
            if step.next is not None:
                self._undo(branch, step.next)
            if suspend and step.status is XaStatus.XA_OK:
                self._registry.suspend(session, branch)
            else:
                self._registry.dissociate(session, branch)
            return step.status

    def session_closed(self, session: Session) -> None:
        """The session is gone: active branches it is associated with, suspended ones included, are rolled back. Unknown is no error."""
        with self._serial:
            for branch in self._registry.branches_of(session):
                guarded("transactions of a session that ended", branch.xid, self._happens, branch, Event.SESSION_CLOSED)
            self._registry.remove_session(session)

    # --- work -----------------------------------------------------------------------------------------------------------

    def hold_run(
        self, session: Session, xid: Xid, queue_id: int, *, messages_max: int, bytes_max: int, consumer: str = "", upto: int = 0
    ) -> RunFacts:
        """Enrols the removal of available entries from the head of a queue on, in its order. Nobody else gets them until the outcome.

        Args: bytes_max: of bodies; a message that is larger alone is taken all the same when nothing is held yet by this call; consumer:
        the id that the log names as their consumer; upto: the last position that may be taken, 0 = any.
        Returns: the entries that were taken, perhaps none; fewer than there are also where consumers have left very many gaps
        (BulkStore.rows_max).
        Refused: NOT_FOUND (the branch, the queue); ILLEGAL_STATE the session is not active in it, or it takes no more work;
        RESOURCE_LIMIT_EXCEEDED. Takes the lock for a millisecond at a time: others get in between.
        """
        count = size = cursor = start = 0
        goes_on = True
        while goes_on:
            with self._serial:
                branch = self._working(session, xid)
                enrolment = branch.enrolment
                self._registry.touch(branch, (queue_id,))
                if not cursor:
                    start = enrolment.run_count(queue_id)
                room = bytes_max - size
                with _refusals():
                    got, got_bytes, goes_on, cursor = enrolment.hold_piece(
                        queue_id, cursor, messages_max - count, max(room, 0), consumer, upto, count == 0
                    )
                count, size = count + got, size + got_bytes
                if not goes_on:
                    first = enrolment.last_position(queue_id, start) if count else 0
                    return RunFacts(count, size, first, enrolment.last_position(queue_id, -1) if count else 0)
            time.sleep(YIELD_S)
        raise InvariantError("a run has an end")

    def runs(self, xid: Xid) -> Sequence[HeldRun]:
        """The runs that `hold_run` took, one per queue, also after a restart. Refused: NOT_FOUND."""
        with self._serial:
            return self._known(xid, "runs").enrolment.runs()

    def enqueue_block(
        self, session: Session, xid: Xid, block: bytes, routes: Sequence[tuple[bytes, bytes]], destinations: Sequence[Sequence[int]]
    ) -> BlockFacts:
        """Enrols the messages of a block (transactions/bulk.py). They appear in their queues when the branch has committed durably, behind
        everything that is there then. They are logged whatever they and their queues are.

        Args: routes: exchange and routing key by the entries' route index; destinations: ids of queues, by the same index.
        Waits while much is not written yet; takes the lock for a millisecond at a time. Their contents are not kept in memory.
        Refused: as `hold_run`.
        Raises: ValueError a malformed block, or one for other routes: nothing was enrolled. StoreError: the branch can only be rolled back.
        """
        bulk = self._store.bulk
        if len(routes) != len(destinations) or any(len(part) > 255 for route in routes for part in route):
            raise ValueError(f"{len(routes)} routes of at most 255 bytes each need as many destinations, not {len(destinations)}")
        messages, size, counts = bulk.check(block, len(routes))
        with self._serial:
            branch = self._working(session, xid)
            enrolment = branch.enrolment
            self._registry.touch(branch, {queue_id for ids in destinations for queue_id in ids})
            with _refusals():
                stage, plan = enrolment.plan_block(routes, destinations, counts)
            before, now_ms = stage.enqueues, self._clock.wall_ms()
        offset = 0
        while offset < len(block):
            bulk.let_write(self._limits.staged_unwritten_bytes)
            with self._serial:
                if self._working(session, xid).enrolment is not enrolment:
                    raise TransactionRefused(Condition.ILLEGAL_STATE, f"transaction {xid} was rolled back meanwhile")
                offset = stage.add(plan, block, offset, now_ms)
            time.sleep(YIELD_S)
        unroutable = sum(count for one, count in zip(destinations, counts, strict=True) if not one)
        return BlockFacts(messages, stage.enqueues - before, size, unroutable)

    # --- outcome --------------------------------------------------------------------------------------------------------

    def prepare(self, xid: Xid) -> Outcome:
        """Phase one: from XA_OK on the branch survives a crash, does not time out, and can be committed or rolled back for sure.

        Status: XA_OK; XA_RBROLLBACK (rollback-only, or no room in the log) and XA_RBTIMEOUT: it was rolled back and is forgotten.
        Refused: NOT_FOUND; ILLEGAL_STATE a session is active in it, or it is prepared or decided.
        """
        return self._decide(xid, Event.PREPARE)

    def commit(self, xid: Xid, *, one_phase: bool = False) -> Outcome:
        """Makes it happen: with `one_phase` a branch that was not prepared, without it one that was.

        Status: XA_OK; XA_RBROLLBACK and XA_RBTIMEOUT as in `prepare`; XA_HEURCOM and XA_HEURRB: an operator decided, see `forget`.
        Refused: NOT_FOUND; ILLEGAL_STATE a session is active in it, or it is in the other phase, or is being rolled back.
        """
        return self._decide(xid, Event.COMMIT_ONE_PHASE if one_phase else Event.COMMIT)

    def rollback(self, xid: Xid) -> Outcome:
        """Undoes it. Status: XA_OK; XA_RBTIMEOUT: time had done so before; XA_HEURCOM, XA_HEURRB. Refused: as `commit`."""
        return self._decide(xid, Event.ROLLBACK)

    def forget(self, xid: Xid) -> Outcome:
        """The manager knows of the heuristic outcome. Refused: NOT_FOUND; ILLEGAL_STATE there is none."""
        return self._decide(xid, Event.FORGET)

    def decide(self, note: tuple[int, bytes, bytes], commits: Sequence[Xid] = (), rollbacks: Sequence[Xid] = ()) -> Outcome:
        """Several branches with one decision: a durable note (kind, key, value; see Store.note), then the outcomes.

        Whoever finds the note after a crash decides the branches that are still prepared as it says: so it is the atomic decision. Nobody
        else decides one of `commits` meanwhile, and other commits may come between two of them.
        Args: commits: prepared branches, or ones that an operator has committed (which are forgotten); rollbacks: branches in any state;
        one that is unknown or ends already is left out.
        Status: XA_OK when note and outcomes are durable and done in the queues. Refused: NOT_FOUND, ILLEGAL_STATE: one of `commits` can't
        be committed, or a session is active in one of them; no note was written then and nothing has changed.
        """
        committing = self._claim(list(dict.fromkeys(commits)))
        outcome, waiting = Outcome(), [1]  # the note
        lock = threading.Lock()

        def done(_: XaStatus = XaStatus.XA_OK) -> None:
            with lock:
                waiting[0] -= 1
                count = waiting[0]
            if not count:
                outcome.resolve(XaStatus.XA_OK)

        with self._serial:
            lsn = self._store.note(*note)
            losing = [branch for xid in dict.fromkeys(rollbacks) if (branch := self._find(xid)) is not None and not branch.claimed]
        for begin in range(0, len(committing), SLICE):
            ends: list[Outcome] = []
            with self._serial:
                for branch in committing[begin : begin + SLICE]:
                    event = Event.FORGET if branch.state is _S.HEURISTIC_COMMIT else Event.COMMIT
                    ends.append(self._decided(branch, event))
            with lock:
                waiting[0] += len(ends)
            for end in ends:
                end.add_callback(done)
            if begin + SLICE < len(committing):
                time.sleep(YIELD_S)
        ends = []
        with self._serial:
            for branch in losing:
                event = Event.FORGET if branch.state is _S.HEURISTIC_ROLLBACK else Event.ROLLBACK
                if branch.state in (_S.HEURISTIC_COMMIT, _S.COMMITTING):
                    _log.warning("transaction %s: %s, and is to be rolled back: left as it is", branch.xid, branch.state.value)
                elif branch.state not in ENDING:
                    ends.append(self._decided(branch, event))
            with lock:
                waiting[0] += len(ends)
            self._serial.later(lsn, done)
        for end in ends:
            end.add_callback(done)
        return outcome

    def recover(self, vhost: str | None = None) -> Sequence[Xid]:
        """Branches that wait for their manager: prepared ones and heuristic outcomes, durably so, oldest first.

        Args: vhost: of the session that asks; None: all (operators).
        """
        with self._serial:
            durable_lsn = self._store.durable_lsn
            waiting = HEURISTIC | {_S.PREPARED}
            xids = [branch.xid for branch in self._registry if branch.state in waiting and branch.lsn <= durable_lsn]
            return [xid for xid in xids if vhost is None or xid.vhost == vhost]

    def get_timeout(self, xid: Xid) -> int:
        """Seconds, 0 = none. Refused: NOT_FOUND."""
        with self._serial:
            return self._known(xid, "get-timeout").timeout_s

    def set_timeout(self, xid: Xid, timeout_s: int) -> None:
        """The time a branch may stay unprepared, counted from now; 0 = for ever. Without effect on a prepared one.

        Refused: NOT_FOUND; COMMAND_INVALID below 0 or above Limits.dtx_timeout_s_max.
        """
        with self._serial:
            branch = self._known(xid, "set-timeout")
            if not 0 <= timeout_s <= self._limits.dtx_timeout_s_max:
                text = f"set-timeout: {timeout_s} s is not within 0 and {self._limits.dtx_timeout_s_max}"
                raise TransactionRefused(Condition.COMMAND_INVALID, text)
            self._set_timeout(branch, timeout_s)

    # --- operators ------------------------------------------------------------------------------------------------------

    def list(self) -> Sequence[BranchView]:
        """All branches, oldest first."""
        with self._serial:
            now_ns, durable_lsn = self._clock.monotonic_ns(), self._store.durable_lsn
            return [branch.view(now_ns, durable_lsn) for branch in self._registry]

    def heuristic_commit(self, xid: Xid) -> Outcome:
        """An operator commits a prepared branch whose manager is lost. Remembered, over restarts, until `forget`.

        Status: XA_HEURCOM. Refused: NOT_FOUND; ILLEGAL_STATE it is not prepared.
        """
        return self._decide(xid, Event.HEURISTIC_COMMIT)

    def heuristic_rollback(self, xid: Xid) -> Outcome:
        """An operator rolls a branch back. Status: XA_HEURRB for a prepared one (remembered until `forget`), XA_RBROLLBACK for an
        active one, which promised nothing. Refused: NOT_FOUND; ILLEGAL_STATE it is decided.
        """
        return self._decide(xid, Event.HEURISTIC_ROLLBACK)

    # --- the node -------------------------------------------------------------------------------------------------------

    def tick(self, now_ns: int | None = None) -> int:
        """Housekeeping: rolls back branches whose time is over, forgets old tombstones. Returns how many timed out.

        Args: now_ns: of Clock.monotonic_ns; None asks the clock.
        """
        with self._serial:
            now_ns = self._clock.monotonic_ns() if now_ns is None else now_ns
            late = self._registry.late(now_ns)
            for branch in late:
                guarded("transactions whose time is over", branch.xid, self._happens, branch, Event.TIMEOUT)
            self._registry.drop_tombstones(now_ns - self._limits.dtx_remember_s * _NS)
            return len(late)

    def queue_deleted(self, queue_id: int, drop: Callable[[], object] | None = None) -> None:
        """The queue is gone, also from the store: active branches with work on it can only be rolled back, prepared ones lose that part.

        Args: drop: takes it out of the store (Store.drop_queue), done here so that no work for it comes in between.
        """
        with self._serial:
            if drop is not None:
                drop()
            for branch in self._registry.touching(queue_id):
                if not branch.enrolment.touches(queue_id):
                    continue
                if branch.state not in ENDING:
                    branch.enrolment.drop_queue(queue_id)
                self._happens(branch, Event.QUEUE_DELETED)

    def restore(self) -> int:
        """After a restart, when the queues are back: prepared branches with the entries that they hold, and heuristic outcomes.

        Returns how many there are. Raises: StoreError when the store names a transaction in a way this cannot have written.
        """
        with self._serial:
            noted = {outcome.tx: outcome for outcome in self._store.heuristics()}
            for encoded in self._store.in_doubt():
                branch = self._restored(encoded, _S.PREPARED, recovered=True)
                outcome = noted.pop(branch.enrolment.tx, None)
                if outcome is not None:  # the crash came between the note and the decision it announced
                    self._heuristic(branch, _S.HEURISTIC_COMMIT if outcome.committed else _S.HEURISTIC_ROLLBACK)
            for outcome in noted.values():
                branch = self._restored(outcome.xid, _S.HEURISTIC_COMMIT if outcome.committed else _S.HEURISTIC_ROLLBACK)
                branch.enrolment.tx = outcome.tx
            return len(self._registry)

    # --- inside: all under the lock ---------------------------------------------------------------------------------------

    def _decide(self, xid: Xid, event: Event) -> Outcome:
        with self._serial:
            branch = self._known(xid, event.value)
            if branch.state not in ENDING:
                self._check_unclaimed(branch, event.value)
            by_operator = event in (Event.HEURISTIC_COMMIT, Event.HEURISTIC_ROLLBACK)
            if not by_operator and branch.has_active_session():
                raise TransactionRefused(Condition.ILLEGAL_STATE, f"{event.value}: a session is active in transaction {xid}")
            step = self._step(branch, event)
            if step.shared:
                if branch.ending is None:
                    raise InvariantError(f"transaction {xid} is {branch.state.value} without an outcome")
                return branch.ending
            if not by_operator:
                self._registry.dissociate_all(branch)
            return self._enter(branch, step)

    def _claim(self, xids: Sequence[Xid]) -> Sequence[Branch]:
        """The branches that `decide` commits, which no other command ends from now on. Raises: TransactionRefused, and none is claimed."""
        claimed: list[Branch] = []
        try:
            for begin in range(0, len(xids), SLICE):
                with self._serial:
                    for xid in xids[begin : begin + SLICE]:
                        branch = self._committable(xid)
                        branch.claimed = True
                        claimed.append(branch)
        except BaseException:
            with self._serial:
                for branch in claimed:
                    branch.claimed = False
            raise
        return claimed

    def _committable(self, xid: Xid) -> Branch:
        """A branch that `decide` may commit. Raises: TransactionRefused."""
        branch = self._known(xid, "decide")
        self._check_unclaimed(branch, "decide")
        if branch.has_active_session():
            raise TransactionRefused(Condition.ILLEGAL_STATE, f"decide: a session is active in transaction {xid}")
        if branch.state not in (_S.PREPARED, _S.HEURISTIC_COMMIT):
            raise TransactionRefused(Condition.ILLEGAL_STATE, f"decide: transaction {xid} is {branch.state.value}")
        return branch

    @staticmethod
    def _check_unclaimed(branch: Branch, command: str) -> None:
        if branch.claimed:
            raise TransactionRefused(Condition.ILLEGAL_STATE, f"{command}: transaction {branch.xid} is being committed with others")

    def _decided(self, branch: Branch, event: Event) -> Outcome:
        self._registry.dissociate_all(branch)
        return self._enter(branch, self._step(branch, event))

    def _enter(self, branch: Branch, step: Step) -> Outcome:
        """Goes where the table says; the outcome is resolved when that is durable."""
        match step.next:
            case _S.PREPARED:
                try:
                    branch.lsn = branch.enrolment.prepare()
                except StoreError:
                    # No room for the outcome: the branch is still open, and rolling back needs none. (A failed log raises again.)
                    return self._end(branch, Step(_S.ROLLING_BACK, XaStatus.XA_RBROLLBACK))
                branch.state = _S.PREPARED
                self._registry.time(branch, False)
            case _S.COMMITTING | _S.ROLLING_BACK | _S.FORGOTTEN:
                return self._end(branch, step)
            case _S.HEURISTIC_COMMIT | _S.HEURISTIC_ROLLBACK:
                self._heuristic(branch, step.next)
                status = XaStatus.XA_HEURCOM if step.next is _S.HEURISTIC_COMMIT else XaStatus.XA_HEURRB
                return self._answer_behind(branch, status)
            case _S.ROLLBACK_ONLY:
                self._undo(branch, _S.ROLLBACK_ONLY)
                return self._answer_behind(branch, XaStatus.XA_RBROLLBACK)
            case None:
                pass
            case _:
                raise InvariantError(f"no command leads to {step.next}")
        return self._answer(branch, step.status)

    def _answer(self, branch: Branch, status: XaStatus) -> Outcome:
        """The branch stays; the answer waits for its last record."""
        outcome = Outcome()
        self._serial.later(branch.lsn, lambda: outcome.resolve(status))
        return outcome

    def _answer_behind(self, branch: Branch, status: XaStatus) -> Outcome:
        """As `_answer`, when the effect that was registered before is done, too."""
        outcome = Outcome()
        self._afterwards(branch, lambda: outcome.resolve(status))
        return outcome

    def _end(self, branch: Branch, step: Step) -> Outcome:
        """The branch goes when its last record is durable and done in the queues."""
        assert step.next is not None
        check(branch.state not in ENDING, "coordinator I5 a branch that ends was not ending", branch.xid, branch.state.value)
        enrolment = branch.enrolment
        effect = None
        if step.next is _S.COMMITTING:
            branch.lsn, effect = max(branch.lsn, enrolment.commit()), enrolment.apply
        elif step.next is _S.FORGOTTEN:
            branch.lsn = max(branch.lsn, self._store.forget_heuristic(enrolment.tx))
        elif branch.state not in TOMBSTONES:  # those were undone before
            branch.lsn, effect = max(branch.lsn, enrolment.rollback()), enrolment.undo
        branch.state = step.next
        outcome = branch.ending = Outcome()

        def durable() -> None:
            if effect is not None:
                effect()
            with self._serial:
                self._registry.remove(branch)
            outcome.resolve(step.status)

        self._afterwards(branch, durable)
        return outcome

    def _afterwards(self, branch: Branch, effect: Callable[[], object]) -> None:
        """Has the effect of the branch's outcome happen when that is durable."""
        if branch.enrolment.takes_time:
            bulk = self._store.bulk
            self._serial.later(branch.lsn, lambda: bulk.in_background(effect))
        else:
            self._serial.later(branch.lsn, effect)

    def _undo(self, branch: Branch, state: BranchState) -> None:
        """An unprepared branch becomes a tombstone: its work is undone now, it remains to tell."""
        check(branch.state is _S.ACTIVE, "coordinator I2 only what is not prepared is undone by itself", branch.xid, branch.state.value)
        branch.lsn = max(branch.lsn, branch.enrolment.rollback())
        branch.state = state
        branch.since_ns = self._clock.monotonic_ns()
        self._registry.time(branch, True)
        self._afterwards(branch, branch.enrolment.undo)

    def _heuristic(self, branch: Branch, state: BranchState) -> None:
        """An operator's decision: note it, then do it. A crash in between is completed by `restore`, so a note is never wrong."""
        check(branch.state is _S.PREPARED, "coordinator I2 an operator decides what is prepared", branch.xid, branch.state.value)
        enrolment, commits = branch.enrolment, state is _S.HEURISTIC_COMMIT
        self._store.note_heuristic(enrolment.tx, commits)
        branch.lsn = enrolment.commit() if commits else enrolment.rollback()
        branch.state = state
        self._afterwards(branch, enrolment.apply if commits else enrolment.undo)
        _log.warning("transaction %s: an operator %s it", branch.xid, "committed" if commits else "rolled back")

    def _happens(self, branch: Branch, event: Event) -> None:
        """Time, a session's end or a deleted queue; the table has no refusal for these."""
        step = TRANSITIONS[event, branch.state]
        if step.next is not None:
            self._undo(branch, step.next)
            _log.info("transaction %s: rolled back (%s)", branch.xid, event.value)

    def _step(self, branch: Branch, event: Event) -> Step:
        step = TRANSITIONS[event, branch.state]
        if step.refusal is not None:
            raise TransactionRefused(step.refusal, f"{event.value}: transaction {branch.xid} is {branch.state.value}")
        return step

    def _find(self, xid: Xid) -> Branch | None:
        branch = self._registry.get(xid)
        # Time may be over before housekeeping comes by: a command must not see the branch alive then.
        if branch is not None and branch.late(self._clock.monotonic_ns()):
            self._happens(branch, Event.TIMEOUT)
        return branch

    def _known(self, xid: Xid, command: str) -> Branch:
        branch = self._find(xid)
        if branch is None:
            raise TransactionRefused(Condition.NOT_FOUND, f"{command}: unknown transaction {xid}")
        return branch

    def _working(self, session: Session, xid: Xid) -> Branch:
        branch = self._known(xid, "work")
        if branch.sessions.get(session) is not Association.ACTIVE:
            raise TransactionRefused(Condition.ILLEGAL_STATE, f"work: the session is not active in transaction {xid}")
        self._step(branch, Event.WORK)
        return branch

    def _new_branch(self, xid: Xid, counted: bool) -> Branch:
        if counted and self._registry.counted >= self._limits.dtx_branches_max:
            # Perhaps no manager has asked for them; one that still asks gets NOT_FOUND, which says the same to a manager.
            self._registry.drop_tombstones(self._clock.monotonic_ns())
        if counted and self._registry.counted >= self._limits.dtx_branches_max:
            text = f"start: there are {self._limits.dtx_branches_max} transactions already"
            raise TransactionRefused(Condition.RESOURCE_LIMIT_EXCEEDED, text)
        branch = self._add(xid, _S.ACTIVE, counted=counted)
        self._set_timeout(branch, self._limits.dtx_timeout_s)
        return branch

    def _restored(self, encoded: bytes, state: BranchState, recovered: bool = False) -> Branch:
        try:
            xid = Xid.decode(encoded)
        except ValueError as error:
            raise StoreError(f"the transaction log has a transaction whose name is {error}") from None
        return self._add(xid, state, recovered)

    def _add(self, xid: Xid, state: BranchState, recovered: bool = False, counted: bool = False) -> Branch:
        enrol = self._store.recovered_branch if recovered else self._store.branch
        enrolment = enrol(xid.encode(), self._queues, self._limits.dtx_enrolments_max)
        branch = Branch(xid, enrolment, state, self._clock.monotonic_ns(), counted)
        self._registry.add(branch)
        if recovered:
            self._registry.touch(branch, enrolment.queue_counts())
        return branch

    def _set_timeout(self, branch: Branch, timeout_s: int) -> None:
        branch.timeout_s = timeout_s
        branch.deadline_ns = self._clock.monotonic_ns() + timeout_s * _NS if timeout_s else None
        if branch.state is _S.ACTIVE:
            self._registry.time(branch, timeout_s > 0)
