"""The engines that the conformance suite runs on.

Each entry makes a store of its own: a function that opens one more client of it. `alone`: it gives one client only.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flintmq.config import Limits
from flintmq.engines.engine import Engine
from flintmq.engines.fdb import FdbEngine
from flintmq.engines.memory import MemoryEngine, MemoryStore
from flintmq.engines.opening import open_engine
from flintmq.engines.sqlite import SqliteEngine
from tests.support.etcd import EtcdCluster
from tests.support.postgres import PostgresServer, postgres_server
from tests.support.servers import Unavailable
from tests.twins.faulty_engine import FaultyEngine, RandomPlan
from tests.twins.fdb_binding import Binding

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


@functools.lru_cache(maxsize=1)
def postgres_instance() -> PostgresServer | str:
    """One server for all tests of a process; the reason why there is none."""
    stack = contextlib.ExitStack()
    try:
        server = stack.enter_context(postgres_server())
    except Unavailable as error:
        return str(error)
    atexit.register(stack.close)
    return server


def postgres_of_tests() -> PostgresServer:
    server = postgres_instance()
    if isinstance(server, str):
        pytest.skip(f"no PostgreSQL: {server}")
    return server


def postgres(path: Path) -> Open:
    """In a schema of its own."""
    url = f"{postgres_of_tests().url()}?schema=t{secrets.token_hex(6)}"
    return lambda: open_engine(url, LIMITS)


# the cluster file of a FoundationDB for tests
FDB_CLUSTER = os.environ.get("FLINTMQ_FDB_CLUSTER", "")
NETWORK = ThreadPoolExecutor(1, "network")


def fdb_stand_in(path: Path) -> Open:
    """FoundationDB's engine on a stand-in of its binding, whose futures have a thread of their own."""
    binding = Binding(network=NETWORK)
    binding.page_rows = 7
    (path / "fdb.cluster").touch()
    return lambda: FdbEngine(binding, path / "fdb.cluster", LIMITS, b"flintmq/")


def fdb(path: Path) -> Open:
    """On a prefix of its own."""
    prefix = secrets.token_hex(6).encode() + b"/"
    return lambda: open_engine(f"fdb:{FDB_CLUSTER}", LIMITS, prefix)


# name -> a new, empty store (a directory for its files): what opens its clients. It may skip the test
ENGINES: dict[str, Callable[[Path], Open]] = {
    "etcd": etcd,
    "fdb-stand-in": fdb_stand_in,
    "memory": memory,
    "memory-faulty": faulty,
    "postgres": postgres,
    "sqlite": sqlite,
    **({"fdb": fdb} if FDB_CLUSTER else {}),
}
