"""Rows of segments come back as they were written, whatever they say; a segment like the one before takes two bytes; no bytes do more than
be refused."""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

import pytest

pytest.importorskip("tests.drivers.run_driver")

from hypothesis import given, settings
from hypothesis import strategies as st

from flintmq.store.checkpoint import MalformedError
from tests.drivers.run_driver import decode_segments, encode_segments
from tests.support import checkpoint_rows as facts

WORD = st.integers(0, 2**64 - 1)
HALF = st.integers(0, 2**32 - 1)
RUN = st.integers(0, 2**61 - 1).map(lambda number: 8 * number)
ANY = st.tuples(WORD, HALF, HALF, WORD, HALF, HALF, st.integers(-(2**63), 2**63 - 1), WORD, RUN)
SLOTS = 1365
HEAD = 16


@st.composite
def plausible(draw: Any) -> list[tuple[int, ...]]:
    """Segments as a queue has them: most of their facts follow from the one before."""
    rows: list[tuple[int, ...]] = []
    base, run, expiry, size = 1, 4672, 0, 100
    for _ in range(draw(st.integers(0, 40))):
        kind = draw(
            st.sampled_from(("same", "same", "same", "gap", "short", "ended", "expires", "delivered", "flagged", "spilled", "earlier"))
        )
        base += draw(st.integers(1, 10_000)) if kind == "gap" else 0
        count = draw(st.integers(1, SLOTS)) if kind == "short" else SLOTS
        live = draw(st.integers(1, count)) if kind == "ended" else count
        expiry += draw(st.integers(-1000, 100_000)) if kind == "expires" else 0
        run = 8 * draw(st.integers(0, 1 << 50)) if kind == "earlier" else run + draw(st.sampled_from((64, 64, 72, 4096)))
        delivered = live if kind == "delivered" else 0
        upto = draw(st.sampled_from((base, base + count - 1, base + count - 1))) if kind == "flagged" else 0
        rows.append((base, count, live, live * size, delivered, 1 if kind == "spilled" else 0, expiry, upto, run))
        base += count
    return rows


@settings(max_examples=300, deadline=None)
@given(WORD, st.integers(0, 255), st.one_of(plausible(), st.lists(ANY, max_size=8)))
def test_rows_come_back(queue_id: int, level: int, rows: list[tuple[int, ...]]) -> None:
    """R1. A reader and a writer that know docs/FORMAT.md alone agree with the store's."""
    data = encode_segments(queue_id, level, rows)
    assert decode_segments(data) == (queue_id, level, rows)
    assert len(data) <= HEAD + 71 * len(rows)
    assert facts.segment_row(queue_id, level, [facts.SegmentFacts(*row) for row in rows]) == data
    assert facts.rows_of(facts.SEGMENTS, 1, data) == [(queue_id, level, tuple(facts.SegmentFacts(*row) for row in rows))]


@settings(max_examples=100, deadline=None)
@given(st.one_of(plausible(), st.lists(ANY, max_size=4)))
def test_no_shorter_bytes_are_taken(rows: list[tuple[int, ...]]) -> None:
    """A level that is cut off at any byte, and one with a byte behind it, are refused."""
    data = encode_segments(7, 0, rows)
    assert decode_segments(data + b"\0") is None
    for size in range(len(data)):
        assert decode_segments(data[:size]) is None


def reads(data: bytes) -> tuple[Any, ...] | None:
    """What the reader of docs/FORMAT.md makes of it."""
    try:
        ((queue_id, level, rows),) = facts.rows_of(facts.SEGMENTS, 1, data)  # type: ignore[misc]
    except MalformedError:
        return None
    return (queue_id, level, [astuple(row) for row in rows]) if level < 256 else None


@settings(max_examples=500, deadline=None)
@given(plausible(), st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4))
def test_other_bytes_are_read_alike_or_refused(rows: list[tuple[int, ...]], changes: list[tuple[int, int]]) -> None:
    """Bytes that became other ones: the store's reader refuses what docs/FORMAT.md does, and reads no other facts."""
    data = bytearray(encode_segments(7, 0, rows))
    for place, value in changes:
        data[place % len(data)] = value
    assert decode_segments(bytes(data)) == reads(bytes(data))


@pytest.mark.parametrize(
    ("row", "good"),
    [
        (b"\x02\x05\x00", True),
        (b"\x02\xff\xff\xff\xff\x0f\x00", True),
        (b"\x02\xff\xff\xff\xff\x1f\x00", False),  # 33 bits of slots
        (b"\x04\xff\xff\xff\xff\xff\x01\x00", False),  # of entries
        (b"\x10\x80\x80\x80\x80\x10\x00", False),  # of those that were delivered
        (b"\x20\x80\x80\x80\x80\x10\x00", False),  # of spilled ones
        (b"\x80" + b"\xff" * 9 + b"\x01\x00", True),
        (b"\x80" + b"\xff" * 9 + b"\x02\x00", False),  # 65 bits of an index
        (b"\x80" + b"\xff" * 10 + b"\x01\x00", False),  # 11 bytes of it
        (b"\x00" + b"\x80" * 9 + b"\x01", True),
        (b"\x00" + b"\x80" * 10 + b"\x00", False),  # of the run
    ],
)
def test_a_number_with_too_many_bits_is_refused(row: bytes, good: bool) -> None:
    head = encode_segments(7, 0, [])[:12] + (1).to_bytes(4, "little")
    assert (decode_segments(head + row) is not None) == good
    assert (reads(head + row) is not None) == good


def test_a_head_that_says_more_than_there_is_is_refused() -> None:
    """More segments than two bytes each, and a level that no queue has."""
    rows = [(1 + SLOTS * number, SLOTS, SLOTS, 136_500, 0, 0, 0, 0, 4672 + 64 * number) for number in range(10)]
    data = encode_segments(7, 255, rows)
    assert decode_segments(data) == (7, 255, rows)
    for count in (9, 11, 1 << 31, (1 << 32) - 1):
        assert decode_segments(data[:12] + count.to_bytes(4, "little") + data[16:]) is None
    assert decode_segments(data[:8] + (256).to_bytes(4, "little") + data[12:]) is None


def test_a_segment_takes_some_bytes() -> None:
    """A queue of 100 million messages of one size: two bytes for each segment. Of sizes that differ, with an expiry each: eight at most."""
    same = [(1 + SLOTS * number, SLOTS, SLOTS, 100 * SLOTS, 0, 0, 0, 0, 4672 + 72 * number) for number in range(73_261)]
    size = len(encode_segments(1, 0, same))
    assert size <= 16 + 2 * len(same) + 30
    mixed = [
        (1 + SLOTS * number, SLOTS, SLOTS, 136_500 + number * 7919 % 9000, 0, 0, 1_790_000_000_000 + 250 * number, 0, 4672 + 7000 * number)
        for number in range(1000)
    ]
    assert len(encode_segments(1, 0, mixed)) <= 8 * len(mixed)
    after_a_crash = [(*row[:7], row[0] + SLOTS - 1, row[8]) for row in same[:1000]]
    assert len(encode_segments(1, 0, after_a_crash)) <= 2 * 1000 + 46
