"""Wherever the driver dies, whatever arrives late: each message is in exactly one batch, in order, and a batch never changes."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flintmq.flight.plane_error import PlaneError
from pyspark_flintmq import claim as claim_module
from pyspark_flintmq.claim import Claim
from pyspark_flintmq.errors import ConnectionLost, SourceError
from pyspark_flintmq.queue_options import QueueOptions
from pyspark_flintmq.queue_stream import TicketPartition, read_ticket
from tests.pipeline.fake_broker import Crash, Plan
from tests.pipeline.fake_plane import FakePlane, FakeSpark, Sub

MESSAGES = [b"m%d" % i for i in range(10)]
LIMITS = (4, 10**6)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim_module.time, "sleep", lambda seconds: None)


def options(**raw: Any) -> QueueOptions:
    given = {"queue": "q"} if not {"queues", "queuePattern"} & raw.keys() else {}
    return QueueOptions.stream({**given, "maxMessagesPerTrigger": "4", **{key: str(value) for key, value in raw.items()}})


def spark(plan: Plan | None = None, messages: list[bytes] = MESSAGES, **raw: Any) -> FakeSpark:
    return FakeSpark(FakePlane({"q": messages}, plan), options(**raw))


def live_on(driver: FakeSpark) -> None:
    """Restarts the driver until one life comes to its end."""
    while True:
        try:
            driver.run()
            return
        except Crash:
            continue
        except SourceError as e:
            # An opening call of a dead driver that arrives late fences the living one: it is started again, nothing is lost.
            assert e.code == "FENCED"
            assert driver.plane.late_opens > 0
            driver.plane.late_opens -= 1


def assert_exactly_once(driver: FakeSpark, messages: list[bytes]) -> None:
    assert driver.bodies() == messages
    assert not any(driver.plane.queues.values())
    assert all(sub.prepared is None for sub in driver.plane.subs.values())


def code(error: pytest.ExceptionInfo[SourceError]) -> str:
    assert "\n" not in str(error.value)
    return error.value.code


def test_without_a_crash_all_arrive_in_batches_of_the_limit() -> None:
    driver = spark()
    driver.run()
    assert [len(rows) for rows in driver.sink.values()] == [4, 4, 2]
    assert_exactly_once(driver, MESSAGES)


def test_one_kill_at_each_point_and_its_call_arriving_at_each_point() -> None:
    probe = spark()
    probe.run()
    points = probe.plane.plan.passed
    assert {"before sub.commit", "after sub.acquire", "after sub.plan", "after offsets", "after the sink", "after commits"} <= set(points)
    for i, name in enumerate(points):
        for turn in range(6):
            driver = spark(Plan([i]))
            turns = iter(range(100))

            def meanwhile(driver: FakeSpark = driver, turns: Any = turns, turn: int = turn) -> None:
                if driver.plane.plan.died_at and next(turns) == turn:
                    driver.plane.arrive()

            driver.meanwhile = meanwhile
            live_on(driver)
            assert driver.bodies() == MESSAGES, f"killed at point {i}, {name}"
            assert_exactly_once(driver, MESSAGES)


@settings(max_examples=150, deadline=None)
@given(
    steps=st.lists(st.integers(0, 40), max_size=8),
    sizes=st.lists(st.integers(0, 6), min_size=1, max_size=4),
    late=st.integers(0, 9),
    twice=st.booleans(),
    restarts=st.booleans(),
    partitions=st.integers(1, 5),
)
def test_any_series_of_kills(steps: list[int], sizes: list[int], late: int, twice: bool, restarts: bool, partitions: int) -> None:
    """Several queues, messages published meanwhile, answers lost, calls of dead drivers that arrive late, the broker restarted."""
    plane = FakePlane({"a": [], "b": []}, Plan(steps))
    plane.twice = twice
    driver = FakeSpark(plane, options(queues="a,b", minPartitions=partitions))
    sent: dict[str, list[bytes]] = {"a": [], "b": []}
    to_come = [(queue, size) for size in sizes for queue in ("a", "b")]
    turns = iter(range(10_000))

    def meanwhile() -> None:
        turn = next(turns)
        if to_come and turn % 2 == 0:
            queue, size = to_come.pop()
            bodies = [f"{queue}{len(sent[queue]) + i}".encode() for i in range(size)]
            sent[queue] += bodies
            plane.publish(queue, bodies)
        if turn % 10 == late:
            plane.arrive()
            if restarts:
                plane.restart()

    driver.meanwhile = meanwhile
    for _ in range(200):
        live_on(driver)
        if not to_come and not any(plane.queues.values()):
            break
    found = driver.bodies()
    for queue, bodies in sent.items():
        assert [body for body in found if body.startswith(queue.encode())] == bodies
    assert len(found) == sum(map(len, sent.values()))
    assert all(sub.prepared is None for sub in plane.subs.values())


def test_available_now_ends_at_what_was_there_when_it_began() -> None:
    driver = spark()
    driver.meanwhile = lambda: driver.plane.publish("q", [b"later"])
    driver.run()
    assert driver.bodies() == MESSAGES


def test_available_now_comes_to_an_end_when_the_broker_forgot_where_it_began() -> None:
    driver = spark()
    calls = iter(range(1000))

    def meanwhile() -> None:
        driver.plane.publish("q", [b"later %d" % next(calls)] * 5)
        driver.plane.restart()

    driver.meanwhile = meanwhile
    driver.run()
    assert driver.bodies()[:10] == MESSAGES
    assert len(driver.sink) <= 4


def test_available_now_leaves_nothing_in_one_queue_because_another_went_on() -> None:
    """A broker that forgot where the run began gives more of one queue: what the other one held at the beginning is read all the same."""
    sent = {"a": [b"a%d" % n for n in range(6)], "b": [b"b%d" % n for n in range(6)]}
    driver = FakeSpark(FakePlane(sent), options(queues="a,b"))
    looks = iter(range(1000))

    def meanwhile() -> None:
        if next(looks) == 2:
            driver.plane.restart()
            driver.plane.publish("a", [b"later"] * 3)

    driver.meanwhile = meanwhile
    driver.run()
    assert [body for body in driver.bodies() if body != b"later"] == [*sent["a"], *sent["b"]]


def test_nothing_is_opened_before_a_call_needs_it_and_closing_changes_nothing() -> None:
    plane = FakePlane({"q": MESSAGES})
    claim = Claim(options(), lambda: plane)
    claim.drain()
    assert plane.asked == []
    start = claim.initial()
    assert claim.initial() == start == {"sub_id": claim.sub_id, "seq": 0, "first": 1}
    end = claim.latest(start, *LIMITS)
    before = copy.deepcopy(plane.subs)
    claim.close()
    claim.close()
    assert plane.subs == before
    assert plane.closed == 1
    assert end["seq"] == 1


def test_an_acknowledged_batch_is_committed_when_spark_asks_for_the_next_one_not_before() -> None:
    plane = FakePlane({"q": MESSAGES})
    claim = Claim(options(), lambda: plane)
    first = claim.latest(claim.initial(), *LIMITS)
    plane.tasks(claim, {**first, "seq": 0}, first)
    assert plane.subs["spark:q"].committed == 0
    second = claim.latest(first, *LIMITS)
    assert plane.subs["spark:q"].committed == 1
    claim.commit(second)
    assert plane.subs["spark:q"].committed == 2
    claim.commit(first)
    assert plane.subs["spark:q"].committed == 2


def test_a_second_reader_of_one_checkpoint_fences_the_first_one() -> None:
    plane = FakePlane({"q": MESSAGES})
    old, new = Claim(options(), lambda: plane), Claim(options(), lambda: plane)
    offset = old.latest(old.initial(), *LIMITS)
    plane.subs["spark:q"].heard_ms = 0
    assert new.initial()["seq"] == 0
    assert new.tickets({**offset, "seq": 0}, offset), "what it plans is in its checkpoint: it need not wait for the first one to end"
    for call in (
        lambda: old.latest(offset, *LIMITS),
        lambda: old.commit(offset),
        lambda: old.tickets({**offset, "seq": 0}, offset),
        lambda: old.lag(),
    ):
        with pytest.raises(SourceError, match="one subscription serves one streaming query") as error:
            call()
        assert code(error) == "FENCED"
    assert new.latest(new.initial(), *LIMITS) == offset, "the set that was prepared stays the same"
    old.close()
    assert plane.subs["spark:q"].committed == 0


class Waiting:
    """A clock that time.sleep moves on; what a subscription's reader does meanwhile."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, sub: Sub, beats_ms: int | None) -> None:
        self.now, self._sub, self._beats_ms = 0.0, sub, beats_ms
        sub.heard_ms = 0
        monkeypatch.setattr(claim_module.time, "sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        heard = (self._sub.heard_ms or 0) + round(1000 * seconds)
        self._sub.heard_ms = heard if self._beats_ms is None else heard % self._beats_ms


@pytest.mark.parametrize(("committed", "on_new"), [(0, "refuse"), (0, "continue"), (3, "continue")])
def test_a_second_plain_query_does_not_stop_the_one_that_runs(monkeypatch: pytest.MonkeyPatch, committed: int, on_new: str) -> None:
    """It is refused before anything is opened: the first one's calls go on."""
    plane = FakePlane({"q": MESSAGES})
    working = Claim(options(), lambda: plane)
    first = working.latest(working.initial(), 2, 10**6)
    plane.tasks(working, {**first, "seq": 0}, first)
    for _ in range(committed):
        first = working.latest(first, 2, 10**6)
    assert plane.subs["spark:q"].committed == committed
    clock = Waiting(monkeypatch, plane.subs["spark:q"], 1_000)
    before = copy.deepcopy(plane.subs)
    second = Claim(options(onNewCheckpoint=on_new), lambda: plane, lambda: clock.now)
    with pytest.raises(SourceError, match="another query runs on it, or the same DataFrame is used twice") as error:
        second.latest(second.initial(), *LIMITS)
    assert code(error) == "READER_ACTIVE"
    before["spark:q"].heard_ms = plane.subs["spark:q"].heard_ms
    assert plane.subs == before
    assert working.latest(first, *LIMITS)["seq"] == committed + 2


def test_a_query_killed_before_its_first_batch_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its checkpoint knows nothing yet, and its reader was heard of a moment ago: it is waited for until it surely is gone."""
    plane = FakePlane({"q": MESSAGES})
    Claim(options(), lambda: plane).initial()
    clock = Waiting(monkeypatch, plane.subs["spark:q"], None)
    again = Claim(options(), lambda: plane, lambda: clock.now)
    assert again.latest(again.initial(), *LIMITS)["seq"] == 1
    assert 4 < clock.now < 7


def test_a_new_checkpoint_on_a_used_subscription_is_refused_before_anything_is_opened(caplog: pytest.LogCaptureFixture) -> None:
    """Spark's file sink would leave out its batches, whose messages would be gone: the user says onNewCheckpoint=continue, or nothing."""
    driver = spark()
    driver.run()
    driver.plane.publish("q", [b"x"])
    before = copy.deepcopy((driver.plane.subs, driver.plane.queues))
    with pytest.raises(SourceError, match=r"committed 3 batches .* the sink a new path .* onNewCheckpoint=continue") as error:
        FakeSpark(driver.plane, driver.options).run()
    assert code(error) == "CHECKPOINT_NEW"
    assert (driver.plane.subs, driver.plane.queues) == before
    driver.run()
    assert driver.bodies() == [*MESSAGES, b"x"], "its own checkpoint goes on"
    driver.plane.publish("q", [b"y"])
    fresh = FakeSpark(driver.plane, options(onNewCheckpoint="continue"))
    fresh.run()
    assert fresh.bodies() == [b"y"]
    assert "has committed 4 batches for another checkpoint" in caplog.text and "give it a new path" in caplog.text


@pytest.mark.parametrize("at", ["after sub.acquire", "after offsets", "after sub.plan", "before the sink", "after the sink"])
def test_a_query_that_went_on_and_died_in_its_first_batch_needs_no_option_again_where_spark_knows_that_batch(at: str) -> None:
    driver = spark()
    driver.run()
    driver.plane.publish("q", [b"x"])
    driver.plane.plan = Plan(at=at)
    fresh = FakeSpark(driver.plane, options(onNewCheckpoint="continue"))
    with pytest.raises(Crash):
        fresh.run()
    fresh.options = options(onNewCheckpoint="continue" if at == "after sub.acquire" else "refuse")
    fresh.run()
    assert fresh.bodies() == [b"x"]


def test_a_wrong_checkpoint_does_not_fence_the_query_that_works() -> None:
    plane = FakePlane({"q": MESSAGES})
    working = Claim(options(), lambda: plane)
    first = working.latest(working.initial(), *LIMITS)
    plane.tasks(working, {**first, "seq": 0}, first)
    second = working.latest(first, *LIMITS)
    for offset, expected in (({**first, "seq": 0}, "CHECKPOINT_BEHIND"), ({**first, "sub_id": "another"}, "CHECKPOINT_FOREIGN")):
        for call in ("latest", "tickets"):
            with pytest.raises(SourceError) as error:
                other = Claim(options(), lambda: plane)
                other.latest(offset, *LIMITS) if call == "latest" else other.tickets(offset, {**offset, "seq": 1})
            assert code(error) == expected
    assert working.latest(second, *LIMITS)["seq"] == 3


def test_a_deleted_checkpoint_is_noticed_while_its_last_batch_is_open() -> None:
    driver = spark(Plan(at="before the sink"))
    with pytest.raises(Crash):
        driver.run()
    assert driver.plane.subs["spark:q"].planned is not None
    fresh = FakeSpark(driver.plane, driver.options)
    for _ in range(2):
        with pytest.raises(SourceError, match="onLostCheckpoint=redeliver") as error:
            fresh.run()
        assert code(error) == "CHECKPOINT_LOST"
    again = FakeSpark(driver.plane, options(onLostCheckpoint="redeliver"))
    again.run()
    assert sorted({*driver.bodies(), *again.bodies()}) == sorted(MESSAGES)
    assert_exactly_once(again, again.bodies())


def test_an_old_copy_of_the_checkpoint_is_refused() -> None:
    driver = spark()
    offsets, commits = {}, set()

    def meanwhile() -> None:
        if len(driver.commits) == 1 and not offsets:
            offsets.update(driver.offsets)
            commits.update(driver.commits)

    driver.meanwhile = meanwhile
    driver.run()
    assert len(driver.commits) == 3
    with pytest.raises(SourceError, match="old copy of the checkpoint") as error:
        FakeSpark(driver.plane, driver.options, dict(offsets), set(commits)).run()
    assert code(error) == "CHECKPOINT_BEHIND"
    with pytest.raises(SourceError) as error:
        FakeSpark(driver.plane, driver.options, {**offsets, 1: driver.offsets[1]}, set(commits)).run()
    assert code(error) == "CHECKPOINT_BEHIND"


def test_an_old_copy_of_the_store_is_refused() -> None:
    driver = spark()
    old = copy.deepcopy(driver.plane)
    driver.run()
    old.subs = {name: copy.deepcopy(sub) for name, sub in driver.plane.subs.items()}
    old.subs["spark:q"].committed = 1
    with pytest.raises(SourceError, match="store is an older copy") as error:
        FakeSpark(old, driver.options, driver.offsets, driver.commits).run()
    assert code(error) == "CHECKPOINT_AHEAD"


def test_a_checkpoint_of_another_subscription_is_refused_and_none_is_made() -> None:
    driver = spark()
    driver.run()
    other = FakePlane({"q": MESSAGES})
    with pytest.raises(SourceError, match="does not have") as error:
        FakeSpark(other, driver.options, driver.offsets, driver.commits).run()
    assert code(error) == "CHECKPOINT_FOREIGN"
    assert other.subs == {}
    FakeSpark(other, driver.options).run()
    other.subs["spark:q"].sub_id = "made again"
    with pytest.raises(SourceError, match="made again") as error:
        FakeSpark(other, driver.options, driver.offsets, driver.commits).run()
    assert code(error) == "CHECKPOINT_FOREIGN"
    for strange in ({}, {"sub_id": "x"}, {"sub_id": "x", "seq": "many"}):
        with pytest.raises(SourceError) as error:
            Claim(options(), lambda: other).latest(strange, *LIMITS)
        assert code(error) == "CHECKPOINT_FOREIGN"


def test_other_queues_under_the_same_name_are_refused() -> None:
    plane = FakePlane({"q": [], "other": []})
    Claim(options(subscription="s"), lambda: plane).initial()
    with pytest.raises(SourceError, match="another option 'subscription'") as error:
        other = Claim(options(subscription="s", queue="other"), lambda: plane)
        other.latest(other.initial(), *LIMITS)
    assert code(error) == "QUEUES_DIFFER"


def test_a_queue_that_is_not_there() -> None:
    with pytest.raises(SourceError) as error:
        Claim(options(), lambda: FakePlane({"other": []})).initial()
    assert code(error) == "QUEUE_MISSING"


def test_a_pattern_reads_new_queues_without_a_restart() -> None:
    plane = FakePlane({"orders.a": [b"1"], "orders.b": [b"2"], "other": [b"3"]})
    driver = FakeSpark(plane, options(queuePattern="orders.?"))
    driver.run()
    assert sorted(driver.bodies()) == [b"1", b"2"]
    claim = Claim(options(queuePattern="orders.?"), lambda: plane)
    end = driver.offsets[max(driver.offsets)]
    assert claim.latest(end, *LIMITS) == end
    plane.queues["orders.c"] = []
    plane.publish("orders.c", [b"4"])
    assert claim.latest(end, *LIMITS)["seq"] == end["seq"] + 1
    assert plane.subs["spark:orders.?"].queues == ["orders.a", "orders.b", "orders.c"]
    with pytest.raises(SourceError) as error:
        Claim(options(queuePattern="none*"), lambda: plane).initial()
    assert code(error) == "QUEUE_MISSING"


def test_the_queues_of_a_query_can_be_changed_with_its_checkpoint(caplog: pytest.LogCaptureFixture) -> None:
    """Also where the subscription is named after them: the checkpoint knows which one it is."""
    plane = FakePlane({"a": [b"a1"], "b": [b"b1"], "c": [b"c1"]})
    driver = FakeSpark(plane, options(queues="a,b"))
    driver.run()
    plane.publish("a", [b"a2"])
    driver.options = options(queues="b,c")
    driver.run()
    assert driver.bodies() == [b"a1", b"b1", b"c1"]
    assert "subscription 'spark:a,b' reads queues b, c from now on" in caplog.text
    assert list(plane.subs) == ["spark:a,b"] and len(plane.queues["a"]) == 1
    driver.options = options(queues="b,c", subscription="mine")
    with pytest.raises(SourceError, match="belongs to subscription 'spark:a,b', and option 'subscription' says 'mine'") as error:
        driver.run()
    assert code(error) == "CHECKPOINT_FOREIGN"


def test_min_messages_wait_for_the_delay_but_not_in_available_now() -> None:
    now = [100.0]
    plane = FakePlane({"q": MESSAGES[:3]})
    claim = Claim(options(minMessagesPerTrigger=4, maxTriggerDelay="10s"), lambda: plane, lambda: now[0])
    first = claim.latest(claim.initial(), *LIMITS)
    assert first["seq"] == 1, "the first batch does not wait"
    plane.tasks(claim, {**first, "seq": 0}, first)
    plane.publish("q", [b"x"])
    now[0] += 5
    assert claim.latest(first, *LIMITS) == first
    assert plane.subs["spark:q"].committed == 1, "waiting for messages does not hold back the commit"
    plane.publish("q", [b"x"] * 3)
    now[0] += 1
    second = claim.latest(first, *LIMITS)
    assert second["seq"] == 2
    plane.publish("q", [b"x"])
    assert claim.latest(second, *LIMITS) == second
    now[0] += 10
    assert claim.latest(second, *LIMITS)["seq"] == 3
    claim = Claim(options(minMessagesPerTrigger=4), lambda: plane, lambda: now[0])
    claim.drain()
    plane.publish("q", [b"y"])
    assert claim.latest(second, *LIMITS)["seq"] == 3


@pytest.mark.parametrize("raw", [{"startingOffsets": "latest"}, {"startingOffsets": '{"lsn": 7}'}, {"startingTimestamp": "1700000000000"}])
def test_a_start_that_would_empty_the_queue_is_refused_unless_that_is_said(raw: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    plane = FakePlane({"q": MESSAGES})
    with pytest.raises(SourceError, match=r"takes all that stands before it out of queue 'q' unread.*discardBacklog=true") as error:
        Claim(options(**raw), lambda: plane).initial()
    assert code(error) == "OPTION_MISSING"
    assert plane.subs == {} and len(plane.queues["q"]) == 10
    claim = Claim(options(**raw, discardBacklog="true"), lambda: plane)
    assert claim.latest(claim.initial(), *LIMITS)["seq"] == (0 if "latest" in raw.values() else 1)
    assert ("10 messages that stood in queue 'q' were taken out unread" in caplog.text) == ("latest" in raw.values())
    again = Claim(options(**raw), lambda: plane)
    assert again.latest(again.initial(), *LIMITS)["sub_id"] == claim.sub_id, "nothing is thrown away by a subscription that is there"


def test_lag_is_what_waits_and_is_not_asked_for_at_every_poll() -> None:
    now = [0.0]
    plane = FakePlane({"q": MESSAGES})
    claim = Claim(options(), lambda: plane, lambda: now[0])
    assert claim.lag() == {}
    start = claim.initial()
    assert claim.lag() == {"messages_behind": 10, "bytes_behind": 20, "oldest_age_ms": 5}
    for _ in range(10):
        claim.lag()
    assert plane.asked.count("sub.tail") == 1
    claim.latest(start, *LIMITS)
    assert claim.lag()["messages_behind"] == 6
    now[0] += 1
    claim.lag()
    assert plane.asked.count("sub.tail") == 3


def test_progress_tells_how_long_the_last_batch_was_prepared() -> None:
    now = [100.0]
    plane = FakePlane({"q": MESSAGES})
    claim = Claim(options(), lambda: plane, lambda: now[0])
    first = claim.latest(claim.initial(), *LIMITS)
    assert "prepared_ms" not in claim.lag()
    now[0] += 2.5
    for ticket in claim.tickets(claim.initial(), first):
        list(plane.read(ticket))
    claim.spark_has(first)
    now[0] += 60.0
    second = claim.latest(first, *LIMITS)
    assert claim.lag()["prepared_ms"] == 2500, "not the time in which there was nothing prepared"
    # The next reader hears of the age from the broker, whose clock ran while nobody read.
    plane.prepared_age_ms = 7_000
    again = Claim(options(), lambda: plane, lambda: now[0])
    again.tickets(first, second)
    now[0] += 1.0
    again.latest(second, *LIMITS)
    assert again.lag()["prepared_ms"] == 8_000


def test_a_set_that_lost_messages_stops_the_query_once() -> None:
    plane = FakePlane({"q": MESSAGES})
    claim = Claim(options(), lambda: plane)
    start = claim.initial()
    end = claim.latest(start, *LIMITS)
    prepared = plane.subs["spark:q"].prepared
    assert prepared is not None
    prepared.pop()
    with pytest.raises(SourceError, match="had 4 messages when it was prepared, and has 3 now") as error:
        claim.tickets(start, end)
    assert code(error) == "DATA_LOSS"
    again = Claim(options(), lambda: plane)
    assert sum(len(list(plane.read(ticket.encode()))) for ticket in again.tickets(start, end)) == 3
    plane2 = FakePlane({"q": MESSAGES})
    calm = Claim(options(failOnDataLoss="false"), lambda: plane2)
    end = calm.latest(calm.initial(), *LIMITS)
    plane2.subs["spark:q"].prepared = plane2.subs["spark:q"].prepared[:1]  # type: ignore[index]
    assert len(calm.tickets({**end, "seq": 0}, end)) == 1


@pytest.mark.parametrize("fail", [True, False])
def test_who_goes_on_without_what_is_lost_says_so_in_each_ticket(fail: bool) -> None:
    """failOnDataLoss=false reaches the service with the ticket: it leaves out what it can't read."""
    plane = FakePlane({"q": MESSAGES})
    claim = Claim(options(failOnDataLoss=str(fail).lower()), lambda: plane)
    start = claim.initial()
    tickets = [json.loads(ticket) for ticket in claim.tickets(start, claim.latest(start, *LIMITS))]
    assert len(tickets) == 2
    assert [ticket.get("tolerant", False) for ticket in tickets] == [not fail] * 2


@pytest.mark.parametrize(("streaming", "advice"), [(True, "failOnDataLoss=false"), (False, "spark.read leaves nothing out")])
def test_a_message_that_cannot_be_read_is_data_loss(monkeypatch: pytest.MonkeyPatch, streaming: bool, advice: str) -> None:
    """The error names queue and position, and says what can be done."""

    class Plane:
        def read(self, ticket: bytes, **_: Any) -> Any:
            raise PlaneError("DAMAGED", "the message at position 7 of queue 'q' can't be read: its properties contradict its bytes")

        def close(self) -> None: ...

    monkeypatch.setattr("pyspark_flintmq.connection.Connection.open", lambda self: Plane())
    made = QueueOptions.stream({"queue": "q"}) if streaming else QueueOptions.batch({"queue": "q"})
    with pytest.raises(SourceError) as error:
        list(read_ticket(made, TicketPartition("{}")))
    assert code(error) == "DATA_LOSS"
    assert "position 7 of queue 'q'" in str(error.value) and advice in str(error.value)
    assert ("failOnDataLoss" in str(error.value)) == streaming


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (PlaneError("UNAVAILABLE", "nobody"), "UNREACHABLE"),
        (PlaneError("UNAUTHENTICATED", "wrong password"), "LOGIN_REFUSED"),
        (PlaneError("FORBIDDEN", "not yours"), "FORBIDDEN"),
        (PlaneError("STOPPING", "going down"), "UNREACHABLE"),
        (PlaneError("STORE_FAILED", "the disk of the broker has failed"), "STORE_FAILED"),
        (PlaneError("BUSY", "grpc://h was busy for 3600 s: 8 writes run and 48 stand in line", 900), "BUSY"),
    ],
)
def test_errors_have_one_line_and_a_code(told: PlaneError, expected: str) -> None:
    plane = FakePlane({"q": []})

    def fail(name: str) -> None:
        raise told

    plane.failing = fail
    with pytest.raises(SourceError) as error:
        Claim(options(password="s3cret"), lambda: plane).initial()
    assert code(error) == expected
    assert "s3cret" not in str(error.value)
    assert isinstance(error.value, ConnectionLost) == (expected == "UNREACHABLE")
    if expected == "BUSY":
        assert "stand in line" in str(error.value) and "Run fewer tasks" in str(error.value)
        assert "Is the broker up" not in str(error.value) and "does not answer" not in str(error.value)


