"""The sink's writers on a real broker, without Spark: what an AMQP client reads back, and what is left behind."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pika
import pyarrow as pa
import pytest
from pyspark.sql import types as t

from pyspark_flintmq.connection import Connection
from pyspark_flintmq.errors import SourceError
from pyspark_flintmq.schema import spark_schema
from pyspark_flintmq.sink import FlintBatchWriter, FlintStreamWriter, Staged, _Place
from tests.support.broker import Broker, self_signed_certificate, unique
from tests.support.hasty import hasty
from tests.support.servers import free_ports

BODY = t.StructType([t.StructField("body", t.BinaryType()), t.StructField("routing_key", t.StringType())])


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker("--flight-port", "0") as running:
        yield running


@pytest.fixture
def channel(broker: Broker) -> Iterator[Any]:
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    yield connection.channel()
    if connection.is_open:
        connection.close()


@pytest.fixture
def queue(channel: Any) -> str:
    name = unique("sink")
    channel.queue_declare(name, durable=True)
    return name


def writer(broker: Broker, schema: t.StructType = BODY, **options: str) -> FlintStreamWriter:
    return FlintStreamWriter(schema, {"flightPort": str(broker.ready["flight_port"]), "exchange": "", "timeout": "60", **options})


def attempt(made: FlintStreamWriter, scope: str, batch: int, part: int, *batches: pa.RecordBatch) -> Staged:
    there = pickle.loads(pickle.dumps(made))
    return there._stage(_Place(scope, there._epoch, batch, part, 0), iter(batches))  # type: ignore[no-any-return]


def rows(key: str, *bodies: bytes) -> pa.RecordBatch:
    return pa.record_batch({"body": list(bodies), "routing_key": [key] * len(bodies)})


def test_several_addresses_and_a_password_in_a_file(broker: Broker, channel: Any, queue: str, tmp_path: Path) -> None:
    """Nobody is at the first address; the tasks are told the store. A password that is changed is read again, and is in no pickle."""
    (nobody,) = free_ports(1)
    there = tmp_path / "password"
    there.write_text("guest\n")
    url = f"grpc://127.0.0.1:{nobody},127.0.0.1:{broker.ready['flight_port']}"
    options = {"url": url, "passwordFile": str(there), "exchange": "", "timeout": "60"}
    made = FlintStreamWriter(BODY, options)
    store = made._options.connection.store
    assert len(store) == 32 and b"guest\n" not in pickle.dumps(made)
    scope = unique("several")
    made._publish([attempt(made, scope, 0, 0, rows(queue, b"a", b"b"))], 0, newer_is_done=False)
    assert drain(channel, queue) == [b"a", b"b"]
    with contextlib.closing(made._options.connection.open()) as plane:
        there.write_text("old")
        assert plane.store == store and plane.scope_status(scope)["committed"] == 0, "a password that works is not read again"
        there.unlink()
        with pytest.raises(SourceError, match=r"FLINTMQ_OPTION_VALUE: option 'passwordFile': .* cannot be read on this machine"):
            FlintStreamWriter(BODY, options)
    there.write_text("two\nlines")
    with pytest.raises(SourceError, match="must hold one line of text") as error:
        FlintStreamWriter(BODY, options)
    assert "two" not in str(error.value)
    with pytest.raises(SourceError, match="either option 'password' or 'passwordFile'"):
        FlintStreamWriter(BODY, {**options, "password": "guest"})


def drain(channel: Any, queue: str) -> list[bytes]:
    got = []
    while True:
        method, _, body = channel.basic_get(queue, auto_ack=True)
        if method is None:
            return got
        got.append(body)


def garbage(broker: Broker, scope: str) -> int:
    plane = Connection.take({"flightPort": str(broker.ready["flight_port"])})[0].open()
    try:
        status = plane.scope_status(scope)
        return int(status["open"]) + int(status["prepared"])
    finally:
        plane.close()


def test_a_batch_is_published_once_and_nothing_stays(broker: Broker, channel: Any, queue: str) -> None:
    """Retried attempts, a repeated commit and a batch that runs again give each message once, in order, and no stage is left."""
    scope = unique("query")
    made = writer(broker)
    attempt(made, scope, 0, 0, rows(queue, b"a"))
    many = [b"%d" % i for i in range(25_000)]
    messages = [attempt(made, scope, 0, 0, rows(queue, *many)), attempt(made, scope, 0, 1, rows(queue, b"z"))]
    assert drain(channel, queue) == []
    writer(broker).commit(messages, 0)
    writer(broker).commit(messages, 0)
    again = attempt(writer(broker), scope, 0, 0, rows(queue, b"a"))
    assert again.already
    writer(broker).commit([again], 0)
    assert drain(channel, queue) == [*many, b"z"]
    assert garbage(broker, scope) == 0


def test_a_partition_of_more_rows_than_a_stage_takes(broker: Broker, channel: Any, queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They fill several stages, which are published at once, in order."""
    monkeypatch.setattr("pyspark_flintmq.sink.STAGE_ROWS", 20)
    scope = unique("query")
    parts = [[b"%d-%d" % (part, n) for n in range(45)] for part in range(2)]
    made = writer(broker)
    messages = [
        attempt(made, scope, 0, part, *(rows(queue, *sent[at : at + 10]) for at in range(0, 45, 10))) for part, sent in enumerate(parts)
    ]
    assert [(len(one.stage_ids), one.count) for one in messages] == [(3, 45), (3, 45)]
    assert drain(channel, queue) == []
    writer(broker).commit(messages, 0)
    assert drain(channel, queue) == [*parts[0], *parts[1]] and garbage(broker, scope) == 0


