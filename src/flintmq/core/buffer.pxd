# A growable output buffer and big-endian stores. Owned by one loop thread; no locking.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef struct outbuf_t:
    uint8_t *data
    size_t size               # bytes allocated
    size_t start              # unsent bytes are data[start:end]
    size_t end

# Room for `count` more bytes at the returned address, which stays valid until the next call; NULL when memory is exhausted.
cdef uint8_t *out_reserve(outbuf_t *out, size_t count) noexcept nogil
cdef void out_sent(outbuf_t *out, size_t count) noexcept nogil       # drops `count` bytes from the front
cdef void out_release(outbuf_t *out) noexcept nogil                  # gives all memory back
cdef void out_trim(outbuf_t *out) noexcept nogil                     # gives memory of an empty buffer back

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
