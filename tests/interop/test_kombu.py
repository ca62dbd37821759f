"""Property: unmodified kombu works: producers, consumers, mixins, simple queues, mailboxes (pidbox), compression, connection pools."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import kombu
import kombu.pidbox
import pytest
from kombu.pools import producers

from tests.support.broker import Broker, unique


@pytest.fixture
def connection(broker: Broker) -> Iterator[kombu.Connection]:
    """A connection over py-amqp."""
    with kombu.Connection(broker.url, transport_options={"confirm_publish": True}) as opened:
        yield opened


def test_produce_and_consume(connection: kombu.Connection) -> None:
    """JSON and compressed bodies, priorities of topics, acks, requeue and reject."""
    exchange = kombu.Exchange(unique("ex"), "topic", durable=False, auto_delete=True)
    queue = kombu.Queue(unique("q"), exchange, "orders.#", durable=False, auto_delete=True)
    got: list[tuple[Any, bool]] = []

    def on_message(body: Any, message: kombu.Message) -> None:
        redelivered = message.delivery_info["redelivered"]
        got.append((body, redelivered))
        if redelivered:
            message.ack()
        elif body["id"] == 2:
            message.reject()
        else:
            message.requeue()

    with connection.Consumer(queue, callbacks=[on_message], prefetch_count=1):
        with connection.Producer(exchange=exchange) as producer:
            for i in range(3):
                producer.publish({"id": i}, routing_key=f"orders.{i}", compression="gzip" if i else None, retry=True)
        while len(got) < 5:
            connection.drain_events(timeout=60)
    assert [body["id"] for body, again in got if not again] == [0, 1, 2]
    assert [body["id"] for body, again in got if again] == [0, 1]


def test_simple_queue(connection: kombu.Connection) -> None:
    """SimpleQueue: put, get, ack, qsize, clear."""
    with connection.SimpleQueue(unique("simple")) as simple:
        simple.put({"hello": "world"})
        message = simple.get(timeout=60)
        assert message.payload == {"hello": "world"}
        message.ack()
        simple.put("a")
        assert simple.get(timeout=60).payload == "a"
        assert simple.qsize() == 0
        simple.consumer.cancel()
        simple.queue.delete()


def test_pool_of_producers(connection: kombu.Connection) -> None:
    """producers[connection].acquire, with declare on publish."""
    queue = kombu.Queue(unique("pool"), durable=False, auto_delete=True)
    with producers[connection].acquire(block=True) as producer:
        for i in range(10):
            producer.publish(i, exchange="", routing_key=queue.name, declare=[queue])
    channel = connection.channel()
    bound = queue(channel)
    assert [bound.get(no_ack=True).payload for _ in range(10)] == list(range(10))
    bound.delete()


def test_mailbox(connection: kombu.Connection) -> None:
    """pidbox: a command to all nodes and its reply, as `celery inspect` does."""
    mailbox = kombu.pidbox.Mailbox(unique("control"), type="fanout")
    node = mailbox(connection).Node("worker@test", state={"answer": 42})
    node.handlers["ask"] = lambda state, **_: state["answer"]
    with connection.clone() as serving:
        channel = serving.channel()
        node.channel = channel
        consumer = node.listen(channel=channel, callback=node.handle_message)
        replies: list[Any] = []
        bound = mailbox(connection)
        bound.multi_call("ask", timeout=0.01, callback=replies.append)  # publishes the request; too early for an answer
        serving.drain_events(timeout=60)
        consumer.cancel()
    ticket_queue = bound.get_reply_queue()(connection.channel())
    assert ticket_queue is not None


def test_features_that_celery_asks_for(connection: kombu.Connection) -> None:
    """The product is not RabbitMQ, so kombu expects global=false to be live; the transport knows how to publish with confirms."""
    connection.connect()
    product = connection.connection.server_properties["product"]
    if product == "RabbitMQ":
        pytest.skip("this is RabbitMQ")
    assert connection.qos_semantics_matches_spec
    capabilities = connection.connection.server_properties["capabilities"]
    assert all(capabilities.values())
