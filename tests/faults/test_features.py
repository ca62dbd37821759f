"""The judges of the campaign of queue features see what a wrong broker would leave."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tools.faults import features
from tools.faults.features import KINDS, Groups


class Channel:
    """Queues of (number, redelivered); each is read once."""

    def __init__(self, queues: dict[str, list[int]], redelivered: bool) -> None:
        self.queues = {name: list(numbers) for name, numbers in queues.items()}
        self.redelivered = redelivered

    def call(self, name: str, *, queue: str, no_ack: bool) -> Any:
        assert name == "basic.get" and no_ack
        if not self.queues.get(queue):
            return SimpleNamespace(name="basic.get-empty")
        return SimpleNamespace(name="basic.get-ok", body=b"%016d" % self.queues[queue].pop(0), redelivered=self.redelivered)


@pytest.mark.parametrize(
    ("kind", "known", "may", "queues", "verdict"),
    [
        ("schedule", {1: "", 2: ""}, {3: ""}, {"l": [1, 2, 3], "r": [2, 1, 3]}, []),
        ("schedule", {1: "", 2: ""}, {}, {"l": [1, 2], "r": [1]}, ["lost", "torn"]),
        ("schedule", {1: ""}, {2: ""}, {"l": [1, 2], "r": [1]}, ["torn"]),
        ("schedule", {1: ""}, {}, {"l": [1, 1], "r": [1]}, ["duplicate"]),
        ("schedule", {1: ""}, {}, {"l": [1, 9], "r": [1, 9]}, ["phantom", "phantom"]),
        ("value", {1: "a", 2: "b", 3: "a"}, {4: "a"}, {"": [2, 3]}, []),
        ("value", {1: "a"}, {2: "a"}, {"": [2]}, []),
        ("value", {1: "a", 2: "a"}, {}, {"": [1]}, ["value a"]),
        ("value", {1: "a", 2: "a"}, {}, {"": [1, 2]}, ["value a"]),
        ("letter", {1: "", 2: ""}, {}, {"": [1], "d": [2, 1]}, []),
        ("letter", {1: "", 2: ""}, {}, {"": [1], "d": []}, ["lost"]),
        ("retry", {1: "out", 2: "out"}, {}, {"": [1, 2]}, []),
        ("retry", {1: "out", 2: ""}, {}, {"": [2, 1]}, ["reorder"]),
        ("retry", {1: "", 2: ""}, {}, {"": [2]}, ["lost"]),
        ("ring", dict.fromkeys(range(1, 14), "0"), {}, {"": list(range(2, 14))}, []),
        ("ring", dict.fromkeys(range(1, 14), "0"), {}, {"": list(range(1, 14))}, ["limit"]),
        ("ring", dict.fromkeys(range(1, 14), "1"), {14: "0"}, {"": list(range(3, 14))}, ["lost"]),
        ("selector", {1: "blue", 2: "red", 3: "blue"}, {}, {"": [1, 3]}, []),
        ("selector", {1: "blue", 2: "red", 3: "blue"}, {}, {"": [1, 2]}, ["lost"]),
        ("selector", {1: "blue", 3: "blue"}, {}, {"": [3, 1]}, ["reorder"]),
    ],
)
def test_verdicts(
    monkeypatch: pytest.MonkeyPatch, kind: str, known: dict[int, str], may: dict[int, str], queues: dict[str, list[int]], verdict: list[str]
) -> None:
    monkeypatch.setattr(features, "LATE_S", 0.02)
    monkeypatch.setattr(features.time, "sleep", lambda _: None)
    owner = KINDS[kind]("", 1)
    owner.known, owner.may = known, may
    owner.judge(Channel(queues, True))  # type: ignore[arg-type]
    assert [text.split(": ")[1] for text in owner.bad] == verdict


def test_what_was_delivered_before_the_kill_comes_flagged() -> None:
    owner = KINDS["retry"]("", 1)
    owner.known = {1: "out", 2: ""}
    owner.judge(Channel({"": [1, 2]}, False))  # type: ignore[arg-type]
    assert [text.split(": ")[1] for text in owner.bad] == ["unflagged"]


@pytest.mark.parametrize(
    ("known", "acked", "came", "verdict"),
    [
        ({1: "a", 2: "b", 3: "a"}, {1}, [("a", 1, 2), ("b", 2, 3), ("a", 3, 2)], []),
        ({1: "a", 2: "a"}, {1}, [("a", 2, 2)], []),
        ({1: "a", 2: "a"}, set(), [("a", 2, 2)], ["lost"]),
        ({1: "a", 2: "a"}, set(), [("a", 2, 2), ("a", 1, 2)], ["reorder"]),
        ({1: "a", 2: "a"}, set(), [("a", 1, 2), ("a", 2, 3)], ["shared"]),
        ({1: "a"}, set(), [("a", 1, 2), ("a", 1, 2)], ["reorder", "duplicate"]),
    ],
)
def test_verdicts_of_groups(known: dict[int, str], acked: set[int], came: list[tuple[str, int, int]], verdict: list[str]) -> None:
    owner = Groups("", 1)
    owner.known, owner.acked = known, acked
    for one in came:
        owner.came(*one)
    owner.verdict([number for _, number, _ in came], [])
    assert [text.split(": ")[1] for text in owner.bad] == verdict


def test_what_a_consumer_of_a_group_had_before_the_kill_comes_flagged() -> None:
    owner = Groups("", 1)
    owner.verdict([], [7])
    assert [text.split(": ")[1] for text in owner.bad] == ["unflagged"]
