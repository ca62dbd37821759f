"""`redelivered` after a crash: what a queue's mark covers is flagged, nothing that was delivered is unflagged, and no delivery waits for
the disk while the disk keeps up (queue/delivered.py)."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest

from flintmq.queue.held_runs import Run
from tests.drivers.delivered_driver import Taker, age, facts, keep_house, set_steps
from tests.store.rig import Rig
from tests.store.test_maintenance import queue_of

STEP, GRANT = 16, 4


@pytest.fixture(autouse=True)
def short_steps() -> Iterator[None]:
    set_steps(STEP, GRANT)
    yield
    set_steps()


def publish(core: Any, count: int = 1, priority: int = 0, transient: bool = False) -> None:
    for _ in range(count):
        assert core.publish(b"x", b"key", b"header", b"body", (0 if transient else 1) | (2 if priority else 0), priority)


def restarted(rig: Rig, levels: int = 1, clean: bool = False) -> Any:
    """The queue after a crash in which all that was not synced is lost, or after a clean stop."""
    rig.reopen(clean=clean)
    return queue_of(rig, 1, levels)


def flagged(core: Any) -> list[int]:
    """Positions of the entries that count as delivered before."""
    found, position = [], core.next_available(0)
    while position:
        if core.is_redelivered(position):
            found.append(position)
        position = core.next_available(position + 1)
    return found


def drain(taker: Taker, rig: Rig, count: int) -> list[int]:
    """Takes so many entries; the disk syncs whenever one waits for it."""
    taken: list[int] = []
    while len(taken) < count:
        position, _ = taker.take()
        assert position, "nothing is there"
        if position < 0:
            rig.flush()
            assert taker.told(), "the mark is durable and nobody was told"
        else:
            taken.append(position)
    return taken


# --- what a crash finds ---------------------------------------------------------------------------------------------------------


def test_what_nobody_took_is_not_flagged() -> None:
    rig = Rig(size=65536)
    core = queue_of(rig, 1, 1)
    publish(core, 100)
    rig.flush()
    assert flagged(restarted(rig)) == []


def test_only_what_is_near_a_delivery_is_flagged() -> None:
    """Of a backlog: the delivered ones, and fewer than two steps behind them."""
    rig = Rig(size=65536)
    core = queue_of(rig, 1, 1)
    publish(core, 200)
    rig.flush()
    taker = Taker(core)
    taken = drain(taker, rig, 30)
    rig.flush()
    after = flagged(restarted(rig))
    assert after == list(range(1, after[-1] + 1)) and taken[-1] <= after[-1] <= taken[-1] + 2 * STEP


def test_a_delivered_message_that_was_not_acked_comes_back_flagged_and_acked_ones_stay_away() -> None:
    rig = Rig(size=65536)
    core = queue_of(rig, 1, 1)
    publish(core, 100)
    rig.flush()
    taker = Taker(core)
    for position in drain(taker, rig, 3)[:2]:
        assert taker.ack(position)
    rig.flush()
    core = restarted(rig)
    assert core.next_available(0) == 3 and flagged(core)[0] == 3 and len(flagged(core)) < 2 * STEP


def test_a_queue_that_is_consumed_at_once_needs_no_wait_and_is_flagged_as_far_as_it_was_delivered() -> None:
    """The hot queue: a mark stands before the message's own record, so that the message survives with it or not at all."""
    rig = Rig(size=65536)
    core = queue_of(rig, 1, 1)
    taker = Taker(core)
    for number in range(1, 6 * STEP):
        publish(core)
        assert taker.take() == (number, False)
    rig.flush()
    after = flagged(restarted(rig))
    assert after == list(range(1, 6 * STEP))


def test_a_mark_that_covers_at_once_stands_before_the_record_of_its_message() -> None:
    """A block may end between the two: what survives then is the mark without the message, and not the message without the mark."""
    rig = Rig(size=65536)
    core = queue_of(rig, 1, 1)
    taker = Taker(core)
    marks = []
    for number in range(1, 6 * STEP):
        before = facts(core)
        publish(core)
        after = facts(core)
        if after["covered"] > before["covered"]:
            marks.append(number)
            assert rig.messages.durable_lsn < after["marked_at"] <= core.message_id_at(number)
        assert taker.take() == (number, False)
    assert len(marks) >= 2, "a mark is for more than one message, and ends"


