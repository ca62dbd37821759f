"""What connections ask of shared queues: declare, delete, get, purge, and what a channel may not do with them.

in: methods. out: answers, when the engine gave its own; in between nothing more of the connection is read, and others go on.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from flintmq.broker.pausing import QUIET
from flintmq.errors import PeerError, ReplyCode
from flintmq.protocol.v0_9_1 import spec
from flintmq.protocol.v0_9_1.codec import encode_method
from flintmq.vhost.arguments import SHARED

if TYPE_CHECKING:
    from flintmq.broker.records import ChannelState, Consumer
    from flintmq.session.session_port import Session

# a channel that acknowledges deliveries of a shared queue in transactions, and consumes by a node that does not serve it
ELSEWHERE = "acknowledgements in a transaction (tx class) need a connection to the node that serves the shared queue"


def is_new(handler: Session, name: str, method: spec.QueueDeclare) -> bool:
    """Whether a declaration is for a shared queue that this node does not have."""
    return not method.passive and method.arguments.get("x-queue-type") == SHARED and name not in handler.vhost.queues


def declare(handler: Session, number: int, method: spec.QueueDeclare, name: str, proceed: Callable[[], None]) -> None:
    """Makes the queue in the engine, then `proceed` declares it here. The caller has authorized it. Raises: PeerError 406."""

    def done(result: Any, error: Exception | None) -> None:
        handler.loop.call(partial(_answered, handler, number, method.ID, proceed, error))

    shared = handler.broker.shared_service()
    if shared is None:
        proceed()  # which says why not
        return
    properties = {"durable": method.durable, "exclusive": method.exclusive, "auto_delete": method.auto_delete}
    shared.declare(handler.vhost, name, method.arguments, properties, done)
    handler.connection.waiting = True


def served(handler: Session, number: int, method_id: int, answer: Callable[[Any], None]) -> Callable[[Any], None]:
    """`answer` of a declaration, after the queue is served."""

    def declared(queue: Any) -> None:
        if not waits_for_owner(handler, number, method_id, queue, partial(answer, queue)):
            answer(queue)

    return declared


def waits_for_owner(handler: Session, number: int, method_id: int, queue: Any, proceed: Callable[[], None]) -> bool:
    """True: the queue is not served yet, and `proceed` goes on when it is; the client is told 541 when that takes too long."""
    broker = handler.broker
    shared = broker.shared
    if not queue.policy.is_shared or shared is None or shared.is_served(queue.queue_id):
        return False
    handler.connection.waiting = True
    shared.when_served(queue.queue_id, lambda error: handler.loop.call(partial(_answered, handler, number, method_id, proceed, error)))
    return True


def waits_for_opening(handler: Session, number: int, method_id: int, queue: Any, proceed: Callable[[], None]) -> bool:
    """True: the engine is told first that somebody takes messages of the queue, then `proceed` goes on; else as `waits_for_owner`."""
    broker = handler.broker
    if not broker.resting.get(queue.queue_id, 0) & QUIET or broker.shared is None:
        return False
    handler.connection.waiting = True

    def done(_: Any, error: Exception | None) -> None:
        handler.loop.call(partial(_answered, handler, number, method_id, proceed, error))

    broker.shared.opened(queue.queue_id, done)
    return True


def delete(handler: Session, number: int, method: spec.QueueDelete, queue: Any, proceed: Callable[[], None]) -> None:
    """Deletes the queue in the engine, then `proceed` deletes it here. The caller has authorized it. Raises: PeerError 406."""
    where = handler.vhost.describe("queue", queue.name)
    if method.if_unused and queue.core.consumer_count():
        raise PeerError(ReplyCode.PRECONDITION_FAILED, f"{where} in use")
    handler.connection.waiting = True

    def done(result: Any, error: Exception | None) -> None:
        handler.loop.call(partial(_answered, handler, number, method.ID, proceed, error))

    shared = handler.broker.shared
    assert shared is not None
    shared.delete_in_engine(queue.vhost, queue.name, method.if_empty, done, method.if_unused)


def check_channel(handler: Session, number: int, state: ChannelState, queue: Any, no_ack: bool) -> None:
    """Raises: PeerError 540: deliveries by another node are settled there, and a transaction of this one can't end them."""
    if no_ack or not handler.broker.is_window(queue):
        return
    if handler.connection.is_tx(number):
        where = handler.vhost.describe("queue", queue.name)
        raise PeerError(ReplyCode.NOT_IMPLEMENTED, f"{ELSEWHERE} {where}")
    state.shared = True


def check_browser(handler: Session, queue: Any) -> None:
    """Raises: PeerError 406: a browser has nothing to settle, so nothing says how much of a queue another node may be sent for it."""
    if handler.broker.is_window(queue):
        where = handler.vhost.describe("queue", queue.name)
        owner = handler.broker.shared.owner_text(queue.queue_id)
        raise PeerError(ReplyCode.PRECONDITION_FAILED, f"a browser of a shared queue connects to its owner, {owner}: {where}")


