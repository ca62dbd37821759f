"""Runs a selector over the wire bytes of a message (see program.pxd).

in: a program of grammar.py, contents. out: whether a message is selected.

I1  Nothing outside the content's route and header payload is read, whatever they hold: each length is compared with what is left. A
    header that can't be read ends the search for names: those that were not found are NULL.
I2  A run takes at most its steps: fields walked over, octets of patterns, operations. A message that needs more is not selected.
I3  The stack never holds more than STACK_MAX values: the constructor refuses a program that would need more.

Values are compared as JMS says: numbers with numbers, texts and booleans for equality only; a comparison of other kinds is false, one with
NULL is unknown. Unknown stands on the stack as NULL. Arithmetic with what is no number, and division by zero, is NULL.

Source: Jakarta Messaging 3.1, 3.8.1 (selectors); AMQP 0-9-1 specification 2.3.5.2 (property flags), 4.2.5.5 (tables).
"""

from __future__ import annotations

import cython
from cython import (
    NULL, address, bint, cast, cclass, cdivision, cfunc, declare, double, exceptval, inline, nogil, p_char, p_void, pointer, sizeof, void,
)  # fmt: skip
from cython import float as c_float
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import at_add32, at_sub32
from cython.cimports.flintmq.core.byte_order import get16, get32, get64
from cython.cimports.flintmq.core.content import content_decref, content_from_bytes, content_header, content_route, content_t
from cython.cimports.libc.math import fmod
from cython.cimports.libc.stdint import int16_t, int32_t, int64_t, int8_t, uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import calloc, free
from cython.cimports.libc.string import memcmp, memcpy

# Steps of one run for a consumer: some hundred microseconds at most, on a loop that others wait for. A message with ten headers takes
# about 20.
STEPS_MAX = declare(int64_t, 65_536)
# Octets of a text that are compared for one step.
OCTETS_PER_STEP = declare(uint32_t, 64)

# marks a value whose header was not met yet, in value_t.size
NOT_SEEN = declare(uint32_t, 0xFFFFFFFF)

PERSISTENT = declare(p_char, b"PERSISTENT")
NON_PERSISTENT = declare(p_char, b"NON_PERSISTENT")


# --- values of names ----------------------------------------------------------------------------------------------------------


@cfunc
@inline
@nogil
@exceptval(check=False)
def _set_integer(value: pointer[value_t], integer: int64_t) -> void:
    value.kind = KIND_INTEGER
    value.integer = integer


@cfunc
@inline
@nogil
@exceptval(check=False)
def _set_text(value: pointer[value_t], text: pointer[cython.const[uint8_t]], size: uint32_t) -> void:
    value.kind = KIND_TEXT
    value.text = text
    value.size = size


