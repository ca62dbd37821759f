"""A queue into an Iceberg table by the recipe of docs/pipeline/clusters.md: each message once.

pyiceberg is no part of the test set-up (`pip install 'pyiceberg[pyarrow,sql-sqlite]'`): else this file is not collected.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.pipeline.lakes import each_message_once, example
from tests.support.broker import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def test_a_batch_that_comes_again_adds_nothing_to_an_iceberg_table(spark: SparkSession, plane_broker: Broker, tmp_path: Path) -> None:
    import pyarrow as pa
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/lake")
    catalog.create_namespace("shop")
    schema = pa.schema([("queue", pa.string()), ("position", pa.int64()), ("body", pa.binary())])
    table = catalog.create_table("shop.orders", schema)

    def bodies() -> list[bytes]:
        seen = catalog.load_table("shop.orders").scan(selected_fields=("body",)).to_arrow()
        return [bytes(body) for body in seen.column("body").to_pylist()]

    each_message_once(spark, plane_broker, tmp_path, example().into_iceberg(table, str(tmp_path / "checkpoint")), bodies)
