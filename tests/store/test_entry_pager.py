"""Entries that left memory for the index log: they come back, end by a purge without being read, and a start finds what it found before."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("tests.drivers.run_driver")

from flintmq.config import Limits
from flintmq.errors import StoreError
from flintmq.queue.control import QueueHandle
from flintmq.queue.purge_slices import Sweep
from tests.drivers.run_driver import decode_run, encode_run, lose_index
from tests.store.rig import Rig

PERSISTENT = 1
HEADER = b"\0\x3c" + bytes(12)


def rig_of(**options: Any) -> Rig:
    return Rig(size=65536, hot_bytes=0, limits=Limits(entry_segment=8), **options)


def queue_of(rig: Rig, number: int = 1, levels: int = 1) -> Any:
    core: Any = QueueHandle(number, 1 if levels > 1 else 0, levels)
    core.set_durable(True)
    core.attach_log(rig.store)
    rig.store.attach(core)
    return core


def fill(core: Any, count: int, first: int = 0, **rest: Any) -> None:
    for number in range(first, first + count):
        assert core.publish(b"", b"key", HEADER, b"%d" % number, PERSISTENT, 0, **rest)


def page_out(rig: Rig) -> int:
    for _ in range(12):
        rig.store.pager.once()
    return int(rig.store.pager.figures["out"])


def take_all(core: Any) -> list[bytes]:
    bodies = []
    while (taken := core.take_head(1)) is not None:
        bodies.append(taken[3])
    return bodies


def test_a_backlog_leaves_memory_and_comes_back_in_order() -> None:
    rig = rig_of()
    core = queue_of(rig)
    fill(core, 200)
    assert page_out(rig) >= 20
    rig.flush()
    assert take_all(core) == [b"%d" % number for number in range(200)]
    rig.flush()
    assert rig.messages.live_count == 0
    core.mark_deleted()


def test_what_is_addressed_by_its_position_comes_back() -> None:
    rig = rig_of()
    core = queue_of(rig)
    fill(core, 200)
    page_out(rig)
    assert core.message_at(100)[3] == b"99" and core.hold(100) and not core.hold(100)
    assert core.entry_facts(120) == (True, 0, 0)
    assert core.message_id_at(140) != 0
    assert core.next_available(100) == 101
    assert core.peek(160)[0] == 160
    core.release_held(100)


@pytest.mark.parametrize("clean", [False, True])
def test_a_restart_finds_everything(clean: bool) -> None:
    rig = rig_of()
    core = queue_of(rig)
    fill(core, 200)
    page_out(rig)
    for _ in range(30):
        assert core.take_head(1)
    page_out(rig)
    rig.flush()
    rig.reopen(clean=clean)
    core = queue_of(rig)
    rig.store.restore(core)
    page_out(rig)
    assert take_all(core) == [b"%d" % number for number in range(30, 200)]


def test_redelivered_ranges_of_a_clean_stop_reach_into_what_left_memory() -> None:
    rig = rig_of()
    core = queue_of(rig)
    fill(core, 200)
    assert core.hold(200) and core.show(200)
    rig.flush()
    rig.reopen(clean=False)  # all of them count as delivered from here on
    core = queue_of(rig)
    rig.store.restore(core)
    fill(core, 100, 200)
    page_out(rig)
    rig.reopen(clean=True)
    core = queue_of(rig)
    rig.store.restore(core)
    assert [core.is_redelivered(position) for position in (1, 100, 200, 201, 300)] == [True, True, True, False, False]


def test_a_purge_is_counted_out_later() -> None:
    rig = rig_of()
    core = queue_of(rig)
    fill(core, 200)
    page_out(rig)
    before = rig.messages.tail
    sweep: Any = Sweep(core, False)
    while not sweep.step(10_000):
        pass
    assert sweep.removed == 200 and core.ready_count() == 0
    assert rig.messages.tail - before < 6000, "no record for each message"
    assert rig.messages.live_count > 0, "the messages of shells are still counted"
    while rig.store.pager.figures["burials"]:
        rig.store.pager.once()
    assert rig.messages.live_count == 0
    rig.flush()
    rig.reopen(clean=False)
    assert rig.recovered()[1] == {}


def test_a_deleted_queue_is_counted_out() -> None:
    rig = rig_of()
    core = queue_of(rig)
    fill(core, 200)
    page_out(rig)
    core.mark_deleted()
    rig.store.drop_queue(1)
    sweep: Any = Sweep(core, True)
    while not sweep.step(10_000):
        pass
    while rig.store.pager.figures["burials"]:
        rig.store.pager.once()
    assert rig.messages.live_count == 0


def test_a_message_on_two_queues_keeps_its_segment_in_memory() -> None:
    rig = rig_of()
    core = queue_of(rig)
    fill(core, 60)
    rig.next[1] = 61
    page_out(rig)
    before = rig.store.pager.figures["out"]
    assert before > 0


def test_copy_forward_moves_messages_whose_entries_left_memory() -> None:
    rig = rig_of()
    core = queue_of(rig)
    fill(core, 400)
    rig.flush()
    page_out(rig)
    held = [position for position in range(1, 400) if position % 7]
    for position in held:
        assert core.hold(position) and core.settle_held(position, 1, False)
    page_out(rig)
    rig.settle()
    assert take_all(core) == [b"%d" % (position - 1) for position in range(1, 401) if position not in set(held)]


def test_an_index_log_that_is_lost_stops_the_store_and_loses_nothing() -> None:
    rig = rig_of()
    core = queue_of(rig)
    fill(core, 200)
    page_out(rig)
    rig.flush()
    lose_index(rig.store)
    with pytest.raises(StoreError, match="index log"):
        core.message_at(100)
    rig.reopen(clean=False)
    core = queue_of(rig)
    rig.store.restore(core)
    assert take_all(core) == [b"%d" % number for number in range(200)]


entry = st.tuples(
    st.integers(1, 5),  # step of the position
    st.integers(-(2**40), 2**40),  # step of the message id
    st.integers(0, 2**32 - 1) | st.just(100),
    st.sampled_from([0, 1, 3 << 16, 0xFFFF0001]),
    st.sampled_from([0, 0, 1_700_000_000_000]) | st.integers(0, 2**62),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(entry, min_size=1, max_size=60), st.integers(0, 2**63), st.integers(1, 2**56 - 400), st.integers(0, 255))
def test_a_run_reads_back_as_it_was(steps: list[tuple[int, ...]], queue: int, first: int, level: int) -> None:
    rows, position, message = [], (level << 56) | first, 2**62
    for step, id_step, size, flags, expiry in steps:
        position += step
        message += id_step
        rows.append((position, message, expiry, size, flags))
    data = encode_run(queue, rows)
    assert decode_run(data) == (queue, rows)
    for end in range(len(data)):
        assert decode_run(data[:end]) is None, "a run that was cut off is none"


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=120))
def test_any_bytes_are_a_run_or_none(data: bytes) -> None:
    decode_run(data)


def test_a_dense_run_takes_few_bytes() -> None:
    rows = [(1 + number, 10_000 + 152 * number, 0, 100, 0) for number in range(1365)]
    assert len(encode_run(1, rows)) < 60