def test_a_driver_left_behind_commits_nothing(broker: Broker, channel: Any, queue: str) -> None:
    """The older driver's commit is refused while the newer works and after; its abort leaves the newer one's stages."""
    scope = unique("query")
    zombie, new = writer(broker), writer(broker)
    old = attempt(zombie, scope, 0, 0, rows(queue, b"a"))
    message = attempt(new, scope, 0, 0, rows(queue, b"a"))
    with pytest.raises(SourceError, match=r"^FLINTMQ_FENCED: "):
        zombie.commit([old], 0)
    zombie.abort([old, None], 0)
    new.commit([message], 0)
    with pytest.raises(SourceError, match=r"^FLINTMQ_FENCED: "):
        zombie.commit([old], 0)
    assert drain(channel, queue) == [b"a"]
    assert garbage(broker, scope) == 0


def test_all_properties_arrive_exactly(broker: Broker, channel: Any, queue: str) -> None:
    """What the columns say is what an AMQP client reads, bit for bit where the AMQP types are kept in `headers_raw`."""
    moment = datetime.fromtimestamp(1_700_000_000, UTC)
    table = b"\x01nI\x00\x00\x00\x05" + b"\x01tt\x01" + b"\x01bx\x00\x00\x00\x02\xff\x00"
    row: dict[str, Any] = {
        "queue": "other", "position": 1, "lsn": 2, "enqueued_time": moment, "exchange": "elsewhere", "routing_key": queue,
        "redelivered": True, "body": b"\xff\x00body", "headers": [("shadowed", "1")], "headers_raw": len(table).to_bytes(4, "big") + table,
        "content_type": "application/x", "content_encoding": "gzip", "delivery_mode": 1, "priority": 7, "correlation_id": "c",
        "reply_to": "r", "expiration": "3600000", "message_id": "é", "timestamp": moment, "type": "t", "user_id": "guest",
        "app_id": "a", "cluster_id": "cl", "published_time": moment, "delivery_count": 3,
    }  # fmt: skip
    plain = {**dict.fromkeys(row), "body": b"", "routing_key": queue, "exchange": "", "headers": [("k", "v"), ("none", None)]}
    scope = unique("query")
    made = writer(broker, spark_schema())
    batch = pa.RecordBatch.from_pylist(
        [row, plain],
        schema=pa.schema([(name, _arrow(made, name, row)) for name in spark_schema().names]),
    )
    made.commit([attempt(made, scope, 0, 0, batch)], 0)
    _, properties, body = channel.basic_get(queue, auto_ack=True)
    got = {name: value for name, value in vars(properties).items() if value is not None}
    assert body == row["body"]
    assert got.pop("headers") == {"n": 5, "t": True, "b": b"\xff\x00"}
    assert got == {
        **{name: row[name] for name in ("content_type", "content_encoding", "delivery_mode", "priority", "correlation_id", "reply_to")},
        **{name: row[name] for name in ("expiration", "message_id", "type", "user_id", "app_id", "cluster_id")},
        "timestamp": 1_700_000_000,
    }
    _, properties, body = channel.basic_get(queue, auto_ack=True)
    assert body == b"" and {name: value for name, value in vars(properties).items() if value is not None} == {
        "headers": {"k": "v", "none": None},
        "delivery_mode": 2,
    }


def _arrow(made: FlintStreamWriter, name: str, row: dict[str, Any]) -> pa.DataType:
    from pyspark_flintmq.schema import arrow_schema

    return arrow_schema().field(name).type


