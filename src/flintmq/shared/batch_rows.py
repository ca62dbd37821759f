"""Rows of subscriptions on shared queues, and of the messages that their sets have (docs/adr/0015).

in: subscriptions and sets as values; rows. out: rows; or ValueError for one that can't be read. Who changes them: batches.py.

A subscription is one row, t/ID; its name has another, tn/VHOST NAME, so that a name is given once, and its reader's sign of life a third,
tb/ID, which changes often and is compared by nobody. The part of a set that one queue has is one row among those of that queue, so that it
goes with it. `fate` says of such a part what its subscription decided.
"""

from __future__ import annotations

import json
import struct
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from flintmq.arguments import is_whole
from flintmq.engines.engine import Range

_FORMAT = 1
_NUMBER_MAX = 2**63 - 1
_NAME_BYTES_MAX = 255
# format, set, round, bytes of bodies; of each run: its first position, messages
_HEAD = struct.Struct(">BQQQ")
_RUN = struct.Struct(">QI")
_NAMES = b"tn/"
# changes with each subscription that is made: two that are made at once are not counted by each other
MADE = b"tm"


def new_identity() -> bytes:
    """Of a subscription, as it stands in keys: 32 characters."""
    return uuid.uuid4().hex.encode()


def subscription_key(identity: bytes) -> bytes:
    return b"t/" + identity


def sign_key(identity: bytes) -> bytes:
    """Of a reader's last sign of life."""
    return b"tb/" + identity


def identity_of(key: bytes) -> bytes:
    return key[2:]


def subscription_rows() -> Range:
    return b"t/", b"t0"


def name_key(vhost: str, name: str) -> bytes:
    return names_of(vhost)[0] + name.encode("utf-8", "surrogatepass")


def names_of(vhost: str | None = None) -> Range:
    """The rows of the names in a virtual host, or of all."""
    if vhost is None:
        return _NAMES, _NAMES[:-1] + b"0"
    # Its length stands first, so that no name of one virtual host is among those of another.
    text = vhost.encode("utf-8", "surrogatepass")
    prefix = _NAMES + len(text).to_bytes(2, "big") + text
    return prefix, prefix + b"\xff"


def part_row_key(queue: bytes, identity: bytes) -> bytes:
    """One for each subscription: the next part is written after the row of the one before has gone."""
    return b"q/" + queue + b"/t" + identity


# --- parts of sets -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class PartRow:
    """The messages that a set has of one queue. seq, round: of the set; runs: (first position, messages), in their order; size: bytes."""

    seq: int
    round: int
    runs: list[tuple[int, int]] = field(default_factory=list)
    size: int = 0

    @property
    def count(self) -> int:
        return sum(count for _, count in self.runs)

    def positions(self) -> Iterator[int]:
        for first, count in self.runs:
            yield from range(first, first + count)

    def add(self, position: int, size: int) -> None:
        """One more message, behind the others."""
        if self.runs and sum(self.runs[-1]) == position:
            self.runs[-1] = (self.runs[-1][0], self.runs[-1][1] + 1)
        else:
            self.runs.append((position, 1))
        self.size += size

    def pack(self) -> bytes:
        return _HEAD.pack(_FORMAT, self.seq, self.round, self.size) + b"".join(_RUN.pack(*run) for run in self.runs)

    @staticmethod
    def unpack(value: bytes) -> PartRow:
        """Raises: ValueError."""
        if len(value) < _HEAD.size or value[0] != _FORMAT or (len(value) - _HEAD.size) % _RUN.size:
            raise ValueError(f"a row of the messages of a set is damaged, or of another version: {value[:40]!r}")
        _, seq, number, size = _HEAD.unpack_from(value)
        return PartRow(seq, number, [(first, count) for first, count in _RUN.iter_unpack(value[_HEAD.size :])], size)


def runs_max(value_bytes: int) -> int:
    """Runs that one row of `value_bytes` has room for."""
    return (value_bytes - _HEAD.size) // _RUN.size


# --- subscriptions -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SealedSet:
    """The set that is read now: which parts it has is decided, and stays. round: as of its parts; parts: queue -> (messages, bytes);
    planned: the epoch of the reader that was told of it; read: whether one asked for its messages."""

    seq: int
    round: int
    since_ms: int
    parts: dict[str, tuple[int, int]]
    planned: int | None = None
    read: bool = False

    @property
    def count(self) -> int:
        return sum(count for count, _ in self.parts.values())

    @property
    def size(self) -> int:
        return sum(size for _, size in self.parts.values())


