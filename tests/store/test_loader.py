"""The cold reader: fair between queues, in order within one, polite to new messages, and nothing that was asked for is forgotten."""

from __future__ import annotations

import errno
import logging
import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("tests.drivers.loader_driver")

from flintmq.clock import ManualClock
from flintmq.config import Limits
from flintmq.queue.control import QueueHandle
from flintmq.scheduler.system import ActorSystem
from flintmq.store.log_store import LogStore
from tests.drivers.loader_driver import LoaderDriver, Woken
from tests.store.rig import Rig

PERSISTENT = 1
MS = 1_000_000
BODY = 100


class Cold:
    """A store on a simulated disk whose cold reads run when `step` is called."""

    def __init__(self, queues: int = 1, messages: int = 100, size: int = 65536, window: int = 20 * BODY, **limits: Any) -> None:
        self.limits = Limits(**limits)
        self.clock = ManualClock()
        self.actors = ActorSystem(self.limits, workers=2, clock=self.clock)
        numbers = tuple(range(1, queues + 1))
        self.rig = Rig(size=size, queues=numbers, actors=self.actors, limits=self.limits, hot_bytes=0)
        self.driver = LoaderDriver(self.rig.store)
        self.queues: list[QueueHandle] = []
        for number in numbers:
            handle = QueueHandle(number)
            handle.set_durable(True)
            handle.attach_log(self.rig.store)
            self.queues.append(handle)
        for at in range(messages):
            for handle in self.queues:
                self.publish(handle, at)
            if at % 50 == 49:
                self.rig.flush()
        self.rig.settle()
        assert all(handle.cold_count == messages for handle in self.queues)
        self.driver.set_hot_bytes(window)

    def publish(self, handle: QueueHandle, at: int) -> int:
        return handle.publish(b"", b"q", b"header", b"%0*d" % (BODY, at), PERSISTENT, 0)

    def step(self) -> bool:
        return self.actors.step()

    def run(self, steps: int = 10_000) -> int:
        """Until nothing is runnable; returns the slices."""
        for number in range(steps):
            if not self.step():
                return number
        raise AssertionError("never at rest")

    def run_ms(self, ms: int) -> None:
        for _ in range(ms):
            self.clock.advance(ms=1)
            self.actors.tick()
            self.run()

    def close(self) -> None:
        self.rig.store.close()
        self.actors.stop()


@pytest.fixture
def made() -> Iterator[list[Cold]]:
    rigs: list[Cold] = []
    yield rigs
    for one in rigs:
        one.close()


def cold(made: list[Cold], **options: Any) -> Cold:
    made.append(Cold(**options))
    return made[-1]


def test_a_parked_entry_is_loaded_with_what_follows_up_to_the_window(made: list[Cold]) -> None:
    """One request brings the entry that was asked for and its followers, no more than fit."""
    rig = cold(made, messages=100, window=20 * BODY)
    queue = rig.queues[0]
    assert rig.driver.park(queue, 1) and not rig.driver.park(queue, 1), "asked once"
    assert rig.driver.state(queue, 1) == "loading"
    rig.run()
    assert rig.driver.resident(queue) == list(range(1, 21))
    assert queue.peek(0)[5] == b"%0*d" % (BODY, 0)
    assert rig.rig.store.loader.figures | {"pauses": 0} == {"loaded": 20, "runs": 1, "failed": 0, "pauses": 0, "shared": 0, "queues": 0}


def test_who_is_parked_is_woken_once_for_all_that_was_read(made: list[Cold]) -> None:
    """L5: when the first entry comes to the queue, the others of the step are there already."""
    rig = cold(made, messages=100, window=20 * BODY)
    woken = Woken(rig.queues[0])
    rig.driver.park(rig.queues[0], 1)
    rig.run()
    assert woken.seen == (1, 80)
    woken.close()


def test_nothing_is_read_on_the_thread_that_asks(made: list[Cold]) -> None:
    """The request is only handed over: before a worker ran, nothing is resident."""
    rig = cold(made)
    rig.driver.park(rig.queues[0], 1)
    assert rig.driver.resident(rig.queues[0]) == []
    assert rig.actors.gauges()["run_queue"] == 1


