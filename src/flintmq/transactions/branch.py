"""States of a distributed transaction branch, and every transition as a table.

in: a state and an event. out: a Step: the next state and the answer. No I/O, no clock, no lock: the coordinator acts on it.

S1  Every (event, state) pair has exactly one row: nothing is decided elsewhere.
S2  Work exists in ACTIVE and PREPARED only. ROLLBACK_ONLY and TIMED_OUT are tombstones: the work was undone when they were entered.
S3  PREPARED is left by the transaction manager or an operator only: never by time, a session's end or a deleted queue.
S4  COMMITTING, ROLLING_BACK and FORGOTTEN wait for the disk. The same command again gets the same answer (a manager that lost its
    connection asks twice); any other one is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from flintmq.slotted import slotted
from flintmq.transactions.xa_status import Condition, XaStatus


class Association(Enum):
    """How a session stands to a branch it started, joined or resumed."""

    ACTIVE = "active"
    SUSPENDED = "suspended"


class BranchState(Enum):
    """Life of a branch."""

    ACTIVE = "active"
    PREPARED = "prepared"
    ROLLBACK_ONLY = "rollback only"
    TIMED_OUT = "timed out"
    HEURISTIC_COMMIT = "heuristically committed"
    HEURISTIC_ROLLBACK = "heuristically rolled back"
    COMMITTING = "committing"
    ROLLING_BACK = "rolling back"
    FORGOTTEN = "forgotten"


class Event(Enum):
    """Events of a branch: the commands of class dtx, work, and events from elsewhere."""

    START = "start"
    JOIN = "join"
    RESUME = "resume"
    END = "end"
    END_FAIL = "end with fail"
    SUSPEND = "suspend"
    WORK = "work"
    PREPARE = "prepare"
    COMMIT_ONE_PHASE = "commit in one phase"
    COMMIT = "commit"
    ROLLBACK = "rollback"
    FORGET = "forget"
    TIMEOUT = "timeout"
    SESSION_CLOSED = "session closed"
    QUEUE_DELETED = "queue deleted"
    HEURISTIC_COMMIT = "heuristic commit"
    HEURISTIC_ROLLBACK = "heuristic rollback"


@slotted(frozen=True)
class Step:
    """One row. `next`: None = the state stays. `refusal`: nothing happens, the command is refused. `shared`: the answer is that of
    the command under way."""

    next: BranchState | None = None
    status: XaStatus = XaStatus.XA_OK
    refusal: Condition | None = None
    shared: bool = False


_S = BranchState
_OK = Step()
_ILLEGAL = Step(refusal=Condition.ILLEGAL_STATE)
_KNOWN = Step(refusal=Condition.NOT_ALLOWED)
_SHARED = Step(shared=True)
_SAYS_ROLLED_BACK = Step(status=XaStatus.XA_RBROLLBACK)
_SAYS_TIMED_OUT = Step(status=XaStatus.XA_RBTIMEOUT)
_SAYS_HEURISTIC = {
    _S.HEURISTIC_COMMIT: Step(status=XaStatus.XA_HEURCOM),
    _S.HEURISTIC_ROLLBACK: Step(status=XaStatus.XA_HEURRB),
}
_ENDS_ROLLED_BACK = Step(_S.ROLLING_BACK, XaStatus.XA_RBROLLBACK)
_ENDS_TIMED_OUT = Step(_S.ROLLING_BACK, XaStatus.XA_RBTIMEOUT)
_COMMITS = Step(_S.COMMITTING)
_ROLLS_BACK = Step(_S.ROLLING_BACK)
_FORGETS = Step(_S.FORGOTTEN)

# Where a session's association starts or ends: a tombstone says how the work ended.
_ASSOCIATES = {_S.ACTIVE: _OK, _S.ROLLBACK_ONLY: _SAYS_ROLLED_BACK, _S.TIMED_OUT: _SAYS_TIMED_OUT}
# Where the transaction manager asks for an outcome: a tombstone is reported and gone.
_DECIDES = {_S.ROLLBACK_ONLY: _ENDS_ROLLED_BACK, _S.TIMED_OUT: _ENDS_TIMED_OUT}
_FAILS = {_S.ACTIVE: Step(_S.ROLLBACK_ONLY)}

# Event -> (rows, the effect in all other states).
_RULES: Mapping[Event, tuple[Mapping[BranchState, Step], Step]] = {
    Event.START: ({}, _KNOWN),
    Event.JOIN: (_ASSOCIATES, _ILLEGAL),
    Event.RESUME: (_ASSOCIATES, _ILLEGAL),
    Event.END: (_ASSOCIATES, _ILLEGAL),
    Event.END_FAIL: ({**_ASSOCIATES, _S.ACTIVE: Step(_S.ROLLBACK_ONLY, XaStatus.XA_RBROLLBACK)}, _ILLEGAL),
    Event.SUSPEND: (_ASSOCIATES, _ILLEGAL),
    Event.WORK: ({_S.ACTIVE: _OK}, _ILLEGAL),
    Event.PREPARE: ({**_DECIDES, _S.ACTIVE: Step(_S.PREPARED)}, _ILLEGAL),
    Event.COMMIT_ONE_PHASE: ({**_DECIDES, **_SAYS_HEURISTIC, _S.ACTIVE: _COMMITS, _S.COMMITTING: _SHARED}, _ILLEGAL),
    Event.COMMIT: ({**_DECIDES, **_SAYS_HEURISTIC, _S.PREPARED: _COMMITS, _S.COMMITTING: _SHARED}, _ILLEGAL),
    Event.ROLLBACK: (
        {
            **_SAYS_HEURISTIC,
            _S.ACTIVE: _ROLLS_BACK,
            _S.PREPARED: _ROLLS_BACK,
            _S.ROLLBACK_ONLY: _ROLLS_BACK,  # the outcome is the one that was asked for
            _S.TIMED_OUT: _ENDS_TIMED_OUT,
            _S.ROLLING_BACK: _SHARED,
        },
        _ILLEGAL,
    ),
    Event.FORGET: ({_S.HEURISTIC_COMMIT: _FORGETS, _S.HEURISTIC_ROLLBACK: _FORGETS, _S.FORGOTTEN: _SHARED}, _ILLEGAL),
    Event.TIMEOUT: ({_S.ACTIVE: Step(_S.TIMED_OUT)}, _OK),
    Event.SESSION_CLOSED: (_FAILS, _OK),
    Event.QUEUE_DELETED: (_FAILS, _OK),
    Event.HEURISTIC_COMMIT: ({_S.PREPARED: Step(_S.HEURISTIC_COMMIT)}, _ILLEGAL),
    # Nothing was promised for an active branch: an operator may end it, and that is no heuristic outcome.
    Event.HEURISTIC_ROLLBACK: ({_S.PREPARED: Step(_S.HEURISTIC_ROLLBACK), _S.ACTIVE: Step(_S.ROLLBACK_ONLY)}, _ILLEGAL),
}

TRANSITIONS: Mapping[tuple[Event, BranchState], Step] = {
    (event, state): rows.get(state, other) for event, (rows, other) in _RULES.items() for state in BranchState
}

# States of a branch that only waits to be asked about (S2).
TOMBSTONES = frozenset({_S.ROLLBACK_ONLY, _S.TIMED_OUT})
HEURISTIC = frozenset(_SAYS_HEURISTIC)
# States that wait for the disk to end the branch (S4).
ENDING = frozenset({_S.COMMITTING, _S.ROLLING_BACK, _S.FORGOTTEN})
