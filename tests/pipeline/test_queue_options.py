"""Every option is checked, an unknown one is an error with a suggestion, no secret shows, and the choice of transport is by options."""

from __future__ import annotations

import io
import pickle
from typing import Any

import pytest
from pyspark.util import handle_worker_exception

from flintmq.flight.calls import Calls
from flintmq.pipeline.jobs.failures import one_line
from pyspark_flintmq.errors import ConnectionLost, SourceError
from pyspark_flintmq.queue_options import QueueOptions, default_subscription
from pyspark_flintmq.source import FlintSource
from pyspark_flintmq.spelling import respelled


def refused(kind: str = "stream", **raw: str) -> SourceError:
    with pytest.raises(SourceError) as error:
        getattr(QueueOptions, kind)(raw)
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(f"FLINTMQ_{error.value.code}: ")
    return error.value


def test_names_are_case_insensitive_and_values_typed() -> None:
    options = QueueOptions.stream(
        {"QUEUES": "b, a,b", "flightport": "1", "MAXmessagesPerTrigger": "1000000", "minmessagespertrigger": "5", "maxTriggerDelay": "2m"}
    )
    assert (options.queues, options.connection.flightPort, options.max_messages) == (("a", "b"), 1, 1_000_000)
    assert (options.min_messages, options.max_delay_s, options.subscription) == (5, 120.0, "spark:a,b")
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("flightPort", "0"),
        ("flightPort", "five"),
        ("maxMessagesPerTrigger", "0"),
        ("maxMessagesPerTrigger", "10000001"),
        ("maxBytesPerTrigger", "0"),
        ("minPartitions", "0"),
        ("minPartitions", "4097"),
        ("minMessagesPerTrigger", "500001"),
        ("maxTriggerDelay", "15"),
        ("maxTriggerDelay", "-1s"),
        ("timeout", "0"),
        ("onLostCheckpoint", "ignore"),
        ("failOnDataLoss", "maybe"),
        ("queue", "x" * 256),
        ("subscription", "x" * 256),
        ("startingOffsets", "begin"),
        ("startingOffsets", '{"lsn": -1}'),
        ("startingOffsets", '{"lsn": true}'),
        ("startingOffsets", '{"lsn": 1, "time_us": 2}'),
        ("startingOffsets", "[1]"),
        ("startingOffsets", '{"position": 1}'),
        ("startingTimestamp", "yesterday"),
        ("startingTimestamp", "-5"),
        ("startingTimestamp", "99999999999999999"),
        ("schemaVersion", "3"),
        ("columns", ""),
        ("columns", "body,boody"),
        ("body", "prefix:0"),
        ("body", "prefix:x"),
        ("body", "half"),
    ],
)
def test_a_value_out_of_range_is_refused(name: str, value: str) -> None:
    error = refused(**{"queue": "q", "minMessagesPerTrigger": "1", name: value})
    assert error.code == "OPTION_VALUE"
    assert name in error.text


def test_positions_and_times() -> None:
    def start(**raw: str) -> Any:
        return QueueOptions.stream({"queue": "q", **raw}).start

    assert start() == "earliest"
    assert start(startingOffsets="Latest") == "latest"
    assert start(startingOffsets='{"lsn": 17}') == {"lsn": 17}
    assert start(startingOffsets=" 17") == start(startingOffsets='{"offset": 17}') == {"offset": 17}
    assert start(startingTimestamp="1700000000000") == {"time_us": 1_700_000_000_000_000}
    assert start(startingTimestamp="2023-11-14T22:13:20") == start(startingTimestamp="2023-11-14T23:13:20.000+01:00")
    assert start(startingTimestamp="2023-11-14T22:13:20.000001Z") == {"time_us": 1_700_000_000_000_001}
    assert refused(queue="q", startingOffsets="latest", startingTimestamp="5").code == "OPTION_VALUE"
    batch = QueueOptions.batch({"queue": "q", "startingOffsets": '{"position": 3}', "endingTimestamp": "5", "maxMessages": "7"})
    assert (batch.start, batch.end, batch.limit) == ({"position": 3}, {"time_us": 5000}, 7)
    assert refused("batch", queue="q", startingOffsets="latest").code == "OPTION_VALUE"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("quee", "did you mean 'queue'"),
        ("maxMessagePerTrigger", "did you mean 'maxMessagesPerTrigger'"),
        ("flightPrt", "did you mean 'flightPort'"),
    ]
    + [("colums", "did you mean 'columns'"), ("port", "'flightPort'"), ("spoolDir", "no spool"), ("subscribePattern", "'queuePattern'")]
    + [("kafka.bootstrap.servers", "use 'url'"), ("subscribe", "'queue' or 'queues'"), ("kafka.fetch.min.bytes", "not used")]
    + [("groupId", "'subscription'"), ("group.id", "'subscription'"), ("isolationLevel", "is committed"), ("pollTimeoutMs", "'timeout'")]
    + [("kafkaConsumer.pollTimeoutMs", "'timeout'"), ("maxRecordsPerPartition", "'minPartitions'"), ("auto.offset.reset", "startingOff")]
    + [("endingOffsets", "spark.read"), ("maxMessages", "spark.read")],
)
def test_a_mistyped_option_says_what_is_meant(typed: str, meant: str) -> None:
    error = refused(**{"queue": "q", typed: "1"})
    assert error.code == "OPTION_UNKNOWN"
    assert meant in error.text


