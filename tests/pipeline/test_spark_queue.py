"""Through a real SparkSession and data plane, messages arrive exactly once, whole and in order, and wrong use says why in one line."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from flintmq.flight.client import DataPlane
from pyspark_flintmq import several_queries
from tests.pipeline.patience import patient, run_until
from tests.pipeline.plane import RestartingBroker, bodies_left, channel_of, flight_port, publish, ready, source_options
from tests.support.broker import Broker, unique

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def stream(spark: SparkSession, broker: Broker, queue: str, **options: Any) -> DataFrame:
    return spark.readStream.format("flintmq").options(**source_options(broker, **{"queue": queue, **options})).load()


def batch(spark: SparkSession, broker: Broker, **options: Any) -> DataFrame:
    return spark.read.format("flintmq").options(**source_options(broker, **options)).load()


def writer_of(frame: DataFrame, out: Path) -> Any:
    writer = frame.writeStream.format("parquet").option("path", str(out / "data")).option("checkpointLocation", str(out / "checkpoint"))
    return writer.trigger(availableNow=True)


def run(frame: DataFrame, out: Path) -> list[dict[str, Any]]:
    """Runs to the end of what the queue holds; returns Spark's progress reports of batches with rows, over all tries."""
    found: dict[int, dict[str, Any]] = {}

    @patient
    def tried() -> None:
        query = writer_of(frame, out).start()
        try:
            query.awaitTermination()
        finally:  # a try that failed may have ended some batches: the next one goes on behind them
            found.update({report["batchId"]: json.loads(report.json) for report in query.recentProgress if report["numInputRows"]})

    tried()
    return [found[number] for number in sorted(found)]


def committed(plane: DataPlane, name: str) -> int:
    """Batches of the subscription that the broker has the commit of; 0 as well while there is none."""
    return sum(one["committed"] for one in plane.sub_list() if one["name"] == name)


def failure(action: Any) -> str:
    """The line of ours in Spark's error."""
    with pytest.raises(Exception, match="FLINTMQ_") as error:
        action()
    lines = [line for line in str(error.value).splitlines() if "FLINTMQ_" in line]
    return lines[0][lines[0].index("FLINTMQ_") :]


def test_messages_arrive_once_and_whole_and_a_second_run_goes_on(spark: SparkSession, plane_broker: Broker, tmp_path: Path) -> None:
    queue = unique("spark")
    bodies = [struct.pack(">I", i) + b"\xff\x00" for i in range(250)]
    sent = {"headers": {"k": "v", "n": 5}, "content_type": "application/x", "message_id": "m", "priority": 3, "timestamp": 1_700_000_000}
    publish(plane_broker, queue, bodies, **sent)
    frame = stream(spark, plane_broker, queue, maxMessagesPerTrigger=100, minPartitions=3)
    reports = run(frame, tmp_path)
    assert [report["numInputRows"] for report in reports] == [100, 100, 50]
    assert reports[0]["sources"][0]["latestOffset"]["messages_behind"] == 150
    assert ready(plane_broker, queue) == 0

    found = spark.read.parquet(str(tmp_path / "data"))
    rows = found.orderBy("position").collect()
    assert [bytes(row["body"]) for row in rows] == bodies
    # those of the sink's log: a batch that was tried twice has left others
    assert len(found.inputFiles()) == 9, "three partitions a batch"
    row = rows[0].asDict()
    assert (row["queue"], row["exchange"], row["routing_key"], row["redelivered"]) == (queue, "", queue, False)
    assert (row["headers"]["k"], row["headers"]["n"]) == ("v", "5")
    assert bytes(row["headers_raw"])[4:].startswith(b"\x01kS\x00\x00\x00\x01v")
    assert (row["content_type"], row["message_id"], row["priority"], row["delivery_mode"]) == ("application/x", "m", 3, 2)
    assert row["timestamp"].timestamp() == 1_700_000_000
    assert row["enqueued_time"] >= row["published_time"]
    assert (row["delivery_count"], row["reply_to"]) == (0, None)
    assert len({row["lsn"] for row in rows}) == 250

    publish(plane_broker, queue, [b"later"])
    assert [report["numInputRows"] for report in run(frame, tmp_path)] == [1]
    assert spark.read.parquet(str(tmp_path / "data")).count() == 251
    assert bodies_left(plane_broker, queue) == []


