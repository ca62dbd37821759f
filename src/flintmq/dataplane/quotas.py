"""Quotas: how many things of one kind a user or virtual host may hold on a node, so that no user takes the places of all.

in: who holds what. out: Refused LIMIT, which says whose places are taken and what to do.

Q1  A thing is counted for the user and the vhost that it was entered with, until it leaves; both are O(1), and leaving twice is no error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

from flintmq.dataplane.wire import Refused


class Quota:
    """Args: what: plural, for people; hint: what to do; node, vhost, user: how many there may be. Threading: under its owner's lock."""

    def __init__(self, what: str, hint: str, *, node: int, vhost: int, user: int) -> None:
        self._what = what
        self.hint = hint
        self._node, self._vhost, self._user = node, vhost, user
        self._held: dict[Hashable, tuple[str, str]] = {}
        self._users: Counter[str] = Counter()
        self._vhosts: Counter[str] = Counter()

    def full(self, user: str, vhost: str) -> str:
        """Whose places are all taken, "user", "vhost" or "node", in this order; "" when there is one left."""
        if self._users[user] >= self._user:
            return "user"
        if self._vhosts[vhost] >= self._vhost:
            return "vhost"
        return "node" if len(self._held) >= self._node else ""

    def of_user(self, user: str) -> int:
        """How many the user has."""
        return self._users[user]

    def refused(self, full: str, user: str, vhost: str) -> Refused:
        """The error for what `full` said."""
        if full == "user":
            text = f"user '{user}' has {self._user} {self._what} already"
        elif full == "vhost":
            text = f"vhost '{vhost}' has {self._vhost} {self._what} already"
        else:
            text = f"there are {self._node} {self._what} already"
        return Refused("LIMIT", f"{text}: {self.hint}")

    def check(self, user: str, vhost: str) -> None:
        """Raises: Refused LIMIT when there is no place left."""
        if full := self.full(user, vhost):
            raise self.refused(full, user, vhost)

    def enter(self, key: Hashable, user: str, vhost: str) -> None:
        """Counts one, whether there is a place or not: what a restart brings back is there. Again is no error."""
        if key not in self._held:
            self._held[key] = (user, vhost)
            self._users[user] += 1
            self._vhosts[vhost] += 1

    def leave(self, key: Hashable) -> None:
        """It is gone."""
        found = self._held.pop(key, None)
        if found is None:
            return
        for counter, name in zip((self._users, self._vhosts), found, strict=True):
            counter[name] -= 1
            if not counter[name]:
                del counter[name]
