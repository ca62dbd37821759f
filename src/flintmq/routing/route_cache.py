"""Route cache of an exchange (see route_cache.pxd).

in: a routing key as it stands on the wire. out: the queues it goes to, or a miss that the routing table answers.

I1  A valid route says what the routing table says; `clear` runs before a changed binding is acknowledged.
I2  At most `route_max` routes are kept; at the limit all are dropped and the cache fills anew (config.route_cache_max).
I3  A key has at most one route here: `put` replaces, whoever computed the same route at the same time. A route is valid only while it is
    in the table, so whatever takes it out (a change, the limit, a replacement) also tells every channel that remembers it.
I4  Which bucket a key falls into, nobody outside of this process can tell. A chain has at most CHAIN_MOST routes: who would make it longer
    makes the cache drop all and take another hash key. A hash is compared with those of the table under the lock, or may miss.
I5  Who gives up a reference had one.
"""

from __future__ import annotations

import os

import cython
from cython import NULL, Py_ssize_t, address, bint, cast, cclass, cfunc, declare, exceptval, nogil, p_char, p_void, pointer, sizeof, void
from cython.cimports.flintmq.core.atomics import at_add32, at_load32, at_store32, at_sub32, spin_lock, spin_unlock
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.keyed_hash import keyed_hash
from cython.cimports.flintmq.core.memory_account import MEMORY_ROUTES, memory_add
from cython.cimports.flintmq.queue.control import QueueHandle
from cython.cimports.flintmq.queue.queue_core import queue_decref, queue_incref, queue_is_deleted
from cython.cimports.flintmq.queue.schedule_share import share_decref
from cython.cimports.libc.stdint import int64_t, uint16_t, uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import calloc, free
from cython.cimports.libc.string import memcmp, memcpy

# routes in one bucket, which has one on average: a chance of one in 10^15 for keys that nobody chose
CHAIN_MOST = declare(uint32_t, 16)


@cfunc
@nogil
@exceptval(check=False)
def _hash_route(exchange: pointer[exchange_t], key: pointer[cython.const[uint8_t]], size: uint32_t) -> uint32_t:
    """The hash of a route. `key`: exchange and routing key shortstrs; the exchange is the same for all of a cache and is left out."""
    start: uint32_t = cast(uint32_t, 1) + key[0]
    if start >= size:
        return 0
    value: uint64_t = keyed_hash(address(exchange.hash_key), key + start, size - start)
    return cast(uint32_t, value ^ (value >> 32))


# bytes that the pieces of a route cost beside their contents
SMALL_PIECES = declare(uint64_t, 48)


def route_incref(route: pointer[route_t]) -> void:
    at_add32(address(route.refs), 1)


def route_decref(route: pointer[route_t]) -> void:
    i: uint32_t
    before: uint32_t = at_sub32(address(route.refs), 1)
    check(before > 0, b"route_cache I5 a route that is let go was referenced", route.hash, route.count)
    if before == 1:
        check(at_load32(address(route.valid)) == 0, b"route_cache I3 a route that is freed is valid nowhere", route.hash, route.count)
        for i in range(route.count):
            queue_decref(route.destinations[i].queue)
            if route.destinations[i].share != NULL:
                share_decref(route.destinations[i].share)
        memory_add(MEMORY_ROUTES, -cast(int64_t, _route_bytes(route)))
        free(route.destinations)
        free(route.key)
        free(route.more)
        free(route)


@cfunc
@nogil
@exceptval(check=False)
def _route_bytes(route: pointer[route_t]) -> uint64_t:
    return sizeof(route_t) + SMALL_PIECES + route.key_len + route.more_len + route.count * sizeof(destination_t)


def route_has_gone(route: pointer[route_t]) -> bint:
    i: uint32_t
    for i in range(route.count):
        if queue_is_deleted(route.destinations[i].queue):
            return True
    return False


def route_new(
    key: pointer[cython.const[uint8_t]], key_len: uint32_t, destinations: list | None, appendix: bytes | None
) -> pointer[route_t]:
    route: pointer[route_t] = cast(pointer[route_t], calloc(1, sizeof(route_t)))
    handle: QueueHandle
    i: Py_ssize_t = 0
    if route == NULL:
        raise MemoryError
    route.refs = 1
    route.key_len = cast(uint16_t, key_len)
    route.more_len = cast(uint32_t, len(appendix))
    route.key = cast(pointer[uint8_t], calloc(1, key_len))
    if appendix:
        route.more = cast(pointer[uint8_t], calloc(1, route.more_len))
    if destinations:
        route.destinations = cast(pointer[destination_t], calloc(len(destinations), sizeof(destination_t)))
    memory_add(MEMORY_ROUTES, cast(int64_t, _route_bytes(route)))
    if route.key == NULL or (appendix and route.more == NULL) or (destinations and route.destinations == NULL):
        route_decref(route)
        raise MemoryError
    memcpy(route.key, key, key_len)
    if appendix:
        memcpy(route.more, cast(p_char, appendix), route.more_len)
    for handle in destinations:
        queue_incref(handle.queue)
        route.destinations[i].queue = handle.queue
        route.destinations[i].flags = handle.destination_flags
        route.destinations[i].ttl_ms = handle.ttl_ms
        route.destinations[i].ttl_least_ms = handle.ttl_least_ms
        i += 1
        route.count = cast(uint32_t, i)
    memory_add(MEMORY_ROUTES, route.count * sizeof(destination_t))
    return route


