"""The reading of a store at its start: from a checkpoint if one may be believed, else from the whole log.

in: the directories of a store's logs. out: a Recovery, the scans that it read. Writes nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from flintmq.slotted import slotted
from flintmq.store.index_scan import IndexScan
from flintmq.store.log.containers import MESSAGES, TRANSACTIONS
from flintmq.store.log.scan import LogScan
from flintmq.store.past import UnreadableError
from flintmq.store.recovery import Recovery


@slotted()
class Start:
    """The logs of a store, read. index: None: no checkpoint is used; refused: why those that are there are not."""

    recovery: Any
    messages: Any
    transactions: Any
    index: Any
    refused: list[str]


def doubtful_containers(scan: Any) -> list[int]:
    """Containers of which the scan could not read all."""
    numbers = set(scan.unusable)
    for one in scan.damage:
        numbers.update(range(one.lsn // scan.container_size, (one.next_lsn or scan.tail) // scan.container_size + 1))
    return sorted(number for number in numbers if number >= scan.base // scan.container_size)


def _doubt(past: Any, messages: Any, transactions: Any) -> str | None:
    """Why the logs beside a checkpoint, which were read, are not those that it speaks of."""
    history = past.checkpoint.history
    # A checkpoint behind the last record of its run: what comes next is another run's.
    alone = history.tail == history.begin and messages.begin_epoch > history.epoch
    if messages.begin_epoch not in (0, history.epoch) and not alone:
        return "the message log has another history"
    if past.begin // messages.container_size in doubtful_containers(messages):
        return "the container of the message log that it begins in is damaged"
    if history.named_tx >= transactions.tail:
        # New transactions would get ids that records below its begin name.
        return "the transaction log ends before what it rests on"
    return None


def read_store(
    files: Any, directory: str, store_uuid: bytes | None, known: Collection[int], high_water: int, *, whole: bool = False
) -> Start:
    """Reads the logs of a store. Args: known, high_water: see Recovery.run; whole: checkpoints are not looked at. Raises: StoreError."""

    def scans() -> tuple[Any, Any]:
        return (
            LogScan(files, f"{directory}/messages", MESSAGES, store_uuid),
            LogScan(files, f"{directory}/transactions", TRANSACTIONS, store_uuid),
        )

    refused: list[str] = []
    if not whole:
        index_scan: Any = IndexScan  # compiled: its arguments are not seen by mypy
        index = index_scan(files, f"{directory}/index", store_uuid)
        ends, _ = scans()
        if index.finder.whole:
            ends.ends()
        for past in index.candidates(ends):
            messages, transactions = scans()
            messages.before = ends
            recovery = Recovery()
            try:
                recovery.run(messages, transactions, set(known), high_water, past=past)
                reason = _doubt(past, messages, transactions)
            except UnreadableError as error:
                reason = str(error)
            if reason is None:
                return Start(recovery, messages, transactions, index, index.refused)
            index.refuse(past.checkpoint, reason)
        refused = index.refused
    messages, transactions = scans()
    recovery = Recovery()
    recovery.run(messages, transactions, set(known), high_water)
    return Start(recovery, messages, transactions, None, refused)
