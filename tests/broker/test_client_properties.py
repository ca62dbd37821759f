"""What clients say of themselves is kept as it came, within its limit, and in the account of their connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from flintmq.broker.client_properties import TEXT_MAX, connection_name, kept, told
from flintmq.core.memory_account import bytes_by_kind
from flintmq.protocol.v0_9_1.codec import encode_table
from tests.support.rawamqp import method_frame

texts = st.text(max_size=600)
tables = st.dictionaries(st.text("abcdefgh", min_size=1, max_size=8), st.one_of(texts, st.integers(0, 1000), st.booleans()), max_size=12)


def arguments(properties: dict[str, Any]) -> bytes:
    table = encode_table(properties)
    return len(table).to_bytes(4, "big") + table + b"\x05PLAIN\x00\x00\x00\x07\x00secret\x05en_US"


def test_a_short_table_is_kept_as_it_is_and_nothing_behind_it() -> None:
    properties = {"product": "pika", "connection_name": "billing", "capabilities": {"basic.nack": True}, "n": 5}
    found = kept(arguments(properties), properties, 4096)
    assert found == encode_table(properties) and b"secret" not in found
    assert told(found) == properties and connection_name(found) == "billing"


@given(tables, st.integers(0, 2000))
def test_a_long_table_is_cut_to_whole_fields(properties: dict[str, Any], bytes_max: int) -> None:
    found = kept(arguments(properties), properties, bytes_max)
    assert len(found) <= bytes_max
    for name, value in told(found).items():
        assert value == (
            properties[name][:TEXT_MAX] if isinstance(value, str) and len(encode_table(properties)) > bytes_max else properties[name]
        )


def test_the_name_of_the_connection_goes_last() -> None:
    properties = {**{f"filler-{number}": "x" * 200 for number in range(100)}, "connection_name": "n" * 70_000}
    assert connection_name(kept(arguments(properties), properties, 4096)) == "n" * TEXT_MAX


def test_broken_octets_are_no_table() -> None:
    assert told(b"\x05ab") == {} and connection_name(b"\xffconnection_name") == ""


def test_they_are_in_the_account_of_memory(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    broker = start()
    connect(broker, product="short")
    before = bytes_by_kind()["connections"]
    connect(broker, product="short")
    usual = bytes_by_kind()["connections"] - before
    connect(broker, product="p" * 3000)
    assert bytes_by_kind()["connections"] - before - 2 * usual >= 2990
    kept_octets = [len(handler.client_properties) for handler in broker.node.broker.connections.values()]
    assert max(kept_octets) <= 4096


def test_a_client_may_ask_for_texts_without_hints(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    broker = start()
    texts = []
    for wishes in ({}, {"compat.hints": True}, {"compat.hints": False}):
        connection = connect(broker, handshake=False)
        connection.start()
        client = {"product": "raw", **wishes}
        connection.send(
            method_frame(0, "connection.start-ok", client_properties=client, mechanism="PLAIN", response=b"\0guest\0guest", locale="en_US")
        )
        connection.expect(0, "connection.tune")
        connection.send(method_frame(0, "connection.tune-ok", channel_max=0, frame_max=0, heartbeat=0))
        connection.send(method_frame(0, "connection.open", virtual_host="/"))
        connection.expect(0, "connection.open-ok")
        channel = connection.channel()
        channel.queue("q", arguments={"x-max-length": 5})
        channel.send("queue.declare", queue="q", arguments={"x-max-length": 6})
        texts.append(channel.expect("channel.close").reply_text)
    assert texts[0] == texts[1] and " (hint: " in texts[0]
    assert texts[2] == texts[0][: texts[0].index(" (hint: ")]
