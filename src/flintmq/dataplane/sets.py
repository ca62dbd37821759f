"""One set: the messages of a micro-batch, held by a prepared transaction; its slices and its rows.

in: runs of a prepared branch (TransactionCoordinator.runs). out: facts, slices of about equal bytes, rows as docs/DATAPLANE.md has them.

S1  Everything here is a function of the runs: the same set gives the same slices and rows, as often as it is asked, after a restart too.
S2  A content that no log has (it does not outlive the process) gets the time at which it came, as it was known when the set was made.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from flintmq.config import Limits
from flintmq.dataplane.times import Arrivals
from flintmq.dataplane.wire import Refused
from flintmq.transactions import Xid
from flintmq.transactions.bulk import INLINE

ROW_SIZE = 32
_POSITION = struct.Struct("<Q")
# rows looked at in one go
_PIECE = 16_384
# inline bytes that one look at a run should not exceed by much
_INLINE_STEP = 1 << 20
# bytes that a message counts for when slices are made: many empty ones are work, too
_ROW_WEIGHT = 64


class MessageSet:
    """A prepared set. `runs`: HeldRun of each queue; `names`: queue id -> name, for people and rows."""

    def __init__(
        self,
        seq: int,
        xid: Xid,
        runs: Sequence[Any],
        name_of: Callable[[int], str],
        since_ms: int,
        arrivals: Mapping[int, Arrivals] | None = None,
        read: bool | None = False,
    ) -> None:
        self.seq = seq
        self.xid = xid
        self.runs = [run for run in runs if run.count]
        self.names = {run.queue_id: name_of(run.queue_id) for run in self.runs}
        self.since_ms = since_ms  # wall clock
        self.arrivals = arrivals or {}  # by queue id
        # whether somebody asked for rows of it; None: not known, the broker was started since it was prepared
        self.read = read
        self.count: int = sum(run.count for run in self.runs)
        self.bytes: int = sum(run.bytes for run in self.runs)
        self._slices: dict[int, list[int]] = {}
        self._facts: list[dict[str, Any]] | None = None

    def held(self, queue_id: int) -> int:
        """Messages of this queue in the set."""
        return sum(run.count for run in self.runs if run.queue_id == queue_id)

    def facts(self) -> dict[str, Any]:
        """The answer to sub.acquire."""
        return {"seq": self.seq, "count": self.count, "bytes": self.bytes, "queues": self._queue_facts()}

    def _queue_facts(self) -> list[dict[str, Any]]:
        if self._facts is None:
            self._facts = [
                {
                    "queue": self.names[run.queue_id],
                    "count": run.count,
                    "bytes": run.bytes,
                    "first": _POSITION.unpack_from(run.rows(0, 1)[0])[0],
                    "last": _POSITION.unpack_from(run.rows(run.count - 1, 1)[0])[0],
                }
                for run in self.runs
            ]
        return self._facts

    # --- slices ---------------------------------------------------------------------------------------------------------

    def bounds(self, slices: int) -> list[int]:
        """Row numbers at which slices begin, and the end: slices + 1 numbers. `slices`: 1 to the number of rows; 0 when there are none."""
        if not self.count:
            return [0]
        bounds = self._slices.get(slices)
        if bounds is None:
            bounds = [0, self.count] if slices == 1 else cut(self._sizes(), self.count, slices)
            if len(self._slices) >= 8:
                self._slices.clear()
            self._slices[slices] = bounds
        return bounds

    def _sizes(self) -> Iterator[int]:
        for run in self.runs:
            index = 0
            while index < run.count:
                rows, _ = run.rows(index, min(rows_at_once(run), run.count - index))
                yield from memoryview(rows).cast("I")[6 :: ROW_SIZE // 4]
                index += len(rows) // ROW_SIZE

    # --- rows -----------------------------------------------------------------------------------------------------------

    def rows(self, begin: int, end: int, limits: Limits) -> tuple[list[list[Any]], list[bytes], int]:
        """Rows begin to end, as many as fit into one answer.

        Returns: [[queue name, rows, queue id], ...], the payload's parts (rows, then inline contents), the row after the last one.
        """
        end = min(end, begin + limits.dataplane_rows_max)
        queues: list[list[Any]] = []
        parts: list[bytes] = []
        contents: list[bytes] = []
        inline = 0
        start = 0
        row = begin
        for run in self.runs:
            while start <= row < min(end, start + run.count) and inline < limits.dataplane_inline_max:
                wanted = min(rows_at_once(run), end - row, start + run.count - row)
                rows, inlined = run.rows(row - start, wanted)
                number = len(rows) // ROW_SIZE
                if not number:
                    raise Refused(
                        "INTERNAL", f"rows {row - start} to {row - start + wanted} of queue {self.names[run.queue_id]} are not there"
                    )
                name = self.names[run.queue_id]
                if queues and queues[-1][2] == run.queue_id:
                    queues[-1][1] += number
                else:
                    queues.append([name, number, run.queue_id])
                parts.append(bytes(rows))
                contents += self._timed(run.queue_id, rows, inlined)
                inline += sum(map(len, inlined))
                row += number
            start += run.count
        return queues, [*parts, *contents], row

    def _timed(self, queue_id: int, rows: bytes, contents: list[bytes]) -> list[bytes]:
        """S2. The contents of rows whose `where` is 0, each with a time."""
        arrivals = self.arrivals.get(queue_id)
        return timed(rows, contents, (lambda position: self.since_ms * 1000) if arrivals is None else arrivals.time_of)


def timed(rows: bytes, contents: list[bytes], time_of: Callable[[int], int]) -> list[bytes]:
    """The contents of rows whose `where` is 0, each with a time. Args: time_of: of a position, for those that have none."""
    if not contents:
        return contents
    words, step = memoryview(rows).cast("Q"), ROW_SIZE // 8
    positions = (words[index] for index in range(0, len(words), step) if not words[index + 2])
    stamped = []
    for position, content in zip(positions, contents, strict=True):
        length, header_size, known_us = INLINE.unpack_from(content)
        stamped.append(INLINE.pack(length, header_size, known_us or time_of(position)) + content[INLINE.size :])
    return stamped


def cut(sizes: Iterable[int], count: int, slices: int) -> list[int]:
    """Row numbers at which slices of about equal bytes begin, and the end. Args: sizes: of `count` rows; slices: 2 to count."""
    ends = list(accumulate(size + _ROW_WEIGHT for size in sizes))
    total = ends[-1]
    bounds = [0]
    for number in range(1, slices):
        place = bisect_left(ends, total * number / slices) + 1
        # each slice has a row, and leaves one for each that follows
        bounds.append(max(bounds[-1] + 1, min(place, count - (slices - number))))
    return [*bounds, count]


def rows_at_once(run: Any) -> int:
    """Rows to ask a run for, so that their contents, should they come inline, are not too many bytes at once."""
    average = max(1, int(run.bytes) // int(run.count))
    return max(1, min(_PIECE, _INLINE_STEP // average))


def shares(ready: Sequence[int], budget: int) -> list[int]:
    """Divides a budget among queues that have so much ready: equal shares, and what one does not need goes to the others.

    The first ones get the remainder. The sum is min(budget, sum(ready)).
    """
    parts = [0] * len(ready)
    open_ = [number for number, amount in enumerate(ready) if amount > 0]
    while budget > 0 and open_:
        share, rest = divmod(budget, len(open_))
        for turn, number in enumerate(open_):
            given = min(ready[number] - parts[number], share + (turn < rest))
            parts[number] += given
            budget -= given
        open_ = [number for number in open_ if parts[number] < ready[number]]
    return parts
