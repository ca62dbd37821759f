"""Lifecycle, depth and fairness say of a real broker's log what a plain reading of it says; their pages stand by themselves."""

from __future__ import annotations

import json
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flintmq.errors import OperatorError
from flintmq.pipeline.jobs import report
from flintmq.pipeline.jobs.depth import REASONS, Depth, depth_series, nice_width
from flintmq.pipeline.jobs.fairness import Fairness, jain
from flintmq.pipeline.jobs.job import LogParameters, Summary, built, parameters_of
from flintmq.pipeline.jobs.lifecycle import Lifecycle
from tests.jobs import plain
from tests.jobs.stores import shared_busy_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def busy() -> Path:
    return shared_busy_store()


@pytest.fixture
def told(busy: Path) -> plain.Told:
    return plain.read(busy)


def run(spark: SparkSession, job: Any, store: Path, **parameters: Any) -> tuple[Summary, str]:
    """Summary and page."""
    with built(job, spark, job.parameters(store_dir=str(store), **parameters)) as result:
        summary = job.summarise(result)
        json.dumps(summary.figures)
        return summary, job.report(result, summary) or ""


def names_of(figures: dict[str, Any]) -> dict[int, str]:
    return {one["queue_id"]: one["name"] for one in figures["queues"]}


class Checked(HTMLParser):
    """Refuses a page that fetches something, and counts charts and those without a title."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.charts = 0
        self.titles = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "link", "img", "iframe"), tag
        assert not {name for name, _ in attributes} & {"src", "href", "onload"}
        self.charts += tag == "svg" and ("role", "img") in attributes
        self.titles += tag == "title"


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_lifecycle_counts_and_spans_are_those_of_the_plain_reader(spark: SparkSession, busy: Path, told: plain.Told) -> None:
    summary, page = run(spark, Lifecycle(), busy)
    lives = told.lives.values()
    all_ = summary.figures["all"]
    assert all_["n"] == len(lives)
    assert {reason: all_[reason] for reason in REASONS if all_[reason]} == Counter(life.reason for life in lives if life.reason)
    assert all_["redelivered"] == sum(life.deliveries > 0 for life in lives)
    ended = sum(life.reason is None for (queue, _), life in told.lives.items() if queue in told.ended_queues)
    assert (all_["truncated"], all_["gone"]) == (0, ended)
    totals = sorted((life.settled - life.published) / 1000 for life in lives if life.settled is not None)
    spans = all_["spans_ms"]
    assert spans["total"]["max"] == totals[-1]
    assert spans["total"]["p50"] == pytest.approx(totals[(len(totals) - 1) // 2], rel=0.02, abs=0.5)
    delivered = [(life.delivered - life.enqueued) / 1000 for life in lives if life.delivered and life.enqueued and life.settled]
    assert spans["deliver"]["max"] == max(max(delivered), 0)
    by_exchange = Counter(life.exchange or "(default exchange)" for life in lives)
    assert {one["name"]: one["n"] for one in summary.figures["exchanges"]} == by_exchange
    by_queue = Counter(queue for queue, _ in told.lives)
    assert sorted(one["n"] for one in summary.figures["queues"]) == sorted(by_queue.values())
    groups = Counter(_who(told, life) for life in lives if life.reason and life.consumer)
    assert {one["name"]: one["n"] for one in summary.figures["consumers"]} == groups
    assert Checked(page).charts >= 4
    assert any("fan" in line for line in summary.lines)


def _who(told: plain.Told, life: plain.Life) -> str:
    tag, group = told.names.get(life.consumer, ("", ""))
    if group:
        return f"group {group}"
    return tag or f"consumer {life.consumer}"


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_depth_ends_with_what_is_open_and_counts_what_came_and_went(spark: SparkSession, busy: Path, told: plain.Told) -> None:
    summary, page = run(spark, Depth(), busy, bucket=0.05)
    figures = summary.figures
    for one in figures["queues"]:
        own = {position: life for (queue, position), life in told.lives.items() if queue == one["queue_id"]}
        ended = one["queue_id"] in told.ended_queues
        assert one["base"] == 0
        assert one["totals"]["enqueued"] == len(own)
        assert {name: n for name, n in one["totals"].items() if n and name in REASONS} == Counter(
            life.reason for life in own.values() if life.reason
        )
        assert one["last"] == (0 if ended else sum(life.reason is None for life in own.values())), one["name"]
        width, start = figures["bucket_s"] * 1e6, figures["start_us"]
        for bucket in (3, figures["buckets"] // 2):
            edge = start + (bucket + 1) * width
            came = sum(life.enqueued is not None and life.enqueued < edge for life in own.values())
            went = sum(life.settled is not None and life.settled < edge for life in own.values())
            if not ended:
                assert one["depth"][bucket] == came - went, (one["name"], bucket)
    assert Checked(page).charts == 2

    later = figures["start_us"] + int(figures["buckets"] * width / 2)
    half = run(spark, Depth(), busy, bucket=0.05, since=str(later // 1000), queue="work")[0].figures
    (work,) = half["queues"]
    (all_,) = (one for one in figures["queues"] if one["name"] == "work")
    assert work["base"] + sum(work["enqueued"]) - sum(work["dequeued"]) == work["last"] == all_["last"]
    assert work["base"] > 0


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_fairness_shares_are_those_of_the_plain_reader(spark: SparkSession, busy: Path, told: plain.Told) -> None:
    summary, page = run(spark, Fairness(), busy, busy=1)
    names = names_of(summary.figures)
    found = {(one["queue_id"], share["who"]): share["deliveries"] for one in summary.figures["queues"] for share in one["shares"]}
    want = Counter(
        (queue, _who(told, life)) for (queue, _), life in told.lives.items() if life.consumer and life.reason in ("ack", "reject")
    )
    assert found == want
    (work,) = (one for one in summary.figures["queues"] if names[one["queue_id"]] == "work")
    assert work["jain"] == pytest.approx((25 + 8 + 1) ** 2 / (3 * (25**2 + 8**2 + 1**2))), "`one`, `two`, a basic.get"
    for one in summary.figures["queues"]:
        for window in one["windows"].values():
            assert all(0 < value <= 1 for _, value in window["series"])
    assert Checked(page).titles >= 2
    single = run(spark, Fairness(), busy, by="consumer", queue="jobs")[0].figures["queues"]
    assert [len(one["shares"]) for one in single] == [30], "each consumer of `jobs` by itself"


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=20))
def test_jain_is_one_for_equals_and_never_out_of_range(counts: list[int]) -> None:
    assert jain([counts[0]] * len(counts)) == pytest.approx(1)
    assert 1 / len(counts) - 1e-9 <= jain(counts) <= 1 + 1e-9


@given(st.lists(st.tuples(st.integers(-1, 4), st.sampled_from(("enqueued", "ack", "expire")), st.integers(1, 50)), max_size=30))
def test_depth_is_base_and_sums_at_every_bucket(rows: list[tuple[int, str, int]]) -> None:
    found = depth_series([(1, *row) for row in rows], 5)
    if not rows:
        assert found == {}
        return
    for bucket in range(5):
        want = sum(n if event == "enqueued" else -n for at, event, n in rows if at <= bucket)
        assert found[1]["depth"][bucket] == want


def test_a_deleted_queue_falls_to_nothing() -> None:
    found = depth_series([(1, 0, "enqueued", 7), (1, 2, "deleted", 1)], 4)[1]
    assert found["depth"] == [7, 7, 0, 0]
    assert found["totals"]["deleted"] == 7


@given(st.floats(0, 1e12))
def test_bucket_widths_are_round_and_wide_enough(us: float) -> None:
    assert nice_width(us) >= us * 0.999999
    assert nice_width(us) % 10_000 == 0


@given(st.text(max_size=40), st.floats(0, 1e9))
def test_a_page_escapes_what_comes_from_data(text: str, value: float) -> None:
    parts = [
        report.tiles([(text, text)]),
        report.bar_chart(text, [(text, value)], unit=text),
        report.range_chart(text, [(text, [value, value + 1])], names=("a", text)),
        report.line_chart(text, [report.Series(text, [(0, value), (1, None), (2, value)])], unit="n"),
        report.table([text], [[text]]),
    ]
    page = report.page("<script>" + text, text, [report.heading(text, text), *parts])
    assert "<script" not in page
    assert Checked(page).charts == 3


@given(st.floats(1e-6, 1e15))
def test_marks_of_an_axis_are_few_and_reach_the_top(high: float) -> None:
    marks = report.nice_marks(0, high)
    assert marks[0] == 0
    assert marks[-1] >= high * 0.999
    assert 2 <= len(marks) <= 8


def test_parameters_tell_what_they_are() -> None:
    for job in (Lifecycle(), Depth(), Fairness()):
        found = {name: about for name, _, about in parameters_of(job.parameters)}
        assert {"store_dir", "since", "queue"} <= set(found)
        assert all(about["help"] for about in found.values())
    assert "secret" not in repr(LogParameters(password="secret"))
    assert "secret" not in LogParameters(store_dir="x", password="secret").source_options().values()


def test_impossible_parameters_are_refused(busy: Path) -> None:
    for job, wrong in ((Depth(), {"bucket": 1e-9}), (Fairness(), {"by": "x"}), (Fairness(), {"busy": 0})):
        with pytest.raises(OperatorError):
            job.build(None, job.parameters(store_dir=str(busy), **wrong))  # type: ignore[arg-type]
