"""Which messages get spans: those that carry a sampled traceparent (see traceparent.pxd).

in: the headers of a message as they lie there. out: yes or no, without a Python object.

Source: W3C Trace Context, 3.2.2: `00-{32 hex: trace}-{16 hex: parent}-{2 hex: flags}`, bit 0 of the flags: sampled. The choice by the
last bits of the trace keeps traces whole: whoever samples by them chooses alike.
"""

from __future__ import annotations

import cython
from cython import NULL, bint, cast, ccall, cfunc, declare, exceptval, inline, nogil, p_char, pointer
from cython import int as c_int
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_GET_SIZE
from cython.cimports.flintmq.channel.traceparent import TRACED_SHIFT, memmem
from cython.cimports.libc.stdint import uint32_t, uint8_t
from cython.cimports.libc.string import memcmp

# the field's name and type, the length of its value, "00-"
START_SIZE = declare(uint32_t, 12 + 1 + 4 + 3)
VERSION_SIZE = declare(uint32_t, 3)
VALUE_SIZE = declare(uint32_t, 55)
# offsets in the value: the last six digits of the trace, the second digit of the flags
TRACE_END = declare(uint32_t, 29)
FLAGS_END = declare(uint32_t, 54)


@cfunc
@inline
@nogil
@exceptval(check=False)
def _digit(octet: uint8_t) -> c_int:
    """-1: it is no lower-case hexadecimal digit."""
    if 48 <= octet <= 57:
        return octet - 48
    return octet - 87 if 97 <= octet <= 102 else -1


def trace_wanted(table: pointer[cython.const[uint8_t]], size: uint32_t, traced: uint32_t) -> bint:
    limit: uint32_t = traced >> TRACED_SHIFT
    last: uint32_t = 0
    value: pointer[uint8_t]
    digit: c_int
    index: uint32_t
    if limit == 0 or size < START_SIZE - VERSION_SIZE + VALUE_SIZE:
        return False
    value = cast(pointer[uint8_t], memmem(table, size, cast(p_char, b"\x0btraceparentS\x00\x00\x00\x3700-"), START_SIZE))
    if value == NULL or table + size - value < START_SIZE - VERSION_SIZE + VALUE_SIZE:
        return False
    value += START_SIZE - VERSION_SIZE
    digit = _digit(value[FLAGS_END])
    if digit < 0 or digit & 1 == 0 or memcmp(value + 35, cast(p_char, b"-"), 1) != 0:
        return False
    for index in range(TRACE_END, TRACE_END + 6):
        digit = _digit(value[index])
        if digit < 0:
            return False
        last = last << 4 | cast(uint32_t, digit)
    return last <= limit


@ccall
def is_wanted(table: bytes, traced: uint32_t) -> bint:
    return trace_wanted(cast(pointer[uint8_t], PyBytes_AS_STRING(table)), cast(uint32_t, PyBytes_GET_SIZE(table)), traced)
