"""Shovels over the wire, between two brokers: what is moved, how it is acked, when they end, and what happens when something dies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pika
import pytest

from tests.links.rig import Side, sides, until

NUMBERS = [b"%d" % number for number in range(500)]


@pytest.fixture
def pair() -> Iterator[list[Side]]:
    with sides() as both:
        yield both


@pytest.mark.parametrize("mode", ["on-confirm", "on-publish", "no-ack"])
def test_messages_go_over_in_order(pair: list[Side], mode: str) -> None:
    here, there = pair
    here.fill("a", 500)
    here.shovel(src_uri="amqp://", src_queue="a", dest_uri=there.url, dest_queue="b", ack_mode=mode, src_prefetch_count=7)
    until(lambda: there.depth("b") == 500 and here.depth("a") == 0)
    assert there.take("b") == NUMBERS
    status = until(lambda: (one := here.status())["moved"] == 500 and one)
    assert (status["state"], status["type"], status["src_queue"], status["dest_queue"]) == ("running", "dynamic", "a", "b")
    assert status["src_uri"] == "amqp://" and "guest" not in status["dest_uri"]
    here.fill("a", 5, 500)
    until(lambda: there.depth("b") == 5 and here.depth("a") == 0)


def test_from_there_to_here_and_large_bodies(pair: list[Side]) -> None:
    """A body of many frames, all properties; the queues are made when they are not there."""
    here, there = pair
    here.shovel(src_uri=[there.url.replace("guest@", "wrong@"), there.url], src_queue="a", dest_uri="amqp://", dest_queue="b")
    here.state("running")
    large = bytes(range(256)) * 4_000
    properties = pika.BasicProperties(
        content_type="t/x", headers={"n": 5, "l": [1, {"x": None}]}, delivery_mode=2, priority=3, correlation_id="c", reply_to="r",
        expiration="600000", message_id="m", timestamp=1, type="ty", app_id="ap",
    )  # fmt: skip
    for body in (large, b"", b"x"):
        there.channel.basic_publish("", "a", body, properties)
    until(lambda: here.depth("b") == 3)
    for body in (large, b"", b"x"):
        _, found, got = here.channel.basic_get("b", auto_ack=True)
        assert got == body and vars(found) == vars(properties)
    assert there.broker.node.broker.vhosts["/"].queues["a"].durable


def test_messages_of_very_many_headers_pass(pair: list[Side]) -> None:
    """A limit of 1,024 fields made the shovel publish such a message again and again, for ever."""
    here, there = pair
    here.shovel(src_uri="amqp://", src_queue="a", dest_uri=there.url, dest_queue="b")
    here.state("running")
    many = [{f"h{number}": number for number in range(9_000)}, {"a": list(range(20_000))}, {"CC": [f"nobody-{n}" for n in range(1_500)]}]
    for headers in (*many, {"last": 1}):
        here.channel.basic_publish("", "a", b"x", pika.BasicProperties(headers=headers))
    until(lambda: there.depth("b") == 4 and here.depth("a") == 0)
    assert [there.channel.basic_get("b", auto_ack=True)[1].headers for _ in range(4)] == [*many, {"last": 1}]


def test_from_an_exchange_to_an_exchange(pair: list[Side]) -> None:
    here, there = pair
    here.channel.exchange_declare("in", "topic")
    there.channel.exchange_declare("out", "topic")
    there.channel.queue_declare("b")
    there.channel.queue_bind("b", "out", "#")
    here.shovel(src_uri="amqp://", src_exchange="in", src_exchange_key="eu.#", dest_uri=there.url, dest_exchange="out")
    here.state("running")
    for key in ("eu.x", "us.x", "eu.y"):
        here.channel.basic_publish("in", key, key.encode())
    until(lambda: there.depth("b") == 2)
    methods = [there.channel.basic_get("b", auto_ack=True)[0] for _ in range(2)]
    assert [(one.exchange, one.routing_key) for one in methods] == [("out", "eu.x"), ("out", "eu.y")]
    here.shovel(
        status=204,
        src_uri="amqp://",
        src_exchange="in",
        dest_uri=there.url,
        dest_exchange="out",
        dest_exchange_key="fixed",
        src_exchange_key="#",
    )
    until(lambda: (one := here.status()).get("dest_exchange_key") == "fixed" and one["state"] == "running")
    here.channel.basic_publish("in", "z", b"z")
    until(lambda: there.depth("b") == 1)
    assert there.channel.basic_get("b", auto_ack=True)[0].routing_key == "fixed"


def test_headers_that_a_shovel_adds(pair: list[Side]) -> None:
    here, there = pair
    here.channel.queue_declare("a", durable=True)
    old = {"x-shovelled": [{"shovel-name": "before"}], "mine": 1}
    here.channel.basic_publish("", "a", b"1", pika.BasicProperties(headers=old, priority=1))
    here.channel.basic_publish("", "a", b"2")
    here.shovel(
        src_uri="amqp://", src_queue="a", dest_uri=there.url, dest_queue="b", dest_add_forward_headers=True,
        dest_add_timestamp_header=True, dest_publish_properties={"delivery_mode": 2, "app_id": "moved"},
    )  # fmt: skip
    until(lambda: there.depth("b") == 2)
    _, properties, _ = there.channel.basic_get("b", auto_ack=True)
    added, before = properties.headers["x-shovelled"]
    assert before == {"shovel-name": "before"} and properties.headers["mine"] == 1
    assert added == {
        "shovelled-by": here.broker.node.broker.cluster_name, "shovel-type": "dynamic", "shovel-name": "s", "shovel-vhost": "/",
        "src-uri": "amqp://", "dest-uri": there.url.replace("guest:guest@", ""), "src-queue": "a", "dest-queue": "b",
    }  # fmt: skip
    assert isinstance(properties.headers["x-shovelled-timestamp"], int)
    assert (properties.delivery_mode, properties.app_id, properties.priority) == (2, "moved", 1)
    _, properties, _ = there.channel.basic_get("b", auto_ack=True)
    assert len(properties.headers["x-shovelled"]) == 1


@pytest.mark.parametrize(
    ("after", "mode", "count"),
    [
        ("queue-length", "on-confirm", 300),
        (123, "on-confirm", 123),
        (123, "on-publish", 123),
        ("queue-length", "no-ack", 300),
        (0, "on-confirm", 0),
    ],
)
def test_delete_after_is_exact(pair: list[Side], after: Any, mode: str, count: int) -> None:
    """So many are moved; the rest stays in order; the parameter is gone."""
    here, there = pair
    here.fill("a", 300)
    here.shovel(src_uri="amqp://", src_queue="a", dest_uri=there.url, dest_queue="b", src_delete_after=after, ack_mode=mode)
    until(lambda: here.api.get("parameters/shovel") == [] and here.api.get("shovels") == [])
    assert there.take("b") == NUMBERS[:count]
    if mode != "no-ack":
        until(lambda: here.depth("a") == 300 - count)
        assert here.take("a") == NUMBERS[count:300]


@pytest.mark.parametrize("prefetch", [1, 4])
def test_a_destination_that_refuses_gets_it_again_in_order(pair: list[Side], prefetch: int) -> None:
    """reject-publish: what does not fit stays here, and the shovel waits instead of going round. Of four that are under way the queue may
    take one behind a refused one, when it got room in between."""
    here, there = pair
    there.channel.queue_declare("b", durable=True, arguments={"x-max-length": 10, "x-overflow": "reject-publish"})
    here.fill("a", 60)
    here.shovel(src_uri="amqp://", src_queue="a", dest_uri=there.url, dest_queue="b", reconnect_delay=0.05, src_prefetch_count=prefetch)
    assert "refused" in here.state("terminated")["reason"]
    got: list[bytes] = []
    until(lambda: got.extend(there.take("b")) or len(set(got)) >= 60)
    first = list(dict.fromkeys(got))
    assert (first if prefetch == 1 else sorted(first, key=int)) == NUMBERS[:60]


def test_a_queue_that_is_deleted_meanwhile_loses_nothing(pair: list[Side]) -> None:
    """Messages to dest-queue are mandatory: one that can't be routed goes back, and the queue is made again."""
    here, there = pair
    here.shovel(src_uri="amqp://", src_queue="a", dest_uri=there.url, dest_queue="b", reconnect_delay=0.05)
    here.state("running")
    there.channel.queue_delete("b")
    here.fill("a", 5)
    until(lambda: there.depth("b") == 5 and here.depth("a") == 0)
    assert there.take("b") == NUMBERS[:5]


