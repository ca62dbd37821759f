"""flintmq.slotted: a class made by it does all that the same dataclass does."""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import FrozenInstanceError, dataclass, field
from typing import Any

import pytest

from flintmq.slotted import replaced, slotted


def plain() -> type:
    class Plain:
        name: str
        size: int = 7
        rows: list[int] = field(default_factory=list)
        secret: str = field(default="s", repr=False)

        def doubled(self) -> int:
            return 2 * self.size

    return Plain


OPTIONS = [{}, {"frozen": True}, {"eq": False}, {"frozen": True, "order": True}, {"kw_only": True}]
CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    (("a",), {}),
    (("a", 1, [2], "t"), {}),
    (("a",), {"secret": "t", "size": 3}),
    ((), {"name": "b"}),
    ((), {}),
    (("a", 1, [2], "t", 5), {}),
    (("a",), {"name": "b"}),
    (("a",), {"other": 1}),
]


def _outcome(cls: Any, values: tuple[Any, ...], named: dict[str, Any]) -> Any:
    try:
        one = cls(*values, **named)
    except TypeError:
        return TypeError
    return repr(one).rpartition("Plain")[2], dataclasses.astuple(one), one.doubled(), dataclasses.asdict(dataclasses.replace(one, size=9))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("call", CALLS, ids=str)
def test_makes_shows_and_copies_what_a_dataclass_does(options: dict[str, bool], call: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
    ours, theirs = slotted(**options)(plain()), dataclass(slots=True, **options)(plain())  # type: ignore[call-overload]
    assert _outcome(ours, *call) == _outcome(theirs, *call)


def test_equality_order_and_hashes_are_those_of_the_fields_and_of_the_class() -> None:
    cls: Any = slotted(frozen=True, order=True)(plain())
    other: Any = slotted(frozen=True, order=True)(plain())
    rows = (1,)
    assert cls("a", rows=rows) == cls("a", rows=rows) != cls("b", rows=rows)
    assert cls("a", rows=rows) != other("a", rows=rows)
    assert hash(cls("a", rows=rows)) == hash(cls("a", rows=rows))
    assert cls("a", rows=rows) < cls("b", rows=rows)
    assert sorted([cls("b"), cls("a")])[0].name == "a"
    mutable: Any = slotted()(plain())
    assert mutable("a") == mutable("a")
    with pytest.raises(TypeError):
        hash(mutable("a"))
    by_identity: Any = slotted(eq=False)(plain())
    one = by_identity("a")
    assert one == one != by_identity("a") and {one: 1}[one] == 1


def test_what_is_frozen_does_not_change_and_there_is_no_room_for_other_attributes() -> None:
    one: Any = slotted(frozen=True)(plain())("a")
    with pytest.raises(FrozenInstanceError):
        one.size = 3
    with pytest.raises(FrozenInstanceError):
        del one.size
    changing: Any = slotted()(plain())("a")
    changing.size = 3
    with pytest.raises(AttributeError):
        changing.other = 1
    assert copy.copy(changing) == changing
    assert replaced(changing, size=4).size == 4 and changing.size == 3


def test_a_default_that_is_made_is_made_for_each_instance() -> None:
    cls: Any = slotted()(plain())
    first, second = cls("a"), cls("a")
    first.rows.append(1)
    assert second.rows == []


def test_what_comes_after_the_fields_runs_with_them() -> None:
    @slotted(frozen=True)
    class Even:
        number: int

        def __post_init__(self) -> None:
            if self.number % 2:
                raise ValueError(f"{self.number} is odd")

    assert Even(2).number == 2
    with pytest.raises(ValueError, match="3 is odd"):
        Even(3)
    match Even(4):
        case Even(number):
            assert number == 4
