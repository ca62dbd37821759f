"""Checks of invariants in Python (compiled modules have core/check.pxd).

in: what must hold. out: nothing, or the end of the process.
"""

from __future__ import annotations

import os
import sys
import time


def check(holds: object, name: str, *state: object) -> None:
    """Ends the process by SIGABRT, after one line on stderr, unless `holds`.

    Args: name: module and label of the invariant, and what is looked at, as in core/check.pxd; state: what tells most, for the line.
    Never for what a peer sent or the disk held: those are answered with errors. Cost: one call.
    """
    if not holds:
        _failed(name, state)


def _failed(name: str, state: tuple[object, ...]) -> None:
    caller = sys._getframe(2)
    now = time.time()
    stamp = f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(now))}.{int(now * 1000) % 1000:03}Z"
    place = f"{os.path.relpath(caller.f_code.co_filename)}:{caller.f_lineno}"
    values = " ".join(ascii(one) for one in state)
    os.write(2, f"{stamp} [CRITICAL] flintmq.check: invariant broken: {name} at {place}, state {values}; the process ends\n".encode())
    os.abort()
