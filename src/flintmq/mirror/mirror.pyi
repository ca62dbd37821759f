# What mirror.py (compiled) gives Python, for the type checker.
from flintmq.core.content_view import ContentView
from flintmq.queue.control import QueueHandle
from flintmq.queue.log_port import LogPort

class MirrorPort(LogPort):
    """The log port of all shared queues that a node owns. Args: hot_bytes: bodies that a queue keeps in memory of what the engine has;
    *_bytes_max: what may wait for the engine, of one queue and of those of a virtual host; log: whose loops send confirms."""

    def __init__(self, hot_bytes: int, queue_bytes_max: int, vhost_bytes_max: int, log: LogPort | None = None) -> None: ...
    def wake(self) -> None:
        """Confirms may leave."""
    def rest(self, level: int) -> None:
        """0: the engine has room; 1: publishers to all queues wait, and what can't wait is refused; 2: all is refused. O(virtual hosts)."""
    def waiting_bytes(self) -> int:
        """Of all queues. O(virtual hosts)."""
    @property
    def descriptor(self) -> int:
        """Readable while `take_told` has something."""
    def take_told(self) -> list[int]:
        """Ids of the queues that have news, each once. O(their number)."""

class Mirror:
    """Of one queue, made before anybody uses that. One thread; a position is that of a segment's first place (level in the top 8 bits)."""

    def __init__(self, handle: QueueHandle, port: MirrorPort, vhost: str) -> None: ...
    def take(self, epoch: int, batch: int, messages: int, size: int, most_segments: int) -> list[tuple[int, bytes]]:
        """The segments of the next batch: (position, row for the engine; b"": all of it has ended). At most `messages` places, `size` bytes
        or one message, and so many segments. Empty: nothing waits, or a transaction is in the way. Raises: MemoryError."""
    def settle(self, positions: list[int]) -> None:
        """The segments of a batch, and all batches before, are in the engine. Raises: KeyError."""
    def lose(self) -> None:
        """The node owns the queue no more: publishes are refused, and those that wait for the engine, too."""
    def admits(self, size: int) -> bool:
        """Whether a message of so many bytes may come now: this node owns the queue, and what waits is below the bounds."""
    @property
    def waiting_bytes(self) -> int:
        """Bytes of messages that are not settled, with an overhead for each."""
    @property
    def unsent(self) -> int:
        """Places that are in no batch yet."""
    def is_settled(self, position: int) -> bool:
        """Whether the message at this position needs nothing more of the engine: its row is there, or it had ended before."""
    def sent_to(self) -> list[int]:
        """The last index of each level that is in a batch."""
    def take_ends(self, most: int) -> list[tuple[int, bool, bytes, bool]]:
        """Settled segments in which messages ended (or came back) since they were taken here: (position, all have ended: its rows are to be
        deleted; else its row of ends; whether its row is mostly of ended ones, see `thin`). At most `most`."""
    @property
    def ended_rows(self) -> int: ...
    def note_ends(self, position: int) -> None:
        """The engine gets a row of its ends. Raises: KeyError."""
    def has_ends(self, position: int) -> bool: ...
    def has_row(self, position: int) -> bool: ...
    def soil(self, position: int) -> None:
        """Its ends are to be written again. Raises: KeyError."""
    def drop(self, position: int) -> None:
        """Its rows are deleted. Raises: KeyError."""
    def thin(self, position: int, data: bytes) -> tuple[bytes, int]:
        """Its row without what has ended, and the size that `thinned` is told once the engine has it. Raises: KeyError, ValueError."""
    def thinned(self, position: int, size: int) -> None: ...
    def restore(self, data: bytes, ends: bytes, redelivered: bool) -> int:
        """Puts the messages of a row into the queue; rows rise in each level. ends: its row of ends, b"": none. Returns how many.

        Raises: ValueError: the row is damaged, or does not fit; MemoryError."""
    def restored(self, tails: list[int]) -> None:
        """All rows are there: consumers are woken. tails: the last index in use of each level."""
    def take_wanted(self) -> list[int]:
        """Segments of which contents are to be brought into memory."""
    def load(self, data: bytes) -> None:
        """Brings them there, from its row. Raises: ValueError, MemoryError."""
    def views(self, data: bytes) -> list[tuple[int, ContentView]]:
        """The messages in a row, ended ones among them; the queue is not changed. Raises: ValueError, MemoryError. O(bytes)."""
