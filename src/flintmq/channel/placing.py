"""One message onto the queues of its route: expiry, length limits, immediate, mandatory, confirm.

in: a complete message and its route. out: entries on queues; returns and confirms noted; what a full queue refuses or drops.

I1  A message that a confirm answers is in every queue of its route, and every log it was written to is durable.
I2  A queue that is deleted between routing and placing is no place for a message: the message is routed anew, until every queue of a
    route answered for itself. A message is confirmed as unroutable only when the routing table of that moment leads it nowhere.
I3  A tag is confirmed when everything of its message is durable, in the log and in every stream; one that went to neither is at once.
I4  A `multiple` confirm never runs past an earlier tag that is not durable yet, nor over one that is refused.
I5  Every tag is answered once, and tags are answered in their order.
"""

from __future__ import annotations

import logging
import struct

from cython import NULL, address, bint, cast, cclass, cfunc, declare, exceptval, gil, inline, nogil, p_char, pointer, sizeof, void
from cython import int as c_int
from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
from cython.cimports.flintmq.channel.arrival import drop_head, expiry_on
from cython.cimports.flintmq.channel.delivery import write_confirm, write_return
from cython.cimports.flintmq.channel.letters import letter_refused, letters_drop_head, note_refused
from cython.cimports.flintmq.channel.slow import SLOW_POLICY
from cython.cimports.flintmq.channel.types import (
    DROP_MAXLEN, DROP_PASSED, DROP_REFUSED, DROP_UNROUTABLE, channel_t, connection_t, pending_confirm_t,
)  # fmt: skip
from cython.cimports.flintmq.core.atomics import at_load32, at_load64, at_store32
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.content import (
    CONTENT_HEADERS, CONTENT_PERSISTENT, CONTENT_SHARED, content_decref, content_from_bytes, content_header, content_t,
)  # fmt: skip
from cython.cimports.flintmq.core.counters import counters_receive
from cython.cimports.flintmq.core.memory_account import MEMORY_CHANNELS, memory_add
from cython.cimports.flintmq.mirror.mirror import mirror_of
from cython.cimports.flintmq.mirror.segments import MIRROR_LOST, MIRROR_SETTLED, MIRROR_WAITS, mirror_admits, mirror_outcome
from cython.cimports.flintmq.protocol.v0_9_1.engine import FEED_MORE, FEED_PAUSE
from cython.cimports.flintmq.protocol.v0_9_1.ids import BASIC_ACK, BASIC_NACK
from cython.cimports.flintmq.queue.control import QueueHandle
from cython.cimports.flintmq.queue.handoff import (
    RECEIPT_SHIFT, handoff_publish, handoff_rests, receipt_decref, receipt_new, receipt_t, receipt_ticket, ticket_receipt,
)  # fmt: skip
from cython.cimports.flintmq.queue.limits import queue_limit_waits, queue_over_limit, queue_refuses
from cython.cimports.flintmq.queue.queue_core import (
    queue_enqueue, queue_enqueue_immediate, queue_enqueue_once, queue_incref, queue_is_deleted, queue_ready_bytes, queue_ready_count,
)  # fmt: skip
from cython.cimports.flintmq.queue.schedule_share import share_note, share_takes
from cython.cimports.flintmq.queue.types import REASON_DROP, due_index_t, log_port_t, queue_t
from cython.cimports.flintmq.routing.route_cache import (
    DEST_BLOCK, DEST_DEAD_LETTERS, DEST_LIMITED, DEST_MIRRORED, DEST_ONCE, DEST_REJECT_DEAD_LETTER, DEST_REJECT_OVER, DEST_SHARED,
    DEST_STREAM, destination_t, route_decref, route_new, route_t,
)  # fmt: skip
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import calloc, free
from cython.cimports.libc.string import memset

from flintmq.config import Limits

_LIMITS = Limits()
# rests of a mirror's allowance at which a publisher that can wait may publish still (mirror/segments.pxd)
MIRROR_LOW = declare(uint32_t, 1)
WIDE_ROUTE = declare(uint32_t, _LIMITS.wide_route)
WIDE_TURN = declare(uint32_t, _LIMITS.wide_turn)
# stands beside PUBLISH_*: a message that nobody waits for, so that a full queue refuses it where it blocks publishers (x-overflow block)
FOR_NOBODY = declare(uint8_t, 128)


