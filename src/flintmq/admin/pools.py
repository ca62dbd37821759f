"""What the HTTP service has so much of, for all users together: each kind is a core.shares.Pool, and there is no other limit of the node.

in: limits. out: pools; refusals with 503.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flintmq.admin.http_refusals import busy
from flintmq.config import Limits
from flintmq.core.shares import Holding, Pool, Who

# keys of a request's scope
WHO, CALLER, POOLS = "flintmq.who", "flintmq.caller", "flintmq.pools"


class Pools:
    """Args: limits; alone: whether the broker has one user only."""

    def __init__(self, limits: Limits, alone: Callable[[], bool]) -> None:
        self._shares = limits.http_user_share, limits.http_source_share
        self._alone = alone
        # bytes: of bodies of which the rest is waited for; of answers that are on their way
        self.arriving = self._pool(limits.http_arriving_bytes_max, "input")
        self.answers = self._pool(limits.http_answers_bytes_max)
        # requests: polls that are held, event streams, long calls, messages that are got, scrapes of metrics, waits for a password check
        self.held = Pool(limits.http_connections_max, limits.http_held_user_share, limits.http_source_share, None, alone)
        self.streams = self._pool(limits.sse_clients_max)
        self.calls = self._pool(limits.long_calls_max)
        self.gets = self._pool(limits.http_gets_max)
        self.scrapes = self._pool(limits.metrics_answers_max)
        self.logins = self._pool(limits.http_logins_max)

    def _pool(self, limit: int, kind: str | None = None) -> Pool:
        return Pool(limit, *self._shares, kind, self._alone)


def take(pool: Pool, who: Who, thing: str, amount: int = 1) -> Holding:
    """Raises: HttpError 503. Args: thing: which is refused, for the reason."""
    holding = pool.take(who, amount)
    if holding is None:
        raise busy(too_many(pool, who, thing), "wait for one of them")
    return holding


def too_many(pool: Pool, who: Who, thing: str) -> str:
    """Why something more is refused."""
    mine = f"user '{who.user}' has {pool.of_user(who.user)} of them" if who.user else f"of {who.source}"
    return f"too many {thing}: {mine}, all together {pool.held} of {pool.limit}"


def who_of(scope: Any) -> Who:
    """The asker: a user; before the login only an address."""
    asker: Who = scope.get(WHO) or Who("", "unknown")
    return asker
