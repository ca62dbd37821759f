"""The nodes that use an engine: who lives, who is gone, and what the gone ones held.

in: time. out: beats; leases of nodes that give no sign of life go back to their queues, flagged.

O1  A node counts as gone when its beat did not change for a whole lease on the observer's own monotonic clock: clocks of nodes are never
    compared.
O2  A node that was declared gone can commit nothing any more (queue.py, Q3), before anything that it held goes back.
O3  A sweep that ends in the middle is ended by the next one, on any node.
"""

from __future__ import annotations

import secrets
import struct
import threading
import time
from collections.abc import Callable

from flintmq.config import Limits
from flintmq.kv.engine import Engine, EngineError, Transaction
from flintmq.shared.keys import ID_BYTES, META_BYTES, OWNERS, Counts, QueueKeys, after, owner_row, unpack
from flintmq.shared.queue import ALIVE, GONE, Fenced, attempt

# the row of counts into which those of gone nodes are added
BASE = bytes(ID_BYTES)
_ROWS_AT_ONCE = 200
# a node writes one large message of a queue at a time
_UPLOADS_AT_ONCE = 16


class Owners:
    """This node among the others. One thread calls beat, and one calls look. Args: monotonic: seconds, for tests."""

    def __init__(self, engine: Engine, limits: Limits, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._limits = limits
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._queues: set[bytes] = set()
        self._seen: dict[bytes, tuple[bytes, float]] = {}  # other node -> its last beat, and since when
        self._beats = 0
        self.owner = b""
        self.swept = 0  # messages that came back from nodes that are gone

    def register(self) -> bytes:
        """A new life of this node. Returns its id."""
        owner = secrets.token_bytes(ID_BYTES)
        while owner == BASE:
            owner = secrets.token_bytes(ID_BYTES)

        def body(transaction: Transaction) -> None:
            transaction.set(owner_row(owner, b"e"), ALIVE)
            transaction.set(owner_row(owner, b"b"), b"\0")

        attempt(self._engine, body)
        with self._lock:
            self.owner = owner
            self._queues.clear()
        return owner

    def uses(self, life: bytes) -> bytes:
        """Notes that this node may hold something of a queue, before it does. Returns the id of the node's life that is noted."""
        with self._lock:
            owner = self.owner
            if life in self._queues:
                return owner
        attempt(self._engine, lambda transaction: transaction.set(owner_row(owner, b"q" + life), b""))
        with self._lock:
            if self.owner == owner:
                self._queues.add(life)
        return owner

    def beat(self) -> None:
        """A sign of life. Raises: Fenced when another node declared this one gone; EngineError."""
        self._beats += 1
        value = self._beats.to_bytes(8, "big")

        def body(transaction: Transaction) -> None:
            if transaction.get(owner_row(self.owner, b"e")) != ALIVE:
                raise Fenced("this node was declared gone by another one")
            transaction.set(owner_row(self.owner, b"b"), value)

        attempt(self._engine, body)

    def nodes(self) -> dict[bytes, tuple[bytes, bytes]]:
        """Id -> (whether it lives, last beat) of each node."""
        lives: dict[bytes, dict[bytes, bytes]] = {}
        begin = OWNERS
        while True:
            transaction = self._engine.begin()
            try:
                rows = transaction.range(begin, after(OWNERS), _ROWS_AT_ONCE, snapshot=True)
            finally:
                transaction.close()
            for key, value in rows:
                offset = len(OWNERS)
                lives.setdefault(key[offset : offset + ID_BYTES], {})[key[offset + ID_BYTES :]] = value
            if len(rows) < _ROWS_AT_ONCE:
                return {owner: (kinds.get(b"e", GONE), kinds.get(b"b", b"")) for owner, kinds in lives.items()}
            begin = rows[-1][0] + b"\0"

    def look(self, others_are_gone: bool = False) -> int:
        """Looks at the other nodes, and sweeps those that are gone. `others_are_gone`: nobody else can use this engine.

        Returns: messages that went back. Raises: EngineError; what the rows of one node brought about, after all others had their turn.
        """
        now = self._monotonic()
        nodes = self.nodes()
        self._seen = {owner: seen for owner, seen in self._seen.items() if owner in nodes}
        before = self.swept
        failure: Exception | None = None
        for owner, (state, beat) in nodes.items():
            if owner == self.owner or (state == ALIVE and not others_are_gone and not self._is_silent(owner, beat, now)):
                continue
            try:
                if state != ALIVE or self.fence(owner, beat):
                    self.swept += self.sweep(owner)
            except EngineError:
                raise
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return self.swept - before

    def _is_silent(self, owner: bytes, beat: bytes, now: float) -> bool:
        """Whether a node gave no sign of life for a whole lease (O1)."""
        known, since = self._seen.get(owner, (b"", now))
        if known != beat:
            self._seen[owner] = (beat, now)
            return False
        return (now - since) * 1000 >= self._limits.shared_lease_ms

    def fence(self, owner: bytes, beat: bytes) -> bool:
        """Declares a node gone, unless it gave a sign of life after `beat`."""

        def body(transaction: Transaction) -> bool:
            if transaction.get(owner_row(owner, b"b")) != beat:
                return False
            transaction.set(owner_row(owner, b"e"), GONE)
            return True

        return attempt(self._engine, body)

    def sweep(self, owner: bytes) -> int:
        """Gives back what a node held that was declared gone, and forgets it. Returns how many messages."""
        prefix = owner_row(owner, b"q")
        returned = 0
        while True:
            transaction = self._engine.begin()
            try:
                rows = transaction.range(prefix, after(prefix), 1, snapshot=True)
            finally:
                transaction.close()
            if not rows:
                break
            life = rows[0][0][len(prefix) :]
            returned += self._sweep_queue(QueueKeys(life), owner, rows[0][0])

        def body(transaction: Transaction) -> None:
            start = owner_row(owner, b"")
            transaction.clear_range(start, after(start))

        attempt(self._engine, body)
        return returned

    def _sweep_queue(self, keys: QueueKeys, owner: bytes, row: bytes) -> int:
        returned = 0
        at_once = max(1, min(_ROWS_AT_ONCE, (self._engine.limits.transaction_writes - 8) // 2))
        while True:
            count = attempt(self._engine, lambda transaction: _return_some(transaction, keys, owner, at_once))
            if count == 0:
                break
            returned += count
        attempt(self._engine, lambda transaction: _forget(transaction, keys, owner, row))
        return returned

    def leave(self) -> None:
        """This node goes: what it holds goes back now, and not after a lease."""
        owner = self.owner
        attempt(self._engine, lambda transaction: transaction.set(owner_row(owner, b"e"), GONE))
        self.sweep(owner)


def _return_some(transaction: Transaction, keys: QueueKeys, owner: bytes, at_once: int) -> int:
    if transaction.get(keys.alive) is None:
        return 0
    prefix = keys.leases(owner)
    rows = transaction.range(prefix, after(prefix), at_once)
    if not rows:
        return 0
    counts = Counts.unpack(transaction.get(keys.counts(owner)))
    size = 0
    for key, value in rows:
        try:
            meta, _ = unpack(value)
            size += meta.size
            value = meta.returned(True).pack() + value[META_BYTES:]
        except (ValueError, struct.error):
            pass  # a later version's: it goes back as it is, to nodes that can read it
        transaction.clear(key)
        transaction.set(keys.ready + key[len(prefix) :], value)
    transaction.set(keys.counts(owner), counts.plus(Counts(leased=-len(rows), leased_bytes=-size)).pack())
    transaction.set(keys.signal, owner + secrets.token_bytes(8))
    return len(rows)


def _forget(transaction: Transaction, keys: QueueKeys, owner: bytes, row: bytes) -> None:
    """No lease of the node is left in the queue: its counts go to the base, its chunks without a message go."""
    transaction.clear(row)
    if transaction.get(keys.alive) is None:
        return
    uploads = keys.uploads(owner)
    for key, _ in transaction.range(uploads, after(uploads), _UPLOADS_AT_ONCE):
        base = keys.blob(key[len(uploads) :])
        transaction.clear_range(base, after(base))
        transaction.clear(key)
    counts = transaction.get(keys.counts(owner))
    if counts is not None:
        last = Counts.unpack(counts)
        last.leased = last.leased_bytes = 0  # what it was given and never counted went back, too
        total = Counts.unpack(transaction.get(keys.counts(BASE))).plus(last)
        transaction.set(keys.counts(BASE), total.pack())
        transaction.clear(keys.counts(owner))
    highest = max(transaction.get(keys.highest(owner)) or b"", transaction.get(keys.highest(BASE)) or b"")
    if highest:
        transaction.set(keys.highest(BASE), highest)
        transaction.clear(keys.highest(owner))
    transaction.clear(keys.request(owner))
