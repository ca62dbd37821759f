from collections.abc import Callable

class DueClock:
    """Args: give_back(): ends what is due; returns the monotonic nanoseconds of what ends next, 0: nothing. Called in the clock's thread.
    gap_ms: between two calls at least."""

    passes: int
    def __init__(self, give_back: Callable[[], int], gap_ms: int) -> None: ...
    @property
    def armed_ns(self) -> int:
        """When the next look is, monotonic nanoseconds; 0: nothing ends that it knows of."""
    def start(self) -> None:
        """Once. Without it times are noted and nothing is called."""
    def stop(self) -> None:
        """After it nothing is called. Again is no error."""
    def take_due(self, now_ns: int) -> bool:
        """Whether a look is due; what was armed is forgotten then. For a clock that is moved by hand, instead of `start`."""
    def arm(self, at_ns: int) -> None:
        """Something ends at that time (0: nothing does). The earliest that was armed counts; one too many is a look for nothing."""
