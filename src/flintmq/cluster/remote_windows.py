"""Messages of queues that other nodes own, on their way to this node's clients: the windows of consumers and of basic.get.

in: deliveries of the owner; ends and returns of window entries from the line of queue/handoff. out: entries that clients are sent;
settlements.

W1  A window is of one consumer here and one there. What the client settles is settled there with the same outcome; what it gives back, and
    what it never got when it went, goes back there: the owner counts deliveries, and says who gets the message next.
W2  When the channel or the link has ended, nobody here is given what is left, and what clients settle is forgotten: the owner, or the next
    one, delivers it again, flagged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from flintmq.cluster.link import LinkLost
from flintmq.cluster.link_wire import Message, ack_frame, reject_frame, requeue_frame
from flintmq.errors import PeerError, ReplyCode
from flintmq.guard import guarded
from flintmq.ports import DequeueReason
from flintmq.protocol.v0_9_1 import spec
from flintmq.queue.control import QueueHandle
from flintmq.queue.handoff import (
    RETURNED,
    SharedPort,
    open_window,
    window_add,
    window_available,
    window_end,
    window_take_back,
)

if TYPE_CHECKING:
    from flintmq.cluster.link import Link
    from flintmq.config import Limits

# messages of the first window of a consumer without a limit, before their size is known
_FIRST_LIMIT = 50
# seconds until a full window is looked at again
_LOOK_S = 0.005
# the highest limit that basic.qos can say; a client that holds more has none
_LIMIT_MAX = 65_535
# entries that are taken out of a window at once
_PIECE = 500
_TAG = "c"


class Host(Protocol):
    """Whoever has the windows (remote_queue.RemoteQueues)."""

    @property
    def port(self) -> SharedPort: ...
    @property
    def limits(self) -> Limits: ...
    def new_core(self) -> QueueHandle: ...
    def came(self, window: Window) -> None:
        """Ends of the window's entries are told to it from now on."""

    def gone(self, window: Window) -> None: ...
    def owner_lost(self, queue: bytes, link: Link, reason: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Wish:
    """What a client wants of a queue. prefetch: messages, 1 to 65,535, 0: no limit; arguments: of basic.consume, with x-priority."""

    vhost: str
    prefetch: int = 0
    exclusive: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)


