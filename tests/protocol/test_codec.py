"""The codec encodes what the specification says, gives back what it encoded, and answers garbage with PeerError only."""

from __future__ import annotations

import math
import struct
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flintmq.config import Limits
from flintmq.errors import PeerError, ReplyCode
from flintmq.protocol.v0_9_1 import codec, spec
from flintmq.protocol.v0_9_1.codec import Timestamp

# --- strategies ---------------------------------------------------------------------------------------------------------

names = st.text(max_size=40).filter(lambda text: len(text.encode()) <= 255)
decimals = st.builds(
    lambda sign, number, scale: Decimal((sign, tuple(map(int, str(number))), -scale)),
    st.integers(0, 1),
    st.integers(0, 2**31 - 1),
    st.integers(0, 255),
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(max_size=50),
    st.binary(max_size=50),
    decimals,
    st.builds(Timestamp, st.integers(0, 2**64 - 1)),
)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(names, inner, max_size=5), max_leaves=20)
tables = st.dictionaries(names, values, max_size=8)
by_wire: dict[str, st.SearchStrategy[Any]] = {
    "bit": st.booleans(),
    "octet": st.integers(0, 2**8 - 1),
    "short": st.integers(0, 2**16 - 1),
    "long": st.integers(0, 2**32 - 1),
    "longlong": st.integers(0, 2**64 - 1),
    "timestamp": st.integers(0, 2**64 - 1),
    "shortstr": names,
    "longstr": st.binary(max_size=300),
    "table": tables,
}
methods = st.sampled_from(list(spec.METHODS.values())).flatmap(
    lambda class_: st.builds(class_, **{name: by_wire[wire] for name, wire in class_.FIELDS})
)
properties = st.fixed_dictionaries({}, optional={name: by_wire[wire] for name, wire, _ in spec.BASIC_PROPERTIES})


