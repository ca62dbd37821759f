"""The values of a header that one exchange passed on (see seen.pxd; rules D1 to D4 in deduplication.py).

in: content headers of messages on their way, from any loop. out: whether a message is the first one with its value.

S1  A value is known by two keyed hashes of 64 bits, of its type too: 5 is not "5". All integers are one type, as are a string and a
    byte array; a table or an array is its bytes on the wire.
S2  No step takes longer than a few values, however many there are: a table that grows is emptied into the next one by MOVED buckets with
    each value that comes, and a new value looks at LOOKED_AT old ones, at OWN_LOOKED_AT where its user has reached the user's share.
S3  What values take is in the account of memory and among the bytes of the virtual host, SEEN_VALUE_BYTES each.
Source of the hash: SipHash-1-3, Aumasson and Bernstein, 2012.
"""

from __future__ import annotations

import os

import cython
from cython import NULL, address, bint, cast, cclass, cfunc, declare, double, exceptval, nogil, p_char, p_void, pointer, sizeof, void
from cython import float as c_float
from cython.cimports.cpython.bytes import PyBytes_AS_STRING
from cython.cimports.flintmq.core.atomics import at_add32, at_sub32, spin_lock, spin_unlock
from cython.cimports.flintmq.core.byte_order import get16, get32, get64, put64
from cython.cimports.flintmq.core.clock import NS_PER_MS
from cython.cimports.flintmq.core.memory_account import MEMORY_DEFINITIONS, memory_add
from cython.cimports.flintmq.core.siphash import siphash
from cython.cimports.flintmq.routing.kept import (
    Kept, KeptUser, kept_decref, kept_field, kept_give_back, kept_lets, kept_take, kept_user_decref, kept_user_incref, kept_user_t,
)  # fmt: skip
from cython.cimports.libc.stdint import int16_t, int32_t, int64_t, int8_t, uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import calloc, free, malloc
from cython.cimports.libc.string import memcpy

# of values at the old end that each new one looks at: two, so that what is over goes faster than new ones come
LOOKED_AT = declare(uint32_t, 2)
# ... and that one of a user at the user's share looks at for another one of that user
OWN_LOOKED_AT = declare(uint32_t, 32)
MOVED = declare(uint32_t, 4)
# values that go in one piece when their exchange is deleted
CLEARED = declare(uint32_t, 512)
FIRST_BUCKETS = declare(uint64_t, 16)
# milliseconds; no whole number of a header is more
TTL_MS_MAX = declare(uint64_t, 1 << 53)
_keys = declare(uint64_t[4])


@cfunc
def _draw_keys() -> None:
    octets: bytes = os.urandom(sizeof(_keys))
    memcpy(_keys, PyBytes_AS_STRING(octets), sizeof(_keys))


_draw_keys()


def seen_incref(seen: pointer[seen_t]) -> void:
    at_add32(address(seen.refs), 1)


def seen_decref(seen: pointer[seen_t]) -> void:
    if seen != NULL and at_sub32(address(seen.refs), 1) == 1:
        while not _clear_some(seen, CLEARED):
            pass
        kept_decref(seen.bounds.total)
        free(seen.buckets)
        free(seen.old_buckets)
        free(seen)


# --- values of headers --------------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _is_integer(kind: uint8_t) -> bint:
    """b, B, s, u, I, i, l, L."""
    return kind in (98, 66, 115, 117, 73, 105, 108, 76)


@cfunc
@nogil
@exceptval(check=False)
def _integer(value: pointer[cython.const[uint8_t]]) -> int64_t:
    kind: uint8_t = value[0]
    if kind == 98:
        return cast(int8_t, value[1])
    if kind == 66:
        return value[1]
    if kind == 115:
        return cast(int16_t, get16(value + 1))
    if kind == 117:
        return get16(value + 1)
    if kind == 73:
        return cast(int32_t, get32(value + 1))
    if kind == 105:
        return get32(value + 1)
    return cast(int64_t, get64(value + 1))


