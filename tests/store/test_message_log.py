"""Messages of every size read back equal: from buffers, from disk, after a restart, after copy-forward."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.store.rig import Rig


@settings(max_examples=25, deadline=None)
@given(st.sampled_from((4096, 8192, 16384)), st.integers(0, 2**32))
def test_messages_of_all_sizes_come_back(size: int, seed: int) -> None:
    """0 B to 300 KB, several at a time, over any number of containers."""
    rng = random.Random(seed)
    rig = Rig(size=size)
    for _ in range(rng.choice((1, 4, 12))):
        length = rng.choice((0, 1, 100, 1000, 1024, 4000, 5000, 16384, 16385, 70_000, 300_000))
        rig.publish(*rng.sample((1, 2, 3), rng.choice((1, 2))), body=rng.randbytes(max(0, length - rng.randrange(3))))
        if rng.random() < 0.3:
            rig.check_contents()
        if rng.random() < 0.3:
            rig.flush()
            rig.store.maintain()
    rig.check_contents()
    rig.settle()
    rig.check_contents()
    rig.reopen(clean=rng.random() < 0.5)
    assert rig.recovered() == rig.model
    rig.check_contents()
    for _ in range(rng.choice((20, 120))):
        rig.publish(1, body=bytes(1000))
        rig.ack(1, rig.next[1] - 1)
        if rng.random() < 0.2:
            rig.flush()
            rig.store.maintain()
    rig.settle()
    rig.check_contents()
    rig.reopen(clean=False)
    assert rig.recovered() == rig.model
    rig.check_contents()


@pytest.mark.parametrize("size", range(3340, 3500, 8))
def test_a_message_at_the_end_of_a_container(size: int) -> None:
    """Around the size that just fits, the enqueue stays with its message: both come back."""
    rig = Rig(size=16384)
    for _ in range(8):
        rig.publish(1, body=bytes([size % 251]) * size)
    rig.settle()
    rig.reopen(clean=False)
    assert rig.recovered() == rig.model
    rig.check_contents()


def test_a_deleted_queue_takes_its_entries_along() -> None:
    """Messages that stood on the deleted queue alone are gone, those on others stay; a restart agrees, and their space comes back."""
    rig = Rig(size=4096)
    for number in range(60):
        rig.publish(1, *([2] if number % 3 == 0 else []), body=bytes(200))
    rig.settle()
    rig.store.drop_queue(1)
    rig.model[1] = {}
    rig.settle()
    assert rig.entries() == rig.model
    rig.reopen(clean=False)
    assert rig.recovered() == rig.model
    rig.check_contents()
    rig.settle()
    assert rig.messages.used_bytes <= 2 * rig.messages.live_bytes + 4 * rig.size


def test_a_clean_stop_keeps_who_was_delivered_and_an_unclean_one_flags_what_may_have_been() -> None:
    """After a clean stop exactly the entries that were delivered are flagged redelivered; after any other stop those that the queue's mark
    covers, and all of a queue without a mark."""
    from tests.drivers.delivered_driver import Taker
    from tests.store.test_maintenance import queue_of

    rig = Rig(size=8192)
    handle, unmarked = queue_of(rig, 1, 1), [rig.publish(2) for _ in range(3)]
    for _ in range(6):
        handle.publish(b"x", b"k", b"h", b"b", 1, 0)
    rig.settle()
    rig.reopen(clean=True)
    assert [one[4] for one in rig.driver.recovered(1)] == [False] * 6
    assert [one[4] for one in rig.driver.recovered(2)] == [False] * len(unmarked)
    rig.reopen(clean=False)
    assert [one[4] for one in rig.driver.recovered(1)] == [False] * 6
    assert [one[4] for one in rig.driver.recovered(2)] == [True] * len(unmarked)
    taker = Taker(queue_of(rig, 1, 1), False)
    assert taker.take() == (-1, False)
    rig.flush()
    assert taker.take() == (1, False)
    rig.reopen(clean=False)
    assert [one[4] for one in rig.driver.recovered(1)] == [True] * 6, "six are less than a step"
