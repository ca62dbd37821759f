# Whether bytes are UTF-8, as Python decodes it: no overlong forms, no surrogates (RFC 3629). Words of ASCII are passed over eight at a time.
from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcpy

cdef inline bint is_utf8(const uint8_t *p, uint64_t n) noexcept nogil:
    cdef uint64_t i = 0
    cdef uint64_t word = 0
    cdef uint8_t first
    cdef uint8_t second
    while i < n:
        if i + 8 <= n:
            memcpy(&word, p + i, 8)
            if word & 0x8080808080808080ULL == 0:
                i += 8
                continue
        first = p[i]
        if first < 0x80:
            i += 1
            continue
        if first < 0xC2 or first > 0xF4 or i + 1 >= n:
            return False
        second = p[i + 1]
        if second & 0xC0 != 0x80:
            return False
        if first < 0xE0:
            i += 2
            continue
        if i + 2 >= n or p[i + 2] & 0xC0 != 0x80:
            return False
        if first < 0xF0:
            if (first == 0xE0 and second < 0xA0) or (first == 0xED and second > 0x9F):
                return False
            i += 3
            continue
        if i + 3 >= n or p[i + 3] & 0xC0 != 0x80 or (first == 0xF0 and second < 0x90) or (first == 0xF4 and second > 0x8F):
            return False
        i += 4
    return True
