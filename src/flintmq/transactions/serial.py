"""One lock for every decision of a transaction, and the calls that run after the lock is released.

in: decisions made under the lock. out: callbacks registered with the store, outside it.

L1  No foreign code but Run.hold, Stage.add and Stage.reserve, and the store's append calls, runs under the lock; durability
    callbacks never do. So a callback may call the coordinator, and a front end may answer its client from one.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Protocol


class _Durable(Protocol):
    def on_durable(self, lsn: int, callback: Callable[[], object]) -> None: ...


class Serial:
    """`with serial:` holds the lock; `later` inside it registers a callback when it is released, also after an exception."""

    def __init__(self, store: _Durable) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._later: deque[tuple[int, Callable[[], object]]] = deque()

    def later(self, lsn: int, callback: Callable[[], object]) -> None:
        """Has `callback` run once `lsn` is durable (0: at once)."""
        self._later.append((lsn, callback))

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._lock.release()
        while True:
            try:  # another thread may be taking them too; each is taken once
                lsn, callback = self._later.popleft()
            except IndexError:
                return
            self._store.on_durable(lsn, callback)