def publish_to_queues(
    connection: pointer[connection_t],
    channel: pointer[channel_t],
    route: pointer[route_t],
    content: pointer[content_t],
    bits: uint8_t,
    expiration_ms: int64_t,
) -> c_int:
    tally: tally_t
    destination: pointer[destination_t]
    i: uint32_t
    memset(address(tally), 0, sizeof(tally_t))
    tally.awaited = channel.confirm
    channel.published += 1
    if not channel.publishing:
        channel.publishing = True
        connection.counters.publishers += 1
    counters_receive(connection.counters, content.body_len)
    if route.count > 1 and connection.port != NULL and content.flags & CONTENT_PERSISTENT:
        content.flags |= CONTENT_SHARED  # nobody else has the content yet
    for i in range(route.count):
        destination = address(route.destinations[i])
        if destination.flags or destination.ttl_ms >= 0 or expiration_ms >= 0 or bits & PUBLISH_IMMEDIATE:
            _place(connection, destination, content, bits, expiration_ms, address(tally))
        elif queue_enqueue(destination.queue, content, 0, 0, address(tally.lsn)):
            tally.placed += 1  # most messages: nothing but the queue has a say
        else:
            _count_not_placed(connection, destination, bits, address(tally))
    if tally.gone:
        if channel.aimed:
            tally.refused += tally.gone
        else:
            _place_anew(connection, route, content, bits, expiration_ms, address(tally))
    connection.counters.routed += tally.placed
    if tally.placed == 0:
        _answer_not_placed(connection, channel, content, bits, address(tally))
    elif tally.lsn or tally.ticket:
        _note_logged(connection, address(tally), channel.confirm)
        if content.message_id and content.flags & CONTENT_SHARED:
            connection.port.placed(connection.port.context, content)
    if channel.confirm:
        channel_note_confirm(connection, channel, tally.lsn, tally.ticket, tally.refused != 0)
    elif tally.ticket:
        receipt_decref(ticket_receipt(tally.ticket))
    content_decref(content)
    if tally.policy:
        connection.slow = SLOW_POLICY
        connection.slow_channel = channel.number
        return FEED_PAUSE
    return FEED_PAUSE if _was_wide(connection, route) else FEED_MORE


@cfunc
@inline
@nogil
@exceptval(check=False)
def _was_wide(connection: pointer[connection_t], route: pointer[route_t]) -> bint:
    """Whether messages to very many queues, or that very many exchanges remember, have used up the turn."""
    count: uint32_t = route.count
    if route.keeping != NULL:
        count += route.keeping.count
    if count <= WIDE_ROUTE:
        return False
    connection.wide += count
    return connection.wide > WIDE_TURN


def place_copy(connection: pointer[connection_t], route: pointer[route_t], content: pointer[content_t]) -> bint:
    tally: tally_t
    refused: uint64_t = connection.dropped[DROP_REFUSED]
    passed: uint64_t = connection.dropped[DROP_PASSED]
    i: uint32_t
    memset(address(tally), 0, sizeof(tally_t))
    for i in range(route.count):
        _place(connection, address(route.destinations[i]), content, FOR_NOBODY, -1, address(tally))
    if tally.gone:
        _place_anew(connection, route, content, FOR_NOBODY, -1, address(tally))
    connection.dropped[DROP_MAXLEN] += connection.dropped[DROP_REFUSED] - refused - (connection.dropped[DROP_PASSED] - passed)
    connection.dropped[DROP_REFUSED] = refused
    connection.dropped[DROP_PASSED] = passed
    if tally.ticket:
        _note_logged(connection, address(tally), False)
        receipt_decref(ticket_receipt(tally.ticket))
    return _was_wide(connection, route)


@cfunc
@nogil
@exceptval(check=False)
def _note_logged(connection: pointer[connection_t], tally: pointer[tally_t], confirm: bint) -> void:
    if tally.lsn > connection.logged:
        connection.logged = tally.lsn
    if tally.ticket and connection.logged == 0:
        connection.logged = 1
    if tally.ticket or confirm:
        connection.awaited = True


