"""Queue arguments: checked once at declaration, then carried as a typed QueuePolicy.

in: the argument table of queue.declare. out: a QueuePolicy, or the 406 that RabbitMQ would send.

Rule: an unknown argument is kept and ignored; a known one with a wrong type or value is refused, whatever the queue type (so that
a configuration written for quorum queues carries over). A stream takes only what means something to it. Texts are RabbitMQ's, Erlang
terms included: people grep them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flintmq.errors import PeerError, ReplyCode
from flintmq.queue import kinds
from flintmq.routing.exchange import erlang_term
from flintmq.vhost.stream_arguments import age_ms, check_stream_arguments

log = logging.getLogger("flintmq.vhost")

# milliseconds; ten years: what RabbitMQ accepts for x-message-ttl and x-expires
EXPIRY_MS_MAX = 315_360_000_000
# deliveries of one message; the counter has 31 bits
DELIVERY_LIMIT_MAX = 2**31 - 1
PRIORITY_MAX = 255
# bytes of a routing key
SHORTSTR_MAX = 255
DROP_HEAD = "drop-head"
REJECT_PUBLISH = "reject-publish"
REJECT_PUBLISH_DLX = "reject-publish-dlx"
STREAM = "stream"


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """What a queue's arguments ask for. None: not asked for."""

    message_ttl_ms: int | None = None
    expires_ms: int | None = None
    max_length: int | None = None
    max_length_bytes: int | None = None
    overflow: str = DROP_HEAD
    dead_letter_exchange: str | None = None
    dead_letter_routing_key: bytes | None = None
    dead_letter_strategy: str = "at-most-once"
    max_priority: int | None = None
    qpid_priorities: int | None = None
    single_active_consumer: bool = False
    delivery_limit: int | None = None
    consumer_timeout_ms: int | None = None
    queue_type: str = "classic"  # as asked for; "quorum" is served by a durable queue of ours
    # of streams: retention (with max_length_bytes), bytes of a segment, milliseconds before a nacked message comes to its group again
    max_age: str | None = None
    stream_segment_bytes: int | None = None
    retry_delay_ms: int | None = None

    @property
    def counts_deliveries(self) -> bool:
        """Whether consumers are told how often a message came back, and a restart keeps that."""
        return self.queue_type == "quorum" or self.delivery_limit is not None

    @property
    def is_stream(self) -> bool:
        return self.queue_type == STREAM

    @property
    def is_outside(self) -> bool:
        """Of a kind that is not the broker's own (queue/kinds.py), which may be gone since the queue was declared."""
        return self.queue_type not in QUEUE_TYPES

    @property
    def max_age_ms(self) -> int | None:
        """x-max-age in milliseconds."""
        return _at_most(age_ms(self.max_age), EXPIRY_MS_MAX)

    @property
    def levels(self) -> int:
        """Priority levels of the entry list; 1: none."""
        if self.qpid_priorities is not None:
            return self.qpid_priorities
        return 1 if self.max_priority is None else self.max_priority + 1


DEFAULT_POLICY = QueuePolicy()

# A check returns None when the value is good, else the reason as RabbitMQ prints it.
Check = Callable[[Any, Mapping[str, Any]], str | None]


def _at_most(value: int | None, most: int) -> int | None:
    """`value`, or `most` where more would mean the same: what RabbitMQ takes, our counters need not hold."""
    return value if value is None else min(value, most)


def _is_int(value: object) -> bool:
    return type(value) is int  # bool and Timestamp are ints of another field type


def _integer(value: Any, _: Mapping[str, Any]) -> str | None:
    return None if _is_int(value) else f'"expected integer, got {erlang_term(value)[0]}"'


def _not_negative(value: Any, arguments: Mapping[str, Any]) -> str | None:
    return _integer(value, arguments) or (f"{{value_negative,{value}}}" if value < 0 else None)


def _positive(value: Any, arguments: Mapping[str, Any]) -> str | None:
    return _not_negative(value, arguments) or ("{value_zero,0}" if value == 0 else None)


def _ttl(value: Any, arguments: Mapping[str, Any]) -> str | None:
    reason = _integer(value, arguments)
    if reason is None and value > EXPIRY_MS_MAX:
        return f"{{value_too_large,{value}}}"
    return reason or _not_negative(value, arguments)


