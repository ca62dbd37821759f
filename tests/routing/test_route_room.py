"""A full cache of routes makes room one bucket at a time, and a change of bindings takes as long for many routes as for few."""

from __future__ import annotations

from flintmq.core.memory_account import bytes_by_kind
from flintmq.queue.control import QueueHandle
from flintmq.routing.route_cache import RouteCache, bury


def key_of(number: int) -> bytes:
    text = b"%08d" % number
    return b"\x01x" + bytes([len(text)]) + text


def filled(count: int, most: int) -> RouteCache:
    cache, queue = RouteCache(b"x", most), QueueHandle(1)
    for number in range(count):
        cache.keep(key_of(number), [queue])
    return cache


def test_at_the_limit_some_routes_go_and_the_newest_is_kept() -> None:
    cache = filled(100, 100)
    for number in range(100, 1000):
        cache.keep(key_of(number), [])
        assert cache.knows(key_of(number)) and 80 <= cache.route_count <= 100
    assert sum(cache.knows(key_of(number)) for number in range(1000)) == cache.route_count


def test_a_change_forgets_many_routes_at_once_and_they_are_freed_in_pieces() -> None:
    while not bury():
        pass
    before = bytes_by_kind()["routes"]
    cache = filled(5000, 10_000)
    full = bytes_by_kind()["routes"]
    cache.clear()
    assert cache.route_count == 0 and not any(cache.knows(key_of(number)) for number in range(5000))
    assert bytes_by_kind()["routes"] > before + (full - before) // 2, "not one after the other while a binding waits"
    pieces = 1
    while not bury():
        pieces += 1
    assert bytes_by_kind()["routes"] == before and 5000 // 256 <= pieces <= 100


def test_new_routes_free_those_of_before() -> None:
    while not bury():
        pass
    cache = filled(4000, 10_000)
    cache.clear()
    for number in range(2000):
        cache.keep(key_of(number), [])
    assert bury(), "nothing waits any more"
    assert cache.route_count == 2000 and all(cache.knows(key_of(number)) for number in range(2000))
