"""test_records_killed.py with a driver that has a JVM and Python workers of its own (half a minute: `make test-spark` runs it)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flintmq.pipeline.jobs.archive import ARCHIVE
from flintmq.pipeline.jobs.job import built
from tests.jobs.killed_archive import parameters
from tests.jobs.stores import shared_busy_store
from tests.jobs.test_records_killed import Row, kill, records, seen, whole

__all__ = ["records"]


@pytest.mark.spark
def test_a_real_driver_killed_among_its_moves(spark: Any, tmp_path: Path, records: list[Row]) -> None:
    """Its tasks wrote the files; another session does it again."""
    out = tmp_path / "out"
    kill(out, "moved", "spark")
    partly = seen(out)
    assert 0 < len(partly) < len(records) and len(partly) == len(set(partly)) and set(partly) < set(records)
    with built(ARCHIVE, spark, parameters(str(shared_busy_store()), str(out))) as plan:
        assert ARCHIVE.summarise(plan).figures["rows"] == len(records)
    whole(out, records)
