"""A real broker, its Flight service and a client: what is published comes out, what is staged gets in, whatever dies in between."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pika
import pyarrow as pa
import pytest

from flintmq.access.users import hash_password
from flintmq.arrow.schema import messages_schema
from flintmq.flight.client import DataPlane
from flintmq.flight.plane_error import PlaneError
from flintmq.ports import PermissionRecord, UserRecord
from flintmq.testing.broker import Broker as InProcess
from tests.support.broker import Broker, self_signed_certificate, unique, wait_until


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


def fill(channel: Any, count: int, size: int = 20) -> str:
    """A durable queue with `count` confirmed messages; its name."""
    queue = unique("flight")
    channel.queue_declare(queue, durable=True)
    properties = pika.BasicProperties(delivery_mode=2, headers={"n": 7}, message_id="id", content_type="text/plain")
    for number in range(count):
        channel.basic_publish("", queue, body(number, size), properties)
    channel.confirm_delivery()
    channel.basic_publish("", "", b"")  # unroutable and not mandatory: its confirm comes behind all before
    return queue


def body(number: int, size: int = 20) -> bytes:
    return (b"%d " % number).ljust(size, b".")


def prepared(plane: DataPlane, queue: str, slices: int = 1) -> tuple[Any, list[bytes]]:
    """The whole queue as the first set of a new subscription: (subscription, tickets)."""
    opened = plane.sub_open(unique("sub"), [queue])
    assert plane.sub_acquire(opened.sub_id, opened.epoch, 1, max_messages=1_000_000, max_bytes=1 << 40, max_wait_ms=2000)
    return opened, plane.sub_plan(opened.sub_id, opened.epoch, 1, slices)


def read(plane: DataPlane, tickets: list[bytes], **options: Any) -> list[dict[str, Any]]:
    return [row for ticket in tickets for batch in plane.read(ticket, **options) for row in batch.to_pylist()]


def test_readers_that_leave_do_not_take_the_service_with_them(plane: DataPlane, channel: Any, broker: Broker) -> None:
    """Reads that are given up in their middle, by readers that come and go at once, end; the process that serves them is the same."""
    queue = fill(channel, 50_000)
    opened, (ticket,) = prepared(plane, queue)
    service = plane.status()["flight"]["pid"]

    def leave_early(reader: int) -> None:
        for number in range(20):
            with DataPlane("127.0.0.1", broker.ready["flight_port"], timeout_s=40) as client:
                batches = client.read(ticket)
                for _ in range(1 + (number + reader) % 5):
                    next(batches, None)

    with ThreadPoolExecutor(3) as readers:
        list(readers.map(leave_early, range(3)))
    assert sum(batch.num_rows for batch in plane.read(ticket, columns=["position"])) == 50_000
    assert plane.status()["flight"]["pid"] == service
    plane.sub_commit(opened.sub_id, opened.epoch, 1)


def test_a_set_is_what_was_published(plane: DataPlane, channel: Any) -> None:
    """All rows in order, the same ones however often and in however many slices they are read; after the commit they are gone."""
    queue = fill(channel, 2500)
    opened, tickets = prepared(plane, queue, 3)
    rows = read(plane, tickets)
    assert [row["body"] for row in rows] == [body(number) for number in range(2500)]
    assert {(row["queue"], row["routing_key"], row["message_id"], row["content_type"], row["delivery_mode"]) for row in rows} == {
        (queue, queue, "id", "text/plain", 2)
    }
    assert rows[0]["headers"] == [("n", "7")]
    assert read(plane, plane.sub_plan(opened.sub_id, opened.epoch, 1, 7)) == rows
    batch = next(plane.read(tickets[0]))
    assert batch.schema == messages_schema()
    assert plane.sub_commit(opened.sub_id, opened.epoch, 1) == 1
    assert plane.sub_commit(opened.sub_id, opened.epoch, 1) == 1
    with pytest.raises(PlaneError, match="CHECKPOINT_BEHIND"):
        read(plane, tickets)
    assert plane.sub_tail(opened.sub_id).behind_messages == 0


def test_columns_and_bodies_can_be_left_out(plane: DataPlane, channel: Any) -> None:
    """What is not asked for is not sent."""
    _, tickets = prepared(plane, fill(channel, 10, 100))
    rows = read(plane, tickets, columns=["body", "position"], body="prefix:3")
    assert rows == [{"position": number + 1, "body": body(number, 100)[:3]} for number in range(10)]
    assert all(row["body"] == b"" for row in read(plane, tickets, body="none"))


def test_large_messages(plane: DataPlane, channel: Any) -> None:
    """Messages larger than a container, than a piece and than gRPC's usual limit."""
    queue = unique("flight")
    channel.queue_declare(queue, durable=True)
    bodies = [bytes([number]) * size for number, size in enumerate((3, 9_000_000, 20_000_000, 1, 5_000_000))]
    channel.confirm_delivery()
    for one in bodies:
        channel.basic_publish("", queue, one, pika.BasicProperties(delivery_mode=2))
    opened, tickets = prepared(plane, queue)
    assert [row["body"] for row in read(plane, tickets)] == bodies
    plane.sub_commit(opened.sub_id, opened.epoch, 1)