def test_constants_reach_every_message(broker: Broker, channel: Any, queue: str) -> None:
    """Options are properties of all messages of a write."""
    scope = unique("query")
    only_body = t.StructType([t.StructField("value", t.StringType())])
    raw = {"flightPort": str(broker.ready["flight_port"]), "queue": queue, "contentType": "text/plain", "priority": "3", "appId": "job"}
    made = FlintStreamWriter(only_body, {**raw, "expiration": "60000", "deliveryMode": "1"})
    made.commit([attempt(made, scope, 0, 0, pa.record_batch({"value": ["é", "b"]}))], 0)
    for body in ("é".encode(), b"b"):
        _, properties, got = channel.basic_get(queue, auto_ack=True)
        assert got == body
        assert (properties.content_type, properties.priority, properties.app_id) == ("text/plain", 3, "job")
        assert (properties.expiration, properties.delivery_mode, properties.headers) == ("60000", 1, None)


def test_unroutable_messages(broker: Broker, channel: Any, queue: str) -> None:
    """They fail the batch with their number over all partitions, or are dropped, or go to another exchange."""
    scope, lost = unique("query"), unique("lost")
    channel.exchange_declare(lost, "fanout")
    channel.queue_declare(lost)
    channel.queue_bind(lost, lost)

    def batch(number: int, **options: str) -> None:
        made = writer(broker, **options)
        parts = [rows(queue, b"1"), pa.concat_batches([rows("nowhere", b"2", b"3"), rows(queue, b"4")]), rows("nowhere", b"5")]
        writer(broker, **options).commit([attempt(made, scope, number, i, one) for i, one in enumerate(parts)], number)

    with pytest.raises(
        SourceError, match=r"^FLINTMQ_UNROUTABLE: batch 0 has 3 unroutable messages, for instance: exchange '' with routing key 'nowhere'"
    ):
        batch(0)
    assert drain(channel, queue) == [] and garbage(broker, scope) == 0
    batch(0, unroutable="drop")
    assert drain(channel, queue) == [b"1", b"4"]
    batch(1, unroutable=f"exchange:{lost}")
    assert drain(channel, queue) == [b"1", b"4"] and drain(channel, lost) == [b"2", b"3", b"5"]


def test_a_write_without_a_name_leaves_nothing_behind(broker: Broker, queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """When it ends well its scope is forgotten at once. Else that stays for the time of a task, to refuse those that still run, and has no
    stages."""

    class Context:
        def partitionId(self) -> int:
            return 0

        def taskAttemptId(self) -> int:
            return 0

    monkeypatch.setattr("pyspark.TaskContext.get", Context)
    with_scopes = Connection.take({"flightPort": str(broker.ready["flight_port"])})[0]
    for key, ends_well in ((queue, True), ("nowhere", False)):
        made = FlintBatchWriter(BODY, {"flightPort": str(broker.ready["flight_port"]), "exchange": "", "timeout": "60"})
        message = made.write(iter([rows(key, b"a")]))
        if ends_well:
            made.commit([message])
        else:
            with pytest.raises(SourceError, match=r"^FLINTMQ_UNROUTABLE: "):
                made.commit([message])
            made.abort([message])
        with contextlib.closing(with_scopes.open()) as plane:
            left = [(one["open"], one["prepared"]) for one in plane.scope_list() if one["scope"].startswith("once:")]
        assert left == ([] if ends_well else [(0, 0)])
    with pytest.raises(SourceError, match=r"^FLINTMQ_FENCED: .* was aborted"):
        made.write(iter([rows(queue, b"a")]))


def test_messages_over_a_limit(broker: Broker, channel: Any) -> None:
    """A queue that refuses when it is full fails the batch, or its messages go to another exchange."""
    scope, full, other = unique("query"), unique("full"), unique("other")
    channel.queue_declare(full, arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
    channel.exchange_declare(other, "fanout")
    channel.queue_declare(other)
    channel.queue_bind(other, other)
    message = attempt(writer(broker), scope, 0, 0, rows(full, b"1", b"2", b"3"))
    with pytest.raises(SourceError, match=r"^FLINTMQ_OVER_LIMIT: batch 0 has 1 messages over the limit of a queue"):
        writer(broker).commit([message], 0)
    message = attempt(writer(broker, overLimit=f"exchange:{other}"), scope, 0, 0, rows(full, b"1", b"2", b"3"))
    writer(broker).commit([message], 0)
    assert drain(channel, full) == [b"1", b"2"] and drain(channel, other) == [b"3"]
    parts = [attempt(writer(broker), scope, 1, part, rows(full, b"4", b"5")) for part in range(2)]
    with pytest.raises(SourceError, match=r"^FLINTMQ_OVER_LIMIT: batch 1: 4 messages are too many for queue"):
        writer(broker).commit(parts, 1)
    assert drain(channel, full) == []


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"password": "wrong"}, "LOGIN_REFUSED"),
        ({"vhost": "nowhere"}, "FORBIDDEN"),
        ({"flightPort": "1", "timeout": "1"}, "UNREACHABLE"),
    ],
)
def test_who_may_not_write_hears_it_before_any_task(broker: Broker, options: dict[str, str], code: str) -> None:
    """Login, virtual host and reachability are checked with the plan; the error has no password in it."""
    with pytest.raises(SourceError) as caught:
        writer(broker, **options)
    assert caught.value.code == code and "wrong" not in caught.value.text.replace("user or password is wrong", "")