@cfunc
@nogil
@exceptval(check=False)
def _field(p: pointer[cython.const[uint8_t]], left: uint32_t, out: pointer[value_t]) -> uint32_t:
    """Bytes of a table field from its type octet on, its value in `out` (NULL: of a kind that selectors don't know); 0: unknown type, or
    it does not fit into `left` bytes."""
    size: uint64_t = 0
    kind: uint8_t
    scale: c_int
    single: c_float
    bits32: uint32_t
    bits64: uint64_t
    out.kind = KIND_NULL
    out.size = 0
    if left < 1:
        return 0
    kind = p[0]
    if kind == ord("S") or kind == ord("x") or kind == ord("F") or kind == ord("A"):
        if left < 5:
            return 0
        size = 5 + cast(uint64_t, get32(p + 1))
        if size > left:
            return 0
        if kind == ord("S"):
            _set_text(out, p + 5, cast(uint32_t, size - 5))
        return cast(uint32_t, size)
    if kind == ord("V"):
        return 1
    if kind == ord("t") or kind == ord("b") or kind == ord("B"):
        size = 2
    elif kind == ord("s") or kind == ord("u"):
        size = 3
    elif kind == ord("I") or kind == ord("i") or kind == ord("f"):
        size = 5
    elif kind == ord("D"):
        size = 6
    elif kind == ord("l") or kind == ord("L") or kind == ord("d") or kind == ord("T"):
        size = 9
    if size == 0 or size > left:
        return 0
    if kind == ord("t"):
        _set_integer(out, 1 if p[1] else 0)
        out.kind = KIND_BOOLEAN
    elif kind == ord("b"):
        _set_integer(out, cast(int8_t, p[1]))
    elif kind == ord("B"):
        _set_integer(out, p[1])
    elif kind == ord("s"):
        _set_integer(out, cast(int16_t, get16(p + 1)))
    elif kind == ord("u"):
        _set_integer(out, get16(p + 1))
    elif kind == ord("I"):
        _set_integer(out, cast(int32_t, get32(p + 1)))
    elif kind == ord("i"):
        _set_integer(out, get32(p + 1))
    elif kind == ord("f"):
        bits32 = get32(p + 1)
        memcpy(address(single), address(bits32), 4)
        out.kind = KIND_FLOAT
        out.number = single
    elif kind == ord("d"):
        bits64 = get64(p + 1)
        memcpy(address(out.number), address(bits64), 8)
        out.kind = KIND_FLOAT
    elif kind == ord("D"):
        out.kind = KIND_FLOAT
        out.number = cast(int32_t, get32(p + 2))
        scale = p[1]
        while scale > 0 and out.number != 0.0:
            out.number /= 10.0
            scale -= 1
    else:
        _set_integer(out, cast(int64_t, get64(p + 1)))
    return cast(uint32_t, size)


@cfunc
@inline
@nogil
@exceptval(check=False)
def _bucket(text: pointer[cython.const[uint8_t]], size: uint32_t) -> uint32_t:
    if size == 0:
        return 0
    return (size + text[0] * 5 + text[size - 1] * 7 + text[size >> 1] * 3) & (BUCKETS - 1)


@cfunc
@nogil
@exceptval(check=False)
def _read_headers(
    program: pointer[program_t], p: pointer[cython.const[uint8_t]], n: uint32_t, values: pointer[value_t], steps: pointer[int64_t]
) -> void:
    """The values of header names from a table's `n` bytes; of a field that is there twice the first."""
    at: uint32_t = 0
    size: uint32_t
    field_size: uint32_t
    name: uint32_t
    wanted: uint32_t = program.header_names
    value: value_t
    while at < n and wanted:
        size = p[at]
        if size + 1 >= n - at or steps[0] <= 0:
            return
        steps[0] -= 1
        field_size = _field(p + at + 1 + size, n - at - 1 - size, address(value))
        if field_size == 0:
            return
        name = program.buckets[_bucket(p + at + 1, size)]
        while name:
            steps[0] -= 1
            if program.names[name - 1].size == size and memcmp(program.names[name - 1].text, p + at + 1, size) == 0:
                if values[name - 1].size != NOT_SEEN:
                    break
                values[name - 1] = value
                wanted -= 1
                break
            name = program.names[name - 1].next
        at += 1 + size + field_size


@cfunc
@inline
@nogil
@exceptval(check=False)
def _put(program: pointer[program_t], source: uint32_t, values: pointer[value_t], value: pointer[value_t]) -> void:
    if program.sources[source]:
        values[program.sources[source] - 1] = value[0]


@cfunc
@nogil
@exceptval(check=False)
def _read_route(program: pointer[program_t], content: pointer[content_t], values: pointer[value_t]) -> void:
    p: pointer[uint8_t] = content_route(content)
    n: uint32_t = content.route_len
    value: value_t
    if n < 2 or cast(uint32_t, p[0]) + 2 > n:
        return
    _set_text(address(value), p + 1, p[0])
    _put(program, FROM_EXCHANGE, values, address(value))
    n -= 1 + cast(uint32_t, p[0])
    p += 1 + p[0]
    if cast(uint32_t, p[0]) + 1 <= n:
        _set_text(address(value), p + 1, p[0])
        _put(program, FROM_ROUTING_KEY, values, address(value))