def test_order_of_asking_is_the_order_of_serving_within_a_queue(made: list[Cold]) -> None:
    """Parked entries of one queue are served first come first served, before the rest of a run and before read-aheads."""
    rig = cold(made, messages=400, window=400 * BODY, actor_quantum_us=1)
    queue = rig.queues[0]
    rig.driver.cost_of_reads(1000)
    rig.driver.read_ahead(queue, 1)
    rig.step()  # a slice of one step: the run is not over
    first = len(rig.driver.resident(queue))
    assert 0 < first < 100
    rig.driver.park(queue, 300)
    rig.driver.park(queue, 200)
    rig.step()
    assert rig.driver.state(queue, 300) == "resident" and rig.driver.state(queue, 200) == "loading"
    rig.step()
    assert rig.driver.state(queue, 200) == "resident"
    assert len(rig.driver.resident(queue)) < 400, "the run that was given up is not finished first"
    rig.run()


def test_queues_share_the_time_whatever_a_read_costs_them(made: list[Cold]) -> None:
    """Three queues with deep backlogs: after any number of slices none is more than two slices ahead of another."""
    rig = cold(made, queues=3, messages=2000, size=1 << 20, window=10_000 * BODY, actor_quantum_us=2000)
    rig.driver.cost_of_reads(20_000)
    for queue in rig.queues:
        rig.driver.park(queue, 1)
    a_slice = 2000 * 1000 // 20_000 + 64  # messages: what the quantum is worth, and the step in which it ends
    for _ in range(30):
        rig.step()
        loaded = [2000 - queue.cold_count for queue in rig.queues]
        assert max(loaded) - min(loaded) <= 2 * a_slice
    assert min(loaded) > 500
    rig.run()
    assert all(queue.cold_count == 0 for queue in rig.queues)


def test_a_newcomer_does_not_wait_for_a_deep_backlog(made: list[Cold]) -> None:
    """While one queue is read from end to end, another one's entry comes within two slices."""
    rig = cold(made, queues=2, messages=3000, size=1 << 20, window=10_000 * BODY, actor_quantum_us=1000)
    rig.driver.cost_of_reads(20_000)
    deep, other = rig.queues
    rig.driver.park(deep, 1)
    for _ in range(10):
        rig.step()
    assert deep.cold_count > 1000
    rig.driver.park(other, 1)
    rig.step()
    rig.step()
    assert rig.driver.state(other, 1) == "resident" and deep.cold_count > 1000


def test_waiting_for_the_disk_is_charged(made: list[Cold]) -> None:
    """A queue whose reads wait has used that time, so that others are before it."""
    rig = cold(made, messages=200, window=1000 * BODY)
    rig.driver.cost_of_reads(50_000)
    rig.driver.park(rig.queues[0], 1)
    rig.run()
    (group,) = [one for one in rig.actors.groups() if one["a"] == 1]
    assert group["space"] == 1 and group["time_s"] == pytest.approx(200 * 50e-6)


def test_unreadable_content_is_told_and_set_aside(made: list[Cold], caplog: pytest.LogCaptureFixture) -> None:
    """The damaged entry fails by name, once; the next request goes on behind it."""
    rig = cold(made, messages=50, size=4096, window=1000 * BODY)
    queue, store = rig.queues[0], rig.rig.store
    told: list[tuple[int, int, int]] = []
    store.loader.on_failed = lambda *what: told.append(what)
    rig.driver.park(queue, 1)
    message = rig.driver.message_id(queue, 10)
    fd = rig.rig.disk.open(f"/store/messages/{message // 4096:020d}.flog")
    rig.rig.disk.write(fd, b"?", message % 4096 + 60)
    rig.rig.disk.close(fd)
    with caplog.at_level(logging.ERROR, logger="flintmq.store"):
        rig.run()
    assert told == [(1, 10, message)] and "position 10" in caplog.text
    assert [rig.driver.state(queue, at) for at in (9, 10, 11)] == ["resident", "failed", "cold"]
    assert queue.failed_count == 1 and store.loader.figures["failed"] == 1
    rig.driver.park(queue, 11)
    rig.run()
    assert queue.cold_count == 0 and len(told) == 1


