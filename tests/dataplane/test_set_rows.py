"""The messages of a sealed set: each is in one slice and one piece, in one order, whoever asks."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import pairwise

import pytest

from flintmq.dataplane.set_rows import bounds, pieces, rows_of
from flintmq.shared.batch_rows import SealedSet
from flintmq.transactions.bulk import INLINE, ROW


@dataclass
class One:
    deliveries: int
    is_redelivered: bool
    content: tuple[bytes, bytes, bytes, bytes] | None


@pytest.mark.parametrize("seed", range(20))
def test_each_message_is_in_one_slice_and_one_piece(seed: int) -> None:
    chance = random.Random(seed)
    parts = {f"{queue}": (chance.randint(0, 30), chance.randint(0, 5_000)) for queue in range(chance.randint(1, 5))}
    sealed = SealedSet(1, 0, 0, parts)
    again = SealedSet(1, 0, 0, dict(reversed(parts.items())))
    slices = chance.randint(1, 12)
    ends = bounds(sealed, slices)
    assert ends == bounds(again, slices)
    assert (ends[0], ends[-1]) == (0, sealed.count) and len(ends) == 1 + min(slices, sealed.count)
    messages = [
        (piece.queue, piece.first + index, piece.number + index)
        for begin, end in pairwise(ends)
        for piece in pieces(sealed, begin, end)
        for index in range(piece.count)
    ]
    assert [number for _, _, number in messages] == list(range(sealed.count))
    assert [(queue, place) for queue, place, _ in messages] == [
        (queue, place) for queue, (count, _) in sorted(parts.items()) for place in range(count)
    ]
    assert list(pieces(again, 0, sealed.count)) == list(pieces(sealed, 0, sealed.count))


def test_slices_have_about_as_many_bytes() -> None:
    sealed = SealedSet(1, 0, 0, {"large": (10, 100_000), "small": (1_000, 1_000)})
    sizes = [10_064] * 10 + [65] * 1_000  # each message counts as work, too
    weights = [sum(sizes[begin:end]) for begin, end in pairwise(bounds(sealed, 3))]
    assert max(weights) - min(weights) < 2 * 10_064


def test_a_message_that_can_not_be_read_contradicts_itself_and_stops_no_other() -> None:
    rows, contents = rows_of(3, 7, [One(70_000, True, None), One(0, False, (b"x", b"key", b"head", b"body"))])
    first, second = ROW.unpack(rows[0]), ROW.unpack(rows[1])
    assert (first[0], second[0]) == (3 << 20 | 8, 3 << 20 | 9)
    assert (first[3:6], second[3:6]) == ((0, 0xFFFF, 1), (4, 0, 0))
    length, header, _ = INLINE.unpack_from(contents[1])
    assert (length, header, contents[1][INLINE.size :]) == (14, 4, b"\1x\3keyheadbody")
    assert contents[0][INLINE.size :] == b"\0\0"
