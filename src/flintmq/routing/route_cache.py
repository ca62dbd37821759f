"""Route cache of an exchange (see route_cache.pxd).

in: a routing key as it stands on the wire. out: the queues it goes to, or a miss that the routing table answers.

I1  A valid route says what the routing table says; `clear` runs before a changed binding is acknowledged.
I2  At most `route_max` routes are kept; at the limit all are dropped and the cache fills anew (config.route_cache_max).
I3  A key has at most one route here: `put` replaces, whoever computed the same route at the same time. A route is valid only while it is
    in the table, so whatever takes it out (a change, the limit, a replacement) also tells every channel that remembers it.
I4  Which bucket a key falls into, nobody outside of this process can tell: a chain is as long as chance makes it.
"""

from __future__ import annotations

import os

import cython
from cython.cimports.flintmq.core.atomics import at_add32, at_load32, at_store32, at_sub32, spin_lock, spin_unlock
from cython.cimports.flintmq.core.memory_account import MEMORY_ROUTES, memory_add
from cython.cimports.flintmq.queue.handle import QueueHandle
from cython.cimports.flintmq.queue.queue_core import queue_decref, queue_incref, queue_is_deleted
from cython.cimports.libc.stdint import int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import calloc, free
from cython.cimports.libc.string import memcmp, memcpy

# "somepseudorandomlygeneratedbytes"
SIP_0 = cython.declare(uint64_t, 0x736F6D6570736575)
SIP_1 = cython.declare(uint64_t, 0x646F72616E646F6D)
SIP_2 = cython.declare(uint64_t, 0x6C7967656E657261)
SIP_3 = cython.declare(uint64_t, 0x7465646279746573)
_key0 = cython.declare(uint64_t, 0)
_key1 = cython.declare(uint64_t, 0)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _rotl(value: uint64_t, bits: cython.int) -> uint64_t:
    return (value << bits) | (value >> (64 - bits))


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _round(v: cython.pointer(uint64_t)) -> cython.void:
    v[0] += v[1]
    v[1] = _rotl(v[1], 13) ^ v[0]
    v[0] = _rotl(v[0], 32)
    v[2] += v[3]
    v[3] = _rotl(v[3], 16) ^ v[2]
    v[0] += v[3]
    v[3] = _rotl(v[3], 21) ^ v[0]
    v[2] += v[1]
    v[1] = _rotl(v[1], 17) ^ v[2]
    v[2] = _rotl(v[2], 32)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _hash(key: cython.pointer(cython.const[uint8_t]), size: uint32_t) -> uint32_t:
    """SipHash-1-3 with a random key of this process: keys come from peers, who must not be able to choose what falls into one bucket.

    Source: Aumasson and Bernstein, "SipHash: a fast short-input PRF" (2012); 1 and 3 rounds as in CPython and Rust.
    """
    v: uint64_t[4]
    word: uint64_t
    i: uint32_t = 0
    v[0] = _key0 ^ SIP_0
    v[1] = _key1 ^ SIP_1
    v[2] = _key0 ^ SIP_2
    v[3] = _key1 ^ SIP_3
    while i + 8 <= size:
        memcpy(cython.address(word), key + i, 8)
        v[3] ^= word
        _round(v)
        v[0] ^= word
        i += 8
    word = cython.cast(uint64_t, size) << 56
    while i < size:
        word |= cython.cast(uint64_t, key[i]) << (8 * (i & 7))
        i += 1
    v[3] ^= word
    _round(v)
    v[0] ^= word
    v[2] ^= 0xFF
    _round(v)
    _round(v)
    _round(v)
    word = v[0] ^ v[1] ^ v[2] ^ v[3]
    return cython.cast(uint32_t, word ^ (word >> 32))


def _new_key():
    """Once, when the module is loaded."""
    global _key0, _key1
    _key0 = int.from_bytes(os.urandom(8), "little")
    _key1 = int.from_bytes(os.urandom(8), "little")


_new_key()


def hash_of(key: bytes) -> int:
    """What a routing key as it stands on the wire hashes to, in this process (tests)."""
    return _hash(cython.cast(cython.pointer(uint8_t), cython.cast(cython.p_char, key)), len(key))


# bytes that the pieces of a route cost beside what is in them
SMALL_PIECES = cython.declare(uint64_t, 48)


def route_incref(route):
    at_add32(cython.address(route.refs), 1)


def route_decref(route):
    i: uint32_t
    if at_sub32(cython.address(route.refs), 1) == 1:
        for i in range(route.count):
            queue_decref(route.destinations[i].queue)
        memory_add(MEMORY_ROUTES, -cython.cast(int64_t, _route_bytes(route)))
        free(route.destinations)
        free(route.key)
        free(route.more)
        free(route)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _route_bytes(route: cython.pointer(route_t)) -> uint64_t:
    return cython.sizeof(route_t) + SMALL_PIECES + route.key_len + route.more_len + route.count * cython.sizeof(destination_t)


