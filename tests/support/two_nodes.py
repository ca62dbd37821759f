"""Two brokers of one process: one owns queues, the other one serves its clients through it. The wiring is made by hand."""

from __future__ import annotations

import queue
from collections.abc import Callable
from functools import partial
from typing import Any

from flintmq.broker.records import Consumer
from flintmq.cluster.engine_thread import EngineThread
from flintmq.cluster.link import NodeAddress
from flintmq.cluster.links import Links
from flintmq.cluster.node_door import NodeDoor
from flintmq.cluster.node_vhost import NodeVhost
from flintmq.cluster.remote_queue import RemoteQueues
from flintmq.cluster.remote_windows import RemoteConsumer, Wish
from flintmq.config import Limits
from flintmq.queue.handoff import SharedPort
from flintmq.routing.route_cache import DEST_SHARED
from flintmq.shared.node_secret import NodeId
from flintmq.testing.broker import Broker
from tests.support.rawamqp import RawConnection

WAIT_S = 20.0
SECRET = bytes(range(32))
OWNER, OTHER = NodeId("a", "life-a"), NodeId("b", "life-b")
QUEUE = b"0123456789abcdef"
NAME = "q"


class Owner:
    """The node that owns: `queues` says which id is which of its queues."""

    def __init__(self, broker: Broker, secret: bytes = SECRET) -> None:
        self.broker = broker
        self.inner = inner = broker.node.broker
        self.queues: dict[bytes, str] = {}
        self.vhost = NodeVhost(self._resolve, inner.vhosts, lambda: list(inner.connections.values()), inner.limits.user_routes_max)
        inner.door = NodeDoor(OWNER, secret, self.vhost, inner.limits.cluster_channels_max)

    def _resolve(self, queue_id: bytes) -> Any:
        return self.inner.vhosts["/"].queues.get(self.queues.get(queue_id, ""))

    def core(self, name: str = NAME) -> Any:
        return self.inner.vhosts["/"].queues[name].core

    def lose(self, queue_id: bytes = QUEUE) -> None:
        del self.queues[queue_id]
        self.vhost.forget(queue_id.decode())

    def address(self) -> NodeAddress:
        return NodeAddress(OWNER, "127.0.0.1", self.broker.port)


class Other:
    """The node whose clients use the owner's queues: its engine thread, and what the session will do, by hand."""

    def __init__(self, broker: Broker, limits: Limits | None = None, secret: bytes = SECRET) -> None:
        self.broker = broker
        self.inner = broker.node.broker
        self.limits = limits or self.inner.limits
        self.lost: queue.SimpleQueue[tuple[bytes, str]] = queue.SimpleQueue()
        self.thread = EngineThread("memory:", self.limits)
        self.thread.start()
        self.port: SharedPort
        self.remote: RemoteQueues = self.on_loop(lambda: self._made(secret))

    def _made(self, secret: bytes) -> RemoteQueues:
        links = Links(OTHER, secret, self.limits)
        made = RemoteQueues(links, self.inner.log, self.limits, lambda queue_id, reason: self.lost.put((queue_id, reason)))
        made.follow()
        return made

    def on_loop(self, work: Callable[[], Any]) -> Any:
        """`work()` on the engine's loop, and its result."""
        answers: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()

        async def run() -> Any:
            return work()

        self.thread.run(run, lambda result, error: answers.put((result, error)))
        result, error = answers.get(timeout=WAIT_S)
        if error is not None:
            raise error
        return result

    def answer(self, ask: Callable[[Callable[[Any, Exception | None], object]], object]) -> tuple[Any, Exception | None]:
        """What `ask(done)` gives `done`."""
        answers: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()
        self.on_loop(lambda: ask(lambda result, error: answers.put((result, error))))
        return answers.get(timeout=WAIT_S)

    def open(self, name: str, owner: NodeAddress | None, queue_id: bytes = QUEUE) -> None:
        """The declared queue `name` of this broker is one of another node from now on."""
        core = self.inner.vhosts["/"].queues[name].core
        core.destination_flags |= DEST_SHARED
        self.on_loop(lambda: self.remote.open(queue_id, core, "/"))
        self.on_loop(lambda: self.remote.aim(queue_id, owner))

    def consume(
        self, raw: RawConnection, number: int, tag: str, wish: Wish | None = None, queue_id: bytes = QUEUE, no_ack: bool = False
    ) -> tuple[RemoteConsumer, queue.SimpleQueue[Exception]]:
        """A consumer of a client of this node: what basic.consume will do. Raises: the owner's refusal."""
        begun: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        ended: queue.SimpleQueue[Exception] = queue.SimpleQueue()
        consumer = self.on_loop(lambda: self.remote.consume(queue_id, wish or Wish("/"), begun.put, ended.put))
        error = begun.get(timeout=WAIT_S)
        if error is not None:
            raise error
        client = self.client(raw)
        self.on_client(client, partial(self._attach, client, number, tag, consumer, no_ack))
        return consumer, ended

    def _attach(self, client: Any, number: int, tag: str, consumer: RemoteConsumer, no_ack: bool) -> None:
        assert client.connection.consume(number, consumer.core, tag.encode(), no_ack, False, 0)
        known = self.inner.vhosts["/"].queues[NAME]
        client.channels[number].consumers[tag] = Consumer(client, number, tag, known, no_ack, False, 0, {})
        client.loop.touch(client.socket)

    def cancel(self, raw: RawConnection, number: int, tag: str, consumer: RemoteConsumer) -> None:
        client = self.client(raw)
        self.on_client(client, lambda: client.connection.cancel(number, tag.encode()))
        self.on_loop(consumer.cancel)

    def client(self, raw: RawConnection) -> Any:
        port = raw.sock.getsockname()[1]
        return next(one for one in self.inner.connections.values() if one.peer_port == port)

    def on_client(self, client: Any, work: Callable[[], Any]) -> Any:
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        client.loop.call(lambda: answers.put(work()))
        return answers.get(timeout=WAIT_S)

    def stop(self) -> None:
        self.thread.stop(self.remote.stop, 5.0)
