"""Dead letters that must not get lost (x-dead-letter-strategy at-least-once): a dead message stays in its queue until all targets have it.

in: dead messages, held by the broker; changes of routes, room in queues. out: letters on all targets, and then the end of the original.

L1  The original ends after all its targets have its letter. Letter and end stand in one log in this order, so a crash in between leaves
    both, never none; a target that is a stream is synced before the end of the original (broker/stream_service.py).
L2  While a target is absent (no exchange, no route) or refuses (a full queue with reject-publish), the original stays, held: nobody is
    given it, and it counts for the length limit of its queue. A target that has the letter does not get it again, unless the broker was
    restarted.
L3  What waits of a durable queue is noted in the log, so that a restart goes on with it.
L4  What waits in a queue stands in one line for each thing that it waits for: a change of routes, room in one target, time. The event wakes
    the line, and then each letter of it is looked at once at most, from behind the last one looked at; a target that refuses again ends
    the look. So what can't be placed costs nothing until something changes, and holds up no letter that waits for something else.
L5  Virtual hosts take turns, and in each its lines; of those that wait for one target one has its turn after the other. After looks that
    moved nothing a virtual host rests REST_TIMES as long as they took.
L6  Without any event the first letter of a line is tried after `dead_letter_retry_ms`, then after twice as long and so on, up to
    `dead_letter_retry_max_ms`, PROBES of all lines in `dead_letter_retry_ms`.

Source: docs of RabbitMQ's quorum queues ("at-least-once dead lettering"), whose worker keeps what its targets have not confirmed.
"""

from __future__ import annotations

import collections
import heapq
import itertools
import logging
import struct
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flintmq.broker.dead_letters import NO_ROUTE, Attempt, DeadLetters
from flintmq.broker.loops import STEP_NS
from flintmq.broker.message_line import ENTRY_BYTES, LINE_BYTES, Line
from flintmq.core.memory_account import MemoryShare
from flintmq.guard import guarded
from flintmq.ports import NOTE_LETTERS, DequeueReason
from flintmq.vhost.dead_letter import DELIVERY_LIMIT, EXPIRED, REJECTED

if TYPE_CHECKING:
    from flintmq.broker.state import NodeState

log = logging.getLogger("flintmq.letters")

# what a line waits for when it is neither a change of routes (NO_ROUTE) nor room in a target (its queue id): the node is short of something
LATER = -1
# no line at all
NEW = -2
# entries of a deleted queue that end in one slice
ENDS_AT_ONCE = 256
# lines whose first letter is tried in `dead_letter_retry_ms` though nothing has changed, some 50 us each
PROBES = 8
# full targets that one housekeeping pass looks at, a microsecond each, whether or not they worked
ROOM_LOOKS = 128
# rest of a virtual host whose letters were looked at in vain, in terms of the time that took
REST_TIMES = 10
# bytes of the memory of a letter that some targets have, for the account
DONE_BYTES = 400
# of a note, for the account: its key and value here and in the store's table
NOTE_BYTES = 400

# of the number beside a position in a line: the reason, whether the log has a note, bytes of the body
REASON, NOTED, SIZE_SHIFT = 3, 4, 3

_KEY = struct.Struct(">QQ")
_REASONS = {1: REJECTED, 2: EXPIRED, 3: DELIVERY_LIMIT}
_NUMBERS = {reason: number for number, reason in _REASONS.items()}
_ENDS = {REJECTED: DequeueReason.REJECT, EXPIRED: DequeueReason.EXPIRE, DELIVERY_LIMIT: DequeueReason.REJECT}


def _number(queue: Any, position: int, reason: str, noted: bool) -> int:
    """The number beside a position in a line."""
    return int(queue.core.held_bytes(position)) << SIZE_SHIFT | (NOTED if noted else 0) | _NUMBERS[reason]


class _Line:
    """Letters of one queue that wait for one thing (`cause`).

    listed: it has its turn, or waits for it; left: letters that the present look has still to see; probing: it is there because of the
    time; due_ns, wait_ns: next look because of the time, and how long it is since the last one; gone: its queue is, or it was emptied.
    """

    __slots__ = ("cause", "due_ns", "entries", "gone", "left", "listed", "probing", "queue", "wait_ns")

    def __init__(self, queue: Any, cause: int) -> None:
        self.queue = queue
        self.cause = cause
        self.entries = Line()
        self.left = 0
        self.listed = False
        self.probing = False
        self.gone = False
        self.wait_ns = 0
        self.due_ns = 0


