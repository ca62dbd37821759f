"""A Spark driver in a process of its own, for tests that kill it: copies a queue to Parquet until it dies.

In: AMQP URL, queue, directory (arguments). Out: DIR/data, DIR/checkpoint, DIR/spool; the pid of its JVM in DIR/jvm.
"""

from __future__ import annotations

import sys
from pathlib import Path

from examples.flights.job import source_options
from flintmq.pipeline.session import spark_session


def main(url: str, queue: str, directory: Path) -> None:
    spark = spark_session("killed driver", directory)
    gateway = spark.sparkContext._gateway
    (directory / "jvm").write_text(str(gateway.proc.pid))
    frame = (
        spark.readStream.format("flintmq").options(**source_options(url, queue, directory / "spool")).option("maxMessagesPerTrigger", 500)
    )
    writer = frame.load().writeStream.format("parquet").option("path", str(directory / "data"))
    writer.option("checkpointLocation", str(directory / "checkpoint")).start().awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
