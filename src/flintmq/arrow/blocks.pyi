from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

INPUTS: tuple[str, ...]
NUMBERS: frozenset[str]
BLOCK_BYTES: int
DECODED_MAX: int
DELIVERY_MODE: int

class EncodeError(ValueError):
    row: int | None
    column: str
    text: str
    def __init__(self, row: int | None, column: str, text: str) -> None: ...

@dataclass(frozen=True)
class EncodeOptions:
    exchange: str = ""
    routing_key: str = ""
    constants: Mapping[str, str | bytes | int] = field(default_factory=dict)
    block_bytes: int = ...

def validate(batch: Any) -> None: ...

class Encoder:
    def __init__(self, batch: Any, options: EncodeOptions, first_row: int) -> None: ...
    def block(self) -> tuple[list[list[str]], bytes] | None: ...

def blocks_of(batch: Any, options: EncodeOptions | None = None, *, first_row: int = 0) -> Iterator[tuple[list[list[str]], bytes]]: ...
