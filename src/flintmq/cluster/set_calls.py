"""Sets of subscriptions on shared queues, as the nodes of a cluster call each other about them (docs/adr/0015, R9 and R10).

in: queues that this node serves, and loses; calls of the data plane about any queue. out: `QueueSets` of the queues served here; their
answers, or those of the node that serves the queue.

C1  A queue is asked where it is served: a call of another node is answered for queues served here alone, so that none goes round.
C2  A queue whose sets are not restored gives nothing to anybody: `begin` returns before it is shown to consumers.
C3  Whoever asks learns that a queue is deleted from the engine (it has no owner's row), never from a node.

All of it is of the engine's event loop, but `run`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import asdict
from typing import Any, Protocol

from flintmq.broker.exclusive import exclusive_use
from flintmq.broker.state import NodeState
from flintmq.cluster.engine_thread import Done, EngineThread
from flintmq.cluster.node_answers import Answer, Answerer, NodeRefused
from flintmq.config import Limits
from flintmq.engines.engine import EngineError, Unavailable
from flintmq.guard import caught
from flintmq.shared.batches import Asked, Entry, QueueSets, Refusal, Subscriptions, Why
from flintmq.shared.layout import Owner, owner_key
from flintmq.shared.queue_log import Lost
from flintmq.shared.serving import Served

log = logging.getLogger("flintmq.shared")

# exchange, routing key, content header payload, body
Content = tuple[bytes, bytes, bytes, bytes]


class Others(Protocol):
    """Requests to the nodes that serve queues (node_requests.py)."""

    async def ask(self, owner: Owner, name: str, head: dict[str, Any], payload: bytes = b"") -> Answer:
        """Raises: NodeRefused; Unavailable: it is not reached, or does not answer in time."""
        ...

    def close_idle(self) -> None:
        """Nobody asked for long."""
        ...


class Message:
    """A message of a set, for its reader. content: None: it can't be read any more."""

    __slots__ = ("content", "deliveries", "is_redelivered")

    def __init__(self, deliveries: int, is_redelivered: bool, content: Content | None) -> None:
        self.deliveries = deliveries
        self.is_redelivered = is_redelivered
        self.content = content


@contextlib.contextmanager
def _asked_again() -> Iterator[None]:
    """The next node that serves the queue answers."""
    try:
        yield
    except Lost as error:
        raise Unavailable(str(error)) from None


