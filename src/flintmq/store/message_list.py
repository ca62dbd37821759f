"""The message list: full locations of the messages that need them (see message_list.pxd; seed 003, "In-Memory Objects").

in: the message log, under its lock. out: where a message stands, and which transactions it names.

I1  A message without locations and holds is dead; its entry is removed by whoever took the last one.
I2  Places and names of a message are counted, and have their room.
I3  An entry that is forgotten was in the list.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cfunc, declare, exceptval, inline, nogil, p_void, pointer, size_t, sizeof, void
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.hash64 import map64_free, map64_get, map64_next, map64_put, map64_remove, map64_t
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import calloc, free, malloc, realloc
from cython.cimports.libc.string import memcpy

PLACE_FREED = declare(uint64_t, 1 << 63)


@cfunc
@inline
@nogil
@exceptval(check=False)
def _at(word: uint64_t) -> pointer[message_t]:
    return cast(pointer[message_t], cast(p_void, word))


@cfunc
@inline
@nogil
@exceptval(check=False)
def _map(messages: pointer[message_list_t], message_id: uint64_t) -> pointer[map64_t]:
    return address(messages.maps[(message_id >> 8) % LIST_MAPS])


def list_find(messages: pointer[message_list_t], message_id: uint64_t) -> pointer[message_t]:
    word: uint64_t = 0
    map_: pointer[map64_t] = _map(messages, message_id)
    if map_.count == 0 or not map64_get(map_, message_id, address(word)):
        return NULL
    return _at(word)


def list_new(messages: pointer[message_list_t], message_id: uint64_t) -> pointer[message_t]:
    message: pointer[message_t] = cast(pointer[message_t], calloc(1, sizeof(message_t)))
    if message == NULL:
        return NULL
    message.id = message_id
    message.locations = address(message.first_location)
    message.room = 1
    message.named = address(message.first_named)
    message.named_room = 1
    if not map64_put(_map(messages, message_id), message_id, cast(uint64_t, message)):
        free(message)
        return NULL
    return message


@cfunc
@nogil
@exceptval(check=False)
def _free(message: pointer[message_t]) -> void:
    if message.locations != address(message.first_location):
        free(message.locations)
    if message.named != address(message.first_named):
        free(message.named)
    free(message)


def list_forget(messages: pointer[message_list_t], message: pointer[message_t]) -> void:
    check(
        map64_remove(_map(messages, message.id), message.id), b"message_list I3 a forgotten message was listed", message.id, message.count
    )
    _free(message)


def list_free_all(messages: pointer[message_list_t]) -> void:
    cursor: uint64_t = 0
    i: uint32_t
    message: pointer[message_t] = list_next_message(messages, address(cursor))
    while message != NULL:
        _free(message)
        message = list_next_message(messages, address(cursor))
    for i in range(LIST_MAPS):
        map64_free(address(messages.maps[i]))


def list_next_message(messages: pointer[message_list_t], cursor: pointer[uint64_t]) -> pointer[message_t]:
    key: uint64_t = 0
    word: uint64_t = 0
    number: uint64_t = cursor[0] >> 48
    at: uint64_t = (cursor[0] << 16) >> 16
    while number < LIST_MAPS:
        if map64_next(address(messages.maps[number]), address(at), address(key), address(word)):
            cursor[0] = number << 48 | at
            return _at(word)
        number += 1
        at = 0
        cursor[0] = number << 48
    return NULL


@cfunc
@nogil
@exceptval(check=False)
def _grown(old: p_void, inside: bint, count: uint32_t, room: uint32_t, size: size_t) -> p_void:
    """An array with more room. inside: the old one is the message's own."""
    new: p_void
    if not inside:
        return realloc(old, room * size)
    new = malloc(room * size)
    if new != NULL:
        memcpy(new, old, count * size)
    return new


def message_add(message: pointer[message_t], queue_id: uint64_t, position: uint64_t, expires_at_ms: int64_t) -> pointer[location_t]:
    room: uint32_t
    locations: pointer[location_t]
    check(message.count <= message.room, b"message_list I2 places have their room", message.id, message.count)
    if message.count == message.room:
        room = message.room * 2
        locations = cast(pointer[location_t], _grown(message.locations, message.room == 1, message.room, room, sizeof(location_t)))
        if locations == NULL:
            return NULL
        message.locations = locations
        message.room = room
    locations = address(message.locations[message.count])
    locations.queue_id = queue_id
    locations.position = position
    locations.expires_at_ms = expires_at_ms
    locations.enqueued_by = 0
    locations.dequeued_by = 0
    message.count += 1
    return locations


def message_find(message: pointer[message_t], queue_id: uint64_t, position: uint64_t) -> pointer[location_t]:
    i: uint32_t
    for i in range(message.count):
        if message.locations[i].queue_id == queue_id and message.locations[i].position == position:
            return address(message.locations[i])
    return NULL


def message_drop(message: pointer[message_t], location: pointer[location_t]) -> void:
    # The order of places is the order in which they were asked for: keep it.
    check(
        location >= message.locations and location < message.locations + message.count,
        b"message_list I2 a place that goes is the message's",
        message.id,
        message.count,
    )
    last: pointer[location_t] = address(message.locations[message.count - 1])
    while location < last:
        location[0] = location[1]
        location += 1
    message.count -= 1


def message_name(message: pointer[message_t], tx: uint64_t) -> bint:
    i: uint32_t
    room: uint32_t
    named: pointer[uint64_t]
    for i in range(message.named_count):
        if message.named[i] == tx:
            return False
    check(message.named_count <= message.named_room, b"message_list I2 names have their room", message.id, message.named_count)
    if message.named_count == message.named_room:
        room = message.named_room * 2
        named = cast(pointer[uint64_t], _grown(message.named, message.named_room == 1, message.named_room, room, sizeof(uint64_t)))
        if named == NULL:
            return False
        message.named = named
        message.named_room = room
    message.named[message.named_count] = tx
    message.named_count += 1
    return True
