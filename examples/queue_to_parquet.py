"""Reads what the queue `orders` holds into Parquet and shows the turnover by shop. Run it as often as you like: each order arrives once."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

out = Path(tempfile.gettempdir()) / "flintmq-example-orders"
# Spark's workers must run the Python that has the packages.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1").getOrCreate()
spark.sparkContext.setLogLevel("ERROR")

messages = spark.readStream.format("flintmq").option("queue", "orders").load()
orders = messages.select("message_id", f.from_json(f.col("body").cast("string"), "number INT, shop STRING, cents LONG").alias("o"))
query = (
    orders.select("message_id", "o.*")
    .writeStream.format("parquet")
    .option("path", str(out / "orders"))
    .option("checkpointLocation", str(out / "checkpoint"))
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()

table = spark.read.parquet(str(out / "orders"))
table.groupBy("shop").agg(f.count("*").alias("orders"), (f.sum("cents") / 100).alias("turnover")).orderBy("shop").show()
spark.stop()
