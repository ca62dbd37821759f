"""Our bytes are pika's bytes, and each side reads what the other wrote: methods, tables, content headers, frames."""

from __future__ import annotations

import datetime
import struct
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pika = pytest.importorskip("pika")

from pika import amqp_object, data, frame  # noqa: E402
from pika import spec as pika_spec  # noqa: E402

from flintmq.protocol.v0_9_1 import codec, spec  # noqa: E402
from flintmq.protocol.v0_9_1.codec import Timestamp  # noqa: E402
from tests.support.effort import tries  # noqa: E402

# What pika calls differently from the specification.
PIKA_NAMES = {"type": "type", "global_": "global_qos", "no_wait": "nowait", "no_ack": "auto_ack"}

names = st.text(max_size=30)
table_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=20) | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
    max_leaves=12,
)
tables = st.dictionaries(names, table_values, max_size=6)
by_wire: dict[str, st.SearchStrategy[Any]] = {
    "bit": st.booleans(),
    "octet": st.integers(0, 2**8 - 1),
    "short": st.integers(0, 2**16 - 1),
    "long": st.integers(0, 2**32 - 1),
    "longlong": st.integers(0, 2**64 - 1),
    "timestamp": st.integers(0, 2**40),
    "shortstr": names,
    "longstr": st.binary(max_size=60),
    "table": tables,
}


def pika_class(class_: type[spec.Method]) -> type[Any] | None:
    """The class that pika has for the same method, by id."""
    found: type[Any] | None = pika_spec.methods.get(class_.ID)
    return found


def pika_encode(method: Any) -> bytes:
    return struct.pack(">I", method.INDEX) + b"".join(method.encode())


COMMON = [class_ for class_ in spec.METHODS.values() if pika_class(class_) is not None]


def test_pika_knows_nearly_all_methods() -> None:
    """The comparison below covers every method of pika's but access.request, which the extended specification left out."""
    assert {id_ for id_ in pika_spec.methods if id_ not in spec.METHODS} <= {0x001E000A, 0x001E000B}
    assert len(COMMON) >= 60


def pika_attributes(class_: type[spec.Method], theirs: Any) -> dict[str, str]:
    """Our attribute name -> pika's."""
    return {name: name if hasattr(theirs, name) else PIKA_NAMES[name] for name, _ in class_.FIELDS}


# of each method; all of them together are two thousand
@settings(max_examples=tries(30, 100))
@pytest.mark.parametrize("class_", COMMON, ids=lambda class_: class_.NAME)
@given(data_=st.data())
def test_methods(class_: type[spec.Method], data_: st.DataObject) -> None:
    """A method encodes to the bytes that pika makes of the same arguments; pika's bytes decode to the same arguments."""
    arguments = {name: data_.draw(by_wire[wire], name) for name, wire in class_.FIELDS}
    ours = class_(**arguments)
    theirs = pika_class(class_)
    assert theirs is not None
    other = theirs(**{"new_secret": "", "reason": ""} if class_ is spec.ConnectionUpdateSecret else {})
    for name, pika_name in pika_attributes(class_, other).items():
        setattr(other, pika_name, arguments[name])
    payload = pika_encode(other)
    assert codec.encode_method(ours) == payload
    assert codec.decode_method(payload) == ours


@given(tables)
def test_tables(table: dict[str, object]) -> None:
    """Tables of text, bytes, numbers, booleans, nothing, arrays and tables are the same bytes on both sides."""
    pieces: list[bytes] = []
    data.encode_table(pieces, table)
    encoded = b"".join(pieces)
    assert struct.pack(">I", len(codec.encode_table(table))) + codec.encode_table(table) == encoded
    assert codec.decode_table(encoded[4:]) == table
    assert data.decode_table(encoded, 0) == (table, len(encoded))


@pytest.mark.parametrize("value", ["1.25", "-1.25", "0.001", "-7", "2147483647", "-2147483648"])
def test_decimals(value: str) -> None:
    """Decimals, negative ones too, are the same bytes."""
    pieces: list[bytes] = []
    data.encode_table(pieces, {"d": Decimal(value)})
    encoded = b"".join(pieces)
    assert codec.encode_table({"d": Decimal(value)}) == encoded[4:]
    assert codec.decode_table(encoded[4:]) == {"d": Decimal(value)}


def test_timestamps() -> None:
    """A datetime that pika sends arrives as seconds since the epoch, and goes back as the same datetime."""
    moment = datetime.datetime(2026, 11, 21, 5, 30, tzinfo=datetime.UTC)
    pieces: list[bytes] = []
    data.encode_table(pieces, {"t": moment})
    encoded = b"".join(pieces)
    decoded = codec.decode_table(encoded[4:])
    assert decoded == {"t": int(moment.timestamp())} and isinstance(decoded["t"], Timestamp)
    assert codec.encode_table(decoded) == encoded[4:]


property_names = [name for name, _, _ in spec.BASIC_PROPERTIES]


@given(
    st.integers(0, 2**63 - 1),
    # pika leaves out what is None only, so empty texts and tables count on both sides.
    st.fixed_dictionaries({}, optional={name: by_wire[wire] for name, wire, _ in spec.BASIC_PROPERTIES}),
)
def test_content_headers(body_size: int, properties: dict[str, Any]) -> None:
    """A content header is the same bytes, and each side reads the other's."""
    theirs = frame.Header(1, body_size, pika_spec.BasicProperties(**properties)).marshal()
    payload = codec.encode_properties(body_size, properties)
    assert codec.encode_frame(spec.FRAME_HEADER, 1, payload) == theirs
    assert codec.decode_properties(theirs[7:-1]) == (body_size, properties)
    back: amqp_object.Properties = pika_spec.BasicProperties()
    back.decode(payload[12:])
    assert {name: getattr(back, name) for name in property_names if getattr(back, name) is not None} == properties


def test_frames() -> None:
    """Method, body and heartbeat frames are the same bytes."""
    assert codec.method_frame(5, spec.BasicAck(9, True)) == frame.Method(5, pika_spec.Basic.Ack(9, True)).marshal()
    assert codec.encode_frame(spec.FRAME_BODY, 5, b"body") == frame.Body(5, b"body").marshal()
    assert codec.encode_frame(spec.FRAME_HEARTBEAT, 0, b"") == frame.Heartbeat().marshal()
