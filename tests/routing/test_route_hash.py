"""Which bucket of the route cache a routing key falls into can't be known outside of the process."""

from __future__ import annotations

import pytest

from flintmq.routing.route_cache import RouteCache


def key_of(routing_key: bytes) -> bytes:
    """As the cache has it: exchange and routing key shortstrs."""
    return b"\x01x" + bytes([len(routing_key)]) + routing_key


def test_another_cache_hashes_otherwise() -> None:
    ours, other = RouteCache(b"x", 10), RouteCache(b"x", 10)
    keys = [key_of(b"%d" % number) for number in range(8)]
    assert [other.hash_of(key) for key in keys] != [ours.hash_of(key) for key in keys]
    assert [ours.hash_of(bytes(bytearray(key))) for key in keys] == [ours.hash_of(key) for key in keys]


@pytest.mark.parametrize("prefix", [b"", b"a", b"a" * 7, b"a" * 8, b"a" * 9, b"a" * 16, b"a" * 200])
@pytest.mark.parametrize("end", ["least", "most"])
def test_keys_spread_over_the_buckets(prefix: bytes, end: str) -> None:
    """Keys of every length up to several words that differ in few bits, at their end or their start; 4,096 keys in 4,096 buckets: a chain
    of 16 has a chance of one in a billion."""
    cache = RouteCache(b"x", 10)
    keys = [prefix + number.to_bytes(2, "big") for number in range(4096)]
    if end == "most":
        keys = [key[::-1] for key in keys]
    chains: dict[int, int] = {}
    for key in keys:
        bucket = cache.hash_of(key_of(key)) & 4095
        chains[bucket] = chains.get(bucket, 0) + 1
    assert max(chains.values()) < 16
    assert len(chains) > 2300, "4096 (1 - 1/e) = 2589 buckets are used on average"


def test_each_byte_and_the_length_count() -> None:
    cache = RouteCache(b"x", 10)
    for size in range(1, 40):
        text = bytes(size)
        others = [text[:place] + b"\x80" + text[place + 1 :] for place in range(size)] + [text + b"\x00"]
        hashes = {cache.hash_of(key_of(other)) for other in [text, *others]}
        assert len(hashes) == size + 2
