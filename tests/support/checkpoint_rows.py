"""Rows of a checkpoint's parts as Python values: written and read from docs/FORMAT.md, apart from the store's code.

in: facts, or bytes. out: bytes, or facts; MalformedError for lengths and numbers that contradict the bytes.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable, Iterator, Sequence

from flintmq.slotted import slotted
from flintmq.store.checkpoint import MalformedError

INDEX_RUN = 72
# kinds of parts
CONTAINERS = 1
DEATHS = 2
TAILS = 3
SEGMENTS = 4
MOVED = 5
LISTED = 6
PART_BYTES = 32 << 10

_HEAD = struct.Struct("<IIII")  # kind, number of the part, rows, zero
_CONTAINER = struct.Struct("<QQQQ")
_DEATH = struct.Struct("<QII")
_TAIL = struct.Struct("<QII")
_SEGMENT_HEAD = struct.Struct("<QII")
_MOVED = struct.Struct("<QQ")
_LISTED = struct.Struct("<QII")
_PLACE = struct.Struct("<QQqQQ")


@slotted(frozen=True)
class ContainerFacts:
    """A container of the message log: things that were ever in it below the begin of the checkpoint, those of them that live."""

    sequence: int
    count: int
    live: int
    bytes: int


@slotted(frozen=True)
class SegmentFacts:
    """One segment of a queue's level: a shell, or a snapshot of one in memory; `run` has its entries."""

    base: int
    count: int
    live: int
    bytes: int
    redelivered: int
    spilled: int
    expiry_min: int
    flagged_upto: int
    run: int


@slotted(frozen=True)
class ListedFacts:
    """A message of the message list: places as (queue id, position, expiry, enqueued by, dequeued by), transactions that it names."""

    id: int
    places: tuple[tuple[int, int, int, int, int], ...]
    names: tuple[int, ...] = ()


FIRST = SegmentFacts(0, 0, 0, 0, 0, 0, 0, 0, 0)
# facts of a row in the order of their flags, and how a number says one
_CODED = {
    "base": "difference",
    "count": "half",
    "live": "half",
    "bytes": "difference",
    "redelivered": "half",
    "spilled": "half",
    "expiry_min": "difference",
    "flagged_upto": "whole",
}
_WORD = 1 << 64


