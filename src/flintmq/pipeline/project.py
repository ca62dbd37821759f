"""A project for `spark-pipelines` (Spark Declarative Pipelines): what `flintmq pipeline init` writes.

in: a directory, names of queues. out: spark-pipeline.yml, conf/spark-defaults.conf, transformations/*.py, README.md.
Invariant: nothing that is there is written over.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from flintmq.errors import OperatorError

SPEC = """\
# A pipeline for `spark-pipelines run`. The source and the sink find their broker in `configuration`, whose names must begin with spark.
name: @NAME@
# Tables' checkpoints. The subscription in the broker goes on where they are: keep both, or neither.
storage: @STORAGE@
libraries:
  - glob:
      include: transformations/**
configuration:
  spark.flintmq.host: 127.0.0.1
  spark.flintmq.flightPort: "@PORT@"
  spark.flintmq.user: guest
  spark.flintmq.queue: @QUEUE@
  spark.flintmq.sinkQueue: @SINK@
"""

DEFAULTS = """\
# Spark's own settings, read when SPARK_CONF_DIR is this directory.
# A catalog on disk (metastore_db): without one a second run does not know the tables of the first (LOCATION_ALREADY_EXISTS).
spark.sql.catalogImplementation hive
"""

ORDERS = '''\
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
'''

TOTALS = '''\
"""Turnover by shop: computed anew by each run from all orders."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

spark = SparkSession.active()


@dp.materialized_view(comment="orders and turnover by shop")
def totals() -> DataFrame:
    orders = spark.read.table("orders")
    return orders.groupBy("shop").agg(f.count("*").alias("orders"), f.sum("cents").alias("cents"))
'''

SINK = '''\
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
'''

README = """\
# @NAME@

    queue @QUEUE@ --> orders (streaming table) --> totals (materialized view)
                             \\--> queue @SINK@ (orders of 500.00 and more)

```
pip install 'flintmq[spark,pipelines]'   # and Java 17 or newer
export PYSPARK_PYTHON="$(command -v python)"   # the Python that has these packages
export SPARK_CONF_DIR="$PWD/conf"        # Spark's own settings: the catalog that knows the tables from run to run
spark-pipelines dry-run                  # checks the graph; it does not ask the broker
spark-pipelines run                      # takes what the queue holds, and ends
```

Both queues must exist. Each run goes on where the last one ended; run it by cron or a scheduler, always in this directory.
Checkpoints, tables and their catalog are in `storage/`, `spark-warehouse/` and `metastore_db/`: each order comes into the
table once, and each large one into the queue once, whatever is killed.

* Where the broker is, who asks, and the names of the queues stand in `spark-pipeline.yml` under `configuration`; the password in
  the variable `FLINTMQ_PASSWORD` (`guest`).
* Spark's own settings (memory, master) belong in `conf/spark-defaults.conf`: the spec file takes no static ones.
* `spark-pipelines run --full-refresh orders` empties the table and reads the queue again: what was taken out before is not there any more.
  `flintmq pipeline run replay` brings it back from an archive.
* `flintmq pipeline status` shows how far the pipeline is, as the broker sees it.
"""

_FILES = {
    "spark-pipeline.yml": SPEC,
    "conf/spark-defaults.conf": DEFAULTS,
    "transformations/orders.py": ORDERS,
    "transformations/totals.py": TOTALS,
    "transformations/large_orders.py": SINK,
    "README.md": README,
}
_NAME = re.compile(r"[^a-z0-9_]+")


def project_files(name: str, storage: str, queue: str, sink_queue: str, flight_port: int) -> dict[str, str]:
    """Path -> text. Args: storage: URI of the directory for checkpoints."""
    in_yaml = json.dumps  # JSON's strings are YAML's
    words = {"NAME": name, "STORAGE": storage, "PORT": str(flight_port)}
    files = {}
    for path, text in _FILES.items():
        quoted = {"QUEUE": in_yaml(queue), "SINK": in_yaml(sink_queue)} if path.endswith(".yml") else {"QUEUE": queue, "SINK": sink_queue}
        for word, value in {**words, **quoted}.items():
            text = text.replace(f"@{word}@", value)
        files[path] = text
    return files


def write_project(directory: Path, *, queue: str, sink_queue: str, flight_port: int) -> list[Path]:
    """Writes the project; returns its files. Raises: OperatorError (64) when one of them is there, (74) for the disk."""
    directory = directory.expanduser().absolute()
    name = _NAME.sub("_", directory.name.lower()).strip("_") or "pipeline"
    files = project_files(name, (directory / "storage").as_uri(), queue, sink_queue, flight_port)
    there = [path for path in files if (directory / path).exists()]
    if there:
        raise OperatorError(f"{directory} has {', '.join(there)} already: nothing was written", 64)
    try:
        for path, text in files.items():
            (directory / path).parent.mkdir(parents=True, exist_ok=True)
            (directory / path).write_text(text)
    except OSError as error:
        raise OperatorError(f"{error.filename}: {error.strerror}", 74) from error
    return [directory / path for path in files]
