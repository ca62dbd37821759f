"""Samples of counters, for charts: of the node, and of the queues that something happened to.

in: counters that exist anyway, looked at by the HTTP service's thread. out: rings of numbers at three (node) or two (queue) distances.

S1  Sampling begins with the first HTTP request, and is never on the way of a message: counters are read, in pieces, once in a while.
S2  A ring has a fixed size. A queue gets its rings when its counters move; Limits.samples_queues_max queues have some, the one that
    nothing happened to for the longest time makes room. Samples are in the account of memory (definitions).
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from flintmq.admin.counts import is_hidden, queue_count
from flintmq.core.memory_account import MemoryShare, bytes_held
from flintmq.guard import guarded

# seconds between two samples, and how many are kept
NODE_TIERS = ((1, 300), (10, 360), (120, 720))
QUEUE_TIERS = ((5, 120), (60, 60))
NODE_COLUMNS = (
    "messages_ready",
    "messages_unacked",
    "enqueued",
    "delivered",
    "dropped",
    "connections",
    "channels",
    "consumers",
    "queues",
    "memory_bytes",
    "unroutable",
)
# lag: messages that the slowest group of a stream has not been given; 0 of other queues
QUEUE_COLUMNS = ("messages_ready", "messages_unacked", "enqueued", "delivered", "consumers", "lag")
# queues that are looked at in one piece
_PIECE = 250
# queues up to which sums are made each second; with more they are made as often as queues are looked at
_EACH_SECOND = 1_000
# bytes of a ring besides its numbers: objects, tables
_RING_BYTES = 600
# counters of a queue that did nothing yet
_NOTHING = (0, 0, 0)


class Ring:
    """The last samples at one distance. O(1) to add."""

    def __init__(self, every_s: int, size: int, columns: int) -> None:
        self.every_s, self._size, self._columns = every_s, size, columns
        self._values = array("q", bytes(8 * size * columns))
        self.count = 0  # samples so far
        self.last_s = 0

    def add(self, now_s: int, row: Sequence[int]) -> None:
        """A sample; one for a time whose sample is there already is left out."""
        slot = now_s // self.every_s
        if self.count and slot <= self.last_s // self.every_s:
            return
        if self.count:  # what was missed (a busy machine) counts as what was before, or times would shift
            before = self._row(self.count - 1)
            for _ in range(min(slot - self.last_s // self.every_s - 1, self._size)):
                self._put(before)
        self._put(row)
        self.last_s = slot * self.every_s

    def _put(self, row: Sequence[int]) -> None:
        start = self.count % self._size * self._columns
        self._values[start : start + self._columns] = array("q", row)
        self.count += 1

    def _row(self, index: int) -> array[int]:
        start = index % self._size * self._columns
        return self._values[start : start + self._columns]

    def columns(self, most: int) -> list[list[int]]:
        """The last `most` samples, oldest first, one list for each column."""
        first = max(0, self.count - min(most, self._size))
        rows = [self._row(index) for index in range(first, self.count)]
        return [[row[column] for row in rows] for column in range(self._columns)]

    @property
    def bytes(self) -> int:
        return _RING_BYTES + 8 * self._size * self._columns


class Series:
    """Rings of one object. Args: names of the columns; tiers: (seconds, samples), shortest first."""

    def __init__(self, names: Sequence[str], tiers: Sequence[tuple[int, int]]) -> None:
        self.names = names
        self.rings = [Ring(every, size, len(names)) for every, size in tiers]

    def add(self, now_s: int, row: Sequence[int]) -> None:
        for ring in self.rings:
            ring.add(now_s, row)

    def of(self, seconds: int) -> dict[str, Any]:
        """The samples of the last `seconds`, from the ring that reaches so far at the shortest distance."""
        ring = next((one for one in self.rings if one.every_s * one._size >= seconds), self.rings[-1])
        columns = ring.columns(max(2, seconds // ring.every_s))
        return {"every_s": ring.every_s, "end_s": ring.last_s, "samples": dict(zip(self.names, columns, strict=True))}

    def capacity(self) -> float:
        """Of a queue: the part of the last minute's samples in which consumers were there and no message waited for them."""
        columns = self.of(60)["samples"]
        seen = list(zip(columns["messages_ready"], columns["consumers"], strict=True))
        return round(sum(bool(consumers) and not ready for ready, consumers in seen) / len(seen), 2) if seen else 0.0

    @property
    def bytes(self) -> int:
        return sum(ring.bytes for ring in self.rings)