@cfunc
@nogil
@exceptval(check=False)
def _answer_not_placed(
    connection: pointer[connection_t],
    channel: pointer[channel_t],
    content: pointer[content_t],
    bits: uint8_t,
    tally: pointer[tally_t],
) -> void:
    """No queue has it: returned when its publisher asked for that, else counted."""
    if bits & (PUBLISH_MANDATORY | PUBLISH_IMMEDIATE) and tally.unwanted == 0 and tally.refused == 0:
        write_return(connection, channel.number, 312, b"NO_ROUTE", content)
        channel.returned += 1
        connection.counters.returned += 1
    elif bits & PUBLISH_IMMEDIATE:
        write_return(connection, channel.number, 313, b"NO_CONSUMERS", content)
        channel.returned += 1
    elif tally.refused == 0:
        connection.dropped[DROP_UNROUTABLE] += 1
        connection.counters.dropped += 1
        channel.unroutable += 1


@cfunc
@nogil
@exceptval(check=False)
def _place(
    connection: pointer[connection_t],
    destination: pointer[destination_t],
    content: pointer[content_t],
    bits: uint8_t,
    expiration_ms: int64_t,
    tally: pointer[tally_t],
) -> void:
    """The message onto one queue: exactly one of the tally's four counts goes up."""
    expires_at: int64_t
    position: uint64_t
    if destination.flags & DEST_STREAM:
        # Whether it is read at once or in a year: `immediate` asks nothing of a stream, and nothing in it expires.
        _place_on_stream(connection, destination, content, tally)
        return
    expires_at = expiry_on(destination, expiration_ms)
    if destination.flags & DEST_SHARED:
        _place_on_shared(connection, destination, content, expires_at, bits, tally)
        return
    if (destination.share != NULL and not share_takes(destination.share, 0, 0, content.body_len)) or (
        destination.flags & DEST_MIRRORED
        and not mirror_admits(mirror_of(destination.queue), content.body_len, 0 if bits & FOR_NOBODY else MIRROR_LOW)
    ):
        tally.refused += 1
        connection.dropped[DROP_REFUSED] += 1
        return
    if (
        destination.flags & DEST_REJECT_OVER
        and (
            queue_ready_count(destination.queue) + at_load64(address(destination.queue.kept)) >= destination.queue.max_length
            or queue_ready_bytes(destination.queue) + at_load64(address(destination.queue.kept_bytes)) + content.body_len
            > destination.queue.max_bytes
        )
        and queue_refuses(destination.queue, content.body_len, 0, 0)
    ):
        if queue_is_deleted(destination.queue):
            tally.gone += 1  # a deleted queue may be full of the entries that end with it
            return
        tally.refused += 1
        connection.dropped[DROP_REFUSED] += 1
        if destination.flags & DEST_REJECT_DEAD_LETTER:
            tally.policy = letter_refused(connection, destination.queue, content) or tally.policy
        return
    if destination.flags & DEST_BLOCK and (
        queue_refuses(destination.queue, content.body_len, 0, 0) if bits & FOR_NOBODY else _is_past_bound(destination.queue)
    ):
        tally.refused += 1
        connection.dropped[DROP_REFUSED] += 1
        return
    if destination.flags & DEST_ONCE:
        position = queue_enqueue_once(destination.queue, content, expires_at, bits & PUBLISH_IMMEDIATE, address(tally.lsn))
    elif bits & PUBLISH_IMMEDIATE:
        position = queue_enqueue_immediate(destination.queue, content, 0, expires_at, address(tally.lsn))
    else:
        position = queue_enqueue(destination.queue, content, 0, expires_at, address(tally.lsn))
    if position == 0:
        _count_not_placed(connection, destination, bits, tally)
        return
    tally.placed += 1
    if destination.flags & DEST_MIRRORED:
        _note_mirrored(connection, destination.queue, position, tally)
    if destination.share != NULL:
        share_note(destination.share, expires_at, content.body_len)
    if destination.flags & DEST_LIMITED and queue_over_limit(destination.queue) and not queue_limit_waits(destination.queue):
        if not destination.flags & DEST_DEAD_LETTERS:
            connection.dropped[DROP_MAXLEN] += drop_head(destination.queue)
        else:
            tally.policy = letters_drop_head(connection, destination.queue) or tally.policy
    elif destination.flags & DEST_BLOCK and not bits & FOR_NOBODY and queue_over_limit(destination.queue):
        tally.policy = note_refused(connection, destination.queue, NULL, REASON_DROP) or tally.policy


