# Clock readings for the message path, without the GIL.
from libc.stdint cimport int64_t, uint64_t

cdef enum:
    NS_PER_MS = 1000000
    NS_PER_SECOND = 1000000000

cdef extern from *:
    """
    #ifndef FLINTMQ_CLOCK_H
    #define FLINTMQ_CLOCK_H
    #include <stdint.h>
    #include <time.h>
    static inline int64_t machine_ms(void) {
        struct timespec t; clock_gettime(CLOCK_REALTIME_COARSE, &t);
        return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
    }
    static inline int64_t monotonic_ms(void) {
        struct timespec t; clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
        return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
    }
    static inline uint64_t machine_us(void) {
        struct timespec t; clock_gettime(CLOCK_REALTIME, &t);
        return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
    }
    static inline int64_t monotonic_ns(void) {
        struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t);
        return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
    }
    #endif
    """
    int64_t machine_ms() noexcept nogil    # Unix epoch, of the machine; a few milliseconds coarse
    uint64_t machine_us() noexcept nogil   # Unix epoch, of the machine; exact
    int64_t monotonic_ms() noexcept nogil
    int64_t monotonic_ns() noexcept nogil  # exact

# The wall clock: the machine's, or the time that a test has set (clock.py).
cdef int64_t wall_ms() noexcept nogil      # Unix epoch; a few milliseconds coarse
cdef uint64_t wall_us() noexcept nogil     # Unix epoch; exact
