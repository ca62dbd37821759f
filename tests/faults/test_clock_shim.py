"""The shim that moves the wall clock of one process: every way to ask for it, and no other clock."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tools.faults.clock_shim import ClockShim
from tools.faults.shim import missing

pytestmark = pytest.mark.skipif(missing() is not None, reason=missing() or "")
_ASK = """
import ctypes, sys, time
libc = ctypes.CDLL(None)
libc.time.restype = ctypes.c_long
pair = (ctypes.c_long * 2)()
for _ in sys.stdin:
    libc.gettimeofday(pair, None)
    print(time.time(), libc.time(None), pair[0], time.monotonic(), flush=True)
"""


def test_the_wall_clock_jumps_while_the_process_runs_and_the_monotonic_one_does_not(tmp_path: Path) -> None:
    clock = ClockShim(tmp_path / "clock")
    process = subprocess.Popen(
        [sys.executable, "-c", _ASK], env=os.environ | clock.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        for seconds in (0, 3_600, -7_200, 0):
            clock.jump(seconds)
            process.stdin.write("\n")
            process.stdin.flush()
            *walls, monotonic = map(float, process.stdout.readline().split())
            assert all(abs(wall - time.time() - seconds) < 60 for wall in walls), (walls, seconds)
            assert abs(monotonic - time.monotonic()) < 60
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()
