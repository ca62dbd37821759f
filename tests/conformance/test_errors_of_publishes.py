"""Errors of basic.publish name basic.publish; what a closing channel and an unknown frame get; texts as RabbitMQ cuts them.

Checked against RabbitMQ 3.10 by tools/differential (`make interop`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.rawamqp import RawChannel, RawConnection, Typed, header_frame, method_frame, publish_bytes

PUBLISH = (60, 40)


@pytest.mark.parametrize(
    ("code", "text", "arguments"),
    [
        (404, "no exchange 'missing'", {"exchange": "missing"}),
        (403, "cannot publish to internal", {"exchange": "amq.rabbitmq.trace"}),
        (406, "user_id property set to 'x'", {"user_id": "x"}),
        (406, "invalid expiration 'x'", {"expiration": "x"}),
        (406, "fast reply consumer does not exist", {"reply_to": "amq.rabbitmq.reply-to"}),
        (406, 'invalid message: {unacceptable_type_in_header,"CC",longstr}', {"headers": {"CC": "text"}}),
        (406, 'invalid message: {unacceptable_type_in_header,"BCC",table}', {"headers": {"BCC": {"a": 1}}}),
        (406, 'invalid message: {unacceptable_type_in_header,"CC",void}', {"headers": {"CC": None}}),
    ],
)
@pytest.mark.parametrize("before", ["basic.get", "queue.declare", "basic.publish", "channel.open"])
def test_an_error_of_a_publish_names_it(ch: RawChannel, code: int, text: str, arguments: dict[str, Any], before: str) -> None:
    queue = ch.queue()
    if before == "basic.get":
        ch.call("basic.get", queue=queue)
    elif before == "basic.publish":
        ch.publish(b"", routing_key="nowhere")
    elif before == "channel.open":
        ch = ch.connection.channel(ch.number + 1)
    ch.publish(b"x", **arguments)
    close = ch.expect_close(code, text)
    assert (close.class_id, close.method_id) == PUBLISH


@pytest.mark.parametrize("cut", ["before the header", "before the body"])
def test_what_stands_in_the_middle_of_a_publish_is_an_error_of_it(ch: RawChannel, cut: str) -> None:
    publish = method_frame(ch.number, "basic.publish", routing_key="k")
    content = b"" if cut == "before the header" else header_frame(ch.number, 3)
    ch.connection.send(publish + content + method_frame(ch.number, "basic.qos"))
    close = ch.connection.expect_close(505, "UNEXPECTED_FRAME - expected content")
    assert (close.class_id, close.method_id) == PUBLISH


def test_keys_that_are_no_strings_are_left_out(ch: RawChannel) -> None:
    first, second = ch.queue(), ch.queue()
    ch.publish(b"x", routing_key=first, headers={"CC": [True, Typed("I", 5), second, None], "BCC": [Typed("x", b"x")]})
    assert ch.call("basic.get", queue=second, no_ack=True).body == b"x"
    assert ch.call("basic.get", queue=first, no_ack=True).name == "basic.get-ok"


def test_opening_a_channel_that_is_being_closed_is_answered(ch: RawChannel) -> None:
    """Its close was not answered: 504 as on RabbitMQ. After close-ok it opens."""
    number = ch.number
    ch.connection.send(publish_bytes(number, b"x", exchange="missing") + method_frame(number, "basic.get", queue="q"))
    ch.expect_close(404)
    ch.connection.send(method_frame(number, "channel.open"))
    ch.connection.expect(number, "channel.open-ok")
    ch.connection.send(publish_bytes(number, b"x", exchange="missing") + method_frame(number, "channel.open"))
    assert ch.connection.expect(number, "channel.close").reply_code == 404
    ch.connection.expect_close(504, "CHANNEL_ERROR - second 'channel.open' seen")


@pytest.mark.flintmq_only("specification 4.2.3; RabbitMQ answers 501")
@pytest.mark.parametrize("kind", [0, 4, 5, 9, 255])
def test_an_unknown_frame_type_ends_the_stream_without_a_word(connect: Callable[..., RawConnection], kind: int) -> None:
    connection = connect()
    connection.channel(1)
    connection.send(struct.pack(">BHI", kind, 1, 0) + b"\xce" + method_frame(1, "basic.qos"))
    assert connection.recv_until_closed() == b""


def test_long_texts_end_in_dots(ch: RawChannel) -> None:
    name = "n" * 255
    close = ch.refuse(404, "NOT_FOUND - no queue 'nnn", "basic.get", queue=name)
    assert close.reply_text == f"NOT_FOUND - no queue '{name}"[:252] + "..."


def test_the_reply_address_can_be_declared(ch: RawChannel) -> None:
    for passive in (False, True):
        declared = ch.call("queue.declare", queue="amq.rabbitmq.reply-to", passive=passive)
        assert (declared.queue, declared.message_count, declared.consumer_count) == ("amq.rabbitmq.reply-to", 0, 1)


def test_of_two_that_are_missing_the_exchange_is_named(ch: RawChannel) -> None:
    ch.refuse(404, "NOT_FOUND - no exchange 'nothing' in vhost '/'", "queue.bind", queue="none", exchange="nothing")