def test_a_failed_batch_comes_again_unchanged_and_a_lost_or_old_checkpoint_is_refused(
    spark: SparkSession, plane_broker: Broker, tmp_path: Path
) -> None:
    queue = unique("spark")
    bodies = [b"m%02d" % i for i in range(30)]
    publish(plane_broker, queue, bodies)
    got: dict[int, list[bytes]] = {}
    failing = {1}
    checkpoint, old = tmp_path / "checkpoint", tmp_path / "old"

    def sink(frame: DataFrame, number: int) -> None:
        # Two actions on one batch read it twice, at the source.
        rows = sorted(bytes(row["body"]) for row in frame.collect())
        assert frame.count() == len(rows)
        if number in failing:
            shutil.copytree(checkpoint, old)
            raise RuntimeError("the sink is away")
        got[number] = rows

    @patient
    def start(place: Path, **options: Any) -> None:
        frame = stream(spark, plane_broker, queue, maxMessagesPerTrigger=10, columns="body", **options)
        frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(place)).trigger(availableNow=True).start().awaitTermination()

    with pytest.raises(Exception, match="the sink is away"):
        start(checkpoint)
    failing.clear()
    assert list(got) == [0]
    new = failure(lambda: start(tmp_path / "another"))
    assert new.startswith("FLINTMQ_CHECKPOINT_NEW: ")
    assert "onNewCheckpoint=continue" in new
    start(checkpoint)
    assert [body for number in sorted(got) for body in got[number]] == bodies
    assert ready(plane_broker, queue) == 0
    assert failure(lambda: start(old)).startswith("FLINTMQ_CHECKPOINT_BEHIND: ")


def test_a_query_adds_nothing_to_the_map_that_all_queries_share(spark: SparkSession, plane_broker: Broker, tmp_path: Path) -> None:
    """Two queries that begin at once put their entries into one map of Spark's without a lock: all are there before, none is added."""
    assert several_queries(spark)
    manager: Any = spark._jsparkSession.sessionState().dataSourceManager()  # type: ignore[attr-defined]
    shared = manager.lookupDataSource("flintmq").dataSourceCls().envVars()
    before = dict(shared)
    assert "SPARK_BUFFER_SIZE" in before
    queue = unique("spark")
    publish(plane_broker, queue, [b"one"])
    assert [report["numInputRows"] for report in run(stream(spark, plane_broker, queue), tmp_path)] == [1]
    assert set(shared) == set(before)
    assert not several_queries(object()), "nothing of Spark's is there: no error"


def test_a_second_query_leaves_the_one_that_runs_alone_whose_batches_are_committed_when_spark_has_them(
    spark: SparkSession, plane_broker: Broker, tmp_path: Path
) -> None:
    """The next trigger is an hour away: what Spark's commit log has is committed, and the reader is known to work, without it."""
    queue = unique("spark")
    publish(plane_broker, queue, [b"first"])
    place = str(tmp_path / "a")
    frame = stream(spark, plane_broker, queue, checkpointLocation=place)
    writer = frame.writeStream.format("noop").option("checkpointLocation", place).trigger(processingTime="1 hour")
    with DataPlane(plane_broker.host, flight_port(plane_broker), timeout_s=60) as plane:
        running = run_until(writer.start, lambda _: committed(plane, f"spark:{queue}") == 1, "the first batch's commit")
    try:
        second = writer.option("checkpointLocation", str(tmp_path / "b")).start()
        assert failure(lambda: second.awaitTermination(120)).startswith("FLINTMQ_CHECKPOINT_NEW: ")
        assert running.isActive
    finally:
        running.stop()


def test_the_broker_is_killed_while_spark_works_on_a_batch(spark: SparkSession, tmp_path: Path) -> None:
    """It comes back where it was, and in the next batch at the other one of its addresses."""
    pytest.importorskip("pyarrow")
    broker = RestartingBroker(tmp_path / "store")
    try:
        bodies = [b"m%02d" % i for i in range(30)]
        publish(broker.broker, "q", bodies)
        got: dict[int, list[bytes]] = {}

        def sink(frame: DataFrame, number: int) -> None:
            before = [bytes(row["body"]) for row in frame.collect()]
            broker.kill()
            broker.restart(moved=number == 1)
            assert [bytes(row["body"]) for row in frame.collect()] == before
            got[number] = before

        options = {"queue": "q", "url": broker.url, "timeout": 60, "maxMessagesPerTrigger": 20, "minPartitions": 1}
        frame = spark.readStream.format("flintmq").options(**options).load()
        writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / "checkpoint"))
        patient(lambda: writer.trigger(availableNow=True).start().awaitTermination())()
        assert [body for number in sorted(got) for body in got[number]] == bodies
        assert bodies_left(broker.broker, "q") == []
    finally:
        broker.stop()


def test_browsing_leaves_the_queue_as_it_was(spark: SparkSession, plane_broker: Broker) -> None:
    a, b = unique("browse"), unique("browse")
    publish(plane_broker, a, [b"a%02d" % i for i in range(20)], message_id="x")
    publish(plane_broker, b, [b"b%02d" % i for i in range(20)])
    frame = batch(spark, plane_broker, queues=f"{a},{b}", minPartitions=3)
    for _ in range(2):
        rows = frame.collect()
        assert sorted((row["queue"], bytes(row["body"])) for row in rows) == sorted(
            [(a, b"a%02d" % i) for i in range(20)] + [(b, b"b%02d" % i) for i in range(20)]
        )
    assert frame.rdd.getNumPartitions() == 3
    positions = sorted(row["position"] for row in rows if row["queue"] == a)
    part = batch(
        spark,
        plane_broker,
        queue=a,
        startingOffsets=json.dumps({"position": positions[5]}),
        endingOffsets=json.dumps({"position": positions[8]}),
        columns="body,position",
        body="prefix:2",
    )
    assert [row.asDict() for row in part.collect()] == [{"position": p, "body": bytearray(b"a0")} for p in positions[5:8]]
    assert batch(spark, plane_broker, queue=a, startingTimestamp="2100-01-01T00:00:00").collect() == []
    assert batch(spark, plane_broker, queue=a, maxMessages=4, body="none").where("body is null").count() == 4
    assert bodies_left(plane_broker, a) == [(b"a%02d" % i, False) for i in range(20)]


