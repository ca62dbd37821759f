"""A committed transaction on its way through the log (see transaction.pxd).

in: the open transaction of a channel (tx_buffer) when the client commits. out: one transaction of the log, and, once that is durable,
entries on queues, settlements, returns, commit-ok.

Between commit and durability its messages are held entries: they have their final places and nobody sees them; its settled
deliveries have left the channel but stay acquired. The record belongs to the loop, not to the connection: when that ends, the
transaction is still applied (the commit record is written, so it is decided), and only the answer is not sent.

I1  Nothing of a transaction is visible before the log has its commit; what recovery would apply is exactly what is applied here.
I2  A settled delivery is either in its channel's map or in one transaction: nothing is applied twice when a connection dies.
I3  Transactions of a channel take effect, and are answered, in the order of their commits.
I4  A dead letter of a transaction is part of it: its entry and the dequeue of the original are in one commit.
I5  What goes to a stream is appended when the transaction takes effect, and the answer waits until that is durable, too: a crash in
    between loses it, and the commit was not answered then. (An append can't be taken back, so it can't come before the commit.)
I6  One on shared queues is decided by the engine (docs/adr/0015), and takes nothing else with it: it is `write`n, then handed to the loop
    when it is decided, or it is `refuse`d.
"""

from __future__ import annotations

import collections
import logging

from cython import NULL, address, bint, cast, cclass, cfunc, pointer, sizeof
from cython import int as c_int
from cython.cimports.flintmq.channel.arrival import drop_head, expiry_on
from cython.cimports.flintmq.channel.connection import Connection, unacked_tuple
from cython.cimports.flintmq.channel.delivery import write_return
from cython.cimports.flintmq.channel.letters import note_refused
from cython.cimports.flintmq.channel.placing import PUBLISH_IMMEDIATE, PUBLISH_MANDATORY, Landing, place_on_stream, publish_to_queues
from cython.cimports.flintmq.channel.settlement import settle_taken, unacked_content, unacked_find, unacked_remove
from cython.cimports.flintmq.channel.tx_buffer import expiration_of, tx_apply, tx_clear, tx_route_anew
from cython.cimports.flintmq.channel.types import (
    DROP_MAXLEN, DROP_REFUSED, DROP_UNROUTABLE, channel_t, connection_t, tx_publish_t, tx_settle_t, unacked_t,
)  # fmt: skip
from cython.cimports.flintmq.core.atomics import at_load32, at_load64
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.content import CONTENT_PERSISTENT, CONTENT_SHARED, content_decref, content_incref, content_t
from cython.cimports.flintmq.core.counters import counters_receive
from cython.cimports.flintmq.mirror.mirror import mirror_of
from cython.cimports.flintmq.protocol.v0_9_1.ids import BASIC_ACK, BASIC_NACK
from cython.cimports.flintmq.queue.control import content_tuple
from cython.cimports.flintmq.queue.enrolment import Enrolment
from cython.cimports.flintmq.queue.limits import queue_limit_waits, queue_over_limit, queue_refuses
from cython.cimports.flintmq.queue.queue_core import (
    consumer_decref, queue_decref, queue_enqueue_immediate, queue_get_id, queue_incref, queue_is_deleted, queue_is_durable,
)  # fmt: skip
from cython.cimports.flintmq.queue.schedule_share import share_note, share_takes
from cython.cimports.flintmq.queue.types import ENTRY_LOGGED, QUEUE_MIRRORED, REASON_ACK, REASON_REJECT, queue_t
from cython.cimports.flintmq.routing.route_cache import (
    DEST_BLOCK, DEST_DEAD_LETTERS, DEST_LIMITED, DEST_MIRRORED, DEST_REJECT_OVER, DEST_SHARED, DEST_STREAM, destination_t, route_decref,
    route_incref, route_t,
)  # fmt: skip
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import calloc, free, realloc
from cython.cimports.libc.string import memset

from flintmq.errors import PeerError, ReplyCode, StoreError

log = logging.getLogger("flintmq.transactions")

MIXED = "a transaction has either shared queues or others: commit those of each kind by themselves"