def test_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the authority in `tlsCa` the connection is encrypted; without it, and without TLS, it is refused."""
    with (
        self_signed_certificate() as (cert, key),
        Broker("--flight-port", "0", "--tls-port", "0", "--tls-cert", cert, "--tls-key", key) as running,
    ):
        port = str(running.ready["flight_port"])
        for more in ({"tlsCa": cert}, {"url": f"grpc+tls://localhost:{port}", "tlsCa": cert}):
            where = {"flightPort": port} if "url" not in more else {}
            made = FlintStreamWriter(BODY, {"exchange": "", "timeout": "60", **where, **more})
            pickle.loads(pickle.dumps(made)).commit([attempt(made, unique("query"), 0, 0)], 0)
        hasty(monkeypatch)
        for wrong, hint in (({"flightPort": port}, "give option 'tlsCa'"), ({"url": f"grpc+tls://localhost:{port}"}, "is not trusted")):
            with pytest.raises(SourceError, match=rf"^FLINTMQ_UNREACHABLE: .*{hint}"):
                FlintStreamWriter(BODY, {"exchange": "", "timeout": "30", **wrong})
        with Broker("--flight-port", "0") as plain, pytest.raises(SourceError, match=r"^FLINTMQ_UNREACHABLE: .*It speaks no TLS"):
            FlintStreamWriter(BODY, {"exchange": "", "timeout": "30", "flightPort": str(plain.ready["flight_port"]), "tlsCa": cert})


def test_an_exchange_that_is_missing(broker: Broker) -> None:
    """The broker's own words name the exchange."""
    with pytest.raises(SourceError, match=r"^FLINTMQ_NOT_FOUND: .*'nowhere'"):
        attempt(writer(broker, exchange="nowhere"), unique("query"), 0, 0, rows("k", b"1"))


def test_a_broker_killed_between_prepare_and_commit(tmp_path: Path) -> None:
    """What was prepared survives kill -9 of the broker, and the driver's commit, made again, publishes it once."""
    (port,) = free_ports(1)
    kept = ("--data-dir", str(tmp_path / "data"), "--flight-port", str(port))
    scope = unique("query")
    first = Broker(*kept)
    with first:
        connection = pika.BlockingConnection(pika.URLParameters(first.url))
        connection.channel().queue_declare("q", durable=True)
        connection.close()
        made = writer(first)
        attempt(made, scope, 0, 0, rows("q", b"loser"))
        message = attempt(made, scope, 0, 0, rows("q", b"a", b"b"))
        first.kill()
    with Broker(*kept) as second:
        made.commit([message], 0)
        made.commit([message], 0)
        connection = pika.BlockingConnection(pika.URLParameters(second.url))
        assert drain(connection.channel(), "q") == [b"a", b"b"]
        connection.close()
        assert garbage(second, scope) == 0
        second.kill()
    with Broker(*kept) as third:
        again = attempt(writer(third), scope, 0, 0, rows("q", b"a", b"b"))
        assert again.already


def test_a_broker_killed_while_a_task_stages(tmp_path: Path) -> None:
    """The attempt waits for the broker and stages all of its rows again: Spark need not run it again."""
    (port,) = free_ports(1)
    kept = ("--data-dir", str(tmp_path / "data"), "--flight-port", str(port))
    scope = unique("query")
    many = [b"%d" % i for i in range(30_000)]
    first, second = Broker(*kept), Broker(*kept)

    def batches() -> Iterator[pa.RecordBatch]:
        yield rows("q", *many[:20_000])
        first.kill()
        second.start()
        yield rows("q", *many[20_000:])

    with first:
        connection = pika.BlockingConnection(pika.URLParameters(first.url))
        connection.channel().queue_declare("q", durable=True)
        connection.close()
        made = writer(first)
        try:
            message = made._stage(_Place(scope, made._epoch, 0, 0, 0), batches())
            made.commit([message], 0)
            connection = pika.BlockingConnection(pika.URLParameters(second.url))
            assert drain(connection.channel(), "q") == many
            connection.close()
            assert garbage(second, scope) == 0
        finally:
            second.__exit__()
