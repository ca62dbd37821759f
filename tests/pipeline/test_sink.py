"""The sink's promise, against the stage calls in memory: each batch once, whatever is retried, repeated, killed or left behind."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as t

from flintmq.flight.plane_error import PlaneError
from pyspark_flintmq import sink as sink_module
from pyspark_flintmq.connection import Connection
from pyspark_flintmq.errors import SourceError
from pyspark_flintmq.sink import BATCH_ID, QUERY_ID, FlintBatchWriter, FlintStreamWriter, Staged, _Place
from tests.pipeline.fake_stages import FakeClient, FakeStages

SCHEMA = t.StructType([t.StructField("body", t.BinaryType()), t.StructField("routing_key", t.StringType())])
QUERY = "b0b1"


class Killed(Exception):
    """Whoever ran this is gone."""


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> FakeStages:
    fake = FakeStages()
    monkeypatch.setattr(Connection, "open", lambda self: fake.client())
    return fake


def rows(*bodies: str, key: str = "q") -> pa.RecordBatch:
    return pa.record_batch({"body": [body.encode() for body in bodies], "routing_key": [key] * len(bodies)})


def stream(**options: str) -> FlintStreamWriter:
    return FlintStreamWriter(SCHEMA, {"exchange": "", **options})


def attempt(writer: FlintStreamWriter, batch: int, part: int, *batches: pa.RecordBatch, number: int = 0) -> Staged:
    """A task attempt, in another process as Spark has it."""
    there = pickle.loads(pickle.dumps(writer))
    return pickle.loads(pickle.dumps(there._stage(_Place(QUERY, there._epoch, batch, part, number), iter(batches))))  # type: ignore[no-any-return]


def bodies(broker: FakeStages) -> list[str]:
    return [row["body"].decode() for row in broker.queue]


def code_of(call: Any) -> str:
    with pytest.raises(SourceError) as caught:
        call()
    assert str(caught.value).startswith(f"FLINTMQ_{caught.value.code}: ") and "\n" not in str(caught.value)
    return caught.value.code


class TestOneBatch:
    def test_nothing_is_published_before_the_commit(self, broker: FakeStages) -> None:
        """Tasks only stage; the driver's commit publishes all partitions in order."""
        writer = stream()
        messages = [attempt(writer, 0, 0, rows("a", "b"), rows("c")), attempt(writer, 0, 1, rows("d"))]
        assert bodies(broker) == []
        stream().commit(messages, 0)
        assert bodies(broker) == ["a", "b", "c", "d"]
        assert broker.stages == {} and broker.open_clients == 0

    def test_losing_attempts_leave_nothing(self, broker: FakeStages) -> None:
        """Of several prepared attempts of one task only the one that Spark names is published, the others are rolled back with it."""
        writer = stream()
        winners = [attempt(writer, 0, 0, rows("a"), number=n) for n in range(3)]
        stream().commit([winners[1]], 0)
        assert bodies(broker) == ["a"] and broker.stages == {}

    def test_partitions_without_rows(self, broker: FakeStages) -> None:
        """A task without rows stages nothing and asks nobody; a batch of such tasks commits; tasks that never ran (None) are no error."""
        writer = stream()
        calls = len(broker.calls)
        empty = attempt(writer, 0, 0, rows())
        assert broker.calls[calls:] == [] and empty.stage_ids == ()
        stream().commit([empty, None], 0)
        stream().commit([None], 1)
        assert bodies(broker) == [] and broker.committed == {QUERY: 0}

    def test_a_committed_batch_is_drained(self, broker: FakeStages, caplog: pytest.LogCaptureFixture) -> None:
        """A batch that Spark runs again after it was committed is taken and dropped; the commit says how many rows that were."""
        writer = stream()
        stream().commit([attempt(writer, 0, 0, rows("a"))], 0)
        taken = []

        def batches() -> Iterator[pa.RecordBatch]:
            for one in (rows("a"), rows("b")):
                taken.append(one)
                yield one

        again = stream()
        message = again._stage(_Place(QUERY, again._epoch, 0, 0, 1), batches())
        assert message.already and len(taken) == 2
        stream().commit([message, attempt(again, 0, 1, rows("c"))], 0)
        assert bodies(broker) == ["a"]
        assert "batch 0 of b0b1 is in its queues already (the last one there is 0): 3 rows that were written again" in caplog.text

    def test_an_older_checkpoint_is_an_error(self, broker: FakeStages) -> None:
        """A batch below the committed one comes from an old copy of the checkpoint: dropping it silently could lose messages."""
        for batch in (0, 1):
            stream().commit([attempt(stream(), batch, 0, rows(str(batch)))], batch)
        old = attempt(stream(), 0, 0, rows("other"))
        assert code_of(lambda: stream().commit([old], 0)) == "CHECKPOINT_BEHIND"
        assert bodies(broker) == ["0", "1"]

    def test_a_forgotten_scope_is_an_error(self, broker: FakeStages) -> None:
        """When a task was told `already` and the broker does not know it at the commit, a part of the batch must not be published."""
        stream().commit([attempt(stream(), 0, 0, rows("a"))], 0)
        writer = stream()
        first = attempt(writer, 0, 0, rows("a"))
        broker.committed.clear()
        second = attempt(writer, 0, 1, rows("b"))
        assert code_of(lambda: stream().commit([first, second], 0)) == "SCOPE_LOST"
        assert bodies(broker) == ["a"]

    def test_a_driver_left_behind_is_fenced(self, broker: FakeStages) -> None:
        """A driver that a newer one has replaced commits nothing, and its abort leaves the newer one's stages alone."""
        zombie, new = stream(), stream()
        old = attempt(zombie, 0, 0, rows("a"))
        message = attempt(new, 0, 0, rows("a"))
        assert code_of(lambda: stream().commit([old], 0)) == "FENCED"
        stream().abort([old], 0)
        stream().commit([message], 0)
        assert bodies(broker) == ["a"] and broker.stages == {}
        assert code_of(lambda: attempt(zombie, 1, 0, rows("b"))) == "FENCED"

    def test_abort_frees_the_batch_and_never_fails(self, broker: FakeStages) -> None:
        """Abort goes by scope and batch, since Spark gives None for attempts that staged; without any message or broker it is quiet."""
        writer = stream()
        known = attempt(writer, 0, 0, rows("a"))
        attempt(writer, 0, 1, rows("b"))
        stream().abort([None, known], 0)
        assert broker.stages == {}
        stream().abort([None, None], 0)
        ready = stream()
        broker.faults[len(broker.calls)] = "before"
        ready.abort([known], 0)

    def test_a_put_that_broke_off_is_made_anew(self, broker: FakeStages) -> None:
        """A broken put is followed by another stage with all rows, in order; the broken one is rolled back at the commit."""
        for fault in ("before", "after"):
            batch = broker.committed.get(QUERY, -1) + 1
            writer = stream()
            broker.faults[len(broker.calls) + 1] = fault
            message = attempt(writer, batch, 0, rows("a", "b"), rows("c"))
            assert len(broker.stages) == 2
            stream().commit([message], batch)
            assert bodies(broker) == ["a", "b", "c"] and broker.stages == {}
            broker.queue.clear()

    def test_a_stage_that_a_restarted_broker_lost(self, broker: FakeStages) -> None:
        """A broker killed before the prepare has lost the stage: the attempt begins another one."""
        writer = stream()

        def batches() -> Iterator[pa.RecordBatch]:
            yield rows("a")
            broker.restart()

        message = writer._stage(_Place(QUERY, writer._epoch, 0, 0, 0), batches())
        stream().commit([message], 0)
        assert bodies(broker) == ["a"] and broker.stages == {}

    def test_rows_that_were_too_many_to_keep(self, broker: FakeStages, monkeypatch: pytest.MonkeyPatch) -> None:
        """What is not kept can not be given again: the attempt fails, never a part of its rows is staged as all."""
        monkeypatch.setattr("pyspark_flintmq.sink.KEPT_BYTES", 40)
        writer = stream()
        broker.faults[len(broker.calls) + 1] = "before"
        assert code_of(lambda: attempt(writer, 0, 0, rows("a"), rows("b" * 100), rows("c"))) == "UNREACHABLE"
        message = attempt(writer, 0, 0, rows("a"), rows("b" * 100), rows("c"))
        stream().commit([message], 0)
        assert bodies(broker) == ["a", "b" * 100, "c"]

    def test_a_broker_that_stays_away(self, broker: FakeStages) -> None:
        """Only so many stages are begun for one attempt."""
        writer = stream()
        broker.faults.update({len(broker.calls) + i: "after" for i in (1, 3, 5, 7)})
        assert code_of(lambda: attempt(writer, 0, 0, rows("a"))) == "UNREACHABLE"
        assert len(broker.stages) == 4
        broker.stages.clear()
        # A prepare is tried by the client itself for as long as it may take.
        broker.faults[len(broker.calls) + 2] = "after"
        assert code_of(lambda: attempt(writer, 0, 0, rows("a"))) == "UNREACHABLE"
        assert len(broker.stages) == 1

    def test_the_epoch_is_asked_for_before_any_task(self, broker: FakeStages) -> None:
        """A broker that is not there is one clear error of the plan, not of every task."""
        broker.faults[0] = "before"
        assert code_of(stream) == "UNREACHABLE"
        assert code_of(lambda: FlintStreamWriter(SCHEMA, {"exchnge": ""})) == "OPTION_UNKNOWN"
        assert broker.calls == ["scope.open"]


