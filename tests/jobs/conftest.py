"""The jobs' tests use the broker and the Spark session of the pipeline's tests; one that fails says why Spark's tasks did."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

import pytest

from tests.jobs import causes
from tests.pipeline.conftest import plane_broker, spark

__all__ = ["plane_broker", "spark"]
# As in tests/pipeline: its shorter witness stands beside it.
collect_ignore = [] if os.environ.get("FLINTMQ_LONG") == "1" else ["test_records_killed_spark.py"]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    report = yield
    causes.add(report, call)
    return report
