"""A batch read finds every message of its range once, also when there are more than one browse may hold, and filters only narrow it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, InputPartition, LessThan, LessThanOrEqual, Not

from flintmq.flight.calls import Calls
from flintmq.flight.plane_error import PlaneError
from flintmq.testing import broker as in_process
from pyspark_flintmq import connection
from pyspark_flintmq.errors import SourceError
from pyspark_flintmq.queue_batch import BrowseReader, PushingBrowseReader
from pyspark_flintmq.queue_options import QueueOptions
from pyspark_flintmq.queue_stream import TicketPartition
from tests.jobs.stores import channel_of, put


class Browsing:
    """browse.open and tickets over positions in memory; a browse holds at most `most`."""

    store = ""

    def __init__(self, queues: dict[str, list[int]], most: int) -> None:
        self.queues = queues
        self.most = most
        self.browses: list[list[tuple[str, int]]] = []
        self.fetched = 0

    @property
    def calls(self) -> Calls:
        return Calls(self._action)

    def _action(self, name: str, arguments: dict[str, Any], wait_s: float) -> Any:
        if name == "stream.open":
            raise PlaneError("NOT_A_STREAM", f"queue '{arguments['queue']}' is no stream")
        if name == "browse.close":
            self.browses[arguments["id"]] = []
            return {}
        assert name == "browse.open"
        return self.browse(**arguments)

    def browse(self, queues: list[str], start: Any, end: Any, slices: int, max_messages: int = 10**9) -> Any:
        found: list[tuple[str, int]] = []
        most = min(self.most, max_messages)
        for queue in queues:
            if queue not in self.queues:
                raise PlaneError("NOT_FOUND", f"no queue '{queue}'")
            low = 0 if start == "earliest" else start["position"]
            high = 2**63 if end == "latest" else end["position"]
            found += [(queue, p) for p in self.queues[queue] if low <= p < high][: most - len(found)]
        self.browses.append(found)
        slices = max(1, min(slices, len(found)))
        tickets = [{"kind": "browse", "id": len(self.browses) - 1, "slice": k, "slices": slices} for k in range(slices)]
        facts = [{"queue": queue, "last": max((p for name, p in found if name == queue), default=0)} for queue in queues]
        return {"id": len(self.browses) - 1, "count": len(found), "queues": facts, "tickets": tickets, "more": len(found) >= most}

    def rows(self, ticket: str) -> list[tuple[str, int]]:
        asked = json.loads(ticket)
        found, n, k = self.browses[asked["id"]], asked["slices"], asked["slice"]
        return found[len(found) * k // n : len(found) * (k + 1) // n]

    def close(self) -> None: ...


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Any:
    def use(plane: Browsing) -> None:
        monkeypatch.setattr(connection.Connection, "open", lambda self: plane)

    return use


def found_by(reader: BrowseReader, plane: Browsing) -> list[tuple[str, int]]:
    found = []
    for partition in reader.partitions():
        assert isinstance(partition, TicketPartition)
        found += plane.rows(partition.ticket)
    return found


queues = st.dictionaries(st.sampled_from("abc"), st.sets(st.integers(1, 40), max_size=25).map(sorted), min_size=1)


@settings(deadline=None)
@given(queues, st.integers(1, 30), st.integers(1, 5), st.integers(0, 40))
def test_all_are_found_once_and_no_more_than_asked_for(stand: dict[str, list[int]], most: int, partitions: int, limit: int) -> None:
    plane = Browsing(stand, most)
    given_options = {"queues": ",".join(stand), "minPartitions": str(partitions), "maxMessages": str(limit)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection.Connection, "open", lambda self: plane)
        found = found_by(BrowseReader(QueueOptions.batch(given_options)), plane)
    everything = [(queue, p) for queue in sorted(stand) for p in stand[queue]]
    assert len(found) == len(set(found)) == min(limit or 10**9, len(everything))
    assert set(found) <= set(everything)


@pytest.mark.parametrize("limit", [0, 12, 30])
def test_a_queue_that_holds_more_than_a_browse_may_is_read_whole(tmp_path: Path, limit: int) -> None:
    """On a real broker, in pieces: each message once, in order."""
    with in_process.Broker(data_dir=str(tmp_path / "store"), flight_port=0, limits={"browse_max": 10, "flight_start_s": 90}) as running:
        with channel_of(running) as channel:
            for queue in ("a", "b"):
                channel.queue_declare(queue, durable=True)
                put(channel, queue, 25, size=0)
            channel.basic_get("a", auto_ack=True)
        assert running.node.dataplane is not None
        port = running.node.dataplane.wait_ready()
        raw = {"flightPort": str(port), "queues": "a,b", "maxMessages": str(limit), "minPartitions": "3", "columns": "queue,position"}
        reader = BrowseReader(QueueOptions.batch(raw))
        tables = [pa.Table.from_batches(reader.read(part)) for part in reader.partitions()]
        found = [(row["queue"], row["position"]) for table in tables for row in table.to_pylist()]
    everything = [("a", n) for n in range(2, 26)] + [("b", n) for n in range(1, 26)]
    assert found == everything[: limit or None]


comparisons = st.builds(
    lambda cls, value: cls(("position",), value),
    st.sampled_from([EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual]),
    st.integers(-2, 42),
)
names = st.builds(lambda value: EqualTo(("queue",), value), st.sampled_from("abcd")) | st.builds(
    lambda values: In(("queue",), tuple(values)), st.lists(st.sampled_from(["a", "b", "d", None]), max_size=3)
)
others = st.builds(lambda one: Not(one), comparisons | names) | st.just(EqualTo(("body",), b"x"))


def passes(one: Filter, queue: str, position: int) -> bool:
    if isinstance(one, Not):
        return not passes(one.child, queue, position)
    value = {"queue": queue, "position": position}.get(one.attribute[0])
    if value is None:
        return True
    if isinstance(one, In):
        return value in one.value
    operators = {EqualTo: value == one.value}
    if isinstance(value, int):
        operators |= {GreaterThan: value > one.value, GreaterThanOrEqual: value >= one.value}
        operators |= {LessThan: value < one.value, LessThanOrEqual: value <= one.value}
    return operators[type(one)]


@settings(deadline=None)
@given(st.lists(comparisons | names | others, max_size=4), st.integers(1, 20))
def test_filters_let_through_all_that_spark_would_and_are_given_back(filters: list[Filter], start: int) -> None:
    stand = {"a": list(range(1, 30)), "b": list(range(10, 41)), "c": [5]}
    plane = Browsing(stand, 10**6)
    reader = PushingBrowseReader(QueueOptions.batch({"queues": "a,b,c", "startingOffsets": json.dumps({"position": start})}))
    assert list(reader.pushFilters(filters)) == filters
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection.Connection, "open", lambda self: plane)
        found = found_by(reader, plane)
    wanted = {(q, p) for q in stand for p in stand[q] if p >= start and all(passes(one, q, p) for one in filters)}
    assert wanted <= set(found)
    if all(not isinstance(one, Not) and one.attribute != ("body",) for one in filters):
        assert wanted == set(found), "what filters on queue and position say is all that is fetched"


def test_no_partition_is_no_row(opened: Any) -> None:
    opened(Browsing({"q": []}, 10))
    reader = BrowseReader(QueueOptions.batch({"queue": "q"}))
    assert list(reader.read(InputPartition(None))) == []


def test_a_queue_that_is_not_there(opened: Any) -> None:
    opened(Browsing({}, 10))
    with pytest.raises(SourceError, match="FLINTMQ_QUEUE_MISSING"):
        BrowseReader(QueueOptions.batch({"queue": "q"})).partitions()