class TestManyRows:
    """A stage has a limit, a partition has none: it fills several, and its order stays."""

    @pytest.fixture(autouse=True)
    def small_stages(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sink_module, "STAGE_ROWS", 2)

    def test_a_partition_may_fill_several_stages(self, broker: FakeStages) -> None:
        messages = [attempt(stream(), 0, part, *(rows(f"{part}{n}") for n in range(5))) for part in range(2)]
        assert [(len(one.stage_ids), one.count) for one in messages] == [(3, 5), (3, 5)]
        stream().commit(messages, 0)
        assert bodies(broker) == [f"{part}{n}" for part in range(2) for n in range(5)] and broker.stages == {}

    @pytest.mark.parametrize("call", range(1, 12))
    def test_a_broker_that_goes_away_between_two_stages(self, broker: FakeStages, call: int) -> None:
        """Only the rows of the stage that was lost are sent again."""
        writer = stream()
        broker.faults = {call: "before"}
        try:
            message = attempt(writer, 0, 0, *(rows(str(n)) for n in range(5)))
        except SourceError:
            broker.faults = {}
            message = attempt(writer, 0, 0, *(rows(str(n)) for n in range(5)))
        broker.faults = {}
        stream().commit([message], 0)
        assert bodies(broker) == [str(n) for n in range(5)] and broker.stages == {}

    def test_what_no_queue_takes_is_counted_over_all_stages(self, broker: FakeStages) -> None:
        broker.unroutable = {"nowhere"}
        message = attempt(stream(), 0, 0, *(rows(str(n), key="nowhere" if n % 2 else "q") for n in range(5)))
        assert message.unroutable == 2 and message.refused
        with pytest.raises(SourceError, match="batch 0 has 2 unroutable messages"):
            stream().commit([message], 0)
        assert bodies(broker) == [] and broker.stages == {}

    def test_a_batch_that_is_committed_meanwhile_is_drained(self, broker: FakeStages) -> None:
        writer = stream()

        def batches() -> Iterator[pa.RecordBatch]:
            for n in range(5):
                if n == 3:
                    broker.committed[QUERY] = 0
                yield rows(str(n))

        left = batches()
        message = writer._stage(_Place(QUERY, writer._epoch, 0, 0, 0), left)
        assert message.already and message.stage_ids == () and next(left, None) is None


