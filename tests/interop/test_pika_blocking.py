"""Property: unmodified pika (BlockingConnection) can do all it offers: publish, consume, settle, return, confirm, tx, reply-to, recover."""

from __future__ import annotations

import ssl
from collections.abc import Iterator

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.support.broker import Broker, self_signed_certificate, unique, wait_until


@pytest.fixture
def connection(broker: Broker) -> Iterator[pika.BlockingConnection]:
    """An open connection."""
    opened = pika.BlockingConnection(pika.URLParameters(broker.url))
    yield opened
    if opened.is_open:
        opened.close()


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    """A channel of it."""
    return connection.channel()


@pytest.fixture
def queue(channel: BlockingChannel) -> str:
    """An exclusive queue."""
    name = unique("pika")
    channel.queue_declare(name, exclusive=True)
    return name


def take(channel: BlockingChannel, queue: str, count: int, **options: object) -> list[tuple[pika.spec.Basic.Deliver, bytes]]:
    """The next `count` deliveries of a new consumer, unacknowledged unless auto_ack is given."""
    got: list[tuple[pika.spec.Basic.Deliver, bytes]] = []
    for method, _, body in channel.consume(queue, inactivity_timeout=60, **options):  # type: ignore[arg-type]
        assert method is not None, f"only {len(got)} of {count} messages"
        got.append((method, body))
        if len(got) == count:
            return got
    raise AssertionError("consumer ended")


def test_large_headers_in_small_frames(broker: Broker, channel: BlockingChannel) -> None:
    """A consumer that asked for frames of 4,096 bytes reads a content header of 20,000, which can't be cut, and goes on."""
    parameters = pika.URLParameters(broker.url)
    parameters.frame_max = 4096
    other = pika.BlockingConnection(parameters)
    reader = other.channel()
    channel.queue_declare(name := unique("pika"), auto_delete=True)
    for size in (20_000, 1):
        channel.basic_publish("", name, b"y" * 10_000, pika.BasicProperties(headers={"h": "x" * size}))
    sizes = []
    for method, properties, body in reader.consume(name, inactivity_timeout=60):
        assert properties is not None and len(body) == 10_000
        sizes.append(len(properties.headers["h"]))
        reader.basic_ack(method.delivery_tag)
        if len(sizes) == 2:
            break
    assert sizes == [20_000, 1]
    other.close()


def test_publish_consume_ack(channel: BlockingChannel, queue: str) -> None:
    """A hundred messages arrive in order with their properties; after the acks the queue is empty."""
    for i in range(100):
        channel.basic_publish("", queue, b"%d" % i, pika.BasicProperties(message_id=str(i), delivery_mode=2, headers={"n": i}))
    seen = []
    for method, properties, body in channel.consume(queue, inactivity_timeout=60):
        assert properties is not None
        assert properties.headers == {"n": int(body)}
        seen.append(int(body))
        channel.basic_ack(method.delivery_tag)
        if len(seen) == 100:
            break
    channel.cancel()
    assert seen == list(range(100))
    assert channel.queue_declare(queue, passive=True).method.message_count == 0


def test_nack_and_reject(channel: BlockingChannel, queue: str) -> None:
    """nack multiple and reject with requeue come back in order, flagged; without requeue they are gone."""
    for i in range(4):
        channel.basic_publish("", queue, b"%d" % i)
    got = take(channel, queue, 4)
    channel.basic_nack(got[1][0].delivery_tag, multiple=True, requeue=True)
    again = take(channel, queue, 2)
    assert [(body, method.redelivered) for method, body in again] == [(b"0", True), (b"1", True)]
    for method, _ in (*got[2:], *again):
        channel.basic_reject(method.delivery_tag, requeue=False)
    channel.cancel()
    assert channel.basic_get(queue) == (None, None, None)


def test_confirms_and_returns(channel: BlockingChannel, queue: str) -> None:
    """confirm_delivery works; an unroutable mandatory message raises with the whole message."""
    channel.confirm_delivery()
    channel.basic_publish("", queue, b"x", mandatory=True)
    with pytest.raises(pika.exceptions.UnroutableError) as caught:
        channel.basic_publish("amq.direct", unique(), b"back", mandatory=True)
    (message,) = caught.value.messages
    assert (message.body, message.method.reply_code, message.method.reply_text) == (b"back", 312, "NO_ROUTE")


