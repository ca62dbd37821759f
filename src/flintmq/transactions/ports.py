"""Ports of transactions: the store's (enrolments, their outcomes, durability), and the one through which an enrolment reaches the queues.

in: calls of the coordinator. out: Protocols and the plain values that cross them. The store is store/log_store.py, its enrolments are
store/enrolment.py; twins: tests/transactions/twin_store.py.

E1  An entry that a transaction dequeues stays in its queue, ACQUIRED by the broker for the transaction, until it is settled or released.
E2  Positions of enqueued entries are reserved when the transaction commits, under the coordinator's lock, so that two commits
    have one order on all queues and in the log. They are published later, when the commit is durable: a queue treats an entry
    that appears behind a consumer's pointer like a released one.
E3  The calls that follow an outcome come from the thread that made the log durable, or the store's own; they must not fail, and do
    nothing for a queue that is gone.
E4  No method calls the coordinator while it holds a lock that another of these methods takes.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from flintmq.transactions.bulk import HeldRun

# Whoever issues commands: a protocol session, a Flight call, a Python object. Compared by equality.
Session = Hashable


class BranchQueues(Protocol):
    """The broker's queues as enrolments of branches see them; the coordinator only hands them on."""

    def core(self, queue_id: int) -> Any:
        """The QueueHandle; None: there is no such queue. From now on it counts as one that has records in the log."""
        ...

    def keep_limit(self, core: Any) -> None:
        """Some messages that a transaction puts there are visible: the queue's limit is kept."""
        ...


class HeuristicOutcome(NamedTuple):
    """An operator's decision that the transaction manager has not been told to forget. `committed` False: rolled back."""

    tx: int
    xid: bytes
    committed: bool


class Stage(Protocol):
    """Messages that one transaction enqueues (store/tx_stage.py)."""

    @property
    def enqueues(self) -> int: ...

    def add(self, plan: object, block: bytes, offset: int, now_ms: int) -> int:
        """Stages a piece of a checked block from byte `offset` on. Returns where to go on. Raises: StoreError."""
        ...


class Enrolment(Protocol):
    """The effects of one branch on queues: add, prepare, commit or rollback, apply or undo. LSNs are those of TransactionStore.

    An enrolment takes each entry once; queues change only in `apply` (the commit is durable) or `undo` (the rollback is).
    """

    tx: int  # its id in the log; 0 while nothing is logged

    @property
    def enqueue_count(self) -> int:
        """Messages that wait to enter queues."""
        ...

    @property
    def dequeue_count(self) -> int:
        """Entries that are held."""
        ...

    @property
    def takes_time(self) -> bool:
        """Its effects are many: not for the thread that made the outcome durable."""
        ...

    def queue_counts(self) -> dict[int, tuple[int, int]]:
        """Queue id -> (enqueues, dequeues)."""
        ...

    def touches(self, queue_id: int) -> bool:
        """True if it holds or enqueues something there."""
        ...

    def hold_piece(
        self, queue_id: int, cursor: int, messages_max: int, bytes_max: int, consumer: str, upto: int, alone: bool
    ) -> tuple[int, int, bool, int]:
        """A piece of TransactionCoordinator.hold_run: how many, bytes, whether there may be more, where to go on.

        Raises: EnrolmentRefused."""
        ...

    def runs(self) -> list[HeldRun]:
        """The runs that it holds, one per queue."""
        ...

    def run_count(self, queue_id: int) -> int:
        """Entries that it holds of the queue."""
        ...

    def last_position(self, queue_id: int, number: int) -> int:
        """Of an entry that it holds of the queue, by its number; negative: from the end."""
        ...

    def plan_block(
        self, routes: Sequence[tuple[bytes, bytes]], destinations: Sequence[Sequence[int]], counts: Sequence[int]
    ) -> tuple[Stage, object]:
        """Checks whether a block may enter. Args: counts: messages per route. Raises: EnrolmentRefused, ValueError."""
        ...

    def drop_queue(self, queue_id: int) -> None:
        """The queue was deleted: its enrolments have no place any more."""
        ...

    def prepare(self) -> int:
        """Phase one: from its LSN on the transaction survives a crash, in doubt, and its outcome cannot fail for space.

        Raises: StoreError without room for the outcome (then still open).
        """
        ...

    def commit(self) -> int:
        """Gives every new entry its position and writes the decision. Returns the LSN that `apply` waits for, 0 if nothing is logged.

        Never fails for space once prepared.
        """
        ...

    def rollback(self) -> int:
        """Writes that nothing happened. Returns the LSN that `undo` waits for, 0 if nothing is logged."""
        ...

    def apply(self) -> object:
        """The commit is durable: it happens in the queues."""
        ...

    def undo(self) -> object:
        """The rollback is durable: held entries go back to their places, flagged redelivered."""
        ...


