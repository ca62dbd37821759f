"""A pool that many share: nobody has all of it, however many ask, and however often.

in: who asks (user, source) and for how much. out: a Holding, or a refusal. A source is what an address stands for (access.checks).

P1  A user, and a source, has at most `share` of what it has and what is free together: one alone gets that share of the whole, several get
    less each. The last RESERVE of the pool goes in parts of SMALL, so that two users, or ten, leave room, which a limit a user would not.
P2  Who holds nothing gets one unit while there is one, also behind a source that has its share: other people may be behind the same proxy.
P3  A Holding is given back once, whatever ends it.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from flintmq.core.memory_account import MemoryShare

# parts of a pool: what is kept for those who have little, and what "little" is
RESERVE, SMALL = 4, 64


class Who(NamedTuple):
    """user: "" before a login."""

    user: str
    source: str


class Pool:
    """Args: limit: units (bytes, calls, ...) that there are; user_share, source_share: see P1, 0 to 1; kind: of the account of memory, in
    which units are bytes; None: they are not; alone: whether there is one user only, who may have all then. Any thread."""

    def __init__(
        self,
        limit: int,
        user_share: float,
        source_share: float,
        kind: str | None = None,
        alone: Callable[[], bool] = lambda: False,
    ) -> None:
        self.limit = limit
        self._alone = alone
        self._user_share, self._source_share = user_share, source_share
        self._account = None if kind is None else MemoryShare(kind)
        self._lock = threading.Lock()
        self._users: Counter[str] = Counter()
        self._sources: Counter[str] = Counter()
        self.held = 0
        self.refused = 0

    def take(self, who: Who, amount: int = 1) -> Holding | None:
        """None: it is more than this user, or this source, may have now. O(1)."""
        return Holding(self, who, amount) if self._move(who, amount) else None

    def of_user(self, user: str) -> int:
        """Units that a user holds."""
        return self._users[user]

    def _move(self, who: Who, amount: int) -> bool:
        with self._lock:
            if amount > 0 and not self._takes(who, amount):
                self.refused += 1
                return False
            self._count(who, amount)
        return True

    def _takes(self, who: Who, amount: int) -> bool:
        """P1, P2."""
        free = self.limit - self.held - amount
        if free < 0:
            return False
        fits_source = self._fits(self._sources[who.source] + amount, free, self._source_share)
        if not who.user:
            return fits_source or (amount <= 1 and not self._sources[who.source])
        own = self._users[who.user]
        if self._alone():
            return True
        fits = self._fits(own + amount, free, self._user_share)
        return (fits or amount <= 1) if not own else (fits and fits_source)

    def _fits(self, own: int, free: int, share: float) -> bool:
        if free < self.limit // RESERVE and share < 1:
            return own <= self.limit // SMALL
        return own * (1 - share) <= free * share

    def _count(self, who: Who, amount: int) -> None:
        self.held += amount
        for counts, name in ((self._users, who.user), (self._sources, who.source)):
            counts[name] += amount
            if not counts[name]:
                del counts[name]
        if self._account is not None:
            self._account.add(amount)


class Holding:
    """Units that somebody has; to be given back by `release`. For one thread at a time."""

    __slots__ = ("_pool", "amount", "who")

    def __init__(self, pool: Pool, who: Who, amount: int) -> None:
        self._pool, self.who, self.amount = pool, who, amount

    def grow(self, amount: int) -> bool:
        """Takes more; False: there is no room for it, and nothing changed."""
        if not self._pool._move(self.who, amount):
            return False
        self.amount += amount
        return True

    def release(self) -> None:
        """Gives back all of it. Again is no error."""
        amount, self.amount = self.amount, 0
        if amount:
            self._pool._move(self.who, -amount)

    def __enter__(self) -> Holding:
        return self

    def __exit__(self, *failure: object) -> None:
        self.release()
