"""The job that `tests.pipeline.sites` runs in foreign surroundings: only PySpark and the wheel `pyspark-flintmq` are there.

In: one argument of JSON (master or remote, conf, options of the source, queue, again, through, stream, out, count). Out: one line of JSON.
"""

import json
import sys
from pathlib import Path
from typing import Any

# a batch of a streaming query, so that there are several
BATCH = 300


def numbers(frame: Any) -> list[int]:
    """The bodies, which are decimal numbers, in order."""
    return sorted(int(bytes(row.body).decode()) for row in frame.select("body").collect())


class Site:
    """One session. Args: job: see the module."""

    def __init__(self, spark: Any, job: dict[str, Any]) -> None:
        self.spark, self.job, self.out = spark, job, Path(job["out"])
        # what progress reports say of the sources
        self.latest: list[str] = []

    def stream(self, queue: str, checkpoint: Path) -> Any:
        options = self.job["options"] | {"queue": queue, "maxMessagesPerTrigger": str(BATCH), "checkpointLocation": str(checkpoint)}
        return self.spark.readStream.format("flintmq").options(**options).load()

    def run(self, frame: Any, form: str, checkpoint: Path, **options: str) -> int:
        """Runs to its end. Returns: the rows that it read."""
        writer = frame.writeStream.format(form).option("checkpointLocation", str(checkpoint)).options(**options)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        found = query.recentProgress
        self.latest += [str(source.latestOffset) for one in found for source in one.sources]
        return sum(int(one.numInputRows) for one in found)

    def files(self, queue: str, name: str) -> list[int]:
        """A queue or stream into Parquet, in as many runs as it takes (before 4.2 a run is one batch)."""
        target, checkpoint = self.out / name, self.out / f"{name}.checkpoint"
        while self.run(self.stream(queue, checkpoint), "parquet", checkpoint, path=str(target)):
            pass
        return numbers(self.spark.read.parquet(str(target)))

    def copy(self, queue: str, stream: str) -> None:
        """A queue into a stream."""
        checkpoint, options = self.out / "copy.checkpoint", self.job["options"] | {"queue": stream}
        while self.run(self.stream(queue, checkpoint).select("body"), "flintmq", checkpoint, **options):
            pass

    def again(self, queue: str) -> list[int]:
        """The first batch of a new checkpoint fails, and comes again."""

        def fail(frame: Any, batch: int) -> None:
            raise RuntimeError(f"on purpose, of {frame.count()} rows in batch {batch}")

        checkpoint = self.out / "again.checkpoint"
        writer = self.stream(queue, checkpoint).writeStream.foreachBatch(fail).option("checkpointLocation", str(checkpoint))
        query = writer.trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        except Exception as error:
            if f"of {BATCH} rows in batch 0" not in str(error):
                raise
        return self.files(queue, "again")

    def all(self) -> dict[str, Any]:
        job = self.job
        told: dict[str, Any] = {"spark": self.spark.version}
        told["looked"] = numbers(self.spark.read.format("flintmq").options(**job["options"], queue=job["queue"]).load())
        told["files"] = self.files(job["queue"], "files")
        rows = self.spark.range(0, job["count"], 1, 2).selectExpr("cast(cast(id as string) as binary) as body", "'k' as correlation_id")
        rows.write.format("flintmq").options(**job["options"], queue=job["through"], txnId=job["through"]).mode("append").save()
        self.copy(job["through"], job["stream"])
        told["streamed"] = self.files(job["stream"], "streamed")
        if "remote" not in job:
            told["again"] = self.again(job["again"])
        told["behind"] = any("messages_behind" in one for one in self.latest)
        return told


def main() -> None:
    from pyspark.sql import SparkSession

    job = json.loads(sys.argv[1])
    builder = SparkSession.builder
    builder = builder.remote(job["remote"]) if "remote" in job else builder.master(job["master"])
    for name, value in job["conf"].items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        print(json.dumps(Site(spark, job).all()), flush=True)
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