@cfunc
@nogil
@exceptval(check=False)
def _read_values(program: pointer[program_t], content: pointer[content_t], values: pointer[value_t], steps: pointer[int64_t]) -> void:
    p: pointer[uint8_t] = content_header(content)
    n: uint32_t = content.header_len
    at: uint32_t = 14
    size: uint32_t
    flags: uint32_t
    prop: uint32_t = 15
    name: uint32_t
    value: value_t
    for name in range(program.name_count):
        values[name].kind = KIND_NULL
        values[name].size = NOT_SEEN
    _set_integer(address(value), 4)
    _put(program, FROM_JMS_PRIORITY, values, address(value))
    _set_text(address(value), cast(pointer[uint8_t], NON_PERSISTENT), 14)
    _put(program, FROM_JMS_DELIVERY_MODE, values, address(value))
    if program.sources[FROM_EXCHANGE] or program.sources[FROM_ROUTING_KEY]:
        _read_route(program, content, values)
    if n < 14:
        return
    flags = get16(p + 12)
    if flags & 1:
        return  # more flags follow: not for the class basic
    while prop >= program.last_property and prop >= 2:
        if not flags & (cast(uint32_t, 1) << prop):
            prop -= 1
            continue
        if prop == 13:
            if n - at < 4 or get32(p + at) > n - at - 4:
                return
            size = get32(p + at)
            if program.header_names:
                _read_headers(program, p + at + 4, size, values, steps)
            at += 4 + size
        elif prop == 12 or prop == 11:
            if n - at < 1:
                return
            _set_integer(address(value), p[at])
            _put(program, prop, values, address(value))
            if prop == 11:
                _put(program, FROM_JMS_PRIORITY, values, address(value))
            elif p[at] == 2:
                _set_text(address(value), cast(pointer[uint8_t], PERSISTENT), 10)
                _put(program, FROM_JMS_DELIVERY_MODE, values, address(value))
            at += 1
        elif prop == 6:
            if n - at < 8:
                return
            _set_integer(address(value), cast(int64_t, get64(p + at)))
            _put(program, 6, values, address(value))
            value.integer = cast(int64_t, get64(p + at) * 1000)
            _put(program, FROM_JMS_TIMESTAMP, values, address(value))
            at += 8
        else:
            if n - at < 1 or cast(uint32_t, p[at]) + 1 > n - at:
                return
            _set_text(address(value), p + at + 1, p[at])
            _put(program, prop, values, address(value))
            at += 1 + p[at]
        prop -= 1


# --- operations ---------------------------------------------------------------------------------------------------------------


@cfunc
@inline
@nogil
@exceptval(check=False)
def _is_number(value: pointer[value_t]) -> bint:
    return value.kind == KIND_INTEGER or value.kind == KIND_FLOAT


@cfunc
@inline
@nogil
@exceptval(check=False)
def _number(value: pointer[value_t]) -> double:
    return cast(double, value.integer) if value.kind == KIND_INTEGER else value.number


@cfunc
@inline
@nogil
@exceptval(check=False)
def _set_boolean(value: pointer[value_t], truth: bint) -> void:
    value.kind = KIND_BOOLEAN
    value.integer = 1 if truth else 0


@cfunc
@nogil
@exceptval(check=False)
def _same(left: pointer[value_t], right: pointer[value_t], steps: pointer[int64_t]) -> c_int:
    """1 equal, 0 not, -1 of kinds that are not compared. Neither is NULL."""
    if left.kind == KIND_TEXT and right.kind == KIND_TEXT:
        if left.size != right.size:
            return 0
        steps[0] -= left.size // OCTETS_PER_STEP
        return 1 if memcmp(left.text, right.text, left.size) == 0 else 0
    if left.kind == KIND_INTEGER and right.kind == KIND_INTEGER:
        return 1 if left.integer == right.integer else 0
    if _is_number(left) and _is_number(right):
        return 1 if _number(left) == _number(right) else 0
    if left.kind == KIND_BOOLEAN and right.kind == KIND_BOOLEAN:
        return 1 if left.integer == right.integer else 0
    return -1


