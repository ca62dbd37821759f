# The messages that a distributed transaction enqueues by blocks, in C.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from flintmq.core.content cimport arena_t
from flintmq.queue.held_runs cimport placed_t
from flintmq.queue.types cimport queue_t
from flintmq.store.logs cimport Logs

cdef enum:
    SECTION = 32                # messages in one section under the log's lock (about 10 us), and between two looks at the unwritten bytes
    CHUNK = 4096                # messages in one section under a queue's lock, and between two looks of the caller

cdef struct stage_queue_t:      # the messages of a stage that enter one queue, by waiting number
    uint64_t queue_id           # 0: the queue was deleted
    uint32_t last             # level of the last message that was given a number, LEVEL_NONE: there is none
    placed_t *placed
    uint64_t count
    uint64_t room

cdef struct plan_route_t:       # a route of a block
    const uint8_t *bytes        # exchange and routing key as in a content
    uint16_t length
    uint32_t first              # its places in `places`
    uint32_t count

cdef struct plan_place_t:
    uint32_t queue              # index in plan.queues
    int64_t ttl_ms              # of the queue, -1: none
    int64_t ttl_least_ms        # what a message's own expiration is raised to there

cdef struct plan_queue_t:
    queue_t *core
    uint32_t index              # in stage.queues
    uint32_t level_count
    uint64_t levels[256]        # of a piece: how many go to each level, then the next number of each

cdef class Plan:
    cdef plan_route_t *routes
    cdef plan_place_t *places
    cdef plan_queue_t *queues
    cdef uint32_t queue_count
    cdef list cores             # keeps the queues
    cdef list runs              # keeps the bytes of routes

cdef class Stage:               # the messages of one transaction
    cdef Logs logs
    cdef readonly uint64_t tx
    cdef readonly uint64_t messages
    cdef readonly uint64_t enqueues
    cdef readonly uint64_t rows # of its Commit at most
    cdef stage_queue_t *queues
    cdef uint32_t queue_count
    cdef readonly dict numbers  # queue id -> index in `queues`
    cdef arena_t *arena
    cdef bint _add(self, Plan plan, const uint8_t *data, uint64_t size, uint64_t *offset, int64_t now_ms) noexcept nogil
    cdef void _count(self, Plan plan, uint32_t place, int32_t priority) noexcept nogil
    cdef bint _give_room(self, Plan plan) noexcept nogil
    cdef bint _one(self, Plan plan, const uint8_t *data, int64_t now_ms) noexcept nogil
    cdef uint64_t _long(self, plan_route_t *route, const uint8_t *data) noexcept nogil
    cdef void _settle(self, stage_queue_t *queue, uint64_t index, uint64_t until) noexcept nogil
    cdef void _undo(self, stage_queue_t *queue, uint64_t index, uint64_t until) noexcept nogil
