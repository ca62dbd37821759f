"""Calls of the data plane about sets of shared queues: run on the engine's event loop, waited for by a channel's thread.

in: coroutines. out: their results, or Refused.

E1  A channel's thread waits for a bounded time, and never asks the engine itself: an engine that hangs costs no I/O loop and no actor.
E2  Never all channels wait for the engine, nor one user's calls in all places for it: a call without a place is told BUSY, and its client
    asks again.
E3  What was given up may still be done later: all work can be done twice.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from flintmq.dataplane.shared import Caller, Plane
from flintmq.dataplane.wire import Refused
from flintmq.engines.engine import EngineError
from flintmq.shared.batches import Refusal

T = TypeVar("T")
# seconds between two looks at whether the broker stops
_LOOK_S = 0.25
# a call asks the engine, and each owner for shared_set_wait_ms at most
_WAITS = 2
AWAY = "the engine of shared queues, or the node that serves a queue, does not answer"


class EngineAsks:
    """See module. Threading: threads of channels."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._lock = threading.Lock()
        self._running: Counter[str] = Counter()
        limits = plane.limits
        self._places = max(1, min(limits.shared_set_calls, limits.dataplane_channels - 1))

    def ask(self, caller: Caller, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What `work` returns. Raises: Refused, BUSY, UNAVAILABLE and DAMAGED (a ValueError of `work`) among them; Refusal."""
        shared: Any = self._plane.broker.shared
        if shared is None:
            raise Refused("NOT_FOUND", "this broker has no shared queue")
        answered = threading.Event()
        answers: list[tuple[Any, Exception | None]] = []

        def done(result: Any, error: Exception | None) -> None:
            answers.append((result, error))
            answered.set()

        wait_s = _WAITS * self._plane.limits.shared_set_wait_ms / 1000
        self._enter(caller)
        try:
            shared.sets.run(work, done, wait_s)
            until = time.monotonic() + wait_s + _LOOK_S
            while not answered.wait(_LOOK_S):
                self._plane.check_alive()
                if time.monotonic() >= until:
                    raise Refused("UNAVAILABLE", AWAY)
        finally:
            self._leave(caller)
        result, error = answers[0]
        if error is None:
            return result  # type: ignore[no-any-return]
        if isinstance(error, EngineError):
            raise Refused("UNAVAILABLE", f"{AWAY}: {error}") from None
        if isinstance(error, ValueError):
            raise Refused("DAMAGED", str(error)) from None
        if not isinstance(error, Refused | Refusal):
            raise RuntimeError("a call about sets of shared queues failed") from error
        raise error

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