@cfunc
@nogil
@exceptval(check=False)
def _hash(value: pointer[cython.const[uint8_t]], size: uint32_t, mark: pointer[seen_mark_t]) -> void:
    """S1."""
    kind: uint64_t = value[0]
    octets: uint8_t[8]
    single: c_float = 0
    real: double
    bits: uint32_t
    if kind == 83 or kind == 120:  # S, x
        kind = 83
        value += 5
        size -= 5
    elif kind == 84 and value[1] & 0x80 == 0:
        kind = 108  # a timestamp is an integer, too
        value += 1
        size = 8
    elif _is_integer(value[0]):
        kind = 108
        put64(cast(pointer[uint8_t], octets), cast(uint64_t, _integer(value)))
        value = octets
        size = 8
    elif kind == 102:  # f
        bits = get32(value + 1)
        memcpy(address(single), address(bits), 4)
        real = single
        memcpy(address(octets[0]), address(real), 8)
        kind = 100
        put64(cast(pointer[uint8_t], octets), cast(pointer[uint64_t], cast(p_void, address(octets[0])))[0])
        value = octets
        size = 8
    else:
        value += 1
        size -= 1
    mark.first = siphash(_keys[0] ^ kind, _keys[1], value, size, 1, 3)
    mark.second = siphash(_keys[2] ^ kind, _keys[3], value, size, 1, 3)


@cfunc
@nogil
@exceptval(check=False)
def _ttl_of(header: pointer[cython.const[uint8_t]], size: uint32_t) -> uint64_t:
    """Milliseconds that the message asks for: a whole number, or the digits of one; 0: it asks for none."""
    value_bytes: uint32_t = 0
    value: pointer[uint8_t] = cast(pointer[uint8_t], kept_field(header, size, b"x-cache-ttl", 11, address(value_bytes)))
    number: uint64_t = 0
    i: uint32_t
    if value == NULL:
        return 0
    if _is_integer(value[0]):
        number = cast(uint64_t, _integer(value))
    elif value[0] == 83 and value_bytes < 25:
        for i in range(5, value_bytes):
            if value[i] < 48 or value[i] > 57:
                return 0
            number = number * 10 + (value[i] - 48)
    return number if number < TTL_MS_MAX else 0


# --- the table ----------------------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _bucket(seen: pointer[seen_t], first: uint64_t) -> pointer[pointer[seen_value_t]]:
    if seen.old_buckets != NULL and first & seen.old_mask >= seen.moved:
        return address(seen.old_buckets[first & seen.old_mask])
    return address(seen.buckets[first & seen.mask])


@cfunc
@nogil
@exceptval(check=False)
def _find(seen: pointer[seen_t], mark: pointer[cython.const[seen_mark_t]]) -> pointer[seen_value_t]:
    value: pointer[seen_value_t]
    if seen.buckets == NULL:
        return NULL
    value = _bucket(seen, mark.first)[0]
    while value != NULL and (value.first != mark.first or value.second != mark.second):
        value = value.next
    return value


@cfunc
@nogil
@exceptval(check=False)
def _move_some(seen: pointer[seen_t]) -> pointer[pointer[seen_value_t]]:
    """S2. Returns a table that is empty now, to be freed; NULL: none is."""
    value: pointer[seen_value_t]
    following: pointer[seen_value_t]
    empty: pointer[pointer[seen_value_t]] = seen.old_buckets
    i: uint32_t
    if empty == NULL:
        return NULL
    for i in range(MOVED):
        if seen.moved > seen.old_mask:
            seen.old_buckets = NULL
            return empty
        value = empty[seen.moved]
        seen.moved += 1
        while value != NULL:
            following = value.next
            value.next = seen.buckets[value.first & seen.mask]
            seen.buckets[value.first & seen.mask] = value
            value = following
    return NULL


@cfunc
@nogil
@exceptval(check=False)
def _grow(seen: pointer[seen_t], fresh: pointer[pointer[seen_value_t]], size: uint64_t) -> pointer[pointer[seen_value_t]]:
    """Begins to use a larger table. Returns one that is not used, to be freed."""
    if seen.old_buckets != NULL or (seen.buckets != NULL and size != 2 * (seen.mask + 1)):
        return fresh  # another thread was first
    seen.old_buckets = seen.buckets
    seen.old_mask = seen.mask
    seen.moved = 0
    seen.buckets = fresh
    seen.mask = size - 1
    return NULL


