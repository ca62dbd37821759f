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
    """`fresh`: both brokers are started anew before each run, because memory is measured. `timeout_s` for one run of perf."""

    name: str
    title: str
    arguments: tuple[str, ...]
    quick: tuple[str, ...]
    figures: tuple[Figure, ...]
    fresh: bool = False
    timeout_s: float = 180.0


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


def _args(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_TOPIC = "--exchange topic --queues 10 --bindings 1000 --size 100"

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
)
