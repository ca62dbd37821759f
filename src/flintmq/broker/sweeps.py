"""Purges and the ends of deleted queues, in slices.

in: queue.purge, deleted queues. out: entries that are gone (queue/purge.py), and a call when all of them are.

W1  That a deleted queue is gone for good is what the end of its definition says, which is durable before its entries are swept: nobody
    waits for the sweep.
W2  A sweep that is cut short by the end of its loop is not answered; what it has ended stays ended.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from flintmq.queue.purge_slices import Sweep

if TYPE_CHECKING:
    from flintmq.broker.state import NodeState
    from flintmq.queue.control import QueueHandle


def run(state: NodeState, core: QueueHandle, ending: bool, done: Callable[[Any], object]) -> None:
    """Sweeps a queue: `done(sweep)` is called on the loop's thread when it has ended, before this returns when it is a small one."""
    sweep: Any = Sweep(core, ending)
    step = partial(sweep.step, state.limits.sweep_places)
    if step():
        done(sweep)
    else:
        state.loops.in_slices(step, lambda whole: done(sweep) if whole else None)