@cfunc
@nogil
@exceptval(check=False)
def _drop(seen: pointer[seen_t], value: pointer[seen_value_t], chain: pointer[seen_value_t]) -> pointer[seen_value_t]:
    """Takes a value out, in front of those of `chain` (by `next`). Called with the lock held."""
    link: pointer[pointer[seen_value_t]] = _bucket(seen, value.first)
    while link[0] != value:
        link = address(link[0].next)
    link[0] = value.next
    if value.older != NULL:
        value.older.newer = value.newer
    else:
        seen.oldest = value.newer
    if value.newer != NULL:
        value.newer.older = value.older
    else:
        seen.newest = value.older
    seen.count -= 1
    kept_give_back(address(seen.bounds), value.user, SEEN_VALUE_BYTES)
    value.next = chain
    return value


@cfunc
@nogil
@exceptval(check=False)
def _let_go(chain: pointer[seen_value_t]) -> void:
    following: pointer[seen_value_t]
    while chain != NULL:
        following = chain.next
        memory_add(MEMORY_DEFINITIONS, -cast(int64_t, SEEN_VALUE_BYTES))
        kept_user_decref(chain.user)
        free(chain)
        chain = following


@cfunc
@nogil
@exceptval(check=False)
def _clear_some(seen: pointer[seen_t], most: uint32_t) -> bint:
    """The oldest values go. True: none is left."""
    chain: pointer[seen_value_t] = NULL
    i: uint32_t
    spin_lock(address(seen.lock))
    for i in range(most):
        if seen.oldest == NULL:
            break
        chain = _drop(seen, seen.oldest, chain)
    is_empty: bint = seen.oldest == NULL
    spin_unlock(address(seen.lock))
    _let_go(chain)
    return is_empty


# --- arrivals -----------------------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _make_room(seen: pointer[seen_t], user: pointer[kept_user_t], now_ns: int64_t, chain: pointer[seen_value_t]) -> pointer[seen_value_t]:
    """Values leave for one more of this user, by time, count and share (D1). Called with the lock held."""
    value: pointer[seen_value_t] = seen.oldest
    following: pointer[seen_value_t]
    i: uint32_t = 0
    while value != NULL and i < LOOKED_AT:
        following = value.newer
        if value.until_ns and value.until_ns <= now_ns:
            chain = _drop(seen, value, chain)
        value = following
        i += 1
    if not kept_lets(address(seen.bounds), user, SEEN_VALUE_BYTES):
        value = seen.oldest
        i = 0
        while value != NULL and i < OWN_LOOKED_AT and value.user != user:
            value = value.newer
            i += 1
        if value != NULL and value.user == user:
            chain = _drop(seen, value, chain)
    return chain


@cfunc
@nogil
@exceptval(check=False)
def _add(seen: pointer[seen_t], value: pointer[seen_value_t]) -> void:
    bucket: pointer[pointer[seen_value_t]] = _bucket(seen, value.first)
    value.next = bucket[0]
    bucket[0] = value
    value.older = seen.newest
    value.newer = NULL
    if seen.newest == NULL:
        seen.oldest = value
    else:
        seen.newest.newer = value
    seen.newest = value
    seen.count += 1


@cfunc
@nogil
@exceptval(check=False)
def _enter(
    seen: pointer[seen_t], value: pointer[seen_value_t], now_ns: int64_t, mark: pointer[seen_mark_t], chain: pointer[pointer[seen_value_t]]
) -> bint:
    """False: the value was there. mark.noted: it is there now. *chain: values that left. Called with the lock held."""
    known: pointer[seen_value_t] = _find(seen, mark)
    taken: bint = False
    if known != NULL and (known.until_ns == 0 or now_ns < known.until_ns):
        seen.dropped += 1
        return False
    if known != NULL:
        chain[0] = _drop(seen, known, chain[0])
    chain[0] = _make_room(seen, value.user, now_ns, chain[0])
    if seen.buckets == NULL or seen.count_max == 0 or not kept_lets(address(seen.bounds), value.user, SEEN_VALUE_BYTES):
        return True
    while True:
        if seen.count < seen.count_max:
            taken = kept_take(address(seen.bounds), value.user, SEEN_VALUE_BYTES)
        if taken or seen.oldest == NULL:
            break
        chain[0] = _drop(seen, seen.oldest, chain[0])
    if taken:
        _add(seen, value)
        mark.noted = True
    return True


