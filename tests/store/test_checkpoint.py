"""A checkpoint counts when it is whole and is one of the message log that is there; whatever else is found, the older one or none does."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flintmq.store import checkpoint as cp
from tests.support import checkpoint_rows as facts

WORD = st.integers(0, 2**64 - 1)
HALF = st.integers(0, 2**32 - 1)
TIME = st.integers(-(2**63), 2**63 - 1)
CONTAINER = st.builds(facts.ContainerFacts, WORD, WORD, WORD, WORD)
RUN = st.integers(0, 2**61 - 1).map(lambda number: 8 * number)
SEGMENT = st.builds(facts.SegmentFacts, WORD, HALF, HALF, WORD, HALF, HALF, TIME, WORD, RUN)
LISTED = st.builds(
    facts.ListedFacts,
    WORD,
    st.lists(st.tuples(WORD, WORD, TIME, WORD, WORD), max_size=4).map(tuple),
    st.lists(WORD, max_size=3).map(tuple),
)
HISTORY = cp.History(begin=9000, epoch=3, container_size=4096, tail=12000, named_tx=5)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(CONTAINER, max_size=5),
    st.dictionaries(WORD, st.sets(st.integers(0, 255), min_size=1), max_size=4),
    st.lists(st.tuples(WORD, st.lists(WORD, max_size=10).map(tuple)), max_size=4),
    st.lists(st.tuples(WORD, HALF, st.lists(SEGMENT, max_size=5).map(tuple)), max_size=4),
    st.lists(st.tuples(WORD, WORD), max_size=5),
    st.lists(LISTED, max_size=4),
    st.integers(1, 400),
)
def test_rows_come_back(containers: Any, deaths: Any, tails: Any, segments: Any, moved: Any, listed: Any, most: int) -> None:
    """Every kind of rows, cut into parts anywhere, is what was written, in its order."""
    dead = [(sequence, tuple(sorted(grains))) for sequence, grains in deaths.items()]
    for kind, rows, wanted in (
        (facts.CONTAINERS, [facts.container_row(one) for one in containers], containers),
        (facts.DEATHS, [facts.death_row(sequence, grains, 256) for sequence, grains in dead], dead),
        (facts.TAILS, [facts.tail_row(*one) for one in tails], tails),
        (facts.SEGMENTS, [facts.segment_row(*one) for one in segments], segments),
        (facts.MOVED, [facts.moved_row(*one) for one in moved], moved),
        (facts.LISTED, [facts.listed_row(one) for one in listed], listed),
    ):
        back: list[object] = []
        for number, (one, held) in enumerate(facts.parts(kind, rows, most)):
            data = facts.part(one, number, held)
            back += facts.rows_of(kind, len(held), data[16:])
        assert back == wanted


def test_deaths_take_the_shorter_form() -> None:
    """A few deaths take four bytes each, many a bit of the container each."""
    assert len(facts.death_row(7, range(3), 4096)) == 16 + 16
    assert len(facts.death_row(7, range(0, 4096, 2), 4096)) == 16 + 512


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 8), st.integers(0, 10), st.binary(max_size=200))
def test_no_bytes_do_more_than_be_refused(kind: int, count: int, data: bytes) -> None:
    """Whatever a part has: rows, or the one error."""
    try:
        rows = facts.rows_of(kind, count, data)
    except cp.MalformedError:
        return
    assert len(rows) == count


class Log:
    """Records of an index log, as a scan gives them."""

    def __init__(self) -> None:
        self.records: list[tuple[int, int, int, bytes]] = []
        self.tail = 4672

    def add(self, kind: int, undo_prev: int, data: bytes) -> int:
        self.records.append((self.tail, kind, undo_prev, data))
        self.tail += (24 + len(data) + 7) // 8 * 8
        return self.records[-1][0]

    def run(self) -> int:
        return self.add(facts.INDEX_RUN, 0, b"entries")

    def checkpoint(self, runs: list[int], history: cp.History = HISTORY) -> int:
        segments = [facts.SegmentFacts(1 + 512 * number, 512, 512, 5120, 0, 0, 0, 0, run) for number, run in enumerate(runs)]
        rows = [
            *facts.parts(facts.CONTAINERS, [facts.container_row(facts.ContainerFacts(2, 10, 4, 999))]),
            *facts.parts(facts.SEGMENTS, [facts.segment_row(3, 0, [one]) for one in segments], 100),
            *facts.parts(facts.TAILS, [facts.tail_row(3, [512 * len(runs)])]),
        ]
        first = 0
        places = []
        for number, (kind, held) in enumerate(rows):
            places.append(self.add(cp.CHECKPOINT_PART, first, facts.part(kind, number, held)))
            first = first or places[0]
        return self.add(cp.CHECKPOINT, first, cp.last_record(history, places))


def whole(records: list[tuple[int, int, int, bytes]]) -> cp.Finder:
    finder = cp.Finder()
    for record in records:
        finder.take(*record)
    return finder


def chosen(records: list[tuple[int, int, int, bytes]]) -> int:
    """LSN of the last record of the newest whole checkpoint whose parts do not contradict themselves, 0: there is none."""
    return next((one.last for one in reversed(whole(records).whole) if not contradicts(one)), 0)


def contradicts(one: cp.Checkpoint) -> bool:
    try:
        for kind, count, data in one.parts:
            facts.rows_of(kind, count, data)
    except cp.MalformedError:
        return True
    return False


def test_the_newest_whole_one_counts() -> None:
    """After each record of a log: the last checkpoint whose last record is there, never a half."""
    log = Log()
    runs = [log.run() for _ in range(5)]
    first = log.checkpoint(runs)
    runs += [log.run() for _ in range(3)]
    second = log.checkpoint(runs)
    for count in range(len(log.records) + 1):
        lasts = {record[0] for record in log.records[:count]}
        assert chosen(log.records[:count]) == (second if second in lasts else first if first in lasts else 0)


def test_without_any_one_of_its_records_the_older_one_counts() -> None:
    """A part that is lost: the checkpoint is not believed."""
    log = Log()
    old = [log.run() for _ in range(2)]
    first = log.checkpoint(old)
    second = log.checkpoint(old + [log.run() for _ in range(3)])
    for number in range(len(log.records)):
        lsn, kind, _, _ = log.records[number]
        last = chosen(log.records[:number] + log.records[number + 1 :])
        assert last == (second if lsn <= first or kind == facts.INDEX_RUN else first)


def test_the_last_two_are_kept() -> None:
    """An older one is there when the newest one is refused; what came before those two is not needed."""
    log = Log()
    lasts = [log.checkpoint([log.run()]) for _ in range(4)]
    assert [one.last for one in whole(log.records).whole] == lasts[-2:]


@pytest.mark.parametrize("seed", range(200))
def test_a_record_that_is_another_one_is_no_part(seed: int) -> None:
    """Bytes that say something else under a good CRC (another program's): either the same facts are read, or it is not believed."""
    rng = random.Random(seed)
    log = Log()
    runs = [log.run() for _ in range(3)]
    first = log.checkpoint(runs)
    log.checkpoint(runs)
    number = rng.choice([place for place, one in enumerate(log.records) if one[0] > first])
    lsn, kind, undo_prev, data = log.records[number]
    changed = bytearray(data)
    changed[rng.randrange(12 if kind == cp.CHECKPOINT_PART else 8)] ^= 1 << rng.randrange(8)
    log.records[number] = (lsn, kind, undo_prev, bytes(changed))
    assert chosen(log.records) == first


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"container_size": 8192}, "another container size"),
        ({"tail": 12001}, "ends before"),
        ({"begin": 12001, "tail": 12000}, "ends before"),
        ({"begin": 8191}, "begins behind"),
    ],
)
def test_it_must_be_one_of_this_message_log(change: dict[str, int], reason: str | None) -> None:
    """Container size, end and base of the log are compared with those of the checkpoint."""
    fields = {name: getattr(HISTORY, name) for name in ("begin", "epoch", "container_size", "tail", "named_tx")}
    history = cp.History(**(fields | change))
    text = cp.misfit(history, 8192, 12000, 4096)
    assert text is None if reason is None else reason in str(text)


def test_a_last_record_of_another_version_is_none() -> None:
    """A later program's checkpoint is not read by this one."""
    log = Log()
    last = log.checkpoint([log.run()])
    lsn, kind, undo_prev, data = log.records[-1]
    assert lsn == last
    log.records[-1] = (lsn, kind, undo_prev, struct.pack("<I", cp.VERSION + 1) + data[4:])
    assert whole(log.records).whole == [] and whole(log.records).other_version == cp.VERSION + 1
