from collections.abc import Callable

class LogPort:
    on_durable: Callable[[], None] | None
    def __init__(self) -> None: ...
