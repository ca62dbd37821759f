"""Options of `format("flintmq")` with `transport=amqp`.

In: Spark's case-insensitive str -> str map. Out: a frozen `Options` with checked values, or a SourceError that names the option.
Invariant: an option we do not know is an error, never ignored: a mistyped limit must not pass silently.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from pyspark_flintmq.connection import in_range, true_or_false, unknown_option, whole_number
from pyspark_flintmq.errors import SourceError
from pyspark_flintmq.schema import TABLE_OPTIONS

# AMQP 0-9-1 counts unacknowledged messages in 16 bits (basic.qos prefetch-count), and the held batch is unacknowledged.
MAX_MESSAGES_LIMIT = 65_535
MIB = 1024 * 1024

# Options of the data plane: known by name, so that the answer says what to do.
_DATA_PLANE = (
    "url",
    "flightPort",
    "tlsCa",
    "queues",
    "queuePattern",
    "subscription",
    "startingOffsets",
    "startingTimestamp",
    "endingOffsets",
    "endingTimestamp",
    "minMessagesPerTrigger",
    "maxTriggerDelay",
    "failOnDataLoss",
)


@dataclass(frozen=True)
class Options:
    """Checked options of one stream. Comments: unit, range, and what happens at the edge."""

    # where: TCP host name or address of the broker
    host: str = "127.0.0.1"
    # where: TCP port, 1..65535
    port: int = 5672
    user: str = "guest"
    password: str = field(default="guest", repr=False)
    vhost: str = "/"
    # name of the queue to read; must exist
    queue: str = ""
    # messages of one micro-batch, 1..65,535 (see MAX_MESSAGES_LIMIT)
    maxMessagesPerTrigger: int = 32_000
    # bytes of message bodies in one micro-batch, >= 1; a batch always has at least one message
    maxBytesPerTrigger: int = 64 * MIB
    # Spark partitions per micro-batch, 1..10,000; a batch smaller than that gives fewer
    minPartitions: int = 2
    # directory that the driver and all executors can reach; see docs/pipeline/source.md
    spoolDir: str = ""
    # the queue must have no other consumer: without that, messages may come twice
    exclusive: bool = True
    # fail | redeliver: what to do when a new checkpoint finds a batch that an older checkpoint may have processed
    onLostCheckpoint: str = "fail"
    # fail | commit: what to do when no task has read the first batch of a checkpoint and Spark has committed it
    onUnreadBatch: str = "fail"
    # seconds, 1..3,600: for connecting, for another reader to go away, and for the broker to answer
    timeout: int = 30
    # seconds, 0 (off)..3,600: AMQP heartbeat
    heartbeat: int = 30

    @property
    def where(self) -> str:
        """For messages to people: never contains the password."""
        return f"queue '{self.queue}' in vhost '{self.vhost}' at {self.host}:{self.port}"

    @property
    def prefetch(self) -> int:
        """Messages that may be unacknowledged. Twice a batch: one waits for its commit, the next one comes in meanwhile."""
        return min(MAX_MESSAGES_LIMIT, 2 * self.maxMessagesPerTrigger)

    @classmethod
    def parse(cls, raw: Mapping[str, str]) -> Options:
        """Checks `raw`.

        Raises: SourceError OPTION_UNKNOWN, OPTION_MISSING or OPTION_VALUE.
        """
        known = {f.name.lower(): f for f in fields(cls)}
        values: dict[str, object] = {}
        later = {name.lower() for name in _DATA_PLANE}
        for key, text in raw.items():
            name = key.lower()
            if name in later:
                raise SourceError("OPTION_UNKNOWN", f"option '{key}' needs the data plane: leave out transport=amqp, which reads one queue")
            spec = known.get(name)
            if spec is None:
                raise unknown_option(key, (*(f.name for f in fields(cls)), "transport", *TABLE_OPTIONS))
            values[spec.name] = _convert(spec.name, spec.type, text)
        if not values.get("queue"):
            raise SourceError("OPTION_MISSING", "option 'queue' is needed: the name of the queue to read")
        options = cls(**values)  # type: ignore[arg-type]
        options._check()
        return options

    def _check(self) -> None:
        in_range("port", self.port, 1, 65_535)
        in_range("minPartitions", self.minPartitions, 1, 10_000)
        in_range("timeout", self.timeout, 1, 3_600)
        in_range("heartbeat", self.heartbeat, 0, 3_600)
        in_range("maxBytesPerTrigger", self.maxBytesPerTrigger, 1, 2**62)
        if not 1 <= self.maxMessagesPerTrigger <= MAX_MESSAGES_LIMIT:
            raise SourceError(
                "OPTION_VALUE",
                f"option 'maxMessagesPerTrigger' must be 1..{MAX_MESSAGES_LIMIT} (AMQP 0-9-1 counts unacknowledged messages "
                f"in 16 bits), not {self.maxMessagesPerTrigger}",
            )
        if self.onLostCheckpoint not in ("fail", "redeliver"):
            raise SourceError("OPTION_VALUE", f"option 'onLostCheckpoint' must be 'fail' or 'redeliver', not '{self.onLostCheckpoint}'")
        if self.onUnreadBatch not in ("fail", "commit"):
            raise SourceError("OPTION_VALUE", f"option 'onUnreadBatch' must be 'fail' or 'commit', not '{self.onUnreadBatch}'")
        if len(self.queue.encode()) > 255:
            raise SourceError("OPTION_VALUE", "option 'queue' is longer than 255 bytes, which no queue name can be")

    def spool_path(self) -> Path:
        """The spool directory of this subscription, absolute.

        With `spoolDir` that very directory, else one per (host, port, vhost, queue) under the user's state directory.
        """
        if self.spoolDir:
            return Path(self.spoolDir).expanduser().absolute()
        base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
        identity = f"{self.host}:{self.port}/{self.vhost}/{self.queue}"
        digest = hashlib.blake2b(identity.encode(), digest_size=6).hexdigest()
        readable = re.sub(r"[^A-Za-z0-9_.-]+", "_", self.queue)[:40]
        return Path(base).absolute() / "flintmq" / "spool" / f"{readable}-{digest}"


def _convert(name: str, kind: object, text: str) -> object:
    """`text` as the type of the dataclass field; annotations are strings under postponed evaluation."""
    if kind == "int":
        return whole_number(name, text)
    if kind == "bool":
        return true_or_false(name, text)
    return text


# All names, as they are written in the documentation.
OPTIONS = (*(one.name for one in fields(Options)), *_DATA_PLANE)
