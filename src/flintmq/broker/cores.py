"""From the arguments and policies of a queue to its core: the one place where both meet.

in: what vhost/arguments made of a declaration and its policies (QueuePolicy). out: a core of the right kind with the right facts, at its
declaration and at each change of its policy.

A row of a table is a fact of the core and the rule by which a policy decides it. A new argument that the core has to know is one row here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flintmq.config import Limits
from flintmq.errors import PeerError, ReplyCode
from flintmq.guard import caught, guarded
from flintmq.queue import kinds
from flintmq.queue.control import QueueHandle
from flintmq.queue.group_kinds import new_grouped, restore_groups
from flintmq.queue.last_value import new_last_value, restore_last_values
from flintmq.queue.list_kinds import LEVEL_QPID, LEVEL_RABBITMQ, LIST_PRIORITY, LIST_STANDARD
from flintmq.queue.outside import new_outside
from flintmq.routing.route_cache import (
    DEST_BLOCK,
    DEST_DEAD_LETTERS,
    DEST_LIMITED,
    DEST_MIRRORED,
    DEST_ONCE,
    DEST_REJECT_DEAD_LETTER,
    DEST_REJECT_OVER,
    DEST_SHARED,
    DEST_STREAM,
)
from flintmq.vhost.arguments import BLOCK, DROPPING, REJECT_PUBLISH_DLX, RING
from flintmq.vhost.names import describe
from flintmq.vhost.policy import QueuePolicy
from flintmq.vhost.queue import QueueSpec

# "any number" of a core's limits
_ANY = 2**64 - 1

Rule = Callable[[QueuePolicy], Any]


def _has_limit(policy: QueuePolicy) -> bool:
    return policy.max_length is not None or policy.max_length_bytes is not None


def _drops(policy: QueuePolicy) -> bool:
    return policy.overflow in DROPPING and _has_limit(policy)


def _ttl_ms(policy: QueuePolicy) -> int:
    return min((ttl for ttl in (policy.message_ttl_ms, policy.maximum_ttl_ms) if ttl is not None), default=-1)


def _dead_letters(policy: QueuePolicy) -> bool:
    return policy.dead_letter_exchange is not None


def _deliveries(policy: QueuePolicy) -> int:
    """Returns that an entry may have; -1: any number."""
    return -1 if policy.delivery_limit is None else policy.delivery_limit


def refuses_over(policy: QueuePolicy) -> bool:
    """Whether a queue that is full refuses publishes."""
    return _has_limit(policy) and policy.overflow not in DROPPING


def _destination_flags(policy: QueuePolicy) -> int:
    """What routes copy of a queue."""
    flags = (DEST_ONCE if policy.deduplicates else 0) | (DEST_MIRRORED if policy.is_shared else 0)
    if _drops(policy):
        flags |= DEST_LIMITED | (DEST_DEAD_LETTERS if _dead_letters(policy) else 0)
    elif _has_limit(policy) and policy.overflow == BLOCK:
        flags |= DEST_BLOCK
    elif _has_limit(policy):
        flags |= DEST_REJECT_OVER
        if policy.overflow == REJECT_PUBLISH_DLX and _dead_letters(policy):
            flags |= DEST_REJECT_DEAD_LETTER
    return flags


# attribute of QueueHandle, or `set_returns` with its arguments -> what a policy says of it
ORDINARY: Mapping[str, Rule] = {
    "dead_letters": _dead_letters,
    "drops_lowest": lambda policy: policy.overflow == RING,
    "set_returns": lambda policy: (policy.counts_deliveries, _deliveries(policy), _drops(policy), *policy.delayed_returns),
    "retry_min_ms": lambda policy: policy.retry_min_ms or 0,
    "retry_max_ms": lambda policy: _ANY if policy.retry_max_ms is None else policy.retry_max_ms,
    "consumer_timeout_ms": lambda policy: policy.consumer_timeout_ms or 0,
    "ttl_ms": _ttl_ms,
    "ttl_least_ms": lambda policy: policy.minimum_ttl_ms or 0,
    "max_length": lambda policy: _ANY if policy.max_length is None else policy.max_length,
    "max_bytes": lambda policy: _ANY if policy.max_length_bytes is None else policy.max_length_bytes,
    "destination_flags": _destination_flags,
}
# of the window of a shared queue, whose other facts are its service's
WINDOW: Mapping[str, Rule] = {
    "dead_letters": _dead_letters,
    "set_returns": lambda policy: (True, _deliveries(policy), False, False, False, True),
    "ttl_ms": _ttl_ms,
    "destination_flags": lambda policy: DEST_SHARED,
}
# of a stream's core, whose groups count and limit by themselves
STREAM: Mapping[str, Rule] = {
    "set_returns": lambda policy: (policy.delivery_limit is not None, -1, False),
    "destination_flags": lambda policy: DEST_STREAM,
}
# argument of StreamQueue, at its declaration and in `set_rules`
STREAM_RULES: Mapping[str, Rule] = {
    "dead_letters": _dead_letters,
    "delivery_limit": _deliveries,
    "delay_ms": lambda policy: policy.retry_delay_ms or 0,
    "visibility_ms": lambda policy: policy.consumer_timeout_ms or 0,
}
# bounds of a stream's store
STREAM_BOUNDS: Mapping[str, Rule] = {
    "max_bytes": lambda policy: policy.max_length_bytes or 0,
    "max_age_ms": lambda policy: policy.max_age_ms or 0,
}


def facts(rules: Mapping[str, Rule], policy: QueuePolicy) -> dict[str, Any]:
    """The facts of one table for a policy, by name."""
    return {name: rule(policy) for name, rule in rules.items()}


def configure(core: QueueHandle, policy: QueuePolicy, window: bool = False) -> None:
    """Tells a core what its arguments and policy ask for. The caller has routes forgotten when the queue is in use. Args: window: of a
    shared queue that is served elsewhere (NodeState.is_window)."""
    rules = STREAM if policy.is_stream else WINDOW if window else ORDINARY
    for name, fact in facts(rules, policy).items():
        if name == "set_returns":
            core.set_returns(*fact)
        else:
            setattr(core, name, fact)
    core.forget_letters()


def plain(queue_id: int, durable: bool, log: Any, kind: int = LIST_STANDARD, levels: int = 1, rule: int = LEVEL_RABBITMQ) -> QueueHandle:
    """A core in the order of arrival, or of priorities. log: the durable store's, None: there is none."""
    core = QueueHandle(queue_id, kind, levels, rule)
    core.set_durable(durable)
    if log is not None:
        core.attach_log(log)
    return core


