"""How fast an engine carries one queue: the naive dequeue, the seed's staged one, and batches, beside each other.

in: an engine, numbers of messages and takers. out: rates, and how often a transaction was made anew.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from flintmq.config import Limits
from flintmq.kv.engine import Conflict, Engine
from flintmq.shared.keys import QueueKeys, after, unpack
from flintmq.shared.owners import Owners
from flintmq.shared.queue import RELAXED, STRICT, Message, SharedQueue, clear_doomed, declare_queue, delete_queue
from flintmq.shared.staged import StagedQueue

WAYS = ("naive", "staged", "batched")
_NAME = ("", "measure")


class _Tally:
    """Messages that were taken, by all takers. Any thread."""

    def __init__(self, expected: int) -> None:
        self._lock = threading.Lock()
        self._expected = expected
        self.taken: list[bytes] = []
        self.errors: list[BaseException] = []

    def add(self, contents: list[bytes]) -> None:
        with self._lock:
            self.taken.extend(contents)

    @property
    def is_done(self) -> bool:
        with self._lock:
            return len(self.taken) >= self._expected or bool(self.errors)


def naive_take(engine: Engine, keys: QueueKeys) -> tuple[list[bytes], int]:
    """The recipe's dequeue: the head is read serializably and cleared. Returns what was taken, and conflicts on the way."""
    conflicts = 0
    while True:
        transaction = engine.begin()
        try:
            rows = transaction.range(keys.ready, after(keys.ready), 1)
            if not rows:
                return [], conflicts
            transaction.clear(rows[0][0])
            transaction.commit()
            return [unpack(rows[0][1])[1]], conflicts
        except Conflict:
            conflicts += 1
        finally:
            transaction.close()


def measure(engine: Engine, limits: Limits, way: str, messages: int, takers: int, size: int) -> dict[str, Any]:
    """Fills a queue, and empties it by `takers` threads, each a node of its own. The queue is deleted afterwards.

    Returns: rates in messages a second; conflicts; whether each message was taken exactly once.
    """
    owners = Owners(engine, limits)
    order = RELAXED if way == "staged" else STRICT
    keys = declare_queue(engine, *_NAME, order, anew=True)
    filler = SharedQueue(engine, keys, owners.register(), limits, order)
    contents = [number.to_bytes(8, "big") + bytes(max(0, size - 8)) for number in range(messages)]
    began = time.monotonic()
    remaining = [Message(content) for content in contents]
    while remaining:
        count = filler.cut(remaining)
        filler.enqueue(remaining[:count])
        del remaining[:count]
    filled_s = time.monotonic() - began
    owners.leave()
    tally = _Tally(messages)
    conflicts: list[int] = []
    nodes = [Owners(engine, limits) for _ in range(takers)]
    queues = [StagedQueue(engine, keys, node.register(), limits, order) for node in nodes]
    threads = [threading.Thread(target=_taker, args=(queue, way, tally, conflicts)) for queue in queues]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    taken_s = time.monotonic() - began
    for node in nodes:
        node.leave()
    delete_queue(engine, *_NAME)
    while clear_doomed(engine):
        pass
    if tally.errors:
        raise tally.errors[0]
    return {
        "engine": engine.name.partition(":")[0],
        "way": way,
        "messages": messages,
        "bytes": size,
        "takers": takers,
        "enqueued_per_s": round(messages / filled_s),
        "dequeued_per_s": round(messages / taken_s),
        "conflicts": sum(conflicts),
        "exactly_once": sorted(tally.taken) == contents,
    }


def _taker(queue: StagedQueue, way: str, tally: _Tally, conflicts: list[int]) -> None:
    ways: dict[str, Callable[[StagedQueue, _Tally], None]] = {"naive": _naive, "staged": _staged, "batched": _batched}
    try:
        while not tally.is_done:
            ways[way](queue, tally)
        conflicts.append(queue.conflicts)
    except BaseException as error:  # told by whoever waits for the threads
        tally.errors.append(error)


def _naive(queue: StagedQueue, tally: _Tally) -> None:
    contents, conflicts = naive_take(queue.engine, queue.keys)
    queue.conflicts += conflicts
    tally.add(contents)


def _staged(queue: StagedQueue, tally: _Tally) -> None:
    taken = queue.take_staged(1)
    if taken:
        queue.settle(taken)
        tally.add([queue.load(one) for one in taken])


def _batched(queue: StagedQueue, tally: _Tally) -> None:
    taken, _ = queue.take(200, 1 << 20)
    if taken:
        contents = [queue.load(one) for one in taken]
        queue.settle(taken)
        tally.add(contents)
