"""The two ports of transactions: what they ask of the queues, and what they ask of the store.

in: calls of the coordinator. out: Protocols and the plain values that cross them. Twin of QueueEffects: tests/twins/memory_effects.py.

E1  An entry that a transaction dequeues stays in its queue, ACQUIRED by the broker for the transaction, until it is settled or released.
E2  Positions of enqueued entries are reserved when the transaction commits, under the coordinator's lock, so that two commits
    have one order on all queues and in the log. They are published later, when the commit is durable: a queue treats an entry
    that appears behind a consumer's pointer like a released one.
E3  What follows an outcome comes from the thread that made the log durable, or the store's own; it must not fail, and does nothing for
    a queue that is gone.
E4  No method calls the coordinator while it holds a lock that another of these methods takes.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from flintmq.transactions.bulk import HeldRun

# Whoever issues commands: a protocol session, a Flight call, a Python object. Compared by equality.
Session = Hashable


@runtime_checkable
class QueueEffects(Protocol):
    """Queues as transactions see them."""

    def run(self, queue_id: int) -> Run | None:
        """An empty run of this queue's entries, for one transaction; None: there is no such queue."""
        ...

    def core(self, queue_id: int) -> object | None:
        """The queue as a Stage knows it; None: there is none. It counts as one that has records in the log."""
        ...

    def ttl_ms(self, queue_id: int) -> int:
        """The queue's x-message-ttl in milliseconds, -1: none."""
        ...

    def publish_stage(self, queue_id: int, stage: Stage) -> None:
        """What a stage has for this queue appears at its reserved positions, and consumers are notified."""
        ...


# --- what crosses the port to the store ------------------------------------------------------------------------------------


class RecoveredTransaction(NamedTuple):
    """What an in-doubt transaction dequeues: as single entries (queue id, position), of stores of before; and what it held as runs:
    (rows as (queue id, first position, count), consumer id, when they were acquired in microseconds)."""

    dequeues: Sequence[tuple[int, int]]
    runs: tuple[Sequence[tuple[int, int, int]], int, int] = ((), 0, 0)


class HeuristicOutcome(NamedTuple):
    """An operator's decision that the transaction manager has not been told to forget. `committed` False: rolled back."""

    tx: int
    xid: bytes
    committed: bool


