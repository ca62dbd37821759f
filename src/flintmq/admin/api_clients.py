"""RabbitMQ's API: connections, channels, consumers.

in: calls. out: what sessions know of themselves, read on their own loops where it is compiled state; connections closed with a reason.

C1  Who is neither administrator nor monitoring sees its own connections only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from operator import attrgetter
from typing import Any

from starlette.responses import Response

from flintmq.access.tags import sees_everything
from flintmq.admin.api_access import plain_list
from flintmq.admin.api_call import Call, nothing, waited
from flintmq.admin.api_lists import Listing, listed, one
from flintmq.admin.api_names import shown
from flintmq.admin.counts import counted
from flintmq.admin.http_refusals import HttpError, bad, missing
from flintmq.admin.json_out import Rows
from flintmq.admin.messages import plain
from flintmq.admin.operations import Operation, rabbit
from flintmq.broker import client_properties, closing

# channels that one slice of a loop tells about
_AT_ONCE = 64
_REASON_MAX = 200
# what a socket counts (SocketPort.traffic), by RabbitMQ's names: bytes and calls of the system
TRAFFIC = ("recv_oct", "recv_cnt", "send_oct", "send_cnt")
# what a channel counts (Connection.totals)
CHANNEL_STATS = ("publish", "confirm", "deliver_get", "redeliver", "ack", "return_unroutable", "drop_unroutable")


# --- connections ------------------------------------------------------------------------------------------------------------


def _connections(call: Call) -> list[Any]:
    """Those that the caller sees, by name (C1)."""
    handlers = list(call.broker.connections.values())
    if not sees_everything(call.tags):
        handlers = [handler for handler in handlers if handler.user == call.caller.user]
    if "vhost" in call.request.path_params:
        vhost = call.vhost()
        handlers = [handler for handler in handlers if handler.vhost is vhost]
    return sorted(handlers, key=attrgetter("name"))


def show_connection(call: Call, handler: Any) -> dict[str, Any]:
    host, _, port = call.broker.listen_name.rpartition(":")
    socket = handler.socket
    traffic = dict(zip(TRAFFIC, (0, 0, 0, 0) if socket is None else socket.traffic(), strict=True))
    return {
        "name": handler.name,
        "user": shown(handler.user),
        "user_who_performed_action": shown(handler.user),
        "vhost": "" if handler.vhost is None else handler.vhost.name,
        "node": call.app.node_name,
        "protocol": "AMQP 0-9-1",
        "type": "network",
        "state": "blocked" if handler.is_blocked or handler.broker.flow.holds(handler) else str(handler.state),
        "channels": len(handler.channels),
        "channel_max": handler.channel_max,
        "frame_max": handler.frame_size_max,
        "timeout": handler.heartbeat_s,
        "peer_host": handler.peer_host,
        "peer_port": handler.peer_port,
        "host": host,
        "port": int(port) if port.isdigit() else 0,
        "ssl": handler.secure,
        "auth_mechanism": handler.mechanism,
        "connected_at": handler.connected_at_ms,
        "client_properties": plain(client_properties.told(handler.client_properties)),
        "user_provided_name": plain(client_properties.connection_name(handler.client_properties)),
        **counted(call.app.rates, ("connection", handler.connection_id), traffic),
    }


# what orders a list without that each connection is shown for it
_KEYS: dict[str, Callable[[Any], Any]] = {
    "name": attrgetter("name"),
    "user": lambda handler: shown(handler.user),
    "vhost": lambda handler: "" if handler.vhost is None else handler.vhost.name,
    "channels": lambda handler: len(handler.channels),
    "connected_at": attrgetter("connected_at_ms"),
}


async def connections(call: Call) -> Response:
    return await listed(Listing(_connections(call), partial(show_connection, call), attrgetter("name"), _KEYS), call.query)


def _connection(call: Call) -> Any:
    """By its name, or by the one that its application gave it when that is the only one. Raises: HttpError 404; 400: several."""
    name = call.name("connection")
    seen = _connections(call)
    client = next((handler for handler in seen if handler.name == name), None)
    if client is not None:
        return client
    octets = name.encode("utf-8", "surrogateescape")
    named = [
        handler
        for handler in seen
        if octets in handler.client_properties and client_properties.connection_name(handler.client_properties) == name
    ]
    if not named:
        raise missing("connection", name)
    if len(named) > 1:
        raise bad(f"{len(named)} connections are called '{name}' by their application: say which by the name in the list")
    return named[0]


async def connection(call: Call) -> Response:
    return one(show_connection(call, _connection(call)), call.query)


async def close_connection(call: Call) -> Response:
    """An administrator closes any, others their own. The client is told the header X-Reason, or RabbitMQ's text."""
    client = _connection(call)
    if client.user != call.caller.user:
        call.service.allow(call.actor, "node.change")
    _close(call, lambda handler: handler is client)
    return nothing()


