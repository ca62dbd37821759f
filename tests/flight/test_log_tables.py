"""The log as an Arrow reader is the same of a running broker and of the stopped one, and ends before what came later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pika
import pytest

from flintmq.arrow.log import StoreBusy
from flintmq.arrow.scan import LogDamaged
from flintmq.flight.client import DataPlane
from flintmq.flight.log_tables import log_reader
from tests.support.broker import Broker

COUNT = 300


def publish(broker: Broker, first: int, count: int) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    channel = connection.channel()
    channel.queue_declare("log", durable=True)
    channel.confirm_delivery()
    for number in range(first, first + count):
        channel.basic_publish("", "log", b"%d" % number, pika.BasicProperties(delivery_mode=2))
    connection.close()


def bodies(source: Any, **options: Any) -> list[int]:
    return [int(body) for body in log_reader(source, columns=["lsn", "body"], **options).read_all()["body"].to_pylist()]


def test_a_running_and_a_stopped_broker_have_one_log(tmp_path: Path) -> None:
    with Broker("--flight-port", "0", "--data-dir", str(tmp_path)) as broker:
        publish(broker, 0, COUNT)
        with DataPlane("127.0.0.1", broker.ready["flight_port"], timeout_s=40) as plane:
            reader = log_reader(plane, columns=["body"])
            assert bodies(plane) == list(range(COUNT))
            publish(broker, COUNT, 5)
            kinds = log_reader(plane, "records", columns=["kind"]).read_all()["kind"].to_pylist()
            assert kinds.count("Message-Start") == COUNT + 5
            assert reader.read_all().num_rows == COUNT + 5, "a reader looks when the first batch is taken"
        with pytest.raises(StoreBusy):
            log_reader(tmp_path).read_all()
    assert bodies(str(tmp_path)) == list(range(COUNT + 5))
    assert log_reader(tmp_path, columns=["body"], body="prefix:1").read_all()["body"].to_pylist()[10:12] == [b"1", b"1"]
    whole = [log_reader(tmp_path, table).read_all() for table in ("messages", "records")]
    assert [{"lsn", "body", "published_time"} <= set(whole[0].column_names), "kind" in whole[1].column_names] == [True, True]
    assert whole[0].num_rows == COUNT + 5 < whole[1].num_rows
    assert "kind" in log_reader(tmp_path, "records", log="transactions").read_all().column_names


def test_damage_is_an_error(tmp_path: Path) -> None:
    with Broker("--data-dir", str(tmp_path)) as broker:
        publish(broker, 0, COUNT)
    path = min((tmp_path / "messages").glob("*.flog"))
    raw = bytearray(path.read_bytes())
    at = raw.index(b"150", 4096)
    raw[at] ^= 1
    path.write_bytes(raw)
    with pytest.raises(LogDamaged):
        log_reader(tmp_path).read_all()


def test_what_is_no_table_is_told() -> None:
    for table, log in (("tx", "messages"), ("messages", "transactions"), ("records", "pages")):
        with pytest.raises(ValueError, match="table is"):
            log_reader("/nowhere", table, log=log)
    with pytest.raises(ValueError, match="no such column"):
        log_reader("/nowhere", columns=["colour"])


def test_a_message_that_was_moved_is_one_row() -> None:
    from tests.jobs.stores import shared_busy_store

    def read(**options: Any) -> list[dict[str, Any]]:
        return log_reader(shared_busy_store(), columns=["lsn", "copy"], **options).read_all().to_pylist()  # type: ignore[no-any-return]

    rows, found = read(copies=True), read()
    assert len(found) == len({row["lsn"] for row in rows}) < len(rows)
    assert {row["lsn"] for row in found} == {row["lsn"] for row in rows}
    bodies = log_reader(shared_busy_store(), columns=["body"]).read_all()
    assert (bodies.column_names, bodies.num_rows) == (["body"], len(found))
