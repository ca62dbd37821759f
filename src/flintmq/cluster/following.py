"""Definitions and shared queues of one node, put together: what the one learns of queues, the other has to know.

in: a node's parts. out: definitions that follow the engine, whose queues are served or forwarded.
"""

from __future__ import annotations

import asyncio
from typing import Any

from flintmq.cluster.definitions import ClusterDefinitions
from flintmq.cluster.first import Member
from flintmq.cluster.local_definitions import LocalDefinitions
from flintmq.cluster.shared_queues import SharedQueues
from flintmq.cluster.told import ToldDefinitions
from flintmq.ports import VhostRecord
from flintmq.shared.queue_rows import QueueRow
from flintmq.store.sql.changes import Save
from flintmq.vhost.changes import Verb
from flintmq.vhost.virtual_host import VirtualHost


class Following:
    """Args: broker, service: broker.broker.Broker and its definitions.verbs.DefinitionsService, before they are loaded; heard: what both
    write to."""

    def __init__(self, broker: Any, service: Any, shared: SharedQueues, heard: ToldDefinitions) -> None:
        self._shared = shared
        self._limits = shared.limits
        local = LocalDefinitions(broker, service)
        local.declare_queue = self._declare
        local.know_queue = lambda queue: shared.know(queue.vhost, queue.name, queue.row)
        self.definitions = ClusterDefinitions(local, shared.thread, shared.limits, Member(heard.untold))
        heard.ear = self.definitions
        shared.told_vhost = self._told_vhost
        shared.close_definitions = self.definitions.close
        shared.refused = lambda: self.definitions.facts()["refused"]

    def start(self) -> bool:
        """The loops run, and no client is let in yet. False: the engine has not said within its time what is defined; it is followed later.
        Not on a loop."""
        self._shared.thread.start()
        self.definitions.start()
        return self.definitions.wait_first(self._limits.shared_waiting_ms_max / 1000)

    def _declare(self, vhost: VirtualHost, name: str, row: QueueRow) -> Verb[Any]:
        self._shared.expect(vhost.name, name, row)
        return vhost.declare_queue(name, durable=True, arguments=row.arguments)

    async def _told_vhost(self, name: str) -> None:
        """The engine has a virtual host, before a queue of it. Raises: PeerError."""
        answered: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        loop = asyncio.get_running_loop()

        def answer(error: Exception | None) -> None:
            if not answered.done():
                answered.set_result(error)

        def done(error: Exception | None) -> None:
            loop.call_soon_threadsafe(answer, error)

        if not self.definitions.when_told([Save(VhostRecord(name))], done):
            error = await answered
            if error is not None:
                raise error
