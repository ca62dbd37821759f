"""The queue as a streaming table: each message once, in the columns that its JSON body has."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

spark = SparkSession.active()

PASSWORD = os.environ.get("FLINTMQ_PASSWORD", "guest")
ORDER = "number LONG, shop STRING, cents LONG"


@dp.table(comment="every order, once")
def orders() -> DataFrame:
    """Takes the messages out of the queue: the broker lets them go when the table has them."""
    messages = (
        spark.readStream.format("flintmq")
        .option("host", spark.conf.get("spark.flintmq.host"))
        .option("flightPort", spark.conf.get("spark.flintmq.flightPort"))
        .option("user", spark.conf.get("spark.flintmq.user"))
        .option("password", PASSWORD)
        .option("queue", spark.conf.get("spark.flintmq.queue"))
        .option("columns", "message_id,body,enqueued_time")
        .load()
    )
    order = f.from_json(f.col("body").cast("string"), ORDER)
    return messages.select("message_id", "enqueued_time", order.alias("o")).select("message_id", "enqueued_time", "o.*")