def moved(queue: Any) -> PeerError:
    """Clients find the queue's owner by connecting again."""
    return PeerError(ReplyCode.CONNECTION_FORCED, f"shared queue '{queue.name}' in vhost '{queue.vhost}' moved")


def consume(handler: Session, number: int, method: spec.BasicConsume, consumer: Consumer, begun: Callable[[], None]) -> None:
    """basic.consume of a queue that another node owns: a consumer there, and a window for this one. `begun` when it is attached."""
    broker, queue = handler.broker, consumer.queue
    shared = broker.shared
    assert shared is not None
    handler.connection.waiting = True

    def attach(remote: Any) -> None:
        consumer.remote = remote
        tag = consumer.tag.encode("utf-8", "surrogateescape")
        handler.consumer_came(consumer)
        attached = handler.connection.consume(number, remote.core, tag, consumer.no_ack, False, 0, False)
        if not attached or not broker.attachments.add(consumer):
            handler.consumer_left(consumer)
            if attached:
                handler.connection.cancel(number, tag)
            shared.left(consumer)
            raise PeerError(ReplyCode.NOT_FOUND, f"no queue '{queue.name}' in vhost '{queue.vhost}'")
        handler.channels[number].consumers[consumer.tag] = consumer
        begun()

    def answer(remote: Any, error: Exception | None) -> None:
        if handler.ended and remote is not None:
            consumer.remote = remote
            shared.left(consumer)
        _answered_by_owner(handler, number, method, queue, partial(attach, remote), error)

    prefetch = 0 if method.no_ack else handler.connection.prefetch(number)
    wish = (queue.vhost, prefetch, method.exclusive, method.arguments)
    shared.consume(consumer, wish, lambda remote, error: handler.loop.call(partial(answer, remote, error)))


def get(handler: Session, number: int, method: spec.BasicGet, queue: Any) -> None:
    """basic.get of a queue that is a window here. Raises: PeerError."""
    shared = handler.broker.shared
    assert shared is not None
    handler.connection.waiting = True

    def take(got: Any) -> None:
        if got is None:
            handler.broker.counters.gets_empty += 1
            handler.send(number, spec.BasicGetEmpty())
        elif not handler.connection.get(number, got.core, method.no_ack):
            raise PeerError(ReplyCode.INTERNAL_ERROR, "no memory for a message of another node")

    def answer(got: Any, error: Exception | None) -> None:
        _answered_by_owner(handler, number, method, queue, partial(take, got), error)
        if got is not None:
            shared.thread.call(got.over)

    shared.get(queue, lambda got, error: handler.loop.call(partial(answer, got, error)))


def counted(handler: Session, number: int, method_id: int, queue: Any, answer: Callable[[int, int], None]) -> None:
    """`answer(ready messages, consumers)` as the owner of a queue has them; zeros while it is not reached."""
    shared = handler.broker.shared
    if shared is None or not handler.broker.is_window(queue):
        answer(queue.core.ready_count(), queue.core.consumer_count())
        return
    handler.connection.waiting = True

    def done(counts: tuple[int, int] | None, error: Exception | None) -> None:
        handler.loop.call(partial(_answered, handler, number, method_id, partial(answer, *(counts or (0, 0))), None))

    shared.counts(queue.queue_id, done, True)


def purge(handler: Session, number: int, method: spec.QueuePurge, queue: Any) -> None:
    """queue.purge: what is ready on any node goes; what consumers hold stays."""

    def done(count: int, error: Exception | None) -> None:
        def answer() -> None:
            if not method.no_wait:
                handler.send(number, spec.QueuePurgeOk(count))

        handler.loop.call(partial(_answered, handler, number, method.ID, answer, error))

    handler.connection.waiting = True
    shared = handler.broker.shared
    assert shared is not None
    shared.purge(queue.queue_id, done)


def _answered_by_owner(
    handler: Session, number: int, method: spec.Method, queue: Any, answer: Callable[[], None], error: Exception | None
) -> None:
    """As `_answered`. A refusal of a queue that is served here by now is none: the method is served anew."""
    if error is not None and not handler.broker.is_window(queue):
        answer, error = partial(handler.method, number, encode_method(method), method.ID), None
    _answered(handler, number, method.ID, answer, error)


def _answered(handler: Session, number: int, method_id: int, answer: Callable[[], None], error: Exception | None) -> None:
    """On the connection's loop: the engine has answered."""
    if handler.ended:
        return
    handler.connection.waiting = False
    try:
        if number in handler.channels:
            if error is not None:
                raise error
            answer()
    except PeerError as refusal:
        handler.refuse(number, refusal, method_id)
    if handler.socket is not None and not handler.connection.waiting:
        handler.loop.resume(handler.socket)
        handler.loop.touch(handler.socket)
