"""Histories of one shared queue: nodes that enqueue, take, settle, give back and are declared gone, each operation with its times.

in: an engine for each node, a seed. out: operations of one window, and what was left in the end, in the order of the queue.

W1  A window is a queue of its own: it begins with nothing, and ends with a node that takes all that is left.
W2  A node that is declared gone goes on for a while: what it says is part of the history.
W3  What an engine says did not happen is no operation; what it says nothing of is one without an answer.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from flintmq.config import Limits
from flintmq.kv.engine import EngineError, UnknownOutcome
from flintmq.shared.owners import Owners
from flintmq.shared.queue import RELAXED, STRICT, Fenced, Message, declare_queue
from flintmq.shared.staged import StagedQueue
from tools.linearizability.checker import UNKNOWN, Operation, Verdict, check
from tools.linearizability.queue_model import FENCED, QueueModel, swapped

LIMITS = Limits().replace(shared_inline_bytes=24, shared_chunk_bytes=16, shared_batch=40, shared_retry_ms=0)
# operations of a window, messages that wait in it at most: a long backlog of overlapping enqueues has many orders to try
WINDOW, BACKLOG = 200, 8
_ID_BYTES = 4
_TAKEN_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Code:
    """What is checked: the queue's classes, or those of a mutant."""

    declare_queue: Callable[..., Any] = declare_queue
    queue: type[StagedQueue] = StagedQueue
    owners: type[Owners] = Owners
    fenced: type[Exception] = Fenced


@dataclass(slots=True)
class Window:
    """How a window goes. ordered: order "strict"; staged: takes are the staged dequeue; deaths: nodes are declared gone; unknown: some
    operations do not ask what became of them; size: operations."""

    seed: int
    ordered: bool = True
    staged: bool = False
    deaths: bool = True
    unknown: bool = False
    nodes: int = 4
    size: int = WINDOW
    code: Code = field(default_factory=Code)


@dataclass(frozen=True, slots=True)
class Grave:
    """A node that is to be declared gone."""

    life: int
    owner: bytes


class Recorder:
    """The operations of a window. Any thread."""

    def __init__(self) -> None:
        self._clock = itertools.count(1)
        self._lock = threading.Lock()
        self.operations: list[Operation] = []

    def call(self, client: int, kind: str, arguments: tuple[Any, ...], action: Callable[[], Any], fenced: type[Exception]) -> Any:
        """Does it, and notes it. Raises: what `action` raises."""
        called = next(self._clock)
        in_parts = kind in ("fence", "sweep") or (kind == "take" and not arguments[2])  # several transactions: some may have happened
        try:
            outcome = action()
        except fenced:
            self.note(Operation(client, kind, arguments, UNKNOWN if in_parts else FENCED, called, next(self._clock)))
            raise
        except UnknownOutcome:
            self.note(Operation(client, kind, arguments, UNKNOWN, called, 0))
            raise
        except EngineError:
            if in_parts:
                self.note(Operation(client, kind, arguments, UNKNOWN, called, 0))
            raise
        self.note(Operation(client, kind, arguments, outcome, called, next(self._clock)))
        return outcome

    def note(self, operation: Operation) -> None:
        with self._lock:
            self.operations.append(operation)


class History:
    """One window. Args: engines: one for each node and one for the end; `patient`: operations wait for an engine that is away."""

    def __init__(self, window: Window, engines: Sequence[Any], name: str = "q") -> None:
        self.window = window
        self.engines = engines
        self.recorder = Recorder()
        self.order = STRICT if window.ordered else RELAXED
        self.keys = window.code.declare_queue(engines[-1], "/", name, self.order)
        self._ids = itertools.count(1)
        self._lives = itertools.count(1)
        self.victims: list[Grave] = []
        self.nodes = [Node(self, client) for client in range(window.nodes)]

    @property
    def is_over(self) -> bool:
        return len(self.recorder.operations) >= self.window.size

    def next_id(self) -> int:
        return next(self._ids)

    def next_life(self) -> int:
        return next(self._lives)

    def backlog(self) -> int:
        """Messages that were enqueued and not settled, about."""
        sent = sum(len(one.arguments[1]) for one in list(self.recorder.operations) if one.kind == "enqueue" and one.outcome != FENCED)
        return sent - sum(len(one.arguments[1]) for one in list(self.recorder.operations) if one.kind == "settle")

    def drain(self) -> list[int]:
        """Every node is declared gone, and one takes all that is left. Returns the ids in the order of the queue."""
        last = Node(self, self.window.nodes)
        for node in self.nodes:
            last.bury(Grave(node.life, node.owner))
        for grave in self.victims:
            last.bury(grave)
        if not self.window.unknown:  # who does not know what he did can't count it
            last.call("count", action=lambda: last.queue.read_counts().ready)
        left: list[int] = []
        for _ in range(self.window.size):  # a mutant may have one for ever
            taken = last.take(20, staged=False)
            if not taken:
                break
            left += taken
        last.settle_all()
        return left

    def check(self) -> Verdict:
        """Drains the queue, and looks for a linearization."""
        drained = self.drain()
        operations = self.recorder.operations
        verdict = check(QueueModel(self.window.ordered, operations), operations)
        if verdict.ok and (pairs := swapped(operations, drained)):
            return Verdict(False, True, verdict.states, (), pairs[0])
        return verdict