def same(a: object, b: object) -> bool:
    """Equal values of equal types, all the way down (1 == True == 1.0 is not enough)."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def refused(code: ReplyCode, call: Any, *arguments: Any) -> str:
    """`call` raises PeerError with `code`; returns its text."""
    with pytest.raises(PeerError) as caught:
        call(*arguments)
    assert caught.value.code is code
    return caught.value.text


# --- golden bytes -------------------------------------------------------------------------------------------------------

GOLDEN = [
    (
        spec.QueueDeclare("q1", durable=True, no_wait=True, arguments={"x-max-length": 10}),
        b"\x00\x32\x00\x0a\x00\x00\x02q1\x12\x00\x00\x00\x12\x0cx-max-lengthI\x00\x00\x00\x0a",
    ),
    (spec.QueueDeclareOk("q1", 3, 2**32 - 1), b"\x00\x32\x00\x0b\x02q1\x00\x00\x00\x03\xff\xff\xff\xff"),
    (spec.ConnectionTune(2047, 131072, 60), b"\x00\x0a\x00\x1e\x07\xff\x00\x02\x00\x00\x00\x3c"),
    (spec.ConnectionOpen("/"), b"\x00\x0a\x00\x28\x01/\x00\x00"),
    (spec.ConnectionSecure(b"\x00\xff"), b"\x00\x0a\x00\x14\x00\x00\x00\x02\x00\xff"),
    (spec.ChannelOpen(), b"\x00\x14\x00\x0a\x00"),
    (spec.ChannelOpenOk(), b"\x00\x14\x00\x0b\x00\x00\x00\x00"),
    (spec.BasicDeliver("c", 2**64 - 1, True, "x", "k"), b"\x00\x3c\x00\x3c\x01c" + b"\xff" * 8 + b"\x01\x01x\x01k"),
    (spec.BasicPublish("", "k", immediate=True), b"\x00\x3c\x00\x28\x00\x00\x00\x01k\x02"),
    (spec.BasicNack(1, multiple=True, requeue=True), b"\x00\x3c\x00\x78\x00\x00\x00\x00\x00\x00\x00\x01\x03"),
    (spec.TxCommitOk(), b"\x00\x5a\x00\x15"),
]


@pytest.mark.parametrize(("method", "payload"), GOLDEN, ids=lambda value: value.NAME if isinstance(value, spec.Method) else "")
def test_methods_golden(method: spec.Method, payload: bytes) -> None:
    """Methods encode to bytes written by hand from the specification, and back."""
    assert codec.encode_method(method) == payload
    assert codec.decode_method(payload) == method


def test_frames_golden() -> None:
    """A frame is type, channel, size, payload, 0xCE."""
    assert codec.encode_frame(8, 0, b"") == b"\x08\x00\x00\x00\x00\x00\x00\xce"
    assert codec.encode_frame(3, 0x1234, b"body") == b"\x03\x12\x34\x00\x00\x00\x04body\xce"
    assert codec.method_frame(1, spec.TxSelectOk()) == b"\x01\x00\x01\x00\x00\x00\x04\x00\x5a\x00\x0b\xce"


FIELDS = [
    (b"t\x01", True, b"t\x01"),
    (b"t\x00", False, b"t\x00"),
    (b"t\x07", True, b"t\x01"),
    (b"b\x80", -128, b"I\xff\xff\xff\x80"),
    (b"B\xff", 255, b"I\x00\x00\x00\xff"),
    (b"s\x80\x00", -32768, b"I\xff\xff\x80\x00"),
    (b"u\xff\xff", 65535, b"I\x00\x00\xff\xff"),
    (b"I\x80\x00\x00\x00", -(2**31), b"I\x80\x00\x00\x00"),
    (b"i\xff\xff\xff\xff", 2**32 - 1, b"l\x00\x00\x00\x00\xff\xff\xff\xff"),
    (b"l\x80" + bytes(7), -(2**63), b"l\x80" + bytes(7)),
    (b"L\xff" * 1 + b"\xff" * 7, -1, b"I\xff\xff\xff\xff"),
    (b"f\x3f\xc0\x00\x00", 1.5, b"d\x3f\xf8" + bytes(6)),
    (b"d\xbf\xf8" + bytes(6), -1.5, b"d\xbf\xf8" + bytes(6)),
    (b"D\x02\x00\x00\x00\x7d", Decimal("1.25"), b"D\x02\x00\x00\x00\x7d"),
    (b"D\x00\xff\xff\xff\xff", Decimal(-1), b"D\x00\xff\xff\xff\xff"),
    (b"D\xff\x80\x00\x00\x00", Decimal((1, (2, 1, 4, 7, 4, 8, 3, 6, 4, 8), -255)), b"D\xff\x80\x00\x00\x00"),
    (b"S\x00\x00\x00\x02\xc3\xa9", "é", b"S\x00\x00\x00\x02\xc3\xa9"),
    (b"S\x00\x00\x00\x01\xff", b"\xff", b"x\x00\x00\x00\x01\xff"),
    (b"x\x00\x00\x00\x01a", b"a", b"x\x00\x00\x00\x01a"),
    (b"T" + b"\xff" * 8, Timestamp(2**64 - 1), b"T" + b"\xff" * 8),
    (b"V", None, b"V"),
    (b"F\x00\x00\x00\x03\x01kV", {"k": None}, b"F\x00\x00\x00\x03\x01kV"),
    (b"A\x00\x00\x00\x03Vt\x01", [None, True], b"A\x00\x00\x00\x03Vt\x01"),
    (b"A\x00\x00\x00\x00", [], b"A\x00\x00\x00\x00"),
]


@pytest.mark.parametrize(("wire", "value", "again"), FIELDS, ids=lambda value: repr(value))
def test_field_types_golden(wire: bytes, value: object, again: bytes) -> None:
    """Each of RabbitMQ's field types decodes to its Python value, which encodes to the type that the module names."""
    table = codec.decode_table(b"\x01k" + wire)
    assert same(table, {"k": value})
    assert codec.encode_table(table) == b"\x01k" + again
    assert scan(header({"headers": table})) is not None


