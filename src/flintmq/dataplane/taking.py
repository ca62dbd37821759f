"""A subscription as a value, and how the messages of one set are taken from its queues.

in: a subscription, what is ready, bounds of messages and bytes. out: runs that a transaction holds. Who calls this, under which lock:
subscriptions.py.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from flintmq.dataplane.in_log import FORMAT_SET
from flintmq.dataplane.sets import MessageSet, shares
from flintmq.dataplane.shared import Caller, Plane, refusal_of
from flintmq.dataplane.wire import Refused
from flintmq.transactions import RunFacts, TransactionRefused, Xid

SEQ_MAX = 2**63 - 1


@dataclass(slots=True, eq=False)
class Subscription:
    """One subscription. `planned`: (seq, epoch, wall ms at which its set was prepared) of the last sub.plan, None: not planned."""

    name: str
    vhost: str
    incarnation: uuid.UUID
    epoch: int
    committed: int
    queues: list[str]  # with a pattern: those that matched at the last look
    created_ms: int
    planned: tuple[int, int, int] | None = None
    prepared: MessageSet | None = None
    pattern: str | None = None
    # the last look at a pattern's queues: monotonic ns, for whom, and how many match beyond the limit
    looked: tuple[int, tuple[str, int]] | None = None
    left_out: int = 0
    user: str = ""  # who made it; "": it was made before that was noted
    deleted: bool = False
    # queue id -> (last position, messages that may still be taken): set by sub.tail with drain, until the next sub.open
    drain: dict[int, list[int]] | None = None
    # monotonic ns of the last call with the present epoch: its reader works; None: it said good-bye
    heard_ns: int | None = None
    lock: Any = field(default_factory=threading.RLock)

    @property
    def key(self) -> bytes:
        return f"{self.vhost}\0{self.name}".encode()

    def value(self, **changes: Any) -> dict[str, Any]:
        """The note's value. `changes`: what it is about to become."""
        value = {
            "id": str(self.incarnation),
            "epoch": self.epoch,
            "committed": self.committed,
            "planned": self.planned,
            "queues": self.queues if self.pattern is None else [],
            "pattern": self.pattern,
            "created_ms": self.created_ms,
            "user": self.user,
        }
        return {**value, **changes}

    def is_other(self, changes: dict[str, Any]) -> bool:
        """Whether it would read what it does not read now."""
        if changes["pattern"] is not None or self.pattern is not None:
            return bool(changes["pattern"] != self.pattern)
        return bool(changes["queues"] != self.queues)

    def xid(self, seq: int) -> Xid:
        """Of the transaction of a set."""
        return Xid(FORMAT_SET, self.incarnation.bytes, seq.to_bytes(8, "big"), self.vhost)

    def is_planned(self, seq: int) -> bool:
        """Whether set `seq` was planned: Spark may know it."""
        return self.planned is not None and self.planned[0] == seq

    def may_be_read(self, seq: int, *, before: int = SEQ_MAX) -> bool:
        """Whether tasks may have read set `seq`. Args: before: only what was planned under an older epoch counts."""
        known_unread = self.prepared is not None and self.prepared.read is False
        return self.planned is not None and self.planned[0] == seq and self.planned[1] < before and not known_unread


class Named(Protocol):
    """A subscription, on queues of whichever kind."""

    @property
    def name(self) -> str: ...
    @property
    def committed(self) -> int: ...


def unknown(caller: Caller, name: str) -> Refused:
    """For a name that no subscription has."""
    return Refused("NOT_FOUND", f"there is no subscription '{name}' in vhost '{caller.vhost}'")


def ahead(subscription: Named, seq: int) -> Refused:
    """For a set that the subscription has not come to."""
    name, committed = subscription.name, subscription.committed
    text = f"subscription '{name}' has committed set {committed}, and is asked for set {seq}, which was never prepared"
    return Refused("CHECKPOINT_AHEAD", f"{text}: the checkpoint belongs to another subscription, or the broker's store is older")