def exchange_incref(exchange: pointer[exchange_t]) -> void:
    at_add32(address(exchange.refs), 1)


def exchange_decref(exchange: pointer[exchange_t]) -> void:
    before: uint32_t = at_sub32(address(exchange.refs), 1)
    check(before > 0, b"route_cache I5 an exchange that is let go was referenced", exchange.route_count, exchange.name_len)
    if before == 1:
        _drop_routes(exchange)
        memory_add(MEMORY_ROUTES, -cast(int64_t, exchange.bucket_count * sizeof(p_void)))
        free(exchange.buckets)
        free(exchange)


def exchange_find(exchange: pointer[exchange_t], key: pointer[cython.const[uint8_t]], key_len: uint32_t) -> pointer[route_t]:
    if not at_load32(address(exchange.usable)):
        return NULL
    wanted: uint32_t = _hash_route(exchange, key, key_len)
    route: pointer[route_t] = NULL
    spin_lock(address(exchange.lock))
    if exchange.bucket_count:
        route = exchange.buckets[wanted & (exchange.bucket_count - 1)]
        while route != NULL:
            if route.hash == wanted and route.key_len == key_len and memcmp(route.key, key, key_len) == 0:
                if at_load32(address(route.valid)):
                    at_add32(address(route.refs), 1)
                else:
                    route = NULL  # somebody found that it is out of date: the next answer takes its place
                break
            route = route.next
    spin_unlock(address(exchange.lock))
    return route


@cfunc
@nogil
@exceptval(check=False)
def _drop_routes(exchange: pointer[exchange_t], new_key: pointer[hash_key_t] = NULL) -> void:
    """`new_key`: what keys are hashed with from now on; NULL: as before."""
    chain: pointer[route_t] = NULL
    route: pointer[route_t]
    following: pointer[route_t]
    i: uint32_t
    spin_lock(address(exchange.lock))
    for i in range(exchange.bucket_count):
        route = exchange.buckets[i]
        while route != NULL:
            following = route.next
            at_store32(address(route.valid), 0)
            route.next = chain
            chain = route
            route = following
        exchange.buckets[i] = NULL
    exchange.route_count = 0
    if new_key != NULL:
        exchange.hash_key = new_key[0]
    spin_unlock(address(exchange.lock))
    while chain != NULL:
        following = chain.next
        route_decref(chain)
        chain = following


@cfunc
@nogil
@exceptval(check=False)
def _unlink(exchange: pointer[exchange_t], key: pointer[cython.const[uint8_t]], key_len: uint32_t) -> pointer[route_t]:
    """Takes the route of `key` out, invalid from now on; the caller drops the table's reference. Called with the lock held."""
    wanted: uint32_t = _hash_route(exchange, key, key_len)
    link: pointer[pointer[route_t]]
    route: pointer[route_t]
    if exchange.bucket_count == 0:
        return NULL
    link = address(exchange.buckets[wanted & (exchange.bucket_count - 1)])
    while link[0] != NULL:
        route = link[0]
        if route.hash == wanted and route.key_len == key_len and memcmp(route.key, key, key_len) == 0:
            link[0] = route.next
            at_store32(address(route.valid), 0)
            check(exchange.route_count > 0, b"route_cache I2 a route that leaves the table was counted", route.hash, exchange.route_max)
            exchange.route_count -= 1
            return route
        link = address(route.next)
    return NULL


@cfunc
@nogil
@exceptval(check=False)
def _grow(exchange: pointer[exchange_t]) -> void:
    """Doubles the buckets; called with the lock held. Staying small when memory is short only makes chains longer."""
    count: uint32_t = exchange.bucket_count * 2 if exchange.bucket_count else 8
    buckets: pointer[pointer[route_t]] = cast(pointer[pointer[route_t]], calloc(count, sizeof(pointer[route_t])))
    route: pointer[route_t]
    following: pointer[route_t]
    i: uint32_t
    if buckets == NULL:
        return
    for i in range(exchange.bucket_count):
        route = exchange.buckets[i]
        while route != NULL:
            following = route.next
            route.next = buckets[route.hash & (count - 1)]
            buckets[route.hash & (count - 1)] = route
            route = following
    memory_add(MEMORY_ROUTES, (count - exchange.bucket_count) * sizeof(p_void))
    free(exchange.buckets)
    exchange.buckets = buckets
    exchange.bucket_count = count


