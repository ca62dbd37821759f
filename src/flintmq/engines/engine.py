"""The engine port: an ordered store of rows that several nodes open.

in: keys and values (bytes); commits, each with conditions. out: commits that are atomic and durable, or an error that says what is known
of them.

What every engine guarantees (tests/engines/test_conformance.py runs on each):
E1  A commit is atomic, and durable when `commit` returns True. False: a condition did not hold, and nothing happened.
E2  Commits are strictly serializable: the conditions of one are judged, and its changes made, at one moment between call and return.
E3  `get` and one page of `scan` are of one moment between call and return. Two pages may be of two moments.
E4  After UnknownOutcome, and when its caller was cancelled, the commit has happened, never happens, or happens later. It can't happen any
    more once a row that it compared has another value: who has to know changes such a row, and reads.
E5  A watch says None when rows may have changed unseen (so it does first), else keys that changed after that. A key may be told twice,
    several changes of it once, and a key that did not change now and then.
E6  An engine that is full refuses puts (Full); commits that only delete, and reads, go on.

Everything is for one event loop; no call blocks it for longer than a millisecond.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from flintmq.errors import FlintError

Row = tuple[bytes, bytes]
# begin <= key < end
Range = tuple[bytes, bytes]


class EngineError(FlintError):
    """An engine did not do what it was asked for."""


class Unavailable(EngineError):
    """The engine can't be reached, or failed. Nothing happened; a later try may succeed."""


class UnknownOutcome(EngineError):
    """Whether the commit happened, or still will, is not known (E4). final: it will not any more: a read tells."""

    def __init__(self, text: str, final: bool = False) -> None:
        super().__init__(text)
        self.final = final


class TooLarge(EngineError):
    """A key, a value or the commit is above the engine's limits. Nothing happened."""


class Full(EngineError):
    """The engine has no room (E6). Nothing happened."""


class Unfit(EngineError):
    """The engine is set up so that it would lose what it confirmed, or holds rows of another form. The text says what to change."""


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """key_bytes, value_bytes: of one row; commit_bytes: of keys and values written and compared; commit_rows: rows written, ranges deleted
    and conditions; alone: no other process opens the same rows."""

    key_bytes: int
    value_bytes: int
    commit_bytes: int
    commit_rows: int
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Commit:
    """Changes that happen together, or not at all.

    conditions: (key, value it must have; None: there must be no such row). puts: rows as they are afterwards. deletes: keys; one without a
    row is no error. clears: ranges whose rows go. A key stands once among puts and deletes, and in none of `clears` (ValueError).
    """

    conditions: Sequence[tuple[bytes, bytes | None]] = ()
    puts: Mapping[bytes, bytes] = field(default_factory=dict)
    deletes: Sequence[bytes] = ()
    clears: Sequence[Range] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """bytes: what the engine's files hold; bytes_max: its quota, 0: it names none; full: it refuses puts."""

    bytes: int
    bytes_max: int
    full: bool


class Engine(Protocol):
    """A store of rows."""

    @property
    def limits(self) -> EngineLimits: ...
    @property
    def name(self) -> str:
        """For people: kind and address, without a password."""
        ...

    async def connect(self) -> None:
        """Opens it, and makes what it needs. Idempotent. The other calls do so themselves when they have to.

        Raises: Unavailable, Unfit.
        """
        ...

    async def commit(self, commit: Commit) -> bool:
        """See E1, E2. Raises: Unavailable, TooLarge, Full: nothing happened; UnknownOutcome; ValueError: a key stands twice."""
        ...

    async def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of these keys (commit_rows at most), in their order, all of one moment. None: no such row. Raises: Unavailable."""
        ...

    async def scan(self, begin: bytes, end: bytes, rows: int, size: int, reverse: bool = False) -> list[Row]:
        """Rows with begin <= key < end in the order of their keys: at most `rows`, and no more after `size` bytes of keys and values.

        Shorter than both limits: there are no more. Raises: Unavailable.
        """
        ...

    def watch(self, begin: bytes, end: bytes) -> AsyncGenerator[frozenset[bytes] | None, None]:
        """Changes of that range, until the iterator is closed (E5). It goes on over failures of the engine: with None when it is back."""
        ...

    async def usage(self) -> Usage:
        """Raises: Unavailable."""
        ...

    async def tidy(self) -> None:
        """Gives room back that rows of the past take, and ends an alarm that has lost its reason. Any node, any time; what another node
        does just now is no error. Raises: Unavailable."""
        ...

    async def close(self) -> None:
        """Ends it; what was committed stays. Idempotent."""
        ...


def check(commit: Commit, limits: EngineLimits) -> None:
    """What every engine asks of a commit first. Raises: ValueError, TooLarge."""
    written = [*commit.puts, *commit.deletes]
    if len(set(written)) != len(written):
        raise ValueError("a key stands twice in a commit")
    for begin, end in commit.clears:
        if any(begin <= key < end for key in written):
            raise ValueError("a commit writes a key that it clears")
    keys = [*written, *(key for key, _ in commit.conditions), *(bound for pair in commit.clears for bound in pair)]
    values = [*commit.puts.values(), *(value for _, value in commit.conditions if value is not None)]
    rows = len(written) + len(commit.conditions) + len(commit.clears)
    size = sum(map(len, keys)) + sum(map(len, values))
    if max(map(len, keys), default=0) > limits.key_bytes or max(map(len, values), default=0) > limits.value_bytes:
        raise TooLarge(f"a key above {limits.key_bytes} bytes, or a value above {limits.value_bytes}")
    if size > limits.commit_bytes or rows > limits.commit_rows:
        raise TooLarge(f"a commit of {rows} rows and {size} bytes; the limits are {limits.commit_rows} and {limits.commit_bytes}")
