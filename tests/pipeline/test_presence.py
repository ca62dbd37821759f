"""A batch is committed in the broker as soon as Spark's commit log has it, and never because of anything else."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from flintmq.flight.plane_error import PlaneError
from pyspark_flintmq import presence as presence_module
from pyspark_flintmq.claim import Claim
from pyspark_flintmq.commit_log import PAUSE_S, CommitLog
from pyspark_flintmq.errors import SourceError
from pyspark_flintmq.found_checkpoint import Finder
from pyspark_flintmq.presence import BATCHES_MAX, BEAT_S, SEARCH_MAX_S, SEARCH_S, Presence
from pyspark_flintmq.queue_options import QueueOptions
from tests.pipeline.fake_plane import FakePlane

MESSAGES = [b"m%d" % i for i in range(10)]
HEADER = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}\n'


def spark_writes(checkpoint: Path, log: str, batch: int, *sources: Any) -> None:
    """A file of one of Spark's logs, as version 1 has it: a line for each source."""
    (checkpoint / log).mkdir(parents=True, exist_ok=True)
    (checkpoint / log / str(batch)).write_text(HEADER + "\n".join(json.dumps(source, separators=(",", ":")) for source in sources))


class Query:
    """A claim that has planned its first batch, and the thread beside it, whose steps the test makes."""

    def __init__(self, checkpoint: Path) -> None:
        self.plane = FakePlane({"q": MESSAGES})
        self.now = 100.0
        self.claim = Claim(QueueOptions.stream({"queue": "q"}), lambda: self.plane)
        self.presence = Presence(self.claim, CommitLog(str(checkpoint)), lambda: self.now)
        self.start = self.claim.initial()
        self.end = self.claim.latest(self.start, 4, 10**6)

    @property
    def committed(self) -> int:
        return self.plane.subs["spark:q"].committed


@pytest.fixture
def query(tmp_path: Path) -> Query:
    return Query(tmp_path)


def test_a_batch_is_committed_when_the_commit_log_has_it_and_not_before(query: Query, tmp_path: Path) -> None:
    assert query.presence.step()
    spark_writes(tmp_path, "offsets", 0, query.end)
    query.plane.tasks(query.claim, query.start, query.end)
    query.presence.step()
    spark_writes(tmp_path, "commits", 7)
    query.presence.step()
    assert query.committed == 0, "batch 7 is another one"
    spark_writes(tmp_path, "commits", 0)
    query.presence.step()
    assert query.committed == 1
    calls = len(query.plane.asked)
    query.presence.step()
    assert len(query.plane.asked) == calls, "nothing is awaited"
    assert query.claim.latest(query.end, 4, 10**6)["seq"] == 2
    assert query.plane.asked.count("sub.commit") == 1, "Spark's next call finds it done"


def test_a_batch_of_several_sources_and_of_a_newer_log_is_found(query: Query, tmp_path: Path) -> None:
    query.plane.tasks(query.claim, query.start, query.end)
    spark_writes(tmp_path, "offsets", 11, {"logOffset": 3}, query.end)
    spark_writes(tmp_path, "commits", 11)
    query.presence.step()
    assert query.committed == 1
    second = query.claim.latest(query.end, 4, 10**6)
    query.claim.tickets(query.end, second)
    spark_writes(tmp_path, "offsets", 12, {"0": json.dumps(second), "1": '{"logOffset":3}'})
    spark_writes(tmp_path, "commits", 12)
    query.presence.step()
    assert query.committed == 2


def test_a_clean_stop_commits_what_spark_committed_last_and_says_good_bye(query: Query, tmp_path: Path) -> None:
    query.plane.tasks(query.claim, query.start, query.end)
    query.presence.step()
    assert query.plane.subs["spark:q"].heard_ms == 0
    spark_writes(tmp_path, "offsets", 0, query.end)
    spark_writes(tmp_path, "commits", 0)
    query.presence.stop()
    assert query.committed == 1
    assert query.plane.subs["spark:q"].heard_ms is None


