# A hash with a secret key for caches whose keys come from peers: a multiplication of 128 bits for each 16 bytes.
# Nobody who does not know the key can compute what collides, but no proof says so for a peer who measures times: a table that uses it drops what
# it has and takes another key when a chain becomes longer than chance allows. Tables that can't do that take siphash.pxd.
# Source: Wang Yi, "wyhash" (2019), with all its constants secret; Go hashes the keys of maps in this way where it has no AES instructions.
from libc.stdint cimport uint8_t, uint64_t

cdef extern from *:
    """
    #ifndef FLINTMQ_KEYED_HASH_H
    #define FLINTMQ_KEYED_HASH_H
    #include <stdint.h>
    #include <string.h>
    typedef struct { uint64_t word[4]; } hash_key_t;
    static inline uint64_t flintmq_fold(uint64_t a, uint64_t b) {
        unsigned __int128 product = (unsigned __int128)a * b;
        return (uint64_t)product ^ (uint64_t)(product >> 64);
    }
    static inline uint64_t flintmq_word8(const uint8_t *p) { uint64_t word; memcpy(&word, p, 8); return word; }
    static inline uint64_t flintmq_word4(const uint8_t *p) { uint32_t word; memcpy(&word, p, 4); return word; }
    static inline uint64_t keyed_hash(const hash_key_t *key, const uint8_t *p, uint64_t size) {
        uint64_t state = key->word[0], a, b, i;
        if (size > 16)
            for (i = 0; i + 16 < size; i += 16)
                state = flintmq_fold(flintmq_word8(p + i) ^ key->word[1], flintmq_word8(p + i + 8) ^ state);
        /* The last 16 bytes, or all of them; words overlap rather than end behind the text. */
        if (size >= 16) {
            a = flintmq_word8(p + size - 16); b = flintmq_word8(p + size - 8);
        } else if (size >= 8) {
            a = flintmq_word8(p); b = flintmq_word8(p + size - 8);
        } else if (size >= 4) {
            a = flintmq_word4(p); b = flintmq_word4(p + size - 4);
        } else {
            a = size ? (uint64_t)p[0] << 16 | (uint64_t)p[size >> 1] << 8 | p[size - 1] : 0; b = 0;
        }
        state = flintmq_fold(a ^ key->word[2], b ^ state);
        return flintmq_fold(state ^ key->word[3], size ^ key->word[1]);
    }
    #endif
    """
    ctypedef struct hash_key_t:         # four random words
        uint64_t word[4]
    # `size`: bytes at `data`. O(size).
    uint64_t keyed_hash(const hash_key_t *key, const uint8_t *data, uint64_t size) noexcept nogil