def test_first_of_repeated_names_counts() -> None:
    """A name given twice keeps its first value."""
    assert codec.decode_table(b"\x01kt\x01\x01kt\x00") == {"k": True}


def test_names_that_are_not_utf8_survive() -> None:
    """Any bytes in a short string come back unchanged."""
    payload = b"\x00\x3c\x00\x28\x00\x00\x02\xff\xfe\x01\x80\x00"
    assert codec.encode_method(codec.decode_method(payload)) == payload
    assert codec.encode_table(codec.decode_table(b"\x02\xff\xc3V")) == b"\x02\xff\xc3V"


def test_reserved_arguments_are_ignored_on_reading_and_zero_on_writing() -> None:
    """Whatever stands in a reserved argument changes nothing."""
    method = codec.decode_method(b"\x00\x0a\x00\x28\x01v\x03abc\x01")
    assert method == spec.ConnectionOpen("v")
    assert codec.encode_method(method) == b"\x00\x0a\x00\x28\x01v\x00\x00"


# --- round trips --------------------------------------------------------------------------------------------------------


@given(methods)
def test_methods_round_trip(method: spec.Method) -> None:
    """decode(encode(method)) is the method, and encoding is deterministic."""
    payload = codec.encode_method(method)
    again = codec.decode_method(payload)
    assert all(same(getattr(again, name), getattr(method, name)) for name, _ in method.FIELDS)
    assert again == method
    assert codec.encode_method(again) == payload
    assert codec.method_frame(7, method) == codec.encode_frame(spec.FRAME_METHOD, 7, payload)


@given(tables)
def test_tables_round_trip(table: dict[str, object]) -> None:
    """decode(encode(table)) is the table, types included."""
    assert same(codec.decode_table(codec.encode_table(table)), table)


@given(st.integers(0, 2**64 - 1), properties)
def test_properties_round_trip(body_size: int, given_properties: dict[str, Any]) -> None:
    """decode(encode(properties)) are the properties, and the scan accepts them."""
    payload = codec.encode_properties(body_size, given_properties)
    assert codec.decode_properties(payload) == (body_size, given_properties)
    scanned = codec.scan_properties_of(payload)
    assert scanned is not None and scanned["body_size"] == body_size


@pytest.mark.parametrize("value", [math.inf, -math.inf, 5e-324, -0.0])
def test_odd_floats_round_trip(value: float) -> None:
    """Infinite, denormal and negative zero keep their bits."""
    assert codec.encode_table({"k": value}) == b"\x01kd" + struct.pack(">d", value)
    assert struct.pack(">d", codec.decode_table(codec.encode_table({"k": value}))["k"]) == struct.pack(">d", value)


# --- garbage ------------------------------------------------------------------------------------------------------------

ids = st.sampled_from([struct.pack(">I", id_) for id_ in spec.METHODS])


@given(st.one_of(st.binary(max_size=200), st.builds(lambda id_, rest: id_ + rest, ids, st.binary(max_size=200))))
def test_garbage_methods(payload: bytes) -> None:
    """Any bytes are a method or a PeerError; what decodes, encodes again to an equal method."""
    try:
        method = codec.decode_method(payload)
    except PeerError as error:
        assert error.code in (ReplyCode.SYNTAX_ERROR, ReplyCode.COMMAND_INVALID)
    else:
        assert repr(codec.decode_method(codec.encode_method(method))) == repr(method)  # repr: NaN != NaN


field_bytes = st.lists(
    st.one_of(
        st.sampled_from([letter.encode() for letter in "tbBsuIilLfdDSATFVx"]),
        st.binary(max_size=6),
        st.integers(0, 12).map(lambda size: struct.pack(">I", size)),
    ),
    max_size=30,
).map(b"".join)


