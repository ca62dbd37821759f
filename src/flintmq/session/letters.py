"""Dead letters that must not get lost (x-dead-letter-strategy at-least-once): a dead message stays in its queue until all targets have it.

in: dead messages, held by the broker. out: letters on all their targets, and then the end of the original.

L1  The original ends after all its targets have its letter. Letter and end stand in one log in this order, so a crash in between leaves
    both, never none; a target that is a stream is synced before the end of the original (session/stream_service.py).
L2  While a target is absent (no exchange, no route) or refuses (a full queue with reject-publish), the original stays, held: nobody is
    given it, and it counts for the length limit of its queue. All are tried again each `dead_letter_retry_ms`, in their order; a target
    that has the letter does not get it again, unless the broker was restarted.
L3  What waits of a durable queue is noted in the log, so that a restart goes on with it (`dead_letters_noted_max`).

Source: docs of RabbitMQ's quorum queues ("at-least-once dead lettering"), whose worker keeps what its targets have not confirmed.
"""

from __future__ import annotations

import logging
import struct
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from flintmq.core.memory_account import MemoryShare
from flintmq.guard import guarded
from flintmq.ports import DequeueReason
from flintmq.session import publishing
from flintmq.session.expiry import STEP_NS
from flintmq.session.message_line import ENTRY_BYTES, LINE_BYTES, Line
from flintmq.vhost.dead_letter import DELIVERY_LIMIT, EXPIRED, REJECTED

if TYPE_CHECKING:
    from flintmq.session.broker import Broker

log = logging.getLogger("flintmq.letters")

# kind of the store's notes (docs/FORMAT.md, record 42)
NOTE_LETTERS = 17
# letters of one queue that are refused in a row before the rest of it waits for the next attempt
REFUSED_MAX = 32
# entries of a deleted queue that end in one slice
ENDS_AT_ONCE = 256

_KEY = struct.Struct(">QQ")
_REASONS = {1: REJECTED, 2: EXPIRED, 3: DELIVERY_LIMIT}
_NUMBERS = {reason: number for number, reason in _REASONS.items()}
_ENDS = {REJECTED: DequeueReason.REJECT, EXPIRED: DequeueReason.EXPIRE, DELIVERY_LIMIT: DequeueReason.REJECT}


class _Kept:
    """What waits in one queue. size: bytes of the bodies."""

    __slots__ = ("line", "size")

    def __init__(self) -> None:
        self.line = Line()
        self.size = 0


