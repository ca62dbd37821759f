"""The header of the firehose's copies: byte for byte as the second writer makes it, whatever the message."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from flintmq.protocol.v0_9_1.codec import Timestamp, decode_properties, encode_properties, encode_table
from flintmq.protocol.v0_9_1.tracing import trace_header
from tests.oracle import trace as oracle
from tests.support.rawcodec import Typed, encode_value

PLACE = encode_table({"node": "flintmq@localhost", "vhost": "/", "connection": "127.0.0.1:5 -> 127.0.0.1:5672"})
USER = encode_table({"user": "guest"})
NOTHING = encode_properties(0, {})

shortstrs = st.text(max_size=40).map(lambda text: text.encode()[:255].decode(errors="ignore"))
scalars = st.one_of(
    st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.text(max_size=20), st.binary(max_size=20), st.none()
)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(shortstrs, inner, max_size=3), max_leaves=8)
copies = st.lists(st.text(max_size=10) | st.binary(max_size=3) | st.integers(0, 5), max_size=4)
tables = st.fixed_dictionaries({}, optional={"CC": copies | st.integers(0, 1), "BCC": copies}).flatmap(
    lambda known: st.dictionaries(shortstrs, values, max_size=4).map(lambda others: {**others, **known})
)
properties = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(
            ("content_type", "content_encoding", "correlation_id", "reply_to", "expiration", "message_id", "type", "user_id", "app_id"),
            shortstrs,
        ),
        "cluster_id": shortstrs,
        "headers": tables,
        "delivery_mode": st.integers(0, 255),
        "priority": st.integers(0, 255),
        "timestamp": st.integers(0, 2**64 - 1).map(Timestamp),
    },
)
names = st.binary(min_size=1, max_size=255)


def pack(keys: list[bytes]) -> bytes:
    return b"".join(len(key).to_bytes(4, "big") + key for key in keys)


@settings(max_examples=300)
@given(
    properties,
    st.binary(max_size=255),
    st.binary(max_size=255),
    st.none() | st.lists(names, max_size=3),
    st.integers(1, 65535),
    st.none() | st.integers(0, 1),
    st.lists(names, max_size=5),
)
def test_it_is_what_the_oracle_makes(
    known: dict[str, Any], exchange: bytes, key: bytes, keys: list[bytes] | None, channel: int, redelivered: int | None, queues: list[bytes]
) -> None:
    header = encode_properties(7, known)
    message = (exchange, key, header)
    listed = queues if redelivered is None else []
    made = trace_header(message, None if keys is None else pack(keys), PLACE, USER, channel, redelivered, listed, 7)
    assert made == oracle.trace_header(
        message, oracle.keys_of(header) if keys is None else keys, PLACE, USER, channel, redelivered, listed, 7
    )
    size, shown = decode_properties(made, 256, 2**20)
    assert size == 7 and list(shown) == ["headers"]


@given(st.binary(max_size=60), st.booleans())
def test_bytes_that_are_no_properties_are_an_empty_table(octets: bytes, begins: bool) -> None:
    header = NOTHING[:12] + octets if begins else octets
    message = (b"x", b"k", header)
    assert trace_header(message, b"", PLACE, USER, 1, 0, [], 0) == oracle.trace_header(message, [], PLACE, USER, 1, 0, [], 0)


def test_the_types_of_a_message_s_own_headers_stay() -> None:
    table = b"".join(b"\x01" + name + encode_value(Typed(kind, 5)) for name, kind in ((b"a", "b"), (b"b", "s"), (b"c", "l"), (b"d", "u")))
    header = NOTHING[:12] + b"\x20\x00" + len(table).to_bytes(4, "big") + table
    assert table in trace_header((b"x", b"k", header), b"", PLACE, USER, 1, None, [b"q"], 0)


def test_a_header_is_one_frame() -> None:
    """Queues without room are not named; properties that are longer are left out, with the keys that came with them."""
    queues = [b"%05d" % number * 51 for number in range(1_000)]
    message = (b"x", b"k", encode_properties(0, {"message_id": "m"}))
    made = trace_header(message, b"", PLACE, USER, 1, None, queues, 0)
    assert made == oracle.trace_header(message, [], PLACE, USER, 1, None, queues, 0)
    assert oracle.HEADER_MAX - 260 < len(made) <= oracle.HEADER_MAX
    large = (b"x", b"k", encode_properties(0, {"headers": {"l": "x" * 131_000}}))
    made = trace_header(large, pack([b"c" * 200]), PLACE, USER, 1, None, [b"q"], 0)
    assert made == oracle.trace_header(large, [b"c" * 200], PLACE, USER, 1, None, [b"q"], 0) and len(made) < 1_000
