"""Failures of the database, and who is told of them: the families of errors.py and one of our own.

A constraint        -> ConstraintFailure, which definitions.py turns into the contract's ValueError or PeerError. Nothing changed.
No room, a lock     -> NotSaved (a StoreError): nothing changed, the store is well, the same call may succeed later. Not latched.
Anything else       -> StoreError, latched: a failed sync or a lost server leaves open what is durable, so nothing is saved any more.
"""

from __future__ import annotations

import errno

from flintmq.errors import FlintError, StoreError

# what a disk that fails or is full says, in contrast to a wrong path or missing permissions
DISK_ERRORS = (errno.EIO, errno.ENOSPC, errno.EDQUOT)


class NotSaved(StoreError):
    """The change was not made (disk full, or another process holds the database too long); the store goes on."""


def unknown_outcome(where: str, error: BaseException) -> StoreError:
    """A commit that ended with something no driver promises (no memory, an interrupt): it may have taken effect."""
    return StoreError(f"{where}: whether a commit took effect is not known: {type(error).__name__}: {error}")


class ConstraintFailure(FlintError):
    """A statement broke a constraint. `unknown_vhost`: the foreign key to vhosts; else a queue id that is taken."""

    def __init__(self, text: str, *, unknown_vhost: bool) -> None:
        super().__init__(text)
        self.unknown_vhost = unknown_vhost
