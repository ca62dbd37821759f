# Python face of traceparent.py (compiled), for the type checker.
TRACED_FIREHOSE: int
TRACED_SHIFT: int
TRACED_MOST: int

def is_wanted(table: bytes, traced: int) -> bool: ...
