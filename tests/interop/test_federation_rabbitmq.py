"""Federation with Debian's RabbitMQ: as the upstream of ours, and as the downstream of one that federates from us."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pika
import pytest

from tests.interop.rabbit import Rabbit, rabbits
from tests.links.rig import Side, sides, until
from tests.links.test_federation import bound, federate, running


@pytest.fixture(scope="module")
def rabbit() -> Iterator[Rabbit]:
    yield from rabbits()


@pytest.fixture
def here() -> Iterator[Side]:
    with sides(1) as (side,):
        side.api.put("global-parameters/cluster_name", {"value": "ours"})
        yield side


def test_an_exchange_of_rabbitmq(rabbit: Rabbit, here: Side) -> None:
    """Its internal exchange is of RabbitMQ's own type, its queue has RabbitMQ's name."""
    for channel in (rabbit.channel, here.channel):
        channel.exchange_declare("fed", "topic", durable=True)
    here.channel.queue_declare("q")
    here.channel.queue_bind("q", "fed", "eu.#")
    value = {"uri": rabbit.url, "max-hops": 2, "message-ttl": 60_000, "reconnect-delay": 0.1}
    here.api.put("parameters/federation-upstream/%2F/up", {"value": value})
    here.api.put("policies/%2F/fed", {"pattern": "^fed$", "definition": {"federation-upstream": "up"}})
    running(here)
    own = until(lambda: [one for one in rabbit.api.get("exchanges/%2F") if one["type"] == "x-federation-upstream"])
    assert own[0]["name"].startswith("federation: fed -> ours ") and own[0]["arguments"]["x-downstream-name"] == "ours"
    (queue,) = [one for one in rabbit.api.get("queues/%2F") if one["name"] == "federation: fed -> ours"]
    assert queue["arguments"] == {"x-internal-purpose": "federation", "x-message-ttl": 60_000}
    until(lambda: [one for one in rabbit.api.get("exchanges/%2F/fed/bindings/source") if one["routing_key"] == "eu.#"])
    for number in range(100):
        rabbit.channel.basic_publish("fed", "eu.x", b"%d" % number, pika.BasicProperties(headers={"n": number}))
    rabbit.channel.basic_publish("fed", "us.x", b"not bound")
    until(lambda: here.depth("q") == 100)
    method, properties, _ = here.channel.basic_get("q", auto_ack=True)
    (entry,) = properties.headers["x-received-from"]
    assert (method.exchange, method.routing_key, entry["exchange"], entry["vhost"]) == ("fed", "eu.x", "fed", "/")
    assert here.take("q") == [b"%d" % number for number in range(1, 100)]
    here.api.delete("policies/%2F/fed")
    until(lambda: not [one for one in rabbit.api.get("queues/%2F") if one["name"].startswith("federation: ")])
    until(lambda: not [one for one in rabbit.api.get("exchanges/%2F") if one["name"].startswith("federation: ")])


def test_a_queue_of_rabbitmq(rabbit: Rabbit, here: Side) -> None:
    rabbit.channel.queue_declare("fedq", durable=True)
    for number in range(50):
        rabbit.channel.basic_publish("", "fedq", b"%d" % number)
    here.channel.queue_declare("fedq", durable=True)
    federate(here, here, "^fedq$", uri=rabbit.url)
    running(here)
    assert rabbit.depth("fedq") == 50
    got: list[bytes] = []

    def take(channel: Any, method: Any, properties: Any, body: bytes) -> None:
        got.append(body)
        channel.basic_ack(method.delivery_tag)

    here.channel.basic_consume("fedq", take)
    until(lambda: here.connection.process_data_events(0.01) or len(got) == 50)
    assert got == [b"%d" % number for number in range(50)] and rabbit.depth("fedq") == 0


def test_rabbitmq_federates_from_us(rabbit: Rabbit, here: Side) -> None:
    """Its links make queue, exchange and bindings here, and take the messages."""
    for channel in (rabbit.channel, here.channel):
        channel.exchange_declare("from-us", "direct", durable=True)
    rabbit.channel.queue_declare("r")
    rabbit.channel.queue_bind("r", "from-us", "k")
    rabbit.api.put("parameters/federation-upstream/%2F/flint", {"value": {"uri": here.url, "reconnect-delay": 1}})
    rabbit.api.put("policies/%2F/f", {"pattern": "^from-us$", "definition": {"federation-upstream": "flint"}})
    try:
        until(lambda: [key for key, _ in bound(here, "from-us")] == ["k"])
        until(lambda: [one for one in rabbit.api.get("federation-links") if one["status"] == "running"])
        for number in range(100):
            here.channel.basic_publish("from-us", "k", b"%d" % number)
        until(lambda: rabbit.depth("r") == 100)
        _, properties, body = rabbit.channel.basic_get("r", auto_ack=True)
        assert body == b"0" and properties.headers["x-received-from"][0]["cluster-name"] == "ours"
    finally:
        rabbit.api.delete("policies/%2F/f")
        rabbit.api.delete("parameters/federation-upstream/%2F/flint")
