"""Results to Markdown: one row per figure, the ratio of every pair, the median ratio against its target, misses marked.

in: records of bench/results/*.jsonl. out: text between the markers of docs/PERFORMANCE.md.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bench.brokers import FLINTMQ, RABBITMQ
from bench.workloads import WORKLOADS, Figure, Workload

BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
OURS, PEER = FLINTMQ, RABBITMQ
Record = dict[str, Any]


def number(value: float | None) -> str:
    """Three significant digits, thousands separated; a dash for none."""
    if value is None:
        return "-"
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.2f}" if size >= 0.1 else f"{value:.3f}"


def figure_of(figure: Figure, record: Record | None) -> float | None:
    """The figure of one run; None when the run failed or has no such figure."""
    if record is None or not record["result"].get("ok"):
        return None
    try:
        return figure.take(record["result"])
    except (KeyError, TypeError, ZeroDivisionError):
        return None


def median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def ratio_text(value: float) -> str:
    return f"1/{1 / value:.1f}" if 0 < value < 0.2 else f"{value:.2f}" if value < 10 else f"{value:.1f}"


def verdict(met: bool | None, figure: Figure, ours: float | None, ratio: float | None) -> str:
    """`ok`, or `MISSED by N %` of the bound."""
    if met is None:
        return ""
    if met:
        return "ok"
    bound = figure.target.bound
    value = ratio if figure.target.kind.startswith("ratio") else ours
    assert value is not None
    worse = (value / bound - 1 if figure.target.kind.endswith("<=") else bound / value - 1 if value else float("inf")) * 100
    return f"**MISSED by {worse:.0f} %**"


def rows(workload: Workload, records: Sequence[Record]) -> list[str]:
    """Table rows of one workload, of the figures that have a target (the results have all); every run that failed its check is told."""
    pairs = sorted({record["pair"] for record in records})
    by = {(record["broker"], record["pair"]): record for record in records}
    lines = []
    failed = [f"{record['broker']} pair {record['pair'] + 1}" for record in records if not record["result"].get("ok")]
    for index, figure in enumerate(figure for figure in workload.figures if figure.target.kind or figure.target.text):
        ours = [figure_of(figure, by.get((OURS, pair))) for pair in pairs]
        theirs = [figure_of(figure, by.get((PEER, pair))) for pair in pairs]
        ratios = [a / b if a is not None and b else None for a, b in zip(ours, theirs, strict=True)]
        our, ratio = median(ours), median(ratios)
        met = figure.target.met(our, ratio)
        title = f"{workload.name}: {workload.title}" if index == 0 else ""
        if index == 0 and failed:
            title += f" (failed: {', '.join(failed)})"
        durability = workload.durability if index == 0 else ""
        each = ", ".join(ratio_text(value) if value is not None else "-" for value in ratios)
        lines.append(
            f"| {title} | {durability} | {figure.caption} | {number(our)} | {number(median(theirs))} | {each} | "
            f"{ratio_text(ratio) if ratio is not None else '-'} | {figure.target.text} | {verdict(met, figure, our, ratio)} |"
        )
    return lines


def load(folder: Path) -> list[tuple[Record, list[Record]]]:
    """Every sitting, oldest first: its conditions and its runs."""
    sittings = []
    for path in sorted(folder.glob("[0-9]*.jsonl")):  # other benches keep theirs here under names of their own
        lines = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
        if lines and "conditions" in lines[0]:
            sittings.append((lines[0]["conditions"], lines[1:]))
    return sittings


def render(sittings: Sequence[tuple[Record, list[Record]]]) -> str:
    """The tables: each workload from the newest sitting that ran it, grouped by sitting, with that sitting's conditions."""
    newest: dict[str, int] = {}
    for index, (_, records) in enumerate(sittings):
        for record in records:
            newest[record["workload"]] = index
    parts = []
    for index in sorted(set(newest.values()), reverse=True):
        conditions, records = sittings[index]
        noise = median(record.get("other_cores") for record in records)
        parts += [
            f"Sitting of {conditions['date']}: {conditions['cpu']}, {conditions['cores']} cores, {conditions['memory_gib']} GiB, "
            f"Linux {conditions['kernel']}, Python {conditions['python']}; FlintMQ {conditions['flintmq']} ({conditions['commit']}), "
            f"RabbitMQ {conditions['rabbitmq']}; store on {conditions.get('filesystem', '-')}; pairs: {conditions['pairs']}"
            f"{', shortened (--quick)' if conditions.get('quick') else ''}; other processes used {number(noise)} cores (median).",
            "",
            "| workload | durability | figure | FlintMQ | RabbitMQ | ratio per pair | median ratio | target | |",
            "|---|---|---|---:|---:|---|---:|---|---|",
        ]
        for workload in WORKLOADS:
            if newest.get(workload.name) == index:
                parts += rows(workload, [record for record in records if record["workload"] == workload.name])
        parts.append("")
    return "\n".join(parts).rstrip() + "\n"


def write(path: Path, text: str) -> None:
    """Replaces what stands between the markers. Raises: ValueError when they are missing."""
    whole = path.read_text()
    head, found, rest = whole.partition(BEGIN)
    _, found_end, tail = rest.partition(END)
    if not found or not found_end:
        raise ValueError(f"{path.name} has no {BEGIN} ... {END}")
    path.write_text(f"{head}{BEGIN}\n{text}{END}{tail}")
