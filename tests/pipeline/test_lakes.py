"""A queue into a Delta table by the recipe of docs/pipeline/clusters.md: each message once. Iceberg: test_lakes_iceberg.py."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.pipeline.lakes import each_message_once, example
from tests.support.broker import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def test_a_batch_that_comes_again_adds_nothing_to_a_delta_table(spark: SparkSession, plane_broker: Broker, tmp_path: Path) -> None:
    from deltalake import DeltaTable

    path = str(tmp_path / "table")

    def bodies() -> list[bytes]:
        return [bytes(body) for body in DeltaTable(path).to_pyarrow_table(columns=["body"]).column("body").to_pylist()]

    each_message_once(spark, plane_broker, tmp_path, example().into_delta(path, str(tmp_path / "checkpoint")), bodies)
