# For the scheduler: how much CPU time the calling thread has used, nanoseconds; bits of a word.
from libc.stdint cimport int64_t

cdef extern from *:
    """
    #ifndef FLINTMQ_CPU_CLOCK_H
    #define FLINTMQ_CPU_CLOCK_H
    #include <stdint.h>
    #include <time.h>
    /* A system call: half a microsecond, twenty times core/clock's. */
    static inline int64_t thread_cpu_ns(void) {
        struct timespec t; clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
        return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
    }
    static inline int lowest_bit(uint64_t word) { return __builtin_ctzll(word); }
    static inline int highest_bit(uint64_t word) { return 63 - __builtin_clzll(word); }
    #endif
    """
    int64_t thread_cpu_ns() noexcept nogil
    int lowest_bit(unsigned long long word) noexcept nogil      # word must not be 0
    int highest_bit(unsigned long long word) noexcept nogil     # word must not be 0