@cfunc
@nogil
@exceptval(check=False)
def _ordered(code: uint32_t, left: pointer[value_t], right: pointer[value_t]) -> bint:
    """LESS to AT_LEAST; false unless both are numbers."""
    if left.kind == KIND_INTEGER and right.kind == KIND_INTEGER:
        if code == OP_LESS:
            return left.integer < right.integer
        if code == OP_AT_MOST:
            return left.integer <= right.integer
        if code == OP_MORE:
            return left.integer > right.integer
        return left.integer >= right.integer
    if not _is_number(left) or not _is_number(right):
        return False
    if code == OP_LESS:
        return _number(left) < _number(right)
    if code == OP_AT_MOST:
        return _number(left) <= _number(right)
    if code == OP_MORE:
        return _number(left) > _number(right)
    return _number(left) >= _number(right)


@cfunc
@nogil
@exceptval(check=False)
def _compare(code: uint32_t, left: pointer[value_t], right: pointer[value_t], steps: pointer[int64_t]) -> void:
    same: c_int
    if left.kind == KIND_NULL or right.kind == KIND_NULL:
        left.kind = KIND_NULL
    elif code == OP_EQUAL or code == OP_DIFFERS:
        same = _same(left, right, steps)
        _set_boolean(left, same == (1 if code == OP_EQUAL else 0))
    else:
        _set_boolean(left, _ordered(code, left, right))


@cfunc
@nogil
@exceptval(check=False)
def _calculate(code: uint32_t, left: pointer[value_t], right: pointer[value_t]) -> void:
    """ADD to MODULO: exact while both are integers and the result is one of 64 bits; else a float."""
    a: double
    b: double
    result: double
    if not _is_number(left) or not _is_number(right):
        left.kind = KIND_NULL
        return
    a = _number(left)
    b = _number(right)
    if code == OP_ADD:
        result = a + b
    elif code == OP_SUBTRACT:
        result = a - b
    elif code == OP_MULTIPLY:
        result = a * b
    elif b == 0.0:
        left.kind = KIND_NULL
        return
    elif code == OP_DIVIDE:
        result = a / b
    else:
        result = fmod(a, b)
    # 2^62: what is below that as a float is below 2^63 exactly
    if left.kind == KIND_INTEGER and right.kind == KIND_INTEGER and -4611686018427387904.0 < result < 4611686018427387904.0:
        # Unsigned where it wraps: intermediate results of signed ones must not.
        if code == OP_ADD:
            left.integer = cast(int64_t, cast(uint64_t, left.integer) + cast(uint64_t, right.integer))
        elif code == OP_SUBTRACT:
            left.integer = cast(int64_t, cast(uint64_t, left.integer) - cast(uint64_t, right.integer))
        elif code == OP_MULTIPLY:
            left.integer = cast(int64_t, cast(uint64_t, left.integer) * cast(uint64_t, right.integer))
        else:
            left.integer = _divided(code, left.integer, right.integer)
        return
    left.kind = KIND_FLOAT
    left.number = result


@cfunc
@nogil
@exceptval(check=False)
@cdivision(True)
def _divided(code: uint32_t, left: int64_t, right: int64_t) -> int64_t:
    """Of what C divides without a trap: `right` is not 0, and the quotient is no 2^63."""
    if right == -1:
        return -left if code == OP_DIVIDE else 0
    return left // right if code == OP_DIVIDE else left % right


@cfunc
@nogil
@exceptval(check=False)
def _like(pattern: pointer[uint32_t], n: uint32_t, text: pointer[cython.const[uint8_t]], size: uint32_t, steps: pointer[int64_t]) -> bint:
    """Whether the text is one that the pattern's `n` elements describe. Goes back to behind the last LIKE_MANY alone, so O(n * size)."""
    at: uint32_t = 0
    i: uint32_t = 0
    many: uint32_t = n
    many_at: uint32_t = 0
    while at < size:
        steps[0] -= 1
        if steps[0] <= 0:
            return False
        if i < n and pattern[i] == LIKE_MANY:
            i += 1
            many = i
            many_at = at
            if i == n:
                return True
        elif i < n and (pattern[i] == LIKE_ONE or pattern[i] == text[at]):
            at += 1
            if pattern[i] == LIKE_ONE:
                while at < size and text[at] & 0xC0 == 0x80:
                    at += 1  # octets of the same character
            i += 1
        elif many < n:
            many_at += 1
            while many_at < size and text[many_at] & 0xC0 == 0x80:
                many_at += 1
            at = many_at
            i = many
        else:
            return False
    while i < n and pattern[i] == LIKE_MANY:
        i += 1
    return i == n