@given(field_bytes)
def test_garbage_tables(data: bytes) -> None:
    """Any bytes are a table or a SYNTAX_ERROR, and the scan has the same opinion."""
    try:
        table = codec.decode_table(data)
    except PeerError as error:
        assert error.code is ReplyCode.SYNTAX_ERROR
        valid = False
    else:
        valid = True
        assert repr(codec.decode_table(codec.encode_table(table))) == repr(table)
    scanned = scan(raw_header(0x2000, struct.pack(">I", len(data)) + data))
    assert (scanned is not None) == valid
    if valid:
        assert scanned is not None and scanned["has_cc"] == ("CC" in table or "BCC" in table)


@given(
    st.one_of(
        st.binary(max_size=60), st.builds(lambda flags, rest: raw_header(flags, rest), st.integers(0, 0xFFFF), st.binary(max_size=80))
    )
)
def test_garbage_properties(payload: bytes) -> None:
    """Any bytes are properties or a PeerError, and the scan has the same opinion."""
    try:
        body_size, decoded = codec.decode_properties(payload)
    except PeerError:
        assert codec.scan_properties_of(payload) is None
    else:
        scanned = codec.scan_properties_of(payload)
        assert scanned is not None and scanned["body_size"] == body_size
        assert scanned["delivery_mode"] == decoded.get("delivery_mode", 0)


@given(methods, st.data())
def test_every_cut_is_refused(method: spec.Method, data: st.DataObject) -> None:
    """A method frame cut short, or with a byte appended, is refused: the whole payload has to be used."""
    payload = codec.encode_method(method)
    cut = data.draw(st.integers(0, len(payload) - 1))
    refused(ReplyCode.SYNTAX_ERROR, codec.decode_method, payload[:cut])
    assert "left over" in refused(ReplyCode.SYNTAX_ERROR, codec.decode_method, payload + b"\x00")


@given(properties.filter(bool), st.data())
def test_every_cut_of_properties_is_refused(given_properties: dict[str, Any], data: st.DataObject) -> None:
    """A content header cut short, or with a byte appended, is refused by decoder and scan."""
    payload = codec.encode_properties(1, given_properties)
    for bad in (payload[: data.draw(st.integers(0, len(payload) - 1))], payload + b"\x00"):
        refused(ReplyCode.SYNTAX_ERROR, codec.decode_properties, bad)
        assert codec.scan_properties_of(bad) is None


def test_unknown_method() -> None:
    """A class or method that does not exist is COMMAND_INVALID with RabbitMQ's text."""
    assert refused(ReplyCode.COMMAND_INVALID, codec.decode_method, b"\x00\x3c\x00\xff") == "unimplemented method"
    assert refused(ReplyCode.COMMAND_INVALID, codec.decode_method, b"\xff\xff\xff\xff") == "unimplemented method"


def test_error_names_the_method() -> None:
    """The text of a syntax error says which method could not be decoded."""
    assert "queue.declare" in refused(ReplyCode.SYNTAX_ERROR, codec.decode_method, b"\x00\x32\x00\x0a\x00")


@pytest.mark.parametrize("letter", [bytes([byte]) for byte in range(256) if chr(byte) not in "tbBsuIilLfdDSATFVx"], ids=lambda b: b.hex())
def test_unknown_field_types(letter: bytes) -> None:
    """Every type octet that RabbitMQ does not know is refused, by the scan too."""
    data = b"\x01k" + letter + bytes(8)
    assert "unknown table field type" in refused(ReplyCode.SYNTAX_ERROR, codec.decode_table, data)
    assert scan(raw_header(0x2000, struct.pack(">I", len(data)) + data)) is None


