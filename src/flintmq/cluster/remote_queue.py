"""Queues that other nodes own, for this node's clients: publishes, consumers, gets, purges, deletions and counts go to the owner.

in: queues and their owners; what clients publish to them, in the line of queue/handoff; wishes of sessions. out: answers, when the owner
gave its own; word of an owner that is lost.

R1  While a queue has no owner (`aim`), its publishes wait, shared_waiting_ms_max at most, and all else is refused (LinkLost).
R2  `on_lost` is called once for an owner that was named by `aim` and does not serve the queue, or is not reached any more. All that waited
    for it is answered before: publishes are refused, as nobody knows whether it had them.

All of it is of the engine's event loop, callbacks included, which must not wait; but what the message path does to the cores.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from flintmq.cluster.link import Link, LinkLost, NodeAddress
from flintmq.cluster.link_wire import Message
from flintmq.cluster.links import CONSUMERS, PUBLISHES, REQUESTS, Links
from flintmq.cluster.node_vhost import NOT_OWNED, USE
from flintmq.cluster.remote_publishes import Counted, Publishes
from flintmq.cluster.remote_windows import RemoteConsumer, RemoteGet, Window, Wish
from flintmq.errors import PeerError
from flintmq.guard import guarded
from flintmq.protocol.v0_9_1 import spec
from flintmq.queue.control import QueueHandle
from flintmq.queue.handoff import SharedPort, open_window

if TYPE_CHECKING:
    from flintmq.config import Limits
    from flintmq.queue.log_port import LogPort

# seconds between two looks for late publishes and idle channels
_TICK_S = 1.0
# of cores that the broker does not know: windows of single clients
_FIRST_WINDOW_ID = 2**62
Done = Callable[[Any, Exception | None], object]


class _Request:
    """One method and its answer, on a channel of its own. Args: read: what of the answer is the result; done: called once."""

    def __init__(self, remote: _Remote, method: spec.Method, read: Callable[[Any], Any], done: Done) -> None:
        self._remote = remote
        self._method = method
        self._read = read
        self._done: Done | None = done
        self._link: Link | None = None
        self._number = 0

    def begin(self, link: Link) -> None:
        """Raises: LinkLost, PeerError."""
        if self._done is not None:
            self._number = link.open_channel(self)
            self._link = link
            link.send(self._number, self._method)

    def fail(self, error: Exception) -> None:
        """No answer comes."""
        self._answer(None, error)

    def _answer(self, result: Any, error: Exception | None) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close_channel(self._number)
        done, self._done = self._done, None
        if done is not None:
            guarded("requests to other nodes", self._method.NAME, done, result, error)

    def on_method(self, method: Any) -> None:
        self._answer(self._read(method), None)

    def on_closed(self, error: PeerError) -> None:
        link = self._link
        self._answer(None, error)
        if link is not None and is_not_owned(error):
            self._remote.owner_lost(link, error.text)

    def on_lost(self, reason: str) -> None:
        link = self._link
        self._answer(None, LinkLost(reason))
        if link is not None:
            self._remote.owner_lost(link, reason)

    def on_answer(self, tag: int, multiple: bool, taken: bool) -> None:
        """Nothing is published here."""

    def on_read(self) -> None:
        """The same."""

    def on_message(self, tag: int, redelivered: bool, message: Message) -> None:
        """Nothing is consumed here."""


class _Remote:
    """One queue that another node owns. Args: core: what publishes of this node's clients come to."""

    def __init__(self, host: RemoteQueues, queue: bytes, core: QueueHandle) -> None:
        self.queue = queue
        self.core = core
        self.owner: NodeAddress | None = None
        self.windows: set[Window] = set()
        self._host = host
        self._wants = False
        self.publishes = Publishes(queue, host.port, host.limits, self._want, self._publishes_lost)

    def aim(self, owner: NodeAddress | None) -> None:
        before, self.owner = self.owner, owner
        if owner == before:
            return
        link = self.publishes.link
        if link is not None and link.to != owner:
            self.publishes.detach()
        for window in list(self.windows):
            if window.link is not None and window.link.to != owner:
                window.fail(LinkLost("another node owns the queue now"))
        self.publishes.pump()

    def _want(self) -> None:
        owner = self.owner
        if owner is not None and not self._wants:
            self._wants = True
            self._host.links.want(owner, PUBLISHES, lambda link, error: self._linked(owner, link, error))

    def _linked(self, owner: NodeAddress, link: Link | None, error: Exception | None) -> None:
        self._wants = False
        if owner != self.owner:
            self.publishes.pump()  # by the one that owns it now
            return
        try:
            if link is not None:
                self.publishes.attach(link)
                return
        except (LinkLost, PeerError) as refused:
            error = refused
        self.publishes.detach()
        self.lost(owner, str(error))

    def _publishes_lost(self, reason: str) -> None:
        if self.owner is not None:
            self.lost(self.owner, reason)

    def owner_lost(self, link: Link, reason: str) -> None:
        self.lost(link.to, reason)

    def lost(self, owner: NodeAddress, reason: str) -> None:
        """R2."""
        if self.owner == owner:
            self.owner = None
            # After all users of a link that broke were told: who names an owner again finds nothing of the old one.
            tell = partial(guarded, "queues of other nodes", self.queue, self._host.on_lost, self.queue, reason)
            asyncio.get_running_loop().call_soon(tell)

    def begin(self, request: Any, purpose: str = REQUESTS) -> None:
        """Begins a consumer, a get or a request at the owner; what is in the way is told to its `fail`."""
        owner = self.owner

        def linked(link: Link | None, error: Exception | None) -> None:
            try:
                if link is not None:
                    request.begin(link)
                    return
            except (LinkLost, PeerError) as refused:
                error = refused
            request.fail(error)
            if isinstance(error, LinkLost) and owner is not None:
                self.lost(owner, str(error))

        if owner is None:
            request.fail(LinkLost("no node is known that owns the queue"))
        else:
            self._host.links.want(owner, purpose, linked)

    def end(self) -> None:
        self.owner = None
        self.publishes.refuse_all()
        for window in list(self.windows):
            window.fail(LinkLost("the queue is not another node's any more"))