@cfunc
@nogil
@exceptval(check=False)
def _in(program: pointer[program_t], number: uint32_t, value: pointer[value_t], steps: pointer[int64_t]) -> void:
    at: uint32_t = program.sets[number].first
    end: uint32_t = at + program.sets[number].count
    if value.kind == KIND_NULL:
        return
    while at < end and steps[0] > 0:
        steps[0] -= 1
        if _same(value, program.constants + at, steps) == 1:
            break
        at += 1
    _set_boolean(value, at < end)


@cfunc
@nogil
@exceptval(check=False)
def _both(code: uint32_t, left: pointer[value_t], right: pointer[value_t]) -> void:
    """AND, OR of truths; what is no boolean is unknown. `left` does not decide it alone: that was OP_END_*."""
    decides: int64_t = 1 if code == OP_OR else 0
    if right.kind == KIND_BOOLEAN and right.integer == decides:
        _set_boolean(left, decides)
    elif left.kind != KIND_BOOLEAN or right.kind != KIND_BOOLEAN:
        left.kind = KIND_NULL


@cfunc
@nogil
@exceptval(check=False)
def _run(program: pointer[program_t], values: pointer[value_t], steps: pointer[int64_t]) -> bint:
    stack: value_t[STACK_MAX]
    top: pointer[value_t] = stack - 1
    op: pointer[op_t] = program.ops
    end: pointer[op_t] = program.ops + program.op_count
    code: uint32_t
    while op < end:
        steps[0] -= 1
        code = op.code
        if code == OP_CONST:
            top += 1
            top[0] = program.constants[op.arg]
        elif code == OP_NAME:
            top += 1
            top[0] = values[op.arg]
        elif code <= OP_AT_LEAST:
            top -= 1
            _compare(code, top, top + 1, steps)
        elif code <= OP_MODULO:
            top -= 1
            _calculate(code, top, top + 1)
        elif code == OP_END_FALSE or code == OP_END_TRUE:
            if top.kind == KIND_BOOLEAN and top.integer == (1 if code == OP_END_TRUE else 0):
                op = program.ops + op.arg
                continue
        elif code == OP_AND or code == OP_OR:
            top -= 1
            _both(code, top, top + 1)
        elif code == OP_NOT:
            if top.kind == KIND_BOOLEAN:
                top.integer = 1 - top.integer
            else:
                top.kind = KIND_NULL
        elif code == OP_NEGATE:
            top[1].kind = KIND_INTEGER
            top[1].integer = 0
            top[2] = top[0]
            top[0] = top[1]
            _calculate(OP_SUBTRACT, top, top + 2)
        elif code == OP_LIKE:
            if top.kind == KIND_TEXT:
                _set_boolean(
                    top,
                    _like(program.elements + program.patterns[op.arg].first, program.patterns[op.arg].count, top.text, top.size, steps),
                )
            elif top.kind != KIND_NULL:
                _set_boolean(top, False)
        elif code == OP_IN:
            _in(program, op.arg, top, steps)
        elif code == OP_BETWEEN:
            top -= 2
            _between(top)
        else:  # OP_IS_NULL
            _set_boolean(top, top.kind == KIND_NULL)
        if steps[0] <= 0:
            steps[0] = 0
            return False  # I2
        op += 1
    return top.kind == KIND_BOOLEAN and top.integer == 1