@pytest.mark.parametrize("kind", [b"S", b"x", b"F", b"A"])
def test_lengths_of_four_gigabytes(kind: bytes) -> None:
    """A length near 2**32 is refused without wrapping round."""
    for size in (2**31 - 1, 2**31, 2**32 - 1, 1):
        data = b"\x01k" + kind + struct.pack(">I", size)
        refused(ReplyCode.SYNTAX_ERROR, codec.decode_table, data)
        assert scan(raw_header(0x2000, struct.pack(">I", len(data)) + data)) is None
        assert scan(raw_header(0x2000, struct.pack(">I", size) + data)) is None


def test_nested_length_cannot_leave_its_table() -> None:
    """A field may not reach beyond the table it stands in, even when bytes follow there."""
    inner = b"\x01kS\x00\x00\x00\x05ab"
    data = b"\x01tF" + struct.pack(">I", len(inner)) + inner + b"cde"
    refused(ReplyCode.SYNTAX_ERROR, codec.decode_table, data)
    assert scan(raw_header(0x2000, struct.pack(">I", len(data)) + data)) is None


def test_type_octet_cannot_stand_behind_its_table() -> None:
    """A name that ends its table has no type: the byte behind the table is not taken for one."""
    refused(ReplyCode.SYNTAX_ERROR, codec.decode_table, b"\x01k")
    behind = b"V" + b"a" * ord("V")  # a short string whose length octet would be type V
    for inner in (b"\x01k", b"\x01tF\x00\x00\x00\x02\x01k"):
        payload = raw_header(0x2400, struct.pack(">I", len(inner)) + inner + behind)
        refused(ReplyCode.SYNTAX_ERROR, codec.decode_properties, payload)
        assert scan(payload) is None


# --- limits -------------------------------------------------------------------------------------------------------------


def nested(depth: int, *, arrays: bool) -> dict[str, object]:
    """A table of `depth` levels, the table itself counted."""
    value: object = [] if arrays else {}
    for _ in range(depth - 2):
        value = [value] if arrays else {"k": value}
    return {"k": value}


@pytest.mark.parametrize("arrays", [False, True])
def test_nesting_limit(arrays: bool) -> None:
    """32 levels are accepted, 33 refused; the scan agrees."""
    good, bad = codec.encode_table(nested(32, arrays=arrays)), codec.encode_table(nested(33, arrays=arrays))
    assert codec.decode_table(good) == nested(32, arrays=arrays)
    assert "nested deeper than 32" in refused(ReplyCode.SYNTAX_ERROR, codec.decode_table, bad)
    assert scan(header({"headers": nested(32, arrays=arrays)})) is not None
    assert scan(header({"headers": nested(33, arrays=arrays)})) is None
    assert codec.decode_method(codec.encode_method(spec.QueueDeclare(arguments=nested(32, arrays=arrays))))
    refused(ReplyCode.SYNTAX_ERROR, codec.decode_method, codec.encode_method(spec.QueueDeclare(arguments=nested(33, arrays=arrays))))


def test_nesting_far_beyond_the_limit() -> None:
    """25,000 levels in a frame neither crash nor pass, even when the caller asks for a depth of 2**32 - 1."""
    data = b""
    for _ in range(25_000):
        data = b"F" + struct.pack(">I", len(data) + 2) + b"\x01k" + data if data else b"V"
        if len(data) > 120_000:
            break
    data = b"\x01k" + data
    refused(ReplyCode.SYNTAX_ERROR, codec.decode_table, data)
    refused(ReplyCode.SYNTAX_ERROR, codec.decode_table, data, 2**32 - 1)
    assert scan(raw_header(0x2000, struct.pack(">I", len(data)) + data)) is None


def test_encoder_refuses_endless_nesting() -> None:
    """A table that contains itself is a ValueError, not a crash."""
    table: dict[str, object] = {}
    table["self"] = [table]
    with pytest.raises(ValueError, match="nested deeper"):
        codec.encode_table(table)


