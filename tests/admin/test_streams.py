"""Streams over HTTP: each group has its cursor, its leases, its lag."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from flintmq.testing.broker import Broker
from tests.admin.conftest import Client


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