@cfunc
@nogil
@exceptval(check=False)
def _between(value: pointer[value_t]) -> void:
    """value >= value[1] AND value <= value[2], with unknown where one is."""
    left: value_t = value[0]
    right: value_t = value[0]
    steps: int64_t = 0
    _compare(OP_AT_LEAST, address(left), value + 1, address(steps))
    _compare(OP_AT_MOST, address(right), value + 2, address(steps))
    if left.kind == KIND_BOOLEAN and left.integer == 0:
        value[0] = left
        return
    _both(OP_AND, address(left), address(right))
    value[0] = left


def program_selects(program: pointer[program_t], content: pointer[content_t], steps: pointer[int64_t]) -> bint:
    values: value_t[NAMES_MAX]
    _read_values(program, content, values, steps)
    if steps[0] <= 0:
        steps[0] = 0
        return False
    return _run(program, values, steps)


def program_wants(context: p_void, content: pointer[content_t]) -> bint:
    steps: int64_t = STEPS_MAX
    return program_selects(cast(pointer[program_t], context), content, address(steps))


# --- for an index of many programs --------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _octets_hash(text: pointer[cython.const[uint8_t]], size: uint32_t) -> uint64_t:
    spread: uint64_t = 0x9E3779B97F4A7C15
    value: uint64_t = size + 1
    piece: uint64_t
    while size >= 8:
        memcpy(address(piece), text, 8)
        value = (value ^ piece) * spread
        value ^= value >> 29
        text += 8
        size -= 8
    while size:
        value = (value ^ text[0]) * spread
        value ^= value >> 29
        text += 1
        size -= 1
    return value


@cfunc
@nogil
@exceptval(check=False)
def _value_hash(value: pointer[value_t]) -> uint64_t:
    """Not 0, but for NULL and what is not comparable. A float that is an integer hashes as that."""
    spread: uint64_t = 0x9E3779B97F4A7C15
    result: uint64_t
    bits: uint64_t = 0
    if value.kind == KIND_TEXT:
        result = _octets_hash(value.text, value.size)
    elif value.kind == KIND_NULL:
        return 0
    else:
        # All numbers as floats: two integers that are one float share a bucket, and no more.
        if value.kind == KIND_BOOLEAN:
            bits = 0x5555 + cast(uint64_t, value.integer)
        elif _number(value) != 0.0:  # zero has two signs
            number: double = _number(value)
            memcpy(address(bits), address(number), 8)
        result = (bits ^ (bits >> 32) ^ 0x2545F491) * spread
        result ^= result >> 31
    return result | 1


def program_same(left: pointer[program_t], right: pointer[program_t]) -> bint:
    return left.hash == right.hash and left.text_size == right.text_size and memcmp(left.text, right.text, left.text_size) == 0


def program_same_name(left: pointer[program_t], left_number: uint32_t, right: pointer[program_t], right_number: uint32_t) -> bint:
    a: pointer[name_t] = left.names + left_number
    b: pointer[name_t] = right.names + right_number
    return a.source == b.source and a.size == b.size and memcmp(a.text, b.text, a.size) == 0


def program_of_name(source: pointer[program_t], number: uint32_t) -> pointer[program_t]:
    return _of_name(source.names[number].source, source.names[number].text, source.names[number].size)


def program_of_header(name: pointer[cython.const[uint8_t]], size: uint32_t) -> pointer[program_t]:
    return _of_name(FROM_HEADERS, name, size)


@cfunc
@nogil
@exceptval(check=False)
def _of_name(source: uint32_t, text: pointer[cython.const[uint8_t]], text_size: uint32_t) -> pointer[program_t]:
    names_at: uint64_t = (sizeof(program_t) + 7) & ~cast(uint64_t, 7)
    block: pointer[uint8_t] = cast(pointer[uint8_t], calloc(1, names_at + sizeof(name_t) + text_size + 1))
    program: pointer[program_t] = cast(pointer[program_t], block)
    if block == NULL:
        return NULL
    program.refs = 1
    program.block_size = names_at + sizeof(name_t) + text_size + 1
    program.name_count = 1
    program.key_name = 1
    program.names = cast(pointer[name_t], block + names_at)
    program.names[0].source = source
    program.names[0].size = text_size
    program.names[0].text = block + names_at + sizeof(name_t)
    memcpy(block + names_at + sizeof(name_t), text, text_size)
    _find_names(program)
    return program