class SetCalls:
    """See module; an OwnerCalls. Args: name: of this node among owners; queue_of: id of a queue that is served here -> the control
    plane's queue.

    Attributes: subscriptions: of the engine; others: None: no other node can be asked."""

    def __init__(self, thread: EngineThread, state: NodeState, name: str, queue_of: Callable[[bytes], Any], limits: Limits) -> None:
        self.engine = thread.engine
        self.subscriptions = Subscriptions(thread.engine, self, limits, state.clock.wall_ms)
        self.others: Others | None = None
        self._thread = thread
        self._state = state
        self._name = name
        self._queue_of = queue_of
        self._limits = limits
        self._sets: dict[bytes, tuple[Served, QueueSets]] = {}
        self._looking = False

    def run(self, work: Callable[[], Coroutine[Any, Any, Any]], done: Done, timeout_s: float) -> None:
        """`EngineThread.run`, of an engine that nobody may have used so far. Any thread."""
        self._thread.start()
        self._thread.run(work, done, timeout_s)

    # --- queues of this node --------------------------------------------------------------------------------------------

    async def begin(self, served: Served) -> None:
        """Holds what sets have of a queue that is served from now on (C2). The caller bounds it by a timeout, and looks whether the queue
        was lost meanwhile. Raises: ValueError: a row of its sets can't be read."""
        known = self._sets.get(served.queue)
        if known is not None and known[0] is served:
            return
        sets = QueueSets(self.engine, served.queue, served.core, served.mirror, served.log, self._limits)
        while True:
            try:
                await sets.restore()
                break
            except EngineError:
                await asyncio.sleep(self._limits.shared_pause_ms / 1000)
        self._sets[served.queue] = served, sets
        self._begin_looks()
        self._thread.run(sets.look, _ended)

    def lost(self, queue: bytes) -> None:
        """This node serves the queue no more. Idempotent."""
        self._sets.pop(queue, None)

    def _begin_looks(self) -> None:
        if not self._looking:
            self._looking = True
            self._thread.run(self._look_on, _ended)

    async def _look_on(self) -> None:
        """What could not be ended when it was decided is ended now and then, as long as the node runs. Parts that are there cost one read
        each; a queue without parts costs nothing."""
        rounds = max(1, self._limits.shared_sets_sweep_ms // self._limits.shared_sets_look_ms)
        number = 0
        while True:
            await asyncio.sleep(self._limits.shared_sets_look_ms / 1000)
            for _, sets in list(self._sets.values()):
                await self._guarded(sets.look)
            if self.others is not None:
                self.others.close_idle()
            number += 1
            if number % rounds == 0:
                await self._guarded(self.subscriptions.sweep)

    @staticmethod
    async def _guarded(work: Callable[[], Awaitable[object]]) -> None:
        try:
            await work()
        except (EngineError, Lost) as error:
            log.debug("sets of shared queues wait: %s", error)
        except Exception as error:
            caught("shared queues", "sets of subscriptions", error)

    def _here(self, queue: str) -> QueueSets | None:
        known = self._sets.get(queue.encode())
        return None if known is None else known[1]

    # --- any queue ------------------------------------------------------------------------------------------------------

    async def take(self, queue: str, asked: Asked) -> tuple[int, int]:
        """See OwnerCalls. Raises: Refusal, IN_USE among them; EngineError."""
        if self._here(queue) is not None:
            return await self._take_here(queue, asked)
        head = {**asdict(asked), "subscription": asked.subscription.decode()}
        answer = await self._ask(queue, "sets.take", head)
        return (0, 0) if answer is None else (int(answer[0]["count"]), int(answer[0]["size"]))

    async def settle(self, queue: str, subscription: bytes) -> bool:
        """See OwnerCalls. Raises: EngineError."""
        if self._here(queue) is not None:
            return await self._settle_here(queue, subscription)
        answer = await self._ask(queue, "sets.settle", {"subscription": subscription.decode()})
        return answer is None or bool(answer[0]["settled"])

    async def counts(self, queue: str) -> tuple[int, int] | None:
        """Messages that nobody has, and bytes of their bodies; None: the queue is deleted. Raises: EngineError."""
        sets = self._here(queue)
        if sets is not None:
            return sets.counts()
        answer = await self._ask(queue, "sets.counts", {})
        return None if answer is None else (int(answer[0]["ready"]), int(answer[0]["bytes"]))

    async def read(self, queue: str, subscription: bytes, number: tuple[int, int], first: int, count: int, size: int) -> list[Message]:
        """`QueueSets.read` at the owner. Raises: Refusal CHANGED: also of a queue that is deleted; EngineError."""
        if self._here(queue) is not None:
            return [_message(entry) for entry in await self._read_here(queue, subscription, number, first, count, size)]
        asked = {"subscription": subscription.decode(), "number": list(number), "first": first, "count": count, "size": size}
        answer = await self._ask(queue, "sets.read", asked)
        if answer is None:
            raise Refusal(Why.CHANGED, "a queue of it is deleted")
        return _unpacked(*answer)

    async def _ask(self, queue: str, name: str, head: dict[str, Any]) -> Answer | None:
        """The answer of the node that serves a queue; None: it is deleted (C3). Raises: Refusal; EngineError."""
        (value,) = await self.engine.get([owner_key(queue.encode())])
        if value is None:
            return None
        owner = Owner.unpack(value)
        if self.others is None or owner.node == self._name:
            raise Unavailable(f"a shared queue is being taken over, or node {owner.node!r} serves it, which can't be asked")
        self._begin_looks()
        try:
            return await self.others.ask(owner, name, {"queue": queue, **head})
        except NodeRefused as refused:
            if refused.code in Why.__members__:
                raise Refusal(Why[refused.code], str(refused)) from None
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise Unavailable(f"node {owner.node!r} gave an answer that is none: {error}") from None

    # --- for this node and for others -----------------------------------------------------------------------------------

    async def _take_here(self, queue: str, asked: Asked) -> tuple[int, int]:
        sets, control = self._served(queue), self._queue_of(queue.encode())
        if control is not None:
            reason = exclusive_use(control)
            if reason:
                raise Refusal(Why.IN_USE, f"queue '{control.name}' in vhost '{control.vhost}' has {reason}")
            if control.queue_id in self._state.paused:
                return 0, 0
        with _asked_again():
            return await sets.take(asked)

    async def _settle_here(self, queue: str, subscription: bytes) -> bool:
        with _asked_again():
            return await self._served(queue).settle(subscription)

    async def _read_here(self, queue: str, subscription: bytes, number: tuple[int, int], first: int, count: int, size: int) -> list[Entry]:
        with _asked_again():
            return await self._served(queue).read(subscription, number, first, count, size)

    def _served(self, queue: str) -> QueueSets:
        sets = self._here(queue)
        if sets is None:
            raise Unavailable("the queue is not served here")
        return sets

    # --- answers to other nodes -----------------------------------------------------------------------------------------

    def answers(self) -> dict[str, Answerer]:
        """By the names of the requests. Each raises NodeRefused, EngineError, or KeyError, TypeError, ValueError: the head is none."""
        return {
            "sets.take": self._answer_take,
            "sets.settle": self._answer_settle,
            "sets.counts": self._answer_counts,
            "sets.read": self._answer_read,
        }

    async def _answer_take(self, head: dict[str, Any], payload: bytes) -> Answer:
        numbers = (int(head[name]) for name in ("seq", "round", "messages", "size", "now_ms"))
        with _told():
            count, size = await self._take_here(head["queue"], Asked(head["subscription"].encode(), *numbers))
        return {"count": count, "size": size}, b""

    async def _answer_settle(self, head: dict[str, Any], payload: bytes) -> Answer:
        return {"settled": await self._settle_here(head["queue"], head["subscription"].encode())}, b""

    async def _answer_counts(self, head: dict[str, Any], payload: bytes) -> Answer:
        ready, size = self._served(head["queue"]).counts()
        return {"ready": ready, "bytes": size}, b""

    async def _answer_read(self, head: dict[str, Any], payload: bytes) -> Answer:
        seq, number = head["number"]
        bounds = (int(head[name]) for name in ("first", "count", "size"))
        with _told():
            entries = await self._read_here(head["queue"], head["subscription"].encode(), (int(seq), int(number)), *bounds)
        return _packed(entries)


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """A refusal goes to the other node by its name."""
    try:
        yield
    except Refusal as refusal:
        raise NodeRefused(refusal.why.name, str(refusal)) from None


def _message(entry: Entry) -> Message:
    view = entry.content
    content = None if view is None else (view.exchange, view.routing_key, view.header, view.body())
    return Message(entry.deliveries, entry.is_redelivered, content)


def _packed(entries: list[Entry]) -> Answer:
    """The contents behind each other; of each message its numbers, and the bytes of its content's parts."""
    rows: list[list[Any]] = []
    parts: list[bytes] = []
    for entry in entries:
        one = _message(entry)
        content = one.content
        rows.append([one.deliveries, one.is_redelivered, None if content is None else [len(part) for part in content]])
        parts += content or ()
    return {"rows": rows}, b"".join(parts)


def _unpacked(head: dict[str, Any], payload: bytes) -> list[Message]:
    """Raises: Unavailable: it is none."""
    messages: list[Message] = []
    offset = 0
    try:
        for deliveries, is_redelivered, sizes in head["rows"]:
            content: Content | None = None
            if sizes is not None:
                first, second, third, fourth = (int(size) for size in sizes)
                ends = [offset + first, offset + first + second, offset + first + second + third, offset + first + second + third + fourth]
                content = payload[offset : ends[0]], payload[ends[0] : ends[1]], payload[ends[1] : ends[2]], payload[ends[2] : ends[3]]
                offset = ends[3]
            messages.append(Message(int(deliveries), bool(is_redelivered), content))
        if offset != len(payload):
            raise ValueError("its sizes are not those of its bytes")
    except (KeyError, TypeError, ValueError) as error:
        raise Unavailable(f"the owner of a shared queue gave messages that are none: {error}") from None
    return messages


def _ended(result: Any, error: Exception | None) -> None:
    """Of work that nobody waits for."""
    if error is not None and not isinstance(error, EngineError | Lost):
        caught("shared queues", "sets of subscriptions", error)
