"""The queues that a subscription reads: named ones, or those that match a pattern now.

in: names or a pattern, the queues of a virtual host, the reader's permissions. out: names that may be read, and what is said of others.

C1  A pattern never names a queue that the caller may not read, a stream, or a queue that is exclusive to a connection.
C2  A queue that is gone does not keep the others from being read: it is left out as long as it is gone.
C3  Nobody takes from a queue that is in exclusive use: an exclusive consumer, or the active one of x-single-active-consumer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from flintmq.broker.exclusive import exclusive_use
from flintmq.dataplane.shared import Caller, Plane
from flintmq.dataplane.taking import Subscription
from flintmq.dataplane.wire import Refused
from flintmq.patterns import matches_glob
from flintmq.ports import Verb


def matching(plane: Plane, caller: Caller, pattern: str) -> list[str]:
    """Names of the queues that match now and that the caller may read (C1), sorted. O(queues of the virtual host)."""
    vhost = plane.vhost(caller)
    start = pattern.partition("*")[0].partition("?")[0]  # most queues of others are told by it
    queues = (
        queue.name
        for queue in list(vhost.queues.values())
        if queue.name.startswith(start) and not queue.exclusive and not queue.policy.is_elsewhere and matches_glob(pattern, queue.name)
    )
    return sorted(name for name in queues if plane.may_read(caller, [name]))


def chosen(plane: Plane, caller: Caller, pattern: str, before: Iterable[str]) -> tuple[list[str], int]:
    """The queues of a pattern, and how many more match than one subscription reads: those that it read before are kept, then the names in
    their order."""
    matches, most = matching(plane, caller, pattern), plane.limits.subscription_matches_max
    if len(matches) <= most:
        return matches, 0
    known = set(before)
    kept = sorted(matches, key=lambda name: (name not in known, name))[:most]
    return sorted(kept), len(matches) - most


def checked(plane: Plane, caller: Caller, names: list[str], before: Iterable[str] = ()) -> list[Any]:
    """The named queues that are there. Args: before: those that may be gone, because they were read before.

    Raises: Refused FORBIDDEN, BAD_ARGUMENT (a stream); NOT_FOUND for a new name that is not there, or when none is.
    """
    plane.authorize(caller, Verb.READ, "queue", names)
    return there(lambda name: plane.queue(caller.vhost, name), names, before)


def there(look: Callable[[str], Any], names: Iterable[str], before: Iterable[str]) -> list[Any]:
    """What `look` finds of the names. Raises: Refused, of `look`; NOT_FOUND only for a name that is not among those of `before`, or when
    nothing is found."""
    queues, known = [], set(before)
    gone: Refused | None = None
    for name in names:
        try:
            queues.append(look(name))
        except Refused as refused:
            if refused.code != "NOT_FOUND" or name not in known:
                raise
            gone = refused
    if not queues and gone is not None:
        raise gone
    return queues


def in_use(queue: Any) -> Refused | None:
    """Why nobody else may take from a queue now (C3); None: one may."""
    reason = exclusive_use(queue)
    if not reason:
        return None
    text = f"queue '{queue.name}' in vhost '{queue.vhost}' has {reason}: its messages are for that one alone"
    return Refused("QUEUE_BUSY", f"{text}. Stop the consumer, or look at the queue without taking (browse.open)")


def readable(plane: Plane, subscription: Subscription) -> list[Any]:
    """The queues of a subscription that are there and free, for the next set.

    A pattern leaves out what is in use; of named queues each must be free. Raises: Refused NOT_FOUND when all named ones are gone;
    QUEUE_BUSY.
    """
    queues = []
    gone: Refused | None = None
    for name in subscription.queues:
        try:
            queue = plane.queue(subscription.vhost, name)
        except Refused as refused:
            if subscription.pattern is None and refused.code != "NOT_FOUND":
                raise
            gone = refused
            continue
        busy = in_use(queue)
        if busy is None:
            queues.append(queue)
        elif subscription.pattern is None:
            raise busy
    if not queues and gone is not None and subscription.pattern is None:
        raise gone
    return queues
