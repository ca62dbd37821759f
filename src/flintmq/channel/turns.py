"""Turns of the targets and channels that want to work (seed 004, steps 3 to 12).

in: notify_work from queues (any thread). out: pulls from queues and delivery frames in the output buffer.

I1  A target is on its channel's list exactly while target.pending is set; a channel on its connection's list exactly while
    work_pending is set; both lists change under work_lock. `pending` is cleared before the target pulls, so a message that
    arrives meanwhile schedules it again (pairs with the at_swap32 in target_notify).
I2  In one pass a target gets one turn: one message when others want the same queue (delivery.rotate), else up to the budget.
I3  While output is above its high mark no consumer of the connection is Interested or Notified.
I4  Of a channel or connection that ends nothing is on a work list, from its first step on (connection_leave, forget_channel): its
    consumers are told, and nobody listens, until they are detached one after another.
"""

from __future__ import annotations

import logging

from cython import NULL, address, bint, cast, cfunc, declare, exceptval, gil, inline, nogil, pointer, void
from cython import int as c_int
from cython.cimports.flintmq.channel.arrival import drop_head
from cython.cimports.flintmq.channel.delivery import write_deliver
from cython.cimports.flintmq.channel.letters import LETTERS_AT_ONCE, letter_run_t, letters_begin, letters_cascade, letters_drop, letters_end
from cython.cimports.flintmq.channel.settlement import channel_resume, channel_settle_item, unacked_add
from cython.cimports.flintmq.channel.tracing import note_delivery
from cython.cimports.flintmq.channel.types import DROP_MAXLEN, channel_t, connection_t, subscription_t, unacked_t
from cython.cimports.flintmq.core.atomics import at_load32, at_store32, at_swap32, spin_lock, spin_unlock
from cython.cimports.flintmq.core.buffer import out_pending
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.clock import wall_ms, wall_us
from cython.cimports.flintmq.core.content import content_decref, content_t
from cython.cimports.flintmq.core.header_field import content_with_field
from cython.cimports.flintmq.protocol.v0_9_1.ids import BASIC_NACK
from cython.cimports.flintmq.queue.limits import WANTED_VISITS, queue_lags, queue_over_limit, queue_wanted
from cython.cimports.flintmq.queue.queue_core import (
    consumer_has_credit, consumer_incref, entry_sent, queue_decref, queue_deliver_single, queue_get_id, queue_next_expiry, queue_release,
    queue_set_notify_work_desired, queue_settle,
)  # fmt: skip
from cython.cimports.flintmq.queue.types import REASON_ACK, RETURNS_COUNTED, consumer_t, delivery_t, queue_t, target_t
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t

# messages of one target's turn while it has its queue for itself
TURN_MESSAGES = declare(uint32_t, 256)


@cfunc
@nogil
@exceptval(check=False)
def _append_target(connection: pointer[connection_t], channel: pointer[channel_t], target: pointer[target_t]) -> void:
    """Steps 4 and 5: the target joins its channel's list, the channel its connection's. Called with work_lock held."""
    target.next_pending = NULL
    if channel.work_first == NULL:
        channel.work_first = target
    else:
        check(channel.work_last != NULL, b"turns I1 a list of targets has a last one", channel.number, 0)
        channel.work_last.next_pending = target
    channel.work_last = target
    if not channel.work_pending:
        channel.work_pending = 1
        _append_channel(connection, channel)


@cfunc
@nogil
@exceptval(check=False)
def _append_channel(connection: pointer[connection_t], channel: pointer[channel_t]) -> void:
    channel.next_working = NULL
    if connection.work_first == NULL:
        connection.work_first = channel
    else:
        check(connection.work_last != NULL, b"turns I1 a list of channels has a last one", channel.number, 0)
        connection.work_last.next_working = channel
    connection.work_last = channel


def target_notify(target: pointer[target_t]) -> void:
    """Step 3: a queue says there is work. Any thread."""
    subscription: pointer[subscription_t] = cast(pointer[subscription_t], target.context)
    channel: pointer[channel_t] = subscription.channel
    connection: pointer[connection_t] = channel.connection
    if at_swap32(address(target.pending), 1):
        return
    spin_lock(address(connection.work_lock))
    if connection.closed or not channel.open:
        spin_unlock(address(connection.work_lock))
        return  # I4
    _append_target(connection, channel, target)
    spin_unlock(address(connection.work_lock))
    if not at_swap32(address(connection.scheduled), 1):
        connection.schedule(connection)  # step 6


