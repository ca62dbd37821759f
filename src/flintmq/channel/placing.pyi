# Python face of placing.py (compiled), for the type checker.
from flintmq.queue.control import QueueHandle

class Landing:
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

def pack_keys(keys: list[bytes]) -> bytes: ...