def _signed(value: int) -> int:
    """A difference modulo 2^64."""
    return (value + _WORD // 2) % _WORD - _WORD // 2


def _folded(value: int, unit: int = 1) -> int:
    signed = _signed(value) // unit
    return 2 * signed if signed >= 0 else -2 * signed - 1


def _number(value: int) -> bytes:
    data = bytearray()
    while value >= 128:
        data.append(value & 127 | 128)
        value >>= 7
    return bytes([*data, value])


def _expected(before: SegmentFacts, base: int, count: int) -> SegmentFacts:
    """What follows from the segment before; first index and slots are this one's."""
    whole = before.count and before.flagged_upto == (before.base + before.count - 1) % _WORD
    upto = (base + count - 1) % _WORD if whole else before.flagged_upto
    return SegmentFacts(base, count, count, before.bytes, before.redelivered, before.spilled, before.expiry_min, upto, before.run)


def part(kind: int, number: int, rows: Sequence[bytes]) -> bytes:
    """Own fields of a Checkpoint-Part."""
    return _HEAD.pack(kind, number, len(rows), 0) + b"".join(rows)


def parts(kind: int, rows: Iterable[bytes], most: int = PART_BYTES) -> Iterator[tuple[int, list[bytes]]]:
    """Rows of one kind in parts of at most `most` bytes (a longer row has one of its own): (kind, rows)."""
    held: list[bytes] = []
    size = 0
    for row in rows:
        if held and size + len(row) > most:
            yield kind, held
            held, size = [], 0
        held.append(row)
        size += len(row)
    if held:
        yield kind, held


def container_row(facts: ContainerFacts) -> bytes:
    return _CONTAINER.pack(facts.sequence, facts.count, facts.live, facts.bytes)


def death_row(sequence: int, grains: Sequence[int], container_grains: int) -> bytes:
    """What died in a container: as a list of grains, or as a bit map when that is shorter."""
    if 4 * len(grains) <= (container_grains + 7) // 8:
        body = struct.pack(f"<{len(grains)}I", *grains)
        head = _DEATH.pack(sequence, 0, len(grains))
    else:
        bits = bytearray((container_grains + 7) // 8)
        for grain in grains:
            bits[grain >> 3] |= 1 << (grain & 7)
        body = bytes(bits)
        head = _DEATH.pack(sequence, 1, len(body))
    return (head + body).ljust(len(head) + (len(body) + 7) // 8 * 8, b"\0")


def tail_row(queue_id: int, tails: Sequence[int]) -> bytes:
    return _TAIL.pack(queue_id, len(tails), 0) + struct.pack(f"<{len(tails)}Q", *tails)


def segment_row(queue_id: int, level: int, facts: Sequence[SegmentFacts]) -> bytes:
    """Args: runs are multiples of 8."""
    rows = []
    before, step = FIRST, 0
    for one in facts:
        flags, numbers = 0, b""
        wanted = _expected(before, one.base, one.count)
        for place, (name, coded) in enumerate(_CODED.items()):
            value, expected = getattr(one, name), getattr(wanted, name)
            if name == "base":
                expected = before.base + before.count
            elif name == "count":
                expected = before.count
            if value != expected:
                flags |= 1 << place
                numbers += _number(_folded(value - expected) if coded == "difference" else value)
        rows.append(bytes([flags]) + numbers + _number(_folded((one.run - before.run - step), 8)))
        before, step = one, one.run - before.run
    return _SEGMENT_HEAD.pack(queue_id, level, len(facts)) + b"".join(rows)


def moved_row(message_id: int, lsn: int) -> bytes:
    return _MOVED.pack(message_id, lsn)


def listed_row(facts: ListedFacts) -> bytes:
    head = _LISTED.pack(facts.id, len(facts.places), len(facts.names))
    return head + b"".join(_PLACE.pack(*place) for place in facts.places) + struct.pack(f"<{len(facts.names)}Q", *facts.names)


class _Reader:
    """Rows of a part, with their lengths checked (K4)."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.offset = 0

    def take(self, form: struct.Struct) -> tuple[int, ...]:
        if self.offset + form.size > len(self.data):
            raise MalformedError("a row is cut off")
        fields = form.unpack_from(self.data, self.offset)
        self.offset += form.size
        return fields

    def many(self, letter: str, size: int, count: int) -> tuple[int, ...]:
        if count > (len(self.data) - self.offset) // size:
            raise MalformedError("a row says that it is longer than its part")
        fields = struct.unpack_from(f"<{count}{letter}", self.data, self.offset)
        self.offset += count * size
        return fields

    def number(self, most: int = 64) -> int:
        value = 0
        for place in range(10):
            byte = self.piece(1)[0]
            value |= (byte & 127) << 7 * place
            if byte < 128 and value < 1 << most:
                return value
            if byte < 128:
                break
        raise MalformedError("a number has too many bits")

    def difference(self) -> int:
        value = self.number()
        return value >> 1 if value & 1 == 0 else -(value >> 1) - 1

    def piece(self, size: int) -> bytes:
        if size > len(self.data) - self.offset:
            raise MalformedError("a row says that it is longer than its part")
        self.offset += size
        return self.data[self.offset - size : self.offset]


def _deaths(reader: _Reader) -> tuple[int, tuple[int, ...]]:
    sequence, form, size = reader.take(_DEATH)
    if form == 0:
        grains = reader.many("I", 4, size)
        padding = -4 * size % 8
    elif form == 1:
        bits = reader.piece(size)
        grains = tuple(8 * place + bit for place, byte in enumerate(bits) if byte for bit in range(8) if byte >> bit & 1)
        padding = -size % 8
    else:
        raise MalformedError(f"deaths of form {form}")
    reader.piece(padding)
    if any(right <= left for left, right in itertools.pairwise(grains)):
        raise MalformedError("deaths do not rise")
    return sequence, grains


def _segments(reader: _Reader, count: int) -> Iterator[SegmentFacts]:
    if count > len(reader.data) // 2:
        raise MalformedError("more segments than the part has bytes for")
    before, step = FIRST, 0
    for _ in range(count):
        flags = reader.piece(1)[0]
        base = before.base + before.count + (reader.difference() if flags & 1 else 0)
        slots = reader.number(32) if flags & 2 else before.count
        expected = _expected(before, base % _WORD, slots)
        values = {"base": base % _WORD, "count": slots}
        for place, (name, coded) in enumerate(_CODED.items()):
            if name in values:
                continue
            value = getattr(expected, name)
            if flags >> place & 1:
                value = value + reader.difference() if coded == "difference" else reader.number(32 if coded == "half" else 64)
            values[name] = _signed(value) if name == "expiry_min" else value % _WORD
        run = (before.run + step + 8 * reader.difference()) % _WORD
        step = run - before.run
        before = SegmentFacts(**values, run=run)
        yield before


def _row(kind: int, reader: _Reader) -> object:
    if kind == CONTAINERS:
        return ContainerFacts(*reader.take(_CONTAINER))
    if kind == DEATHS:
        return _deaths(reader)
    if kind == TAILS:
        queue_id, levels, _ = reader.take(_TAIL)
        return queue_id, reader.many("Q", 8, levels)
    if kind == SEGMENTS:
        queue_id, level, count = reader.take(_SEGMENT_HEAD)
        return queue_id, level, tuple(_segments(reader, count))
    if kind == MOVED:
        return reader.take(_MOVED)
    if kind == LISTED:
        message_id, places, names = reader.take(_LISTED)
        if places > len(reader.data) // _PLACE.size:
            raise MalformedError("more places than the part has bytes for")
        stands = tuple(reader.take(_PLACE) for _ in range(places))
        return ListedFacts(message_id, stands, reader.many("Q", 8, names))  # type: ignore[arg-type]
    raise MalformedError(f"a part of kind {kind}")


def rows_of(kind: int, count: int, data: bytes) -> list[object]:
    """The rows of a part. Raises: MalformedError."""
    reader = _Reader(data)
    rows = []
    for _ in range(count):
        if reader.offset == len(data):
            raise MalformedError("fewer rows than the part says")
        rows.append(_row(kind, reader))
    if reader.offset != len(data):
        raise MalformedError("bytes behind the last row")
    return rows
