# Python face of transaction.py (compiled), for the type checker.
from typing import Any

from flintmq.queue.handle import Message, QueueHandle
from flintmq.session.connection import Connection

class Transaction:
    handler: Any
    number: int
    limited: list[int]
    def __init__(self, connection: Connection, number: int) -> None: ...
    def take_letters(self) -> list[tuple[int, int, Message]]: ...
    def hold(
        self,
        core: QueueHandle,
        exchange: bytes,
        routing_key: bytes,
        header: bytes,
        body: bytes,
        flags: int,
        priority: int,
        expires_at_ms: int = 0,
    ) -> bool: ...
    def write(self) -> None: ...
    def abandon(self) -> None: ...
    def detach(self) -> None: ...
    def advance(self) -> bool: ...

def commits_waiting(connection: Connection, number: int) -> int: ...
def begin(connection: Connection, number: int) -> Transaction | None: ...
