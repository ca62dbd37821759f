"""Pieces of do_get are decoded in turns: a reader with many slices does not take the cores from one with a single slice."""

from __future__ import annotations

import threading
from typing import Any

from flintmq.clock import ManualClock
from flintmq.config import Limits
from flintmq.flight.batches import Plane, Ticket
from flintmq.flight.link import Caller
from flintmq.scheduler.outcomes import Space
from flintmq.scheduler.system import ActorSystem
from tests.flight.fake import SCHEMA, Codec, table_of

ROWS = 4
CALLER = Caller("ann", "/")


class NoLink:
    """Answers `rows` for ever: pieces of ROWS rows each."""

    size = 8

    def call(self, name: str, caller: Caller, arguments: dict[str, Any]) -> tuple[Any, bytes]:
        first = arguments["first"]
        return {"queues": [["q", ROWS, 1]], "more": True}, table_of([(first + number, 8) for number in range(ROWS)])


class Gated(Codec):
    """Decodes one piece each time it is let; `seen`: threads."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def decode(self, *arguments: Any) -> list[Any]:
        self.seen.append(threading.current_thread().name)
        return super().decode(*arguments)


def ticket(subject: str, number: int, slices: int) -> Ticket:
    source = {"kind": "set", "sub_id": subject, "slice": number, "slices": slices}
    return Ticket(source, 0, None, None, SCHEMA)


def test_a_subject_has_one_weight_whatever_its_slices() -> None:
    """Weights of a subject's slices add up to that of one slice; another slice is another actor."""
    whole = ticket("a", 0, 1).actor
    parts = [ticket("b", number, 4).actor for number in range(4)]
    assert sum(weight for _, _, weight in parts) == whole[2] and len({part[:2] for part in parts}) == 4
    assert len({subject for subject, _, _ in parts}) == 1 and parts[0][0] != whole[0]
    assert ticket("c", 0, 100_000).actor[1:] == (0, 100) and Ticket({"id": 5}, 0, None, None, None).actor == (0, 0, 100)


def test_decoding_runs_on_the_actors_and_ends_with_the_service() -> None:
    """Rows and their order are the ticket's; after the close a reader hears that the service stops."""
    codec = Gated()
    plane = Plane(NoLink(), codec, Limits())  # type: ignore[arg-type]
    batches = plane.read(CALLER, ticket("a", 0, 1))
    positions = [position for _ in range(5) for position in next(batches).column("position").to_pylist()]
    assert positions == list(range(5 * ROWS))
    assert codec.seen and all(name.startswith("flintmq-actor-") for name in codec.seen)
    plane.close()
    try:
        for _ in range(20):
            next(batches)
    except Exception as error:
        assert getattr(error, "code", "") == "UNAVAILABLE", error
    else:
        raise AssertionError("it reads on")
    batches.close()  # type: ignore[attr-defined]


def test_many_readers_of_one_subject_share_what_it_gets() -> None:
    """Eight slices against one, one worker, each piece a millisecond: at any time each subject had about half of the turns."""
    turns: list[str] = []
    clock = ManualClock()
    actors = ActorSystem(Limits(), workers=1, clock=clock)

    def work(name: str, a: int, b: int) -> None:
        clock.advance(ms=1)
        actors.wake(Space.FLIGHT, a, b)  # nobody waits: it tells the system the time
        turns.append(name)

    for subject, slices in (("many", 8), ("one", 1)):
        for number in range(slices):
            a, b, weight = ticket(subject, number, slices).actor
            for _ in range(400 // slices):
                assert actors.dispatch(Space.FLIGHT, a, b, lambda subject=subject, a=a, b=b: work(subject, a, b), weight=weight)  # type: ignore[misc]
    while actors.step():
        pass
    assert len(turns) == 800
    for end in range(200, 800, 50):
        assert abs(turns[:end].count("one") - end // 2) <= 50
    actors.stop()
