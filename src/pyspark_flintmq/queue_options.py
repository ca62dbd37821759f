"""Options of the queue source over the data plane, streaming and batch.

In: Spark's case-insensitive str -> str map. Out: a frozen `QueueOptions` with checked values, or a SourceError that names the option.
Invariants: an option we do not know is an error, never ignored: a mistyped limit must not pass silently; nothing is connected here.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from flintmq.arrow.schema import key_column
from pyspark_flintmq.connection import CONNECTION_OPTIONS, Connection, in_range, true_or_false, unknown_option, whole_number
from pyspark_flintmq.errors import SourceError
from pyspark_flintmq.schema import TABLE_OPTIONS, Table

MIB = 1024 * 1024
# The broker has a limit of its own (acquire_messages_max, 1,000,000) and gives no more: a prepared set blocks these messages for others.
MAX_MESSAGES_LIMIT = 10_000_000
# What one subscription of the broker names (subscription_queues_max); a pattern reads more.
QUEUES_MAX = 256
# As many slices as the broker cuts a set into.
PARTITIONS_MAX = 4_096
# As many parts by key as the broker makes of a stream's range (key_slices_max).
KEY_PARTITIONS_MAX = 256
# Microseconds of 9999-12-31, the last day Spark can show.
_LAST_MICROSECOND = 253_402_300_799_999_999

_COMMON = ("transport", "queue", "queues", "queuePattern", "minPartitions", "partitions", "keyColumn")
STREAM_OPTIONS = (
    "subscription",
    "startingOffsets",
    "startingTimestamp",
    "maxMessagesPerTrigger",
    "maxBytesPerTrigger",
    "minMessagesPerTrigger",
    "maxTriggerDelay",
    "onLostCheckpoint",
    "onNewCheckpoint",
    "onUnreadBatch",
    "discardBacklog",
    "failOnDataLoss",
    "checkpointLocation",
)
BATCH_OPTIONS = ("startingOffsets", "startingTimestamp", "endingOffsets", "endingTimestamp", "maxMessages")
# Names of Spark's Kafka connector for options of the same meaning here.
_ALIASES = {"maxOffsetsPerTrigger": "maxMessagesPerTrigger", "minOffsetsPerTrigger": "minMessagesPerTrigger"}
# Names of the old transport: what to do instead. Those of Kafka's connector: connection.py.
_ELSEWHERE = {
    "port": "'port' is that of AMQP, which transport=amqp uses; the data plane has 'flightPort'",
    "spooldir": "'spoolDir' belongs to transport=amqp: the data plane needs no spool",
    "exclusive": "'exclusive' belongs to transport=amqp: with the data plane other consumers do no harm",
    "heartbeat": "'heartbeat' belongs to transport=amqp",
}

ALL_OPTIONS = (*_COMMON, *STREAM_OPTIONS, *BATCH_OPTIONS, *_ALIASES)

# earliest, latest, {"lsn": n}, {"time_us": t}, {"position": n} or, of a stream, {"offset": n}: as the data plane takes it.
Position = str | dict[str, int]


@dataclass(frozen=True)
class QueueOptions:
    """Checked options of one reader. Comments: unit, range, and what happens at the edge."""

    connection: Connection
    table: Table
    # names of the queues to read, sorted; empty with `pattern`
    queues: tuple[str, ...] = ()
    # names with * (any characters) and ? (one character); empty with `queues`
    pattern: str = ""
    # name of the subscription in the vhost; batch reads have none
    subscription: str = ""
    start: Position = "earliest"
    end: Position = "latest"
    # messages of one micro-batch, 1..10,000,000
    max_messages: int = 500_000
    # bytes of message bodies in one micro-batch, >= 1; a batch always has at least one message
    max_bytes: int = 128 * MIB
    # no micro-batch before so many messages wait, 0..10,000,000, or max_delay_s have passed since the last one
    min_messages: int = 0
    max_delay_s: float = 900.0
    # Spark partitions per micro-batch or per batch read, 1..4,096; never more than messages
    partitions: int = 2
    # column of the key: each key's messages are in one partition, of exactly so many; streams only. Empty: partitions are ranges of offsets
    key: str = ""
    # fail | redeliver: what to do when a new checkpoint finds a batch that an older checkpoint may have processed
    on_lost: str = "fail"
    # refuse | continue: what a new checkpoint does on a subscription that has committed batches for another one
    on_new: str = "refuse"
    # whether the first batch of a checkpoint is committed although no task has read it
    unread_is_done: bool = False
    # whether a new subscription may throw away what stands before its start
    discard: bool = False
    # the query's checkpointLocation, for commits as soon as Spark's commit log has a batch; empty: at the next trigger
    checkpoint: str = ""
    # whether a batch that lost messages (a broker with transient ones was killed) stops the query
    fail_on_loss: bool = True
    # messages of a batch read, 0: all
    limit: int = 0
    # names of the options that were given: a stream refuses some that a queue has
    given: frozenset[str] = frozenset()

    @property
    def what(self) -> str:
        """For messages to people."""
        if self.pattern:
            return f"queues '{self.pattern}'"
        return f"queue '{self.queues[0]}'" if len(self.queues) == 1 else f"queues {', '.join(self.queues)}"

    @classmethod
    def stream(cls, raw: Mapping[str, str]) -> QueueOptions:
        """Options of `spark.readStream`. Raises: SourceError OPTION_UNKNOWN, OPTION_MISSING or OPTION_VALUE."""
        values, connection, table = _take(raw, STREAM_OPTIONS)
        queues, pattern = _queues(values)
        partitions, key = _partitions(values)
        options = cls(
            connection=connection,
            table=table,
            queues=queues,
            pattern=pattern,
            subscription=values.get("subscription") or default_subscription(queues, pattern),
            start=_position(values, "starting", "earliest", streaming=True),
            max_messages=_number(values, "maxMessagesPerTrigger", 500_000, 1, MAX_MESSAGES_LIMIT),
            max_bytes=_number(values, "maxBytesPerTrigger", 128 * MIB, 1, 2**62),
            min_messages=_number(values, "minMessagesPerTrigger", 0, 0, MAX_MESSAGES_LIMIT),
            max_delay_s=_duration("maxTriggerDelay", values.get("maxTriggerDelay", "15m")),
            partitions=partitions,
            key=key,
            on_lost=_choice(values, "onLostCheckpoint", "fail", "redeliver"),
            on_new=_choice(values, "onNewCheckpoint", "refuse", "continue"),
            unread_is_done=_choice(values, "onUnreadBatch", "fail", "commit") == "commit",
            discard=true_or_false("discardBacklog", values.get("discardBacklog", "false")),
            checkpoint=values.get("checkpointLocation", ""),
            fail_on_loss=true_or_false("failOnDataLoss", values.get("failOnDataLoss", "true")),
            given=frozenset(values),
        )
        if len(options.subscription.encode()) > 255:
            raise SourceError("OPTION_VALUE", "option 'subscription' is longer than 255 bytes")
        if options.min_messages > options.max_messages:
            raise SourceError("OPTION_VALUE", "option 'minMessagesPerTrigger' is larger than 'maxMessagesPerTrigger'")
        if "maxTriggerDelay" in values and not options.min_messages:
            raise SourceError("OPTION_MISSING", "option 'maxTriggerDelay' means something with 'minMessagesPerTrigger' only")
        return options

    @classmethod
    def batch(cls, raw: Mapping[str, str]) -> QueueOptions:
        """Options of `spark.read`. Raises: SourceError OPTION_UNKNOWN, OPTION_MISSING or OPTION_VALUE."""
        values, connection, table = _take(raw, BATCH_OPTIONS)
        queues, pattern = _queues(values)
        partitions, key = _partitions(values)
        start = _position(values, "starting", "earliest", streaming=False)
        end = _position(values, "ending", "latest", streaming=False)
        if start == "latest" or end == "earliest":
            raise SourceError("OPTION_VALUE", "a batch read from the latest, or to the earliest position has no messages")
        return cls(
            connection=connection,
            table=table,
            queues=queues,
            pattern=pattern,
            start=start,
            end=end,
            partitions=partitions,
            key=key,
            limit=_number(values, "maxMessages", 0, 0, 2**62),
            given=frozenset(values),
        )


def default_subscription(queues: tuple[str, ...], pattern: str) -> str:
    """`spark:` and the queues; a digest of them when that would be too long for a name."""
    name = "spark:" + (pattern or ",".join(queues))
    if len(name.encode()) <= 200:
        return name
    return f"spark:{len(queues)}-queues-{hashlib.blake2b(name.encode(), digest_size=12).hexdigest()}"


def _take(raw: Mapping[str, str], allowed: tuple[str, ...]) -> tuple[dict[str, str], Connection, Table]:
    connection, rest = Connection.take(raw)
    table, rest = Table.take(rest)
    names = {name.lower(): name for name in (*_COMMON, *allowed)}
    known = names | {alias.lower(): name for alias, name in _ALIASES.items() if name in allowed}
    values = {}
    for key, text in rest.items():
        name = known.get(key.lower())
        if name is None:
            raise _unknown(key, names.values())
        if name in values:
            raise SourceError("OPTION_VALUE", f"option '{key}': another one says '{name}' already, give one of the two")
        values[name] = text
    return values, connection, table


def _unknown(key: str, names: Any) -> SourceError:
    name = key.lower()
    if name in _ELSEWHERE:
        return SourceError("OPTION_UNKNOWN", f"option '{key}': {_ELSEWHERE[name]}")
    if name in (n.lower() for n in (*STREAM_OPTIONS, *_ALIASES)):
        return SourceError("OPTION_UNKNOWN", f"option '{key}' is one of spark.readStream; spark.read has {', '.join(BATCH_OPTIONS)}")
    if name in (n.lower() for n in BATCH_OPTIONS):
        return SourceError("OPTION_UNKNOWN", f"option '{key}' is one of spark.read; a stream has no end")
    return unknown_option(key, (*names, *TABLE_OPTIONS, *CONNECTION_OPTIONS))


def _queues(values: Mapping[str, str]) -> tuple[tuple[str, ...], str]:
    given = [name for name in ("queue", "queues", "queuePattern") if values.get(name)]
    if not given:
        raise SourceError("OPTION_MISSING", "option 'queue' is needed: the name of the queue to read (or 'queues', 'queuePattern')")
    if len(given) > 1:
        raise SourceError("OPTION_VALUE", f"give one of the options {' and '.join(repr(name) for name in given)}, not both")
    text = values[given[0]]
    if given[0] == "queuePattern":
        if len(text.encode()) > 255:
            raise SourceError("OPTION_VALUE", "option 'queuePattern' is longer than 255 bytes")
        return (), text
    # A queue name may hold a comma: `queue` takes it as it is.
    names = [text] if given[0] == "queue" else sorted({name.strip() for name in text.split(",") if name.strip()})
    if not names or len(names) > QUEUES_MAX:
        raise SourceError("OPTION_VALUE", f"option 'queues' must name 1..{QUEUES_MAX} queues, separated by commas; queuePattern reads more")
    for name in names:
        if len(name.encode()) > 255:
            raise SourceError("OPTION_VALUE", f"option '{given[0]}' has a name longer than 255 bytes, which no queue name can be")
    return tuple(names), ""


def _partitions(values: Mapping[str, str]) -> tuple[int, str]:
    """How many partitions, and the column of their key; empty: they are ranges."""
    if "partitions" not in values and "keyColumn" not in values:
        return _number(values, "minPartitions", 2, 1, PARTITIONS_MAX), ""
    if "minPartitions" in values:
        raise SourceError("OPTION_VALUE", "option 'minPartitions' cuts a batch into ranges: with 'partitions' or 'keyColumn' leave it out")
    key = values.get("keyColumn", "routing_key")
    try:
        key_column(key)
    except ValueError as e:
        raise SourceError("OPTION_VALUE", f"option 'keyColumn': {e}") from None
    return _number(values, "partitions", 2, 1, KEY_PARTITIONS_MAX), key


def _position(values: Mapping[str, str], which: str, default: str, *, streaming: bool) -> Position:
    offsets, stamp = values.get(f"{which}Offsets"), values.get(f"{which}Timestamp")
    if offsets is not None and stamp is not None:
        raise SourceError("OPTION_VALUE", f"give either option '{which}Offsets' or '{which}Timestamp', not both")
    if stamp is not None:
        return {"time_us": _time_us(f"{which}Timestamp", stamp)}
    if offsets is None:
        return default
    if offsets.lower() in ("earliest", "latest"):
        return offsets.lower()
    keys = ("lsn", "time_us", "offset") if streaming else ("lsn", "time_us", "position", "offset")
    if re.fullmatch(r"[0-9]{1,18}", offsets.strip()):
        return {"offset": int(offsets)}
    try:
        parsed = json.loads(offsets)
        if isinstance(parsed, dict) and len(parsed) == 1:
            ((key, value),) = parsed.items()
            if key in keys and isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63:
                return {key: value}
    except ValueError:
        pass
    forms = " or ".join(f'{{"{key}": N}}' for key in keys)
    raise SourceError("OPTION_VALUE", f"option '{which}Offsets' must be 'earliest', 'latest' or JSON {forms}, not '{offsets}'")


def _time_us(name: str, text: str) -> int:
    """Microseconds since 1970 of a number of milliseconds (as Kafka's options have it) or of a date and time; UTC if it names no zone."""
    try:
        if re.fullmatch(r"[0-9]{1,15}", text.strip()):
            micros = int(text) * 1000
        else:
            moment = datetime.fromisoformat(text.strip())
            since = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
            micros = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    except (ValueError, OverflowError):
        micros = -1
    if not 0 <= micros <= _LAST_MICROSECOND:
        raise SourceError(
            "OPTION_VALUE", f"option '{name}' must be milliseconds since 1970, or a time like 2026-01-31T12:00:00+00:00, not '{text}'"
        )
    return micros


def _choice(values: Mapping[str, str], name: str, default: str, other: str) -> str:
    text = values.get(name, default).lower()
    if text not in (default, other):
        raise SourceError("OPTION_VALUE", f"option '{name}' must be '{default}' or '{other}', not '{text}'")
    return text


def _number(values: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    if name not in values:
        return default
    number = whole_number(name, values[name])
    in_range(name, number, low, high)
    return number


_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def _duration(name: str, text: str) -> float:
    match = re.fullmatch(r"([0-9]{1,9})\s*(ms|s|m|h)", text.strip().lower())
    if match is None:
        raise SourceError("OPTION_VALUE", f"option '{name}' must be a number with a unit, as in 500ms, 30s, 15m or 1h, not '{text}'")
    return int(match[1]) * _UNITS[match[2]]
