# A group's state as bytes for the store, and back. Both take group.lock.
from libc.stdint cimport uint8_t, uint32_t
from flintmq.streams.types cimport group_t

# Its state for the store: bytes written, 0 when `room` is too small. `clean`: nothing more will be delivered before it is read.
cdef uint32_t group_write(group_t *group, uint8_t *out, uint32_t room, bint clean) noexcept nogil
cdef uint32_t group_room(group_t *group) noexcept nogil        # that many bytes are enough now
cdef bint group_read(group_t *group, const uint8_t *data, uint32_t size) noexcept nogil        # False: damaged; nothing changed
