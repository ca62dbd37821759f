"""Transactions as a broker service: distributed (X/Open branches) and local, over several queues, all or nothing. docs/TRANSACTIONS.md."""

from flintmq.transactions.branch import BranchState
from flintmq.transactions.bulk import BlockFacts, HeldRun, RunFacts
from flintmq.transactions.coordinator import TransactionCoordinator
from flintmq.transactions.effects import (
    CommitRow,
    HeldEntry,
    HeuristicOutcome,
    MessageRef,
    PendingEnqueue,
    QueueEffects,
    RecoveredEnqueue,
    RecoveredTransaction,
    TransactionStore,
)
from flintmq.transactions.errors import STATUS_1_0, Condition, TransactionRefused, XaStatus
from flintmq.transactions.local import LocalTransaction
from flintmq.transactions.outcome import Outcome
from flintmq.transactions.registry import BranchView
from flintmq.transactions.xid import Xid

__all__ = [
    "STATUS_1_0",
    "BlockFacts",
    "BranchState",
    "BranchView",
    "CommitRow",
    "Condition",
    "HeldEntry",
    "HeldRun",
    "HeuristicOutcome",
    "LocalTransaction",
    "MessageRef",
    "Outcome",
    "PendingEnqueue",
    "QueueEffects",
    "RecoveredEnqueue",
    "RecoveredTransaction",
    "RunFacts",
    "TransactionCoordinator",
    "TransactionRefused",
    "TransactionStore",
    "XaStatus",
    "Xid",
]
