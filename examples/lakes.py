"""A queue into a Delta or an Iceberg table without a jar: each batch is one commit of the table, and a batch that comes again adds nothing.

    python examples/lakes.py delta /tmp/lake/orders          (pip install deltalake)
    python examples/lakes.py iceberg /tmp/lake               (pip install 'pyiceberg[pyarrow,sql-sqlite]')

Spark runs a batch again, with its number and its rows, when the driver died behind the table's commit and before Spark's own. So the
commit that adds the rows also notes (query, number). The query's identity is in its checkpoint: a new one counts from 0 under another name.
Batches pass through the driver: maxMessagesPerTrigger bounds its memory.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def query_of(checkpoint: str) -> str:
    """The identity of a query, which Spark writes into a new checkpoint before the first batch."""
    return str(json.loads(Path(checkpoint, "metadata").read_text())["id"])


def into_delta(path: str, checkpoint: str) -> Callable[[Any, int], None]:
    """For `foreachBatch`: appends to the Delta table at `path`, with Delta's own note of the last batch of an application."""
    from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

    def write(frame: Any, batch: int) -> None:
        query = query_of(checkpoint)
        last = DeltaTable(path).transaction_version(query) if DeltaTable.is_deltatable(path) else None
        if last is None or last < batch:
            note = CommitProperties(app_transactions=[Transaction(query, batch)])
            write_deltalake(path, frame.toArrow(), mode="append", commit_properties=note)

    return write


def into_iceberg(table: Any, checkpoint: str) -> Callable[[Any, int], None]:
    """For `foreachBatch`: appends to a table of pyiceberg, with the last batch in the table's property `flintmq.batch.QUERY`."""

    def write(frame: Any, batch: int) -> None:
        key = f"flintmq.batch.{query_of(checkpoint)}"
        table.refresh()
        if int(table.properties.get(key, -1)) < batch:
            with table.transaction() as together:
                together.append(frame.toArrow())
                together.set_properties({key: str(batch)})

    return write


def main(kind: str, place: Path) -> None:
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    messages = spark.readStream.format("flintmq").option("queue", "orders").option("maxMessagesPerTrigger", 100_000).load()
    rows = messages.select("queue", "position", "routing_key", "body")
    checkpoint = str(place.with_name(f"{place.name}.checkpoint"))
    if kind == "delta":
        write = into_delta(str(place), checkpoint)
    else:
        from pyiceberg.catalog.sql import SqlCatalog

        place.mkdir(parents=True, exist_ok=True)
        catalog = SqlCatalog("lake", uri=f"sqlite:///{place}/catalog.db", warehouse=f"file://{place}")
        catalog.create_namespace_if_not_exists("shop")
        table = catalog.create_table_if_not_exists("shop.orders", spark.createDataFrame([], rows.schema).toArrow().schema)
        write = into_iceberg(table, checkpoint)
    rows.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]).absolute())
