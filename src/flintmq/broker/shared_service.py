"""The shared queues of a node: their windows and stations, the threads that work for them, the node's life among the others.

in: declared and deleted shared queues, what clients publish and settle (queue/handoff), consumers that came. out: messages in windows,
answers to confirms, gets and purges.

V1  No thread of a connection waits for the engine, nor does the start of the broker. Waiting work is bounded, and an engine that is away
    costs shared queues alone.
V2  A station has one worker at a time, and its steps are in order. One that fails waits by itself; when the engine is away all wait.
V3  A queue that a client deletes is deleted in the engine first. Where it ends another way (with its virtual host) its rows go after its
    definition; a crash in between leaves rows, which a new declaration of the name replaces where no other node has the engine.
V4  A node's signs of life wait for nothing but the engine: looking at others, and sweeping them, has a thread of its own.
"""

from __future__ import annotations

import collections
import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from flintmq.broker.cores import configure
from flintmq.broker.shared_definitions import SharedDefinitions
from flintmq.broker.shared_entry import CoreWindow, SharedQueueEntry, check_same_arguments, pack_arguments
from flintmq.broker.shared_letters import SharedLetters
from flintmq.errors import PeerError, ReplyCode
from flintmq.guard import caught, guarded
from flintmq.kv.engine import Engine, EngineError, Unavailable, UnknownOutcome
from flintmq.kv.opening import engine_url, is_alone, open_engine
from flintmq.queue.control import QueueHandle
from flintmq.queue.handoff import (
    WAITING_BYTES,
    SharedPort,
    open_window,
)
from flintmq.shared.codec import pack_message
from flintmq.shared.keys import SIGNALS
from flintmq.shared.owners import Owners
from flintmq.shared.queue import Contended, Fenced, Message, NotEmpty, clear_doomed, declare_queue, delete_queue
from flintmq.shared.sets import end_deleted, engine_identity
from flintmq.shared.station import Station, Waiting
from flintmq.vhost.names import describe
from flintmq.vhost.policy import parse_queue_arguments
from flintmq.vhost.stream_arguments import check_lasting_properties

if TYPE_CHECKING:
    from flintmq.broker.dead_letters import DeadLetters
    from flintmq.broker.events import Events
    from flintmq.broker.pausing import Pauses
    from flintmq.broker.records import Consumer
    from flintmq.broker.state import NodeState
    from flintmq.queue.due_index import DueIndex
    from flintmq.vhost.queue import QueueSpec

log = logging.getLogger("flintmq.shared")

# items of the line that are handed out before stations work
_ITEMS_AT_ONCE = 1_000
# slices of deleted queues that one look at other nodes clears
_SLICES_AT_ONCE = 200
Fields = tuple[bytes, bytes, bytes, bytes, int, int]
OnOutcome = Callable[[bool], object]
Done = Callable[[Any, Exception | None], None]


class Membership(Protocol):
    """This node as a member of a cluster (cluster.Cluster)."""

    def run(self) -> None: ...
    def wake(self) -> None: ...


class _Task:
    """A request to the engine that is not one of a station. run: on a worker's thread; done: told its result, or why there is none.

    lasting: it is tried until it is done.
    """

    __slots__ = ("done", "lasting", "run", "since")

    def __init__(self, run: Callable[[], Any], done: Done, lasting: bool = False) -> None:
        self.run = run
        self.done = done
        self.lasting = lasting
        self.since = time.monotonic()


def _refusal(error: Exception | None) -> Exception | None:
    """What a client is told of an error."""
    if error is None or isinstance(error, PeerError):
        return error
    if not isinstance(error, EngineError):
        log.error("internal error: a request to the engine of shared queues failed", exc_info=error)
    return PeerError(ReplyCode.INTERNAL_ERROR, "the engine of shared queues does not answer")


class _Wait(Exception):
    """The task has to wait for another one."""


