"""Streams through a real broker and its Flight service: any range, again and again, for who may read; what is gone or damaged is said."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from flintmq.access.users import hash_password
from flintmq.flight.client import DataPlane
from flintmq.flight.plane_error import PlaneError
from flintmq.ports import PermissionRecord, UserRecord
from flintmq.testing.broker import Broker as InProcess
from tests.support.broker import Broker, unique, wait_until

STREAM = {"x-queue-type": "stream", "x-max-length-bytes": 1_000_000, "x-stream-max-segment-size-bytes": 524_288}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker("--flight-port", "0", "--data-dir", str(tmp_path_factory.mktemp("streams") / "store")) as started:
        yield started


@pytest.fixture
def plane(broker: Broker) -> Iterator[DataPlane]:
    with DataPlane("127.0.0.1", broker.ready["flight_port"], timeout_s=40) as client:
        yield client


@pytest.fixture
def channel(broker: Broker) -> Iterator[Any]:
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    made = connection.channel()
    made.confirm_delivery()
    yield made
    connection.close()


def body(number: int, size: int = 20) -> bytes:
    return (b"%d " % number).ljust(size, b".")


def fill(channel: Any, first: int, upto: int, name: str = "", size: int = 20) -> str:
    name = name or unique("stream")
    channel.queue_declare(name, durable=True, arguments=STREAM)
    for number in range(first, upto):
        channel.basic_publish("", name, body(number, size))
    return name


def opened(plane: DataPlane, name: str, **more: Any) -> dict[str, Any]:
    answer: dict[str, Any] = plane.calls.stream_open(queue=name, **more)
    return answer


def planned(plane: DataPlane, name: str, offset: int, end: int, **more: Any) -> dict[str, Any]:
    stream = opened(plane, name)["stream"]
    answer: dict[str, Any] = plane.calls.stream_plan(queue=name, stream=stream, offset=offset, end=end, **more)
    return answer


def rows(plane: DataPlane, ticket: dict[str, Any], **more: Any) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    for batch in plane.read(json.dumps(ticket).encode(), **more):
        found += zip(batch.column("position").to_pylist(), batch.column("body").to_pylist(), strict=True)
    return found


def code(action: Any) -> str:
    with pytest.raises(PlaneError) as error:
        action()
    return error.value.code


def test_slices_are_equal_repeatable_and_go_on_behind_the_rows_a_reader_has(plane: DataPlane, channel: Any) -> None:
    name = fill(channel, 0, 100)
    tickets = planned(plane, name, 10, 90, slices=3)["tickets"]
    read = [rows(plane, ticket) for ticket in tickets]
    assert [len(part) for part in read] == [26, 27, 27]
    assert [row for part in read for row in part] == [(number, body(number)) for number in range(10, 90)]
    assert rows(plane, tickets[1]) == read[1]
    assert rows(plane, {**tickets[1], "first": 5}) == read[1][5:]
    assert rows(plane, {**tickets[1], "first": 27}) == []
    assert rows(plane, {**tickets[1], "pin": None}) == read[1], "a ticket is good without its pin"
    assert planned(plane, name, 100, 100)["tickets"] == []
    (few,) = planned(plane, name, 3, 4)["tickets"]
    (batch,) = plane.read(json.dumps(few).encode(), columns=["position", "headers"])
    assert batch.to_pylist() == [{"position": 3, "headers": None}]


def of_users(channel: Any, first: int, upto: int, name: str = "") -> str:
    """Messages of seven users in turn, in a header."""
    name = name or unique("stream")
    channel.queue_declare(name, durable=True, arguments=STREAM)
    for number in range(first, upto):
        channel.basic_publish("", name, body(number), pika.BasicProperties(headers={"user": f"u{number % 7}"}))
    return name


def test_parts_by_key_are_the_range_and_each_key_has_one(plane: DataPlane, channel: Any) -> None:
    name = of_users(channel, 0, 140)
    tickets = planned(plane, name, 10, 130, slices=4, key="headers.user")["tickets"]
    assert [(one["slice"], one["slices"], one["first_offset"], one["end_offset"]) for one in tickets] == [(n, 4, 10, 130) for n in range(4)]
    read = [rows(plane, ticket) for ticket in tickets]
    assert sorted(row for part in read for row in part) == [(number, body(number)) for number in range(10, 130)]
    users = [{offset % 7 for offset, _ in part} for part in read]
    assert sum(map(len, users)) == 7, "no user is in two parts"
    for part, ticket in zip(read, tickets, strict=True):
        assert part == sorted(part)
        assert rows(plane, ticket) == part
        for had in {0, 1, len(part) // 2, len(part)}:
            assert rows(plane, {**ticket, "first": had}) == part[had:], "a reader that comes again goes on behind the rows it has"
    wider = planned(plane, name, 10, 12, slices=4, key="headers.user")["tickets"]
    assert [row for ticket in wider for row in rows(plane, ticket)] == sorted(
        [(10, body(10)), (11, body(11))], key=lambda row: next(n for n, part in enumerate(users) if row[0] % 7 in part)
    ), "of a few messages, too, a key has the part that it always has"
    assert planned(plane, name, 130, 130, slices=4, key="headers.user")["tickets"] == []
    (all_of_one,) = (
        len(part) for ticket in planned(plane, name, 0, 140, slices=3, key="routing_key")["tickets"] if (part := rows(plane, ticket))
    )
    assert all_of_one == 140, "the default exchange gives all messages of a stream one routing key"


def test_parts_by_key_of_a_stream_that_retention_shortened(plane: DataPlane, channel: Any) -> None:
    name = of_users(channel, 0, 7)
    fill(channel, 7, 900, name, size=4_000)
    wait_until(lambda: opened(plane, name)["first"] > 0, timeout=40, what="retention")
    first = opened(plane, name)["first"]
    assert code(lambda: planned(plane, name, 0, 900, slices=2, key="headers.user")) == "TRUNCATED"
    plan = planned(plane, name, 0, 900, slices=2, key="headers.user", tolerant=True)
    assert plan["lost"] == first
    read = [[offset for offset, _ in rows(plane, ticket)] for ticket in plan["tickets"]]
    assert read == [[offset for offset in range(first, 900) if offset % 2 == part] for part in range(2)], "they have no key"


@pytest.mark.parametrize(
    "wrong",
    [
        {"key": "body"},
        {"key": "headers."},
        {"key": 5},
        {"key": "type", "slices": 257},
        {"key": "headers." + "x" * 300},
    ],
)
def test_a_key_that_is_none_is_refused_in_plans_and_tickets(plane: DataPlane, channel: Any, wrong: dict[str, Any]) -> None:
    name = fill(channel, 0, 3)
    assert code(lambda: planned(plane, name, 0, 3, **wrong)) == "BAD_ARGUMENT"
    (ticket,) = planned(plane, name, 0, 3)["tickets"]
    assert code(lambda: rows(plane, {**ticket, **wrong})) == "BAD_ARGUMENT"


@pytest.mark.parametrize("wrong", [{"slice": 1}, {"slice": -1}, {"slices": 0}, {"slices": None}, {"slice": "0"}])
def test_a_part_that_is_none_is_refused(plane: DataPlane, channel: Any, wrong: dict[str, Any]) -> None:
    name = fill(channel, 0, 3)
    (ticket,) = planned(plane, name, 0, 3, key="type")["tickets"]
    assert code(lambda: rows(plane, {**ticket, **wrong})) == "BAD_ARGUMENT"


def test_the_end_of_a_batch_is_bounded_by_messages_bytes_and_upto(plane: DataPlane, channel: Any) -> None:
    name = fill(channel, 0, 20, size=10_000)
    stream = opened(plane, name)["stream"]

    def end(offset: int, **limits: int) -> int:
        return int(plane.calls.stream_next(queue=name, stream=stream, offset=offset, **limits)["offset"])

    assert (end(0), end(5, max_messages=3), end(5, upto=7), end(20), end(5, upto=2)) == (20, 8, 7, 20, 5)
    assert (end(0, max_bytes=1), end(4, max_bytes=35_000), end(18, max_bytes=35_000)) == (1, 7, 20)
    tail = plane.calls.stream_tail(queue=name, stream=stream, offset=15)
    assert tail["behind_messages"] == 5 and 50_000 < tail["behind_bytes"] < 80_000
    assert plane.calls.stream_tail(queue=name, stream=stream, offset=20)["behind_bytes"] == 0


def test_retention_is_told_unless_a_pin_keeps_what_is_read(plane: DataPlane, channel: Any) -> None:
    name = fill(channel, 0, 100, size=4_000)
    plan = planned(plane, name, 0, 100)
    (ticket,) = plan["tickets"]
    fill(channel, 100, 900, name, size=4_000)
    assert opened(plane, name)["first"] == 0, "the pin keeps it"
    assert rows(plane, ticket) == [(number, body(number, 4_000)) for number in range(100)]
    plane.calls.stream_release(queue=name, pin=plan["pin"])
    wait_until(lambda: opened(plane, name)["bytes"] <= STREAM["x-max-length-bytes"], timeout=40, what="retention")
    first = opened(plane, name)["first"]
    assert code(lambda: rows(plane, ticket)) == "TRUNCATED"
    assert code(lambda: planned(plane, name, 50, 900)) == "TRUNCATED"
    tolerant = planned(plane, name, 50, 900, tolerant=True)
    assert (tolerant["lost"], tolerant["count"]) == (first - 50, 900 - first)
    for had in (0, 1, 300):  # rows that a reader has already: those of the ticket that are still there are counted
        ticket = {**tolerant["tickets"][0], "first": had}
        assert [offset for offset, _ in rows(plane, ticket)] == list(range(first + had, 900))
    assert opened(plane, name, start={"offset": 3})["offset"] == first
    assert opened(plane, name, start={"offset": 5_000})["offset"] == 900


def test_only_who_may_read_the_queue_and_only_streams(broker: Broker, plane: DataPlane, channel: Any) -> None:
    name, plain = fill(channel, 0, 3), unique("plain")
    channel.queue_declare(plain, durable=True)
    stream = opened(plane, name)["stream"]
    assert code(lambda: opened(plane, plain)) == "NOT_A_STREAM"
    assert code(lambda: opened(plane, "absent")) == "NOT_FOUND"
    assert code(lambda: opened(plane, name, stream=stream + "9")) == "STREAM_REPLACED"
    assert code(lambda: plane._action("stream.open", {"queue": name, "begin": 1})) == "BAD_ARGUMENT"
    assert code(lambda: opened(plane, name, start="middle")) == "BAD_ARGUMENT"
    assert code(lambda: planned(plane, name, 0, 4)) == "CHECKPOINT_AHEAD"
    (ticket,) = planned(plane, name, 0, 3)["tickets"]
    assert code(lambda: rows(plane, {**ticket, "end_offset": 4})) == "BAD_ARGUMENT"
    assert code(lambda: rows(plane, {**ticket, "queue": plain})) == "NOT_A_STREAM"
    assert code(lambda: plane.browse_open([name])) == "BAD_ARGUMENT", "it is read by offset"
    channel.queue_delete(name)
    assert code(lambda: rows(plane, ticket)) == "NOT_FOUND"
    fill(channel, 0, 3, name)
    assert code(lambda: rows(plane, ticket)) == "STREAM_REPLACED"


def test_a_user_without_the_permission_reads_nothing(tmp_path: Path) -> None:
    with InProcess(data_dir=str(tmp_path / "store"), flight_port=0, limits={"flight_start_s": 90}) as started:
        node = started.node
        node.users.put(UserRecord("other", hash_password("pw")))
        node.permissions.set_permissions(PermissionRecord("other", "/", "", ".*", "^mine"))
        connection = pika.BlockingConnection(pika.URLParameters(started.url))
        channel = connection.channel()
        channel.confirm_delivery()
        name = fill(channel, 0, 3)
        connection.close()
        port = node.flight_port()
        assert port is not None
        with (
            DataPlane("127.0.0.1", port, timeout_s=20) as owner,
            DataPlane("127.0.0.1", port, user="other", password="pw", timeout_s=20) as other,
        ):
            (ticket,) = planned(owner, name, 0, 3)["tickets"]
            assert len(rows(owner, ticket)) == 3
            assert code(lambda: opened(other, name)) == "FORBIDDEN"
            assert code(lambda: rows(other, ticket)) == "FORBIDDEN"
