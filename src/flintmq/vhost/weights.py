"""Memory of definitions: the bytes of each, and the limits for one virtual host and for all.

in: queues, exchanges and bindings that come and go. out: bytes for the account (core/memory_account), refusals.

A definition costs a constant and a part that grows with what its client sent. The constants are rounded up from what 20,000 of each took of
the process; tests/vhost/test_weights.py compares the account with what malloc gave out. Nothing here is on the way of a message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flintmq.core.memory_account import MemoryShare, MemoryTotal
from flintmq.routing.binding import field_bytes
from flintmq.routing.exchange import Binding, Exchange
from flintmq.vhost.policy import DEFAULT_POLICY
from flintmq.vhost.queue import Queue, QueueSpec

# bytes of a queue: its record with the first level of its list, its objects, its places in tables of names, ids and owners
QUEUE_BYTES = 1_400
# the same with its name, by the name's length: a hundred thousand queues have these numbers in common
_PLAIN_BYTES = tuple(QUEUE_BYTES + 2 * length for length in range(256))
# of its parsed arguments, and of each further priority level
QUEUE_POLICY_BYTES = 512
QUEUE_LEVEL_BYTES = 128
# of a stream beside that: its log, its cursors' tables
STREAM_BYTES = 2_048
# of a shared queue: its station and window
SHARED_BYTES = 4_096
# bytes of an exchange with the head of its route cache, and of its place among those that name the same alternate
EXCHANGE_BYTES = 1_500
ALTERNATE_BYTES = 640
# bytes of a binding: its object, its identity, its places in the tables of both ends
BINDING_BYTES = 680
# of each word of a topic pattern (a node of the trie with a table), and of each wildcard
TOPIC_WORD_BYTES = 320
TOPIC_WILDCARD_BYTES = 96
# of each header of a headers binding: its entry in the index
HEADER_BYTES = 640


def queue_bytes(queue: Queue | QueueSpec) -> int:
    """Bytes of a queue (Queue or QueueSpec) without its messages. O(arguments)."""
    size = _PLAIN_BYTES[len(queue.name)] if len(queue.name) < len(_PLAIN_BYTES) else QUEUE_BYTES + 2 * len(queue.name)
    if not queue.arguments and queue.policy is DEFAULT_POLICY:
        return size
    size += _table(queue.arguments, QUEUE_POLICY_BYTES)
    kind_bytes = STREAM_BYTES if queue.policy.is_stream else SHARED_BYTES if queue.policy.is_shared else 0
    return size + QUEUE_LEVEL_BYTES * (queue.policy.levels - 1) + kind_bytes


def exchange_bytes(exchange: Exchange) -> int:
    """Bytes of an exchange without its bindings and remembered routes. O(arguments)."""
    alternate = 0 if exchange.alternate is None else ALTERNATE_BYTES
    return EXCHANGE_BYTES + 4 * len(exchange.name) + _table(exchange.arguments, 0) + alternate


def binding_bytes(binding: Binding) -> int:
    """Bytes of a binding. O(arguments and words of its key)."""
    size = BINDING_BYTES + 2 * len(binding.routing_key) + binding.arguments_bytes
    if binding.source.kind == "topic":
        key = binding.routing_key
        size += TOPIC_WORD_BYTES * (key.count(b".") + 1)
        if b"*" in key or b"#" in key:
            wildcards = sum(word in (b"*", b"#") for word in key.split(b"."))
            size -= (TOPIC_WORD_BYTES - TOPIC_WILDCARD_BYTES) * wildcards
    elif binding.source.kind == "headers":
        size += HEADER_BYTES * len(binding.arguments)
    return size


def _table(arguments: Mapping[str, Any], extra: int) -> int:
    return field_bytes(arguments) + extra if arguments else 0


class Allowance:
    """Memory for the definitions of a node. Any thread.

    Args: one, everybody: bytes that those of one virtual host, and of all together, may take.
    """

    def __init__(self, one: int, everybody: int) -> None:
        self.one = one
        self.everybody = everybody
        self.total = MemoryTotal()


class Holding:
    """What the definitions of one virtual host take of an allowance (None: any amount) and have in the account."""

    def __init__(self, allowance: Allowance | None) -> None:
        self._allowance = allowance
        self._share = MemoryShare("definitions", allowance.total if allowance is not None else None)
        # Something was defined (> 0 bytes) or is gone. Restored objects count, too, and are never refused.
        self.add = self._share.add

    @property
    def bytes(self) -> int:
        return self._share.held

    def refusal(self, amount: int) -> str:
        """Why `amount` bytes can't be defined; "": they can."""
        allowance = self._allowance
        if allowance is None:
            return ""
        if self._share.held + amount > allowance.one:
            return f"limit of {allowance.one} bytes of memory for definitions of a vhost is reached"
        if allowance.total.held + amount > allowance.everybody:
            return f"limit of {allowance.everybody} bytes of memory for definitions of all vhosts is reached"
        return ""
