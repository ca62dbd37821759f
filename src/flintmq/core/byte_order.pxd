# Big-endian loads and stores of unaligned bytes.
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from *:
    """
    #ifndef FLINTMQ_BYTES_H
    #define FLINTMQ_BYTES_H
    #include <stdint.h>
    #include <string.h>
    static inline uint16_t get16(const uint8_t *p) { return (uint16_t)(p[0] << 8 | p[1]); }
    static inline uint32_t get32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return __builtin_bswap32(v); }
    static inline uint64_t get64(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return __builtin_bswap64(v); }
    static inline void put16(uint8_t *p, uint16_t v) { p[0] = (uint8_t)(v >> 8); p[1] = (uint8_t)v; }
    static inline void put32(uint8_t *p, uint32_t v) { v = __builtin_bswap32(v); memcpy(p, &v, 4); }
    static inline void put64(uint8_t *p, uint64_t v) { v = __builtin_bswap64(v); memcpy(p, &v, 8); }
    #endif
    """
    uint16_t get16(const uint8_t *p) noexcept nogil
    uint32_t get32(const uint8_t *p) noexcept nogil
    uint64_t get64(const uint8_t *p) noexcept nogil
    void put16(uint8_t *p, uint16_t v) noexcept nogil
    void put32(uint8_t *p, uint32_t v) noexcept nogil
    void put64(uint8_t *p, uint64_t v) noexcept nogil