@pytest.fixture
def pushdown(spark: SparkSession) -> Iterator[None]:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    yield
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.usefixtures("pushdown")
def test_filters_that_are_pushed_down_change_what_is_fetched_and_nothing_else(spark: SparkSession, plane_broker: Broker) -> None:
    a, b = unique("push"), unique("push")
    publish(plane_broker, a, [b"a%02d" % i for i in range(20)])
    publish(plane_broker, b, [b"b%02d" % i for i in range(20)])
    frame = batch(spark, plane_broker, queues=f"{a},{b}", minPartitions=8)
    positions = sorted(row["position"] for row in frame.where(frame["queue"] == a).collect())
    assert len(positions) == 20
    few = frame.where((frame["queue"] == a) & (frame["position"] > positions[16]) & frame["message_id"].isNull())
    assert sorted(bytes(row["body"]) for row in few.collect()) == [b"a17", b"a18", b"a19"]
    # Three messages can not be eight partitions: only they were asked for.
    assert few.rdd.getNumPartitions() == 3
    assert frame.where("queue = 'none'").count() == 0
    assert frame.where("queue is null").count() == 0


def test_a_password_is_in_no_plan_error_or_checkpoint(
    spark: SparkSession, plane_broker: Broker, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Spark redacts the option by its name; what is ours never has it."""
    queue = unique("secret")
    publish(plane_broker, queue, [b"x"])
    frame = stream(spark, plane_broker, queue, password="hunter22")
    capfd.readouterr()
    frame.explain("extended")
    batch(spark, plane_broker, queue=queue, password="hunter22").explain("extended")
    shown = capfd.readouterr().out
    assert "password=*********(redacted)" in shown and "hunter22" not in shown
    with pytest.raises(Exception, match="FLINTMQ_LOGIN_REFUSED") as error:
        run(frame, tmp_path)
    assert "hunter22" not in str(error.value) + repr(error.value)
    # A mounted secret: the same query, and nothing of it is kept.
    secret = tmp_path.parent / unique("password")
    secret.write_text("guest")
    options = {"url": f"grpc://{plane_broker.host}:{flight_port(plane_broker)}", "queue": queue, "timeout": 60, "passwordFile": secret}
    frame = spark.readStream.format("flintmq").options(**{name: str(value) for name, value in options.items()}).load()
    (report,) = run(frame, tmp_path)
    assert report["numInputRows"] == 1 and {"messages_behind", "bytes_behind", "oldest_age_ms"} <= set(report["sources"][0]["latestOffset"])
    kept = [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".parquet"]
    assert kept and not any(b"hunter22" in path.read_bytes() for path in kept)


def test_wrong_use_is_answered_with_one_code(spark: SparkSession, plane_broker: Broker, tmp_path: Path) -> None:
    queue = unique("errors")
    publish(plane_broker, queue, [b"x"])
    with channel_of(plane_broker) as channel:
        channel.queue_declare(unique("other"))
    assert "did you mean 'maxMessagesPerTrigger'?" in failure(lambda: stream(spark, plane_broker, queue, maxMessagePerTrigger=5))
    cases = {
        "QUEUE_MISSING": stream(spark, plane_broker, "absent"),
        "LOGIN_REFUSED": stream(spark, plane_broker, queue, password="wrong"),
        "UNREACHABLE": stream(spark, plane_broker, queue, flightPort=1, timeout=1),
    }
    for code, frame in cases.items():
        line = failure(lambda frame=frame: run(frame, tmp_path / "out"))
        assert line.startswith(f"FLINTMQ_{code}: "), line
        assert "wrong" not in line.partition(": ")[2].partition("user or password")[0]
    assert failure(lambda: batch(spark, plane_broker, queue="absent").collect()).startswith("FLINTMQ_QUEUE_MISSING: ")
    reader = spark.read.format("flintmq").options(**source_options(plane_broker, queue=queue)).schema("queue string, body string")
    assert failure(lambda: reader.load().collect()).startswith("FLINTMQ_SCHEMA_MISMATCH: column 'body' is binary")
    some = spark.read.format("flintmq").options(**source_options(plane_broker, queue=queue)).schema("body binary, queue string").load()
    assert [(bytes(row[0]), row[1]) for row in some.collect()] == [(b"x", queue)]
    given = ", ".join(f"'{name}' '{value}'" for name, value in source_options(plane_broker, queue=queue).items())
    table = failure(lambda: spark.sql(f"CREATE TABLE no_table USING flintmq OPTIONS ({given})"))
    assert table.startswith("FLINTMQ_NO_TABLE: ") and "CREATE TEMPORARY VIEW" in table