class TestRoom:
    """A broker that lacks room for a while is no reason to fail a task, and what a task gives up takes no room."""

    @pytest.fixture
    def slept(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        """Seconds that the sink slept; they pass."""
        slept: list[float] = []
        monkeypatch.setattr(sink_module.time, "sleep", slept.append)
        monkeypatch.setattr(sink_module.time, "monotonic", lambda: sum(slept))
        return slept

    @pytest.mark.parametrize("code", ["LOW_DISK", "NO_ROOM", "BUSY"])
    def test_rows_are_staged_again_when_there_is_room(
        self, broker: FakeStages, slept: list[float], monkeypatch: pytest.MonkeyPatch, code: str
    ) -> None:
        """More often than a stage that is gone would be, each time with a longer pause, and nothing is left of what was given up."""
        put, refused = FakeClient.put, [code] * 9

        def without_room(self: Any, stage_id: str, batches: Any) -> Any:
            answer = put(self, stage_id, batches)
            if refused:
                raise PlaneError(refused.pop(), "publishers are blocked")
            return answer

        monkeypatch.setattr(FakeClient, "put", without_room)
        message = attempt(stream(), 0, 0, rows("a"), rows("b"))
        assert len(broker.stages) == 1 and len(slept) == 9 and slept[0] < slept[-1] <= 3
        stream().commit([message], 0)
        assert bodies(broker) == ["a", "b"]

    def test_a_broker_without_room_for_long_fails_the_task(
        self, broker: FakeStages, slept: list[float], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def put(self: Any, stage_id: str, batches: Any) -> None:
            raise PlaneError("LOW_DISK", "publishers are blocked")

        monkeypatch.setattr(FakeClient, "put", put)
        assert code_of(lambda: attempt(stream(timeout="20"), 0, 0, rows("a"))) == "LOW_DISK"
        assert 20 <= sum(slept) < 24 and broker.stages == {}

    def test_an_attempt_that_fails_gives_back_what_it_staged(self, broker: FakeStages, monkeypatch: pytest.MonkeyPatch) -> None:
        """Also its earlier stages, of which the driver never hears."""
        monkeypatch.setattr(sink_module, "STAGE_ROWS", 1)
        put = FakeClient.put

        def second_fails(self: Any, stage_id: str, batches: Any) -> Any:
            if any(one.prepared for one in broker.stages.values()):
                raise PlaneError("DAMAGED", "no")
            return put(self, stage_id, batches)

        monkeypatch.setattr(FakeClient, "put", second_fails)
        assert code_of(lambda: attempt(stream(), 0, 0, rows("a"), rows("b"))) == "DAMAGED"
        assert broker.stages == {}


class TestRefusals:
    def test_unroutable_messages_fail_the_batch_with_their_number(self, broker: FakeStages) -> None:
        """All partitions are counted, nothing is published or left behind, and the task is not tried again for it."""
        broker.unroutable = {"nowhere"}
        writer = stream()
        messages = [attempt(writer, 0, part, rows("a", "b", key=key)) for part, key in enumerate(("nowhere", "q", "nowhere"))]
        with pytest.raises(SourceError, match="FLINTMQ_UNROUTABLE: batch 0 has 4 unroutable messages, for instance: exchange 'x'"):
            stream().commit(messages, 0)
        assert bodies(broker) == [] and broker.stages == {}

    def test_unroutable_messages_may_be_dropped(self, broker: FakeStages) -> None:
        """With `unroutable=drop` the rest is published."""
        broker.unroutable = {"nowhere"}
        writer = stream(unroutable="drop")
        messages = [attempt(writer, 0, 0, rows("a", key="nowhere"), rows("b"))]
        assert messages[0].unroutable == 1
        stream(unroutable="drop").commit(messages, 0)
        assert bodies(broker) == ["b"]

    def test_options_reach_the_stage(self, broker: FakeStages) -> None:
        """What becomes of unroutable and refused messages is the broker's to do, told when the stage begins, as the kind of scope is."""
        attempt(stream(unroutable="exchange:lost", overLimit="exchange:full"), 0, 0, rows("a"))
        assert [stage.options for stage in broker.stages.values()] == [
            {"unroutable": "exchange:lost", "over_limit": "exchange:full", "kind": "query"}
        ]

    def test_a_row_that_is_no_message_fails_the_batch_at_once(self, broker: FakeStages) -> None:
        """A null body would be refused in each retry as well: the driver says it, once, and the input is drained."""
        writer = stream()
        left = iter([pa.record_batch({"body": pa.array([None], pa.binary()), "routing_key": ["q"]}), rows("b")])
        message = writer._stage(_Place(QUERY, writer._epoch, 0, 3, 0), left)
        assert next(left, None) is None
        with pytest.raises(SourceError, match="FLINTMQ_NULL_BODY: partition 3: 1 of 1 rows") as caught:
            stream().commit([message], 0)
        assert "\n" not in str(caught.value)

    def test_rows_that_go_to_too_many_queues(self, broker: FakeStages, monkeypatch: pytest.MonkeyPatch) -> None:
        """A retry would be refused as well: the driver says it, once, and what to do."""

        def put(self: Any, stage_id: str, batches: Any) -> None:
            raise PlaneError("LIMIT", "a transaction has at most 5 enqueues and dequeues, and its runs 5 pieces")

        monkeypatch.setattr("tests.pipeline.fake_stages.FakeClient.put", put)
        message = attempt(stream(), 0, 0, rows("a"), rows("b"))
        with pytest.raises(SourceError, match=r"^FLINTMQ_LIMIT: partition 0: a transaction has at most 5 .* smaller partitions\. Nothing"):
            stream().commit([message], 0)
        assert broker.stages == {}


class FakeContext:
    def __init__(self, **properties: str) -> None:
        self._properties = properties

    def getLocalProperty(self, name: str) -> str | None:
        return self._properties.get(name)

    def partitionId(self) -> int:
        return 1

    def taskAttemptId(self) -> int:
        return 7


class TestNames:
    def at(self, monkeypatch: pytest.MonkeyPatch, **properties: str) -> None:
        monkeypatch.setattr("pyspark.TaskContext.get", lambda: FakeContext(**properties))

    def test_the_scope_is_the_query(self, broker: FakeStages, monkeypatch: pytest.MonkeyPatch) -> None:
        """Scope and batch come from the task's context; `scope` stands before the query id, so a new checkpoint begins anew."""
        self.at(monkeypatch, **{QUERY_ID: QUERY, BATCH_ID: "12"})
        message = stream().write(iter([rows("a")]))
        assert (message.scope, message.batch, message.part) == (QUERY, 12, 1)
        assert stream(scope="orders").write(iter([rows("a")])).scope == f"orders:{QUERY}"

    def test_two_attempts_have_two_numbers(self, broker: FakeStages, monkeypatch: pytest.MonkeyPatch) -> None:
        """A driver that is started again counts attempts from zero: the broker must not take one for the other."""
        self.at(monkeypatch, **{QUERY_ID: QUERY, BATCH_ID: "0"})
        for _ in range(2):
            stream().write(iter([rows("a")]))
        numbers = {stage.attempt for stage in broker.stages.values()}
        assert len(numbers) == 2 and {number >> 30 for number in numbers} == {7}

    def test_a_spark_that_tells_no_names(self, broker: FakeStages, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without query id an explicit scope is needed, and without batch id nothing can be promised."""
        self.at(monkeypatch, **{BATCH_ID: "0"})
        assert code_of(lambda: stream().write(iter([]))) == "SPARK_VERSION"
        assert stream(scope="s").write(iter([])).scope == "s"
        self.at(monkeypatch, **{QUERY_ID: QUERY})
        assert code_of(lambda: stream(scope="s").write(iter([]))) == "SPARK_VERSION"


class TestBatchWrites:
    def write(self, monkeypatch: pytest.MonkeyPatch, *bodies: str, query: str = "", **options: str) -> None:
        monkeypatch.setattr("pyspark.TaskContext.get", lambda: FakeContext(**({QUERY_ID: query} if query else {})))
        writer = FlintBatchWriter(SCHEMA, {"exchange": "", **options})
        there = pickle.loads(pickle.dumps(writer))
        message = there.write(iter([rows(*bodies)]))
        pickle.loads(pickle.dumps(writer)).commit([message])

    def test_a_named_write_happens_once(
        self, broker: FakeStages, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A second run with the same `txnId` publishes nothing, a higher version does, an older one does not; the log counts those."""
        for bodies_, version in ((["a"], "0"), (["a"], "0"), (["b"], "2"), (["c", "d"], "1")):
            self.write(monkeypatch, *bodies_, txnId="job", txnVersion=version)
        assert bodies(broker) == ["a", "b"] and broker.committed == {"txn:job": 2}
        assert [record.args for record in caplog.records] == [(0, "txn:job", 0, 1), (1, "txn:job", 2, 2)]

    def test_a_new_checkpoint_writes_under_a_name_of_its_own(self, broker: FakeStages, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its batches are counted from 0 again: with the name alone, `txnVersion=batch_id` left them out."""
        for query, bodies_, version in (("one", ["a"], "0"), ("one", ["b"], "1"), ("one", ["b"], "1"), ("two", ["c"], "0")):
            self.write(monkeypatch, *bodies_, query=query, txnId="job", txnVersion=version)
        assert bodies(broker) == ["a", "b", "c"]
        assert broker.committed == {"txn:job:one": 1, "txn:job:two": 0}

    def test_an_abort_knows_the_name_of_a_write_in_foreach_batch(self, broker: FakeStages, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("pyspark.TaskContext.get", lambda: FakeContext(**{QUERY_ID: "one"}))
        writer = FlintBatchWriter(SCHEMA, {"exchange": "", "txnId": "job"})
        writer.abort([None, writer.write(iter([rows("a")]))])
        assert broker.stages == {}

    def test_an_unnamed_write_is_forgotten(self, broker: FakeStages, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without a name each run publishes, and the broker does not keep the names of runs."""
        self.write(monkeypatch, "a")
        self.write(monkeypatch, "a")
        assert bodies(broker) == ["a", "a"] and broker.committed == {} and broker.stages == {}

    def test_abort_knows_its_scope(self, broker: FakeStages, monkeypatch: pytest.MonkeyPatch) -> None:
        """A batch write rolls its stages back although no attempt's message reached the driver."""
        monkeypatch.setattr("pyspark.TaskContext.get", lambda: FakeContext())
        writer = FlintBatchWriter(SCHEMA, {"exchange": ""})
        writer.write(iter([rows("a")]))
        writer.abort([None])
        assert broker.stages == {}


# What may go wrong with one task attempt: its process dies (after its stage was prepared, or with rows half sent), or a twin runs too.
ATTEMPTS = st.lists(st.sampled_from(["dies prepared", "dies half way", "twin"]), max_size=3)
FAULTS = st.dictionaries(st.integers(0, 60), st.sampled_from(["before", "after"]), max_size=8)
ENDS = st.sampled_from(
    ["ok", "driver dies before commit", "driver dies after commit", "commits/N is lost", "broker restarts", "zombie commits"]
)


@settings(max_examples=300, deadline=None)
@given(plan=st.lists(st.tuples(st.lists(ATTEMPTS, min_size=1, max_size=3), ENDS), min_size=1, max_size=4), faults=FAULTS)
def test_each_batch_once(plan: list[tuple[list[list[str]], str]], faults: dict[int, str]) -> None:
    """Whatever attempts, drivers and answers are lost: after a batch's commit returned, its rows are in the queue once and in order, and
    nothing staged is left."""
    broker = FakeStages()
    broker.faults = dict(faults)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connection, "open", lambda self: broker.client())
        expected: list[str] = []
        for batch, (parts, end) in enumerate(plan):
            zombie: list[Staged] | None = None
            for run in range(30):
                try:
                    messages = run_tasks(batch, parts if run == 0 else [[] for _ in parts])
                    if run == 0 and end == "driver dies before commit":
                        raise Killed
                    if run == 0 and end == "zombie commits":
                        zombie = messages
                        raise Killed
                    if run == 0 and end == "broker restarts":
                        broker.restart()
                    if zombie is not None:
                        with pytest.raises(SourceError) as caught:
                            stream().commit(zombie, batch)
                        assert caught.value.code in ("FENCED", "UNREACHABLE")
                        zombie = None
                    stream().commit(messages, batch)
                    if run == 0 and end in ("driver dies after commit", "commits/N is lost"):
                        raise Killed
                except (Killed, SourceError) as error:
                    assert not isinstance(error, SourceError) or error.code == "UNREACHABLE", error
                    continue
                break
            else:
                raise AssertionError("the batch never ended")
            expected += [f"{batch}.{part}.{i}" for part in range(len(parts)) for i in range(3)]
            assert bodies(broker) == expected
            assert broker.stages == {}
        assert broker.open_clients == 0


def run_tasks(batch: int, parts: list[list[str]]) -> list[Staged]:
    """Spark's part: every partition is tried until an attempt ends well, at most four times; a twin is a speculative attempt."""
    writer = stream()
    messages = []
    for part, attempts in enumerate(parts):
        data = [rows(*(f"{batch}.{part}.{i}" for i in range(2))), rows(f"{batch}.{part}.2")]
        for number, what in enumerate(attempts):
            if what == "dies half way":
                dying = iter([data[0]])
                with pytest.raises((Killed, SourceError)):
                    writer._stage(_Place(QUERY, writer._epoch, batch, part, number), _then_dies(dying))
            else:
                attempt(writer, batch, part, *data, number=number)
        messages.append(attempt(writer, batch, part, *data, number=9))
    return messages


def _then_dies(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
    raise Killed
