"""Totals by shop from the queue `orders` into a table of PostgreSQL, added up there: each order counts once.

    python examples/totals_to_postgres.py --checkpoint /tmp/totals --dsn postgresql://me@127.0.0.1/shop                until it is empty
    python examples/totals_to_postgres.py --checkpoint /tmp/totals --dsn postgresql://me@127.0.0.1/shop --follow       until Ctrl-C

pip install 'psycopg[binary]'. The password is PostgreSQL's own affair (PGPASSWORD, ~/.pgpass).
Spark runs a batch again, with its number and its messages, when the driver died behind PostgreSQL's commit and before Spark's own. So the
transaction that adds a batch also notes (query, batch) in the table `batches`, and adds nothing when that number is there already. The
row of the query is a lock as well: of two drivers that run one batch, one adds it.
Executors add up first, so the driver and PostgreSQL get a row for each shop of a batch.
Kill it with `kill -9` and start it again with the same --checkpoint: docs/pipeline/pipelines.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psycopg
from progress import Progress
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

TABLES = """
CREATE TABLE IF NOT EXISTS totals (shop text PRIMARY KEY, orders bigint NOT NULL, cents bigint NOT NULL);
CREATE TABLE IF NOT EXISTS batches (query text PRIMARY KEY, batch bigint NOT NULL, at timestamptz NOT NULL DEFAULT now())
"""
# No row comes back when this batch or a later one is there.
NOTE = """
INSERT INTO batches (query, batch) VALUES (%s, %s)
ON CONFLICT (query) DO UPDATE SET batch = excluded.batch, at = now() WHERE batches.batch < excluded.batch RETURNING batch
"""
ADD = """
INSERT INTO totals (shop, orders, cents) VALUES (%s, %s, %s)
ON CONFLICT (shop) DO UPDATE SET orders = totals.orders + excluded.orders, cents = totals.cents + excluded.cents
"""


def add_once(dsn: str, query: str, batch: int, rows: Sequence[tuple[str, int, int]]) -> bool:
    """Adds (shop, orders, cents) in one transaction with the note of the batch. False: the batch was added before."""
    with psycopg.connect(dsn) as connection:
        if connection.execute(NOTE, (query, batch)).fetchone() is None:
            return False
        # In one order everywhere: two queries that add to the same shops do not wait for each other in a circle.
        connection.cursor().executemany(ADD, sorted(rows))
    return True


def into_postgres(dsn: str, checkpoint: str) -> Callable[[Any, int], None]:
    """For `foreachBatch`."""

    def write(frame: Any, batch: int) -> None:
        # The query's identity, which Spark writes when it makes a checkpoint: a new one counts its batches from 0 under another name.
        query = json.loads(Path(checkpoint, "metadata").read_text())["id"]
        order = f.from_json(f.col("body").cast("string"), "shop STRING, cents LONG")
        orders = frame.select(order.alias("order")).select(
            f.coalesce("order.shop", f.lit("?")).alias("shop"), f.coalesce("order.cents", f.lit(0)).alias("cents")
        )
        sums = orders.groupBy("shop").agg(f.count("*"), f.sum("cents"))
        add_once(dsn, query, batch, [tuple(row) for row in sums.collect()])

    return write


def main() -> None:
    parser = argparse.ArgumentParser(description="Totals by shop, added up in PostgreSQL.")
    parser.add_argument("--url", default="grpc://127.0.0.1:15680", help="the broker's data plane")
    parser.add_argument("--queue", default="orders")
    parser.add_argument("--dsn", required=True, help="PostgreSQL")
    parser.add_argument("--checkpoint", required=True, help="directory")
    parser.add_argument("--batch", type=int, default=100_000, help="messages of a batch at most")
    parser.add_argument("--follow", action="store_true", help="do not end when the queue is empty")
    options = parser.parse_args()
    with psycopg.connect(options.dsn) as connection:
        connection.execute(TABLES)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.appName("totals")
        .config("spark.sql.streaming.metricsEnabled", "true")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.streams.addListener(Progress())

    source = {"url": options.url, "queue": options.queue, "columns": "body", "checkpointLocation": options.checkpoint}
    messages = spark.readStream.format("flintmq").options(**source, subscription="totals", maxMessagesPerTrigger=options.batch).load()
    writer = messages.writeStream.queryName("totals").foreachBatch(into_postgres(options.dsn, options.checkpoint))
    writer = writer.option("checkpointLocation", options.checkpoint)
    writer = writer.trigger(processingTime="1 second") if options.follow else writer.trigger(availableNow=True)
    query = writer.start()
    with contextlib.suppress(KeyboardInterrupt):
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