def test_an_option_of_streams_is_not_one_of_batches() -> None:
    assert "spark.readStream" in refused("batch", queue="q", maxMessagesPerTrigger="5").text


def test_names_of_the_kafka_connector_that_mean_the_same_are_taken() -> None:
    options = QueueOptions.stream({"queue": "q", "maxOffsetsPerTrigger": "7", "MinOffsetsPerTrigger": "3", "includeHeaders": "false"})
    assert (options.max_messages, options.min_messages) == (7, 3)
    assert not {"headers", "headers_raw"} & set(options.table.names) and "body" in options.table.names
    assert refused(queue="q", maxOffsetsPerTrigger="7", maxMessagesPerTrigger="7").code == "OPTION_VALUE"
    assert "spark.readStream" in refused("batch", queue="q", maxOffsetsPerTrigger="5").text


def test_queues_are_needed_and_named_once() -> None:
    assert refused().code == "OPTION_MISSING"
    assert refused(queue="a", queues="b").code == "OPTION_VALUE"
    assert refused(queues=" , ").code == "OPTION_VALUE"
    assert QueueOptions.stream({"queue": "a,b"}).queues == ("a,b",), "a name may have a comma"


def test_the_password_does_not_show() -> None:
    options = QueueOptions.stream({"queue": "q", "password": "s3cret"})
    assert "s3cret" not in repr(options) + options.what + options.connection.where


def test_the_name_of_the_subscription_fits() -> None:
    long = default_subscription(tuple(f"queue number {i}" for i in range(100)), "")
    assert len(long.encode()) <= 200
    assert long != default_subscription(tuple(f"queue number {i}" for i in range(1, 101)), "")


def loaded(**raw: str) -> FlintSource:
    source = FlintSource(raw)
    source.schema()
    return source


def test_load_refuses_wrong_options_before_anything_is_connected() -> None:
    for raw, code in [
        ({"queue": "q", "transport": "http"}, "OPTION_VALUE"),
        ({"queue": "q", "quee": "q"}, "OPTION_UNKNOWN"),
        ({"transport": "amqp", "queue": "q", "flightPort": "5"}, "OPTION_UNKNOWN"),
        ({"transport": "amqp", "queue": "q", "maxMessagesPerTrigger": "100000"}, "OPTION_VALUE"),
        ({}, "NO_TABLE"),
        ({"queue": "q", "option.queue": "q", "provider": "flintmq", "owner": "me"}, "NO_TABLE"),
        ({"minPartitions": "2"}, "OPTION_MISSING"),
        ({"queue": "q", "maxMessages": "-1"}, "OPTION_VALUE"),
        ({"queue": "q", "maxMessages": "1", "maxMessagesPerTrigger": "1"}, "OPTION_UNKNOWN"),
    ]:
        with pytest.raises(SourceError) as error:
            loaded(**raw)
        assert error.value.code == code, raw
    loaded(queue="q", endingOffsets="latest")
    loaded(queue="q", maxMessagesPerTrigger="7")


def test_options_choose_the_reader() -> None:
    from pyspark_flintmq.amqp.reader import AmqpStreamReader
    from pyspark_flintmq.queue_batch import BrowseReader, PushingBrowseReader
    from pyspark_flintmq.queue_stream import QueueStreamReader

    stream, amqp = loaded(queue="q"), loaded(queue="q", transport="AMQP")
    reader = stream.streamReader(stream.schema())
    assert isinstance(reader, QueueStreamReader)
    assert isinstance(pickle.loads(pickle.dumps(reader)), QueueStreamReader)
    assert isinstance(amqp.streamReader(amqp.schema()), AmqpStreamReader)
    batch = stream.reader(stream.schema())
    assert isinstance(batch, BrowseReader)
    assert not isinstance(batch, PushingBrowseReader), "Spark refuses a reader with pushFilters unless it is asked for"
    with pytest.raises(SourceError, match="NO_BATCH_READ"):
        amqp.reader(amqp.schema())


