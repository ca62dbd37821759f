"""The verdict on every delivered message (see checker.pxd for the layout of a body).

in: a delivered body's id, tail and length, the queue it came from. out: counts of faults.

I1  A message is counted in `distinct` once, however often it comes.
I2  Order is judged per consumer and (producer, key): consumers of one queue are read one after the other, so their mutual order can't be.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cfunc, declare, exceptval, nogil, pointer, size_t, sizeof, void
from cython.cimports.libc.stdint import uint16_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import calloc, free, realloc
from cython.cimports.libc.string import memset

TAIL_MASK = declare(uint64_t, 0xA5A5A5A55A5A5A5A)


def tail_of(identity: uint64_t) -> uint64_t:
    return identity ^ TAIL_MASK


def check_start(check: pointer[check_t], queues: uint32_t, producers: uint32_t, keys: uint32_t, fans_out: bint) -> bint:
    check.queue_count = queues
    check.producer_count = producers
    check.key_count = keys
    check.fans_out = fans_out
    check.keys_per_queue = 1 if fans_out else (keys + queues - 1) // queues
    check.queues = cast(pointer[queue_t], calloc(queues, sizeof(queue_t)))
    return check.queues != NULL


def check_end(check: pointer[check_t]) -> void:
    index: uint32_t
    lane: uint32_t
    if check.queues == NULL:
        return
    for index in range(check.queue_count):
        if check.queues[index].lanes != NULL:
            for lane in range(check.producer_count * check.keys_per_queue):
                free(check.queues[index].lanes[lane].seen)
            free(check.queues[index].lanes)
    free(check.queues)
    check.queues = NULL


def check_consumer(check: pointer[check_t], queue: uint32_t) -> pointer[uint32_t]:
    lanes: size_t = check.producer_count * check.keys_per_queue
    if check.queues[queue].lanes == NULL:
        check.queues[queue].lanes = cast(pointer[lane_t], calloc(lanes, sizeof(lane_t)))
        if check.queues[queue].lanes == NULL:
            return NULL
    return cast(pointer[uint32_t], calloc(lanes, 4))


@cfunc
@nogil
@exceptval(check=False)
def _grow(lane: pointer[lane_t], word: uint32_t) -> bint:
    """Makes room for bit word `word`; False without memory."""
    seen: pointer[uint64_t]
    words: uint32_t = lane.words * 2 if lane.words else 4
    while words <= word:
        words *= 2
    seen = cast(pointer[uint64_t], realloc(lane.seen, cast(size_t, words) * 8))
    if seen == NULL:
        return False
    memset(seen + lane.words, 0, cast(size_t, words - lane.words) * 8)
    lane.seen = seen
    lane.words = words
    return True


def check_message(
    check: pointer[check_t],
    queue: uint32_t,
    highest: pointer[uint32_t],
    size: uint64_t,
    identity: uint64_t,
    tail: uint64_t,
    redelivered: bint,
) -> bint:
    producer: uint64_t = identity >> 48
    key: uint32_t = cast(uint16_t, identity >> 32)
    sequence: uint32_t = cast(uint32_t, identity)
    word: uint32_t = sequence >> 6
    bit: uint64_t = cast(uint64_t, 1) << (sequence & 63)
    index: uint64_t
    lane: pointer[lane_t]
    if redelivered:
        check.redelivered += 1
    if size < 16 or producer >= check.producer_count or key >= check.key_count or (size >= 24 and tail != identity ^ TAIL_MASK):
        check.corrupt += 1
        return True
    if not check.fans_out and key % check.queue_count != queue:
        check.misrouted += 1
        return True
    index = producer * check.keys_per_queue + (0 if check.fans_out else key // check.queue_count)
    lane = address(check.queues[queue].lanes[index])
    if word >= lane.words and not _grow(lane, word):
        return False
    if lane.seen[word] & bit:
        # A repetition that the broker announces is what AMQP allows.
        if not redelivered:
            check.duplicates += 1
        return True
    lane.seen[word] |= bit
    check.queues[queue].distinct += 1
    if sequence < highest[index]:
        if not redelivered:
            check.disordered += 1
    else:
        highest[index] = sequence + 1
    return True


def check_distinct(check: pointer[check_t]) -> uint64_t:
    index: uint32_t
    total: uint64_t = 0
    for index in range(check.queue_count):
        total += check.queues[index].distinct
    return total
