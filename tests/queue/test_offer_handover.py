"""An offer that lands while its consumer is being suspended: every interleaving of the steps of docs/QUEUE_CORE.md, in a model of them.

Three threads: two producers, each with one entry for an exclusive consumer of prefetch 1 (offer first, else wake), and the consumer's loop,
which suspends and resumes it once at any time, pulls when it is told, and settles what it got. At the end of every schedule both entries
were delivered and the credit is back. The mutants leave out one rule each; for each of them a schedule is found in which a message stays.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

INTERESTED, NOT_INTERESTED, NOTIFIED = "interested", "not interested", "notified"
AVAILABLE, OFFERED, SENT, GONE = "available", "offered", "sent", "gone"
LOOP, DONE = 2, "done"


@dataclass(frozen=True)
class State:
    """Everything that the threads share, and where each of them is."""

    entries: tuple[str, str] = (GONE, GONE)  # not there yet
    at: tuple[str, ...] = ("enqueue", "enqueue", "idle")
    list: str = INTERESTED
    suspended: bool = False
    used: int = 0
    lock: int = -1  # the send_lock: who has it
    offered: int = -1
    told: bool = False
    suspensions: int = 1
    finished: int = 0

    def go(self, thread: int, to: str, **changes: object) -> State:
        at = list(self.at)
        at[thread] = to
        return replace(self, at=tuple(at), **changes)  # type: ignore[arg-type]

    def entry(self, number: int, state: str) -> tuple[str, ...]:
        return tuple(state if i == number else old for i, old in enumerate(self.entries))


def woken(state: State) -> dict[str, object]:
    """manager_wake_one, one section under the manager lock: moves and notifies."""
    if AVAILABLE not in state.entries or state.list != INTERESTED:
        return {}
    if state.used:
        return {"list": NOT_INTERESTED}
    return {} if state.suspended else {"list": NOTIFIED, "told": True}


def producer(state: State, me: int, mutant: str) -> State | None:
    """One step; None: it has to wait."""
    where = state.at[me]
    if where == "enqueue":
        return state.go(me, "offer", entries=state.entry(me, AVAILABLE))
    if where == "offer":  # manager_next_offer
        ready = state.list != NOT_INTERESTED and not state.suspended and not state.used
        return state.go(me, "lock" if ready else "wake")
    if where == "lock":  # it is only tried
        return state.go(me, "test", lock=me) if state.lock < 0 else state.go(me, "wake")
    if where == "test":
        fit = state.list != NOT_INTERESTED and not state.suspended
        return (
            state.go(me, "credit")
            if state.offered < 0 and (fit or mutant in ("tested before the lock", "as it was"))
            else state.go(me, "unlock")
        )
    if where == "credit":
        return state.go(me, "acquire", used=1) if not state.used and state.entries[me] == AVAILABLE else state.go(me, "unlock")
    if where == "acquire":
        if state.entries[me] == AVAILABLE:
            return state.go(me, "told", entries=state.entry(me, OFFERED), offered=me)
        back = state.list == NOT_INTERESTED and not state.suspended
        return state.go(me, "unlock", used=0, **({"list": INTERESTED} if back else {}))
    if where == "told":  # manager_offered
        return state.go(me, "leave", told=True, list=NOTIFIED if state.list == INTERESTED else state.list)
    if where == "leave":
        return state.go(me, DONE, lock=-1)
    if where == "unlock":
        return state.go(me, "wake", lock=-1)
    if where == "wake":
        return state.go(me, "done", **woken(state))
    return None


def loop(state: State, mutant: str) -> Iterator[State]:
    """What the consumer's loop may do next."""
    where = state.at[LOOP]
    if where == "idle":
        if state.suspensions:
            yield state.go(LOOP, "off", suspensions=0, suspended=True)
        if state.told:
            yield state.go(LOOP, "pull", told=False)
    elif where == "off":
        yield state.go(LOOP, "withdraw", list=NOT_INTERESTED)
    elif where == "withdraw":
        if mutant == "as it was" and state.offered < 0:
            yield state.go(LOOP, "on")
        elif state.lock < 0:
            yield withdrawn(state, "on")
    elif where == "on":
        yield state.go(LOOP, "resume", suspended=False)
        if state.told:
            yield state.go(LOOP, "pull", told=False)
    elif where == "resume":
        resumed = replace(state, list=INTERESTED) if state.list == NOT_INTERESTED and not state.used else state
        yield resumed.go(LOOP, "idle", **(woken(resumed) if resumed.list != NOTIFIED else {}))
    elif where == "pull" and state.lock < 0:
        yield from pulled(state, mutant)
    elif where == "settle":
        number = state.entries.index(SENT)
        settled = replace(state, used=0, entries=state.entry(number, GONE), finished=state.finished + 1)  # type: ignore[arg-type]
        if settled.list == NOT_INTERESTED:
            settled = replace(settled, list=INTERESTED)
            settled = replace(settled, **woken(settled))  # type: ignore[arg-type]
        yield settled.go(LOOP, "pull")


def withdrawn(state: State, to: str) -> State:
    if state.offered < 0:
        return state.go(LOOP, to)
    given = replace(state, offered=-1, used=0, entries=state.entry(state.offered, AVAILABLE))  # type: ignore[arg-type]
    return given.go(LOOP, to, **woken(given))


def pulled(state: State, mutant: str) -> Iterator[State]:
    """queue_deliver_single: one section under the send_lock; the last look is part of it, which the list lock makes true."""
    if state.list == NOT_INTERESTED and (state.offered < 0 or mutant != ""):
        yield state.go(LOOP, "on" if state.suspended else "idle")
    elif state.suspended:
        yield withdrawn(replace(state, list=NOT_INTERESTED), "on")
    elif state.offered >= 0:
        number = state.offered
        hot = NOTIFIED if state.list == INTERESTED else state.list
        yield state.go(LOOP, "settle", offered=-1, entries=state.entry(number, SENT), list=hot)
    elif AVAILABLE in state.entries and not state.used:
        yield state.go(LOOP, "settle", used=1, entries=state.entry(state.entries.index(AVAILABLE), SENT), list=NOTIFIED)
    else:
        yield state.go(LOOP, "idle", list=NOT_INTERESTED if state.used else INTERESTED)


def stuck(mutant: str) -> list[State]:
    """Ends of schedules in which a message stays or credit is lost."""
    seen = {State()}
    open_ = [State()]
    ends = []
    while open_:
        state = open_.pop()
        following = [step for me in (0, 1) if (step := producer(state, me, mutant)) is not None]
        following += loop(state, mutant)
        if not following and (state.finished < 2 or state.used):
            ends.append(state)
        for step in following:
            if step not in seen:
                seen.add(step)
                open_.append(step)
    assert len(seen) > 500
    return ends


def test_in_no_schedule_an_offer_stays_with_a_suspended_consumer() -> None:
    assert stuck("") == []


@pytest.mark.parametrize("mutant", ["tested before the lock", "no offer to one without credit", "as it was"])
def test_each_rule_of_the_hand_over_is_needed(mutant: str) -> None:
    assert stuck(mutant) != []
