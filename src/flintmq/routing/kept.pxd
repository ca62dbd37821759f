# What the exchanges of one virtual host remember of messages, and whose messages these were: counts that the message path reads and changes.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp
from flintmq.core.atomics cimport at_add32, at_add64, at_load32, at_load64, at_sub64
from flintmq.core.byte_order cimport get32
from flintmq.core.header_field cimport header_look, header_look_t, value_size

cdef struct kept_t:           # of a virtual host
    uint32_t refs             # atomic
    uint32_t alone            # atomic: there is one user only
    uint64_t bytes            # atomic: of all that is remembered

cdef struct kept_user_t:      # what one user published of that
    uint32_t refs             # atomic
    uint64_t bytes            # atomic

cdef struct kept_bounds_t:    # of one exchange
    kept_t *total             # counted
    uint64_t total_max        # bytes of all exchanges
    uint64_t user_max         # bytes of one user, while there are several

cdef void kept_decref(kept_t *total) noexcept nogil
# NULL: nobody's.
cdef void kept_user_decref(kept_user_t *user) noexcept nogil

cdef inline kept_user_t *kept_user_incref(kept_user_t *user) noexcept nogil:
    if user != NULL:
        at_add32(&user.refs, 1)
    return user

# Whether so many bytes more may be this user's. NULL: nobody's, as of messages that the broker itself publishes.
cdef inline bint kept_lets(kept_bounds_t *bounds, kept_user_t *user, uint64_t size) noexcept nogil:
    return user == NULL or at_load64(&user.bytes) + size <= bounds.user_max or at_load32(&bounds.total.alone) != 0

# Counts so many bytes more, if there is room.
cdef inline bint kept_take(kept_bounds_t *bounds, kept_user_t *user, uint64_t size) noexcept nogil:
    if at_add64(&bounds.total.bytes, size) + size > bounds.total_max:
        at_sub64(&bounds.total.bytes, size)
        return False
    if user != NULL:
        at_add64(&user.bytes, size)
    return True

cdef inline void kept_give_back(kept_bounds_t *bounds, kept_user_t *user, uint64_t size) noexcept nogil:
    at_sub64(&bounds.total.bytes, size)
    if user != NULL:
        at_sub64(&user.bytes, size)

# The first value of that name, with its type octet, in the headers of a content header payload; NULL: there is none. O(bytes of the headers).
cdef inline const uint8_t *kept_field(const uint8_t *header, uint32_t size, const char *name, uint32_t name_size, uint32_t *value_bytes) noexcept nogil:
    cdef header_look_t look
    cdef uint32_t offset
    cdef uint32_t value
    if not header_look(header, size, name, NULL, &look) or look.table == 0 or look.cut_size == 0:
        return NULL
    offset = look.table + 4
    while offset < look.end:
        value = offset + 1 + header[offset]
        value_bytes[0] = value_size(header + value, look.end - value)
        if header[offset] == name_size and memcmp(header + offset + 1, name, name_size) == 0:
            return header + value
        offset = value + value_bytes[0]
    return NULL

# One user, for the exchanges that remember messages of that user.
cdef class KeptUser:
    cdef kept_user_t *user

cdef class Kept:
    cdef kept_t *total
    cdef public object alone          # () -> whether there is one user only
    cdef dict _users                  # name -> KeptUser
    cdef uint64_t _looked_at
    cdef void bound(self, kept_bounds_t *bounds, object limits)
