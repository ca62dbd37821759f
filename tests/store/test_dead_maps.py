"""A log knows what died in it: what nobody touched takes no memory, and no death is counted twice, in whatever order they come."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.drivers.log_driver import death_bytes, died, doubt, lives_at
from tests.store.rig import Rig
from tests.store.test_log import make, write_all


def fill(log, writer, count: int, length: int = 0) -> list[tuple[int, int]]:  # type: ignore[no-untyped-def]
    """Things in the log: (LSN, bytes)."""
    made = []
    for _ in range(count):
        lsn, end = log.append(42, bytes(length))
        log.mark_live(lsn, end - lsn)
        made.append((lsn, end - lsn))
        if log.ready_bytes < 1024:
            write_all(log, writer)
            log.prepare(False)
    write_all(log, writer)
    log.seal()
    return made


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from((4096, 65536)),
    st.lists(st.integers(0, 10_000), max_size=400),
    st.booleans(),
)
def test_deaths_in_any_order_and_twice_count_once(size: int, deaths: list[int], rising: bool) -> None:
    """Against a set: who lives, how many live in the log and in each container, whatever of the list and the map a container has."""
    _, log, writer = make(size=size)
    things = fill(log, writer, 300, 8)
    alive = {lsn for lsn, _ in things}
    chosen = [things[number % len(things)][0] for number in deaths]
    for lsn in sorted(chosen) if rising else chosen:
        log.mark_dead(lsn, lsn + 8)
        alive.discard(lsn)
        assert log.live_count == len(alive)
    assert [lives_at(log, lsn) for lsn, _ in things] == [lsn in alive for lsn, _ in things]
    for sequence, live, count, _, _ in log.containers():
        assert live == sum(1 for lsn in alive if lsn // size == sequence)
        assert count == sum(1 for lsn, _ in things if lsn // size == sequence)


def test_what_nobody_touched_takes_no_memory() -> None:
    """A backlog has no map. One death in a container takes a few bytes; when nothing lives there any more, it takes none."""
    _, log, writer = make(size=65536)
    things = fill(log, writer, 4000, 8)
    first = [lsn for lsn, _ in things if lsn // 65536 == 1]
    assert log.tail > 2 * 65536 and death_bytes(log) == 0
    log.mark_dead(first[5], log.tail)
    assert death_bytes(log) == 32
    for lsn in first[:100]:
        log.mark_dead(lsn, log.tail)
    assert death_bytes(log) == 65536 // 16 // 8
    for lsn in first:
        log.mark_dead(lsn, log.tail)
    assert death_bytes(log) == 0
    for lsn in first:
        log.mark_dead(lsn, log.tail)
        assert not lives_at(log, lsn)
    assert log.live_count == len(things) - len(first)


def test_the_tail_s_container_remembers_its_deaths() -> None:
    """Everything in it died, then something new lives there: what died before stays dead, and is not counted again."""
    _, log, writer = make(size=65536)
    (old, _), (other, _) = fill(log, writer, 2)
    log.mark_dead(old, log.tail)
    log.mark_dead(other, log.tail)
    ((new, _),) = fill(log, writer, 1)
    log.mark_dead(old, log.tail)
    assert log.live_count == 1 and lives_at(log, new) and not lives_at(log, old)


def test_nothing_lives_below_the_base_or_above_the_tail() -> None:
    """LSNs at which no container is, or nothing was appended yet, neither live nor die."""
    _, log, writer = make()
    things = fill(log, writer, 200, 100)
    for lsn, _ in things:
        if lsn // 4096 <= 2:
            log.mark_dead(lsn, lsn)
    write_all(log, writer)
    log.seal()
    assert log.advance_base()
    log.append(42, b"carries the base")
    write_all(log, writer)
    assert log.retire() == 2
    count = log.live_count
    for lsn in (things[0][0], 8, log.tail, log.tail + 4096, 1 << 62):
        log.mark_dead(lsn, log.tail)
        assert not lives_at(log, lsn)
    assert log.live_count == count


def test_of_a_damaged_container_only_what_recovery_found_lives() -> None:
    """What another reader finds there, and recovery did not, is dead; what is written there afterwards lives."""
    _, log, _ = make(size=65536)
    things = [log.append(42, bytes(8)) for _ in range(20)]
    assert doubt(log, 1)
    for lsn, end in things[::2]:
        log.mark_live(lsn, end - lsn)
    for lsn, end in things[1:10:2]:
        assert died(log, lsn, end - lsn)
    assert [lives_at(log, lsn) for lsn, _ in things] == [True, False] * 10
    assert log.containers()[0][1:3] == (10, 15)
    lsn, end = log.append(42, bytes(8))
    log.mark_live(lsn, end - lsn)
    assert lives_at(log, lsn)
    log.mark_dead(things[0][0], end)
    assert log.live_count == 10 and not lives_at(log, things[0][0])


@pytest.mark.parametrize("clean", [True, False])
def test_a_start_finds_the_same_deaths(clean: bool) -> None:
    """Counts and maps after a start are those before it: of what died, of what was copied forward, of transactions that did not happen."""
    rig = Rig(size=4096)
    for number in range(120):
        rig.publish(1 + number % 3, body=bytes(40))
        if number % 2:
            rig.ack(1 + number % 3, rig.next[1 + number % 3] - 1)
    rig.settle()
    for _ in range(60):
        rig.publish(3, body=bytes(200))
        rig.ack(3, rig.next[3] - 1)
    rig.settle()
    assert rig.store.maintenance.copied_messages
    every = [message for queue in rig.model.values() for message in queue.values()]
    acked = sorted(set(rig.bodies) - set(every))
    before = [one[:2] for one in rig.messages.containers() if one[1]]
    rig.reopen(clean)
    assert [one[:2] for one in rig.messages.containers() if one[1]] == before
    assert all(rig.messages.is_live(message) for message in every)
    assert not any(rig.messages.is_live(message) for message in acked)
    for message in acked:  # nothing of it is counted again
        rig.messages.mark_dead(message, rig.messages.tail)
    assert rig.messages.live_count == len(set(every))