def route_has_gone(route):
    i: uint32_t
    for i in range(route.count):
        if queue_is_deleted(route.destinations[i].queue):
            return True
    return False


def route_new(key, key_len, destinations, more):
    route: cython.pointer(route_t) = cython.cast(cython.pointer(route_t), calloc(1, cython.sizeof(route_t)))
    handle: QueueHandle
    i: cython.Py_ssize_t = 0
    if route == cython.NULL:
        raise MemoryError
    route.refs = 1
    route.hash = _hash(key, key_len)
    route.key_len = cython.cast(uint16_t, key_len)
    route.more_len = cython.cast(uint32_t, len(more))
    route.key = cython.cast(cython.pointer(uint8_t), calloc(1, key_len))
    if more:
        route.more = cython.cast(cython.pointer(uint8_t), calloc(1, route.more_len))
    if destinations:
        route.destinations = cython.cast(cython.pointer(destination_t), calloc(len(destinations), cython.sizeof(destination_t)))
    memory_add(MEMORY_ROUTES, cython.cast(int64_t, _route_bytes(route)))
    if route.key == cython.NULL or (more and route.more == cython.NULL) or (destinations and route.destinations == cython.NULL):
        route_decref(route)
        raise MemoryError
    memcpy(route.key, key, key_len)
    if more:
        memcpy(route.more, cython.cast(cython.p_char, more), route.more_len)
    for handle in destinations:
        queue_incref(handle.queue)
        route.destinations[i].queue = handle.queue
        route.destinations[i].flags = handle.destination_flags
        route.destinations[i].ttl_ms = handle.ttl_ms
        route.destinations[i].max_length = handle.max_length
        route.destinations[i].max_bytes = handle.max_bytes
        i += 1
        route.count = cython.cast(uint32_t, i)
    memory_add(MEMORY_ROUTES, route.count * cython.sizeof(destination_t))
    return route


def exchange_incref(exchange):
    at_add32(cython.address(exchange.refs), 1)


def exchange_decref(exchange):
    if at_sub32(cython.address(exchange.refs), 1) == 1:
        _drop_routes(exchange)
        memory_add(MEMORY_ROUTES, -cython.cast(int64_t, exchange.bucket_count * cython.sizeof(cython.p_void)))
        free(exchange.buckets)
        free(exchange)


def exchange_find(exchange, key, key_len):
    if not at_load32(cython.address(exchange.usable)):
        return cython.NULL
    wanted: uint32_t = _hash(key, key_len)
    route: cython.pointer(route_t) = cython.NULL
    spin_lock(cython.address(exchange.lock))
    if exchange.bucket_count:
        route = exchange.buckets[wanted & (exchange.bucket_count - 1)]
        while route != cython.NULL:
            if route.hash == wanted and route.key_len == key_len and memcmp(route.key, key, key_len) == 0:
                if at_load32(cython.address(route.valid)):
                    at_add32(cython.address(route.refs), 1)
                else:
                    route = cython.NULL  # somebody found that it is out of date: the next answer takes its place
                break
            route = route.next
    spin_unlock(cython.address(exchange.lock))
    return route


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _drop_routes(exchange: cython.pointer(exchange_t)) -> cython.void:
    chain: cython.pointer(route_t) = cython.NULL
    route: cython.pointer(route_t)
    following: cython.pointer(route_t)
    i: uint32_t
    spin_lock(cython.address(exchange.lock))
    for i in range(exchange.bucket_count):
        route = exchange.buckets[i]
        while route != cython.NULL:
            following = route.next
            at_store32(cython.address(route.valid), 0)
            route.next = chain
            chain = route
            route = following
        exchange.buckets[i] = cython.NULL
    exchange.route_count = 0
    spin_unlock(cython.address(exchange.lock))
    while chain != cython.NULL:
        following = chain.next
        route_decref(chain)
        chain = following


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _unlink(
    exchange: cython.pointer(exchange_t), key: cython.pointer(cython.const[uint8_t]), key_len: uint32_t, wanted: uint32_t
) -> cython.pointer(route_t):
    """Takes the route of `key` out, invalid from now on; the caller drops the table's reference. Called with the lock held."""
    link: cython.pointer(cython.pointer(route_t))
    found: cython.pointer(route_t)
    if exchange.bucket_count == 0:
        return cython.NULL
    link = cython.address(exchange.buckets[wanted & (exchange.bucket_count - 1)])
    while link[0] != cython.NULL:
        found = link[0]
        if found.hash == wanted and found.key_len == key_len and memcmp(found.key, key, key_len) == 0:
            link[0] = found.next
            at_store32(cython.address(found.valid), 0)
            exchange.route_count -= 1
            return found
        link = cython.address(found.next)
    return cython.NULL


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _grow(exchange: cython.pointer(exchange_t)) -> cython.void:
    """Doubles the buckets; called with the lock held. Staying small when memory is short only makes chains longer."""
    count: uint32_t = exchange.bucket_count * 2 if exchange.bucket_count else 8
    buckets: cython.pointer(cython.pointer(route_t)) = cython.cast(
        cython.pointer(cython.pointer(route_t)), calloc(count, cython.sizeof(cython.pointer(route_t)))
    )
    route: cython.pointer(route_t)
    following: cython.pointer(route_t)
    i: uint32_t
    if buckets == cython.NULL:
        return
    for i in range(exchange.bucket_count):
        route = exchange.buckets[i]
        while route != cython.NULL:
            following = route.next
            route.next = buckets[route.hash & (count - 1)]
            buckets[route.hash & (count - 1)] = route
            route = following
    memory_add(MEMORY_ROUTES, (count - exchange.bucket_count) * cython.sizeof(cython.p_void))
    free(exchange.buckets)
    exchange.buckets = buckets
    exchange.bucket_count = count


