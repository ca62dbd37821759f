"""The Spark driver that is killed: two streaming queries over queues of one broker, in one JVM.

`files`: queues a.* -> Parquet file sink. `copy`: queues b.* -> flintmq sink -> queue `copy` and a stream.

`python -m tools.crash.spark.driver JSON` with directory, crash, flight_port, keys, master, rows. stdin: `go` starts the queries, `stop`
ends them, others are those of `Queries.obey`; stdout: a JSON line for each event (ready, started, ended with its code, stopped). It waits
for `go` with a warm session: the campaign keeps one such driver in reserve. A query that ends with an error is started again with its
checkpoint, as a supervisor would.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

QUERIES = ("files", "copy")
COPIES = "copies"  # publisher.COPIES: pika is not needed here
# Seconds between looks at the queries, and before one that ended is started again.
LOOK_S, AGAIN_S = 0.1, 0.3
_CODE = re.compile(r"FLINTMQ_[A-Z_]+|fault \d+")


def say(**event: Any) -> None:
    print(json.dumps(event), flush=True)


def source_frame(spark: Any, job: dict[str, Any], name: str) -> Any:
    """The stream of one query's queues."""
    letter = "a" if name == "files" else "b"
    options = {
        "flightPort": job["flight_port"],
        "queues": ",".join(f"{letter}.{key}" for key in job["keys"]),
        "subscription": name,
        "maxMessagesPerTrigger": job["rows"],
        "minPartitions": 2,
        "timeout": 60,
        "checkpointLocation": str(Path(job["directory"]) / f"checkpoint.{name}"),
        "crashDir": job["crash"],
        "crashName": name,
    }
    return spark.readStream.format("flintmq_crash").options(**options).load()


def start(spark: Any, job: dict[str, Any], name: str) -> Any:
    """Starts (again) one query. `second` is another one on the subscription of `files`, with files and a checkpoint of its own."""
    directory = Path(job["directory"])
    frame = source_frame(spark, job, "copy" if name == "copy" else "files")
    if name == "copy":
        writer = frame.selectExpr("body", "queue as correlation_id", "cast(position as string) as message_id")
        writer = writer.writeStream.format("flintmq_crash").options(
            flightPort=job["flight_port"], exchange=COPIES, routingKey="", timeout=60
        )
        writer = writer.option("crashDir", job["crash"]).option("crashName", name)
    else:
        writer = frame.select("queue", "position", "body", "delivery_mode").writeStream.format("parquet")
        writer = writer.option("path", str(directory / name))
    writer = writer.option("checkpointLocation", str(directory / f"checkpoint.{name}")).queryName(name)
    if name == "second":
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=job.get("trigger", "200 milliseconds")).start()


def session(job: dict[str, Any], scratch: str) -> Any:
    """A Spark session with the crash source."""
    from flintmq.pipeline.session import spark_session

    settings = {
        "spark.speculation": "true",
        "spark.speculation.interval": "200ms",
        "spark.speculation.multiplier": "1.5",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.minTaskRuntime": "500ms",
        "spark.executor.memory": "512m",
        "spark.deploy.maxExecutorRetries": "-1",
        "spark.sql.streaming.fileSink.log.compactInterval": "20",
        **job.get("conf", {}),
    }
    given = " ".join(f"--conf {key}={value}" for key, value in settings.items())
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"{given} pyspark-shell"
    root = str(Path(__file__).resolve().parents[3])
    os.environ["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    spark = spark_session("crash", Path(scratch), master=job["master"])
    from pyspark_flintmq import several_queries
    from tools.crash.spark.hooks import CrashSource

    spark.dataSource.register(CrashSource)
    if not several_queries(spark, CrashSource.name()):
        raise RuntimeError("two queries can't be started at once: this Spark keeps the environment of a data source elsewhere")
    return spark


def listen(inbox: list[str]) -> None:
    """stdin's lines; its end is a stop: the campaign is gone."""
    for line in sys.stdin:
        inbox.append(line.strip())
    inbox.append("stop")


class Queries:
    """The queries of this driver. Args: spark, job: see module."""

    def __init__(self, spark: Any, job: dict[str, Any]) -> None:
        self._spark, self._job = spark, job
        self._wanted = set(QUERIES)
        self._running: dict[str, Any] = {}
        self._again: dict[str, float] = {}

    def obey(self, words: list[str]) -> None:
        """`hold NAME`: stop it; `leave NAME`: don't start it again when it ends; `resume NAME`: the end of both."""
        verb, name = words
        if verb == "resume":
            self._wanted.add(name)
            self._again[name] = 0.0
            return
        self._wanted.discard(name)
        query = self._running.get(name)
        if verb == "hold" and query is not None:
            query.stop()

    def look(self) -> None:
        """Starts what is wanted and does not run; tells of ends."""
        for name in {*self._wanted, *self._running}:
            query = self._running.get(name)
            if query is not None and not query.isActive:
                self._running.pop(name)
                self._ended(name, query.exception())
            elif query is None and name in self._wanted and time.monotonic() >= self._again.get(name, 0.0):
                try:
                    self._running[name] = start(self._spark, self._job, name)
                    say(event="started", query=name, id=str(self._running[name].id))
                except Exception as e:  # load() with a worker that was killed: as an end
                    self._spark.sparkContext._jvm.System.currentTimeMillis()  # a dead JVM ends this process here
                    self._ended(name, e)

    def _ended(self, name: str, error: Any) -> None:
        say(event="ended", query=name, clean=error is None, **why(error))
        self._again[name] = time.monotonic() + AGAIN_S
        if name == "second":
            self._wanted.discard(name)

    def stop(self) -> None:
        """All of them."""
        for query in self._running.values():
            with contextlib.suppress(Exception):
                query.stop()


def run(spark: Any, job: dict[str, Any], inbox: list[str]) -> None:
    """Keeps the queries going until `stop`."""
    queries = Queries(spark, job)
    while "stop" not in inbox:
        while inbox:
            words = inbox.pop(0).split()
            if len(words) == 2:
                queries.obey(words)
        queries.look()
        time.sleep(LOOK_S)
    queries.stop()
    say(event="stopped")


def why(error: Any) -> dict[str, str]:
    """Codes in an error, and its last lines when it has none of ours."""
    text = str(error or "")
    codes = sorted(set(_CODE.findall(text)))
    return {"codes": ",".join(codes), "text": text[-1500:]}


def main(job: dict[str, Any]) -> None:
    inbox: list[str] = []
    with tempfile.TemporaryDirectory(dir=job["scratch"]) as scratch:
        spark = session(job, scratch)
        spark.range(100).selectExpr("sum(id)").collect()  # classes are loaded now, not after `go`
        threading.Thread(target=listen, args=(inbox,), daemon=True).start()
        say(event="ready", jvm=spark.sparkContext._gateway.proc.pid)
        while not inbox:
            time.sleep(0.02)
        if inbox.pop(0) == "go":
            run(spark, job, inbox)
        spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