@pytest.mark.parametrize("error", [SourceError("CODE", "text"), ConnectionLost("text", "UNREACHABLE")])
def test_errors_survive_the_way_between_processes(error: SourceError) -> None:
    back = pickle.loads(pickle.dumps(error))
    assert (type(back), back.code, back.text, str(back)) == (type(error), error.code, error.text, str(error))


@pytest.mark.parametrize("simplified", ["", "1"])
def test_the_line_stands_above_the_trace_that_spark_sends(monkeypatch: pytest.MonkeyPatch, simplified: str) -> None:
    """Also where Spark shortens traces, and takes off what caused an error."""
    monkeypatch.setenv("SPARK_SIMPLIFIED_TRACEBACK", simplified)
    monkeypatch.delenv("SPARK_HIDE_TRACEBACK", raising=False)
    sent = io.BytesIO()
    try:
        try:
            raise OSError("what gRPC said")
        except OSError as cause:
            raise ConnectionLost("nobody answers", "UNREACHABLE") from cause
    except SourceError as error:
        handle_worker_exception(error, sent)
    text = sent.getvalue()[8:].decode()
    assert text.splitlines()[0] == "flintmq: FLINTMQ_UNREACHABLE: nobody answers"
    assert "Traceback" in text and one_line(text) == "FLINTMQ_UNREACHABLE: nobody answers"


@pytest.mark.parametrize("kind", ["stream", "batch"])
def test_partitions_by_key(kind: str) -> None:
    def made(**raw: str) -> tuple[int, str]:
        options = getattr(QueueOptions, kind)({"queue": "q", **raw})
        return options.partitions, options.key

    assert made() == (2, "")
    assert made(minPartitions="3") == (3, "")
    assert made(partitions="3") == (3, "routing_key"), "the nearest to the key of a message in Kafka"
    assert made(keyColumn="headers.user") == (2, "headers.user")
    assert made(partitions="256", keyColumn="message_id") == (256, "message_id")
    for name, wrong in (("partitions", "257"), ("partitions", "0"), ("keyColumn", "body"), ("keyColumn", "headers."), ("keyColumn", "")):
        assert f"option '{name}'" in refused(kind, queue="q", **{name: wrong}).text
    assert refused(kind, queue="q", partitions="2", minPartitions="2").code == "OPTION_VALUE"


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({"maxmessagespertrigger": "0"}, "'maxMessagesPerTrigger'"),
        ({"endingoffsets": "1", "maxmessagespertrigger": "5"}, "'maxMessagesPerTrigger'"),
        ({"maxoffsetspertrigger": "5", "endingoffsets": "5"}, "'maxOffsetsPerTrigger'"),
        ({"groupid": "g"}, "'groupId'"),
        ({"kafka.isolation.level": "x"}, "'kafka.isolation.level'"),
        ({"kafkaconsumer.polltimeoutms": "1"}, "'kafkaConsumer.pollTimeoutMs'"),
        ({"fetchoffset.numretries": "1"}, "'fetchOffset.numRetries'"),
        ({"spooldir": "/x"}, "'spoolDir'"),
        ({"queuepattern": "a*"}, "'queuePattern'"),
        ({"transport": "amqp", "startingoffsets": "latest"}, "'startingOffsets'"),
        ({"log": "messages", "storedir": "/x", "flightport": "1"}, "flightPort"),
        ({"routingkey": "a"}, "'routingKey'"),
        ({"contenttype": "a"}, "'contentType'"),
    ],
)
def test_names_are_shown_as_they_are_documented(options: dict[str, str], shown: str) -> None:
    """Spark gives a source all names in lower case."""
    with pytest.raises(SourceError) as error:
        FlintSource({"queue": "q", **options}).schema()
    assert shown in error.value.text.partition(" Known:")[0]


def test_the_name_that_a_stream_refuses_is_the_documented_one() -> None:
    from pyspark_flintmq.cursor import are_streams

    class Streams:
        calls = Calls(lambda name, arguments, wait_s: {})

        def close(self) -> None: ...

    options = QueueOptions.stream(respelled({"queue": "q", "onlostcheckpoint": "redeliver"}))
    with pytest.raises(SourceError, match="option 'onLostCheckpoint'"):
        are_streams(options, Streams)