def _expires(value: Any, arguments: Mapping[str, Any]) -> str | None:
    return _ttl(value, arguments) or _positive(value, arguments)


def _max_priority(value: Any, arguments: Mapping[str, Any]) -> str | None:
    return _not_negative(value, arguments) or (f"{{max_value_exceeded,{value}}}" if value > PRIORITY_MAX else None)


def _qpid_priorities(value: Any, arguments: Mapping[str, Any]) -> str | None:
    # The entry list has 8 bits for the level.
    return _positive(value, arguments) or (f"{{max_value_exceeded,{value}}}" if value > PRIORITY_MAX + 1 else None)


def _unacceptable(value: Any) -> str:
    return f"{{unacceptable_type,{erlang_term(value)[0]}}}"


def _boolean(value: Any, _: Mapping[str, Any]) -> str | None:
    return None if isinstance(value, bool) else _unacceptable(value)


def _text(value: Any, _: Mapping[str, Any]) -> str | None:
    return None if isinstance(value, str) else _unacceptable(value)


def _dead_letter_key(value: Any, arguments: Mapping[str, Any]) -> str | None:
    if not isinstance(value, str):
        return _unacceptable(value)
    if "x-dead-letter-exchange" not in arguments:
        return "routing_key_but_no_dlx_defined"
    # RabbitMQ takes it, and can deliver no message that it dead-letters with it: a routing key has one octet for its length.
    size = len(_octets(value))
    return None if size <= SHORTSTR_MAX else f"{{value_too_large,{size}}}"


