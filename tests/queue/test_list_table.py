"""The lists of consumers are what tools/specs/consumer_lists.toml says: each case of its table, and no move that no row has."""

from __future__ import annotations

from typing import Any

import pytest

from tools import gen_states

queue_driver = pytest.importorskip("tests.drivers.queue_driver")
Consumer, Credit, Queue = queue_driver.Consumer, queue_driver.Credit, queue_driver.Queue

ROWS = gen_states.moves()
# the lists that a consumer of the kind can be on
REACHED = {"acquiring": ("REMOVED", "INTERESTED", "NOT_INTERESTED", "NOTIFIED"), "browser": ("REMOVED", "NOT_INTERESTED", "NON_ACQUIRING")}


class Scene:
    """A consumer on the list `at` of a queue, under conditions. `neighbour`: another one stands on INTERESTED behind it."""

    def __init__(self, kind: str, at: str, neighbour: bool = False) -> None:
        self.queue, self.kind = Queue(), kind
        self.credit = Credit(1)
        self.elsewhere = Consumer(Queue(), shared=self.credit)  # takes the credit that they share
        self.consumer: Any = None
        if at != "REMOVED":
            self.attach()
        if neighbour:
            self.neighbour = Consumer(self.queue)
        if at == "NOT_INTERESTED":
            self.consumer.set_desired(False)
        elif at == "NOTIFIED":
            self.queue.enqueue(b"work")
        assert self.list == at

    def attach(self, suspended: bool = False) -> None:
        self.consumer = Consumer(self.queue, browser=self.kind == "browser", shared=self.credit, suspended=suspended)

    def set(self, credit: bool, suspended: bool, work: bool) -> None:
        """The conditions, without an event of this consumer."""
        at = self.list
        if work and at == "INTERESTED":
            self.helper = Consumer(self.queue)  # told of the entry, because the other one is passed over
            self.consumer.block()
            self.queue.enqueue(b"work")
            assert self.helper.list == "NOTIFIED"
            self.consumer.unblock()
        elif work and at != "NOTIFIED":
            self.queue.enqueue(b"work")
        elif not work and at == "NOTIFIED":
            self.queue.take_head()
        if not credit:
            self.elsewhere.queue.enqueue(b"taken")
            assert self.elsewhere.pull() is not None
        if suspended and self.consumer is not None:
            self.consumer.block()
        assert self.list == at

    @property
    def list(self) -> str:
        return "REMOVED" if self.consumer is None else str(self.consumer.list)

    def happens(self, event: str, suspended: bool) -> None:
        if event == "attach":
            self.attach(suspended)
        elif event in ("arrival", "offer"):
            self.queue.enqueue(b"new", immediate=event == "offer")
        else:
            calls = {
                "desired": lambda: self.consumer.set_desired(True),
                "not desired": lambda: self.consumer.set_desired(False),
                "pull": self.consumer.pull,
                "credit back": self.consumer.credit_back,
                "detach": self.consumer.close,
            }
            calls[event]()


def cases() -> list[Any]:
    found = []
    for event, kind, at, conditions in gen_states.list_cases():
        if at not in REACHED[kind] or (kind == "browser" and not conditions["credit"]):
            continue
        if (event == "attach") != (at == "REMOVED") or (event in ("arrival", "offer") and conditions["work"]):
            continue  # what arrives is the next entry only where none was before
        words = [name if value else f"no {name}" for name, value in conditions.items()]
        found.append(pytest.param(event, kind, at, conditions, id=", ".join([event, kind, at, *words])))
    return found


@pytest.mark.parametrize(("event", "kind", "at", "conditions"), cases())
def test_an_event_moves_a_consumer_where_its_row_says_and_nowhere_without_one(
    event: str, kind: str, at: str, conditions: dict[str, bool]
) -> None:
    scene = Scene(kind, at)
    scene.set(**conditions)
    row = gen_states.move_of(ROWS, event, kind, at, conditions)
    expected = at if row is None else row.to
    told = row is not None and row.wake and conditions["work"] and conditions["credit"] and not conditions["suspended"]
    if told and expected == "INTERESTED":
        expected = "NOTIFIED"  # it is told itself
    scene.happens(event, conditions["suspended"])
    assert scene.list == expected


@pytest.mark.parametrize(
    ("kind", "at", "to"),
    [(kind, at, to) for kind in gen_states.KINDS for at in REACHED[kind] for to in gen_states.lists()],
)
def test_a_move_that_no_row_has_is_refused(kind: str, at: str, to: str) -> None:
    scene = Scene(kind, at)
    if at == "REMOVED":
        scene.attach()
        scene.consumer.close()
    moved = (kind, at, to) in gen_states.edges(ROWS)
    assert scene.consumer.move(to) == (at if moved else "REMOVED")
    assert scene.consumer.list == (to if moved else at)
    assert sum(scene.queue.list_counts().values()) == (at != "REMOVED")


@pytest.mark.parametrize("row", [row for row in ROWS if row.wake and "NOTIFIED" in row.from_], ids=lambda row: f"{row.event}, {row.credit}")
def test_the_work_of_a_notified_consumer_that_leaves_the_list_goes_to_its_neighbour(row: gen_states.Move) -> None:
    scene = Scene("acquiring", "NOTIFIED", neighbour=True)
    scene.set(row.credit is not False, bool(row.suspended), True)
    assert scene.neighbour.list == "INTERESTED"
    scene.happens(row.event, bool(row.suspended))
    assert (scene.list, scene.neighbour.list) == (row.to, "NOTIFIED")


def test_two_rows_for_one_case_are_refused() -> None:
    row = next(row for row in ROWS if row.event == "detach")
    with pytest.raises(ValueError, match="2 rows hold"):
        gen_states.move_of([row, row], "detach", "browser", "NON_ACQUIRING", {"credit": True, "suspended": False, "work": True})