def test_tx(channel: BlockingChannel, queue: str) -> None:
    """tx_select, commit and rollback."""
    channel.tx_select()
    channel.basic_publish("", queue, b"no")
    channel.tx_rollback()
    channel.basic_publish("", queue, b"yes")
    channel.tx_commit()
    assert channel.basic_get(queue, auto_ack=True)[2] == b"yes"
    assert channel.basic_get(queue)[0] is None


def test_recover(channel: BlockingChannel, queue: str) -> None:
    """basic_recover(requeue=True) delivers again."""
    channel.basic_publish("", queue, b"x")
    method, _, _ = wait_until(lambda: (got := channel.basic_get(queue))[0] and got)
    assert not method.redelivered
    channel.basic_recover(requeue=True)
    method, _, body = channel.basic_get(queue, auto_ack=True)
    assert (method.redelivered, body) == (True, b"x")


def test_direct_reply_to(broker: Broker, connection: pika.BlockingConnection, channel: BlockingChannel, queue: str) -> None:
    """A request and its answer through amq.rabbitmq.reply-to."""
    replies: list[bytes] = []
    client = connection.channel()
    client.basic_consume("amq.rabbitmq.reply-to", lambda _c, _m, _p, body: replies.append(body), auto_ack=True)
    client.basic_publish("", queue, b"2", pika.BasicProperties(reply_to="amq.rabbitmq.reply-to", correlation_id="1"))

    def serve(ch: BlockingChannel, _m: object, properties: pika.BasicProperties, body: bytes) -> None:
        ch.basic_publish("", properties.reply_to, b"answer to " + body, pika.BasicProperties(correlation_id=properties.correlation_id))

    channel.basic_consume(queue, serve, auto_ack=True)
    wait_until(lambda: connection.process_data_events(0.1) or replies)
    assert replies == [b"answer to 2"]


@pytest.mark.parametrize(
    ("action", "code", "text"),
    [
        (lambda ch, n: ch.queue_declare(n, passive=True), 404, "NOT_FOUND - no queue '{}' in vhost '/'"),
        (lambda ch, n: ch.exchange_declare(n, passive=True), 404, "NOT_FOUND - no exchange '{}' in vhost '/'"),
        (lambda ch, n: ch.queue_declare("amq." + n), 403, "ACCESS_REFUSED - queue name 'amq.{}' contains reserved prefix 'amq.*'"),
        (lambda ch, n: ch.basic_consume(n, lambda *_: None), 404, "NOT_FOUND - no queue '{}' in vhost '/'"),
    ],
)
def test_channel_errors(connection: pika.BlockingConnection, action: object, code: int, text: str) -> None:
    """Errors close the channel with code and text; the connection stays."""
    name = unique()
    channel = connection.channel()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        action(channel, name)  # type: ignore[operator]
    assert caught.value.reply_code == code
    assert text.format(name) in caught.value.reply_text
    connection.channel().queue_declare("", exclusive=True)


def test_inequivalent_and_locked(broker: Broker, connection: pika.BlockingConnection, queue: str) -> None:
    """406 for a redeclaration with other flags, 405 for another connection's exclusive queue."""
    other_queue = unique()
    connection.channel().queue_declare(other_queue)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="inequivalent arg 'durable'") as caught:
        connection.channel().queue_declare(other_queue, durable=True)
    assert caught.value.reply_code == 406
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as second:
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="cannot obtain exclusive access") as caught:
            second.channel().queue_declare(queue, exclusive=True)
        assert caught.value.reply_code == 405
        second.channel().queue_delete(other_queue)


def test_wrong_password(broker: Broker) -> None:
    """A wrong password is an authentication error, not a lost connection."""
    parameters = pika.ConnectionParameters(broker.host, broker.port, credentials=pika.PlainCredentials("guest", "wrong"))
    with pytest.raises(pika.exceptions.ProbableAuthenticationError, match="ACCESS_REFUSED"):
        pika.BlockingConnection(parameters)


def test_unknown_vhost(broker: Broker) -> None:
    """An unknown vhost is refused."""
    parameters = pika.URLParameters(broker.url)
    parameters.virtual_host = "nowhere"
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        pika.BlockingConnection(parameters)


@pytest.mark.parametrize("kind", ["direct", "fanout", "topic", "headers"])
def test_exchange_types(channel: BlockingChannel, queue: str, kind: str) -> None:
    """Every exchange type, with an exchange-to-exchange binding before it."""
    inner, outer = unique(), unique()
    channel.exchange_declare(inner, kind, auto_delete=True)
    channel.exchange_declare(outer, "fanout", auto_delete=True)
    channel.exchange_bind(inner, outer)
    channel.queue_bind(queue, inner, "a.b", {"x-match": "any", "h": 1})
    channel.basic_publish(outer, "a.b", b"x", pika.BasicProperties(headers={"h": 1}))
    assert wait_until(lambda: channel.basic_get(queue, auto_ack=True)[2]) == b"x"
    channel.exchange_unbind(inner, outer)