def forget_target(connection: pointer[connection_t], channel: pointer[channel_t], target: pointer[target_t]) -> void:
    """Takes a target off its channel's list, if it is there. O(targets that want to work)."""
    one: pointer[target_t]
    before: pointer[target_t] = NULL
    if not at_load32(address(target.pending)):
        return  # it is on no list, and its consumer, which is detached, puts it on none (I1)
    spin_lock(address(connection.work_lock))
    one = channel.work_first
    while one != NULL and one != target:
        before = one
        one = one.next_pending
    if one == target:
        if before == NULL:
            channel.work_first = target.next_pending
        else:
            before.next_pending = target.next_pending
        if channel.work_last == target:
            channel.work_last = before
    spin_unlock(address(connection.work_lock))


def forget_channel(connection: pointer[connection_t], channel: pointer[channel_t]) -> void:
    one: pointer[channel_t]
    before: pointer[channel_t] = NULL
    spin_lock(address(connection.work_lock))
    channel.open = False
    channel.work_first = NULL
    channel.work_last = NULL
    one = connection.work_first
    while one != NULL and one != channel:
        before = one
        one = one.next_working
    if one == channel:
        if before == NULL:
            connection.work_first = channel.next_working
        else:
            before.next_working = channel.next_working
        if connection.work_last == channel:
            connection.work_last = before
    spin_unlock(address(connection.work_lock))
    one = connection.confirming
    before = NULL
    while one != NULL and one != channel:
        before = one
        one = one.next_confirming
    if one == channel:
        if before == NULL:
            connection.confirming = channel.next_confirming
        else:
            before.next_confirming = channel.next_confirming


def connection_leave(connection: pointer[connection_t]) -> void:
    spin_lock(address(connection.work_lock))
    connection.closed = True
    connection.work_first = NULL
    connection.work_last = NULL
    spin_unlock(address(connection.work_lock))
    connection.confirming = NULL


def connection_work(connection: pointer[connection_t], budget: uint32_t) -> c_int:
    channel: pointer[channel_t]
    target: pointer[target_t]
    last: pointer[channel_t]
    has_more: bint
    final: bint = False
    if connection.closed:
        return WORK_DONE
    if at_load32(address(connection.head_came)):
        _tell_head_came(connection)
    connection.now_us = wall_us()
    spin_lock(address(connection.work_lock))
    last = connection.work_last
    spin_unlock(address(connection.work_lock))
    # One pass over the channels that wanted to work when it began: those that come back are for the next pass (I2).
    while last != NULL and not final:
        if out_pending(address(connection.out)) >= connection.output_high:
            return WORK_FULL
        if budget == 0:
            return WORK_MORE
        spin_lock(address(connection.work_lock))
        channel = connection.work_first
        if channel == NULL:
            spin_unlock(address(connection.work_lock))
            break
        check(channel.work_pending != 0, b"turns I1 a channel on the list is pending", channel.number, 0)
        final = channel == last
        connection.work_first = channel.next_working
        if connection.work_first == NULL:
            connection.work_last = NULL
        target = channel.work_first
        if target != NULL:
            channel.work_first = target.next_pending
            if channel.work_first == NULL:
                channel.work_last = NULL
        if channel.work_first != NULL:
            _append_channel(connection, channel)
        else:
            channel.work_pending = 0
        spin_unlock(address(connection.work_lock))
        if target == NULL:
            continue
        check(at_load32(address(target.pending)) != 0, b"turns I1 a target on the list is pending", channel.number, 0)
        at_store32(address(target.pending), 0)
        has_more = _target_turn(connection, channel, target, address(budget))
        if has_more and not at_swap32(address(target.pending), 1):
            spin_lock(address(connection.work_lock))
            _append_target(connection, channel, target)
            spin_unlock(address(connection.work_lock))
    if connection.work_first != NULL:
        if out_pending(address(connection.out)) >= connection.output_high:
            return WORK_FULL
        return WORK_MORE
    return WORK_DONE


