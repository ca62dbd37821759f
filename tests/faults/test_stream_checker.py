"""The checker of the stream campaigns: a right stream is never blamed, whatever happens to it; each broken rule is found by its name."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.faults.stream_model import ARGUMENTS, DEFECTS, Model
from tools.faults import journal as j
from tools.faults.stream_checker import VERDICTS, check

S_NS = 1_000_000_000


@given(st.integers(0, 1 << 32))
@settings(max_examples=60, deadline=None)
def test_a_right_stream_is_never_blamed(seed: int) -> None:
    """Publishes, transactions, retention, groups that settle and drop, kills and stops in any order have no verdict."""
    report = check(Model(random.Random(seed)).events)
    assert report.ok, report.to_json()


def test_enough_happens_to_say_so() -> None:
    """The right stream's runs contain what the rules are about: losses told, dead letters, redeliveries, settlements taken back."""
    counts: Counter[str] = Counter()
    for seed in range(20):
        counts.update(check(Model(random.Random(seed)).events).counts)
    for name in ("confirmed", "delivered", "redelivered", "lost_told", "lost_to_groups", "letters", "retained", "rewind_us_max", "tx_ok"):
        assert counts[name] > 20, counts


@pytest.mark.parametrize("defect", DEFECTS)
def test_each_broken_rule_is_found(defect: str) -> None:
    """A stream that breaks one rule is found in most of the runs in which it did so, under one of the rule's names, and mostly no other."""
    struck = found = 0
    others: Counter[str] = Counter()
    for seed in range(30):
        model = Model(random.Random(seed), defect)
        if model.struck:
            struck += 1
            kinds = set(check(model.events).kinds)
            found += bool(kinds & DEFECTS[defect])
            others.update(kinds - DEFECTS[defect])
    assert struck >= 10, struck
    assert found >= struck * 0.5, (found, struck, others)


class Story:
    """Events as told, a second apart. Stream `k` keeps all and has a limit, `s` is kept short; `p` publishes, `a`, `b` are of group `g`."""

    def __init__(self) -> None:
        self.events: list[j.Event] = []
        self.add(j.LIFE, 1, "ready")
        for name in ("p", "a", "b"):
            self.add(j.OPEN, name, 1, "role", [])
        for name, arguments in ARGUMENTS.items():
            self.add(j.STREAM, 1, name, arguments)

    def add(self, kind: str, *fields: Any) -> Story:
        self.events.append([len(self.events) * S_NS, kind, *fields])
        return self

    def publish(self, *numbers: int, stream: str = "k", sure: bool = True) -> Story:
        for n in numbers:
            self.add(j.PUBLISH, "p", n, [stream], 10, 99, "")
        return self.add(j.CONFIRM, "p", list(numbers), 1) if sure else self

    def join(self, *names: str, stream: str = "k") -> Story:
        for name in names:
            self.add(j.SEAT, name, stream, "g", 0)
        return self

    def read(
        self, n: int, at: int, by: str = "a", *, stream: str = "k", flag: int = 0, lost: int = 0, group: str = "g", **rest: Any
    ) -> Story:
        return self.add(
            j.READ, by, stream, group, at, "p", n, 10, rest.get("crc", 99), flag, rest.get("ok", 1), lost, rest.get("death", [])
        )  # fmt: skip

    def settle(self, at: int, how: str = "ack", by: str = "a", *, stream: str = "k", known: bool = True, outcome: str = "") -> Story:
        """`outcome`: of the transaction that it was in; "?": unknown."""
        tx = f"t{len(self.events)}" if outcome else ""
        self.add(j.SETTLE, by, stream, "g", [at], how, tx)
        if outcome and outcome != "rolled":
            self.add(j.COMMIT, tx, by)
        if outcome in ("ok", "rolled"):
            self.add(j.OUTCOME, tx, outcome)
        return self.add(j.KNOWN, by) if known and outcome != "?" else self

    def alone(self, *places: tuple[int, int], start: str | int = "first", stream: str = "k", by: str = "z", lost: int = 0) -> Story:
        """(number, offset) in turn; `lost` on the last of them."""
        self.add(j.SEAT, by, stream, "", start)
        for n, at in places:
            self.read(n, at, by, stream=stream, group="", lost=lost if (n, at) == places[-1] else 0)
        return self

    def life(self, end: str = "killed", wait: int = 0) -> Story:
        """The first life ends, and the second begins with `z`."""
        for _ in range(wait):
            self.add(j.NOTE, "p", "wait", "")
        self.add(j.LIFE, 1, end).add(j.LIFE, 2, "ready")
        return self.add(j.OPEN, "z", 2, "role", [])

    def end(self, at: int, stream: str = "k", by: str = "z", group: int | None = None, first: int = 0, lost: int = 0) -> Story:
        """Read to the end; the group to `group`."""
        self.add(j.END, by, stream, "", at)
        if group is not None:
            self.add(j.END, by, stream, "g", group)
        return self.add(j.FIGURES, stream, first, {"g": lost})

    def kinds(self) -> set[str]:
        return set(check(self.events).kinds)


