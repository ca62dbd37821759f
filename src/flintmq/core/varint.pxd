# Numbers of seven bits a byte, the lowest first; bit 7: another byte follows. Signed ones are folded: 0, -1, 1, -2 are 0, 1, 2, 3.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

# Returns the bytes written, ten at most.
cdef inline uint32_t varint_put(uint8_t *out, uint64_t value) noexcept nogil:
    cdef uint32_t size = 0
    while value >= 128:
        out[size] = <uint8_t>(value & 127 | 128)
        value >>= 7
        size += 1
    out[size] = <uint8_t>value
    return size + 1

# The number at `*place`, which moves behind it. False: the bytes end, or it has more than 64 bits. The bytes may be anybody's.
cdef inline bint varint_get(const uint8_t *data, uint32_t length, uint32_t *place, uint64_t *value) noexcept nogil:
    cdef uint32_t shift = 0
    cdef uint8_t byte
    value[0] = 0
    while place[0] < length and shift < 64:
        byte = data[place[0]]
        place[0] += 1
        if shift == 63 and byte > 1:
            return False
        value[0] |= <uint64_t>(byte & 127) << shift
        if byte < 128:
            return True
        shift += 7
    return False

cdef inline uint64_t varint_fold(int64_t value) noexcept nogil:
    return (<uint64_t>value << 1) ^ <uint64_t>(value >> 63)

cdef inline int64_t varint_unfold(uint64_t value) noexcept nogil:
    return <int64_t>((value >> 1) ^ (0 - (value & 1)))