@cython.cclass
class RouteCache:
    """The cache of one exchange, as the control plane holds it.

    Args: name: exchange name as bytes (<= 255); route_max: routes kept, >= 1.
    """

    def __cinit__(self, name: bytes, route_max: int):
        if len(name) > 255:
            raise ValueError("an exchange name has at most 255 bytes")
        self.exchange = cython.cast(cython.pointer(exchange_t), calloc(1, cython.sizeof(exchange_t)))
        if self.exchange == cython.NULL:
            raise MemoryError
        self.exchange.refs = 1
        self.exchange.owner = cython.cast(cython.p_void, self)
        self.exchange.usable = 1
        self.exchange.name_len = len(name)
        memcpy(self.exchange.name, cython.cast(cython.p_char, name), len(name))
        self.exchange.route_max = route_max

    def __dealloc__(self):
        if self.exchange != cython.NULL:
            self.exchange.owner = cython.NULL
            self.close()
            exchange_decref(self.exchange)

    def close(self) -> None:
        """The exchange is gone: channels that were authorized for it ask again at their next publish."""
        at_store32(cython.address(self.exchange.usable), 0)
        _drop_routes(self.exchange)

    def clear(self) -> None:
        """Drops every route: a binding changed."""
        _drop_routes(self.exchange)

    def set_cacheable(self, cacheable: bool) -> None:
        """False when routes depend on message headers: then nothing is found here."""
        at_store32(cython.address(self.exchange.usable), 1 if cacheable else 0)
        if not cacheable:
            _drop_routes(self.exchange)

    def forget(self, key: bytes) -> None:
        """Drops the one route of `key` (exchange and routing key shortstrs): a queue of the default exchange came or went."""
        octets: cython.pointer(cython.const[uint8_t]) = cython.cast(cython.pointer(uint8_t), cython.cast(cython.p_char, key))
        found: cython.pointer(route_t)
        spin_lock(cython.address(self.exchange.lock))
        found = _unlink(self.exchange, octets, len(key), _hash(octets, len(key)))
        spin_unlock(cython.address(self.exchange.lock))
        if found != cython.NULL:
            route_decref(found)

    @property
    def route_count(self) -> int:
        return self.exchange.route_count

    @property
    def published(self) -> int:
        return self.exchange.published

    def put(self, key, key_len, destinations):
        route: cython.pointer(route_t) = route_new(key, key_len, destinations, b"")
        before: cython.pointer(route_t) = cython.NULL
        if self.exchange.route_count >= self.exchange.route_max:
            _drop_routes(self.exchange)
        spin_lock(cython.address(self.exchange.lock))
        if self.exchange.route_count >= self.exchange.bucket_count:
            _grow(self.exchange)
        # Looked at under the lock: whoever makes the exchange unusable drops what is kept after that.
        if self.exchange.bucket_count and at_load32(cython.address(self.exchange.usable)):
            before = _unlink(self.exchange, key, key_len, route.hash)
            route.valid = 1
            route.refs += 1  # nobody else knows it yet
            route.next = self.exchange.buckets[route.hash & (self.exchange.bucket_count - 1)]
            self.exchange.buckets[route.hash & (self.exchange.bucket_count - 1)] = route
            self.exchange.route_count += 1
        spin_unlock(cython.address(self.exchange.lock))
        if before != cython.NULL:
            route_decref(before)
        return route
