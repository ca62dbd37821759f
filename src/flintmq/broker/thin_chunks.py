"""Memory of chunks of which little is alive is given back while they become so (core/content.py, THIN_SIZE).

in: the count of thin chunks, queues, from the memory keeper's thread. out: contents in fresh chunks, bodies of streams out of memory.

T1  Above `limit` bytes of thin chunks queues are looked through, in turn and each behind the entry where its last look ended, until half of
    that is left. What a look moved stands in full chunks, so only a look that found too little begins at the heads again.
T2  What no queue has may be a stream's, which its disk has too, or of a connection: unfinished messages and open transactions.
T3  What can't be moved is looked for again when there is more of it by another `limit`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from flintmq.core.content import bytes_mapped, thin_bytes
from flintmq.queue.sweep import Sweeper

if TYPE_CHECKING:
    from flintmq.broker.state import NodeState

# queues between two moments in which others get the GIL, and connections of a slice
QUEUES_AT_A_TIME = 200
CONNECTIONS_AT_ONCE = 8
# pauses that are one while messages hold little memory
IDLE_PAUSES = 5
# of a position: the part that numbers entries of a level (core/queue positions)
_LEVEL = 1 << 56


class ThinChunks:
    """The memory keeper's thread alone. Args: loops: of the node; stopping: whether the keeper ends.

    Attributes: looks: how many there were; left: bytes that a look could not give back.
    """

    def __init__(self, state: NodeState, loops: list[Any], sweeper: Sweeper, stopping: Callable[[], bool]) -> None:
        self._state = state
        self._loops = loops
        self._sweeper = sweeper
        self._stopping = stopping
        self._next: dict[int, int] = {}  # queue id -> position behind which nothing was looked at
        self._turn = 0  # queue id of the last look
        self.looks = 0
        self.left = 0

    @property
    def limit(self) -> int:
        """Bytes."""
        limits = self._state.limits
        return limits.memory_thin_bytes + int(bytes_mapped() * limits.memory_thin_share)

    @property
    def pause_s(self) -> float:
        """Seconds until the next look: longer while messages hold little memory."""
        limits = self._state.limits
        return limits.memory_thin_ms / 1000 * (1 if bytes_mapped() > limits.memory_thin_bytes else IDLE_PAUSES)

    def look(self) -> None:
        """Gives memory of thin chunks back when there is too much of it. O(1) else; O(entries behind the last look)."""
        limit = self.limit
        if thin_bytes() <= limit + self.left:
            self.left = min(self.left, thin_bytes())
            return
        self.looks += 1
        if not self._look_through(limit // 2):
            self._next.clear()
            if not self._look_through(limit // 2):
                self._elsewhere(limit)
        self._sweeper.end()
        self.left = max(0, thin_bytes() - limit // 2)

    def _look_through(self, enough: int) -> bool:
        """Each queue once, from the one behind the last one looked at. True: `enough` bytes or fewer are left."""
        for number, queue in enumerate(self._queues()):
            if number % QUEUES_AT_A_TIME == QUEUES_AT_A_TIME - 1:
                time.sleep(0.0005)
            if not queue.core.resident_bytes:
                continue
            self._turn = queue.queue_id
            position = self._next.get(queue.queue_id, 1)
            while position and not self._stopping():
                after = self._sweeper.thicken(queue.core, position)
                self._next[queue.queue_id] = position if position < _LEVEL else 1
                position = after
                if thin_bytes() <= enough:
                    return True
        return False

    def _queues(self) -> Iterator[Any]:
        known = self._state.queues
        ids = sorted(known)
        self._next = {queue_id: position for queue_id, position in self._next.items() if queue_id in known}
        for queue_id in [*(one for one in ids if one > self._turn), *(one for one in ids if one <= self._turn)]:
            queue = known.get(queue_id)
            if queue is not None:
                yield queue

    def _elsewhere(self, limit: int) -> None:
        """T2."""
        if self._state.streams is not None:
            self._state.streams.forget_hot()
        if thin_bytes() > limit:
            for loop in self._loops:
                loop.job(partial(next, _leave(loop), True), _ignore)


def _ignore(whole: bool) -> None:
    """Nobody waits for it."""


def _leave(loop: Any) -> Iterator[bool]:
    """A slice at a time, on the loop's thread: its connections leave thin chunks."""
    for number, entry in enumerate(loop.entries()):
        if number % CONNECTIONS_AT_ONCE == CONNECTIONS_AT_ONCE - 1:
            yield False
        handler = None if entry.connection is None else entry.connection.handler
        if handler is not None and not handler.ended:
            entry.connection.leave_thin_chunks()
