"""Dead letters of shared queues: a message that died stays leased until each target of its letter has it for good.

in: messages that died in windows, held by the broker. out: letters on their targets; then the end of the original, for the engine.

D1  The original ends when each target has its letter for good: the engine committed it, or the log or stream of the target is on disk.
    A node that dies before that leaves both: its lease goes back, and the message is delivered, or dies, once more.
D2  A letter that can't be placed is tried again on the targets that do not have it: its queue after dead_letter_retry_ms, and after looks
    that moved nothing after twice as long and so on, up to _REST_MS_MAX; sooner when routes change. A look goes on behind the last letter
    of the one before, in the order of the deaths, and sees each at most once; queues take turns. With x-dead-letter-strategy at-most-once
    (the default) a letter without a target, or above a target's limit, is dropped instead.
D3  What waits in one queue is bounded: while `is_full` its station takes nothing more, and other nodes do.
D4  Each letter has one attempt at a time; `outstanding` counts its answers that are missing, one of them for the attempt itself.
"""

from __future__ import annotations

import collections
import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from flintmq.broker.dead_letters import LETTER_REFUSED, DeadLetters, Letter
from flintmq.core.memory_account import MemoryShare
from flintmq.guard import guarded
from flintmq.ports import DequeueReason
from flintmq.vhost.arguments import AT_LEAST_ONCE, DROPPING
from flintmq.vhost.dead_letter import DELIVERY_LIMIT, EXPIRED, MAXLEN, REJECTED

if TYPE_CHECKING:
    from flintmq.broker.state import NodeState
    from flintmq.queue.handoff import SharedPort

log = logging.getLogger("flintmq.shared")

# bytes of the memory of a letter that waits
_LETTER_BYTES = 500
# letters of one queue that are refused in a row before the rest of it waits for the next look
_REFUSED_AT_ONCE = 32
# milliseconds between two looks at a queue, and nanoseconds of all looks in one tick of the service, which is no loop's thread
_REST_MS_MAX = 10_000
_LOOK_NS = 2_000_000
_ENDS = {
    REJECTED: DequeueReason.REJECT,
    EXPIRED: DequeueReason.EXPIRE,
    DELIVERY_LIMIT: DequeueReason.REJECT,
    MAXLEN: DequeueReason.DROP,
}


class _Dead:
    """A message that died. done: ids of the targets that have the letter; ok: the attempt met no refusal; waits: for the next one;
    lettered: a letter could be made of it."""

    __slots__ = ("core", "done", "lettered", "ok", "outstanding", "position", "queue", "reason", "size", "waits")

    def __init__(self, queue: Any, position: int, reason: str) -> None:
        self.queue = queue
        self.core = queue.core  # the queue may have another one when it ends
        self.position = position
        self.reason = reason
        self.size: int = queue.core.held_bytes(position)
        self.done: set[int] = set()
        self.outstanding = 0
        self.ok = True
        self.waits = False
        self.lettered = False


class _Kept:
    """The letters that wait in one queue. retries: those without an attempt under way that a look has not seen; seen: those that it has;
    due_ns, rest_ns: the next look, and how long it is since the last one."""

    __slots__ = ("count", "due_ns", "rest_ns", "retries", "seen", "size", "vhost")

    def __init__(self, vhost: str, rest_ns: int) -> None:
        self.vhost = vhost
        self.retries: collections.deque[_Dead] = collections.deque()
        self.seen: list[_Dead] = []
        self.count = 0
        self.size = 0
        self.due_ns = 0
        self.rest_ns = rest_ns


