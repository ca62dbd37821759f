"""Callers of the Flight service of whom the broker has no record: a token or a directory said who they are and what they may.

in: users that were verified. out: handles, which the service names in the calls of these users, and whose they are.

G1  A handle is 128 random bits and stands for one verified login. It grants what its user may at the moment of the call.
G2  A handle ends with its user's token, and when nobody used it for `flight_token_s`: no token of a handshake is good for longer.
G3  A name has `flight_outside_user_max` handles, all names together `flight_outside_max`. At a limit the one that its name has not used for
    longest ends, at the limit of all that of the name with the most: nobody ends the login of a name with fewer.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict

from flintmq.access.outside_user import OutsideUser
from flintmq.clock import Clock
from flintmq.config import Limits

_HANDLE_BYTES = 16


class Logins:
    """Args: limits: flight_outside_max, flight_outside_user_max, flight_token_s; clock. Thread-safe."""

    def __init__(self, limits: Limits, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self._keep_ns = limits.flight_token_s * 1_000_000_000
        self._look_ns = 0
        self._lock = threading.Lock()
        self._users: dict[str, tuple[OutsideUser, int]] = {}  # handle -> user, its last use in monotonic ns
        self._handles: dict[int, str] = {}  # OutsideUser.born -> handle
        self._names: dict[str, OrderedDict[str, None]] = {}  # name -> its handles, the one used last at the end

    def __len__(self) -> int:
        return len(self._users)

    def enter(self, user: OutsideUser) -> str:
        """The handle of a user; the same for the same one."""
        with self._lock:
            handle = self._handles.get(user.born)
            if handle is None:
                self._make_room(str(user))
                handle = self._handles[user.born] = secrets.token_hex(_HANDLE_BYTES)
            self._used(handle, user)
            return handle

    def find(self, handle: object) -> OutsideUser | None:
        """Whose handle it is. None: nobody's, or not any more."""
        with self._lock:
            user, used_ns = self._users.get(handle, (None, 0)) if isinstance(handle, str) else (None, 0)
            if user is None or not isinstance(handle, str):
                return None
            if user.record() is None or self._clock.monotonic_ns() - used_ns >= self._keep_ns:
                self._end(handle)
                return None
            self._used(handle, user)
            return user

    def tick(self) -> None:
        """Ends handles that nobody uses any more, ten times in `flight_token_s`. O(names): the rest of a name's handles was used later."""
        now_ns = self._clock.monotonic_ns()
        if now_ns < self._look_ns:
            return
        self._look_ns = now_ns + self._keep_ns // 10
        until_ns = now_ns - self._keep_ns
        with self._lock:
            for handles in list(self._names.values()):
                for handle in list(handles):
                    if self._users[handle][1] > until_ns:
                        break
                    self._end(handle)

    def _make_room(self, name: str) -> None:
        """G3, before a handle of this name."""
        if len(self._names.get(name, ())) >= self._limits.flight_outside_user_max:
            self._end(next(iter(self._names[name])))
        elif len(self._users) >= self._limits.flight_outside_max:
            largest = max(self._names, key=lambda one: len(self._names[one]))
            self._end(next(iter(self._names[largest])))

    def _used(self, handle: str, user: OutsideUser) -> None:
        self._users[handle] = user, self._clock.monotonic_ns()
        handles = self._names.setdefault(str(user), OrderedDict())
        handles[handle] = None
        handles.move_to_end(handle)

    def _end(self, handle: str) -> None:
        user, _ = self._users.pop(handle)
        del self._handles[user.born]
        handles = self._names[str(user)]
        del handles[handle]
        if not handles:
            del self._names[str(user)]
