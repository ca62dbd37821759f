"""The store of message by message calls that tests of recovery, crashes and transactions drive: its port, and what crosses it.

in: nothing. out: Store, which tests/drivers/store_driver.py has over the logs and tests/twins/memory_store.py in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from flintmq.ports import DequeueReason
from flintmq.store.transaction_log import Row


@dataclass(frozen=True, slots=True)
class StoredContent:
    """A message as the store keeps it: wire bytes, all immutable. `header` is the content header payload."""

    exchange: bytes
    routing_key: bytes
    header: bytes
    body: bytes

    def __len__(self) -> int:
        """Bytes of the four parts."""
        return len(self.exchange) + len(self.routing_key) + len(self.header) + len(self.body)


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """One live entry as recovery reads it. `in_doubt_tx`: dequeued by a transaction that is prepared, not decided; 0 = none."""

    queue_id: int
    position: int
    message_id: int
    expires_at_ms: int = 0
    in_doubt_tx: int = 0


@runtime_checkable
class Store(Protocol):
    """The durable store: message log and transaction log (seed 003).

    Threading: every method may be called from any thread; calls of one thread take effect in order. None waits for the disk.
    Durability: a method returns the LSN that makes it durable; `on_durable` tells when that is reached. Confirms, commit-ok and
    accepted dispositions are sent from such a callback only.
    Visibility: what a transaction does is invisible (`entries`, recovery) until its commit record is durable; all or nothing.
    """

    @property
    def durable_lsn(self) -> int:
        """Everything at or below this LSN survives a crash. Never goes back."""
        ...

    def append_content(self, content: StoredContent, *, priority: int | None = None) -> int:
        """Writes a message once, whatever the number of its queues. `priority`: 0..255, None = not set on the message.

        Returns: its persistence id (> 0, never reused): the LSN of its first record; it stays when the record is moved.
        Raises: StoreError when the log has failed.
        """
        ...

    def enqueue(self, queue_id: int, position: int, message_id: int, *, tx: int = 0, expires_at_ms: int = 0) -> int:
        """Records that the message stands in the queue.

        Args: position: > 0 outside a transaction; 0 inside one, where `commit` assigns it; expires_at_ms: wall clock, 0 = never.
        Returns: the LSN to wait for; 0 inside a transaction (wait for commit's).
        Raises: KeyError for an unknown message or transaction; ValueError for a position that is taken, or of the wrong kind.
        """
        ...

    def dequeue(
        self,
        queue_id: int,
        position: int,
        reason: DequeueReason,
        *,
        tx: int = 0,
        delivery_count: int = 0,
        first_delivery_ms: int = 0,
        consumer: str = "",
        group: str = "",
    ) -> int:
        """Records that the entry left its queue; with the last entry of a message the message is gone.

        A message is kept while a transaction that has not ended wants to enqueue it. The facts after `tx` are for the pipeline.
        Returns: the LSN; 0 inside a transaction. Raises: KeyError when no such entry is there (or another transaction has it).
        """
        ...

    def begin(self, xid: bytes | None = None) -> int:
        """Starts a transaction. `xid`: global id of a distributed one (at most 512 bytes), which alone may be prepared.

        Returns: its id (> 0). Raises: ValueError when the xid is already in use.
        """
        ...

    def prepare(self, tx: int) -> int:
        """Phase one: from its LSN on the transaction survives a crash, in doubt, and its outcome cannot fail for space.

        Raises: KeyError unknown; ValueError not distributed or not open; StoreError without room for the outcome (then still open).
        """
        ...

    def commit(self, tx: int, first_positions: Mapping[int, int] | None = None) -> int:
        """Ends the transaction: its entries appear, its dequeues take effect, both in the order they were asked for.

        Args: first_positions: queue id -> position of its first entry; the others of that queue follow without a gap.
        Returns: the LSN. Never fails for space once prepared. Raises: KeyError unknown; ValueError ended, or a position is missing.
        """
        ...

    def rollback(self, tx: int) -> int:
        """Ends the transaction without effect. Returns the LSN. Raises: KeyError unknown; ValueError when it has ended."""
        ...

    def on_durable(self, lsn: int, callback: Callable[[], None]) -> None:
        """Calls `callback` once, when `durable_lsn` >= lsn: at once when it already is, else from the log's writer thread.

        Callbacks run in LSN order, those of one LSN in the order they were given. After a failed sync none runs any more.
        """
        ...

    def entries(self, queue_id: int) -> Iterator[StoredEntry]:
        """Live entries of a queue by position: what recovery puts back. Includes what an in-doubt transaction dequeued, marked."""
        ...

    def in_doubt(self) -> Sequence[bytes]:
        """xids of prepared transactions that wait for their outcome, oldest first."""
        ...

    def drop_queue(self, queue_id: int) -> int:
        """Ends every entry of a deleted queue. Returns the LSN; an unknown id is no error (recovery may repeat it)."""
        ...


def rows_of(queue_id: int, numbers: Sequence[int], positions: Sequence[int]) -> list[Row]:
    """Rows that give each of a queue's enqueues, by ascending numbers, its position. Numbers that are missing (damage took their records)
    take none."""
    rows: list[Row] = []
    following = 0
    for number, position in zip(numbers, positions, strict=True):
        if number > following:
            rows.append(Row(queue_id, 0, number - following))
        last = rows[-1] if rows else None
        if last is not None and last.first and last.first + last.length == position:
            rows[-1] = last._replace(length=last.length + 1)
        else:
            rows.append(Row(queue_id, position, 1))
        following = number + 1
    return rows
