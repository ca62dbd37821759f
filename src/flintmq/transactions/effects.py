"""The two ports of transactions: what they ask of the queues, and what they ask of the store beyond ports.Store.

in: flintmq.ports. out: Protocols and the plain values that cross them. Twin of QueueEffects: tests/twins/memory_effects.py.

E1  An entry that a transaction dequeued stays in its queue, ACQUIRED by the broker for the transaction, until `settle` or `release`.
E2  Positions of enqueued entries are reserved when the transaction commits, under the coordinator's lock, so that two commits
    have one order on all queues and in the log. They are published later, when the commit is durable: a queue treats an entry
    that appears behind a consumer's pointer like a released one.
E3  `settle`, `publish` and `release` come from the thread that made the log durable; they must not fail, and do nothing for a
    queue that is gone.
E4  No method calls the coordinator while it holds a lock that another of these methods takes.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

from flintmq.ports import Store, StoredContent
from flintmq.transactions.bulk import HeldRun

# Whoever issues commands: a protocol session, a Flight call, a Python object. Compared by equality.
Session = Hashable


class MessageRef:
    """A message within one transaction: enrolled in any number of queues, written once.

    `message_id`: persistence id, 0 while it is not in the log. `content`: None when it is not resident (then it is in the log).
    `size`, `body_len`: bytes, of all parts and of the body. `priority`: 0..255, None = not set; that of the first enrolment.
    """

    __slots__ = ("body_len", "content", "message_id", "priority", "size")

    def __init__(self, content: StoredContent | None, message_id: int = 0, *, body_len: int = 0, priority: int | None = None) -> None:
        self.content = content
        self.message_id = message_id
        self.priority = priority
        self.body_len = body_len if content is None else len(content.body)
        self.size = 0 if content is None else len(content)


@dataclass(frozen=True, slots=True)
class PendingEnqueue:
    """A message that enters a queue if the transaction commits. `logged`: the log knows it there, so its removal is logged too."""

    queue_id: int
    message: MessageRef
    priority: int | None  # 0..255, None = not set on the message
    expires_at_ms: int  # wall clock, 0 = never
    logged: bool


@dataclass(frozen=True, slots=True)
class HeldEntry:
    """Facts of an entry that `hold` took. `logged`: the log knows the entry (else it is transient)."""

    logged: bool
    delivery_count: int = 0
    first_delivery_ms: int = 0
    expires_at_ms: int = 0


@runtime_checkable
class QueueEffects(Protocol):
    """Queues as transactions see them."""

    def durable(self, queue_id: int) -> bool | None:
        """Whether the queue survives a restart, so that its messages are logged; None: there is no such queue."""
        ...

    def hold(self, queue_id: int, position: int, session: Session | None) -> HeldEntry | None:
        """Makes the entry the transaction's: it is AVAILABLE, or acquired by a consumer of `session`; None: a restart puts it back.

        Returns: None when there is no such entry, or it belongs to somebody else; then nothing changed.
        """
        ...

    def run(self, queue_id: int) -> Run | None:
        """An empty run of this queue's entries, for one transaction; None: there is no such queue."""
        ...

    def core(self, queue_id: int) -> object | None:
        """The queue as a Stage knows it; None: there is none. It counts as one that has records in the log."""
        ...

    def ttl_ms(self, queue_id: int) -> int:
        """The queue's x-message-ttl in milliseconds, -1: none."""
        ...

    def content(self, queue_id: int, position: int) -> StoredContent:
        """The message of a held transient entry (always resident or in the page log). May read the disk."""
        ...

    def release(self, queue_id: int, positions: Sequence[int]) -> None:
        """Held entries are AVAILABLE again, at their old places, flagged redelivered."""
        ...

    def settle(self, queue_id: int, positions: Sequence[int]) -> None:
        """Held entries are DEQUEUED; the log knows already."""
        ...

    def reserve(self, queue_id: int, priorities: Sequence[int | None]) -> Sequence[int] | None:
        """Positions for that many new entries, in this order, above all that were ever used in their level.

        Returns: None when the queue was deleted (Store.drop_queue was called before). Positions that are not published stay unused.
        """
        ...

    def publish(self, queue_id: int, entries: Sequence[tuple[int, PendingEnqueue]]) -> None:
        """The entries appear at their reserved positions and consumers are notified."""
        ...

    def publish_stage(self, queue_id: int, stage: Stage) -> None:
        """As `publish`, for what a stage has for this queue."""
        ...


# --- what the store must offer beyond ports.Store ------------------------------------------------------------------------


class RecoveredEnqueue(NamedTuple):
    """A message that an in-doubt transaction wants to put into a queue. `priority`: of the message, None = not set; `body_len`: bytes."""

    queue_id: int
    message_id: int
    expires_at_ms: int = 0
    priority: int | None = None
    body_len: int = 0


class RecoveredTransaction(NamedTuple):
    """What an in-doubt transaction holds: enqueues in the order they were asked for, dequeues as (queue id, position), and what it held as
    runs: (rows as (queue id, first position, count), consumer id, when they were acquired in microseconds)."""

    enqueues: Sequence[RecoveredEnqueue]
    dequeues: Sequence[tuple[int, int]]
    runs: tuple[Sequence[tuple[int, int, int]], int, int] = ((), 0, 0)


class CommitRow(NamedTuple):
    """`length` entries of a queue, in the order they were asked for, take the positions from `first` on."""

    queue_id: int
    first: int
    length: int


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


class Stage(Protocol):
    """Messages that one transaction enqueues by blocks (store/tx_runs.py)."""

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
        """Positions for its messages on this queue, as QueueEffects.reserve gives them: rows of the Commit."""
        ...

    def drop_queue(self, queue_id: int) -> None:
        """The queue was deleted."""
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

    def acquire(self, tx: int, runs: Sequence[Run], consumer_id: int) -> None:
        """Logs what the transaction holds; then it is prepared or committed. Raises: StoreError."""
        ...

    def dequeue_run(self, run: Run, consumer_id: int) -> None:
        """The commit is durable: the entries are dequeued, in the log and in their queue."""
        ...

    def stage(self, tx: int) -> Stage:
        """The stage of a transaction."""
        ...

    def commit(self, tx: int, rows: Sequence[tuple[int, int, int]]) -> int:
        """As commit_rows, for a transaction with a stage."""
        ...

    def settle_stage(self, stage: Stage, committed: bool) -> None:
        """The outcome is durable: its messages stand at their positions, or are gone."""
        ...

    def finish(self, tx: int) -> None:
        """The outcome of a transaction with runs or a stage is done everywhere."""
        ...


@runtime_checkable
class TransactionStore(Store, Protocol):
    """ports.Store and what distributed transactions need besides."""

    @property
    def bulk(self) -> BulkStore: ...

    def transaction_of(self, xid: bytes) -> int:
        """Id of the transaction with this xid. Raises: KeyError."""
        ...

    def in_doubt_entries(self, tx: int) -> RecoveredTransaction:
        """What a prepared transaction holds. Raises: KeyError."""
        ...

    def commit_rows(self, tx: int, rows: Sequence[CommitRow]) -> int:
        """As `commit`, with any number of rows per queue (levels of a priority queue; transient messages between logged ones)."""
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
