"""What a node tells the others of itself, as the facts of its row (shared/nodes.py): state, version, addresses, figures.

in: facts of this node; facts that another one wrote. out: facts that were checked: what a node says of itself is shown to people, and
clients are sent to its addresses.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flintmq.shared.nodes import Node

UP, DRAINING, DRAINED, DOWN = "up", "draining", "drained", "down"
# what a node may say of itself; that it is down is for others to say
_STATES = (UP, DRAINING, DRAINED)
SERVICES = ("amqp", "amqps", "http", "flight")
_NAME = re.compile(r"[A-Za-z0-9_.@-]{1,128}")
_HOST = re.compile(r"(?:[A-Za-z0-9_.-]{1,128}|\[[0-9A-Fa-f:.%]{2,64}\]):([0-9]{1,5})")
_WORD = re.compile(r"[A-Za-z0-9_.+-]{0,64}")
# numbers above are none that a JSON reader has to understand
_NUMBER_MAX = 2**53


def is_name(name: str) -> bool:
    """Whether a node may have this name."""
    return _NAME.fullmatch(name) is not None


def is_address(address: object) -> bool:
    """Whether it is HOST:PORT, in characters that no client and no terminal takes for anything else."""
    match = _HOST.fullmatch(address) if isinstance(address, str) else None
    return match is not None and 0 < int(match[1]) < 65_536


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """addresses: service -> host:port; since_ms: wall clock of its start; left: connections and queues that a drain waits for; queues: that
    it owns."""

    state: str = UP
    version: str = ""
    addresses: Mapping[str, str] = field(default_factory=dict)
    since_ms: int = 0
    left: int = 0
    queues: int = 0

    def pack(self) -> dict[str, Any]:
        """As the row has them: addresses by their services."""
        numbers = {"since_ms": self.since_ms, "left": self.left, "queues": self.queues}
        return {**self.addresses, "state": self.state, "version": self.version, **numbers}

    @staticmethod
    def unpack(facts: Mapping[str, Any]) -> NodeFacts:
        """Facts that a node left out are empty. Raises: ValueError: one is none that a node of this form writes."""
        state, version = facts.get("state", UP), facts.get("version", "")
        if state not in _STATES or not isinstance(version, str) or not _WORD.fullmatch(version):
            raise ValueError("a row of a node has a wrong state or version")
        addresses = {service: facts[service] for service in SERVICES if service in facts}
        if not all(map(is_address, addresses.values())):
            raise ValueError("a row of a node has a wrong address")
        numbers = [facts.get(name, 0) for name in ("since_ms", "left", "queues")]
        if not all(type(number) is int and 0 <= number < _NUMBER_MAX for number in numbers):
            raise ValueError("a row of a node has a wrong number")
        return NodeFacts(state, version, addresses, *numbers)


def facts_of(node: Node) -> NodeFacts | None:
    """None: they are none that a node of this form writes."""
    try:
        return NodeFacts.unpack(node.facts) if is_name(node.name) else None
    except ValueError:
        return None
