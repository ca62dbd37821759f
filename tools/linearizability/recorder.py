"""The operations of one window with their times, and a loop whose waits take no time.

in: operations of clients that run in one event loop, or in threads. out: what the checker judges.

W1  What an engine says did not happen is no operation; what it says nothing of is one without an answer.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from flintmq.engines.engine import UnknownOutcome
from tools.linearizability.checker import UNKNOWN, Operation

# operations of a window, and messages that wait in it at most: a long backlog of overlapping enqueues has many orders to try
WINDOW, BACKLOG = 200, 8
# rounds of the loop in one window: 15,000 are many, and a mutant may go round for ever
_ROUNDS_MAX = 100_000


class Recorder:
    """Any thread. `clock` only grows."""

    def __init__(self, size: int = WINDOW) -> None:
        self.size = size
        self.operations: list[Operation] = []
        self._clock = itertools.count(1)
        self._ids = itertools.count(1)
        self._lock = threading.Lock()

    @property
    def is_over(self) -> bool:
        return len(self.operations) >= self.size

    def now(self) -> int:
        return next(self._clock)

    def next_id(self) -> int:
        return next(self._ids)

    def note(self, client: int, kind: str, arguments: tuple[Any, ...], outcome: Any, called: int) -> None:
        """An operation that ends now. outcome: UNKNOWN: it has no answer."""
        with self._lock:
            self.operations.append(Operation(client, kind, arguments, outcome, called, next(self._clock)))

    async def call(self, client: int, kind: str, arguments: tuple[Any, ...], action: Callable[[], Awaitable[Any]]) -> Any:
        """Does it, and notes it (W1). Raises: what `action` raises."""
        called = self.now()
        try:
            outcome = await action()
        except UnknownOutcome:
            self.note(client, kind, arguments, UNKNOWN, called)
            raise
        self.note(client, kind, arguments, outcome, called)
        return outcome

    def backlog(self) -> int:
        """Messages that were enqueued and not taken, about."""
        operations = list(self.operations)
        taken = sum(len(one.outcome) for one in operations if one.kind == "take" and not one.is_open)
        return sum(one.kind == "enqueue" for one in operations) - taken


class QuickLoop(asyncio.SelectorEventLoop):
    """Its time goes on when nobody can do anything, by as much as it takes. The same tasks run in the same order each time."""

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0
        self._rounds = 0

    def time(self) -> float:
        return self._now_s

    def _run_once(self) -> None:
        self._rounds += 1
        if self._rounds > _ROUNDS_MAX:
            self._rounds = 0  # the tasks have to end
            raise RuntimeError("the window does not end")
        if not self._ready and self._scheduled:
            self._now_s = max(self._now_s, self._scheduled[0].when())
        super()._run_once()  # type: ignore[misc]


def run_quickly(story: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Raises: RuntimeError: it does not end."""
    with asyncio.Runner(loop_factory=QuickLoop) as runner:
        return runner.run(story())
