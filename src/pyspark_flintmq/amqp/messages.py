"""An AMQP delivery on its way into the spool, and what makes two deliveries the same message.

In: `Delivery` tuples. Out: Arrow record batches with all columns of schema.py.
Invariants: the delivery tag is not a column (it means nothing outside its connection); `headers_raw` holds the bytes of the
field table as they came, `headers` a readable form of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from flintmq.arrow.readable import readable_headers
from pyspark_flintmq.schema import arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa

# Headers that a broker changes when it gives a message again (RabbitMQ's quorum queues): not part of a message's identity.
VOLATILE_HEADERS = frozenset({"x-delivery-count", "x-acquired-count"})

# A record batch of the spool holds at most this many messages or bytes of bodies: what one Spark task takes in one piece.
ROWS_PER_RECORD_BATCH = 10_000
BYTES_PER_RECORD_BATCH = 8 * 1024 * 1024


class Properties(NamedTuple):
    """Basic properties; `timestamp` in seconds since 1970, `headers_raw` the encoded field table (with its length)."""

    content_type: str | None = None
    content_encoding: str | None = None
    headers: dict[str, Any] | None = None
    headers_raw: bytes | None = None
    delivery_mode: int | None = None
    priority: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration: str | None = None
    message_id: str | None = None
    timestamp: int | None = None
    type: str | None = None
    user_id: str | None = None
    app_id: str | None = None
    cluster_id: str | None = None


class Delivery(NamedTuple):
    """One basic.deliver. `tag` is the delivery tag on its channel."""

    tag: int
    redelivered: bool
    exchange: str
    routing_key: str
    properties: Properties
    body: bytes


def to_record_batches(queue: str, deliveries: Sequence[Delivery]) -> list[pa.RecordBatch]:
    """`deliveries` in their order, cut at ROWS_PER_RECORD_BATCH rows or BYTES_PER_RECORD_BATCH bytes of bodies."""
    batches: list[pa.RecordBatch] = []
    start = size = 0
    for i, delivery in enumerate(deliveries):
        length = len(delivery.body)
        if i > start and (i - start >= ROWS_PER_RECORD_BATCH or size + length > BYTES_PER_RECORD_BATCH):
            batches.append(_record_batch(queue, deliveries[start:i]))
            start, size = i, 0
        size += length
    if start < len(deliveries):
        batches.append(_record_batch(queue, deliveries[start:]))
    return batches


def _record_batch(queue: str, rows: Sequence[Delivery]) -> pa.RecordBatch:
    import pyarrow as pa

    schema = arrow_schema()
    n = len(rows)
    props = [row.properties for row in rows]
    values: dict[str, Any] = {
        "queue": [queue] * n,
        "position": [None] * n,
        "lsn": [None] * n,
        "enqueued_time": [None] * n,
        "published_time": [None] * n,
        "delivery_count": [None] * n,
        "exchange": [row.exchange for row in rows],
        "routing_key": [row.routing_key for row in rows],
        "redelivered": [row.redelivered for row in rows],
        "body": [row.body for row in rows],
        "headers": [None if p.headers is None else readable_headers(p.headers) for p in props],
        "timestamp": [None if p.timestamp is None else _microseconds(p.timestamp) for p in props],
    }
    columns = []
    for field in schema:
        cells = values.get(field.name)
        if cells is None:
            cells = [getattr(p, field.name) for p in props]
        columns.append(pa.array(cells, type=field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


# Microseconds of 9999-12-31, the last day Spark can show; AMQP allows any 64-bit number of seconds, and some clients send milliseconds.
_LAST_MICROSECOND = 253_402_300_799_999_999


def _microseconds(seconds: int) -> int | None:
    """Null for a time that Spark cannot hold: the message is kept, its time is not."""
    micros = seconds * 1_000_000
    return micros if 0 <= micros <= _LAST_MICROSECOND else None


def identity(delivery: Delivery) -> bytes:
    """16 bytes that are the same for every delivery of one message and, but for byte-identical messages, different for others."""
    p = delivery.properties
    headers = None if p.headers is None else readable_headers(p.headers)
    micros = None if p.timestamp is None else _microseconds(p.timestamp)
    return _digest(
        delivery.exchange, delivery.routing_key, headers, micros, [getattr(p, name) for name in _PLAIN_PROPERTIES], delivery.body
    )


def identities(batch: pa.RecordBatch) -> list[bytes]:
    """The identity of each message of a spooled record batch: equal to `identity` of the delivery it was made from."""
    import pyarrow as pa

    stamps = batch.column("timestamp").cast(pa.int64()).to_pylist()
    plain = zip(*(batch.column(name).to_pylist() for name in _PLAIN_PROPERTIES), strict=True)
    main = (batch.column(name).to_pylist() for name in ("exchange", "routing_key", "headers", "body"))
    return [
        _digest(exchange, key, headers, stamp, list(others), body)
        for exchange, key, headers, body, stamp, others in zip(*main, stamps, plain, strict=True)
    ]


# The properties that the spool keeps unchanged.
_PLAIN_PROPERTIES = tuple(name for name in Properties._fields if name not in ("headers", "headers_raw", "timestamp"))


def _digest(
    exchange: str, key: str, headers: list[tuple[str, str | None]] | None, micros: int | None, plain: list[Any], body: bytes
) -> bytes:
    # A table that holds nothing but volatile headers was absent at the first delivery, so none and an empty one are the same.
    lasting = sorted(pair for pair in headers or () if pair[0] not in VOLATILE_HEADERS)
    digest = hashlib.blake2b(repr((exchange, key, lasting, micros, plain)).encode("utf-8", "surrogateescape"), digest_size=16)
    digest.update(b"\0")
    digest.update(body)
    return digest.digest()
