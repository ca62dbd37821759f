"""Queues and streams as Arrow tables without Spark: for pandas, Polars, DuckDB, or a Parquet file.

in: a `DataPlane`; names. out: `pyarrow.RecordBatchReader`s, whose record batches are fetched as they are taken.

    pl.from_arrow(look(plane, ["orders"]))                  what stands in a queue; it stays there
    duckdb.from_arrow(stream(plane, "events").reader())     a stream, by offset
    for part in take(plane, ["orders"], "daily"):           messages leave the queue with part.commit()
        write(f"out/{part.seq}.parquet", part.reader())
        part.commit()

T1  A part of a subscription has a number, and until its commit the same messages under that number, whatever dies in between: who writes
    what is named by (subscription, seq), and replaces what has that name, has each message once.
T2  A range of a stream is the same messages always: who keeps `stream` and `end` beside the output, in one write, has each message once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flintmq.arrow.schema import messages_schema
from flintmq.flight.plane_error import BAD_ARGUMENT, PlaneError

if TYPE_CHECKING:
    import pyarrow as pa

    from flintmq.flight.client import DataPlane

# messages and bytes of bodies of one part, as Spark's source has them
MESSAGES, BYTES = 500_000, 128 * 1024 * 1024


def look(
    plane: DataPlane,
    queues: Sequence[str],
    *,
    start: dict[str, int] | None = None,
    end: dict[str, int] | None = None,
    columns: Sequence[str] | None = None,
    body: str | None = None,
) -> pa.RecordBatchReader:
    """The messages of queues, one after the other, without taking them.

    Args: start, end: {"position": n}, {"lsn": n} or {"time_us": t}, the end not included; columns: names, all when left out; body: `none`
    or `prefix:N`. Messages that are consumed meanwhile are left out.
    Raises: ValueError for a column that is none; PlaneError NOT_FOUND, FORBIDDEN, from the reader.
    """

    def batches() -> Iterator[Any]:
        for queue in queues:
            begin = start
            while True:
                browse = plane.browse_open([queue], start=begin, end=end)
                try:
                    for ticket in browse.tickets:
                        yield from plane.read(ticket, columns=columns, body=body)
                finally:
                    plane.browse_close(browse.id)
                if not browse.more.get("more"):
                    break
                begin = {"position": int(browse.queues[0]["last"]) + 1}

    return _reader(columns, batches)


# --- queues, whose messages are taken ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Part:
    """Messages that `take` holds until their commit. seq: their number in the subscription; count: messages."""

    seq: int
    count: int
    _taker: _Taker = field(repr=False)

    def reader(self, *, columns: Sequence[str] | None = None, body: str | None = None) -> pa.RecordBatchReader:
        """The messages, in order; the same each time. Raises: PlaneError, from the reader: FENCED when another has taken over."""
        return self._taker.reader(self.seq, columns, body)

    def commit(self) -> None:
        """Takes the messages out of the queue; durable when it returns. Again is no error. Raises: PlaneError FENCED."""
        self._taker.commit(self.seq)


class _Taker:
    """One opened subscription."""

    def __init__(self, plane: DataPlane, name: str, queues: Sequence[str]) -> None:
        self._plane = plane
        self.name = name
        opened = plane.sub_open(name, queues)
        self._sub_id, self._epoch = opened.sub_id, opened.epoch
        self.committed = opened.committed
        # A set that an earlier process was given: it comes again as it was. Acquiring it would give it back to its queues.
        self.begun = opened.planned and opened.prepared == opened.committed + 1

    def next(self, limits: tuple[int, int, int]) -> Part | None:
        """Args: limits: messages and bytes of the part; ms to wait for messages."""
        seq = self.committed + 1
        if not self.begun:
            messages, size, wait_ms = limits
            answer = self._plane.sub_acquire(self._sub_id, self._epoch, seq, max_messages=messages, max_bytes=size, max_wait_ms=wait_ms)
            if not answer.count:
                return None
        self.begun = False
        return Part(seq, int(self._plan(seq)["count"]), self)

    def reader(self, seq: int, columns: Sequence[str] | None, body: str | None) -> pa.RecordBatchReader:
        def batches() -> Iterator[Any]:
            for ticket in self._plan(seq)["tickets"]:
                yield from self._plane.read(json.dumps(ticket).encode(), columns=columns, body=body)

        return _reader(columns, batches)

    def commit(self, seq: int) -> None:
        self.committed = max(self.committed, self._plane.sub_commit(self._sub_id, self._epoch, seq))

    def _plan(self, seq: int) -> Any:
        return self._plane.calls.sub_plan(sub_id=self._sub_id, epoch=self._epoch, seq=seq, slices=1)


def take(
    plane: DataPlane,
    queues: Sequence[str],
    subscription: str,
    *,
    max_messages: int = MESSAGES,
    max_bytes: int = BYTES,
    wait_ms: int = 0,
) -> Iterator[Part]:
    """Parts of queues, each held until its `commit`; the next one is only given then. Ends when nothing is there (within `wait_ms`).

    A part that was given to a process that died comes again first, with the same number and messages (T1). The broker remembers the
    subscription by its name, in `flintmq pipeline status` beside those of Spark; another process that opens it fences this one.
    Args: max_messages, max_bytes: of a part, at least one message; wait_ms: for messages to come, 0 to 60,000.
    Raises: PlaneError NOT_FOUND, FORBIDDEN, QUEUES_DIFFER, FENCED; BAD_ARGUMENT: the part before was not committed.
    """
    taker = _Taker(plane, subscription, queues)
    while (part := taker.next((max_messages, max_bytes, wait_ms))) is not None:
        yield part
        if taker.committed < part.seq:
            raise PlaneError(
                BAD_ARGUMENT, f"part {part.seq} of subscription '{subscription}' was not committed: commit it, then ask for more"
            )


# --- streams, which are read by offset --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Range:
    """Messages of a stream. stream: its identity, which one declared anew does not share; begin, end: offsets, the end not included."""

    queue: str
    stream: str
    begin: int
    end: int
    _plane: DataPlane = field(repr=False)

    def reader(self, *, columns: Sequence[str] | None = None, body: str | None = None) -> pa.RecordBatchReader:
        """The messages, in order. Raises: PlaneError TRUNCATED, DAMAGED, STREAM_REPLACED, from the reader."""

        def batches() -> Iterator[Any]:
            if self.begin >= self.end:
                return
            tickets, pin = self._plane.stream_plan(self.queue, self.stream, self.begin, self.end)
            try:
                for ticket in tickets:
                    yield from self._plane.read(ticket, columns=columns, body=body)
            finally:
                self._plane.stream_release(self.queue, pin)

        return _reader(columns, batches)


def stream(
    plane: DataPlane,
    queue: str,
    *,
    start: str | dict[str, int] = "earliest",
    after: tuple[str, int] | None = None,
    max_messages: int = 2**62,
    max_bytes: int = 2**62,
) -> Range:
    """What a stream holds now, from a place on.

    Args: start: `earliest`, `latest`, {"offset": n} or {"time_us": t}; after: (stream, end) of the range before, in place of `start`;
    max_messages, max_bytes: of the range, at least one message. Messages that retention took are not in it: compare `begin`.
    Raises: PlaneError NOT_FOUND, FORBIDDEN, NOT_A_STREAM, STREAM_REPLACED.
    """
    known: dict[str, Any] = {} if after is None else {"stream": after[0]}
    place = start if after is None else {"offset": after[1]}
    opened = plane.stream_open(queue, start=place, **known)
    begin, identity = int(opened["offset"]), str(opened["stream"])
    messages, size = min(max_messages, 2**62), min(max_bytes, 2**62)
    end = plane.stream_next(queue, identity, begin, upto=int(opened["next"]), max_messages=messages, max_bytes=size)
    return Range(queue, identity, begin, max(begin, end), plane)


def _reader(columns: Iterable[str] | None, batches: Callable[[], Iterator[Any]]) -> pa.RecordBatchReader:
    import pyarrow as pa

    return pa.RecordBatchReader.from_batches(messages_schema(columns), batches())
