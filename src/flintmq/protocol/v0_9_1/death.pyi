# Python face of death.py (compiled), for the type checker.
def queue_hash(name: bytes) -> int: ...
def is_cycle(deaths: bytes, cut: bool, queue: int) -> bool: ...
def letter_header(
    header: bytes,
    queue: bytes,
    reason: bytes,
    exchange: bytes,
    routing_key: bytes,
    time_s: int,
    new_key: bytes | None = None,
) -> tuple[bytes, list[bytes], bytes, bool, int, int | None]: ...
