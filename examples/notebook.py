# %% [markdown]
# # Orders: from a queue to a table and back
#
# A notebook in percent format: VS Code and PyCharm show its cells as they are, and
# `pip install jupytext && jupytext --to notebook examples/notebook.py` makes an `.ipynb` of it. As a script it runs from top to bottom:
# `python examples/notebook.py`. It needs a broker (`make serve`) on 127.0.0.1 with its default ports.

# %%
from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import pika
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

AMQP_URL = os.environ.get("FLINTMQ_URL", "amqp://guest:guest@127.0.0.1:5672/%2F")
FLIGHT_PORT = os.environ.get("FLINTMQ_FLIGHT_PORT", "15680")
OUT = Path(tempfile.mkdtemp(prefix="flintmq-notebook-"))

# %% [markdown]
# ## A Spark session
# Nothing of FlintMQ is registered: Spark finds the format by the installed package. Its workers must run this Python.

# %%
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1").getOrCreate()
spark.sparkContext.setLogLevel("ERROR")

# %% [markdown]
# ## Some orders
# Any AMQP client will do.

# %%
connection = pika.BlockingConnection(pika.URLParameters(AMQP_URL))
channel = connection.channel()
channel.confirm_delivery()
for queue in ("notebook-orders", "notebook-totals"):
    channel.queue_declare(queue, durable=True)
for number in range(300):
    order = {"number": number, "shop": ("north", "south", "web")[number % 3], "cents": 100 * number}
    channel.basic_publish("", "notebook-orders", json.dumps(order).encode(), pika.BasicProperties(delivery_mode=2))

# %% [markdown]
# ## Looking without taking
# `spark.read` shows what stands in the queue now. The messages stay.

# %%
waiting = spark.read.format("flintmq").option("flightPort", FLIGHT_PORT).option("queue", "notebook-orders").load()
waiting.select("position", "enqueued_time", f.col("body").cast("string")).orderBy("position").show(5, truncate=False)

# %% [markdown]
# ## Taking each once
# `spark.readStream` takes them out. The broker lets a batch go when Spark has committed it; run this cell again, and it goes on.

# %%
messages = spark.readStream.format("flintmq").option("flightPort", FLIGHT_PORT).option("queue", "notebook-orders").load()
orders = messages.select(f.from_json(f.col("body").cast("string"), "number INT, shop STRING, cents LONG").alias("o")).select("o.*")
query = (
    orders.writeStream.format("parquet")
    .option("path", str(OUT / "orders"))
    .option("checkpointLocation", str(OUT / "checkpoint"))
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()

# %%
totals = spark.read.parquet(str(OUT / "orders")).groupBy("shop").agg(f.count("*").alias("orders"), f.sum("cents").alias("cents"))
totals.orderBy("shop").show()

# %% [markdown]
# ## Back into a queue, once
# Written under a name: the second write finds that it was done.

# %%
for _ in range(2):
    (
        totals.select(f.to_json(f.struct("*")).alias("body"), f.col("shop").alias("message_id"))
        .write.format("flintmq")
        .mode("append")
        .option("flightPort", FLIGHT_PORT)
        .option("queue", "notebook-totals")
        .option("txnId", f"totals of {OUT.name}")
        .save()
    )

# %%
while True:
    method, properties, body = channel.basic_get("notebook-totals", auto_ack=True)
    if method is None:
        break
    print(properties.message_id, body.decode())

# %%
connection.close()
spark.stop()
