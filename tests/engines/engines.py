"""The engines that the conformance suite runs on.

Each entry makes a store of its own: a function that opens one more client of it. `alone`: it gives one client only.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from flintmq.config import Limits
from flintmq.engines.engine import Engine
from flintmq.engines.memory import MemoryEngine, MemoryStore
from flintmq.engines.sqlite import SqliteEngine
from tests.twins.faulty_engine import FaultyEngine, RandomPlan

LIMITS = Limits()

Open = Callable[[], Engine]


def memory(path: Path) -> Open:
    store = MemoryStore(LIMITS.engine_watch_keys_max)
    return lambda: MemoryEngine(store, LIMITS)


def faulty(path: Path) -> Open:
    """With no fault planned and every call held up: what stands between must not change an answer."""
    opened, plan = memory(path), RandomPlan(1, 0.0)
    return lambda: FaultyEngine(opened(), plan)


def sqlite(path: Path) -> Open:
    return lambda: SqliteEngine(path / "rows.db", LIMITS)


# name -> a new, empty store (a directory for its files): what opens its clients. It may skip the test
ENGINES: dict[str, Callable[[Path], Open]] = {
    "memory": memory,
    "memory-faulty": faulty,
    "sqlite": sqlite,
}