def _close(call: Call, which: Callable[[Any], bool]) -> None:
    octets = call.request.headers.get("x-reason", "Closed via management plugin").encode("latin-1")
    reason = octets.decode("utf-8", "replace")
    closing.close_connections(call.broker, which, "".join(one for one in reason if one.isprintable())[:_REASON_MAX])


async def connections_of(call: Call) -> Response:
    user = call.name("user")
    clients = [handler for handler in _connections(call) if handler.user == user]
    return await plain_list(call, clients, partial(show_connection, call))


async def close_connections_of(call: Call) -> Response:
    user = call.name("user")
    if user != call.caller.user:
        call.service.allow(call.actor, "node.change")
    _close(call, lambda handler: bool(handler.user == user))
    return nothing()


# --- channels ---------------------------------------------------------------------------------------------------------------


def _channels(handlers: Sequence[Any]) -> list[tuple[Any, int]]:
    return [(handler, number) for handler in handlers for number in sorted(handler.channels)]


def _channel_name(item: tuple[Any, int]) -> str:
    return f"{item[0].name} ({item[1]})"


def show_channel(call: Call, item: tuple[Any, int]) -> dict[str, Any]:
    """On the connection's loop, whose compiled state this reads; a channel that ended meanwhile shows zeros."""
    handler, number = item
    state, link = handler.channels.get(number), handler.connection
    gone = state is None or handler.ended
    unacked, unconfirmed, publishes, settles = (0, 0, 0, 0) if gone else link.figures(number)
    totals = (0,) * len(CHANNEL_STATS) if gone else link.totals(number)
    return {
        "name": _channel_name(item),
        "number": number,
        "vhost": "" if handler.vhost is None else handler.vhost.name,
        "user": shown(handler.user),
        "node": call.app.node_name,
        "state": "closed" if gone else "running",
        "connection_details": {"name": handler.name, "peer_host": handler.peer_host, "peer_port": handler.peer_port},
        "consumer_count": 0 if state is None else len(state.consumers),
        "confirm": not gone and link.is_confirm(number),
        "transactional": not gone and link.is_tx(number),
        "prefetch_count": 0 if gone else link.prefetch(number),
        "global_prefetch_count": 0,
        "messages_unacknowledged": unacked,
        "messages_unconfirmed": unconfirmed,
        "messages_uncommitted": publishes,
        "acks_uncommitted": settles,
        "message_stats": dict(zip(CHANNEL_STATS, totals, strict=True)),
    }


async def on_loops(items: Sequence[tuple[Any, int]], show: Callable[[tuple[Any, int]], Any]) -> list[Any]:
    """What `show` says of each, run on the loop of its connection, in slices."""
    loops: dict[int, tuple[Any, list[int]]] = {}
    for index, (handler, _) in enumerate(items):
        loops.setdefault(id(handler.loop), (handler.loop, []))[1].append(index)
    results: list[Any] = [None] * len(items)

    def begin(loop: Any, indexes: list[int], done: Callable[[Any, Exception | None], None]) -> None:
        remaining = iter(indexes)

        def step() -> bool:
            some = list(islice(remaining, _AT_ONCE))
            for index in some:
                results[index] = show(items[index])
            return not some

        loop.job(step, lambda whole: done(None, None if whole else HttpError(503, "closing", "the broker stops", "see docs/HTTP.md")))

    await asyncio.gather(*(waited(partial(begin, loop, indexes)) for loop, indexes in loops.values()))
    return results


