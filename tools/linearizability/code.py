"""The code that a history runs: today's, or that of a mutant."""

from __future__ import annotations

from typing import Any, NamedTuple

from flintmq.recipes.queue import SharedQueue
from flintmq.shared.batches import QueueSets, Subscriptions
from flintmq.shared.queue_log import QueueLog
from flintmq.shared.taking_over import Taken, claim, restore


class Code(NamedTuple):
    """The names of the modules."""

    SharedQueue: Any
    QueueLog: Any
    Taken: Any
    claim: Any
    restore: Any
    QueueSets: Any
    Subscriptions: Any


TODAY = Code(SharedQueue, QueueLog, Taken, claim, restore, QueueSets, Subscriptions)