@cfunc
@nogil
@exceptval(check=False)
def _target_turn(
    connection: pointer[connection_t],
    channel: pointer[channel_t],
    target: pointer[target_t],
    budget: pointer[uint32_t],
) -> bint:
    """Steps 10 to 12: pulls messages for one target and writes them. True when it wants another turn."""
    subscription: pointer[subscription_t] = cast(pointer[subscription_t], target.context)
    consumer: pointer[consumer_t]
    delivery: delivery_t
    counted: pointer[content_t]
    seen: pointer[content_t]
    tried: uint32_t = 0
    turn: uint32_t = TURN_MESSAGES
    expiry: int64_t
    i: uint32_t
    if at_load32(address(target.credit_back)) and at_swap32(address(target.credit_back), 0):
        channel_resume(channel)
    for i in range(target.consumer_count):
        # Expiry is housekeeping's, but what is past its time must not be delivered before that comes round.
        expiry = queue_next_expiry(target.consumers[i].queue)
        if expiry != 0 and expiry <= wall_ms():
            if not expire_now(connection, target.consumers[i].queue):
                return True  # others have their turn before the next slice
    while True:
        consumer = target.consumers[target.next_consumer]
        if not queue_deliver_single(consumer.queue, consumer, address(delivery)):
            # This one has nothing: the next of a multi-queue target, until all were asked.
            tried += 1
            if tried >= target.consumer_count:
                if at_load32(address(consumer.queue.over)):
                    limit_after_turn(connection, subscription, consumer.queue)
                return False
            target.next_consumer = (target.next_consumer + 1) % target.consumer_count
            continue
        tried = 0
        counted = NULL
        seen = delivery.content
        if delivery.delivery_count and consumer.queue.returns & RETURNS_COUNTED:
            counted = content_with_field(connection.arena, delivery.content, b"x-delivery-count", delivery.delivery_count)
            if counted != NULL:
                delivery.content = counted
        _send(connection, channel, subscription, consumer, address(delivery))
        if delivery.slot == NULL:
            content_decref(seen)  # a browser's delivery has a reference of its own
        if counted != NULL:
            content_decref(counted)
        budget[0] -= 1
        turn -= 1
        if target.consumer_count > 1:
            target.next_consumer = (target.next_consumer + 1) % target.consumer_count
        if delivery.rotate or budget[0] == 0 or turn == 0:
            return True
        if connection.wide:
            connection.wide = 0  # copies for the firehose to very many queues
            return True
        if out_pending(address(connection.out)) >= connection.output_high:
            return True


@cfunc
@inline
@nogil
@exceptval(check=False)
def _send(
    connection: pointer[connection_t],
    channel: pointer[channel_t],
    subscription: pointer[subscription_t],
    consumer: pointer[consumer_t],
    delivery: pointer[delivery_t],
) -> void:
    """Writes one delivery and records it as unacked, or settles it when the consumer said no-ack."""
    item: pointer[unacked_t]
    if subscription.no_ack:
        channel.unacked.last_tag += 1
        if not _write(connection, subscription, delivery, channel.unacked.last_tag):
            if delivery.slot != NULL:
                queue_release(consumer.queue, delivery.slot, delivery.position, consumer.id, False)
            return
        if delivery.slot != NULL:  # a browser has nothing to settle
            queue_settle(consumer.queue, delivery.slot, delivery.position, consumer.id, REASON_ACK, connection.now_us)
        connection.counters.consumed_auto += 1
    else:
        item = unacked_add(address(channel.unacked))
        if item == NULL:
            queue_release(consumer.queue, delivery.slot, delivery.position, consumer.id, False)
            return
        item.slot = delivery.slot
        item.position = delivery.position
        item.queue = consumer.queue
        item.consumer = consumer
        item.owner = consumer.id
        item.dead_letters = subscription.dead_letters
        item.in_tx = 0
        item.lost = 0
        item.delivered_us = connection.now_us
        consumer_incref(consumer)
        if not _write(connection, subscription, delivery, channel.unacked.last_tag):
            channel_settle_item(connection, channel, channel.unacked.last_tag, BASIC_NACK, True)
            return
        entry_sent(delivery.slot)
        connection.counters.consumed_manual += 1
    channel.delivered += 1
    connection.deliveries += 1
    if delivery.redelivered:
        connection.counters.redelivered += 1
        channel.redelivered += 1


@cfunc
@inline
@nogil
@exceptval(check=False)
def _write(connection: pointer[connection_t], subscription: pointer[subscription_t], delivery: pointer[delivery_t], tag: uint64_t) -> bint:
    if not write_deliver(connection, subscription, delivery, tag):
        return False
    if at_load32(address(connection.traced)):
        note_delivery(connection, subscription.channel.number, subscription.consumer.queue, delivery.redelivered, delivery.content)
    return True


@cfunc
@nogil
@exceptval(check=False)
def _tell_head_came(connection: pointer[connection_t]) -> void:
    # Before the handler looks: what changes later tells it again.
    at_store32(address(connection.head_came), 0)
    with gil:
        handler = cast(object, connection.owner).handler
        if handler is not None:
            handler.head_came()