@pytest.mark.parametrize("shape", ["table", "array", "tree"])
def test_fields_have_no_limit_but_their_bytes(shape: str) -> None:
    """What a frame holds is decoded, wherever the fields stand, and the scan agrees; the decoder's own limit is a frame's bytes."""

    def build(count: int) -> dict[str, object]:
        if shape == "table":
            return {str(i): None for i in range(count)}
        if shape == "array":
            return {"a": [None] * (count - 1)}
        return {"a": [None] * 500, "b": {str(i): None for i in range(count - 502)}}

    for count in (1025, 15_000):
        data = codec.encode_table(build(count))
        assert len(data) <= Limits().frame_size_max
        assert codec.decode_table(data) == build(count)
        assert scan(header({"headers": build(count)})) is not None
    assert "more than 131072 fields" in refused(ReplyCode.SYNTAX_ERROR, codec.decode_table, codec.encode_table(build(131_073)))


def test_limits_are_arguments() -> None:
    """The caller's limits count: a table of 3 fields and 2 levels passes exactly from (2, 3) on."""
    data = codec.encode_table({"a": {"b": 1, "c": 2}})
    assert codec.decode_table(data, 2, 3) == {"a": {"b": 1, "c": 2}}
    refused(ReplyCode.SYNTAX_ERROR, codec.decode_table, data, 1, 3)
    refused(ReplyCode.SYNTAX_ERROR, codec.decode_table, data, 2, 2)
    refused(ReplyCode.SYNTAX_ERROR, codec.decode_table, data, 0, 3)


def test_huge_count_stops_at_the_limit() -> None:
    """An array of a million voids is left at its limit: what comes after is not even looked at."""
    elements = b"V" * 1_000_000 + b"\xff"
    data = b"\x01aA" + struct.pack(">I", len(elements)) + elements
    assert "more than 131072 fields" in refused(ReplyCode.SYNTAX_ERROR, codec.decode_table, data)


@pytest.mark.parametrize(
    "item",
    [
        b"D\x02\0\0\x11\x11",
        b"S\0\0\0\x01\xff",
        b"F\0\0\0\0",
        b"A\0\0\0\0",
        b"V",
        b"I\0\0\1\1",
        b"T\0\0\0\0\0\0\0\x09",
        b"F\0\0\0\x03\x01\xffV",
    ],
    ids=lambda item: item[:1].decode(),
)
def test_a_frame_full_of_the_dearest_fields_is_decoded(item: bytes) -> None:
    """No number of fields ends a connection: a frame has what it has room for."""
    count = (Limits().frame_size_max - 40) // len(item)
    data = b"\x01aA" + struct.pack(">I", count * len(item)) + item * count
    assert len(codec.decode_table(data)["a"]) == count


@given(st.binary(max_size=12))
def test_a_text_is_what_python_takes_for_utf8(data: bytes) -> None:
    try:
        expected: object = data.decode()
    except UnicodeDecodeError:
        expected = data
    assert codec.decode_table(b"\x01aS" + struct.pack(">I", len(data)) + data) == {"a": expected}


@given(st.integers(-(2**31), 2**31 - 1), st.integers(0, 255))
def test_a_decimal_has_its_digits_and_its_scale(value: int, scale: int) -> None:
    found = codec.decode_table(b"\x01aD" + bytes([scale]) + struct.pack(">i", value))["a"]
    digits = tuple(int(one) for one in str(abs(value)))
    assert found.as_tuple() == (1 if value < 0 else 0, digits, -scale)


