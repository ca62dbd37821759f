"""Long work that one method of a client causes, in slices: settlements of many deliveries, ends of channels, the end of the connection.

in: basic.ack, nack and recover that name many deliveries; channels and connections that end. out: entries settled or back at their
places, consumers gone, and then the answer.

W1  The works of a connection are done one after another, in the order they came: what a client settled before it closed or hung up is
    settled, whatever there is of it.
W2  Until they are done nothing more of the connection is read, so that the order of effects is that of its frames; what it has asked for
    before goes on to be answered, and its consumers on other channels get messages.
W3  Nothing is delivered to a channel or connection that ends, from its first slice on. Its consumers go before its unacked deliveries
    come back, and those before its queues learn that consumers are gone (auto-delete).
W4  Works that their loop leaves behind are done at once: nobody is served by it any more.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from flintmq.broker.loops import STEP_NS
from flintmq.errors import PeerError, ReplyCode
from flintmq.guard import guarded
from flintmq.protocol.v0_9_1.spec import BasicNack
from flintmq.session import publishing

if TYPE_CHECKING:
    from flintmq.broker.records import ChannelState, Consumer
    from flintmq.session.session_port import Session

# slices that are done before the request that makes them has had its turn: what takes no more is answered in the same pass
AT_ONCE = 4
# consumers of which queues are told in one slice: some 50 us
CONSUMERS_AT_ONCE = 16

Step = Callable[[], bool]
Done = Callable[[], object]


class Works:
    """The works of one connection. On its loop's thread.

    Attributes: slices: how many were done (tests).
    """

    def __init__(self) -> None:
        # Its handler is no attribute: handler and works would wait for the cycle collector, and all that the connection holds with them.
        self._left: collections.deque[tuple[Step, Done]] | None = None  # most connections never have one
        self._running = False
        self.slices = 0

    def __len__(self) -> int:
        return len(self._left) if self._left is not None else 0

    def add(self, handler: Session, step: Step, done: Done) -> None:
        """A work: `step` is called until it returns True, then `done`, before this returns when it is a small one and no other waits.

        Raises: what `step` raises in its first calls; later the connection is closed for it, as for any mistake of ours.
        """
        if not self._left:
            for _ in range(AT_ONCE):
                self.slices += 1
                if step():
                    done()
                    return
        if self._left is None:
            self._left = collections.deque()
        self._left.append((step, done))
        if not handler.ended:
            handler.connection.waiting = True
        if not self._running:
            self._running = True
            handler.loop.job(partial(self._step, handler), partial(self._ended, handler))

    def _step(self, handler: Session) -> bool:
        assert self._left  # it runs only while there is something
        step, done = self._left[0]
        self.slices += 1
        over: list[bool] = []
        whole = guarded("long work of connections", handler.name, lambda: over.append(step()))
        if whole and not over[0]:
            return False
        self._left.popleft()
        if whole:
            guarded("ends of long work", handler.name, done)
        elif not handler.ended:
            handler.failed()
        if not self._left and not handler.ended:
            self._go_on(handler)
        return not self._left

    def _go_on(self, handler: Session) -> None:
        """The client is read on."""
        handler.connection.waiting = handler.deferred is not None or len(handler.verbs) > 0
        if handler.socket is not None and not handler.connection.waiting:
            handler.loop.resume(handler.socket)
            handler.loop.touch(handler.socket)

    def _ended(self, handler: Session, done: bool) -> None:
        while self._left:
            self._step(handler)
        self._running = False


class Settling:
    """basic.ack, nack or recover of many deliveries of a channel: those that there are now, up to tag `upto`."""

    def __init__(self, handler: Session, number: int, method: int, upto: int, requeue: bool) -> None:
        self.handler = handler
        self.number = number
        self.method = method
        self.requeue = requeue
        self.at = 1
        self.upto = upto

    def step(self) -> bool:
        """A slice: as many deliveries as one takes, fewer when they are dead-lettered."""
        handler = self.handler
        until_ns = handler.broker.clock.monotonic_ns() + STEP_NS
        most = handler.broker.limits.work_step
        try:
            while most:
                self.at, most, dead = handler.connection.settle_some(self.number, self.method, self.requeue, self.at, self.upto, most)
                if not self.at:
                    break
                if dead:
                    publishing.dead_letter_one(handler, self.number, self.method, self.at)
                if handler.broker.clock.monotonic_ns() >= until_ns:
                    break
        except KeyError:
            return True  # the channel is gone, and its deliveries with it
        publishing.after_publish(handler)
        return not self.at


def settle(handler: Session, number: int, method: int, tag: int, multiple: bool, requeue: bool) -> None:
    """Settlements that are dead-lettered, or name more deliveries than the compiled half settles at once (it has begun then).

    Raises: PeerError 406: unknown delivery tag.
    """
    connection = handler.connection
    last = connection.last_tag(number)
    known = connection.is_unacked(number, tag) if not multiple else tag == 0 or 0 < connection.first_unacked(number) <= tag <= last
    if not known:
        raise PeerError(ReplyCode.PRECONDITION_FAILED, f"unknown delivery tag {tag}")
    if not multiple:
        publishing.dead_letter_one(handler, number, method, tag)
        publishing.after_publish(handler)
        return
    handler.works.add(handler, Settling(handler, number, method, tag or last, requeue).step, nothing)


def recover(handler: Session, number: int, done: Done) -> None:
    """basic.recover: every unacked delivery of the channel goes back to its place; then `done`."""
    handler.works.add(handler, Settling(handler, number, BasicNack.ID, handler.connection.last_tag(number), True).step, done)


def nothing() -> None:
    """A work without an answer."""


def end(handler: Session, states: list[ChannelState], last: Done | None, done: Done) -> None:
    """The end of channels that left (Connection.leave_channel, leave), or with them of their connection, in slices; then `done`.
    A small one is over before this returns, when no other work waits.

    Args: states: of the channels; last: what the connection does last, when its exclusive queues are gone, or None.
    """
    # Most channels have no consumer and little that is unacked, and most connections no exclusive queue: they take no work of their own.
    if not handler.works and _give_back(handler):
        for state in states:
            if state.consumers or state.reply_queue is not None:
                break
        else:
            if last is None or _queues_gone(handler):
                _left(handler, states, last)
                done()
                return
    handler.works.add(handler, partial(next, _end(handler, states, last), True), done)


def _give_back(handler: Session) -> bool:
    """Some of what the channels that left have unacked goes back to its queues; True: there is no more."""
    all_back: bool = handler.connection.end_some(handler.broker.limits.work_step)
    guarded("what came back", handler.name, publishing.after_publish, handler)
    return all_back


def _queues_gone(handler: Session) -> bool:
    """Some of the exclusive queues of a connection that ends go; True: there is none."""
    if handler.vhost is None or not handler.vhost.owns_queues(handler.connection_id):
        return True
    gone: list[bool] = []
    whole = guarded("connections that end", handler.name, lambda: gone.append(handler.vhost.connection_closed(handler.connection_id)))
    return not whole or gone[0]


def _left(handler: Session, states: list[ChannelState], last: Done | None) -> None:
    if states:
        handler.channels_left(len(states))
    if last is not None:
        last()


def _end(handler: Session, states: list[ChannelState], last: Done | None) -> Iterator[None]:
    """One slice after another."""
    broker = handler.broker
    # Whoever notifies a consumer may be about to use the socket's place on the run queue: the socket stays until all is over.
    _socket = handler.socket
    # Entries go back to their queues before auto-delete looks at whether the last consumer is gone.
    while not _give_back(handler):
        yield
    count = 0
    for state in states:
        for consumer in state.consumers.values():
            guarded("consumers that end", handler.name, _leave, handler, consumer)
            count += 1
            if count % CONSUMERS_AT_ONCE == 0:
                yield
        if state.reply_queue is not None:
            guarded("consumers that end", handler.name, broker.drop_reply_queue, state.reply_queue)
    while last is not None and not _queues_gone(handler):
        yield
    _left(handler, states, last)


def _leave(handler: Session, consumer: Consumer) -> None:
    handler.consumer_left(consumer)
    handler.broker.attachments.remove(consumer)
