"""The shared queues of this node: each is served by the ordinary queue core while this node owns it (docs/adr/0015).

in: declarations, deletions, publishes of the broker's own, consumers that come. out: cores of the queues with the messages that the engine
has; refusals while a queue is not served.

W1  A queue that is not served has a core that refuses publishes and has nothing to deliver. The core changes with the ownership.
W2  A declaration is answered when the engine has the queue and this node serves it; a deletion when the engine has no row of it.
W3  Deliveries of a queue rest until the engine knows that somebody consumes (R6), so that whoever takes over flags what was delivered.
W4  Nobody but the engine's thread waits for the engine. One queue that can't be served keeps none of the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import threading
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from flintmq.broker.closing import close_connections
from flintmq.broker.cores import configure, ordinary
from flintmq.broker.pausing import LETTERS, QUIET
from flintmq.broker.shared_letters import SharedLetters
from flintmq.cluster.engine_thread import EngineThread
from flintmq.cluster.entries import Entry, OnOutcome
from flintmq.cluster.set_calls import SetCalls
from flintmq.engines.engine import EngineError, Unavailable
from flintmq.errors import PeerError, ReplyCode
from flintmq.guard import caught, guarded
from flintmq.mirror.mirror import Mirror, MirrorPort
from flintmq.protocol.v0_9_1.death import queue_hash
from flintmq.queue.handoff import SharedPort
from flintmq.shared import queue_rows
from flintmq.shared.layout import Owner
from flintmq.shared.nodes import node_key
from flintmq.shared.queue_log import Lost
from flintmq.shared.queue_rows import NotThere, QueueRow
from flintmq.shared.serving import Condition, Served, Serving
from flintmq.vhost.equivalence import check_arguments
from flintmq.vhost.names import describe
from flintmq.vhost.policy import parse_queue_arguments
from flintmq.vhost.stream_arguments import check_lasting_properties

if TYPE_CHECKING:
    from flintmq.broker.dead_letters import DeadLetters
    from flintmq.broker.pausing import Pauses
    from flintmq.broker.state import Message, NodeState
    from flintmq.queue.control import QueueHandle
    from flintmq.queue.due_index import DueIndex
    from flintmq.vhost.queue import QueueSpec

log = logging.getLogger("flintmq.shared")

Done = Callable[[Any, Exception | None], object]
# takes-over under way at once, at a start with many queues
_AT_ONCE = 16


def _refusal(error: Exception | None) -> Exception | None:
    """What a client is told of an error."""
    if error is None or isinstance(error, PeerError):
        return error
    if not isinstance(error, EngineError):
        log.error("internal error: a request to the engine of shared queues failed", exc_info=error)
    return PeerError(ReplyCode.INTERNAL_ERROR, "the engine of shared queues does not answer")


class _NothingToTell:
    """Definitions are this node's alone."""

    refused = 0

    def waits(self, queue_id: int) -> bool:
        return False

    def when_told(self, queue_id: int, done: Done) -> None:
        done(None, None)


