"""Policies and operator policies of one virtual host: which of them a queue or exchange has, and what they ask for.

in: policies as RabbitMQ keeps them (name, pattern, apply-to, definition, priority); names. out: the policy and the operator policy of a
name,
their merged definition, and the QueuePolicy that arguments and definition make together.

P1  Of the policies that match, the one of the highest priority counts, of several the first by name; so it is with operator policies.
P2  Policy and operator policy are merged key by key: of two numbers the lower one counts, else the operator's.
P3  An argument of the queue beats its policy, but of two numbers the lower one counts; x-overflow of a quorum queue loses (RabbitMQ).
P4  A pattern is searched in the name on the I/O loops. All patterns of a virtual host share the steps of a search (patterns.N2), so that
    their number does not make a declaration dear; one that is not decided does not match.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from flintmq.patterns import Among, Pattern
from flintmq.routing.binding import EXCHANGE, QUEUE
from flintmq.slotted import replaced
from flintmq.vhost.arguments import FIXED_FIELDS, OPERATOR_KEYS, POLICY_KEYS, takes_overflow
from flintmq.vhost.policy import QueuePolicy

APPLY_TO = ("all", "queues", "exchanges", "classic_queues", "quorum_queues", "streams")
ALTERNATE = "alternate-exchange"
# kept and shown, so that files of RabbitMQ can be read; nothing follows from them here, nor from the rows of arguments.py without a field
NO_EFFECT = frozenset((*("ha-mode", "ha-params", "ha-sync-mode", "ha-sync-batch-size", "ha-promote-on-shutdown", "ha-promote-on-failure"),))
# what links of federation read (links.wanted)
FEDERATION = frozenset(("federation-upstream", "federation-upstream-set", "federation-upstream-pattern"))
NAME_MAX = 255
# names whose policies are kept
_KNOWN_MAX = 10_000
# of a value in a definition
DEPTH_MAX = 8


class Policy(NamedTuple):
    """A policy that was checked."""

    name: str
    pattern: Pattern
    apply_to: str
    priority: int
    definition: Mapping[str, Any]

    def is_for(self, kind: str, name: str, queue_type: str, among: Among) -> bool:
        """Args: kind: QUEUE or EXCHANGE; queue_type: of a queue; among: the policies that are asked."""
        if kind == EXCHANGE:
            applies = self.apply_to in ("all", "exchanges")
        else:
            types = {"classic_queues": "classic", "quorum_queues": "quorum", "streams": "stream"}
            applies = self.apply_to in ("all", "queues") or types.get(self.apply_to) == queue_type
        return applies and self.pattern.matches(name, among)


def _unsayable(value: Any, depth: int = 0) -> str | None:
    """Why a value can't be an argument of AMQP: it would pass here and fail where it is used."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return "a number has at most 64 bits"
    if isinstance(value, str) and any("\ud800" <= one <= "\udfff" for one in value):
        return "a text must be UTF-8"
    if isinstance(value, Mapping | list | tuple):
        if depth >= DEPTH_MAX:
            return f"it is nested deeper than {DEPTH_MAX}"
        inner: Iterable[Any] = (*value, *value.values()) if isinstance(value, Mapping) else value
        return next((reason for one in inner if (reason := _unsayable(one, depth + 1)) is not None), None)
    return None


def check_definition(definition: Any, operator: bool) -> str | None:
    """Why a definition is refused, in RabbitMQ's words where it has some; None: it is not."""
    if not isinstance(definition, Mapping) or not definition:
        return "Validation failed\n\nno policy provided\n" if definition == {} else "the definition must be an object"
    unknown = [key for key in definition if key not in POLICY_KEYS and key not in NO_EFFECT | FEDERATION and key != ALTERNATE]
    if operator:
        unknown = [key for key in definition if key not in OPERATOR_KEYS]
    if unknown:
        return (
            f"Validation failed\n\n{', '.join(sorted(unknown))[:200]} are not recognised {'operator ' if operator else ''}policy settings\n"
        )
    arguments = {f"x-{key}": value for key, value in definition.items()}
    for key, value in definition.items():
        row = POLICY_KEYS.get(key)
        reason = _unsayable(value)
        if reason is None and key in (ALTERNATE, "dead-letter-exchange") and isinstance(value, str) and len(value.encode()) > NAME_MAX:
            reason = f"a name has at most {NAME_MAX} bytes"
        elif reason is not None:
            pass
        elif row is not None and row.field and row.field not in FIXED_FIELDS:
            reason = row.check(value, {"x-dead-letter-exchange": "", **arguments})
        elif key == ALTERNATE and not isinstance(value, str):
            reason = "it must be a text"
        if reason is not None:
            return f"Validation failed\n\ninvalid value for '{key}': {reason}\n"
    return None