class Letters:
    """Any thread; one attempt at a time."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._store: Any = None
        self._lock = threading.Lock()
        # queue -> what waits there
        self._kept: dict[Any, _Kept] = {}
        # (queue id, position) -> ids of the targets that have the letter, where some have and some refuse
        self._done: dict[tuple[int, int], set[int]] = {}
        self._noted: set[tuple[int, int]] = set()
        self._account = MemoryShare("entries")
        self._trying = False
        self._next_ns = 0

    def waiting(self, queue: Any) -> tuple[int, int]:
        """Dead letters that wait in a queue, and bytes of their bodies."""
        if queue.policy.is_shared:
            return (0, 0) if self._broker.shared is None else self._broker.shared.letters.waiting(queue.queue_id)
        with self._lock:
            kept = self._kept.get(queue)
            return (0, 0) if kept is None else (len(kept.line), kept.size)

    def restore(self, store: Any) -> int:
        """What waited before a restart waits again. Returns how many. Once, before anybody consumes. Args: store: with `note`, `notes`."""
        self._store = store
        found = 0
        for key, value in store.notes(NOTE_LETTERS).items():
            queue_id, position = _KEY.unpack(key)
            queue = self._broker.queues.get(queue_id)
            if queue is not None and queue.core.hold(position):
                self._noted.add((queue_id, position))
                self._wait(queue, position, _REASONS.get(value[0], REJECTED))
                found += 1
            else:
                store.note(NOTE_LETTERS, key, b"")
        return found

    def bury(self, queue: Any, position: int, reason: str) -> None:
        """A held message died: its letter goes out now, or waits. Behind those that wait, it waits."""
        if queue.policy.is_shared:
            if self._broker.shared is not None:
                self._broker.shared.letters.bury(queue, position, reason)
            return
        with self._lock:
            waits = queue in self._kept
        if not waits and self._try(queue, position, reason):
            return
        self._note(queue, position, reason)
        self._wait(queue, position, reason)

    def _try(self, queue: Any, position: int, reason: str) -> bool:
        """True: the message has ended."""
        answers: list[bool] = []
        guarded("dead letters", f"queue {queue.name!r}", lambda: answers.append(self._publish(queue, position, reason)))
        return answers == [True]

    def _publish(self, queue: Any, position: int, reason: str) -> bool:
        key = (queue.queue_id, position)
        try:
            message = queue.core.message_at(position)
        except KeyError:
            self._broker.count_drop("unreadable_content")
            log.error("a dead message of queue %r can't be read: it is not dead-lettered", queue.name)
            return self._end(queue, position, reason)
        if not queue.policy.keeps_letters:  # its policy changed while this one waited
            publishing.dead_letter(self._broker, queue, message, reason)
            return self._end(queue, position, reason)
        done = self._done.pop(key, None) or set()
        if not publishing.dead_letter_to_all(self._broker, queue, message, reason, done):
            if done:
                self._done[key] = done
            return False
        return self._end(queue, position, reason)

    def _end(self, queue: Any, position: int, reason: str) -> bool:
        queue.core.settle_held(position, _ENDS[reason], False)
        if reason != REJECTED:
            self._broker.count_drop("expired" if reason == EXPIRED else "delivery_limit")
        self._forget_note(queue.queue_id, position)
        return True

    def _note(self, queue: Any, position: int, reason: str) -> None:
        facts = queue.core.entry_facts(position)
        if self._store is None or facts is None or not facts[0] or len(self._noted) >= self._broker.limits.dead_letters_noted_max:
            return
        value = bytes([_NUMBERS[reason]])
        if guarded("notes of dead letters", queue.name, self._store.note, NOTE_LETTERS, _KEY.pack(queue.queue_id, position), value):
            self._noted.add((queue.queue_id, position))

    def _forget_note(self, queue_id: int, position: int) -> None:
        if (queue_id, position) in self._noted:
            self._noted.discard((queue_id, position))
            guarded("notes of dead letters", queue_id, self._store.note, NOTE_LETTERS, _KEY.pack(queue_id, position), b"")

    def _wait(self, queue: Any, position: int, reason: str) -> None:
        size = queue.core.held_bytes(position)
        with self._lock:
            gone = queue.deleted
            if not gone:
                kept = self._kept.get(queue)
                if kept is None:
                    kept = self._kept[queue] = _Kept()
                    self._account.add(LINE_BYTES)
                kept.line.add(position, size << 2 | _NUMBERS[reason])
                self._change(queue, kept, 1, size)
        if gone:
            self._purge(queue, position)

    def _change(self, queue: Any, kept: _Kept, count: int, size: int) -> None:
        """One more, or one fewer, under the lock."""
        kept.size += size
        queue.core.keep(count, size)
        self._account.add(count * ENTRY_BYTES)

    def _purge(self, queue: Any, position: int) -> None:
        queue.core.settle_held(position, DequeueReason.PURGE, False)
        self._done.pop((queue.queue_id, position), None)
        self._forget_note(queue.queue_id, position)

    # --- attempts -------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """The housekeeping: another attempt when it is time."""
        now_ns = self._broker.clock.monotonic_ns()
        with self._lock:
            if not self._kept or self._trying or now_ns < self._next_ns:
                return
            self._trying = True
            self._next_ns = now_ns + self._broker.limits.dead_letter_retry_ms * 1_000_000
            queues = list(self._kept)
        self._broker.in_slices(partial(self._some, queues), self._tried)

    def _tried(self, done: bool) -> None:
        self._trying = False

    def _some(self, queues: list[Any]) -> bool:
        """A slice. True: all queues were tried."""
        until_ns = self._broker.clock.monotonic_ns() + STEP_NS
        while queues:
            if self._queue(queues[-1], until_ns):
                queues.pop()
            if self._broker.clock.monotonic_ns() >= until_ns:
                return not queues
        return True

    def _queue(self, queue: Any, until_ns: int) -> bool:
        """Tries the letters of a queue in their order. True: it had its turn."""
        refused: list[tuple[int, int]] = []
        ended = 0
        while len(refused) < REFUSED_MAX:
            with self._lock:
                kept = self._kept.get(queue)
                if kept is None or not len(kept.line):
                    break
                position, number = kept.line.take()
                self._change(queue, kept, -1, -(number >> 2))
            if self._try(queue, position, _REASONS[number & 3]):
                ended += 1
            else:
                refused.append((position, number))
            if self._broker.clock.monotonic_ns() >= until_ns:
                break
        with self._lock:
            if kept is not None and self._kept.get(queue) is kept:
                more = len(kept.line) > 0 and len(refused) < REFUSED_MAX
                self._back(queue, kept, refused, in_front=ended > 0 or more)
                return not more
        for position, _number in refused:  # the queue was deleted meanwhile
            self._purge(queue, position)
        return True

    def _back(self, queue: Any, kept: _Kept, refused: list[tuple[int, int]], in_front: bool) -> None:
        """What was refused waits again, in its place; where nothing moves, behind the others, which may have targets that take them."""
        for _position, number in refused:
            self._change(queue, kept, 1, number >> 2)
        if in_front:
            kept.line.put_back(refused)
        else:
            for position, number in refused:
                kept.line.add(position, number)
        if not len(kept.line):
            del self._kept[queue]
            self._account.add(-LINE_BYTES)

    def forget(self, queue: Any) -> Callable[[], bool] | None:
        """A queue is deleted: what waits there ends in slices of the result; None: nothing waits."""
        with self._lock:
            kept = self._kept.pop(queue, None)
            if kept is None:
                return None
            self._account.add(-LINE_BYTES)

        def end() -> bool:
            for _ in range(ENDS_AT_ONCE):
                if not len(kept.line):
                    return True
                position, _number = kept.line.take()
                self._account.add(-ENTRY_BYTES)
                self._purge(queue, position)
            return False

        return end
