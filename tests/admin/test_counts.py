"""Counts of RabbitMQ's API: those of virtual hosts, of what came and went, and samples of the past."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from flintmq.admin.api_node import Rates
from flintmq.admin.counts import add_samples, counted
from flintmq.admin.samples import NODE_COLUMNS, QUEUE_COLUMNS, QUEUE_TIERS, Series
from tests.admin.conftest import Client, basic
from tests.support.broker import wait_until


def series() -> Series:
    """Five seconds apart: 100, 110, ... ready, ten of them unacked, enqueued thrice as many."""
    found = Series(QUEUE_COLUMNS, QUEUE_TIERS)
    for number in range(60):
        found.add(1_000 + 5 * number, (100 + 10 * number, 10, 300 + 30 * number, 7, 1, 0))
    return found


def test_samples_as_rabbitmq_has_them() -> None:
    lengths: dict[str, object] = {"messages_details": {"rate": 1.5}}
    stats: dict[str, object] = {}
    query = {"lengths_age": "60", "lengths_incr": "20", "msg_rates_age": "20", "msg_rates_incr": "5"}
    add_samples(query, series(), lengths, stats)
    newest = 100 + 10 * 59 + 10
    details = lengths["messages_details"]
    assert isinstance(details, dict)
    assert details["rate"] == 1.5 and details["avg_rate"] == 2.0
    assert details["samples"] == [{"sample": newest - 40 * step, "timestamp": (1_295 - 20 * step) * 1_000} for step in range(3)]
    publish = stats["publish_details"]
    assert isinstance(publish, dict) and publish["avg_rate"] == 6.0 and len(publish["samples"]) == 4
    assert set(lengths) == {f"{name}_details" for name in ("messages", "messages_ready", "messages_unacknowledged")}


@pytest.mark.parametrize(
    "query",
    [
        {},
        {"lengths_age": "60"},
        {"lengths_age": "x", "lengths_incr": "5"},
        {"lengths_age": "0", "lengths_incr": "0"},
        {"lengths_age": "-1"},
    ],
)
def test_what_asks_for_no_samples_gets_none(query: dict[str, str]) -> None:
    found: dict[str, object] = {}
    add_samples(query, series(), found, found)
    add_samples({"lengths_age": "60", "lengths_incr": "5"}, None, found, found)
    assert found == {}


def test_many_samples_are_bounded() -> None:
    found: dict[str, dict[str, list[int]]] = {}
    add_samples({"lengths_age": "9" * 9, "lengths_incr": "1"}, Series(NODE_COLUMNS, ((1, 2_000),)), found, found)
    assert all(len(one["samples"]) <= 1_000 for one in found.values())


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_rates_are_unknown_until_a_second_look() -> None:
    clock = Clock()
    rates = Rates(clock=clock)
    shown = [counted(rates, ("s",), {"publish": 10, "ack": 0})]
    for clock.now_s, publish in ((0.5, 15), (2.0, 20), (2.5, 90)):
        shown.append(counted(rates, ("s",), {"publish": publish, "ack": 1}))
    assert [one["publish_details"]["rate"] for one in shown] == [None, None, 5.0, 5.0]
    assert shown[2]["ack_details"] == {"rate": 0.5} and shown[2]["ack"] == 1


def test_more_objects_than_rates_are_kept_for_leave_those_their_rates() -> None:
    """Each round looks at all: the first keep their places, until nobody looks at them for a minute."""
    clock = Clock()
    rates = Rates(most=3, clock=clock)
    for clock.now_s in (0.0, 5.0, 10.0):
        shown = [rates.rate(number, int(clock.now_s)) for number in range(5)]
    assert shown == [1.0, 1.0, 1.0, None, None]
    for clock.now_s in (71.0, 73.0):
        shown = [rates.rate(number, int(clock.now_s)) for number in (3, 4, 0, 5)]
    assert shown == [1.0, 1.0, 1.0, None], "those of 1 and 2, too, made room"
    assert len(rates._looks) == 3


def test_no_name_of_a_user_gives_the_rates_of_others(start: Callable[..., Client]) -> None:
    """A user that is named as something whose rates are kept: a rate from the node's count to his would tell the node's."""
    client = start()
    client.queue()
    client.publish(*("m",) * 50)
    names = ("all", "node", "churn")
    for name in names:
        assert client.request("PUT", f"/api/users/{name}", b'{"password": "%b", "tags": "management"}' % name.encode()).status == 201
    wait_until(lambda: client.get("/api/overview").json["queue_totals"]["messages_details"]["rate"] is not None, what="a second look")
    for name in names:
        shown = client.get("/api/overview", basic(name, name)).json
        assert shown["queue_totals"]["messages_details"] == shown["message_stats"]["publish_details"] == {"rate": None}


def test_messages_of_virtual_hosts(start: Callable[..., Client]) -> None:
    client = start()
    assert client.request("PUT", "/api/vhosts/v", b"{}").status == 201
    client.queue()
    client.publish("a", "b", "c")
    client.pull("?count=1")
    [root, other] = client.get("/api/vhosts").json
    assert (root["messages"], root["messages_ready"], root["messages_unacknowledged"]) == (3, 2, 1)
    assert root["messages_details"] == {"rate": None} and root["message_stats"]["publish"] == 3
    assert (other["name"], other["messages"]) == ("v", 0)
    assert client.get("/api/vhosts/%2F").json["messages"] == 3
    assert "messages" not in client.get("/api/vhosts?disable_stats=true").json[0]
    assert client.get("/api/overview").json["queue_totals"]["messages"] == 3


def test_what_came_and_went(start: Callable[..., Client]) -> None:
    client = start()
    before = client.get("/api/overview").json["churn_rates"]
    for name in ("a", "b"):
        client.queue(name)
    assert client.request("DELETE", "/api/queues/%2F/a").status == 204
    found = client.get("/api/overview").json["churn_rates"]
    assert found["queue_created"] - before["queue_created"] == 2 and found["queue_deleted"] - before["queue_deleted"] == 1
    assert {"channel_created", "channel_closed", "queue_declared", "queue_declared_details", "connection_closed_details"} <= found.keys()


def test_the_samples_of_a_queue_are_its_own(start: Callable[..., Client]) -> None:
    client = start()
    queue = client.queue()
    client.publish("a")
    sampler = client.node.broker.events.hub._overview.args[1]  # of the service
    sampler.queues[queue.queue_id] = series()
    found = client.get("/api/queues/%2F/q?lengths_age=60&lengths_incr=5&msg_rates_age=60&msg_rates_incr=5").json
    assert found["messages"] == 1 and len(found["messages_details"]["samples"]) == 12
    assert found["message_stats"]["publish_details"]["samples"][0]["sample"] == 300 + 30 * 59
    assert "samples" not in client.get("/api/queues/%2F/q").json["messages_details"]
