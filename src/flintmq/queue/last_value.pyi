# Python face of last_value.py (compiled), for the type checker.
from flintmq.queue.control import QueueHandle
from flintmq.queue.log_port import LogPort

def new_last_value(queue_id: int, header: bytes, log: LogPort | None, durable: bool, most: int) -> QueueHandle:
    """A queue in which an arrival ends the available entry that has the same value of `header`. One that a consumer holds stays, and ends
    when it comes back. Entries without the header, or with a value that is a table, an array or octets, all stay,
    and so do those that bring a value beyond the first `most`."""

def restore_last_values(handle: QueueHandle) -> int:
    """Takes note of the entries that are there after a restart, before anybody consumes or publishes, and ends those that a crash kept
    from being replaced. Reads what is not in memory. Returns how many ended. O(entries)."""

def last_value_replaced(handle: QueueHandle, position: int) -> bool:
    """Whether an entry that is held was replaced, so that it ends when it comes back. False for a queue of another kind."""

def last_value_count(handle: QueueHandle) -> int:
    """Values that the queue knows, those of entries that are gone included until they are passed over."""
