"""CPU time, memory and disk writes of a process tree, from /proc (Linux).

in: the pid of its root. out: seconds, bytes.

CPU counts live processes plus the children they have already waited for, so a helper that ends during the run is not lost.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Usage:
    """Of a whole tree: seconds of CPU (exact), its parts in user and system mode (10 ms ticks), resident bytes, bytes written to disk."""

    cpu_s: float
    user_s: float
    system_s: float
    rss: int
    written: int


def _cpu_clock(pid: int) -> int:
    """The id of another process's CPU clock, as clock_getcpuclockid(3) of Linux computes it: nanoseconds instead of 10 ms ticks."""
    return ~pid << 3 | 2


def tree(root: int) -> list[int]:
    """The pid and those of all its live descendants; empty when it is gone."""
    if not Path(f"/proc/{root}").exists():
        return []
    pids = [root]
    for pid in pids:
        try:
            for task in os.listdir(f"/proc/{pid}/task"):
                pids += [int(child) for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split()]
        except OSError:
            continue  # it ended meanwhile
    return pids


def usage(pids: list[int]) -> Usage:
    """Sum over the given processes; one that ended counts as nothing (its parent's children's time has it)."""
    ticks_user = ticks_system = rss = written = 0
    cpu_s = 0.0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            rss += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_SIZE
        except (OSError, IndexError):
            continue
        # utime, stime, cutime, cstime: fields 14 to 17 of proc(5), here counted from the state (field 3)
        user, system, children = int(fields[11]), int(fields[12]), int(fields[13]) + int(fields[14])
        ticks_user += user + int(fields[13])
        ticks_system += system + int(fields[14])
        cpu_s += children / TICKS_PER_S
        try:
            cpu_s += time.clock_gettime(_cpu_clock(pid))
        except OSError:
            cpu_s += (user + system) / TICKS_PER_S
        try:
            for line in Path(f"/proc/{pid}/io").read_text().splitlines():
                if line.startswith("write_bytes:"):
                    written += int(line.split()[1])
        except OSError:
            continue  # another user's process
    return Usage(cpu_s, ticks_user / TICKS_PER_S, ticks_system / TICKS_PER_S, rss, written)


class Watch:
    """Samples a tree's resident memory until `stop`; `peak` is the largest sum seen.

    The peak between two samples is missed: PERIOD_S bounds how long one may last unseen.
    """

    PERIOD_S = 0.025
    # seconds between two looks for new child processes
    TREE_S = 0.5

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.start = usage(tree(pid))
        self.peak = self.start.rss
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="perf-watch", daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        pids: list[int] = []
        looked = 0.0
        while not self._stop.wait(self.PERIOD_S):
            if time.monotonic() - looked > self.TREE_S:
                pids, looked = tree(self.pid), time.monotonic()
            total = 0
            for pid in pids:
                try:
                    with open(f"/proc/{pid}/statm") as file:
                        total += int(file.read().split()[1]) * PAGE_SIZE
                except (OSError, IndexError):
                    continue
            self.peak = max(self.peak, total)

    def now(self) -> Usage:
        reading = usage(tree(self.pid))
        self.peak = max(self.peak, reading.rss)
        return reading

    def stop(self) -> Usage:
        """Ends the sampling; the last reading."""
        self._stop.set()
        self._thread.join()
        return self.now()