class Node:
    """A client of the queue with a node of its own."""

    def __init__(self, history: History, client: int) -> None:
        self.history = history
        self.client = client
        self.random = random.Random(history.window.seed * 100 + client)
        self.held: dict[int, Any] = {}
        self.engine = history.engines[client]
        self.begin_life()

    def begin_life(self) -> None:
        """A new node. An engine that is away is asked until it answers."""
        code = self.history.window.code
        self.held = {}
        self.life = self.history.next_life()
        while True:
            try:
                self.owners = code.owners(self.engine, LIMITS)
                self.owner = self.owners.register()
                self.owners.uses(self.history.keys.life)
                break
            except EngineError:
                continue
        self.queue = code.queue(self.engine, self.history.keys, self.owner, LIMITS, self.history.order)

    def call(self, kind: str, *arguments: Any, action: Callable[[], Any]) -> Any:
        return self.history.recorder.call(self.client, kind, (self.life, *arguments), action, self.history.window.code.fenced)

    # --- operations -------------------------------------------------------------------------------------------------

    def enqueue(self, count: int) -> None:
        ids = tuple(self.history.next_id() for _ in range(count))
        messages = [Message(one.to_bytes(_ID_BYTES, "big") + bytes(self.random.choice((0, 0, 0, 40)))) for one in ids]

        def action() -> None:
            self.queue.enqueue(messages)

        self.call("enqueue", ids, action=action)

    def take(self, count: int, staged: bool | None = None) -> list[int]:
        staged = self.history.window.staged if staged is None else staged

        def action() -> tuple[tuple[int, bool], ...]:
            taken = self.queue.take_staged(count) if staged else self.queue.take(count, _TAKEN_BYTES)[0]
            found = []
            for one in taken:
                message = int.from_bytes(self._content(one)[:_ID_BYTES], "big")
                found.append((message, one.meta.redelivered))
                self.held[message] = one
            return tuple(found)

        return [message for message, _ in self.call("take", count, not staged, action=action)]

    def _content(self, one: Any) -> bytes:
        while True:
            try:
                content: bytes = self.queue.load(one)
                return content
            except EngineError:
                continue

    def settle_all(self) -> None:
        if self.held:
            self.settle(tuple(sorted(self.held)))

    def settle(self, ids: tuple[int, ...]) -> None:
        done = [self.held.pop(message) for message in ids]
        self.call("settle", ids, action=lambda: self.queue.settle(done))

    def give_back(self, ids: tuple[int, ...]) -> None:
        pairs = tuple((message, self.random.random() < 0.5) for message in ids)
        back = [(self.held.pop(message), delivered) for message, delivered in pairs]
        self.call("give_back", pairs, action=lambda: self.queue.give_back(back))

    def bury(self, grave: Grave) -> None:
        """Declares a node gone, and gives back what it held. Tries again where the engine is away: a sweep that ends in the middle is ended
        by the next one."""
        life, owner = grave.life, grave.owner
        recorder, fenced = self.history.recorder, self.history.window.code.fenced
        while True:
            try:
                nodes = self.owners.nodes()
                if owner not in nodes:
                    return  # another one did it
                beat = nodes[owner][1]
                recorder.call(self.client, "fence", (life,), partial(self.owners.fence, owner, beat), fenced)
                recorder.call(self.client, "sweep", (life,), partial(self.owners.sweep, owner), fenced)
                return
            except EngineError:
                continue

    # --- a life -----------------------------------------------------------------------------------------------------

    def work(self) -> None:
        """Operations until the window is full."""
        code = self.history.window.code
        while not self.history.is_over:
            self.queue._patience_ms = 0 if self.history.window.unknown and self.random.random() < 0.3 else 15_000
            try:
                self.one_operation()
            except code.fenced:
                self.begin_life()
            except EngineError:
                continue

    def one_operation(self) -> None:
        victims, draw = self.history.victims, self.random.random()
        if self.history.window.deaths and victims and draw < 0.5:
            self.bury(victims.pop(0))
            return
        if self.history.window.deaths and draw > 0.97 and self.held:
            victims.append(Grave(self.life, self.owner))  # another one declares it gone while it goes on
        if draw < 0.35 and self.history.backlog() < BACKLOG:
            self.enqueue(self.random.choice((1, 1, 2, 3)))
        elif self.held and draw < 0.75:
            ids = tuple(sorted(self.random.sample(sorted(self.held), self.random.randint(1, len(self.held)))))
            if self.random.random() < 0.65:
                self.settle(ids)
            else:
                self.give_back(ids)
        elif draw > 0.985 and self.history.window.ordered:
            self.call("purge", 2, action=lambda: self.queue.purge_some(2))
        else:
            self.take(self.random.choice((1, 1, 2, 4)))
