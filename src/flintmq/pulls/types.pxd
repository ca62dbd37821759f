# The records of the pull layer. Plain C.
#
# Words: a *pull* is one request for messages. A *pull group* is one (queue, group): a consumer of the queue, an actor that serves its
# pulls one at a time, and the leases of what it handed out. *Answers* is where finished pulls wait for the thread that asked.
from libc.stdint cimport int64_t, uint32_t, uint64_t
from flintmq.core.content cimport content_t
from flintmq.queue.types cimport consumer_t, queue_t, slot_t, target_t, waiter_t
from flintmq.scheduler.actor cimport actor_system_t, actor_t, request_t

# Leases: what was handed out by pulls and not settled, by number and by the time it goes back.
cdef enum:                    # lease_t.state
    LEASE_FREE = 0
    LEASE_HELD = 1            # a client has it: it may ack, nack and extend
    LEASE_DELAYED = 2         # given back with a delay: nobody has it, it is available again when its time comes

cdef struct lease_t:
    uint64_t number           # serial << 24 | place; what a client's lease id says. Never reused
    slot_t *slot              # stable while the entry is acquired
    uint64_t position
    uint64_t until_ns         # monotonic: when the message goes back to its queue
    uint64_t delivered_us     # wall clock of the delivery, for the log; 0: nothing is logged
    uint32_t heap_at          # where it stands in lease_table_t.heap; of a free one: the next free place
    uint32_t state            # LEASE_*

cdef struct lease_table_t:
    lease_t *items
    uint32_t *heap            # places, by until_ns
    uint32_t capacity         # of both
    uint32_t count
    uint32_t free             # first free place; LEASE_NONE: all are used
    uint64_t serial           # of the last lease

cdef enum:
    PLACE_BITS = 24
    LEASE_NONE = 0xFFFFFFFF

cdef struct pull_group_t

cdef struct pulled_t:           # one message of an answer
    uint64_t lease              # number in the pull group's table
    uint64_t position
    content_t *content          # counted: the message may go back to its queue while it is written to the client
    uint32_t delivery_count     # earlier deliveries
    uint32_t redelivered

cdef struct pull_t:             # one request; memory of the Pull object, which lives at least until the answer was taken
    request_t request           # the actor system's; first, so that a request_t * is a pull_t *
    pull_group_t *pull_group
    answers_t *answers
    pull_t *next                # link of answers_t
    void *owner                 # the Pull: one reference from the dispatch until its answer is taken
    int64_t visibility_ns
    int64_t hold_ns             # what the client asked for: the end of its hold, or HOLD_NONE
    int64_t asked_ns
    int64_t answered_ns
    uint64_t bytes_max          # bytes of bodies, headers and routes at which the batch ends; the message that reaches it is still in it
    uint32_t gone               # atomic: nobody waits for the answer
    uint32_t most               # messages
    uint32_t count
    uint32_t room
    uint32_t loading            # at its last look its next message was there, but on disk only
    uint64_t bytes
    pulled_t *items

cdef struct answers_t:
    pull_t *last                # atomic: stack, the last one first
    uint32_t told               # atomic: the descriptor is readable, or is about to be
    int descriptor              # an eventfd

cdef struct pull_group_t:
    target_t target
    consumer_t *consumer        # counted
    consumer_t *consumers[1]    # what target.consumers points at
    waiter_t waiter             # told when the queue is deleted
    queue_t *queue              # counted
    actor_system_t *system
    actor_t *actor              # counted
    void *owner                 # the PullGroup, for the rare calls into Python (expiry)
    uint32_t interest_lock      # `desired`, and telling the queue of it
    uint32_t desired            # the consumer is on INTERESTED or NOTIFIED
    uint32_t pending            # atomic: pulls asked for and not answered
    uint32_t inside             # atomic: threads of the actor system in _process or _answer
    uint32_t closed             # atomic: no more pulls
    uint32_t lease_lock         # `leases`
    uint32_t leases_max
    lease_table_t leases
    int64_t load_ns             # how long a pull waits for a message that is being read from disk, its hold apart
    int64_t grace_ns            # beyond its hold: how long a pull may wait for its turn
    int64_t used_ns             # atomic: when it was last pulled from
    bint logged                 # deliveries are timed for the log
    # figures; atomic
    uint64_t pulls
    uint64_t delivered
    uint64_t expired            # leases whose time was over
    uint64_t acked
    uint64_t nacked
    uint64_t given_back         # the client was gone before it had them
