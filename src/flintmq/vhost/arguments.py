"""The arguments of queues as one table: name, values, kinds of queues with an effect, comparison, policy key, field of QueuePolicy.

in: argument tables of queue.declare, definitions of policies. out: reasons for a refusal in RabbitMQ's words and hints in ours; the names
that have an effect on a queue, and those that have none.

A row is everything that the broker knows of an argument: declaration (policy.py), redeclaration (equivalence.py), policies (policies.py),
the API's effective_arguments and docs/QUEUE_ARGUMENTS.md (`python -m tools.gen_arguments`) follow from it.

A1  An unknown argument is kept, not compared, and shown as one without effect. A known one with a wrong type or value is refused, whatever
    the queue type; a stream refuses also what means nothing to it (RabbitMQ). Everything else is taken by every kind, so that a
    configuration carries over from quorum to classic queues and back.
A2  Texts are RabbitMQ's, Erlang terms included: people grep them. The hint stands behind them, where it has room (PeerError).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from flintmq.errors import PeerError, ReplyCode
from flintmq.queue import kinds
from flintmq.routing.exchange import erlang_term
from flintmq.slotted import slotted
from flintmq.vhost.stream_arguments import FILTER_BYTES_MAX, FILTER_BYTES_MIN, SEGMENT_BYTES_MAX, age_ms

# milliseconds; ten years: what RabbitMQ accepts for x-message-ttl and x-expires
EXPIRY_MS_MAX = 315_360_000_000
# milliseconds; 49 days: routes have 32 bits for it
MINIMUM_TTL_MS_MAX = 2**32 - 1
# deliveries of one message; the counter has 31 bits
DELIVERY_LIMIT_MAX = 2**31 - 1
PRIORITY_MAX = 255
# bytes of a routing key
SHORTSTR_MAX = 255
# characters of a value in a hint
SHOWN_MAX = 40
DROP_HEAD = "drop-head"
REJECT_PUBLISH = "reject-publish"
REJECT_PUBLISH_DLX = "reject-publish-dlx"

CLASSIC, QUORUM, STREAM, SHARED = "classic", "quorum", "stream", "shared"
# how RabbitMQ's texts call those of its types that can't be declared in every way
MODULES = {QUORUM: "rabbit_quorum_queue", STREAM: "rabbit_stream_queue"}
QUEUE_TYPES = (CLASSIC, QUORUM, STREAM, SHARED)
# stands for every kind that is not the broker's own (queue/kinds.py)
OUTSIDE = "other kinds"
KINDS = (CLASSIC, QUORUM, STREAM, SHARED, OUTSIDE)
NO_KIND: tuple[str, ...] = ()
QUEUES = (CLASSIC, QUORUM, SHARED, OUTSIDE)
# those whose order and groups are the broker's own to decide
OWN = (CLASSIC, QUORUM, SHARED)

# names of the header of a last value queue: ours, and Qpid's
LAST_VALUE_KEYS = ("x-last-value-key", "x-qpid-last-value-queue-key", "qpid.last_value_queue_key")
# Qpid's names: the header whose value is a message's group; that groups are shared; the header in whose order a sorted queue is
GROUP_KEY, GROUP_SHARED, SORT_KEY = "qpid.group_header_key", "qpid.shared_msg_group", "qpid.queue_sort_key"
AT_MOST_ONCE, AT_LEAST_ONCE = "at-most-once", "at-least-once"
# ours: the oldest message of the lowest priority goes (Qpid), or publishers wait (Qpid's producer flow control)
RING = "ring"
BLOCK = "block"
OVERFLOWS = (DROP_HEAD, REJECT_PUBLISH, REJECT_PUBLISH_DLX, RING, BLOCK)
# what is over the limit leaves
DROPPING = (DROP_HEAD, RING)
RETRY_TYPES = ("disabled", "all", "failed", "returned")
SHARED_ORDERS = ("strict", "relaxed")
# of a shared queue: argument -> why it has none
_NOT_SHARED = dict.fromkeys(
    LAST_VALUE_KEYS,
    "the end of the older message could reach the engine without the newer one: a node that dies then would lose both",
)
_NO_BLOCK = "nodes forward all publishes on one connection, and those for other queues would wait too; reject-publish refuses them"
LOCATORS = ("client-local", "balanced", "random", "least-leaders")

# A check returns None when the value is good, else the reason as RabbitMQ prints it.
Check = Callable[[Any, Mapping[str, Any]], str | None]


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
    size = len(octets(value))
    return None if size <= SHORTSTR_MAX else f"{{value_too_large,{size}}}"


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


def _retry_ms(value: Any, arguments: Mapping[str, Any]) -> str | None:
    return _not_negative(value, arguments) or _ttl(value, arguments)


def _retry_type(value: Any, arguments: Mapping[str, Any]) -> str | None:
    return _one_of("invalid_delayed_retry_type", *RETRY_TYPES)(value, arguments)


def _max_age(value: Any, _: Mapping[str, Any]) -> str | None:
    if not isinstance(value, str):
        return _unacceptable(value)
    return None if age_ms(value) is not None else "{error,invalid_max_age}"


def _header(value: Any, _: Mapping[str, Any]) -> str | None:
    if not isinstance(value, str):
        return _unacceptable(value)
    return None if 0 < len(octets(value)) <= SHORTSTR_MAX else f"{{value_too_large,{len(octets(value))}}}" if value else "{value_empty}"


def _switch(value: Any, arguments: Mapping[str, Any]) -> str | None:
    """Qpid's clients say 1, or '1'."""
    if isinstance(value, (bool, str)) or _is_int(value):
        if str(value).lower() in ("0", "1", "true", "false"):
            return None if GROUP_KEY in arguments else f'"only with {GROUP_KEY}"'
        return f"{{invalid_value,{value}}}"
    return _unacceptable(value)


