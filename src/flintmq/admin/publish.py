"""Publish to one queue over HTTP.

in: a parsed message, an authorized queue. out: `{"position": n, "durable": bool}` once the message is where it belongs: a persistent one in
a durable queue is on disk by then (the same rule as a publisher confirm).
"""

from __future__ import annotations

import asyncio
from typing import Any

from flintmq.admin.api_call import waited
from flintmq.admin.http_refusals import HttpError, busy
from flintmq.admin.messages import Publish
from flintmq.admin.parts import Parts
from flintmq.channel.scheduling import due_of
from flintmq.core.content import bytes_mapped
from flintmq.pulls.requests import is_durable, place, publishers_wait
from flintmq.vhost.arguments import DROPPING

# seconds between two looks at the log
_LOOK_S = 0.001


async def publish(parts: Parts, user: object, queue: Any, message: Publish) -> dict[str, Any]:
    """Raises: HttpError 404, 409, 503."""
    core, broker = queue.core, parts.broker
    if publishers_wait(broker.log) or bytes_mapped() > parts.memory_limit:
        raise busy("the broker is low on memory or disk: publishers are blocked", "consume messages or free space, and try again")
    vhost = broker.vhosts.get(queue.vhost)
    due_ms, header = due_of(message.header, broker.clock.wall_ms() + 1)
    if due_ms and vhost is not None:
        key = queue.name.encode("utf-8", "surrogateescape")
        position, lsn = await schedule(parts, vhost, user, (b"", key), message._replace(header=header), due_ms)
        if position == 0:
            raise HttpError(409, "queue_full", f"the schedule of vhost '{vhost.name}' is full", "wait until messages are due")
        return {"vhost": queue.vhost, "queue": queue.name, "position": position, "durable": bool(lsn), "due_ms": due_ms}
    if is_full(queue, len(message.body)):
        broker.counters.drop("refused")
        raise HttpError(409, "queue_full", f"queue '{queue.name}' is full and refuses messages", "consume messages, or raise its limit")
    expires_at = expiry_on(core, message.expiration_ms, broker.clock.wall_ms())
    key = queue.name.encode("utf-8", "surrogateescape")
    fields = b"", key, message.header, message.body, message.flags, message.priority or 0
    if queue.policy.is_shared:
        if not await to_shared(parts, queue, fields, expires_at):
            raise HttpError(
                503, "not_taken", "the engine of shared queues does not take the message", "it may be there: check before you repeat it"
            )
        return {"vhost": queue.vhost, "queue": queue.name, "position": 0, "durable": True}
    position, lsn, ticket = place(core, broker.log, fields, expires_at)
    if position == 0:
        raise HttpError(404, "not_found", f"no queue '{queue.name}' in vhost '{queue.vhost}'", "it was deleted: declare it first")
    broker.queue_limits.settle(queue)
    await durable(parts, lsn, ticket)
    return {"vhost": queue.vhost, "queue": queue.name, "position": position, "durable": bool(lsn or ticket)}


async def to_shared(parts: Parts, queue: Any, fields: tuple[bytes, bytes, bytes, bytes, int, int], expires_at_ms: int) -> bool:
    """Whether the engine has the message. fields: exchange, routing key, header, body, flags, priority."""
    loop = asyncio.get_running_loop()
    taken: asyncio.Future[bool] = loop.create_future()

    def tell(outcome: bool) -> None:
        if not taken.done():
            taken.set_result(outcome)

    def on_outcome(outcome: bool) -> None:
        loop.call_soon_threadsafe(tell, outcome)

    shared = parts.broker.shared
    return shared is not None and shared.publish(queue.core, fields, expires_at_ms, on_outcome) and await taken


async def schedule(parts: Parts, vhost: Any, user: object, route: tuple[bytes, bytes], message: Publish, due_ms: int) -> tuple[int, int]:
    """Puts a message on the schedule of its virtual host; it is on disk when this returns, if it is persistent.

    Args: route: exchange and routing key. Returns: (position there, 0: the schedule is full, or this user's share of it; LSN, 0: it is not
    on disk).
    Raises: HttpError 503; StoreError; PeerError: the virtual host is deleted.
    """
    loop = asyncio.get_running_loop()

    def call(function: Any) -> None:
        loop.call_soon_threadsafe(function)

    queue = vhost.schedule or await waited(lambda done: vhost.perform(vhost.open_schedule(), call, done))
    share = parts.broker.schedules.share(vhost.name, user)
    if not share.takes(len(message.body)) or queue.core.refuses(len(message.body)):
        parts.broker.counters.drop("refused")
        return 0, 0
    fields = *route, message.header, message.body, message.flags, message.priority or 0
    position, lsn, ticket = place(queue.core, parts.broker.log, fields, due_ms)
    share.note(due_ms, len(message.body))
    await durable(parts, lsn, ticket)
    return position, lsn


def expiry_on(core: Any, expiration_ms: int | None, now_ms: int) -> int:
    """When a message expires on this queue, wall clock, milliseconds; 0: never. expiration_ms: its own."""
    own = None if expiration_ms is None else max(expiration_ms, core.ttl_least_ms)
    times = [time for time in (core.ttl_ms if core.ttl_ms >= 0 else None, own) if time is not None]
    return now_ms + min(times) if times else 0


def is_full(queue: Any, size: int) -> bool:
    """Whether a queue refuses a message of this size."""
    return not queue.policy.is_stream and queue.policy.overflow not in DROPPING and queue.core.refuses(size)


async def durable(parts: Parts, lsn: int, ticket: int) -> None:
    """Returns when the log is on disk up to there. Raises: HttpError 503."""
    until = asyncio.get_running_loop().time() + parts.broker.limits.http_durable_ms / 1000
    while not is_durable(parts.broker.log, lsn, ticket):
        if (parts.store is not None and parts.store.failure is not None) or asyncio.get_running_loop().time() > until:
            raise HttpError(503, "not_durable", "the message is not known to be on disk", "it may be there: check before you repeat it")
        await asyncio.sleep(_LOOK_S)
