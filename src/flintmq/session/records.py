"""Control-plane records of a session: open channels and consumers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flintmq.session.weights import consumer_bytes

if TYPE_CHECKING:
    from flintmq.session.handlers import ConnectionHandler


class ChannelState:
    """What the control plane knows of an open channel; the rest is the compiled channel_t."""

    __slots__ = ("consumers", "last_queue", "number", "reply_queue", "shared")

    def __init__(self, number: int) -> None:
        self.number = number
        # consumer tag -> Consumer
        self.consumers: dict[str, Consumer] = {}
        # the queue that an empty queue name means (specification 1.7.2.1): the last one declared on this channel
        self.last_queue = ""
        # direct reply-to: the hidden queue of this channel, or None
        self.reply_queue: Any = None
        # deliveries of shared queues went out on it
        self.shared = False


class Consumer:
    """One basic.consume, as management and queue deletion see it."""

    __slots__ = ("arguments", "channel", "exclusive", "handler", "no_ack", "priority", "queue", "tag", "weight")

    def __init__(
        self,
        handler: ConnectionHandler,
        channel: int,
        tag: str,
        queue: Any,
        no_ack: bool,
        exclusive: bool,
        priority: int,
        arguments: dict[str, object],
    ) -> None:
        self.handler = handler
        self.channel = channel
        self.tag = tag
        self.queue = queue
        self.no_ack = no_ack
        self.exclusive = exclusive
        self.priority = priority
        self.arguments = arguments
        self.weight = consumer_bytes(tag, arguments)
