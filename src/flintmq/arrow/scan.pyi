import os
from collections.abc import Iterable, Iterator
from typing import Any

LOGS: dict[str, int]
STREAMS: dict[str, str]
MODES: tuple[str, ...]

class LogDamaged(Exception):
    lsn: int
    def __init__(self, text: str, lsn: int) -> None: ...

class ContainerGone(Exception): ...

class ContainerScan:
    sequence: int
    log: str
    path: str
    records: int
    blocks: int
    incomplete: int
    torn: int
    damage: list[str]
    warnings: list[str]
    def __iter__(self) -> ContainerScan: ...
    def __next__(self) -> Any: ...
    def report(self, lsn: int, text: str) -> None: ...
    def tuples(self) -> Iterator[list[tuple[int, int, int, int, bytes]]]: ...

def scan_container(
    path: str | os.PathLike[str] | bytes,
    *,
    log: str = "messages",
    stream: str = "records",
    columns: Iterable[str] | None = None,
    body: str | None = None,
    base: int = 0,
    end: int | None = None,
    mode: str = "FAILFAST",
    rows_max: int = ...,
    memory: int = 0,
    store_uuid: bytes | None = None,
) -> ContainerScan: ...
