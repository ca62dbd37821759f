"""The shared queues that this node serves: from taking one over to giving it up.

in: queues to serve; news of their mirrors. out: queues of the core with their messages, whose logs are written to the engine; word of those
that are lost.

S1  A queue is served by one log at a time: what is left of an earlier one has lost it before.
S2  A queue that is lost refuses publishes, and confirms of it are refused, before anybody is told.
S3  One queue whose rows can't be read keeps none of the others.

All of it is of the engine's event loop, which waits for nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from flintmq.config import Limits
from flintmq.engines.engine import Engine, EngineError
from flintmq.guard import guarded
from flintmq.mirror.mirror import Mirror, MirrorPort
from flintmq.queue.control import QueueHandle
from flintmq.shared.layout import Owner, owner_key
from flintmq.shared.queue_log import Lost, QueueLog
from flintmq.shared.taking_over import Taken, TakenOver, claim, restore

Condition = tuple[bytes, bytes | None]
# whether the owner of a queue is to be replaced, and by which row of its node that was judged; None: it serves the queue
Judge = Callable[[Owner], Condition | None]


class Host(Protocol):
    """Whoever has the queues (the broker)."""

    def new_mirrored(self, queue: bytes) -> QueueHandle:
        """A core for the queue's messages, empty, that nobody uses."""
        ...

    def settled(self, queue: bytes) -> None:
        """The engine has more of the queue's messages. On the engine's loop; must not wait."""
        ...

    def lost(self, queue: bytes, reason: BaseException) -> None:
        """This node serves the queue no more. On the engine's loop; must not wait."""
        ...


@dataclass(frozen=True, slots=True)
class Served:
    """A queue that this node serves. taken: what it was when this node took it over."""

    queue: bytes
    core: QueueHandle
    mirror: Mirror
    log: QueueLog
    taken: TakenOver


class Serving:
    """Args: node, life: this node's, as owner rows have them; port: of the cores' mirrors."""

    def __init__(self, engine: Engine, node: str, life: str, port: MirrorPort, host: Host, limits: Limits) -> None:
        self._engine = engine
        self._node = node
        self._life = life
        self._port = port
        self._host = host
        self._limits = limits
        self._served: dict[bytes, Served] = {}
        self._by_core: dict[int, Served] = {}
        self._following = False
        self._loads = asyncio.Semaphore(limits.shared_loads_max)

    def follow(self) -> None:
        """News of mirrors are looked at from now on."""
        if not self._following:
            self._following = True
            asyncio.get_running_loop().add_reader(self._port.descriptor, self._told)

    def _told(self) -> None:
        for core_id in self._port.take_told():
            served = self._by_core.get(core_id)
            if served is not None:
                guarded("shared queues", served.queue, served.log.look)

    def get(self, queue: bytes) -> Served | None:
        return self._served.get(queue)

    def all(self) -> list[Served]:
        return list(self._served.values())

    async def serve(self, queue: bytes, vhost: str, judge: Judge) -> Served:
        """Takes the queue over, unless another node serves it. Tried again as long as nobody knows; the caller bounds it by a timeout.

        Raises: Taken: another node serves it; ValueError: a row of it can't be read.
        """
        while True:
            served = self._served.get(queue)
            if served is not None:
                return served
            try:
                return await self._take_over(queue, vhost, judge)
            except EngineError:
                await asyncio.sleep(self._limits.shared_pause_ms / 1000)

    async def _take_over(self, queue: bytes, vhost: str, judge: Judge) -> Served:
        (value,) = await self._engine.get([owner_key(queue)])
        before = None if value is None else Owner.unpack(value)
        judged: Condition | None = None
        if before is not None and (before.node, before.life) != (self._node, self._life):
            judged = judge(before)
            if judged is None:
                raise Taken(f"node {before.node!r} serves the queue")
        owner = await claim(self._engine, queue, before, self._node, self._life, judged)
        core = self._host.new_mirrored(queue)
        mirror = Mirror(core, self._port, vhost)
        taken = await restore(self._engine, queue, owner, mirror, self._limits)
        on_settled, on_lost = partial(self._settled, queue), partial(self._lost, queue, mirror)
        log = QueueLog(self._engine, queue, mirror, taken, self._limits, on_settled, on_lost)
        log.loads = self._loads
        served = Served(queue, core, mirror, log, taken)
        self._served[queue] = self._by_core[core.queue_id] = served
        return served

    def _settled(self, queue: bytes) -> None:
        self._port.wake()
        guarded("shared queues", queue, self._host.settled, queue)

    def _lost(self, queue: bytes, mirror: Mirror, reason: BaseException) -> None:
        mirror.lose()
        served = self._served.get(queue)
        if served is not None and served.mirror is mirror:
            del self._served[queue], self._by_core[served.core.queue_id]
            guarded("shared queues", queue, self._host.lost, queue, reason)

    async def hand_over(self, queue: bytes, node: str, life: str, is_quiet: Callable[[], bool] = lambda: True) -> None:
        """Another node is to serve the queue, of which nobody publishes or consumes any more here: all of it is written first. is_quiet:
        asked then, see QueueLog.hand_over.

        Raises: Lost: it was lost meanwhile, or is not served here; EngineError: it may not have heard, and this node serves it no more.
        """
        served = self._served.get(queue)
        if served is None:
            raise Lost("the queue is not served here")
        await served.log.drain()
        await served.log.hand_over(node, life, is_quiet())

    def give_up(self, queue: bytes) -> None:
        """The queue is deleted."""
        served = self._served.get(queue)
        if served is not None:
            served.log.close()

    def close(self) -> None:
        """Nothing is written any more; publishes that wait for the engine are refused."""
        if self._following:
            asyncio.get_running_loop().remove_reader(self._port.descriptor)
        for queue in list(self._served):
            self.give_up(queue)
