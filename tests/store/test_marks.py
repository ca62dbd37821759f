"""Marks say what the log would forget with its oldest containers, to the byte: a record that ends where the base would be is lost."""

from __future__ import annotations

from typing import Any

from flintmq.store import logs
from tests.store.rig import Rig
from tests.store.test_maintenance import queue_of


def test_a_queue_with_a_fresh_record_needs_no_mark() -> None:
    """Only queues whose last record the base would pass are marked, and after their mark they are not, until it goes itself."""
    rig = Rig(size=4096)
    quiet, busy = queue_of(rig, 1, 1), queue_of(rig, 2, 1)
    quiet.publish(b"x", b"k", b"h", b"b", 1, 0)
    border = rig.messages.tail
    busy.publish(b"x", b"k", b"h", b"b", 1, 0)
    wanted: list[Any] = rig.store.tails_below(border)
    assert [(queue, levels) for queue, levels, _ in wanted] == [(1, [1])]
    rig.store.write_marks(wanted, rig.messages.tail)
    assert rig.store.tails_below(border) == []
    assert len(rig.store.tails_below(rig.messages.tail)) == 2


def test_filler_and_names_fit_a_record() -> None:
    """What clients and repairs hand in is cut to what a record of the smallest log holds."""
    assert len(logs.filler(10**9)[1]) <= logs.FILLER_MAX + 8
    assert len(logs.filler(-5)[1]) == 8
    kind, payload = logs.name_record(7, b"t" * 10_000, b"g" * 10_000)
    assert (kind, len(payload)) == (9, 16 + 2 * (2 + logs.NAME_BYTES_MAX))
