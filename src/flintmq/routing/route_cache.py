"""Route cache of an exchange (see route_cache.pxd).

in: a routing key as it stands on the wire. out: the queues it goes to, or a miss that the routing table answers.

I1  A valid route says what the routing table says; `clear` runs before a changed binding is acknowledged. It takes as long for 65,536
    routes as for DROPPED_AT_ONCE: their generation becomes invalid, and `bury` frees them later, in pieces.
I2  At most `route_max` routes are kept; at the limit one bucket after another is emptied (config.route_cache_max).
I3  A key has at most one route here: `put` replaces, whoever computed the same route at the same time. A route is valid only while it is
    in the table, so whatever takes it out (a change, the limit, a replacement) also tells every channel that remembers it.
I4  Which bucket a key falls into, nobody outside of this process can tell. A chain has at most CHAIN_MOST routes: who would make it longer
    makes the cache drop all and take another hash key. A hash is compared with those of the table under the lock, or may miss.
I5  Who gives up a reference had one.
I6  What the deciding bytes of `contents` leave out decides nothing: a sieve is of the same bindings as the routes that have it.
"""

from __future__ import annotations

import os

import cython
from cython import NULL, Py_ssize_t, address, bint, cast, cclass, cfunc, declare, exceptval, nogil, p_char, p_void, pointer, sizeof, void
from cython.cimports.flintmq.core.atomics import at_add32, at_add64, at_load32, at_store32, at_sub32, spin_lock, spin_unlock
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.keyed_hash import keyed_hash
from cython.cimports.flintmq.core.memory_account import MEMORY_ROUTES, memory_add
from cython.cimports.flintmq.queue.control import QueueHandle
from cython.cimports.flintmq.queue.queue_core import queue_decref, queue_incref, queue_is_deleted
from cython.cimports.flintmq.queue.schedule_share import share_decref
from cython.cimports.flintmq.routing.recent import Recent, recent_decref, recent_incref, recent_t
from cython.cimports.flintmq.routing.seen import Seen, seen_decref, seen_incref
from cython.cimports.flintmq.routing.sieve import sieve_decref, sieve_incref, sieve_new
from cython.cimports.libc.stdint import int64_t, uint16_t, uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import calloc, free, malloc
from cython.cimports.libc.string import memcmp, memcpy

from flintmq.config import Limits
from flintmq.routing.message import PlannedRoute

_LIMITS = Limits()
# of a route that Python makes anew for each message: channel/types.pxd SLOWLY_IN_PYTHON
ASKED_EACH_TIME = declare(uint8_t, 1)
# where a choice by chance comes from: a Weyl sequence through the finalizer of splitmix64 (Steele, Lea, Flood 2014)
_chance = declare(uint64_t, int.from_bytes(os.urandom(8), "big"))
# routes (and buckets) that are freed at once
DROPPED_AT_ONCE = declare(uint32_t, 256)
# routes that a new one frees of those that wait: they are gone before a cache is full again
BURIED_BY_A_KEPT = declare(uint32_t, 8)
_graves_lock = declare(uint32_t, 0)
_graves = declare(pointer[grave_t], NULL)
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


@cfunc
@nogil
@exceptval(check=False)
def _generation_decref(generation: pointer[generation_t]) -> void:
    if generation != NULL and at_sub32(address(generation.refs), 1) == 1:
        free(generation)


def route_incref(route: pointer[route_t]) -> void:
    at_add32(address(route.refs), 1)


def route_decref(route: pointer[route_t]) -> void:
    i: uint32_t
    before: uint32_t = at_sub32(address(route.refs), 1)
    check(before > 0, b"route_cache I5 a route that is let go was referenced", route.hash, route.count)
    if before == 1:
        check(at_load32(address(route.valid)) == 0, b"route_cache I3 a route that is freed is valid nowhere", route.hash, route.count)
        _generation_decref(route.generation)
        for i in range(route.count):
            queue_decref(route.destinations[i].queue)
            if route.destinations[i].share != NULL:
                share_decref(route.destinations[i].share)
        memory_add(MEMORY_ROUTES, -cast(int64_t, _route_bytes(route)))
        sieve_decref(route.sieve)
        _forget_keeping(route)
        free(route.destinations)
        free(route.key)
        free(route.more)
        free(route)


