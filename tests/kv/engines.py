"""The engines that the conformance suite runs on."""

from __future__ import annotations

import atexit
import functools
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flintmq.config import Limits
from flintmq.kv.etcd_engine import EtcdEngine
from flintmq.kv.fdb_engine import FdbEngine, load_binding
from flintmq.kv.sqlite_engine import SqliteEngine
from tests.support.etcd import EtcdCluster
from tests.support.servers import Unavailable
from tests.twins.fdb_binding import Binding
from tests.twins.memory_engine import MemoryEngine


def sqlite(path: Path) -> SqliteEngine:
    return SqliteEngine(path / "shared.db", Limits())


@functools.lru_cache(maxsize=1)
def _server() -> EtcdCluster | str:
    """One for all tests of a process; the reason why there is none."""
    try:
        cluster = EtcdCluster()
    except Unavailable as error:
        return str(error)
    atexit.register(cluster.close)
    return cluster


def etcd(path: Path | None = None) -> EtcdEngine:
    """On a namespace of its own."""
    server = _server()
    if isinstance(server, str):
        pytest.skip(f"no etcd: {server}")
    return EtcdEngine(server.endpoints, Limits(), secrets.token_hex(6).encode() + b"/")


# the cluster file of a FoundationDB for tests
FDB_CLUSTER = os.environ.get("FLINTMQ_FDB_CLUSTER", "")


def stand_in(path: Path) -> FdbEngine:
    """FoundationDB's engine on a stand-in of the binding."""
    cluster_file = path / "fdb.cluster"
    cluster_file.touch()
    return FdbEngine(Binding(), cluster_file, Limits())


def fdb(path: Path) -> FdbEngine:
    """On a namespace of its own."""
    return FdbEngine(load_binding(), Path(FDB_CLUSTER), Limits(), secrets.token_hex(6).encode() + b"/")


ENGINES: dict[str, Callable[[Path], Any]] = {
    "etcd": etcd,
    "fdb-stand-in": stand_in,
    "memory": lambda path: MemoryEngine(),
    "sqlite": sqlite,
    **({"fdb": fdb} if FDB_CLUSTER else {}),
}