class SharedService:
    """Args: url: of the engine; logs: the store's log port. Raises: ValueError: no such URL."""

    by_owner = False

    def __init__(
        self, state: NodeState, dead_letters: DeadLetters, pauses: Pauses, events: Events, url: str, logs: Any, index: DueIndex
    ) -> None:
        self.state = state
        self._index = index
        self.dead_letters = dead_letters
        self.limits = state.limits
        self._url = engine_url(url)
        limits = self.limits
        self._port = SharedPort(logs, limits.shared_waiting_bytes_max, limits.shared_vhost_waiting_bytes_max)
        self.letters = SharedLetters(state, dead_letters, self._port)
        self._opening = threading.Lock()  # of the next two
        self._engine: Engine | None = None
        self._owners: Owners | None = None
        self.definitions = SharedDefinitions(self, is_alone(self._url))
        self.member: Membership | None = None  # of a cluster
        self._lock = threading.Condition()  # of all below
        self._entries: dict[int, SharedQueueEntry] = {}
        self._ending: collections.Counter[tuple[str, str]] = collections.Counter()  # deleted queues that the engine was not told of
        self.declared: dict[tuple[str, str], bytes] = {}  # in the engine, for a declaration that follows: name -> id of the life
        self._due: collections.deque[SharedQueueEntry | _Task] = collections.deque()
        self._later: list[tuple[float, int, SharedQueueEntry | _Task]] = []  # a heap
        self._numbers = itertools.count()
        self._away_until = 0.0
        self._away_ms = 0  # 0: the engine answers
        self._stopping = False
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []
        self._turn = 0  # where the polls go on
        self.identity = ""  # of the engine: nodes with the same one serve the same queues; "": it was not heard of yet
        self.failures = self.contended = self.lives = 0
        pauses.followers.append(self._paused)
        events.followers.append(self.definitions.noted)

    # --- life -------------------------------------------------------------------------------------------------------

    @property
    def is_alone(self) -> bool:
        """Whether no other node opens the engine."""
        return is_alone(self._url)

    def node(self) -> tuple[Engine, Owners]:
        """The engine, and this node there. On a worker's thread: the first call waits for the engine. Raises: EngineError."""
        with self._opening:
            if self._engine is not None and self._owners is not None:
                return self._engine, self._owners
            engine = open_engine(self._url, self.limits, SIGNALS)
            try:
                owners = Owners(engine, self.limits)
                owners.register()
                returned = owners.look(others_are_gone=True) if engine.limits.exclusive else 0
                self.identity = engine_identity(engine)
            except BaseException:
                engine.close()
                raise
            log.info("shared queues are on %s; %d messages came back from the run before", engine.name, returned)
            self._engine, self._owners = engine, owners
            self.lives = 1
        self._start([self._beat, self._look])
        return engine, owners

    def _start(self, work: list[Callable[[], None]]) -> None:
        with self._lock:
            for run in work:
                if not self._stopping:
                    thread = threading.Thread(target=run, name=f"flintmq-shared-{len(self._threads)}", daemon=True)
                    self._threads.append(thread)
                    thread.start()

    def _begin(self) -> None:
        """Threads begin with the first queue."""
        with self._lock:
            if self._threads:
                return
            self._start([self._hand_out, self._tick, *(self._work for _ in range(self.limits.shared_workers))])

    def follow(self) -> None:
        """All is restored: from now on this node learns of queues that others declare. Waits for nothing."""
        if not self.is_alone:
            self._begin()
            self._start([self.definitions.run])
        if self.member is not None:
            self._start([self.member.run])

    def stop(self) -> None:
        """Nobody publishes or consumes any more: what is in windows goes back to the engine, as far as it answers. Idempotent."""
        with self._lock:
            if self._stopping:
                return
            self._stopping = True
            self._lock.notify_all()
            threads = list(self._threads)
        self._stopped.set()
        self.definitions.wake()
        if self.member is not None:
            self.member.wake()
        self._port.close()
        self._port.wake()
        until = time.monotonic() + self.limits.shutdown_ms_max / 1000
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        if self._engine is None or self._owners is None:
            return
        if not any(thread.is_alive() for thread in threads):
            self._leave(self._owners, until)
        self._engine.close()

    def _leave(self, owners: Owners, until: float) -> None:
        """What this node has goes back now, and not after a lease: until the engine does not answer, or the time is over."""
        self._hand_out_some()
        for entry in list(self._entries.values()):
            if time.monotonic() > until or not guarded("shared queues at the stop", entry.name, entry.station.leave):
                return
        guarded("shared queues at the stop", "this node's leases", owners.leave)

    # --- queues -----------------------------------------------------------------------------------------------------

    def new_core(self, queue_id: int, spec: QueueSpec, anew: bool) -> QueueHandle:
        """The core of a declared or restored queue: a window. `anew`: it is declared now. Raises: PeerError 406."""
        if anew:
            self.check_limits(spec.vhost, spec.name)
        core = QueueHandle(queue_id)
        core.watch(self._index)
        configure(core, spec.policy, window=True)
        open_window(core, self._port, spec.vhost)
        entry = SharedQueueEntry(self, queue_id, spec, core)
        rests = partial(self._rests, queue_id)
        entry.station = Station(entry, CoreWindow(core, self.limits.shared_batch, rests), self.limits)
        with self._lock:
            entry.life = self.declared.pop((spec.vhost, spec.name), None) if anew else None
            entry.anew = anew and entry.life is None
            self._entries[queue_id] = entry
        self._begin()
        self.schedule(entry)
        return core

    def created(self, queue: Any) -> None:
        """A queue of `new_core` is declared."""

    def is_served(self, queue_id: int) -> bool:
        """Whether a queue has its core."""
        return True

    def when_served(self, queue_id: int, done: Callable[[Exception | None], object]) -> None:
        done(None)

    def opened(self, queue_id: int, done: Done) -> None:
        done(None, None)

    def forwards(self, queue_id: int) -> bool:
        """Whether the core of a queue is a window of what others have."""
        return True

    def check_limits(self, vhost: str, name: str) -> None:
        """Whether there may be one more queue. Raises: PeerError 406."""
        with self._lock:
            whole = len(self._entries)
            there = sum(entry.vhost == vhost for entry in self._entries.values())
        for count, limit in ((whole, self.limits.shared_queues_max), (there, self.limits.shared_vhost_queues_max)):
            if count >= limit:
                text = f"cannot declare {describe('queue', name, vhost)}: shared queue limit ({limit}) is reached"
                raise PeerError(ReplyCode.PRECONDITION_FAILED, text)

    def _rests(self, queue_id: int) -> bool:
        """Whether this node takes nothing of a queue, and gives back what no client has."""
        return self.state.draining or self.is_held_up(queue_id)

    def is_held_up(self, queue_id: int) -> bool:
        """Whether it is paused, or its letters wait. A drain is none of these: what its clients have comes back before others go on."""
        return queue_id in self.state.paused or self.letters.is_full(queue_id)

    def follow_policy(self, queue: Any) -> None:
        """The policy of a queue changed."""
        entry = self._entries.get(queue.queue_id)
        if entry is not None:
            entry.follow(queue.policy)
            entry.station.look_again()

    def note_count(self, queue_id: int, position: int, count: int) -> None:
        """A message came back to this node for the `count`th time, and stays there. Any thread."""
        entry = self._entries.get(queue_id)
        if entry is not None:
            entry.station.note_count(position, count)

    def declare(self, vhost: Any, name: str, arguments: Mapping[str, Any], properties: Mapping[str, bool], done: Done) -> None:
        """Checks a declaration, then `declare_in_engine`. Raises: PeerError 406; `done` is not called then."""
        where = vhost.describe("queue", name)
        policy = parse_queue_arguments(arguments, where)
        check_lasting_properties(where, **properties)
        self.check_limits(vhost.name, name)
        self.declare_in_engine(vhost.name, name, policy.shared_order, arguments, done)

    def declare_in_engine(self, vhost: str, name: str, order: str, arguments: Mapping[str, Any], done: Done) -> None:
        """Makes a queue in the engine that is declared here afterwards, unless another node did. `done` on any thread; errors: PeerError
        406 it is there with another order or other arguments, 541."""
        key = (vhost, name)

        def run() -> None:
            engine, _ = self.node()
            with self._lock:
                if self._ending[key]:
                    raise _Wait
                known = any((entry.vhost, entry.name) == key for entry in self._entries.values())
            anew = engine.limits.exclusive and not known
            try:
                keys = declare_queue(engine, vhost, name, order, anew, pack_arguments(arguments), self.limits.shared_patience_ms)
            except ValueError as error:
                text = f"inequivalent arg 'x-shared-order' for {describe('queue', name, vhost)}: {error}"
                raise PeerError(ReplyCode.PRECONDITION_FAILED, text) from error
            if not engine.limits.exclusive:
                check_same_arguments(engine, keys, vhost, name, arguments)
            with self._lock:
                if not known:
                    self.declared[key] = keys.life

        self._begin()
        self._give(_Task(run, lambda result, error: done(result, _refusal(error))))

    def delete_in_engine(self, vhost: str, name: str, if_empty: bool, done: Done, if_unused: bool = False) -> None:
        """Deletes a queue in the engine, before it is deleted here. `done` as above; PeerError 406 with `if_empty`: it is not."""

        def run() -> None:
            engine, _ = self.node()
            try:
                delete_queue(engine, vhost, name, None, if_empty, self.limits.shared_patience_ms)
            except NotEmpty:
                raise PeerError(ReplyCode.PRECONDITION_FAILED, f"{describe('queue', name, vhost)} not empty") from None
            with self._lock:
                for entry in self._entries.values():
                    entry.ended |= (entry.vhost, entry.name) == (vhost, name)

        self._give(_Task(run, lambda result, error: done(result, _refusal(error))))

    def delete(self, queue_id: int) -> None:
        """The queue is gone here, and for everybody. Waits for nothing."""
        with self._lock:
            entry = self._entries.pop(queue_id, None)
        if entry is None:
            return
        self._port.close_lane(entry.core)
        entry.station.close()
        if entry.ended:
            return
        key = (entry.vhost, entry.name)
        with self._lock:
            self._ending[key] += 1

        def run() -> None:
            engine, _ = self.node()
            delete_queue(engine, entry.vhost, entry.name, entry.station.life, patience_ms=self.limits.shared_patience_ms)

        def done(result: Any, error: Exception | None) -> None:
            with self._lock:
                self._ending[key] -= 1
                if not self._ending[key]:
                    del self._ending[key]

        self._give(_Task(run, done, lasting=True))

    def want(self, queue_id: int, gone: bool = False) -> None:
        """A consumer came, or can take more. `gone`: one went, and what it does not take any more goes back. Any thread."""
        entry = self._entries.get(queue_id)
        if entry is not None:
            if gone:
                entry.station.look_again()
            self.schedule(entry)

    def left(self, consumer: Consumer) -> None:
        """A consumer went, and what it does not take any more goes back. Any thread."""
        self.want(consumer.queue.queue_id, gone=True)

    def _paused(self, queue: Any, paused: bool) -> None:
        self.want(queue.queue_id, gone=paused)

    def publish(self, core: QueueHandle, message: Fields, expires_at_ms: int, on_outcome: OnOutcome) -> bool:
        """A message of the broker's own, or of a request. `on_outcome` is called once, on any thread: whether the engine has it.
        False: too much waits, or the queue is deleted; it is not called then."""
        entry = self._entries.get(core.queue_id)
        content = pack_message(*message)
        size = len(content) + WAITING_BYTES
        lane = 0 if entry is None else self._port.admit(core, size)
        if entry is None or not lane:
            return False
        return self._wait(entry, Waiting(Message(content, expires_at_ms, message[5]), (lane, on_outcome), size))

    def _wait(self, entry: SharedQueueEntry, waiting: Waiting) -> bool:
        entry.share.add(waiting.size)
        if entry.station.publish(waiting):
            return True
        entry.share.add(-waiting.size)
        self._port.leave(waiting.receiver[0], waiting.size)
        return False

    def is_mixed(self, queue_id: int) -> bool:
        """Whether a basic.get has to ask the engine although the window may have something (shared/station.py, S7)."""
        entry = self._entries.get(queue_id)
        return entry is not None and bool(entry.station.mixed)

    def fetch(self, queue_id: int, done: Callable[[Exception | None], None]) -> None:
        """A basic.get found nothing in the window. `done` is called once, on any thread, when the engine was asked."""
        entry = self._entries.get(queue_id)
        if entry is None:
            done(None)
            return
        entry.station.fetch(lambda error: done(_refusal(error)))

    def purge(self, queue_id: int, done: Callable[[int, Exception | None], None]) -> None:
        """Ends what is ready. `done` is called once, on any thread, with the number of messages."""
        entry = self._entries.get(queue_id)
        if entry is None:
            done(0, None)
            return
        entry.station.purge(lambda count, error: done(count, _refusal(error)))

    def facts(self) -> dict[str, Any]:
        """For people and metrics. O(queues)."""
        with self._lock:
            entries = list(self._entries.values())
        owners = self._owners
        return {
            "engine": self._url.partition(":")[0],
            "answers": self._engine is not None and not self.is_away,
            "node": "" if owners is None else owners.owner.hex(),
            "lives": self.lives,
            "queues": len(entries),
            "waiting_bytes": self._port.waiting_bytes(),
            "taken": sum(entry.station.taken for entry in entries),
            "settled": sum(entry.station.settled for entry in entries),
            "refused": sum(entry.station.refused for entry in entries),
            "returned": 0 if owners is None else owners.swept,
            "failures": self.failures,
            "contended": self.contended,
            "conflicts": sum(entry.station.conflicts for entry in entries),
            "definitions_refused": self.definitions.refused,
        }

    @property
    def is_away(self) -> bool:
        """Whether the engine did not answer when it was asked last."""
        return bool(self._away_ms)

    def entries(self) -> dict[int, SharedQueueEntry]:
        """By queue id, as they are now. O(queues)."""
        with self._lock:
            return dict(self._entries)

    def entry(self, queue_id: int) -> SharedQueueEntry | None:
        return self._entries.get(queue_id)

    def is_active(self, queue_id: int) -> bool:
        """Whether consumers of this node get the messages of a queue with a single active consumer."""
        entry = self._entries.get(queue_id)
        return entry is not None and bool(entry.station.active)

    def is_ending(self, vhost: str, name: str) -> bool:
        """Whether the engine is still to be told that a queue was deleted here."""
        return (vhost, name) in self._ending

    @property
    def stopping(self) -> bool:
        return self._stopping

    def give_back_all(self) -> None:
        """This node is drained: stations that hold something look again, and give back what no client has."""
        for entry in self.entries().values():
            if entry.station.holds:
                self.look(entry)

    def holds(self) -> int:
        """Leases and publishes that stations still have. O(queues)."""
        return sum(entry.station.holds for entry in self.entries().values())

    def ask(self, run: Callable[[], object], done: Done) -> None:
        """Runs a request to the engine on a worker. `done` on any thread; errors: PeerError, 541: the engine does not answer in time."""
        self._begin()
        self._give(_Task(run, lambda result, error: done(result, _refusal(error))))

    def pause(self, seconds: float) -> None:
        """Waits so long, or until the broker stops."""
        self._stopped.wait(seconds)

    def look(self, entry: SharedQueueEntry) -> None:
        """Its station asks the engine what became of it."""
        entry.station.look_again()
        self.schedule(entry)

    # --- what waits for a worker ------------------------------------------------------------------------------------

    def schedule(self, entry: SharedQueueEntry) -> None:
        """The station has something to do. One that failed has its turn when its pause is over."""
        with self._lock:
            if not entry.scheduled and not self._stopping:
                entry.scheduled = True
                if not entry.running:
                    self._due.append(entry)
                    self._lock.notify()

    def _give(self, task: _Task) -> None:
        with self._lock:
            if not self._stopping:
                self._due.append(task)
                self._lock.notify()
                return
        task.done(None, Unavailable("the broker stops"))

    def _put_off(self, thing: SharedQueueEntry | _Task, delay_ms: int) -> None:
        """Under the lock."""
        heapq.heappush(self._later, (time.monotonic() + delay_ms / 1000, next(self._numbers), thing))
        self._lock.notify()

    def _next(self) -> SharedQueueEntry | _Task | None:
        """The next piece of work; None: the broker stops."""
        with self._lock:
            while not self._stopping:
                now = time.monotonic()
                while self._later and self._later[0][0] <= now:
                    self._due.append(heapq.heappop(self._later)[2])
                if self._due and self._away_until <= now:
                    thing = self._due.popleft()
                    if isinstance(thing, SharedQueueEntry):
                        thing.scheduled, thing.running = False, True
                    return thing
                until = now + self.limits.shared_poll_ms / 1000
                if self._due:
                    until = self._away_until
                elif self._later:
                    until = min(until, self._later[0][0])
                self._lock.wait(max(0.001, until - now))
        return None

    def _work(self) -> None:
        while (thing := self._next()) is not None:
            if isinstance(thing, _Task):
                self._run(thing)
            else:
                self._step(thing)

    def _run(self, task: _Task) -> None:
        result, failure = None, None
        try:
            result = task.run()
        except _Wait:
            with self._lock:
                self._put_off(task, self.limits.shared_pause_ms)
            return
        except Exception as error:
            failure = error
            away = isinstance(error, Unavailable | UnknownOutcome)
            if away and not isinstance(error, Contended):
                self._engine_failed(error)
            late = time.monotonic() - task.since > self.limits.shared_waiting_ms_max / 1000
            if task.lasting or (away and not late):
                if not away:
                    caught("shared queues", "a deleted queue", error)
                with self._lock:
                    self._put_off(task, self.limits.shared_pause_ms_max if task.lasting else self.limits.shared_pause_ms)
                return
        guarded("shared queues", "a request to the engine", task.done, result, failure)

    def _step(self, entry: SharedQueueEntry) -> None:
        is_more, failed, failures = False, True, self.failures
        owner = entry.station.owner
        if self._away_ms:
            entry.station.look_again()  # or a step with nothing to do, which asks nobody, would count as an answer
        try:
            is_more = entry.station.step()
            failed = False
            self._engine_answered(failures)
        except Fenced:
            failed = not guarded("shared queues", "a new life of this node", self._reborn, owner)
            is_more = True
        except Contended:
            with self._lock:
                self.contended += 1  # the queue waits by itself: a tenant whose nodes fight for one stops no other
        except (Unavailable, UnknownOutcome) as error:
            self._engine_failed(error)
        except Exception as error:
            entry.failure = str(error)
            caught("shared queues", f"queue {entry.name!r} in vhost {entry.vhost!r}", error)
        with self._lock:
            entry.running = False
            if self._stopping or entry.queue_id not in self._entries:
                return
            if failed:
                limits = self.limits
                entry.delay_ms = min(limits.shared_pause_ms_max, entry.delay_ms * 2 or limits.shared_pause_ms)
                entry.scheduled = True
                self._put_off(entry, entry.delay_ms)
                return
            entry.delay_ms, entry.failure = 0, ""
            if is_more or entry.scheduled:
                entry.scheduled = True
                self._due.append(entry)
                self._lock.notify()

    def _engine_failed(self, error: Exception) -> None:
        limits = self.limits
        with self._lock:
            first = not self._away_ms
            self.failures += 1
            self._away_ms = min(limits.shared_pause_ms_max, self._away_ms * 2 or limits.shared_pause_ms)
            self._away_until = time.monotonic() + self._away_ms / 1000
        if first:
            log.warning("the engine of shared queues does not answer: %s. Shared queues wait; other queues go on", error)

    def _engine_answered(self, failures: int) -> None:
        """Args: failures: when it was asked. What began before the last one says nothing."""
        if not self._away_ms:
            return
        with self._lock:
            if not self._away_ms or self.failures != failures:
                return
            self._away_ms, self._away_until = 0, 0.0
            self._lock.notify_all()
        log.info("the engine of shared queues answers again")

    # --- threads ----------------------------------------------------------------------------------------------------

    def _hand_out(self) -> None:
        while not self._stopping:
            self._port.wait(self.limits.shared_poll_ms / 1000)
            guarded("shared queues", "the line of publishes and settlements", self._hand_out_some)

    def _hand_out_some(self) -> None:
        while items := self._port.take(_ITEMS_AT_ONCE):
            for queue_id, message, receipt, position, expires_at_ms, lane, size, _ in items:
                entry = self._entries.get(queue_id)
                if message is None:
                    if entry is not None:
                        entry.station.end(position)
                    continue
                level = message[5]
                waiting = Waiting(Message(pack_message(*message), expires_at_ms, level), (lane, receipt), size)
                if entry is None:
                    self._port.leave(lane, size)
                if entry is None or not self._wait(entry, waiting):
                    self.state.counters.drop("refused")
                    self._port.answer([receipt], False)
        if self._port.take_lost():
            self._ends_lost()

    def _ends_lost(self) -> None:
        """Memory was short, and what clients settled did not reach the stations: this node begins anew, and all that it has comes back."""
        owners = self._owners
        if owners is not None:
            log.error("settlements of shared queues found no memory: this node's leases go back, and what was settled may come twice")
            self._reborn(owners.owner)

    def answer(self, waiting: list[Waiting], taken: bool) -> None:
        """What became of publishes. Any thread."""
        receipts: list[int] = []
        for one in waiting:
            lane, receiver = one.receiver
            self._port.leave(lane, one.size)
            if isinstance(receiver, int):
                receipts.append(receiver)
            else:
                guarded("shared queues", "whoever published", receiver, taken)
        if not taken:
            self.state.counters.drop("refused", len(waiting))
        if receipts:
            self._port.answer(receipts, taken)

    def _reborn(self, owner: bytes) -> None:
        """A life of this node is over: the next one begins, once. Raises: EngineError."""
        with self._opening:
            if self._owners is not None and self._owners.owner == owner:
                log.warning("this node's life %s is over, and others have its messages: it begins anew", owner.hex())
                self._owners.register()
                self.lives += 1

    def gone(self, entry: SharedQueueEntry) -> None:
        """Another node deleted it: it is deleted here, too."""
        entry.ended = True
        vhost = self.state.vhosts.get(entry.vhost)
        if vhost is not None and not self._stopping:
            queue = vhost.queues.get(entry.name)
            if queue is not None and queue.queue_id == entry.queue_id:
                log.info("shared queue %r in vhost %r was deleted on another node", entry.name, entry.vhost)
                self.state.loops.call_home(partial(_remove, vhost, queue))

    def _beat(self) -> None:
        """Signs of life, and nothing else (V4)."""
        owners = self._owners
        assert owners is not None
        beat_s = min(self.limits.shared_lease_ms / 4, self.limits.shared_poll_ms) / 1000
        while not self._stopped.wait(beat_s):
            owner = owners.owner
            try:
                owners.beat()
            except Fenced:
                guarded("shared queues", "a new life of this node", self._reborn, owner)
            except EngineError as error:
                log.debug("no sign of life: %s", error)

    def _look(self) -> None:
        """Nodes that give no sign of life, and rows of deleted queues."""
        engine, owners = self._engine, self._owners
        assert engine is not None and owners is not None
        while not self._stopped.wait(self.limits.shared_poll_ms / 1000):
            try:
                returned = owners.look()
                if returned:
                    log.info("%d messages of nodes that are gone are ready again", returned)
                for _ in range(_SLICES_AT_ONCE):
                    if self._stopping or not (clear_doomed(engine) or end_deleted(engine)):
                        break
            except EngineError as error:
                log.debug("other nodes were not looked at: %s", error)
            except Exception as error:
                caught("shared queues", "a look at other nodes", error)

    def _tick(self) -> None:
        """Work that waited for too long, and a slow look at some queues."""
        while not self._stopped.wait(self.limits.shared_poll_ms / 1000):
            with self._lock:
                entries = list(self._entries.values())
                late = self._take_late()
            for task in late:
                guarded("shared queues", "a request", task.done, None, Unavailable("the engine of shared queues does not answer"))
            for entry in entries:
                guarded("shared queues", f"queue {entry.name!r}", entry.station.refuse_late)
            guarded("shared queues", "dead letters", self.letters.look)
            guarded("shared queues", "bindings", self.definitions.refuse_late)
            count = min(self.limits.shared_polls, len(entries))
            for number in range(count):
                entry = entries[(self._turn + number) % len(entries)]
                entry.station.look_again()
                self.schedule(entry)
            self._turn += count

    def _take_late(self) -> list[_Task]:
        """Tasks that waited for too long while no worker has them. Under the lock."""
        since = time.monotonic() - self.limits.shared_waiting_ms_max / 1000
        late = [one for one in self._due if isinstance(one, _Task) and not one.lasting and one.since < since]
        late += [one for _, _, one in self._later if isinstance(one, _Task) and not one.lasting and one.since < since]
        if late:
            gone = set(map(id, late))
            self._due = collections.deque(one for one in self._due if id(one) not in gone)
            self._later = [one for one in self._later if id(one[2]) not in gone]
            heapq.heapify(self._later)
        return late


def _remove(vhost: Any, queue: Any) -> None:
    vhost.remove_by_itself(queue, lambda: True)
