"""Publisher confirms: which tags may be answered, and when.

in: a message that was put on its queues, with the LSN that its log records got and the ticket of its streams. out: basic.ack and
basic.nack at the end of the pass.

I1  A tag is confirmed when everything of its message is durable, in the log and in every stream; one that went to neither is at once.
I2  A `multiple` confirm never runs past an earlier tag that is not durable yet, nor over one that is refused.
I3  Every tag is answered once, and tags are answered in their order.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cfunc, declare, exceptval, nogil, pointer, sizeof, void
from cython.cimports.flintmq.core.atomics import at_load64
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.memory_account import MEMORY_CHANNELS, memory_add
from cython.cimports.flintmq.protocol.v0_9_1.ids import BASIC_ACK, BASIC_NACK
from cython.cimports.flintmq.session.delivery import write_confirm
from cython.cimports.flintmq.session.types import channel_t, connection_t, pending_confirm_t
from cython.cimports.libc.stdint import uint32_t, uint64_t
from cython.cimports.libc.stdlib import calloc, free

# stands for the LSN of a refused message: it is answered with basic.nack when its turn comes
REFUSED = declare(uint64_t, 0xFFFFFFFFFFFFFFFF)


def channel_note_confirm(
    connection: pointer[connection_t], channel: pointer[channel_t], lsn: uint64_t, ticket: uint64_t, refused: bint
) -> void:
    pending: pointer[pending_confirm_t]
    size: uint32_t
    i: uint32_t
    channel.publish_tag += 1
    connection.counters.received_confirm += 1
    if refused:
        lsn = REFUSED
    if lsn or ticket:
        if channel.pending_count == channel.pending_size:
            size = channel.pending_size * 2 if channel.pending_size else 64
            pending = cast(pointer[pending_confirm_t], calloc(size, sizeof(pending_confirm_t)))
            if pending == NULL:
                # Neither this message nor a later one is ever confirmed: the publisher may retry, nothing is claimed (I1).
                channel.publish_tag -= 1
                channel.confirm = False
                return
            for i in range(channel.pending_count):
                pending[i] = channel.pending[(channel.pending_first + i) & (channel.pending_size - 1)]
            memory_add(MEMORY_CHANNELS, (size - channel.pending_size) * sizeof(pending_confirm_t))
            free(channel.pending)
            channel.pending = pending
            channel.pending_size = size
            channel.pending_first = 0
        pending = address(channel.pending[(channel.pending_first + channel.pending_count) & (channel.pending_size - 1)])
        pending.tag = channel.publish_tag
        pending.lsn = lsn
        pending.ticket = ticket
        channel.pending_count += 1
    if not channel.confirm_dirty:
        channel.confirm_dirty = True
        channel.next_confirming = connection.confirming
        connection.confirming = channel


@cfunc
@nogil
@exceptval(check=False)
def _ack_up_to(connection: pointer[connection_t], channel: pointer[channel_t], tag: uint64_t) -> void:
    if tag > channel.confirmed:
        check(tag <= channel.publish_tag, b"confirms I3 no tag is answered that was not published", tag, channel.publish_tag)
        write_confirm(connection, channel.number, BASIC_ACK, tag, tag > channel.confirmed + 1)
        connection.counters.confirmed += tag - channel.confirmed
        channel.confirmed = tag


@cfunc
@nogil
@exceptval(check=False)
def _flush_channel(connection: pointer[connection_t], channel: pointer[channel_t], durable: uint64_t, durable_ticket: uint64_t) -> void:
    """Answers every tag that may be: those without a pending record, the durable and the refused, up to the first that waits (I2)."""
    upto: uint64_t = channel.publish_tag
    pending: pointer[pending_confirm_t]
    while channel.pending_count:
        pending = address(channel.pending[channel.pending_first])
        check(pending.tag > channel.confirmed, b"confirms I3 a tag is answered once", pending.tag, channel.confirmed)
        if pending.lsn == REFUSED:
            _ack_up_to(connection, channel, pending.tag - 1)
            write_confirm(connection, channel.number, BASIC_NACK, pending.tag, False)
            channel.confirmed = pending.tag
        elif pending.lsn > durable or pending.ticket > durable_ticket:
            upto = pending.tag - 1
            break
        channel.pending_first = (channel.pending_first + 1) & (channel.pending_size - 1)
        channel.pending_count -= 1
    _ack_up_to(connection, channel, upto)


def connection_flush_confirms(connection: pointer[connection_t]) -> void:
    channel: pointer[channel_t] = connection.confirming
    following: pointer[channel_t]
    durable: uint64_t = 0
    durable_ticket: uint64_t = 0
    if connection.port != NULL and connection.port.durable_lsn != NULL:
        durable = connection.port.durable_lsn(connection.port.context)
        durable_ticket = at_load64(address(connection.port.durable_ticket))
    connection.confirming = NULL
    while channel != NULL:
        following = channel.next_confirming
        channel.confirm_dirty = False
        if channel.open:
            _flush_channel(connection, channel, durable, durable_ticket)
            if channel.pending_count:
                channel.confirm_dirty = True
                channel.next_confirming = connection.confirming
                connection.confirming = channel
        channel = following
