"""The engines that the conformance suite runs on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from flintmq.config import Limits
from flintmq.kv.sqlite_engine import SqliteEngine
from tests.twins.memory_engine import MemoryEngine


def sqlite(path: Path) -> SqliteEngine:
    return SqliteEngine(path / "shared.db", Limits())


ENGINES: dict[str, Callable[[Path], Any]] = {"memory": lambda path: MemoryEngine(), "sqlite": sqlite}
