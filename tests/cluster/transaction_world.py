"""Nodes that serve queues of one engine, and clients that commit transactions through them, in one event loop, with faults and deaths."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from flintmq.cluster.transactions import Outcome, Transactions
from flintmq.config import Limits
from flintmq.engines.engine import Engine, EngineError, Unavailable
from flintmq.engines.memory import MemoryEngine, MemoryStore
from flintmq.mirror.mirror import MirrorPort
from flintmq.queue.control import QueueHandle
from flintmq.shared.layout import Owner, owner_key
from flintmq.shared.node_secret import NodeId
from flintmq.shared.queue_log import Lost
from flintmq.shared.serving import Condition, Served, Serving
from flintmq.shared.taking_over import Taken
from flintmq.shared.transaction_commits import Changes
from flintmq.shared.transaction_rows import Message, applied, pending, transactions
from tests.twins.faulty_engine import FaultyEngine, RandomPlan

QUEUES = [b"00000000000000a%d" % number for number in range(3)]
LIMITS = Limits().replace(
    shared_pause_ms=0, shared_pause_ms_max=0, shared_ends_ms=0, shared_full_ms=1, shared_segment_messages=4, shared_flight_messages=1,
    shared_mark_batches=3, shared_waiting_ms_max=20_000, shared_transactions_look_ms=5, shared_transactions_sweep_ms=10,
    shared_part_messages=2,
)  # fmt: skip


class OnLoop:
    """As EngineThread, on the running loop."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """It runs."""

    def run(self, work: Callable[[], Coroutine[Any, Any, Any]], done: Callable[[Any, Exception | None], object]) -> None:
        task = asyncio.get_running_loop().create_task(self._run(work, done))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    @staticmethod
    async def _run(work: Callable[[], Coroutine[Any, Any, Any]], done: Callable[[Any, Exception | None], object]) -> None:
        try:
            done(await work(), None)
        except asyncio.CancelledError:
            done(None, Unavailable("the broker stops"))


class Node:
    """Args: world; name; life."""

    def __init__(self, world: World, name: str, life: str) -> None:
        self.world = world
        self.me = NodeId(name, life)
        self.cores = 0
        self.is_dead = False
        self.engine = FaultyEngine(MemoryEngine(world.store, world.limits), world.plan)
        self.thread = OnLoop(self.engine)
        self.serving = Serving(self.engine, name, life, MirrorPort(2**64 - 1, 1 << 20, 1 << 21), self, world.limits)
        self.serving.follow()
        self.transactions = Transactions(self.thread, self.me, world.limits, lambda queue: False)  # type: ignore[arg-type]
        self.transactions.others = self
        self.transactions.is_gone = world.is_gone

    # --- Host of Serving

    def new_mirrored(self, queue: bytes) -> QueueHandle:
        self.cores += 1
        return QueueHandle(self.cores)

    def settled(self, queue: bytes) -> None:
        """Confirms leave."""

    def lost(self, queue: bytes, reason: BaseException) -> None:
        self.transactions.lost(queue)

    # --- Others

    def close_idle(self) -> None:
        """There are no links."""

    async def ask(self, owner: Owner, name: str, head: Mapping[str, Any], payload: bytes = b"") -> Any:
        """A request to another node, which may be lost, or its answer."""
        fate = self.world.random.random()
        node = self.world.nodes.get(owner.node)
        await asyncio.sleep(0)
        if node is None or node.me.life != owner.life or fate < self.world.plan.share:
            raise Unavailable("injected")
        answer = await node.transactions.answers()[name](dict(head), payload)
        if fate < 2 * self.world.plan.share:
            raise Unavailable("the answer is lost")
        return answer

    # --- queues

    async def serve(self, queue: bytes) -> Served:
        served = await self.serving.serve(queue, "/", self._judge)
        await self.transactions.begin(served)
        if self.serving.get(queue) is not served:
            self.transactions.lost(queue)
            raise Unavailable("lost")
        return served

    def _judge(self, owner: Owner) -> Condition | None:
        return (b"n/" + owner.node.encode(), None) if self.world.is_gone(owner.node, owner.life) else None

    def kill(self) -> None:
        """Its answers come to nobody; what it has sent may still arrive."""
        self.is_dead = True
        self.transactions.close()
        for task in list(self.thread.tasks):
            task.cancel()
        self.serving.close()


@dataclass(slots=True)
class Work:
    """A client's transaction. ended: (queue, body) that it acknowledges; bodies: by queue, in order."""

    bodies: dict[bytes, list[bytes]]
    ended: list[bytes] = field(default_factory=list)
    outcome: Outcome | None = None


