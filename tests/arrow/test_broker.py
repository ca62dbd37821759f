"""Messages that a broker took over AMQP, decoded from its store."""

from __future__ import annotations

import random
from typing import Any

import pika
import pytest

from flintmq.arrow.blocks import EncodeOptions, blocks_of
from flintmq.arrow.containers import Containers
from flintmq.arrow.log import StoreBusy, list_log, log_ends, offline_lock
from flintmq.arrow.messages import rows_to_batches
from flintmq.arrow.scan import scan_container
from flintmq.testing.broker import Broker
from tests.arrow.payloads import TEXT_PROPERTIES, expected, payload_of
from tests.arrow.stores import ROW, found_in
from tests.support.blocks import block_entries

QUEUE = "tests.arrow"


def examples(count: int) -> list[tuple[pika.BasicProperties, bytes]]:
    """Some messages with all kinds of properties, the same in each run."""
    dice = random.Random(5)
    names = [name for name in TEXT_PROPERTIES if name != "user_id"]
    found = []
    for i in range(count):
        chosen: dict[str, Any] = {name: f"{name}-{i}-\u00e4" for name in names if dice.random() < 0.4}
        if dice.random() < 0.7:
            chosen["headers"] = {"n": i, "t": "text", "nested": {"b": [1, None, {"c": b"\xff"}], "a": True}, "bytes": b"\xfe\xff"}
        chosen |= {"delivery_mode": 2, "priority": i % 10, "timestamp": 1_700_000_000 + i}
        size = dice.choice([0, 1, 100, 4000, 20_000, 70_000, 300_000])
        found.append((pika.BasicProperties(**chosen), bytes([i % 256]) * size))
    return found


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A store with messages of all sizes (long ones in chunks over containers) and the messages, after a clean stop."""
    directory = tmp_path_factory.mktemp("broker")
    published = examples(60)
    with Broker(data_dir=str(directory)) as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        channel = connection.channel()
        channel.queue_declare(QUEUE, durable=True)
        channel.confirm_delivery()
        for props, body in published:
            channel.basic_publish("", QUEUE, body, props)
        connection.close()
        (path,) = {found.parent for found in directory.rglob("messages")}
        with pytest.raises(StoreBusy), offline_lock(path):
            pass
    return path, published


def wanted(props: pika.BasicProperties, body: bytes) -> dict[str, Any]:
    return expected(payload_of(props, len(body))) | {"body": body, "exchange": "", "routing_key": QUEUE}


def test_rows_of_a_store_decode_to_what_was_published(store: Any) -> None:
    """Every property, header and body, at the position and with the times that the plain reader tells."""
    path, published = store
    found = found_in(path)
    rows = b"".join(ROW.pack(one.enqueued[0][1], one.id, one.where, len(one.body), 0, 0, 0) for one in found)
    batches = rows_to_batches(Containers(str(path / "messages")), rows, [[QUEUE, len(found)]])
    got = [line for batch in batches for line in batch.to_pylist()]
    for (props, body), line, one in zip(published, got, found, strict=True):
        want = wanted(props, body)
        assert {name: line[name] for name in want} == want
        assert (line["position"], line["lsn"], line["queue"]) == (one.enqueued[0][1], one.id, QUEUE)
        assert round(line["published_time"].timestamp() * 1e6) == one.published_us
        assert round(line["enqueued_time"].timestamp() * 1e6) == one.enqueued[0][2]


def test_a_scan_of_a_stopped_store_gives_what_was_published(store: Any) -> None:
    """The log source reads the same messages offline, under the store's lock."""
    path, published = store
    with offline_lock(path):
        ends = log_ends(path / "messages")
        containers = list_log(path / "messages")
        scans = [scan_container(one.path, stream="messages", end=ends.tail) for one in containers]
        got = [line for scan in scans for batch in scan for line in batch.to_pylist()]
    assert ends.clean and len(containers) > 1
    for (props, body), line in zip(published, got, strict=True):
        want = wanted(props, body)
        assert {name: line[name] for name in want} == want


def test_what_was_read_can_be_staged_as_it_is(store: Any) -> None:
    """Source to sink: the header payloads are byte for byte those that clients sent."""
    path, published = store
    found = found_in(path)
    rows = b"".join(ROW.pack(1, one.id, one.where, len(one.body), 0, 0, 0) for one in found)
    headers = []
    for batch in rows_to_batches(Containers(str(path / "messages")), rows, [[QUEUE, len(found)]]):
        for routes, block in blocks_of(batch, EncodeOptions(block_bytes=65536)):
            assert routes == [["", QUEUE]]
            headers += [(entry.header, entry.body) for entry in block_entries(block, len(routes))]
    assert headers == [(one.header, one.body) for one in found] and len(headers) == len(published)
