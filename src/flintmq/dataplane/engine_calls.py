"""Requests of the data plane to the engine of shared queues: run by the workers of shared queues, waited for by a channel's thread.

in: work that is at most a few transactions. out: its result, or Refused.

E1  A channel's thread waits for a bounded time, and never asks the engine itself: an engine that hangs costs no I/O loop and no actor.
E2  Never all channels wait for the engine, nor one user's calls in all places for it: who finds no place is told BUSY, and asks again.
E3  What was given up may still be done later: all work can be done twice.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from flintmq.dataplane.shared import Caller, Plane
from flintmq.dataplane.wire import Refused

if TYPE_CHECKING:
    from flintmq.kv.engine import Engine

T = TypeVar("T")
# seconds between two looks at whether the broker stops
_LOOK_S = 0.25
_AWAY = "the engine of shared queues does not answer"


class EngineCalls:
    """See module. Threading: threads of channels."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._lock = threading.Lock()
        self._running: Counter[str] = Counter()
        limits = plane.limits
        self._places = max(1, min(limits.shared_set_calls, limits.dataplane_channels - 1, limits.shared_workers - 1))

    def is_away(self) -> bool:
        """Whether the engine is known not to answer."""
        shared = self._plane.broker.shared
        return shared is None or shared.is_away

    def ask(self, caller: Caller, work: Callable[[Engine], T]) -> T:
        """What `work` returns. It may raise Refused, Contended and other errors of engines, ValueError for a row that is none.

        Raises: Refused, BUSY and UNAVAILABLE among them.
        """
        shared = self._plane.broker.shared
        if shared is None:
            raise Refused("NOT_FOUND", "this broker has no shared queue")
        answered = threading.Event()
        answers: list[Any] = []

        def run() -> Any:
            try:
                return work(shared.node()[0]), None
            except Refused as refused:
                return None, refused
            except ValueError as error:
                return None, Refused("DAMAGED", str(error))

        def done(result: Any, error: Exception | None) -> None:
            answers.append((result, error))
            answered.set()

        self._enter(caller)
        try:
            shared.ask(run, done)
            until = time.monotonic() + self._plane.limits.shared_set_wait_ms / 1000
            while not answered.wait(_LOOK_S):
                self._plane.check_alive()
                if time.monotonic() >= until:
                    raise Refused("UNAVAILABLE", _AWAY)
        finally:
            self._leave(caller)
        result, error = answers[0]
        if error is not None:
            raise Refused("UNAVAILABLE", _AWAY)
        value, refused = result
        if refused is not None:
            raise refused
        return value  # type: ignore[no-any-return]

    def _enter(self, caller: Caller) -> None:
        """E2. Raises: Refused BUSY."""
        with self._lock:
            mine = max(1, self._places - 1)
            if self._running.total() >= self._places or self._running[caller.name] >= mine:
                raise Refused("BUSY", "too many calls about subscriptions on shared queues at once")
            self._running[caller.name] += 1

    def _leave(self, caller: Caller) -> None:
        with self._lock:
            self._running[caller.name] -= 1
            if not self._running[caller.name]:
                del self._running[caller.name]
