# The value that says to which group a message belongs, or where it stands in a sorted queue.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from flintmq.core.content cimport content_t
from flintmq.queue.types cimport message_groups_t

cdef enum:
    SORT_BYTES_MAX = 255        # of a text: two that begin with the same ones are served as they came
    SORT_REST = 3               # the kind of a sorted value behind all others

cdef struct group_key_t:        # of a message
    uint64_t hash               # odd
    bint loose                  # its group is never a consumer's
    uint32_t size               # of a sorted queue: octets that order values
    uint8_t text[SORT_BYTES_MAX + 1]

# Reads the message's value. No lock.
cdef void groups_key(message_groups_t *groups, content_t *content, group_key_t *key) noexcept nogil
