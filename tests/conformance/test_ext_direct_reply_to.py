"""Property: direct reply-to answers a request on the channel that asked, without a queue, and refuses what RabbitMQ refuses."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.rawamqp import RawChannel, RawConnection

Connect = Callable[..., RawConnection]
PSEUDO = "amq.rabbitmq.reply-to"


def test_request_and_reply(connect: Connect, name: str) -> None:
    """The server sees an opaque name with the pseudo-queue's prefix; what it publishes there reaches the client."""
    client, server = connect().channel(1), connect().channel(1)
    server.queue(name, exclusive=False, auto_delete=True)
    server.consume(name, no_ack=True)
    client.consume(PSEUDO, "replies", no_ack=True)
    for i in range(3):
        client.publish(b"ask %d" % i, routing_key=name, reply_to=PSEUDO, correlation_id=str(i))
        request = server.expect("basic.deliver")
        address = request.properties["reply_to"]
        assert address.startswith(PSEUDO + ".")
        server.publish(b"answer %d" % i, routing_key=address, correlation_id=request.properties["correlation_id"])
        reply = client.expect("basic.deliver")
        assert (reply.body, reply.properties["correlation_id"], reply.consumer_tag) == (b"answer %d" % i, str(i), "replies")


def test_reply_after_the_client_left(connect: Connect, name: str) -> None:
    """A reply whose requester is gone is unroutable: mandatory returns it."""
    client, server = connect(), connect().channel(1)
    server.queue(name, auto_delete=True)
    server.consume(name, no_ack=True)
    ch = client.channel(1)
    ch.consume(PSEUDO, no_ack=True)
    ch.publish(b"ask", routing_key=name, reply_to=PSEUDO)
    address = server.expect("basic.deliver").properties["reply_to"]
    client.close()
    server.publish(b"late", routing_key=address, mandatory=True)
    assert server.expect("basic.return").reply_code == 312


def test_acknowledged_consumer_is_refused(ch: RawChannel) -> None:
    """Only no-ack consumers are possible: 406."""
    ch.refuse(406, "PRECONDITION_FAILED - reply consumer cannot acknowledge", "basic.consume", queue=PSEUDO)


def test_second_consumer_is_refused(ch: RawChannel) -> None:
    """One reply consumer per channel: 406."""
    ch.consume(PSEUDO, no_ack=True)
    ch.refuse(406, "PRECONDITION_FAILED - reply consumer already set", "basic.consume", queue=PSEUDO, no_ack=True)


def test_publish_without_consumer_is_refused(ch: RawChannel, name: str) -> None:
    """A request with the pseudo-queue as reply-to needs the consumer first: 406."""
    ch.publish(b"ask", routing_key=name, reply_to=PSEUDO)
    ch.expect_close(406, "PRECONDITION_FAILED - fast reply consumer does not exist")


def test_declare_of_the_pseudo_queue(ch: RawChannel) -> None:
    """Declaring the pseudo-queue answers with its name and nothing in it."""
    answer = ch.call("queue.declare", queue=PSEUDO, passive=True)
    assert (answer.queue, answer.message_count) == (PSEUDO, 0)


def test_existence_of_an_address(connect: Connect, name: str) -> None:
    """A server can ask by a declare whether the requester still waits."""
    client, server = connect(), connect().channel(1)
    server.queue(name, auto_delete=True)
    server.consume(name, no_ack=True)
    ch = client.channel(1)
    ch.consume(PSEUDO, no_ack=True)
    ch.publish(b"ask", routing_key=name, reply_to=PSEUDO)
    address = server.expect("basic.deliver").properties["reply_to"]
    assert server.call("queue.declare", queue=address, passive=True).queue == address
    client.close()
    server.refuse(404, "NOT_FOUND", "queue.declare", queue=address, passive=True)