class Sampler:
    """Args: parts: of the service. For one event loop: `start` once."""

    def __init__(self, parts: Any) -> None:
        self._parts = parts
        self._broker = parts.broker
        self._most = parts.broker.limits.samples_queues_max
        self.node = Series(NODE_COLUMNS, NODE_TIERS)
        # queue id -> its samples, the one that something happened to longest ago first
        self.queues: OrderedDict[int, Series] = OrderedDict()
        # queue id -> counters, and when they were seen to move
        self._before: dict[int, tuple[int, int, int, int]] = {}
        self.began_s = 0
        self._share = MemoryShare("definitions")
        self._share.add(self.node.bytes)
        self._task: asyncio.Task[None] | None = None
        self.rounds = 0
        # ready, unacked, enqueued, delivered, consumers of all queues
        self.sums = (0, 0, 0, 0, 0)

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        clock = self._broker.clock
        self.began_s = clock.wall_ms() // 1000
        while not self._parts.pulls.stopping:
            if self.rounds % QUEUE_TIERS[0][0] == 0 or len(self._broker.queues) <= _EACH_SECOND:
                await self.sum_up()
            guarded("samples", "the node", self._node, clock.wall_ms() // 1000)
            if self.rounds % QUEUE_TIERS[0][0] == 0:
                await self.look(clock.wall_ms() // 1000)
            self.rounds += 1
            await asyncio.sleep(1.0 - time.time() % 1.0)

    def _node(self, now_s: int) -> None:
        self.node.add(now_s, self.node_row())

    def node_row(self) -> list[int]:
        """The node's counters now. O(connections); of queues the sums of the last look at them."""
        broker, sums = self._broker, self.sums
        channels = sum(len(one.channels) for one in list(broker.connections.values()))
        drops = dict(broker.counters.drops)
        queues, lost = queue_count(broker), drops.get("unroutable", 0)
        return [*sums[:4], sum(drops.values()), len(broker.connections), channels, sums[4], queues, bytes_held(), lost]

    async def sum_up(self) -> None:
        """Sums over all queues that lists show, in pieces; of counts of events with those of queues that are gone."""
        queues, gone = self._broker.counters.with_gone(self._broker.queues)
        ready = unacked = consumers = 0
        enqueued, delivered = (sum(counts[name] for counts in gone.values()) for name in ("enqueued", "delivered"))
        for start in range(0, len(queues), _PIECE):
            for queue in queues[start : start + _PIECE]:
                if is_hidden(queue):
                    continue
                core = queue.core
                ready += core.ready_count()
                unacked += core.unacked_count()
                enqueued += core.enqueued_total()
                delivered += core.delivered_total()
                consumers += core.consumer_count()
            await asyncio.sleep(0)
        self.sums = (ready, unacked, enqueued, delivered, consumers)

    async def look(self, now_s: int) -> None:
        """A sample of each queue whose counters moved, or that has samples. In pieces."""
        queues = list(self._broker.queues.values())
        alive = set()
        for start in range(0, len(queues), _PIECE):
            for queue in queues[start : start + _PIECE]:
                if is_hidden(queue):
                    continue
                alive.add(queue.queue_id)
                guarded("samples", "a queue", self._queue, queue, now_s)
            await asyncio.sleep(0)
        for gone in [queue_id for queue_id in self._before if queue_id not in alive]:
            self._forget(gone)

    def _queue(self, queue: Any, now_s: int) -> None:
        core, queue_id = queue.core, queue.queue_id
        enqueued, delivered, consumers = core.enqueued_total(), core.delivered_total(), core.consumer_count()
        facts = enqueued, delivered, consumers
        moved = facts != self._before.get(queue_id, _NOTHING)[:3]
        if moved:
            self._before[queue_id] = *facts, now_s
        known = self.queues.get(queue_id)
        if known is None:
            if not moved:
                return
            known = self._room(queue_id)
        elif moved:
            self.queues.move_to_end(queue_id)
        known.add(now_s, (core.ready_count(), core.unacked_count(), enqueued, delivered, consumers, self._lag(queue)))

    def _lag(self, queue: Any) -> int:
        streams = self._broker.streams
        stream = streams.get(queue.queue_id) if queue.policy.is_stream and streams is not None else None
        return 0 if stream is None else int(stream.lag())

    def idle_since_s(self, queue: Any) -> int | None:
        """Wall clock, seconds, of the last look that saw a queue work; of one that never did the first look. None: it works, or nobody
        has looked yet. O(its consumers)."""
        core = queue.core
        known = self._before.get(queue.queue_id, (*_NOTHING, self.began_s))
        facts = core.enqueued_total(), core.delivered_total(), core.consumer_count()
        return known[3] if self.rounds and facts == known[:3] else None

    def _room(self, queue_id: int) -> Series:
        while len(self.queues) >= self._most:
            _, series = self.queues.popitem(last=False)
            self._share.add(-series.bytes)
        made = self.queues[queue_id] = Series(QUEUE_COLUMNS, QUEUE_TIERS)
        self._share.add(made.bytes)
        return made

    def _forget(self, queue_id: int) -> None:
        self._before.pop(queue_id, None)
        series = self.queues.pop(queue_id, None)
        if series is not None:
            self._share.add(-series.bytes)
