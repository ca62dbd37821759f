# Python face of sieve.py (compiled), for the type checker.
from collections.abc import Collection, Mapping

def deciding_bytes(
    names: Mapping[bytes, Collection[bytes] | None] | None, others: Collection[bytes], table: bytes, room: int
) -> bytes | None: ...