def test_large_message(channel: BlockingChannel, queue: str) -> None:
    """3 MiB there and back."""
    body = bytes(range(256)) * (3 * 4096)
    channel.basic_publish("", queue, body)
    assert take(channel, queue, 1, auto_ack=True)[0][1] == body
    channel.cancel()


def test_qos(channel: BlockingChannel, queue: str) -> None:
    """prefetch_count=2: the third message waits for an ack."""
    channel.basic_qos(prefetch_count=2)
    for i in range(3):
        channel.basic_publish("", queue, b"%d" % i)
    got: list[tuple[int, bytes]] = []
    channel.basic_consume(queue, lambda _c, m, _p, b: got.append((m.delivery_tag, b)))
    wait_until(lambda: channel.connection.process_data_events(0.05) or len(got) == 2)
    channel.connection.process_data_events(0.2)
    assert len(got) == 2
    channel.basic_ack(got[0][0])
    wait_until(lambda: channel.connection.process_data_events(0.05) or len(got) == 3)


def test_consumer_cancel_notify(broker: Broker, connection: pika.BlockingConnection, channel: BlockingChannel) -> None:
    """Deleting the queue cancels the consumer and tells it."""
    name = unique()
    channel.queue_declare(name)
    cancelled: list[str] = []
    channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    tag = channel.basic_consume(name, lambda *_: None)
    connection.channel().queue_delete(name)
    wait_until(lambda: connection.process_data_events(0.05) or cancelled)
    assert cancelled == [tag]


def test_short_heartbeats(broker: Broker) -> None:
    """With heartbeat=1 an idle connection that processes events stays open for several intervals."""
    parameters = pika.URLParameters(broker.url)
    parameters.heartbeat = 1
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        connection.process_data_events(3.5)
        assert connection.is_open
        channel.queue_declare("", exclusive=True)


def test_update_secret(connection: pika.BlockingConnection) -> None:
    """update_secret is answered, whatever the secret: passwords do not expire."""
    connection.update_secret("guest", "rotation")
    connection.update_secret("another secret", "rotation")
    assert connection.is_open


def test_capabilities(connection: pika.BlockingConnection) -> None:
    """pika sees what it needs."""
    assert connection.basic_nack_supported
    assert connection.consumer_cancel_notify_supported
    assert connection.exchange_exchange_bindings_supported
    assert connection.publisher_confirms_supported


def test_headers_of_all_types(channel: BlockingChannel, queue: str) -> None:
    """Every value that pika can encode comes back equal."""
    import datetime
    import decimal

    headers = {
        "bool": True,
        "int": -5,
        "long": 2**40,
        "str": "ü",
        "bytes": b"\x00\xff",
        "none": None,
        "list": [1, "a", [False]],
        "dict": {"a": {"b": [1]}},
        "time": datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC),
        "decimal": decimal.Decimal("3.14"),
    }
    channel.basic_publish("", queue, b"", pika.BasicProperties(headers=headers))
    _, properties, _ = wait_until(lambda: (got := channel.basic_get(queue, auto_ack=True))[0] and got)
    got = dict(properties.headers)
    time = got.pop("time")
    expected = dict(headers)
    assert time.replace(tzinfo=datetime.UTC) == expected.pop("time")
    assert got == expected


def test_tls() -> None:
    """The same over TLS, with the certificate verified."""
    with self_signed_certificate() as (cert, key), Broker("--tls-cert", cert, "--tls-key", key, "--tls-port", "0") as broker:
        context = ssl.create_default_context(cafile=cert)
        parameters = pika.ConnectionParameters(
            "127.0.0.1", broker.ready["amqps_port"], ssl_options=pika.SSLOptions(context, "localhost"), heartbeat=1
        )
        with pika.BlockingConnection(parameters) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            queue = channel.queue_declare("", exclusive=True).method.queue
            body = bytes(range(256)) * 12_288
            for i in range(3):
                channel.basic_publish("", queue, body + b"%d" % i)
            assert [b == body + b"%d" % i for i, (_, b) in enumerate(take(channel, queue, 3, auto_ack=True))] == [True] * 3
            channel.cancel()
            connection.process_data_events(2.5)
            assert connection.is_open