def test_a_second_crash_finds_no_less() -> None:
    """The mark is in the log, not in the memory of the life that wrote it; flags of the first crash are flags after the second."""
    rig = Rig(size=65536)
    core = queue_of(rig, 1, 1)
    publish(core, 100)
    rig.flush()
    drain(Taker(core), rig, 20)
    rig.flush()
    core = restarted(rig)
    first = flagged(core)
    assert flagged(restarted(rig)) == first
    core = restarted(rig)
    drain(Taker(core), rig, 40)
    rig.flush()
    assert set(range(1, 41)) <= set(flagged(restarted(rig)))


def test_a_clean_stop_and_then_a_crash() -> None:
    """Ranges say what was delivered before the stop; the mark, which was brought down to that, says it after the crash."""
    rig = Rig(size=65536)
    core = queue_of(rig, 1, 1)
    publish(core, 100)
    rig.flush()
    taker = Taker(core)
    for position in drain(taker, rig, 6):
        assert taker.give_back(position)
    taker.close()
    core = restarted(rig, clean=True)
    assert flagged(core) == list(range(1, 7))
    rig.flush()
    after = flagged(restarted(rig))
    assert after[:6] == list(range(1, 7)) and len(after) < 6 + GRANT


def test_levels_have_marks_of_their_own() -> None:
    """A priority queue: of each level what was near a delivery of that level."""
    rig = Rig(size=65536)
    core = queue_of(rig, 1, 3)
    for priority in (0, 1, 2):
        publish(core, 100, priority)
    rig.flush()
    taker = Taker(core)
    drain(taker, rig, 101)  # all of priority 2, and one of priority 1
    rig.flush()
    after = flagged(restarted(rig, 3))
    counts = [sum(position >> 56 == level for position in after) for level in range(3)]
    assert counts[0] == 100 and 1 <= counts[1] <= 2 * STEP and counts[2] == 0


def test_a_damaged_log_flags_all() -> None:
    rig = Rig(size=8192)
    core = queue_of(rig, 1, 1)
    for _ in range(60):
        publish(core)
        rig.flush()
    file = rig.disk.open(f"/store/messages/{rig.files()[0]}")
    data = rig.disk.read(file, 64, 2048)
    rig.disk.write(file, bytes(byte ^ 0x55 for byte in data), 2048)
    rig.disk.sync(file)
    core = restarted(rig)
    assert rig.store.report.damage
    left = [position for position in range(1, 61) if core.is_redelivered(position)]
    assert left and left == flagged(core)
    assert flagged(restarted(rig)) == left, "the damage is set aside, and what it flagged stays so"


def test_a_store_without_marks_flags_all_until_it_has_some() -> None:
    """A log of an older version: its queues have entries and no mark. The start gives each a mark that covers them; what comes later is
    told apart."""
    rig = Rig(size=65536)
    for _ in range(20):
        rig.publish(1)
    rig.flush()
    core = restarted(rig)
    assert flagged(core) == list(range(1, 21))
    publish(core, 30)
    rig.flush()
    assert flagged(restarted(rig)) == list(range(1, 21))


def test_the_first_clean_start_of_an_older_store_believes_its_ranges() -> None:
    rig = Rig(size=65536)
    for _ in range(20):
        rig.publish(1)
    rig.flush()
    rig.store.write_redelivered([(1, [(1, 3)])])
    rig.reopen(clean=True)
    core = queue_of(rig, 1, 1)
    assert flagged(core) == [1, 2, 3]
    rig.flush()
    assert flagged(restarted(rig)) == [1, 2, 3]


def test_the_mark_survives_the_base() -> None:
    """The record of a mark is in a container that goes; the entries that it covers are copied, and flagged after a crash all the same."""
    rig = Rig(size=4096, queues=(1, 2))
    core, other = queue_of(rig, 1, 1), queue_of(rig, 2, 1)
    publish(core, 80)
    rig.flush()
    drain(Taker(core), rig, 10)
    rig.settle()
    marked = facts(core)["marked_at"]
    busy = Taker(other)
    for _ in range(400):
        publish(other)
        busy.ack(drain(busy, rig, 1)[0])
        if rig.messages.base <= marked:
            rig.settle()
    rig.settle()
    assert rig.messages.base > marked, "the base did not pass the mark"
    after = flagged(restarted(rig))
    assert after[:10] == list(range(1, 11)) and len(after) <= 10 + 2 * STEP


