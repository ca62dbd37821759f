"""archive brings each message of queues or of a log's range into Parquet or Delta once, with all that it carried."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from flintmq.errors import OperatorError
from flintmq.pipeline.jobs import archive as archive_module
from flintmq.pipeline.jobs import delta, find_job
from flintmq.pipeline.jobs.archive import ARCHIVE, ArchiveParameters
from flintmq.pipeline.jobs.job import Summary, built
from flintmq.pipeline.jobs.queries import BatchReport
from tests.jobs.stores import shared_busy_store
from tests.pipeline.plane import channel_of, flight_port, publish, ready
from tests.support.broker import Broker, unique


def parameters(broker: Broker, out: Path, **more: Any) -> ArchiveParameters:
    return ArchiveParameters(host=broker.host, flight_port=flight_port(broker), out=str(out), timeout=60, **more)


def done(spark: Any, params: ArchiveParameters, listener: Any = None) -> Summary:
    with built(ARCHIVE, spark, params) as plan:
        plan.listener = listener
        return ARCHIVE.summarise(plan)


def rows(spark: Any, out: Path) -> list[tuple[str, bytes]]:
    frame = spark.read.schema("date DATE, queue STRING, body BINARY").parquet(str(out))
    return sorted((row["queue"], bytes(row["body"])) for row in frame.collect())


@pytest.mark.spark
def test_queues_into_parquet_by_date_and_queue(spark: Any, plane_broker: Broker, tmp_path: Path) -> None:
    """Two queues, one with a name that no directory can have; a second run adds what came since, and takes it out of the queues."""
    plain, strange = unique("archive"), unique("a/b = c%")
    publish(plane_broker, plain, [b"%d" % n for n in range(30)], message_id="m", headers={"x": [1, "two"]})
    publish(plane_broker, strange, [b"s"])
    reports: list[BatchReport] = []
    params = parameters(plane_broker, tmp_path / "out", queue=f"{plain},{strange}", max_messages=10)
    first = done(spark, params, reports.append)
    assert first.figures["rows"] == 31 == sum(report.rows for report in reports)
    assert reports[-1].behind_messages == 0 and "behind 0" in reports[-1].line
    assert ready(plane_broker, plain) == ready(plane_broker, strange) == 0
    publish(plane_broker, plain, [b"later"])
    assert done(spark, params).figures["rows"] == 1
    assert rows(spark, tmp_path / "out") == sorted([*((plain, b"%d" % n) for n in range(30)), (plain, b"later"), (strange, b"s")])
    days = {path.parent.parent.name for path in (tmp_path / "out").glob("date=*/*/*.parquet")}
    # two of them when midnight was among the messages
    assert 1 <= len(days) <= 2 and all(day.startswith("date=2") for day in days)


@pytest.mark.spark
def test_a_stream_is_archived_from_its_first_message_on_and_keeps_it(spark: Any, plane_broker: Broker, tmp_path: Path) -> None:
    """By offset, each message once; another run goes on behind the last one, and another archive gets all of it."""
    name = unique("stream")

    def append(*bodies: bytes) -> None:
        with channel_of(plane_broker) as channel:
            channel.queue_declare(name, durable=True, arguments={"x-queue-type": "stream"})
            for body in bodies:
                channel.basic_publish("", name, body)

    append(*(b"%d" % n for n in range(25)))
    params = parameters(plane_broker, tmp_path / "out", queue=name, max_messages=10)
    assert done(spark, params).figures["rows"] == 25
    assert ready(plane_broker, name) == 25, "nothing is taken out of a stream"
    append(b"later")
    assert done(spark, params).figures["rows"] == 1
    assert rows(spark, tmp_path / "out") == sorted([*((name, b"%d" % n) for n in range(25)), (name, b"later")])
    assert done(spark, parameters(plane_broker, tmp_path / "again", queue=name)).figures["rows"] == 26
    with pytest.raises(OperatorError, match="a stream needs no subscription"):
        done(spark, parameters(plane_broker, tmp_path / "other", queue=name, subscription="s"))


@pytest.mark.spark
def test_a_delta_batch_that_comes_again_adds_nothing(spark: Any, plane_broker: Broker, tmp_path: Path, monkeypatch: Any) -> None:
    """A driver that dies between Delta's commit and Spark's runs the batch again: its rows are in the table once."""
    pytest.importorskip("deltalake")
    queue = unique("delta")
    publish(plane_broker, queue, [b"%d" % n for n in range(20)])
    params = parameters(plane_broker, tmp_path / "table", queue=queue, format="delta", max_messages=8)
    real, died = delta.append, []

    def append(*arguments: Any) -> bool:
        added = real(*arguments)
        if not died:
            died.append(arguments[3])
            raise RuntimeError("killed behind the commit")
        return added

    monkeypatch.setattr(delta, "append", append)
    with pytest.raises(OperatorError) as error:
        done(spark, params)
    assert "\n" not in str(error.value)
    again = done(spark, params)
    assert again.figures["known_batches"] == 1 and again.figures["rows"] == 12
    from deltalake import DeltaTable

    table = DeltaTable(str(tmp_path / "table")).to_pyarrow_table(columns=["queue", "body"])
    assert sorted(int(body) for body in table.column("body").to_pylist()) == list(range(20))
    assert ready(plane_broker, queue) == 0


@pytest.mark.spark
def test_a_range_of_the_log(spark: Any, plane_broker: Broker, tmp_path: Path) -> None:
    """What entered a queue, consumed or not, in a committed transaction or in none; not what was rolled back; and queues lose nothing."""
    queue, other = unique("log"), unique("log-other")
    publish(plane_broker, queue, [b"plain-%d" % n for n in range(5)])
    publish(plane_broker, other, [b"other"])
    with channel_of(plane_broker) as channel:
        for _ in range(2):
            channel.basic_ack(channel.basic_get(queue)[0].delivery_tag)
        plain = channel.connection.channel()
        plain.tx_select()
        plain.basic_publish("", queue, b"committed", archive_properties())
        plain.tx_commit()
        plain.basic_publish("", queue, b"rolled back", archive_properties())
        plain.tx_rollback()
    params = parameters(plane_broker, tmp_path / "out", source="log", queue=queue)
    assert done(spark, params).figures["rows"] == 6
    assert rows(spark, tmp_path / "out") == sorted([(queue, b"committed"), *((queue, b"plain-%d" % n) for n in range(5))])
    assert ready(plane_broker, queue) == 4
    with pytest.raises(OperatorError, match="holds an archive of the log already") as error:
        done(spark, params)
    assert error.value.exit_code == 64


def test_a_range_of_a_log_has_one_name_wherever_it_stands(tmp_path: Path) -> None:
    """Delta tables get it once: also when the store is named by another path, or a copy of it is read; another range is another one."""
    store = shared_busy_store()
    shutil.copytree(store, tmp_path / "copy")
    one = ArchiveParameters(source="log", store_dir=str(store), queue="b,a", since="2026-01-01")
    same = [
        replace(one, store_dir=os.path.relpath(store)),
        replace(one, store_dir=str(tmp_path / "copy")),
        replace(one, queue="a, b", since="2026-01-01T00:00:00+00:00"),
    ]
    others = [replace(one, queue="a"), replace(one, since="2026-01-02"), replace(one, until="2026-02-01"), replace(one, vhost="v")]
    name = archive_module._range_name
    assert {name(other) for other in same} == {name(one)}
    assert len({name(other) for other in (one, *others)}) == 5


@pytest.mark.spark
def test_a_range_that_a_delta_table_has_is_not_called_empty(spark: Any, tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    params = ArchiveParameters(source="log", store_dir=str(shared_busy_store()), out=str(tmp_path / "table"), format="delta")
    first, again = done(spark, params), done(spark, params)
    assert first.figures["rows"] > 0 == again.figures["rows"]
    assert any("was added before" in line for line in again.lines) and not any("has no messages" in line for line in again.lines)


def archive_properties() -> Any:
    import pika

    return pika.BasicProperties(delivery_mode=2)


def test_what_does_not_go_together_is_refused(tmp_path: Path) -> None:
    """Before anything is connected: one line, exit code 64."""
    good = {"out": str(tmp_path / "out"), "queue": "q"}
    ArchiveParameters(**good).checked()  # type: ignore[arg-type]
    for wrong in (
        {"out": ""},
        {"queue": ""},
        {"queue_pattern": "q*"},
        {"since": "2026-01-01"},
        {"max_messages": 0},
        {"source": "log", "follow": True},
        {"source": "log", "since": "yesterday"},
        {"source": "log", "since": "2026-01-02", "until": "2026-01-01"},
    ):
        with pytest.raises(OperatorError) as error:
            ArchiveParameters(**{**good, **wrong}).checked()  # type: ignore[arg-type]
        assert error.value.exit_code == 64 and "\n" not in str(error.value)


def test_a_directory_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    """Other files, another format, another source: refused, nothing written."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.txt").write_text("years")
    params = ArchiveParameters(out=str(out), queue="q")
    with pytest.raises(OperatorError, match="holds something else"):
        archive_module._check_place(params)
    assert [one.name for one in out.iterdir()] == ["thesis.txt"]
    (out / "thesis.txt").unlink()
    (out / archive_module.MARK).write_text(json.dumps({"format": "delta", "source": "queue"}))
    with pytest.raises(OperatorError, match="format delta"):
        archive_module._check_place(params)
    (out / archive_module.MARK).write_text(json.dumps({"format": "parquet", "source": "log"}))
    with pytest.raises(OperatorError, match="made from a log"):
        archive_module._check_place(params)