def program_value(program: pointer[program_t], content: pointer[content_t], steps: pointer[int64_t], out: pointer[value_t]) -> void:
    values: value_t[NAMES_MAX]
    _read_values(program, content, values, steps)
    out[0] = values[0]


def program_hash(program: pointer[program_t], content: pointer[content_t], steps: pointer[int64_t]) -> uint64_t:
    values: value_t[NAMES_MAX]
    _read_values(program, content, values, steps)
    return _value_hash(values)


# --- life -----------------------------------------------------------------------------------------------------------------------


def program_incref(program: pointer[program_t]) -> void:
    at_add32(address(program.refs), 1)


def program_decref(program: pointer[program_t]) -> void:
    if at_sub32(address(program.refs), 1) == 1:
        free(program)


@cfunc
@exceptval(check=False)
def _aligned(size: uint64_t) -> uint64_t:
    return (size + 7) & ~cast(uint64_t, 7)


@cfunc
def _fill(value: pointer[value_t], constant: object, text: pointer[pointer[uint8_t]]):
    """A constant; a text is copied to `text`, which moves behind it."""
    size: uint32_t
    octets: bytes
    if isinstance(constant, bool):
        _set_boolean(value, constant)
    elif isinstance(constant, int):
        _set_integer(value, constant)
    elif isinstance(constant, float):
        value.kind = KIND_FLOAT
        value.number = constant
    else:
        octets = constant
        size = len(octets)
        memcpy(text[0], cast(p_char, octets), size)
        _set_text(value, text[0], size)
        text[0] += size


@cfunc
@nogil
@exceptval(check=False)
def _find_names(program: pointer[program_t]) -> void:
    """Says where the values of the names are found, and how far a header has to be read for them."""
    number: uint32_t
    bucket: uint32_t
    program.last_property = 16
    for number in range(program.name_count):
        if program.names[number].source == FROM_HEADERS:
            bucket = _bucket(program.names[number].text, program.names[number].size)
            program.names[number].next = program.buckets[bucket]
            program.buckets[bucket] = number + 1
            program.header_names += 1
            program.last_property = min(program.last_property, 13)
        else:
            program.sources[program.names[number].source] = number + 1
    for number in range(2, 16):
        if program.sources[number]:
            program.last_property = min(program.last_property, number)
    if program.sources[FROM_JMS_TIMESTAMP]:
        program.last_property = min(program.last_property, 6)
    if program.sources[FROM_JMS_PRIORITY]:
        program.last_property = min(program.last_property, 11)
    if program.sources[FROM_JMS_DELIVERY_MODE]:
        program.last_property = min(program.last_property, 12)


@cfunc
def _copy_names(program: pointer[program_t], names: list, at: pointer[pointer[uint8_t]]):
    number: uint32_t
    text: bytes
    for number in range(program.name_count):
        program.names[number].source, text = names[number]
        program.names[number].size = len(text)
        program.names[number].text = at[0]
        memcpy(at[0], cast(p_char, text), len(text))
        at[0] += len(text)
    _find_names(program)


@cfunc
def _copy_keys(program: pointer[program_t], keys: tuple, at: pointer[pointer[uint8_t]]):
    """The hashes of the constants that the name `key_name` has one of."""
    value: value_t
    number: uint32_t
    key: uint64_t
    for constant in keys[1]:
        _fill(address(value), constant, at)
        key = _value_hash(address(value))
        for number in range(program.key_count):
            if program.keys[number] == key:
                break
        else:
            program.keys[program.key_count] = key
            program.key_count += 1
    program.key_name = keys[0]


