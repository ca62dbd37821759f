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
from collections import Counter
from collections.abc import Callable, Iterable

from flintmq.config import Limits
from flintmq.errors import PeerError, ReplyCode
from flintmq.ports import LimitsRecord

CONNECTIONS = "max-connections"
CHANNELS = "max-channels"
CONSUMERS = "max-consumers"


class Quotas:
    """Counts of a node. Any thread; every call is O(1).

    Args: limits; records: what the operator set; user_count: how many users there are.
    """

    def __init__(self, limits: Limits, records: Iterable[LimitsRecord], user_count: Callable[[], int]) -> None:
        self._set = {(record.kind, record.name): dict(record.limits) for record in records}
        self._user_count = user_count
        # connections that the node takes in all; fewer when its descriptors do not reach as far
        self.connections_all = limits.connections_max
        self._share = limits.user_connections_share
        self._most = {CHANNELS: limits.user_channels_max, CONSUMERS: limits.user_consumers_max}
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str, str]] = Counter()  # (what, "user" or "vhost", name) -> number

    def of_vhost(self, name: str) -> dict[str, int]:
        """What the operator set for a virtual host: name of the limit -> number, below 0: none."""
        return self._set.get(("vhost", name), {})

    def count(self, what: str, kind: str, name: str) -> int:
        """How many connections, channels or consumers (`max-...`) a "user" or "vhost" has."""
        return self._counts[what, kind, name]

    # --- connections ----------------------------------------------------------------------------------------------------

    def open_connection(self, user: str, vhost: str) -> None:
        """Raises: PeerError 530."""
        with self._lock:
            most = self.of_vhost(vhost).get(CONNECTIONS, -1)
            if 0 <= most <= self._counts[CONNECTIONS, "vhost", vhost]:
                raise PeerError(
                    ReplyCode.NOT_ALLOWED, f"access to vhost '{vhost}' refused for user '{user}': connection limit ({most}) is reached"
                )
            most = self._of_user(user, CONNECTIONS, int(self.connections_all * self._share))
            if 0 <= most <= self._counts[CONNECTIONS, "user", user]:
                raise PeerError(ReplyCode.NOT_ALLOWED, f"Connection refused for user '{user}': user connection limit ({most}) is reached")
            self._counts[CONNECTIONS, "vhost", vhost] += 1
            self._counts[CONNECTIONS, "user", user] += 1

    def close_connection(self, user: str, vhost: str) -> None:
        with self._lock:
            self._less(CONNECTIONS, "vhost", vhost)
            self._less(CONNECTIONS, "user", user)

    # --- channels and consumers -----------------------------------------------------------------------------------------

    def open_channel(self, user: str) -> None:
        """Raises: PeerError 530."""
        text = "number of channels opened for user '{user}' has reached the maximum allowed user limit of ({most})"
        self._take(CHANNELS, user, text)

    def add_consumer(self, user: str) -> None:
        """Raises: PeerError 530."""
        text = "number of consumers of user '{user}' has reached the maximum allowed user limit of ({most})"
        self._take(CONSUMERS, user, text)

    def close_channel(self, user: str) -> None:
        with self._lock:
            self._less(CHANNELS, "user", user)

    def remove_consumer(self, user: str) -> None:
        with self._lock:
            self._less(CONSUMERS, "user", user)

    def _take(self, what: str, user: str, text: str) -> None:
        with self._lock:
            most = self._of_user(user, what, self._most[what])
            if 0 <= most <= self._counts[what, "user", user]:
                raise PeerError(ReplyCode.NOT_ALLOWED, text.format(user=user, most=most), hard=True)
            self._counts[what, "user", user] += 1

    def _of_user(self, user: str, what: str, default: int) -> int:
        """Below 0: any number."""
        own = self._set.get(("user", user), {}).get(what)
        if own is not None:
            return own
        return -1 if self._user_count() <= 1 else default

    def _less(self, what: str, kind: str, name: str) -> None:
        key = (what, kind, name)
        self._counts[key] -= 1
        if self._counts[key] <= 0:
            del self._counts[key]  # users and virtual hosts of the past take no memory
