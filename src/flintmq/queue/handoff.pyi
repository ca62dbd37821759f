from flintmq.queue.control import QueueHandle
from flintmq.queue.log_port import LogPort

WAITING_BYTES: int
RETURNED: int
# (queue id, message with flags and priority or None: an entry ended, receipt, position, expires_at_ms, lane, bytes counted there, why an
# entry ended: ports.DequeueReason, or RETURNED: it did not, and came back to a window that keeps returns)
Item = tuple[int, tuple[bytes, bytes, bytes, bytes, int, int] | None, int, int, int, int, int, int]

class SharedPort(LogPort):
    """The port of all shared queues of a node. Args: log: whose loops send confirms; *_bytes_max: of messages that wait for the engine, of
    one queue and of all queues of a virtual host, with WAITING_BYTES each."""

    def __init__(self, log: LogPort | None, queue_bytes_max: int, vhost_bytes_max: int) -> None: ...
    def take(self, most: int) -> list[Item]:
        """The first items of the line, `most` at most. Each receipt that is not 0 is to be answered once, and each message to leave its
        lane."""
    def hold_up(self, waits: bool) -> None:
        """The engine is nearly full, or has room again: whoever publishes by a connection is told to wait."""
    def admit(self, handle: QueueHandle, size: int) -> int:
        """Counts a message that comes another way. Returns its lane, which it is to `leave`; 0: too much waits."""
    def leave(self, lane: int, size: int) -> None:
        """A message waits no more."""
    def waiting_bytes(self) -> int:
        """Of all messages that wait. O(virtual hosts)."""
    def close_lane(self, handle: QueueHandle) -> None:
        """The queue is deleted: its publishes are refused."""
    @property
    def descriptor(self) -> int:
        """An eventfd that can be read after `rest`, when an item came or `wake` was called."""
    def rest(self) -> bool:
        """The next item is told by the descriptor. False: there are items."""
    def wake(self) -> None: ...
    def close(self) -> None:
        """There is no service any more: the message path is refused. What is in the line can still be taken."""
    def take_lost(self) -> bool:
        """Whether an end found no memory in the line since the last call."""
    def stream_ticket(self) -> int:
        """What the stream append of the calling thread waits for, or a later ticket."""
    def stream_durable(self, ticket: int) -> bool:
        """Whether the streams are on disk up to there."""
    def answer(self, receipts: list[int], taken: bool) -> None:
        """What became of messages on one queue each. Their confirms or refusals leave with the next pass of their loops."""

def open_window(handle: QueueHandle, port: SharedPort, vhost: str) -> None:
    """Makes an unused queue the window of a shared one: publishes go to the port, and nothing but `window_add` adds to its list. What a
    consumer was sent and gives back goes to no consumer again: the port is told (RETURNED), and whoever takes that from the line ends the
    entry (`window_end`)."""

def window_add(handle: QueueHandle, message: tuple[bytes, bytes, bytes, bytes, int, int], redelivered: bool) -> int:
    """Puts a message of the owner behind those that are there. Args: message: exchange, routing key, header, body, flags, priority.

    Returns: its position, 0: the queue is deleted. Raises: MemoryError."""

def window_take_back(handle: QueueHandle, positions: list[int]) -> list[int]:
    """Takes out those of the entries that nobody holds, and returns them. The port is not told of it."""

def window_end(handle: QueueHandle, position: int) -> bool:
    """Ends an entry that came back; the port is not told of it. False: it is not there."""

def window_available(handle: QueueHandle, most: int) -> list[int]:
    """The first entries that nobody holds."""
