from flintmq.scheduler.due_clock import DueClock

class DueIndex:
    """Which of the queues that were given it (QueueHandle.watch) have something to do. One for all queues of a broker. Any thread."""

    def use_clock(self, clock: DueClock) -> None:
        """The clock that is armed with every earlier expiry from now on."""
    def set_over(self, messages: int, size: int, ms: int) -> None:
        """What a queue may exceed its length limit by while consumers take from it (0: nothing), and for how many milliseconds without
        progress. Before the first queue is given the index."""
    def release(self) -> None:
        """Gives up the clock and what stands on the lists; after the last thread that uses the queues has ended. O(queues on the lists)."""
    def arm(self, at_ms: int) -> None:
        """Arms the clock. Args: at_ms: wall clock, milliseconds."""
    def take_due(self, most: int = 0) -> list[tuple[int, int]]:
        """(when, queue id) of queues in which an entry expires earlier than was known, at most `most`, 0: all; when: wall clock,
        milliseconds. O(those)."""
    def take_worked(self, most: int = 0) -> list[int]:
        """Ids of queues that worked since their last housekeeping. most: a pass takes them in several calls, until one returns none: those
        that worked before it began; 0: all at once. O(those). One thread."""
    def take_over(self) -> list[int]:
        """Ids of queues that were above their limit for their consumers and are to be looked at now; the clock is armed for the others.
        O(queues on that list)."""
