class ScheduleShare:
    """What messages of one user take of the schedule of one virtual host. Any thread."""

    def limit(self, messages: int, size: int) -> None:
        """How many, and how many bytes of bodies, they may be from now on."""
    def takes(self, body_bytes: int) -> bool:
        """Whether one more message may come."""
    def note(self, due_ms: int, body_bytes: int) -> None:
        """One came. Args: due_ms: wall clock, milliseconds."""
    def forget(self) -> None:
        """The schedule was purged."""
    def figures(self) -> tuple[int, int]:
        """(messages, bytes) that count now. O(intervals)."""
    def known(self) -> bool:
        """Whether a connection has it. O(1)."""
