"""One binding may change the routes of very many exchanges, those that lead to it: what is remembered of them is dropped in slices.

in: exchanges whose bindings changed. out: a call of the hook for each of them and for all that lead to them; whoever waits for that.

S1  The first AT_ONCE exchanges are told at once: nearly every change is over then.
S2  A change that comes while others are told is told in the next round, whole: what was told before it is told again.
S3  Whoever asked for a change is answered when its round is over: what it publishes then finds the new routes.

Everything under the virtual host's lock, but `wait`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

from flintmq.clock import Clock
from flintmq.routing.exchange import Exchange

# step, ended: calls `step` until it returns True, then `ended(whole)`; whole False: the loop of the slices has ended before
InSlices = Callable[[Callable[[], bool], Callable[[bool], object]], object]

# exchanges that are looked at before the change is answered, and between two looks at the time in a slice
AT_ONCE = 32
# nanoseconds of a slice
SLICE_NS = 50_000


class Spreading:
    """Args: lock: the virtual host's; leading: exchanges that lead to one, copied; tell: the hook."""

    def __init__(
        self, lock: Any, clock: Clock, leading: Callable[[Exchange], Collection[Exchange]], tell: Callable[[Exchange], object]
    ) -> None:
        self.in_slices: InSlices | None = None
        self._lock = lock
        self._clock = clock
        self._leading = leading
        self._tell = tell
        self._ways: list[Iterator[Exchange]] = []
        self._seen: dict[Exchange, None] = {}
        self._running = False
        self._changed: dict[Exchange, None] = {}  # of the next round
        self._waiting: list[Callable[[], object]] = []
        self._waiting_next: list[Callable[[], object]] = []
        self.late = False  # a change since this was set is told in slices

    def add(self, changed: Collection[Exchange]) -> None:
        """The routes of these exchanges changed."""
        if self._running:
            self._changed.update(dict.fromkeys(changed))
            self.late = True
            return
        if len(changed) == 1:
            (exchange,) = changed
            if not self._leading(exchange):  # as most
                self._tell(exchange)
                return
        self._ways = [iter(list(changed))]
        self._seen = {}
        if self._some() or not self._ways:
            return
        if self.in_slices is None:
            while not self._some():
                pass
            return
        self._running = self.late = True
        self.in_slices(self._slice, self._ended)

    def tells_at_once(self, exchange: Exchange) -> bool:
        """Whether a change of the exchange's routes is told when `add` returns: nothing leads to it, and no round runs."""
        return not self._running and not self._leading(exchange)

    def wait(self, on_spread: Callable[[], object]) -> bool:
        """`on_spread` is called, by any thread, when the changes up to now are told. False: they are, and it is not called."""
        with self._lock:
            if self._running:
                (self._waiting_next if self._changed else self._waiting).append(on_spread)
            return self._running

    def _some(self) -> bool:
        """Some exchanges of the round. True: there is none left."""
        for _ in range(AT_ONCE):
            if not self._ways:
                return True
            exchange = next(self._ways[-1], None)
            if exchange is None:
                self._ways.pop()
            elif exchange not in self._seen:
                self._seen[exchange] = None
                self._tell(exchange)
                leading = self._leading(exchange)
                if leading:
                    self._ways.append(iter(leading))
        return not self._ways

    def _slice(self) -> bool:
        until_ns = self._clock.monotonic_ns() + SLICE_NS
        over: list[Callable[[], object]] = []
        with self._lock:
            while not self._some():
                if self._clock.monotonic_ns() >= until_ns:
                    return False
            over, self._waiting = self._waiting, self._waiting_next
            self._waiting_next = []
            self._running = bool(self._changed)
            self._ways, self._seen = [iter(list(self._changed))] if self._changed else [], {}
            self._changed = {}
        for on_spread in over:
            on_spread()
        return not self._running

    def _ended(self, whole: bool) -> None:
        while not whole:  # the loop of the slices ends
            whole = self._slice()
