"""What all exchanges of one virtual host remember of messages, and whose messages these were.

in: bytes that are remembered and forgotten, with the user who published. out: whether there is room for one more.

R1  All of it is Limits.kept_bytes_max at most. While there are several users, what one of them published is kept_user_share of that at
    most: nobody makes the exchanges of others forget.
"""

from __future__ import annotations

from collections.abc import Callable

from flintmq.config import Limits
from flintmq.core.memory_account import MemoryTotal


class Kept(MemoryTotal):
    """Under the virtual host's lock, but for what a refused message takes back."""

    def __init__(self) -> None:
        # bytes by user; who has none is not in it
        self._of_users: dict[object, int] = {}
        # whether there is one user only
        self.alone: Callable[[], bool] = lambda: True

    def has_room(self, size: int, limits: Limits) -> bool:
        """Whether so many bytes more may be remembered, whoever published them."""
        return self.held + size <= limits.kept_bytes_max

    def lets(self, user: object, size: int, limits: Limits) -> bool:
        """Whether they may be this user's. None: nobody's, as of messages that the broker itself publishes."""
        if user is None or self._of_users.get(user, 0) + size <= limits.kept_bytes_max * limits.kept_user_share:
            return True
        return self.alone()

    def note(self, user: object, change: int) -> None:
        """What a user published is remembered (> 0 bytes) or forgotten. The holder's MemoryShare has it in `held`."""
        if user is None:
            return
        size = self._of_users.get(user, 0) + change
        if size > 0:
            self._of_users[user] = size
        else:
            self._of_users.pop(user, None)

    def of_user(self, user: object) -> int:
        """Bytes of what this user published."""
        return self._of_users.get(user, 0)
