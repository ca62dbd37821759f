from threading import Lock

MEMORY: int

class Containers:
    directory: str
    container_size: int
    log: int
    memory: int
    store_uuid: bytes | None
    users: Lock
    def __init__(
        self, directory: str, store_uuid: bytes | None = None, log: int = 1, memory: int = ..., container_size: int = 0
    ) -> None: ...
    def close(self) -> None: ...
    def give(self, sequence: int, data: bytes) -> None: ...
