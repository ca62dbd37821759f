"""One shared queue on one node: everything that its clients want of the engine, combined into few transactions.

in: publishes, settlements and wishes of any thread. out: messages in the node's window, answers to publishes.

S1  A publish has its answer exactly once: taken, when the engine committed it; refused, when it did not, or when that is not known.
S2  What the window holds is leased by this node. An entry that leaves the window is settled or given back, until the engine took that.
S3  A node that was declared gone empties its window before it takes anything again: others have what it held.
S4  Nobody who calls from outside waits for the engine: only `step` does, on a worker's thread, one at a time.
S5  What waits for the engine is bounded by who counts it (queue/handoff); a publish that waited for shared_waiting_ms_max is refused.
S6  A message that can't be read is put aside, leased, and holds up no other.
S8  Where one consumer of all nodes is active, a node takes for its consumers only while it is the one (active.py).
S7  Messages that go back leave no later one in the window for the next who asks: all that nobody has goes back together.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from flintmq.config import Limits
from flintmq.kv.engine import Engine, EngineError, UnknownOutcome, Watch
from flintmq.shared.active import claim, yield_turn
from flintmq.shared.keys import Counts, QueueKeys
from flintmq.shared.owners import Owners
from flintmq.shared.queue import Fenced, Message, QueueGone, SharedQueue, Taken


class Window(Protocol):
    """The broker's queue of what this node has leased. Any thread; never blocks."""

    def wanted(self) -> int:
        """Messages that consumers here would take now, beside those that are in the window. Below 0: no consumer wants any, and so many are
        there."""
        ...

    def add(self, taken: Taken, content: bytes) -> int:
        """Puts a message behind those that are there. Returns its position, 0: the queue is deleted here.

        Raises: ValueError: the content is none of this version; MemoryError.
        """
        ...

    def take_back(self, positions: list[int]) -> list[tuple[int, bool, int]]:
        """Takes those of the entries out that nobody has, in that order: (position, whether a consumer had it before, how often it came
        back)."""
        ...

    def empty(self) -> None:
        """All that is in it is another node's now; a settlement of it has no effect."""
        ...


@dataclass(slots=True)
class Waiting:
    """A publish that waits. receiver: the host's own; size: bytes that the host counts for it; since: monotonic seconds."""

    message: Message
    receiver: Any
    size: int
    since: float = 0.0


class Host(Protocol):
    """Whoever has the station. Any thread; never blocks."""

    def open(self) -> tuple[Engine, Owners, QueueKeys, str]:
        """The engine, this node, the keys of the queue, made when there is none, and its order. On the worker's thread, may block.

        Raises: EngineError; ValueError: the queue is there with another order.
        """
        ...

    def wake(self) -> None:
        """`step` has something to do."""
        ...

    def gone(self) -> None:
        """The queue was deleted on another node."""
        ...

    def answer(self, waiting: list[Waiting], taken: bool) -> None: ...
    def ready(self, messages: int, size: int) -> None:
        """How many messages, and bytes, are ready in the engine."""
        ...

    def held(self, change: int) -> None:
        """Leases that the station remembers, more or fewer."""
        ...

    def limit(self) -> tuple[int | None, int | None, bool]:
        """Messages, and bytes, that may be ready on all nodes, None: any number; whether a publish above that is refused. Else the oldest
        go."""
        ...

    def levels(self) -> int:
        """Of priority; 1: none."""
        ...

    def single(self) -> bool:
        """Whether one consumer of all nodes is active at a time."""
        ...

    def consumers(self) -> int:
        """Consumers of this node, active or not; 0: it takes nothing for them now."""
        ...

    def overflowed(self, waiting: list[Waiting]) -> None:
        """Publishes that are refused for the limit, before they are answered."""
        ...

    def is_full(self) -> bool:
        """Whether so many dead messages wait for the targets of their letters that nothing more is to be taken."""
        ...

    def buries(self) -> bool:
        """Whether what expires, or is above the limit, is dead-lettered: it comes into the window then, and else just ends."""
        ...

    def bury(self, position: int, expired: bool) -> None:
        """An entry of the window expired, or is above the limit: it is dead-lettered, unless a consumer was faster."""
        ...

    def expired(self, messages: int) -> None: ...
    def dropped(self, messages: int) -> None:
        """Messages above the limit ended."""
        ...

    def unreadable(self, error: Exception) -> None: ...