def test_kill_of_the_process(pair: list[Side]) -> None:
    """At least once: after kill -9 of the process all messages are there, and the first of each are in order."""
    here, there = pair
    here.fill("a", 500)
    here.shovel(src_uri="amqp://", src_queue="a", dest_uri=there.url, dest_queue="b", src_prefetch_count=3, reconnect_delay=0.05)
    until(lambda: there.depth("b") > 20)
    here.kill_process()
    until(lambda: here.depth("a") == 0)
    assert list(dict.fromkeys(there.take("b"))) == NUMBERS
    assert here.state("running")["reason"] if "reason" in here.status() else True


def test_restart_change_and_delete(pair: list[Side]) -> None:
    here, there = pair
    here.shovel(src_uri="amqp://", src_queue="a", dest_uri=there.url, dest_queue="b")
    here.state("running")
    links = here.broker.node.links._links
    number = links["shovel", "/", "s", ""].number
    here.api.delete("shovels/vhost/%2F/s/restart")
    until(lambda: (link := links.get(("shovel", "/", "s", ""))) is not None and link.number > number)
    here.state("running")
    here.shovel(status=204, src_uri="amqp://", src_queue="a", dest_uri=there.url, dest_queue="c")
    until(lambda: here.status().get("dest_queue") == "c" and here.status()["state"] == "running")
    here.fill("a", 3)
    until(lambda: there.depth("c") == 3)
    assert [one["name"] for one in here.api.get("shovels/vhost/%2F/s")] == ["s"] and here.api.get("shovels/%2F")
    here.api.get("shovels/vhost/%2F/none", 404)
    here.api.delete("shovels/vhost/%2F/none/restart", 404)
    here.api.delete("shovels/vhost/%2F/s")
    until(lambda: here.api.get("shovels") == [])
    assert here.api.get("parameters/shovel") == []
    until(lambda: here.broker.node.links._process is None)  # without a link there is no process
    here.fill("a", 1)
    assert here.depth("a") == 1


