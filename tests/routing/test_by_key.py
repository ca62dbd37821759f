"""The bindings of an exchange that compares keys: a table and an index in one, beside a plain dict."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flintmq.routing.binding import QUEUE, Binding, Destination
from flintmq.routing.by_key import BindingsByKey
from flintmq.routing.exchange import DirectExchange


class _Queue:
    destination_kind = QUEUE
    durable = True

    def __init__(self, name: str) -> None:
        self.name = name


SOURCE = DirectExchange("x")
QUEUES: list[Destination] = [_Queue("a"), _Queue("b"), _Queue("c")]
BINDINGS = [Binding(SOURCE, queue, key, arguments) for queue in QUEUES for key in (b"", b"k") for arguments in (None, {"n": 1})]


@settings(max_examples=300)
@given(st.lists(st.tuples(st.sampled_from(["add", "drop", "pop"]), st.integers(0, len(BINDINGS) - 1))))
def test_it_is_a_dict_of_identities(steps: list[tuple[str, int]]) -> None:
    """After any adds, ends and pops the table has what a dict has, and a key leads to each of its destinations once."""
    table, model = BindingsByKey(), dict[Any, Binding]()
    for step, number in steps:
        binding = BINDINGS[number]
        if step == "add":
            table[binding.identity] = model[binding.identity] = binding
        elif step == "pop" and model:
            identity, popped = table.popitem()
            assert model.pop(identity) is popped
        elif binding.identity in model:
            del table[binding.identity], model[binding.identity]
        assert len(table) == len(model) and bool(table) == bool(model)
        assert dict(table.items()) == model and {id(one) for one in table.values()} == {id(one) for one in model.values()}
        for one in BINDINGS:
            assert table.get(one.identity) is model.get(one.identity)
        for key in (b"", b"k", b"other"):
            destinations = list(table.destinations(key))
            assert len(destinations) == len(set(destinations))
            assert set(destinations) == {one.destination for one in model.values() if one.routing_key == key}


def test_what_is_not_there() -> None:
    """Neither a key without bindings nor another binding of the key can be taken out."""
    table = BindingsByKey()
    table.add(BINDINGS[0])
    for one in (BINDINGS[1], BINDINGS[2]):
        with pytest.raises(KeyError):
            del table[one.identity]
    with pytest.raises(KeyError):
        BindingsByKey().popitem()
    assert table.values() == [BINDINGS[0]]
