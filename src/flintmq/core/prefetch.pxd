# Memory that is needed soon comes into the caches meanwhile. Any address may be given: one that is not mapped has no effect.
cdef extern from *:
    """
    #ifndef FLINTMQ_PREFETCH_H
    #define FLINTMQ_PREFETCH_H
    static inline void prefetch_write(void *p) { __builtin_prefetch(p, 1); }
    #endif
    """
    void prefetch_write(void *p) noexcept nogil