class SharedQueues:
    """Any thread. Args: url: of the engine; logs: the store's log port; index: of queues in which something is due.

    Raises: ValueError: no such engine."""

    by_owner = True

    def __init__(self, state: NodeState, dead_letters: DeadLetters, pauses: Pauses, url: str, logs: Any, index: DueIndex) -> None:
        self.state = state
        self.limits = limits = state.limits
        self._pauses = pauses
        self._index = index
        self._thread = EngineThread(url, limits)
        waiting = (limits.shared_waiting_bytes_max, limits.shared_vhost_waiting_bytes_max)
        self._port = MirrorPort(limits.shared_hot_bytes, *waiting, logs)
        self.letters = SharedLetters(state, dead_letters, SharedPort(logs, *waiting))
        self.letters.on_full = self._letters_full
        self.life = secrets.token_hex(8)
        engine = self._thread.engine
        self._serving = Serving(engine, state.node_name, self.life, self._port, self, limits)
        self.sets = SetCalls(self._thread, state, self._queue_of, limits)
        self._lock = threading.Lock()  # of the next three
        self._entries: dict[int, Entry] = {}
        self._declared: dict[tuple[str, str], QueueRow] = {}  # in the engine, for a declaration that follows
        self._ending: dict[tuple[str, str], int] = {}  # deleted queues of which the engine was not told yet
        self._by_row: dict[bytes, Entry] = {}  # of the engine's thread, as the next two
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._stopping = False
        self.definitions = _NothingToTell()
        self.member: Any = None
        self.identity = ""
        self.failures = 0

    # --- life -----------------------------------------------------------------------------------------------------------

    @property
    def is_alone(self) -> bool:
        """Whether no other node opens the engine."""
        return self._thread.engine.limits.alone

    def _begin(self) -> None:
        self._thread.start()
        self._thread.call(self._follow_mirrors)

    def _follow_mirrors(self) -> None:
        self._serving.follow()
        self._tick()

    def _tick(self) -> None:
        """Dead letters that wait: on the engine's thread, since nobody waits there for a loop."""
        if not self._stopping:
            guarded("shared queues", "dead letters", self.letters.look)
            asyncio.get_running_loop().call_later(self.limits.shared_poll_ms / 1000, self._tick)

    def follow(self) -> None:
        """All is restored, and no client is let in yet. The queues of an engine that is this node's alone are served when this returns,
        as far as it answers within `shared_waiting_ms_max`."""
        with self._lock:
            entries = list(self._entries.values())
        if not self.is_alone or not entries:
            return
        answers = threading.Semaphore(0)
        for entry in entries:
            self.when_served(entry.queue_id, lambda error: answers.release())
        for _ in entries:
            answers.acquire(timeout=self.limits.shared_waiting_ms_max / 1000)

    def stop(self) -> None:
        """Nobody publishes or consumes any more: what the queues have goes to the engine, as far as it answers. Idempotent."""
        self._thread.stop(self._leave, self.limits.shutdown_ms_max / 1000)
        with self._lock:
            entries = list(self._entries.values())
        for entry in entries:
            served = entry.served
            if served is not None:
                entry.tell(served.mirror)

    async def _leave(self) -> None:
        self._stopping = True
        try:
            served = self._serving.all()
            for begin in range(0, len(served), _AT_ONCE):
                await asyncio.gather(*(self._leave_one(one) for one in served[begin : begin + _AT_ONCE]), return_exceptions=True)
        finally:
            self._serving.close()

    async def _leave_one(self, served: Served) -> None:
        """Whoever serves the queue next knows exactly what was delivered."""
        await served.log.drain()
        if not served.log.is_quiet:
            await self._serving.hand_over(served.queue, self.state.node_name, "")

    # --- declarations -----------------------------------------------------------------------------------------------------

    def declare(self, vhost: Any, name: str, arguments: Mapping[str, Any], properties: Mapping[str, bool], done: Done) -> None:
        """Makes a queue in the engine that is declared here afterwards. `done` on any thread; errors: PeerError 406 it is there with other
        arguments, 541. Raises: PeerError 406; `done` is not called then."""
        where = vhost.describe("queue", name)
        parse_queue_arguments(arguments, where)
        check_lasting_properties(where, **properties)
        self.check_limits(vhost.name, name)
        self._begin()
        self._ask(partial(self._declare, vhost.name, name, dict(arguments)), done)

    async def _declare(self, vhost: str, name: str, arguments: Mapping[str, Any]) -> None:
        key, engine = (vhost, name), self._thread.engine
        while self._ending.get(key):
            await asyncio.sleep(self.limits.shared_pause_ms / 1000)
        row, made = await queue_rows.declare(engine, vhost, name, arguments, "")
        if not made and self.is_alone and self._named(vhost, name) is None:
            # Its definition went with a virtual host, or just before a crash.
            await queue_rows.remove(engine, vhost, name, row)
            row, _ = await queue_rows.declare(engine, vhost, name, arguments, "")
        check_arguments(describe("queue", name, vhost), row.arguments, arguments)
        with self._lock:
            if self._named(vhost, name) is None:
                self._declared[key] = row

    def _named(self, vhost: str, name: str) -> Entry | None:
        return next((entry for entry in self._entries.values() if entry.name == name and entry.vhost == vhost), None)

    def check_limits(self, vhost: str, name: str) -> None:
        """Whether there may be one more queue. Raises: PeerError 406."""
        with self._lock:
            whole = len(self._entries)
            there = sum(entry.vhost == vhost for entry in self._entries.values())
        for count, limit in ((whole, self.limits.shared_queues_max), (there, self.limits.shared_vhost_queues_max)):
            if count >= limit:
                text = f"cannot declare {describe('queue', name, vhost)}: shared queue limit ({limit}) is reached"
                raise PeerError(ReplyCode.PRECONDITION_FAILED, text)

    def new_core(self, queue_id: int, spec: QueueSpec, anew: bool) -> QueueHandle:
        """The core of a declared or restored queue, until this node serves it (W1). Raises: PeerError 406."""
        if anew:
            self.check_limits(spec.vhost, spec.name)
        entry = Entry(queue_id, spec)
        with self._lock:
            entry.row = self._declared.pop((spec.vhost, spec.name), None)
            self._entries[queue_id] = entry
        return self._away(entry)

    def _core(self, entry: Entry) -> QueueHandle:
        policy = entry.spec.policy if entry.queue is None else entry.queue.policy
        core = ordinary(entry.queue_id, entry.spec, None, self.limits, restored=True)
        configure(core, policy)
        core.watch(self._index)
        core.name_hash = queue_hash(entry.name.encode("utf-8", "surrogateescape"))
        return core

    def _away(self, entry: Entry) -> QueueHandle:
        core = self._core(entry)
        Mirror(core, self._port, entry.vhost).lose()
        return core

    def created(self, queue: Any) -> None:
        """A queue of `new_core` is declared. Under its virtual host's lock."""
        entry = self._entries[queue.queue_id]
        entry.queue = queue
        self._pauses.rest(queue, QUIET, True)
        self._begin()
        self._thread.run(partial(self._keep, entry), _ended)

    def is_served(self, queue_id: int) -> bool:
        """Whether this node serves a queue now, or there is none."""
        entry = self._entries.get(queue_id)
        return entry is None or entry.served is not None

    def when_served(self, queue_id: int, done: Callable[[Exception | None], object]) -> None:
        """`done` is called once, on any thread, when this node serves a queue; PeerError 541: not within `shared_waiting_ms_max`."""
        entry = self._entries.get(queue_id)
        if entry is None or entry.served is not None or not self._thread.call(self._wait_served, entry, done):
            done(None)

    def _wait_served(self, entry: Entry, done: Callable[[Exception | None], object]) -> None:
        if entry.served is not None or entry.ended:
            done(None)
            return
        entry.waiting.append(done)
        asyncio.get_running_loop().call_later(self.limits.shared_waiting_ms_max / 1000, self._refuse_waiting, entry, done)

    @staticmethod
    def _refuse_waiting(entry: Entry, done: Callable[[Exception | None], object]) -> None:
        if done in entry.waiting:
            entry.waiting.remove(done)
            guarded("shared queues", f"queue {entry.name!r}", done, _refusal(EngineError()))

    # --- ownership --------------------------------------------------------------------------------------------------------

    async def _keep(self, entry: Entry) -> None:
        """Until this node serves the queue, or it is deleted."""
        while not entry.ended and not self._stopping:
            try:
                async with self._turns:
                    await self._serve(entry)
                return
            except EngineError as error:
                self.failures += 1
                log.debug("shared queue %r in vhost %r is not served yet: %s", entry.name, entry.vhost, error)
            except Exception as error:
                caught("shared queues", f"queue {entry.name!r} in vhost {entry.vhost!r}", error)
            await asyncio.sleep(self.limits.shared_pause_ms_max / 1000)

    async def _serve(self, entry: Entry) -> None:
        if entry.row is None:
            entry.row, _ = await queue_rows.declare(self._thread.engine, entry.vhost, entry.name, entry.spec.arguments, "")
        self._by_row[entry.row.id] = entry
        served = await self._serving.serve(entry.row.id, entry.vhost, self._judge)
        await self._hold_sets(served)
        vhost, queue = self.state.vhosts.get(entry.vhost), entry.queue
        if entry.ended or vhost is None or not vhost.alter(queue, partial(self._fit, entry, served.core)):
            self._serving.give_up(served.queue)
            return
        entry.served = served
        log.debug("shared queue %r in vhost %r is served here, with %d messages", entry.name, entry.vhost, served.messages)
        waiting, entry.waiting = entry.waiting, []
        for done in waiting:
            guarded("shared queues", f"queue {entry.name!r}", done, None)
        if self.state.consumers.get(entry.queue_id):
            self.want(entry.queue_id)

    async def _hold_sets(self, served: Served) -> None:
        """What sets of subscriptions have is nobody else's. Raises: Unavailable: the queue was lost meanwhile."""
        await self.sets.begin(served)
        if self._serving.get(served.queue) is not served:
            self.sets.lost(served.queue)
            raise Unavailable("the queue was lost when it was taken over")

    def _queue_of(self, queue: bytes) -> Any:
        entry = self._by_row.get(queue)
        return None if entry is None else entry.queue

    @staticmethod
    def _fit(entry: Entry, core: QueueHandle) -> None:
        configure(core, entry.queue.policy)
        core.owner = entry.queue
        entry.queue.core = core

    def _judge(self, owner: Owner) -> Condition | None:
        return (node_key(owner.node), None) if self.is_alone else None

    def new_mirrored(self, queue: bytes) -> QueueHandle:
        """Host of `Serving`."""
        return self._core(self._by_row[queue])

    def settled(self, queue: bytes) -> None:
        """Host of `Serving`."""
        self._by_row[queue].tell()

    def lost(self, queue: bytes, reason: BaseException) -> None:
        """Host of `Serving`: this node serves a queue no more. Its messages, and what consumers of it hold, are others' now."""
        self.sets.lost(queue)
        entry = self._by_row[queue]
        served, entry.served = entry.served, None
        if served is not None:
            entry.tell(served.mirror)
        if entry.ended or self._stopping or served is None:
            return
        log.warning("shared queue %r in vhost %r is not served here any more: %s", entry.name, entry.vhost, reason)
        self._pauses.rest(entry.queue, QUIET, True)
        core, vhost = self._away(entry), self.state.vhosts.get(entry.vhost)
        if vhost is None or not vhost.alter(entry.queue, partial(self._fit, entry, core)):
            return
        self._close_consumers(entry)
        self._thread.run(partial(self._keep, entry), _ended)

    def _close_consumers(self, entry: Entry) -> None:
        """Clients find the queue's new owner by connecting again."""
        with self.state.lock:
            clients = {consumer.client for consumer in self.state.consumers.get(entry.queue_id, ())}
        if clients:
            close_connections(self.state, clients.__contains__, f"shared queue '{entry.name}' in vhost '{entry.vhost}' moved")

    # --- consumers --------------------------------------------------------------------------------------------------------

    def forwards(self, queue_id: int) -> bool:
        """Whether the core of a queue is a window of what others have."""
        return False

    def want(self, queue_id: int, *, gone: bool = False) -> None:
        """A consumer came, or a get: its queue is opened (W3). Waits for nothing."""
        entry = self._entries.get(queue_id)
        if entry is not None and not gone and queue_id in self.state.resting:
            self._thread.run(partial(self._open, entry, entry.served), _ended)

    def opened(self, queue_id: int, done: Done) -> None:
        """`done` is called once, on any thread, when deliveries of a queue rest for want of consumers no more; errors: PeerError 541."""

        async def open_it() -> None:
            entry = self._entries.get(queue_id)
            while entry is not None and not entry.ended and self.state.resting.get(queue_id, 0) & QUIET:
                await self._open(entry, entry.served)
                await asyncio.sleep(self.limits.shared_pause_ms / 1000 if self.state.resting.get(queue_id, 0) & QUIET else 0)

        self._ask(open_it, done)

    async def _open(self, entry: Entry, served: Served | None) -> None:
        if served is None or entry.opening or entry.served is not served:
            return
        entry.opening = True
        try:
            await served.log.open()
        except Lost:
            return
        finally:
            entry.opening = False
        if entry.served is served:
            self._pauses.rest(entry.queue, QUIET, False)

    def _letters_full(self, queue: Any, full: bool) -> None:
        self._pauses.rest(queue, LETTERS, full)

    # --- messages of the broker's own -------------------------------------------------------------------------------------

    def publish(self, core: QueueHandle, message: Message, expires_at_ms: int, on_outcome: OnOutcome) -> bool:
        """`on_outcome` is called once, on any thread: whether the engine has the message. False: it does not take it; not called then."""
        entry = self._entries.get(core.queue_id)
        served = None if entry is None else entry.served
        if entry is None or served is None or not served.mirror.admits(len(message[3])):
            return False
        position = served.core.publish(*message, expires_at_ms)
        if not position:
            return False
        entry.expect(served.mirror, position, on_outcome)
        entry.tell(served.mirror if entry.served is not served else None)
        return True

    def note_count(self, queue_id: int, position: int, count: int) -> None:
        """The mirror is told by the core."""

    def follow_policy(self, queue: Any) -> None:
        """The core was told."""

    def is_active(self, queue_id: int) -> bool:
        """Whether consumers of this node get the messages of a queue with a single active consumer."""
        return True

    # --- deletions --------------------------------------------------------------------------------------------------------

    def delete_in_engine(self, vhost: str, name: str, if_empty: bool, done: Done) -> None:
        """Deletes a queue in the engine, before it is deleted here. `done` on any thread; errors: PeerError 406 with `if_empty`: it is not;
        541."""
        with self._lock:
            entry = self._named(vhost, name)
        if entry is None:
            done(None, None)
            return
        self._ask(partial(self._delete, entry, if_empty), done)

    async def _delete(self, entry: Entry, if_empty: bool) -> None:
        served, core = entry.served, entry.queue.core
        if if_empty:
            core.hold_arrivals(True)
            if served is None or core.ready_count():
                core.hold_arrivals(False)
                raise PeerError(ReplyCode.PRECONDITION_FAILED, f"{describe('queue', entry.name, entry.vhost)} not empty")
        entry.ended = True
        try:
            await self._remove(entry)
        except BaseException:
            core.hold_arrivals(False)
            entry.ended = False
            if entry.served is None:
                self._thread.run(partial(self._keep, entry), _ended)
            raise
        if served is not None:
            self._serving.give_up(served.queue)

    async def _remove(self, entry: Entry) -> None:
        engine = self._thread.engine
        row = entry.row or await queue_rows.read(engine, entry.vhost, entry.name)
        if row is not None:
            with contextlib.suppress(NotThere):  # another node was faster
                await queue_rows.remove(engine, entry.vhost, entry.name, row)

    def delete(self, queue_id: int) -> None:
        """A queue is gone here, and for everybody. Waits for nothing."""
        with self._lock:
            entry = self._entries.pop(queue_id, None)
            if entry is None:
                return
            key = (entry.vhost, entry.name)
            if not entry.ended:
                self._ending[key] = self._ending.get(key, 0) + 1
                self._thread.run(partial(self._end, entry, key), _ended)
            else:
                self._thread.call(self._forget, entry)

    async def _end(self, entry: Entry, key: tuple[str, str]) -> None:
        entry.ended = True
        while True:
            try:
                await self._remove(entry)
                break
            except EngineError as error:
                log.debug("rows of a deleted shared queue stay for now: %s", error)
            except ValueError as error:
                caught("shared queues", "a deleted queue", error)
                break
            await asyncio.sleep(self.limits.shared_pause_ms_max / 1000)
        with self._lock:
            self._ending[key] -= 1
            if not self._ending[key]:
                del self._ending[key]
        self._forget(entry)

    def _forget(self, entry: Entry) -> None:
        if entry.row is not None:
            self._serving.give_up(entry.row.id)
            self._by_row.pop(entry.row.id, None)
        waiting, entry.waiting = entry.waiting, []
        for done in waiting:
            guarded("shared queues", f"queue {entry.name!r}", done, None)

    def _ask(self, work: Callable[[], Coroutine[Any, Any, Any]], done: Done) -> None:
        self._thread.run(work, lambda result, error: done(result, _refusal(error)), self.limits.shared_waiting_ms_max / 1000)

    # --- for people -------------------------------------------------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        """For people and metrics. O(queues)."""
        with self._lock:
            entries = list(self._entries.values())
        return {
            "engine": self._thread.engine.name,
            "answers": not any(entry.served is None for entry in entries),
            "node": self.life,
            "lives": 1,
            "queues": len(entries),
            "waiting_bytes": self._port.waiting_bytes(),
            "taken": 0,
            "settled": 0,
            "refused": 0,
            "returned": 0,
            "failures": self.failures,
            "contended": 0,
            "conflicts": 0,
            "definitions_refused": self.definitions.refused,
        }


def _ended(result: Any, error: Exception | None) -> None:
    """Of work that nobody waits for."""
    if error is not None and not isinstance(error, EngineError):
        caught("shared queues", "the engine's thread", error)
