"""Parts of the load generator by themselves: its verdict on deliveries, its histogram."""

from __future__ import annotations

from cython import address, cast, cclass, pointer, sizeof
from cython import int as c_int
from cython.cimports.flintmq.perf.checker import check_consumer, check_distinct, check_end, check_message, check_start, tail_of
from cython.cimports.flintmq.perf.histogram import histogram_copy, histogram_t, record
from cython.cimports.libc.stdint import uint32_t, uint64_t
from cython.cimports.libc.stdlib import calloc, free


@cclass
class Checker:
    """The checker by itself: one queue's deliveries at a time."""

    def __cinit__(self, queues: int, producers: int, keys: int, fans_out: bool):
        index: uint32_t
        if queues > 16:
            raise ValueError("at most 16 queues")
        if not check_start(address(self.check), queues, producers, keys, fans_out):
            raise MemoryError
        for index in range(self.check.queue_count):
            self.highest[index] = check_consumer(address(self.check), index)

    def __dealloc__(self):
        index: c_int
        for index in range(16):
            free(self.highest[index])
        check_end(address(self.check))

    def take(self, queue: int, producer: int, key: int, sequence: int, *, damaged: bool = False, redelivered: bool = False) -> None:
        """One delivery of a 24-byte body."""
        number: uint32_t = queue
        identity: uint64_t = producer << 48 | key << 32 | sequence
        tail: uint64_t = identity if damaged else tail_of(identity)
        if number >= self.check.queue_count:
            raise ValueError("no such queue")
        check_message(address(self.check), number, self.highest[number], 24, identity, tail, redelivered)

    def verdict(self) -> dict[str, int]:
        return {
            "distinct": check_distinct(address(self.check)),
            "duplicates": self.check.duplicates,
            "disordered": self.check.disordered,
            "corrupt": self.check.corrupt,
            "misrouted": self.check.misrouted,
            "redelivered": self.check.redelivered,
        }


def histogram_of(durations_ns: list[int]) -> dict[str, object]:
    """A histogram of the given durations (ns)."""
    histogram: pointer[histogram_t] = cast(pointer[histogram_t], calloc(1, sizeof(histogram_t)))
    for duration in durations_ns:
        record(histogram, duration)
    result = histogram_copy(histogram)
    free(histogram)
    return result
