"""The verdict on every delivered message (see checker.pxd for the layout of a body).

in: a delivered body's id, tail and length, the queue it came from. out: counts of what went wrong.

I1  A message is counted in `distinct` once, however often it comes.
I2  Order is judged per consumer and (producer, key): consumers of one queue are read one after the other, so their mutual order can't be.
"""

from __future__ import annotations

import cython
from cython.cimports.libc.stdint import uint16_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import calloc, free, realloc
from cython.cimports.libc.string import memset

TAIL_MASK = cython.declare(uint64_t, 0xA5A5A5A55A5A5A5A)


def tail_of(identity):
    return identity ^ TAIL_MASK


def check_start(check, queues, producers, keys, fans_out):
    check.queue_count = queues
    check.producer_count = producers
    check.key_count = keys
    check.fans_out = fans_out
    check.keys_per_queue = 1 if fans_out else (keys + queues - 1) // queues
    check.queues = cython.cast(cython.pointer(queue_t), calloc(queues, cython.sizeof(queue_t)))
    return check.queues != cython.NULL


def check_end(check):
    index: uint32_t
    stream: uint32_t
    if check.queues == cython.NULL:
        return
    for index in range(check.queue_count):
        if check.queues[index].streams != cython.NULL:
            for stream in range(check.producer_count * check.keys_per_queue):
                free(check.queues[index].streams[stream].seen)
            free(check.queues[index].streams)
    free(check.queues)
    check.queues = cython.NULL


def check_consumer(check, queue):
    streams: cython.size_t = check.producer_count * check.keys_per_queue
    if check.queues[queue].streams == cython.NULL:
        check.queues[queue].streams = cython.cast(cython.pointer(stream_t), calloc(streams, cython.sizeof(stream_t)))
        if check.queues[queue].streams == cython.NULL:
            return cython.NULL
    return cython.cast(cython.pointer(uint32_t), calloc(streams, 4))


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _grow(stream: cython.pointer(stream_t), word: uint32_t) -> cython.bint:
    """Makes room for bit word `word`; False without memory."""
    seen: cython.pointer(uint64_t)
    words: uint32_t = stream.words * 2 if stream.words else 4
    while words <= word:
        words *= 2
    seen = cython.cast(cython.pointer(uint64_t), realloc(stream.seen, cython.cast(cython.size_t, words) * 8))
    if seen == cython.NULL:
        return False
    memset(seen + stream.words, 0, cython.cast(cython.size_t, words - stream.words) * 8)
    stream.seen = seen
    stream.words = words
    return True


def check_message(check, queue, highest, size, identity, tail, redelivered):
    producer: uint64_t = identity >> 48
    key: uint32_t = cython.cast(uint16_t, identity >> 32)
    sequence: uint32_t = cython.cast(uint32_t, identity)
    word: uint32_t = sequence >> 6
    bit: uint64_t = cython.cast(uint64_t, 1) << (sequence & 63)
    index: uint64_t
    stream: cython.pointer(stream_t)
    if redelivered:
        check.redelivered += 1
    if size < 16 or producer >= check.producer_count or key >= check.key_count or (size >= 24 and tail != identity ^ TAIL_MASK):
        check.corrupt += 1
        return True
    if not check.fans_out and key % check.queue_count != queue:
        check.misrouted += 1
        return True
    index = producer * check.keys_per_queue + (0 if check.fans_out else key // check.queue_count)
    stream = cython.address(check.queues[queue].streams[index])
    if word >= stream.words and not _grow(stream, word):
        return False
    if stream.seen[word] & bit:
        # A repetition that the broker announces is what AMQP allows.
        if not redelivered:
            check.duplicates += 1
        return True
    stream.seen[word] |= bit
    check.queues[queue].distinct += 1
    if sequence < highest[index]:
        if not redelivered:
            check.disordered += 1
    else:
        highest[index] = sequence + 1
    return True


def check_distinct(check):
    index: uint32_t
    total: uint64_t = 0
    for index in range(check.queue_count):
        total += check.queues[index].distinct
    return total


@cython.cclass
class Checker:
    """The checker by itself, for tests: one queue's deliveries at a time."""

    def __cinit__(self, queues: int, producers: int, keys: int, fans_out: bool):
        index: uint32_t
        if queues > 16:
            raise ValueError("at most 16 queues")
        if not check_start(cython.address(self.check), queues, producers, keys, fans_out):
            raise MemoryError
        for index in range(self.check.queue_count):
            self.highest[index] = check_consumer(cython.address(self.check), index)

    def __dealloc__(self):
        index: cython.int
        for index in range(16):
            free(self.highest[index])
        check_end(cython.address(self.check))

    def take(self, queue: int, producer: int, key: int, sequence: int, *, damaged: bool = False, redelivered: bool = False) -> None:
        """One delivery of a 24-byte body."""
        number: uint32_t = queue
        identity: uint64_t = producer << 48 | key << 32 | sequence
        tail: uint64_t = identity if damaged else identity ^ TAIL_MASK
        if number >= self.check.queue_count:
            raise ValueError("no such queue")
        check_message(cython.address(self.check), number, self.highest[number], 24, identity, tail, redelivered)

    def verdict(self) -> dict[str, int]:
        return {
            "distinct": check_distinct(cython.address(self.check)),
            "duplicates": self.check.duplicates,
            "disordered": self.check.disordered,
            "corrupt": self.check.corrupt,
            "misrouted": self.check.misrouted,
            "redelivered": self.check.redelivered,
        }
