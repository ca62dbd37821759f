"""Property: publish, mandatory, immediate, confirms and get (spec 1.8 and the confirm extension) answer each message exactly once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.rawamqp import RawChannel, RawConnection, Typed, header_frame, method_frame

Connect = Callable[..., RawConnection]


def test_mandatory(ch: RawChannel, name: str) -> None:
    """An unroutable mandatory message comes back whole: 312 NO_ROUTE, exchange, key, properties, body."""
    body = bytes(200_000)
    ch.publish(body, exchange="amq.direct", routing_key=name, mandatory=True, message_id="7", headers={"k": "v"})
    back = ch.expect("basic.return")
    assert (back.reply_code, back.reply_text, back.exchange, back.routing_key) == (312, "NO_ROUTE", "amq.direct", name)
    assert back.properties == {"message_id": "7", "headers": {"k": "v"}}
    assert back.body == body


def test_unroutable_without_mandatory_is_dropped(ch: RawChannel, name: str) -> None:
    """Without mandatory nothing comes back."""
    ch.publish(b"x", routing_key=name)
    ch.call("basic.qos")
    ch.nothing()


def test_routable_mandatory_does_not_return(ch: RawChannel, name: str) -> None:
    """A mandatory message that reaches a queue does not come back."""
    ch.queue(name, exclusive=True)
    ch.publish(b"x", routing_key=name, mandatory=True)
    assert ch.call("basic.get", queue=name, no_ack=True).body == b"x"


def test_return_comes_before_the_confirm(ch: RawChannel, name: str) -> None:
    """basic.return precedes the basic.ack of the same message."""
    ch.call("confirm.select")
    ch.publish(b"x", routing_key=name, mandatory=True)
    ch.expect("basic.return")
    assert ch.expect("basic.ack").delivery_tag == 1


def test_confirms_cover_every_message_once(ch: RawChannel, name: str) -> None:
    """All of 500 publishes are confirmed, singly or by multiple, none twice; routed and unroutable alike."""
    ch.queue(name, exclusive=True)
    ch.call("confirm.select")
    for i in range(500):
        ch.publish(b"%d" % i, routing_key=name if i % 3 else name + "-nowhere")
    open_tags = set(range(1, 501))
    while open_tags:
        ack = ch.expect("basic.ack")
        done = {t for t in open_tags if t <= ack.delivery_tag} if ack.multiple else {ack.delivery_tag} & open_tags
        assert done, f"tag {ack.delivery_tag} confirmed again"
        open_tags -= done
    ch.nothing()


def test_confirm_tags_start_at_select(ch: RawChannel, name: str) -> None:
    """Publishes before confirm.select are not counted; the second select changes nothing."""
    ch.publish(b"before", routing_key=name)
    ch.call("confirm.select")
    ch.call("confirm.select")
    ch.publish(b"after", routing_key=name)
    assert ch.expect("basic.ack").delivery_tag == 1


def test_confirm_of_persistent_messages_on_durable_queues(ch: RawChannel, name: str) -> None:
    """A persistent message on a durable queue is confirmed too."""
    ch.queue(name, durable=True)
    ch.call("confirm.select")
    ch.publish(b"x", routing_key=name, delivery_mode=2)
    assert ch.expect("basic.ack").delivery_tag == 1
    ch.call("queue.delete", queue=name)


def test_confirm_and_tx_exclude_each_other(conn: RawConnection) -> None:
    """confirm on a tx channel and tx on a confirm channel are 406."""
    ch = conn.channel(1)
    ch.call("confirm.select")
    ch.refuse(406, "PRECONDITION_FAILED - cannot switch from confirm to tx mode", "tx.select")
    ch.call("tx.select")
    ch.refuse(406, "PRECONDITION_FAILED - cannot switch from tx to confirm mode", "confirm.select")


@pytest.mark.flintmq_only("RabbitMQ refuses immediate with 540")
def test_immediate_without_consumer(ch: RawChannel, name: str) -> None:
    """immediate: without a ready consumer the message comes back with 313, and is not queued."""
    ch.queue(name, exclusive=True)
    ch.publish(b"x", routing_key=name, immediate=True)
    back = ch.expect("basic.return")
    assert (back.reply_code, back.reply_text, back.body) == (313, "NO_CONSUMERS", b"x")
    assert ch.ready(name) == 0


@pytest.mark.flintmq_only("RabbitMQ refuses immediate with 540")
def test_immediate_with_consumer(conn: RawConnection, name: str) -> None:
    """immediate: a consumer with credit gets it; one without credit does not, and it comes back."""
    ch, consumer = conn.channel(1), conn.channel(2)
    ch.queue(name, exclusive=True)
    consumer.call("basic.qos", prefetch_count=1)
    consumer.consume(name)
    ch.publish(b"1", routing_key=name, immediate=True)
    assert consumer.expect("basic.deliver").body == b"1"
    ch.publish(b"2", routing_key=name, immediate=True)
    back = ch.expect("basic.return")
    assert (back.reply_code, back.body) == (313, b"2")
    consumer.nothing()


def test_get(ch: RawChannel, name: str) -> None:
    """basic.get takes the head, says what remains, and marks a requeued message as redelivered."""
    ch.queue(name, exclusive=True)
    for i in range(3):
        ch.publish(b"%d" % i, routing_key=name)
    ch.wait_ready(name, 3)
    got = ch.call("basic.get", queue=name)
    assert (got.body, got.message_count, got.redelivered, got.exchange, got.routing_key) == (b"0", 2, False, "", name)
    ch.send("basic.reject", delivery_tag=got.delivery_tag, requeue=True)
    got = ch.call("basic.get", queue=name)
    assert (got.body, got.redelivered) == (b"0", True)
    ch.call("basic.get", queue=name, no_ack=True)
    ch.call("basic.get", queue=name, no_ack=True)
    assert ch.call("basic.get", queue=name).name == "basic.get-empty"


def test_get_ignores_prefetch(ch: RawChannel, name: str) -> None:
    """basic.get is not limited by qos."""
    ch.queue(name, exclusive=True)
    ch.call("basic.qos", prefetch_count=1)
    for i in range(3):
        ch.publish(b"%d" % i, routing_key=name)
    assert [ch.call("basic.get", queue=name).body for _ in range(3)] == [b"0", b"1", b"2"]


def test_header_types_survive(ch: RawChannel, name: str) -> None:
    """Every table type comes back byte for byte in value and type."""
    ch.queue(name, exclusive=True)
    headers = {
        "t": True,
        "b": Typed("b", -5),
        "B": Typed("B", 250),
        "s": Typed("s", -3000),
        "u": Typed("u", 65000),
        "I": Typed("I", -(2**31)),
        "i": Typed("i", 2**32 - 1),
        "l": Typed("l", -(2**63)),
        "f": Typed("f", 0.5),
        "d": Typed("d", 1e300),
        "D": Typed("D", (2, 12345)),
        "S": "text ü",
        "A": [1, "a", [True, None], {"x": 1}],
        "T": Typed("T", 1700000000),
        "F": {"deep": {"deeper": {"x": b"\xff\x00"}}},
        "V": None,
        "x": Typed("x", b"\x00\x01\xff"),
    }
    ch.publish(b"", routing_key=name, headers=headers)
    got = ch.call("basic.get", queue=name, no_ack=True).properties["headers"]
    assert got == {
        "t": True,
        "b": -5,
        "B": 250,
        "s": -3000,
        "u": 65000,
        "I": -(2**31),
        "i": 2**32 - 1,
        "l": -(2**63),
        "f": 0.5,
        "d": 1e300,
        "D": (2, 12345),
        "S": "text ü",
        "A": [1, "a", [True, None], {"x": 1}],
        "T": 1700000000,
        "F": {"deep": {"deeper": {"x": b"\xff\x00"}}},
        "V": None,
        "x": b"\x00\x01\xff",
    }


def test_user_id_must_match(ch: RawChannel, name: str) -> None:
    """A user-id property other than the connection's user is 406."""
    ch.publish(b"x", routing_key=name, user_id="somebody")
    ch.expect_close(406, "PRECONDITION_FAILED - user_id property set to 'somebody' but authenticated user was 'guest'")


