"""Failpoints for crash tests (see failpoints.pxd): FLINTMQ_FAILPOINT="name:count" kills this process at the count-th hit of the point.

in: the environment, once. out: SIGKILL to ourselves. Never set in production; an unknown name is refused so that a test can't pass by a
typing error.
"""

from __future__ import annotations

import os

from cython import address, declare, void
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import at_load32, at_sub32
from cython.cimports.libc.stdint import uint32_t
from cython.cimports.posix.signal import kill
from cython.cimports.posix.unistd import getpid

NAMES = (
    "message-written",
    "message-synced",
    "commit-written",
    "commit-synced",
    "container-created",
    "container-recycled",
    "copy-forward",
    "sql-committed",
    "restart-marked",
    "stream-appended",
)
SIGKILL = declare(c_int, 9)
_left = declare(uint32_t[10])


def failpoint(which: uint32_t) -> void:
    if at_load32(address(_left[which])) and at_sub32(address(_left[which]), 1) == 1:
        kill(getpid(), SIGKILL)


def hit(name: str) -> None:
    """The Python form of `failpoint`."""
    failpoint(NAMES.index(name))


def arm(setting: str) -> None:
    """Sets a point: `name:count`. Raises: ValueError for an unknown name or a count below 1."""
    name, _, number = setting.partition(":")
    count = int(number or 1)
    if name not in NAMES or count < 1:
        raise ValueError(f"FLINTMQ_FAILPOINT={setting!r}: one of {', '.join(NAMES)}, a colon and a count from 1 on")
    _left[NAMES.index(name)] = count


if os.environ.get("FLINTMQ_FAILPOINT"):
    arm(os.environ["FLINTMQ_FAILPOINT"])
