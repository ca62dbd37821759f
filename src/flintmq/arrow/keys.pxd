# The key of a message, and the part of a range of offsets that its messages belong to (docs/DATAPLANE.md, "Control calls").
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from flintmq.arrow.containers cimport stored_content_t

cdef enum:
    KEY_ROUTING = 0
    KEY_PROPERTY = 1
    KEY_HEADER = 2

# Kafka's hash of a key (MurmurHash2, 32 bits, its seed).
cdef uint32_t key_hash(const uint8_t *p, uint32_t n) noexcept nogil

cdef class KeyPart:
    cdef int kind
    cdef uint16_t flag                  # PROP_* of KEY_PROPERTY
    cdef bytes name                     # of KEY_HEADER
    cdef const uint8_t *name_at
    cdef uint32_t name_size
    cdef readonly uint32_t part
    cdef readonly uint32_t parts
    # Whether a message belongs to this part of `parts`. O(bytes of its header).
    cdef bint here(self, stored_content_t *content, uint64_t offset) noexcept nogil
