from collections.abc import Callable

from flintmq.channel.placing import Landing
from flintmq.queue.control import QueueHandle
from flintmq.queue.log_port import LogPort
from flintmq.routing.route_cache import RouteCache

class Firing(Landing):
    """One batch of due messages. Args: core: the schedule's; log: None: nothing is logged. After `take`: route, begin, place and hold,
    decide, then `apply` when it is durable; or `abandon` before that. One thread."""

    unreadable: int
    unroutable: int
    learned: int
    limited: list[int]
    streamed: list[int]
    def __init__(self, core: QueueHandle, log: LogPort | None) -> None: ...
    def take(self, now_ms: int, most: int, bytes_most: int) -> int:
        """Acquires due entries, in the order of their times. Returns how many.

        Args: now_ms: wall clock; most, bytes_most: where the batch ends. May read the disk. Raises: StoreBusyError: nothing can be read
        now; MemoryError.
        """
    def route(
        self, find: Callable[[bytes], RouteCache | None], learn: Callable[[bytes, bytes], RouteCache | None]
    ) -> list[tuple[int, bytes, int, bool, int]]:
        """Finds the queues that each of them goes to, by cached routes. Returns the others, which the caller places: (index; exchange and
        routing key as shortstrs; expiration in milliseconds or EXPIRATION_ABSENT; whether it has CC or BCC; bytes of the body). These are
        messages with CC or BCC, those whose routes headers decide, and those of a queue that may refuse or is shared.

        Args: find: gives the cache of an exchange, if there is one; learn: called with the exchange and routing key of a route that is
        not cached; returns the cache that may have it now.
        """
    def header(self, index: int) -> bytes:
        """The content header of one of them."""
    def message(self, index: int) -> tuple[bytes, bytes, bytes, bytes]:
        """(exchange, routing key, content header, body) of one of them."""
    def set_aside(self, index: int) -> None:
        """Leaves one of them out: it stays with the broker, and is there again after the next start. Before `begin`."""
    def begin(self) -> None:
        """The others leave the schedule when the batch commits. Raises: StoreError; KeyError: the schedule is deleted."""
    def place(self, index: int, core: QueueHandle, expires_at_ms: int) -> bool:
        """One of them goes to this queue, too. False: it is deleted, or a stream that takes nothing. Raises: StoreError, MemoryError."""
    def place_routed(self, first: int, end: int) -> int:
        """Those of them that have a route, from index `first` to before `end`, go to its queues. Returns how many queues refused.
        Raises: StoreError, MemoryError."""
    def decide(self, durable: Callable[[], object]) -> bool:
        """Commits the batch; `durable()` is called, on any thread, when it may be applied. False: nothing is logged, apply it now.

        Raises: StoreError.
        """
    def is_durable(self) -> bool:
        """Whether what `decide` wrote is durable."""
    def apply(self) -> None:
        """The batch takes effect."""
    def abandon(self) -> None:
        """Nothing of it stays: its messages are in the schedule as before."""
