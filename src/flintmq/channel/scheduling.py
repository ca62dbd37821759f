"""When a message asks to be delivered (see scheduling.pxd).

in: the headers of a publish. out: the time at which it is to be routed.

D1  A message is never early: a delay counts from the first whole millisecond after its header was read.
D2  Of several fields the latest time counts. A time that is not above zero, or past already, asks for nothing.
D3  A delay of more than DELAY_MS_MAX asks for nothing in x-delay, as with RabbitMQ's plugin; in the other fields it is refused (due_of).

| field | value | from |
|---|---|---|
| x-delay | milliseconds from now | RabbitMQ's delayed message plugin |
| x-opt-delivery-delay | milliseconds from now | AMQP 1.0 annotation of that name |
| x-opt-delivery-time | milliseconds since 1970, or a timestamp | AMQP 1.0 annotation of that name |
| x-deliver-at | the same | |
| x-qpid-not-valid-before | the same | Broker-J |

The compiled half reads integers, which is what clients send; text, floating point numbers, unsigned delays and refusals are Python's.
"""

from __future__ import annotations

import cython
from cython import NULL, address, bint, cast, cfunc, declare, exceptval, inline, nogil, pointer, void
from cython import int as c_int
from cython.cimports.flintmq.channel.types import SLOWLY_ASKED, SLOWLY_SCHEDULED
from cython.cimports.flintmq.core.clock import wall_us
from cython.cimports.flintmq.core.content import content_header, content_t
from cython.cimports.flintmq.protocol.v0_9_1.splice import value_end
from cython.cimports.flintmq.protocol.v0_9_1.tables import (
    TYPE_INT16, TYPE_INT32, TYPE_INT64, TYPE_INT64_QPID, TYPE_INT8, TYPE_UINT16, TYPE_UINT32, TYPE_UINT8, be_load, be_store,
)  # fmt: skip
from cython.cimports.libc.stdint import int16_t, int32_t, int64_t, int8_t, uint32_t, uint8_t
from cython.cimports.libc.string import memcmp

from flintmq.config import Limits
from flintmq.errors import PeerError, ReplyCode
from flintmq.protocol.v0_9_1.codec import decode_table
from flintmq.protocol.v0_9_1.splice import join_properties, join_table, split_properties, split_table

_LIMITS = Limits()
# milliseconds
DELAY_MS_MAX = declare(int64_t, _LIMITS.schedule_delay_ms_max)

FIELD_NONE = declare(c_int, 0)
FIELD_X_DELAY = declare(c_int, 1)
FIELD_DELAY = declare(c_int, 2)
FIELD_TIME = declare(c_int, 3)

_DELAYS = {b"x-delay": True, b"x-opt-delivery-delay": False}
_TIMES = frozenset((b"x-deliver-at", b"x-opt-delivery-time", b"x-qpid-not-valid-before"))
_SIGNED = (b"b", b"s", b"I", b"l", b"L")


@cfunc
@inline
@nogil
@exceptval(check=False)
def _field(name: pointer[cython.const[uint8_t]], size: uint32_t) -> c_int:
    if size == 7 and memcmp(name, b"x-delay", 7) == 0:
        return FIELD_X_DELAY
    if size == 20 and memcmp(name, b"x-opt-delivery-delay", 20) == 0:
        return FIELD_DELAY
    if size == 12 and memcmp(name, b"x-deliver-at", 12) == 0:
        return FIELD_TIME
    if size == 19 and memcmp(name, b"x-opt-delivery-time", 19) == 0:
        return FIELD_TIME
    if size == 23 and memcmp(name, b"x-qpid-not-valid-before", 23) == 0:
        return FIELD_TIME
    return FIELD_NONE


@cfunc
@nogil
@exceptval(check=False)
def _number(value: pointer[cython.const[uint8_t]], number: pointer[int64_t], signed: pointer[bint]) -> bint:
    """The integer of a field value. False: it is none."""
    kind: uint8_t = value[0]
    signed[0] = True
    if kind == TYPE_INT32:
        number[0] = cast(int32_t, be_load(value + 1, 4))
    elif kind == TYPE_INT64 or kind == TYPE_INT64_QPID:
        number[0] = cast(int64_t, be_load(value + 1, 8))
    elif kind == TYPE_INT16:
        number[0] = cast(int16_t, be_load(value + 1, 2))
    elif kind == TYPE_INT8:
        number[0] = cast(int8_t, value[1])
    else:
        signed[0] = False
        if kind == TYPE_UINT32:
            number[0] = cast(int64_t, be_load(value + 1, 4))
        elif kind == TYPE_UINT16:
            number[0] = cast(int64_t, be_load(value + 1, 2))
        elif kind == TYPE_UINT8:
            number[0] = value[1]
        else:
            return False
    return True