def test_the_mark_of_a_queue_that_is_not_back_survives_the_base() -> None:
    rig = Rig(size=4096, queues=(1, 2))
    core = queue_of(rig, 1, 1)
    publish(core, 40)
    rig.flush()
    drain(Taker(core), rig, 10)
    rig.flush()
    before = flagged(restarted(rig))
    rig.reopen(clean=False)  # now without queue 1
    start = rig.messages.tail
    other = queue_of(rig, 2, 1)
    for _ in range(400):
        publish(other)
        other.take_head(1)
        if rig.messages.base <= start:
            rig.settle()
    rig.settle()
    assert rig.messages.base > start
    assert flagged(restarted(rig)) == before


def test_a_mark_that_a_start_found_survives_the_base() -> None:
    """The queue is back and nothing raised its mark: the record is that of the life before, and the base does not pass it without a new
    one. Else every entry would be flagged."""
    rig = Rig(size=4096, queues=(1, 2), initial_containers=40)
    core, other = queue_of(rig, 1, 1), queue_of(rig, 2, 1)
    publish(core, 80)
    rig.flush()
    drain(Taker(core), rig, 10)
    marked = facts(core)["marked_at"]
    for _ in range(400):
        publish(other)
        other.take_head(1)
    rig.flush()
    core = restarted(rig)
    before, end = flagged(core), rig.messages.tail
    assert before[:10] == list(range(1, 11)) and len(before) <= 10 + 2 * STEP
    while rig.messages.base <= marked:
        rig.store.maintain()
        rig.flush()
    assert rig.messages.base <= end, "what was written of the mark in this life would be passed, too"
    assert flagged(restarted(rig)) == before


def test_a_crash_behind_a_clean_start_flags_deliveries_that_no_record_tells_of() -> None:
    """Between two looks at the mark entries are granted together: those that the life before did not come to are delivered without a
    record. The log of this life must not look cleanly stopped meanwhile."""
    rig = Rig(size=65536)
    core = queue_of(rig, 1, 1)
    publish(core, 10)
    rig.flush()
    first = Taker(core)
    assert drain(first, rig, 1) == [1] and first.give_back(1)
    core = restarted(rig, clean=True)
    assert flagged(core) == [1]
    granted, tail, taker = facts(core)["granted"], rig.messages.tail, Taker(core)
    assert [taker.take() for _ in range(granted)] == [(1, True), *[(position, False) for position in range(2, granted + 1)]]
    assert granted > 1 and rig.messages.tail == tail
    assert flagged(restarted(rig)) == list(range(1, granted + 1))


