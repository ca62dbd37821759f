# Python face of sockets.py (compiled), for the type checker.
from typing import Any

from flintmq.session.connection import Connection

class Socket:
    connection: Connection
    tls: Any
    sock: Any
    def trim(self) -> None: ...
    @property
    def received_ms(self) -> int: ...
    @property
    def sent_ms(self) -> int: ...
    spared: bool
    @property
    def asks_held(self) -> bool: ...
    @property
    def paused(self) -> bool: ...
    @property
    def lingering(self) -> bool: ...
