"""The queue `orders` joined with a small table of shops, into Parquet or a Delta table: each order once, whatever is killed.

    python examples/enrich_orders.py --out /tmp/lake/orders                       until the queue is empty
    python examples/enrich_orders.py --out /tmp/lake/orders --follow              until Ctrl-C
    python examples/enrich_orders.py --out /tmp/lake/orders --format delta        pip install deltalake

The table of shops is small, so every task gets all of it (`broadcast`), and no order moves between machines. It is read again with each
batch. An order of an unknown shop is kept with an empty region, and a body that is no order is kept in `_corrupt_record`.
Parquet: Spark notes its batches in OUT/_spark_metadata. Delta: the commit that adds a batch notes its number (lakes.py).
Kill it with `kill -9` and start it again with the same --out: docs/pipeline/pipelines.md.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from pathlib import Path
from typing import Any

from lakes import into_delta
from progress import Progress
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

ORDER = "number INT, shop STRING, cents LONG, at TIMESTAMP, _corrupt_record STRING"


def enriched(messages: Any, shops: Any) -> Any:
    """Orders with what is known of their shop."""
    order = f.from_json(f.col("body").cast("string"), ORDER, {"columnNameOfCorruptRecord": "_corrupt_record"})
    orders = messages.select("message_id", "enqueued_time", order.alias("order")).select("message_id", "enqueued_time", "order.*")
    return orders.join(f.broadcast(shops), "shop", "left")


def main() -> None:
    parser = argparse.ArgumentParser(description="Orders with what is known of their shop, into Parquet or Delta.")
    parser.add_argument("--url", default="grpc://127.0.0.1:15680", help="the broker's data plane")
    parser.add_argument("--queue", default="orders")
    parser.add_argument("--shops", default=str(Path(__file__).with_name("shops.csv")), help="CSV with a header: shop, region, currency")
    parser.add_argument("--format", choices=("parquet", "delta"), default="parquet")
    parser.add_argument("--out", required=True, help="directory of the table; its checkpoint is OUT.checkpoint")
    parser.add_argument("--batch", type=int, default=100_000, help="messages of a batch at most")
    parser.add_argument("--follow", action="store_true", help="do not end when the queue is empty")
    options = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.appName("enrich").config("spark.sql.streaming.metricsEnabled", "true").getOrCreate()
    spark.streams.addListener(Progress())

    checkpoint = f"{options.out}.checkpoint"
    source = {"url": options.url, "queue": options.queue, "columns": "message_id,enqueued_time,body", "checkpointLocation": checkpoint}
    messages = spark.readStream.format("flintmq").options(**source, subscription="enrich", maxMessagesPerTrigger=options.batch).load()
    shops = spark.read.csv(options.shops, header=True, schema="shop STRING, region STRING, currency STRING")
    writer = enriched(messages, shops).writeStream.queryName("enrich").option("checkpointLocation", checkpoint)
    writer = writer.trigger(processingTime="1 second") if options.follow else writer.trigger(availableNow=True)
    if options.format == "delta":
        query = writer.foreachBatch(into_delta(options.out, checkpoint)).start()
    else:
        query = writer.format("parquet").option("path", options.out).start()
    with contextlib.suppress(KeyboardInterrupt):
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
