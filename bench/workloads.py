"""The workloads of docs/PERFORMANCE.md: what `flintmq perf` is asked to do, which figures count, and the target of each.

in: nothing. out: `WORKLOADS`, data only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

MIB = 1024 * 1024
Result = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Target:
    """`kind`: 'ratio<=', 'ratio>=' (FlintMQ divided by RabbitMQ, median of the pairs), '<=', '>=' (FlintMQ's median) or '' (told only)."""

    kind: str = ""
    bound: float = 0.0
    text: str = ""

    def met(self, ours: float | None, ratio: float | None) -> bool | None:
        """None: nothing to meet, or it can't be told."""
        value = ratio if self.kind.startswith("ratio") else ours
        if not self.kind or value is None:
            return None
        return value <= self.bound if self.kind.endswith("<=") else value >= self.bound


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of the table. `take` reads it from perf's result; it may raise KeyError, TypeError or ZeroDivisionError: no figure then."""

    caption: str
    take: Callable[[Result], float]
    target: Target = Target()


@dataclass(frozen=True, slots=True)
class Workload:
    """`fresh`: both brokers are started anew before each run, because memory is measured. `timeout_s` for one run of perf.

    `runner`: a name of bench/runners.py. `durable`: on a fresh directory of the disk (FlintMQ else with --memory). `durability`: what
    both did with a message before they answered for it. `peer`: RabbitMQ too. `needs_broker`: started before the clock of a run.
    """

    name: str
    title: str
    arguments: tuple[str, ...]
    quick: tuple[str, ...]
    figures: tuple[Figure, ...]
    fresh: bool = False
    timeout_s: float = 180.0
    runner: str = "perf"
    durable: bool = False
    durability: str = "none"
    peer: bool = True
    needs_broker: bool = True


def at_most(ratio: float) -> Target:
    text = f"at most 1/{1 / ratio:.0f}" if ratio < 1 else "at most RabbitMQ's" if ratio == 1 else f"at most {ratio:g}x"
    return Target("ratio<=", ratio, text)


def at_least(ratio: float) -> Target:
    return Target("ratio>=", ratio, f"at least {ratio:g}x")


def below(bound: float, text: str) -> Target:
    return Target("<=", bound, text)


def above(bound: float, text: str) -> Target:
    return Target(">=", bound, text)


CPU = "broker cpu-s per million"


def _cpu(result: Result) -> float:
    return float(result["broker"]["cpu_s_per_million"])


def _cpu_out(result: Result) -> float:
    return float(result["broker"]["cpu_s_per_million_deliveries"])


def _rate(result: Result) -> float:
    return float(result["end_to_end_rate"])


def _latency(name: str) -> Callable[[Result], float]:
    return lambda result: float(result["latency_us"][name]) / 1000


def _peak(result: Result) -> float:
    return float(result["broker"]["rss_peak"]) / MIB


def _ahead(result: Result) -> float:
    """Messages that went in while one went out, from the first publish to the last one."""
    return float(result["publish_rate"]) / float(result["receive_rate"])


def _args(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _confirm(name: str) -> Callable[[Result], float]:
    return lambda result: float(result["confirm_us"][name]) / 1000


def _per_message(result: Result) -> float:
    """Resident bytes that one message of the backlog costs."""
    broker = result["broker"]
    return (float(broker["rss_backlog"]) - float(broker["rss_start"])) / float(result["count"])


def _log_overhead(body: int) -> Callable[[Result], float]:
    """Bytes of log per message beyond body, properties (flags and delivery mode), exchange (none) and routing key."""
    return lambda result: float(result["log_bytes"]) / float(result["count"]) - body - 3 - len("b.q00000")


# What a persistent message has gone through before its confirm (or a declaration before its answer).
SYNCED = "synced to disk before the answer, both"
SPILLED = "none; FlintMQ spills to disk past its hot window"
WRITTEN = "persistent, published without confirms"

_TOPIC = "--exchange topic --queues 10 --bindings 1000 --size 100"
_WINDOW_1 = "--durable --persistent --producers 100 --consumers 10 --size 256 --confirm 1 --ack 1 --prefetch 10 --drain-timeout 20"
_SMALL_BACKLOG = (
    "--mode backlog --durable --persistent --size 100 --confirm 1000 --ack 100 --prefetch 1000 --drain-timeout 30 --max-time 240"
)
_BACKLOG = "--mode backlog --durable --persistent --size 1024 --confirm 1000 --ack 100 --prefetch 1000 --drain-timeout 30 --max-time 240"

WORKLOADS = (
    Workload(
        "W1a",
        "16 B, 1 producer, 1 queue, 1 consumer, transient, automatic ack",
        _args("--size 16 --time 3 --drain-timeout 20"),
        _args("--size 16 --time 1 --drain-timeout 20"),
        (Figure(CPU, _cpu, at_most(1 / 45)), Figure("messages/s", _rate, Target(text="orientation: 1.5 M/s"))),
    ),
    Workload(
        "W1b",
        "1 KiB, else as W1a",
        _args("--size 1024 --time 3 --drain-timeout 20"),
        _args("--size 1024 --time 1 --drain-timeout 20"),
        (Figure(CPU, _cpu, at_most(1 / 18)), Figure("messages/s", _rate, Target(text="orientation: 600 k/s"))),
    ),
    Workload(
        "W3",
        "fanout exchange to 10 queues with a consumer each, 100 B",
        _args("--exchange fanout --queues 10 --size 100 --count 50000 --drain-timeout 20"),
        _args("--exchange fanout --queues 10 --size 100 --count 10000 --drain-timeout 20"),
        (Figure(CPU + " deliveries", _cpu_out, at_most(1 / 50)), Figure("deliveries/s", _rate)),
    ),
    Workload(
        "W4",
        "topic exchange, 1000 bindings, 10 queues, 100 B, publishes rotate over 1000 keys",
        _args(f"{_TOPIC} --count 100000 --drain-timeout 20"),
        _args(f"{_TOPIC} --count 20000 --drain-timeout 20"),
        (Figure(CPU, _cpu, at_most(1 / 60)), Figure("messages/s", _rate)),
    ),
    Workload(
        "W4r",
        "W4 with a routing key never used before on every message",
        _args(f"{_TOPIC} --count 100000 --random-keys --drain-timeout 20"),
        _args(f"{_TOPIC} --count 20000 --random-keys --drain-timeout 20"),
        (Figure(CPU, _cpu, below(5.0, "at most 5")), Figure("messages/s", _rate)),
    ),
    Workload(
        "W5a",
        "backlog: 1 M x 100 B published, then drained; transient, in memory",
        _args("--mode backlog --size 100 --count 1000000 --drain-timeout 30 --max-time 240"),
        _args("--mode backlog --size 100 --count 200000 --drain-timeout 30 --max-time 240"),
        (
            Figure("RSS peak, MiB", _peak, below(250.0, "at most 250 MiB")),
            Figure("in, messages/s", lambda r: float(r["publish_rate"]), above(1.2e6, "at least 1.2 M/s")),
            Figure("out, messages/s", lambda r: float(r["drain_rate"]), above(1.5e6, "at least 1.5 M/s")),
            Figure(CPU + ", both ways", _cpu),
        ),
        fresh=True,
        timeout_s=300.0,
    ),
    Workload(
        "W6a",
        "latency at 2,000 messages/s, 256 B",
        _args("--size 256 --rate 2000 --time 3"),
        _args("--size 256 --rate 2000 --time 1"),
        (
            Figure("p50, ms", _latency("p50"), at_most(1)),
            Figure("p99, ms", _latency("p99"), at_most(1)),
            Figure("p99.9, ms", _latency("p999")),
        ),
    ),
    Workload(
        "W6b",
        "latency at 10,000 messages/s, 256 B",
        _args("--size 256 --rate 10000 --time 3"),
        _args("--size 256 --rate 10000 --time 1"),
        (
            Figure("p50, ms", _latency("p50"), at_most(1)),
            Figure("p99, ms", _latency("p99"), at_most(1)),
            Figure("p99.9, ms", _latency("p999")),
        ),
    ),
    Workload(
        "W7",
        "200 connections that publish and consume, 200 queues, 2,000 messages/s in all, 256 B, ack each, prefetch 10",
        _args("--same-conn --producers 200 --queues 200 --rate 2000 --time 3 --size 256 --ack 1 --prefetch 10"),
        _args("--same-conn --producers 200 --queues 200 --rate 2000 --time 1 --size 256 --ack 1 --prefetch 10"),
        (
            Figure("p50, ms", _latency("p50"), at_most(1 / 2)),
            Figure("cores used", lambda r: float(r["broker"]["cpu_s"]) / float(r["end_to_end_s"]), at_most(1 / 2)),
            Figure("RSS peak, MiB", _peak, below(80.0, "at most 80 MiB")),
            Figure("p99, ms", _latency("p99")),
        ),
        fresh=True,
    ),
    Workload(
        "W8",
        "4 clients: connect, declare, publish, get, close",
        _args("--mode churn --clients 4 --time 3"),
        _args("--mode churn --clients 4 --time 1"),
        (
            Figure("cycles/s", lambda r: float(r["cycle_rate"]), at_least(10)),
            Figure("broker cpu-ms per cycle", lambda r: float(r["broker"]["cpu_ms_per_cycle"])),
        ),
    ),
    Workload(
        "W9",
        "10,000 idle queues, declared one after the other",
        _args("--mode declare --queues 10000 --max-time 100"),
        _args("--mode declare --queues 2000 --max-time 100"),
        (
            Figure("declares/s", lambda r: float(r["declare_rate"]), at_least(20)),
            Figure("KiB per queue", lambda r: float(r["broker"]["bytes_per_queue"]) / 1024, below(4.0, "at most 4 KiB")),
            Figure("cores used when idle", lambda r: float(r["broker"]["idle_cores"])),
        ),
        fresh=True,
        timeout_s=240.0,
    ),
    Workload(
        "W2",
        "durable, persistent, confirm window 256, ack each, 1 KiB",
        _args("--durable --persistent --size 1024 --confirm 256 --ack 1 --prefetch 256 --time 3 --drain-timeout 20"),
        _args("--durable --persistent --size 1024 --confirm 256 --ack 1 --prefetch 256 --time 1 --drain-timeout 20"),
        (
            Figure(CPU, _cpu, at_most(1 / 20)),
            Figure("messages/s", _rate, above(200e3, "at least 200 k/s")),
            Figure("confirm p50, ms", _confirm("p50")),
            Figure("confirm p99, ms", _confirm("p99"), at_most(1 / 3)),
        ),
        fresh=True,
        durable=True,
        durability=SYNCED,
    ),
    Workload(
        "W5s",
        "backlog on a durable node: 1 M x 100 B transient, then drained",
        _args("--mode backlog --size 100 --count 1000000 --drain-timeout 30 --max-time 240"),
        _args("--mode backlog --size 100 --count 200000 --drain-timeout 30 --max-time 240"),
        (
            Figure("RSS peak, MiB", _peak, below(96.0, "at most 96 MiB")),
            Figure(CPU + ", both ways", _cpu, below(1.0, "at most 1")),
            Figure("in, messages/s", lambda r: float(r["publish_rate"])),
            Figure("out, messages/s", lambda r: float(r["drain_rate"])),
        ),
        fresh=True,
        timeout_s=300.0,
        durable=True,
        durability=SPILLED,
    ),
    Workload(
        "W5b",
        "backlog: 500 k x 1 KiB persistent, confirm window 1,000, then drained with ack of every 100",
        _args(f"{_BACKLOG} --count 500000"),
        _args(f"{_BACKLOG} --count 50000"),
        (
            Figure("in, messages/s", lambda r: float(r["publish_rate"]), at_least(35)),
            Figure("out, messages/s", lambda r: float(r["drain_rate"]), at_least(20)),
            Figure("RSS peak, MiB", _peak, below(96.0, "at most 96 MiB")),
            Figure("disk written, MB", lambda r: float(r["disk_written"]) / 1e6),
            Figure(CPU + ", both ways", _cpu),
        ),
        fresh=True,
        timeout_s=300.0,
        runner="written",
        durable=True,
        durability=SYNCED,
    ),
    Workload(
        "W10",
        "confirm window 1, 1 KiB persistent; beside it one 4 KiB write and fdatasync after the other",
        _args("--mode publish --durable --persistent --size 1024 --confirm 1 --time 3 --settle 0"),
        _args("--mode publish --durable --persistent --size 1024 --confirm 1 --time 1 --settle 0"),
        (
            Figure(
                "share of the disk's rate",
                lambda r: float(r["publish_rate"]) / float(r["disk"]["rate"]),
                above(0.45, "at least 0.45"),
            ),
            Figure("messages/s", lambda r: float(r["publish_rate"])),
            Figure("disk, writes + fdatasync per s", lambda r: float(r["disk"]["rate"])),
            Figure("confirm p50, ms", _confirm("p50")),
            Figure("confirm p99, ms", _confirm("p99")),
        ),
        fresh=True,
        runner="disk",
        durable=True,
        durability=SYNCED,
    ),
    Workload(
        "W11",
        "kill -9 with 500 k x 1 KiB persistent, then from the start of the broker",
        _args("--size 1024 --count 500000"),
        _args("--size 1024 --count 50000"),
        (
            Figure("first delivery, s", lambda r: float(r["restart_first_s"]), below(0.8, "at most 0.8 s")),
            Figure("all delivered, s", lambda r: float(r["restart_all_s"]), below(2.0, "at most 2.0 s")),
        ),
        fresh=True,
        timeout_s=300.0,
        runner="restart",
        durable=True,
        durability=SYNCED,
    ),
    Workload(
        "D1",
        "durable queues, declared one after the other on one connection",
        _args("--mode declare --durable --queues 5000 --max-time 100 --keep"),
        _args("--mode declare --durable --queues 500 --max-time 100 --keep"),
        (
            Figure("declares/s", lambda r: float(r["declare_rate"]), above(2000.0, "at least 2,000/s")),
            Figure("p99, ms", lambda r: float(r["declare_us"]["p99"]) / 1000),
            Figure("KiB per queue", lambda r: float(r["broker"]["bytes_per_queue"]) / 1024),
        ),
        fresh=True,
        durable=True,
        durability=SYNCED,
    ),
    Workload(
        "D1p",
        "durable queues, declared on one connection with 100 declares on their way",
        _args("--mode declare --durable --queues 5000 --max-time 100 --keep --pipeline 100"),
        _args("--mode declare --durable --queues 500 --max-time 100 --keep --pipeline 100"),
        (Figure("declares/s", lambda r: float(r["declare_rate"]), above(2000.0, "at least 2,000/s")),),
        fresh=True,
        durable=True,
        durability=SYNCED,
    ),
    Workload(
        "B10",
        "backlog of 10 M x 100 B persistent, confirm window 1,000",
        _args("--size 100 --count 10000000 --confirm 1000 --drain-timeout 30 --max-time 600"),
        _args("--size 100 --count 500000 --confirm 1000 --drain-timeout 30 --max-time 600"),
        (
            Figure("RSS bytes per message", _per_message, below(32.0, "at most 32")),
            Figure("log bytes per message beyond body, properties, exchange and key", _log_overhead(100), below(112.0, "at most 112")),
            Figure("in, messages/s", lambda r: float(r["publish_rate"])),
            Figure("out, messages/s", lambda r: float(r["consume"]["receive_rate"])),
            Figure("RSS peak of the drain, MiB", lambda r: float(r["consume"]["broker"]["rss_peak"]) / MIB),
        ),
        fresh=True,
        timeout_s=900.0,
        runner="store-size",
        durable=True,
        durability=SYNCED,
        peer=False,
    ),
    Workload(
        "W12",
        "fanout exchange to 10 queues with a consumer each, 100 B, 1 M publishes without a limit of their rate",
        _args("--exchange fanout --queues 10 --size 100 --count 1000000 --drain-timeout 20"),
        _args("--exchange fanout --queues 10 --size 100 --count 100000 --drain-timeout 20"),
        (
            Figure(CPU + " deliveries", _cpu_out, below(0.4, "at most 0.4")),
            Figure("deliveries/s", lambda r: 10 * _rate(r)),
            Figure("age at arrival, p50, ms", _latency("p50")),
        ),
    ),
    Workload(
        "W12d",
        "W12 durable and persistent, 300 k publishes",
        _args("--durable --persistent --exchange fanout --queues 10 --size 100 --count 300000 --drain-timeout 20"),
        _args("--durable --persistent --exchange fanout --queues 10 --size 100 --count 30000 --drain-timeout 20"),
        (Figure(CPU, _cpu, below(5.0, "at most 5")), Figure("deliveries/s", lambda r: 10 * _rate(r))),
        fresh=True,
        durable=True,
        durability=WRITTEN,
    ),
    Workload(
        "W13",
        "1,000 queues with a consumer each, 20 producers that rotate over all of them, 100 B",
        _args("--producers 20 --queues 1000 --exchange direct --bindings 1000 --size 100 --time 3 --drain-timeout 20"),
        _args("--producers 20 --queues 1000 --exchange direct --bindings 1000 --size 100 --time 1 --drain-timeout 20"),
        (Figure(CPU, _cpu, below(1.5, "at most 1.5")), Figure("messages/s", _rate, above(800e3, "at least 800 k/s"))),
        fresh=True,
    ),
    Workload(
        "W14",
        "4 producers, 1 queue, 1 consumer with prefetch 1,000 and an ack of every 100, 16 B",
        _args("--producers 4 --consumers 1 --size 16 --count 4000000 --ack 100 --prefetch 1000 --drain-timeout 20"),
        _args("--producers 4 --consumers 1 --size 16 --count 400000 --ack 100 --prefetch 1000 --drain-timeout 20"),
        (
            Figure("messages in for each one out, while both run", _ahead, below(1.25, "at most 1.25")),
            Figure("messages/s", _rate),
            Figure(CPU, _cpu),
        ),
    ),
    Workload(
        "W15",
        "a backlog drained with prefetch 1: an ack, the next delivery; 100 B",
        _args("--mode backlog --size 100 --count 100000 --ack 1 --prefetch 1 --drain-timeout 20"),
        _args("--mode backlog --size 100 --count 20000 --ack 1 --prefetch 1 --drain-timeout 20"),
        (Figure("out, messages/s", lambda r: float(r["drain_rate"]), at_least(4)), Figure(CPU + ", both ways", _cpu)),
        fresh=True,
    ),
    Workload(
        "W16",
        "100 producers with confirm window 1, 10 consumers on one queue, 256 B persistent",
        _args(f"{_WINDOW_1} --time 3"),
        _args(f"{_WINDOW_1} --time 1"),
        (Figure(CPU, _cpu, below(5.0, "at most 5")), Figure("messages/s", _rate)),
        fresh=True,
        durable=True,
        durability=SYNCED,
    ),
    Workload(
        "W17",
        "backlog: 1 M x 100 B persistent, then drained with ack of every 100",
        _args(f"{_SMALL_BACKLOG} --count 1000000"),
        _args(f"{_SMALL_BACKLOG} --count 50000"),
        (
            Figure("out, messages/s", lambda r: float(r["drain_rate"])),
            Figure("RSS peak, MiB", _peak),
            Figure(CPU + ", both ways", _cpu),
        ),
        fresh=True,
        timeout_s=300.0,
        durable=True,
        durability=SYNCED,
    ),
    Workload(
        "LOG",
        "the log by itself, records of 16 KiB; and one writev and fdatasync per group of the same size",
        _args("536870912 16000"),
        _args("67108864 16000"),
        (
            Figure("share of the disk's rate", lambda r: float(r["share"]), above(0.8, "at least 0.80")),
            Figure("log, MB/s", lambda r: float(r["log_bytes_per_s"]) / 1e6),
            Figure("disk, MB/s", lambda r: float(r["raw_bytes_per_s"]) / 1e6),
            Figure("group, KiB", lambda r: float(r["group_bytes"]) / 1024),
        ),
        runner="append",
        durable=True,
        durability="synced to disk",
        peer=False,
        needs_broker=False,
    ),
)
