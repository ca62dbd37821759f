"""Turnover by shop and window of time from the queue `orders` into the stream `turnover`, keyed by shop: each window once.

    python examples/windows_to_stream.py --checkpoint /tmp/turnover                 until the queue is empty
    python examples/windows_to_stream.py --checkpoint /tmp/turnover --follow        until Ctrl-C

Queue and stream must exist (`publish_orders.py` declares both). The time is that of the order, not of its arrival: a window is written
when an order came that is --late seconds younger than the window's end, and orders of written windows are left out (`late_rows`).
The state of the open windows is in RocksDB on the executors' disks, and its changes are in the checkpoint: memory does not grow with the
number of shops. The shop is the correlation id of each message, so that the stream's readers may have one task for each shop in its
order: `keyColumn=correlation_id`.
Kill it with `kill -9` and start it again with the same --checkpoint: docs/pipeline/pipelines.md.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from typing import Any

from progress import Progress
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

ROCKSDB = {
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    # A batch uploads what it changed, not the files of the whole store.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # All stores of an executor share this much memory (MiB).
    "spark.sql.streaming.stateStore.rocksdb.boundedMemoryUsage": "true",
    "spark.sql.streaming.stateStore.rocksdb.maxMemoryUsageMB": "256",
}


def turnover(messages: Any, window_s: int, late_s: int) -> Any:
    """One message for each shop and window, with the columns of the sink."""
    order = f.from_json(f.col("body").cast("string"), "shop STRING, cents LONG, at TIMESTAMP")
    orders = messages.select(order.alias("order")).select("order.*").withWatermark("at", f"{late_s} seconds")
    sums = orders.groupBy(f.window("at", f"{window_s} seconds"), "shop").agg(f.count("*").alias("orders"), f.sum("cents").alias("cents"))
    body = f.to_json(f.struct("shop", f.col("window.start").alias("begin"), f.col("window.end").alias("end"), "orders", "cents"))
    return sums.select(body.alias("body"), f.col("shop").alias("correlation_id"), f.lit("application/json").alias("content_type"))


def main() -> None:
    parser = argparse.ArgumentParser(description="Turnover by shop and window of time, into a stream.")
    parser.add_argument("--url", default="grpc://127.0.0.1:15680", help="the broker's data plane")
    parser.add_argument("--queue", default="orders")
    parser.add_argument("--stream", default="turnover", help="a queue with x-queue-type=stream")
    parser.add_argument("--checkpoint", required=True, help="directory")
    parser.add_argument("--window", type=int, default=10, help="seconds")
    parser.add_argument("--late", type=int, default=60, help="seconds that orders may be late")
    parser.add_argument("--batch", type=int, default=100_000, help="messages of a batch at most")
    parser.add_argument("--follow", action="store_true", help="do not end when the queue is empty")
    options = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = (
        SparkSession.builder.appName("turnover")
        .config("spark.sql.streaming.metricsEnabled", "true")
        .config("spark.sql.shuffle.partitions", "2")
    )
    spark = builder.config(map=ROCKSDB).getOrCreate()
    spark.streams.addListener(Progress())

    source = {"url": options.url, "queue": options.queue, "columns": "body", "checkpointLocation": options.checkpoint}
    messages = spark.readStream.format("flintmq").options(**source, subscription="turnover", maxMessagesPerTrigger=options.batch).load()
    writer = turnover(messages, options.window, options.late).writeStream.queryName("turnover").format("flintmq")
    writer = writer.options(url=options.url, queue=options.stream).option("checkpointLocation", options.checkpoint).outputMode("append")
    writer = writer.trigger(processingTime="1 second") if options.follow else writer.trigger(availableNow=True)
    query = writer.start()
    with contextlib.suppress(KeyboardInterrupt):
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
