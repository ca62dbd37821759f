"""Which bucket of the route cache a routing key falls into can't be known outside of the process."""

from __future__ import annotations

import subprocess
import sys

from flintmq.routing.route_cache import hash_of

PROGRAM = "from flintmq.routing.route_cache import hash_of; print(*(hash_of(b'%d' % number) for number in range(8)))"


def test_another_process_hashes_otherwise() -> None:
    other = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout.split()
    assert [int(value) for value in other] != [hash_of(b"%d" % number) for number in range(8)]


def test_equal_keys_hash_alike_and_others_spread_over_the_buckets() -> None:
    """Of every length up to several words; 4,096 keys in 4,096 buckets: a chain of 16 has a chance of one in a billion."""
    for prefix in (b"", b"a", b"a" * 7, b"a" * 8, b"a" * 9, b"a" * 200):
        keys = [prefix + b"%d" % number for number in range(4096)]
        assert [hash_of(key) for key in keys[:10]] == [hash_of(bytes(bytearray(key))) for key in keys[:10]]
        chains: dict[int, int] = {}
        for key in keys:
            bucket = hash_of(key) & 4095
            chains[bucket] = chains.get(bucket, 0) + 1
        assert max(chains.values()) < 16