class Window:
    """A core that the session attaches a client to, and what the owner has delivered to it. Args: queue: id."""

    def __init__(self, host: Host, queue: bytes, vhost: str) -> None:
        self.core = host.new_core()
        self.queue = queue
        self.link: Link | None = None
        self._host = host
        self._number = 0
        self._tags: dict[int, int] = {}  # position in the window -> delivery tag there; both rise
        self._acks: list[int] = []
        self._is_over = False  # no client uses it any more
        self._is_forgotten = False
        open_window(self.core, host.port, vhost)
        host.came(self)

    def _open(self, link: Link) -> None:
        """Raises: LinkLost, PeerError."""
        self._number = link.open_channel(self)
        self.link = link

    # --- from the owner -------------------------------------------------------------------------------------------------

    def on_message(self, tag: int, redelivered: bool, message: Message) -> None:
        position = window_add(self.core, message, redelivered)
        if position:
            self._tags[position] = tag
        elif self.link is not None:
            self.link.write(requeue_frame(self._number, tag))

    def on_answer(self, tag: int, multiple: bool, taken: bool) -> None:
        """Nothing is published here."""

    def on_read(self) -> None:
        """The same."""

    def on_method(self, method: Any) -> None:
        raise NotImplementedError

    def on_closed(self, error: PeerError) -> None:
        link = self.link
        self.fail(error)
        if link is not None and error.code == ReplyCode.NOT_FOUND:
            self._host.owner_lost(self.queue, link, error.text)

    def on_lost(self, reason: str) -> None:
        link = self.link
        self.fail(LinkLost(reason))
        if link is not None:
            self._host.owner_lost(self.queue, link, reason)

    def fail(self, error: Exception) -> None:
        """There is no link, or it, or the channel, has ended."""
        raise NotImplementedError

    # --- from the line --------------------------------------------------------------------------------------------------

    def ended(self, position: int, reason: int) -> None:
        """An entry ended, or came back. Acks wait for `flush`."""
        if reason == RETURNED:
            window_end(self.core, position)
        tag = self._tags.pop(position, None)
        if tag is None or self.link is None:
            return
        if reason == DequeueReason.ACK:
            self._acks.append(tag)
        elif reason == DequeueReason.REJECT:
            self.link.write(reject_frame(self._number, tag))
        else:
            self.link.write(requeue_frame(self._number, tag))

    def flush(self) -> None:
        """Sends acks, those before the first message that is still open as one; closes what nobody needs any more."""
        acks, link = self._acks, self.link
        if acks and link is not None:
            self._acks = []
            first_open = next(iter(self._tags.values()), None)
            whole = [tag for tag in acks if first_open is None or tag < first_open]
            if whole:
                link.write(ack_frame(self._number, max(whole), True))
            if len(whole) < len(acks):
                link.write(b"".join(ack_frame(self._number, tag, False) for tag in acks if first_open is not None and tag > first_open))
        if self._is_over:
            self._give_back()

    # --- ends -----------------------------------------------------------------------------------------------------------

    def _give_back(self) -> None:
        """What nobody holds goes back to the owner; with the last message the channel ends."""
        while positions := window_available(self.core, _PIECE):
            for position in window_take_back(self.core, positions):
                tag = self._tags.pop(position, None)
                if tag is not None and self.link is not None:
                    self.link.write(requeue_frame(self._number, tag))
        if self._is_over and not self._tags and not self._acks:
            self._forget()

    def _forget(self) -> None:
        if self._is_forgotten:
            return
        self._is_forgotten = True
        if self.link is not None:
            self.link.close_channel(self._number)
            self.link = None
        self.core.mark_deleted()
        self._host.port.close_lane(self.core)
        self._host.gone(self)

    def _lose(self) -> None:
        """The channel has ended, or ends now (W2)."""
        link, self.link = self.link, None
        if link is not None:
            link.close_channel(self._number)
        self._acks.clear()
        self._give_back()


