"""Dead letters of streams: what died in a group is published, and then done with in the group.

in: dead offsets of groups (streams/group.py). out: letters; offsets that are done.

T1  What is not done stays dead in its group, and a later tick finds it again.
T2  A look at the dead of a stream goes on behind the last one that it saw, and sees each once. After REFUSED_MAX that were refused in a
    row, or at its end, it rests: `dead_letter_retry_ms`, twice as long after each look that moved nothing, up to _REST_MS_MAX; not longer
    than the first figure when routes change. What dies behind a look that came to its end is tried at once.
T3  At-least-once: a target that has the letter does not get it again, unless the broker was restarted.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from flintmq.broker.dead_letters import Attempt, DeadLetters
from flintmq.core.memory_account import MemoryShare
from flintmq.guard import guarded
from flintmq.streams.control import REASON_LIMIT
from flintmq.vhost.dead_letter import DELIVERY_LIMIT, REJECTED

if TYPE_CHECKING:
    from flintmq.broker.state import NodeState
    from flintmq.streams.control import StreamQueue

log = logging.getLogger("flintmq.streams")

# dead letters of one stream that one tick publishes: others get their turn
DEAD_PER_TICK = 1_000
# that are refused in a row before a look rests
REFUSED_MAX = 32
_REST_MS_MAX = 10_000
# bytes of what is remembered of a letter that some targets have
_DONE_BYTES = 400


class _Look:
    """behind: (group, offset) of the last one seen; middle: there were more; stuck, moved: some of this round were refused, and some not;
    done: (group, offset) -> ids of the targets that have the letter, where some have; version: of the routes, when it began."""

    __slots__ = ("began_ns", "behind", "done", "middle", "moved", "rest_ns", "stuck", "until_ns", "version")

    def __init__(self) -> None:
        self.behind: tuple[bytes, int] | None = None
        self.middle = self.stuck = self.moved = False
        self.began_ns = self.until_ns = self.rest_ns = 0
        self.version: object = None
        self.done: dict[tuple[bytes, int], set[int]] = {}


class StreamLetters:
    """One thread."""

    def __init__(self, state: NodeState, dead_letters: DeadLetters) -> None:
        self._state = state
        self._dead_letters = dead_letters
        self._looks: dict[int, _Look] = {}
        self._account = MemoryShare("entries")
        self.attempts = 0

    def forget(self, queue_id: int) -> None:
        """The stream is deleted. Any thread."""
        look = self._looks.pop(queue_id, None)
        if look is not None:
            self._account.add(-_DONE_BYTES * len(look.done))

    def bury(self, queue_id: int, stream: StreamQueue) -> int:
        """Publishes what died in the groups of a stream. Returns how many letters."""
        now_ns = self._state.clock.monotonic_ns()
        least_ns = self._state.limits.dead_letter_retry_ms * 1_000_000
        look = self._looks.get(queue_id) or _Look()
        woken = look.version is not self._state.routes.version and now_ns >= look.began_ns + least_ns
        rests = now_ns < look.until_ns and not woken
        if rests and look.middle:
            return 0
        if not rests and not look.middle:
            look.behind, look.stuck, look.moved = None, False, False
        found = stream.take_dead(DEAD_PER_TICK, look.behind)
        if not found and not look.stuck:
            self._looks.pop(queue_id, None)
            return 0
        buried, refused = self._publish(queue_id, stream, look, found)
        look.middle = refused >= REFUSED_MAX or len(found) == DEAD_PER_TICK
        if not rests and (refused >= REFUSED_MAX or not look.middle):
            look.began_ns, look.version = now_ns, self._state.routes.version
            look.rest_ns = (
                least_ns if look.moved or woken else min(max(2 * look.rest_ns, least_ns), max(least_ns, _REST_MS_MAX * 1_000_000))
            )
            look.until_ns = now_ns + look.rest_ns if look.stuck else 0
        if look.stuck or look.middle:
            self._looks[queue_id] = look
        else:
            self._looks.pop(queue_id, None)
        return buried

    def _publish(self, queue_id: int, stream: StreamQueue, look: _Look, found: list[tuple[bytes, int, int, int]]) -> tuple[int, int]:
        """(letters, refused in a row at the end)."""
        queue = self._state.queues.get(queue_id)
        buried = refused = 0
        for name, offset, reason, _ in found:
            if refused >= REFUSED_MAX:
                break
            look.behind = (name, offset)
            try:
                message = stream.message(offset)
            except KeyError:  # retention took it, or its container is damaged
                self._state.counters.drop("unreadable_content")
                log.error("message %d of a stream (queue id %d) is not dead-lettered: it is gone", offset, queue_id)
            else:
                why = DELIVERY_LIMIT if reason == REASON_LIMIT else REJECTED
                if queue is not None and not self._letter(queue, message, why, look):
                    refused += 1
                    look.stuck = True
                    continue  # it stays dead
                buried += 1
            refused = 0
            look.moved = True
            stream.dead_done(name, offset)
        return buried, refused

    def _letter(self, queue: Any, message: tuple[bytes, bytes, bytes, bytes], why: str, look: _Look) -> bool:
        """Publishes a dead letter. False: the node is short of something, or (at-least-once) not all of its targets take it."""
        self.attempts += 1
        if not queue.policy.keeps_letters:
            return guarded("dead letters", queue.name, self._dead_letters.publish, queue, message, why)
        assert look.behind is not None
        known = look.done.pop(look.behind, None)
        if known is not None:
            self._account.add(-_DONE_BYTES)
        attempt = Attempt(known)
        placed: list[bool] = []

        def publish() -> None:
            placed.append(self._dead_letters.publish_to_all(queue, message, why, attempt) is None)

        guarded("dead letters", queue.name, publish)
        if placed != [True] and attempt.done:
            look.done[look.behind] = attempt.done
            self._account.add(_DONE_BYTES)
        return placed == [True]
