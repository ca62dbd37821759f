# Real threads and bare loops on the actor system: for stress tests and bench/actors.py.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from flintmq.scheduler.actor cimport actor_system_t, actor_t, request_t
from flintmq.scheduler.system cimport ActorSystem

cdef struct key_t:              # what the requests of one actor work on
    uint32_t busy               # atomic: inside process()
    int64_t items               # atomic: what pulls take
    uint64_t *last              # per producer: number of its last plain request that was processed

cdef struct probe_t:            # a request under test
    request_t request           # must be first
    stress_t *stress
    uint32_t key
    uint32_t producer
    uint64_t number             # per producer, from 1
    uint8_t kind                # KIND_*
    uint8_t turns               # AGAINs left
    uint32_t answered           # atomic

cdef struct stress_t:
    actor_system_t *system
    key_t *keys
    probe_t *probes
    uint32_t key_count
    uint32_t producers
    uint64_t per_producer
    uint64_t expected
    uint64_t answered           # atomic
    uint32_t done               # futex word
    uint32_t stop               # atomic
    uint64_t overlaps           # atomic: process() entered twice
    uint64_t disorders          # atomic: FIFO of a producer broken
    uint64_t doubles            # atomic: answered twice
    uint64_t outcomes[16]       # atomic
    uint64_t disturbances       # atomic

cdef class Stress:
    cdef stress_t stress
    cdef ActorSystem actors
    cdef int64_t hold_ns
    cdef void add_item(self, uint32_t key) noexcept nogil

cdef class Load:
    cdef ActorSystem actors
    cdef request_t *requests
    cdef actor_t **held
    cdef uint64_t count
    cdef uint64_t kept