class RemoteConsumer(Window):
    """A consumer at the owner. `core`: where the session attaches the client's, with all its credit.

    Args: begun: called once: with None when messages may come, or with the owner's refusal (PeerError) or LinkLost; ended: called at most
    once after that, when messages come no more without a `cancel`: PeerError: the queue is deleted or lost there; LinkLost.
    """

    def __init__(
        self,
        host: Host,
        queue: bytes,
        wish: Wish,
        begun: Callable[[Exception | None], object],
        ended: Callable[[Exception], object],
    ) -> None:
        super().__init__(host, queue, wish.vhost)
        self._wish = wish
        self._begun: Callable[[Exception | None], object] | None = begun
        self._ended: Callable[[Exception], object] | None = ended
        self._consumes = False
        # of a client without a limit: how many messages the owner may have sent that are not settled; 0: any number
        self._limit = 0 if wish.prefetch else _FIRST_LIMIT
        self._came = self._came_bytes = 0
        self._looks: asyncio.TimerHandle | None = None

    def begin(self, link: Link) -> None:
        """Raises: LinkLost, PeerError."""
        if self._is_over:
            return
        self._open(link)
        wish = self._wish
        link.send(self._number, spec.BasicQos(0, wish.prefetch or self._limit, not wish.prefetch))
        link.send(self._number, spec.BasicConsume(self.queue.decode(), _TAG, exclusive=wish.exclusive, arguments=dict(wish.arguments)))

    def on_message(self, tag: int, redelivered: bool, message: Message) -> None:
        super().on_message(tag, redelivered, message)
        if self._limit:
            self._came += 1
            self._came_bytes += len(message[3])
            if len(self._tags) >= self._limit and self._looks is None:
                self._look()

    def _look(self) -> None:
        """A client without a limit is sent whatever comes and may settle none of it: once it was sent half of a window, more come."""
        self._looks = None
        if self.link is None or self._is_over or len(self._tags) < self._limit:
            return
        limits = self._host.limits
        window = max(1, min(limits.cluster_window_messages, limits.cluster_window_bytes * self._came // max(1, self._came_bytes)))
        if self.core.ready_count() * 2 > window:
            self._looks = asyncio.get_running_loop().call_later(_LOOK_S, self._look)
            return
        limit = len(self._tags) + window
        self._limit = limit if limit <= _LIMIT_MAX else 0
        self.link.send(self._number, spec.BasicQos(0, self._limit, True))

    def fail(self, error: Exception) -> None:
        """There is no link, or it, or the channel, has ended."""
        begun, self._begun = self._begun, None
        ended, self._ended = self._ended, None
        self._consumes = False
        if begun is not None:
            self._is_over = True
        self._lose()
        if begun is not None:
            guarded("consumers at other nodes", self.queue, begun, error)
        elif ended is not None and not self._is_over:
            guarded("consumers at other nodes", self.queue, ended, error)

    def expire(self, error: Exception) -> None:
        """The owner has not answered in time; `error` says so. Nothing if it has."""
        if self._begun is not None:
            self.fail(error)

    def cancel(self) -> None:
        """The client's consumer is off the core: what it was not sent goes back, what it holds can still be settled. Idempotent."""
        self._begun = None
        if self._is_over:
            return
        self._is_over = True
        if self._consumes and self.link is not None:
            self.link.send(self._number, spec.BasicCancel(_TAG, False))  # and its answer ends it
            self._consumes = False
        else:
            self._give_back()

    def on_method(self, method: Any) -> None:
        if isinstance(method, spec.BasicConsumeOk):
            begun, self._begun = self._begun, None
            if self._is_over:
                self._give_back()
                return
            self._consumes = True
            if begun is not None:
                guarded("consumers at other nodes", self.queue, begun, None)
        elif isinstance(method, spec.BasicCancelOk):
            self._give_back()
        elif isinstance(method, spec.BasicCancel) and self._consumes:
            self._consumes = False
            ended, self._ended = self._ended, None
            if ended is not None:
                error = PeerError(ReplyCode.NOT_FOUND, "the queue was deleted, or is served by another node now")
                guarded("consumers at other nodes", self.queue, ended, error)


class RemoteGet(Window):
    """A basic.get at the owner. Args: answered: called once: with the get, whose `core` has the message, until `over`; (None, None): the
    queue is empty; (None, error): PeerError or LinkLost."""

    def __init__(self, host: Host, queue: bytes, vhost: str, answered: Callable[[RemoteGet | None, Exception | None], object]) -> None:
        super().__init__(host, queue, vhost)
        self._answered: Callable[[RemoteGet | None, Exception | None], object] | None = answered

    def begin(self, link: Link) -> None:
        """Raises: LinkLost, PeerError."""
        if not self._is_over:
            self._open(link)
            link.send(self._number, spec.BasicGet(self.queue.decode()))

    def _answer(self, got: RemoteGet | None, error: Exception | None) -> None:
        answered, self._answered = self._answered, None
        if answered is not None:
            guarded("gets at other nodes", self.queue, answered, got, error)
        else:
            self.over()  # nobody waits any more

    def on_message(self, tag: int, redelivered: bool, message: Message) -> None:
        super().on_message(tag, redelivered, message)
        self._answer(self, None)

    def on_method(self, method: Any) -> None:
        if isinstance(method, spec.BasicGetEmpty):
            self.over()
            self._answer(None, None)

    def fail(self, error: Exception) -> None:
        self._is_over = True
        self._lose()
        self._answer(None, error)

    def over(self) -> None:
        """The client has the message, or is gone: what it did not take goes back, what it has can still be settled. Idempotent."""
        self._is_over = True
        self.flush()
