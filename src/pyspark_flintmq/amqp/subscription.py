"""The micro-batch logic: which messages form batch n, and when they are acknowledged.

In: offsets from Spark, deliveries from a `Link`, batch files of a `Spool`. Out: offsets `{"sub_id", "seq"}`.
Invariants:
  * an offset is returned only after its batch is durable in the spool;
  * a message is acknowledged only after Spark has shown that its batch is committed (`latest(start=n)` or `commit(n)`); that, and that
    an acknowledgement may now be on its way, is written to `state.json` first;
  * deliveries are only collected while no spooled batch waits for Spark, so every spooled batch found at that time is committed;
  * a batch file goes away only after the broker has confirmed the acknowledgement (tx.commit-ok) or its messages can't come back.
So a redelivered message that the spool holds was processed and is only acknowledged. One doubt is left: after a kill between sending an
acknowledgement and deleting the file, a match may be the message itself or a byte-identical twin. There a match counts only with
a message_id; without one the message is processed (again): a duplicate is possible, a loss is not.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from pyspark_flintmq.amqp.messages import Delivery, identities, identity, to_record_batches
from pyspark_flintmq.amqp.options import MAX_MESSAGES_LIMIT, Options
from pyspark_flintmq.amqp.spool import Spool, plan
from pyspark_flintmq.errors import ConnectionLost, SourceError

log = logging.getLogger(__name__)

# Seconds to wait for the first message of a batch: Spark polls anyway, this only keeps it from spinning.
IDLE_WAIT_S = 0.1
# Seconds between two deliveries after which a batch is closed, and the longest time a batch is kept open.
LINGER_S = 0.02
LINGER_MAX_S = 0.5

Offset = dict[str, Any]


class Link(Protocol):
    """One connection that consumes the queue with manual acknowledgement. Every method raises ConnectionLost when it is gone."""

    def attach(self, prefetch: int) -> int:
        """Starts consuming, with up to `prefetch` messages unsettled. Returns the number that were ready just before."""

    def is_open(self) -> bool:
        """False once the connection is known to be gone."""

    def take(self, messages: int, size: int, wait_s: float) -> list[Delivery]:
        """Up to `messages` deliveries in order, ending with the one that reaches `size` body bytes.

        Waits up to `wait_s` seconds for the first.
        """

    def settle(self, up_to: int, single: Sequence[int]) -> None:
        """Acknowledges all tags <= `up_to` (0: none) and those of `single`; returns when the broker has confirmed it."""

    def depth(self) -> int:
        """Messages ready in the queue, asked now. A message sent before the answer has been received when it returns."""

    def backlog(self) -> int | None:
        """The last known number of messages ready or received but not collected; None if unknown. Does not wait."""

    def close(self) -> None:
        """Ends the connection. Unsettled messages go back to the queue. Never raises."""


class Subscription:
    """One streaming query's claim on one queue. Not thread-safe: Spark calls its reader from one thread."""

    def __init__(self, options: Options, link: Callable[[], Link]) -> None:
        self._options = options
        self._new_link = link
        self.spool = Spool(options.spool_path())
        self._link: Link | None = None
        self._opened = False
        # Highest delivery tag of the batch that waits for Spark's commit, on the present link; 0: none.
        self._held_tag = 0
        self._prefetch = options.prefetch
        # Tags of messages that Spark had already, not settled yet.
        self._repeated: list[int] = []
        # Identities of messages that Spark has committed, but whose acknowledgement the broker may not have seen.
        self._ledger: Counter[bytes] = Counter()
        self._ledger_priority = 0
        # Whether committed batch files may be left to delete: listing the directory at every poll would be a waste.
        self._leftover = False
        # Messages still to be read in an AvailableNow run; None: no end.
        self._draining = False
        self._remaining: int | None = None

    # --- called by the reader -----------------------------------------------------------------------------------------

    def drain(self) -> None:
        """From now on, stop at what the queue holds when consuming begins (trigger AvailableNow)."""
        self._draining = True

    def initial(self) -> Offset:
        """Where a query without a checkpoint begins. The same until the first batch is committed.

        Raises: SourceError CHECKPOINT_LOST when a batch of another checkpoint is left and nobody can tell whether it was processed.
        """
        self._open()
        state = self.spool.state
        prepared = self.spool.prepared()
        if prepared is not None and state.committed > state.base and self._options.onLostCheckpoint == "fail":
            raise SourceError(
                "CHECKPOINT_LOST",
                f"the spool {self.spool.path} holds batch {prepared} of an earlier checkpoint, which may or may not have been processed. "
                "Use that checkpoint again, or set option onLostCheckpoint=redeliver to process the batch (again)",
            )
        if state.base != state.committed:
            state.base = state.committed
            self.spool.save()
        return self._offset(state.committed)

    def latest(self, start: Offset, max_messages: int, max_bytes: int) -> Offset:
        """Takes batch `start` as committed, then makes the next batch durable and returns its offset; `start` if there is none.

        Raises: SourceError CHECKPOINT_BEHIND, CHECKPOINT_AHEAD, CHECKPOINT_FOREIGN, SPOOL_IO; ConnectionLost.
        """
        self._open()
        seq = self._seq(start)
        prepared = self.spool.prepared()
        if prepared is not None and seq == prepared - 1:
            # The process died after the batch was spooled and before Spark wrote its offset: the same batch again.
            return self._offset(prepared)
        if self._link is not None and not self._link.is_open():
            # Before anything is written about acknowledging: on a dead connection none is sent, and that must stay certain.
            self._detach()
        self._mark_committed(seq)
        reattached = False
        while True:
            try:
                link = self._attached()
                self._acknowledge(link)
                return self._next_batch(link, max_messages, max_bytes) or self._offset(seq)
            except ConnectionLost as e:
                was_attached = self._link is not None
                self._detach()
                if reattached or not was_attached:
                    raise
                # Once per call: what was unsettled comes back flagged as redelivered and is recognised by the spool.
                log.warning("connection lost (%s), connecting again", e.text)
                reattached = True

    def commit(self, end: Offset) -> None:
        """Spark's own notice that `end` is committed. It comes a batch late, so usually there is nothing left to do."""
        self._open()
        if self._seq(end) > self.spool.state.committed:
            self._mark_committed(self._seq(end))

    def partitions(self, start: Offset, end: Offset) -> list[tuple[int, int, int]]:
        """(seq, first, last) ranges of record batches after `start` up to `end`. Pure: the same for the same offsets.

        Raises: SourceError SPOOL_MISSING, CHECKPOINT_FOREIGN.
        """
        self._open()
        ranges = []
        for seq in range(self._seq(start) + 1, self._seq(end) + 1):
            ranges += [(seq, first, last) for first, last in plan(self.spool.path, seq, self._options.minPartitions)]
        return ranges

    def backlog(self) -> int | None:
        return self._link.backlog() if self._link is not None else None

    def close(self) -> None:
        """Lets connection and lock go. Not needed for correctness: nothing is acknowledged or deleted here."""
        self._detach()
        self.spool.close()
        self._opened = False

    # --- offsets ------------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        # Late, because Spark makes a second copy of the reader, which must not take the lock.
        if not self._opened:
            self.spool.open(self._options.where, self._options.timeout)
            self._opened = True

    def _offset(self, seq: int) -> Offset:
        # Spark compares offsets as text: nothing that changes by itself may be in here.
        return {"sub_id": self.spool.state.sub_id, "seq": seq}

    def _seq(self, offset: Offset) -> int:
        if offset.get("sub_id") != self.spool.state.sub_id:
            raise SourceError(
                "CHECKPOINT_FOREIGN",
                f"the checkpoint belongs to subscription {offset.get('sub_id')}, the spool {self.spool.path} to {self.spool.state.sub_id}: "
                "checkpoint and spoolDir go together; use the pair, or a new checkpoint",
            )
        return int(offset["seq"])

    def _mark_committed(self, seq: int) -> None:
        state = self.spool.state
        if seq == state.committed:
            return
        if seq < state.committed:
            raise SourceError(
                "CHECKPOINT_BEHIND",
                f"the checkpoint stands at batch {seq}, but batch {state.committed} was committed and acknowledged: an old copy of the "
                "checkpoint cannot go on; begin with a new one",
            )
        if seq != self.spool.prepared():
            raise SourceError(
                "CHECKPOINT_AHEAD",
                f"the checkpoint stands at batch {seq}, the spool {self.spool.path} at {state.committed}: "
                "an old copy of the spool cannot go on",
            )
        if seq == state.base + 1 and self._options.onUnreadBatch == "fail" and not self.spool.was_read(seq):
            raise SourceError(
                "BATCH_UNREAD",
                f"batch {seq} is in Spark's commit log, and no task has read it: the sink left it out, because it has a batch with its "
                "number in the query from an earlier checkpoint (a file sink: in _spark_metadata of its path). Nothing is lost: its "
                f"messages are in the queue and in the spool {self.spool.path}. Go on with the checkpoint that belongs to the path, or "
                "begin with another new checkpoint and a new path. A foreachBatch that leaves out its first batch on purpose, and tasks "
                "that may not write to spoolDir, need option onUnreadBatch=commit",
            )
        state.committed = seq
        if self._held_tag:
            # One write for both: the acknowledgement follows at once.
            state.acking = seq
        self.spool.save()

    # --- messages -----------------------------------------------------------------------------------------------------

    def _attached(self) -> Link:
        if self._link is None:
            self._load_ledger()
            # All that may come back must fit in at once, or it could not be told apart and settled in one transaction.
            self._prefetch = min(
                MAX_MESSAGES_LIMIT, max(self._options.prefetch, self._ledger.total() + self._options.maxMessagesPerTrigger)
            )
            link = self._new_link()
            try:
                ready = link.attach(self._prefetch)
            except BaseException:
                link.close()
                raise
            self._link = link
            if self._draining:
                self._remaining = ready
        return self._link

    def _detach(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None
        self._held_tag = 0
        self._repeated = []

    def _load_ledger(self) -> None:
        """Reads what is spooled, which is all committed by now, as the messages that may come back."""
        self._ledger = Counter()
        priorities: list[int] = []
        for seq in self.spool.seqs():
            certain = seq > self.spool.state.acking
            for batch in self.spool.load(seq):
                ids = batch.column("message_id").to_pylist()
                self._ledger.update(key for key, name in zip(identities(batch), ids, strict=True) if certain or name)
                priorities += (p or 0 for p in batch.column("priority").to_pylist())
        self._ledger_priority = min(priorities, default=0)
        self._leftover = True

    def _forget_ledger(self) -> None:
        """Nothing that was committed can come back any more on this link."""
        if self._ledger:
            log.info("%d committed messages did not come back: acknowledged, expired, purged or consumed elsewhere", self._ledger.total())
        self._ledger = Counter()

    def _remove_committed(self) -> None:
        """Deletes the batch files whose messages are settled: until then, they are what recognises a return."""
        if self._leftover and not self._ledger and not self._repeated:
            for seq in self.spool.seqs():
                if seq <= self.spool.state.committed:
                    self.spool.remove(seq)
            self._leftover = False

    def _note_acking(self) -> None:
        state = self.spool.state
        if state.acking < state.committed:
            state.acking = state.committed
            self.spool.save()

    def _acknowledge(self, link: Link) -> None:
        """Settles the batch that Spark has just committed, with all repeated messages before it."""
        if self._held_tag:
            self._note_acking()
            link.settle(self._held_tag, ())
            self._repeated = [tag for tag in self._repeated if tag > self._held_tag]
            self._held_tag = 0
            self._leftover = True
            self._remove_committed()

    def _settle_repeated(self, link: Link, first_new: int) -> None:
        """Settles the messages that Spark had already, in one transaction, once all that may come back have come.

        Tags before `first_new`, the first one of a new message, go in one piece; the others one by one.
        """
        if self._repeated and (not self._ledger or len(self._repeated) > self._prefetch // 2):
            self._note_acking()
            before = max((tag for tag in self._repeated if tag < first_new), default=0)
            link.settle(before, [tag for tag in self._repeated if tag > first_new])
            self._repeated = []
        self._remove_committed()

    def _next_batch(self, link: Link, max_messages: int, max_bytes: int) -> Offset | None:
        while True:
            rows, last_tag = self._collect(link, max_messages, max_bytes)
            self._settle_repeated(link, rows[0].tag if rows else last_tag + 1)
            if rows:
                break
            if not last_tag:
                return None
        seq = self.spool.state.committed + 1
        self.spool.write(seq, to_record_batches(self._options.queue, rows))
        self._held_tag = last_tag
        return self._offset(seq)

    def _collect(self, link: Link, max_messages: int, max_bytes: int) -> tuple[list[Delivery], int]:
        """New messages and the highest tag seen, 0 for none. Those that Spark had already go to `_repeated`.

        Ends when a limit is reached, when AvailableNow has what it came for, or when no message came for a moment.
        """
        rows: list[Delivery] = []
        last_tag = size = seen = 0
        began: float | None = None
        silent_since = time.monotonic()
        while seen < max_messages and size < max_bytes and self._remaining != 0:
            want = max_messages - seen
            if self._remaining is not None:
                want = min(want, self._remaining)
            got = link.take(want, max_bytes - size, LINGER_S if rows else IDLE_WAIT_S)
            for delivery in got:
                last_tag = delivery.tag
                if self._is_repeated(delivery):
                    self._repeated.append(delivery.tag)
                else:
                    rows.append(delivery)
                    size += len(delivery.body)
            seen += len(got)
            now = time.monotonic()
            if got:
                silent_since = now
                began = began or now
                if self._remaining is not None:
                    self._remaining -= len(got)
                elif now - began >= LINGER_MAX_S:
                    break
            elif self._remaining is None:
                # Nothing more for the moment. An empty queue also says that no committed message is still to come back.
                if self._ledger and self._is_empty(link):
                    self._forget_ledger()
                break
            elif self._is_empty(link):
                # Fewer than were there at the start: some expired or were purged.
                self._remaining = 0
            elif now - silent_since >= self._options.timeout:
                raise ConnectionLost(
                    f"{self._options.where}: messages are ready, but none came for {self._options.timeout} s. "
                    "Is the queue a stream? Those are not for transport=amqp",
                    "STALLED",
                )
        if self._remaining == 0:
            # All that was in the queue when consuming began has been seen, and what comes back was in it.
            self._forget_ledger()
        return rows, last_tag

    def _is_repeated(self, delivery: Delivery) -> bool:
        """Whether Spark has committed this very message before."""
        if not self._ledger:
            return False
        if not delivery.redelivered:
            # A queue gives returned messages before any that nobody had yet, but for messages of a higher priority.
            if (delivery.properties.priority or 0) <= self._ledger_priority:
                self._forget_ledger()
            return False
        key = identity(delivery)
        count = self._ledger.get(key, 0)
        if count > 1:
            self._ledger[key] = count - 1
        elif count == 1:
            del self._ledger[key]
        return count > 0

    @staticmethod
    def _is_empty(link: Link) -> bool:
        return link.depth() == 0 and not link.backlog()