def test_a_stop_gives_back_what_was_asked_for(made: list[Cold]) -> None:
    """Requests that wait, in the middle of a run, paused, or never begun: after the stop no entry is marked as being on its way."""
    rig = cold(made, queues=4, messages=300, window=1000 * BODY, actor_quantum_us=1, cold_pace=1000)
    rig.driver.cost_of_reads(1000)
    begun, paused, waiting, many = rig.queues
    rig.driver.park(begun, 1)
    rig.step()
    hold(rig)
    rig.driver.park(paused, 1)
    while rig.driver.state(paused, 1) == "loading":
        rig.step()
    rig.driver.park(waiting, 1)
    for at in (250, 3, 77):
        rig.driver.park(many, at)
    rig.rig.store.loader.stop()
    for queue in rig.queues:
        assert "loading" not in {rig.driver.state(queue, at) for at in range(1, 301)}
    assert rig.rig.store.loader.figures["queues"] == 0
    assert rig.driver.park(waiting, 5) and rig.driver.state(waiting, 5) == "cold", "who asks after the stop is told at once"
    rig.run()
    assert rig.actors.gauges()["parked"] == 0
    rig.rig.store.loader.stop()


def test_a_stopped_actor_system_loses_no_request(made: list[Cold]) -> None:
    """The system ends first (its owner's mistake): what waits is given back all the same."""
    rig = cold(made, messages=30)
    rig.driver.park(rig.queues[0], 1)
    rig.driver.park(rig.queues[0], 7)
    rig.actors.stop()
    assert rig.driver.state(rig.queues[0], 1) == rig.driver.state(rig.queues[0], 7) == "cold"
    rig.driver.park(rig.queues[0], 9)
    rig.rig.store.loader.stop()
    assert rig.driver.state(rig.queues[0], 9) == "cold"


def test_a_full_actor_system_serves_cold_reads_all_the_same(made: list[Cold]) -> None:
    """No room for another actor: the queue is served by the spare one."""
    rig = cold(made, queues=3, messages=20, window=1000 * BODY, actors_max=1)
    for queue in rig.queues:
        rig.driver.park(queue, 1)
    rig.run()
    assert all(queue.cold_count == 0 for queue in rig.queues)
    assert rig.actors.gauges()["actors"] == 1


def test_a_full_mailbox_delays_and_loses_nothing(made: list[Cold]) -> None:
    """More queues than the spare actor's mailbox holds: the others follow when it has room."""
    rig = cold(made, queues=9, messages=5, window=1000 * BODY, actors_max=1, actor_mailbox_max=2)
    for queue in rig.queues:
        rig.driver.park(queue, 2)
    rig.run()
    assert all(rig.driver.resident(queue) == [2, 3, 4, 5] for queue in rig.queues)


def test_a_deleted_queue_is_read_no_more(made: list[Cold]) -> None:
    """Deletion while its entry is asked for: nothing is read, the request ends."""
    rig = cold(made, queues=2, messages=20)
    for queue in rig.queues:
        rig.driver.park(queue, 1)
    rig.queues[0].mark_deleted()
    rig.run()
    assert rig.rig.store.loader.figures["queues"] == 0
    assert rig.driver.resident(rig.queues[1]) and rig.rig.store.loader.figures["loaded"] == 20


# --- pace: old messages give way to new ones (L4) ---------------------------------------------------------------------------


def hold(rig: Cold) -> None:
    """From now on there is a hot flow, and the reader knows it."""
    rig.clock.advance(ms=100)
    rig.driver.hot_messages(1000)
    rig.actors.tick()


def drained_ms(rig: Cold, handle: QueueHandle, hot: int) -> int:
    """Milliseconds until the queue is in memory, with so many hot messages a millisecond."""
    for ms in range(10_000):
        if handle.cold_count == 0:
            return ms
        rig.driver.hot_messages(hot)
        rig.run_ms(1)
    raise AssertionError("never drained")


