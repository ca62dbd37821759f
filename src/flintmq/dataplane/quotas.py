"""Quotas: how much of one kind a user or virtual host may hold on a node, so that no user takes the places of all.

in: who holds what. out: Refused LIMIT, which says whose places are taken and what to do.

Q1  A thing is counted for the user and the vhost that it was entered with, as one or with its amount, until it leaves; all is O(1), and
    leaving twice is no error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

from flintmq.dataplane.wire import Refused


class Quota:
    """Args: kind: its plural, for people; hint: what to do; node, vhost, user: how many there may be. Threading: under its owner's lock."""

    def __init__(self, kind: str, hint: str, *, node: int, vhost: int, user: int) -> None:
        self._kind = kind
        self.hint = hint
        self._node, self._vhost, self._user = node, vhost, user
        self._held: dict[Hashable, tuple[str, str, int]] = {}
        self._users: Counter[str] = Counter()
        self._vhosts: Counter[str] = Counter()
        self._all = 0

    def full(self, user: str, vhost: str, amount: int = 1) -> str:
        """Whose places do not suffice for `amount`, "user", "vhost" or "node", in this order; "" when they do."""
        if self._users[user] + amount > self._user:
            return "user"
        if self._vhosts[vhost] + amount > self._vhost:
            return "vhost"
        return "node" if self._all + amount > self._node else ""

    def of_user(self, user: str) -> int:
        """How much the user has."""
        return self._users[user]

    def refused(self, full: str, user: str, vhost: str) -> Refused:
        """The error for what `full` said."""
        if full == "user":
            text = f"user '{user}' has {self._users[user]} {self._kind} already, of {self._user}"
        elif full == "vhost":
            text = f"vhost '{vhost}' has {self._vhosts[vhost]} {self._kind} already, of {self._vhost}"
        else:
            text = f"there are {self._all} {self._kind} already, of {self._node}"
        return Refused("LIMIT", f"{text}: {self.hint}")

    def check(self, user: str, vhost: str, amount: int = 1) -> None:
        """Raises: Refused LIMIT when there is no place left."""
        if full := self.full(user, vhost, amount):
            raise self.refused(full, user, vhost)

    def enter(self, key: Hashable, user: str, vhost: str, amount: int = 1) -> None:
        """Counts one, whether there is a place or not: what a restart brings back is there. Again is no error."""
        if key not in self._held:
            self._held[key] = (user, vhost, 0)
            self.grow(key, amount)

    def grow(self, key: Hashable, amount: int) -> None:
        """It has so much more. Of one that has left nothing is counted."""
        entry = self._held.get(key)
        if entry is not None:
            user, vhost, held = entry
            self._held[key] = (user, vhost, held + amount)
            self._count(user, vhost, amount)

    def leave(self, key: Hashable) -> None:
        """It is gone."""
        entry = self._held.pop(key, None)
        if entry is not None:
            user, vhost, held = entry
            self._count(user, vhost, -held)

    def _count(self, user: str, vhost: str, change: int) -> None:
        self._all += change
        for counter, name in ((self._users, user), (self._vhosts, vhost)):
            counter[name] += change
            if not counter[name]:
                del counter[name]