@cfunc
@nogil
@exceptval(check=False)
def _route_bytes(route: pointer[route_t]) -> uint64_t:
    return sizeof(route_t) + SMALL_PIECES + route.find_len + route.more_len + route.count * sizeof(destination_t)


@cfunc
@nogil
@exceptval(check=False)
def _forget_keeping(route: pointer[route_t]) -> void:
    keeping: pointer[keeping_t] = route.keeping
    i: uint32_t
    if keeping == NULL:
        return
    memory_add(MEMORY_ROUTES, -cast(int64_t, sizeof(keeping_t) + keeping.count * sizeof(p_void)))
    for i in range(keeping.count):
        recent_decref(keeping.recents[i])
    seen_decref(keeping.seen)
    if keeping.other != NULL:
        route_decref(keeping.other)
    free(keeping.recents)
    free(keeping)


@cfunc
def _set_keeping(route: pointer[route_t], plan: object) -> None:
    """Gives a fresh route those that remember its messages. Args: plan: message.PlannedRoute. Raises: MemoryError."""
    keeping: pointer[keeping_t] = cast(pointer[keeping_t], calloc(1, sizeof(keeping_t)))
    recent: Recent
    seen: Seen
    if keeping == NULL:
        raise MemoryError
    route.keeping = keeping
    memory_add(MEMORY_ROUTES, sizeof(keeping_t))
    keeping.recents = cast(pointer[pointer[recent_t]], calloc(len(plan.recents) + 1, sizeof(p_void)))
    if keeping.recents == NULL:
        raise MemoryError
    memory_add(MEMORY_ROUTES, len(plan.recents) * sizeof(p_void))
    for recent in plan.recents:
        recent_incref(recent.recent)
        keeping.recents[keeping.count] = recent.recent
        keeping.count += 1
    if plan.other is not None:
        seen = plan.seen
        seen_incref(seen.seen)
        keeping.seen = seen.seen
        keeping.other = route_new(route.key, route.key_len, plan.other.cores, b"")
        _set_keeping(keeping.other, plan.other)


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
    route.find_len = key_len
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


def route_choose(route: pointer[route_t]) -> pointer[route_t]:
    chosen: pointer[route_t]
    value: uint64_t = at_add64(address(_chance), 0x9E3779B97F4A7C15)
    if route.count == 0:
        return NULL
    value = (value ^ (value >> 30)) * cast(uint64_t, 0xBF58476D1CE4E5B9)
    value = (value ^ (value >> 27)) * cast(uint64_t, 0x94D049BB133111EB)
    value ^= value >> 31
    chosen = cast(pointer[route_t], calloc(1, sizeof(route_t)))
    if chosen == NULL:
        return NULL
    chosen.refs = 1
    chosen.key_len = route.key_len
    chosen.find_len = route.key_len
    memory_add(MEMORY_ROUTES, cast(int64_t, _route_bytes(chosen)))
    chosen.key = cast(pointer[uint8_t], calloc(1, route.key_len))
    chosen.destinations = cast(pointer[destination_t], calloc(1, sizeof(destination_t)))
    if chosen.key == NULL or chosen.destinations == NULL:
        route_decref(chosen)
        return NULL
    memcpy(chosen.key, route.key, route.key_len)
    chosen.destinations[0] = route.destinations[((value >> 32) * route.count) >> 32]
    chosen.destinations[0].share = NULL  # of schedules alone
    queue_incref(chosen.destinations[0].queue)
    chosen.count = 1
    memory_add(MEMORY_ROUTES, sizeof(destination_t))
    return chosen


def exchange_incref(exchange: pointer[exchange_t]) -> void:
    at_add32(address(exchange.refs), 1)


def exchange_decref(exchange: pointer[exchange_t]) -> void:
    before: uint32_t = at_sub32(address(exchange.refs), 1)
    check(before > 0, b"route_cache I5 an exchange that is let go was referenced", exchange.route_count, exchange.name_len)
    if before == 1:
        _drop_routes(exchange)
        if exchange.contents != NULL:
            exchange_decref(exchange.contents)
        free(exchange)


