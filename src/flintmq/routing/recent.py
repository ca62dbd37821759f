"""The last messages that one exchange passed on (see recent.pxd; rules K1 and K2 in history.py).

in: messages on their way, from any loop. out: what is remembered, oldest first.

E1  Its own count and bytes, and its share of the virtual host's, hold under its lock; the bytes of all exchanges are one atomic number.
E2  Memory is taken before the lock, and given back after it.
E3  What copies take is in the account of memory; a content that is referenced is counted there by itself.
E4  A message is copied once, however many exchanges remember it. One with a source is nobody's source.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cclass, cfunc, exceptval, nogil, p_char, p_void, pointer, sizeof, void
from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
from cython.cimports.flintmq.core.atomics import at_add32, at_sub32, spin_lock, spin_unlock
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.content import (
    content_body, content_decref, content_from_bytes, content_header, content_incref, content_route, content_t,
)  # fmt: skip
from cython.cimports.flintmq.core.memory_account import MEMORY_DEFINITIONS, memory_add
from cython.cimports.flintmq.routing.kept import (
    Kept, KeptUser, kept_decref, kept_field, kept_give_back, kept_lets, kept_take, kept_user_decref, kept_user_incref, kept_user_t,
)  # fmt: skip
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import calloc, free, malloc
from cython.cimports.libc.string import memcpy


def recent_incref(recent: pointer[recent_t]) -> void:
    at_add32(address(recent.refs), 1)


def recent_decref(recent: pointer[recent_t]) -> void:
    if recent != NULL and at_sub32(address(recent.refs), 1) == 1:
        _clear(recent)
        kept_decref(recent.bounds.total)
        free(recent)


# --- messages ---------------------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _own_bytes(message: pointer[recent_message_t]) -> int64_t:
    """E3."""
    size: int64_t = sizeof(recent_message_t)
    if message.content == NULL and message.source == NULL:
        size += message.route_len
        size += message.header_len
        size += message.body_len
    return size


@cfunc
@nogil
@exceptval(check=False)
def _message_new(
    content: pointer[content_t], user: pointer[kept_user_t], size: uint64_t, source: pointer[recent_message_t]
) -> pointer[recent_message_t]:
    """NULL: no memory. source: the same message of another exchange, or NULL."""
    octets: uint64_t = content.route_len
    copied: bint
    message: pointer[recent_message_t]
    place: pointer[uint8_t]
    octets += content.header_len
    octets += content.body_len
    copied = octets <= RECENT_COPY_MAX and source == NULL
    message = cast(pointer[recent_message_t], malloc(sizeof(recent_message_t) + (octets if copied else 0)))
    if message == NULL:
        return NULL
    message.refs = 1
    message.route_len = content.route_len
    message.header_len = content.header_len
    message.body_len = content.body_len
    message.size = size
    message.user = kept_user_incref(user)
    message.next = NULL
    message.content = NULL
    message.source = NULL
    if copied:
        place = cast(pointer[uint8_t], message + 1)
        memcpy(place, content_route(content), content.route_len)
        memcpy(place + content.route_len, content_header(content), content.header_len)
        if content.body_len:
            memcpy(place + content.route_len + content.header_len, content_body(content), content.body_len)
    elif octets <= RECENT_COPY_MAX:
        check(source.source == NULL and source.content == NULL, b"recent E4 a source has the bytes", size, source.size)
        at_add32(address(source.refs), 1)
        message.source = source
    else:
        content_incref(content)
        message.content = content
    memory_add(MEMORY_DEFINITIONS, _own_bytes(message))
    return message


@cfunc
@nogil
@exceptval(check=False)
def _message_decref(message: pointer[recent_message_t]) -> void:
    if at_sub32(address(message.refs), 1) == 1:
        memory_add(MEMORY_DEFINITIONS, -_own_bytes(message))
        kept_user_decref(message.user)
        if message.content != NULL:
            content_decref(message.content)
        if message.source != NULL:
            _message_decref(message.source)
        free(message)


@cfunc
@nogil
@exceptval(check=False)
def _let_go(chain: pointer[recent_message_t]) -> void:
    following: pointer[recent_message_t]
    while chain != NULL:
        following = chain.next
        _message_decref(chain)
        chain = following


@cfunc
@nogil
@exceptval(check=False)
def _drop_oldest(recent: pointer[recent_t], chain: pointer[recent_message_t]) -> pointer[recent_message_t]:
    """Takes the oldest message out, in front of those of `chain`. Called with the lock held."""
    message: pointer[recent_message_t] = recent.oldest
    recent.oldest = message.next
    if recent.oldest == NULL:
        recent.newest = NULL
    recent.count -= 1
    recent.bytes -= message.size
    kept_give_back(address(recent.bounds), message.user, message.size)
    message.next = chain
    return message


@cfunc
@nogil
@exceptval(check=False)
def _clear(recent: pointer[recent_t]) -> void:
    chain: pointer[recent_message_t] = NULL
    spin_lock(address(recent.lock))
    while recent.oldest != NULL:
        chain = _drop_oldest(recent, chain)
    spin_unlock(address(recent.lock))
    _let_go(chain)


@cfunc
@nogil
@exceptval(check=False)
def _is_stored(content: pointer[content_t]) -> bint:
    """Whether its header does not forbid it (K2)."""
    size: uint32_t = 0
    value: pointer[uint8_t] = cast(
        pointer[uint8_t],
        kept_field(content_header(content), content.header_len, b"x-recent-history-no-store", 25, address(size)),
    )
    return value == NULL or value[0] != 116 or value[1] == 0


@cfunc
@nogil
@exceptval(check=False)
def _keep(recent: pointer[recent_t], message: pointer[recent_message_t]) -> void:
    """Remembers a message, if there is room. Takes a reference then."""
    user: pointer[kept_user_t] = message.user
    size: uint64_t = message.size
    chain: pointer[recent_message_t] = NULL
    taken: bint = False
    spin_lock(address(recent.lock))
    while not kept_lets(address(recent.bounds), user, size) and recent.oldest != NULL and recent.oldest.user == user:
        chain = _drop_oldest(recent, chain)
    if kept_lets(address(recent.bounds), user, size) and recent.count_max:
        while True:
            if recent.count < recent.count_max and recent.bytes + size <= recent.bytes_max:
                taken = kept_take(address(recent.bounds), user, size)
            if taken or recent.oldest == NULL:
                break
            chain = _drop_oldest(recent, chain)
    if taken:
        at_add32(address(message.refs), 1)
        if recent.newest == NULL:
            recent.oldest = message
        else:
            recent.newest.next = message
        recent.newest = message
        recent.count += 1
        recent.bytes += size
    spin_unlock(address(recent.lock))
    _let_go(chain)


def recent_keep(recents: pointer[pointer[recent_t]], count: uint32_t, content: pointer[content_t], user: pointer[kept_user_t]) -> void:
    size: uint64_t = RECENT_BYTES
    source: pointer[recent_message_t] = NULL
    message: pointer[recent_message_t]
    i: uint32_t
    if count == 0 or not _is_stored(content):
        return
    size += content.route_len - 2
    size += content.header_len
    size += content.body_len
    for i in range(count):
        if size > recents[i].bytes_max:
            continue
        message = _message_new(content, user, size, source)
        if message == NULL:
            break
        _keep(recents[i], message)
        if source == NULL and message.content == NULL:
            source = message  # with the reference of here
        else:
            _message_decref(message)
    if source != NULL:
        _message_decref(source)


# --- for Python -------------------------------------------------------------------------------------------------------------


@cfunc
def _tuple(message: pointer[recent_message_t]) -> tuple:
    """(exchange, routing key, content header payload, body)."""
    place: pointer[uint8_t] = cast(pointer[uint8_t], (message if message.source == NULL else message.source) + 1)
    header: pointer[uint8_t] = place + message.route_len
    body: pointer[uint8_t] = header + message.header_len
    if message.content != NULL:
        place = content_route(message.content)
        header = content_header(message.content)
        body = content_body(message.content)
    return (
        _octets(place + 1, place[0]),
        _octets(place + 2 + place[0], place[1 + place[0]]),
        _octets(header, message.header_len),
        _octets(body, message.body_len) if message.body_len else b"",
    )


@cfunc
def _octets(data: pointer[uint8_t], size: uint32_t) -> bytes:
    return PyBytes_FromStringAndSize(cast(p_char, cast(p_void, data)), size)


@cclass
class Recent:
    """Args: count_max: messages; limits; kept: what the exchanges of its virtual host remember. Any thread. Raises: MemoryError."""

    def __cinit__(self, count_max: int, limits: object, kept: Kept):
        self.recent = cast(pointer[recent_t], calloc(1, sizeof(recent_t)))
        if self.recent == NULL:
            raise MemoryError("no memory for an exchange")
        self.recent.refs = 1
        self.recent.count_max = count_max
        self.recent.bytes_max = limits.history_bytes_max
        kept.bound(address(self.recent.bounds), limits)

    def __dealloc__(self):
        recent_decref(self.recent)

    def keep(self, message: tuple, user: KeptUser | None) -> None:
        """Remembers a message: exchange, routing key, content header payload, body. user: None: nobody's."""
        content: pointer[content_t] = content_from_bytes(message[0], message[1], message[2], message[3], 0, 0)
        recent_keep(address(self.recent), 1, content, NULL if user is None else user.user)
        content_decref(content)

    def messages(self) -> list[tuple[bytes, bytes, bytes, bytes]]:
        """The messages, oldest first: copies. Raises: MemoryError."""
        room: uint64_t = self.recent.count_max
        count: uint64_t = 0
        i: uint64_t
        message: pointer[recent_message_t]
        taken: pointer[pointer[recent_message_t]]
        if room == 0:
            return []
        taken = cast(pointer[pointer[recent_message_t]], malloc(room * sizeof(p_void)))
        if taken == NULL:
            raise MemoryError("no memory for what an exchange remembers")
        spin_lock(address(self.recent.lock))
        message = self.recent.oldest
        while message != NULL and count < room:
            at_add32(address(message.refs), 1)
            taken[count] = message
            count += 1
            message = message.next
        spin_unlock(address(self.recent.lock))
        messages: list = []
        try:
            for i in range(count):
                messages.append(_tuple(taken[i]))
        finally:
            for i in range(count):
                _message_decref(taken[i])
            free(taken)
        return messages

    @property
    def held(self) -> int:
        """Bytes that it counts for."""
        return self.recent.bytes

    def close(self) -> None:
        """Its exchange is deleted: all goes, and nothing is remembered any more."""
        spin_lock(address(self.recent.lock))
        self.recent.count_max = 0
        spin_unlock(address(self.recent.lock))
        _clear(self.recent)
