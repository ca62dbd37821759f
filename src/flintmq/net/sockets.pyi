# Python face of sockets.py (compiled), for the type checker.
from typing import Any

from flintmq.session.connection import Connection

class Socket:
    connection: Connection
    tls: Any
    sock: Any
    @property
    def bytes_received(self) -> int: ...
    @property
    def bytes_sent(self) -> int: ...
    @property
    def received_ms(self) -> int: ...
    @property
    def sent_ms(self) -> int: ...
    @property
    def paused(self) -> bool: ...
    @property
    def lingering(self) -> bool: ...