class World:
    """Args: seed; share: of calls that meet a fault; commit_rows: of the engine."""

    def __init__(self, seed: int, share: float, commit_rows: int = 200) -> None:
        self.random = random.Random(seed)
        self.limits = LIMITS.replace(engine_commit_rows_max=commit_rows)
        self.store = MemoryStore(commit_rows)
        self.plan = RandomPlan(seed, share)
        self.nodes: dict[str, Node] = {}
        self.lives = 0
        self.done: list[Work] = []
        self.deliveries: dict[bytes, list[bool]] = {}

    def start(self, name: str) -> Node:
        self.lives += 1
        node = self.nodes[name] = Node(self, name, f"{self.lives:016x}")
        return node

    def kill(self, name: str) -> None:
        self.nodes.pop(name).kill()

    def is_gone(self, name: str, life: str) -> bool:
        node = self.nodes.get(name)
        return node is None or node.me.life != life

    async def follow(self) -> None:
        """Queues without a living owner are taken, until it is cancelled."""
        while True:
            for queue in QUEUES:
                value = self.store.rows.get(owner_key(queue))
                owner = None if value is None else Owner.unpack(value)
                node = None if owner is None else self.nodes.get(owner.node)
                if node is not None and owner is not None and node.me.life == owner.life and queue in node.transactions._queues:
                    continue
                if (node is None or owner is None or node.me.life != owner.life) and self.nodes:
                    node = self.nodes[self.random.choice(sorted(self.nodes))]
                try:
                    if node is not None:
                        async with asyncio.timeout(1):
                            await node.serve(queue)
                except (EngineError, Taken, Lost, TimeoutError):
                    pass
            await asyncio.sleep(0)

    # --- clients ----------------------------------------------------------------------------------------------------------

    async def client(self, name: str, count: int) -> None:
        for number in range(count):
            while not self.nodes:
                await asyncio.sleep(0)
            node = self.nodes[self.random.choice(sorted(self.nodes))]
            changes: dict[bytes, Changes] = {}
            work = Work({})
            for index in range(self.random.randint(1, 6)):
                queue = self.random.choice(QUEUES)
                body = f"{name}.{number:04}.{index}".encode()
                work.bodies.setdefault(queue, []).append(body)
                changes.setdefault(queue, Changes()).messages.append(Message(b"", b"q", b"\0" * 14, body, 1, 0))
            taken = await self._take(node, work, changes)
            await self._commit(node, work, changes, taken)

    async def _take(self, node: Node, work: Work, changes: dict[bytes, Changes]) -> list[tuple[Served, int]]:
        """Deliveries from queues that the node serves."""
        taken: list[tuple[Served, int]] = []
        for queue in QUEUES:
            served = node.serving.get(queue)
            if served is None or queue not in node.transactions._queues or self.random.random() < 0.4:
                continue
            try:
                await served.log.open()
            except (Lost, EngineError):
                continue
            position = served.core.next_available(0)
            if not position or served.log.is_lost or not served.core.hold(position):
                continue
            body = served.core.message_at(position)[3]
            self.deliveries.setdefault(body, []).append(served.core.is_redelivered(position))
            one = changes.setdefault(queue, Changes())
            one.ends.append(position)
            one.log = served.log
            work.ended.append(body)
            taken.append((served, position))
        return taken

    async def _commit(self, node: Node, work: Work, changes: dict[bytes, Changes], taken: list[tuple[Served, int]]) -> None:
        self.done.append(work)
        over = asyncio.Event()
        ending = [queue for queue, one in changes.items() if one.ends]

        def told(outcome: Outcome, transaction: bytes, error: Exception | None) -> None:
            assert work.outcome in (None, Outcome.UNKNOWN)
            if node.is_dead and outcome is not Outcome.UNKNOWN:
                return  # nobody hears it
            work.outcome = outcome
            for served, position in taken:
                if outcome is Outcome.DECIDED:
                    served.core.settle_held(position, logged=False)
                elif outcome is Outcome.REFUSED:
                    served.core.release_held(position, delivered=True)
            if outcome is Outcome.DECIDED and ending:
                node.transactions.ended(transaction, ending)
            over.set()

        node.transactions.commit(changes, [], told)
        while not over.is_set() and not node.is_dead:
            await asyncio.sleep(0)

    # --- the end ----------------------------------------------------------------------------------------------------------

    def rows_of_transactions(self) -> list[bytes]:
        ranges = [transactions(), *(one(queue) for queue in QUEUES for one in (pending, applied))]
        return [key for key in self.store.rows for begin, end in ranges if begin <= key < end]

    def rest(self) -> dict[bytes, list[bytes]]:
        """What the queues have, in its order."""
        bodies: dict[bytes, list[bytes]] = {}
        for queue in QUEUES:
            (served,) = [node.serving.get(queue) for node in self.nodes.values() if node.serving.get(queue) is not None]
            assert served is not None
            position, bodies[queue] = served.core.next_available(0), []
            while position:
                bodies[queue].append(served.core.message_at(position)[3])
                position = served.core.next_available(position + 1)
        return bodies