def test_cold_reads_keep_the_pace_while_new_messages_come(made: list[Cold]) -> None:
    """2,000 messages at 10,000 a second take 200 ms, less what one sample and the credit let through."""
    rig = cold(made, messages=2000, size=1 << 20, window=10_000 * BODY, cold_pace=10_000)
    hold(rig)
    rig.driver.park(rig.queues[0], 1)
    rig.run()
    assert rig.driver.state(rig.queues[0], 1) == "resident", "who is parked is served at once"
    assert 190 <= drained_ms(rig, rig.queues[0], hot=5) <= 260
    assert rig.rig.store.loader.figures["pauses"] > 5


def test_the_pace_is_for_all_cold_queues_together(made: list[Cold]) -> None:
    """Two backlogs of 1,000 take as long as one of 2,000, and go side by side."""
    rig = cold(made, queues=2, messages=1000, size=1 << 20, window=10_000 * BODY, cold_pace=10_000)
    hold(rig)
    for queue in rig.queues:
        rig.driver.park(queue, 1)
    rig.run()
    for _ in range(100):
        rig.driver.hot_messages(5)
        rig.run_ms(1)
        assert abs(rig.queues[0].cold_count - rig.queues[1].cold_count) <= 2 * 64
    assert 80 <= drained_ms(rig, rig.queues[0], hot=5) <= 160


def test_without_new_messages_there_is_no_pace(made: list[Cold]) -> None:
    """Nothing hot, or less of it than counts: the backlog comes without a pause."""
    rig = cold(made, messages=2000, size=1 << 20, window=10_000 * BODY, cold_pace=1000, cold_hot_rate=100)
    rig.clock.advance(ms=1000)
    rig.driver.hot_messages(50)
    rig.driver.park(rig.queues[0], 1)
    rig.run()
    assert rig.queues[0].cold_count == 0 and rig.rig.store.loader.figures["pauses"] == 0


def test_the_pace_ends_with_the_hot_flow(made: list[Cold]) -> None:
    """When nothing new comes any more the rest is read at full speed."""
    rig = cold(made, messages=2000, size=1 << 20, window=10_000 * BODY, cold_pace=1000)
    hold(rig)
    rig.driver.park(rig.queues[0], 1)
    rig.run()
    assert rig.queues[0].cold_count > 1500
    assert drained_ms(rig, rig.queues[0], hot=0) <= 200


def test_a_queue_is_read_faster_than_it_grows(made: list[Cold]) -> None:
    """Arrivals on the cold queue itself, faster than the pace: it goes twice as fast as they do, so it catches up."""
    rig = cold(made, messages=1000, size=1 << 20, window=100_000 * BODY, cold_pace=1000)
    queue = rig.queues[0]
    hold(rig)
    rig.driver.park(queue, 1)
    rig.run()
    ms = 0
    while queue.cold_count and ms < 1000:
        ms += 1
        rig.driver.hot_messages(5)
        for _ in range(5):
            rig.publish(queue, 0)
        rig.rig.flush()
        rig.run_ms(1)
    assert queue.cold_count == 0 and ms > 50, "not at once, but before the arrivals end"


def test_arrivals_on_cold_queues_are_not_hot(made: list[Cold]) -> None:
    """The message log counts what comes to queues that have nothing on disk, and that only."""
    rig = cold(made, queues=2, messages=10)
    before = rig.driver.hot_arrivals
    rig.publish(rig.queues[0], 1)
    assert rig.driver.hot_arrivals == before
    rig.driver.park(rig.queues[1], 1)
    rig.run()
    rig.driver.set_hot_bytes(1 << 20)
    assert rig.queues[1].cold_count == 0
    rig.publish(rig.queues[1], 1)
    assert rig.driver.hot_arrivals == before + 1


# --- any order of events ----------------------------------------------------------------------------------------------------

EVENTS = st.lists(
    st.tuples(st.sampled_from(["park", "ahead", "step", "tick", "hot", "delete"]), st.integers(0, 2), st.integers(1, 60)), max_size=60
)