def exchange_find(
    exchange: pointer[exchange_t], key: pointer[cython.const[uint8_t]], key_len: uint32_t, how: pointer[uint8_t]
) -> pointer[route_t]:
    if not at_load32(address(exchange.usable)):
        return NULL
    wanted: uint32_t = _hash_route(exchange, key, key_len)
    route: pointer[route_t] = NULL
    spin_lock(address(exchange.lock))
    if exchange.bucket_count:
        route = exchange.buckets[wanted & (exchange.bucket_count - 1)]
        while route != NULL:
            if route.hash == wanted and route.find_len == key_len and memcmp(route.key, key, key_len) == 0:
                if route_is_valid(route):
                    at_add32(address(route.refs), 1)
                    how[0] = route.how
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
    global _graves
    grave: pointer[grave_t] = NULL
    here: grave_t
    if exchange.route_count > DROPPED_AT_ONCE:
        grave = cast(pointer[grave_t], malloc(sizeof(grave_t)))
    if grave == NULL:  # some, or no memory for doing it later
        grave = address(here)
    spin_lock(address(exchange.lock))
    if exchange.generation != NULL:
        at_store32(address(exchange.generation.valid), 0)
    grave.generation = exchange.generation
    grave.buckets = exchange.buckets
    grave.bucket_count = exchange.bucket_count
    grave.hand = 0
    grave.next = NULL
    exchange.generation = NULL
    exchange.buckets = NULL
    exchange.bucket_count = 0
    exchange.route_count = 0
    exchange.bytes = 0
    if new_key != NULL:
        exchange.hash_key = new_key[0]
    spin_unlock(address(exchange.lock))
    if grave == address(here):
        while not _bury_some(grave, DROPPED_AT_ONCE):
            pass
        return
    spin_lock(address(_graves_lock))
    grave.next = _graves
    _graves = grave
    spin_unlock(address(_graves_lock))


@cfunc
@nogil
@exceptval(check=False)
def _bury_some(grave: pointer[grave_t], most: uint32_t) -> bint:
    """Frees what stands in buckets, a bucket at a time, until that were so many routes or buckets. True: all is freed but the grave."""
    route: pointer[route_t]
    while grave.hand < grave.bucket_count:
        if most == 0:
            return False
        most -= 1
        route = grave.buckets[grave.hand]
        if route == NULL:
            grave.hand += 1
            continue
        grave.buckets[grave.hand] = route.next
        at_store32(address(route.valid), 0)
        route_decref(route)
    memory_add(MEMORY_ROUTES, -cast(int64_t, grave.bucket_count * sizeof(p_void)))
    free(grave.buckets)
    _generation_decref(grave.generation)
    return True


@cfunc
@nogil
@exceptval(check=False)
def _bury(most: uint32_t) -> bint:
    """True: nothing waits to be freed."""
    global _graves
    grave: pointer[grave_t]
    if _graves == NULL:  # a look without the lock
        return True
    spin_lock(address(_graves_lock))
    grave = _graves
    if grave != NULL:
        _graves = grave.next  # who has it has it alone
    spin_unlock(address(_graves_lock))
    if grave == NULL:
        return True
    if _bury_some(grave, most):
        free(grave)
        return _graves == NULL
    spin_lock(address(_graves_lock))
    grave.next = _graves
    _graves = grave
    spin_unlock(address(_graves_lock))
    return False


def bury() -> bool:
    """Frees some of the routes that changes took out of caches, some 50 us. True: none is left. Any thread."""
    return _bury(DROPPED_AT_ONCE)


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
        if route.hash == wanted and route.find_len == key_len and memcmp(route.key, key, key_len) == 0:
            link[0] = route.next
            at_store32(address(route.valid), 0)
            check(exchange.route_count > 0, b"route_cache I2 a route that leaves the table was counted", route.hash, exchange.route_max)
            exchange.route_count -= 1
            if exchange.bytes_max:
                exchange.bytes -= _route_bytes(route)
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
    if exchange.generation == NULL:
        exchange.generation = cast(pointer[generation_t], calloc(1, sizeof(generation_t)))
        if exchange.generation != NULL:
            exchange.generation.refs = exchange.generation.valid = 1
    if buckets == NULL or exchange.generation == NULL:
        free(buckets)
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
@nogil
@exceptval(check=False)
def _make_room(exchange: pointer[exchange_t], size: uint64_t) -> pointer[route_t]:
    """Empties buckets, one after another, until `size` bytes and one more route have room: a client who brings ever new routes pushes out
    some, not all. Returns them chained. Called with the lock held."""
    chain: pointer[route_t] = NULL
    route: pointer[route_t]
    if exchange.bytes_max == 0:
        size = 0
    while exchange.route_count and (exchange.route_count >= exchange.route_max or exchange.bytes + size > exchange.bytes_max):
        exchange.hand = (exchange.hand + 1) & (exchange.bucket_count - 1)
        route = exchange.buckets[exchange.hand]
        while route != NULL:
            exchange.buckets[exchange.hand] = route.next
            at_store32(address(route.valid), 0)
            exchange.route_count -= 1
            if exchange.bytes_max:
                exchange.bytes -= _route_bytes(route)
            route.next = chain
            chain = route
            route = exchange.buckets[exchange.hand]
    return chain


