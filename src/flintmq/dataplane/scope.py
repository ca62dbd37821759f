"""Scopes and their stages as values.

in: nothing. out: Stage, Scope, and the names of their transactions. Who changes them, under which lock: stages.py.
"""

from __future__ import annotations

import hashlib
import threading
from dataclasses import dataclass, field
from typing import Any

from flintmq.dataplane.blocks import Counts, Router
from flintmq.dataplane.in_log import FORMAT_STAGE
from flintmq.dataplane.wire import Refused
from flintmq.transactions import Xid

OPEN, FAILED, PREPARED, ENDED = "open", "failed", "prepared", "ended"
# A streaming query, which comes back; a named write, which may be repeated; a write without a name, which will not.
QUERY, WRITE, ONCE = KINDS = ("query", "write", "once")
# Names of those that were noted before they had a kind (the sink's prefixes).
_KIND_OF = {"txn:": WRITE, "once": ONCE}


@dataclass(slots=True, eq=False)
class Stage:
    """One stage. `router`: None after a restart; `since_ms`: of its last block, then of its prepare (wall clock); `number`: grows with each
    stage that is begun."""

    identity: bytes
    scope: str
    vhost: str
    user: str
    epoch: int
    batch: int
    part: int
    attempt: int
    since_ms: int
    number: int = 0
    state: str = OPEN
    reason: Refused | None = None
    counts: Counts = field(default_factory=Counts)
    crc: int = 0
    router: Router | None = None
    # whether a queue that is full fails the stage; after a restart nobody asks again
    refuses: bool = False
    lock: Any = field(default_factory=threading.Lock)

    @property
    def stage_id(self) -> str:
        return self.identity.hex()

    @property
    def place(self) -> tuple[int, int]:
        """Where its messages stand among those of its batch."""
        return self.part, self.number

    @property
    def session(self) -> tuple[str, bytes]:
        return ("stage", self.identity)

    @property
    def xid(self) -> Xid:
        return Xid(FORMAT_STAGE, global_id(self.vhost, self.scope), self.identity, self.vhost)

    def facts(self) -> dict[str, Any]:
        """The answer to stage.prepare."""
        counts = self.counts
        return {
            "stage_id": self.stage_id,
            "count": counts.count,
            "bytes": counts.bytes,
            "unroutable": counts.unroutable,
            "over_limit": counts.over_limit,
            "crc": self.crc,
        }

    def view(self, now_ms: int) -> dict[str, Any]:
        """For scope.status."""
        return {
            **self.facts(),
            "state": self.state,
            "batch": self.batch,
            "part": self.part,
            "attempt": self.attempt,
            "user": self.user,
            "age_ms": max(0, now_ms - self.since_ms),
        }


@dataclass(slots=True, eq=False)
class Scope:
    """One scope. `committed`: -1 before the first commit; `epoch`: the highest that was seen; `user`: whose it is, "" nobody's yet; `kind`:
    of KINDS; `decided`: the stages of the last commit where its note names them, as those of earlier versions do."""

    name: str
    vhost: str
    committed: int = -1
    epoch: int = 0
    user: str = ""
    decided: list[str] | None = None
    noted: bool = False
    used_ms: int = 0  # wall clock
    kind: str = QUERY
    forgotten: bool = False
    aborted: int = -1  # the last epoch that was aborted
    stages: dict[bytes, Stage] = field(default_factory=dict)
    lock: Any = field(default_factory=threading.RLock)

    @property
    def key(self) -> bytes:
        return f"{self.vhost}\0{self.name}".encode()


def kind_of(name: str) -> str:
    """Of a scope whose note says nothing about it."""
    return _KIND_OF.get(name[:4], QUERY)


def global_id(vhost: str, scope: str) -> bytes:
    """Global id of a scope's transactions: 32 bytes."""
    return hashlib.blake2b(f"{vhost}\0{scope}".encode(), digest_size=32).digest()
