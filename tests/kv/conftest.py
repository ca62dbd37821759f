"""Says whether the engine of FoundationDB met a real cluster in this run."""

from __future__ import annotations

from typing import Any

from tests.kv.engines import FDB_CLUSTER


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if FDB_CLUSTER:
        terminalreporter.write_line(f"FoundationDB: the conformance suite ran on the cluster of {FDB_CLUSTER}")
    else:
        terminalreporter.write_line(
            "FoundationDB: FLINTMQ_FDB_CLUSTER names no cluster file, so its engine ran on a stand-in of the binding only"
        )
