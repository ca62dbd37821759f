"""Options of `df.write` and `df.writeStream` with `format("flintmq")`.

In: Spark's case-insensitive str -> str map. Out: a frozen `SinkOptions` with checked values, or a SourceError that names the option.
Invariants: an option we do not know is an error, never ignored; a constant given as an option stands above a column of that name (as
in Spark's Kafka sink): a DataFrame that was read from a queue and is sent to another exchange must not go back to where it came from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from pyspark_flintmq.connection import CONNECTION_OPTIONS, Connection, in_range, true_or_false, unknown_option, whole_number
from pyspark_flintmq.errors import SourceError
from pyspark_flintmq.schema import Table

# Constant for all messages of a write: option -> column of the sink.
CONSTANTS: dict[str, str] = {
    "exchange": "exchange",
    "routingKey": "routing_key",
    "contentType": "content_type",
    "contentEncoding": "content_encoding",
    "deliveryMode": "delivery_mode",
    "priority": "priority",
    "correlationId": "correlation_id",
    "replyTo": "reply_to",
    "expiration": "expiration",
    "messageId": "message_id",
    "type": "type",
    "userId": "user_id",
    "appId": "app_id",
    "clusterId": "cluster_id",
}
# Whole numbers among them, with their range (AMQP 0-9-1: an octet; delivery-mode 1 transient, 2 persistent).
_NUMBERS = {"deliveryMode": (1, 2), "priority": (0, 255)}
# AMQP's short strings.
_SHORT_STRING_MAX_BYTES = 255
# A name of a scope; the broker keeps it as long as the scope lives.
_SCOPE_MAX_BYTES = 200
# Milliseconds, as the broker takes them in a message's `expiration`: 32 bits, like x-message-ttl.
_EXPIRATION_MAX_MS = 2**32 - 1
# What Spark itself puts into the map of a streaming write.
_OF_SPARK = frozenset({"checkpointlocation", "queryname"})


@dataclass(frozen=True)
class SinkOptions:
    """Checked options of one write. Comments: unit, range, and what happens at the edge."""

    connection: Connection = field(default_factory=Connection)
    # column of the sink -> value for all messages, str or int
    constants: dict[str, str | int] = field(default_factory=dict)
    # streaming: stands before the query id in the name under which the broker remembers the last batch; <= 200 bytes
    scope: str = ""
    # batch: name of the write; a second write of that name (and version) publishes nothing; <= 200 bytes
    txnId: str = ""
    # batch: versions up to the highest that was written publish nothing; 0..2^62
    txnVersion: int = 0
    # fail | drop | exchange:NAME - messages that no queue takes
    unroutable: str = "fail"
    # fail | exchange:NAME - messages that a queue refuses because it is full
    overLimit: str = "fail"
    # columns that mean nothing here are left out instead of being an error
    ignoreUnknownColumns: bool = False

    @classmethod
    def parse(cls, raw: Mapping[str, str], *, streaming: bool) -> SinkOptions:
        """Checks `raw`.

        Raises: SourceError OPTION_UNKNOWN or OPTION_VALUE.
        """
        connection, rest = Connection.take(raw)
        if not streaming:
            # Of a view, which has one set of options for SELECT and INSERT INTO.
            _, rest = Table.take(rest)
        known = {name.lower(): name for name in SINK_OPTIONS}
        values: dict[str, object] = {"connection": connection}
        constants: dict[str, str | int] = {}
        queue = ""
        for key, text in rest.items():
            if key.lower() in _OF_SPARK:
                continue
            name = known.get(key.lower())
            if name is None:
                raise unknown_option(key, (*SINK_OPTIONS, *CONNECTION_OPTIONS))
            if name in CONSTANTS:
                constants[CONSTANTS[name]] = _constant(name, text)
            elif name == "queue":
                queue = _constant(name, text)  # type: ignore[assignment]
                if not queue:
                    raise SourceError("OPTION_VALUE", "option 'queue' is empty: give the name of a queue")
            elif name == "transport":
                if text.lower() != "flight":
                    raise SourceError("OPTION_VALUE", f"option 'transport' must be 'flight' for a write, not '{text}': AMQP has no staging")
            elif name == "ignoreUnknownColumns":
                values[name] = true_or_false(name, text)
            elif name == "txnVersion":
                values[name] = whole_number(name, text)
            else:
                values[name] = text
        if queue:
            if "exchange" in constants or "routing_key" in constants:
                raise SourceError("OPTION_VALUE", "give either option 'queue' or 'exchange' and 'routingKey', not both")
            # The default exchange has a binding to each queue by its name.
            constants.update(exchange="", routing_key=queue)
        options = cls(constants=constants, **values)  # type: ignore[arg-type]
        options._check(streaming)
        return options

    def _check(self, streaming: bool) -> None:
        in_range("txnVersion", self.txnVersion, 0, 2**62)
        _where_else("unroutable", self.unroutable, ("fail", "drop"))
        _where_else("overLimit", self.overLimit, ("fail",))
        for name in ("scope", "txnId"):
            if len(getattr(self, name).encode()) > _SCOPE_MAX_BYTES:
                raise SourceError("OPTION_VALUE", f"option '{name}' is longer than {_SCOPE_MAX_BYTES} bytes")
        if streaming and (self.txnId or self.txnVersion):
            raise SourceError("OPTION_VALUE", "option 'txnId' is for df.write; a stream is named by its checkpoint (its query id)")
        if not streaming and self.scope:
            raise SourceError("OPTION_VALUE", "option 'scope' is for df.writeStream; name a batch write with 'txnId'")
        if self.txnVersion and not self.txnId:
            raise SourceError("OPTION_VALUE", "option 'txnVersion' needs 'txnId'")


# All names, as they are written in the documentation.
SINK_OPTIONS = (
    "queue",
    *CONSTANTS,
    *(f.name for f in fields(SinkOptions) if f.name not in ("connection", "constants")),
    "transport",
)


def _constant(name: str, text: str) -> str | int:
    limits = _NUMBERS.get(name)
    if limits is not None:
        number = whole_number(name, text)
        in_range(name, number, *limits)
        return number
    if len(text.encode()) > _SHORT_STRING_MAX_BYTES:
        raise SourceError("OPTION_VALUE", f"option '{name}' is longer than {_SHORT_STRING_MAX_BYTES} bytes, the most that AMQP allows")
    if name == "expiration":
        in_range(name, whole_number(name, text), 0, _EXPIRATION_MAX_MS)
        return str(int(text))
    return text


def _where_else(name: str, text: str, words: tuple[str, ...]) -> None:
    if text in words:
        return
    exchange = text.removeprefix("exchange:")
    if exchange == text or not exchange or len(exchange.encode()) > _SHORT_STRING_MAX_BYTES:
        choices = ", ".join(f"'{word}'" for word in words)
        raise SourceError("OPTION_VALUE", f"option '{name}' must be {choices} or 'exchange:NAME', not '{text}'")