def ordinary(queue_id: int, spec: QueueSpec, log: Any, limits: Limits, *, restored: bool) -> QueueHandle:
    """The core of a queue whose messages are entries of the store. Raises: PeerError 541: a kind that others supply fails."""
    policy, durable = spec.policy, spec.durable
    kind, rule = LIST_STANDARD if policy.levels == 1 else LIST_PRIORITY, LEVEL_RABBITMQ
    if policy.qpid_priorities is not None:
        kind, rule = LIST_PRIORITY, LEVEL_QPID
    if policy.is_outside:
        core = _outside(queue_id, spec, log, restored)
    elif policy.last_value_key is not None:
        core = new_last_value(queue_id, policy.last_value_key, log, durable, limits.last_values_max)
    elif policy.grouping is not None:
        mode, header = policy.grouping
        bounds = {"groups_max": limits.message_groups_max, "idle_max": limits.message_groups_idle_max}
        shape = {"list_kind": kind, "levels": policy.levels, "level_rule": rule}
        core = new_grouped(queue_id, mode, header, log, durable, **shape, **bounds)
    else:
        core = plain(queue_id, durable, log, kind, policy.levels, rule)
    if policy.deduplicates and not policy.is_outside:
        core.set_once(limits.dedup_queue_max)
    configure(core, policy)
    return core


def _outside(queue_id: int, spec: QueueSpec, log: Any, restored: bool) -> QueueHandle:
    """A queue of a kind that others supply (queue/kinds.py). One that was restored, and its kind is missing, has all levels: each entry
    finds its place. Raises: PeerError 541 when it is declared and its kind fails."""
    name, arguments = spec.policy.queue_type, spec.arguments
    kind = kinds.find(name)
    try:
        if kind is not None:
            return new_outside(queue_id, kind.levels(arguments), log, lambda entries: kind.open(entries, arguments), spec.durable)
    except Exception as error:
        caught("kinds of queues", f"{name!r} for queue {spec.name!r}", error)
        if not restored:
            text = f"{describe('queue', spec.name, spec.vhost)}: its type '{name}' fails, see the broker's log"
            raise PeerError(ReplyCode.INTERNAL_ERROR, text) from error
    return plain(queue_id, spec.durable, log, LIST_PRIORITY, kinds.LEVELS_MAX)


def restore_kind(name: str, policy: QueuePolicy, core: QueueHandle) -> None:
    """After the entries of a queue came back, before a client uses it: what its kind remembers of its entries. O(entries)."""
    if policy.last_value_key is not None and not policy.is_outside:
        guarded("last values", f"queue {name!r}", restore_last_values, core)
    elif policy.grouping is not None:
        guarded("message groups", f"queue {name!r}", restore_groups, core)