@cfunc
@nogil
@exceptval(check=False)
def _place_on_stream(
    connection: pointer[connection_t], destination: pointer[destination_t], content: pointer[content_t], tally: pointer[tally_t]
) -> void:
    receipt: pointer[receipt_t] = ticket_receipt(tally.ticket)
    ticket: uint64_t = tally.ticket
    if receipt != NULL:
        ticket = receipt.ticket
    _count_stream(connection, place_on_stream(connection.port, destination.queue, content, address(ticket)), tally)
    if receipt != NULL:
        receipt.ticket = ticket
    else:
        tally.ticket = ticket


@cfunc
@nogil
@exceptval(check=False)
def _place_on_shared(
    connection: pointer[connection_t],
    destination: pointer[destination_t],
    content: pointer[content_t],
    expires_at_ms: int64_t,
    bits: uint8_t,
    tally: pointer[tally_t],
) -> void:
    """To the service of shared queues. The confirm waits for the receipt, which stands in the tally's ticket."""
    receipt: pointer[receipt_t] = ticket_receipt(tally.ticket)
    if receipt == NULL:
        receipt = receipt_new()
        if receipt != NULL:
            receipt.ticket = tally.ticket
            tally.ticket = receipt_ticket(receipt)
    if queue_is_deleted(destination.queue):
        tally.gone += 1
    elif receipt != NULL and handoff_publish(destination.queue, content, expires_at_ms, receipt):
        tally.placed += 1
        if not bits & FOR_NOBODY and handoff_rests(destination.queue):
            _hold_up(connection, destination.queue, tally)
    else:
        tally.refused += 1
        connection.dropped[DROP_REFUSED] += 1


@cfunc
@nogil
@exceptval(check=False)
def _hold_up(connection: pointer[connection_t], queue: pointer[queue_t], tally: pointer[tally_t]) -> void:
    """The engine is nearly full: the publisher waits from now on."""
    tally.policy = note_refused(connection, queue, NULL, REASON_DROP) or tally.policy


@cfunc
@nogil
@exceptval(check=False)
def _note_mirrored(connection: pointer[connection_t], queue: pointer[queue_t], position: uint64_t, tally: pointer[tally_t]) -> void:
    if tally.awaited and not _await_mirror(queue, position, tally):
        tally.refused += 1  # it is there, and nobody will be able to say so
    if at_load32(address(mirror_of(queue).allowance.rests)):
        _hold_up(connection, queue, tally)


@cfunc
@nogil
@exceptval(check=False)
def _await_mirror(queue: pointer[queue_t], position: uint64_t, tally: pointer[tally_t]) -> bint:
    """The confirm waits for the engine, too. False: no memory."""
    receipt: pointer[receipt_t] = receipt_new()
    if receipt == NULL:
        return False
    receipt.more = ticket_receipt(tally.ticket)
    receipt.ticket = tally.ticket if receipt.more == NULL else 0
    receipt.position = position
    queue_incref(queue)
    receipt.queue = queue
    tally.ticket = receipt_ticket(receipt)
    return True


@cfunc
@nogil
@exceptval(check=False)
def _outcome(receipt: pointer[receipt_t], durable_ticket: uint64_t) -> c_int:
    """MIRROR_*: what became of a message on all queues of its receipts."""
    outcome: c_int = MIRROR_SETTLED
    one: c_int
    while receipt != NULL:
        if at_load32(address(receipt.waiting)) or receipt.ticket > durable_ticket:
            return MIRROR_WAITS
        one = MIRROR_SETTLED if receipt.queue == NULL else mirror_outcome(mirror_of(receipt.queue), receipt.position)
        if one == MIRROR_WAITS:
            return MIRROR_WAITS
        if one == MIRROR_LOST or at_load32(address(receipt.refused)):
            outcome = MIRROR_LOST
        receipt = receipt.more
    return outcome


@cfunc
@nogil
@exceptval(check=False)
def _is_past_bound(queue: pointer[queue_t]) -> bint:
    """x-overflow block, and who publishes is read all the same (it consumes, too): a quarter above the limit is enough."""
    index: pointer[due_index_t] = queue.due
    messages: uint64_t = queue.max_length + (queue.max_length >> 2) + (0 if index == NULL else index.over_messages)
    size: uint64_t = queue.max_bytes + (queue.max_bytes >> 2) + (0 if index == NULL else index.over_bytes)
    # A sum that is too large for its type belongs to a queue without that limit.
    return (messages >= queue.max_length and queue_ready_count(queue) >= messages) or (
        size >= queue.max_bytes and queue_ready_bytes(queue) >= size
    )


