"""The Spark driver that is killed: two streaming queries over queues of one broker, in one JVM.

`files`: queues a.* -> Parquet file sink. `copy`: queues b.* -> flintmq sink -> queue `copy`.

`python -m tools.crash.spark.driver JSON` with directory, crash, flight_port, keys, master, rows. stdin: `go` starts the queries, `stop`
ends them; stdout: a JSON line for each event (ready, started, ended with its code, stopped). It waits for `go` with a warm session:
the campaign keeps one such driver in reserve. A query that ends with an error is started again with its checkpoint, as a supervisor would.
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
        "crashDir": job["crash"],
        "crashName": name,
    }
    return spark.readStream.format("flintmq_crash").options(**options).load()


def start(spark: Any, job: dict[str, Any], name: str) -> Any:
    """Starts (again) one query."""
    directory = Path(job["directory"])
    frame = source_frame(spark, job, name)
    if name == "files":
        writer = frame.select("queue", "position", "body", "delivery_mode").writeStream.format("parquet")
        writer = writer.option("path", str(directory / "files"))
    else:
        writer = frame.selectExpr("body", "queue as correlation_id", "cast(position as string) as message_id")
        writer = writer.writeStream.format("flintmq_crash").options(flightPort=job["flight_port"], queue="copy", timeout=60)
        writer = writer.option("crashDir", job["crash"]).option("crashName", name)
    writer = writer.option("checkpointLocation", str(directory / f"checkpoint.{name}")).queryName(name)
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
    from tools.crash.spark.hooks import CrashSource

    spark.dataSource.register(CrashSource)
    return spark


def listen(inbox: list[str]) -> None:
    """stdin's lines; its end is a stop: the campaign is gone."""
    for line in sys.stdin:
        inbox.append(line.strip())
    inbox.append("stop")


def run(spark: Any, job: dict[str, Any], inbox: list[str]) -> None:
    """Keeps the queries going until `stop`."""
    running: dict[str, Any] = {}
    again: dict[str, float] = dict.fromkeys(QUERIES, 0.0)
    while "stop" not in inbox:
        for name in QUERIES:
            query = running.get(name)
            if query is not None and not query.isActive:
                say(event="ended", query=name, **why(query.exception()))
                running.pop(name)
                again[name] = time.monotonic() + AGAIN_S
            elif query is None and time.monotonic() >= again[name]:
                try:
                    running[name] = start(spark, job, name)
                    say(event="started", query=name, id=str(running[name].id))
                except Exception as e:  # load() with a worker that was killed: as an end
                    spark.sparkContext._jvm.System.currentTimeMillis()  # a dead JVM ends this process here
                    say(event="ended", query=name, **why(e))
                    again[name] = time.monotonic() + AGAIN_S
        time.sleep(LOOK_S)
    for query in running.values():
        with contextlib.suppress(Exception):
            query.stop()
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
        if inbox[0] == "go":
            run(spark, job, inbox)
        spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