def is_not_owned(error: PeerError) -> bool:
    """Whether a node says that it does not own a queue (node_vhost.not_owned)."""
    return error.text.startswith(NOT_OWNED)


class RemoteQueues:
    """Args: log: whose loops send confirms; on_lost: (id, reason), see R2."""

    def __init__(self, links: Links, log: LogPort | None, limits: Limits, on_lost: Callable[[bytes, str], object]) -> None:
        self.links = links
        self.limits = limits
        self.on_lost = on_lost
        self.port = SharedPort(log, limits.shared_waiting_bytes_max, limits.shared_vhost_waiting_bytes_max)
        self._remotes: dict[bytes, _Remote] = {}
        self._by_core: dict[int, _Remote] = {}
        self._windows: dict[int, Window] = {}
        self._ids = itertools.count(_FIRST_WINDOW_ID)
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False

    # --- life -----------------------------------------------------------------------------------------------------------

    def follow(self) -> None:
        """From now on the line is read."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self.port.descriptor, self._readable)
        self._tick()
        self._drain()

    async def stop(self) -> None:
        """Publishes that wait are refused; links are closed. Takes a second at most."""
        self._stopped = True
        self.port.close()
        if self._timer is not None:
            self._timer.cancel()
            asyncio.get_running_loop().remove_reader(self.port.descriptor)
            self._drain_some()
        for queue in list(self._remotes):
            self.close(queue)
        await self.links.stop()

    # --- queues ---------------------------------------------------------------------------------------------------------

    def open(self, queue: bytes, core: QueueHandle, vhost: str) -> None:
        """A queue that another node owns. core: unused so far; its routes have DEST_SHARED. Publishes wait until `aim`."""
        open_window(core, self.port, vhost)
        remote = _Remote(self, queue, core)
        self._remotes[queue] = self._by_core[core.queue_id] = remote

    def aim(self, queue: bytes, owner: NodeAddress | None) -> None:
        """The node that owns the queue from now on; None: nobody knows. Publishes to an earlier one are refused, its consumers end."""
        self._remotes[queue].aim(owner)

    def close(self, queue: bytes) -> None:
        """The queue is deleted, or this node's own: all that waits for its owner is refused or ends. Its core is not used any more."""
        remote = self._remotes.pop(queue, None)
        if remote is not None:
            self._drain_some()
            del self._by_core[remote.core.queue_id]
            remote.end()
            self.port.close_lane(remote.core)

    def owner(self, queue: bytes) -> NodeAddress | None:
        """None: nobody knows, or it is no queue of another node."""
        remote = self._remotes.get(queue)
        return None if remote is None else remote.owner

    # --- what clients want ----------------------------------------------------------------------------------------------

    def consume(
        self, queue: bytes, wish: Wish, begun: Callable[[Exception | None], object], ended: Callable[[Exception], object]
    ) -> RemoteConsumer:
        """A consumer at the owner. After `begun(None)` the session attaches the client to its `core`; see RemoteConsumer. `begun` may be
        called before this returns: with an error."""
        remote = self._remote(queue)
        consumer = RemoteConsumer(self, queue, wish, begun, ended)
        self._patience(consumer.expire)
        remote.begin(consumer, CONSUMERS)
        return consumer

    def get(self, queue: bytes, vhost: str, answered: Callable[[RemoteGet | None, Exception | None], object]) -> None:
        """basic.get at the owner; see RemoteGet."""
        remote = self._remote(queue)
        got = RemoteGet(self, queue, vhost, answered)
        self._patience(got.fail)
        remote.begin(got)

    def purge(self, queue: bytes, done: Done) -> None:
        """done(messages, None), or (None, PeerError or LinkLost)."""
        self._ask(queue, spec.QueuePurge(queue.decode()), lambda answer: answer.message_count, done)

    def delete(self, queue: bytes, if_unused: bool, if_empty: bool, done: Done) -> None:
        """Deletes the queue at its owner. As `purge`; PeerError 406: it is in use, or not empty."""
        method = spec.QueueDelete(queue.decode(), if_unused=if_unused, if_empty=if_empty)
        self._ask(queue, method, lambda answer: answer.message_count, done)

    def counts(self, queue: bytes, done: Done, is_use: bool = False) -> None:
        """done((messages that are ready, consumers), None), or (None, PeerError or LinkLost). is_use: x-expires counts anew."""
        method = spec.QueueDeclare(queue.decode(), passive=True, arguments=USE if is_use else {})
        self._ask(queue, method, lambda answer: (answer.message_count, answer.consumer_count), done)

    def _ask(self, queue: bytes, method: spec.Method, read: Callable[[Any], Any], done: Done) -> None:
        remote = self._remote(queue)
        request = _Request(remote, method, read, done)
        self._patience(request.fail)
        remote.begin(request)

    def _remote(self, queue: bytes) -> _Remote:
        """One that nobody opened has no owner."""
        return self._remotes.get(queue) or _Remote(self, queue, QueueHandle(next(self._ids)))

    def _patience(self, fail: Callable[[Exception], object]) -> None:
        """The owner has so long to answer; `fail` of a request that was answered does nothing."""
        patience_s = self.limits.shared_waiting_ms_max / 1000
        asyncio.get_running_loop().call_later(patience_s, fail, LinkLost("the node that owns the queue does not answer"))

    def publish(self, core_id: int, message: Message, counted: Counted) -> None:
        """A message of the broker's own, as those of the line."""
        remote = self._by_core.get(core_id)
        if remote is not None:
            remote.publishes.add(message, counted)
            remote.publishes.pump()
            return
        receiver, lane, size = counted
        self.port.leave(lane, size)
        if not isinstance(receiver, int):
            receiver(False)

    # --- windows (remote_windows.Host) ----------------------------------------------------------------------------------

    def new_core(self) -> QueueHandle:
        return QueueHandle(next(self._ids))

    def came(self, window: Window) -> None:
        self._windows[window.core.queue_id] = window
        remote = self._remotes.get(window.queue)
        if remote is not None:
            remote.windows.add(window)

    def gone(self, window: Window) -> None:
        self._windows.pop(window.core.queue_id, None)
        remote = self._remotes.get(window.queue)
        if remote is not None:
            remote.windows.discard(window)

    def owner_lost(self, queue: bytes, link: Link, reason: str) -> None:
        remote = self._remotes.get(queue)
        if remote is not None:
            remote.owner_lost(link, reason)

    # --- the line -------------------------------------------------------------------------------------------------------

    def _readable(self) -> None:
        os.eventfd_read(self.port.descriptor)
        self._drain()

    def _drain(self) -> None:
        if not self._stopped and (self._drain_some() or not self.port.rest()):
            asyncio.get_running_loop().call_soon(self._drain)

    def _drain_some(self) -> bool:
        """Whether there may be more."""
        most = self.limits.cluster_items_at_once
        items = self.port.take(most)
        publishes: dict[Publishes, None] = {}
        windows: dict[Window, None] = {}
        for core_id, message, receipt, position, _, lane, size, reason in items:
            if message is None:
                window = self._windows.get(core_id)
                if window is not None:
                    window.ended(position, reason)
                    windows[window] = None
                continue
            remote = self._by_core.get(core_id)
            if remote is None:
                self.port.leave(lane, size)
                self.port.answer([receipt], False)
            else:
                remote.publishes.add(message, (receipt, lane, size))
                publishes[remote.publishes] = None
        for window in windows:
            guarded("consumers at other nodes", window.queue, window.flush)
        for one in publishes:
            guarded("publishes to other nodes", one, one.pump)
        if self.port.take_lost():
            # Memory was short, and settlements did not reach the line: their owners deliver again what is open.
            self.links.close()
        return len(items) == most

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        late_s = now_s - self.limits.shared_waiting_ms_max / 1000
        idle_s = now_s - self.limits.cluster_idle_ms / 1000
        for remote in list(self._remotes.values()):
            remote.publishes.refuse_late(late_s)
            remote.publishes.rest(idle_s)
        for window in list(self._windows.values()):
            guarded("consumers at other nodes", window.queue, window.flush)
        self.links.close_idle()
        self._timer = loop.call_later(_TICK_S, self._tick)