@cfunc
@nogil
@exceptval(check=False)
def _count_not_placed(
    connection: pointer[connection_t], destination: pointer[destination_t], bits: uint8_t, tally: pointer[tally_t]
) -> void:
    if queue_is_deleted(destination.queue):
        tally.gone += 1
    elif bits & PUBLISH_IMMEDIATE:
        tally.unwanted += 1
    else:
        tally.refused += 1  # no memory for the entry
        connection.dropped[DROP_REFUSED] += 1


@cfunc
@nogil
@exceptval(check=False)
def _count_stream(connection: pointer[connection_t], answer: c_int, tally: pointer[tally_t]) -> void:
    if answer == STREAM_TOOK:
        tally.placed += 1
    elif answer == STREAM_GONE:
        tally.gone += 1
    else:
        tally.refused += 1
        connection.dropped[DROP_REFUSED] += 1


@cfunc
@nogil
@exceptval(check=False)
def _place_anew(
    connection: pointer[connection_t],
    route: pointer[route_t],
    content: pointer[content_t],
    bits: uint8_t,
    expiration_ms: int64_t,
    tally: pointer[tally_t],
) -> void:
    """A queue of the route is deleted: onto the queues of the present route that were not asked yet (I2).

    Each further attempt needs one more queue that is deleted in these microseconds. After ROUTE_ATTEMPTS the message is refused, which a
    publisher with confirms hears: whatever is wrong then, no message is claimed to be kept that is not.
    """
    tried: pointer[route_t][ROUTE_ATTEMPTS]
    destination: pointer[destination_t]
    count: uint32_t = 1
    i: uint32_t
    tried[0] = route
    while tally.gone and count < ROUTE_ATTEMPTS:
        tried[count] = route_anew(connection, route, content)
        if tried[count] == NULL:
            break
        tally.gone = 0
        if tried[count].count > 1 and connection.port != NULL and content.flags & CONTENT_PERSISTENT and content.message_id == 0:
            content.flags |= CONTENT_SHARED  # no log has it yet
        for i in range(tried[count].count):
            destination = address(tried[count].destinations[i])
            if not _was_asked(tried, count, destination):
                _place(connection, destination, content, bits, expiration_ms, tally)
        count += 1
    for i in range(1, count):
        route_decref(tried[i])
    if tally.gone:
        tally.gone = 0
        tally.refused += 1
        connection.dropped[DROP_REFUSED] += 1


@cfunc
@nogil
@exceptval(check=False)
def _was_asked(tried: pointer[pointer[route_t]], count: uint32_t, destination: pointer[destination_t]) -> bint:
    """Whether the queue was on an earlier route, and lives: it has the message, or has refused it."""
    i: uint32_t
    k: uint32_t
    if queue_is_deleted(destination.queue):
        return False
    for i in range(count):
        for k in range(tried[i].count):
            if tried[i].destinations[k].queue == destination.queue:
                return True
    return False


def route_anew(connection: pointer[connection_t], route: pointer[route_t], content: pointer[content_t]) -> pointer[route_t]:
    at_store32(address(route.valid), 0)
    with gil:
        try:
            return ask_again(connection, route, content)
        except Exception:
            logging.getLogger("flintmq.publishing").exception("internal error: a message can't be routed again, it is refused")
            return NULL


def ask_again(connection: pointer[connection_t], route: pointer[route_t], content: pointer[content_t]) -> pointer[route_t]:
    key: bytes = PyBytes_FromStringAndSize(cast(p_char, route.key), route.key_len)
    other_keys: bytes = PyBytes_FromStringAndSize(cast(p_char, route.more), route.more_len) if route.more_len else b""
    header: bytes = b""
    if content.flags & CONTENT_HEADERS:
        header = PyBytes_FromStringAndSize(cast(p_char, content_header(content)), content.header_len)
    exchange_len: c_int = route.key[0]
    handler = cast(object, connection.owner).handler
    handles: list = handler.route_again(key[1 : 1 + exchange_len], [key[2 + exchange_len :], *_unpack_keys(other_keys)], header)
    return route_new(route.key, route.key_len, handles, other_keys)


def pack_keys(keys: list | None) -> bytes:
    return b"".join([struct.pack(">I", len(key)) + key for key in keys])


