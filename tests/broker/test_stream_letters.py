"""Dead letters of streams that can't be placed: each is looked at once in a round, none holds up another, and they cost little."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from flintmq.broker.dead_letters import NO_ROUTE, Attempt
from flintmq.broker.stream_letters import REFUSED_MAX, StreamLetters
from flintmq.clock import ManualClock
from flintmq.config import Limits
from flintmq.ports import DequeueReason

STREAM = 7
LEAST_MS = Limits().dead_letter_retry_ms


class Stream:
    """Groups with dead offsets, in order."""

    def __init__(self, **groups: list[int]) -> None:
        self.dead = [(name.encode(), offset) for name, offsets in groups.items() for offset in offsets]

    def take_dead(self, most: int, behind: tuple[bytes, int] | None = None) -> list[tuple[bytes, int, int, int]]:
        first = 0 if behind is None else len([one for one in self.dead if one <= behind])
        return [(*one, DequeueReason.REJECT, 1) for one in self.dead[first : first + most]]

    def message(self, offset: int) -> tuple[bytes, bytes, bytes, bytes]:
        return (b"", b"%d" % offset, b"", b"")

    def dead_done(self, name: bytes, offset: int) -> bool:
        self.dead.remove((name, offset))
        return True


class World:
    def __init__(self) -> None:
        self.clock = ManualClock()
        queue = SimpleNamespace(name="s", policy=SimpleNamespace(keeps_letters=True))
        routes = SimpleNamespace(version=object())
        self.broker: Any = SimpleNamespace(clock=self.clock, limits=Limits(), queues={STREAM: queue}, routes=routes)
        dead_letters: Any = SimpleNamespace(publish_to_all=self.place)
        self.letters = StreamLetters(self.broker, dead_letters)
        self.tried: list[int] = []
        self.good: set[int] = set()
        self.half: set[int] = set()
        self.seen: list[set[int]] = []

    def place(self, queue: Any, message: Any, reason: str, attempt: Attempt) -> int | None:
        number = int(message[1])
        self.tried.append(number)
        self.seen.append(set(attempt.done))
        if number in self.half:
            attempt.done.add(99)
        return None if number in self.good else NO_ROUTE

    def tick(self, stream: Any) -> list[int]:
        self.tried = []
        self.letters.bury(STREAM, stream)
        return self.tried


@pytest.fixture
def world() -> World:
    return World()


def test_a_look_goes_on_behind_the_last_one_and_comes_to_all(world: World) -> None:
    stream: Any = Stream(a=list(range(100)), b=list(range(100, 200)))
    world.good = {99, 150}
    seen: list[int] = []
    while len(seen) < 200:
        seen += world.tick(stream)
        world.clock.advance(ms=20_000)
    assert seen == list(range(200)) and len(stream.dead) == 198


def test_it_rests_longer_and_longer_and_routes_wake_it(world: World) -> None:
    stream: Any = Stream(a=list(range(10)))
    looks = []
    for _ in range(600):  # a minute
        looks.append(len(world.tick(stream)))
        world.clock.advance(ms=100)
    assert set(looks) == {0, 10} and looks.count(10) <= 9
    world.broker.routes.version = object()
    world.good = {3}
    world.clock.advance(ms=LEAST_MS)
    assert len(world.tick(stream)) == 10 and len(stream.dead) == 9


def test_what_dies_while_others_rest_is_tried_at_once(world: World) -> None:
    stream: Any = Stream(a=list(range(10)))
    assert len(world.tick(stream)) == 10 and world.tick(stream) == []
    stream.dead.append((b"a", 10))
    world.good = {10}
    assert world.tick(stream) == [10] and len(stream.dead) == 10


def test_many_that_are_refused_rest_in_the_middle(world: World) -> None:
    stream: Any = Stream(a=list(range(500)))
    assert world.tick(stream) == list(range(REFUSED_MAX)) and world.tick(stream) == []
    world.clock.advance(ms=LEAST_MS)
    assert world.tick(stream) == list(range(REFUSED_MAX, 2 * REFUSED_MAX))


def test_a_target_that_has_a_letter_does_not_get_it_again(world: World) -> None:
    stream: Any = Stream(a=[1])
    world.half = {1}
    world.tick(stream)
    world.clock.advance(ms=LEAST_MS)
    world.good = {1}
    world.tick(stream)
    assert world.seen == [set(), {99}] and not stream.dead
    assert world.tick(stream) == [] and not world.letters._looks
