"""Through a real SparkSession: what is written arrives once, over restarts, retried tasks and repeated batches, and wrong use says why."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pika
import pytest

from pyspark_flintmq.connection import Connection
from tests.pipeline.patience import patient
from tests.support.broker import Broker, unique, wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker("--flight-port", "0") as running:
        yield running


@pytest.fixture
def channel(broker: Broker) -> Iterator[Any]:
    # No heartbeat: the tests look at their queues only when Spark is done.
    connection = pika.BlockingConnection(pika.URLParameters(broker.url + "?heartbeat=0"))
    yield connection.channel()
    if connection.is_open:
        connection.close()


@pytest.fixture
def queue(channel: Any) -> str:
    name = unique("sink")
    channel.queue_declare(name, durable=True)
    return name


def options(broker: Broker, **more: str) -> dict[str, str]:
    return {"flightPort": str(broker.ready["flight_port"]), "timeout": "60", **more}


def drain(channel: Any, queue: str) -> list[str]:
    got = []
    while True:
        method, _, body = channel.basic_get(queue, auto_ack=True)
        if method is None:
            return got
        got.append(body.decode())


def kept(channel: Any, stream: str, count: int) -> list[str]:
    """The messages of a stream, which must be so many in the end."""

    def depth() -> int:
        return int(channel.queue_declare(stream, passive=True).method.message_count)

    wait_until(lambda: depth() >= count, 60)
    assert depth() == count
    channel.basic_qos(prefetch_count=100)
    got: list[str] = []
    for method, _, body in channel.consume(stream, arguments={"x-stream-offset": "first"}):
        got.append(body.decode())
        channel.basic_ack(method.delivery_tag)
        if len(got) == count:
            break
    channel.cancel()
    return got


def staged(broker: Broker, scope: str, committed: int) -> int:
    """Stages that are left; `committed`: the batch that the broker must know under the query's id."""
    plane = Connection.take(options(broker))[0].open()
    try:
        status = plane.scope_status(scope)
        assert status["committed"] == committed
        return int(status["open"]) + int(status["prepared"])
    finally:
        plane.close()


def put_files(folder: Path, first: int, count: int, lines: int = 40) -> list[list[str]]:
    """Files of lines `file.line`; the file source takes them by time of change."""
    import os

    folder.mkdir(exist_ok=True)
    files = []
    for number in range(first, first + count):
        text = [f"{number}.{i}" for i in range(lines)]
        path = folder / f"{number:03}.txt"
        path.write_text("\n".join(text))
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
        files.append(text)
    return files


def in_order(got: list[str], files: list[list[str]]) -> bool:
    """Each file is one partition: its lines came in order."""
    return all([line for line in got if line.partition(".")[0] == text[0].partition(".")[0]] == text for text in files)


