"""Unacked deliveries of a channel, and how they are settled: ack, nack, reject, recover; the credit that comes back.

in: delivery tags from the client. out: entries dequeued or released to their places, consumers that want work again.

I1  Every delivery that was acquired for a channel is in its `unacked`, settled, or back in its queue.
I2  One settled delivery gives back exactly one unit of credit.
I3  A delivery whose time is over is given back once; what the client says of it later has no effect but on its credit.
I4  Many deliveries are settled in parts, in the order of their tags; nobody else settles for the channel between two parts.
I5  find, add and remove of an unacked delivery are O(1); a walk (`multiple`, recover, close) costs O(live + span / 256).
I6  A segment of 256 tags is freed when all in it are settled, so one old unacked delivery can't pin the memory of later ones.
I7  A delivery that is removed is live, and every live delivery is counted in its segment and in the map.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cfunc, declare, exceptval, nogil, p_void, pointer, sizeof, void
from cython import int as c_int
from cython.cimports.flintmq.channel.letters import (
    DEATH_REJECTED, LETTER_COPY_MAX, letter_of_entry, letter_run_t, letters_begin, letters_end, note_refused,
)  # fmt: skip
from cython.cimports.flintmq.channel.types import (
    DROP_REJECTED, UNACKED_PER_SEGMENT, channel_t, connection_t, subscription_t, unacked_map_t, unacked_segment_t, unacked_t,
)  # fmt: skip
from cython.cimports.flintmq.core.atomics import at_load32, at_load64
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.content import content_t
from cython.cimports.flintmq.core.memory_account import MEMORY_UNACKED, memory_add
from cython.cimports.flintmq.protocol.v0_9_1.ids import BASIC_ACK, BASIC_NACK, BASIC_REJECT
from cython.cimports.flintmq.queue.limits import queue_over_limit
from cython.cimports.flintmq.queue.queue_core import (
    consumer_decref, consumer_give_back_credit, consumer_has_credit, queue_decref, queue_forget_logged, queue_is_deleted, queue_release,
    queue_set_notify_work_desired, queue_settle,
)  # fmt: skip
from cython.cimports.flintmq.queue.returns import queue_pass_on
from cython.cimports.flintmq.queue.slot import slot_borrow
from cython.cimports.flintmq.queue.types import (
    CONSUMER_NOT_INTERESTED, REASON_ACK, REASON_PURGE, REASON_REJECT, RETURNS_LIMITED, RETURN_CALM, RETURN_FAILED, consumer_t, delivery_t,
)  # fmt: skip
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import calloc, free, realloc
from cython.cimports.libc.string import memmove, memset

# deliveries without a letter that cost as much as one with it
LETTER_LOOKS = declare(uint32_t, 4)


def channel_settle(
    connection: pointer[connection_t], channel: pointer[channel_t], method: uint32_t, tag: uint64_t, multiple: bint, requeue: bint
) -> c_int:
    part: part_t
    run: letter_run_t
    delivery: pointer[unacked_t]
    if not multiple:
        delivery = unacked_find(address(channel.unacked), tag)
        if delivery == NULL:
            return _settle_late(channel, tag)
        if delivery.dead_letters and method != BASIC_ACK and not requeue:
            letters_begin(connection, address(run))
            if not _bury(delivery, address(run)):
                return SETTLE_SLOWLY
            letters_end(connection, address(run))
        _settle_found(connection, channel, tag, delivery, method, requeue)
        return SETTLE_DONE
    # Tag 0 with multiple means everything that is outstanding (specification 1.8.3.13), which may be nothing.
    if tag > channel.unacked.last_tag:
        return SETTLE_UNKNOWN
    part.at = 1
    part.upto = tag if tag else channel.unacked.last_tag
    part.most = SETTLE_AT_ONCE
    part.in_tx = False
    channel_settle_some(connection, channel, method, requeue, address(part))
    if part.at:
        return SETTLE_MORE
    return SETTLE_DONE if part.most < SETTLE_AT_ONCE or tag == 0 or channel.late else SETTLE_UNKNOWN


@cfunc
@nogil
@exceptval(check=False)
def _bury(item: pointer[unacked_t], run: pointer[letter_run_t]) -> bint:
    """The letter of a delivery that was refused is on its way, or there is none. False: it is left to Python."""
    entry: delivery_t
    entry.slot = item.slot
    entry.position = item.position
    # A queue that is gone dead-letters nothing, and its content may be gone.
    return queue_is_deleted(item.queue) or letter_of_entry(
        item.queue, address(entry), item.owner, DEATH_REJECTED, REASON_REJECT, item.delivered_us, run
    )


@cfunc
@nogil
@exceptval(check=False)
def _settle_late(channel: pointer[channel_t], tag: uint64_t) -> c_int:
    """A tag that is not in the map: perhaps that of a delivery whose time is over."""
    if channel.late == 0 or tag == 0 or tag > channel.unacked.last_tag:
        return SETTLE_UNKNOWN
    channel.late -= 1
    return SETTLE_DONE


def channel_settle_some(
    connection: pointer[connection_t], channel: pointer[channel_t], method: uint32_t, requeue: bint, part: pointer[part_t]
) -> void:
    tag: uint64_t = unacked_next(address(channel.unacked), part.at)
    item: pointer[unacked_t]
    run: letter_run_t
    letters_begin(connection, address(run))
    part.dead = False
    while tag and tag <= part.upto and part.most and run.copied < LETTER_COPY_MAX:
        item = unacked_find(address(channel.unacked), tag)
        part.most -= 1
        if part.in_tx or not item.in_tx:
            if item.dead_letters and method != BASIC_ACK and not requeue:
                if not _bury(item, address(run)):
                    part.dead = True
                    break
                part.most -= min(part.most, LETTER_LOOKS)
            _settle_found(connection, channel, tag, item, method, requeue)
        tag = unacked_next(address(channel.unacked), tag + 1)
    letters_end(connection, address(run))
    part.at = tag if tag <= part.upto else 0


def channel_settle_item(
    connection: pointer[connection_t], channel: pointer[channel_t], tag: uint64_t, method: uint32_t, requeue: bint
) -> void:
    delivery: pointer[unacked_t] = unacked_find(address(channel.unacked), tag)
    check(delivery != NULL, b"settlement I1 a delivery that is settled is the channel's", tag, channel.unacked.last_tag)
    _settle_found(connection, channel, tag, delivery, method, requeue)


@cfunc
@nogil
@exceptval(check=False)
def _settle_found(
    connection: pointer[connection_t],
    channel: pointer[channel_t],
    tag: uint64_t,
    delivery: pointer[unacked_t],
    method: uint32_t,
    requeue: bint,
) -> void:
    item: unacked_t = delivery[0]
    unacked_remove(address(channel.unacked), tag)
    settle_taken(connection, channel, address(item), method, requeue, False)


def settle_taken(
    connection: pointer[connection_t],
    channel: pointer[channel_t],
    item: pointer[unacked_t],
    method: uint32_t,
    requeue: bint,
    logged_before: bint,
) -> void:
    consumer: pointer[consumer_t] = item.consumer
    if item.lost:
        pass  # I3
    elif method != BASIC_ACK and requeue:
        _give_back(connection, item, RETURN_CALM if method == BASIC_NACK else RETURN_FAILED)
    else:
        if logged_before:
            queue_forget_logged(item.queue, item.slot, item.position, item.owner)
        queue_settle(
            item.queue, item.slot, item.position, item.owner, REASON_ACK if method == BASIC_ACK else REASON_REJECT, item.delivered_us
        )
        if connection != NULL:
            if method == BASIC_ACK:
                channel.acknowledged += 1
                connection.counters.acknowledged += 1
            elif not item.dead_letters and item.queue.ops == NULL:  # what a stream's group drops it counts itself
                connection.dropped[DROP_REJECTED] += 1
    if consumer == NULL:
        queue_decref(item.queue)
        return
    consumer_give_back_credit(consumer)
    if channel.credit.limit:
        channel_resume(channel)
    elif consumer.list == CONSUMER_NOT_INTERESTED and consumer_has_credit(consumer) and not at_load32(address(consumer.target.suspended)):
        queue_set_notify_work_desired(consumer.queue, consumer, True)
    consumer_decref(consumer)


@cfunc
@nogil
@exceptval(check=False)
def _give_back(connection: pointer[connection_t], item: pointer[unacked_t], how: c_int) -> void:
    if queue_is_deleted(item.queue) and item.queue.ops == NULL:  # nobody would ever take it
        queue_settle(item.queue, item.slot, item.position, item.owner, REASON_PURGE, item.delivered_us)
        return
    queue_release(item.queue, item.slot, item.position, item.owner, how)
    if item.queue.returns and item.queue.ops == NULL and connection != NULL:
        if at_load32(address(item.queue.returned_count)) or (item.queue.returns & RETURNS_LIMITED and queue_over_limit(item.queue)):
            note_refused(connection, item.queue, NULL, REASON_REJECT)


def channel_time_out(
    connection: pointer[connection_t],
    channel: pointer[channel_t],
    first_tag: uint64_t,
    now_us: uint64_t,
    least_us: uint64_t,
    most: pointer[uint32_t],
    ended: pointer[uint32_t],
) -> uint64_t:
    item: pointer[unacked_t]
    timeout_us: uint64_t
    first_tag = unacked_next(address(channel.unacked), first_tag)
    while first_tag and most[0]:
        item = unacked_find(address(channel.unacked), first_tag)
        if item.delivered_us + least_us > now_us:
            return 0
        most[0] -= 1
        # A stream's group looks after its own.
        if not item.in_tx and not item.lost and item.queue.ops == NULL:
            timeout_us = at_load64(address(item.queue.consumer_timeout_us))
            if item.consumer != NULL and item.consumer.timeout_us:
                timeout_us = item.consumer.timeout_us
            if timeout_us and item.delivered_us + timeout_us <= now_us:
                _time_out_one(connection, channel, first_tag, item)
                ended[0] += 1
        first_tag = unacked_next(address(channel.unacked), first_tag + 1)
    return first_tag


@cfunc
@nogil
@exceptval(check=False)
def _time_out_one(connection: pointer[connection_t], channel: pointer[channel_t], tag: uint64_t, item: pointer[unacked_t]) -> void:
    taken: unacked_t
    if item.consumer != NULL and (item.consumer.credit.limit or channel.credit.limit):
        # Its credit stays used: a consumer that hangs gets no more than its prefetch, and there are no more such records than that.
        item.lost = 1
        item.dead_letters = 0
        _give_back(connection, item, RETURN_CALM)
        return
    taken = item[0]
    unacked_remove(address(channel.unacked), tag)
    channel.late += 1
    settle_taken(connection, channel, address(taken), BASIC_NACK, True, False)


def channel_pass_on(connection: pointer[connection_t], channel: pointer[channel_t], tag: uint64_t) -> uint64_t:
    delivery: pointer[unacked_t] = unacked_find(address(channel.unacked), tag)
    item: unacked_t
    passed_on: bint
    if delivery == NULL:
        return 0
    item = delivery[0]
    passed_on = not item.lost and queue_pass_on(item.queue, item.position, item.owner)
    delivery.lost = 1  # what follows is about its credit alone
    channel_settle_item(connection, channel, tag, BASIC_REJECT, False)
    return item.position if passed_on else 0


def channel_resume(channel: pointer[channel_t]) -> void:
    subscription: pointer[subscription_t] = channel.subscriptions
    consumer: pointer[consumer_t]
    while subscription != NULL:
        consumer = subscription.consumer
        if (
            not subscription.cancelled
            and consumer.list == CONSUMER_NOT_INTERESTED
            and not at_load32(address(subscription.target.suspended))
            and consumer_has_credit(consumer)
        ):
            queue_set_notify_work_desired(consumer.queue, consumer, True)
        subscription = subscription.next


# --- unacked deliveries by their tags ----------------------------------------------------------------------------------------------


def unacked_add(map: pointer[unacked_map_t]) -> pointer[unacked_t]:
    tag: uint64_t = map.last_tag + 1
    number: uint64_t = tag // UNACKED_PER_SEGMENT
    index: uint64_t
    segment: pointer[unacked_segment_t]
    if map.segments == NULL or number - map.first >= map.size:
        if not _make_room(map, number):
            return NULL
    index = number - map.first
    if tag % UNACKED_PER_SEGMENT == 0 and index:
        _retire(map, index - 1)  # was kept while it was being filled
    segment = map.segments[index]
    if segment == NULL:
        segment = map.spare
        map.spare = NULL
        if segment == NULL:
            segment = cast(pointer[unacked_segment_t], calloc(1, sizeof(unacked_segment_t)))
            if segment == NULL:
                return NULL
            memory_add(MEMORY_UNACKED, sizeof(unacked_segment_t))
        map.segments[index] = segment
    segment.live += 1
    map.count += 1
    map.last_tag = tag
    return address(segment.items[tag % UNACKED_PER_SEGMENT])


@cfunc
@nogil
@exceptval(check=False)
def _retire(map: pointer[unacked_map_t], index: uint64_t) -> void:
    """Takes out the segment at `index` of the directory when all in it is settled; one is kept for reuse."""
    segment: pointer[unacked_segment_t] = map.segments[index]
    if segment == NULL or segment.live:
        return
    check(index < map.size, b"settlement I6 a segment that is retired is in the directory", index, map.size)
    map.segments[index] = NULL
    if map.spare == NULL:
        map.spare = segment
    else:
        _free_segment(segment)


@cfunc
@nogil
@exceptval(check=False)
def _free_segment(segment: pointer[unacked_segment_t]) -> void:
    if segment != NULL:
        memory_add(MEMORY_UNACKED, -cast(int64_t, sizeof(unacked_segment_t)))
        free(segment)


@cfunc
@nogil
@exceptval(check=False)
def _make_room(map: pointer[unacked_map_t], number: uint64_t) -> bint:
    """Shifts out segments that are gone at the front, or doubles the directory, until segment `number` has a place."""
    gone: uint32_t = 0
    used: uint32_t
    size: uint32_t
    segments: pointer[pointer[unacked_segment_t]]
    if map.count == 0 and map.segments != NULL:
        # Nothing is live: the current segment (still partly unused) is all that can be there.
        for used in range(map.size):
            _retire(map, used)
        map.first = number
        return True
    while gone < map.size and map.segments[gone] == NULL:
        gone += 1
    if gone and (gone * 2 >= map.size or number - map.first - gone < map.size):
        used = map.size - gone
        memmove(map.segments, map.segments + gone, used * sizeof(pointer[unacked_segment_t]))
        memset(map.segments + used, 0, gone * sizeof(pointer[unacked_segment_t]))
        map.first += gone
        if number - map.first < map.size:
            return True
    size = map.size * 2 if map.size else 4
    while number - map.first >= size:
        size *= 2
    segments = cast(
        pointer[pointer[unacked_segment_t]],
        realloc(map.segments, size * sizeof(pointer[unacked_segment_t])),
    )
    if segments == NULL:
        return False
    memset(segments + map.size, 0, (size - map.size) * sizeof(pointer[unacked_segment_t]))
    if map.size == 0:
        map.first = number
    memory_add(MEMORY_UNACKED, (size - map.size) * sizeof(p_void))
    check(number - map.first < size, b"settlement I5 the directory reaches to the next tag", number, map.first)
    map.segments = segments
    map.size = size
    return True


def unacked_find(map: pointer[unacked_map_t], tag: uint64_t) -> pointer[unacked_t]:
    number: uint64_t = tag // UNACKED_PER_SEGMENT
    segment: pointer[unacked_segment_t]
    item: pointer[unacked_t]
    if tag == 0 or tag > map.last_tag or number < map.first or number - map.first >= map.size:
        return NULL
    segment = map.segments[number - map.first]
    if segment == NULL:
        return NULL
    item = address(segment.items[tag % UNACKED_PER_SEGMENT])
    if item.slot == NULL:
        return NULL
    return item


def unacked_remove(map: pointer[unacked_map_t], tag: uint64_t) -> void:
    number: uint64_t = tag // UNACKED_PER_SEGMENT
    segment: pointer[unacked_segment_t] = map.segments[number - map.first]
    check(segment.items[tag % UNACKED_PER_SEGMENT].slot != NULL, b"settlement I7 a delivery that is removed is live", tag, map.last_tag)
    segment.items[tag % UNACKED_PER_SEGMENT].slot = NULL
    segment.live -= 1
    map.count -= 1
    # The segment that is being filled stays: its next tags come soon.
    if segment.live == 0 and number != map.last_tag // UNACKED_PER_SEGMENT:
        _retire(map, number - map.first)


def unacked_next(map: pointer[unacked_map_t], tag: uint64_t) -> uint64_t:
    number: uint64_t
    index: uint32_t
    segment: pointer[unacked_segment_t]
    if map.count == 0 or map.segments == NULL:
        return 0
    if tag < map.first * UNACKED_PER_SEGMENT:
        tag = map.first * UNACKED_PER_SEGMENT
    while tag <= map.last_tag:
        number = tag // UNACKED_PER_SEGMENT
        if number - map.first >= map.size:
            return 0
        segment = map.segments[number - map.first]
        if segment == NULL or segment.live == 0:
            tag = (number + 1) * UNACKED_PER_SEGMENT
            continue
        index = tag % UNACKED_PER_SEGMENT
        while index < UNACKED_PER_SEGMENT:
            if segment.items[index].slot != NULL:
                return number * UNACKED_PER_SEGMENT + index
            index += 1
        tag = (number + 1) * UNACKED_PER_SEGMENT
    return 0


def unacked_content(item: pointer[unacked_t], message_id: pointer[uint64_t]) -> pointer[content_t]:
    message_id[0] = 0
    if item.queue.ops != NULL:
        return NULL  # its slot is no entry's
    message_id[0] = item.slot.message_id
    return slot_borrow(item.slot, True, NULL)


def unacked_free(map: pointer[unacked_map_t]) -> void:
    i: uint32_t
    for i in range(map.size):
        _free_segment(map.segments[i])
    memory_add(MEMORY_UNACKED, -cast(int64_t, map.size * sizeof(p_void)))
    free(map.segments)
    _free_segment(map.spare)
    memset(map, 0, sizeof(unacked_map_t))
