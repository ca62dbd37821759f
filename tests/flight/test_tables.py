"""Queues and streams as Arrow readers: whole, in order, and each message once although the process that takes them is killed anywhere."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import flintmq
from flintmq.flight.client import DataPlane
from flintmq.flight.plane_error import PlaneError
from flintmq.flight.tables import look, stream, take
from tests.support.broker import Broker, unique

# Writes parts of 400 messages, named by their numbers, and kills itself at one place of one part.
PROGRAM = """
import os, signal, sys
from pathlib import Path
import pyarrow.parquet as pq
from flintmq.flight.client import DataPlane
from flintmq.flight.tables import take
port, queue, out, place, number = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), sys.argv[4], int(sys.argv[5])
def at(here, seq):
    if (here, seq) == (place, number):
        os.kill(os.getpid(), signal.SIGKILL)
with DataPlane("127.0.0.1", port) as plane:
    for part in take(plane, [queue], "killed:" + queue, max_messages=400):
        at("given", part.seq)
        reader = part.reader(columns=["position", "body"])
        with pq.ParquetWriter(out / "unfinished", reader.schema) as file:
            for batch in reader:
                file.write_batch(batch)
                at("half", part.seq)
        (out / "unfinished").replace(out / f"{part.seq}.parquet")
        at("written", part.seq)
        part.commit()
        at("committed", part.seq)
"""
PLACES = [("given", 1), ("half", 1), ("written", 2), ("committed", 2), ("written", 3), ("given", 4)]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker("--flight-port", "0") as started:
        yield started


@pytest.fixture
def plane(broker: Broker) -> Iterator[DataPlane]:
    with DataPlane("127.0.0.1", broker.ready["flight_port"], timeout_s=40) as client:
        yield client


@pytest.fixture
def channel(broker: Broker) -> Iterator[Any]:
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    yield connection.channel()
    connection.close()


def fill(channel: Any, count: int, arguments: dict[str, Any] | None = None, queue: str = "") -> str:
    queue = queue or unique("tables")
    channel.queue_declare(queue, durable=True, arguments=arguments)
    channel.confirm_delivery()
    for number in range(count):
        channel.basic_publish("", queue, b"%d" % number, pika.BasicProperties(delivery_mode=2))
    return queue


def numbers(table: Any) -> list[int]:
    return [int(body) for body in table["body"].to_pylist()]


def test_looking_takes_nothing_and_shows_queues_one_after_the_other(plane: DataPlane, channel: Any) -> None:
    first, second = fill(channel, 30), fill(channel, 20)
    reader = look(plane, [first, second], columns=["queue", "body"])
    assert isinstance(reader, pa.RecordBatchReader)
    table = reader.read_all()
    assert table.schema.names == ["queue", "body"]
    assert numbers(table) == [*range(30), *range(20)]
    assert table["queue"].to_pylist() == [first] * 30 + [second] * 20
    position = look(plane, [first], columns=["position"]).read_all()["position"][25].as_py()
    assert numbers(look(plane, [first], start={"position": position}).read_all()) == [*range(25, 30)]
    assert look(plane, [first], body="none").read_all()["body"].to_pylist() == [b""] * 30
    with pytest.raises(ValueError, match="no such column"):
        look(plane, [first], columns=["nothing"])
    with pytest.raises(PlaneError, match="NOT_FOUND"):
        look(plane, [unique("missing")]).read_all()


def test_parts_leave_the_queue_with_their_commit(plane: DataPlane, channel: Any) -> None:
    queue = fill(channel, 25)
    found = []
    for part in take(plane, [queue], unique("sub"), max_messages=10):
        assert numbers(part.reader().read_all()) == numbers(part.reader(columns=["body"]).read_all()), "the same each time"
        found.append((part.seq, part.count, numbers(part.reader().read_all())))
        part.commit()
        part.commit()
    assert found == [(1, 10, [*range(10)]), (2, 10, [*range(10, 20)]), (3, 5, [*range(20, 25)])]
    assert channel.queue_declare(queue, passive=True).method.message_count == 0


def test_a_part_that_is_not_committed_is_no_step(plane: DataPlane, channel: Any) -> None:
    queue, name = fill(channel, 5), unique("sub")
    parts = take(plane, [queue], name, max_messages=3)
    first = next(parts)
    with pytest.raises(PlaneError, match=r"part 1 .* was not committed"):
        next(parts)
    again = next(take(plane, [queue], name, max_messages=5))
    assert (again.seq, numbers(again.reader().read_all())) == (1, [0, 1, 2]), "as it was, whatever the limits are now"
    with pytest.raises(PlaneError, match="FENCED"):
        first.commit()
    again.commit()


def test_each_message_is_in_one_file_though_its_writer_is_killed_anywhere(broker: Broker, channel: Any, tmp_path: Path) -> None:
    queue = fill(channel, 2_000)
    environment = os.environ | {"PYTHONPATH": str(Path(flintmq.__file__).resolve().parents[1])}
    for place, number in [*PLACES, ("nowhere", 0)]:
        arguments = [str(broker.ready["flight_port"]), queue, str(tmp_path), place, str(number)]
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *arguments], env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == (0 if place == "nowhere" else -signal.SIGKILL), done.stderr
    files = sorted(tmp_path.glob("*.parquet"), key=lambda path: int(path.stem))
    assert [number for path in files for number in numbers(pq.read_table(path))] == [*range(2_000)]
    assert channel.queue_declare(queue, passive=True).method.message_count == 0


def test_a_stream_goes_on_behind_the_range_before(plane: DataPlane, channel: Any) -> None:
    queue = fill(channel, 12, {"x-queue-type": "stream"})
    first = stream(plane, queue, max_messages=5)
    assert (first.begin, first.end, numbers(first.reader().read_all())) == (0, 5, [*range(5)])
    rest = stream(plane, queue, after=(first.stream, first.end))
    assert (rest.begin, rest.end) == (5, 12)
    assert rest.reader(columns=["position"]).read_all()["position"].to_pylist() == [*range(5, 12)]
    nothing = stream(plane, queue, after=(rest.stream, rest.end))
    assert (nothing.begin, nothing.end, nothing.reader().read_all().num_rows) == (12, 12, 0)
    channel.queue_delete(queue)
    fill(channel, 1, {"x-queue-type": "stream"}, queue)
    with pytest.raises(PlaneError, match="STREAM_REPLACED"):
        stream(plane, queue, after=(rest.stream, rest.end))
    with pytest.raises(PlaneError, match="NOT_A_STREAM"):
        stream(plane, fill(channel, 0))