def test_a_checkpoint_that_does_not_know_the_batches_of_the_archive_is_refused(tmp_path: Path) -> None:
    """Spark's file sink would leave out batches whose numbers it has: their messages would be taken out of the queue, and lost."""
    params = ArchiveParameters(out=str(tmp_path / "out"), queue="q")
    metadata, offsets = params.directory / "_spark_metadata", params.checkpoint_directory / "offsets"
    archive_module._mark(params)
    archive_module._check_place(params)
    for log, names in ((metadata, ("0", "1", "2.compact")), (offsets, ("0", "1", "2"))):
        log.mkdir(parents=True)
        for name in (*names, ".2.crc", "x"):
            (log / name).touch()
    archive_module._check_place(params)
    (offsets / "3").touch()  # a batch that was begun, and not written yet
    archive_module._check_place(params)
    elsewhere = replace(params, checkpoint=str(tmp_path / "new"))
    for gone in ("3", "2"):
        (offsets / gone).unlink()
    for wrong, told in ((params, "ends with batch 1"), (elsewhere, "has none")):
        with pytest.raises(OperatorError, match=rf"^FLINTMQ_CHECKPOINT_LOST: .* has batches up to 2, .* {told}") as error:
            archive_module._check_place(wrong)
        assert error.value.exit_code == 75
    shutil.rmtree(params.checkpoint_directory)
    with pytest.raises(OperatorError, match="has none"):
        archive_module._check_place(params)


@pytest.mark.spark
def test_an_archive_whose_checkpoint_was_deleted_takes_nothing(spark: Any, plane_broker: Broker, tmp_path: Path) -> None:
    queue = unique("lost")
    publish(plane_broker, queue, [b"a"])
    params = parameters(plane_broker, tmp_path / "out", queue=queue)
    done(spark, params)
    shutil.rmtree(params.checkpoint_directory)
    publish(plane_broker, queue, [b"b"])
    with pytest.raises(OperatorError, match="FLINTMQ_CHECKPOINT_LOST"):
        done(spark, params)
    assert ready(plane_broker, queue) == 1
    again = replace(params, out=str(tmp_path / "again"))
    assert done(spark, again).figures["rows"] == 1 and rows(spark, tmp_path / "again") == [(queue, b"b")]


def test_a_job_that_there_is_not_is_named() -> None:
    with pytest.raises(OperatorError, match="did you mean 'replay'"):
        find_job("repaly")