def begin(connection: Connection, number: int) -> Transaction | None:
    """tx.commit of a channel: applies its open transaction now when nothing of it is logged (None), or holds its messages.

    The caller puts the `letters` through `hold`, then calls `write`; or `abandon` after an exception of either.
    Raises: PeerError 406: a full queue refuses one of its messages (nothing of it stays); KeyError: no such channel; StoreError: the log
    refuses (everything is as before); MemoryError.
    """
    channel: pointer[channel_t] = connection.channel(number)
    transaction: Transaction
    i: uint32_t
    tx_route_anew(address(connection.connection), channel)
    shared: bint = _touches_shared(channel)
    logged: bint = not shared and _is_logged(connection, channel)
    if not shared and not logged and not _may_be_refused(channel) and not commits_waiting(connection, number):
        tx_apply(address(connection.connection), channel)
        return None
    transaction = Transaction(connection, number)
    transaction.is_shared = shared
    try:
        if logged:
            transaction.log = connection.log
            transaction.enrolment = transaction.log.enrol_small()
        else:
            transaction.enrolment = Enrolment()
        for i in range(channel.tx_publish_count):
            transaction._hold(address(channel.tx_publishes[i]))
        if channel.tx_settle_count:
            transaction.settled = cast(pointer[settled_t], calloc(channel.tx_settle_count, sizeof(settled_t)))
            if transaction.settled == NULL:
                raise MemoryError
        for i in range(channel.tx_settle_count):
            transaction._take(address(channel.tx_settles[i]), address(transaction.settled[i]))
            transaction.settled_count += 1
    except BaseException:
        transaction.abandon()
        raise
    return transaction


def commits_waiting(connection: Connection, number: int) -> int:
    """Transactions of the channel that wait for the log."""
    return len(connection.committing.get(number, ())) if connection.committing else 0


@cfunc
def _goes_to(channel: pointer[channel_t], flags: uint32_t) -> bint:
    """True when a message of the open transaction goes to a queue with one of these DEST_*."""
    i: uint32_t
    k: uint32_t
    route: pointer[route_t]
    for i in range(channel.tx_publish_count):
        route = channel.tx_publishes[i].route
        for k in range(route.count):
            if route.destinations[k].flags & flags:
                return True
    return False


@cfunc
def _touches_shared(channel: pointer[channel_t]) -> bint:
    """True when a message of the open transaction goes to a shared queue, or a delivery of one is settled."""
    i: uint32_t
    if _goes_to(channel, DEST_SHARED | DEST_MIRRORED):
        return True
    for i in range(channel.tx_settle_count):
        if unacked_find(address(channel.unacked), channel.tx_settles[i].tag).queue.durable == QUEUE_MIRRORED:
            return True
    return False


@cfunc
def _goes_to_stream(route: pointer[route_t]) -> bint:
    i: uint32_t
    for i in range(route.count):
        if route.destinations[i].flags & DEST_STREAM:
            return True
    return False


@cfunc
def _may_be_refused(channel: pointer[channel_t]) -> bint:
    """True when a message of the open transaction goes to a stream, whose answer waits for the log, or to a queue that may refuse it:
    the others must not be seen before that is known."""
    return _goes_to(channel, DEST_STREAM | DEST_REJECT_OVER | DEST_BLOCK)


@cfunc
def _is_logged(connection: Connection, channel: pointer[channel_t]) -> bint:
    """True when something of the open transaction is for the log, or may become so by dead-lettering."""
    i: uint32_t
    k: uint32_t
    route: pointer[route_t]
    settle: pointer[tx_settle_t]
    item: pointer[unacked_t]
    content: pointer[content_t]
    flags: c_int
    message_id: uint64_t = 0
    if connection.connection.port == NULL or connection.connection.port.enqueue == NULL:
        return False
    for i in range(channel.tx_publish_count):
        if not channel.tx_publishes[i].content.flags & CONTENT_PERSISTENT:
            continue
        route = channel.tx_publishes[i].route
        for k in range(route.count):
            if queue_is_durable(route.destinations[k].queue):
                return True
    for i in range(channel.tx_settle_count):
        settle = address(channel.tx_settles[i])
        item = unacked_find(address(channel.unacked), settle.tag)
        if settle.method != BASIC_ACK and settle.requeue:
            continue
        if item.slot.state & ENTRY_LOGGED:
            return True
        if settle.method != BASIC_ACK and item.dead_letters:
            content = unacked_content(item, address(message_id))
            if content == NULL:
                if message_id:
                    return True
                continue
            flags = content.flags
            content_decref(content)
            if flags & CONTENT_PERSISTENT:
                return True
    return False


