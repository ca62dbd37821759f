"""replay brings back what was archived, or what the log has: exactly as it was, in its order, once per name."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pika
import pytest

pytest.importorskip("pyspark")

from flintmq.errors import OperatorError
from flintmq.pipeline.jobs.archive import ARCHIVE, ArchiveParameters
from flintmq.pipeline.jobs.job import Summary, built
from flintmq.pipeline.jobs.replay import HEADER, REPLAY, ReplayParameters
from tests.pipeline.plane import channel_of, flight_port, publish
from tests.support.broker import Broker, unique

HEADERS: dict[str, Any] = {
    "text": "schön",
    "number": -7,
    "yes": True,
    "none": None,
    "money": Decimal("12.34"),
    "when": datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC),
    "list": ["a", 1, {"b": False}],
}
PROPERTIES = {
    "content_type": "text/plain",
    "content_encoding": "gzip",
    "delivery_mode": 2,
    "priority": 3,
    "correlation_id": "c",
    "reply_to": "r",
    "expiration": "3600000",
    "message_id": "m",
    "timestamp": 1_700_000_000,
    "type": "t",
    "user_id": "guest",
    "app_id": "a",
    "cluster_id": "k",
}


def replayed(spark: Any, params: ReplayParameters) -> Summary:
    with built(REPLAY, spark, params) as plan:
        return REPLAY.summarise(plan)


def parameters(broker: Broker, **more: Any) -> ReplayParameters:
    return ReplayParameters(host=broker.host, flight_port=flight_port(broker), timeout=60, **more)


def declared(broker: Broker) -> str:
    name = unique("replayed")
    with channel_of(broker) as channel:
        channel.queue_declare(name, durable=True)
    return name


def taken(broker: Broker, queue: str) -> list[tuple[Any, bytes]]:
    """(properties, body) of all messages, which leave the queue."""
    found = []
    with channel_of(broker) as channel:
        while True:
            method, properties, body = channel.basic_get(queue, auto_ack=True)
            if method is None:
                return found
            found.append((properties, body))


def filled(broker: Broker) -> str:
    """A queue: one message with everything, one with nothing, and ten in order."""
    queue = unique("original")
    publish(broker, queue, [b"\x00\xff full"], headers=HEADERS, **PROPERTIES)
    with channel_of(broker) as channel:
        channel.basic_publish("", queue, b"", pika.BasicProperties(delivery_mode=1))
    publish(broker, queue, [b"%d" % n for n in range(10)])
    return queue


@pytest.fixture(params=["parquet", "delta"])
def archive(request: Any, spark: Any, plane_broker: Broker, tmp_path: Path) -> tuple[str, str]:
    """(directory, queue) of an archive."""
    if request.param == "delta":
        pytest.importorskip("deltalake")
    queue, out = filled(plane_broker), str(tmp_path / "archive")
    params = ArchiveParameters(
        host=plane_broker.host, flight_port=flight_port(plane_broker), out=out, queue=queue, format=request.param, max_messages=5
    )
    with built(ARCHIVE, spark, params) as plan:
        assert ARCHIVE.summarise(plan).figures["rows"] == 12
    return out, queue


@pytest.mark.spark
def test_an_archive_comes_back_as_it_was(spark: Any, plane_broker: Broker, archive: tuple[str, str]) -> None:
    """Body, properties, headers, order; the same name again publishes nothing, another name does; marked on wish."""
    target = declared(plane_broker)
    params = parameters(plane_broker, archive=archive[0], to_queue=target)
    first = replayed(spark, params)
    assert first.figures["rows"] == 12 and not first.figures["done_before"]
    found = taken(plane_broker, target)
    assert [body for _, body in found] == [b"\x00\xff full", b"", *(b"%d" % n for n in range(10))]
    full, bare = found[0][0], found[1][0]
    assert {name: getattr(full, name) for name in PROPERTIES} == PROPERTIES
    assert full.headers == HEADERS
    assert bare.headers is None and bare.delivery_mode == 1
    again = replayed(spark, params)
    assert again.figures["done_before"] and taken(plane_broker, target) == []
    marked = parameters(plane_broker, archive=archive[0], to_queue=target, mark=True, txn_id=unique("marked"), limit=2)
    assert replayed(spark, marked).figures["rows"] == 2
    full, bare = (properties for properties, _ in taken(plane_broker, target))
    assert full.headers == {**HEADERS, HEADER: marked.name} and bare.headers == {HEADER: marked.name}


@pytest.mark.spark
def test_a_range_of_the_log_comes_back_filtered(spark: Any, plane_broker: Broker) -> None:
    """By queue, time and routing key, consumed messages too; messages of a transaction stand where its commit put them."""
    topic, queue, target = unique("topic"), unique("source"), declared(plane_broker)
    with channel_of(plane_broker) as channel:
        channel.exchange_declare(topic, "topic", durable=True)
        channel.queue_declare(queue, durable=True)
        channel.queue_bind(queue, topic, "#")
        for key in ("eu.order", "eu_order", "us.order"):
            channel.basic_publish(topic, key, key.encode(), pika.BasicProperties(delivery_mode=2))
        local = channel.connection.channel()
        local.tx_select()
        for body in (b"tx 1", b"tx 2"):
            local.basic_publish(topic, "eu.oh", body, pika.BasicProperties(delivery_mode=2))
        local.tx_commit()
        channel.basic_publish(topic, "eu.ox", b"last", pika.BasicProperties(delivery_mode=2))
        channel.basic_get(queue, auto_ack=True)
        # A round trip: the get's settlement is in the log.
        channel.queue_declare(queue, passive=True)
    params = parameters(plane_broker, queue=queue, routing_key="eu?o*", to_queue=target, since="2020-01-01", drop_user_id=True)
    assert replayed(spark, params).figures["rows"] == 5
    assert [body for _, body in taken(plane_broker, target)] == [b"eu.order", b"eu_order", b"tx 1", b"tx 2", b"last"]
    later = parameters(plane_broker, queue=queue, to_queue=target, since="2100-01-01")
    assert replayed(spark, later).figures["rows"] == 0


@pytest.mark.spark
def test_a_target_that_takes_nothing_gets_nothing(spark: Any, plane_broker: Broker, tmp_path: Path) -> None:
    """A queue that is not there: nothing is published, one line says why, and the same name may be used for the second try."""
    queue, target = unique("source"), unique("missing")
    publish(plane_broker, queue, [b"1", b"2"])
    params = parameters(plane_broker, queue=queue, to_queue=target, txn_id=unique("name"))
    with pytest.raises(OperatorError, match=r"^FLINTMQ_UNROUTABLE: batch 0 has 2 ") as error:
        replayed(spark, params)
    assert error.value.exit_code == 65 and "\n" not in str(error.value)
    with channel_of(plane_broker) as channel:
        channel.queue_declare(target, durable=True)
    assert replayed(spark, params).figures["rows"] == 2


def test_what_does_not_go_together_is_refused(tmp_path: Path) -> None:
    """One line, exit code 64; a directory that is no archive is 69."""
    for wrong in (
        {},
        {"to_queue": "q", "to_exchange": "x"},
        {"to_queue": "q", "to_routing_key": "k"},
        {"to_queue": "q", "archive": "a", "store_dir": "s"},
        {"to_queue": "q", "limit": -1},
        {"to_queue": "q", "txn_id": "n" * 201},
    ):
        with pytest.raises(OperatorError) as error:
            ReplayParameters(**wrong).checked()  # type: ignore[arg-type]
        assert error.value.exit_code == 64
    from flintmq.pipeline.jobs.replay import archived

    for place in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(OperatorError) as error:
            archived(None, place)  # type: ignore[arg-type]
        assert error.value.exit_code == 69


def test_the_name_is_made_of_what_is_replayed_and_where_to() -> None:
    """The same replay has the same name whoever asks; another filter or target is another one."""
    one = ReplayParameters(archive="a", to_queue="q")
    assert one.name == ReplayParameters(archive="./a", to_queue="q", password="other", timeout=5).name
    others = [ReplayParameters(archive="a", to_queue="q", since="2026"), ReplayParameters(archive="b", to_queue="q"), one]
    assert len({other.name for other in others}) == 3
    assert ReplayParameters(archive="a", to_queue="q", txn_id="mine").name == "mine"


def test_a_relative_place_is_not_the_same_replay_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Else a replay of another store would publish nothing, "done before"."""
    monkeypatch.chdir(tmp_path)
    here = ReplayParameters(store_dir="store", to_queue="q").name
    assert here == ReplayParameters(store_dir=str(tmp_path / "store"), to_queue="q").name
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert here != ReplayParameters(store_dir="store", to_queue="q").name
