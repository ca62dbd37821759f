# Python face of mover.py (compiled), for the type checker.
from collections.abc import Callable

SETTLE_NEVER: int
SETTLE_PUBLISHED: int
SETTLE_CONFIRMED: int

class MoverError(ValueError): ...

class Mover:
    moved: int
    refused: bool
    def __init__(
        self,
        mode: int,
        exchange: bytes | None = None,
        key: bytes | None = None,
        *,
        mandatory: bool = False,
        messages_left: int = -1,
        window: int = 1,
        change: Callable[[bytes, bytes, bool, bytes], bytes | None] | None = None,
        source_frame_max: int = 131_072,
        frame_max: int = 131_072,
    ) -> None: ...
    def deliveries(self, data: bytearray, start: int, end: int) -> int: ...
    def take(self) -> bytes: ...
    def confirms(self, data: bytearray, start: int, end: int) -> int: ...
    def acks(self, every: bool = False) -> bytes: ...
    @property
    def full(self) -> bool: ...
    @property
    def finished(self) -> bool: ...
    @property
    def unsettled(self) -> int: ...