def test_expiration_must_be_a_number(ch: RawChannel, name: str) -> None:
    """An expiration that is no number is 406."""
    ch.publish(b"x", routing_key=name, expiration="soon")
    ch.expect_close(406, "PRECONDITION_FAILED - invalid expiration 'soon'")


@pytest.mark.flintmq_only("RabbitMQ looks at the size after it has read the body")
def test_message_too_large(ch: RawChannel, name: str) -> None:
    """A body above the limit is refused at its header, before any body byte: 406 with the limit."""
    ch.connection.send(method_frame(1, "basic.publish", routing_key=name) + header_frame(1, 600 * 1024 * 1024))
    ch.expect_close(406, "PRECONDITION_FAILED - message size 629145600 is larger than configured max size")


def test_order_of_one_channel(ch: RawChannel, name: str) -> None:
    """Messages of one channel to one queue keep their order, whatever their size and route."""
    ch.queue(name, exclusive=True)
    ch.call("queue.bind", queue=name, exchange="amq.topic", routing_key=name + ".#")
    for i in range(300):
        body = b"%d:" % i + bytes(i * 37 % 5000)
        ch.publish(body, exchange=("", "amq.topic")[i % 2], routing_key=name + (".k" if i % 2 else ""), delivery_mode=1 + i % 2)
    ch.consume(name, no_ack=True)
    assert [int(d.body.split(b":")[0]) for d in ch.deliveries(300)] == list(range(300))
