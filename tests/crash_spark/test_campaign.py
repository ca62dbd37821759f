"""Exactly once from queues through Spark into files and into a queue, while a worker, the broker and the driver are killed."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark")
from flintmq.errors import OperatorError
from flintmq.pipeline.session import check_java
from tools.crash.spark import campaign
from tools.crash.spark.campaign import Campaign
from tools.crash.spark.plan import Kill

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

KILLS = (
    Kill("copy", "write-prepared", "worker"),
    Kill("copy", "sinkcommit-enter", "broker"),
    Kill("files", "partitions-exit", "driver"),
)


def test_three_kills_lose_and_repeat_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker whose stage is prepared, the broker before the sink's commit, the driver with a planned batch: each message once in both."""
    try:
        check_java()
    except OperatorError as e:
        pytest.skip(str(e))
    monkeypatch.setattr(campaign, "REACH_S", 120.0)  # a busy machine comes to each point later
    with Campaign(tmp_path, seed=1, quiet=True) as strikes:
        summary = strikes.run(iter(KILLS), len(KILLS))
    assert summary["findings"] == []
    assert (summary["kills"], summary["not_reached"], summary["garbage"]) == (3, 0, 0)
    assert (summary["lost"], summary["duplicate"]) == (0, 0)
    assert summary["rows"] >= summary["messages"] > 100
    assert summary["streamed"] == summary["copies"] >= summary["messages"]
    assert summary["drivers"] >= 2 and summary["brokers"] == 2
