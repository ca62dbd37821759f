# When a message asks to be delivered: the fields of its headers that say so.
from libc.stdint cimport int64_t, uint8_t, uint32_t
from flintmq.core.content cimport content_t

# What a message whose headers may name a time (props_scan_t.has_time) asks for: SLOWLY_SCHEDULED, with `*due_ms` (wall clock, milliseconds),
# SLOWLY_ASKED: Python has to find out, or 0: nothing. `offset`: of the headers' fields in its content header; they were scanned. A delay
# that is taken is negated in the content, so that the same headers do not delay a message twice (as RabbitMQ's plugin does). O(fields).
cdef uint8_t schedule_of(content_t *content, int64_t offset, uint32_t size, int64_t *due_ms) noexcept nogil