@cfunc
def _unpack_keys(packed: bytes) -> list:
    keys: list = []
    while packed:
        size: c_int = int.from_bytes(packed[:4], "big")
        keys.append(packed[4 : 4 + size])
        packed = packed[4 + size :]
    return keys


def place_on_stream(port: pointer[log_port_t], stream: pointer[queue_t], content: pointer[content_t], ticket: pointer[uint64_t]) -> c_int:
    if queue_enqueue(stream, content, 0, 0, NULL) == 0:
        return STREAM_GONE if queue_is_deleted(stream) else STREAM_REFUSED
    # Its own ticket, or a later one of another thread.
    ticket[0] = at_load64(address(port.stream_ticket))
    return STREAM_TOOK


# --- publisher confirms: which tags may be answered, and when --------------------------------------------------------------------

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
                # Neither this message nor a later one is ever confirmed: the publisher may retry, nothing is claimed (I3).
                channel.publish_tag -= 1
                channel.confirm = False
                receipt_decref(ticket_receipt(ticket))
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
        check(tag <= channel.publish_tag, b"placing I5 no tag is answered that was not published", tag, channel.publish_tag)
        write_confirm(connection, channel.number, BASIC_ACK, tag, tag > channel.confirmed + 1)
        connection.counters.confirmed += tag - channel.confirmed
        channel.answered += tag - channel.confirmed
        channel.confirmed = tag


@cfunc
@nogil
@exceptval(check=False)
def _flush_channel(connection: pointer[connection_t], channel: pointer[channel_t], durable: uint64_t, durable_ticket: uint64_t) -> void:
    """Answers every tag that may be: those without a pending record, the durable and the refused, up to the first that waits (I4)."""
    upto: uint64_t = channel.publish_tag
    pending: pointer[pending_confirm_t]
    receipt: pointer[receipt_t]
    outcome: c_int
    while channel.pending_count:
        pending = address(channel.pending[channel.pending_first])
        check(pending.tag > channel.confirmed, b"placing I5 a tag is answered once", pending.tag, channel.confirmed)
        if pending.lsn == REFUSED:
            _ack_up_to(connection, channel, pending.tag - 1)
            write_confirm(connection, channel.number, BASIC_NACK, pending.tag, False)
            channel.confirmed = pending.tag
            receipt_decref(ticket_receipt(pending.ticket))
        elif pending.ticket >> RECEIPT_SHIFT and pending.lsn <= durable:
            receipt = ticket_receipt(pending.ticket)
            outcome = _outcome(receipt, durable_ticket)
            if outcome == MIRROR_WAITS:
                upto = pending.tag - 1
                break
            if outcome == MIRROR_LOST:
                _ack_up_to(connection, channel, pending.tag - 1)
                write_confirm(connection, channel.number, BASIC_NACK, pending.tag, False)
                channel.confirmed = pending.tag
            receipt_decref(receipt)
        elif pending.lsn > durable or pending.ticket > durable_ticket:
            upto = pending.tag - 1
            break
        channel.pending_first = (channel.pending_first + 1) & (channel.pending_size - 1)
        channel.pending_count -= 1
    _ack_up_to(connection, channel, upto)


def confirms_forget(channel: pointer[channel_t]) -> void:
    i: uint32_t
    for i in range(channel.pending_count):
        receipt_decref(ticket_receipt(channel.pending[(channel.pending_first + i) & (channel.pending_size - 1)].ticket))
    channel.pending_count = 0


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


# --- messages that Python made, in a transaction -----------------------------------------------------------------------------------


@cclass
class Landing:
    """A part of a transaction that puts messages on queues: `_land` says how."""

    def _land(self, queue: pointer[queue_t], content: pointer[content_t], expires_at_ms: int64_t) -> bint:
        raise NotImplementedError

    def hold(
        self,
        core: QueueHandle,
        exchange: bytes,
        routing_key: bytes,
        header: bytes,
        body: bytes,
        flags: int,
        priority: int,
        expires_at_ms: int = 0,
    ) -> bool:
        """Puts a new message on a queue as a part of the transaction (arguments as QueueHandle.publish): a dead letter, a changed copy.

        False: the queue is deleted, or a stream that takes nothing. Raises: StoreError, MemoryError.
        """
        content: pointer[content_t] = content_from_bytes(exchange, routing_key, header, body, flags, priority)
        try:
            return self._land(core.queue, content, expires_at_ms)
        finally:
            content_decref(content)
