from builtins import bytes as _Bytes

from flintmq.core.content_view import ContentView
from flintmq.queue.control import QueueHandle
from flintmq.scheduler.due_clock import DueClock
from flintmq.store.stream.stream_files import StreamSource

# reason of a dead message: it came back too often (else it is REASON_REJECT of the queue core: refused)
REASON_LIMIT: int

class FilterDiffers(ValueError):
    """The members of a group all have the same x-stream-filter."""

class Seat:
    """A place in the stream for one consumer. The session gives it to the consumer (control.pxd: seat_give) before it attaches it.
    Dropped without, it is given back."""

class StreamQueue:
    """A queue that is a stream: from here on everything that is enqueued there is appended, and its consumers need seats.

    Args: handle: of a fresh queue nobody uses; source: its log, taken over; open_max: offsets of a group that are delivered and not done,
    at most (then it waits for its oldest); batch_messages, batch_bytes: of one cold read; dead_letters: dead messages wait for `take_dead`,
    else they are dropped and counted; delivery_limit: a message that came back more often is dead, -1: never; delay_ms: before a refused
    (requeued) message comes again; visibility_ms: a message that is not settled by then comes again, 0: never.
    manual_clock, manual_reads: for tests. Raises ValueError: a limit below 1, a queue that is a stream already.
    """

    handle: QueueHandle
    def __init__(
        self,
        handle: QueueHandle,
        source: StreamSource,
        open_max: int = 65_536,
        batch_messages: int = 256,
        batch_bytes: int = 262_144,
        dead_letters: bool = False,
        delivery_limit: int = -1,
        delay_ms: int = 0,
        visibility_ms: int = 0,
        manual_clock: bool = False,
        manual_reads: bool = False,
    ) -> None: ...
    def use_clock(self, clock: DueClock) -> None:
        """It is armed with what ends in groups from now on (visibility times, delays): who has it then calls `give_back`. Without, time
        passes with `tick` alone. Call it before consumers come. Raises ValueError: the stream has one."""
    def start_offset(self, start: str, value: int = 0) -> int:
        """The offset of "first", "last" (the last message), "next" (what comes after now), "offset" (`value`, clamped to what is there) or
        "time" (`value`: wall clock, ms; blocks for the disk). Raises ValueError."""
    def open_seat(
        self,
        start: str = "next",
        value: int = 0,
        group: _Bytes | None = None,
        filters: list[_Bytes] | None = None,
        match_unfiltered: bool = False,
        visibility_ms: int = -1,
    ) -> Seat:
        """A seat alone, or in a group, which is made if need be; a group that has a place goes on there, whatever `start` says.

        visibility_ms: -1 the stream's, 0: the holder keeps its own time (release). Raises FilterDiffers, ValueError.
        """
    def set_rules(self, dead_letters: bool, delivery_limit: int, delay_ms: int, visibility_ms: int) -> None: ...
    def tick(self) -> None:
        """Time passed: what is due comes again. To be called every Limits.stream_cursor_ms (also done by QueueHandle.housekeeping)."""
    def give_back(self) -> int:
        """What is due comes again. Returns when the next is, monotonic nanoseconds; 0: nothing ends."""
    def wake(self) -> None:
        """Everybody looks again."""
    def changed(self, clean: bool = False) -> list[tuple[_Bytes, _Bytes]]:
        """(name, state) of every group that changed since the last call. `clean`: of all, nothing more will be delivered (stop)."""
    def state_of(self, name: _Bytes, clean: bool = False) -> _Bytes:
        """Raises KeyError."""
    def not_saved(self, name: _Bytes) -> None:
        """Saving failed: `changed` gives it again."""
    def restore(self, name: _Bytes, state: _Bytes, unclean: bool = False) -> None:
        """A saved group, before anybody joins it. What it had not finished comes again, flagged redelivered. Unless it was saved `clean`,
        nobody knows how far it came since: then everything that the stream holds now is flagged. So it is with `unclean`: the last run did
        not end cleanly, and the state may be an older one's. Raises ValueError: damaged state, or the group is in use."""
    def reset(self, name: _Bytes, offset: int) -> int:
        """Moves a group that has no member to an offset, clamped to what is there; what was open in it is done. Offsets that it had been
        given come flagged as redelivered. Returns where it stands. Raises KeyError: no group; ValueError: it has members, or dead letters
        that wait. O(open offsets)."""
    def take_dead(self, most: int = 100, behind: tuple[_Bytes, int] | None = None) -> list[tuple[_Bytes, int, int, int]]:
        """(group, offset, reason, deliveries) of messages to dead-letter: REASON_LIMIT or REASON_REJECT. The same again until dead_done;
        behind: only those behind this (group, offset), all when the group is gone."""
    def dead_done(self, name: _Bytes, offset: int) -> bool:
        """It was dead-lettered: the group is done with it."""
    def message(self, offset: int) -> tuple[_Bytes, _Bytes, _Bytes, _Bytes]:
        """(exchange, routing key, header, body); may read the disk. Raises KeyError: kept no more, or it can't be read."""
    def view(self, offset: int) -> ContentView:
        """As message, without a copy of the body."""
    def take_lost(self) -> list[tuple[_Bytes | None, int, int]]:
        """(group, or None for consumers without one; offsets lost since the last call; offset at which it went on behind the last of them).
        Lost: taken by retention or damage before they were delivered (or delivered again). With a filter that counts messages it would not
        have let through, too."""
    @property
    def first_offset(self) -> int: ...
    @property
    def next_offset(self) -> int:
        """The offset behind the last visible message."""
    @property
    def bytes(self) -> int: ...
    @property
    def wakes(self) -> int: ...
    @property
    def lone_acked(self) -> int: ...
    def lag(self) -> int:
        """Messages that the slowest group has not been given; 0: all have all, or there is none. O(groups), some nanoseconds each."""
    def groups(self) -> dict[_Bytes, dict[str, int]]:
        """By name: members, base (all below is done), next, lag (visible, not yet taken), unfinished (lag + open), in_flight, returned,
        delayed, dead_waiting, delivered, redelivered, acked, nacked, expired, dead, dropped, lost, full_waits, cold_reads, cold_messages,
        failed_reads."""
    def set_clock(self, ms: int) -> None: ...
    @property
    def reads_waiting(self) -> bool: ...
    def step_reads(self, most: int = 1_000_000) -> int: ...
