# Whether a queue has anything to take, who is woken for it, what is handed over, and content that is asked for.
from libc.stdint cimport uint64_t
from flintmq.queue.types cimport consumer_t, delivery_t, found_t, queue_t, slot_t

cdef enum:
    # Entries taken between two times that the floor follows them: it is near, so that what comes back lies below it.
    FLOOR_EVERY = 256
    # Deliveries of a consumer between two looks at whether to read ahead: the look costs a sum over the consumers.
    READ_AHEAD_EVERY = 256

cdef bint queue_has_available(queue_t *queue) noexcept nogil
# After a change of consumers: wakes one when something is available.
cdef void queue_wake_if_available(queue_t *queue) noexcept nogil
# The broker took `slot`; were consumers parked on it (not resident), those entries behind it are theirs now.
cdef void queue_unparked(queue_t *queue, slot_t *slot) noexcept nogil
# Asks for what a delivery of the entry waits for: its content, when that is not resident, or its mark (delivered.pxd). True: whoever asks is
# told when it is there; False: look again.
cdef bint queue_ask_content(queue_t *queue, slot_t *slot, uint64_t position) noexcept nogil
# Asks for the entries behind while there is still something to deliver, so that reading and sending overlap.
cdef void queue_read_ahead(queue_t *queue, uint64_t position) noexcept nogil
# A consumer that chooses its entries (by selector or group) took one: it is counted, filled into `out`, and the consumer stays hot. Under
# its send_lock.
cdef void queue_hand_over(queue_t *queue, consumer_t *consumer, found_t *entry, delivery_t *out) noexcept nogil
