"""Property: unmodified py-amqp (the client under kombu and Celery) works on its own."""

from __future__ import annotations

import ssl
from collections.abc import Iterator

import amqp
import amqp.exceptions
import pytest

from tests.support.broker import Broker, self_signed_certificate, unique, wait_until


@pytest.fixture
def connection(broker: Broker) -> Iterator[amqp.Connection]:
    """An open connection with confirms."""
    with amqp.Connection(f"{broker.host}:{broker.port}", broker.user, broker.password, confirm_publish=True) as opened:
        yield opened


@pytest.fixture
def channel(connection: amqp.Connection) -> amqp.Channel:
    """A channel of it."""
    return connection.channel()


@pytest.fixture
def queue(channel: amqp.Channel) -> str:
    """An exclusive server-named queue."""
    return str(channel.queue_declare(exclusive=True).queue)


def test_publish_consume_ack(connection: amqp.Connection, channel: amqp.Channel, queue: str) -> None:
    """Confirmed messages come in order and with their headers; acks empty the queue."""
    for i in range(20):
        message = amqp.Message(str(i), delivery_mode=2, application_headers={"n": i, "l": [1, {"x": None}], "f": 1.5, "t": True})
        channel.basic_publish(message, "", queue)
    got: list[amqp.Message] = []
    channel.basic_qos(0, 5, False)

    def note(message: amqp.Message) -> None:
        got.append(message)
        channel.basic_ack(message.delivery_tag)

    channel.basic_consume(queue, callback=note)
    while len(got) < 20:
        connection.drain_events(timeout=60)
    assert [int(m.body) for m in got] == list(range(20))
    assert got[7].headers == {"n": 7, "l": [1, {"x": None}], "f": 1.5, "t": True}
    assert channel.queue_declare(queue, passive=True).message_count == 0


def test_qos_reaches_the_running_consumer(broker: Broker, connection: amqp.Connection, channel: amqp.Channel, queue: str) -> None:
    """kombu's rule: unless the product is RabbitMQ, basic.qos(global=false) changes consumers that run already."""
    if broker.external:
        pytest.skip("RabbitMQ changes later consumers only")
    for i in range(6):
        channel.basic_publish(amqp.Message(str(i)), "", queue)
    got: list[amqp.Message] = []
    channel.basic_qos(0, 1, False)
    channel.basic_consume(queue, callback=got.append)
    connection.drain_events(timeout=60)
    with pytest.raises(TimeoutError):
        connection.drain_events(timeout=0.2)
    assert len(got) == 1
    channel.basic_qos(0, 4, False)
    while len(got) < 4:
        connection.drain_events(timeout=60)
    with pytest.raises(TimeoutError):
        connection.drain_events(timeout=0.2)
    assert len(got) == 4


def test_get_reject_recover(channel: amqp.Channel, queue: str) -> None:
    """basic_get, basic_reject and basic_recover."""
    channel.basic_publish(amqp.Message("x"), "", queue)
    message = channel.basic_get(queue)
    channel.basic_reject(message.delivery_tag, requeue=True)
    message = wait_until(lambda: channel.basic_get(queue))
    assert message.delivery_info["redelivered"]
    channel.basic_recover(requeue=True)
    message = wait_until(lambda: channel.basic_get(queue))
    channel.basic_ack(message.delivery_tag)
    assert channel.basic_get(queue) is None


def test_return(connection: amqp.Connection, channel: amqp.Channel) -> None:
    """A mandatory unroutable message comes back through the event."""
    back: list[tuple[object, ...]] = []
    channel.events["basic_return"].add(lambda *args: back.append(args))
    channel.basic_publish(amqp.Message("x"), "amq.direct", unique(), mandatory=True)
    while not back:
        connection.drain_events(timeout=60)
    assert back[0][1] in (312, "NO_ROUTE") or 312 in back[0] or "NO_ROUTE" in str(back[0])