def made(name: str, value: Mapping[str, Any]) -> Policy:
    """The policy of a stored value (RabbitMQ's members). Raises: ValueError, KeyError when it is none."""
    reason = check_definition(value["definition"], False)
    if reason is not None:
        raise ValueError(f"policy '{name}': {reason}")
    pattern = Pattern(value["pattern"], "policy").told()
    return Policy(name, pattern, value.get("apply-to", "all"), int(value.get("priority", 0)), dict(value["definition"]))


_Found = tuple[Policy | None, Policy | None]


class Policies:
    """The policies of a virtual host. Changed and read under its lock, or read for show by anybody: the tuples are replaced whole."""

    def __init__(self, consumer_timeout_ms: int = 0) -> None:
        self._consumer_timeout_ms = consumer_timeout_ms
        # in the order in which they are asked (P1)
        self.ordinary: tuple[Policy, ...] = ()
        self.operator: tuple[Policy, ...] = ()
        # what was found for names, with the policies of that time: lists of the API ask for the same names again and again
        self._known: dict[tuple[str, str, str], tuple[tuple[Policy, ...], tuple[Policy, ...], _Found]] = {}

    def __bool__(self) -> bool:
        return bool(self.ordinary or self.operator)

    def put(self, policy: Policy, operator: bool) -> None:
        """Creates or replaces one."""
        self._set([one for one in self._of(operator) if one.name != policy.name] + [policy], operator)

    def remove(self, name: str, operator: bool) -> None:
        self._set([one for one in self._of(operator) if one.name != name], operator)

    def _of(self, operator: bool) -> tuple[Policy, ...]:
        return self.operator if operator else self.ordinary

    def _set(self, policies: list[Policy], operator: bool) -> None:
        ordered = tuple(sorted(policies, key=lambda one: (-one.priority, one.name)))
        if operator:
            self.operator = ordered
        else:
            self.ordinary = ordered
        self._known = {}

    def for_names(self) -> Among:
        """What all searches of one change share that looks at very many names."""
        return Among.for_names(len(self.ordinary) + len(self.operator))

    def of(self, kind: str, name: str, queue_type: str = "", among: Among | None = None) -> tuple[Policy | None, Policy | None]:
        """The policy and the operator policy of a name."""
        key, ordinary, operator = (kind, name, queue_type), self.ordinary, self.operator
        known = self._known.get(key)
        if known is not None and known[0] is ordinary and known[1] is operator:
            return known[2]
        whole = among is None
        among = among or Among(len(ordinary) + len(operator))
        definition = (
            next((one for one in ordinary if one.is_for(kind, name, queue_type, among)), None),
            next((one for one in operator if one.is_for(kind, name, queue_type, among)), None),
        )
        if whole:  # one of very many names has fewer steps, and may be decided yet
            if len(self._known) >= _KNOWN_MAX:
                self._known = {}
            self._known[key] = ordinary, operator, definition
        return definition

    def definition(self, kind: str, name: str, queue_type: str = "", among: Among | None = None) -> dict[str, Any]:
        """What the two say together (P2)."""
        ordinary, operator = self.of(kind, name, queue_type, among)
        merged = {} if ordinary is None else dict(ordinary.definition)
        for key, value in () if operator is None else operator.definition.items():
            both = POLICY_KEYS[key].lower(merged[key], value) if key in merged else None
            merged[key] = value if both is None else both
        return merged

    def queue_policy(self, name: str, own: QueuePolicy, arguments: Mapping[str, Any], among: Among | None = None) -> QueuePolicy:
        """What a queue does. Args: own: what its arguments ask for (P3)."""
        policy = self._changed(name, own, arguments, among) if self else own
        if self._consumer_timeout_ms and policy.consumer_timeout_ms is None and not policy.is_stream:
            policy = replaced(policy, consumer_timeout_ms=self._consumer_timeout_ms)
        return policy

    def _changed(self, name: str, own: QueuePolicy, arguments: Mapping[str, Any], among: Among | None) -> QueuePolicy:
        """What the policies make of it."""
        changed: dict[str, Any] = {}
        for key, value in self.definition(QUEUE, name, own.queue_type, among).items():
            row = POLICY_KEYS.get(key)
            if row is None or not row.field or row.field in FIXED_FIELDS:
                continue
            if key == "overflow" and not takes_overflow(own.queue_type, value):
                continue
            if row.name in arguments and own.queue_type not in row.policy_first:
                value = row.lower(arguments[row.name], value)
                if value is None:
                    continue
            changed[row.field] = row.made(value)
        return replaced(own, **changed) if changed else own

    def alternate(self, name: str, arguments: Mapping[str, Any], among: Among | None = None) -> str | None:
        """The alternate exchange of an exchange."""
        asked = arguments.get(ALTERNATE)
        if isinstance(asked, str):
            return asked
        definition = self.definition(EXCHANGE, name, "", among).get(ALTERNATE) if self else None
        return definition if isinstance(definition, str) else None
