# Atomic operations on plain C integers: the only place where the broker touches __atomic builtins.
#
# Every operation is an acquire, a release, or both, as its name or comment says; each call site names its partner. With
# -DFLINTMQ_YIELD every operation is also a yield point (sched_yield on a pseudo-random subset), which makes rare
# interleavings common in the stress tests.
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t

cdef extern from *:
    """
    #ifndef FLINTMQ_ATOMICS_H
    #define FLINTMQ_ATOMICS_H
    #include <stdint.h>
    #include <sched.h>
    #ifdef FLINTMQ_YIELD
    static inline void at_yield(void) {
        static __thread uint32_t seed = 0;
        if (!seed) seed = (uint32_t)(uintptr_t)&seed | 1u;
        seed ^= seed << 13; seed ^= seed >> 17; seed ^= seed << 5;
        if ((seed & 7u) == 0) sched_yield();
    }
    #else
    #define at_yield() ((void)0)
    #endif
    static inline uint64_t at_load64(uint64_t *p) { at_yield(); return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
    static inline void at_store64(uint64_t *p, uint64_t v) { at_yield(); __atomic_store_n(p, v, __ATOMIC_RELEASE); }
    static inline int at_cas64(uint64_t *p, uint64_t expected, uint64_t wanted) {
        at_yield();
        return __atomic_compare_exchange_n(p, &expected, wanted, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    }
    static inline uint64_t at_add64(uint64_t *p, uint64_t v) { at_yield(); return __atomic_fetch_add(p, v, __ATOMIC_ACQ_REL); }
    static inline uint64_t at_sub64(uint64_t *p, uint64_t v) { at_yield(); return __atomic_fetch_sub(p, v, __ATOMIC_ACQ_REL); }
    static inline uint32_t at_load32(uint32_t *p) { at_yield(); return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
    static inline void at_store32(uint32_t *p, uint32_t v) { at_yield(); __atomic_store_n(p, v, __ATOMIC_RELEASE); }
    static inline int at_cas32(uint32_t *p, uint32_t expected, uint32_t wanted) {
        at_yield();
        return __atomic_compare_exchange_n(p, &expected, wanted, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    }
    static inline uint32_t at_add32(uint32_t *p, uint32_t v) { at_yield(); return __atomic_fetch_add(p, v, __ATOMIC_ACQ_REL); }
    static inline uint32_t at_sub32(uint32_t *p, uint32_t v) { at_yield(); return __atomic_fetch_sub(p, v, __ATOMIC_ACQ_REL); }
    static inline uint32_t at_swap32(uint32_t *p, uint32_t v) { at_yield(); return __atomic_exchange_n(p, v, __ATOMIC_ACQ_REL); }
    static inline void *at_load_ptr(void *p) { at_yield(); return __atomic_load_n((void **)p, __ATOMIC_ACQUIRE); }
    static inline void at_store_ptr(void *p, void *v) { at_yield(); __atomic_store_n((void **)p, v, __ATOMIC_RELEASE); }
    static inline void *at_swap_ptr(void *p, void *v) { at_yield(); return __atomic_exchange_n((void **)p, v, __ATOMIC_ACQ_REL); }
    static inline int at_cas_ptr(void *p, void *expected, void *wanted) {
        at_yield();
        return __atomic_compare_exchange_n((void **)p, &expected, wanted, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    }
    /* A spin lock for sections of a few dozen instructions that never block and never take the GIL. */
    static inline void spin_lock(uint32_t *lock) {
        int tries = 0;
        while (__atomic_exchange_n(lock, 1u, __ATOMIC_ACQUIRE))
            while (__atomic_load_n(lock, __ATOMIC_RELAXED))
                if (++tries > 200) { sched_yield(); tries = 0; }
    }
    static inline void spin_unlock(uint32_t *lock) { at_yield(); __atomic_store_n(lock, 0u, __ATOMIC_RELEASE); }
    #endif
    """
    void at_yield() noexcept nogil
    uint64_t at_load64(uint64_t *p) noexcept nogil
    void at_store64(uint64_t *p, uint64_t v) noexcept nogil
    bint at_cas64(uint64_t *p, uint64_t expected, uint64_t wanted) noexcept nogil
    uint64_t at_add64(uint64_t *p, uint64_t v) noexcept nogil  # returns the value before
    uint64_t at_sub64(uint64_t *p, uint64_t v) noexcept nogil  # returns the value before
    uint32_t at_load32(uint32_t *p) noexcept nogil
    void at_store32(uint32_t *p, uint32_t v) noexcept nogil
    bint at_cas32(uint32_t *p, uint32_t expected, uint32_t wanted) noexcept nogil
    uint32_t at_add32(uint32_t *p, uint32_t v) noexcept nogil  # returns the value before
    uint32_t at_sub32(uint32_t *p, uint32_t v) noexcept nogil  # returns the value before
    uint32_t at_swap32(uint32_t *p, uint32_t v) noexcept nogil  # returns the value before
    void *at_load_ptr(void *p) noexcept nogil                  # p: address of a pointer
    void at_store_ptr(void *p, void *v) noexcept nogil
    void *at_swap_ptr(void *p, void *v) noexcept nogil
    bint at_cas_ptr(void *p, void *expected, void *wanted) noexcept nogil
    void spin_lock(uint32_t *lock) noexcept nogil
    void spin_unlock(uint32_t *lock) noexcept nogil
