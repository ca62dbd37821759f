"""Streams: what a declaration may say beside its arguments (arguments.py), and what basic.consume asks for.

in: properties of queue.declare, the argument table of basic.consume. out: nothing or the refusal that RabbitMQ would send; a StreamStart.

Texts are RabbitMQ's (rabbit_stream_queue, rabbit_queue_type_util, rabbit_amqqueue), Erlang terms included: people grep them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flintmq.arguments import is_whole
from flintmq.config import Limits
from flintmq.errors import PeerError, ReplyCode
from flintmq.routing.exchange import erlang_term
from flintmq.slotted import slotted

# x-stream-max-segment-size-bytes above it is refused (RabbitMQ)
SEGMENT_BYTES_MAX = 3_000_000_000
# x-stream-filter-size-bytes; the size of RabbitMQ's Bloom filters, of which we have none: checked and remembered
FILTER_BYTES_MIN, FILTER_BYTES_MAX = 16, 255
# bytes of a group's name: a shortstr, and a key in the log
GROUP_BYTES_MAX = 255
# values of one x-stream-filter
FILTER_VALUES_MAX = Limits().stream_filter_values_max

# milliseconds of the units of x-max-age and of an interval in x-stream-offset (RabbitMQ: a year is 365 days, a month 30)
_SECOND = 1000
_DAY = 86_400 * _SECOND
UNITS_MS = {"Y": 365 * _DAY, "M": 30 * _DAY, "D": _DAY, "h": 3600 * _SECOND, "m": 60 * _SECOND, "s": _SECOND}

FIRST, LAST, NEXT, OFFSET, TIME = "first", "last", "next", "offset", "time"


@slotted(frozen=True)
class StreamStart:
    """What a consumer of a stream asks for.

    kind: FIRST, LAST (the last message that is there), NEXT (what comes from now on), OFFSET, or TIME; value: the offset, or
    milliseconds since 1970; filters: values of which a message must have one, empty: every message; unfiltered: messages without
    a filter value, too; group: b"" for a consumer on its own.
    """

    kind: str = NEXT
    value: int = 0
    filters: tuple[bytes, ...] = ()
    unfiltered: bool = False
    group: bytes = b""


def age_ms(text: Any) -> int | None:
    """Milliseconds of "7D" and the like; None when it is none (an unsigned number and one of Y M D h m s)."""
    if not isinstance(text, str) or len(text) < 2 or len(text) > 20 or text[-1] not in UNITS_MS:
        return None
    number = text[:-1]
    return int(number) * UNITS_MS[text[-1]] if number.isascii() and number.isdigit() else None


def check_lasting_properties(description: str, *, durable: bool, exclusive: bool, auto_delete: bool) -> None:
    """A stream, and a quorum queue, is durable, belongs to nobody and stays when its consumers go. Raises: PeerError 406."""
    wrong = "auto-delete" if auto_delete else "exclusive-owner" if exclusive else "" if durable else "non-durable"
    if wrong:
        raise _refused(f"invalid property '{wrong}' for {description}")


def parse_stream_start(arguments: Mapping[str, Any], description: str, now_ms: int) -> StreamStart:
    """The arguments of basic.consume on a stream. `now_ms`: wall clock. Raises: PeerError 406."""
    kind, value = _offset(arguments, description, now_ms)
    unfiltered = arguments.get("x-stream-match-unfiltered", False)
    if not isinstance(unfiltered, bool):
        raise _bad("x-stream-match-unfiltered", description, f"{{unacceptable_type,{erlang_term(unfiltered)[0]}}}")
    group = arguments.get("x-group", "")
    if not isinstance(group, str):
        raise _bad("x-group", description, f"{{unacceptable_type,{erlang_term(group)[0]}}}")
    name = group.encode("utf-8", "surrogateescape")
    if len(name) > GROUP_BYTES_MAX:
        raise _bad("x-group", description, f'"longer than {GROUP_BYTES_MAX} bytes"')
    return StreamStart(kind, value, _filters(arguments, description), unfiltered, name)


def _offset(arguments: Mapping[str, Any], description: str, now_ms: int) -> tuple[str, int]:
    if "x-stream-offset" not in arguments:
        return NEXT, 0
    value = arguments["x-stream-offset"]
    if is_whole(value):
        if erlang_term(value)[0] == "timestamp":  # the codec's type of field T: seconds
            return TIME, value * 1000
        if not 0 <= value < 2**63:
            raise _bad("x-stream-offset", description, f"{{value_negative,{value}}}")
        return OFFSET, value
    if isinstance(value, str):
        if value in (FIRST, LAST, NEXT):
            return value, 0
        age = age_ms(value)
        if age is None:
            raise _bad("x-stream-offset", description, "invalid_max_age")
        return TIME, max(0, now_ms - age)
    raise _bad("x-stream-offset", description, f"{{invalid_offset_arg,{erlang_term(value)[0]}}}")


def _filters(arguments: Mapping[str, Any], description: str) -> tuple[bytes, ...]:
    value = arguments.get("x-stream-filter")
    if value is None:
        return ()
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list) or not all(isinstance(one, str) for one in values):
        raise _bad("x-stream-filter", description, f"{{unacceptable_type,{erlang_term(value)[0]}}}")
    if len(values) > FILTER_VALUES_MAX:
        raise _bad("x-stream-filter", description, f'"more than {FILTER_VALUES_MAX} values"')
    return tuple(dict.fromkeys(one.encode("utf-8", "surrogateescape") for one in values))


def _bad(key: str, description: str, reason: str) -> PeerError:
    return _refused(f"invalid arg '{key}' for {description}: {reason}")


def _refused(text: str) -> PeerError:
    return PeerError(ReplyCode.PRECONDITION_FAILED, text)