class SharedLetters:
    """Any thread."""

    def __init__(self, state: NodeState, dead_letters: DeadLetters, port: SharedPort) -> None:
        self._state = state
        self._dead_letters = dead_letters
        self._port = port
        self._lock = threading.Lock()  # of all below
        self._kept: dict[int, _Kept] = {}  # by queue id
        self._streams: list[tuple[int, _Dead, int]] = []  # (ticket, letter, target id): on streams, and not on disk yet
        self._account = MemoryShare("entries")
        # told (queue, whether as much waits as may) when that changes
        self.on_full: Callable[[Any, bool], object] = lambda queue, full: None

    def waiting(self, queue_id: int) -> tuple[int, int]:
        """Dead letters that wait in a queue, and bytes of their bodies."""
        with self._lock:
            kept = self._kept.get(queue_id)
            return (0, 0) if kept is None else (kept.count, kept.size)

    def is_full(self, queue_id: int) -> bool:
        """Whether so much waits that nothing more of the queue is to be taken."""
        with self._lock:
            kept = self._kept.get(queue_id)
            return kept is not None and self._is_full(kept)

    def _is_full(self, kept: _Kept) -> bool:
        limits = self._state.limits
        return kept.count >= limits.shared_letters_max or kept.size >= limits.shared_letters_bytes_max

    def bury(self, queue: Any, position: int, reason: str) -> None:
        """A held message died: its letter goes out. Behind those that wait, it waits."""
        dead = _Dead(queue, position, reason)
        with self._lock:
            kept = self._kept.get(queue.queue_id)
            if kept is None:
                kept = self._kept[queue.queue_id] = _Kept(queue.vhost, self._rest_ns)
            kept.count += 1
            kept.size += dead.size
            self._account.add(_LETTER_BYTES)
            full = self._is_full(kept)
            waits = bool(kept.retries or kept.seen)
            if waits:
                dead.waits = True
                kept.retries.append(dead)
            else:
                dead.outstanding = 1
        if full:
            self.on_full(queue, True)
        if not waits:
            self._try(dead)

    # --- attempts ---------------------------------------------------------------------------------------------------

    def _try(self, dead: _Dead) -> None:
        """An attempt; `outstanding` is 1 for it."""
        answers: list[bool] = []
        guarded("dead letters", f"queue {dead.queue.name!r}", lambda: answers.append(self._send(dead)))
        self._answered(dead, 0, answers == [True])

    def _send(self, dead: _Dead) -> bool:
        """Gives the letter to the targets that do not have it. False: there is none, and it waits. Raises: StoreError, MemoryError."""
        counters, queue = self._state.counters, dead.queue
        patient = queue.policy.dead_letter_strategy == AT_LEAST_ONCE
        if queue.deleted:
            return True
        if queue.policy.dead_letter_exchange is None:
            counters.drop(dead.reason)
            return True
        if not self._dead_letters.has_exchange(queue):
            if not patient:
                counters.drop_homeless(dead.reason)
            return not patient
        try:
            message = dead.core.message_at(dead.position)
        except KeyError:
            counters.drop("unreadable_content")
            log.error("a dead message of shared queue %r can't be read: it is not dead-lettered", queue.name)
            return True
        letter, targets, _ = self._dead_letters.addressed(queue, message, dead.reason)
        if letter is None:
            return True
        dead.lettered = True
        for target in targets:
            if target.queue_id not in dead.done:
                self._place(dead, target, letter, patient)
        return bool(targets) or not patient

    def _place(self, dead: _Dead, target: Any, letter: Letter, patient: bool) -> None:
        """Each way out of here answers once, at once or later."""
        state, queue_id = self._state, target.queue_id
        with self._lock:
            dead.outstanding += 1
        expires_at = self._dead_letters.expires_on(target.core)
        placed = False
        try:
            if target.policy.is_shared:
                on_outcome = partial(self._answered, dead, queue_id)
                placed = state.shared is not None and state.shared.publish(target.core, letter.message, expires_at, on_outcome)
            elif target.policy.overflow not in DROPPING and target.core.refuses(len(letter.body)):
                if not patient:
                    state.counters.drop(LETTER_REFUSED)
                placed = not patient
                if placed:
                    self._answered(dead, queue_id, True)
            else:
                placed = bool(target.core.publish(*letter.message, expires_at))
                if placed:
                    self._when_durable(dead, target)
        finally:
            if not placed:
                self._answered(dead, queue_id, False)
        if placed and not target.policy.is_shared:
            self._dead_letters.on_placed(target)

    def _when_durable(self, dead: _Dead, target: Any) -> None:
        wal = self._state.log
        assert wal is not None, "there is no shared queue without a store"
        if target.policy.is_stream:
            with self._lock:
                self._streams.append((self._port.stream_ticket(), dead, target.queue_id))
            wal.when_durable(0, _nothing)  # has it written now: `look` sees that it was
        else:
            wal.when_durable(wal.tail_lsn(), partial(self._answered, dead, target.queue_id, True))

    def _answered(self, dead: _Dead, target: int, taken: bool) -> None:
        """A target's answer, or (0) the attempt's own."""
        over = False
        with self._lock:
            if taken and target:
                dead.done.add(target)
            dead.ok = dead.ok and taken
            dead.outstanding -= 1
            if dead.outstanding == 0:
                over = dead.ok or dead.queue.deleted
                if not over:
                    dead.ok = True
                    self._wait(dead)
        if over:
            guarded("dead letters", f"queue {dead.queue.name!r}", self._end, dead)

    def _wait(self, dead: _Dead) -> None:
        """It was seen. Under the lock."""
        dead.waits = True
        kept = self._kept[dead.queue.queue_id]
        if not kept.due_ns:
            kept.due_ns = self._state.clock.monotonic_ns() + kept.rest_ns
        kept.seen.append(dead)

    def _end(self, dead: _Dead) -> None:
        queue = dead.queue
        if queue.deleted:
            dead.core.settle_held(dead.position, DequeueReason.PURGE, False)
        else:
            dead.core.settle_held(dead.position, _ENDS[dead.reason], False)
            if dead.lettered:
                self._state.counters.dead_letter(dead.reason)
        with self._lock:
            self._account.add(-_LETTER_BYTES)
            kept = self._kept[queue.queue_id]
            full = self._is_full(kept)
            kept.count -= 1
            kept.size -= dead.size
            full = full and not self._is_full(kept)
            if not kept.count:
                del self._kept[queue.queue_id]
        if full:
            self.on_full(queue, False)

    # --- now and then -----------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Letters on streams that are on disk now; another attempt with those that wait, when it is time. One thread."""
        written: list[tuple[int, _Dead, int]] = []
        with self._lock:
            waiting, self._streams = self._streams, []
            for one in waiting:
                (written if self._port.stream_durable(one[0]) else self._streams).append(one)
        for _, dead, target in written:
            self._answered(dead, target, True)
        now_ns = self._state.clock.monotonic_ns()
        with self._lock:
            due = [(kept.due_ns, number) for number, kept in self._kept.items() if 0 < kept.due_ns <= now_ns]
        for _, number in sorted(due):
            self._look_at(number)
            if self._state.clock.monotonic_ns() >= now_ns + _LOOK_NS:
                return  # those who have waited for longest are the first ones of the next tick

    @property
    def _rest_ns(self) -> int:
        return self._state.limits.dead_letter_retry_ms * 1_000_000

    def routes_changed(self, vhost: str) -> None:
        """Letters that wait in a virtual host are looked at soon, as if they had begun to wait now."""
        if not self._kept:
            return
        with self._lock:
            soon = self._state.clock.monotonic_ns() + self._rest_ns
            for kept in self._kept.values():
                if kept.vhost == vhost and kept.due_ns > soon:
                    kept.due_ns, kept.rest_ns = soon, self._rest_ns

    def _look_at(self, queue_id: int) -> None:
        """Letters of a queue that wait, in their order, from behind the last one seen, until too many are refused in a row."""
        with self._lock:
            kept = self._kept.get(queue_id)
            if kept is None:
                return
            if not kept.retries:
                kept.retries = collections.deque(sorted(kept.seen, key=lambda dead: dead.position))
                kept.seen = []
            count = len(kept.retries)
        refused, moved = 0, False
        while count and refused < _REFUSED_AT_ONCE:
            with self._lock:
                if not kept.retries:
                    break
                dead = kept.retries.popleft()
                dead.outstanding, dead.waits = 1, False
            count -= 1
            self._try(dead)
            refused = refused + 1 if dead.waits else 0
            moved = moved or not dead.waits
        with self._lock:
            kept.rest_ns = self._rest_ns if moved else min(2 * kept.rest_ns, max(self._rest_ns, _REST_MS_MAX * 1_000_000))
            kept.due_ns = self._state.clock.monotonic_ns() + kept.rest_ns if kept.retries or kept.seen else 0


def _nothing() -> None:
    pass