def seen_is_new(
    seen: pointer[seen_t],
    header: pointer[cython.const[uint8_t]],
    size: uint32_t,
    user: pointer[kept_user_t],
    now_ns: int64_t,
    mark: pointer[seen_mark_t],
) -> bint:
    value_bytes: uint32_t = 0
    field: pointer[uint8_t] = cast(pointer[uint8_t], kept_field(header, size, b"x-deduplication-header", 22, address(value_bytes)))
    value: pointer[seen_value_t]
    chain: pointer[seen_value_t] = NULL
    fresh: pointer[pointer[seen_value_t]] = NULL
    empty: pointer[pointer[seen_value_t]] = NULL
    wanted: uint64_t
    ttl_ms: uint64_t
    is_new: bint
    mark.noted = False
    if field == NULL:
        return True
    _hash(field, value_bytes, mark)
    value = cast(pointer[seen_value_t], malloc(sizeof(seen_value_t)))
    if value == NULL:
        return True
    ttl_ms = _ttl_of(header, size) or seen.ttl_ms
    value.first = mark.first
    value.second = mark.second
    value.until_ns = now_ns + cast(int64_t, ttl_ms) * NS_PER_MS if ttl_ms else 0
    value.user = kept_user_incref(user)
    memory_add(MEMORY_DEFINITIONS, SEEN_VALUE_BYTES)
    wanted = FIRST_BUCKETS if seen.buckets == NULL else 2 * (seen.mask + 1)
    if seen.buckets == NULL or (seen.count > seen.mask and seen.old_buckets == NULL):
        fresh = cast(pointer[pointer[seen_value_t]], calloc(wanted, sizeof(p_void)))
    spin_lock(address(seen.lock))
    if fresh != NULL:
        fresh = _grow(seen, fresh, wanted)
    empty = _move_some(seen)
    is_new = _enter(seen, value, now_ns, mark, address(chain))
    spin_unlock(address(seen.lock))
    free(fresh)
    free(empty)
    if not mark.noted:
        value.next = NULL
        _let_go(value)
    _let_go(chain)
    return is_new


def seen_forget(seen: pointer[seen_t], mark: pointer[cython.const[seen_mark_t]]) -> void:
    value: pointer[seen_value_t]
    chain: pointer[seen_value_t] = NULL
    spin_lock(address(seen.lock))
    value = _find(seen, mark)
    if value != NULL:
        chain = _drop(seen, value, chain)
    spin_unlock(address(seen.lock))
    _let_go(chain)


# --- for Python ---------------------------------------------------------------------------------------------------------------


@cclass
class Seen:
    """Args: count_max: values; ttl_ms: milliseconds that a value is remembered, 0: any time; limits; kept: what the exchanges of its
    virtual host remember. Any thread. Raises: MemoryError."""

    def __cinit__(self, count_max: int, ttl_ms: int, limits: object, kept: Kept):
        self.seen = cast(pointer[seen_t], calloc(1, sizeof(seen_t)))
        if self.seen == NULL:
            raise MemoryError("no memory for an exchange")
        self.seen.refs = 1
        self.seen.count_max = count_max
        self.seen.ttl_ms = ttl_ms
        kept.bound(address(self.seen.bounds), limits)

    def __dealloc__(self):
        seen_decref(self.seen)

    def is_new(self, header: bytes, user: KeptUser | None, now_ns: int) -> tuple[bool, tuple[int, int] | None]:
        """Whether a message is the first one with its value, and what `forget` takes back, None: nothing is remembered of it. Args: header:
        content header payload; user: None: nobody's; now_ns: monotonic."""
        mark: seen_mark_t
        is_new: bint = seen_is_new(
            self.seen,
            cast(pointer[uint8_t], cast(p_char, header)),
            len(header),
            NULL if user is None else user.user,
            now_ns,
            address(mark),
        )
        return bool(is_new), (mark.first, mark.second) if mark.noted else None

    def forget(self, noted: tuple[int, int]) -> None:
        """No queue took a message."""
        mark: seen_mark_t
        mark.first = noted[0]
        mark.second = noted[1]
        mark.noted = True
        seen_forget(self.seen, address(mark))

    @property
    def count(self) -> int:
        """Values that are remembered."""
        return self.seen.count

    @property
    def dropped(self) -> int:
        """Messages whose value was there."""
        return self.seen.dropped

    def close(self) -> bool:
        """Its exchange is deleted: nothing is remembered any more, and some of the values go, 50 us of work. True: all are gone."""
        spin_lock(address(self.seen.lock))
        self.seen.count_max = 0
        spin_unlock(address(self.seen.lock))
        return bool(_clear_some(self.seen, CLEARED))
