"""What one run of the load generator does: values, their bounds and their contradictions.

in: the command line (or a dictionary of a test). out: a checked `Options`, or `UsageError`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

MODES = ("run", "publish", "consume", "backlog", "latency", "churn", "declare")
EXCHANGES = ("default", "direct", "fanout", "topic", "headers")
# bytes: id and time stand at the start of each body
SIZE_MIN = 16
# bytes: one message is held twice per producer
SIZE_MAX = 64 * 1024 * 1024
# producers have 16 bits of the message id, keys 16, the sequence 32
PRODUCERS_MAX = 4096
KEYS_MAX = 65_535
COUNT_MAX = 2**32 - 1
# messages, when neither a count nor a time is given
COUNT_DEFAULT = 100_000
# messages per second of `--mode latency` without `--rate`
LATENCY_RATE = 1000.0


class UsageError(ValueError):
    """Options that contradict each other or are out of range; the text names the option."""


def _prefix() -> str:
    return f"flintmq-perf-{os.getpid()}"


@dataclass(slots=True)
class Options:
    """One run. `consumers` None: one per queue; `bindings` 0: one key per queue; `time_s` 0: bounded by `count`."""

    host: str = "127.0.0.1"
    port: int = 5672
    user: str = "guest"
    password: str = "guest"
    vhost: str = "/"
    mode: str = "run"
    producers: int = 1
    consumers: int | None = None
    queues: int = 1
    size: int = 16
    count: int = 0
    time_s: float = 0.0
    exchange: str = "default"
    bindings: int = 0
    random_keys: bool = False
    confirm: int = 0
    ack: int = 0
    prefetch: int = 0
    persistent: bool = False
    durable: bool = False
    queue_type: str = ""
    rate: float = 0.0
    same_conn: bool = False
    pid: int = 0
    prefix: str = field(default_factory=_prefix)
    keep: bool = False
    drain_timeout_s: float = 10.0
    max_time_s: float = 300.0
    settle_s: float = 1.0
    batch_bytes: int = 65_536
    clients: int = 4
    connect_retry_s: float = 0.0
    pipeline: int = 1

    @property
    def keys(self) -> int:
        """Routing keys (and bindings, but for a fanout, which needs none)."""
        return 1 if self.exchange == "fanout" else max(self.bindings, self.queues) if self.exchange != "default" else self.queues

    @property
    def consumer_count(self) -> int:
        return self.queues if self.consumers is None else self.consumers

    def check(self) -> Options:
        """Fills in defaults that depend on the mode. Raises: UsageError."""

        def need(condition: bool, text: str) -> None:
            if not condition:
                raise UsageError(text)

        need(self.mode in MODES, f"--mode: one of {', '.join(MODES)}")
        need(self.exchange in EXCHANGES, f"--exchange: one of {', '.join(EXCHANGES)}")
        need(SIZE_MIN <= self.size <= SIZE_MAX, f"--size: {SIZE_MIN} to {SIZE_MAX} bytes (id and time need {SIZE_MIN})")
        need(1 <= self.producers <= PRODUCERS_MAX, f"--producers: 1 to {PRODUCERS_MAX}")
        need(1 <= self.queues <= KEYS_MAX, f"--queues: 1 to {KEYS_MAX}")
        need(0 <= self.bindings <= KEYS_MAX, f"--bindings: 0 to {KEYS_MAX}")
        need(self.bindings == 0 or self.exchange not in ("default", "fanout"), "--bindings: needs --exchange direct, topic or headers")
        need(0 <= self.count <= COUNT_MAX, f"--count: 0 to {COUNT_MAX}")
        need(self.time_s >= 0 and self.rate >= 0, "--time and --rate: not negative")
        need(min(self.confirm, self.ack, self.prefetch) >= 0, "--confirm, --ack and --prefetch: not negative")
        need(self.confirm <= 1_000_000, "--confirm: at most 1,000,000")
        need(self.prefetch <= 65_535, "--prefetch: at most 65,535 (a 16-bit field)")
        need(not (self.ack and self.prefetch and self.ack > self.prefetch), "--ack above --prefetch would stall")
        need(not self.random_keys or self.exchange in ("topic", "fanout"), "--random-keys: needs --exchange topic or fanout")
        need(1 <= len(self.prefix.encode()) <= 120, "--prefix: 1 to 120 bytes")
        need(1 <= self.clients <= 1024, "--clients: 1 to 1024")
        need(self.connect_retry_s >= 0, "--connect-retry: not negative")
        need(1 <= self.pipeline <= 10_000, "--pipeline: 1 to 10,000")
        need(self.pipeline == 1 or self.mode == "declare", "--pipeline: needs --mode declare")
        need(4096 <= self.batch_bytes <= 64 * 1024 * 1024, "--batch-bytes: 4,096 to 67,108,864")
        if self.consumers is not None and self.mode in ("run", "backlog", "latency", "consume"):
            need(self.consumers >= self.queues, "--consumers: at least one per queue, or its messages would count as lost")
        if self.same_conn:
            need(self.producers == self.consumer_count, "--same-conn: as many producers as consumers")
            need(self.mode in ("run", "latency"), "--same-conn: only with --mode run or latency")
        if self.mode == "latency" and not self.rate:
            self.rate = LATENCY_RATE
        if self.mode == "consume" or (self.mode == "backlog" and not self.count):
            need(self.count > 0, f"--mode {self.mode}: needs --count")
        if not self.count and not self.time_s and self.mode != "churn":
            self.count = self.queues if self.mode == "declare" else COUNT_DEFAULT
        if not self.count and not self.time_s:
            self.time_s = 5.0
        return self