def ask_again(connection: pointer[connection_t]) -> void:
    at_store32(address(connection.head_came), 1)
    if not at_swap32(address(connection.scheduled), 1):
        connection.schedule(connection)


def expire_now(connection: pointer[connection_t], queue: pointer[queue_t]) -> bint:
    done: bint = True
    with gil:
        try:
            handler = cast(object, connection.owner).handler
            if handler is not None:
                done = handler.expire(queue_get_id(queue))
        except Exception:
            logging.getLogger("flintmq.connection").exception("internal error: expiry failed")
    return done


def connection_block_output(connection: pointer[connection_t]) -> void:
    channel: pointer[channel_t] = connection.open_channels
    subscription: pointer[subscription_t]
    if connection.write_blocked or connection.closed:
        return
    connection.write_blocked = True
    while channel != NULL:
        subscription = channel.subscriptions
        while subscription != NULL:
            suspend_subscription(subscription, True)
            subscription = subscription.next
        channel = channel.next_open


def connection_unblock_output(connection: pointer[connection_t]) -> void:
    channel: pointer[channel_t] = connection.open_channels
    subscription: pointer[subscription_t]
    if not connection.write_blocked or connection.closed:
        return
    connection.write_blocked = False
    while channel != NULL:
        subscription = channel.subscriptions
        while subscription != NULL:
            if not channel.flow_stopped:
                suspend_subscription(subscription, False)
            subscription = subscription.next
        channel = channel.next_open
    # Targets that were on the lists when the output filled up are still there: nobody else will schedule them.
    if connection.work_first != NULL and not at_swap32(address(connection.scheduled), 1):
        connection.schedule(connection)


def suspend_subscription(subscription: pointer[subscription_t], suspended: bint) -> void:
    consumer: pointer[consumer_t] = subscription.consumer
    suspended = suspended or subscription.waiting
    at_store32(address(subscription.target.suspended), 1 if suspended else 0)
    if subscription.cancelled:
        return
    if suspended:
        queue_set_notify_work_desired(consumer.queue, consumer, False)
    elif consumer_has_credit(consumer):
        queue_set_notify_work_desired(consumer.queue, consumer, True)


def connection_lagging(connection: pointer[connection_t], most_bytes: uint64_t, most: uint64_t) -> pointer[queue_t]:
    channel: pointer[channel_t] = connection.last_channel
    i: uint32_t
    if channel == NULL or channel.route == NULL:
        return NULL
    for i in range(min(channel.route.count, cast(uint32_t, LAG_QUEUES))):
        if queue_lags(channel.route.destinations[i].queue, most_bytes, most):
            return NULL if connection_consumes(connection) else channel.route.destinations[i].queue
    return NULL


def connection_consumes(connection: pointer[connection_t]) -> bint:
    channel: pointer[channel_t] = connection.open_channels
    while channel != NULL:
        if channel.subscription_count or channel.unacked.count:
            return True
        channel = channel.next_open
    return False


# --- the end of a consumer's turn on a queue above its length limit ---------------------------------------------------------------


def limit_after_turn(connection: pointer[connection_t], subscription: pointer[subscription_t], queue: pointer[queue_t]) -> void:
    if not queue_over_limit(queue) or queue_wanted(queue, 1, WANTED_VISITS):
        return
    if not subscription.dead_letters:
        connection.dropped[DROP_MAXLEN] += drop_head(queue)
    else:
        _dead_letter_head(connection, queue)
    if queue_over_limit(queue):
        _keep_limit(connection, queue)  # in slices


@cfunc
@nogil
@exceptval(check=False)
def _dead_letter_head(connection: pointer[connection_t], queue: pointer[queue_t]) -> void:
    run: letter_run_t
    letters_begin(connection, address(run))
    letters_drop(queue, LETTERS_AT_ONCE, address(run))
    letters_cascade(address(run))
    while run.filled_count:
        run.filled_count -= 1
        _keep_limit(connection, run.filled[run.filled_count])
        queue_decref(run.filled[run.filled_count])
    letters_end(connection, address(run))


@cfunc
@nogil
@exceptval(check=False)
def _keep_limit(connection: pointer[connection_t], queue: pointer[queue_t]) -> void:
    with gil:
        try:
            handler = cast(object, connection.owner).handler
            if handler is not None:
                handler.keep_limit(queue_get_id(queue))
        except Exception:
            logging.getLogger("flintmq.connection").exception("internal error: a queue stays above its limit until the next look")
