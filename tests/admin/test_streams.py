"""Streams over HTTP: each group has its cursor, its leases, its lag."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pika
import pytest

from flintmq.testing.broker import Broker
from tests.admin.api import Api
from tests.admin.conftest import Client, basic

JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with ExitStack() as stack:
        broker = Broker(limits={"housekeeping_ms": 20}, http_port=0, data_dir=str(tmp_path_factory.mktemp("streams")))
        yield Client(stack.enter_context(broker))


def declare(client: Client, name: str, **arguments: Any) -> None:
    client.node.broker.vhosts["/"].run(
        client.node.broker.vhosts["/"].declare_queue(name, durable=True, arguments={"x-queue-type": "stream", **arguments})
    )


def texts(messages: list[dict[str, Any]]) -> list[str]:
    return [message["body"] for message in messages]


def test_every_group_gets_every_message(streams: Client, name: str) -> None:
    """Messages stay; each group reads them at its own pace, in order; publish waits for the disk."""
    declare(streams, name)
    for n in range(5):
        answer = streams.post(streams.path(name), {"body": str(n)})
        assert (answer.status, answer.json["durable"]) == (201, True)
    for group in ("a", "b"):
        assert texts(streams.pull(f"?group={group}&offset=first&count=3&hold=10", name=name)) == ["0", "1", "2"]
    assert texts(streams.pull("?group=a&count=9&hold=10", name=name)) == ["3", "4"]
    figures = streams.get(f"/api/v1/queues/%2F/{name}").json
    assert figures["type"] == "stream" and figures["stream"]["next_offset"] == 5
    assert {group: one["lag"] for group, one in figures["stream"]["groups"].items()} == {"a": 0, "b": 2}
    metrics = streams.get("/metrics").raw.decode().splitlines()
    assert f'flintmq_stream_group_lag{{vhost="/",queue="{name}",group="b"}} 2' in metrics
    assert f'flintmq_stream_group_lost_total{{vhost="/",queue="{name}",group="b"}} 0' in metrics


def test_a_held_poll_of_a_stream_is_answered(streams: Client, name: str) -> None:
    """At the head of a stream a pull waits for the next message; without a hold it is empty at once."""
    declare(streams, name)
    assert streams.pull("?group=g", name=name) == []
    streams.publish("x", name=name)
    assert texts(streams.pull("?group=g&hold=30", name=name)) == ["x"]


def test_a_stream_wants_a_group(streams: Client, name: str) -> None:
    """A stream is read by groups: without a name it is 400; so is a bad offset."""
    declare(streams, name)
    for query in ("", "?group=g&offset=nowhere", "?group=g&offset=-1"):
        answer = streams.get(streams.path(name) + query)
        assert answer.status == 400 and answer.json["reason"]
    assert "interval like 2h" in answer.json["reason"] and "max_age" not in answer.json["reason"]


def test_leases_of_a_stream(streams: Client, name: str) -> None:
    """ack in any order, nack at once and with delay, the end of a lease: what comes back comes first, flagged and counted."""
    declare(streams, name)
    streams.publish("0", "1", "2", "3", name=name)
    got = streams.pull("?group=g&offset=first&count=4&hold=10&visibility=60", name=name)
    assert texts(got) == ["0", "1", "2", "3"]
    lease = [message["lease"] for message in got]
    assert streams.post(streams.path(name, "/ack"), {"leases": [lease[2], lease[2]]}).json["gone"] == [lease[2]]
    assert streams.post(streams.path(name, "/nack"), {"leases": [lease[1]]}).json["ok"] == 1
    [again] = streams.pull("?group=g&hold=10", name=name)
    assert (again["body"], again["redelivered"]) == ("1", True) and again["delivery_count"] >= 1
    back: set[str] = set()
    assert streams.post(streams.path(name, "/extend"), {"leases": [lease[0], lease[3]], "visibility": 1}).json["ok"] == 2
    while len(back) < 2:  # these leases are over after a second
        back |= set(texts(streams.pull("?group=g&hold=10&count=2", name=name)))
    assert back == {"0", "3"}
    assert streams.post(streams.path(name, "/ack"), {"leases": [lease[0], lease[3]]}).json["ok"] == 0


def test_refused_messages_of_a_stream_are_dead_lettered(streams: Client, name: str) -> None:
    """requeue false: the stream's dead-letter exchange gets it, and the group goes on."""
    vhost = streams.node.broker.vhosts["/"]
    vhost.run(vhost.declare_queue(name + "dead"))
    declare(streams, name, **{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": name + "dead"})
    streams.publish("0", "1", name=name)
    [message] = streams.pull("?group=g&offset=first&hold=10", name=name)
    assert streams.post(streams.path(name, "/nack"), {"leases": [message["lease"]], "requeue": False}).json["ok"] == 1
    assert texts(streams.pull("?hold=30", name=name + "dead")) == ["0"]
    assert texts(streams.pull("?group=g&hold=10", name=name)) == ["1"]


def test_a_group_goes_on_after_a_restart(start: Callable[..., Client], tmp_path: Any) -> None:
    """The cursor is the broker's: what was acked stays acked, what was leased comes again, flagged."""
    client = start(data_dir=str(tmp_path))
    declare(client, "s")
    client.publish("0", "1", "2", "3", name="s")
    got = client.pull("?group=g&offset=first&count=3&hold=10", name="s")
    client.post(client.path("s", "/ack"), {"leases": [got[0]["lease"], got[1]["lease"]]})
    client.broker.node.stop()
    again = start(data_dir=str(tmp_path))
    messages = []
    while len(messages) < 2:
        messages += again.pull("?group=g&count=9&hold=10", name="s")
    assert [(message["body"], message["redelivered"]) for message in messages] == [("2", True), ("3", False)]


def test_cold_messages_of_a_stream_are_waited_for(start: Callable[..., Client], tmp_path: Any) -> None:
    """Old messages are read from the disk: a pull without hold is not answered as if the stream were at its end."""
    client = start(data_dir=str(tmp_path))
    declare(client, "s")
    client.publish(*[str(n) for n in range(50)], name="s")
    client.broker.node.stop()
    # Nothing is in memory now; how long the disk takes is not the question.
    again = start({"pull_load_ms": 50_000, "pull_wait_ms_max": 50_000}, data_dir=str(tmp_path))
    got: list[str] = []
    while len(got) < 50:
        messages = again.pull("?group=g&offset=first&count=7", name="s")
        assert messages
        got += texts(messages)
    assert got == [str(n) for n in range(50)]


def _consume(client: Client, name: str, count: int) -> list[tuple[bytes, bool]]:
    """Takes and acks so many messages as a member of the group g: (body, redelivered)."""
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", client.node.amqp_port))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=1)
    messages: list[tuple[bytes, bool]] = []
    arguments = {"x-group": "g", "x-stream-offset": "first"}
    for method, _, body in channel.consume(name, arguments=arguments, inactivity_timeout=10):
        assert method is not None, "no message came"
        channel.basic_ack(method.delivery_tag)
        messages.append((body, bool(method.redelivered)))
        if len(messages) == count:
            break
    if count < 5:
        answer = client.request("PUT", f"/api/v1/queues/%2F/{name}/groups/g/offset", b'{"offset": "first"}', {**basic(), **JSON})
        assert answer.status == 409 and "members" in answer.json["reason"], "a group in use is moved"
    connection.close()
    return messages


def test_a_group_without_members_is_moved_and_reads_from_there(streams: Client, name: str) -> None:
    declare(streams, name)
    streams.publish(*"01234", name=name)

    def move(offset: Any, group: str = "g", headers: dict[str, str] | None = None) -> Any:
        path = f"/api/v1/queues/%2F/{name}/groups/{group}/offset"
        return streams.request("PUT", path, json.dumps({"offset": offset}).encode(), {**(headers or basic()), **JSON})

    assert move("first").status == 404, "there is no group yet"
    assert _consume(streams, name, 3) == [(b"0", False), (b"1", False), (b"2", False)]
    until = time.monotonic() + 10
    while (answer := move("first")).status == 409 and time.monotonic() < until:
        pass  # the connection is closed, and its consumer leaves
    assert answer.json == {"group": "g", "offset": 0}
    again = _consume(streams, name, 5)
    assert [body for body, _ in again] == [b"0", b"1", b"2", b"3", b"4"] and all(flag for _, flag in again[:3])
    until = time.monotonic() + 10
    while (answer := move(4)).status == 409 and time.monotonic() < until:
        pass
    assert answer.json == {"group": "g", "offset": 4}
    assert (move("next").json["offset"], move(2**53 - 1).json["offset"], move("last").json["offset"]) == (5, 5, 4)
    assert [move(wrong).status for wrong in (-1, "nowhere", 1.5, None, [])] == [400] * 5
    streams.queue(f"{name}-classic")
    path = f"/api/v1/queues/%2F/{name}-classic/groups/g/offset"
    assert streams.request("PUT", path, b'{"offset": 0}', {**basic(), **JSON}).status == 409


def test_who_may_not_read_a_stream_moves_no_group_of_it(streams: Client, name: str) -> None:
    declare(streams, name)
    streams.publish("x", name=name)
    assert texts(streams.pull("?group=g&offset=first&hold=10", name=name)) == ["x"]
    api = Api(streams)
    api.user("outside", "management")
    answer = streams.request("PUT", f"/api/v1/queues/%2F/{name}/groups/g/offset", b'{"offset": 0}', {**basic("outside", "outside"), **JSON})
    assert answer.status == 403
