"""Large orders go into a queue, where any AMQP client can have them: each once. The queue must exist."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

spark = SparkSession.active()

PASSWORD = os.environ.get("FLINTMQ_PASSWORD", "guest")
LARGE_CENTS = 50_000

dp.create_sink(
    "large_orders_queue",
    format="flintmq",
    options={
        "host": spark.conf.get("spark.flintmq.host"),
        "flightPort": spark.conf.get("spark.flintmq.flightPort"),
        "user": spark.conf.get("spark.flintmq.user"),
        "password": PASSWORD,
        "queue": spark.conf.get("spark.flintmq.sinkQueue"),
        "contentType": "application/json",
    },
)


@dp.append_flow(target="large_orders_queue")
def large_orders() -> DataFrame:
    orders = spark.readStream.table("orders").where(f.col("cents") >= LARGE_CENTS)
    return orders.select(f.to_json(f.struct("number", "shop", "cents")).alias("body"), "message_id")
