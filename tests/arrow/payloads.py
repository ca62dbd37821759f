"""Content header payloads and what they should become, made with pika's codec: a second opinion on ours."""

from __future__ import annotations

import struct
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pika
from hypothesis import strategies as st

from flintmq.arrow.readable import readable_headers

TEXT_PROPERTIES = (
    "content_type",
    "content_encoding",
    "correlation_id",
    "reply_to",
    "message_id",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
)


def payload_of(properties: pika.BasicProperties, body_size: int) -> bytes:
    """The payload of a content header frame."""
    return struct.pack(">HHQ", 60, 0, body_size) + b"".join(properties.encode())


def expected(header: bytes) -> dict[str, Any]:
    """The property columns that a payload should give."""
    read = pika.BasicProperties()
    read.decode(header, 12)
    row: dict[str, Any] = {name: getattr(read, name) for name in TEXT_PROPERTIES}
    row["expiration"] = read.expiration
    row["delivery_mode"] = read.delivery_mode
    row["priority"] = read.priority
    row["timestamp"] = None if read.timestamp is None else datetime.fromtimestamp(read.timestamp, UTC)
    row["headers"] = None if read.headers is None else readable_headers(read.headers)
    row["headers_raw"] = None
    if read.headers is not None:
        at = 14
        for name in ("content_type", "content_encoding"):
            if getattr(read, name) is not None:
                at += 1 + header[at]
        row["headers_raw"] = header[at : at + 4 + int.from_bytes(header[at : at + 4], "big")]
    return row


shorts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40).map(lambda text: text.encode()[:255].decode("utf-8", "ignore"))
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
    | st.binary(max_size=20)
    | st.integers(0, 4_000_000_000).map(lambda seconds: datetime.fromtimestamp(seconds, UTC))
    | st.integers(-(2**31), 2**31 - 1).map(lambda number: Decimal(number) / 100),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(shorts, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def properties(draw: st.DrawFn) -> pika.BasicProperties:
    """Any basic properties that a client may send."""
    chosen: dict[str, Any] = {name: draw(st.none() | shorts) for name in TEXT_PROPERTIES}
    chosen["expiration"] = draw(st.none() | st.integers(0, 2**32 - 1).map(str))
    chosen["delivery_mode"] = draw(st.sampled_from([None, 1, 2]))
    chosen["priority"] = draw(st.none() | st.integers(0, 254))
    chosen["timestamp"] = draw(st.none() | st.integers(0, 250_000_000_000))
    chosen["headers"] = draw(st.none() | st.dictionaries(shorts, values, min_size=1, max_size=5))
    return pika.BasicProperties(**chosen)