@cfunc
def _keep(exchange: pointer[exchange_t], usable: pointer[uint32_t], route: pointer[route_t]) -> None:
    """Puts a route that nobody else knows into the table, in the place of any other of its key."""
    before: pointer[route_t] = NULL
    chain: pointer[route_t] = NULL
    beside: pointer[route_t]
    bucket: uint32_t
    length: uint32_t = 0
    size: uint64_t = _route_bytes(route)
    new_key: hash_key_t
    spin_lock(address(exchange.lock))
    if exchange.bucket_count:
        chain = _make_room(exchange, size)
    if exchange.route_count >= exchange.bucket_count:
        _grow(exchange)
    # Looked at under the lock: whoever makes the exchange unusable drops what is kept after that.
    if (
        exchange.bucket_count
        and exchange.generation != NULL
        and at_load32(usable)
        and (exchange.bytes_max == 0 or size <= exchange.bytes_max)
    ):
        before = _unlink(exchange, route.key, route.find_len)
        route.hash = _hash_route(exchange, route.key, route.find_len)
        route.valid = 1
        route.refs += 1  # nobody else knows it yet
        route.generation = exchange.generation
        at_add32(address(route.generation.refs), 1)
        bucket = route.hash & (exchange.bucket_count - 1)
        beside = route.next = exchange.buckets[bucket]
        exchange.buckets[bucket] = route
        exchange.route_count += 1
        if exchange.bytes_max:
            exchange.bytes += size
        while beside != NULL:
            length += 1
            beside = beside.next
    spin_unlock(address(exchange.lock))
    if before != NULL:
        route_decref(before)
    while chain != NULL:
        beside = chain.next
        route_decref(chain)
        chain = beside
    _bury(BURIED_BY_A_KEPT)
    if length >= CHAIN_MOST:
        # The new key is drawn without the lock: os.urandom lets other threads run.
        _hash_key(address(new_key))
        _drop_routes(exchange, address(new_key))


