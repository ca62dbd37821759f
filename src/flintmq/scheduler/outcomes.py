"""Outcomes of requests and names of the actor system, for Python (values: actor.pxd)."""

from __future__ import annotations

from enum import IntEnum


class Outcome(IntEnum):
    """Outcomes of a request; each accepted request gets exactly one."""

    MESSAGES = 1
    FILTERED_EMPTY = 2
    EMPTY = 3
    EXPIRED = 4
    INVALID = 5
    BUSY = 6
    FAILED = 7
    CLOSED = 8


class Space(IntEnum):
    """Namespaces of actor keys."""

    TEST = 0
    COLD = 1
    STREAM = 2
    PULL = 3
    FLIGHT = 4
    PYTHON = 5


# values that a Python process may return instead of an Outcome
PARK = -1
AGAIN = -2

# ordering policies of the run queue, in the order of POLICY_*
POLICIES = ("vruntime", "last_run", "total", "fifo")