class _Kept:
    """The letters that wait in one queue. size: bytes of their bodies."""

    __slots__ = ("count", "lines", "size")

    def __init__(self) -> None:
        self.lines: dict[int, _Line] = {}
        self.count = 0
        self.size = 0


class _Vhost:
    """A virtual host in which letters wait. version: of its routes and policies; changed: lines wait for a look since then, which `rest_ns`
    (monotonic) allows; routes: lines that wait for a change; woken: lines to look at; ready: those that have had a turn in this look."""

    __slots__ = ("changed", "name", "ready", "rest_ns", "routes", "version", "woken")

    def __init__(self, name: str) -> None:
        self.name = name
        self.version = 0
        self.changed = False
        self.rest_ns = 0
        self.routes: dict[_Line, None] = {}
        self.woken: dict[_Line, None] = {}
        self.ready: collections.deque[_Line] = collections.deque()


class _Attempt(Attempt):
    """With a letter of `queue` from the line of `cause`; NEW: of none."""

    __slots__ = ("_cause", "_letters", "_queue")

    def __init__(self, letters: Letters, queue: Any, cause: int, done: set[int]) -> None:
        super().__init__(done)
        self._letters = letters
        self._queue = queue
        self._cause = cause

    def waits(self, target: int) -> bool:
        return target != self._cause and self._letters.stands_for(self._queue, target)

    def taken(self, target: int) -> None:
        self._letters.room(target)


