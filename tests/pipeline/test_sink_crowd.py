"""A cluster's worth of tasks at once: 320 of Spark's, each with one attempt, and 1,000 that do what those do. None fails.

It takes a minute and 320 Python processes, so it is collected with FLINTMQ_LONG=1 only: `make test-spark`. What it rests on is in
tests/flight/test_crowd.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.flight_crowd import QUEUE, Crowd, write_one
from flintmq.flight.client import DataPlane
from tests.pipeline.plane import flight_port, publish, ready
from tests.support.broker import Broker

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
TASKS, ROWS = 320, 500
# A driver of its own: the tests' session has two tasks at once. A task that fails ends the job, as in `local` it has one attempt.
DRIVER = """
import json, sys
from pathlib import Path
from flintmq.pipeline.session import spark_session
told = json.loads(sys.argv[1])
spark = spark_session("crowd", Path(told["scratch"]), master=f"local[{told['tasks']}]")
from pyspark_flintmq import DefaultSource
spark.dataSource.register(DefaultSource)
rows = spark.range(0, told["tasks"] * told["rows"], 1, told["tasks"]).selectExpr("cast(cast(id as string) as binary) as body")
rows.write.format("flintmq").options(**told["options"]).mode("append").save()
spark.stop()
"""


def test_320_tasks_of_spark_at_once_with_one_attempt_each(tmp_path: Path) -> None:
    with Broker("--flight-port", "0") as broker:
        publish(broker, "crowd", [])
        options = {"flightPort": str(flight_port(broker)), "routingKey": "crowd", "timeout": "30"}
        told = {"scratch": str(tmp_path), "tasks": TASKS, "rows": ROWS, "options": options}
        done = subprocess.run([sys.executable, "-c", DRIVER, json.dumps(told)], capture_output=True, text=True, timeout=500, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
        assert ready(broker, "crowd") == TASKS * ROWS


def test_1000_tasks_at_once() -> None:
    with Broker("--flight-port", "0") as broker:
        publish(broker, QUEUE, [])
        port = flight_port(broker)
        with DataPlane("127.0.0.1", port) as plane, Crowd(port, write_one, 8) as crowd:
            scope, epoch = "once:crowd", plane.scope_open()
            told = {"rows": ROWS, "scope": scope, "epoch": epoch, "batch": 1, "timeout_s": 30.0}
            found, _, _ = crowd.run(1_000, 1_000, told)
            assert [one["error"] for one in found if "error" in one] == []
            plane.stage_commit(scope, epoch, 1, [one["stage"] for one in found])
            assert plane.status()["flight"]["line"]["busy"] > 0, "none of them had to wait"
        assert ready(broker, QUEUE) == 1_000 * ROWS