def _octets(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _one_of(reason: str, *values: str) -> Check:
    def check(value: Any, _: Mapping[str, Any]) -> str | None:
        if not isinstance(value, str):
            return _unacceptable(value)
        return None if value in values else reason

    return check


def _queue_type(value: Any, _: Mapping[str, Any]) -> str | None:
    if not isinstance(value, str):
        return _unacceptable(value)
    return None if value in QUEUE_TYPES or kinds.find(value) is not None else f"\"unsupported queue type '{value}'\""


def _queue_mode(value: Any, _: Mapping[str, Any]) -> str | None:
    if not isinstance(value, str):
        return _unacceptable(value)
    return None if value in ("default", "lazy") else f"\"unsupported queue mode '{value}'\""


def _queue_version(value: Any, arguments: Mapping[str, Any]) -> str | None:
    return _not_negative(value, arguments) or (None if value in (1, 2) else f"\"unsupported queue version '{value}'\"")


def _max_age(value: Any, _: Mapping[str, Any]) -> str | None:
    if not isinstance(value, str):
        return _unacceptable(value)
    return None if age_ms(value) is not None else "{error,invalid_max_age}"


QUEUE_TYPES = ("classic", "quorum", STREAM)

# Every argument we know, hence check and compare at redeclaration. Order: as refused when several are wrong.
QUEUE_ARGUMENTS: dict[str, Check] = {
    "x-queue-type": _queue_type,
    "x-expires": _expires,
    "x-message-ttl": _ttl,
    "x-dead-letter-exchange": _text,
    "x-dead-letter-routing-key": _dead_letter_key,
    "x-dead-letter-strategy": _one_of("invalid_dlx_strategy", "at-most-once", "at-least-once"),
    "x-max-length": _not_negative,
    "x-max-length-bytes": _not_negative,
    "x-max-in-memory-length": _not_negative,
    "x-max-in-memory-bytes": _not_negative,
    "x-max-priority": _max_priority,
    "x-qpid-priorities": _qpid_priorities,
    "x-overflow": _one_of("invalid_overflow", DROP_HEAD, REJECT_PUBLISH, REJECT_PUBLISH_DLX),
    "x-queue-mode": _queue_mode,
    "x-queue-version": _queue_version,
    "x-single-active-consumer": _boolean,
    "x-delivery-limit": _integer,
    "x-consumer-timeout": _positive,
    "x-consumer-disconnected-timeout": _positive,
    "x-retry-delay": _ttl,
    "x-delayed-retry-type": _text,
    "x-delayed-retry-min": _not_negative,
    "x-delayed-retry-max": _not_negative,
    "x-quorum-initial-group-size": _positive,
    "x-quorum-target-group-size": _positive,
    "x-initial-cluster-size": _positive,
    "x-member-placement-tag": _text,
    "x-queue-leader-locator": _one_of("invalid_queue_leader_locator", "client-local", "balanced", "random", "least-leaders"),
    "x-queue-master-locator": _text,
    "x-max-age": _max_age,
    "x-stream-max-segment-size-bytes": _not_negative,
    "x-stream-filter-size-bytes": _not_negative,
}


def _acceptable(arguments: Mapping[str, Any], description: str) -> dict[str, Any]:
    """The arguments of a stored queue as far as they would be taken today: an earlier version took more."""
    result = dict(arguments)
    key = result.get("x-dead-letter-routing-key")
    if isinstance(key, str) and len(_octets(key)) > SHORTSTR_MAX:
        log.warning("%s: x-dead-letter-routing-key has %d bytes, it is cut to %d", description, len(_octets(key)), SHORTSTR_MAX)
        result["x-dead-letter-routing-key"] = _octets(key)[:SHORTSTR_MAX].decode("utf-8", "surrogateescape")
    for name, check in QUEUE_ARGUMENTS.items():
        if name not in result:
            continue
        if name == "x-queue-type" and isinstance(result[name], str) and check(result[name], result) is not None:
            # It may be installed again; until then the queue keeps what it has, in the order of its levels.
            log.warning("%s: nobody registered its type %r: new messages go by their priority", description, result[name])
            continue
        reason = check(result[name], result)
        if reason is not None:
            log.warning("%s: its stored argument %r is left out: %s", description, name, reason)
            del result[name]
    if "x-max-priority" in result and "x-qpid-priorities" in result:
        log.warning("%s: its stored argument 'x-qpid-priorities' is left out: it goes not together with x-max-priority", description)
        del result["x-qpid-priorities"]
    return result


def _check_kind(arguments: Mapping[str, Any], description: str) -> None:
    """What a kind from outside says to the arguments. Raises: PeerError 406."""
    kind = kinds.find(arguments.get("x-queue-type", ""))
    if kind is None:
        return
    levels = [name for name in ("x-max-priority", "x-qpid-priorities") if name in arguments]
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
    for key, check in QUEUE_ARGUMENTS.items():
        if key in arguments and not (restored and key == "x-queue-type"):
            reason = check(arguments[key], arguments)
            if reason is not None:
                raise PeerError(ReplyCode.PRECONDITION_FAILED, f"invalid arg '{key}' for {description}: {reason}")
    if "x-max-priority" in arguments and "x-qpid-priorities" in arguments:
        raise PeerError(
            ReplyCode.PRECONDITION_FAILED, f"invalid arg 'x-qpid-priorities' for {description}: \"not together with x-max-priority\""
        )
    if not restored:
        _check_kind(arguments, description)
    if arguments.get("x-queue-type") == STREAM and not restored:
        check_stream_arguments(arguments, QUEUE_ARGUMENTS, description)
    get = arguments.get
    key_text = get("x-dead-letter-routing-key")
    return QueuePolicy(
        message_ttl_ms=get("x-message-ttl"),
        expires_ms=get("x-expires"),
        max_length=get("x-max-length"),
        max_length_bytes=get("x-max-length-bytes"),
        overflow=get("x-overflow", DROP_HEAD),
        dead_letter_exchange=get("x-dead-letter-exchange"),
        dead_letter_routing_key=None if key_text is None else _octets(key_text),
        dead_letter_strategy=get("x-dead-letter-strategy", "at-most-once"),
        max_priority=get("x-max-priority"),
        qpid_priorities=get("x-qpid-priorities"),
        single_active_consumer=get("x-single-active-consumer", False),
        delivery_limit=_at_most(get("x-delivery-limit"), DELIVERY_LIMIT_MAX),
        consumer_timeout_ms=_at_most(get("x-consumer-timeout"), EXPIRY_MS_MAX),
        queue_type=get("x-queue-type", "classic"),
        max_age=get("x-max-age"),
        stream_segment_bytes=get("x-stream-max-segment-size-bytes"),
        retry_delay_ms=get("x-retry-delay"),
    )
