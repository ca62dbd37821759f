"""Queue arguments: checked once at declaration, then carried as a typed QueuePolicy.

in: the argument table of queue.declare. out: a QueuePolicy, or the 406 that RabbitMQ would send.

The arguments themselves are rows of arguments.py.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from flintmq.errors import PeerError, ReplyCode
from flintmq.queue import kinds
from flintmq.routing.exchange import erlang_term
from flintmq.slotted import slotted
from flintmq.vhost.arguments import (
    AT_LEAST_ONCE,
    AT_MOST_ONCE,
    DROP_HEAD,
    EXPIRY_MS_MAX,
    GROUP_KEY,
    LAST_VALUE_KEYS,
    QUEUE_ARGUMENTS,
    QUEUE_TYPES,
    QUORUM,
    REJECT_PUBLISH,
    SHARED,
    SHORTSTR_MAX,
    SORT_KEY,
    STREAM,
    check_quorum,
    check_shared,
    check_stream,
    check_value,
    fields_of,
    octets,
)
from flintmq.vhost.stream_arguments import age_ms

log = logging.getLogger("flintmq.vhost")


@slotted(frozen=True)
class QueuePolicy:
    """What a queue's arguments ask for. None: not asked for."""

    message_ttl_ms: int | None = None
    minimum_ttl_ms: int | None = None
    maximum_ttl_ms: int | None = None
    expires_ms: int | None = None
    max_length: int | None = None
    max_length_bytes: int | None = None
    overflow: str = DROP_HEAD
    dead_letter_exchange: str | None = None
    dead_letter_routing_key: bytes | None = None
    dead_letter_strategy: str = AT_MOST_ONCE
    max_priority: int | None = None
    qpid_priorities: int | None = None
    last_value_key: bytes | None = None  # the header of a last value queue
    group_key: bytes | None = None  # the header whose value is a message's group
    group_shared: bool = False
    sort_key: bytes | None = None  # the header in whose order a sorted queue is
    deduplicates: bool = False  # x-message-deduplication
    browse_only: bool = False
    single_active_consumer: bool = False
    delivery_limit: int | None = None
    consumer_timeout_ms: int | None = None
    queue_type: str = "classic"  # as asked for; "quorum" is served by a durable queue of ours
    # of streams: retention (with max_length_bytes), bytes of a segment, milliseconds before a nacked message comes to its group again
    max_age: str | None = None
    stream_segment_bytes: int | None = None
    retry_delay_ms: int | None = None
    # back-off between deliveries of one message: for which returns, and milliseconds
    retry_type: str | None = None
    retry_min_ms: int | None = None
    retry_max_ms: int | None = None

    @property
    def grouping(self) -> tuple[str, bytes] | None:
        """How consumers share the queue and by which header: (mode of queue/group_kinds, header); None: each takes what is next."""
        if self.is_outside or self.is_stream:
            return None
        if self.sort_key is not None:
            return "sorted", self.sort_key
        return None if self.group_key is None else ("shared" if self.group_shared else "sticky", self.group_key)

    @property
    def counts_deliveries(self) -> bool:
        """Whether consumers are told how often a message came back, and a restart keeps that."""
        return self.queue_type in (QUORUM, SHARED) or self.delivery_limit is not None or any(self.delayed_returns)

    @property
    def keeps_letters(self) -> bool:
        """x-dead-letter-strategy at-least-once: a dead letter stays until all of its targets have it. As on RabbitMQ not with drop-head.
        What dies in a shared queue always stays so long (broker/shared_letters.py)."""
        if self.is_shared:
            return self.dead_letter_exchange is not None
        asked = self.dead_letter_strategy == AT_LEAST_ONCE and self.dead_letter_exchange is not None
        return asked and (self.overflow == REJECT_PUBLISH or self.is_stream)

    @property
    def delayed_returns(self) -> tuple[bool, bool]:
        """Whether a message waits before it is delivered again: (one that was rejected, one that was given back otherwise)."""
        kind = (self.retry_type or "all") if self.retry_min_ms else "disabled"
        return kind in ("all", "failed"), kind in ("all", "returned")

    @property
    def is_stream(self) -> bool:
        return self.queue_type == STREAM

    @property
    def is_shared(self) -> bool:
        """One node of an engine owns it; the core is its messages there, and a window of them on other nodes."""
        return self.queue_type == SHARED

    @property
    def is_elsewhere(self) -> bool:
        """Its messages are no entries of the store's queues: a stream, or a shared queue."""
        return self.is_stream or self.is_shared

    @property
    def lasts(self) -> bool:
        """Whether its type asks for a queue that is durable and stays (RabbitMQ's streams and quorum queues; shared ones)."""
        return self.queue_type in (STREAM, QUORUM, SHARED)

    @property
    def is_outside(self) -> bool:
        """Of a kind that is not the broker's own (queue/kinds.py), which may be gone since the queue was declared."""
        return self.queue_type not in QUEUE_TYPES

    @property
    def max_age_ms(self) -> int | None:
        """x-max-age in milliseconds."""
        age = age_ms(self.max_age)
        return None if age is None else min(age, EXPIRY_MS_MAX)

    @property
    def levels(self) -> int:
        """Priority levels of the entry list; 1: none."""
        if self.qpid_priorities is not None:
            return self.qpid_priorities
        return 1 if self.max_priority is None else self.max_priority + 1


