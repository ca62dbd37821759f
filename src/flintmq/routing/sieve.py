"""The bytes of a message's headers that can decide its route (see sieve.pxd).

in: the headers that exchanges ask for, the headers of a message as they stand on the wire. out: the key of a route that depends on them.

V1  What is left out decides nothing: fields of other names, and of a name that is compared with strings alone the value of a string that is
    none of these. Such a field leaves its name, as it may hide an earlier field of that name, and some bindings ask for names alone.
V2  Nothing outside of the table and of the room is read or written.
V3  The bytes begin with the number of their sieve: those of different sieves are never equal.
"""
# Compiled: Cython checks the types and names that come from the .pxd.
# mypy: ignore-errors

from __future__ import annotations

import os

import cython
from cython import NULL, address, bint, cast, cfunc, declare, exceptval, nogil, p_char, pointer, sizeof, void
from cython import int as c_int
from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
from cython.cimports.flintmq.core.atomics import at_add32, at_add64, at_sub32
from cython.cimports.flintmq.core.header_field import value_size
from cython.cimports.flintmq.core.keyed_hash import hash_key_t, keyed_hash
from cython.cimports.flintmq.core.memory_account import MEMORY_ROUTES, memory_add
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import calloc, free
from cython.cimports.libc.string import memcmp, memcpy

_numbers = declare(uint64_t, 0)
# stands for a string that nothing is compared with; no type octet
OTHER_STRING = declare(uint8_t, 0)


def sieve_incref(sieve: pointer[sieve_t]) -> void:
    if sieve != NULL:
        at_add32(address(sieve.refs), 1)


def sieve_decref(sieve: pointer[sieve_t]) -> void:
    if sieve != NULL and at_sub32(address(sieve.refs), 1) == 1:
        memory_add(MEMORY_ROUTES, -cast(int64_t, sieve.size))
        free(sieve.entries)
        free(sieve.octets)
        free(sieve)


def sieve_new(names: dict | None, others: object) -> pointer[sieve_t]:
    texts: list = []
    name: bytes
    text: bytes
    values: object
    for name, values in names.items():
        texts.append((name, name, SIEVE_WHOLE if values is None else SIEVE_STRINGS | (SIEVE_OTHERS if name in others else 0)))
        for text in values or ():
            texts.append((name, name + text, 0))
    room: uint32_t = 8
    total: uint32_t = sum([len(text) for _, text, _ in texts])
    while room < 2 * len(texts):
        room *= 2
    sieve: pointer[sieve_t] = cast(pointer[sieve_t], calloc(1, sizeof(sieve_t)))
    if sieve == NULL:
        raise MemoryError
    sieve.refs = 1
    sieve.mask = room - 1
    sieve.entries = cast(pointer[sieve_entry_t], calloc(room, sizeof(sieve_entry_t)))
    sieve.octets = cast(pointer[uint8_t], calloc(1, total + 1))
    sieve.size = cast(uint32_t, sizeof(sieve_t) + room * sizeof(sieve_entry_t) + total)
    memory_add(MEMORY_ROUTES, sieve.size)
    if sieve.entries == NULL or sieve.octets == NULL:
        sieve_decref(sieve)
        raise MemoryError
    sieve.number = at_add64(address(_numbers), 1) + 1
    random: bytes = os.urandom(sizeof(hash_key_t))
    memcpy(address(sieve.hash_key), cast(p_char, random), sizeof(hash_key_t))
    start: uint32_t = 0
    for name, text, how in texts:
        memcpy(sieve.octets + start, cast(p_char, text), len(text))
        _add(sieve, start, len(name), len(text), how)
        start += len(text)
    return sieve


@cfunc
def _add(sieve: pointer[sieve_t], start: uint32_t, name_size: uint32_t, size: uint32_t, how: uint32_t) -> None:
    octets: pointer[uint8_t] = sieve.octets + start
    wanted: uint64_t = _hash(sieve, octets, name_size, octets + name_size, size - name_size)
    index: uint32_t = cast(uint32_t, wanted) & sieve.mask
    while sieve.entries[index].hash:
        index = (index + 1) & sieve.mask
    sieve.entries[index].hash = wanted
    sieve.entries[index].start = start
    sieve.entries[index].name_size = name_size
    sieve.entries[index].size = size
    sieve.entries[index].how = how


