from collections.abc import Collection, Iterable, Sequence
from typing import Any

from flintmq.arrow.containers import Containers

class Moved(Exception):
    rows: list[int]
    def __init__(self, rows: list[int]) -> None: ...

class Unreadable(ValueError):
    rows: list[int]
    def __init__(self, rows: list[int]) -> None: ...

def rows_to_batches(
    containers: Containers,
    payload: bytes | bytearray | memoryview,
    queues: Sequence[Sequence[Any]],
    *,
    columns: Iterable[str] | None = None,
    body: str | None = None,
    rows_max: int = ...,
    bytes_max: int = ...,
    left_out: Collection[int] = ...,
) -> list[Any]: ...
