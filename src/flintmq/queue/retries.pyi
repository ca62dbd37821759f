from collections.abc import Callable
from typing import Any

from flintmq.queue.control import QueueHandle
from flintmq.queue.due_index import DueIndex

class Retries:
    """Messages that wait before they are delivered again, of all queues of a broker. Any thread. Args: clock: clock.Clock, for `step`."""

    def __init__(self, clock: Any) -> None: ...
    manual_ns: int
    """What its clock says, nanoseconds; below 0: it is the broker's. Tests set it."""
    def waiting(self, handle: QueueHandle) -> int:
        """Messages of a queue that wait."""
    def use(self, index: DueIndex) -> None:
        """Queues that were given this index wait here, and its clock is armed. Before the first of them is used."""
    def __len__(self) -> int: ...
    @property
    def is_due(self) -> bool:
        """Whether `step` has something to do."""
    @property
    def due_ms(self) -> int:
        """When `step` has something to do, as the wall clock goes now; 0: nothing waits."""
    def add(self, handle: QueueHandle, position: int, count: int) -> bool:
        """A held entry waits after its `count`th return. The policy of now says how long. False: there is no memory for that."""
    def step(self, until_ns: int) -> bool:
        """Messages that waited long enough come back, until that time. True: none of them is left."""
    def forget(self, handle: QueueHandle) -> Callable[[], bool] | None:
        """A queue is deleted: what waits there ends in slices of the result; None: nothing waits."""
    def clear(self) -> None:
        """Forgets all: the broker has stopped."""
