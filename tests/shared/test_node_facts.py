"""Facts of nodes: what they write they read, and what is none of them is refused."""

from __future__ import annotations

from typing import Any

import pytest

from flintmq.shared.node_facts import DRAINING, NodeFacts, is_address, is_name

FACTS = NodeFacts(DRAINING, "1.2.3", {"amqp": "host:5672", "http": "[::1]:15672"}, 12, 3, 4)


def test_facts_come_back_as_they_were_and_missing_ones_are_empty() -> None:
    assert NodeFacts.unpack(FACTS.pack()) == FACTS
    assert NodeFacts.unpack({}) == NodeFacts()


@pytest.mark.parametrize(
    "wrong",
    [
        {"state": "down"},
        {"state": ["up"]},
        {"version": "\x1b[2J"},
        {"version": 1},
        {"amqp": "host"},
        {"amqp": "a b:1"},
        {"http": 5},
        {"left": -1},
        {"queues": True},
        {"since_ms": 2**60},
    ],
)
def test_what_no_node_writes_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="a row of a node"):
        NodeFacts.unpack({**FACTS.pack(), **wrong})


def test_names_and_addresses_are_of_characters_that_are_no_commands() -> None:
    assert is_name("flintmq@host-1") and not is_name("a/b") and not is_name("") and not is_name("a\n")
    assert is_address("host:1") and not is_address("host:0") and not is_address("host:65536") and not is_address("host:1\n")