@cfunc
@nogil
@exceptval(check=False)
def _negate(value: pointer[uint8_t], end: pointer[cython.const[uint8_t]]) -> void:
    """A positive integer of a signed type becomes negative, in place."""
    size: uint32_t = cast(uint32_t, end - value - 1)
    be_store(value + 1, 0 - be_load(value + 1, size), size)


def schedule_of(content: pointer[content_t], offset: int64_t, size: uint32_t, due_ms: pointer[int64_t]) -> uint8_t:
    fields: pointer[uint8_t] = content_header(content) + offset
    end: pointer[cython.const[uint8_t]] = fields + size
    place: pointer[uint8_t] = fields
    value: pointer[uint8_t]
    behind: pointer[cython.const[uint8_t]]
    field: c_int
    number: int64_t = 0
    signed: bint = False
    now_ms: int64_t = cast(int64_t, (wall_us() + 999) // 1000)
    latest: int64_t = 0
    delays: bint = False
    while place < end:
        value = place + 1 + place[0]
        behind = value_end(value, end)
        if behind == NULL:
            return SLOWLY_ASKED
        field = _field(place + 1, place[0])
        place = cast(pointer[uint8_t], behind)
        if field == FIELD_NONE:
            continue
        if not _number(value, address(number), address(signed)) or (field != FIELD_TIME and not signed):
            return SLOWLY_ASKED
        if field == FIELD_TIME:
            if number > now_ms + DELAY_MS_MAX:
                return SLOWLY_ASKED
        elif number <= 0 or (number > DELAY_MS_MAX and field == FIELD_X_DELAY):
            continue
        elif number > DELAY_MS_MAX:
            return SLOWLY_ASKED
        else:
            number += now_ms
            delays = True
        if number > latest:
            latest = number
    if latest <= now_ms:
        return 0
    if delays:
        place = fields
        while place < end:
            value = place + 1 + place[0]
            behind = value_end(value, end)
            field = _field(place + 1, place[0])
            place = cast(pointer[uint8_t], behind)
            if (field == FIELD_X_DELAY or field == FIELD_DELAY) and _number(value, address(number), address(signed)):
                if 0 < number <= DELAY_MS_MAX:
                    _negate(value, behind)
    due_ms[0] = latest
    return SLOWLY_SCHEDULED


def _integer(value: object) -> int | None:
    """A number as RabbitMQ's plugin reads it: text in decimal digits, what is behind the point cut off. None: it is none."""
    if type(value) is bool:
        return None
    if isinstance(value, str):
        return int(value) if value.isascii() and value.lstrip("+-").isdigit() and len(value) <= 20 else None
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return None


def due_of(header: bytes, now_ms: int) -> tuple[int, bytes]:
    """When a message asks to be delivered, and its content header with negative delays.

    Args: header: content header payload; now_ms: wall clock. Returns: (milliseconds since 1970, 0: now; content header).
    Raises: PeerError 406: a time that is too far ahead.
    """
    size, parts = split_properties(header)
    if "headers" not in parts:
        return 0, header
    fields = split_table(parts["headers"])
    latest, negated = 0, {}
    for index, (name, wire) in enumerate(fields):
        plain, is_time = _DELAYS.get(name), name in _TIMES
        if plain is None and not is_time:
            continue
        value = next(iter(decode_table(join_table([(name, wire)])).values()))
        number = _integer(value)
        if number is None:
            continue  # as the plugin: what it can't read asks for nothing
        if is_time:
            number = number * 1000 if wire[:1] == b"T" else number
            delay = number - now_ms
        else:
            delay = number
        if delay <= 0:
            continue
        if delay > DELAY_MS_MAX:
            if plain:
                continue
            text = f"invalid header '{name.decode()}': {{value_too_large,{number}}}"
            raise PeerError(ReplyCode.PRECONDITION_FAILED, text, hint=f"at most {DELAY_MS_MAX} ms from now")
        latest = max(latest, now_ms + delay)
        if not is_time:
            kind = wire[:1] if wire[:1] in _SIGNED else b"l"
            negated[index] = kind + (-number).to_bytes(len(wire) - 1 if wire[:1] in _SIGNED else 8, "big", signed=True)
    if negated:
        parts["headers"] = join_table([(name, negated.get(index, wire)) for index, (name, wire) in enumerate(fields)])
        header = join_properties(size, parts)
    return latest, header