class Run(Protocol):
    """Entries of one queue that a transaction holds, in the order in which it took them (queue/runs.py). bytes: of bodies."""

    @property
    def queue_id(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def range_count(self) -> int: ...

    def hold(
        self, cursor: int, messages_max: int, bytes_max: int, upto: int, alone: bool, ranges_max: int, pieces: int
    ) -> tuple[int, int, bool, int]:
        """Takes available entries from position `cursor` on, some hundreds times `pieces` at most; the first one may be larger than
        bytes_max with `alone`. Returns: how many, bytes, whether there may be more within the limits, where to go on."""
        ...

    def adopt(self, ranges: Sequence[tuple[int, int]], acquired_us: int) -> None:
        """Takes over what a restart put back held."""
        ...

    def position(self, number: int) -> int:
        """Of an entry by its number in the run; negative: from the end."""
        ...

    def release(self) -> None:
        """Its entries are AVAILABLE again, at their places, flagged redelivered."""
        ...

    def settle(self) -> None:
        """Its entries are DEQUEUED; the log knows already."""
        ...


class Stage(Protocol):
    """Messages that one transaction enqueues (store/tx_stage.py)."""

    @property
    def enqueues(self) -> int: ...
    @property
    def rows(self) -> int: ...

    def queue_counts(self) -> dict[int, int]:
        """Queue id -> messages that enter it."""
        ...

    def plan(
        self, routes: Sequence[tuple[bytes, bytes]], destinations: Sequence[Sequence[object]], ttls: Sequence[Sequence[int]]
    ) -> object:
        """Where the messages of a block go. Raises: ValueError."""
        ...

    def add(self, plan: object, block: bytes, at: int, now_ms: int) -> int:
        """Stages a piece of a checked block from byte `at` on. Returns where to go on. Raises: StoreError."""
        ...

    def reserve(self, core: object) -> list[tuple[int, int, int]]:
        """Positions for its messages on this queue, in this order, above all that were ever used in their level: rows of the Commit."""
        ...

    def drop_queue(self, queue_id: int) -> None:
        """The queue was deleted."""
        ...


class Enrolment(Protocol):
    """One transaction in the log (store/enrolment.py). LSNs are those of TransactionStore."""

    @property
    def tx(self) -> int:
        """Its id in the log, above 0."""
        ...

    def acquire(self, runs: Sequence[Run], consumer_id: int) -> None:
        """Logs what the transaction holds; then it is prepared or committed. Raises: StoreError."""
        ...

    def stage(self) -> Stage:
        """Its stage."""
        ...

    def held(self) -> RecoveredTransaction:
        """After a restart: what it dequeues."""
        ...

    def adopt(self, core_of: Callable[[int], object | None]) -> Stage | None:
        """After a restart: what it enqueues, None: nothing. Args: core_of: as QueueEffects.core."""
        ...

    def prepare(self) -> int:
        """Phase one: from its LSN on the transaction survives a crash, in doubt, and its outcome cannot fail for space.

        Raises: ValueError not open; StoreError without room for the outcome (then still open).
        """
        ...

    def commit(self, rows: Sequence[tuple[int, int, int]]) -> int:
        """Ends the transaction: its dequeues take effect, and its enqueues, at the positions of `rows` (Stage.reserve).

        Returns: the LSN. Never fails for space once prepared. Raises: ValueError ended.
        """
        ...

    def rollback(self) -> int:
        """Ends the transaction without effect. Returns the LSN. Raises: ValueError when it has ended."""
        ...

    def finish(self) -> None:
        """The outcome of a transaction with runs or a stage is done everywhere."""
        ...


class BulkStore(Protocol):
    """Sets and stages in the log."""

    @property
    def rows_max(self) -> int: ...
    @property
    def disk_low(self) -> bool: ...

    def in_background(self, work: Callable[[], None]) -> None:
        """Runs it where it may take its time: not on the log's writer."""
        ...

    def let_write(self, most: int = 0) -> None:
        """Waits until little (or `most` bytes) of what was appended is not written yet."""
        ...

    def check(self, block: bytes, routes: int) -> tuple[int, int, list[int]]:
        """(messages, bytes of bodies, messages per route). Raises: ValueError: the block is malformed."""
        ...

    def consumer(self, name: str) -> int:
        """The consumer id that the log names for a name; 0 for none."""
        ...

    def taken(self, run: Run) -> None:
        """The run has grown."""
        ...

    def held(self, run: Run) -> HeldRun:
        """The run as its readers see it."""
        ...

    def look(self, handle: Any, positions: array[int], appended: int) -> HeldRun:
        """Those entries of the queue that are there, as `held` shows them, without holding them.

        Args: handle: of the queue; positions: array("Q"); appended: tail of the message log when they were found there.
        """
        ...

    def dequeue_run(self, run: Run, consumer_id: int) -> None:
        """The commit is durable: the entries are dequeued, in the log and in their queue."""
        ...

    def settle_stage(self, stage: Stage, committed: bool) -> None:
        """The outcome is durable: its messages stand at their positions, or are gone."""
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

    def on_durable(self, lsn: int, callback: Callable[[], None]) -> None:
        """Calls `callback` once, when `durable_lsn` >= lsn: at once when it already is, else from the log's writer thread.

        Callbacks run in LSN order, those of one LSN in the order they were given. After a failed sync none runs any more.
        """
        ...

    def open_branch(self, xid: bytes) -> Enrolment:
        """Begins a transaction under a global id of at most 512 bytes. Raises: ValueError: the xid is in use."""
        ...

    def branch_of(self, xid: bytes) -> Enrolment:
        """The one with this xid, after a restart. Raises: KeyError."""
        ...

    def in_doubt(self) -> Sequence[bytes]:
        """xids of prepared transactions that wait for their outcome, oldest first."""
        ...

    def note_heuristic(self, tx: int, committed: bool) -> int:
        """An operator decided a prepared transaction: the next record is its commit or rollback. Returns the LSN.

        The transaction's id and xid are kept, over restarts, until `forget_heuristic`. A crash between the two records leaves the
        transaction in doubt *and* noted; the coordinator then completes what was noted.
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
