"""Control-plane records of clients: open channels, consumers, hidden queues of direct reply-to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flintmq.channel.weights import consumer_bytes

if TYPE_CHECKING:
    from flintmq.broker.client import Client
    from flintmq.queue.control import QueueHandle


class ChannelState:
    """What the control plane knows of an open channel; the rest is the compiled channel_t."""

    __slots__ = ("aim", "consumers", "last_queue", "number", "reply_queue", "shared")

    def __init__(self, number: int) -> None:
        self.number = number
        # of a channel of another node: the shared queue that all its messages go to (cluster.node_vhost.Aim); None: it publishes nothing
        self.aim: Any = None
        # consumer tag -> Consumer
        self.consumers: dict[str, Consumer] = {}
        # the queue that an empty queue name means (specification 1.7.2.1): the last one declared on this channel
        self.last_queue = ""
        # direct reply-to: the hidden queue of this channel, or None
        self.reply_queue: Any = None
        # deliveries of shared queues went out on it
        self.shared = False


class ReplyQueue:
    """The hidden queue behind direct reply-to: not listed, not declared, gone with its channel."""

    __slots__ = ("core", "name", "vhost")

    def __init__(self, name: str, vhost: str, core: QueueHandle) -> None:
        self.name = name
        self.vhost = vhost
        self.core = core


class Consumer:
    """One basic.consume, as management and queue deletion see it."""

    __slots__ = ("arguments", "channel", "client", "exclusive", "no_ack", "priority", "queue", "remote", "tag", "weight")

    def __init__(
        self,
        client: Client,
        channel: int,
        tag: str,
        queue: Any,
        no_ack: bool,
        exclusive: bool,
        priority: int,
        arguments: dict[str, object],
    ) -> None:
        self.client = client
        self.channel = channel
        self.tag = tag
        self.queue = queue
        self.no_ack = no_ack
        self.exclusive = exclusive
        self.priority = priority
        self.arguments = arguments
        # of a shared queue that another node owns: its consumer there (cluster.remote_windows.RemoteConsumer)
        self.remote: Any = None
        self.weight = consumer_bytes(tag, arguments)