def test_a_stop_in_the_middle_of_a_batch_commits_nothing(query: Query, tmp_path: Path) -> None:
    query.plane.tasks(query.claim, query.start, query.end)
    spark_writes(tmp_path, "offsets", 0, query.end)
    query.presence.stop()
    assert query.committed == 0
    assert query.plane.subs["spark:q"].prepared is not None


def test_signs_of_life_come_once_a_second_until_another_reader_has_it(query: Query) -> None:
    for _ in range(10):
        assert query.presence.step()
        query.now += 0.25
    assert query.plane.asked.count("sub.alive") == 3
    other = Claim(QueueOptions.stream({"queue": "q"}), lambda: query.plane)
    other.tickets(query.start, query.end)
    query.now += 1
    assert not query.presence.step(), "it is fenced"


def test_a_broker_that_is_away_for_a_while_ends_nothing(query: Query) -> None:
    def away(name: str) -> None:
        raise PlaneError("UNAVAILABLE", "nobody")

    query.plane.failing = away
    assert query.presence.step()
    query.plane.failing = lambda name: None
    query.now += 1
    assert query.presence.step()
    assert query.plane.subs["spark:q"].heard_ms == 0


def test_a_reader_whose_driver_is_gone_is_not_kept_alive(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    other = presence_module.os.getppid() + 1  # not 1: in a container that may be the parent
    monkeypatch.setattr(presence_module.os, "getppid", lambda: other)
    assert not query.presence.step()
    assert "sub.alive" not in query.plane.asked


def test_where_a_checkpoint_is(tmp_path: Path) -> None:
    end = {"sub_id": "a", "seq": 1}
    spark_writes(tmp_path / "a b", "offsets", 0, end)
    spark_writes(tmp_path / "a b", "commits", 0)
    assert CommitLog(str(tmp_path / "a b")).has(end)
    assert CommitLog((tmp_path / "a b").as_uri()).has(end)
    assert not CommitLog(str(tmp_path / "none")).has(end)
    with pytest.raises(SourceError, match="pyarrow has no file system for 'nowhere://' here") as error:
        CommitLog("nowhere://bucket/checkpoint")
    assert error.value.code == "OPTION_VALUE"


def test_a_batch_that_no_task_has_read_is_left_and_not_asked_for_again(
    query: Query, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    query.claim.tickets(query.start, query.end)
    spark_writes(tmp_path, "offsets", 0, query.end)
    spark_writes(tmp_path, "commits", 0)
    assert query.presence.step()
    assert query.presence.step(), "it goes on with its signs of life"
    assert query.committed == 0
    assert query.plane.asked.count("sub.commit") == 1
    assert caplog.text.count("FLINTMQ_BATCH_UNREAD") == 1


class Process:
    """What the system shows of the files that a process has open."""

    def __init__(self, directory: Path) -> None:
        self._files = directory / "proc" / "7" / "fd"
        self._files.mkdir(parents=True)
        self.finder = Finder(7, str(directory / "proc"))

    def opens(self, path: Path | str) -> None:
        (self._files / str(len(list(self._files.iterdir())))).symlink_to(path)

    def closes_all(self) -> None:
        for file in self._files.iterdir():
            file.unlink()


@pytest.fixture
def process(tmp_path: Path) -> Process:
    return Process(tmp_path)


@pytest.fixture
def untold(process: Process, tmp_path: Path) -> Query:
    """A query whose source was not told where its checkpoint is."""
    query = Query(tmp_path)
    query.presence = Presence(query.claim, None, lambda: query.now, process.finder)
    return query


TEMPORARY = "678be9c4-da93-4e65-97fc-94e07c3bd98a.tmp"


@pytest.mark.parametrize("log", ["offsets", "commits"])
def test_the_checkpoint_is_found_while_spark_writes_to_it(untold: Query, process: Process, tmp_path: Path, log: str) -> None:
    """Either of the two files of a batch will do, and its logs are closed by the time that they are read."""
    place = tmp_path / "a place"
    process.opens("/dev/random")
    process.opens("socket:[11]")
    process.opens(place / log / f".0.{TEMPORARY}")
    untold.presence.step()
    process.closes_all()
    assert untold.presence.pause_s == SEARCH_S
    untold.plane.tasks(untold.claim, untold.start, untold.end)
    spark_writes(place, "offsets", 0, untold.end)
    untold.presence.step()
    assert untold.committed == 0
    spark_writes(place, "commits", 0)
    untold.now += 2 * PAUSE_S
    untold.presence.step()
    assert untold.committed == 1


def test_the_checkpoint_of_another_query_of_the_process_is_not_taken(untold: Query, process: Process, tmp_path: Path) -> None:
    other, own = tmp_path / "other", tmp_path / "own"
    untold.plane.tasks(untold.claim, untold.start, untold.end)
    spark_writes(other, "offsets", 0, {**untold.end, "sub_id": "another"})
    spark_writes(other, "commits", 0)
    process.opens(other / "offsets" / "..0.678be9c4-da93-4e65-97fc-94e07c3bd98a.tmp.crc")
    untold.presence.step()
    assert untold.committed == 0
    process.opens(own / "commits" / "0")
    spark_writes(own, "offsets", 0, untold.end)
    spark_writes(own, "commits", 0)
    untold.presence.step()
    assert untold.committed == 1


def test_a_file_is_seen_before_its_logs_are_complete_and_they_are_read_again(untold: Query, process: Process, tmp_path: Path) -> None:
    process.opens(tmp_path / "place" / "offsets" / f".0.{TEMPORARY}")
    untold.presence.step()
    process.closes_all()
    untold.plane.tasks(untold.claim, untold.start, untold.end)
    spark_writes(tmp_path / "place", "offsets", 0, untold.end)
    spark_writes(tmp_path / "place", "commits", 0)
    untold.presence.step()
    assert untold.committed == 0, "64 places are not read at each look"
    untold.now += 2 * PAUSE_S
    untold.presence.step()
    assert untold.committed == 1


def test_a_look_tries_the_numbers_that_the_system_gives_next(process: Process, tmp_path: Path) -> None:
    """And once in a while all: a process may have opened others since."""
    for _ in range(40):
        process.opens("/dev/random")
    (tmp_path / "proc" / "7" / "fd" / "20").unlink()
    assert process.finder.look()
    for number, name in ((20, "a"), (41, "b"), (300, "c")):
        (tmp_path / "proc" / "7" / "fd" / str(number)).symlink_to(tmp_path / name / "offsets" / "0")
    assert process.finder.look()
    assert list(process.finder.places) == [str(tmp_path / "a"), str(tmp_path / "b")]
    for _ in range(100):
        assert process.finder.look()
    assert list(process.finder.places) == [str(tmp_path / name) for name in "abc"]


def test_the_search_ends(untold: Query, process: Process, tmp_path: Path) -> None:
    """After minutes in a batch, after some batches, or where nothing can be seen: the beat goes on."""
    untold.presence.step()
    assert untold.presence.pause_s == SEARCH_S
    untold.plane.tasks(untold.claim, untold.start, untold.end)
    untold.now += SEARCH_MAX_S - 1
    assert untold.presence.pause_s == SEARCH_S, "a batch may take minutes, and its end is the second moment at which a file is open"
    untold.now += 1
    assert untold.presence.pause_s == BEAT_S
    start = untold.end
    for body in range(BATCHES_MAX + 1):
        untold.plane.publish("q", [b"%d" % body])
        end = untold.claim.latest(start, 1, 10**6)
        untold.plane.tasks(untold.claim, start, end)
        start = end
        assert untold.presence.step()
    process.opens(tmp_path / "late" / "offsets" / "0")
    untold.presence.step()
    assert process.finder.places == {}
    blind = Presence(untold.claim, None, lambda: untold.now, Finder(8, str(tmp_path / "proc")))
    assert blind.step()
    assert blind.pause_s == BEAT_S


def test_the_thread_looks_at_once_when_spark_was_given_a_batch(untold: Query, process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence_module, "BEAT_S", 3_600.0)
    looked = threading.Event()
    process.finder.look = lambda: looked.set() or True  # type: ignore[func-returns-value, method-assign]
    untold.presence.start()
    untold.presence.stir()
    assert looked.wait(30)
    untold.presence.stop()
    assert untold.plane.subs["spark:q"].heard_ms is None
