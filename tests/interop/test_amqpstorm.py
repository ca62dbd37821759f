"""Property: unmodified amqpstorm works: publish, consume, settle, confirms, returns, tx, recover, errors, reply-to, TLS."""

from __future__ import annotations

import ssl
from collections.abc import Iterator

import amqpstorm
import pytest

from tests.support.broker import Broker, self_signed_certificate, unique, wait_until


@pytest.fixture
def connection(broker: Broker) -> Iterator[amqpstorm.Connection]:
    """An open connection."""
    with amqpstorm.Connection(broker.host, broker.user, broker.password, port=broker.port, heartbeat=5) as opened:
        yield opened


@pytest.fixture
def channel(connection: amqpstorm.Connection) -> amqpstorm.Channel:
    """A channel of it."""
    return connection.channel(rpc_timeout=60)


@pytest.fixture
def queue(channel: amqpstorm.Channel) -> str:
    """An exclusive queue."""
    name = unique("storm")
    channel.queue.declare(name, exclusive=True)
    return name


def test_publish_consume_ack(channel: amqpstorm.Channel, queue: str) -> None:
    """Messages with properties come in order; ack, nack and reject settle them."""
    for i in range(20):
        amqpstorm.Message.create(channel, str(i), {"headers": {"n": i}, "content_type": "text/plain", "message_id": str(i)}).publish(queue)
    channel.basic.qos(10)
    channel.basic.consume(queue=queue)
    seen: list[int] = []
    for message in channel.build_inbound_messages(break_on_empty=False, auto_decode=True):
        assert message.properties["headers"] == {"n": int(message.body)}
        if message.redelivered:
            message.reject(requeue=False)
            break
        seen.append(int(message.body))
        if len(seen) == 20:
            message.nack(requeue=True)
        else:
            message.ack()
    assert seen == list(range(20))
    assert wait_until(lambda: channel.queue.declare(queue, passive=True)["message_count"] == 0)


def test_confirms_and_returns(channel: amqpstorm.Channel, queue: str) -> None:
    """publish answers True; an unroutable mandatory message raises NO_ROUTE."""
    channel.confirm_deliveries()
    assert channel.basic.publish("x", queue, mandatory=True) is True
    with pytest.raises(amqpstorm.AMQPMessageError, match=r"not delivered|NO_ROUTE|312"):
        channel.basic.publish("x", unique(), mandatory=True)
        channel.check_for_errors()


def test_tx(channel: amqpstorm.Channel, queue: str) -> None:
    """The transaction context manager."""
    with channel.tx:
        channel.basic.publish("no", queue)
        channel.tx.rollback()
    with channel.tx:
        channel.basic.publish("yes", queue)
    message = wait_until(lambda: channel.basic.get(queue, no_ack=True))
    assert message.body == "yes"
    assert not channel.basic.get(queue)


def test_get_and_recover(channel: amqpstorm.Channel, queue: str) -> None:
    """basic.get, then recover(requeue)."""
    channel.basic.publish("x", queue)
    wait_until(lambda: channel.basic.get(queue))
    channel.basic.recover(requeue=True)
    message = wait_until(lambda: channel.basic.get(queue))
    assert message.redelivered
    message.ack()


def test_errors(connection: amqpstorm.Connection) -> None:
    """Channel errors carry code and text."""
    name = unique()
    channel = connection.channel()
    with pytest.raises(amqpstorm.AMQPChannelError, match=f"NOT_FOUND - no queue '{name}' in vhost '/'") as caught:
        channel.queue.declare(name, passive=True)
    assert caught.value.error_code == 404
    channel = connection.channel()
    channel.queue.declare(name)
    with pytest.raises(amqpstorm.AMQPChannelError, match="PRECONDITION_FAILED - inequivalent arg 'durable'") as caught:
        channel.queue.declare(name, durable=True)
    assert caught.value.error_code == 406
    connection.channel().queue.delete(name)


def test_bad_password(broker: Broker) -> None:
    """A wrong password raises at once."""
    with pytest.raises(amqpstorm.AMQPConnectionError, match=r"ACCESS_REFUSED|403"):
        amqpstorm.Connection(broker.host, "guest", "wrong", port=broker.port)


def test_exchanges_and_large_message(channel: amqpstorm.Channel, queue: str) -> None:
    """exchange.bind, a topic exchange, and 3 MiB."""
    outer, inner = unique(), unique()
    channel.exchange.declare(outer, "topic")
    channel.exchange.declare(inner, "direct")
    channel.exchange.bind(inner, outer, "#")
    channel.queue.bind(queue, inner, "k")
    body = "0123456789abcdef" * 196_608
    channel.basic.publish(body, "k", outer)
    assert wait_until(lambda: channel.basic.get(queue, no_ack=True)).body == body
    channel.exchange.unbind(inner, outer, "#")
    channel.exchange.delete(outer)
    channel.exchange.delete(inner)


def test_direct_reply_to(connection: amqpstorm.Connection, channel: amqpstorm.Channel, queue: str) -> None:
    """Request and answer."""
    client = connection.channel()
    client.basic.consume(queue="amq.rabbitmq.reply-to", no_ack=True)
    client.basic.publish("ask", queue, properties={"reply_to": "amq.rabbitmq.reply-to", "correlation_id": "9"})
    request = wait_until(lambda: channel.basic.get(queue, no_ack=True))
    channel.basic.publish("answer", request.reply_to, properties={"correlation_id": request.correlation_id})
    for reply in client.build_inbound_messages(break_on_empty=False):
        assert (reply.body, reply.correlation_id) == ("answer", "9")
        break


def test_tls() -> None:
    """Over TLS with verification."""
    with self_signed_certificate() as (cert, key), Broker("--tls-cert", cert, "--tls-key", key, "--tls-port", "0") as broker:
        port = broker.ready["amqps_port"]
        options = {"context": ssl.create_default_context(cafile=cert), "server_hostname": "localhost"}
        with amqpstorm.Connection("127.0.0.1", "guest", "guest", port=port, ssl=True, ssl_options=options) as connection:
            channel = connection.channel()
            queue = channel.queue.declare(exclusive=True)["queue"]
            channel.basic.publish("x" * 400_000, queue)
            assert len(wait_until(lambda: channel.basic.get(queue, no_ack=True)).body) == 400_000