def test_what_is_wrong_is_said(pair: list[Side]) -> None:
    here, there = pair
    wrong = there.url.replace("guest:guest", "guest:topsecret")
    here.shovel(src_uri="amqp://", src_queue="a", dest_uri=wrong, dest_queue="b", reconnect_delay=0)
    reason = here.state("terminated")["reason"]
    assert "destination: closed by the broker: 403 ACCESS_REFUSED" in reason and "topsecret" not in reason
    here.shovel("p", src_uri="amqp://", src_queue="none", src_predeclared=True, dest_uri=there.url, reconnect_delay=0)
    assert "404 NOT_FOUND - no queue 'none'" in here.state("terminated", "p")["reason"]
    here.shovel("t", src_uri="amqp://", src_queue="a", dest_uri=there.url.replace("amqp:", "amqps:"), reconnect_delay=0)
    assert "TLS" in here.state("terminated", "t")["reason"] or "connection was lost" in here.state("terminated", "t")["reason"]
    shown = json.dumps(here.api.get("parameters")) + json.dumps(here.api.get("shovels"))
    assert "topsecret" not in shown and "guest:***@" in shown
    assert "topsecret" in json.dumps(here.api.get("definitions"))  # a definitions file is of use for an import, and for administrators


def test_it_stops_with_its_virtual_host(pair: list[Side]) -> None:
    here, there = pair
    here.api.put("vhosts/v", {})
    here.api.put("parameters/shovel/v/s", {"value": {"src-uri": "amqp:///v", "src-queue": "a", "dest-uri": there.url, "dest-queue": "b"}})
    here.state("running")
    here.api.delete("vhosts/v")
    until(lambda: here.api.get("shovels") == [])


def test_shovels_come_back_after_a_restart(tmp_path: Any) -> None:
    with sides(1) as (there,):
        with sides(1, data_dir=str(tmp_path)) as (here,):
            here.shovel(src_uri="amqp://", src_queue="a", dest_uri=there.url, dest_queue="b")
            here.state("running")
        with sides(1, data_dir=str(tmp_path)) as (here,):
            assert here.state("running")["owner"] == "guest"
            here.fill("a", 3)
            until(lambda: there.depth("b") == 3)
