"""The pipelines of examples/, each killed with SIGKILL where it hurts and started again: every order is once in what they make.

`make test-spark` runs this (FLINTMQ_LONG=1). Properties: KILLED-PARQUET, KILLED-DELTA, KILLED-STREAM, KILLED-POSTGRES.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from flintmq.flight.client import DataPlane
from flintmq.flight.tables import stream
from tests.pipeline.plane import channel_of, flight_port, ready
from tests.support.broker import Broker, wait_until
from tests.support.postgres import PostgresServer, postgres_missing, postgres_server
from tools.crash.spark.processes import child, end_session, kill

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

COUNT, BATCH = 4_000, 500
SHOPS = ("north", "south", "web", "closed")
# an example runs to its end on a machine that is too busy for it
RUN_S = 300


class Example:
    """One example and its checkpoint. Args: arguments: of its command line, all but broker, queue and size of a batch."""

    def __init__(self, broker: Broker, name: str, queue: str, checkpoint: Path, arguments: list[str]) -> None:
        url = f"grpc://127.0.0.1:{flight_port(broker)}"
        self._command = [name, "--url", url, "--queue", queue, "--batch", str(BATCH), *arguments]
        self._checkpoint = checkpoint
        self._marks = checkpoint.with_name("marks")
        self._marks.mkdir()

    def commits(self) -> int:
        with contextlib.suppress(FileNotFoundError):
            return sum(file.name.isdigit() for file in (self._checkpoint / "commits").iterdir())
        return 0

    def _start(self, stop: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.pipeline.example_driver", stop, str(self._marks / "stopped"), *self._command]
        environment = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_SUBMIT_ARGS": "--master local[2] pyspark-shell"}
        with (self._marks / "stderr").open("a") as stderr:
            return subprocess.Popen(command, env=environment, stderr=stderr, start_new_session=True, text=True)

    def killed(self, stop: str = "", batches: int = 2) -> None:
        """A run that is killed: driver and JVM, whose Python processes find out by themselves, as after a real crash.

        Args: stop: see example_driver, where it stands when it is killed; without it, behind so many more batches.
        """
        mark, first = self._marks / "stopped", self.commits()
        mark.unlink(missing_ok=True)
        driver = self._start(stop)
        try:
            there: Callable[[], bool] = mark.exists if stop else lambda: self.commits() >= first + batches
            wait_until(lambda: there() or driver.poll() is not None, timeout=RUN_S, what="place of the kill")
            assert driver.poll() is None, self.told()
        finally:
            kill(child(driver.pid, "java"))
            driver.kill()
            driver.wait()
        assert self.commits() * BATCH < COUNT, "it was done before it was killed"

    def finished(self) -> None:
        """A run to the end."""
        driver = self._start("")
        try:
            assert driver.wait(RUN_S) == 0, self.told()
        finally:
            end_session(driver.pid)

    def told(self) -> str:
        return (self._marks / "stderr").read_text()[-3000:]

    def reports(self) -> list[dict[str, Any]]:
        """The lines of progress.py."""
        return [json.loads(line) for line in (self._marks / "stderr").read_text().splitlines() if line.startswith('{"query"')]


def order(number: int) -> dict[str, Any]:
    """An order a second."""
    at = f"2026-11-26T{10 + number // 3600}:{number // 60 % 60:02}:{number % 60:02}Z"
    return {"number": number, "shop": SHOPS[number % len(SHOPS)], "cents": number, "at": at}


@pytest.fixture
def orders(plane_broker: Broker) -> Iterator[str]:
    """A queue with COUNT orders and one body that is none."""
    with channel_of(plane_broker) as channel:
        channel.queue_declare("example.orders", durable=True)
        for body in [*(json.dumps(order(number)) for number in range(COUNT)), "no order"]:
            channel.basic_publish("", "example.orders", body.encode(), pika.BasicProperties(delivery_mode=2))
        yield "example.orders"
        channel.queue_delete("example.orders")
    with DataPlane(plane_broker.host, flight_port(plane_broker)) as plane:
        for one in plane.calls.sub_list()["subscriptions"]:
            if one["queues"] == ["example.orders"]:
                plane.calls.sub_reset(name=one["name"], action="delete")


def check_enriched(rows: list[dict[str, Any]]) -> None:
    assert sorted(row["number"] for row in rows if row["number"] is not None) == list(range(COUNT))
    assert [row["_corrupt_record"] for row in rows if row["number"] is None] == ["no order"]
    regions = {row["shop"]: row["region"] for row in rows if row["shop"]}
    assert regions == {"north": "Scandinavia", "south": "Iberia", "web": "everywhere", "closed": None}


def test_killed_parquet(plane_broker: Broker, orders: str, tmp_path: Path, spark: Any) -> None:
    """In the middle of a batch."""
    out = tmp_path / "table"
    example = Example(plane_broker, "enrich_orders.py", orders, tmp_path / "table.checkpoint", ["--out", str(out)])
    example.killed()
    example.finished()
    # Read by Spark, which leaves out what a killed task left beside the files of its log.
    check_enriched([row.asDict() for row in spark.read.parquet(str(out)).collect()])
    assert ready(plane_broker, orders) == 0
    reports = example.reports()
    assert sum(one["rows"] for one in reports) >= COUNT - BATCH
    assert all(one["messages_behind"] + one["rows"] <= COUNT + 1 and one["query"] == "enrich" for one in reports if one["rows"])
    assert any(one.get("prepared_ms", 0) > 0 for one in reports)


def test_killed_delta(plane_broker: Broker, orders: str, tmp_path: Path) -> None:
    """Behind the table's commit of the third batch: Spark runs it again."""
    from deltalake import DeltaTable

    out = tmp_path / "table"
    example = Example(plane_broker, "enrich_orders.py", orders, tmp_path / "table.checkpoint", ["--out", str(out), "--format", "delta"])
    example.killed("deltalake:write_deltalake:3:behind")
    assert (example.commits(), DeltaTable(str(out)).to_pyarrow_table().num_rows) == (2, 3 * BATCH)
    example.finished()
    check_enriched(DeltaTable(str(out)).to_pyarrow_table().to_pylist())
    assert ready(plane_broker, orders) == 0


