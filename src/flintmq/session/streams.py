"""basic.consume on a stream: who may, and from where.

in: the method, its channel and queue. out: a seat on the stream for the consumer, or RabbitMQ's refusal.

S1  A group delivers nothing before its place is on disk: after a crash its deliveries would come again without a flag.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from flintmq.errors import PeerError, ReplyCode, StoreError
from flintmq.streams.handle import FilterDiffers, Seat
from flintmq.vhost.queue import Queue
from flintmq.vhost.stream_arguments import parse_stream_start

if TYPE_CHECKING:
    from flintmq.protocol.v0_9_1 import spec
    from flintmq.session.handlers import ConnectionHandler


# argument of basic.consume by which a client says that it takes messages out of queues: a stream refuses it, queues ignore it
NO_STREAM = "x-no-stream"


def open_seat(handler: ConnectionHandler, number: int, queue: Queue, method: spec.BasicConsume, again: Callable[[], None]) -> Seat | None:
    """What the consumer reads with. A group that has a place goes on there, whatever x-stream-offset says.

    None: the group is new; `again` is called, and asks again, when its place is on disk. What the client sends meanwhile waits.
    Raises: PeerError 406 for who wants no stream, without a prefetch, for a bad argument, or another filter than the group's; 540 with
    no_ack; 541 when the log takes no place.
    """
    description = handler.vhost.describe("queue", queue.name)
    if method.arguments.get(NO_STREAM):
        raise PeerError(ReplyCode.PRECONDITION_FAILED, f"{description} is a stream")
    if handler.connection.prefetch(number) == 0:
        raise PeerError(ReplyCode.PRECONDITION_FAILED, f"consumer prefetch count is not set for stream {description}")
    if method.no_ack:
        raise PeerError(ReplyCode.NOT_IMPLEMENTED, f"automatic acknowledgement not supported by stream {description}")
    start = parse_stream_start(method.arguments, description, handler.broker.clock.wall_ms())
    service = handler.broker.streams
    stream = None if service is None else service.get(queue.queue_id)
    if service is None or stream is None:
        raise PeerError(ReplyCode.NOT_FOUND, f"no {description}")  # another loop deleted it just now
    try:
        seat = stream.open_seat(start.kind, start.value, start.group or None, list(start.filters) or None, start.unfiltered)
    except FilterDiffers:
        name = start.group.decode("utf-8", "surrogateescape")
        text = f"inequivalent arg 'x-stream-filter' for consumer group '{name}' of {description}: all its consumers have the same filter"
        raise PeerError(ReplyCode.PRECONDITION_FAILED, text) from None
    if not start.group or service.has_place(queue.queue_id, start.group):
        return seat
    try:
        ticket = service.save_place(queue.queue_id, start.group)
    except StoreError as error:
        raise PeerError(ReplyCode.INTERNAL_ERROR, f"the place of a consumer group can't be logged: {error}") from error
    _wait(handler, ticket, again)
    return None


def _wait(handler: ConnectionHandler, ticket: int, again: Callable[[], None]) -> None:
    """Calls `again` on the connection's loop when the store's ticket is durable; nothing more is read of the connection until then."""
    durable = False

    def on_durable() -> None:
        nonlocal durable
        durable = True
        handler.head_came()

    def deferred() -> None:
        if durable:
            again()
        else:  # something else that the connection waited for has come
            wait()

    def wait() -> None:
        handler.deferred = deferred
        handler.connection.waiting = True

    wait()
    handler.broker.log.on_durable(ticket, on_durable)
