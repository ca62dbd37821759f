"""The shared queues of this node (docs/adr/0015): what sessions, management and the broker's services ask of them.

in: declarations, deletions, publishes of the broker's own, consumers that come and go. out: answers, when the engine, or the node that owns
the queue, gave its own; in between the asker goes on.

W1  A declaration is answered when the engine has the queue and it has an owner; a deletion when the engine has no row of it.
W2  Deliveries of a queue rest until the engine knows that somebody consumes (R6), so that whoever takes over flags what was delivered.
W3  Nobody but the engine's thread waits for the engine.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from flintmq.broker.closing import close_one
from flintmq.broker.cores import refuses_over
from flintmq.broker.pausing import LETTERS, QUIET
from flintmq.broker.shared_letters import SharedLetters
from flintmq.cluster.engine_thread import EngineThread
from flintmq.cluster.entries import Entry, OnOutcome
from flintmq.cluster.link import LinkLost
from flintmq.cluster.node_answers import Answer, Answerer, Answering, NodeRefused
from flintmq.cluster.node_requests import NodeRequests
from flintmq.cluster.others import OtherNodes
from flintmq.cluster.ownership import Ownership
from flintmq.cluster.remote_queue import is_not_owned
from flintmq.cluster.remote_windows import RemoteConsumer, RemoteGet, Wish
from flintmq.cluster.set_calls import SetCalls
from flintmq.cluster.slices import Slices
from flintmq.cluster.transactions import Bound, Outcome, Transactions
from flintmq.engines.engine import EngineError, Unavailable
from flintmq.errors import PeerError, ReplyCode
from flintmq.guard import caught, guarded
from flintmq.mirror.mirror import MirrorPort
from flintmq.queue.handoff import WAITING_BYTES, SharedPort
from flintmq.shared import queue_rows
from flintmq.shared.layout import Owner, owner_key
from flintmq.shared.node_secret import NodeId
from flintmq.shared.nodes import Nodes
from flintmq.shared.queue_log import Lost, QueueLog
from flintmq.shared.queue_rows import NotThere, QueueRow
from flintmq.shared.serving import Served
from flintmq.shared.transaction_commits import Changes
from flintmq.shared.transaction_rows import Message as shared_message
from flintmq.vhost.equivalence import check_arguments
from flintmq.vhost.names import describe
from flintmq.vhost.policy import parse_queue_arguments
from flintmq.vhost.stream_arguments import check_lasting_properties

if TYPE_CHECKING:
    from flintmq.broker.dead_letters import DeadLetters
    from flintmq.broker.pausing import Pauses
    from flintmq.broker.records import Consumer
    from flintmq.broker.state import Message, NodeState
    from flintmq.core.content_view import ContentView
    from flintmq.queue.control import QueueHandle
    from flintmq.queue.due_index import DueIndex
    from flintmq.vhost.queue import QueueSpec

log = logging.getLogger("flintmq.shared")

Done = Callable[[Any, Exception | None], object]
# outcome, what is to be called when its deliveries have ended, and whatever the client is told in the place of commit-ok
OnCommitted = Callable[[Outcome, Callable[[], object], PeerError | None], object]


class Work(Protocol):
    """What a transaction does: messages: (queue id, message, expires_at_ms) in their order; ends: (queue id, position) of deliveries of
    queues that this node serves."""

    @property
    def messages(self) -> Iterable[tuple[int, Message, int]]: ...
    @property
    def ends(self) -> Iterable[tuple[int, int]]: ...


def _refusal(error: Exception | None) -> Exception | None:
    """What a client is told of an error."""
    if error is None or isinstance(error, PeerError):
        return error
    if isinstance(error, LinkLost):
        return PeerError(ReplyCode.INTERNAL_ERROR, "the node that owns the queue does not answer")
    if not isinstance(error, EngineError):
        log.error("internal error: a request to the engine of shared queues failed", exc_info=error)
    return PeerError(ReplyCode.INTERNAL_ERROR, "the engine of shared queues does not answer")


def _not_committed() -> PeerError:
    return PeerError(ReplyCode.INTERNAL_ERROR, "the transaction is not committed: the broker stops")


def _nobody() -> None:
    """No delivery ends."""


async def _nothing(*_: Any) -> None:
    """Definitions are this node's alone."""


