"""Messages with more header fields than anybody looks for: every reader shows what the broker holds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pika
import pytest

from flintmq.config import Limits
from flintmq.protocol.v0_9_1.codec import decode_table
from flintmq.testing.broker import Broker
from flintmq.vhost.dead_letter import REJECTED
from tests.admin.conftest import Client
from tests.oracle.dead_letter import dead_letter_headers

MANY = {f"h{number}": number for number in range(5_000)}
LONG = {"a": list(range(9_000)), "n": 7}
COPIES = {"CC": [f"nobody-{number}" for number in range(1_500)], "n": 8}


def died_often(count: int) -> dict[str, Any]:
    """Headers of a message that died in `count` queues, as the broker makes them."""
    headers = b""
    for number in range(count):
        found = dead_letter_headers(headers, queue=b"queue-%d" % number, reason=REJECTED, exchange=b"x", routing_key=b"k", time_s=number)
        headers = found.headers
    return decode_table(headers)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with Broker(http_port=0) as broker:
        yield Client(broker)


@pytest.fixture
def channel(client: Client) -> Iterator[Any]:
    connection = pika.BlockingConnection(pika.URLParameters(client.broker.url))
    made = connection.channel()
    made.confirm_delivery()
    yield made
    if connection.is_open:
        connection.close()


def post(client: Client, path: str, value: Any, status: int = 200) -> Any:
    answer = client.post(path, value)
    assert answer.status == status, answer
    return answer.json


@pytest.mark.parametrize("headers", [MANY, LONG, COPIES, died_often(300)], ids=["table", "array", "CC", "deaths"])
def test_every_reader_shows_them(client: Client, channel: Any, headers: dict[str, Any], request: Any) -> None:
    name = request.node.name
    for queue in (name, f"{name}-2", f"{name}-3", f"{name}-trace"):
        channel.queue_declare(queue)
    channel.queue_bind(f"{name}-trace", "amq.rabbitmq.trace", "publish.#")
    client.node.broker.tracer.turn("/", True)
    channel.queue_bind(
        f"{name}-3",
        "amq.headers",
        arguments={"x-match": "all", **{key: headers[key] for key in list(headers)[-1:] if not isinstance(headers[key], list)}},
    )
    try:
        channel.basic_publish("", name, b"x", pika.BasicProperties(headers=headers, message_id="m"))
        channel.basic_publish("amq.headers", "", b"y", pika.BasicProperties(headers=headers))
    finally:
        client.node.broker.tracer.turn("/", False)
    shown = json.loads(json.dumps(headers, default=int))
    asked = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
    (found,) = post(client, f"/api/queues/%2F/{name}/get", asked)
    assert found["properties"]["headers"] == shown and found["properties"]["message_id"] == "m"
    (peeked,) = client.get(f"/api/v1/queues/%2F/{name}/peek?count=1").json["messages"]
    assert peeked["properties"]["headers"] == shown
    last = list(headers)[-1]
    wanted = [{"in": "header", "name": last, "op": "exists"}, {"in": "property", "name": "message_id", "value": "m"}]
    assert post(client, f"/api/v1/queues/%2F/{name}/search", {"filter": wanted})["messages"]
    moved = post(client, f"/api/v1/queues/%2F/{name}/move", {"routing_key": f"{name}-2", "filter": wanted})
    assert (moved["moved"], moved["stopped"]) == (1, None)
    assert channel.basic_get(f"{name}-2", auto_ack=True)[1].headers == headers
    assert channel.queue_declare(f"{name}-3", passive=True).method.message_count == 1
    traces = [channel.basic_get(f"{name}-trace", auto_ack=True)[1].headers for _ in range(2)]
    assert all(one["properties"]["headers"] == headers for one in traces)


def test_keys_that_take_too_long_are_an_error_of_the_channel(client: Client, channel: Any) -> None:
    """Not of the connection, and what comes behind on another channel is taken."""
    channel.queue_declare("topics")
    for pattern in ("#.a.#.b.#.c.#", "#.x.#.y.#.z.#.1", "*.*.#.*.*.#"):
        channel.queue_bind("topics", "amq.topic", pattern)
    other = channel.connection.channel()
    keys = [f"k.{number}.{'a.b.c.' * 8}d" for number in range(1_900)]
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match=f"more than {Limits().topic_message_steps_max} steps"):
        channel.basic_publish("amq.topic", "k", b"x", pika.BasicProperties(headers={"CC": keys}))
    other.confirm_delivery()
    other.basic_publish("amq.topic", "k", b"x", pika.BasicProperties(headers={"CC": ["k.a.b.c", *(f"k.{n}" for n in range(1_500))]}))
    assert channel.connection.is_open and other.queue_declare("topics", passive=True).method.message_count == 1


def test_more_keys_than_a_message_may_have_are_an_error_of_the_channel(client: Client, channel: Any) -> None:
    most = Limits().message_keys_max
    channel.queue_declare("keys")
    other = channel.connection.channel()
    other.confirm_delivery()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match=f"the limit is {most}: send it several times"):
        channel.basic_publish("", "keys", b"x", pika.BasicProperties(headers={"CC": [f"{n}" for n in range(most)]}))
    other.basic_publish("", "keys", b"x", pika.BasicProperties(headers={"CC": [f"{n}" for n in range(most - 1)]}))
    assert other.queue_declare("keys", passive=True).method.message_count == 1