@cfunc
def _new_table(route_max: uint32_t) -> pointer[exchange_t]:
    """NULL: no memory."""
    exchange: pointer[exchange_t] = cast(pointer[exchange_t], calloc(1, sizeof(exchange_t)))
    if exchange != NULL:
        exchange.refs = 1
        exchange.usable = 1
        exchange.route_max = route_max
        _hash_key(address(exchange.hash_key))
    return exchange


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
        self.exchange = _new_table(route_max)
        if self.exchange == NULL:
            raise MemoryError
        self.exchange.owner = cast(p_void, self)
        self.exchange.name_len = len(name)
        memcpy(self.exchange.name, cast(p_char, name), len(name))
        self.exchange.contents = _new_table(_LIMITS.content_routes_max)
        if self.exchange.contents == NULL:
            raise MemoryError
        self.exchange.contents.bytes_max = _LIMITS.content_routes_bytes_max

    def __dealloc__(self):
        if self.exchange != NULL:
            self.exchange.owner = NULL
            self.close()
            exchange_decref(self.exchange)

    def close(self) -> None:
        """The exchange is gone: channels that were authorized for it ask again at their next publish."""
        at_store32(address(self.exchange.usable), 0)
        self.clear()

    def clear(self) -> None:
        """Drops every route: a binding changed."""
        _drop_routes(self.exchange)
        self._forget_contents()
        sieve_decref(self.sieve)
        self.sieve = NULL
        self.changes += 1

    def _forget_contents(self) -> None:
        if self.exchange.contents != NULL and self.exchange.contents.route_count:
            _drop_routes(self.exchange.contents)

    def set_cacheable(self, cacheable: bool, how: int = 0) -> None:
        """What decides a route. False: more of each message than a cache looks at: nothing is found here. how: ROUTE_BY_CONTENT,
        headers do; ROUTE_BY_CHANCE, chance does; ROUTE_BY_MEMORY: what exchanges remember does; else the key does."""
        is_other: bint = self.exchange.how != how
        self.exchange.how = how
        at_store32(address(self.exchange.usable), 1 if cacheable else 0)
        if not cacheable or is_other:
            self.clear()

    @property
    def cacheable(self) -> bool:
        """Whether (exchange, key) decides; False when the exchange is gone."""
        return at_load32(address(self.exchange.usable)) != 0 and self.exchange.how == 0

    @property
    def usable(self) -> bool:
        """What set_cacheable said; False when the exchange is gone."""
        return at_load32(address(self.exchange.usable)) != 0

    @property
    def how(self) -> int:
        return self.exchange.how

    def forget(self, key: bytes) -> None:
        """Drops the one route of `key` (exchange and routing key shortstrs): a queue of the default exchange came or went."""
        octets: pointer[cython.const[uint8_t]] = cast(pointer[uint8_t], cast(p_char, key))
        route: pointer[route_t]
        spin_lock(address(self.exchange.lock))
        route = _unlink(self.exchange, octets, len(key))
        spin_unlock(address(self.exchange.lock))
        if route != NULL:
            route_decref(route)
        self._forget_contents()

    @property
    def content_route_count(self) -> int:
        return self.exchange.contents.route_count

    @property
    def content_route_bytes(self) -> int:
        return self.exchange.contents.bytes

    def keep(self, key: bytes, destinations: list | None) -> None:
        """Remembers the route of `key` (exchange and routing key shortstrs), when the exchange is usable. Args: destinations: QueueHandle
        list, None: headers decide; of ROUTE_BY_MEMORY one message.PlannedRoute. Raises: MemoryError."""
        route_decref(self.put(cast(pointer[uint8_t], cast(p_char, key)), len(key), destinations))

    def knows(self, key: bytes) -> bool:
        """Whether the route of `key` is remembered."""
        how: uint8_t = 0
        route: pointer[route_t] = exchange_find(self.exchange, cast(pointer[uint8_t], cast(p_char, key)), len(key), address(how))
        if route != NULL:
            route_decref(route)
        return route != NULL

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
        by_content: bint = self.exchange.how == ROUTE_BY_CONTENT and self._prepare()
        plan = destinations[0] if destinations and isinstance(destinations[0], PlannedRoute) else None
        if plan is not None:
            destinations = plan.cores
        route: pointer[route_t] = route_new(key, key_len, destinations or [], b"")
        route.how = self.exchange.how
        if route.how == ROUTE_BY_CONTENT:
            if by_content:
                route.sieve = self.sieve
                sieve_incref(route.sieve)
            else:
                route.how = ASKED_EACH_TIME
        elif route.how == ROUTE_BY_MEMORY and plan is not None:
            try:
                _set_keeping(route, plan)
            except BaseException:
                route_decref(route)
                raise
        elif destinations is None or plan is not None or route.how == ROUTE_BY_MEMORY:  # a change came between
            route.how = ASKED_EACH_TIME
            return route
        _keep(self.exchange, address(self.exchange.usable), route)
        return route

    def _prepare(self) -> bint:
        """Has the sieve of the bindings of now (I6). False: too many headers decide."""
        changes: uint64_t = 0
        made: pointer[sieve_t]
        while self.sieve == NULL:
            changes = self.changes
            deciding = self.deciding()
            if deciding is None:
                return False
            made = sieve_new(deciding.names, deciding.others)
            if changes == self.changes and self.sieve == NULL:
                self.sieve = made
            else:
                sieve_decref(made)
        return True

    def put_content(self, found_by: bytes, key_len: uint32_t, destinations: list, other_keys: bytes) -> pointer[route_t]:
        route: pointer[route_t] = route_new(cast(pointer[uint8_t], cast(p_char, found_by)), len(found_by), destinations, other_keys)
        route.key_len = cast(uint16_t, key_len)
        _keep(self.exchange.contents, address(self.exchange.usable), route)
        return route
