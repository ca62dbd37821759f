"""The nodes of an engine: this one's signs of life, and which others are gone (docs/adr/0015, R7).

in: rows of nodes; this node's monotonic clock. out: who lives, with addresses; who is gone.

N1  A name is one node's while it lives. A process that took it over is seen with the next beat, and ends this one's life.
N2  A node is gone when its row went, has another life, or was the same for a lease, and the engine took this node's own signs all that
    time: after an outage, and from a full engine, which takes none, everybody has a lease to give a sign again. Clocks are never compared.
N3  Whether a node is gone decides who tries to take a queue over, and nothing else: what an owner may write, its owner row decides. Whoever
    tries compares the row by which he judged (`judged`).
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from flintmq.config import Limits
from flintmq.engines.engine import Commit, Engine, EngineError, UnknownOutcome

_PREFIX = b"n/"
_END = b"n0"
# a row that nobody reads
_PROOF = b"x/proof"
# characters of a node's name
NAME_MAX = 255


class NameTaken(Exception):
    """A living node has this name."""


class Replaced(Exception):
    """Another process has taken this node's name: this life is over."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node as its row has it. facts: addresses, version, state; life: of its process; beat: rises with each sign of life."""

    name: str
    life: str
    beat: int
    facts: Mapping[str, Any]


@dataclass(slots=True)
class _Seen:
    value: bytes
    since_s: float


def node_key(name: str) -> bytes:
    return _PREFIX + name.encode()


def candidates(queue: bytes, names: Iterable[str]) -> list[str]:
    """The nodes in the order in which they are to take the queue over, the same on each node (rendezvous hashing). O(n log n)."""
    return sorted(names, key=lambda name: hashlib.blake2b(queue + b"/" + name.encode(), digest_size=8).digest())


