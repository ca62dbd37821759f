"""Wherever the driver dies and whatever retention takes: a query on streams has each message once, in order, or says what it lost."""

from __future__ import annotations

import copy
import itertools
import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flintmq.flight.calls import Calls
from flintmq.flight.plane_error import PlaneError
from pyspark_flintmq import cursor as cursor_module
from pyspark_flintmq.cursor import Cursor, are_streams, note_missing
from pyspark_flintmq.errors import SourceError
from pyspark_flintmq.queue_options import QueueOptions


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cursor_module.time, "sleep", lambda seconds: None)


class FakeStreams:
    """The data plane's calls on streams, as docs/DATAPLANE.md has them. Every message has 10 bytes."""

    def __init__(self, **counts: int) -> None:
        self.streams = {name: [f"{name}-1", 0, count] for name, count in counts.items()}
        self.plain: set[str] = set()
        self.pins: set[str] = set()
        self.made = 0

    def append(self, name: str, count: int) -> None:
        self.streams[name][2] += count

    def retain(self, name: str, first: int) -> None:
        self.streams[name][1] = max(self.streams[name][1], min(first, self.streams[name][2]))

    def close(self) -> None: ...

    @property
    def calls(self) -> Calls:
        return Calls(self._action)

    def _action(self, name: str, arguments: dict[str, Any], wait_s: float) -> Any:
        queue = arguments["queue"]
        if queue in self.plain:
            raise PlaneError("NOT_A_STREAM", f"queue '{queue}' is no stream")
        if queue not in self.streams:
            raise PlaneError("NOT_FOUND", f"no queue '{queue}'")
        identity, first, following = self.streams[queue]
        if arguments.get("stream", identity) != identity:
            raise PlaneError("STREAM_REPLACED", "another one")
        answer = {"queue": queue, "stream": identity, "first": first, "next": following, "bytes": 10 * (following - first)}
        if name == "stream.open":
            start = arguments.get("start", "earliest")
            offset = first if start == "earliest" else following if start == "latest" else start["offset"]
            return {**answer, "offset": max(first, min(following, offset))}
        offset = arguments.get("offset", first)
        if name == "stream.next":
            self.pins.discard(arguments.get("release", ""))
            offset = max(offset, first)
            least = min(arguments["max_messages"], max(1, arguments["max_bytes"] // 10))
            return {**answer, "offset": max(offset, min(following, arguments.get("upto", following), offset + least))}
        if name == "stream.tail":
            behind = max(0, following - max(first, offset))
            return {**answer, "behind_messages": behind, "behind_bytes": 10 * behind, "oldest_age_ms": int(behind > 0)}
        assert name == "stream.plan"
        end, lost = arguments["end"], max(0, min(arguments["end"], first) - offset)
        assert end <= following
        if lost and not arguments["tolerant"]:
            raise PlaneError("TRUNCATED", f"retention took {offset} to {first - 1}")
        self.pins.discard(arguments.get("release", ""))
        self.made += 1
        self.pins.add(f"pin{self.made}")
        begin, slices = offset + lost, min(arguments["slices"], end - offset - lost)
        if "key" in arguments:
            tickets = [
                {"kind": "stream", "queue": queue, "first_offset": begin, "end_offset": end, "slice": part, "slices": arguments["slices"]}
                for part in range(arguments["slices"] if end > begin else 0)
            ]
            return {**answer, "pin": f"pin{self.made}", "count": end - begin, "lost": lost, "tickets": tickets}
        cuts = [begin + (end - begin) * number // slices for number in range(slices + 1)] if slices else []
        tickets = [{"kind": "stream", "queue": queue, "first_offset": a, "end_offset": b} for a, b in itertools.pairwise(cuts)]
        return {**answer, "pin": f"pin{self.made}", "count": end - begin, "lost": lost, "tickets": tickets}


def options(*queues: str, **raw: Any) -> QueueOptions:
    given = {"queues": ",".join(queues or ("s",)), **{key: str(value) for key, value in raw.items()}}
    return QueueOptions.stream(given)


class FakeSpark:
    """A driver with a checkpoint. `dies(point)` says where it dies; offsets, commits and the sink survive that."""

    def __init__(self, plane: FakeStreams, asked: QueueOptions, limits: tuple[int, int] = (4, 10**9)) -> None:
        self.plane, self.options, self.limits = plane, asked, limits
        self.offsets: list[str] = []
        self.commits = 0
        self.sink: dict[int, list[tuple[str, int]]] = {}

    def life(self, batches: int, dies: Any = lambda point: False) -> None:
        """One life of the driver: at most so many batches. Returns when it died, or has nothing to do."""
        cursor = Cursor(copy.deepcopy(self.options), lambda: self.plane)
        start = json.loads(self.offsets[self.commits - 1]) if self.commits else cursor.initial()
        for _ in range(batches):
            number = self.commits
            if number == len(self.offsets):
                end = cursor.latest(start, *self.limits)
                if json.dumps(end) == json.dumps(start) and number:
                    return  # the first batch is run though it is empty: it notes where the query begins
                if dies("offset"):
                    return
                self.offsets.append(json.dumps(end))
            end = json.loads(self.offsets[number])
            if dies("plan"):
                return
            tickets = [json.loads(ticket) for ticket in cursor.tickets(start, end)]
            rows = [(ticket["queue"], offset) for ticket in tickets for offset in range(ticket["first_offset"], ticket["end_offset"])]
            if number in self.sink:
                assert set(rows) <= set(self.sink[number]), "a batch changed"
            self.sink.setdefault(number, rows)
            if dies("commit"):
                return
            self.commits += 1
            start = end

    def seen(self, name: str) -> list[int]:
        return [offset for number in sorted(self.sink) for queue, offset in self.sink[number] if queue == name]


def code(error: pytest.ExceptionInfo[SourceError]) -> str:
    assert "\n" not in str(error.value)
    return error.value.code


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 12), st.integers(0, 9), st.sampled_from(["earliest", "latest", "3"]), st.randoms(use_true_random=False))
def test_each_message_once_in_order_wherever_the_driver_dies(a: int, b: int, start: str, rng: random.Random) -> None:
    plane = FakeStreams(a=a, b=b)
    driver = FakeSpark(plane, options("a", "b", startingOffsets=start, minPartitions=rng.randint(1, 5)), (rng.randint(1, 6), 10**9))
    begins: dict[str, int] = {}
    for _ in range(12):
        driver.life(rng.randint(0, 4), lambda point: rng.random() < 0.2)
        if driver.offsets and not begins:
            begins = {name: place.get("from", place["offset"]) for name, place in json.loads(driver.offsets[0])["streams"].items()}
        plane.append(rng.choice("ab"), rng.randint(0, 5))
    driver.life(1000)
    for name, begin in begins.items():
        assert driver.seen(name) == list(range(begin, plane.streams[name][2]))
        assert start != "earliest" or begin == 0
    driver.life(1)
    left = len(plane.pins)
    plane.append("a", 50)
    driver.life(1000)
    assert len(plane.pins) == left, "a life that comes to its end leaves no pin"


def test_one_stream_takes_what_the_other_does_not_need() -> None:
    driver = FakeSpark(FakeStreams(a=2, b=100), options("a", "b"), (20, 10**9))
    driver.life(1)
    assert len(driver.seen("a")) == 2 and len(driver.seen("b")) == 18


def test_bytes_bound_a_batch_and_one_message_always_comes() -> None:
    driver = FakeSpark(FakeStreams(s=5), options(), (10, 25))
    driver.life(10)
    assert [len(rows) for rows in driver.sink.values()] == [2, 2, 1]
    driver = FakeSpark(FakeStreams(s=2), options(), (10, 1))
    driver.life(10)
    assert [len(rows) for rows in driver.sink.values()] == [1, 1]


def test_available_now_ends_at_what_was_there_when_it_began() -> None:
    plane = FakeStreams(s=5)
    cursor = Cursor(options(), lambda: plane)
    cursor.drain()
    plane.append("s", 7)
    start = cursor.initial()
    end = cursor.latest(start, 100, 10**9)
    cursor.tickets(start, end)
    assert end["streams"]["s"]["offset"] == 5
    assert cursor.latest(end, 100, 10**9) is end
    assert cursor.lag()["messages_behind"] == 7


def test_it_waits_for_enough_messages_but_not_for_ever() -> None:
    plane, clock = FakeStreams(s=3), [0.0]
    cursor = Cursor(options(minMessagesPerTrigger=5, maxTriggerDelay="10s"), lambda: plane, lambda: clock[0])
    start = cursor.latest(cursor.initial(), 100, 10**9)
    cursor.tickets(cursor.initial(), start)
    assert start["streams"]["s"]["offset"] == 3, "the first batch does not wait"
    plane.append("s", 4)
    clock[0] = 5.0
    assert cursor.latest(start, 100, 10**9) is start
    plane.append("s", 1)
    clock[0] = 6.0
    assert cursor.latest(start, 100, 10**9)["streams"]["s"]["offset"] == 8
    clock[0] = 17.0
    plane.append("s", 1)
    assert cursor.latest(start, 100, 10**9)["streams"]["s"]["offset"] == 9


def test_what_retention_took_is_an_error_or_a_count() -> None:
    plane = FakeStreams(s=10)
    driver = FakeSpark(plane, options(), (4, 10**9))
    driver.life(1)
    plane.retain("s", 7)
    with pytest.raises(SourceError, match="offset 4 to 6 of stream 's'") as error:
        driver.life(1)
    assert code(error) == "DATA_LOSS" and "failOnDataLoss=false" in error.value.text
    driver.options = options(failOnDataLoss="false")
    driver.life(10)
    assert driver.seen("s") == [0, 1, 2, 3, 7, 8, 9]


def test_what_retention_took_between_offset_and_plan(caplog: pytest.LogCaptureFixture) -> None:
    plane = FakeStreams(s=10)
    cursor = Cursor(options(), lambda: plane)
    start = cursor.initial()
    end = cursor.latest(start, 6, 10**9)
    plane.retain("s", 2)
    with pytest.raises(SourceError) as error:
        cursor.tickets(start, end)
    assert code(error) == "DATA_LOSS"
    tolerant = Cursor(options(failOnDataLoss="false"), lambda: plane)
    (first, _) = (json.loads(ticket) for ticket in tolerant.tickets(start, end))
    assert first["first_offset"] == 2 and "retention took 2 messages from offset 0" in caplog.text
    tolerant.latest(end, 6, 10**9)
    assert tolerant.lag()["messages_lost"] == 2


def test_a_checkpoint_of_something_else_is_refused() -> None:
    plane = FakeStreams(s=10)
    cursor = Cursor(options(), lambda: plane)
    end = cursor.latest(cursor.initial(), 5, 10**9)
    cursor.tickets(cursor.initial(), end)
    cases: list[tuple[str, Any]] = [
        ("CHECKPOINT_FOREIGN", {"sub_id": "x", "seq": 3}),
        ("CHECKPOINT_FOREIGN", {"streams": {"s": {"stream": "other-9", "offset": 3}}}),
        ("CHECKPOINT_FOREIGN", {"streams": {"s": {"offset": 3}}}),
        ("CHECKPOINT_AHEAD", {"streams": {"s": {"stream": "s-1", "offset": 11}}}),
        ("QUEUES_DIFFER", {"streams": {"t": {"stream": "s-1", "offset": 3}}}),
    ]
    for expected, offset in cases:
        with pytest.raises(SourceError) as error:
            cursor.latest(offset, 5, 10**9)
        assert code(error) == expected, offset
    del plane.streams["s"]
    with pytest.raises(SourceError) as error:
        cursor.latest(end, 5, 10**9)
    assert code(error) == "QUEUE_MISSING"


def test_a_first_batch_that_is_committed_and_was_not_planned_is_an_error() -> None:
    """A sink that has a batch of that number from an earlier checkpoint leaves it out: the query would pass over its messages."""
    cursor = Cursor(options(), lambda: FakeStreams(s=10))
    first = cursor.latest(cursor.initial(), 5, 10**9)
    with pytest.raises(SourceError, match="a new path") as error:
        cursor.latest(first, 5, 10**9)
    assert code(error) == "BATCH_UNREAD"
    calm = Cursor(options(onUnreadBatch="commit"), lambda: FakeStreams(s=10))
    assert calm.latest(calm.latest(calm.initial(), 5, 10**9), 5, 10**9)["streams"]["s"]["offset"] == 10


def test_what_is_no_stream_is_not_read_as_one() -> None:
    plane = FakeStreams(s=1)
    plane.plain = {"q"}
    assert are_streams(options("s"), lambda: plane)
    assert not are_streams(options("q"), lambda: plane)
    assert not are_streams(options("absent"), lambda: plane), "what opens it says that it is not there"
    refused = [
        (options("s", "q"), "two queries"),
        (options("s", subscription="x"), "'subscription'"),
        (options("s", onLostCheckpoint="fail"), "'onLostCheckpoint'"),
        (options("s", startingOffsets='{"lsn": 1}'), "not an LSN"),
        (options("q", startingOffsets="12"), "no offsets"),
    ]
    for asked, text in refused:
        with pytest.raises(SourceError, match=text) as error:
            are_streams(asked, lambda: plane)
        assert code(error) == "OPTION_VALUE"


def test_rows_that_are_missing_from_a_tolerant_ticket_are_told(caplog: pytest.LogCaptureFixture) -> None:
    ticket = {"kind": "stream", "queue": "s", "first_offset": 10, "end_offset": 20, "tolerant": True}
    note_missing(json.dumps(ticket), 10)
    assert not caplog.text
    note_missing(json.dumps(ticket), 7)
    assert "stream 's': 3 of the messages from offset 10 to 19" in caplog.text
    caplog.clear()
    note_missing(json.dumps({"kind": "set", "slice": 1}), 7)
    assert not caplog.text


def test_a_restart_with_another_number_of_parts_reads_the_batch_that_was_begun_by_key_whole() -> None:
    """Offsets say which messages a batch has; the parts are of the plan alone."""
    plane = FakeStreams(a=10, b=3)
    cursor = Cursor(options("a", "b", keyColumn="type", partitions=4), lambda: plane)
    start = cursor.initial()
    end = cursor.latest(start, 100, 10**9)
    tickets = [json.loads(one) for one in cursor.tickets(start, end)]
    assert [(one["queue"], one["slice"], one["first_offset"], one["end_offset"]) for one in tickets] == [
        *(("a", part, 0, 10) for part in range(4)),
        *(("b", part, 0, 3) for part in range(4)),
    ], "each stream has all the parts"
    again = Cursor(options("a", "b", keyColumn="type", partitions=3), lambda: plane)
    ranges = {(one["queue"], one["slices"], one["first_offset"], one["end_offset"]) for one in map(json.loads, again.tickets(start, end))}
    assert ranges == {("a", 3, 0, 10), ("b", 3, 0, 3)}


def test_keys_of_what_is_no_stream_are_refused() -> None:
    plane = FakeStreams(s=1)
    plane.plain.add("q")
    for asked in (
        options("q", keyColumn="type"),
        options("q", partitions=2),
        QueueOptions.stream({"queuePattern": "q*", "partitions": "2"}),
    ):
        with pytest.raises(SourceError, match=r"repartition") as error:
            are_streams(asked, lambda: plane)
        assert error.value.code == "OPTION_VALUE"
    assert are_streams(options("s", keyColumn="type"), lambda: plane)


def test_what_is_missing_of_a_part_is_not_counted_by_its_rows(caplog: pytest.LogCaptureFixture) -> None:
    ticket = {"kind": "stream", "queue": "s", "tolerant": True, "first_offset": 0, "end_offset": 9, "key": "type", "slice": 0, "slices": 2}
    note_missing(json.dumps(ticket), 4)
    assert not caplog.records
