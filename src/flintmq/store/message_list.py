"""The message list: full locations of the messages that need them (see message_list.pxd; seed 003, "In-Memory Objects").

in: the message log, under its lock. out: where a message stands, and which transactions it names.

I1  A message without locations and holds is dead; its entry is removed by whoever took the last one.
"""

from __future__ import annotations

import cython
from cython.cimports.flintmq.core.hash64 import map64_free, map64_get, map64_next, map64_put, map64_remove, map64_t
from cython.cimports.libc.stdint import uint32_t, uint64_t
from cython.cimports.libc.stdlib import calloc, free, malloc, realloc
from cython.cimports.libc.string import memcpy

PLACE_FREED = cython.declare(uint64_t, 1 << 63)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _at(word: uint64_t) -> cython.pointer(message_t):
    return cython.cast(cython.pointer(message_t), cython.cast(cython.p_void, word))


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _map(messages: cython.pointer(message_list_t), message_id: uint64_t) -> cython.pointer(map64_t):
    return cython.address(messages.maps[(message_id >> 8) % LIST_MAPS])


def list_find(messages, message_id):
    word: uint64_t = 0
    map_: cython.pointer(map64_t) = _map(messages, message_id)
    if map_.count == 0 or not map64_get(map_, message_id, cython.address(word)):
        return cython.NULL
    return _at(word)


def list_new(messages, message_id):
    message: cython.pointer(message_t) = cython.cast(cython.pointer(message_t), calloc(1, cython.sizeof(message_t)))
    if message == cython.NULL:
        return cython.NULL
    message.id = message_id
    message.locations = cython.address(message.first_location)
    message.room = 1
    message.named = cython.address(message.first_named)
    message.named_room = 1
    if not map64_put(_map(messages, message_id), message_id, cython.cast(uint64_t, message)):
        free(message)
        return cython.NULL
    return message


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _free(message: cython.pointer(message_t)) -> cython.void:
    if message.locations != cython.address(message.first_location):
        free(message.locations)
    if message.named != cython.address(message.first_named):
        free(message.named)
    free(message)


def list_forget(messages, message):
    map64_remove(_map(messages, message.id), message.id)
    _free(message)


def list_free_all(messages):
    cursor: uint64_t = 0
    i: uint32_t
    message: cython.pointer(message_t) = list_next_message(messages, cython.address(cursor))
    while message != cython.NULL:
        _free(message)
        message = list_next_message(messages, cython.address(cursor))
    for i in range(LIST_MAPS):
        map64_free(cython.address(messages.maps[i]))


def list_next_message(messages, cursor):
    key: uint64_t = 0
    word: uint64_t = 0
    number: uint64_t = cursor[0] >> 48
    at: uint64_t = (cursor[0] << 16) >> 16
    while number < LIST_MAPS:
        if map64_next(cython.address(messages.maps[number]), cython.address(at), cython.address(key), cython.address(word)):
            cursor[0] = number << 48 | at
            return _at(word)
        number += 1
        at = 0
        cursor[0] = number << 48
    return cython.NULL


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _grown(old: cython.p_void, inside: cython.bint, count: uint32_t, room: uint32_t, size: cython.size_t) -> cython.p_void:
    """An array with more room. inside: the old one is the message's own."""
    new: cython.p_void
    if not inside:
        return realloc(old, room * size)
    new = malloc(room * size)
    if new != cython.NULL:
        memcpy(new, old, count * size)
    return new


def message_add(message, queue_id, position, expires_at_ms):
    room: uint32_t
    locations: cython.pointer(location_t)
    if message.count == message.room:
        room = message.room * 2
        locations = cython.cast(
            cython.pointer(location_t), _grown(message.locations, message.room == 1, message.room, room, cython.sizeof(location_t))
        )
        if locations == cython.NULL:
            return cython.NULL
        message.locations = locations
        message.room = room
    locations = cython.address(message.locations[message.count])
    locations.queue_id = queue_id
    locations.position = position
    locations.expires_at_ms = expires_at_ms
    locations.enqueued_by = 0
    locations.dequeued_by = 0
    message.count += 1
    return locations


def message_find(message, queue_id, position):
    i: uint32_t
    for i in range(message.count):
        if message.locations[i].queue_id == queue_id and message.locations[i].position == position:
            return cython.address(message.locations[i])
    return cython.NULL


def message_drop(message, location):
    # The order of places is the order in which they were asked for: keep it.
    last: cython.pointer(location_t) = cython.address(message.locations[message.count - 1])
    while location < last:
        location[0] = location[1]
        location += 1
    message.count -= 1


def message_name(message, tx):
    i: uint32_t
    room: uint32_t
    named: cython.pointer(uint64_t)
    for i in range(message.named_count):
        if message.named[i] == tx:
            return False
    if message.named_count == message.named_room:
        room = message.named_room * 2
        named = cython.cast(
            cython.pointer(uint64_t), _grown(message.named, message.named_room == 1, message.named_room, room, cython.sizeof(uint64_t))
        )
        if named == cython.NULL:
            return False
        message.named = named
        message.named_room = room
    message.named[message.named_count] = tx
    message.named_count += 1
    return True