def test_killed_stream(plane_broker: Broker, orders: str, tmp_path: Path) -> None:
    """In the middle of a batch, with open windows in RocksDB. A last order closes them."""
    with channel_of(plane_broker) as channel:
        channel.queue_delete("example.turnover")
        channel.queue_declare("example.turnover", durable=True, arguments={"x-queue-type": "stream"})
        closing = order(0) | {"shop": "closing", "at": "2026-11-27T00:00:00Z"}
        channel.basic_publish("", orders, json.dumps(closing).encode(), pika.BasicProperties(delivery_mode=2))
    arguments = ["--stream", "example.turnover", "--checkpoint", str(tmp_path / "checkpoint"), "--window", "60", "--late", "120"]
    example = Example(plane_broker, "windows_to_stream.py", orders, tmp_path / "checkpoint", arguments)
    example.killed()
    example.finished()
    assert list((tmp_path / "checkpoint/state/0/0").glob("*.changelog")), "the state is not in RocksDB"
    with DataPlane(plane_broker.host, flight_port(plane_broker)) as plane:
        rows = stream(plane, "example.turnover").reader(columns=["body", "correlation_id"]).read_all().to_pylist()
    windows = [json.loads(row["body"]) for row in rows]
    assert [row["correlation_id"] for row in rows] == [window["shop"] for window in windows]
    found = {(window["shop"], window["begin"][:16]): (window["orders"], window["cents"]) for window in windows}
    assert len(found) == len(windows), "a window came twice"
    counts: Counter[tuple[str, str]] = Counter()
    cents: Counter[tuple[str, str]] = Counter()
    for one in map(order, range(COUNT)):
        key = (one["shop"], one["at"][:16])
        counts[key] += 1
        cents[key] += one["cents"]
    assert found == {key: (counts[key], cents[key]) for key in counts}
    assert ready(plane_broker, orders) == 0
    assert any(one.get("state_rows", 0) > 0 for one in example.reports())


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    if reason := postgres_missing():
        pytest.skip(reason)
    with postgres_server() as server:
        yield server


def test_killed_postgres(plane_broker: Broker, orders: str, tmp_path: Path, postgres: PostgresServer) -> None:
    """Before PostgreSQL's commit of a batch, which takes it back, and behind it, when Spark runs a batch again that is in the table."""
    checkpoint = tmp_path / "checkpoint"
    arguments = ["--dsn", postgres.url(), "--checkpoint", str(checkpoint)]
    example = Example(plane_broker, "totals_to_postgres.py", orders, checkpoint, arguments)

    def added() -> tuple[int, int]:
        return tuple(postgres.execute("SELECT (SELECT max(batch) FROM batches), (SELECT sum(orders) FROM totals)")[0])  # type: ignore[return-value]

    # The first connection of a run makes the tables.
    example.killed("psycopg:Connection.__exit__:4:before")
    wait_until(lambda: added() == (1, 2 * BATCH), what="PostgreSQL takes back what the killed driver had under way")
    assert example.commits() == 2
    example.killed("psycopg:Connection.__exit__:4:behind")
    assert (added(), example.commits()) == ((4, 5 * BATCH), 4)
    example.finished()
    sums = {shop: (COUNT // len(SHOPS), sum(range(at, COUNT, len(SHOPS)))) for at, shop in enumerate(SHOPS)} | {"?": (1, 0)}
    assert {shop: (count, cents) for shop, count, cents in postgres.execute("SELECT * FROM totals")} == sums
    assert ready(plane_broker, orders) == 0