def octets(text: str) -> bytes:
    """A text of a table as it goes on the wire."""
    return text.encode("utf-8", "surrogateescape")


def _limit_of(most: int) -> Callable[[int], int]:
    """What RabbitMQ takes, our counters need not hold: more than `most` means the same."""
    return lambda value: min(value, most)


def _same(value: Any) -> Any:
    return value


def _lower(one: Any, other: Any) -> Any:
    """Which of two values of a policy key counts (P2, P3 of policies.py). None: they can't be compared, and the first one does."""
    return min(one, other) if type(one) is int and type(other) is int else None


def _fewer(one: Any, other: Any) -> Any:
    """Of two delivery limits. Below zero: no limit, which lifts no other one (RabbitMQ 4)."""
    if type(one) is not int or type(other) is not int:
        return None
    return max(one, other) if min(one, other) < 0 else min(one, other)


def _neither(_one: Any, _other: Any) -> Any:
    """Of numbers that are names: the argument counts, else the operator policy."""
    return None


def _higher(one: Any, other: Any) -> Any:
    return max(one, other) if type(one) is int and type(other) is int else None


def _younger(one: Any, other: Any) -> Any:
    return min(one, other, key=lambda age: age_ms(age) or 0)


@slotted(frozen=True)
class Argument:
    """A row.

    name; check: the reason of a refusal, as RabbitMQ prints it; values: the good ones in words, for hints and the documentation; effect:
    the kinds of queues on which it does something; stream: a stream may be declared with it; field: of QueuePolicy that it sets; made:
    the field's value; policy: it is a policy key, too (without x-); operator: also of operator policies; lower: which of two values
    counts where argument, policy and operator policy meet; policy_first: kinds of queues on
    which a policy beats the argument; implied: value that means the same as its absence; note: for the documentation.
    """

    name: str
    check: Check
    values: str
    effect: tuple[str, ...] = NO_KIND
    stream: bool = False
    field: str = ""
    made: Callable[[Any], Any] = _same
    policy: bool = False
    operator: bool = False
    lower: Callable[[Any, Any], Any] = _lower
    policy_first: tuple[str, ...] = NO_KIND
    implied: Any = None
    note: str = ""

    @property
    def key(self) -> str:
        """The policy key."""
        return self.name.removeprefix("x-")


_MS = f"milliseconds, 0 to {EXPIRY_MS_MAX:,} (ten years)"
_COUNT = "integer, 0 or more"
_STREAM_ONLY = (STREAM,)