def test_what_is_staged_is_published_once(plane: DataPlane, channel: Any) -> None:
    """Nothing is seen before the commit; afterwards all of it, in order, with its properties; a repeated commit adds nothing."""
    queue, scope = unique("flight"), unique("scope")
    channel.queue_declare(queue, durable=True)
    epoch = plane.scope_open(scope)
    stage = plane.stage_begin(scope, epoch, 0).stage_id
    assert stage is not None
    batches = [pa.record_batch({"body": pa.array([body(n) for n in range(i, i + 500)]), "type": ["t"] * 500}) for i in range(0, 2000, 500)]
    assert plane.put(stage, batches, routing_key=queue).count == 2000
    ready = plane.stage_prepare(stage)
    assert (ready.count, ready.unroutable) == (2000, 0)
    assert channel.queue_declare(queue, passive=True).method.message_count == 0
    assert not plane.stage_commit(scope, epoch, 0, [stage]).already
    assert plane.stage_commit(scope, epoch, 0, [stage]).already
    assert plane.stage_begin(scope, epoch, 0).already
    got = [channel.basic_get(queue, auto_ack=True) for _ in range(2000)]
    assert [one[2] for one in got] == [body(number) for number in range(2000)]
    assert {one[1].type for one in got} == {"t"}
    assert channel.basic_get(queue)[0] is None


def test_refusals_come_through(plane: DataPlane, channel: Any, broker: Broker) -> None:
    """The broker's codes: unknown queue, fenced epoch, wrong password, bad row, unknown argument."""
    with pytest.raises(PlaneError, match="NOT_FOUND"):
        plane.sub_open("x", [unique("none")])
    opened_name = unique("sub")
    opened = plane.sub_open(opened_name, [fill(channel, 1)])
    again = plane.sub_open(opened_name, opened.queues)
    assert again.epoch > opened.epoch
    with pytest.raises(PlaneError, match="FENCED"):
        plane.sub_commit(opened.sub_id, opened.epoch, 0)
    with pytest.raises(PlaneError, match="BAD_ARGUMENT"):
        plane._action("sub.list", {"nonsense": 1})
    stage = plane.stage_begin(unique("scope"), plane.scope_open(), 0).stage_id
    assert stage is not None
    with pytest.raises(PlaneError, match="BAD_ROW"):
        plane.put(stage, [pa.record_batch({"body": pa.array([b"x", None])})])
    with pytest.raises(PlaneError, match="UNAUTHENTICATED"):
        DataPlane("127.0.0.1", broker.ready["flight_port"], password="wrong").status()
    with pytest.raises(PlaneError, match=r"NOT_FOUND|FORBIDDEN"):
        DataPlane("127.0.0.1", broker.ready["flight_port"], vhost="nowhere").sub_list()


