"""basic.consume on a stream: its checks, and the offset at which it begins.

in: the method, its channel and queue. out: a seat on the stream for the consumer, or RabbitMQ's refusal.

S1  A group delivers nothing before its place is on disk: after a crash its deliveries would come again without a flag.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from flintmq.errors import PeerError, ReplyCode
from flintmq.streams.control import FilterDiffers, Seat
from flintmq.vhost.queue import Queue
from flintmq.vhost.stream_arguments import parse_stream_start

if TYPE_CHECKING:
    from flintmq.protocol.v0_9_1 import spec
    from flintmq.session.session_port import Session


# argument of basic.consume by which a client says that it takes messages out of queues: a stream refuses it, queues ignore it
NO_STREAM = "x-no-stream"


def open_seat(handler: Session, number: int, queue: Queue, method: spec.BasicConsume, on_ready: Callable[[], None]) -> Seat | None:
    """What the consumer reads with. A group that has a place goes on there, whatever x-stream-offset says.

    None: the group is new; `on_ready` is called, and asks again, when its place is on disk. What the client sends meanwhile waits.
    Raises: PeerError 406 for one that wants no stream, without a prefetch, for a bad argument, or another filter than the group's; 540 with
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
    if service is None or service.get(queue.queue_id) is None:
        raise PeerError(ReplyCode.NOT_FOUND, f"no {description}")  # another loop deleted it just now
    wait = _Wait(handler, on_ready)
    try:
        seat = service.open_seat(
            queue.queue_id, wait.ready, (start.kind, start.value), start.group or None, list(start.filters) or None, start.unfiltered
        )
    except FilterDiffers:
        name = start.group.decode("utf-8", "surrogateescape")
        text = f"inequivalent arg 'x-stream-filter' for consumer group '{name}' of {description}: all its consumers have the same filter"
        raise PeerError(ReplyCode.PRECONDITION_FAILED, text) from None
    except PeerError as error:
        raise PeerError(ReplyCode.NOT_FOUND, f"no {description}") if error.code == ReplyCode.NOT_FOUND else error from None
    if seat is None:
        wait.begin()
    return seat


class _Wait:
    """Calls `on_ready` on the connection's loop when `ready` was called (any thread); nothing more is read of the connection until then."""

    def __init__(self, handler: Session, on_ready: Callable[[], None]) -> None:
        self._handler = handler
        self._on_ready = on_ready
        self._is_ready = False

    def ready(self) -> None:
        self._is_ready = True
        self._handler.head_came()

    def begin(self) -> None:
        self._wait()
        if self._is_ready:  # before anybody waited: say it once more
            self._handler.head_came()

    def _wait(self) -> None:
        self._handler.deferred = self._deferred
        self._handler.connection.waiting = True

    def _deferred(self) -> None:
        if self._is_ready:
            self._on_ready()
        else:  # something else that the connection waited for has come
            self._wait()
