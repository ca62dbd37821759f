"""Distributed transactions as a broker service: X/Open branches over several queues, all or nothing. docs/TRANSACTIONS.md."""

from flintmq.transactions.branch import BranchState
from flintmq.transactions.bulk import BlockFacts, HeldRun, RunFacts
from flintmq.transactions.coordinator import TransactionCoordinator
from flintmq.transactions.outcome import Outcome
from flintmq.transactions.ports import BranchQueues, HeuristicOutcome, TransactionStore
from flintmq.transactions.registry import BranchView
from flintmq.transactions.xa_status import STATUS_1_0, Condition, TransactionRefused, XaStatus
from flintmq.transactions.xid import Xid

__all__ = [
    "STATUS_1_0",
    "BlockFacts",
    "BranchQueues",
    "BranchState",
    "BranchView",
    "Condition",
    "HeldRun",
    "HeuristicOutcome",
    "Outcome",
    "RunFacts",
    "TransactionCoordinator",
    "TransactionRefused",
    "TransactionStore",
    "XaStatus",
    "Xid",
]
