"""What all exchanges of one virtual host remember of messages, and whose messages these were (see kept.pxd).

in: bytes that are remembered and forgotten, with the user who published. out: whether there is room for one more.

R1  All of it is Limits.kept_bytes_max at most. While there are several users, what one of them published is kept_user_share of that at
    most: nobody makes the exchanges of others forget. Two loops that ask at one moment may go beyond a user's share by a message.
R2  A user is known as long as something of that user is remembered, or a connection of that user may publish.
"""

from __future__ import annotations

from cython import NULL, address, cast, cclass, pointer, sizeof, void
from cython.cimports.flintmq.core.atomics import at_add32, at_load32, at_load64, at_store32, at_sub32
from cython.cimports.libc.stdint import uint64_t
from cython.cimports.libc.stdlib import calloc, free


def kept_decref(total: pointer[kept_t]) -> void:
    if total != NULL and at_sub32(address(total.refs), 1) == 1:
        free(total)


def kept_user_decref(user: pointer[kept_user_t]) -> void:
    if user != NULL and at_sub32(address(user.refs), 1) == 1:
        free(user)


@cclass
class KeptUser:
    """See kept.pxd."""

    def __cinit__(self):
        self.user = cast(pointer[kept_user_t], calloc(1, sizeof(kept_user_t)))
        if self.user == NULL:
            raise MemoryError("no memory for a user")
        self.user.refs = 1

    def __dealloc__(self):
        kept_user_decref(self.user)


@cclass
class Kept:
    """Of one virtual host. Attribute: alone: says whether there is one user only; any thread."""

    def __cinit__(self):
        self.total = cast(pointer[kept_t], calloc(1, sizeof(kept_t)))
        if self.total == NULL:
            raise MemoryError("no memory for a virtual host")
        self.total.refs = 1
        self.total.alone = 1
        self.alone = lambda: True
        self._users = {}

    def __dealloc__(self):
        kept_decref(self.total)

    def bound(self, bounds: pointer[kept_bounds_t], limits: object) -> void:
        """What an exchange may remember, by the node's limits, in this virtual host."""
        kept_decref(bounds.total)
        at_add32(address(self.total.refs), 1)
        bounds.total = self.total
        bounds.total_max = limits.kept_bytes_max
        bounds.user_max = cast(uint64_t, int(limits.kept_bytes_max * limits.kept_user_share))

    def look_again(self) -> None:
        """Users came or went."""
        at_store32(address(self.total.alone), 1 if self.alone() else 0)

    def user(self, name: object) -> KeptUser:
        """The count of a user. Raises: MemoryError. O(1), averaged over many."""
        user: KeptUser = self._users.get(name)
        if user is None:
            self.look_again()
            if len(self._users) >= 2 * self._looked_at + 64:
                for known in [known for known, one in self._users.items() if self._is_idle(one)]:
                    self._users.pop(known, None)
                self._looked_at = len(self._users)
            user = self._users.setdefault(name, KeptUser())
        return user

    def _is_idle(self, user: KeptUser) -> bool:
        """R2. One reference is the table's; connections, and what exchanges remember, have the others."""
        return at_load32(address(user.user.refs)) == 1 and at_load64(address(user.user.bytes)) == 0

    @property
    def held(self) -> int:
        """Bytes that are remembered."""
        return at_load64(address(self.total.bytes))

    def of_user(self, name: object) -> int:
        """Bytes of what this user published."""
        user: KeptUser = self._users.get(name)
        return 0 if user is None else at_load64(address(user.user.bytes))
