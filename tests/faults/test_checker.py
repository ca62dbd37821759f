"""The checker's rules, one story each: what is a violation, and what only looks like one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tools.faults import journal as j
from tools.faults.checker import VERDICTS, check


class Story:
    """Events in the order they are told. Producer `p` publishes to `q`; consumers are `a` (life 1), `b` (life 1) and `z` (life 2)."""

    def __init__(self, *, killed: bool = True) -> None:
        self.events: list[j.Event] = []
        self.killed = killed
        self.add(j.LIFE, 1, "ready")
        self.add(j.OPEN, "p", 1, "confirm", [])
        for name in ("a", "b"):
            self.add(j.OPEN, name, 1, "each", ["q", "r"])

    def add(self, kind: str, *fields: object) -> Story:
        self.events.append([len(self.events), kind, *fields])
        return self

    def publish(self, n: int, *queues: str, tx: str = "", confirmed: bool = True) -> Story:
        self.add(j.PUBLISH, "p", n, list(queues or ("q",)), 10, 99, tx)
        return self.add(j.CONFIRM, "p", [n], 1) if confirmed and not tx else self

    def deliver(self, n: int, to: str = "a", *, flag: int = 0, queue: str = "q", crc: int = 99, ok: int = 1) -> Story:
        return self.add(j.DELIVER, to, queue, "p", n, 10, crc, flag, ok)

    def ack(self, n: int, by: str = "a", *, tx: str = "", queue: str = "q") -> Story:
        return self.add(j.ACK, by, queue, [["p", n]], tx)

    def release(self, n: int, by: str = "a") -> Story:
        return self.add(j.RELEASE, by, "q", [["p", n]])

    def commit(self, tx: str, by: str = "a", outcome: str = "ok") -> Story:
        if outcome != "rolled":
            self.add(j.COMMIT, tx, by)
        return self.add(j.OUTCOME, tx, outcome) if outcome else self

    def close(self, name: str, graceful: int = 1) -> Story:
        return self.add(j.CLOSE, name, graceful)

    def life2(self) -> Story:
        self.add(j.LIFE, 1, "killed" if self.killed else "stopped").add(j.LIFE, 2, "ready")
        return self.add(j.OPEN, "z", 2, "drain", ["q", "r"])

    def life3(self) -> Story:
        """As life2, but a start in between is killed before it serves anybody."""
        self.add(j.LIFE, 1, "killed" if self.killed else "stopped").add(j.LIFE, 2, "unborn").add(j.LIFE, 3, "ready")
        return self.add(j.OPEN, "z", 3, "drain", ["q", "r"])

    def kinds(self, *, drained: bool = True) -> set[str]:
        for queue in ("q", "r"):
            self.add(j.DRAINED, queue, int(drained))
        return set(check(self.events).kinds)


S = Story
BAD: dict[str, tuple[str, Story]] = {
    "confirmed, never seen": ("lost", S().publish(1).life2()),
    "confirmed, given back, gone": ("lost", S().publish(1).deliver(1).release(1).life2()),
    "confirmed, held at the kill, gone": ("lost", S().publish(1).deliver(1).close("a", 0).life2()),
    "on one of two queues": ("lost", S().publish(1, "q", "r").deliver(1).ack(1).life2()),
    "its ack was rolled back": ("lost", S().publish(1).deliver(1).ack(1, tx="t").commit("t", outcome="rolled").life2()),
    "its ack was never committed": ("lost", S().publish(1).deliver(1).ack(1, tx="t").life2()),
    "never published": ("phantom", S().deliver(1)),
    "on a queue it was not published to": ("phantom", S().publish(1, "r").deliver(1).ack(1)),
    "rolled back": ("phantom", S().publish(1, tx="t").commit("t", "p", "rolled").deliver(1).ack(1)),
    "never committed": ("phantom", S().publish(1, tx="t").life2().deliver(1, "z", flag=1).ack(1, "z")),
    "another checksum": ("corrupt", S().publish(1).deliver(1, crc=98)),
    "checksum and body disagree": ("corrupt", S().publish(1).deliver(1, ok=0)),
    "twice without the flag": ("unflagged", S().publish(1).deliver(1).release(1).deliver(1, "b").ack(1, "b")),
    "flagged, then not": ("unflagged", S().publish(1).deliver(1, flag=1).release(1).deliver(1).ack(1)),
    "delivered, recovered without the flag": ("unflagged", S().publish(1).deliver(1).life2().deliver(1, "z").ack(1, "z")),
    "flagged, recovered without the flag": ("unflagged", S().publish(1).deliver(1, flag=1).life2().deliver(1, "z").ack(1, "z")),
    "delivered, recovered without the flag by a second start": (
        "unflagged",
        S().publish(1).deliver(1, flag=1).life3().deliver(1, "z").ack(1, "z"),
    ),
    "while another holds it": (
        "duplicate",
        S().publish(1).deliver(1).deliver(1, "b", flag=1).ack(1).close("a").ack(1, "b"),
    ),
    "second before first": ("reorder", S().publish(1).publish(2).deliver(2).deliver(1).ack(2).ack(1)),
    "recovered in another order": (
        "reorder",
        S().publish(1).publish(2).life2().deliver(2, "z", flag=1).deliver(1, "z", flag=1).ack(2, "z").ack(1, "z"),
    ),
    "after its ack was committed": (
        "resurrected",
        S().publish(1).deliver(1).ack(1, tx="t").commit("t").life2().deliver(1, "z", flag=1).ack(1, "z"),
    ),
    "after its ack in the same session": ("resurrected", S().publish(1).deliver(1).ack(1).deliver(1, flag=1).ack(1)),
    "after its ack and close-ok": ("resurrected", S().publish(1).deliver(1).ack(1).close("a").deliver(1, "b", flag=1).ack(1, "b")),
    "after its ack and a clean stop": (
        "resurrected",
        S(killed=False).publish(1).deliver(1).ack(1).close("a").life2().deliver(1, "z", flag=1).ack(1, "z"),
    ),
    "half of a committed transaction": (
        "torn",
        S().publish(1, "q", tx="t").publish(2, "r", tx="t").commit("t", "p").deliver(1).ack(1),
    ),
    "half of an unknown transaction": (
        "torn",
        S().publish(1, "q", tx="t").publish(2, "r", tx="t").commit("t", "p", "").life2().deliver(1, "z", flag=1).ack(1, "z"),
    ),
    "publish there, ack not": (
        "torn",
        S().publish(1).deliver(1).ack(1, "a", tx="t").publish(2, "r", tx="t").commit("t", "a", "").life2()
        .deliver(1, "z", flag=1).ack(1, "z").deliver(2, "z", flag=1, queue="r").ack(2, "z", queue="r"),
    ),
    "ack there, publish not": ("torn", S().publish(1).deliver(1).ack(1, tx="t").publish(2, "r", tx="t").commit("t", "a", "").life2()),
    "confirmed twice": ("protocol", S().publish(1).add(j.CONFIRM, "p", [1], 1).deliver(1).ack(1)),
    "a fault of its own": ("stalled", S().add(j.FAULT, "a", "stalled", "no answer")),
}  # fmt: skip
GOOD: dict[str, Story] = {
    "not confirmed, never seen": S().publish(1, confirmed=False).life2(),
    "not confirmed, recovered": S().publish(1, confirmed=False).life2().deliver(1, "z", flag=1).ack(1, "z"),
    "acked, redelivered with the flag after a kill": S().publish(1).deliver(1).ack(1).life2().deliver(1, "z", flag=1).ack(1, "z"),
    "acked, closed, killed, redelivered": S().publish(1).deliver(1).ack(1).close("a").life2().deliver(1, "z", flag=1).ack(1, "z"),
    "given back and taken again": S().publish(1).deliver(1).release(1).deliver(1, "b", flag=1).ack(1, "b"),
    "requeued goes back behind what was taken": (
        S().publish(1).publish(2).deliver(1).deliver(2).release(1).deliver(1, flag=1).ack(1).ack(2)
    ),
    "two consumers take in turn": S().publish(1).publish(2).publish(3).deliver(2, "b").deliver(1).deliver(3).ack(1).ack(2, "b").ack(3),
    "unknown transaction, all of it": (
        S().publish(1, "q", tx="t").publish(2, "r", tx="t").commit("t", "p", "").life2()
        .deliver(1, "z", flag=1).ack(1, "z").deliver(2, "z", flag=1, queue="r").ack(2, "z", queue="r")
    ),
    "unknown transaction, nothing of it": S().publish(1, "q", tx="t").publish(2, "r", tx="t").commit("t", "p", "").life2(),
    "unknown transaction, its acked message was never sure": (
        S().publish(1, confirmed=False).deliver(1).ack(1, tx="t").publish(2, "r", tx="t").commit("t", "a", "").life2()
    ),
    "the other's session ended without a word before": (
        S().publish(1).deliver(1).deliver(1, "b", flag=1).ack(1).close("a", 0).ack(1, "b")
    ),
    "recovered, first delivery after it": S().publish(1).life2().deliver(1, "z").ack(1, "z"),
    "recovered, and flagged though nobody had it": S().publish(1).life2().deliver(1, "z", flag=1).ack(1, "z"),
    "stopped cleanly, first delivery after it": S(killed=False).publish(1).life2().deliver(1, "z").ack(1, "z"),
    "stopped cleanly, first delivery after a start that was killed": S(killed=False).publish(1).life3().deliver(1, "z").ack(1, "z"),
    "not accepted": S().publish(1, confirmed=False).add(j.CONFIRM, "p", [1], 0).life2(),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_violation_is_named(name: str) -> None:
    """Each story of a broken promise gets its verdict, and no other but loss beside a torn transaction."""
    kind, story = BAD[name]
    found = story.kinds()
    assert kind in found, found
    assert found <= {kind, "lost"} if kind in ("torn", "phantom", "corrupt", "stalled") else found == {kind}, found


@pytest.mark.parametrize("name", GOOD)
def test_legal_story_is_left_alone(name: str) -> None:
    """What clients may see from a right broker, however it looks, has no verdict."""
    assert GOOD[name].kinds() == set()


def test_every_verdict_has_a_story() -> None:
    """No verdict without a story above (definitions and the drain are told by the clients)."""
    assert {kind for kind, _ in BAD.values()} | {"undrained", "definition"} == set(VERDICTS)


def test_without_a_full_drain_nothing_is_called_lost() -> None:
    """A queue that was not taken to its end is a violation by itself; its messages may still be there."""
    assert Story().publish(1).life2().kinds(drained=False) == {"undrained"}


@given(st.lists(st.sampled_from(["publish", "fanout", "take", "ack", "give back", "tx"]), max_size=60), st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None)
def test_a_right_queue_is_never_blamed(steps: list[str], rng: object) -> None:
    """Whatever a model queue that keeps all rules does with publishes, acks, requeues, transactions and one kill has no verdict."""
    story = Story()
    queues: dict[str, list[tuple[int, int]]] = {"q": [], "r": []}
    held: list[tuple[str, int]] = []
    n = 0
    for step in steps:
        if step in ("publish", "fanout"):
            n += 1
            names = ["q", "r"] if step == "fanout" else ["q"]
            story.publish(n, *names)
            for name in names:
                queues[name].append((n, 0))
        elif step == "take":
            name = rng.choice(["q", "r"])  # type: ignore[attr-defined]
            if queues[name]:
                number, flag = queues[name].pop(0)
                story.deliver(number, "a", flag=flag, queue=name)
                held.append((name, number))
        elif held:
            name, number = held.pop()
            if step == "ack":
                story.ack(number, queue=name)
            elif step == "tx":
                story.ack(number, tx=f"t{len(story.events)}", queue=name).commit(story.events[-1][-1])
            else:
                story.add(j.RELEASE, "a", name, [["p", number]])
                queues[name] = sorted([*queues[name], (number, 1)])
    story.close("a", 0).life2()
    for name in ("q", "r"):
        for number in sorted([number for number, _ in queues[name]] + [each for where, each in held if where == name]):
            story.deliver(number, "z", flag=1, queue=name).ack(number, "z", queue=name)
    assert story.kinds() == set()


def test_journal_comes_back_in_stamp_order_without_a_torn_end(tmp_path: Path) -> None:
    """Two journals are merged by stamp; a half-written last line is dropped, a damaged line elsewhere is an error."""
    first, second = j.Journal(tmp_path / "1"), j.Journal(tmp_path / "2")
    for number in range(4):
        (first, second)[number % 2].add(j.NOTE, "s", "n", number)
    assert (tmp_path / "1").stat().st_size == 0  # nothing before sync
    first.close()
    second.close()
    with (tmp_path / "1").open("a") as file:
        file.write('[12345,"N"')
    assert [event[4] for event in j.load([tmp_path / "2", tmp_path / "1"])] == [0, 1, 2, 3]
    (tmp_path / "2").write_text("[1,\n" + json.dumps([2, "N", "s", "n", 1]) + "\n")
    with pytest.raises(ValueError, match="2:1"):
        j.load([tmp_path / "2"])