# Order: as refused when several are wrong.
_ROWS = (
    Argument(
        "x-queue-type",
        _queue_type,
        "classic, quorum, stream, shared, or a registered kind",
        KINDS,
        True,
        "queue_type",
        implied=CLASSIC,
        note="quorum: served by a durable queue of ours that counts deliveries",
    ),
    Argument("x-expires", _expires, f"milliseconds, 1 to {EXPIRY_MS_MAX:,}", QUEUES, field="expires_ms", policy=True, operator=True),
    Argument(
        "x-shared-order",
        _one_of("invalid_shared_order", *SHARED_ORDERS),
        ", ".join(SHARED_ORDERS),
        implied="strict",
        note="of an earlier form of shared queues: each has one owner now, and its order",
    ),
    Argument("x-message-ttl", _ttl, _MS, QUEUES, field="message_ttl_ms", policy=True, operator=True),
    Argument(
        "x-qpid-minimum-message-ttl",
        _not_negative,
        _COUNT,
        QUEUES,
        field="minimum_ttl_ms",
        made=_limit_of(MINIMUM_TTL_MS_MAX),
        policy=True,
        lower=_higher,
        note="raises a message's own shorter expiration; the queue's time to live is applied after it",
    ),
    Argument(
        "x-qpid-maximum-message-ttl",
        _ttl,
        _MS,
        QUEUES,
        field="maximum_ttl_ms",
        policy=True,
        note="as x-message-ttl: the lower of the two counts",
    ),
    Argument("x-dead-letter-exchange", _text, "text, a name", KINDS, True, "dead_letter_exchange", policy=True),
    Argument(
        "x-dead-letter-routing-key",
        _dead_letter_key,
        f"text of at most {SHORTSTR_MAX} bytes, with x-dead-letter-exchange",
        KINDS,
        True,
        "dead_letter_routing_key",
        octets,
        policy=True,
    ),
    Argument(
        "x-dead-letter-strategy",
        _one_of("invalid_dlx_strategy", AT_MOST_ONCE, AT_LEAST_ONCE),
        f"{AT_MOST_ONCE}, {AT_LEAST_ONCE}",
        KINDS,
        True,
        "dead_letter_strategy",
        policy=True,
        note="at-least-once: with x-overflow reject-publish, on a stream, or on a shared queue",
    ),
    Argument("x-max-length", _not_negative, _COUNT, QUEUES, field="max_length", policy=True, operator=True),
    Argument("x-max-length-bytes", _not_negative, _COUNT, KINDS, True, "max_length_bytes", policy=True, operator=True),
    Argument("x-max-in-memory-length", _not_negative, _COUNT, policy=True, operator=True),
    Argument("x-max-in-memory-bytes", _not_negative, _COUNT, policy=True, operator=True),
    Argument("x-max-priority", _max_priority, f"integer, 0 to {PRIORITY_MAX}", (CLASSIC, SHARED), field="max_priority"),
    Argument(
        "x-qpid-priorities",
        _qpid_priorities,
        f"integer, 1 to {PRIORITY_MAX + 1}",
        OWN,
        field="qpid_priorities",
        note="Qpid's levels; not together with x-max-priority",
    ),
    *(
        Argument(
            name,
            _header,
            "text, the name of a header",
            (CLASSIC, QUORUM),
            field="last_value_key",
            made=octets,
            note="a newer message with the same value replaces the older one; not together with priorities"
            if number == 0
            else LAST_VALUE_KEYS[0],
        )
        for number, name in enumerate(LAST_VALUE_KEYS)
    ),
    Argument(
        GROUP_KEY,
        _header,
        "text, the name of a header",
        OWN,
        field="group_key",
        made=octets,
        note="messages with the same value go to one consumer, in order; not together with a last value key or a sort key",
    ),
    Argument(
        GROUP_SHARED,
        _switch,
        "boolean, 0, 1",
        OWN,
        field="group_shared",
        made=lambda value: str(value).lower() in ("1", "true"),
        note=f"with {GROUP_KEY}: a group is a consumer's while one of its messages is unacked; else until the consumer leaves",
    ),
    Argument(
        SORT_KEY,
        _header,
        "text, the name of a header",
        OWN,
        field="sort_key",
        made=octets,
        note="messages are delivered in the order of its value; not together with priorities, groups or a last value key",
    ),
    Argument(
        "x-message-deduplication",
        _boolean,
        "boolean",
        OWN,
        field="deduplicates",
        note="a message is dropped while one with the same x-deduplication-header is in the queue",
    ),
    Argument(
        "x-qpid-ensure-nondestructive-consumers",
        _boolean,
        "boolean",
        OWN,
        field="browse_only",
        note="every consumer is a browser, and basic.get and pulls are refused",
    ),
    Argument(
        "x-overflow",
        _one_of("invalid_overflow", *OVERFLOWS),
        ", ".join(OVERFLOWS),
        QUEUES,
        field="overflow",
        policy=True,
        operator=True,
        policy_first=(QUORUM,),
        note="on a quorum queue the policy beats the argument; a shared queue does not block publishers",
    ),
    Argument("x-queue-mode", _queue_mode, "default, lazy", policy=True, note="bodies leave memory as they have to"),
    Argument("x-queue-version", _queue_version, "1, 2", policy=True, operator=True, lower=_neither, note="there is one on-disk format"),
    Argument("x-single-active-consumer", _boolean, "boolean", QUEUES, field="single_active_consumer"),
    Argument(
        "x-delivery-limit",
        _integer,
        "integer",
        KINDS,
        True,
        "delivery_limit",
        _limit_of(DELIVERY_LIMIT_MAX),
        policy=True,
        operator=True,
        lower=_fewer,
        note="below zero: none",
    ),
    Argument(
        "x-consumer-timeout",
        _positive,
        "milliseconds, 1 or more",
        KINDS,
        True,
        "consumer_timeout_ms",
        _limit_of(EXPIRY_MS_MAX),
        policy=True,
        note="the message goes back to its queue, the channel stays open",
    ),
    Argument(
        "x-consumer-disconnected-timeout", _positive, "milliseconds, 1 or more", policy=True, note="for replicas, of which there are none"
    ),
    Argument("x-retry-delay", _ttl, _MS, _STREAM_ONLY, True, "retry_delay_ms", note="a nacked message comes to its group again after it"),
    Argument(
        "x-delayed-retry-type",
        _retry_type,
        ", ".join(RETRY_TYPES),
        QUEUES,
        field="retry_type",
        policy=True,
        note="with x-delayed-retry-min; all unless it is set",
    ),
    Argument("x-delayed-retry-min", _retry_ms, _MS, QUEUES, field="retry_min_ms", policy=True),
    Argument("x-delayed-retry-max", _retry_ms, _MS, QUEUES, field="retry_max_ms", policy=True, note="with x-delayed-retry-min"),
    Argument("x-quorum-initial-group-size", _positive, "integer, 1 or more", note="of replicas"),
    Argument("x-quorum-target-group-size", _positive, "integer, 1 or more", policy=True, note="of replicas"),
    Argument("x-initial-cluster-size", _positive, "integer, 1 or more", stream=True, policy=True, note="of replicas"),
    Argument("x-member-placement-tag", _text, "text", note="of replicas"),
    Argument(
        "x-queue-leader-locator",
        _one_of("invalid_queue_leader_locator", *LOCATORS),
        ", ".join(LOCATORS),
        stream=True,
        policy=True,
        note="of replicas",
    ),
    Argument("x-queue-master-locator", _text, "text", policy=True, note="of replicas"),
    Argument("x-max-age", _max_age, "a number and one of Y M D h m s", _STREAM_ONLY, True, "max_age", policy=True, lower=_younger),
    Argument(
        "x-stream-max-segment-size-bytes",
        _not_negative,
        f"bytes, 0 to {SEGMENT_BYTES_MAX:,}",
        _STREAM_ONLY,
        True,
        "stream_segment_bytes",
        policy=True,
        note="as a policy key without effect",
    ),
    Argument(
        "x-stream-filter-size-bytes",
        _not_negative,
        f"bytes, {FILTER_BYTES_MIN} to {FILTER_BYTES_MAX} on a stream",
        stream=True,
        policy=True,
        note="filters are exact, without RabbitMQ's Bloom filters",
    ),
)