@settings(max_examples=60, deadline=None)
@given(EVENTS, st.booleans())
def test_whatever_was_asked_for_comes_or_is_given_back(events: list[tuple[str, int, int]], stop: bool) -> None:
    """Random requests, slices, pauses and deletions: at rest every parked entry is resident; after a stop none is on its way."""
    rig = Cold(queues=3, messages=60, window=7 * BODY, actor_quantum_us=1, cold_pace=2000)
    rig.driver.cost_of_reads(1000)
    try:
        asked: set[tuple[int, int]] = set()
        deleted: set[int] = set()
        for what, number, position in events:
            queue = rig.queues[number]
            if what == "park" and number not in deleted:
                if rig.driver.park(queue, position):
                    asked.add((number, position))
            elif what == "ahead":
                rig.driver.read_ahead(queue, position)
            elif what == "step":
                rig.step()
            elif what == "tick":
                rig.clock.advance(ms=position)
                rig.actors.tick()
            elif what == "hot":
                rig.driver.hot_messages(position * 10)
            elif what == "delete" and position > 55:
                queue.mark_deleted()
                deleted.add(number)
        if stop:
            rig.rig.store.loader.stop()
        else:
            rig.run()
            rig.run_ms(400)
            assert all(rig.driver.state(rig.queues[n], at) == "resident" for n, at in asked if n not in deleted)
        assert rig.rig.store.loader.figures["queues"] == 0
        for number, queue in enumerate(rig.queues):
            if number not in deleted:
                assert "loading" not in {rig.driver.state(queue, at) for at in range(1, 61)}
    finally:
        rig.close()


# --- with threads -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [True, False])
def test_threads_serve_everybody_and_a_stop_in_the_middle_ends(tmp_path: Any, shared: bool) -> None:
    """Four askers against the workers, on the disk: all that was asked for comes; a stop while they ask leaves nothing on its way.

    `shared`: on a system that others use and that outlives the store; else on the store's own.
    """
    actors = ActorSystem(Limits(), workers=3) if shared else None
    if actors is not None:
        actors.start()
    for attempt in range(6):
        directory = tmp_path / str(attempt)
        directory.mkdir()
        store: Any = LogStore.open(None, str(directory), container_size=1 << 20, known_queues={1, 2, 3, 4}, hot_bytes=0, actors=actors)
        driver = LoaderDriver(store)
        queues = [QueueHandle(number) for number in range(1, 5)]
        for handle in queues:
            handle.set_durable(True)
            handle.attach_log(store)
            for at in range(500):
                handle.publish(b"", b"q", b"header", b"%0*d" % (BODY, at), PERSISTENT, 0)
        driver.set_hot_bytes(30 * BODY)
        asked: list[set[int]] = [set() for _ in queues]

        def ask(number: int, seed: int = attempt, queues: Any = queues, driver: Any = driver, asked: list[set[int]] = asked) -> None:
            rng = random.Random(seed * 10 + number)
            for _ in range(200):
                position = rng.randint(1, 500)
                if driver.park(queues[number], position):
                    asked[number].add(position)

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        if attempt % 2:
            store.loader.stop()
        for thread in threads:
            thread.join(30)
        if not attempt % 2:
            while store.loader.figures["queues"]:
                threading.Event().wait(0.001)
            assert all(driver.state(queues[n], at) == "resident" for n in range(4) for at in asked[n])
        assert all(driver.state(queue, at) != "loading" for queue in queues for at in range(1, 501))
        assert store.loader.figures["queues"] == 0
        store.close()
    if actors is not None:
        actors.stop()


def test_a_read_that_cannot_be_made_now_is_made_later(made: list[Cold]) -> None:
    """L6: without a file descriptor nothing is set aside; who is parked waits, holds no worker, and gets the message."""
    rig = cold(made, messages=200, size=8192, window=20 * BODY)
    queue, files = rig.queues[0], rig.rig.disk
    files.fail("open", 1, error=errno.EMFILE, forever=True)
    rig.driver.park(queue, 1)
    rig.run_ms(100)
    assert (rig.driver.state(queue, 1), queue.failed_count) == ("loading", 0)
    files.heal()
    rig.run_ms(100)
    assert rig.driver.resident(queue) == list(range(1, 21))
    assert queue.failed_count == 0
