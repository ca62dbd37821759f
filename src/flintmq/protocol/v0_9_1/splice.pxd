# Wire bytes of properties, table fields and array items, cut apart without being decoded.
from libc.stdint cimport uint8_t

# Behind the field value (type octet and payload) at `at`; NULL when it passes `end` or its type is unknown. Nested values are skipped
# by their length.
cdef const uint8_t *value_end(const uint8_t *byte, const uint8_t *end) noexcept nogil
