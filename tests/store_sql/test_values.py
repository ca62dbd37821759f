"""Every name and every argument table comes back from its text as it was, with its types; equal tables have one identity."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flintmq.ports import BindingRecord, freeze
from flintmq.protocol.v0_9_1 import codec
from flintmq.store.sql import values
from flintmq.store.sql.values import Timestamp, binding_identity, canonical_table, decode_name, decode_table, encode_name, encode_table

names = st.text(st.characters(), max_size=12) | st.binary(max_size=8).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
decimals = st.builds(
    lambda number, scale: Decimal((1 if number < 0 else 0, tuple(int(digit) for digit in str(abs(number))), -scale)),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(0, 255),
)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(st.characters(codec="utf-8"), max_size=8)
    | st.binary(max_size=8)
    | st.integers(0, 2**64 - 1).map(codec.Timestamp)
    | decimals
)
keys = st.sampled_from(["a", "", "!", "!!", "!bytes", "!timestamp", "!!x"]) | names
tables = st.dictionaries(
    keys, st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3)), max_size=4
)


def shape(value: Any) -> Any:
    """The value with every type spelled out, so that 1, True and 1.0 (and -0.0, NaN) differ."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shape(item) for item in value]
    return (type(value), str(value))


@settings(deadline=None)
@given(names)
def test_names_come_back_and_fit_any_database(name: str) -> None:
    text = encode_name(name)
    assert decode_name(text) == name
    assert "\0" not in text
    text.encode("utf-8")


@settings(deadline=None)
@given(names, names)
def test_different_names_have_different_texts(left: str, right: str) -> None:
    assert (encode_name(left) == encode_name(right)) == (left == right)


@settings(deadline=None)
@given(tables)
def test_tables_come_back_with_their_types(table: dict[str, Any]) -> None:
    text = encode_table(table)
    assert shape(decode_table(text, codec.Timestamp)) == shape(table)
    assert text.isascii()
    assert "\0" not in text


@settings(deadline=None)
@given(tables, tables)
def test_the_identity_is_that_of_rabbitmqs_comparison(left: dict[str, Any], right: dict[str, Any]) -> None:
    assert (canonical_table(left) == canonical_table(right)) == (freeze(left) == freeze(right))


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        ({"a": 1}, {"a": True}, False),
        ({"a": 1}, {"a": codec.Timestamp(1)}, False),
        ({"a": 1}, {"a": 1.0}, False),
        ({"a": "1"}, {"a": b"1"}, False),
        ({"a": Decimal("1.0")}, {"a": Decimal("1.00")}, True),
        ({"a": Decimal("-0")}, {"a": Decimal("0.0")}, True),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ({"a": [1]}, {"a": (1,)}, True),
        ({"a": math.nan}, {"a": math.nan}, True),
    ],
)
def test_identity_by_example(left: dict[str, Any], right: dict[str, Any], equal: bool) -> None:
    assert (canonical_table(left) == canonical_table(right)) is equal
    assert (freeze(left) == freeze(right)) is equal


def test_every_part_of_a_binding_counts_for_its_identity() -> None:
    parts = [
        ("x", "queue", "q", b"k"),
        ("y", "queue", "q", b"k"),
        ("x", "exchange", "q", b"k"),
        ("x", "queue", "r", b"k"),
        ("x", "queue", "q", b"l"),
    ]
    found = {binding_identity(BindingRecord("/", *part)) for part in parts}  # type: ignore[arg-type]
    found.add(binding_identity(BindingRecord("/", "x", "queue", "q", b"k", {"a": None})))
    assert len(found) == len(parts) + 1


def test_without_the_codecs_type_a_timestamp_still_is_none_of_the_integers() -> None:
    table = decode_table(encode_table({"t": codec.Timestamp(7)}))
    assert table == {"t": 7}
    assert type(table["t"]) is Timestamp
    assert freeze(table) == freeze({"t": codec.Timestamp(7)})
    assert encode_table(table) == encode_table({"t": codec.Timestamp(7)})


@pytest.mark.parametrize("value", [object(), {1, 2}, 1j])
def test_what_no_table_holds_is_refused(value: object) -> None:
    with pytest.raises(TypeError):
        encode_table({"a": value})


@pytest.mark.parametrize("text", ["[1]", "1", "{", '{"!new": 1}', '{"!bytes": "%"}', '{"a": {"!object": "x"}}'])
def test_text_that_is_not_ours_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        values.decode_table(text)
