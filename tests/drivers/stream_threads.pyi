from flintmq.streams.control import StreamQueue
from tests.drivers.stream_driver import StreamConsumer
from tests.twins.memory_stream import MemoryStream

class StreamThreads:
    def __init__(self, stream: StreamQueue, total: int, lanes: int, keep: bool = True, log: MemoryStream | None = None) -> None: ...
    def stop(self) -> None: ...
    def results(self, lane: int) -> dict[str, int]: ...
    def produce(self, count: int, size: int = 100, publish_every: int = 64, pause_us: int = 0, ahead: int = 0) -> None: ...
    def consume(
        self,
        consumers: list[StreamConsumer],
        lanes: list[int],
        return_every: int = 0,
        leave_after: int = 0,
        hold: int = 1,
        copy: bool = False,
    ) -> int: ...
