"""`flintmq pipeline run` with Spark: progress, summary and exit codes, and no trace. Two processes with a Spark of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from flintmq.cli.main import main
from flintmq.flight.client import DataPlane
from flintmq.pipeline import session
from tests.pipeline.plane import bodies_left, flight_port, publish, ready
from tests.support.broker import Broker, unique

pytestmark = pytest.mark.spark


def command(broker: Broker, *arguments: str) -> list[str]:
    return ["pipeline", "run", *arguments, "--flight-port", str(flight_port(broker)), "--timeout", "60"]


def started(broker: Broker, *arguments: str) -> subprocess.Popen[str]:
    whole = [sys.executable, "-m", "flintmq.cli.main", *command(broker, *arguments)]
    # A group of its own: a signal for it reaches Spark's JVM as well, as Ctrl-C on a terminal does.
    return subprocess.Popen(whole, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


@pytest.fixture
def shared(spark: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The command uses the tests' session, and does not end it."""

    class Kept:
        def __getattr__(self, name: str) -> Any:
            return (lambda: None) if name == "stop" else getattr(spark, name)

    monkeypatch.setattr(session, "spark_session", lambda *arguments, **more: Kept())
    yield


def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["flintmq", *arguments])
    capfd.readouterr()
    with pytest.raises(SystemExit) as leave:
        main()
    out, err = capfd.readouterr()
    return int(leave.value.code or 0), out, err


def test_an_archive_that_follows_ends_behind_a_batch(spark: Any, plane_broker: Broker, tmp_path: Path) -> None:
    """One JSON line a batch and one at the end; Ctrl-C: exit code 0, what came is in the archive once, the rest in the queue."""
    queue, out = unique("follow"), tmp_path / "out"
    publish(plane_broker, queue, [b"1", b"2"])
    process = started(plane_broker, "archive", "--queue", queue, "--out", str(out), "--follow", "--every", "0", "--json")
    try:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        assert (first["event"], first["rows"]) == ("batch", 2)
        publish(plane_broker, queue, [b"3"])
        second = json.loads(process.stdout.readline())
        assert (second["batch"], second["rows"]) == (first["batch"] + 1, 1)
        os.killpg(process.pid, signal.SIGINT)
        rest, err = process.communicate(timeout=240)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    assert process.returncode == 0, err
    assert "Traceback" not in err and "Exception" not in err
    end = json.loads(rest.splitlines()[-1])
    assert (end["event"], end["exit_code"], end["figures"]["rows"]) == ("end", 0, 3)
    bodies = [bytes(row["body"]) for row in spark.read.parquet(str(out)).collect()]
    assert sorted(bodies) == [b"1", b"2", b"3"] and ready(plane_broker, queue) == 0


def test_a_lost_checkpoint_is_one_line(plane_broker: Broker, tmp_path: Path) -> None:
    """The batch of a checkpoint that is gone: exit code 75, the code and what to do in the only line; nothing is touched."""
    queue, name = unique("lost"), unique("sub")
    publish(plane_broker, queue, [b"1", b"2"])
    with DataPlane(plane_broker.host, flight_port(plane_broker)) as plane:
        sub = plane.sub_open(name, [queue])
        plane.sub_acquire(sub.sub_id, sub.epoch, 1, max_messages=1, max_bytes=1_000)
        for ticket in plane.sub_plan(sub.sub_id, sub.epoch, 1, 1):
            assert list(plane.read(ticket)), "a batch that no task has read is no doubt"
        process = started(plane_broker, "archive", "--queue", queue, "--subscription", name, "--out", str(tmp_path / "out"))
        out, err = process.communicate(timeout=240)
        (line,) = err.strip().splitlines()
        assert process.returncode == 75 and line.startswith("flintmq: FLINTMQ_CHECKPOINT_LOST: ") and out == ""
        assert plane.sub_status(name)["prepared"] == 1
    assert ready(plane_broker, queue) == 1


def test_a_job_with_a_report(
    shared: None, plane_broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """depth over the running broker's log: a summary, and a page of HTML where --report says."""
    queue = unique("depth")
    publish(plane_broker, queue, [b"1"] * 5)
    page = tmp_path / "depth.html"
    code, out, err = run(monkeypatch, capfd, *command(plane_broker, "depth", "--queue", queue, "--report", str(page)))
    assert code == 0 and queue in out and f"report: {page}" in out, err
    assert page.read_text().lstrip().lower().startswith("<!doctype html")


def test_an_archive_of_another_schema_is_one_line(
    shared: None, plane_broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Bodies that are numbers: 65, the column in the line; nothing is published."""
    import pyarrow as pa
    from pyarrow import parquet

    target = unique("target")
    publish(plane_broker, target, [])
    place = tmp_path / "date=2026-01-01" / "queue=q"
    place.mkdir(parents=True)
    parquet.write_table(pa.table({"body": [1, 2]}), place / "one.parquet")
    code, _, err = run(monkeypatch, capfd, *command(plane_broker, "replay", "--archive", str(tmp_path), "--to-queue", target))
    assert code == 65 and err.strip().startswith("flintmq: FLINTMQ_SCHEMA_MISMATCH: ") and "'body' is int64" in err
    assert len(err.strip().splitlines()) == 1 and bodies_left(plane_broker, target) == []


def test_a_replay_that_was_done_starts_no_spark(
    shared: None, plane_broker: Broker, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The same command again: the broker knows its name, so it ends at once, and publishes nothing. Another name is another replay."""
    queue, target = unique("source"), unique("target")
    publish(plane_broker, queue, [b"1", b"2"])
    publish(plane_broker, target, [])
    arguments = command(plane_broker, "replay", "--queue", queue, "--to-queue", target, "--json")
    code, out, _ = run(monkeypatch, capfd, *arguments)
    assert code == 0 and json.loads(out)["figures"]["rows"] == 2
    assert ready(plane_broker, target) == 2

    def none(*_: Any, **__: Any) -> Any:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(session, "spark_session", none)
    code, out, _ = run(monkeypatch, capfd, *arguments)
    assert code == 0 and json.loads(out)["figures"] == {
        "rows": 0,
        "bytes": 0,
        "txn_id": json.loads(out)["figures"]["txn_id"],
        "done_before": True,
        "to": f"queue {target}",
    }
    assert ready(plane_broker, target) == 2
    code, _, err = run(monkeypatch, capfd, *arguments, "--txn-id", unique("another"))
    assert code == 69 and "Spark was started" in err


def test_a_target_that_is_not_there_is_one_line(
    shared: None, plane_broker: Broker, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """An error of Spark's tasks: the line of ours, no trace, with --json an event besides."""
    queue = unique("source")
    publish(plane_broker, queue, [b"1"])
    arguments = command(plane_broker, "replay", "--queue", queue, "--to-queue", unique("missing"), "--json")
    code, out, err = run(monkeypatch, capfd, *arguments)
    assert code == 65 and json.loads(out)["exit_code"] == 65 and "FLINTMQ_UNROUTABLE" in json.loads(out)["text"]
    assert "Traceback" not in err and "at org.apache" not in err