class BulkStore(Protocol):
    """Sets and stages in the log."""

    def in_background(self, work: Callable[[], object]) -> None:
        """Runs it where it may take its time: not on the log's writer."""
        ...

    def let_write(self, most: int = 0) -> None:
        """Waits until little (or `most` bytes) of the appended records is not written yet."""
        ...

    def check(self, block: bytes, routes: int) -> tuple[int, int, list[int]]:
        """(messages, bytes of bodies, messages per route). Raises: ValueError: the block is malformed."""
        ...

    def look(self, handle: Any, positions: array[int], appended: int) -> HeldRun:
        """Those entries of the queue that are there, as Enrolment.runs shows them, without holding them.

        Args: handle: of the queue; positions: array("Q"); appended: tail of the message log when they were found there.
        """
        ...


@runtime_checkable
class TransactionStore(Protocol):
    """The transaction log. Threading: every method may be called from any thread; calls of one thread take effect in order. None waits
    for the disk: a method returns the LSN that makes it durable, and `on_durable` tells when that is reached."""

    @property
    def bulk(self) -> BulkStore: ...

    @property
    def durable_lsn(self) -> int:
        """Everything at or below this LSN survives a crash. Never goes back."""
        ...

    def on_durable(self, lsn: int, callback: Callable[[], object]) -> None:
        """Calls `callback` once, when `durable_lsn` >= lsn: at once when it already is, else from the log's writer thread.

        Callbacks run in LSN order, those of one LSN in the order they were given. After a failed sync none runs any more.
        """
        ...

    def branch(self, xid: bytes, queues: BranchQueues, enrolments_max: int) -> Enrolment:
        """An empty enrolment under a global id of at most 512 bytes, which is not in use."""
        ...

    def recovered_branch(self, xid: bytes, queues: BranchQueues, enrolments_max: int) -> Enrolment:
        """After a restart: the prepared one with this xid, and the entries that it holds of queues that are there. Raises: KeyError."""
        ...

    def in_doubt(self) -> Sequence[bytes]:
        """xids of prepared transactions that wait for their outcome, oldest first."""
        ...

    def note_heuristic(self, tx: int, committed: bool) -> int:
        """An operator decided a prepared transaction: the next record is its commit or rollback. Returns the LSN.

        The transaction's id and xid are kept, over restarts, until `forget_heuristic`. A crash between the two records leaves the
        transaction in doubt *and* noted; the coordinator then completes the noted decision.
        """
        ...

    def heuristics(self) -> Sequence[HeuristicOutcome]:
        """All that were noted and not forgotten, oldest first."""
        ...

    def note(self, kind: int, key: bytes, value: bytes) -> int:
        """A small durable fact; the last one of a (kind, key) counts, an empty value removes it. Returns the LSN."""
        ...

    def notes(self, kind: int) -> dict[bytes, bytes]:
        """key -> value of all notes of a kind."""
        ...

    def forget_heuristic(self, tx: int) -> int:
        """Removes the note. Returns the LSN. Raises: KeyError."""
        ...
