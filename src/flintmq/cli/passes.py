"""`flintmq perf trace`: where the time of a running broker's loops and of its log's writer goes, as tables.

in: the broker's HTTP port and an administrator; seconds. out: percentiles of passes and of their phases, and the longest passes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

# key of a report -> (what a loop does, what the writer does)
PARTS = {
    "pass": ("a whole pass", "a whole pass"),
    "late": ("awake, no processor free", "awake, no processor free"),
    "delayed": ("no processor within the pass", "no processor within the pass"),
    "read": ("reads sockets, feeds", "takes blocks"),
    "log": ("wakes the writer", "writes"),
    "deliver": ("delivers", "syncs"),
    "send": ("sends", "wakes the loops"),
    "gil": ("waits for the interpreter", "waits for the interpreter"),
    "python": ("runs Python", "runs Python"),
    "rest": ("the rest", "the rest"),
}
SHARES = (0.5, 0.99, 0.999, 1.0)
# longest passes that are shown of a thread
SHOWN = 10


def percentile(steps: Sequence[Sequence[int]], share: float) -> int:
    """Nanoseconds that this share of the passes did not take. Args: steps: (upper end, passes), rising."""
    rest = share * sum(count for _, count in steps)
    for end_ns, count in steps:
        rest -= count
        if rest <= 0:
            return end_ns
    return steps[-1][0] if steps else 0


def _us(ns: int) -> str:
    return f"{ns / 1000:.1f}"


def tables(report: dict[str, Any]) -> list[str]:
    """The lines for people: for each thread percentiles of its passes, then the longest ones. Times in microseconds."""
    lines: list[str] = []
    for number, thread in enumerate(report["threads"]):
        is_writer = thread["name"] == "log writer"
        title = thread["name"] if is_writer else f"{thread['name']} {number}"
        lines += [f"{title}: {thread['passes']:,} passes; us", f"{'':30}{'p50':>10}{'p99':>10}{'p99.9':>10}{'longest':>10}"]
        for key, names in PARTS.items():
            steps = thread["times"].get(key, [])
            if steps and steps[-1][0]:
                cells = "".join(f"{_us(percentile(steps, share)):>10}" for share in SHARES)
                lines.append(f"{names[is_writer]:30}{cells}")
        lines.append(f"{'the longest':12}{'late':>9}{'pass':>9}{'delayed':>9}{'faults':>7}{'slept':>6}{'lost':>5}  of it")
        for one in thread["longest"][:SHOWN]:
            phases = sorted(((ns, key) for key, ns in one["phases"].items() if key != "wait" and ns >= 1000), reverse=True)
            spent = ", ".join(f"{key} {_us(ns)}" for ns, key in phases)
            times = f"{_us(one['late_ns']):>9}{_us(one['total_ns']):>9}{_us(one['delayed_ns']):>9}"
            lines.append(f"{'':12}{times}{one['faults']:>7}{one['slept']:>6}{one['preempted']:>5}  {spent}")
        lines.append("")
    return lines


@click.command()
@click.option("--uri", envvar="FLINTMQ_URI", default="http://127.0.0.1:15672", show_default=True, help="The broker's HTTP port.")
@click.option("-u", "--user", envvar="FLINTMQ_USER", default="guest", show_default=True, help="An administrator.")
@click.option("--password", envvar="FLINTMQ_PASSWORD", default="guest", help="Better the variable FLINTMQ_PASSWORD: others see arguments.")
@click.option("--seconds", type=click.IntRange(1, 60), default=5, show_default=True, help="How long the broker traces.")
@click.option("--json", "as_json", is_flag=True, help="The broker's answer as it is.")
def trace(uri: str, user: str, password: str, seconds: int, as_json: bool) -> None:
    """Shows where the time of a broker's loops and of its log's writer goes."""
    from flintmq.cli.ctl import Remote

    report: dict[str, Any] = Remote(uri, user, password).ask("GET", f"v1/passes?seconds={seconds}")
    click.echo(json.dumps(report) if as_json else "\n".join(tables(report)))
