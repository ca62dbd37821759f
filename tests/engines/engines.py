"""The engines that the conformance suite runs on.

Each entry makes a store of its own: a function that opens one more client of it. `alone`: it gives one client only.
"""

from __future__ import annotations

import atexit
import functools
import secrets
from collections.abc import Callable
from pathlib import Path

import pytest

from flintmq.config import Limits
from flintmq.engines.engine import Engine
from flintmq.engines.memory import MemoryEngine, MemoryStore
from flintmq.engines.opening import open_engine
from flintmq.engines.sqlite import SqliteEngine
from tests.support.etcd import EtcdCluster
from tests.support.servers import Unavailable
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


@functools.lru_cache(maxsize=1)
def etcd_server() -> EtcdCluster | str:
    """One member for all tests of a process; the reason why there is none."""
    try:
        cluster = EtcdCluster()
    except Unavailable as error:
        return str(error)
    atexit.register(cluster.close)
    return cluster


def etcd_url(cluster: EtcdCluster) -> str:
    return "etcd://" + ",".join(endpoint.removeprefix("http://") for endpoint in cluster.endpoints)


def etcd(path: Path) -> Open:
    """On a prefix of its own."""
    cluster = etcd_server()
    if isinstance(cluster, str):
        pytest.skip(f"no etcd: {cluster}")
    pytest.importorskip("grpc")
    prefix = secrets.token_hex(6).encode() + b"/"
    return lambda: open_engine(etcd_url(cluster), LIMITS, prefix)


# name -> a new, empty store (a directory for its files): what opens its clients. It may skip the test
ENGINES: dict[str, Callable[[Path], Open]] = {
    "etcd": etcd,
    "memory": memory,
    "memory-faulty": faulty,
    "sqlite": sqlite,
}
