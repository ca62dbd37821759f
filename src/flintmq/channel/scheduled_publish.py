"""A publish that asks for a time of its own goes to the schedule of its virtual host.

in: a complete message, and when it is due. out: an entry of the schedule, confirmed as on any queue.

The connection knows the schedule as a route with one queue (connection_t.timed), from the first such publish on; then the
message path needs no Python (channel/channel.py, channel_schedule).
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, p_char, pointer
from cython import int as c_int
from cython.cimports.flintmq.channel.channel import channel_schedule
from cython.cimports.flintmq.channel.connection import Connection
from cython.cimports.flintmq.channel.slow import SLOW_NONE
from cython.cimports.flintmq.channel.types import SLOWLY_ASKED, SLOWLY_SCHEDULED, channel_t
from cython.cimports.flintmq.protocol.v0_9_1.engine import FEED_ERROR, FEED_PAUSE
from cython.cimports.flintmq.queue.control import QueueHandle
from cython.cimports.flintmq.queue.schedule_share import ScheduleShare, share_incref
from cython.cimports.flintmq.routing.route_cache import route_decref, route_new
from cython.cimports.libc.stdint import int64_t, uint8_t

from flintmq.errors import PeerError, ReplyCode
from flintmq.protocol.v0_9_1 import spec


def due(connection: Connection, number: int) -> int:
    """See scheduled_publish.pyi."""
    channel: pointer[channel_t] = connection.channel(number)
    if channel.slow_publish & SLOWLY_ASKED:
        return -1
    return channel.due_ms if channel.slow_publish & SLOWLY_SCHEDULED else 0


def timed_accept(connection: Connection, number: c_int, due_ms: int64_t) -> bint:
    channel: pointer[channel_t] = connection.channel(number)
    channel.due_ms = due_ms
    result: c_int = channel_schedule(address(connection.connection), channel)
    if result == FEED_ERROR:
        code, text, channel_number, _, _ = connection.engine_error()
        raise PeerError(ReplyCode(code), text, hard=channel_number == 0)
    policy: bint = result == FEED_PAUSE and connection.connection.slow != SLOW_NONE
    connection.connection.slow = SLOW_NONE
    return policy


def _know(connection: Connection, handle: QueueHandle, share: ScheduleShare) -> object:
    """From now on the connection knows the schedule of its virtual host, and what its user may have there."""
    if connection.connection.timed != NULL:
        route_decref(connection.connection.timed)
        connection.connection.timed = NULL
    connection.connection.timed = route_new(cast(pointer[uint8_t], cast(p_char, b"\0\0")), 2, [handle], b"")
    share_incref(share.share)
    connection.connection.timed.destinations[0].share = share.share


def schedule(handler: object, channel: int, due_ms: int) -> None:
    """See scheduled_publish.pyi."""
    connection: Connection = handler.connection
    if connection.connection.timed != NULL:
        if timed_accept(connection, channel, due_ms):
            handler.after_publish()
        return

    def made(queue: object) -> None:
        _know(connection, queue.core, handler.broker.schedules.share(handler.vhost.name, handler.user))
        schedule(handler, channel, due_ms)

    try:
        handler.change(channel, spec.BasicPublish(), handler.vhost.open_schedule(), made)
    except BaseException:
        connection.discard(channel)
        raise
