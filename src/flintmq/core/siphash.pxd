# SipHash-c-d: a hash with a key of 128 bits, for tables whose keys come from peers: without the key nobody can choose what collides.
# Source: Aumasson and Bernstein, "SipHash: a fast short-input PRF" (2012). 1 and 3 rounds are those of CPython and Rust, 2 and 4 the paper's.
from libc.stdint cimport uint8_t, uint64_t

cdef extern from *:
    """
    #ifndef FLINTMQ_SIPHASH_H
    #define FLINTMQ_SIPHASH_H
    #include <stdint.h>
    #include <string.h>
    #define FLINTMQ_ROTL(v, n) ((v) << (n) | (v) >> (64 - (n)))
    static inline void flintmq_sip_round(uint64_t v[4]) {
        v[0] += v[1]; v[1] = FLINTMQ_ROTL(v[1], 13) ^ v[0]; v[0] = FLINTMQ_ROTL(v[0], 32);
        v[2] += v[3]; v[3] = FLINTMQ_ROTL(v[3], 16) ^ v[2];
        v[0] += v[3]; v[3] = FLINTMQ_ROTL(v[3], 21) ^ v[0];
        v[2] += v[1]; v[1] = FLINTMQ_ROTL(v[1], 17) ^ v[2]; v[2] = FLINTMQ_ROTL(v[2], 32);
    }
    static inline uint64_t siphash(uint64_t key0, uint64_t key1, const uint8_t *p, uint64_t size, int rounds, int last_rounds) {
        /* "somepseudorandomlygeneratedbytes" */
        uint64_t v[4] = {key0 ^ 0x736F6D6570736575u, key1 ^ 0x646F72616E646F6Du, key0 ^ 0x6C7967656E657261u, key1 ^ 0x7465646279746573u};
        uint64_t word, i, left = size & 7;
        int n;
        for (i = 0; i + 8 <= size; i += 8) {
            memcpy(&word, p + i, 8);
            v[3] ^= word;
            for (n = 0; n < rounds; n++) flintmq_sip_round(v);
            v[0] ^= word;
        }
        word = 0;
        if (left && size > 8) {
            /* The last eight bytes, of which those that are in a word already are shifted out. */
            memcpy(&word, p + size - 8, 8);
            word >>= 8 * (8 - left);
        } else {
            for (; i < size; i++) word |= (uint64_t)p[i] << (8 * (i & 7));
        }
        word |= size << 56;
        v[3] ^= word;
        for (n = 0; n < rounds; n++) flintmq_sip_round(v);
        v[0] ^= word;
        v[2] ^= 0xFF;
        for (n = 0; n < last_rounds; n++) flintmq_sip_round(v);
        return v[0] ^ v[1] ^ v[2] ^ v[3];
    }
    #endif
    """
    uint64_t siphash(uint64_t key0, uint64_t key1, const uint8_t *data, uint64_t size, int rounds, int last_rounds) noexcept nogil