DEFAULT_POLICY = QueuePolicy()


def _acceptable(arguments: Mapping[str, Any], description: str) -> dict[str, Any]:
    """The arguments of a stored queue as far as they would be taken today: an earlier version took more."""
    result = dict(arguments)
    key = result.get("x-dead-letter-routing-key")
    if isinstance(key, str) and len(octets(key)) > SHORTSTR_MAX:
        log.warning("%s: x-dead-letter-routing-key has %d bytes, it is cut to %d", description, len(octets(key)), SHORTSTR_MAX)
        result["x-dead-letter-routing-key"] = octets(key)[:SHORTSTR_MAX].decode("utf-8", "surrogateescape")
    for name, row in QUEUE_ARGUMENTS.items():
        if name not in result:
            continue
        if name == "x-queue-type" and isinstance(result[name], str) and row.check(result[name], result) is not None:
            # It may be installed again; until then the queue keeps what it has, in the order of its levels.
            log.warning("%s: nobody registered its type %r: new messages go by their priority", description, result[name])
            continue
        reason = row.check(result[name], result)
        if reason is not None:
            log.warning("%s: its stored argument %r is left out: %s", description, name, reason)
            del result[name]
    for name, other in _together(result):
        log.warning("%s: its stored argument '%s' is left out: it goes not together with %s", description, name, other)
        del result[name]
    return result


def _together(arguments: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(argument, another one with which it can't be) of those that say in which order a queue is."""
    names = [name for name in ("x-max-priority", "x-qpid-priorities", *LAST_VALUE_KEYS, SORT_KEY) if name in arguments]
    others = [name for name in (*LAST_VALUE_KEYS, SORT_KEY) if name in arguments and GROUP_KEY in arguments]
    return [(name, names[0]) for name in names[1:]] + [(GROUP_KEY, name) for name in others[:1]]


def _check_kind(arguments: Mapping[str, Any], description: str) -> None:
    """What a kind from outside says to the arguments. Raises: PeerError 406."""
    kind = kinds.find(arguments.get("x-queue-type", ""))
    if kind is None:
        return
    names = ("x-max-priority", "x-qpid-priorities", *LAST_VALUE_KEYS, GROUP_KEY, SORT_KEY)
    levels = [name for name in names if name in arguments]
    reason = f"{levels[0]} goes not together with it" if levels else kind.check(arguments)
    if reason is not None:
        text = f"invalid arg 'x-queue-type' for {description}: \"{kind.name}: {reason}\""
        raise PeerError(ReplyCode.PRECONDITION_FAILED, text)


def parse_queue_arguments(arguments: Mapping[str, Any] | None, description: str, *, restored: bool = False) -> QueuePolicy:
    """Checks the arguments of a queue and turns them into a policy.

    Args: description: "queue 'q' in vhost '/'", for the texts; restored: it exists, and nothing of it may keep the node from
    starting: what is refused today is left out (a dead-letter routing key that is too long is cut), and said in the log.
    Raises: PeerError 406 at the first bad argument, unless it is restored.
    """
    if not arguments:
        return DEFAULT_POLICY
    if restored:
        arguments = _acceptable(arguments, description)
    if "x-dead-letter-exchange" in arguments and not isinstance(arguments["x-dead-letter-exchange"], str):
        kind = erlang_term(arguments["x-dead-letter-exchange"])[0]
        raise PeerError(ReplyCode.PRECONDITION_FAILED, f"invalid type '{kind}' for arg 'x-dead-letter-exchange' in {description}")
    for name, row in QUEUE_ARGUMENTS.items():
        if name in arguments and not (restored and name == "x-queue-type"):
            check_value(row, arguments[name], arguments, description)
    for name, other in _together(arguments):
        raise PeerError(ReplyCode.PRECONDITION_FAILED, f"invalid arg '{name}' for {description}: \"not together with {other}\"")
    if not restored:
        _check_kind(arguments, description)
    if arguments.get("x-queue-type") == STREAM and not restored:
        check_stream(arguments, description)
    if arguments.get("x-queue-type") == QUORUM and not restored:
        check_quorum(arguments, description)
    if arguments.get("x-queue-type") == SHARED and not restored:
        check_shared(arguments, description)
    return QueuePolicy(**dict(fields_of(arguments)))
