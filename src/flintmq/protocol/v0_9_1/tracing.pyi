# Python face of tracing.py (compiled), for the type checker.

def trace_header(
    message: tuple[bytes, bytes, bytes],
    keys: bytes | None,
    place: bytes,
    user: bytes,
    channel: int,
    redelivered: int | None,
    queues: list[bytes],
    body_size: int,
) -> bytes: ...
