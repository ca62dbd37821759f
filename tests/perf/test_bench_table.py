"""The table of bench/ tells each ratio, judges the median of the pairs by the workload's target, and never shows a failed run's figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench import table
from bench.workloads import WORKLOADS, Figure, Target, Workload

WORKLOAD = Workload("T", "test", (), (), (Figure("cost", lambda result: float(result["cost"]), Target("ratio<=", 0.5, "at most 1/2")),))


def record(broker: str, pair: int, cost: float, ok: bool = True) -> dict[str, Any]:
    return {"workload": "T", "broker": broker, "pair": pair, "result": {"ok": ok, "cost": cost}}


def pairs(*costs: tuple[float, float]) -> list[dict[str, Any]]:
    return [
        record(broker, pair, cost) for pair, both in enumerate(costs) for broker, cost in zip(("flintmq", "rabbitmq"), both, strict=True)
    ]


def test_median_of_the_ratios_decides() -> None:
    # Ratios 0.25, 0.9 and 0.4: the median holds the bound although one pair and the mean do not.
    (row,) = table.rows(WORKLOAD, pairs((1, 4), (9, 10), (4, 10)))
    assert "0.25, 0.90, 0.40" in row
    assert row.endswith("| 0.40 | at most 1/2 | ok |")


def test_a_miss_says_by_how_much() -> None:
    (row,) = table.rows(WORKLOAD, pairs((3, 4)))
    assert "**MISSED by 50 %**" in row


def test_failed_run_has_no_figure_and_is_named() -> None:
    records = [*pairs((1, 4)), record("flintmq", 1, 0.001, ok=False), record("rabbitmq", 1, 4)]
    (row,) = table.rows(WORKLOAD, records)
    assert "failed: flintmq pair 2" in row
    assert "| 0.25, - | 0.25 |" in row


@pytest.mark.parametrize(
    ("kind", "ours", "met"), [("<=", 3.0, True), ("<=", 5.0, False), (">=", 5.0, True), (">=", 3.0, False), ("", 1.0, None)]
)
def test_absolute_targets(kind: str, ours: float, met: bool | None) -> None:
    assert Target(kind, 4.0).met(ours, None) is met


def test_document_keeps_what_is_outside_the_markers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n")
    table.write(page, "new\n")
    assert page.read_text() == f"before\n{table.BEGIN}\nnew\n{table.END}\nafter\n"
    page.write_text("no markers")
    with pytest.raises(ValueError, match="bench:begin"):
        table.write(page, "new")


def test_the_document_has_its_markers_and_names_are_unique() -> None:
    page = (Path(__file__).parents[2] / "docs/PERFORMANCE.md").read_text()
    assert page.index(table.BEGIN) < page.index(table.END)
    assert len({workload.name for workload in WORKLOADS}) == len(WORKLOADS) == 27
