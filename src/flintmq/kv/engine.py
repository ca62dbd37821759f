"""The engine port: an ordered key-value store with optimistic transactions, as shared queues need it.

in: keys and values (bytes). out: transactions that are atomic and durable, or an error that says what is known of them.

What every engine guarantees (tests/kv/test_conformance.py runs on each):
G1  A commit is atomic, and durable when `commit` returns.
G2  Transactions are strictly serializable over their declared reads. A declared range that was empty counts: no phantoms.
G3  A snapshot read comes from the version of the other reads of its transaction, and declares nothing.
G4  A transaction that begins after a commit returned sees it.
G5  Stamps of one prefix are ordered as the commits that got them, and no stamp comes twice.
G6  UnknownOutcome is not Conflict: the transaction may have happened, and it is no longer on its way.
G7  A watch is told of any change of its key after the version that its transaction read. It may be told of none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from flintmq.errors import FlintError

# bytes of the stamp that `set_stamped` puts between prefix and suffix
STAMP_BYTES = 10


class EngineError(FlintError):
    """An engine did not do what it was asked for."""


class Conflict(EngineError):
    """A declared read is out of date. Nothing happened: the transaction can be made anew."""


class UnknownOutcome(EngineError):
    """Whether the commit happened is not known; it is no longer on its way (G6)."""


class TooLarge(EngineError):
    """A key, a value or the transaction is above the engine's limits. Nothing happened."""


class TooOld(Conflict):
    """The transaction was open for too long: its version is gone. Nothing happened."""


class Unavailable(EngineError):
    """The engine can't be reached, or failed. Nothing happened."""


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """What one transaction may be.

    key_bytes, value_bytes: of one row; transaction_bytes: keys and values written; transaction_writes: rows written;
    transaction_ms: from the first read to the commit; exclusive: no other process opens the same rows.
    """

    key_bytes: int
    value_bytes: int
    transaction_bytes: int
    transaction_writes: int
    transaction_ms: int
    exclusive: bool


class Watch(Protocol):
    """What `Transaction.watch` returns: a call that comes once."""

    def cancel(self) -> None:
        """Nobody is told any more. Idempotent; any thread."""
        ...


class Transaction(Protocol):
    """Reads at one version, and writes that become true together. One thread at a time. After `commit` or `close` it is over."""

    def get(self, key: bytes, snapshot: bool = False) -> bytes | None:
        """The value of a key; None: there is none. The transaction sees its own writes. `snapshot`: declares nothing."""
        ...

    def range(self, begin: bytes, end: bytes, limit: int, reverse: bool = False, snapshot: bool = False) -> list[tuple[bytes, bytes]]:
        """At most `limit` rows with begin <= key < end, in the order of their keys. A range that was read is declared, empty or not."""
        ...

    def set(self, key: bytes, value: bytes) -> None: ...
    def clear(self, key: bytes) -> None: ...
    def clear_range(self, begin: bytes, end: bytes) -> None: ...
    def require(self, key: bytes) -> None:
        """Declares the key as if it had been read."""
        ...

    def require_range(self, begin: bytes, end: bytes) -> None: ...
    def set_stamped(self, prefix: bytes, suffix: bytes, value: bytes) -> None:
        """Sets prefix + stamp + suffix, where the stamp (STAMP_BYTES) follows the order of commits (G5)."""
        ...

    def watch(self, key: bytes, on_change: Callable[[], None]) -> Watch:
        """`on_change()` is called once, on any thread, after a change (G7). Begins with the commit, also of a transaction that writes
        nothing. `on_change` must not block, and must not call the engine."""
        ...

    def commit(self) -> int:
        """Makes the writes true. Returns the version; 0 when nothing was written.

        Raises: Conflict, TooOld, TooLarge, Unavailable: nothing happened; UnknownOutcome.
        """
        ...

    def close(self) -> None:
        """Gives up what was not committed. Idempotent."""
        ...


class Engine(Protocol):
    """A store. Any thread."""

    @property
    def limits(self) -> EngineLimits: ...
    @property
    def name(self) -> str:
        """For people: what it is, and where."""
        ...

    def begin(self) -> Transaction:
        """Raises: Unavailable."""
        ...

    def close(self) -> None:
        """Ends it; what was committed stays. Idempotent."""
        ...