@cfunc
@nogil
@exceptval(check=False)
def _hash(
    sieve: pointer[sieve_t],
    name: pointer[cython.const[uint8_t]],
    name_size: uint32_t,
    text: pointer[cython.const[uint8_t]],
    text_size: uint32_t,
) -> uint64_t:
    value: uint64_t = keyed_hash(address(sieve.hash_key), name, name_size)
    if text_size:
        value = value * 3 + keyed_hash(address(sieve.hash_key), text, text_size)
    return value or 1


@cfunc
@nogil
@exceptval(check=False)
def _find(
    sieve: pointer[sieve_t],
    name: pointer[cython.const[uint8_t]],
    name_size: uint32_t,
    text: pointer[cython.const[uint8_t]],
    text_size: uint32_t,
    is_name: bint,
) -> pointer[sieve_entry_t]:
    """The entry of a name, or of a name with a string; NULL: there is none. The table is at most half full."""
    wanted: uint64_t = _hash(sieve, name, name_size, text, text_size)
    index: uint32_t = cast(uint32_t, wanted) & sieve.mask
    entry: pointer[sieve_entry_t]
    while sieve.entries[index].hash:
        entry = address(sieve.entries[index])
        if (
            entry.hash == wanted
            and entry.name_size == name_size
            and entry.size == name_size + text_size
            and (entry.how != 0) == is_name
            and memcmp(sieve.octets + entry.start, name, name_size) == 0
            and (text_size == 0 or memcmp(sieve.octets + entry.start + name_size, text, text_size) == 0)
        ):
            return entry
        index = (index + 1) & sieve.mask
    return NULL


@cfunc
@nogil
@exceptval(check=False)
def _is_copy_key(name: pointer[cython.const[uint8_t]], size: uint32_t) -> bint:
    """CC or BCC."""
    return (size == 2 and memcmp(name, b"CC", 2) == 0) or (size == 3 and memcmp(name, b"BCC", 3) == 0)


@cfunc
@nogil
@exceptval(check=False)
def _decides(
    sieve: pointer[sieve_t],
    entry: pointer[sieve_entry_t],
    value: pointer[cython.const[uint8_t]],
    value_bytes: uint32_t,
) -> bint:
    """Whether a field's value counts, not only its name."""
    if entry.how == SIEVE_WHOLE:
        return True
    if value[0] != 83 and value[0] != 120:  # S, x
        return (entry.how & SIEVE_OTHERS) != 0
    return _find(sieve, sieve.octets + entry.start, entry.name_size, value + 5, value_bytes - 5, False) != NULL


def sieve_write(
    sieve: pointer[sieve_t], table: pointer[cython.const[uint8_t]], size: uint32_t, out: pointer[uint8_t], room: uint32_t
) -> c_int:
    place: uint32_t = 0
    used: uint32_t = 8
    name_size: uint32_t
    value_bytes: uint32_t
    length: uint32_t
    entry: pointer[sieve_entry_t]
    number: uint64_t = 0 if sieve == NULL else sieve.number
    if room < 8:
        return -1
    memcpy(out, address(number), 8)
    while place < size:
        name_size = table[place]
        if name_size + 1 >= size - place:
            return -1
        value_bytes = value_size(table + place + 1 + name_size, size - place - 1 - name_size)
        if value_bytes == 0:
            return -1
        length = 0
        if _is_copy_key(table + place + 1, name_size):
            length = 1 + name_size + value_bytes
        elif sieve != NULL:
            entry = _find(sieve, table + place + 1, name_size, NULL, 0, True)
            if entry != NULL:
                length = 1 + name_size
                if _decides(sieve, entry, table + place + 1 + name_size, value_bytes):
                    length += value_bytes
        if length + 1 > room - used:
            return -1
        if length:
            memcpy(out + used, table + place, length)
            used += length
            if length == 1 + name_size:
                out[used] = OTHER_STRING
                used += 1
        place += 1 + name_size + value_bytes
    return cast(c_int, used)


def deciding_bytes(names: dict | None, others: object, table: bytes, room: int) -> bytes | None:
    """sieve_write for tests, without the number of the sieve; None: it refused. `names` None: no sieve."""
    sieve: pointer[sieve_t] = NULL if names is None else sieve_new(names, others)
    out: pointer[uint8_t] = cast(pointer[uint8_t], calloc(1, room + 1))
    if out == NULL:
        raise MemoryError
    written: c_int = sieve_write(sieve, cast(pointer[uint8_t], cast(p_char, table)), len(table), out, room)
    octets: bytes = PyBytes_FromStringAndSize(cast(p_char, out), written) if written >= 0 else b""
    free(out)
    sieve_decref(sieve)
    return None if written < 0 else octets[8:]
