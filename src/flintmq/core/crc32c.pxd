# CRC-32C (Castagnoli), the checksum of the log. With SSE 4.2 nearly 8 bytes a cycle from 768 bytes on, 8 bytes in
# 3 cycles below and with the ARMv8 CRC instructions; else a table.
# crc32c(0, ...) of the ASCII digits "123456789" is 0xE3069283. A CRC is continued by passing the last result as `crc`.
from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef extern from *:
    """
    #ifndef FLINTMQ_CRC32C_H
    #define FLINTMQ_CRC32C_H
    #include <stddef.h>
    #include <stdint.h>
    #include <string.h>
    static uint32_t crc32c_table[256];
    static int crc32c_how = 0;      /* 0 not known yet, 1 table, 2 instruction */
    static uint32_t crc32c_soft(uint32_t crc, const uint8_t *p, size_t n) {
        while (n--) crc = crc32c_table[(crc ^ *p++) & 0xFF] ^ (crc >> 8);
        return crc;
    }
    /* What a CRC becomes over a run of that many zero bytes, by each of its bytes. */
    #define CRC32C_SHORT 256
    #define CRC32C_LONG 2048
    static uint32_t crc32c_skip_short[4][256], crc32c_skip_long[4][256];
    static inline uint32_t crc32c_skipped(uint32_t (*skip)[256], uint32_t crc) {
        return skip[0][crc & 0xFF] ^ skip[1][crc >> 8 & 0xFF] ^ skip[2][crc >> 16 & 0xFF] ^ skip[3][crc >> 24];
    }
    static void crc32c_skips(uint32_t (*skip)[256], size_t run) {
        uint32_t bit[32], i, j, k, c;
        size_t n;
        for (i = 0; i < 32; i++) {
            c = (uint32_t)1 << i;
            for (n = 0; n < run; n++) c = crc32c_table[c & 0xFF] ^ (c >> 8);
            bit[i] = c;
        }
        for (k = 0; k < 4; k++) {
            for (i = 0; i < 256; i++) {
                for (c = 0, j = 0; j < 8; j++) if (i >> j & 1) c ^= bit[8 * k + j];     /* the CRC is linear */
                skip[k][i] = c;
            }
        }
    }
    #if defined(__x86_64__) && defined(__GNUC__)
    __attribute__((target("sse4.2"))) static uint32_t crc32c_hard(uint32_t crc, const uint8_t *p, size_t n) {
        uint64_t c = crc, w;
        size_t i;
        /* The instruction takes a new word each cycle, and three cycles for each: three runs of bytes side by side keep it busy. */
        while (n >= 3 * CRC32C_SHORT) {
            size_t run = n >= 3 * CRC32C_LONG ? CRC32C_LONG : CRC32C_SHORT;
            uint32_t (*skip)[256] = run == CRC32C_LONG ? crc32c_skip_long : crc32c_skip_short;
            uint64_t c1 = 0, c2 = 0, w1, w2;
            for (i = 0; i < run; i += 8) {
                memcpy(&w, p + i, 8); memcpy(&w1, p + run + i, 8); memcpy(&w2, p + 2 * run + i, 8);
                c = __builtin_ia32_crc32di(c, w);
                c1 = __builtin_ia32_crc32di(c1, w1);
                c2 = __builtin_ia32_crc32di(c2, w2);
            }
            c = crc32c_skipped(skip, (uint32_t)c) ^ c1;
            c = crc32c_skipped(skip, (uint32_t)c) ^ c2;
            p += 3 * run; n -= 3 * run;
        }
        while (n >= 8) { memcpy(&w, p, 8); c = __builtin_ia32_crc32di(c, w); p += 8; n -= 8; }
        while (n--) c = __builtin_ia32_crc32qi((uint32_t)c, *p++);
        return (uint32_t)c;
    }
    static int crc32c_can(void) { __builtin_cpu_init(); return __builtin_cpu_supports("sse4.2"); }
    #elif defined(__ARM_FEATURE_CRC32)
    #include <arm_acle.h>
    static uint32_t crc32c_hard(uint32_t crc, const uint8_t *p, size_t n) {
        uint64_t w;
        while (n >= 8) { memcpy(&w, p, 8); crc = __crc32cd(crc, w); p += 8; n -= 8; }
        while (n--) crc = __crc32cb(crc, *p++);
        return crc;
    }
    static int crc32c_can(void) { return 1; }
    #else
    static uint32_t crc32c_hard(uint32_t crc, const uint8_t *p, size_t n) { return crc32c_soft(crc, p, n); }
    static int crc32c_can(void) { return 0; }
    #endif
    static void crc32c_choose(void) {
        uint32_t i, j, c;
        for (i = 0; i < 256; i++) {
            c = i;
            for (j = 0; j < 8; j++) c = c & 1 ? (c >> 1) ^ 0x82F63B78u : c >> 1;
            crc32c_table[i] = c;
        }
        crc32c_skips(crc32c_skip_short, CRC32C_SHORT);
        crc32c_skips(crc32c_skip_long, CRC32C_LONG);
        __atomic_store_n(&crc32c_how, crc32c_can() ? 2 : 1, __ATOMIC_RELEASE);
    }
    static inline uint32_t crc32c(uint32_t crc, const void *p, size_t n) {
        int how = __atomic_load_n(&crc32c_how, __ATOMIC_ACQUIRE);
        if (!how) { crc32c_choose(); how = crc32c_how; }
        crc = how == 2 ? crc32c_hard(~crc, (const uint8_t *)p, n) : crc32c_soft(~crc, (const uint8_t *)p, n);
        return ~crc;
    }
    #endif
    """
    uint32_t crc32c(uint32_t crc, const void *p, size_t n) noexcept nogil