class Nodes:
    """This node among the others. One event loop.

    Args: facts: what others are told of this node, a JSON object; clock: seconds, monotonic.
    """

    def __init__(
        self, engine: Engine, name: str, facts: Mapping[str, Any], limits: Limits, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.name = name
        self.life = secrets.token_hex(8)
        self.facts = dict(facts)
        self.living: dict[str, Node] = {}
        self.known: dict[str, Node] = {}  # those that are gone and not forgotten, too
        self.unreadable = 0  # rows of nodes that can't be read
        self.looked_s: float | None = None  # when the rows were read last
        self._engine = engine
        self._lease_s = limits.shared_node_lease_ms / 1000
        self._nodes_max = limits.shared_nodes_max
        self._clock = clock
        self._beat = 0
        self._row: bytes | None = None  # ours, as it stands in the engine
        self._seen: dict[str, _Seen] = {}
        self._reached_s: float | None = None  # since when the engine takes our signs
        self._answers_s: float | None = None  # since when it answers

    async def join(self) -> None:
        """The first sign of life. One that has this name and was not seen for a lease is replaced, which takes that lease.

        Raises: NameTaken: it lives, or nobody knows yet: to be tried again; EngineError.
        """
        await self.look()
        (row,) = await self._engine.get([node_key(self.name)])
        if row is not None and not self._is_stale(self.name, row, self._answers_s):
            raise NameTaken(f"a node named {self.name!r} lives, or was there a moment ago: it is gone after {self._lease_s:.0f} s")
        await self._write(row)

    async def beat(self) -> None:
        """A sign of life, with the present facts. Raises: Replaced; EngineError."""
        try:
            await self._write(self._row)
        except EngineError:
            self._reached_s = None
            raise

    async def prove(self) -> None:
        """Finds out whether the engine takes signs of life (N2), for one that is no node, and gives none. Raises: EngineError."""
        try:
            await self._engine.commit(Commit(puts={_PROOF: b""}))
        except EngineError:
            self._reached_s = None
            raise
        if self._reached_s is None:
            self._reached_s = self._clock()

    async def _write(self, before: bytes | None) -> None:
        key = node_key(self.name)
        self._beat += 1
        row = json.dumps({"life": self.life, "beat": self._beat, "facts": self.facts}, sort_keys=True).encode()
        try:
            done = await self._engine.commit(Commit([(key, before)], {key: row}))
        except UnknownOutcome:
            (there,) = await self._engine.get([key])
            if there != row:
                raise  # the next one compares what is there now, and this one can't come any more after that
            done = True
        if done:
            self._row = row
            if self._reached_s is None:
                self._reached_s = self._clock()
            return
        (there,) = await self._engine.get([key])
        node = None if there is None else _unpack(self.name, there)
        if node is None or node.life != self.life:
            raise Replaced(f"another process has the name {self.name!r}")
        self._row = there  # a beat of ours that came late
        await self._write(there)

    async def leave(self) -> None:
        """This node is gone at once. Raises: EngineError."""
        key = node_key(self.name)
        while self._row is not None:
            if await self._engine.commit(Commit([(key, self._row)], deletes=[key])):
                return
            (there,) = await self._engine.get([key])  # a beat whose answer nobody waited for?
            node = None if there is None else _unpack(self.name, there)
            self._row = there if node is not None and node.life == self.life else None

    async def look(self) -> None:
        """Reads the rows of all nodes, and sets `living`. O(nodes). Raises: EngineError."""
        try:
            rows = await self._engine.scan(_PREFIX, _END, self._nodes_max, 1 << 20)
        except EngineError:
            self._reached_s = self._answers_s = None
            raise
        now = self._clock()
        if self._answers_s is None:
            self._answers_s = now
        living: dict[str, Node] = {}
        known: dict[str, Node] = {}
        names: set[str] = set()
        for key, value in rows:
            name = key.removeprefix(_PREFIX).decode("utf-8", "replace")
            names.add(name)
            seen = self._seen.get(name)
            if seen is None or seen.value != value:
                self._seen[name] = _Seen(value, now)
            node = _unpack(name, value)
            if node is None:
                continue
            known[name] = node
            if not self._is_stale(name, value, self._reached_s):
                living[name] = node
        self._seen = {name: seen for name, seen in self._seen.items() if name in names}
        self.living, self.known, self.looked_s = living, known, now
        self.unreadable = len(names) - len(known)

    def silent_s(self, name: str) -> float | None:
        """Seconds since a node's row changed, as this one saw it; None: it has no row. Any thread."""
        seen = self._seen.get(name)
        return None if seen is None else self._clock() - seen.since_s

    @property
    def age_s(self) -> float | None:
        """Seconds since the rows were read; None: never. Any thread."""
        return None if self.looked_s is None else self._clock() - self.looked_s

    def _is_stale(self, name: str, value: bytes, since_s: float | None) -> bool:
        seen = self._seen.get(name)
        if seen is None or seen.value != value or since_s is None:
            return False
        return self._clock() - max(seen.since_s, since_s) >= self._lease_s

    def until_gone_s(self) -> float:
        """Seconds until the first of the living others counts as gone, if it gives no sign any more; infinite without others. O(nodes)."""
        if self._reached_s is None:
            return math.inf
        since = [max(self._seen[name].since_s, self._reached_s) for name in self.living if name != self.name]
        return min(since, default=math.inf) + self._lease_s - self._clock()

    def judged(self, name: str) -> tuple[bytes, bytes | None]:
        """The row of a node as the last look read it: a condition of whoever takes its queues over."""
        seen = self._seen.get(name)
        return node_key(name), None if seen is None else seen.value

    def is_gone(self, name: str, life: str) -> bool:
        """Whether this life of a node was over at the last look (N2)."""
        node = self.living.get(name)
        return node is None or node.life != life

    def is_over(self, name: str, life: str) -> bool:
        """As `is_gone`, False before the first look."""
        return self.looked_s is not None and self.is_gone(name, life)

    async def forget(self, name: str) -> bool:
        """Removes the row of a node that is gone. False: it lives, or there is none. Raises: EngineError."""
        (row,) = await self._engine.get([node_key(name)])
        if row is None or not self._is_stale(name, row, self._reached_s):
            return False
        return await self._engine.commit(Commit([(node_key(name), row)], deletes=[node_key(name)]))


def _unpack(name: str, value: bytes) -> Node | None:
    """None: the row can't be read, and its node can't be told from one that is gone."""
    try:
        row = json.loads(value)
        return Node(name, str(row["life"]), int(row["beat"]), dict(row["facts"]))
    except (ValueError, TypeError, KeyError):
        return None