@cclass
class Transaction(Landing):
    """See module. Made by `begin`; used on its loop's thread only."""

    def __init__(self, connection: Connection, number: int):
        self.connection = connection
        self.handler = connection.handler
        self.number = number
        self.channel = connection.channel(number)
        self.port = connection.connection.port
        self.letters = []
        self.messages = []
        self.ends = []
        self.limited = []
        self.sums = {}

    def __dealloc__(self):
        # What a loop that ended did not apply: recovery will.
        self._free()

    # --- commit -----------------------------------------------------------------------------------------------------

    def _add(self, kind: uint8_t, queue: pointer[queue_t], route: pointer[route_t], content: pointer[content_t]) -> pointer[late_t]:
        late: pointer[late_t]
        size: uint32_t
        if self.late_count == self.late_size:
            size = self.late_size * 2 if self.late_size else 16
            late = cast(pointer[late_t], realloc(self.late, size * sizeof(late_t)))
            if late == NULL:
                raise MemoryError
            self.late = late
            self.late_size = size
        late = address(self.late[self.late_count])
        memset(late, 0, sizeof(late_t))
        late.kind = kind
        late.queue = queue
        late.route = route
        late.content = content
        if queue != NULL:
            queue_incref(queue)
        if route != NULL:
            route_incref(route)
        if content != NULL:
            content_incref(content)
        self.late_count += 1
        return late

    def _count_publish(self, content: pointer[content_t]) -> void:
        if not self.channel.publishing:
            self.channel.publishing = True
            self.connection.connection.counters.publishers += 1
        counters_receive(self.connection.connection.counters, content.body_len)

    def _hold(self, publish: pointer[tx_publish_t]) -> c_int:
        """One message of the transaction: a held entry on each of its queues."""
        route: pointer[route_t] = publish.route
        content: pointer[content_t] = publish.content
        destination: pointer[destination_t]
        late: pointer[late_t]
        i: uint32_t
        gone: uint32_t = 0
        self.channel.published += 1
        if self.is_shared and route.count:
            self._hold_shared(publish)
            return 0
        for i in range(route.count):
            destination = address(route.destinations[i])
            if destination.flags & (DEST_REJECT_OVER | DEST_BLOCK) and self._refused(destination, content):
                self.connection.connection.dropped[DROP_REFUSED] += 1
                raise PeerError(ReplyCode.PRECONDITION_FAILED, "partial tx completion")
        if publish.bits & PUBLISH_IMMEDIATE or route.count == 0:
            if route.count == 0:
                self._count_publish(content)
            if route.count == 0 and not publish.bits & (PUBLISH_MANDATORY | PUBLISH_IMMEDIATE):
                self.connection.connection.dropped[DROP_UNROUTABLE] += 1
                self.connection.connection.counters.dropped += 1
                self.channel.unroutable += 1
                return 0
            late = self._add(LATE_IMMEDIATE if route.count else LATE_RETURN, NULL, route, content)
            late.bits = publish.bits
            return 0
        self._count_publish(content)
        self.connection.connection.counters.routed += route.count
        if route.count > 1 and self.log is not None and content.flags & CONTENT_PERSISTENT:
            content.flags |= CONTENT_SHARED
        for i in range(route.count):
            destination = address(route.destinations[i])
            if destination.flags & DEST_STREAM:
                self._add(LATE_STREAM, destination.queue, NULL, content)
            elif not self.enrolment.enqueue(
                destination.queue, content, publish.due_ms if publish.due_ms else expiry_on(destination, expiration_of(content))
            ):
                gone += 1
            elif destination.share != NULL:
                share_note(destination.share, publish.due_ms, content.body_len)  # should it be taken back, it counts until its time
            elif destination.flags & DEST_LIMITED:
                late = self._add(LATE_LIMIT, destination.queue, NULL, NULL)
                late.flags = destination.flags
        if gone == route.count:
            # Each was deleted after the look at the routes a moment ago (tx_route_anew).
            if publish.bits & PUBLISH_MANDATORY:
                late = self._add(LATE_RETURN, NULL, route, content)
                late.bits = publish.bits
            else:
                self.connection.connection.dropped[DROP_UNROUTABLE] += 1
                self.connection.connection.counters.dropped += 1
                self.channel.unroutable += 1
        if content.message_id and content.flags & CONTENT_SHARED:
            self.log.port.placed(self.log.port.context, content)
        return 0

    def _hold_shared(self, publish: pointer[tx_publish_t]) -> bint:
        """A message for shared queues. Their limits are the owners'."""
        route: pointer[route_t] = publish.route
        content: pointer[content_t] = publish.content
        destination: pointer[destination_t]
        message: tuple = (*content_tuple(content), content.flags, content.priority)
        i: uint32_t
        for i in range(route.count):
            if not route.destinations[i].flags & (DEST_SHARED | DEST_MIRRORED):
                raise PeerError(ReplyCode.NOT_IMPLEMENTED, MIXED)
        if publish.bits & PUBLISH_IMMEDIATE:
            raise PeerError(ReplyCode.NOT_IMPLEMENTED, "immediate=true in a transaction on shared queues")
        self._count_publish(content)
        self.connection.connection.counters.routed += route.count
        for i in range(route.count):
            destination = address(route.destinations[i])
            expires_at_ms: int64_t = publish.due_ms if publish.due_ms else expiry_on(destination, expiration_of(content))
            self.messages.append((queue_get_id(destination.queue), message, expires_at_ms))
        return True

    def _refused(self, destination: pointer[destination_t], content: pointer[content_t]) -> bint:
        """reject-publish: the queue's limit, counting what this transaction has put there before. O(1)."""
        before: list = self.sums.setdefault(queue_get_id(destination.queue), [0, 0])
        messages: uint64_t = before[0]
        size: uint64_t = before[1]
        if queue_is_deleted(destination.queue):
            return False  # a deleted queue may be full of the entries that end with it
        before[0] += 1
        before[1] += content.body_len
        if destination.share != NULL and not share_takes(destination.share, messages, size, content.body_len):
            return True
        return queue_refuses(destination.queue, content.body_len, messages, size)

    def _take(self, settle: pointer[tx_settle_t], taken: pointer[settled_t]) -> c_int:
        """One settled delivery. It stays in the channel's map until the commit is written."""
        item: pointer[unacked_t] = unacked_find(address(self.channel.unacked), settle.tag)
        check(item != NULL and item.in_tx != 0, b"transaction I2 a settled delivery is still the channel's", settle.tag, self.number)
        taken.item = item[0]
        taken.method = settle.method
        taken.requeue = settle.requeue
        if settle.method != BASIC_ACK and settle.requeue:
            return 0
        if self.is_shared:
            self._take_shared(settle, item)
            return 0
        if settle.method != BASIC_ACK and item.dead_letters:
            try:
                message: tuple | None = unacked_tuple(item, self.log)
            except KeyError as error:
                raise StoreError(f"a message that the transaction dead-letters can't be read: {error}") from error
            if message is not None:
                self.letters.append((queue_get_id(item.queue), REASON_REJECT, message))
        reason: c_int = REASON_ACK if settle.method == BASIC_ACK else REASON_REJECT
        # Not logged: also when its queue was deleted, and everything in it. It is settled like any other delivery of such a queue.
        taken.logged = self.enrolment.dequeue(item.queue, item.position, item.slot, item.owner, reason, item.delivered_us)
        return 0

    def _take_shared(self, settle: pointer[tx_settle_t], item: pointer[unacked_t]) -> void:
        """A delivery that ends when the engine has decided. One that becomes a dead letter ends as it does outside of transactions: after
        its letter is in its place."""
        if item.queue.durable != QUEUE_MIRRORED:
            if item.slot.state & ENTRY_LOGGED:
                raise PeerError(ReplyCode.NOT_IMPLEMENTED, MIXED)
        elif settle.method == BASIC_ACK or not item.dead_letters:
            self.ends.append((queue_get_id(item.queue), item.position))

    def is_lost(self) -> bool:
        """Whether this node owns a queue no more of which a delivery ends: others may get the message."""
        i: uint32_t
        queue: pointer[queue_t]
        for i in range(self.settled_count):
            queue = self.settled[i].item.queue
            if queue.durable == QUEUE_MIRRORED and at_load32(address(mirror_of(queue).lost)):
                return True
        return False

    def take_letters(self) -> list[tuple[int, int, tuple]]:
        """(queue id, REASON_*, message) of what the transaction dead-letters, oldest first; they are forgotten here."""
        letters: list = self.letters
        self.letters = []
        return letters

    def _land(self, queue: pointer[queue_t], content: pointer[content_t], expires_at_ms: int64_t) -> bint:
        if queue.ops != NULL:
            self._add(LATE_STREAM, queue, NULL, content)
            return True
        return self.enrolment.enqueue(queue, content, expires_at_ms)

    def write(self) -> None:
        """Writes the commit record; the channel's next transaction begins. Raises StoreError (then call `abandon`).

        The caller hands it to Loop.commit.
        """
        i: uint32_t
        settle: pointer[tx_settle_t]
        self.enrolment.decide()
        check(
            self.settled_count == self.channel.tx_settle_count,
            b"transaction I2 all settlements were taken",
            self.settled_count,
            self.number,
        )
        for i in range(self.channel.tx_settle_count):
            settle = address(self.channel.tx_settles[i])
            self.settled[i].item.in_tx = 0
            unacked_remove(address(self.channel.unacked), settle.tag)
        tx_clear(self.channel)
        self.connection.committing.setdefault(self.number, collections.deque()).append(self)

    def abandon(self) -> None:
        """The log refused: nothing of it was visible, nothing of it stays. Its deliveries are still the channel's."""
        check(not self.applied, b"transaction I1 what took effect is not taken back", self.number, 0)
        self.settled_count = 0
        self._free()
        if self.enrolment is not None:
            try:
                self.enrolment.abandon()
            except StoreError:
                pass  # the disk failed for good: recovery forgets what has no commit record

    def refuse(self) -> None:
        """After `write`, instead of Loop.commit: the engine has refused it. Its deliveries go back to their queues, flagged."""
        i: uint32_t
        connection: Connection = self.connection
        outside: pointer[connection_t] = NULL if connection is None else address(connection.connection)
        check(not self.applied, b"transaction I6 what took effect is not refused", self.number, 0)
        for i in range(self.settled_count):
            settle_taken(outside, self.channel, address(self.settled[i].item), BASIC_NACK, True, False)
        self.settled_count = 0
        self._free()
        if connection is not None:
            self.connection = None
            self.channel = NULL
            self._leave_line(connection)

    # --- after the commit -------------------------------------------------------------------------------------------

    def detach(self) -> None:
        """The channel ends: it will not be answered, and must not be touched when the transaction is applied."""
        i: uint32_t
        item: pointer[unacked_t]
        for i in range(self.settled_count):
            item = address(self.settled[i].item)
            if item.consumer != NULL:
                # The consumer's credit is the channel's, which goes now; the queue was counted by the consumer.
                queue_incref(item.queue)
                consumer_decref(item.consumer)
                item.consumer = NULL
        self.channel = NULL
        self.connection = None

    def advance(self) -> bool:
        """Applies the transaction if the log has it, answers it. False: not yet. On the loop's thread.

        Raises: a fault of ours. The connection ends then (541): an answer of a later commit would stand for this one's.
        """
        alive: bint = self.connection is not None
        try:
            return self._advance()
        except BaseException:
            if self.connection is not None:
                self._leave_line(self.connection)
                self.detach()
            if alive:
                self.handler.failed()
            raise

    def _advance(self) -> bint:
        if not self.applied:
            if not self.enrolment.durable():
                return False
            self.applied = True
            self._apply()
        if self.wait_lsn and self.log is not None and self.log.port.durable_lsn(self.log.port.context) < self.wait_lsn:
            return False
        if self.wait_ticket and at_load64(address(self.port.durable_ticket)) < self.wait_ticket:
            return False
        connection: Connection = self.connection
        if connection is not None:
            self.connection = None
            self.channel = NULL
            self._leave_line(connection)
        self.handler.committed(self, connection is not None)
        self.enrolment.applied()
        return True

    def _leave_line(self, connection: Connection | None) -> object:
        """It is none of the commits any more that the channel's answers wait for: itself, whatever stands before it (I3)."""
        line = connection.committing[self.number]
        line.remove(self)
        if not line:
            del connection.committing[self.number]

    def _apply(self) -> object:
        i: uint32_t
        connection: pointer[connection_t] = NULL
        channel: pointer[channel_t] = self.channel
        taken: pointer[settled_t]
        late: pointer[late_t]
        if self.connection is not None:
            connection = address(self.connection.connection)
        self.enrolment.apply()
        for i in range(self.late_count):
            self._publish(address(self.late[i]))
        for i in range(self.settled_count):
            taken = address(self.settled[i])
            if self.is_shared and taken.method != BASIC_ACK and not taken.requeue and taken.item.dead_letters:
                self._letter(connection, taken)
            settle_taken(connection, channel, address(taken.item), taken.method, taken.requeue, taken.logged)
        self.settled_count = 0
        for i in range(self.late_count):
            late = address(self.late[i])
            if late.kind != LATE_LIMIT:
                continue
            if late.flags & DEST_DEAD_LETTERS:
                self.limited.append(queue_get_id(late.queue))
            elif queue_over_limit(late.queue) and not queue_limit_waits(late.queue):
                dropped: uint32_t = drop_head(late.queue)
                if connection != NULL:
                    connection.dropped[DROP_MAXLEN] += dropped
                if queue_over_limit(late.queue):
                    self.limited.append(queue_get_id(late.queue))  # the rest goes in slices
        self._free()
        if self.wait_ticket:
            # Between two passes of the loop nobody else tells the log that something waits for it.
            self.port.kick(self.port.context, True)

    def _letter(self, connection: pointer[connection_t], taken: pointer[settled_t]) -> void:
        """A refused delivery of a shared queue becomes a letter. When its channel has ended, or it can't be read now, it goes back."""
        message_id: uint64_t = 0
        content: pointer[content_t] = NULL
        if connection != NULL:
            content = unacked_content(address(taken.item), address(message_id))
        if content == NULL:
            taken.requeue = 1
            return
        note_refused(connection, taken.item.queue, content, REASON_REJECT)
        content_decref(content)

    def _publish(self, late: pointer[late_t]) -> object:
        connection: pointer[connection_t]
        i: uint32_t
        if late.kind == LATE_LIMIT:
            return  # looked at when all is done
        if late.kind == LATE_STREAM:
            self._append(late)
            return
        if self.connection is None:
            # Nobody to return it to; an immediate one is still offered.
            if late.kind == LATE_IMMEDIATE:
                for i in range(late.route.count):
                    queue_enqueue_immediate(late.route.destinations[i].queue, late.content, 0, 0, NULL)
            return
        connection = address(self.connection.connection)
        if late.kind == LATE_RETURN:
            write_return(connection, self.number, 312, b"NO_ROUTE", late.content)
            self.channel.returned += 1
            connection.counters.returned += 1
            return
        # An immediate message is delivered now or goes back: after a crash there is nobody to deliver it to, so it has no place in
        # the log's transaction. The answer waits for its own record.
        self.channel.published -= 1
        connection.logged = 0
        content_incref(late.content)
        publish_to_queues(connection, self.channel, late.route, late.content, late.bits, expiration_of(late.content))
        if connection.logged > self.wait_lsn:
            self.wait_lsn = connection.logged
            self.log = self.connection.log
        if _goes_to_stream(late.route):
            self.wait_ticket = at_load64(address(self.port.stream_ticket))

    def _append(self, late: pointer[late_t]) -> object:
        if not place_on_stream(self.port, late.queue, late.content, address(self.wait_ticket)):
            if self.connection is not None:
                self.connection.connection.dropped[DROP_REFUSED] += 1
            log.critical("queue id %d: a message of a committed transaction is not in its stream", queue_get_id(late.queue))

    def _free(self) -> object:
        i: uint32_t
        late: pointer[late_t]
        for i in range(self.late_count):
            late = address(self.late[i])
            if late.queue != NULL:
                queue_decref(late.queue)
            if late.route != NULL:
                route_decref(late.route)
            if late.content != NULL:
                content_decref(late.content)
        free(self.late)
        self.late = NULL
        self.late_count = 0
        for i in range(self.settled_count):
            if self.settled[i].item.consumer != NULL:
                consumer_decref(self.settled[i].item.consumer)
            else:
                queue_decref(self.settled[i].item.queue)
        free(self.settled)
        self.settled = NULL
        self.settled_count = 0