# --- who waits, and who does not ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("consumes", [True, False])
def test_the_first_delivery_of_a_backlog_waits_for_one_sync_and_no_later_one_does(consumes: bool) -> None:
    """Half a step before its end the mark is raised: a disk that syncs within that time is never waited for."""
    rig = Rig(size=1 << 20)
    core = queue_of(rig, 1, 1)
    publish(core, 40 * STEP)
    rig.flush()
    taker = Taker(core, consumes)
    assert taker.take() == (-1, False)
    rig.flush()
    for position in range(1, 40 * STEP + 1):
        assert taker.take() == (position, False)
        if position % (STEP // 4) == 0:
            rig.flush()


def test_a_delivery_waits_while_the_disk_stands_still_and_is_told() -> None:
    rig = Rig(size=1 << 20)
    core = queue_of(rig, 1, 1)
    publish(core, 20 * STEP)
    rig.flush()
    taker = Taker(core)
    drain(taker, rig, 1)
    taken = list(itertools.takewhile(lambda one: one[0] > 0, (taker.take() for _ in range(20 * STEP))))
    assert len(taken) < 2 * STEP, "more were delivered than a mark covers"
    taker.told()
    rig.flush()
    assert taker.told() and taker.take()[0] == len(taken) + 2


def test_an_older_entry_does_not_profit_from_the_mark_in_front_of_a_newer_one() -> None:
    """Its own record stands before that mark: it is there after a crash in which the mark is lost, so it waits until that is durable."""
    rig = Rig(size=65536)
    core = queue_of(rig, 1, 1)
    publish(core, STEP + 2)
    rig.flush()
    taker = Taker(core)
    drain(taker, rig, STEP // 2)
    first = facts(core)["reserved"]
    assert first == STEP + 1, "the last entry of the backlog is not covered"
    publish(core)
    assert facts(core)["reserved"] > first, "a consumer is near: the arrival asks for the next mark"
    taken = list(itertools.takewhile(lambda one: one[0] > 0, (taker.take() for _ in range(2 * STEP))))
    assert taken[-1][0] == first
    core = restarted(rig)  # what was not synced is lost: the arrival, and its mark
    assert not core.is_redelivered(STEP + 2) and flagged(core)[-1] == first


def test_what_no_log_knows_waits_for_nothing_and_moves_no_mark() -> None:
    rig = Rig(size=65536)
    core = queue_of(rig, 1, 1)
    publish(core, 5 * STEP, transient=True)
    taker = Taker(core)
    tail = rig.messages.tail
    assert [taker.take()[0] for _ in range(5 * STEP)] == list(range(1, 5 * STEP + 1))
    assert rig.messages.tail == tail


def test_transient_messages_in_between_hold_nobody_up() -> None:
    """The mark that goes before a message covers it at once: transient ones in front of it need none."""
    rig = Rig(size=65536)
    core = queue_of(rig, 1, 1)
    taker = Taker(core)
    for number in range(1, 10 * STEP):
        publish(core, transient=number % 7 != 0)
        assert taker.take() == (number, False)


def test_a_queue_in_memory_asks_nobody() -> None:
    from flintmq.queue.control import QueueHandle

    core = QueueHandle(1)
    publish(core, 3)
    assert [Taker(core, False).take()[0] for _ in range(3)] == [1, 2, 3]
    assert facts(core)["granted"] == 2**64 - 1


def test_a_queue_that_ends_while_somebody_waits() -> None:
    rig = Rig(size=65536)
    core = queue_of(rig, 1, 1)
    publish(core, 3)
    taker = Taker(core)
    assert taker.take() == (-1, False) and facts(core)["waits"]
    core.mark_deleted()
    rig.flush()
    assert not facts(core)["waits"] and taker.take() == (0, False)


def test_a_store_that_is_closed_lets_go_of_who_waits() -> None:
    rig = Rig(size=65536)
    core = queue_of(rig, 1, 1)
    publish(core, 3)
    taker = Taker(core)
    assert taker.take() == (-1, False)
    rig.store.close(clean=False)
    assert not facts(core)["waits"]
    taker.close()


# --- the mark itself ------------------------------------------------------------------------------------------------------------


def test_a_step_is_what_a_second_takes() -> None:
    """A mark is a second ahead, and no more than that of a queue that is slow."""
    rig = Rig(size=1 << 20)
    core = queue_of(rig, 1, 1)
    publish(core, 4_000)
    rig.flush()
    taker = Taker(core)
    drain(taker, rig, 200)
    fast = facts(core)["step"]
    assert fast > STEP, "a second takes more than the least step"
    age(core, 1_000_000)
    assert any(drain(taker, rig, 1) and facts(core)["step"] < fast for _ in range(2 * fast))


def test_the_mark_comes_down_when_nobody_consumes() -> None:
    """Messages that arrive then are not flagged, though the mark was reserved ahead of the last delivery."""
    rig = Rig(size=65536)
    core = queue_of(rig, 1, 1)
    taker = Taker(core)
    publish(core, 10)
    drain(taker, rig, 10)
    keep_house(core)
    assert facts(core)["reserved"] > 10, "a consumer is there"
    taker.close()
    keep_house(core)
    assert facts(core)["reserved"] > 10, "one may be back in a moment"
    age(core, 60_000)
    keep_house(core)
    assert (facts(core)["reserved"], facts(core)["granted"]) == (10, 10)
    publish(core, 10)
    rig.flush()
    assert flagged(restarted(rig)) == list(range(1, 11))


def test_a_mark_that_came_down_lets_nobody_past_it() -> None:
    rig = Rig(size=65536)
    core = queue_of(rig, 1, 1)
    taker = Taker(core)
    publish(core, 10)
    drain(taker, rig, 10)
    taker.close()
    age(core, 60_000)
    keep_house(core)
    publish(core, 10)
    getter = Taker(core, False)
    assert getter.take() == (-1, False), "the mark that covered it was taken back"
    rig.flush()
    assert getter.take() == (11, False)
    rig.flush()
    assert 11 in flagged(restarted(rig))


def test_what_the_broker_shows_is_marked() -> None:
    """A set of Spark, a get over HTTP: the broker holds the entries, and tells after which LSN they may be shown."""
    rig = Rig(size=65536)
    core = queue_of(rig, 1, 1)
    publish(core, 60)
    rig.flush()
    assert core.hold(30)
    lsn = core.show(30)
    assert lsn > rig.messages.durable_lsn
    rig.flush()
    assert rig.messages.durable_lsn >= lsn and core.show(29) == 0
    core.release_held(30)
    age(core, 60_000)
    keep_house(core)  # takes nothing back: it was shown
    rig.flush()
    after = flagged(restarted(rig))
    assert after == list(range(1, len(after) + 1)) and 30 <= len(after) <= 30 + 2 * STEP


def test_a_set_of_entries_is_marked_before_what_is_logged_of_it() -> None:
    """The mark of a run is in the message log when `hold` returns: a Prepare comes later, to a log that is written later."""
    rig = Rig(size=65536)
    core = queue_of(rig, 1, 3)
    for priority in (0, 2):
        publish(core, 60, priority)
    rig.flush()
    run = Run(core)
    assert run.hold(0, 70, 1 << 30, 0, False, 100, 8)[0] == 70
    run.release()
    rig.flush()
    after = flagged(restarted(rig, 3))
    assert [position for position in after if position >> 56 == 0] == list(range(1, 61))
    assert 10 <= len([position for position in after if position >> 56 == 2]) <= 10 + 2 * STEP


# --- every order ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_no_crash_finds_a_delivered_message_unflagged(seed: int) -> None:
    """Consumers that come and go, getters, returns, acks, transient messages, two levels, syncs and upkeep in any order: after a crash at
    any time each delivered message is gone or flagged, and none that is two steps above every delivery is flagged."""
    rng = random.Random(seed)
    levels = rng.choice((1, 1, 2))
    rig = Rig(size=rng.choice((4096, 16384)))
    core = queue_of(rig, 1, levels)
    delivered: set[int] = set()
    step_max = STEP
    for _ in range(3):
        takers: list[Taker] = []
        held: list[tuple[Taker, int]] = []
        for _ in range(150):
            step_max = max(step_max, *(facts(core, level)["step"] for level in range(levels)))
            step = rng.randrange(12)
            if step < 4:
                publish(core, rng.choice((1, 1, 3, 20)), rng.randrange(levels), rng.random() < 0.2)
            elif step == 4:
                takers.append(Taker(core, rng.random() < 0.7))
            elif step == 5 and takers:
                taker = takers.pop(rng.randrange(len(takers)))
                for one in [one for one in held if one[0] is taker]:
                    taker.give_back(one[1])
                    held.remove(one)
                taker.close()
            elif step < 9 and takers:
                taker = rng.choice(takers)
                for _ in range(rng.choice((1, 5, 20))):
                    position, again = taker.take()
                    if position <= 0:
                        break
                    assert again or position not in delivered, "delivered before, and not flagged"
                    delivered.add(position)
                    held.append((taker, position))
            elif step == 9 and held:
                taker, position = held.pop(rng.randrange(len(held)))
                assert taker.ack(position) if rng.random() < 0.5 else taker.give_back(position)
            elif step == 10:
                rig.flush()
            else:
                rig.store.maintain()
                keep_house(core)
                age(core, 6_000)
        near = {level: max([position for position in delivered if position >> 56 == level], default=level << 56) for level in range(levels)}
        for taker in takers:
            taker.close()
        core = restarted(rig, levels)
        there: set[int] = set()
        position = core.next_available(0)
        while position:
            there.add(position)
            assert position not in delivered or core.is_redelivered(position), f"seed {seed}: {position} is unflagged"
            if position > near[position >> 56] + 2 * step_max + 2 * STEP + GRANT:
                assert not core.is_redelivered(position), f"seed {seed}: {position} is flagged, and nobody was near"
            position = core.next_available(position + 1)
        delivered &= there  # positions of messages that were lost are used again
