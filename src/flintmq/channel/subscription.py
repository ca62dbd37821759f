"""One basic.consume, from the first to the last call on its queue (see subscription.pxd).

in: the handlers, through Connection. out: a consumer on a queue whose target schedules this channel.
"""

from __future__ import annotations

import cython
from cython import NULL, address, bint, cast, cfunc, declare, exceptval, nogil, p_void, pointer, sizeof, uint, void
from cython.cimports.flintmq.channel.delivery import subscription_set_prefix
from cython.cimports.flintmq.channel.settlement import channel_resume
from cython.cimports.flintmq.channel.turns import forget_target, target_notify
from cython.cimports.flintmq.channel.types import channel_t, subscription_t
from cython.cimports.flintmq.core.jobs import job_add
from cython.cimports.flintmq.queue.queue_core import (
    consumer_decref, consumer_incref, consumer_new, queue_add_consumer, queue_consumer_leaves, queue_decref, queue_incref,
    queue_remove_consumer,
)  # fmt: skip
from cython.cimports.flintmq.queue.types import CONSUMER_NO_ACK, queue_t
from cython.cimports.libc.stdint import int32_t, uint32_t, uint8_t
from cython.cimports.libc.stdlib import calloc, free
from cython.cimports.libc.string import memcmp

# where the consumer tag stands in a deliver frame: frame header, class and method, length octet
TAG_OFFSET = declare(uint, 12)


def subscription_new(
    channel: pointer[channel_t],
    queue: pointer[queue_t],
    tag: pointer[cython.const[uint8_t]],
    tag_len: uint8_t,
    flags: uint32_t,
    priority: int32_t,
    waiting: bint,
) -> pointer[subscription_t]:
    no_ack: bint = flags & CONSUMER_NO_ACK
    subscription: pointer[subscription_t] = cast(pointer[subscription_t], calloc(1, sizeof(subscription_t)))
    if subscription == NULL:
        return NULL
    subscription.channel = channel
    subscription.no_ack = no_ack
    subscription.waiting = waiting
    subscription.target.context = subscription
    subscription.target.notify_work = target_notify
    subscription.target.consumers = subscription.consumers
    subscription.target.consumer_count = 1
    subscription.target.suspended = 1 if waiting or channel.flow_stopped or channel.connection.write_blocked else 0
    subscription_set_prefix(subscription, channel.number, tag, tag_len)
    subscription.consumer = consumer_new(queue, address(subscription.target), priority, flags, 0 if no_ack else channel.prefetch)
    if subscription.consumer == NULL:
        free(subscription)
        return NULL
    subscription.consumers[0] = subscription.consumer
    subscription.consumer.context = subscription
    if not no_ack:
        subscription.consumer.shared_credit = address(channel.credit)
    subscription.queue = queue
    queue_incref(queue)
    return subscription


def subscription_attach(subscription: pointer[subscription_t]) -> bint:
    subscription.next = subscription.channel.subscriptions
    subscription.channel.subscriptions = subscription
    subscription.channel.subscription_count += 1
    if queue_add_consumer(subscription.queue, subscription.consumer):
        return True
    subscription.channel.subscriptions = subscription.next
    subscription.channel.subscription_count -= 1
    consumer_decref(subscription.consumer)
    queue_decref(subscription.queue)
    return False


@cfunc
@nogil
@exceptval(check=False)
def _leave_step(argument: p_void) -> bint:
    leaving: pointer[leaving_t] = cast(pointer[leaving_t], argument)
    return not queue_consumer_leaves(leaving.queue, leaving.consumer)


@cfunc
@nogil
@exceptval(check=False)
def _leave_ended(argument: p_void, done: bint) -> void:
    leaving: pointer[leaving_t] = cast(pointer[leaving_t], argument)
    while not done:
        done = not queue_consumer_leaves(leaving.queue, leaving.consumer)
    consumer_decref(leaving.consumer)
    queue_decref(leaving.queue)
    free(leaving)


@cfunc
@nogil
@exceptval(check=False)
def _leave(subscription: pointer[subscription_t]) -> void:
    """A consumer that has more message groups than go back at once: the rest of them in slices of its loop."""
    leaving: pointer[leaving_t]
    if not queue_consumer_leaves(subscription.queue, subscription.consumer):
        return
    leaving = cast(pointer[leaving_t], calloc(1, sizeof(leaving_t))) if subscription.channel.connection.jobs != NULL else NULL
    if leaving == NULL:
        while queue_consumer_leaves(subscription.queue, subscription.consumer):
            pass
        return
    leaving.queue = subscription.queue
    leaving.consumer = subscription.consumer
    queue_incref(leaving.queue)
    consumer_incref(leaving.consumer)
    leaving.job.step = _leave_step
    leaving.job.ended = _leave_ended
    leaving.job.argument = leaving
    job_add(subscription.channel.connection.jobs, address(leaving.job))


def subscription_detach(subscription: pointer[subscription_t]) -> void:
    link: pointer[pointer[subscription_t]] = address(subscription.channel.subscriptions)
    while link[0] != subscription:
        link = address(link[0].next)
    link[0] = subscription.next
    subscription.channel.subscription_count -= 1
    subscription.cancelled = True
    offer_back: bint = queue_remove_consumer(subscription.queue, subscription.consumer)
    if subscription.channel.open:  # else all its consumers go, and its work list is gone already
        if offer_back and subscription.channel.credit.limit:
            channel_resume(subscription.channel)  # credit that it shared with others
        forget_target(subscription.channel.connection, subscription.channel, address(subscription.target))
    _leave(subscription)
    # Unacked deliveries keep the consumer; they are settled while the channel, whose credit it shares, still lives.
    consumer_decref(subscription.consumer)
    queue_decref(subscription.queue)


def subscription_find(channel: pointer[channel_t], tag: pointer[cython.const[uint8_t]], tag_len: uint8_t) -> pointer[subscription_t]:
    subscription: pointer[subscription_t] = channel.subscriptions
    while subscription != NULL:
        if subscription.prefix_len == TAG_OFFSET + tag_len and memcmp(subscription.prefix + TAG_OFFSET, tag, tag_len) == 0:
            return subscription
        subscription = subscription.next
    return NULL
