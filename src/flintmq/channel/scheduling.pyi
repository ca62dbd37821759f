def due_of(header: bytes, now_ms: int) -> tuple[int, bytes]:
    """When a message asks to be delivered, and its content header with negative delays.

    Args: header: content header payload; now_ms: wall clock. Returns: (milliseconds since 1970, 0: now; content header).
    Raises: PeerError 406: a time that is too far ahead.
    """