def test_tx(broker: Broker) -> None:
    """tx_select, tx_commit, tx_rollback."""
    with amqp.Connection(f"{broker.host}:{broker.port}") as connection:
        channel = connection.channel()
        queue = channel.queue_declare(exclusive=True).queue
        channel.tx_select()
        channel.basic_publish(amqp.Message("no"), "", queue)
        channel.tx_rollback()
        channel.basic_publish(amqp.Message("yes"), "", queue)
        channel.tx_commit()
        assert wait_until(lambda: channel.basic_get(queue, no_ack=True)).body == "yes"
        assert channel.basic_get(queue) is None


def test_errors(connection: amqp.Connection) -> None:
    """404, 406 and 403 have exceptions of their own."""
    name = unique()
    with pytest.raises(amqp.exceptions.NotFound, match="no queue"):
        connection.channel().queue_declare(name, passive=True)
    connection.channel().queue_declare(name)
    with pytest.raises(amqp.exceptions.PreconditionFailed, match="inequivalent arg 'durable'"):
        connection.channel().queue_declare(name, durable=True)
    connection.channel().queue_delete(name)
    with pytest.raises(amqp.exceptions.AccessRefused, match=r"reserved prefix 'amq\.\*'"):
        connection.channel().exchange_declare("amq.x", "direct")


def test_bad_password(broker: Broker) -> None:
    """A wrong password is AccessRefused."""
    with pytest.raises(amqp.exceptions.AccessRefused):
        amqp.Connection(f"{broker.host}:{broker.port}", "guest", "wrong").connect()


def test_amqplain(broker: Broker) -> None:
    """login_method AMQPLAIN."""
    with amqp.Connection(f"{broker.host}:{broker.port}", broker.user, broker.password, login_method="AMQPLAIN") as connection:
        assert connection.channel().queue_declare(exclusive=True).queue


def test_heartbeats(broker: Broker) -> None:
    """heartbeat_tick finds the server's heartbeats in time."""
    with amqp.Connection(f"{broker.host}:{broker.port}", heartbeat=1) as connection:
        for _ in range(30):
            with pytest.raises(TimeoutError):
                connection.drain_events(timeout=0.1)
            connection.heartbeat_tick()
        assert connection.connected


def test_exchange_binding_and_large_message(channel: amqp.Channel, queue: str) -> None:
    """exchange_bind, and 3 MiB."""
    outer, inner = unique(), unique()
    channel.exchange_declare(outer, "topic")
    channel.exchange_declare(inner, "fanout")
    channel.exchange_bind(inner, outer, "a.#")
    channel.queue_bind(queue, inner)
    body = bytes(range(256)) * 12_288
    channel.basic_publish(amqp.Message(body), outer, "a.b.c")
    got = channel.basic_get(queue, no_ack=True).body
    assert (got if isinstance(got, bytes) else got.encode()) == body
    channel.exchange_unbind(inner, outer, "a.#")
    channel.exchange_delete(outer)
    channel.exchange_delete(inner)


def test_cancel_notification(connection: amqp.Connection, channel: amqp.Channel) -> None:
    """on_cancel is called when the queue goes."""
    name = unique()
    channel.queue_declare(name)
    cancelled: list[str] = []
    tag = channel.basic_consume(name, callback=lambda _m: None, on_cancel=cancelled.append)
    connection.channel().queue_delete(name)
    while not cancelled:
        connection.drain_events(timeout=60)
    assert cancelled == [tag]


def test_tls() -> None:
    """Over TLS with verification."""
    with self_signed_certificate() as (cert, key), Broker("--tls-cert", cert, "--tls-key", key, "--tls-port", "0") as broker:
        options = {"ca_certs": cert, "cert_reqs": ssl.CERT_REQUIRED, "server_hostname": "localhost"}
        with amqp.Connection(f"127.0.0.1:{broker.ready['amqps_port']}", ssl=options) as connection:
            channel = connection.channel()
            queue = channel.queue_declare(exclusive=True).queue
            channel.basic_publish(amqp.Message("x" * 500_000), "", queue)
            assert wait_until(lambda: channel.basic_get(queue, no_ack=True)).body == "x" * 500_000
