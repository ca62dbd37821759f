"""A user of whom the broker has no record: who it is and what it may was said by somebody else, a token or a directory.

in: what was said of it. out: what Users.get and Permissions ask for.

U1  An OutsideUser is a text, its name, and goes wherever the name of a user goes. Whoever decides (Users.get, Permissions) sees that it is
    no plain text and asks it, never the records of a user with the same name.
"""

from __future__ import annotations

import itertools
from typing import Protocol

from flintmq.ports import UserRecord

_births = itertools.count(1)


class Rights(Protocol):
    """What a user may do in one virtual host. everything: all verbs on all names."""

    @property
    def everything(self) -> bool: ...

    def allows(self, verb: str, kind: str, name: str) -> bool:
        """Whether the verb is allowed on this queue or exchange (`kind`)."""

    def grants(self, verb: str) -> bool:
        """Whether the verb may be allowed on anything."""


class OutsideUser(str):
    """See module. tags: those of management; born: another one for each that is made."""

    __slots__ = ("born", "tags")

    tags: tuple[str, ...]
    born: int

    @staticmethod
    def birth() -> int:
        return next(_births)

    def record(self) -> UserRecord | None:
        """As that of a user of the broker; None: it is nobody any more."""
        return UserRecord(str(self), "", self.tags)

    def rights(self, vhost: str) -> Rights | None:
        """What it may do there; None: not even open it."""
        raise NotImplementedError

    def may_topic(self, vhost: str, verb: str, exchange: str, key: str) -> bool:
        """Whether a routing key of a topic exchange is allowed to it."""
        raise NotImplementedError

    def may_every_key(self, vhost: str, verb: str, exchange: str) -> bool:
        """Whether all routing keys of it are."""
        raise NotImplementedError