@patient
def run(frame: DataFrame, checkpoint: Path, **options: str) -> str:
    """Runs to the end of the input; returns the query id."""
    query = (
        frame.writeStream.format("flintmq")
        .options(**options)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return str(query.id)


def test_a_stream_is_written_once(spark: SparkSession, broker: Broker, channel: Any, queue: str, tmp_path: Path) -> None:
    """Batches of a stream arrive once and each partition in order, in a queue and in a stream of the broker, also when the driver died
    after a commit that it did not note."""
    files = put_files(tmp_path / "in", 0, 3)
    lines = spark.readStream.format("text").option("maxFilesPerTrigger", 2).load(str(tmp_path / "in"))
    stream, both = f"{queue}-stream", f"{queue}-both"
    channel.queue_declare(stream, durable=True, arguments={"x-queue-type": "stream"})
    channel.exchange_declare(both, "fanout", durable=True)
    for name in (queue, stream):
        channel.queue_bind(name, both)
    scope = run(lines, tmp_path / "checkpoint", **options(broker, exchange=both, routingKey=""))
    got = drain(channel, queue)
    assert sorted(got) == sorted(itertools.chain(*files)) and in_order(got, files)

    for name in ("1", ".1.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink(missing_ok=True)
    more = put_files(tmp_path / "in", 3, 1)
    assert run(lines, tmp_path / "checkpoint", **options(broker, exchange=both, routingKey="")) == scope
    assert drain(channel, queue) == more[0]
    assert staged(broker, scope, 2) == 0
    assert kept(channel, stream, len(got) + len(more[0])) == got + more[0]

    # An old copy of the checkpoint: batch 1 is planned anew and may hold other messages than those that are in the queue.
    for log in ("commits", "offsets", "sources/0"):
        for number in ("1", "2"):
            for name in (number, f".{number}.crc"):
                (tmp_path / "checkpoint" / log / name).unlink(missing_ok=True)
    put_files(tmp_path / "in", 4, 1)
    with pytest.raises(Exception, match="FLINTMQ_CHECKPOINT_BEHIND: batch 2 of this query"):
        run(lines, tmp_path / "checkpoint", **options(broker, queue=queue))
    assert drain(channel, queue) == []


def test_a_named_batch_write_happens_once(spark: SparkSession, broker: Broker, channel: Any, queue: str) -> None:
    """`txnId` makes a batch write repeatable; without it each run publishes."""
    frame = spark.range(0, 1000, 1, 4).selectExpr(
        "cast(id as string) as value", "map('id', cast(id as string)) as headers", "'json' as type"
    )
    for _ in range(2):
        frame.write.format("flintmq").mode("append").options(**options(broker, queue=queue, txnId="nightly")).save()
    _, properties, body = channel.basic_get(queue, auto_ack=True)
    assert (body, properties.headers, properties.type, properties.delivery_mode) == (b"0", {"id": "0"}, "json", 2)
    assert drain(channel, queue) == [str(i) for i in range(1, 1000)]
    for _ in range(2):
        frame.limit(1).write.format("flintmq").mode("append").options(**options(broker, queue=queue)).save()
    assert drain(channel, queue) == ["0", "0"]
    frame.filter("id < 0").write.format("flintmq").mode("append").options(**options(broker, queue=queue, txnId="empty")).save()
    assert drain(channel, queue) == []


def test_insert_into_a_view_publishes(spark: SparkSession, broker: Broker, channel: Any, queue: str) -> None:
    """Of a queue, from a body alone or with other columns of a new message; of an exchange, with the columns of the sink."""
    channel.exchange_declare(f"{queue}-x", "direct")
    channel.queue_bind(queue, f"{queue}-x", "k")

    def view(name: str, **given: str) -> None:
        told = ", ".join(f"'{key}' '{value}'" for key, value in options(broker, **given).items())
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW {name} USING flintmq OPTIONS ({told})")

    view("both", queue=queue)
    view("few", queue=queue, columns="body,message_id")
    view("sink", exchange=f"{queue}-x", contentType="text/plain")
    for statement in (
        "both (body) VALUES (X'61')",
        "both BY NAME SELECT 'm' AS message_id, X'62' AS body",
        "few VALUES (X'63', 'm')",
        "sink (body, routing_key) VALUES (X'64', 'k')",
    ):
        spark.sql(f"INSERT INTO {statement}")
    assert spark.sql("SELECT count(*) FROM both").first()[0] == 4
    found = [(row["body"].decode(), row["message_id"], row["content_type"]) for row in spark.table("both").orderBy("position").collect()]
    assert found == [("a", None, None), ("b", "m", None), ("c", "m", None), ("d", None, "text/plain")]
    spark.sql("INSERT INTO both SELECT * FROM both")
    assert drain(channel, queue) == list("abcdabcd")
    with pytest.raises(Exception, match="output column `body`"):
        spark.sql("INSERT INTO both (message_id) VALUES ('m')")
    with pytest.raises(Exception, match=r"FLINTMQ_OPTION_UNKNOWN.*'exchange'"):
        spark.table("sink").collect()
    with pytest.raises(Exception, match="FLINTMQ_MODE"):
        spark.sql("INSERT OVERWRITE both (body) VALUES (X'61')")
    with pytest.raises(Exception, match="option 'body' must be 'full'"):
        spark.sql("SELECT X'61' AS body").write.format("flintmq").mode("append").options(**options(broker, queue=queue, body="x")).save()


def test_errors_begin_with_a_code(spark: SparkSession, broker: Broker, channel: Any, queue: str) -> None:
    """Wrong columns and options, messages that no queue takes: one line that says what, and nothing is published."""
    frame = spark.range(0, 100, 1, 2).selectExpr("cast(id as string) as body", "if(id % 10 = 0, 'nowhere', 'QUEUE') as routing_key")
    frame = frame.replace("QUEUE", queue, "routing_key")

    def message(frame: DataFrame, mode: str = "append", **more: str) -> str:
        with pytest.raises(Exception) as caught:
            frame.write.format("flintmq").mode(mode).options(**options(broker, **more)).save()
        [line] = [line for line in str(caught.value).splitlines() if line.startswith(("pyspark_flintmq.errors.", "FLINTMQ_"))][-1:]
        return line

    text = message(frame, exchange="")
    assert "FLINTMQ_UNROUTABLE: batch 0 has 10 unroutable messages, for instance: exchange '' with routing key 'nowhere'" in text
    assert "FLINTMQ_COLUMN_UNKNOWN: column 'bodi' is not part of a message; did you mean 'body'?" in message(
        frame.withColumnRenamed("body", "bodi")
    )
    assert "FLINTMQ_OPTION_UNKNOWN: unknown option 'exchang'; did you mean 'exchange'?" in message(frame, exchang="")
    assert "FLINTMQ_MODE" in message(frame, mode="overwrite", exchange="")
    assert "FLINTMQ_LOGIN_REFUSED" in message(frame, exchange="", password="wrong")
    assert drain(channel, queue) == []


def test_from_queue_to_queue(spark: SparkSession, broker: Broker, channel: Any, queue: str, tmp_path: Path) -> None:
    """What the source reads can be written as it is: properties and header bytes arrive unchanged; an exchange as an option wins."""
    exchange, target = unique("out"), unique("target")
    channel.exchange_declare(exchange, "fanout")
    channel.queue_declare(target, durable=True)
    channel.queue_bind(target, exchange)
    headers = {"n": 5, "list": [1, "two"], "raw": b"\xff"}
    sent = pika.BasicProperties(
        headers=headers, content_type="application/x", message_id="m", priority=3, timestamp=1_700_000_000, delivery_mode=2
    )
    channel.confirm_delivery()
    for i in range(100):
        channel.basic_publish("", queue, b"%d" % i, sent)
    read = spark.readStream.format("flintmq").options(**options(broker, queue=queue, maxMessagesPerTrigger="60")).load()
    scope = run(read, tmp_path / "checkpoint", **options(broker, exchange=exchange))
    assert channel.queue_declare(queue, passive=True).method.message_count == 0
    method, properties, body = channel.basic_get(target, auto_ack=True)
    assert (body, vars(properties), method.routing_key) == (b"0", vars(sent), queue)
    assert sorted(drain(channel, target), key=int) == [str(i) for i in range(1, 100)]
    assert staged(broker, scope, 1) == 0


def test_writes_of_foreach_batch_can_be_repeated(spark: SparkSession, broker: Broker, channel: Any, queue: str, tmp_path: Path) -> None:
    """`txnVersion` = batch id makes a write in foreachBatch happen once, although the function fails behind it and runs again."""
    files = put_files(tmp_path / "in", 0, 4)
    failing = {1}

    def both(frame: DataFrame, batch: int) -> None:
        for kind in ("a", "b"):
            named = options(broker, queue=queue, txnId=f"{queue}-{kind}", txnVersion=str(batch))
            frame.selectExpr("value").write.format("flintmq").mode("append").options(**named).save()
            if batch in failing:
                failing.discard(batch)
                raise RuntimeError("behind the first write")

    def once() -> None:
        lines = spark.readStream.format("text").option("maxFilesPerTrigger", 2).load(str(tmp_path / "in"))
        query = lines.writeStream.foreachBatch(both).option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        query.start().awaitTermination()

    with pytest.raises(Exception, match="behind the first write"):
        once()
    once()
    assert sorted(drain(channel, queue)) == sorted([line for text in files for line in text] * 2)


def test_a_new_checkpoint_publishes_what_foreach_batch_writes(
    spark: SparkSession, broker: Broker, channel: Any, queue: str, tmp_path: Path
) -> None:
    """It counts its batches from 0, below the last one that its name has committed: all of its rows were left out without a word."""

    def write(frame: DataFrame, batch: int) -> None:
        named = options(broker, queue=queue, txnId=f"{queue}-totals", txnVersion=str(batch))
        frame.selectExpr("value").write.format("flintmq").mode("append").options(**named).save()

    def run(name: str) -> None:
        lines = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(tmp_path / name))
        query = lines.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / f"{name}-checkpoint"))
        query.trigger(availableNow=True).start().awaitTermination()

    expected = [line for text in put_files(tmp_path / "one", 0, 3) for line in text]
    run("one")
    expected += [line for text in put_files(tmp_path / "two", 3, 5) for line in text]
    run("two")
    assert sorted(drain(channel, queue)) == sorted(expected)


def test_attempts_that_fail_after_their_stage_was_prepared(broker: Broker, channel: Any, queue: str, tmp_path: Path) -> None:
    """Every task fails once when its stage is durable; Spark runs it again, each message is published once and nothing stays staged."""
    files = put_files(tmp_path / "in", 0, 4)
    (tmp_path / "marks").mkdir()
    job = {
        "master": "local[2,4]",
        "options": options(broker, queue=queue),
        "input": str(tmp_path / "in"),
        "checkpoint": str(tmp_path / "checkpoint"),
        "marks": str(tmp_path / "marks"),
        "fault": "after_prepare",
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.pipeline.sink_driver", json.dumps(job)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-4000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    assert len(list((tmp_path / "marks").iterdir())) == 8
    got = drain(channel, queue)
    assert sorted(got) == sorted(itertools.chain(*files)) and in_order(got, files)
    assert staged(broker, answer["id"], 1) == 0
