"""The value that says to which group a message belongs, or where it stands in a sorted queue (see group_keys.pxd).

in: contents. out: a hash; for a sorted queue octets whose order is that of values.

Values are known by a keyed hash of 64 bits with keys of this process, so nobody can choose what collides. Two values with the same hash are
one group: that costs order nothing.
Source of the hash: SipHash-2-4, Aumasson and Bernstein, 2012.
"""

from __future__ import annotations

import os

from cython import address, cast, cfunc, declare, double, exceptval, nogil, pointer, void
from cython.cimports.flintmq.core.content import content_t
from cython.cimports.flintmq.core.siphash import siphash
from cython.cimports.flintmq.queue.types import GROUPS_SORTED, GROUPS_STICKY, message_groups_t
from cython.cimports.flintmq.queue.value_maps import header_value, value_hash
from cython.cimports.flintmq.selectors.program import KIND_FLOAT, KIND_NULL, KIND_TEXT, value_t
from cython.cimports.libc.stdint import uint32_t, uint64_t, uint8_t
from cython.cimports.libc.string import memcpy

# kinds of a sorted value, in their order
SORT_NONE = declare(uint8_t, 0)
SORT_NUMBER = declare(uint8_t, 1)
SORT_TEXT = declare(uint8_t, 2)

_keys = declare(uint64_t[2])


@cfunc
@nogil
@exceptval(check=False)
def _sort_text(value: pointer[value_t], key: pointer[group_key_t]) -> void:
    """Octets whose order is that of values: none, numbers, texts."""
    number: double
    bits: uint64_t = 0
    i: uint32_t
    key.size = 1
    key.text[0] = SORT_NONE
    if value.kind == KIND_TEXT:
        key.text[0] = SORT_TEXT
        key.size += min(value.size, cast(uint32_t, SORT_BYTES_MAX))
        memcpy(cast(pointer[uint8_t], key.text) + 1, value.text, key.size - 1)
    elif value.kind != KIND_NULL:
        number = value.number if value.kind == KIND_FLOAT else cast(double, value.integer)
        if number != number:
            return  # it has no order
        number = number + 0.0  # zero has two signs
        memcpy(address(bits), address(number), 8)
        bits = ~bits if bits >> 63 else bits | (cast(uint64_t, 1) << 63)
        key.text[0] = SORT_NUMBER
        key.size = 9
        for i in range(8):
            key.text[1 + i] = cast(uint8_t, bits >> (56 - 8 * i))


def groups_key(groups: pointer[message_groups_t], content: pointer[content_t], key: pointer[group_key_t]) -> void:
    value: value_t
    header_value(groups.name, content, address(value))
    key.loose = groups.mode == GROUPS_SORTED or (groups.mode == GROUPS_STICKY and value.kind == KIND_NULL)
    key.size = 0
    if groups.mode == GROUPS_SORTED:
        _sort_text(address(value), key)
        key.hash = siphash(_keys[0], _keys[1], key.text, key.size, 2, 4) | 1
        return
    key.hash = value_hash(address(value))


_keys[0], _keys[1] = [int.from_bytes(os.urandom(8), "little") for _ in range(2)]