@cclass
class Selector:
    """See program.pyi."""

    def __cinit__(self, text: str, ops: list, constants: list, names: list, sets: list, patterns: list, keys: object):
        flat: list = list(constants) + [constant for group in sets for constant in group]
        elements: list = [element for pattern in patterns for element in pattern]
        key_values: list = list(keys[1]) if keys is not None else []
        octets: bytes = text.encode("utf-8", "surrogateescape")
        texts: uint64_t = sum([len(constant) for constant in flat + key_values if isinstance(constant, bytes)]) + len(octets)
        names_size: uint64_t = sum([len(name) for _, name in names])
        ops_at: uint64_t = sizeof(program_t)
        constants_at: uint64_t = _aligned(ops_at + len(ops) * sizeof(op_t))
        names_at: uint64_t = _aligned(constants_at + len(flat) * sizeof(value_t))
        sets_at: uint64_t = _aligned(names_at + len(names) * sizeof(name_t))
        patterns_at: uint64_t = _aligned(sets_at + len(sets) * sizeof(range_t))
        elements_at: uint64_t = _aligned(patterns_at + len(patterns) * sizeof(range_t))
        keys_at: uint64_t = _aligned(elements_at + len(elements) * sizeof(uint32_t))
        texts_at: uint64_t = keys_at + len(key_values) * sizeof(uint64_t)
        size: uint64_t = texts_at + texts + names_size + 8
        block: pointer[uint8_t]
        at: pointer[uint8_t]
        program: pointer[program_t]
        number: uint32_t
        self.text = text
        if len(names) > NAMES_MAX or _depth(ops) + 2 > STACK_MAX:
            raise ValueError("a selector of this size has no program")
        block = cast(pointer[uint8_t], calloc(1, size))
        if block == NULL:
            raise MemoryError
        program = cast(pointer[program_t], block)
        self.program = program
        program.refs = 1
        program.block_size = size
        program.op_count = len(ops)
        program.name_count = len(names)
        program.key_name = len(names)
        program.ops = cast(pointer[op_t], block + ops_at)
        program.constants = cast(pointer[value_t], block + constants_at)
        program.names = cast(pointer[name_t], block + names_at)
        program.sets = cast(pointer[range_t], block + sets_at)
        program.patterns = cast(pointer[range_t], block + patterns_at)
        program.elements = cast(pointer[uint32_t], block + elements_at)
        program.keys = cast(pointer[uint64_t], block + keys_at)
        at = block + texts_at
        for number in range(len(ops)):
            program.ops[number].code, program.ops[number].arg = ops[number]
        for number in range(len(flat)):
            _fill(program.constants + number, flat[number], address(at))
        for number in range(len(elements)):
            program.elements[number] = elements[number]
        _ranges(program.sets, sets, len(constants))
        _ranges(program.patterns, patterns, 0)
        _copy_names(program, names, address(at))
        if keys is not None:
            _copy_keys(program, keys, address(at))
        program.text = at
        program.text_size = len(octets)
        memcpy(at, cast(p_char, octets), len(octets))
        program.hash = _octets_hash(program.text, program.text_size)

    def __dealloc__(self):
        if self.program != NULL:
            program_decref(self.program)

    @property
    def size(self) -> int:
        return self.program.block_size

    def selects(self, exchange: bytes, routing_key: bytes, header: bytes, steps: int = 65_536) -> tuple:
        left: int64_t = steps
        content: pointer[content_t] = content_from_bytes(exchange, routing_key, header, b"", 0, 0)
        selected: bint = program_selects(self.program, content, address(left))
        content_decref(content)
        return bool(selected), left


@cfunc
def _ranges(out: pointer[range_t], groups: list, first: uint32_t):
    number: uint32_t
    for number in range(len(groups)):
        out[number].first = first
        out[number].count = len(groups[number])
        first += len(groups[number])


@cfunc
def _depth(ops: list):
    """Values that a program has on the stack at most (I3)."""
    depth: c_int = 0
    most: c_int = 0
    for code, _ in ops:
        if code == OP_CONST or code == OP_NAME:
            depth += 1
        elif code <= OP_MODULO or code == OP_AND or code == OP_OR:
            depth -= 1
        elif code == OP_BETWEEN:
            depth -= 2
        most = max(most, depth)
    return most
