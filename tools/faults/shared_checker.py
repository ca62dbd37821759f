"""What publishers and consumers of a shared queue saw, against what was promised.

in: a record for each message that was sent and for each delivery; times of one clock, in seconds. out: violations.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

# publisher and number of a message
Key = tuple[int, int]


@dataclass(slots=True)
class Sent:
    """confirmed_s: None: refused, or nobody knows."""

    key: Key
    sent_s: float
    confirmed_s: float | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """session: of the consumer: another one for each connection."""

    key: Key
    redelivered: bool
    session: int
    seen_s: float


def violations(sent: Sequence[Sent], seen: Sequence[Seen], drained: Sequence[Key]) -> list[str]:
    """Args: drained: what one consumer got at the end, alone, after all that nodes held had gone back: in the order of the queue.

    Each publisher sends each message once.
    """
    found: list[str] = []
    by_key = {one.key: one for one in sent}
    fresh: dict[Key, int] = {}
    for one in seen:
        fresh[one.key] = fresh.get(one.key, 0) + (not one.redelivered)
        if one.key not in by_key:
            found.append(f"{one.key} was delivered and never sent")
    for record in sent:
        if record.confirmed_s is not None and record.key not in fresh:
            found.append(f"lost: {record.key} was confirmed at {record.confirmed_s:.3f} s and never delivered")
    found += [f"{key} came {count} times without a flag" for key, count in fresh.items() if count > 1]
    earliest = math.inf  # confirm among the messages that stand behind
    for key in reversed(drained):
        known = by_key.get(key)
        if known is None:
            continue
        if earliest < known.sent_s:
            found.append(f"swapped: {key}, sent at {known.sent_s:.3f} s, stands before a message that was confirmed at {earliest:.3f} s")
        earliest = min(earliest, math.inf if known.confirmed_s is None else known.confirmed_s)
    return found + _swaps(by_key, seen, drained)


def _swaps(by_key: dict[Key, Sent], seen: Sequence[Seen], drained: Sequence[Key]) -> list[str]:
    """Of one publisher: confirmed messages stand in the order in which they were sent, also when many wait for their confirms; and a
    consumer gets those that are not flagged in that order."""
    found: list[str] = []
    last: dict[tuple[int, int], int] = {}  # consumer's session (-1: the queue at the end) and publisher -> its last number
    fresh = [(one.session, one.key) for one in seen if not one.redelivered]
    for session, (publisher, number) in [*((-1, key) for key in drained), *fresh]:
        known = by_key.get((publisher, number))
        if known is None or known.confirmed_s is None:
            continue  # a late one may stand anywhere
        before = last.get((session, publisher), -1)
        if number < before:
            where = "in the queue" if session < 0 else f"for consumer {session}"
            found.append(f"order: {(publisher, number)} stands behind {(publisher, before)} of the same publisher {where}")
        last[(session, publisher)] = max(before, number)
    return found


def longest_gap_s(times: Sequence[float], begin_s: float, end_s: float) -> float:
    """The longest time without one of these."""
    marks = [begin_s, *sorted(time for time in times if begin_s <= time <= end_s), end_s]
    return max(after - before for before, after in itertools.pairwise(marks))
