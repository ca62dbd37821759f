"""Several nodes of one engine in one event loop: brokers without sockets, whose definitions follow through rows in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from flintmq.access.permissions import Permissions
from flintmq.access.users import Users, default_user
from flintmq.broker.broker import Broker
from flintmq.clock import SystemClock
from flintmq.cluster.definitions import ClusterDefinitions
from flintmq.cluster.first import Member
from flintmq.cluster.local_definitions import LocalDefinitions
from flintmq.cluster.told import ToldDefinitions
from flintmq.config import Config, Limits
from flintmq.definitions.change_line import BROKER, Actor
from flintmq.definitions.verbs import DefinitionsService
from flintmq.engines.engine import Engine
from flintmq.engines.memory import MemoryEngine, MemoryStore
from flintmq.queue.control import QueueHandle
from flintmq.shared.definition_rows import MADE, Record, describe, key_of
from flintmq.store.definitions import MemoryDefinitions
from tests.twins.faulty_engine import FaultyEngine, Plan

FAST = {
    "shared_pause_ms": 0,
    "shared_pause_ms_max": 0,
    "shared_full_ms": 1,
    "shared_definitions_retry_ms": 5,
    "shared_definitions_first_ms": 40,
    "shared_definitions_page": 3,
    "shared_definitions_batch": 3,
    "shared_definitions_verbs": 2,
}
WAIT_S = 20.0


class Answer:
    """A verb that was asked for."""

    def __init__(self) -> None:
        self.is_over = False
        self.result: Any = None
        self.error: Exception | None = None

    def done(self, result: Any, error: Exception | None) -> None:
        assert not self.is_over
        self.is_over, self.result, self.error = True, result, error

    @property
    def is_good(self) -> bool:
        return self.is_over and self.error is None


class OnLoop:
    """As EngineThread, on the running loop."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.is_ended = False
        self.loop = asyncio.get_running_loop()

    def call(self, work: Callable[..., object], *args: Any) -> bool:
        if not self.is_ended:
            self.loop.call_soon_threadsafe(work, *args)
        return not self.is_ended


class NodeOfMany:
    """Args: engine; limits; definitions: of its store, which outlives it."""

    def __init__(self, engine: Engine, limits: Limits, definitions: MemoryDefinitions) -> None:
        self.limits = limits
        self.stored = definitions
        self.definitions = ToldDefinitions(definitions)
        clock = SystemClock()
        self.users = Users(self.definitions, clock, limits)
        self.permissions = Permissions(self.definitions)
        self.broker = Broker(Config(port=None, memory=True), clock, self.definitions, self.users, self.permissions, "node")
        self.broker.limits = limits
        self.broker._new_shared = lambda queue_id, spec: QueueHandle(queue_id)  # type: ignore[method-assign]
        self.service = DefinitionsService(self.broker)
        for name in self.service.load():
            vhost = self.broker.add_vhost(name)
            self.service.prepare(vhost)
            vhost.restore()
        self.local = LocalDefinitions(self.broker, self.service)
        self.thread = OnLoop(engine)
        self.cluster = ClusterDefinitions(self.local, self.thread, limits, Member(definitions))
        self.definitions.ear = self.cluster
        self.cluster.start()

    def ask(self, verb: str, *arguments: Any, actor: Actor = BROKER, **options: Any) -> Answer:
        """A verb of the service."""
        answer = Answer()
        getattr(self.service, verb)(actor, *arguments, answer.done, **options)
        return answer

    def ask_vhost(self, vhost: str, verb: str, *arguments: Any, **options: Any) -> Answer:
        """A verb of a virtual host."""
        answer = Answer()
        host = self.broker.vhosts[vhost]
        host.perform(getattr(host, verb)(*arguments, **options), lambda function: function(), answer.done)
        return answer

    def exchange(self, name: str, kind: str = "direct", vhost: str = "/", **options: Any) -> Answer:
        return self.ask_vhost(vhost, "declare_exchange", name, kind, durable=True, **options)

    def world(self) -> dict[bytes, Any]:
        """All shared definitions, as they compare."""
        return {key_of(record): shown(record) for record in self.local.records()}

    async def stop(self) -> None:
        await self.cluster.close()
        self.thread.is_ended = True
        self.users.close()


def shown(record: Record) -> str:
    value = getattr(record, "value", "")
    more = [
        getattr(record, name, "") for name in ("password_hash", "tags", "description", "configure", "write", "read", "kind", "arguments")
    ]
    limits = getattr(record, "limits", None)
    return f"{describe(record)}: {value!r} {more!r} {None if limits is None else dict(limits)!r}"


class Nodes:
    """Args: plan: of the faults of all of them; limits: changes."""

    def __init__(self, plan: Plan | None = None, **limits: int) -> None:
        self.store = MemoryStore(10_000)
        self.plan = plan or Plan()
        self.limits = Limits().replace(**{**FAST, **limits})
        self.nodes: list[NodeOfMany] = []
        self.engines: list[FaultyEngine] = []

    @property
    def rows(self) -> dict[bytes, bytes]:
        return self.store.rows

    async def start(self, definitions: MemoryDefinitions | None = None, wait: bool = True) -> NodeOfMany:
        """A node with this store, or a new one with the default user."""
        if definitions is None:
            definitions = MemoryDefinitions()
            permission, guest = default_user("/")
            definitions.save_permission(permission)
            definitions.save_user(guest)
        self.engines.append(FaultyEngine(MemoryEngine(self.store, self.limits), self.plan))
        node = NodeOfMany(self.engines[-1], self.limits, definitions)
        self.nodes.append(node)
        if wait:
            await until(lambda: node.cluster.wait_first(0))
        return node

    async def stop(self, node: NodeOfMany) -> MemoryDefinitions:
        """Its store is what is left."""
        self.nodes.remove(node)
        await node.stop()
        return node.stored

    async def settle(self) -> None:
        """Until all have done what there is to do, and nothing is refused that would not be for ever."""
        await until(lambda: all(self._is_settled(node) for node in self.nodes))
        await until(lambda: len({repr(sorted(node.world().items())) for node in self.nodes}) <= 1, self.differences)

    def _is_settled(self, node: NodeOfMany) -> bool:
        facts = node.cluster.facts()
        rows = {key: value for key, value in self.rows.items() if key.startswith(b"d/") and key != MADE}
        return not facts["waiting"] and not facts["lag_ms"] and {key: row.value for key, row in node.cluster._known.rows.items()} == rows

    def differences(self) -> str:
        worlds = [node.world() for node in self.nodes]
        keys = {key for world in worlds for key in world if len({other.get(key) for other in worlds}) > 1}
        refusals = [[why for _, why in node.cluster.refusals.values()] for node in self.nodes]
        return f"{[[world.get(key) for key in keys] for world in worlds]} refused: {refusals}"

    async def close(self) -> None:
        for node in list(self.nodes):
            await self.stop(node)


async def until(condition: Callable[[], Any], text: Callable[[], str] = lambda: "") -> Any:
    """Polls. Raises: AssertionError after WAIT_S."""
    deadline = asyncio.get_running_loop().time() + WAIT_S
    while not (value := condition()):
        assert asyncio.get_running_loop().time() < deadline, f"still not so: {text()}"
        await asyncio.sleep(0.0005)
    return value


async def good(answer: Answer) -> Any:
    await until(lambda: answer.is_over)
    assert answer.error is None, answer.error
    return answer.result
