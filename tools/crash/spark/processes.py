"""Processes of this machine as /proc shows them: who is whose child, and the end of some that we started.

in: pids. out: pids, SIGKILLs. A process that is gone already is no error.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path


def kill(pid: int) -> None:
    """SIGKILL; pid 0 and less is nobody."""
    if pid > 1:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def facts(pid: int) -> tuple[str, int, int] | None:
    """(name, parent, session); None when it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    name, _, rest = text.partition("(")[2].rpartition(")")
    fields = rest.split()
    return None if fields[0] in "ZX" else (name, int(fields[1]), int(fields[3]))


def command(pid: int) -> str:
    """Its command line, words separated by spaces; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return ""


def everyone() -> dict[int, tuple[str, int, int]]:
    """All that live: {pid: facts}."""
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (known := facts(int(entry))) is not None:
            found[int(entry)] = known
    return found


def ancestor(pid: int, name: str) -> int:
    """The nearest ancestor of that name; 0 when there is none."""
    while pid > 1:
        known = facts(pid)
        if known is None:
            return 0
        pid = known[1]
        parent = facts(pid)
        if parent is not None and parent[0] == name:
            return pid
    return 0


def descendants(pid: int) -> list[int]:
    """Children, their children, and so on."""
    parents = {one: known[1] for one, known in everyone().items()}
    found, front = [], [pid]
    while front:
        front = [one for one, parent in parents.items() if parent in front]
        found += front
    return found


def child(pid: int, word: str) -> int:
    """A descendant with `word` in its command line; 0 when there is none."""
    return next((one for one in descendants(pid) if word in command(one)), 0)


def workers(driver: int) -> list[int]:
    """Spark's Python workers under the JVM `driver`: forks of pyspark.daemon (the daemon itself is not one)."""
    return [
        one
        for one in descendants(driver)
        if "pyspark.daemon pyspark.worker" in command(one) and "pyspark.daemon" in command((facts(one) or ("", 0, 0))[1])
    ]


def end_session(session: int) -> None:
    """Kills every process of a session that we started, with what it left behind."""
    for one, known in everyone().items():
        if known[2] == session:
            kill(one)
