"""An engine as E1 to E6 of the port allow it to be: commits in the air that happen in any order, late, or never; pages; a quota.

in: commits of nodes. out: `Flight.outcome`, when the world lets an answer through. Reads are of the moment of the call.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Key = tuple[Any, ...]
# publisher, number, attempt
Copy = tuple[int, int, int]
# level, index
Position = tuple[int, int]

OWNER: Key = ("owner",)
MARK: Key = ("mark",)
QUIET: Key = ("quiet",)

DONE, FAILED, UNKNOWN, UNAVAILABLE, FULL = "done", "failed", "unknown", "unavailable", "full"


@dataclass(frozen=True, slots=True)
class OwnerRow:
    epoch: int
    node: int
    life: int


@dataclass(frozen=True, slots=True)
class Mark:
    """tails: the next index of each level."""

    epoch: int
    settled: int
    tails: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Quiet:
    """Nobody consumes; below these indices, or at these positions, an entry may have been delivered. No such row: somebody may consume."""

    below: tuple[int, ...]
    exact: frozenset[Position] = frozenset()


@dataclass(frozen=True, slots=True)
class Segment:
    epoch: int
    batch: int
    items: tuple[tuple[int, Copy], ...]
    transaction: int = 0


@dataclass(frozen=True, slots=True)
class Closed:
    """The row of a transaction: all of it is in."""

    epoch: int
    batch: int


@dataclass(frozen=True, slots=True)
class Commit:
    """kind, epoch: for the world's checks; ends: copies whose end becomes durable; gone: takes the queue from a node by R7;
    rewrites: merges segments."""

    kind: str
    node: int
    life: int
    epoch: int
    conditions: tuple[tuple[Key, Any], ...]
    puts: Mapping[Key, Any]
    deletes: frozenset[Key] = frozenset()
    ends: frozenset[Copy] = frozenset()
    gone: bool = False
    rewrites: bool = False


@dataclass(slots=True, eq=False)
class Flight:
    """A commit in the air. happened: None, or what the engine answered; outcome: what the node knows."""

    commit: Commit
    happened: str | None = None
    outcome: str | None = None
    data: dict[str, Any] = field(default_factory=dict)


class Engine:
    """Args: chance: all that is drawn; faults: 0 to 1, the share of commits that go wrong; watch: told of each commit before it happens."""

    def __init__(self, chance: random.Random, faults: float, watch: Callable[[Commit], None]) -> None:
        self.chance = chance
        self.faults = faults
        self.rows: dict[Key, Any] = {}
        self.flights: list[Flight] = []
        self.full = False
        self.out = False
        self._watch = watch

    def submit(self, commit: Commit, reachable: bool) -> Flight:
        flight = Flight(commit)
        if reachable:
            self.flights.append(flight)
        else:
            flight.outcome = UNAVAILABLE
        return flight

    def page(self, after: Key, rows: int) -> list[tuple[Key, Any]]:
        keys = sorted(key for key in self.rows if key > after and key[0] in ("ends", "mark", "quiet", "seg", "transaction"))
        return [(key, self.rows[key]) for key in keys[:rows]]

    def turn(self, place: int, reachable: Callable[[int], bool]) -> None:
        """One of the commits in the air happens, is answered, or is lost."""
        if not self.flights:
            return
        flight = self.flights[place % len(self.flights)]
        wrong = self.chance.random() < self.faults
        if not reachable(flight.commit.node):
            self._cut_off(flight)
        elif flight.happened is not None:
            self._answer(flight, UNKNOWN if wrong else flight.happened)
        elif flight.outcome is not None:  # it was answered as unknown: it may still happen
            if self.chance.random() < 0.5:
                self._happen(flight)
            self.flights.remove(flight)
        elif wrong:
            self._go_wrong(flight)
        else:
            self._happen(flight)
            if self.chance.random() < 0.7:
                self._answer(flight, flight.happened)

    def _cut_off(self, flight: Flight) -> None:
        draw = self.chance.random()
        if flight.happened is None and draw < 0.3:
            self._happen(flight)
        if flight.outcome is None:
            flight.outcome = UNKNOWN
        if flight.happened is not None or draw > 0.6:
            self.flights.remove(flight)

    def _go_wrong(self, flight: Flight) -> None:
        draw = self.chance.random()
        if draw < 0.3:
            self._answer(flight, UNAVAILABLE)
        elif draw < 0.5:
            self._answer(flight, UNKNOWN)
        else:
            flight.outcome = UNKNOWN  # and it stays in the air

    def _answer(self, flight: Flight, outcome: str | None) -> None:
        if flight.outcome is None:
            flight.outcome = outcome
        self.flights.remove(flight)

    def _happen(self, flight: Flight) -> None:
        commit = flight.commit
        if any(self.rows.get(key) != value for key, value in commit.conditions):
            flight.happened = FAILED
        elif self.full and commit.puts:
            flight.happened = FULL
        else:
            self._watch(commit)
            flight.happened = DONE
            self.rows.update(commit.puts)
            for key in commit.deletes:
                self.rows.pop(key, None)
