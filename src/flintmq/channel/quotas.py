"""How many connections, channels and consumers each user, and each virtual host, may have.

in: what an operator set (ports.LimitsRecord) and the defaults of config.Limits; connections, channels and consumers that come and go. out:
refusals with RabbitMQ's texts.

Q1  A number is counted from the moment it is allowed until its connection or channel ends, whichever way that happens.
Q2  What one user is refused, others still get: a default keeps a share of what the node has for them. While there is one user only, that
    user may have it all.
Q3  What is set applies to whoever comes; what is there already stays.

Source: rabbit_reader.erl, rabbit_vhost_limit.erl and rabbit_auth_backend_internal.erl of RabbitMQ 3.10 (names, order, texts).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from cython import cclass, cfunc, long

from flintmq.config import Limits
from flintmq.errors import PeerError, ReplyCode
from flintmq.ports import LimitsRecord

CONNECTIONS = "max-connections"
CHANNELS = "max-channels"
CONSUMERS = "max-consumers"


@cclass
class Quotas:
    """Counts of a node. Any thread; every call is O(1).

    Args: limits; records: what the operator set; user_count: how many users there are.
    """

    def __init__(self, limits: Limits, records: Iterable[LimitsRecord], user_count: Callable[[], int]) -> None:
        self._set = {(record.kind, record.name): dict(record.limits) for record in records}
        self._user_count = user_count
        self._share = limits.user_connections_share
        # limit of a user that the operator set none for
        self._most = {CHANNELS: limits.user_channels_max, CONSUMERS: limits.user_consumers_max}
        self.set_connections(limits.connections_max)
        self._lock = threading.Lock()
        # name -> number; who has none is not in it: users and virtual hosts of the past take no memory
        self._of_vhosts = {}
        self._of_users = {CONNECTIONS: {}, CHANNELS: {}, CONSUMERS: {}}

    def expect_others(self) -> None:
        """Users come whom the broker has no record of (tokens): one that it has is never the only one."""
        known = self._user_count
        self._user_count = lambda: known() + 1

    def alone(self) -> bool:
        """Whether there is one user only, so that nothing is kept for others (Q2)."""
        return self._user_count() <= 1

    def put(self, record: LimitsRecord) -> None:
        """What the operator sets from now on (Q3); an empty record takes it away."""
        with self._lock:
            if record.limits:
                self._set[record.kind, record.name] = dict(record.limits)
            else:
                self._set.pop((record.kind, record.name), None)

    def records(self) -> list[LimitsRecord]:
        """All that is set, by kind and name."""
        with self._lock:
            return [LimitsRecord(kind, name, dict(limits)) for (kind, name), limits in sorted(self._set.items())]

    def of(self, kind: str, name: str) -> dict[str, int]:
        """The limits that are set for one virtual host or user."""
        with self._lock:
            return dict(self._set.get((kind, name), {}))

    def set_connections(self, count: int) -> None:
        """`count`: connections that the node takes in all; fewer than the limit when its descriptors do not reach as far."""
        self._most[CONNECTIONS] = int(count * self._share)

    def of_vhost(self, name: str) -> dict[str, int]:
        """What the operator set for a virtual host: name of the limit -> number, below 0: none."""
        return self._set.get(("vhost", name), {})

    def count(self, limit: str, kind: str, name: str) -> int:
        """How many connections, channels or consumers (`max-...`) a "user" or "vhost" has."""
        counts = self._of_users[limit] if kind == "user" else self._of_vhosts if limit == CONNECTIONS else {}
        return counts.get(name, 0)

    # --- connections ----------------------------------------------------------------------------------------------------

    # `user` is an object: a user whom a token names (access.token_user) is a text with more to it, which `str` would refuse.
    def open_connection(self, user: object, vhost: str) -> None:
        """Raises: PeerError 530."""
        with self._lock:
            here: long = self._of_vhosts.get(vhost, 0)
            if self._set and 0 <= (most := self.of_vhost(vhost).get(CONNECTIONS, -1)) <= here:
                raise PeerError(
                    ReplyCode.NOT_ALLOWED, f"access to vhost '{vhost}' refused for user '{user}': connection limit ({most}) is reached"
                )
            counts: dict = self._of_users[CONNECTIONS]
            own: long = counts.get(user, 0)
            default: long = self._most[CONNECTIONS]
            if (self._set or own >= default) and (most := self._reached(user, CONNECTIONS, default, own)) >= 0:
                raise PeerError(ReplyCode.NOT_ALLOWED, f"connection refused for user '{user}': user connection limit ({most}) is reached")
            self._of_vhosts[vhost] = here + 1
            counts[user] = own + 1

    def close_connection(self, user: object, vhost: str) -> None:
        with self._lock:
            _less(self._of_vhosts, vhost, 1)
            _less(self._of_users[CONNECTIONS], user, 1)

    # --- channels and consumers -----------------------------------------------------------------------------------------

    def open_channel(self, user: object) -> None:
        """Raises: PeerError 530."""
        self._take(CHANNELS, user)

    def add_consumer(self, user: object) -> None:
        """Raises: PeerError 530."""
        self._take(CONSUMERS, user)

    def close_channels(self, user: object, count: int) -> None:
        with self._lock:
            _less(self._of_users[CHANNELS], user, count)

    def remove_consumer(self, user: object) -> None:
        with self._lock:
            _less(self._of_users[CONSUMERS], user, 1)

    def _take(self, limit: str, user: object) -> object:
        with self._lock:
            counts: dict = self._of_users[limit]
            own: long = counts.get(user, 0)
            default: long = self._most[limit]
            if (self._set or own >= default) and (most := self._reached(user, limit, default, own)) >= 0:
                whose = f"channels opened for user '{user}'" if limit == CHANNELS else f"consumers of user '{user}'"
                text = f"number of {whose} has reached the maximum allowed user limit of ({most})"
                raise PeerError(ReplyCode.NOT_ALLOWED, text, hard=True)
            counts[user] = own + 1

    def _reached(self, user: object, limit: str, default: long, own: long) -> long:
        """The limit of a user that `own` of them have reached; -1: none."""
        limits: dict = self._set.get(("user", user), {})
        most = limits.get(limit)
        if most is None:
            # Another node of the cluster (cluster.node_door.NodeUser) comes for clients, which count there.
            most = -1 if self._user_count() <= 1 or getattr(user, "is_node", False) else default
        return most if 0 <= most <= own else -1


@cfunc
def _less(counts: dict, name: object, number: long) -> object:
    remaining: long = counts.get(name, 0) - number
    if remaining > 0:
        counts[name] = remaining
    else:
        counts.pop(name, None)
