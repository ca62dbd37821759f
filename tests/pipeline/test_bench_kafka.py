"""The table beside Kafka: a row that is measured by itself changes its own lines, and all others keep their sitting."""

from __future__ import annotations

import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from bench import kafka
from bench.kafka_rows import _ages
from bench.pipeline_kafka import BEGIN, DOCUMENT, END, FIGURES, known_lines, lines_of, render

ABOUT = {"date": "2026-01-02 03:04 UTC", "commit": "abc", "cpu": "a processor", "cores": 2, "spark": "4.3.0"}


def runs(row: str, mine: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"row": row, "source": name} | run for name, given in (("flintmq", mine), ("kafka", theirs)) for run in given]


def test_other_lines_keep_their_sitting() -> None:
    before = lines_of(ABOUT, runs("consume", [{"broker_s": 0.9}], [{"broker_s": 0.6}]))
    document = f"text\n{BEGIN}\n{render(ABOUT, before)}{END}\n| no | line | of it |\n"
    assert known_lines(document) == before
    later = ABOUT | {"date": "2027-01-01 00:00 UTC"}
    now = known_lines(document) | lines_of(later, runs("sink", [{"rate": 130_000, "all": 5}] * 2, [{"rate": 90_000, "all": 9}] * 2))
    lines = render(later, now).splitlines()
    assert [line.split(" | ")[-1] for line in lines[4:]] == ["2027-01-01 00:00 UTC, abc |"] * 2 + ["2026-01-02 03:04 UTC, abc |"]
    assert "| 130,000.00 | 90,000.00 | 2 of 2 | >= 120,000 | ok |" in lines[4] and "| 0 of 1 | <= 0.7 | **MISSED** |" in lines[-1]


def test_the_document_has_lines_of_this_table_only() -> None:
    captions = [figure.caption for figure in FIGURES]
    assert len(set(captions)) == len(captions)
    assert set(known_lines(DOCUMENT.read_text())) <= set(captions)


def test_latency_is_met_by_pairs_that_were_won_not_by_medians() -> None:
    mine, theirs = [1.0] * 8 + [3.0] * 2, [2.0] * 10
    found = lines_of(ABOUT, runs("latency", *([{"p50_s": x, "p99_s": 1, "cores": 0.05} for x in side] for side in (mine, theirs))))
    assert "8 of 10 | below Kafka's in 9 of 10 pairs | **MISSED**" in next(iter(found.values()))


def test_an_age_ends_with_the_trigger_that_closed_the_messages_file(tmp_path: Path) -> None:
    import os

    import pyarrow as pa
    import pyarrow.parquet as pq

    def trigger(begin: float, seconds: float) -> Any:
        stamp = datetime.datetime.fromtimestamp(begin, datetime.UTC).isoformat().replace("+00:00", "Z")
        return SimpleNamespace(timestamp=stamp, durationMs={"triggerExecution": seconds * 1e3}, numInputRows=2)

    for number, (closed, came) in enumerate([(1000.5, [999.0, 999.5]), (1002.0, [1000.2, 1001.0])]):
        times = pa.array([int(one * 1e6) for one in came], pa.timestamp("us", "UTC"))
        pq.write_table(pa.table({"enqueued_time": times}), tmp_path / f"{number}.parquet")
        os.utime(tmp_path / f"{number}.parquet", (closed, closed))
    progress = [trigger(1000.0, 1.0), trigger(1001.0, 1.5)]
    assert _ages(tmp_path, "enqueued_time", progress, 999.2, 1100.0, 4) == pytest.approx([1.5, 1.5, 2.3])
    with pytest.raises(RuntimeError, match="4 rows instead of 5"):
        _ages(tmp_path, "enqueued_time", progress, 999.2, 1100.0, 5)


def test_jars_are_fetched_once_unless_the_environment_names_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KAFKA_HOME", "KAFKA_SPARK_JARS"):
        monkeypatch.delenv(name, raising=False)
    fetch, folder = tmp_path / "fetch.sh", tmp_path / "jars"
    monkeypatch.setattr(kafka, "FETCH", fetch)
    monkeypatch.setattr(kafka, "FOLDER", folder)
    fetch.write_text("echo no network >&2; exit 1\n")
    with monkeypatch.context() as patch:
        patch.setattr(kafka.os, "environ", dict(kafka.os.environ))
        assert "no network" in kafka.fetched()
    names = " ".join(
        f"$1/spark/{name}1.jar"
        for name in ("spark-sql-kafka-0-10_", "spark-token-provider-kafka-0-10_", "kafka-clients-", "commons-pool2-")
    )
    fetch.write_text(f"echo once >>{tmp_path}/runs; mkdir -p $1/kafka/libs $1/spark; touch $1/kafka/libs/kafka_2.13-1.jar {names}\n")
    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(kafka.os, "environ", dict(kafka.os.environ))
            assert kafka.fetched() == "" and kafka.home() == folder / "kafka" and kafka.connector().count(".jar") == 4
    assert (tmp_path / "runs").read_text() == "once\n"
    monkeypatch.setenv("KAFKA_HOME", str(tmp_path))
    assert "lack jars" in kafka.fetched()


def test_both_sides_read_bodies_that_compress_alike(tmp_path: Path) -> None:
    """A period of 251 bytes, and so many different bodies that Parquet's dictionary of 1 MiB can't hold them."""
    import pyarrow as pa

    bodies = kafka.bodies(tmp_path, 1024).read_bytes().split(b"\n")
    assert {len(body) for body in bodies} == {1024} and len(set(bodies)) * 1024 > 10 * 2**20
    ours = bytes(index % 251 for index in range(1024))
    sizes = [pa.compress(body, "snappy").size for body in (bodies[1], ours)]
    assert min(sizes) >= 250 and max(sizes) <= 1.1 * min(sizes)
