"""Connections whose user a token names: they log in by it, get a new one while they live, and end with it.

in: tokens of clients (the password of PLAIN and AMQPLAIN, connection.update-secret), the clock. out: users for connections; connections
whose token is over are closed.

T1  A connection ends with its token within one round of the housekeeping; it may do nothing from the token's end on (TokenUser.is_over).
T2  A connection that went before its token did is forgotten: there are at most twice as many notes as connections, and some.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

from flintmq.access.token_user import TokenUser
from flintmq.errors import ReplyCode
from flintmq.guard import guarded

if TYPE_CHECKING:
    from flintmq.broker.client import Client
    from flintmq.broker.state import NodeState

log = logging.getLogger("flintmq.connection")

# connections that end in one slice
_ENDS_AT_ONCE = 32
# notes below which nobody looks for those of connections that are gone
_NOTES_LEAST = 1_024


class TokenLogins:
    """Args: oauth: access.oauth.OAuth. Any thread."""

    def __init__(self, state: NodeState, oauth: Any) -> None:
        self._state = state
        self.oauth = oauth
        self.cached = oauth.cached
        self.submit = oauth.submit
        self._lock = threading.Lock()
        # (end of the token in wall ms, order, connection)
        self._notes: list[tuple[int, int, weakref.ref[Client]]] = []
        self._order = itertools.count()
        self._prune_at = _NOTES_LEAST
        self._ending = False

    def __len__(self) -> int:
        return len(self._notes)

    def follow(self, client: Client, user: TokenUser) -> None:
        """The connection ends with this token, unless it gets another one."""
        with self._lock:
            heapq.heappush(self._notes, (user.expires_ms, next(self._order), weakref.ref(client)))
            if len(self._notes) >= self._prune_at:
                self._notes = [one for one in self._notes if (known := one[2]()) is not None and not known.ended]
                heapq.heapify(self._notes)
                self._prune_at = max(_NOTES_LEAST, 2 * len(self._notes))

    def tick(self, now_ms: int) -> None:
        """Ends connections whose token is over. O(1) while there is none."""
        if self._notes and not self._ending and self._notes[0][0] <= self._state.clock.wall_ms():
            self._ending = True
            self._state.loops.in_slices(self._end_some, self._ended)

    def _ended(self, done: bool) -> None:
        self._ending = False

    def _end_some(self) -> bool:
        now_ms = self._state.clock.wall_ms()
        due: list[Client | None] = []
        with self._lock:
            while self._notes and self._notes[0][0] <= now_ms and len(due) < _ENDS_AT_ONCE:
                due.append(heapq.heappop(self._notes)[2]())
            over = not self._notes or self._notes[0][0] > now_ms
        for client in due:
            if client is not None and not client.ended:
                self._state.loops.run_on(client, partial(guarded, "connections whose token is over", client.name, _end, client))
        return over


def _end(client: Client) -> None:
    """On the connection's loop. It may have got a new token meanwhile."""
    user = client.user
    if client.ended or not client.is_open or not isinstance(user, TokenUser) or not user.is_over:
        return
    log.warning("connection %s: the token of user %r is over", client.name, user)
    client.close(ReplyCode.CONNECTION_FORCED, "CONNECTION_FORCED - credential expired")
    if client.socket is not None:
        client.loop.touch(client.socket)