Fetched = Callable[[Exception | None], None]
Purged = Callable[[int, Exception | None], None]


@dataclass(slots=True)
class _Purge:
    """left: messages that were ready when it began; below 0: it did not begin."""

    on_purged: Purged
    since: float
    left: int = -1
    ended: int = 0


class Station:
    """Args: monotonic: seconds; wall_ms: milliseconds."""

    def __init__(
        self,
        host: Host,
        window: Window,
        limits: Limits,
        monotonic: Callable[[], float] = time.monotonic,
        wall_ms: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:
        self._host = host
        self._window = window
        self._limits = limits
        self._monotonic = monotonic
        self._wall_ms = wall_ms
        self._lock = threading.Lock()  # of what other threads put here
        self._publishes: deque[Waiting] = deque()
        self._flying = 0  # of them, the first ones: a transaction of the worker has them
        self._ended: deque[int] = deque()  # positions that were settled
        self._fetches: list[tuple[float, Fetched]] = []
        self._purges: list[_Purge] = []
        self._closed = False
        self._look = False
        self._polled = False  # this step may give back what nobody here wants
        # the worker's own
        self._owners: Owners | None = None
        self._queue: SharedQueue | None = None
        self._held: dict[int, Taken] = {}  # position in the window -> its lease
        self._back: list[tuple[Taken, bool]] = []
        self._over: list[Taken] = []  # expired before they reached the window
        self._counted: dict[int, int] = {}  # entries that came back and stay here -> how often
        self._aside: list[Taken] = []
        self._watch: Watch | None = None
        self._audit = False  # leases may be there that nobody here knows of
        self._remembered = 0
        self._counts = Counts()
        self._conflicts = 0  # of lives that are over
        self.active = False  # of all nodes this is the one whose consumers get messages, where one consumer does
        self._unwanted_since: float | None = None  # since when the window has what no consumer wants, and consumers have the rest
        # what consumers have stands behind messages that went back to the engine: whoever wants one asks `fetch`, and not the window
        self.mixed = False
        self.taken = self.settled = self.refused = 0

    # --- any thread -------------------------------------------------------------------------------------------------

    def publish(self, waiting: Waiting) -> bool:
        """False: the queue is deleted; there is no answer then."""
        waiting.since = self._monotonic()
        with self._lock:
            if self._closed:
                return False
            self._publishes.append(waiting)
        self._host.wake()
        return True

    def end(self, position: int) -> None:
        """An entry of the window was settled."""
        with self._lock:
            self._ended.append(position)
        self._host.wake()

    def note_count(self, position: int, count: int) -> None:
        """An entry of the window came back for the `count`th time, and stays there."""
        with self._lock:
            self._counted[position] = count
        self._host.wake()

    def fetch(self, done: Fetched) -> None:
        """Somebody wants one message: `done` is called when the window has it, or the engine had none."""
        with self._lock:
            closed = self._closed
            if not closed:
                self._fetches.append((self._monotonic(), done))
        if closed:
            done(None)
        else:
            self._host.wake()

    def purge(self, done: Purged) -> None:
        """Ends what is ready now, a part in each step."""
        with self._lock:
            closed = self._closed
            if not closed:
                self._purges.append(_Purge(done, self._monotonic()))
        if closed:
            done(0, None)
        else:
            self._host.wake()

    def look_again(self) -> None:
        """The next step looks although no watch told of anything, learns the counts of other nodes, and gives back what nobody wants."""
        self._look = True

    def refuse_late(self) -> None:
        """Refuses what has waited for too long: the engine is away, and no step may be running."""
        late = self._monotonic() - self._limits.shared_waiting_ms_max / 1000
        self._refuse(lambda waiting: waiting.since <= late)
        with self._lock:
            fetches = [one for one in self._fetches if one[0] <= late]
            self._fetches = [one for one in self._fetches if one[0] > late]
            purges = [one for one in self._purges if one.since <= late and one.left < 0]
            self._purges = [one for one in self._purges if one.since > late or one.left >= 0]
        error = EngineError("the engine of shared queues does not answer")
        for _, done in fetches:
            done(error)
        for purge in purges:
            purge.on_purged(0, error)

    @property
    def life(self) -> bytes | None:
        """The id of the queue's life; None: it was never opened."""
        return None if self._queue is None else self._queue.keys.life

    @property
    def owner(self) -> bytes:
        """The life of the node that its leases are of."""
        return b"" if self._queue is None else self._queue.owner

    @property
    def conflicts(self) -> int:
        """Transactions that were made anew, as others were faster."""
        return self._conflicts + (0 if self._queue is None else self._queue.conflicts)

    @property
    def holds(self) -> int:
        """Leases and publishes that this node has to be rid of before it can go without a trace. An unreadable row does not count."""
        return max(0, self._remembered - len(self._aside)) + len(self._publishes)

    def close(self) -> None:
        """The queue is deleted here: what waits is refused, nothing more is taken."""
        with self._lock:
            self._closed = True
        self._refuse(lambda waiting: True)
        self._answer_all(None)

    def leave(self) -> None:
        """The node stops, and no worker runs: what was settled is told, what nobody had goes back without a mark. Raises: EngineError."""
        queue = self._queue
        if queue is None or self._closed:
            return
        while self._enqueue(queue):
            pass
        while self._settle(queue):
            pass
        self._empty_window(queue)
        while self._give_back(queue):
            pass

    def _answer_all(self, error: Exception | None) -> None:
        with self._lock:
            fetches, self._fetches = self._fetches, []
            purges, self._purges = self._purges, []
        for _, done in fetches:
            done(error)
        for purge in purges:
            purge.on_purged(purge.ended, error)

    def _refuse(self, chosen: Callable[[Waiting], bool]) -> None:
        """Those at the front that are chosen are refused; what a transaction has is answered by its worker."""
        refused: list[Waiting] = []
        with self._lock:
            if self._flying:
                return
            while self._publishes and chosen(self._publishes[0]):
                refused.append(self._publishes.popleft())
        self._answer(refused, False)

    def _answer(self, waiting: list[Waiting], taken: bool) -> None:
        if not taken:
            self.refused += len(waiting)
        if waiting:
            self._host.answer(waiting, taken)

    # --- the worker -------------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Does what is to be done. True: there is more. Raises: EngineError: the engine is away, and all is kept for the next step."""
        if self._closed:
            self._refuse(lambda waiting: True)
            return False
        try:
            queue = self._opened()
            if self._audit:
                self._reconcile(queue)
            if self._look:
                self._look = False
                self._poll(queue)
            goes_on = self._enqueue(queue)
            goes_on = self._settle(queue) or goes_on
            goes_on = self._note_counts(queue) or goes_on
            goes_on = self._give_back(queue) or goes_on
            goes_on = self._purge(queue) or goes_on
            goes_on = self._balance(queue) or goes_on
            self._yield_turn(queue)
            return self._keep_limit(queue) or goes_on
        except Fenced:
            self._lost()
            raise
        except QueueGone:
            self._forget()
            self._refuse(lambda waiting: True)
            self._answer_all(None)
            self._host.gone()
            return False
        finally:
            self._note()

    def _note(self) -> None:
        """What others see of it."""
        counts = self._counts
        self._host.ready(counts.ready, counts.ready_bytes)
        remembered = len(self._held) + len(self._back) + len(self._over) + len(self._aside)
        if remembered != self._remembered:
            self._host.held(remembered - self._remembered)
            self._remembered = remembered

    def _opened(self) -> SharedQueue:
        queue, owners = self._queue, self._owners
        if queue is not None and owners is not None and queue.owner == owners.owner:
            return queue
        if queue is not None:
            self._lost()
        engine, owners, keys, order = self._host.open()
        owner = owners.uses(keys.life)
        fresh = SharedQueue(engine, keys, owner, self._limits, order, self._limits.shared_patience_ms, self._host.levels())
        self._counts = fresh.read_counts()
        self._owners, self._queue = owners, fresh
        return fresh

    def _lost(self) -> None:
        """Another node declared this one gone (S3)."""
        self._forget()
        self._conflicts = self.conflicts
        self._queue = None

    def _forget(self) -> None:
        self._window.empty()
        self._held.clear()
        self._back.clear()
        self._over.clear()
        self._aside.clear()
        self._audit = self.mixed = self.active = False
        with self._lock:
            self._ended.clear()
            self._counted.clear()
        self._forget_watch()

    def _enqueue(self, queue: SharedQueue) -> bool:
        with self._lock:
            first = [self._publishes[index] for index in range(min(len(self._publishes), queue.batch))]
            count = self._flying = queue.cut([waiting.message for waiting in first]) if first else 0
        if not first:
            return False
        away = True
        added = 0
        over = False
        try:
            most, most_bytes, refuses = self._host.limit()
            bounds = (most, most_bytes) if refuses else (None, None)
            added = queue.enqueue([waiting.message for waiting in first[:count]], *bounds)
            over = added < count
            size = sum(len(waiting.message.content) for waiting in first[:added])
            self._counts = self._counts.plus(Counts(enqueued=added, enqueued_bytes=size))
            away = False
            if (most, most_bytes) != (None, None) and not refuses:
                self._forget_watch()  # consumers here have their turn before the surplus goes
        except UnknownOutcome:
            away = False
        finally:
            with self._lock:
                self._flying = 0
                mine = [] if away else [self._publishes.popleft() for _ in range(count)]
                goes_on = bool(self._publishes)
        self._answer(mine[:added], True)
        if over:
            self._host.overflowed(mine[added:])
        self._answer(mine[added:], False)
        return goes_on

    def _forget_watch(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()

    def _note_counts(self, queue: SharedQueue) -> bool:
        """Messages that came back and stayed here: the engine learns how often."""
        with self._lock:
            counted = list(itertools.islice(self._counted.items(), queue.batch))
        if not counted:
            return False
        there: list[Taken] = []
        for position, count in counted:
            taken = self._held.get(position)
            if taken is not None:
                taken.meta = taken.meta.counted(count)
                there.append(taken)
        if there:
            queue.note_counts(there)
        with self._lock:
            for position, count in counted:
                if self._counted.get(position) == count:
                    del self._counted[position]
            return bool(self._counted)

    def _keep_limit(self, queue: SharedQueue) -> bool:
        """The surplus above the limit goes, the oldest first. The counts of other nodes may be old, so the transaction reads them anew."""
        most, most_bytes, refuses = self._host.limit()
        if refuses or not self._is_over(most, most_bytes):
            return False
        count = 0
        if not self._host.buries():
            count = queue.drop_over(most, most_bytes)
            self._host.dropped(count)
        elif not self._host.is_full():
            taken = self._leased(lambda: queue.take_over(most, most_bytes))
            count = len(taken)
            self._received(queue, taken, None, over=True)
        self._counts = queue.read_counts()
        return count > 0 and self._is_over(most, most_bytes)

    def _is_over(self, most: int | None, most_bytes: int | None) -> bool:
        counts = self._counts
        return (most is not None and counts.ready > most) or (most_bytes is not None and counts.ready_bytes > most_bytes)

    def _leased(self, take: Callable[[], list[Taken]]) -> list[Taken]:
        try:
            return take()
        except UnknownOutcome:
            self._audit = True
            raise

    def _settle(self, queue: SharedQueue) -> bool:
        """What expired on its way here, and what consumers settled."""
        over = self._over[: queue.batch]
        with self._lock:
            positions = [self._ended[index] for index in range(min(len(self._ended), queue.batch - len(over)))]
        done = over + [self._held[position] for position in positions if position in self._held]
        if done:
            try:
                queue.settle(done)
            except UnknownOutcome:
                self._audit = True
                raise
            size = sum(one.meta.size for one in done)
            self._counts = self._counts.plus(Counts(settled=len(done), leased=-len(done), settled_bytes=size, leased_bytes=-size))
            self.settled += len(done) - len(over)
        for position in positions:
            self._held.pop(position, None)
        self.mixed = self.mixed and bool(self._held)
        if over:
            del self._over[: len(over)]
            self._host.expired(len(over))
        with self._lock:
            for _ in positions:
                self._ended.popleft()
            return bool(self._ended or self._over)

    def _give_back(self, queue: SharedQueue) -> bool:
        part = self._back[: queue.batch]
        if not part:
            return False
        try:
            queue.give_back(part)
        except UnknownOutcome:
            self._audit = True
            raise
        del self._back[: len(part)]
        size = sum(one.meta.size for one, _ in part)
        self._counts = self._counts.plus(Counts(leased=-len(part), leased_bytes=-size))
        return bool(self._back)

    def _balance(self, queue: SharedQueue) -> bool:
        """Takes what consumers here want; gives back what they do not."""
        with self._lock:
            fetches, self._fetches = self._fetches, []
        try:
            return self._fill(queue, fetches)
        except BaseException:
            with self._lock:
                self._fetches = fetches + self._fetches
            raise

    def _fill(self, queue: SharedQueue, fetches: list[tuple[float, Fetched]]) -> bool:
        wanted = self._window.wanted()
        if wanted < 0 and not fetches:
            # Its asker has not come for it yet, perhaps.
            if not self._polled:
                return False
            self._polled = False
            if -wanted < len(self._held) and not self._waited_enough():
                return False
            self._empty_window(queue)
            return self._give_back(queue)
        self._unwanted_since = None
        if fetches and self.mixed:
            self._empty_window(queue)
            while self._give_back(queue):
                pass
        wanted = max(0, wanted) + (0 if self._host.is_full() else len(fetches))
        if wanted == 0 or (self._watch is not None and not fetches):
            for _, done in fetches:
                done(None)
            return False
        if not fetches and not self._is_active(queue):
            return False
        try:
            taken, watch = queue.take(min(wanted, queue.batch), self._limits.shared_window_bytes, None if self._watch else self._on_change)
        except UnknownOutcome:
            self._audit = True
            raise
        goes_on = self._received(queue, taken, watch)
        for _, done in fetches:
            done(None)
        return goes_on

    def _is_active(self, queue: SharedQueue) -> bool:
        """Whether consumers of this node may have messages (active.py). A node that may not is told when that may have changed."""
        if not self.active and self._host.single():
            self.active, watch = claim(queue, self._on_change)
            if watch is not None:
                self._watch = watch
        return self.active or not self._host.single()

    def _yield_turn(self, queue: SharedQueue) -> None:
        """The last consumer of this node is gone, and what nobody had went back: another node's has its turn."""
        if self.active and not self._host.consumers() and not self._back and self._window.wanted() == 0:
            yield_turn(queue)
            self.active = False

    def _waited_enough(self) -> bool:
        """What consumers have may stand behind what would go back, and come back after it: it is waited for, but not without end."""
        now = self._monotonic()
        if self._unwanted_since is None:
            self._unwanted_since = now
        return now - self._unwanted_since >= self._limits.shared_unwanted_ms / 1000

    def _empty_window(self, queue: SharedQueue) -> None:
        """What nobody has goes back, all of it: a message that stayed would overtake those that went (S7). The last one first: who comes
        meanwhile finds the head."""
        self.mixed = True
        positions = sorted(self._held, reverse=True)
        for start in range(0, len(positions), queue.batch):
            self._take_out(self._window.take_back(positions[start : start + queue.batch]))
        self.mixed = bool(self._held)

    def _take_out(self, positions: list[tuple[int, bool, int]]) -> None:
        for position, delivered, count in positions:
            taken = self._held.pop(position, None)
            if taken is not None:
                if count > taken.meta.deliveries:
                    taken.meta = taken.meta.counted(count)
                self._back.append((taken, delivered))

    def _purge(self, queue: SharedQueue) -> bool:
        """A part of the first purge. True: there is more."""
        with self._lock:
            purge = self._purges[0] if self._purges else None
        if purge is None:
            return False
        if purge.left < 0:
            self._empty_window(queue)
            while self._give_back(queue):
                pass
            self._counts = queue.read_counts()
            purge.left = self._counts.ready
        count = queue.purge_some(min(queue.batch, max(1, purge.left)))
        purge.ended += count
        purge.left -= count
        if count and purge.left > 0:
            return True
        self._counts = queue.read_counts()
        with self._lock:
            mine = bool(self._purges) and self._purges[0] is purge
            if mine:
                del self._purges[0]
        if mine:  # else it was answered when the queue was deleted
            purge.on_purged(purge.ended, None)
        return bool(self._purges)

    def _received(self, queue: SharedQueue, taken: list[Taken], watch: Watch | None, over: bool = False) -> bool:
        """The leased messages. `over`: it is above the limit, and to be dead-lettered."""
        if watch is not None:
            self._watch = watch
        if not taken:
            return False
        size = sum(one.meta.size for one in taken)
        self._counts = self._counts.plus(Counts(leased=len(taken), leased_bytes=size))
        now_ms, buries = self._wall_ms(), self._host.buries()
        for number, one in enumerate(taken):
            expired = 0 < one.meta.expires_at_ms <= now_ms
            if expired and not buries:
                self._over.append(one)
                continue
            try:
                position = self._show(queue, one)
                if position and (expired or over):
                    self._host.bury(position, expired)
            except ValueError as error:
                self._aside.append(one)
                self._host.unreadable(error)
            except BaseException:
                self._back.extend((message, False) for message in taken[number:])
                raise
        return True

    def _show(self, queue: SharedQueue, taken: Taken) -> int:
        position = self._window.add(taken, queue.load(taken))
        taken.content = None  # the window has it; what goes back is read in the engine
        if position:
            self._held[position] = taken
            self.taken += 1
        else:
            self._back.append((taken, False))
        return position

    def _on_change(self) -> None:
        """Something became ready, perhaps: any thread."""
        self._watch = None
        self._host.wake()

    def _poll(self, queue: SharedQueue) -> None:
        self._forget_watch()
        if not self._host.buries():
            if expired := queue.expire_head(self._wall_ms()):
                self._host.expired(expired)
        elif not self._host.is_full():
            self._received(queue, self._leased(lambda: queue.take_expired(self._wall_ms())), None)
        self._counts = queue.read_counts()
        self._polled = True

    def _reconcile(self, queue: SharedQueue) -> None:
        """After an outcome that stayed unknown: leases that nobody here knows of go back, or are forgotten by those who asked for it."""
        known = {taken.order for taken in (*self._held.values(), *self._over, *self._aside)}
        known.update(taken.order for taken, _ in self._back)
        behind = b""
        there: set[bytes] = set()
        unknown: list[tuple[Taken, bool]] = []
        while rows := queue.held(queue.batch, behind):
            there.update(row.order for row in rows)
            unknown.extend((row, False) for row in rows if row.order not in known)
            behind = rows[-1].order
        self._held = {position: taken for position, taken in self._held.items() if taken.order in there}
        self._over = [taken for taken in self._over if taken.order in there]
        self._aside = [taken for taken in self._aside if taken.order in there]
        self._back = [(taken, delivered) for taken, delivered in self._back if taken.order in there] + unknown
        self._audit = False
