"""Whoever changes one header of a message (BCC, direct reply-to, dead letters) leaves the wire bytes of the others alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flintmq.protocol.v0_9_1.splice import (
    array_field,
    join_properties,
    join_table,
    longstr_field,
    split_properties,
    split_table,
    table_field,
)
from tests.support.rawamqp import RawChannel
from tests.support.rawcodec import frame
from tests.vhost.test_dead_letter import EVERY_TYPE

FIELDS = [*EVERY_TYPE, (b"nested", table_field(EVERY_TYPE)), (b"array", array_field([value for _, value in EVERY_TYPE]))]
PLAIN = {"content_type": b"\x01t", "delivery_mode": b"\x01", "message_id": b"\x02id", "timestamp": bytes(8)}


@pytest.fixture
def ch(start: Callable[..., Any], connect: Callable[..., Any]) -> RawChannel:
    return connect(start()).channel()


def publish(ch: RawChannel, key: str, extra: list[tuple[bytes, bytes]], **properties: bytes) -> None:
    """A publish whose header frame is made here, byte for byte."""
    parts = {**PLAIN, **properties, "headers": join_table(sorted([*FIELDS, *extra]))}
    method = b"\x00\x3c\x00\x28\x00\x00\x00" + bytes([len(key)]) + key.encode() + b"\x00"
    ch.connection.send(frame(1, 1, method) + frame(2, 1, join_properties(1, parts)) + frame(3, 1, b"x"))


def got(ch: RawChannel, queue: str) -> tuple[dict[str, bytes], list[tuple[bytes, bytes]]]:
    """Properties and headers of the queue's first message, as they came."""
    ch.wait_ready(queue, 1)
    ch.send("basic.get", queue=queue, no_ack=True)
    while True:
        one = ch.connection.recv_frame()
        if one.type == 2:
            ch.connection.recv_frame()
            parts = split_properties(one.payload)[1]
            return parts, split_table(parts.pop("headers"))


def test_bcc(ch: RawChannel) -> None:
    ch.queue("q")
    ch.queue("blind")
    publish(ch, "q", [(b"BCC", array_field([longstr_field(b"blind")]))])
    for name in ("q", "blind"):
        assert got(ch, name) == (PLAIN, sorted(FIELDS))


def test_direct_reply_to(ch: RawChannel) -> None:
    ch.queue("q")
    ch.consume("amq.rabbitmq.reply-to", "replies", no_ack=True)
    publish(ch, "q", [], reply_to=b"\x15amq.rabbitmq.reply-to")
    parts, fields = got(ch, "q")
    assert parts.pop("reply_to")[1:].startswith(b"amq.rabbitmq.reply-to.")
    assert (parts, fields) == (PLAIN, sorted(FIELDS))


def test_dead_letter(ch: RawChannel) -> None:
    ch.queue("dead")
    ch.queue("q", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    publish(ch, "q", [], expiration=b"\x011")
    parts, fields = got(ch, "dead")
    assert parts == PLAIN
    assert [field for field in fields if not field[0].startswith(b"x-")] == sorted(FIELDS)
    death = dict(split_table(dict(fields)[b"x-death"][10:]))
    assert death[b"count"] == b"l" + (1).to_bytes(8, "big")
    assert death[b"original-expiration"] == longstr_field(b"1")