# Every argument we know, by its name.
QUEUE_ARGUMENTS: Mapping[str, Argument] = {row.name: row for row in _ROWS}
# those that a policy may set, by their key
POLICY_KEYS: Mapping[str, Argument] = {row.key: row for row in _ROWS if row.policy}
OPERATOR_KEYS = frozenset(row.key for row in _ROWS if row.operator)
# set by the argument alone: a stream's containers have their size when they are made
FIXED_FIELDS = frozenset(("stream_segment_bytes",))


def kind_of(queue_type: str) -> str:
    """The row's word for a value of x-queue-type."""
    return queue_type if queue_type in QUEUE_TYPES else OUTSIDE


def check_value(row: Argument, value: Any, arguments: Mapping[str, Any], description: str) -> None:
    """Args: arguments: all of them; description: "queue 'q' in vhost '/'". Raises: PeerError 406."""
    reason = row.check(value, arguments)
    if reason is not None:
        raise PeerError(
            ReplyCode.PRECONDITION_FAILED,
            f"invalid arg '{row.name}' for {description}: {reason}",
            hint=f"received {shown(value)}; {row.name} takes: {row.values}",
        )


def check_consumer_timeout(arguments: Mapping[str, Any], describe: Callable[[], str]) -> int:
    """x-consumer-timeout of basic.consume in milliseconds; 0: it has none. Raises: PeerError 406."""
    row = QUEUE_ARGUMENTS["x-consumer-timeout"]
    if row.name not in arguments:
        return 0
    check_value(row, arguments[row.name], arguments, describe())
    return int(row.made(arguments[row.name]))