@cfunc
def _hash_key(key: pointer[hash_key_t]) -> None:
    """Fills in four random words."""
    octets: bytes = os.urandom(sizeof(hash_key_t))
    memcpy(key, cast(p_char, octets), sizeof(hash_key_t))


@cclass
class RouteCache:
    """The cache of one exchange, as the control plane holds it.

    Args: name: exchange name as bytes (<= 255); route_max: routes kept, >= 1.
    """

    def __cinit__(self, name: bytes, route_max: int):
        if len(name) > 255:
            raise ValueError("an exchange name has at most 255 bytes")
        self.exchange = cast(pointer[exchange_t], calloc(1, sizeof(exchange_t)))
        if self.exchange == NULL:
            raise MemoryError
        self.exchange.refs = 1
        self.exchange.owner = cast(p_void, self)
        self.exchange.usable = 1
        self.exchange.name_len = len(name)
        memcpy(self.exchange.name, cast(p_char, name), len(name))
        self.exchange.route_max = route_max
        _hash_key(address(self.exchange.hash_key))

    def __dealloc__(self):
        if self.exchange != NULL:
            self.exchange.owner = NULL
            self.close()
            exchange_decref(self.exchange)

    def close(self) -> None:
        """The exchange is gone: channels that were authorized for it ask again at their next publish."""
        at_store32(address(self.exchange.usable), 0)
        _drop_routes(self.exchange)

    def clear(self) -> None:
        """Drops every route: a binding changed."""
        _drop_routes(self.exchange)

    def set_cacheable(self, cacheable: bool) -> None:
        """False when routes depend on message headers: then nothing is found here."""
        at_store32(address(self.exchange.usable), 1 if cacheable else 0)
        if not cacheable:
            _drop_routes(self.exchange)

    @property
    def cacheable(self) -> bool:
        """What set_cacheable said; False when the exchange is gone."""
        return at_load32(address(self.exchange.usable)) != 0

    def forget(self, key: bytes) -> None:
        """Drops the one route of `key` (exchange and routing key shortstrs): a queue of the default exchange came or went."""
        octets: pointer[cython.const[uint8_t]] = cast(pointer[uint8_t], cast(p_char, key))
        route: pointer[route_t]
        spin_lock(address(self.exchange.lock))
        route = _unlink(self.exchange, octets, len(key))
        spin_unlock(address(self.exchange.lock))
        if route != NULL:
            route_decref(route)

    def keep(self, key: bytes, destinations: list) -> None:
        """Remembers the route of `key` (exchange and routing key shortstrs), when the exchange is usable. Args: destinations: QueueHandle
        list. Raises: MemoryError."""
        route_decref(self.put(cast(pointer[uint8_t], cast(p_char, key)), len(key), destinations))

    @property
    def route_count(self) -> int:
        return self.exchange.route_count

    @property
    def published(self) -> int:
        return self.exchange.published

    def hash_of(self, key: bytes) -> int:
        """What a key of the cache (exchange and routing key shortstrs) hashes to, until a chain becomes too long (tests)."""
        return _hash_route(self.exchange, cast(pointer[uint8_t], cast(p_char, key)), len(key))

    def put(self, key: pointer[cython.const[uint8_t]], key_len: uint32_t, destinations: list | None) -> pointer[route_t]:
        route: pointer[route_t] = route_new(key, key_len, destinations, b"")
        before: pointer[route_t] = NULL
        beside: pointer[route_t]
        bucket: uint32_t
        chain: uint32_t = 0
        new_key: hash_key_t
        if self.exchange.route_count >= self.exchange.route_max:
            _drop_routes(self.exchange)
        spin_lock(address(self.exchange.lock))
        if self.exchange.route_count >= self.exchange.bucket_count:
            _grow(self.exchange)
        # Looked at under the lock: whoever makes the exchange unusable drops what is kept after that.
        if self.exchange.bucket_count and at_load32(address(self.exchange.usable)):
            before = _unlink(self.exchange, key, key_len)
            route.hash = _hash_route(self.exchange, key, key_len)
            route.valid = 1
            route.refs += 1  # nobody else knows it yet
            bucket = route.hash & (self.exchange.bucket_count - 1)
            beside = route.next = self.exchange.buckets[bucket]
            self.exchange.buckets[bucket] = route
            self.exchange.route_count += 1
            while beside != NULL:
                chain += 1
                beside = beside.next
        spin_unlock(address(self.exchange.lock))
        if before != NULL:
            route_decref(before)
        if chain >= CHAIN_MOST:
            # The new key is drawn without the lock: os.urandom lets other threads run.
            _hash_key(address(new_key))
            _drop_routes(self.exchange, address(new_key))
        return route