def lost(subscription: Named, seq: int) -> Refused:
    """For a set that tasks of another checkpoint may have read."""
    text = (
        f"set {seq} of subscription '{subscription.name}' was planned by an earlier reader, and this reader's checkpoint does not know it"
    )
    return Refused("CHECKPOINT_LOST", f"{text}: start with the old checkpoint, or say onlost redeliver, or `sub.reset`")


def unread(subscription: Named, seq: int, count: int) -> Refused:
    """For a commit of what nobody has read."""
    return Refused("NOT_READ", f"set {seq} of subscription '{subscription.name}' has {count} messages, and none of them was read")


def planned(subscription: Named, seq: int) -> Refused:
    """For an operator who gives back what tasks may have written."""
    text = f"set {seq} of subscription '{subscription.name}' was planned: Spark may have written it, and its messages would come twice"
    return Refused("MAY_DUPLICATE", f"{text}. Start its query once more, which commits what Spark has; or commit it; or say may_duplicate")


def used(subscription: Named, active: bool) -> Refused:
    """For a reader without a checkpoint, of a subscription that has served another one."""
    text = f"subscription '{subscription.name}' has committed {subscription.committed} batches for another checkpoint, and this one is new"
    return Refused("CHECKPOINT_NEW", f"{text}: its messages are gone from the queues{'; its query is running now' if active else ''}")


def active(subscription: Named, heard_ms: int) -> Refused:
    """For a reader without a checkpoint, while another one works."""
    text = f"subscription '{subscription.name}' has a reader, which was heard of {heard_ms} ms ago"
    return Refused("READER_ACTIVE", f"{text}: stop it, or take another name")


def allowed(subscription: Subscription, queue_id: int) -> int:
    """Messages that may still be taken from the queue: bounded after sub.tail with drain."""
    if subscription.drain is None:
        return SEQ_MAX
    upto, count = subscription.drain.get(queue_id, (0, 0))
    return max(0, count) if upto else 0


def take(
    plane: Plane, subscription: Subscription, queues: Sequence[Any], ready: Sequence[int], messages: int, size: int, session: Any, xid: Xid
) -> dict[int, int]:
    """Holds messages: each queue gets its share, then what others left. Returns how many by queue id."""
    taken: dict[int, int] = {}
    bodies = [queue.core.ready_bytes() if count else 0 for queue, count in zip(queues, ready, strict=True)]
    for counts, sizes in ((shares(ready, messages), shares(bodies, size)), (ready, [size] * len(queues))):
        for queue, count, most in zip(queues, counts, sizes, strict=True):
            count = min(count - taken.get(queue.queue_id, 0), messages)
            most = min(most, size)
            if count <= 0 or (taken and not _fits(queue.core, most, size)):
                continue
            upto = subscription.drain[queue.queue_id][0] if subscription.drain is not None else 0
            try:
                facts = hold(plane, session, xid, queue.queue_id, count, max(1, most), subscription.name, upto)
            except Refused as refused:
                if refused.code != "LIMIT" or not taken:
                    raise
                return taken  # the gaps of others were all the pieces that a transaction may have: this queue is first in its turn
            if facts.count:
                taken[queue.queue_id] = taken.get(queue.queue_id, 0) + facts.count
                messages -= facts.count
                size -= facts.bytes
    return taken


def _fits(core: Any, share: int, size: int) -> bool:
    """Whether a run of `share` bytes stays within `size`: its first message is taken whatever its size."""
    if size <= 0:
        return False
    if core.ready_bytes() <= share:
        return True
    try:
        return len(core.message_at(core.next_available(0))[3]) <= size
    except KeyError:
        return False  # gone meanwhile: the next set is not far


def hold(plane: Plane, session: Any, xid: Xid, queue_id: int, messages: int, size: int, consumer: str, upto: int) -> RunFacts:
    """TransactionCoordinator.hold_run. Raises: Refused."""
    try:
        return plane.coordinator.hold_run(session, xid, queue_id, messages_max=messages, bytes_max=size, consumer=consumer, upto=upto)
    except TransactionRefused as error:
        raise refusal_of(error) from None