class SharedQueues:
    """Any thread. Args: url: of the engine; logs: the store's log port; index: of queues in which something is due; name: of this node
    among those of the engine.

    Raises: ValueError: no such engine."""

    def __init__(
        self, state: NodeState, dead_letters: DeadLetters, pauses: Pauses, url: str, logs: Any, index: DueIndex, name: str
    ) -> None:
        self.state = state
        self.limits = limits = state.limits
        self._pauses = pauses
        self.thread = EngineThread(url, limits)
        engine = self.thread.engine
        waiting = (limits.shared_waiting_bytes_max, limits.shared_vhost_waiting_bytes_max)
        self._port = MirrorPort(limits.shared_hot_bytes, *waiting, logs)
        nodes = Nodes(engine, name, {}, limits)
        self.me = NodeId(nodes.name, nodes.life)
        self.ownership = Ownership(state, pauses, engine, index, self._port, self.me)
        self.ownership.on_served, self.ownership.on_lost = self._served, self._lost
        self.others = None if engine.limits.alone else OtherNodes(state, engine, nodes, logs, self._resolve)
        self.ownership.others = self.others
        self.sets = SetCalls(self.thread, state, self.me.name, self._queue_of, limits)
        self.transactions = Transactions(self.thread, self.me, limits, self._is_deleted)
        self.requests: NodeRequests | None = None
        self.publishers_wait = False  # the engine is nearly full
        self.ownership.holders = [self.transactions, self.sets]
        if self.others is not None:
            self.sets.others = self.transactions.others = NodeRequests(self.others.links, limits, self.ownership.address)
            self.transactions.is_gone = nodes.is_over
            self.requests = self.sets.others
            answers = {**self.sets.answers(), **self.transactions.answers(), "http.call": self._answer_call}
            self.others.vhost.answering = Answering(self.thread, answers, limits)
        self.letters = SharedLetters(state, dead_letters, SharedPort(logs, *waiting) if self.others is None else self.others.remote.port)
        self.letters.on_full = lambda queue, full: pauses.rest(queue, LETTERS, full)
        self._lock = threading.Lock()  # of the next four
        self._entries: dict[int, Entry] = {}
        self._names: dict[tuple[str, str], Entry] = {}
        self._declared: dict[tuple[str, str], tuple[QueueRow, bool]] = {}  # in the engine, for a declaration that follows; made by it
        self._ending: dict[tuple[str, str], int] = {}  # deleted queues of which the engine was not told yet
        self._begun = False
        self.on_call: Answerer | None = None  # calls over HTTP that other nodes were asked for
        self._counts_s, self._counts = 0.0, 0  # owners that were asked for counts since then; threads may miss each other's
        self.where: Callable[[], Mapping[str, str]] = dict  # service -> host:port, once the listeners are open
        # of definitions that follow the engine (following.Following)
        self.told_vhost: Callable[[str], Coroutine[Any, Any, None]] = _nothing
        self.close_definitions: Callable[[], Coroutine[Any, Any, None]] = _nothing
        self.refused: Callable[[], int] = int
        self.member: Any = None

    # --- life -----------------------------------------------------------------------------------------------------------

    @property
    def is_alone(self) -> bool:
        """Whether no other node opens the engine."""
        return self.others is None

    @property
    def identity(self) -> str:
        """Of the engine, the same on all of its nodes; "": it was not heard of yet, or is this node's alone."""
        return "" if self.others is None else self.others.identity

    def _begin(self) -> None:
        self.thread.start()
        if not self._begun:
            self._begun = True
            self.thread.call(self._follow_mirrors)

    def _follow_mirrors(self) -> None:
        self.ownership.serving.follow()
        if self.others is None:
            self.ownership.ready.set()
        self._tick()

    def _tick(self) -> None:
        """Dead letters that wait: on the engine's thread, since nobody waits there for a loop."""
        if not self.ownership.stopping:
            guarded("shared queues", "dead letters", self.letters.look)
            asyncio.get_running_loop().call_later(self.limits.shared_poll_ms / 1000, self._tick)

    def follow(self) -> None:
        """All is restored, the listeners are open, and no client is let in yet. The queues of an engine that is this node's alone are
        served when this returns, as far as it answers within `shared_waiting_ms_max`."""
        if self.others is not None:
            self._begin()
            self.thread.call(self.others.start, self.ownership, dict(self.where()))
            if self.member is not None:
                self.member.room.on_low = self._rest
                self.thread.call(self.member.start)
            return
        with self._lock:
            entries = list(self._entries.values())
        answers = threading.Semaphore(0)
        for entry in entries:
            self.when_served(entry.queue_id, lambda error: answers.release())
        until_s = time.monotonic() + self.limits.shared_waiting_ms_max / 1000
        for _ in entries:
            answers.acquire(timeout=max(0.0, until_s - time.monotonic()))

    def _rest(self, level: int) -> None:
        """The engine's room (room.Room.level)."""
        self.publishers_wait = level > 0
        self._port.rest(level)
        if self.others is not None:
            self.others.remote.port.hold_up(level > 0)
        self.transactions.rests = level > 1

    def stop(self) -> None:
        """Nobody publishes or consumes any more: what the queues have goes to the engine, as far as it answers. Idempotent."""
        self.thread.stop(self._leave, self.limits.shutdown_ms_max / 1000)
        with self._lock:
            entries = list(self._entries.values())
        for entry in entries:
            served = entry.served
            if served is not None:
                entry.tell(served.mirror)

    async def _leave(self) -> None:
        try:
            await self.close_definitions()
            if self.member is not None:
                self.member.stop()
            self.transactions.close()
            await self.ownership.leave()
        finally:
            if self.others is not None:
                await self.others.stop()

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
        key, engine = (vhost, name), self.thread.engine
        while self._ending.get(key):
            await asyncio.sleep(self.limits.shared_pause_ms / 1000)
        await self.told_vhost(vhost)
        row, made = await queue_rows.declare(engine, vhost, name, arguments)
        if not made and self.is_alone and self._named(vhost, name) is None:
            # Its definition went with a virtual host, or just before a crash.
            await queue_rows.remove(engine, vhost, name, row)
            row, made = await queue_rows.declare(engine, vhost, name, arguments)
        check_arguments(describe("queue", name, vhost), row.arguments, arguments)
        with self._lock:
            known = self._named(vhost, name)
            if known is None:
                self._declared[key] = row, made
                if made:
                    asyncio.get_running_loop().call_later(2 * self.limits.shared_waiting_ms_max / 1000, self._take_back, key, row)
            elif made:  # this node has followed its own row
                known.is_declared_here = True
                self.ownership.look(known)

    def _take_back(self, key: tuple[str, str], row: QueueRow) -> None:
        """A queue that this node made in the engine, and could not declare afterwards, is no queue."""
        with self._lock:
            if self._declared.get(key, (None, False))[0] is not row:
                return
            del self._declared[key]
        self.thread.run(partial(queue_rows.remove, self.thread.engine, *key, row), _ended)

    def _named(self, vhost: str, name: str) -> Entry | None:
        return self._names.get((vhost, name))

    def expect(self, vhost: str, name: str, row: QueueRow) -> None:
        """A queue that another node declared is declared here next. Any thread."""
        with self._lock:
            self._declared.setdefault((vhost, name), (row, False))

    def know(self, vhost: str, name: str, row: QueueRow) -> None:
        """The row of a queue that is here, also of one that was restored. On the engine's thread."""
        entry = self._named(vhost, name)
        if entry is not None and entry.row is None:
            entry.row = row
            self.ownership.look(entry)

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
        """The core of a declared or restored queue, until it has an owner. Raises: PeerError 406."""
        if anew:
            self.check_limits(spec.vhost, spec.name)
        entry = Entry(queue_id, spec)
        with self._lock:
            entry.row, entry.is_declared_here = self._declared.pop((spec.vhost, spec.name), (None, False))
            self._entries[queue_id] = self._names[spec.vhost, spec.name] = entry
        return self.ownership.away(entry)

    def created(self, queue: Any) -> None:
        """A queue of `new_core` is declared. Under its virtual host's lock."""
        entry = self._entries[queue.queue_id]
        entry.queue = queue
        queue.owned_elsewhere = True
        self._pauses.rest(queue, QUIET, True)
        self._begin()
        self.thread.call(self.ownership.look, entry)

    def is_served(self, queue_id: int) -> bool:
        """Whether a queue has an owner now, or there is none."""
        entry = self._entries.get(queue_id)
        return entry is None or entry.served is not None or self._is_aimed(entry)

    def _is_aimed(self, entry: Entry) -> bool:
        others, row = self.others, entry.row
        return entry.forwards and others is not None and row is not None and others.remote.owner(row.id) is not None

    def owner_text(self, queue_id: int) -> str:
        """The node that owns a queue which is a window here, and its address, for refusals."""
        entry, others = self._entries.get(queue_id), self.others
        owner = None if entry is None or entry.row is None or others is None else others.remote.owner(entry.row.id)
        return "another node" if owner is None else f"node {owner.id.name!r} at {owner.host}:{owner.port}"

    def when_served(self, queue_id: int, done: Callable[[Exception | None], object]) -> None:
        """`done` is called once, on any thread, when a queue has an owner; PeerError 541: not within `shared_waiting_ms_max`."""
        entry = self._entries.get(queue_id)
        if entry is None or self.is_served(queue_id) or not self.thread.call(self._wait_served, entry, done):
            done(None)

    def _wait_served(self, entry: Entry, done: Callable[[Exception | None], object]) -> None:
        if self.is_served(entry.queue_id) or entry.ended:
            done(None)
            return
        patience_s = self.limits.shared_waiting_ms_max / 1000
        entry.waiting[done] = asyncio.get_running_loop().call_later(patience_s, self._refuse_waiting, entry, done)

    @staticmethod
    def _refuse_waiting(entry: Entry, done: Callable[[Exception | None], object]) -> None:
        if entry.waiting.pop(done, None) is not None:
            guarded("shared queues", f"queue {entry.name!r}", done, _refusal(EngineError()))

    def _served(self, entry: Entry) -> None:
        """This node serves a queue."""
        if self.state.consumers.get(entry.queue_id):
            self.want(entry.queue_id)

    def _lost(self, entry: Entry) -> None:
        """It serves it no more."""
        if self.others is not None and entry.row is not None:
            self.others.vhost.forget(entry.row.id.decode())

    def _queue_of(self, queue: bytes) -> Any:
        entry = self.ownership.by_row.get(queue)
        return None if entry is None else entry.queue

    def _is_deleted(self, queue: bytes) -> bool:
        entry = self.ownership.by_row.get(queue)
        return entry is None or entry.ended

    def _resolve(self, queue: bytes) -> Any:
        """For connections of other nodes: a queue that is served here. Any thread."""
        entry = self.ownership.by_row.get(queue)
        return None if entry is None or entry.served is None or entry.ended else entry.queue

    # --- consumers --------------------------------------------------------------------------------------------------------

    def forwards(self, queue_id: int) -> bool:
        """Whether the core of a queue is a window of what its owner has."""
        entry = self._entries.get(queue_id)
        return entry is not None and entry.forwards

    def want(self, queue_id: int) -> None:
        """A consumer came, or a get: its queue is opened (W2). Waits for nothing."""
        entry = self._entries.get(queue_id)
        if entry is not None and self.state.resting.get(queue_id, 0) & QUIET:
            self.thread.run(partial(self._open, entry, entry.served), _ended)

    def consume(self, consumer: Consumer, wish: tuple[str, int, bool, Mapping[str, Any]], done: Done) -> None:
        """A consumer at the owner of a queue that is a window here: `done(RemoteConsumer, None)` when it is there, or (None, PeerError), on
        the engine's thread. When it gets no more messages before `left`, its client is told to look for the owner. wish: see Wish."""
        self._at_owner(consumer.queue.queue_id, partial(self._consume, consumer, Wish(*wish), done, self._patience_s()), done)

    def _patience_s(self) -> float:
        """Until then an owner is looked for (monotonic)."""
        return time.monotonic() + self.limits.shared_waiting_ms_max / 1000

    def _asks_again(self, queue_id: int, error: Exception | None, until_s: float, retry: Callable[[], object]) -> bool:
        """Whether the owner is asked again: the queue is on its way to another one. Then the error is nobody's."""
        lost = isinstance(error, LinkLost) or (isinstance(error, PeerError) and is_not_owned(error))
        if not lost or time.monotonic() >= until_s or not self.forwards(queue_id):
            return False
        asyncio.get_running_loop().call_later(self.limits.shared_pause_ms / 1000, retry)
        return True

    def _consume(self, consumer: Consumer, wish: Wish, done: Done, until_s: float, remote: Any, row: bytes) -> None:
        made: list[RemoteConsumer] = []
        retry = partial(self._consume, consumer, wish, done, until_s, remote, row)

        def begun(error: Exception | None) -> None:
            if not self._asks_again(consumer.queue.queue_id, error, until_s, retry):
                done(made[0] if error is None else None, _refusal(error))

        made.append(remote.consume(row, wish, begun, partial(self._ended, consumer)))

    def _ended(self, consumer: Consumer, error: Exception) -> None:
        # A queue that was deleted has its consumers cancelled as soon as this node knows of it.
        asyncio.get_running_loop().call_later(self.limits.shared_poll_ms / 1000, self._close, consumer)

    def _close(self, consumer: Consumer) -> None:
        queue = consumer.queue
        if not queue.deleted:
            close_one(self.state, consumer.client, f"shared queue '{queue.name}' in vhost '{queue.vhost}' moved")

    def get(self, queue: Any, done: Callable[[RemoteGet | None, Exception | None], object]) -> None:
        """basic.get at the owner: `done` with what it came to (None: the queue is empty) on the engine's thread; `over` is to follow."""
        self._at_owner(queue.queue_id, partial(self._get, queue=queue, done=done, until_s=self._patience_s()), done)

    def _get(
        self, remote: Any, row: bytes, queue: Any, done: Callable[[RemoteGet | None, Exception | None], object], until_s: float
    ) -> None:
        retry = partial(self._get, remote, row, queue, done, until_s)

        def answered(got: RemoteGet | None, error: Exception | None) -> None:
            if not self._asks_again(queue.queue_id, error, until_s, retry):
                done(got, _refusal(error))

        remote.get(row, queue.vhost, answered)

    def counts(self, queue_id: int, done: Done, is_use: bool = False) -> None:
        """(ready messages, consumers) of a queue that is a window here. `done` on the engine's thread; errors: PeerError. is_use: x-expires
        counts anew."""
        self._at_owner(queue_id, lambda remote, row: remote.counts(row, lambda result, error: done(result, _refusal(error)), is_use), done)

    def last_counts(self, queue_id: int) -> tuple[int, int, str]:
        """(ready messages, consumers, owner's name) of a queue that is a window here, as its owner had them when it was asked last; asks
        again, `shared_poll_ms` after the last time at the earliest. Waits for nothing."""
        entry, now_s = self._entries.get(queue_id), time.monotonic()
        if entry is None or self.others is None or entry.row is None:
            return 0, 0, ""
        if now_s - entry.counted_s >= self.limits.shared_poll_ms / 1000 and self._may_count(now_s):
            entry.counted_s = now_s
            self.counts(queue_id, partial(self._counted, entry))
        owner = self.others.remote.owner(entry.row.id)
        return *entry.counts, "" if owner is None else owner.id.name

    def _may_count(self, now_s: float) -> bool:
        """Whether one more owner may be asked: cluster_counts_max in shared_poll_ms, however many look at lists of queues."""
        if now_s - self._counts_s >= self.limits.shared_poll_ms / 1000:
            self._counts_s, self._counts = now_s, 0
        self._counts += 1
        return self._counts <= self.limits.cluster_counts_max

    @staticmethod
    def _counted(entry: Entry, counts: tuple[int, int] | None, error: Exception | None) -> None:
        if counts is not None:
            entry.counts = counts

    def purge(self, queue_id: int, done: Callable[[int, Exception | None], None]) -> None:
        """Ends what is ready of a queue that is a window here. `done` on the engine's thread with the number of messages."""

        def answered(count: int | None, error: Exception | None) -> None:
            done(count or 0, _refusal(error))

        self._at_owner(queue_id, lambda remote, row: remote.purge(row, answered), lambda _, error: done(0, error))

    def ask_owner(self, queue_id: int, name: str, head: dict[str, Any], payload: bytes, done: Done) -> None:
        """A request (node_answers) to the node that owns a queue: `done((head, payload), None)`, on any thread; errors: EngineError, also
        of a queue that nobody else owns."""

        async def ask() -> Answer:
            entry = self._entries.get(queue_id)
            if entry is None or entry.row is None or self.requests is None:
                raise Unavailable("the queue is not known yet, or deleted")
            (value,) = await self.thread.engine.get([owner_key(entry.row.id)])
            owner = None if value is None else Owner.unpack(value)
            if owner is None or owner.node == self.me.name:
                raise Unavailable("the queue is on its way to another node")
            return await self.requests.ask(owner, name, head, payload)

        self.thread.run(ask, done, self.limits.shared_waiting_ms_max / 1000)

    def read_row(self, queue_id: int, position: int) -> Mapping[int, ContentView]:
        """The messages that stand in the engine in one row with a message which is not in memory here, by position; none: it can't be
        read. Waits for the engine, `shared_waiting_ms_max` at most: not for an event loop."""
        result: concurrent.futures.Future[Mapping[int, ContentView]] = concurrent.futures.Future()

        async def read() -> Mapping[int, ContentView]:
            entry = self._entries.get(queue_id)
            served = None if entry is None else entry.served
            row = None if served is None else await served.log.row_of(position)
            return {} if row is None or served is None else dict(served.mirror.views(row))

        self.thread.run(read, lambda views, error: result.set_result(views or {}), self.limits.shared_waiting_ms_max / 1000)
        return result.result()

    async def _answer_call(self, head: dict[str, Any], payload: bytes) -> Answer:
        if self.on_call is None:
            raise NodeRefused("NO_HTTP", "the node has no HTTP service")
        return await self.on_call(head, payload)

    def _at_owner(self, queue_id: int, ask: Callable[[Any, bytes], object], failed: Done) -> None:
        """Runs `ask(RemoteQueues, id)` on the engine's thread."""
        entry = self._entries.get(queue_id)
        row, others = None if entry is None else entry.row, self.others
        if row is None or others is None or not self.thread.call(ask, others.remote, row.id):
            failed(None, _refusal(EngineError()))

    def left(self, consumer: Consumer) -> None:
        """A consumer is off its core. Any thread."""
        if consumer.remote is not None:
            self.thread.call(consumer.remote.cancel)

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

    # --- messages of the broker's own -------------------------------------------------------------------------------------

    def publish(self, core: QueueHandle, message: Message, expires_at_ms: int, on_outcome: OnOutcome) -> bool:
        """`on_outcome` is called once, on any thread: whether the engine has the message. False: it does not take it; not called then."""
        entry = self._entries.get(core.queue_id)
        served = None if entry is None else entry.served
        if entry is not None and entry.forwards:
            return self._send(entry, core, message, on_outcome)
        if entry is None or served is None or not served.mirror.admits(len(message[3])):
            return False
        position = served.core.publish(*message, expires_at_ms)
        if not position:
            return False
        entry.expect(served.mirror, position, on_outcome)
        entry.tell(served.mirror if entry.served is not served else None)
        return True

    def _send(self, entry: Entry, core: QueueHandle, message: Message, on_outcome: OnOutcome) -> bool:
        assert self.others is not None
        remote, size = self.others.remote, sum(map(len, message[:4])) + WAITING_BYTES
        lane = remote.port.admit(core, size)
        return bool(lane) and self.thread.call(remote.publish, core.queue_id, message, (on_outcome, lane, size))

    def row_id(self, queue_id: int) -> bytes | None:
        """The id of a queue in the engine; None: it is deleted, or not known yet. Any thread."""
        entry = self._entries.get(queue_id)
        return None if entry is None or entry.ended or entry.row is None else entry.row.id

    # --- transactions -----------------------------------------------------------------------------------------------------

    def logs(self, queue_ids: Iterable[int]) -> dict[int, QueueLog]:
        """The logs of those queues that this node serves now: what a transaction's deliveries are of."""
        served = {number: entry.served for number in queue_ids if (entry := self._entries.get(number)) is not None}
        return {number: one.log for number, one in served.items() if one is not None}

    def commit(self, user: str, work: Work, logs: Mapping[int, QueueLog], done: OnCommitted) -> None:
        """A transaction of a client. Args: logs: of the queues of its ends, from before it was known that none of them is lost.

        `done(outcome, ended, error)` is called once, or twice (Transactions.commit), on any thread. After DECIDED the deliveries are to be
        ended here, and `ended()` is to be called then. Messages for a queue that is deleted go nowhere. Any thread.
        """

        def begun(_: Any, error: Exception | None) -> None:
            if error is not None:  # nothing of it was sent
                done(Outcome.REFUSED, _nobody, error if isinstance(error, PeerError) else _not_committed())

        self.thread.run(partial(self._commit, user, work, logs, done), begun)

    async def _commit(self, user: str, work: Work, logs: Mapping[int, QueueLog], done: OnCommitted) -> None:
        """Raises: PeerError: nothing of it was sent. O(messages), in slices."""
        slices = Slices()
        changes: dict[bytes, Changes] = {}
        bounds: dict[bytes, Bound] = {}
        of_queue: dict[int, Changes] = {}
        for number, message, expires_at_ms in work.messages:
            one = self._changes(number, changes, of_queue)
            if one is not None:
                one.messages.append(shared_message(*message, expires_at_ms))
            await slices.step()
        for number, position in work.ends:
            one = self._changes(number, changes, of_queue)
            if one is not None:
                one.ends.append(position)
                one.log = logs[number]
            await slices.step()
        for number, one in of_queue.items():
            entry = self._entries.get(number)
            if entry is not None and entry.row is not None and one.messages and refuses_over(entry.queue.policy):
                sizes = [len(message.body) for message in one.messages]
                bounds[entry.row.id] = Bound(entry.row.id, len(sizes), sum(sizes), sizes[-1])
        ending = [queue for queue, one in changes.items() if one.ends]

        def on_outcome(outcome: Outcome, transaction: bytes, error: PeerError | None) -> None:
            done(outcome, partial(self.thread.call, self.transactions.ended, transaction, ending) if ending else _nobody, error)

        self.transactions.commit(changes, list(bounds.values()), on_outcome, user)

    def _changes(self, number: int, changes: dict[bytes, Changes], of_queue: dict[int, Changes]) -> Changes | None:
        """What a transaction does in a queue; None: it is deleted. Raises: PeerError 541: this node does not know it yet, 406: too many."""
        one = of_queue.get(number)
        if one is None:
            entry = self._entries.get(number)
            if entry is None or entry.ended:
                return None
            if entry.row is None:
                raise PeerError(ReplyCode.INTERNAL_ERROR, "the transaction is not committed: a shared queue is not served yet")
            if len(changes) >= self.limits.shared_transaction_queues_max:
                text = f"a transaction has {self.limits.shared_transaction_queues_max} shared queues at most"
                raise PeerError(ReplyCode.PRECONDITION_FAILED, text)
            one = of_queue[number] = changes[entry.row.id] = Changes()
        return one

    def follow_policy(self, queue: Any) -> None:
        """The core was told; so is who publishes by other nodes."""
        entry = self._entries.get(queue.queue_id)
        if self.others is not None and entry is not None and entry.row is not None:
            self.others.vhost.routes_changed(entry.row.id.decode())

    # --- deletions --------------------------------------------------------------------------------------------------------

    def delete_in_engine(self, vhost: str, name: str, if_empty: bool, done: Done, if_unused: bool = False) -> None:
        """Deletes a queue in the engine, before it is deleted here. `done` on any thread; errors: PeerError 406 with `if_empty`: it is not;
        with `if_unused`: it has consumers at its owner; 541."""
        with self._lock:
            entry = self._named(vhost, name)
        if entry is None:
            done(None, None)
            return
        if entry.forwards and (if_empty or if_unused):

            def deleted(_: Any, error: Exception | None) -> None:
                entry.ended = error is None
                done(None, _refusal(error))

            self._at_owner(entry.queue_id, lambda remote, row: remote.delete(row, if_unused, if_empty, deleted), done)
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
            self.ownership.look(entry)
            raise
        if served is not None:
            self.ownership.serving.give_up(served.queue)

    async def _remove(self, entry: Entry) -> None:
        engine = self.thread.engine
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
            if self._names.get(key) is entry:
                del self._names[key]
            if not entry.ended:
                self._ending[key] = self._ending.get(key, 0) + 1
                self.thread.run(partial(self._end, entry, key), _ended)
            else:
                self.thread.call(self.ownership.forget, entry)

    async def _end(self, entry: Entry, key: tuple[str, str]) -> None:
        entry.ended = True
        if entry.served is not None:
            self.ownership.serving.give_up(entry.served.queue)
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
        self.ownership.forget(entry)

    def _ask(self, work: Callable[[], Coroutine[Any, Any, Any]], done: Done) -> None:
        self.thread.run(work, lambda result, error: done(result, _refusal(error)), self.limits.shared_waiting_ms_max / 1000)

    # --- for people -------------------------------------------------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        """For people and metrics. O(queues)."""
        with self._lock:
            entries = list(self._entries.values())
        return {
            "engine": self.thread.engine.name,
            "answers": self.thread.engine.answers,
            "node": self.me.life,
            "queues": len(entries),
            "waiting_bytes": self._port.waiting_bytes(),
            "definitions_refused": self.refused(),
            **self.thread.engine.figures(),
        }


def _ended(result: Any, error: Exception | None) -> None:
    """Of work that nobody waits for."""
    if error is not None and not isinstance(error, EngineError):
        caught("shared queues", "the engine's thread", error)
