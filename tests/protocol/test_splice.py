"""Splitting and joining keep every byte, and take exactly what the decoder takes."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flintmq.errors import PeerError
from flintmq.protocol.v0_9_1.codec import Timestamp, decode_properties, decode_table, encode_properties, encode_table
from flintmq.protocol.v0_9_1.splice import join_properties, join_table, split_array, split_properties, split_table

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=9) | st.binary(max_size=9) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
tables = st.dictionaries(st.text(max_size=9), values, max_size=8)


@given(tables)
def test_a_table_survives(table: dict[str, Any]) -> None:
    data = encode_table(table)
    fields = split_table(data)
    assert join_table(fields) == data
    assert [name.decode("utf-8", "surrogateescape") for name, _ in fields] == list(table)
    for (_, value), (name, expected) in zip(fields, table.items(), strict=True):
        assert decode_table(join_table([(name.encode("utf-8", "surrogateescape"), value)])) == {name: expected}


@given(tables, st.integers(0, 2**64 - 1), st.text(max_size=20), st.integers(0, 255))
def test_properties_survive(headers: dict[str, Any], size: int, text: str, octet: int) -> None:
    properties: dict[str, Any] = {"headers": headers, "reply_to": text, "app_id": text, "priority": octet, "timestamp": Timestamp(octet)}
    payload = encode_properties(size, properties)
    found, parts = split_properties(payload)
    assert (found, set(parts)) == (size, set(properties))
    assert join_properties(found, parts) == payload
    parts.pop("app_id")
    del properties["app_id"]
    assert decode_properties(join_properties(found, parts), 64, 10_000) == (size, properties)


@given(st.binary(max_size=60))
def test_any_bytes_are_refused_or_survive(data: bytes) -> None:
    try:
        assert join_table(split_table(data)) == data
    except PeerError:
        with pytest.raises(PeerError):
            decode_table(data)
    with contextlib.suppress(PeerError):
        assert b"".join(split_array(data)) == data
    header = b"\x00\x3c\x00\x00" + bytes(8) + data
    try:
        assert join_properties(*split_properties(header)) == header
    except PeerError:
        with pytest.raises(PeerError):
            decode_properties(header)