@dataclass(frozen=True, slots=True)
class Subscription:
    """One subscription.

    user, born: its owner, and which one of that name; epoch: of its reader; committed: the last set that is; queues: ids; names: id -> name
    of these, and of those that its set has messages of; round: rises when a set goes back, or the queues change, so that parts of before
    are not taken for those of the next try; last: queue -> (seq, round) of the last committed set that had messages of it; drain: queue ->
    messages that may still be taken; mark: of the last change, so that no row of it ever comes again (E4 of the engine port).
    """

    vhost: str
    name: str
    user: str
    born: str
    queues: tuple[str, ...]
    created_ms: int
    names: dict[str, str] = field(default_factory=dict)
    epoch: int = 1
    committed: int = 0
    round: int = 0
    sealed: SealedSet | None = None
    last: dict[str, tuple[int, int]] = field(default_factory=dict)
    drain: dict[str, int] | None = None
    is_deleted: bool = False
    mark: str = ""

    def pack(self) -> bytes:
        return json.dumps({"format": _FORMAT, **asdict(self)}, sort_keys=True, separators=(",", ":")).encode()

    @staticmethod
    def unpack(value: bytes) -> Subscription:
        """Raises: ValueError: it can't be read."""
        try:
            row = json.loads(value)
            if row["format"] != _FORMAT:
                raise ValueError(f"format {row['format']!r}")
            sealed, drain = row["sealed"], row["drain"]
            return Subscription(
                vhost=_text(row["vhost"]),
                name=_text(row["name"]),
                user=_text(row["user"]),
                born=_text(row["born"], 0),
                queues=tuple(_text(queue) for queue in _list(row["queues"])),
                created_ms=_number(row["created_ms"]),
                names={_text(queue): _text(name) for queue, name in row["names"].items()},
                epoch=_number(row["epoch"]),
                committed=_number(row["committed"]),
                round=_number(row["round"]),
                sealed=None if sealed is None else _sealed(sealed),
                last={_text(queue): _pair(pair) for queue, pair in row["last"].items()},
                drain=None if drain is None else {_text(queue): _number(count) for queue, count in drain.items()},
                is_deleted=_flag(row["is_deleted"]),
                mark=_text(row["mark"], 0),
            )
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
            raise ValueError(f"the row of a subscription can't be read: {error}: {value[:80]!r}") from None

    def known_queues(self) -> list[str]:
        """Those in which rows of its sets may be, in a stable order."""
        return sorted({*self.queues, *self.last, *(self.sealed.parts if self.sealed is not None else ())})


class Fate(Enum):
    """Of the part of a set: it waits for its subscription; its messages end; they go back to their queue. Only WAITS ever changes."""

    WAITS = 0
    ENDS = 1
    GOES_BACK = 2


def fate(subscription: Subscription | None, queue: str, part: PartRow) -> Fate:
    """Args: subscription: None: it is gone, and all that it committed has ended before."""
    if subscription is None:
        return Fate.GOES_BACK
    number = (part.seq, part.round)
    if subscription.last.get(queue) == number:
        return Fate.ENDS
    if subscription.is_deleted or number != (subscription.committed + 1, subscription.round):
        return Fate.GOES_BACK
    # While a set is collected, each queue that is read may have a part in it; then, only those that it was sealed with.
    members = subscription.queues if subscription.sealed is None else subscription.sealed.parts
    return Fate.WAITS if queue in members else Fate.GOES_BACK


def _sealed(row: Any) -> SealedSet:
    planned = row["planned"]
    parts = {_text(queue): _pair(pair) for queue, pair in row["parts"].items()}
    seq, number, since_ms = (_number(row[name]) for name in ("seq", "round", "since_ms"))
    return SealedSet(seq, number, since_ms, parts, None if planned is None else _number(planned), _flag(row["read"]))


def _text(value: Any, least: int = 1) -> str:
    if not isinstance(value, str) or "\0" in value or not least <= len(value.encode("utf-8", "surrogatepass")) <= _NAME_BYTES_MAX:
        raise ValueError("a name that is none")
    return value


def _number(value: Any) -> int:
    if not is_whole(value, 0, _NUMBER_MAX):
        raise ValueError("a number that is none")
    return int(value)


def _pair(value: Any) -> tuple[int, int]:
    if len(_list(value)) != 2:
        raise ValueError("a pair that is none")
    return _number(value[0]), _number(value[1])


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError("no truth value")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError("no list")
    return value