def S() -> Story:
    return Story()


BAD: dict[str, tuple[str, Story]] = {
    "confirmed, not there": ("lost", S().publish(1).publish(2).life().alone((2, 0)).end(0)),
    "seen at its offset, then cut off": ("lost", S().publish(1, 2, 3).alone((1, 0), (2, 1), (3, 2), by="a").life().alone((1, 0)).end(0)),
    "in front of what is kept, but younger": (
        "lost", S().publish(1, stream="s").publish(2, stream="s").life().alone((1, 5), stream="s").end(5, "s", first=5),
    ),
    "more confirmed than there were offsets": (
        "lost", S().publish(1, 2, 3, stream="s").life().alone((3, 1), stream="s").end(1, "s", first=1),
    ),
    "nothing in front of a stream without a bound": ("lost", S().publish(1).life().alone((1, 1), start=1).end(1, first=1)),
    "another message at an offset": (
        "moved", S().publish(1, sure=False).publish(2).alone((1, 0), by="a").life().alone((2, 0)).end(0),
    ),
    "at two offsets": ("twice", S().publish(1).life().alone((1, 0), (1, 1)).end(1)),
    "never published": ("phantom", S().publish(1).life().alone((1, 0), (7, 1)).end(1)),
    "another checksum": ("corrupt", S().publish(1).read(1, 0, "b", group="", crc=98).life().alone((1, 0)).end(0)),
    "checksum and body disagree": ("corrupt", S().publish(1).read(1, 0, "b", group="", ok=0).life().alone((1, 0)).end(0)),
    "a publisher's second before its first": ("reorder", S().publish(1, 2).life().alone((2, 0), (1, 1)).end(1)),
    "published after the other's confirm, before it": (
        "reorder",
        S().publish(1).add(j.PUBLISH, "b", 1, ["k"], 10, 99, "").life().add(j.SEAT, "z", "k", "", "first")
        .add(j.READ, "z", "k", "", 0, "b", 1, 10, 99, 0, 1, 0, []).read(1, 1, "z", group="").end(1),
    ),
    "a gap": ("gap", S().publish(1, 2, 3).alone((1, 0), (3, 2), by="a").life().alone((1, 0), (2, 1), (3, 2)).end(2)),
    "a gap larger than told": (
        "gap", S().publish(1, 2, 3, 4, stream="s").life().alone((1, 0), (4, 3), stream="s", lost=1).end(3, "s", first=3),
    ),
    "begins behind its offset": ("gap", S().publish(1, 2).alone((2, 1), by="a", start=0).life().alone((1, 0), (2, 1)).end(1)),
    "told of a loss that can't be": ("gap", S().publish(1, 2).alone((1, 0), (2, 1), by="a", lost=1).life().alone((1, 0), (2, 1)).end(1)),
    "an offset that the group never got": (
        "skipped", S().publish(1, 2).join("a").read(2, 1).settle(1).life().alone((1, 0), (2, 1)).end(1, group=1),
    ),
    "retention took it from the group in silence": (
        "skipped",
        S().publish(1, 2, 3, stream="s").join("a", stream="s").read(3, 2, stream="s", lost=1).settle(2, stream="s").life()
        .alone((3, 2), stream="s").end(2, "s", group=2, first=2, lost=1),
    ),
    "a group was told of a loss that can't be": (
        "skipped", S().publish(1).join("a").read(1, 0, lost=3).settle(0).life().alone((1, 0)).end(0, group=0),
    ),
    "given back, never again": (
        "dropped",
        S().publish(1, stream="s").join("a", stream="s").read(1, 0, stream="s").settle(0, "requeue", stream="s").life()
        .alone((1, 0), stream="s").end(0, "s", group=0),
    ),
    "held at the kill, never again": (
        "dropped",
        S().publish(1, stream="s").join("a", stream="s").read(1, 0, stream="s").life().alone((1, 0), stream="s").end(0, "s", group=0),
    ),
    "acked in a transaction that was rolled back, never again": (
        "dropped",
        S().publish(1, stream="s").join("a", stream="s").read(1, 0, stream="s").settle(0, stream="s", outcome="rolled").life()
        .alone((1, 0), stream="s").end(0, "s", group=0),
    ),
    "acked in a committed transaction, again in the same life": (
        "resurrected",
        S().publish(1).join("a", "b").read(1, 0).settle(0, outcome="ok").read(1, 0, "b", flag=1).settle(0, by="b").life()
        .alone((1, 0)).end(0, group=0),
    ),
    "came back, no letter": ("dropped", S().publish(1).join("a").read(1, 0).settle(0, "requeue").life().alone((1, 0)).end(0, group=0)),
    "refused, no letter": ("unburied", S().publish(1).join("a").read(1, 0).settle(0, "reject").life().alone((1, 0)).end(0, group=0)),
    "a letter that nobody wanted": (
        "undead",
        S().publish(1).join("a").read(1, 0).settle(0).life().alone((1, 0)).end(0, group=0)
        .read(1, -1, "z", stream="dead", group="", death=["rejected", "k"]),
    ),
    "given up too early": (
        "undead",
        S().publish(1).join("a").read(1, 0).settle(0).life().alone((1, 0)).end(0, group=0)
        .read(1, -1, "z", stream="dead", group="", death=["delivery_limit", "k"]),
    ),
    "again in the same session": (
        "resurrected", S().publish(1).join("a").read(1, 0).settle(0).read(1, 0, flag=1).settle(0).life().alone((1, 0)).end(0, group=0),
    ),
    "again in the same life": (
        "resurrected",
        S().publish(1).join("a", "b").read(1, 0).settle(0).read(1, 0, "b", flag=1).settle(0, by="b").life().alone((1, 0)).end(0, group=0),
    ),
    "again after a clean stop": (
        "resurrected",
        S().publish(1).join("a").read(1, 0).settle(0).life("stopped").read(1, 0, "z", flag=1).settle(0, by="z")
        .alone((1, 0)).end(0, group=0),
    ),
    "settled long before the kill": (
        "resurrected",
        S().publish(1).join("a").read(1, 0).settle(0).life(wait=3).read(1, 0, "z", flag=1).settle(0, by="z")
        .alone((1, 0)).end(0, group=0),
    ),
    "twice without the flag": (
        "unflagged",
        S().publish(1).join("a", "b").read(1, 0).settle(0, "requeue").read(1, 0, "b").settle(0, by="b").life()
        .alone((1, 0)).end(0, group=0),
    ),
    "recovered without the flag": (
        "unflagged", S().publish(1).join("a").life().read(1, 0, "z").settle(0, by="z").alone((1, 0)).end(0, group=0),
    ),
    "while another holds it": (
        "duplicate",
        S().publish(1).join("a", "b").read(1, 0).read(1, 0, "b", flag=1).settle(0).settle(0, by="b").life().alone((1, 0)).end(0, group=0),
    ),
    "above the limit": (
        "overlimit",
        S().publish(1).join("a").read(1, 0).settle(0, "requeue").read(1, 0, flag=1).settle(0, "requeue").read(1, 0, flag=1)
        .settle(0, "requeue").read(1, 0, flag=1).settle(0).life().alone((1, 0)).end(0, group=0),
    ),
    "a stream that nobody read to its end": ("undrained", S().publish(1)),
    "a group that was not taken to the end": ("undrained", S().publish(1).join("a").life().alone((1, 0)).end(0)),
    "confirmed twice": ("protocol", S().publish(1).add(j.CONFIRM, "p", [1], 1).life().alone((1, 0)).end(0)),
    "a fault of its own": ("stalled", S().publish(1).add(j.FAULT, "a", "stalled", "no answer").life().alone((1, 0)).end(0)),
}  # fmt: skip
GOOD: dict[str, Story] = {
    "not confirmed, not there": S().publish(1, sure=False).publish(2).life().alone((2, 0)).end(0),
    "not confirmed, there": S().publish(1, sure=False).life().alone((1, 0)).end(0),
    "taken by retention before anybody saw it": (
        S().publish(1, 2, stream="s").publish(3, stream="s").life().alone((3, 2), stream="s").end(2, "s", first=2)
    ),
    "taken while the last one read": (
        S().publish(1, 2, 3, stream="s").life().alone((1, 0), (3, 2), stream="s", lost=1).end(2, "s", first=2)
    ),
    "the group was told": (
        S().publish(1, 2, 3, stream="s").join("a", stream="s").read(3, 2, stream="s", lost=2).settle(2, stream="s").life()
        .alone((3, 2), stream="s").end(2, "s", group=2, first=2)
    ),
    "told by the figure, the message with the header was not read": (
        S().publish(1, 2, 3, stream="s").join("a", stream="s").life().read(3, 2, "z", stream="s", flag=1).settle(2, stream="s", by="z")
        .alone((3, 2), stream="s").end(2, "s", group=2, first=2, lost=2)
    ),
    "settled just before the kill, again with the flag": (
        S().publish(1).join("a").read(1, 0).settle(0).life().read(1, 0, "z", flag=1).settle(0, by="z").alone((1, 0)).end(0, group=0)
    ),
    "settled, nobody knows whether it was done": (
        S().publish(1).join("a").read(1, 0).settle(0, known=False).life(wait=5).read(1, 0, "z", flag=1).settle(0, by="z")
        .alone((1, 0)).end(0, group=0)
    ),
    "acked in a transaction that nobody knows of, and gone": (
        S().publish(1).join("a").read(1, 0).settle(0, outcome="?").life().alone((1, 0)).end(0, group=0)
    ),
    "acked in a transaction that nobody knows of, and again": (
        S().publish(1).join("a").read(1, 0).settle(0, outcome="?").life(wait=5).read(1, 0, "z", flag=1).settle(0, by="z")
        .alone((1, 0)).end(0, group=0)
    ),
    "acked in a transaction that was rolled back, then again": (
        S().publish(1).join("a").read(1, 0).settle(0, outcome="rolled").settle(0).life().alone((1, 0)).end(0, group=0)
    ),
    "given back, gone when it would have come again": (
        S().publish(1, 2, stream="s").join("a", stream="s").read(1, 0, stream="s").settle(0, "requeue", stream="s")
        .read(2, 1, stream="s").settle(1, stream="s").life().alone((2, 1), stream="s").end(1, "s", group=1, first=1, lost=1)
    ),
    "refused, and its letter": (
        S().publish(1).join("a").read(1, 0).settle(0, "reject").life().alone((1, 0)).end(0, group=0)
        .read(1, -1, "z", stream="dead", group="", death=["rejected", "k"])
    ),
    "refused just before the kill, and again": (
        S().publish(1).join("a").read(1, 0).settle(0, "reject").life().read(1, 0, "z", flag=1).settle(0, by="z")
        .alone((1, 0)).end(0, group=0).read(1, -1, "z", stream="dead", group="", death=["rejected", "k"])
    ),
    "given up": (
        S().publish(1).join("a", "b").read(1, 0).settle(0, "requeue").life().alone((1, 0)).end(0, group=0)
        .read(1, -1, "z", stream="dead", group="", death=["delivery_limit", "k"])
    ),
    "as often as the limit allows, and after a kill": (
        S().publish(1).join("a").read(1, 0).settle(0, "requeue").read(1, 0, flag=1).settle(0, "requeue").read(1, 0, flag=1).life()
        .read(1, 0, "z", flag=1).settle(0, by="z").alone((1, 0)).end(0, group=0)
    ),
    "first delivery after a clean stop": (
        S().publish(1).join("a").life("stopped").read(1, 0, "z").settle(0, by="z").alone((1, 0)).end(0, group=0)
    ),
    "begins at the first one kept": (
        S().publish(1, 2, stream="s").alone((2, 1), by="a", stream="s", start=0).life().alone((2, 1), stream="s").end(1, "s", first=1)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_violation_is_named(name: str) -> None:
    """Each story of a broken promise gets its verdict; another one only where the one follows from the other."""
    kind, story = BAD[name]
    found = story.kinds()
    assert kind in found and found <= {kind, "lost", "gap", "phantom", "skipped"}, found


@pytest.mark.parametrize("name", GOOD)
def test_legal_story_is_left_alone(name: str) -> None:
    """What clients may see of a right broker, however it looks, has no verdict."""
    assert GOOD[name].kinds() == set(), check(GOOD[name].events).to_json()


def test_every_verdict_has_a_story() -> None:
    """No verdict without a story above (a forgotten declaration is told by the clients)."""
    assert {kind for kind, _ in BAD.values()} | {"definition"} == set(VERDICTS)


def test_how_far_a_group_went_back_is_measured() -> None:
    """The age of the oldest settlement that came again is in the counts; a stricter bound than the standard one can be asked for."""
    story = GOOD["settled just before the kill, again with the flag"]
    assert check(story.events).counts["rewind_us_max"] == 1_000_000
    assert set(check(story.events, rewind_s=0.5).kinds) == {"resurrected"}
