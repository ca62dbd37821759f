from collections.abc import Callable
from typing import Any

from flintmq.queue.control import Message, QueueHandle
from flintmq.queue.log_port import LogPort

class Entries:
    """The entries of one queue, as its kind sees them (kinds.ListKind.open). Any thread; after the queue's end it finds nothing."""

    @property
    def levels(self) -> int:
        """Levels of the list."""
    def next_available(self, position: int = 0) -> int:
        """Position of the first available entry at or after `position`; 0: there is none."""
    def message_at(self, position: int) -> Message:
        """(exchange, routing key, content header payload, body) of an entry. What is not in memory is read, which waits for the disk.

        Raises: KeyError it is not there, or can't be read; StoreError.
        """
    def end(self, position: int) -> bool:
        """Removes an entry that is available, as a length limit does. False: it is not there, or somebody has it."""

def new_outside(queue_id: int, levels: int, log: LogPort | None, open: Callable[[Entries], Any], durable: bool = False) -> QueueHandle:
    """A queue whose list has `levels` levels (1..256) and the order of the EntryList that `open` makes. What `open` raises is raised."""
