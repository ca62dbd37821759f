# The load generator's workers: one thread each, epoll over the connections it owns, no Python object per message.
#
# A published message stands pre-encoded in its connection's batch buffer; per message only its id, its time and its key's digits
# are patched. A delivery is parsed in place and checked (checker.pxd has the layout of a body).
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from flintmq.perf.checker cimport check_t
from flintmq.perf.histogram cimport histogram_t

cdef enum:
    ACK_SIZE = 21             # bytes of a basic.ack frame
    EVENTS_MAX = 64

cdef struct peer_t:           # one connection
    int fd
    bint publishes
    bint consumes
    bint armed                # EPOLLOUT is registered: the socket's buffer is full
    bint done                 # nothing more to publish
    bint held                 # the broker said connection.blocked
    bint returning            # the content that follows belongs to basic.return
    bint redelivered          # of the delivery being read
    # input
    uint8_t *input
    size_t input_start
    size_t input_end
    uint64_t body_left        # of the content being read
    uint64_t body_size
    uint64_t body_id
    uint64_t body_time
    uint64_t body_tail        # its last 8 bytes so far
    # publishing
    uint8_t *batch
    size_t message_size
    uint64_t batch_messages
    size_t batch_start        # next byte to send
    size_t batch_end
    size_t key_at             # offset of the key's five digits; 0: the key is fixed
    size_t unique_at          # offset of ten digits that differ in every message; 0: none
    size_t body_at
    size_t tail_at            # 0: no tail
    uint64_t producer
    uint32_t key
    bint rotates              # over all keys
    uint32_t *sequences       # per key
    uint64_t quota
    uint64_t published
    double interval_ns        # between two messages; 0: as fast as it goes
    int64_t start_ns
    int64_t first_ns
    int64_t last_ns
    uint64_t window           # unconfirmed messages allowed; 0: confirms are off
    uint64_t confirm_low      # all tags up to this one are confirmed
    uint64_t confirmed
    uint64_t nacked
    uint64_t returned
    uint64_t ring_mask
    int64_t *ring             # by tag: the time it was sent; 0 confirmed
    int64_t held_since
    int64_t held_ns
    # consuming
    uint32_t queue
    uint64_t received
    uint64_t tag
    uint64_t acked
    uint64_t ack_every        # 0: automatic
    uint8_t *acks
    size_t acks_start
    size_t acks_end
    size_t acks_room
    uint32_t *highest         # per stream: sequence that is due next on this consumer
    int64_t first_in_ns
    int64_t last_in_ns

cdef class Worker:
    cdef int epoll, timer
    cdef int peer_count, peer_room
    cdef peer_t **peers
    cdef check_t check
    cdef uint32_t key_count
    cdef bint stop_all, stop_publishing, failed
    cdef int64_t end_ns
    cdef int64_t late_max_ns
    cdef histogram_t latency, confirms
    cdef char[300] failure
    cdef bint adopt(self, peer_t *peer) noexcept nogil
    cdef void fail(self, const char *text, const uint8_t *detail, size_t size) noexcept nogil
    cdef void loop(self) noexcept nogil
    cdef void pump(self, peer_t *peer, int64_t now) noexcept nogil
    cdef void fill(self, peer_t *peer, uint64_t count, int64_t now) noexcept nogil
    cdef uint64_t allowance(self, peer_t *peer, int64_t now) noexcept nogil
    cdef bint flush(self, peer_t *peer, int64_t now) noexcept nogil
    cdef void _watch(self, peer_t *peer) noexcept nogil
    cdef bint _unsent(self, peer_t *peer) noexcept nogil
    cdef void take_input(self, peer_t *peer) noexcept nogil
    cdef void parse(self, peer_t *peer, int64_t now) noexcept nogil
    cdef void method(self, peer_t *peer, uint8_t *payload, uint32_t size, int64_t now) noexcept nogil
    cdef void confirm(self, peer_t *peer, uint64_t tag, bint multiple, bint nack, int64_t now) noexcept nogil
    cdef void message_in(self, peer_t *peer, int64_t now) noexcept nogil
    cdef void acknowledge(self, peer_t *peer) noexcept nogil
