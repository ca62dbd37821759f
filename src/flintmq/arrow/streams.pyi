from collections.abc import Iterable, Iterator
from typing import Any

from flintmq.arrow.keys import KeyPart

class StreamDamaged(Exception):
    offset: int
    upto: int
    def __init__(self, text: str, offset: int, upto: int) -> None: ...

class StreamFiles:
    size: int
    low: int
    end: int
    lost: int
    def __init__(self, directory: str, store_uuid: bytes, container_size: int, memory: int = ...) -> None: ...
    def bounds(self, end: int) -> None: ...
    def batches(
        self,
        first: int,
        upto: int,
        *,
        queue: str,
        columns: Iterable[str] | None = None,
        body: str | None = None,
        tolerant: bool = False,
        part: KeyPart | None = None,
        rows_max: int = ...,
        bytes_max: int = ...,
    ) -> Iterator[Any]: ...
    def place(self, offset: int) -> tuple[int, int]: ...
    def offset_behind(self, lsn: int) -> int | None: ...
    def offset_since(self, time_us: int) -> int | None: ...
    def close(self) -> None: ...
