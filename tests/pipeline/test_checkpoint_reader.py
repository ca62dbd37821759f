"""With a Spark that does not say where a query stands, the reader goes on behind what Spark's commit log has, and behind nothing else."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from flintmq.flight.calls import Calls
from flintmq.flight.plane_error import PlaneError
from pyspark_flintmq.checkpoint_reader import CheckpointReader
from pyspark_flintmq.claim import Claim
from pyspark_flintmq.cursor import Cursor
from pyspark_flintmq.errors import SourceError
from pyspark_flintmq.queue_options import QueueOptions

Offset = dict[str, Any]


def at(seq: int) -> Offset:
    return {"sub_id": "s", "seq": seq}


class Plane:
    """In the place of a claim: `sets` are there to be taken; notes where each call began."""

    KEYS = Claim.KEYS

    def __init__(self, sets: int = 99) -> None:
        self.sets = sets
        self.starts: list[int] = []

    def owns(self, offset: Offset) -> bool:
        return bool(offset["sub_id"] == "s")

    def before(self, end: Offset) -> Offset:
        return at(end["seq"] - 1)

    def initial(self) -> Offset:
        return at(0)

    def latest(self, start: Offset, messages: int, size: int) -> Offset:
        self.starts.append(start["seq"])
        return at(min(start["seq"] + 1, self.sets))


class Log:
    """Spark's checkpoint."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("offsets", "commits"):
            (folder / name).mkdir()

    def plans(self, batch: int, *offsets: Any) -> None:
        lines = ["v1", json.dumps({"batchWatermarkMs": 0}), *(json.dumps(one) for one in offsets)]
        (self.folder / "offsets" / str(batch)).write_text("\n".join(lines))

    def commits(self, batch: int) -> None:
        (self.folder / "commits" / str(batch)).write_text("v1\n{}")


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


def reader_of(log: Log, plane: Plane, monkeypatch: pytest.MonkeyPatch) -> CheckpointReader:
    reader = CheckpointReader(QueueOptions.stream({"queue": "q", "checkpointLocation": str(log.folder)}))
    monkeypatch.setattr(reader, "_opened", lambda: plane)
    return reader


def test_without_the_checkpoint_it_is_refused() -> None:
    with pytest.raises(SourceError, match=r"checkpointLocation.*PySpark 4\.2"):
        CheckpointReader(QueueOptions.stream({"queue": "q"}))


def test_a_set_is_asked_for_when_the_one_before_is_in_the_commit_log(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    plane = Plane()
    reader = reader_of(log, plane, monkeypatch)
    assert reader.latestOffset() == at(1)
    log.plans(0, at(1))
    with pytest.raises(SourceError, match="lacks a batch that Spark has ended"):
        reader.latestOffset()
    log.commits(0)
    assert reader.latestOffset() == at(2)
    assert plane.starts == [0, 1]


def test_a_started_query_goes_on_behind_the_newest_committed_batch(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is planned and not committed is asked for again: it is the same set."""
    for batch in (9, 10):
        log.plans(batch, {"streams": {}}, {"sub_id": "other", "seq": 50}, at(batch + 1))
        log.commits(batch)
    log.plans(11, {"streams": {}}, {"sub_id": "other", "seq": 51}, at(12))
    plane = Plane()
    assert reader_of(log, plane, monkeypatch).latestOffset() == at(12)
    assert plane.starts == [11]


def test_a_first_batch_that_is_planned_is_no_batch_of_another_checkpoint(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """With AvailableNow Spark asks before it runs that batch again: the set is this checkpoint's, and it is the same one."""
    log.plans(0, at(7))
    plane = Plane()
    assert reader_of(log, plane, monkeypatch).latestOffset() == at(7)
    assert plane.starts == [6]


@pytest.mark.parametrize(("committed", "begins"), [(6, 6), (7, 7), (9, 7), (3, 6)])
def test_where_a_planned_batch_begins(committed: int, begins: int) -> None:
    """Behind the committed set; at its own end when it was empty, or when the checkpoint is an old copy, which is refused then."""

    class Known:
        @property
        def calls(self) -> Calls:
            return Calls(self._action)

        def _action(self, name: str, arguments: dict[str, Any], wait_s: float) -> Any:
            return {"name": "spark:q", "sub_id": "s", "committed": committed}

        def close(self) -> None: ...

    assert Claim(QueueOptions.stream({"queue": "q"}), Known).before(at(7)) == at(begins)


def test_newer_logs_hold_a_map_of_sources(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    log.plans(0, {"0": json.dumps({"sub_id": "other", "seq": 3}), "1": json.dumps(at(7))})
    log.commits(0)
    plane = Plane()
    reader_of(log, plane, monkeypatch).latestOffset()
    assert plane.starts == [7]


def test_an_offset_of_a_subscription_that_is_gone_is_ours_and_refused(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """By name where there are several; else a new subscription would take messages before Spark finds out."""

    class Gone:
        @property
        def calls(self) -> Calls:
            return Calls(self._action)

        def _action(self, name: str, arguments: dict[str, Any], wait_s: float) -> Any:
            if arguments.get("sub_id") == "other":
                return {"name": "spark:r", "sub_id": "other", "committed": 9}
            assert name == "sub.status", "nothing is opened"
            raise PlaneError("NOT_FOUND", "there is no subscription 's'")

        def close(self) -> None: ...

    options = QueueOptions.stream({"queue": "q", "checkpointLocation": str(log.folder)})
    log.plans(0, {"sub_id": "other", "seq": 4}, at(7))
    log.commits(0)
    reader = CheckpointReader(options)
    monkeypatch.setattr(reader, "_opened", lambda: claim)
    claim = Claim(options, Gone)
    with pytest.raises(SourceError, match="CHECKPOINT_FOREIGN"):
        reader.latestOffset()


def test_streams_are_known_by_their_names(log: Log) -> None:
    cursor = Cursor(QueueOptions.stream({"queues": "a,b"}), lambda: None)  # type: ignore[arg-type,return-value]
    assert cursor.owns({"streams": {"b": {}, "a": {}}}) and not cursor.owns({"streams": {"a": {}}}) and not cursor.owns({"streams": 1})


def test_while_nothing_comes_the_offset_stays_and_the_log_is_not_read(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    plane = Plane(sets=0)
    reader = reader_of(log, plane, monkeypatch)
    assert reader.latestOffset() == at(0)
    (log.folder / "commits").rmdir()
    (log.folder / "commits").write_text("no directory: a look at it fails")
    assert [reader.latestOffset() for _ in range(3)] == [at(0)] * 3
    assert plane.starts == [0] * 4


def test_only_options_travel_to_the_executors(log: Log) -> None:
    reader = CheckpointReader(QueueOptions.stream({"queue": "q", "checkpointLocation": str(log.folder)}))
    reader._given = reader._start = at(1)
    copy = pickle.loads(pickle.dumps(reader))
    assert (copy._given, copy._start, copy._options) == (None, None, reader._options)