async def _channel_list(call: Call, handlers: Sequence[Any]) -> Response:
    show = partial(show_channel, call)
    fetch: Any = lambda items: on_loops(items, show)  # noqa: E731
    return await listed(Listing(_channels(handlers), show, _channel_name, fetch=fetch), call.query)


async def channels(call: Call) -> Response:
    return await _channel_list(call, _connections(call))


async def channels_of(call: Call) -> Response:
    return await _channel_list(call, [_connection(call)])


async def channel(call: Call) -> Response:
    name = call.name("channel")
    item = next((item for item in _channels(_connections(call)) if _channel_name(item) == name), None)
    if item is None:
        raise missing("channel", name)
    (value,) = await on_loops([item], partial(show_channel, call))
    state = item[0].channels.get(item[1])
    consumers_ = [] if state is None else list(state.consumers.values())
    return one(value | {"consumer_details": Rows(consumers_, partial(show_consumer, call.app))}, call.query)


# --- consumers --------------------------------------------------------------------------------------------------------------


def show_consumer(app: Any, consumer: Any) -> dict[str, Any]:
    """Any thread: nothing compiled is read."""
    handler, queue = consumer.client, consumer.queue
    policy = getattr(queue, "policy", None)  # a reply queue has none
    status = "up"
    if policy is not None and policy.single_active_consumer:
        status = "single_active" if handler.broker.active.get(queue.queue_id) is consumer else "waiting"
    return {
        "consumer_tag": shown(consumer.tag),
        "queue": {"name": shown(queue.name), "vhost": queue.vhost},
        "channel_details": {
            "name": f"{handler.name} ({consumer.channel})",
            "number": consumer.channel,
            "user": shown(handler.user),
            "connection_name": handler.name,
            "peer_host": handler.peer_host,
            "peer_port": handler.peer_port,
            "node": app.node_name,
        },
        "ack_required": not consumer.no_ack,
        "exclusive": consumer.exclusive,
        "arguments": consumer.arguments,
        "active": status != "waiting",
        "activity_status": status,
        "consumer_timeout": consumer.arguments.get("x-consumer-timeout") or getattr(policy, "consumer_timeout_ms", None) or "undefined",
    }


async def consumers(call: Call) -> Response:
    """Those at queues of the virtual hosts that the caller sees."""
    seen = {vhost.name for vhost in call.vhosts()}
    with call.broker.lock:
        matching = [consumer for known in call.broker.consumers.values() for consumer in known if consumer.queue.vhost in seen]
    show = partial(show_consumer, call.app)

    async def fetch(some: Sequence[Any]) -> list[dict[str, Any]]:
        """The prefetch is its channel's compiled state."""
        prefetches = await on_loops([(each.client, each.channel) for each in some], _prefetch)
        return [show(each) | {"prefetch_count": prefetch} for each, prefetch in zip(some, prefetches, strict=True)]

    return await listed(Listing(matching, show, lambda each: str(each.tag), fetch=fetch), call.query, paged=False)


def _prefetch(item: tuple[Any, int]) -> int:
    handler, number = item
    return 0 if handler.ended or number not in handler.channels else int(handler.connection.prefetch(number))


def operations() -> list[Operation]:
    """The rows of this module."""
    return [
        rabbit("GET", "connections", "look", connections),
        rabbit("GET", "connections/{connection}", "look", connection),
        rabbit("DELETE", "connections/{connection}", "look", close_connection),
        rabbit("GET", "connections/{connection}/channels", "look", channels_of),
        rabbit("GET", "connections/username/{user}", "look", connections_of),
        rabbit("DELETE", "connections/username/{user}", "look", close_connections_of),
        rabbit("GET", "vhosts/{vhost}/connections", "vhost.use", connections),
        rabbit("GET", "channels", "look", channels),
        rabbit("GET", "vhosts/{vhost}/channels", "vhost.use", channels),
        rabbit("GET", "channels/{channel}", "look", channel),
        rabbit("GET", "consumers", "look", consumers),
        rabbit("GET", "consumers/{vhost}", "vhost.use", consumers),
    ]
