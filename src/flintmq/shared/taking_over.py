"""Taking a shared queue over (docs/adr/0015, R5): from nobody, a node that is gone, or one that handed it over.

in: the owner row as it was read; the queue's mirror, empty. out: the ownership, and the queue's messages in their places.

T1  From the raised epoch on nobody else writes: what is read afterwards stays as it is.
T2  Rows of the epoch in the mark count up to the first batch that is not there; those behind are deleted before a batch is written.
T3  Memory is bounded: a page of rows, the rows behind the mark, and a bit for each message of transactions that are not finished.
T4  Which messages of transactions are here, rows say that count, and are deleted, as their batches do.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

from flintmq.config import Limits
from flintmq.engines.engine import Commit, Engine, Row, UnknownOutcome
from flintmq.mirror.mirror import Mirror
from flintmq.shared.layout import (
    Mark,
    Owner,
    ends_key,
    head_of,
    kind_of,
    mark_key,
    owner_key,
    part_key,
    parts_count,
    position_of,
    quiet_key,
    row_numbers,
    segment_key,
)  # fmt: skip
from flintmq.shared.transaction_rows import applied, applied_numbers, transaction_of

# a position has its level above these bits (queue/types.pxd)
_INDEX_BITS = 56
_INDEX_MASK = (1 << _INDEX_BITS) - 1
# rows of ends that one page has: some 80 bytes each
_ENDS_ROWS = 4_096
_SEGMENT_ROWS = 1_024


class Taken(Exception):
    """Another node owns the queue, or it is deleted."""


@dataclass(frozen=True, slots=True)
class TakenOver:
    """owner: as it stands in the engine; parts: position -> parts of segments in parts; flagged: see Mark; messages: restored; seen: an
    earlier owner may have delivered whatever it had; applied: (transaction, part) -> values of rows: its messages that are here."""

    owner: Owner
    parts: dict[int, int]
    flagged: list[int]
    messages: int
    seen: bool = True
    applied: dict[tuple[bytes, int], list[bytes]] = field(default_factory=dict)


async def claim(
    engine: Engine, queue: bytes, before: Owner | None, node: str, life: str, judged: tuple[bytes, bytes | None] | None = None
) -> Owner:
    """Raises the epoch, also of a queue that was handed over, or of which a `restore` failed: a commit of that one may still arrive.

    Args: before: the owner row, None: there is none, which is a queue that nobody has served yet; judged: the row of the node by which it
    counts as gone, as it was read: it is compared, for the commit may arrive long after the judgement.

    Raises: Taken; EngineError: nothing is known of the outcome, and the caller reads the owner row again.
    """
    key = owner_key(queue)
    conditions = [(key, None if before is None else before.pack())]
    if judged is not None:
        conditions.append(judged)
    owner = Owner(1, node, life) if before is None else before.next(node, life)
    try:
        done = await engine.commit(Commit(conditions, {key: owner.pack()}))
    except UnknownOutcome:
        (value,) = await engine.get([key])
        if value != owner.pack():
            raise
        done = True
    if not done:
        raise Taken(f"another node was faster than {node}")
    return owner


async def restore(engine: Engine, queue: bytes, owner: Owner, mirror: Mirror, limits: Limits) -> TakenOver:
    """After `claim`: reads the rows, and puts the queue's messages into it. O(messages).

    Raises: Taken; ValueError: a row is damaged; EngineError: to be begun anew with `claim`, and with another queue.
    """
    value, quiet = await engine.get([mark_key(queue), quiet_key(queue)])
    mark = Mark.unpack(value)
    # A queue without a mark was never served: an owner writes one before it has consumers.
    seen = quiet is None and value is not None
    reader = _Reader(engine, queue, mirror, limits, None if seen else mark.flagged)
    behind = await reader.read(mark)
    marks = await _applied(engine, queue, limits)
    marks_behind = {key: batch for key, (epoch, batch) in _numbers(marks).items() if epoch == mark.epoch and batch > mark.settled}
    last = _last(mark, {*(row_numbers(head_of(row))[1] for _, row in behind), *marks_behind.values()})
    await reader.put(sorted(one for one in behind if row_numbers(head_of(one[1]))[1] <= last))
    cut = [segment_key(queue, position) for position, row in behind if row_numbers(head_of(row))[1] > last]
    cut_marks = [key for key, batch in marks_behind.items() if batch > last]
    tails = reader.tails(mark.tails)
    flagged = tails if seen else mark.flagged
    lasts = reader.tails([0] * len(tails))
    await _settle(engine, queue, owner, Mark(owner.epoch, 0, tails, flagged), [*cut, *cut_marks], lasts)
    mirror.restored(tails)
    here: dict[tuple[bytes, int], list[bytes]] = {}
    for key in marks.keys() - set(cut_marks):
        here.setdefault((transaction_of(key), applied_numbers(key)[0]), []).append(marks[key])
    return TakenOver(owner, reader.parts, flagged, reader.messages, seen, here)


def _last(mark: Mark, batches: set[int]) -> int:
    """T2: the last of the batches behind the mark that counts."""
    last = mark.settled
    while last + 1 in batches:
        last += 1
    return last


async def _applied(engine: Engine, queue: bytes, limits: Limits) -> dict[bytes, bytes]:
    """The rows that say which messages of transactions are in which batch."""
    rows: dict[bytes, bytes] = {}
    begin, end = applied(queue)
    while page := await engine.scan(begin, end, _SEGMENT_ROWS, limits.shared_scan_bytes):
        rows.update(page)
        begin = page[-1][0] + b"\0"
    return rows


def _numbers(marks: dict[bytes, bytes]) -> dict[bytes, tuple[int, int]]:
    return {key: applied_numbers(key)[1:] for key in marks}


async def _settle(engine: Engine, queue: bytes, owner: Owner, mark: Mark, cut: list[bytes], lasts: list[int]) -> None:
    """Deletes what does not count, and writes the mark. Args: lasts: the last index of a segment that counts, of each level."""
    condition = [(owner_key(queue), owner.pack())]
    most = engine.limits.commit_rows // 2
    # Parts behind the last segment of a level are of a batch that never came.
    clears = [
        (part_key(queue, (level << _INDEX_BITS) | (last + 1), 0), part_key(queue, (level << _INDEX_BITS) | _INDEX_MASK, 0))
        for level, last in enumerate(lasts)
    ]
    commits = [Commit(condition, {}, cut[begin : begin + most]) for begin in range(0, len(cut), most)]
    commits += [Commit(condition, {}, [], clears[begin : begin + most]) for begin in range(0, len(clears), most)]
    commits.append(Commit(condition, {mark_key(queue): mark.pack(), quiet_key(queue): b""}))
    for commit in commits:
        if not await engine.commit(commit):
            raise Taken("another node has taken the queue")


class _Reader:
    """Reads the rows of a queue in their order, and restores those that count whatever is missing."""

    def __init__(self, engine: Engine, queue: bytes, mirror: Mirror, limits: Limits, flagged: list[int] | None) -> None:
        self.parts: dict[int, int] = {}
        self.messages = 0
        self._engine = engine
        self._queue = queue
        self._mirror = mirror
        self._size = limits.shared_scan_bytes
        self._flagged = flagged  # None: everything
        self._tails: dict[int, int] = {}

    async def read(self, mark: Mark) -> list[tuple[int, bytes]]:
        """Restores the rows before the mark; returns (position, row) of the others."""
        behind: list[tuple[int, bytes]] = []
        begin, end = kind_of(self._queue, b"s")
        while rows := await self._engine.scan(begin, end, _SEGMENT_ROWS, self._size):
            before: list[tuple[int, bytes]] = []
            for key, row in rows:
                epoch, batch = row_numbers(head_of(row))
                (behind if epoch == mark.epoch and batch > mark.settled else before).append((position_of(key), row))
            await self.put(before)
            begin = rows[-1][0] + b"\0"
        return behind

    async def put(self, rows: list[tuple[int, bytes]]) -> None:
        """Restores rows, which rise in each level."""
        if not rows:
            return
        ends = await self._ends(rows[0][0], rows[-1][0])
        for position, value in rows:
            row = await self._whole(position, value)
            self.messages += self._mirror.restore(row, ends.get(position, b""), self._is_flagged(position))
            first, places = struct.unpack_from("<QI", row, 24)
            level = position >> _INDEX_BITS
            self._tails[level] = max(self._tails.get(level, 0), first + places - 1)

    def _is_flagged(self, position: int) -> bool:
        level, index = position >> _INDEX_BITS, position & _INDEX_MASK
        return self._flagged is None or (level < len(self._flagged) and index <= self._flagged[level])

    async def _ends(self, first: int, last: int) -> dict[int, bytes]:
        begin, end = ends_key(self._queue, first), ends_key(self._queue, last) + b"\0"
        ends: dict[int, bytes] = {}
        while page := await self._engine.scan(begin, end, _ENDS_ROWS, self._size):
            ends.update(_by_position(page))
            begin = page[-1][0] + b"\0"
        return ends

    async def _whole(self, position: int, value: bytes) -> bytes:
        count = parts_count(value)
        if not count:
            return value
        self.parts[position] = count
        parts: list[bytes] = []
        for number in range(count):
            (part,) = await self._engine.get([part_key(self._queue, position, number)])
            if part is None:
                raise ValueError(f"a part of a message of a shared queue is missing: {self._queue.decode()} {position} {number}")
            parts.append(part)
        return b"".join(parts)

    def tails(self, least: list[int]) -> list[int]:
        """The last index of each level that a row has, at least those given."""
        levels = max(len(least), 1 + max(self._tails, default=0))
        return [max(self._tails.get(level, 0), least[level] if level < len(least) else 0) for level in range(levels)]


def _by_position(rows: Iterable[Row]) -> dict[int, bytes]:
    return {position_of(key): value for key, value in rows}
