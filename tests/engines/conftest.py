"""Says whether the engine of FoundationDB met a real cluster in this run."""

from __future__ import annotations

from typing import Any

from tests.engines.engines import FDB_CLUSTER


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if FDB_CLUSTER:
        terminalreporter.write_line(f"engines: the conformance suite ran on the FoundationDB of {FDB_CLUSTER}")
    else:
        terminalreporter.write_line("engines: FLINTMQ_FDB_CLUSTER names no cluster file, so FoundationDB's engine ran on a stand-in only")