def test_a_service_that_is_killed_comes_back(plane: DataPlane, channel: Any) -> None:
    """kill -9 of the child in the middle of a set: the reader goes on where it was, every row once."""
    count, size = 3000, 20_000
    _, tickets = prepared(plane, fill(channel, count, size))
    pid = plane.status()["flight"]["pid"]
    seen: list[bytes] = []
    for number, batch in enumerate(plane.read(tickets[0])):
        if number == 0:
            os.kill(pid, signal.SIGKILL)
        seen += batch.column("body").to_pylist()
    assert seen == [body(one, size) for one in range(count)]
    assert plane.status()["flight"]["pid"] != pid


def test_a_browse_leaves_the_queue_as_it_is(plane: DataPlane, channel: Any) -> None:
    """Rows without consuming; a path of Flight's own means the same."""
    queue = fill(channel, 30)
    opened = plane.browse_open([queue], slices=2)
    assert [row["body"] for row in read(plane, opened.tickets)] == [body(number) for number in range(30)]
    plane.browse_close(opened.id)
    assert channel.queue_declare(queue, passive=True).method.message_count == 30


def test_permissions_are_those_of_amqp(tmp_path: Path) -> None:
    """A user reads and writes what its patterns allow; the log is for administrators."""
    with InProcess(data_dir=str(tmp_path), flight_port=0, limits={"flight_start_s": 90}) as broker:
        node = broker.node
        node.users.put(UserRecord("ann", hash_password("secret")))
        node.permissions.set_permissions(PermissionRecord("ann", "/", "", "^mine", "^mine"))
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        for queue in ("mine", "other"):
            connection.channel().queue_declare(queue, durable=True)
        connection.close()
        port = node.flight_port()
        assert port is not None
        with DataPlane("127.0.0.1", port, user="ann", password="secret") as plane:
            opened = plane.sub_open("s", ["mine"])
            assert plane.sub_tail(opened.sub_id).behind_messages == 0
            stage = plane.stage_begin("scope", plane.scope_open(), 0).stage_id
            assert stage is not None
            calls: list[Callable[[], Any]] = [
                lambda: plane.sub_open("t", ["other"]),
                lambda: plane.browse_open(["mine", "other"]),
                lambda: plane.put(stage, [pa.record_batch({"body": pa.array([b"x"])})], routing_key="mine"),  # the default exchange
                plane.log_snapshot,
            ]
            for call in calls:
                with pytest.raises(PlaneError) as caught:
                    call()
                assert caught.value.code == "FORBIDDEN"


def test_tls_and_the_childs_life_are_the_brokers() -> None:
    """A service with the broker's certificate, and gone with a broker that is killed."""
    with self_signed_certificate() as (certificate, key):
        with Broker("--flight-port", "0", "--tls-cert", certificate, "--tls-key", key, "--tls-port", "0") as broker:
            with DataPlane("127.0.0.1", broker.ready["flight_port"], tls_ca=certificate) as plane:
                pid = plane.status()["flight"]["pid"]
                assert json.loads(json.dumps(plane.status()))["version"]
            broker.kill()
            wait_until(lambda: not alive(pid), what="the child is gone")


def alive(pid: int) -> bool:
    """Whether the process is there and not only waiting to be collected."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False


def test_after_a_rest_the_service_has_given_back_and_reads_as_before(plane: DataPlane, channel: Any) -> None:
    queue = fill(channel, 50)
    before = plane.status()["flight"]["rests"]
    for _ in range(2):
        browse = plane.browse_open([queue])
        assert sum(batch.num_rows for ticket in browse.tickets for batch in plane.read(ticket)) == 50
        plane.browse_close(browse.id)
        seen = before
        before = wait_until(lambda seen=seen: (now := plane.status()["flight"]["rests"]) > seen and now, 60, 0.1, "a rest")