# --- encoding what does not fit -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method",
    [
        spec.QueueDeclare("q" * 256),
        spec.QueueDeclare("é" * 128),
        spec.QueueDeclare(arguments={"k" * 256: 1}),
        spec.QueueDeclare(arguments={"k": 2**63}),
        spec.QueueDeclare(arguments={"k": -(2**63) - 1}),
        spec.QueueDeclare(arguments={"k": Decimal(2**31)}),
        spec.QueueDeclare(arguments={"k": Decimal("1e-256")}),
        spec.QueueDeclare(arguments={"k": Decimal("1e999999")}),
        spec.QueueDeclare(arguments={"k": Decimal("NaN")}),
        spec.QueueDeclare(arguments={"k": Timestamp(-1)}),
        spec.QueueDeclare(arguments={"k": Timestamp(2**64)}),
        spec.QueueDeclareOk("q", 2**32, 0),
        spec.QueueDeclareOk("q", -1, 0),
        spec.ConnectionTune(2**16, 0, 0),
        spec.BasicAck(2**64),
    ],
    ids=repr,
)
def test_values_that_do_not_fit(method: spec.Method) -> None:
    """Nothing is truncated or wrapped: ValueError."""
    with pytest.raises(ValueError):
        codec.encode_method(method)


@pytest.mark.parametrize(
    "method", [spec.QueueDeclare(arguments={"k": object()}), spec.QueueDeclare(b"q"), spec.QueuePurgeOk("1")], ids=repr
)  # type: ignore[arg-type]
def test_values_of_the_wrong_type(method: spec.Method) -> None:
    """A value that no wire type can hold is a TypeError."""
    with pytest.raises(TypeError):
        codec.encode_method(method)


def test_short_string_of_255_bytes_fits() -> None:
    """255 bytes is the longest short string."""
    method = spec.QueueDeclare("q" * 255)
    assert codec.decode_method(codec.encode_method(method)) == method


@example("é" * 200)
@example("\udcff" * 300)
@given(st.text(max_size=300))
def test_clip_shortstr(text: str) -> None:
    """The clipped text fits a short string, starts the original, and nothing is clipped that fits."""
    clipped = codec.clip_shortstr(text)
    size = len(text.encode("utf-8", "surrogateescape"))
    assert text.startswith(clipped) if size <= 255 else clipped.endswith("...") and text.startswith(clipped[:-3])
    assert len(clipped.encode("utf-8", "surrogateescape")) <= 255
    assert clipped == text if size <= 255 else len(clipped.encode("utf-8", "surrogateescape")) > 255 - 4
    codec.encode_method(spec.ChannelClose(404, clipped))


# --- the scan -----------------------------------------------------------------------------------------------------------


def raw_header(flags: int, rest: bytes, *, class_id: int = 60, weight: int = 0, body_size: int = 0) -> bytes:
    """A content header payload from its parts."""
    return struct.pack(">HHQH", class_id, weight, body_size, flags) + rest


def header(given_properties: dict[str, Any]) -> bytes:
    return codec.encode_properties(0, given_properties)


def scan(payload: bytes) -> dict[str, Any] | None:
    return codec.scan_properties_of(payload)


def test_properties_golden() -> None:
    """All properties at once, by hand."""
    rest = (
        b"\x02ct\x02ce\x00\x00\x00\x0b\x02CCA\x00\x00\x00\x03t\x01V\x02\x09\x02ci\x02rt\x0260\x02mi"
        + struct.pack(">Q", 1_700_000_000)
        + b"\x02ty\x02us\x02ap\x02cl"
    )
    payload = raw_header(0xFFFC, rest, body_size=5)
    expected = {
        "content_type": "ct",
        "content_encoding": "ce",
        "headers": {"CC": [True, None]},
        "delivery_mode": 2,
        "priority": 9,
        "correlation_id": "ci",
        "reply_to": "rt",
        "expiration": "60",
        "message_id": "mi",
        "timestamp": 1_700_000_000,
        "type": "ty",
        "user_id": "us",
        "app_id": "ap",
        "cluster_id": "cl",
    }
    body_size, decoded = codec.decode_properties(payload)
    assert (body_size, decoded) == (5, expected)
    assert isinstance(decoded["timestamp"], Timestamp)
    assert codec.encode_properties(5, expected) == payload
    assert scan(payload) == {
        "body_size": 5,
        "flags": 0xFFFC,
        "delivery_mode": 2,
        "priority": 9,
        "expiration_ms": 60,
        "reply_to": b"rt",
        "headers": b"\x02CCA\x00\x00\x00\x03t\x01V",
        "has_cc": True,
        "has_time": False,
    }