def shown(value: Any) -> str:
    """A value for a hint: its type, and as much of it as fits."""
    kind, text = erlang_term(value)
    printable = "".join(one if one.isprintable() else "?" for one in text[: SHOWN_MAX + 1])
    return f"{kind} '{printable}'" if len(printable) <= SHOWN_MAX else f"{kind} '{printable[:SHOWN_MAX]}...'"


def check_stream(arguments: Mapping[str, Any], description: str) -> None:
    """Of arguments that are good by themselves, whether a stream can have them. Raises: PeerError 406."""
    for row in _ROWS:
        if row.name in arguments and not row.stream:
            text = f"invalid arg '{row.name}' for {description} of queue type {MODULES[STREAM]}"
            raise PeerError(ReplyCode.PRECONDITION_FAILED, text, hint="it has no meaning on a stream")
    if arguments.get("x-stream-max-segment-size-bytes", 0) > SEGMENT_BYTES_MAX:
        raise PeerError(ReplyCode.PRECONDITION_FAILED, "Exceeded max value for x-stream-max-segment-size-bytes")
    if not FILTER_BYTES_MIN <= arguments.get("x-stream-filter-size-bytes", FILTER_BYTES_MIN) <= FILTER_BYTES_MAX:
        raise PeerError(ReplyCode.PRECONDITION_FAILED, "Invalid value for  x-stream-filter-size-bytes")


def check_quorum(arguments: Mapping[str, Any], description: str) -> None:
    """Of arguments that are good by themselves, whether a quorum queue of RabbitMQ can have them. Raises: PeerError 406."""
    for name in ("x-max-priority", "x-queue-mode", "x-queue-version"):
        if name in arguments:
            text = f"invalid arg '{name}' for {description} of queue type {MODULES[QUORUM]}"
            raise PeerError(ReplyCode.PRECONDITION_FAILED, text, hint="leave it out, or declare a classic queue")


def check_shared(arguments: Mapping[str, Any], description: str) -> None:
    """Of arguments that are good by themselves, whether a shared queue can have them. Raises: PeerError 406."""
    for name, reason in _NOT_SHARED.items():
        if name in arguments:
            text = f"invalid arg '{name}' for {description} of queue type {SHARED}"
            raise PeerError(ReplyCode.PRECONDITION_FAILED, text, hint=reason)
    if not takes_overflow(SHARED, arguments.get("x-overflow", DROP_HEAD)):
        text = f"invalid arg 'x-overflow' for {description} of queue type {SHARED}: '{BLOCK}'"
        raise PeerError(ReplyCode.PRECONDITION_FAILED, text, hint=_NO_BLOCK)


def takes_overflow(queue_type: str, value: Any) -> bool:
    """Whether a queue of that type can have that x-overflow, which is good by itself."""
    return queue_type != SHARED or value != BLOCK


def fields_of(arguments: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """(field of QueuePolicy, value) of arguments that were checked."""
    for row in _ROWS:
        if row.field and row.name in arguments:
            yield row.field, row.made(arguments[row.name])


def effective(arguments: Mapping[str, Any], policy: Any) -> tuple[list[str], list[str]]:
    """(names of those with an effect on a queue, of those without: unknown ones, and those that a policy beats), in their order.

    Args: policy: the QueuePolicy that counts for it.
    """
    kind = kind_of(policy.queue_type)
    names: tuple[list[str], list[str]] = [], []
    for name, value in arguments.items():
        row = QUEUE_ARGUMENTS.get(name)
        works = row is not None and kind in row.effect and getattr(policy, row.field) == row.made(value)
        names[0 if works else 1].append(name)
    return names