class Letters:
    """Any thread; one slice at a time."""

    def __init__(self, state: NodeState, dead_letters: DeadLetters) -> None:
        self._state = state
        self._dead_letters = dead_letters
        state.routes.followers.append(self.routes_changed)
        self._store: Any = None
        self._lock = threading.Lock()
        # queue -> what waits there
        self._kept: dict[Any, _Kept] = {}
        self._vhosts: dict[str, _Vhost] = {}
        # those with lines that have their turn, the next one first; and those that rest with a change that they have not looked at
        self._busy: collections.OrderedDict[str, None] = collections.OrderedDict()
        self._resting: set[str] = set()
        # queue id of a target -> lines that wait for it, the next one first
        self._targets: dict[int, collections.OrderedDict[_Line, None]] = {}
        # those of them that the housekeeping has still to look at, in this round
        self._unseen: list[int] = []
        # (monotonic ns, number, line); what is there under another time than the line's is passed over
        self._heap: list[tuple[int, int, _Line]] = []
        self._numbers = itertools.count()
        self._lines = 0
        self._probes = PROBES
        self._probes_ns = 0
        # (queue id, position) -> ids of the targets that have the letter, where some have and some refuse
        self._done: dict[tuple[int, int], set[int]] = {}
        # keys of notes whose letters have ended
        self._ended: list[bytes] = []
        self._account = MemoryShare("entries")
        self._trying = False
        self.looks = 0  # attempts so far

    def waiting(self, queue: Any) -> tuple[int, int]:
        """Dead letters that wait in a queue, and bytes of their bodies."""
        if queue.policy.is_shared:
            return (0, 0) if self._state.shared is None else self._state.shared.letters.waiting(queue.queue_id)
        with self._lock:
            kept = self._kept.get(queue)
            return (0, 0) if kept is None else (kept.count, kept.size)

    def is_full(self, queue: Any) -> bool:
        """Whether nothing more of a queue is to die now: as many of its letters wait as may."""
        shared = self._state.shared
        return queue.policy.is_shared and shared is not None and shared.letters.is_full(queue.queue_id)

    def restore(self, store: Any) -> int:
        """Letters of before a restart wait again. Returns how many. Once, before anybody consumes. Args: store: with `note`, `notes`."""
        self._store = store
        restored = 0
        ended: list[bytes] = []
        for key, value in store.notes(NOTE_LETTERS).items():
            queue_id, position = _KEY.unpack(key)
            queue = self._state.queues.get(queue_id)
            if queue is not None and queue.core.hold(position):
                self._wait(queue, position, _number(queue, position, _REASONS.get(value[0], REJECTED), True), NO_ROUTE, None)
                restored += 1
            else:
                ended.append(key)
        if ended:
            store.end_notes(NOTE_LETTERS, ended)
        return restored

    # --- one letter ----------------------------------------------------------------------------------------------------

    def bury(self, queue: Any, position: int, reason: str) -> None:
        """A held message died: its letter goes out now, or waits. Behind those that wait for the same thing, it waits."""
        if queue.policy.is_shared:
            if self._state.shared is not None:
                self._state.shared.letters.bury(queue, position, reason)
            return
        if self._dead_letters.sent_surely(queue, position, reason, _ENDS[reason]):
            self._end(queue, position, reason)
            return
        with self._lock:
            vhost = self._vhost(queue.vhost)
            seen = (vhost, vhost.version)
            kept = self._kept.get(queue)
            line = None if kept is None else kept.lines.get(NO_ROUTE)
            behind = line is not None and line.listed  # those have their turn now: it does not pass them
        cause = NO_ROUTE if behind else self._try(queue, position, reason, NEW)
        if cause is None:
            return
        self._wait(queue, position, _number(queue, position, reason, self._note(queue, position, reason)), cause, seen)
        self._go()

    def _try(self, queue: Any, position: int, reason: str, cause: int) -> int | None:
        """None: the message has ended; else what it waits for."""
        answers: list[int | None] = []
        self.looks += 1
        guarded("dead letters", f"queue {queue.name!r}", lambda: answers.append(self._publish(queue, position, reason, cause)))
        return answers[0] if answers else LATER

    def _publish(self, queue: Any, position: int, reason: str, cause: int) -> int | None:
        key = (queue.queue_id, position)
        done = self._done.get(key)
        if done is not None and cause > 0 and -cause in done:
            return cause  # the engine of a shared queue has not answered yet
        try:
            message = queue.core.message_at(position)
        except KeyError:
            if queue.deleted:
                return None
            self._state.counters.drop("unreadable_content")
            log.error("a dead message of queue %r can't be read: it is not dead-lettered", queue.name)
            self._end(queue, position, reason)
            return None
        original = (queue.core, position, 0, _ENDS[reason], 0)
        if not queue.policy.keeps_letters:  # its policy changed while this one waited
            self._dead_letters.publish(queue, message, reason, original=original)
            self._end(queue, position, reason)
            return None
        attempt = _Attempt(self, queue, cause, set() if done is None else done)
        waits_for = self._dead_letters.publish_to_all(queue, message, reason, attempt, original=original)
        if waits_for is None:
            self._end(queue, position, reason)
            return None
        if attempt.done and done is None:
            self._done[key] = attempt.done
            self._account.add(DONE_BYTES)
        return waits_for

    def _end(self, queue: Any, position: int, reason: str) -> None:
        queue.core.settle_held(position, _ENDS[reason], False)
        self._forget_done(queue.queue_id, position)

    def _note(self, queue: Any, position: int, reason: str) -> bool:
        """Whether the log says that it waits."""
        facts = queue.core.entry_facts(position)
        if self._store is None or facts is None or not facts[0]:
            return False
        key, value = _KEY.pack(queue.queue_id, position), bytes([_NUMBERS[reason]])
        return guarded("notes of dead letters", queue.name, self._store.note_entry, NOTE_LETTERS, key, value)

    def _forget_done(self, queue_id: int, position: int) -> None:
        if self._done.pop((queue_id, position), None) is not None:
            self._account.add(-DONE_BYTES)

    def _leave_line(self, queue_id: int, position: int, number: int) -> None:
        """A letter that waited has ended. Under the lock."""
        self._account.add(-ENTRY_BYTES)
        if number & NOTED:
            self._account.add(-NOTE_BYTES)
            self._ended.append(_KEY.pack(queue_id, position))

    def _end_notes(self, least: int) -> None:
        """Notes of letters that have ended go, when there are so many."""
        with self._lock:
            if len(self._ended) < least:
                return
            ended, self._ended = self._ended, []
        if not guarded("notes of dead letters", "the log", self._store.end_notes, NOTE_LETTERS, ended):
            with self._lock:
                self._ended += ended

    def _purge(self, queue: Any, position: int) -> None:
        queue.core.settle_held(position, DequeueReason.PURGE, False)
        self._forget_done(queue.queue_id, position)

    # --- lines (under the lock, but for _wait) -----------------------------------------------------------------------------

    def _vhost(self, name: str) -> _Vhost:
        vhost = self._vhosts.get(name)
        if vhost is None:
            vhost = self._vhosts[name] = _Vhost(name)
        return vhost

    def _wait(self, queue: Any, position: int, number: int, cause: int, seen: tuple[_Vhost, int] | None) -> None:
        """A letter waits from now on. seen: the virtual host and its version before the attempt; None: there was none."""
        size = number >> SIZE_SHIFT
        with self._lock:
            gone = queue.deleted
            self._account.add(ENTRY_BYTES + (NOTE_BYTES if number & NOTED else 0))
            if gone:
                self._leave_line(queue.queue_id, position, number)
            else:
                kept = self._kept.get(queue)
                if kept is None:
                    kept = self._kept[queue] = _Kept()
                kept.count += 1
                kept.size += size
                queue.core.keep(1, size)
                line = self._join(queue, kept, cause, position, number)
                vhost = self._vhost(queue.vhost)
                if seen is None or seen != (vhost, vhost.version):
                    self._change(vhost)
                elif cause > 0 and (self._has_room(cause, size) or cause in self._done.get((queue.queue_id, position), ())):  # meanwhile
                    self._list(vhost, line)
        if gone:
            self._purge(queue, position)

    def _join(self, queue: Any, kept: _Kept, cause: int, position: int, number: int) -> _Line:
        line = kept.lines.get(cause)
        if line is None:
            line = kept.lines[cause] = _Line(queue, cause)
            self._lines += 1
            self._account.add(LINE_BYTES)
            line.wait_ns = self._state.limits.dead_letter_retry_ms * 1_000_000
            self._rest(line)
        line.entries.add(position, number)
        if line.listed:
            line.left += 1
        return line

    def _rest(self, line: _Line) -> None:
        """It waits for what it waits for, or for its time."""
        line.listed = line.probing = False
        line.left = 0
        if line.cause == NO_ROUTE:
            self._vhost(line.queue.vhost).routes[line] = None
        elif line.cause > 0:
            self._targets.setdefault(line.cause, collections.OrderedDict())[line] = None
        line.due_ns = self._state.clock.monotonic_ns() + line.wait_ns
        heapq.heappush(self._heap, (line.due_ns, next(self._numbers), line))
        if len(self._heap) > 2 * self._lines + 64:
            self._heap = [one for one in self._heap if one[0] == one[2].due_ns and not one[2].gone]
            heapq.heapify(self._heap)

    def _list(self, vhost: _Vhost, line: _Line, unseen: int = 0) -> None:
        """It has its turn soon. unseen: letters of it; 0: all."""
        if line.gone or line.listed:
            return
        line.listed = True
        line.left = unseen or len(line.entries)
        self._leave(line)
        vhost.ready.append(line)
        self._busy[vhost.name] = None

    def _leave(self, line: _Line) -> None:
        """It waits for its event no more."""
        if line.cause == NO_ROUTE:
            self._vhost(line.queue.vhost).routes.pop(line, None)
        elif line.cause > 0:
            waiting = self._targets.get(line.cause)
            if waiting is not None:
                waiting.pop(line, None)
                if not waiting:
                    del self._targets[line.cause]

    def _drop(self, line: _Line) -> None:
        """Nothing is in it any more, or its queue is gone."""
        line.gone = True
        self._leave(line)
        self._lines -= 1
        self._account.add(-LINE_BYTES)

    def _has_room(self, target: int, size: int) -> bool:
        """Whether a target takes a letter with a body of `size` bytes, or is not there to refuse it."""
        queue = self._state.queues.get(target)
        if queue is None or queue.deleted:
            return True
        return not queue.policy.is_elsewhere and not queue.core.refuses(size)

    def _change(self, vhost: _Vhost) -> None:
        """Routes or policies of a virtual host changed: letters that wait for that are looked at, unless it rests."""
        vhost.version += 1
        vhost.changed = True
        self._resting.add(vhost.name)
        self._wake_rested(vhost)

    def _wake_rested(self, vhost: _Vhost) -> None:
        if vhost.changed and not vhost.woken and self._state.clock.monotonic_ns() >= vhost.rest_ns:
            vhost.changed = False
            self._resting.discard(vhost.name)
            self._wake(vhost, vhost.routes)

    def _wake(self, vhost: _Vhost, lines: Any) -> None:
        if lines:
            vhost.woken.update(dict.fromkeys(lines))
            self._busy[vhost.name] = None

    def stands_for(self, queue: Any, target: int) -> bool:
        """Whether letters of a queue wait for room in that target."""
        with self._lock:
            kept = self._kept.get(queue)
            return kept is not None and target in kept.lines

    # --- events --------------------------------------------------------------------------------------------------------

    def routes_changed(self, vhost_name: str) -> None:
        """An exchange or a queue came or went, or a binding. Under the virtual host's lock, or not."""
        if self._state.shared is not None:
            self._state.shared.letters.routes_changed(vhost_name)
        if vhost_name not in self._vhosts:
            return
        with self._lock:
            vhost = self._vhosts.get(vhost_name)
            if vhost is not None:
                self._change(vhost)
        self._go()

    def queue_changed(self, queue: Any) -> None:
        """The policy of a queue changed, or it was deleted: what waits in it, and what waits for it, is looked at."""
        if queue.vhost not in self._vhosts:
            return
        with self._lock:
            vhost = self._vhosts.get(queue.vhost)
            if vhost is not None:
                kept = self._kept.get(queue)
                self._wake(vhost, list(kept.lines.values()) if kept is not None else None)
                self._wake(vhost, self._targets.get(queue.queue_id))
                self._change(vhost)
        self._go()

    def room(self, queue_id: int) -> None:
        """A queue may have room again: the next line that waits for it has its turn."""
        if queue_id not in self._targets:
            return
        with self._lock:
            self._next_for(queue_id)
        self._go()

    def look_for_room(self, queue: Any) -> None:
        """The housekeeping: a queue worked, or (deliveries and purges tell nobody) it is its turn."""
        waiting = self._targets.get(queue.queue_id)
        if waiting is not None and not queue.policy.is_elsewhere and not queue.core.refuses(0):
            self.room(queue.queue_id)

    def _next_for(self, queue_id: int) -> None:
        waiting = self._targets.get(queue_id)
        if waiting:
            line = next(iter(waiting))
            self._list(self._vhost(line.queue.vhost), line)

    # --- looks ---------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """The housekeeping: virtual hosts that have rested, and lines whose time has come."""
        with self._lock:
            if not self._kept:
                self._vhosts.clear()
                self._resting.clear()
            now_ns = self._state.clock.monotonic_ns()
            if now_ns - self._probes_ns >= self._state.limits.dead_letter_retry_ms * 1_000_000:
                self._probes, self._probes_ns = PROBES, now_ns
            for name in list(self._resting):
                self._wake_rested(self._vhost(name))
            self._probe(now_ns)
        self._end_notes(1)
        if not self._unseen:
            self._unseen = list(self._targets)
        for _ in range(min(ROOM_LOOKS, len(self._unseen))):
            queue = self._state.queues.get(self._unseen.pop())
            if queue is not None:
                self.look_for_room(queue)
        self._go()

    def _probe(self, now_ns: int) -> None:
        while self._heap and self._heap[0][0] <= now_ns and self._probes > 0:
            due_ns, _, line = heapq.heappop(self._heap)
            if line.gone or line.listed or line.due_ns != due_ns:
                continue
            self._probes -= 1
            line.probing = True
            # Where the first one fails the others are taken to do so: what would help them has events.
            self._list(self._vhost(line.queue.vhost), line, 1 if line.cause == NO_ROUTE else 0)

    def _go(self) -> None:
        with self._lock:
            if self._trying or not self._busy:
                return
            self._trying = True
        self._state.loops.in_slices(self._some, self._tried)

    def _tried(self, done: bool) -> None:
        with self._lock:
            self._trying = False
            if done:
                self._probe(self._state.clock.monotonic_ns())
        if done:
            self._go()

    def _some(self) -> bool:
        """A slice, of one line. True: none has its turn."""
        with self._lock:
            picked = self._pick()
        if picked is None:
            return True
        vhost, line = picked
        began_ns = self._state.clock.monotonic_ns()
        moved = self._turn(line, began_ns + STEP_NS)
        with self._lock:
            self._had_turn(vhost, line, moved, self._state.clock.monotonic_ns() - began_ns)
            over = not self._busy
        self._end_notes(ENDS_AT_ONCE)
        return over

    def _pick(self) -> tuple[_Vhost, _Line] | None:
        while self._busy:
            name, _ = self._busy.popitem(last=False)
            vhost = self._vhost(name)
            line = None
            if vhost.woken:
                line = vhost.woken.popitem()[0]
                if line.gone or line.listed:
                    line = None
                else:
                    line.listed, line.left = True, len(line.entries)
                    self._leave(line)
                self._wake_rested(vhost)  # routes that changed meanwhile
            elif vhost.ready:
                line = vhost.ready.popleft()
                line = None if line.gone else line
            if vhost.woken or vhost.ready:
                self._busy[name] = None
            if line is not None:
                return vhost, line
        return None

    def _turn(self, line: _Line, until_ns: int) -> bool:
        """Some letters of a line, in their order, from behind the last one looked at. Returns whether one of them moved."""
        moved = False
        queue = line.queue
        if line.cause == NO_ROUTE and self._leads_nowhere(queue):
            line.left = 0
            return False
        while line.left and not line.gone:
            with self._lock:
                if line.gone or not len(line.entries):
                    break
                position, number = line.entries.first
            cause = self._try(queue, position, _REASONS[number & REASON], line.cause)
            with self._lock:
                if line.gone:  # its queue was deleted meanwhile: `forget` ends what is in it
                    break
                line.left -= 1
                if cause != line.cause:
                    moved = True
                    self._move(line, cause)
                elif cause in (NO_ROUTE, LATER) or self._is_elsewhere(cause):
                    line.entries.add(*line.entries.take())
                if cause == LATER or (cause == line.cause and cause > 0 and not self._is_elsewhere(cause)):
                    line.left = 0
            if self._state.clock.monotonic_ns() >= until_ns:
                break
        return moved

    def _is_elsewhere(self, target: int) -> bool:
        queue = self._state.queues.get(target)
        return queue is not None and queue.policy.is_elsewhere

    def _leads_nowhere(self, queue: Any) -> bool:
        """Whether no letter of a queue can go anywhere, as far as that can be told without reading one."""
        policy = queue.policy
        vhost = self._state.vhosts.get(queue.vhost)
        if not policy.keeps_letters or vhost is None:
            return False
        if not self._dead_letters.has_exchange(queue):
            return True
        key, exchange = policy.dead_letter_routing_key, policy.dead_letter_exchange
        answers: list[bool] = []

        def ask() -> None:
            fixed = key is not None and self._state.routes.cache(vhost, exchange).cacheable
            answers.append(fixed and not vhost.route_keys(exchange, [key], None))

        guarded("dead letters", f"queue {queue.name!r}", ask)
        return answers == [True]

    def _move(self, line: _Line, cause: int | None) -> None:
        """The first letter of a line has ended (None), or waits for something else from now on."""
        position, number = line.entries.take()
        kept = self._kept[line.queue]
        if cause is not None:
            self._join(line.queue, kept, cause, position, number)
            return
        size = number >> SIZE_SHIFT
        kept.count -= 1
        kept.size -= size
        line.queue.core.keep(-1, -size)
        self._leave_line(line.queue.queue_id, position, number)

    def _had_turn(self, vhost: _Vhost, line: _Line, moved: bool, took_ns: int) -> None:
        if line.gone:
            return
        if moved:
            self._probes = PROBES
            self._next_for(line.queue.queue_id)  # it has more room itself
        elif line.cause == NO_ROUTE and not line.probing:
            now_ns = self._state.clock.monotonic_ns()
            vhost.rest_ns = max(now_ns, vhost.rest_ns) + REST_TIMES * took_ns
        if not len(line.entries):
            kept = self._kept[line.queue]
            del kept.lines[line.cause]
            self._drop(line)
            if not kept.lines:
                del self._kept[line.queue]
            if line.cause > 0:
                self._next_for(line.cause)
            return
        limits = self._state.limits
        least_ns = limits.dead_letter_retry_ms * 1_000_000
        if moved and line.probing:  # what it waited for is there
            line.left = max(line.left, len(line.entries))
            line.probing = False
        if line.left and line.cause > 0:
            line.wait_ns = least_ns
            self._rest(line)  # behind the others that wait for this target
            self._next_for(line.cause)
        elif line.left:
            vhost.ready.append(line)
            self._busy[vhost.name] = None
        else:
            line.wait_ns = least_ns if moved else min(2 * line.wait_ns, max(least_ns, limits.dead_letter_retry_max_ms * 1_000_000))
            self._rest(line)

    def forget(self, queue: Any) -> Callable[[], bool] | None:
        """A queue is deleted: what waits there ends in slices of the result; None: nothing waits."""
        with self._lock:
            kept = self._kept.pop(queue, None)
            if kept is None:
                return None
            lines = list(kept.lines.values())
            for line in lines:
                self._drop(line)

        def end() -> bool:
            for _ in range(ENDS_AT_ONCE):
                while lines and not len(lines[-1].entries):
                    lines.pop()
                if not lines:
                    return True
                position, number = lines[-1].entries.take()
                self._purge(queue, position)
                with self._lock:
                    self._leave_line(queue.queue_id, position, number)
            self._end_notes(ENDS_AT_ONCE)
            return False

        return end
