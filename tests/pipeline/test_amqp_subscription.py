"""Wherever the driver dies, no message is lost, and but for one narrow case none comes twice; order holds and the queue ends up empty."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyspark_flintmq.errors import ConnectionLost, SourceError
from tests.pipeline.fake_broker import Crash, FakeQueue, FakeSpark, Plan

MESSAGES = [b"m%d" % i for i in range(10)]


def live_on(spark: FakeSpark) -> None:
    """Restarts the driver until one life comes to its end."""
    while True:
        try:
            spark.run()
            return
        except Crash:
            continue


def assert_exactly_once(spark: FakeSpark, messages: list[bytes]) -> None:
    assert spark.bodies() == messages
    assert not spark.queue.entries
    assert spark.subscription().spool.seqs() == []


def test_without_a_crash_all_arrive_in_batches_of_the_limit(tmp_path: Path) -> None:
    spark = FakeSpark(FakeQueue(MESSAGES), tmp_path)
    spark.run()
    assert [len(rows) for rows in spark.sink.values()] == [4, 4, 2]
    assert_exactly_once(spark, MESSAGES)


def points_of_a_run(tmp_path: Path) -> list[str]:
    spark = FakeSpark(FakeQueue(MESSAGES), tmp_path / "probe")
    spark.run()
    return spark.plan.passed


# Where an acknowledgement may be on its way: a kill here leaves it open whether the broker has it.
IN_DOUBT = {"after the state file", "before acknowledgement", "after acknowledgement", "before removing a batch file"}


def test_one_kill_at_each_point_with_message_ids(tmp_path: Path) -> None:
    points = points_of_a_run(tmp_path)
    assert {"after the batch file", "after offsets", "before the sink", "after commits", *IN_DOUBT} <= set(points)
    for i, name in enumerate(points):
        spark = FakeSpark(FakeQueue(MESSAGES, ids=True), tmp_path / str(i), Plan([i]))
        live_on(spark)
        assert spark.bodies() == MESSAGES, f"killed at point {i}, {name}"
        assert_exactly_once(spark, MESSAGES)


def test_one_kill_at_each_point_without_message_ids(tmp_path: Path) -> None:
    for i, name in enumerate(points_of_a_run(tmp_path)):
        spark = FakeSpark(FakeQueue(MESSAGES), tmp_path / str(i), Plan([i]))
        live_on(spark)
        if name in IN_DOUBT:
            assert sorted(set(spark.bodies())) == sorted(MESSAGES), f"killed at point {i}, {name}"
        else:
            assert spark.bodies() == MESSAGES, f"killed at point {i}, {name}"


# Kills here are those of a process: what it wrote is there, synced or not. So the syncs need no disk.
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None

kills = st.lists(st.integers(0, 25), max_size=6)
# A small alphabet: byte-identical messages must be counted, not merged.
bodies = st.lists(st.sampled_from([b"a", b"b", b"", b"long body"]), max_size=14)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(first=bodies, later=bodies, deaths=kills, limit=st.integers(1, 5), size=st.sampled_from([1, 3, 1_000]))
def test_any_series_of_kills_with_message_ids(first: list[bytes], later: list[bytes], deaths: list[int], limit: int, size: int) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as directory:
        spark = FakeSpark(FakeQueue(first, ids=True), Path(directory), Plan(deaths), maxMessagesPerTrigger=limit, maxBytesPerTrigger=size)
        live_on(spark)
        spark.queue.publish(later, ids=True)
        live_on(spark)
        assert_exactly_once(spark, first + later)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(first=bodies, later=bodies, deaths=kills, limit=st.integers(1, 5), size=st.sampled_from([1, 3, 1_000]))
def test_any_series_of_kills_without_message_ids(first: list[bytes], later: list[bytes], deaths: list[int], limit: int, size: int) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as directory:
        spark = FakeSpark(FakeQueue(first), Path(directory), Plan(deaths), maxMessagesPerTrigger=limit, maxBytesPerTrigger=size)
        live_on(spark)
        spark.queue.publish(later)
        live_on(spark)
        missing = Counter(first + later) - Counter(spark.bodies())
        assert not missing
        assert not spark.queue.entries
        if not IN_DOUBT & set(spark.plan.died_at):
            assert_exactly_once(spark, first + later)


@settings(max_examples=50, deadline=None)
@given(cuts=st.lists(st.integers(0, 12), max_size=3), limit=st.integers(1, 5))
def test_a_lost_connection_is_made_anew_without_loss_or_duplicate(cuts: list[int], limit: int) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as directory:
        spark = FakeSpark(FakeQueue(MESSAGES), Path(directory), maxMessagesPerTrigger=limit)

        def cut(batch: int) -> None:
            if batch in cuts:
                spark.links[-1].lost = True

        spark.run(on_batch=cut)
        assert len(spark.links) > 1 or not any(c in spark.sink for c in cuts)
        assert_exactly_once(spark, MESSAGES)


def test_more_returned_messages_than_a_batch_holds_do_not_end_the_run_early(tmp_path: Path) -> None:
    queue = FakeQueue(MESSAGES, ids=True)
    spark = FakeSpark(queue, tmp_path, Plan([points_of_a_run(tmp_path).index("before acknowledgement")]))
    with pytest.raises(Crash):
        spark.run()
    # Four committed messages come back, and the new limit lets through only one at a time.
    smaller = FakeSpark(queue, tmp_path, maxMessagesPerTrigger=1)
    smaller.offsets, smaller.commits, smaller.sink = spark.offsets, spark.commits, spark.sink
    smaller.run()
    assert_exactly_once(smaller, MESSAGES)


def test_an_offset_is_not_returned_before_its_batch_is_on_disk(tmp_path: Path) -> None:
    passed = points_of_a_run(tmp_path)
    assert passed.index("after the batch file") < passed.index("before offsets")
    assert passed.index("after commits") < passed.index("before acknowledgement")
    # ... and the commit is on disk before the acknowledgement leaves.
    states = [i for i, name in enumerate(passed) if name == "after the state file"]
    acknowledgements = [i for i, name in enumerate(passed) if name == "before acknowledgement"]
    assert states[1] < acknowledgements[0]


def test_a_message_that_a_broker_marks_again_is_still_recognised(tmp_path: Path) -> None:
    queue = FakeQueue(MESSAGES[:2], ids=True)
    spark = FakeSpark(queue, tmp_path, Plan([points_of_a_run(tmp_path).index("before acknowledgement")]))
    with pytest.raises(Crash):
        spark.run()
    for entry in queue.entries.values():
        entry.properties = entry.properties._replace(headers={"x-delivery-count": 1}, headers_raw=b"\0\0\0\0")
    live_on(spark)
    assert_exactly_once(spark, MESSAGES[:2])


def test_a_twin_that_nobody_had_yet_is_a_message_of_its_own(tmp_path: Path) -> None:
    queue = FakeQueue([b"same"])
    spark = FakeSpark(queue, tmp_path, Plan([points_of_a_run(tmp_path).index("after acknowledgement")]))
    with pytest.raises(Crash):
        spark.run()
    # The acknowledgement got through, but the driver died before it knew: the spool still holds "same".
    assert not queue.entries
    queue.publish([b"same"])
    live_on(spark)
    assert_exactly_once(spark, [b"same", b"same"])


def test_a_message_of_higher_priority_does_not_close_the_ledger(tmp_path: Path) -> None:
    queue = FakeQueue(MESSAGES[:3], ids=True)
    spark = FakeSpark(queue, tmp_path, Plan([points_of_a_run(tmp_path).index("before acknowledgement")]))
    with pytest.raises(Crash):
        spark.run()
    # As a priority queue does: the new message of priority 9 comes before the returned ones.
    queue.publish([b"urgent"], priority=9)
    queue.entries = {position - 100 if entry.body == b"urgent" else position: entry for position, entry in queue.entries.items()}
    live_on(spark)
    assert_exactly_once(spark, [*MESSAGES[:3], b"urgent"])


def code_of(error: pytest.ExceptionInfo[SourceError]) -> str:
    return error.value.code


def test_a_second_reader_is_refused(tmp_path: Path) -> None:
    spark = FakeSpark(FakeQueue(MESSAGES), tmp_path)
    first, second = spark.subscription(), spark.subscription()
    first.initial()
    with pytest.raises(SourceError) as error:
        second.initial()
    assert code_of(error) == "READER_ACTIVE"
    first.close()
    assert second.initial()["seq"] == 0


def test_an_old_copy_of_the_checkpoint_is_refused(tmp_path: Path) -> None:
    spark = FakeSpark(FakeQueue(MESSAGES), tmp_path)
    spark.run()
    spark.queue.publish(MESSAGES)
    del spark.offsets[2], spark.offsets[1]
    spark.commits = {0}
    with pytest.raises(SourceError) as error:
        spark.run()
    assert code_of(error) == "CHECKPOINT_BEHIND"
    assert len(spark.queue.entries) == len(MESSAGES)


def test_a_checkpoint_of_another_spool_is_refused(tmp_path: Path) -> None:
    spark = FakeSpark(FakeQueue(MESSAGES), tmp_path / "a")
    spark.run()
    other = FakeSpark(spark.queue, tmp_path / "b")
    other.offsets, other.commits = spark.offsets, spark.commits
    with pytest.raises(SourceError) as error:
        other.run()
    assert code_of(error) == "CHECKPOINT_FOREIGN"


def test_an_old_copy_of_the_spool_is_refused(tmp_path: Path) -> None:
    spark = FakeSpark(FakeQueue(MESSAGES), tmp_path)
    spark.run()
    spark.offsets[3] = {**spark.offsets[2], "seq": 7}
    spark.commits.add(3)
    with pytest.raises(SourceError) as error:
        spark.run()
    assert code_of(error) == "CHECKPOINT_AHEAD"


def test_a_lost_checkpoint_with_a_batch_in_doubt_needs_a_decision(tmp_path: Path) -> None:
    points = points_of_a_run(tmp_path)
    second_batch = [i for i, name in enumerate(points) if name == "after the sink"][1]
    spark = FakeSpark(FakeQueue(MESSAGES), tmp_path, Plan([second_batch]))
    with pytest.raises(Crash):
        spark.run()
    fresh = FakeSpark(spark.queue, tmp_path)
    with pytest.raises(SourceError) as error:
        fresh.run()
    assert code_of(error) == "CHECKPOINT_LOST"
    again = FakeSpark(spark.queue, tmp_path, onLostCheckpoint="redeliver")
    again.run()
    assert again.bodies() == MESSAGES[4:]


def test_a_new_checkpoint_after_a_clean_end_goes_on(tmp_path: Path) -> None:
    spark = FakeSpark(FakeQueue(MESSAGES), tmp_path)
    spark.run()
    spark.queue.publish([b"next"])
    fresh = FakeSpark(spark.queue, tmp_path, Plan([points_of_a_run(tmp_path).index("after the batch file")]))
    live_on(fresh)
    assert fresh.bodies() == [b"next"]


def test_the_initial_offset_is_stable_until_the_first_commit(tmp_path: Path) -> None:
    spark = FakeSpark(FakeQueue(MESSAGES), tmp_path)
    subscription = spark.subscription()
    first = subscription.initial()
    subscription.latest(first, 4, 1_000)
    assert subscription.initial() == first
    subscription.close()
    assert spark.subscription().initial() == first


def test_partitions_are_pure(tmp_path: Path) -> None:
    spark = FakeSpark(FakeQueue(MESSAGES), tmp_path)
    subscription = spark.subscription()
    start = subscription.initial()
    end = subscription.latest(start, 4, 1_000)
    assert subscription.partitions(start, end) == subscription.partitions(start, end) == [(1, 0, 1)]
    assert subscription.partitions(end, end) == []


def test_ready_messages_that_never_come_are_an_error(tmp_path: Path) -> None:
    spark = FakeSpark(FakeQueue(MESSAGES), tmp_path, silent=True)
    with pytest.raises(ConnectionLost) as error:
        spark.run()
    assert code_of(error) == "STALLED"


def test_the_first_batch_of_a_checkpoint_that_no_task_has_read_is_not_acknowledged(tmp_path: Path) -> None:
    """Spark's file sink leaves out, and commits, batches whose numbers its path has from an earlier checkpoint."""
    spark = FakeSpark(FakeQueue(MESSAGES), tmp_path)
    spark.run()
    spark.queue.publish([b"a", b"b"])
    subscription = spark.subscription()
    subscription.drain()
    end = subscription.latest(subscription.initial(), 4, 1_000)
    for call in (lambda: subscription.latest(end, 4, 1_000), lambda: subscription.commit(end)):
        with pytest.raises(SourceError, match=r"no task has read it.* Nothing is lost") as error:
            call()
        assert code_of(error) == "BATCH_UNREAD"
    subscription.close()
    again = FakeSpark(spark.queue, tmp_path)
    again.run()
    assert again.bodies() == [b"a", b"b"], "another new checkpoint has what waits"
    assert sorted(path.name for path in tmp_path.glob("batch-*")) == []