def test_a_busy_broker_is_waited_for_much_longer_than_a_silent_one() -> None:
    """Tasks of a large cluster may stand in line for long; option 'timeout' is for a broker that says nothing."""
    with QueueOptions.stream({"queue": "q", "timeout": "7"}).connection.open() as plane:
        assert (plane.timeout_s, plane.busy_s) == (7.0, 3_600.0)


def test_the_first_batch_of_a_checkpoint_that_no_task_has_read_is_not_committed() -> None:
    """A sink that has a batch of that number from an earlier checkpoint leaves it out, and Spark's commit log has it all the same."""
    plane = FakePlane({"q": MESSAGES})
    query = Claim(options(), lambda: plane)
    end = query.latest(query.initial(), *LIMITS)
    for call in (lambda: query.latest(end, *LIMITS), lambda: query.commit(end)):
        with pytest.raises(
            SourceError, match=r"batch 1 of .* no task has read it.* Nothing is lost.* begin with another new checkpoint"
        ) as e:
            call()
        assert code(e) == "BATCH_UNREAD"
    plane.time_passes("spark:q")
    with pytest.raises(SourceError) as again:
        Claim(options(), lambda: plane).latest(end, *LIMITS)
    assert code(again) == "BATCH_UNREAD", "after a restart with this checkpoint, too"
    plane.time_passes("spark:q")
    other = Claim(options(), lambda: plane)
    start = other.initial()
    first = other.latest(start, *LIMITS)
    assert plane.tasks(other, start, first) == MESSAGES[:4], "another new checkpoint has what waits"
    second = other.latest(first, *LIMITS)
    assert other.latest(second, *LIMITS)["seq"] == 3, "a later batch may be left out: it is the sink's own"
    assert all(offset["first"] == 1 for offset in (start, first, second))


def test_a_first_batch_that_is_left_out_on_purpose_is_committed_when_that_is_said() -> None:
    plane = FakePlane({"q": MESSAGES})
    query = Claim(options(onUnreadBatch="commit"), lambda: plane)
    assert query.latest(query.latest(query.initial(), *LIMITS), *LIMITS)["seq"] == 2


def test_a_checkpoint_of_an_older_version_says_nothing_of_its_first_batch() -> None:
    plane = FakePlane({"q": MESSAGES})
    query = Claim(options(), lambda: plane)
    end = query.latest(query.initial(), *LIMITS)
    del end["first"]
    assert query.latest(end, *LIMITS) == {"sub_id": query.sub_id, "seq": 2}
