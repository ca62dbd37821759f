from flintmq.store.stream.stream_files import Stream
from flintmq.streams.source import StreamSource

class DiskSource(StreamSource):
    """An open stream of the store, for StreamQueue."""

    stream: Stream
    def __init__(self, stream: Stream) -> None: ...
    def taken(self) -> None: ...