def test_scan_without_properties() -> None:
    """Absent properties read as documented."""
    assert scan(raw_header(0, b"", body_size=2**64 - 1)) == {
        "body_size": 2**64 - 1,
        "flags": 0,
        "delivery_mode": 0,
        "priority": 255,
        "expiration_ms": -1,
        "reply_to": None,
        "headers": None,
        "has_cc": False,
        "has_time": False,
    }
    assert scan(header({"priority": 255}))["priority"] == 254  # type: ignore[index]


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("0", 0),
        ("60000", 60_000),
        ("007", 7),
        ("+5", 5),
        ("-0", 0),
        ("4294967296", 2**32),
        ("315360000000", 315_360_000_000),
        ("315360000001", -2),
        ("9" * 200, -2),
        ("-1", -2),
        ("", -2),
        ("-", -2),
        ("1.5", -2),
        (" 1", -2),
        ("1 ", -2),
        ("0x10", -2),
        ("١", -2),
    ],
)
def test_expiration(text: str, milliseconds: int) -> None:
    """Expiration is decimal milliseconds up to ten years; all else is invalid but no malformed header."""
    assert scan(header({"expiration": text}))["expiration_ms"] == milliseconds  # type: ignore[index]


@pytest.mark.parametrize(
    ("headers", "has_cc"),
    [
        ({}, False),
        ({"CC": []}, True),
        ({"BCC": ["a"]}, True),
        ({"a": 1, "b": {"x": []}, "BCC": None}, True),
        ({"cc": [], "Bcc": [], "CCC": [], "C": 1, "": 1, "ABCC": 1}, False),
        ({"a": {"CC": []}, "b": [{"BCC": []}]}, False),
        ({"a": {"k": 1}, "CC": ["q"]}, True),
        ({"v": "CC"}, False),
    ],
)
def test_cc_is_found_at_the_top_only(headers: dict[str, object], has_cc: bool) -> None:
    """CC and BCC count as keys of the headers themselves, in that spelling."""
    assert scan(header({"headers": headers}))["has_cc"] is has_cc  # type: ignore[index]


@pytest.mark.parametrize("flags", [1, 2, 3, 0x8001])
def test_unknown_and_continued_flags(flags: int) -> None:
    """Bit 1 has no meaning and bit 0 announces flags that do not exist: refused."""
    payload = raw_header(flags, b"\x00" if flags & 0x8000 else b"")
    refused(ReplyCode.SYNTAX_ERROR, codec.decode_properties, payload)
    assert scan(payload) is None


def test_wrong_class_and_weight() -> None:
    """A header of another class is an unexpected frame; a weight is not allowed."""
    text = refused(ReplyCode.UNEXPECTED_FRAME, codec.decode_properties, raw_header(0, b"", class_id=50))
    assert text == "expected content header for class 60, got one for class 50 instead"
    refused(ReplyCode.SYNTAX_ERROR, codec.decode_properties, raw_header(0, b"", weight=1))
    assert scan(raw_header(0, b"", class_id=50)) is None
    assert scan(raw_header(0, b"", weight=1)) is None


@pytest.mark.parametrize("bad", [{"no_such": 1}, {"delivery_mode": 256}, {"reply_to": "r" * 256}, {"priority": -1}])
def test_properties_that_do_not_fit(bad: dict[str, Any]) -> None:
    """An unknown property or a value out of range is a ValueError."""
    with pytest.raises(ValueError):
        codec.encode_properties(0, bad)


def test_properties_of_none_are_absent() -> None:
    """None leaves a property out."""
    assert codec.encode_properties(0, {"reply_to": None, "headers": None}) == raw_header(0, b"")
