# Sleeping on a 32-bit word, without the GIL (Linux futex). The word changes before it is woken, so no wake-up is lost.
from libc.stdint cimport uint32_t

cdef extern from *:
    """
    #ifndef FLINTMQ_FUTEX_H
    #define FLINTMQ_FUTEX_H
    #include <linux/futex.h>
    #include <stdint.h>
    #include <sys/syscall.h>
    #include <time.h>
    #include <unistd.h>
    /* Sleeps while *word == seen, at most `ms` milliseconds (below 0: without end). May wake for no reason. */
    static inline void futex_wait(uint32_t *word, uint32_t seen, int ms) {
        struct timespec t = { ms / 1000, (long)(ms % 1000) * 1000000 };
        syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, ms < 0 ? (struct timespec *)0 : &t, (uint32_t *)0, 0);
    }
    static inline void futex_wake(uint32_t *word, int count) {
        syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, (struct timespec *)0, (uint32_t *)0, 0);
    }
    #endif
    """
    void futex_wait(uint32_t *word, uint32_t seen, int ms) noexcept nogil
    void futex_wake(uint32_t *word, int count) noexcept nogil
