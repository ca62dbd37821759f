"""Counts the messages of the queue `orders` by shop while they come, until Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

out = Path(tempfile.gettempdir()) / "flintmq-example-live"
# Spark's workers must run the Python that has the packages.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1").getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
spark.conf.set("spark.sql.shuffle.partitions", "2")

messages = spark.readStream.format("flintmq").options(queue="orders", subscription="live counts").load()
shop = f.get_json_object(f.col("body").cast("string"), "$.shop").alias("shop")
query = (
    messages.groupBy(shop)
    .count()
    .writeStream.format("console")
    .outputMode("complete")
    .option("checkpointLocation", str(out / "checkpoint"))
    .start()
)
with contextlib.suppress(KeyboardInterrupt):
    query.awaitTermination()
spark.stop()
