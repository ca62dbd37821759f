# The cold reader: loads content of parked entries on the workers of the actor system, in runs, and hands it to their queues.
#
# One actor per queue with cold entries that are asked for (key ACTORS_COLD, queue id). At most one request_t of a queue is with the actor
# system; what else is asked for of that queue waits in its cold_t, so a mailbox is never full of it, and asking twice costs nothing.
from libc.stdint cimport int64_t, uint32_t, uint64_t
from flintmq.core.content cimport content_t
from flintmq.core.hash64 cimport map64_t
from flintmq.queue.types cimport queue_t
from flintmq.scheduler.actor cimport actor_system_t, actor_t, request_t
from flintmq.store.cold_pace cimport pace_t
from flintmq.store.content_reader cimport ContentReader
from flintmq.store.log.managed cimport ManagedLog
from flintmq.store.shared_reads cimport shared_reads_t

# The readers of the cold reader: at most one worker at a time uses one, and who read a queue last reads on, since its window and its open
# file are there.
cdef enum:
    COLD_READERS_MAX = 32       # readers at most; as many as the actor system has workers

cdef struct readers_t:
    uint32_t lock               # a spin lock; innermost
    uint32_t count
    uint64_t uses
    void *readers[COLD_READERS_MAX]             # ContentReader, borrowed
    uint64_t last_queue[COLD_READERS_MAX]
    uint64_t last_used[COLD_READERS_MAX]
    bint busy[COLD_READERS_MAX]

# A reader that is free: the one that read this queue last, else the one that rested longest. -1: none is free.
cdef int readers_take(readers_t *readers, uint64_t queue_id) noexcept nogil
cdef void readers_give(readers_t *readers, int number) noexcept nogil


cdef enum:
    STEP_ENTRIES = 32           # entries between two looks at the clock, at those who are parked, and at the pace
    HEADER_ENTRIES = 256        # the same of entries that are read for their headers only: those who are parked have to look again after them

cdef struct wanted_t:           # an entry that somebody is parked on
    uint64_t position
    wanted_t *next

cdef struct cold_t:             # what is asked for of one queue; lives from the first request until there is none
    request_t request           # first: the actor system's
    loader_t *loader
    queue_t *queue              # counted
    cold_t *prev                # all of them
    cold_t *next
    cold_t *held_next           # the actor system had no place for it
    uint32_t refs               # under loader.lock
    bint listed                 # it is in loader.map and loader.first
    wanted_t *first             # in the order of asking; under loader.lock, as all up to here
    wanted_t *last
    uint64_t ahead              # read-ahead from this position on; 0: none
    bint in_run                 # the rest is written by the worker that runs the actor, and by nobody else
    uint64_t position           # where the run goes on
    uint64_t room               # bytes of bodies that it may bring
    uint64_t loaded             # bytes that it has brought
    uint64_t count              # entries
    uint64_t learned            # the last one, when message groups or selectors know it now (queue/cold_headers.pxd); else 0

cdef struct batch_t:            # what one step works on
    uint64_t cold[STEP_ENTRIES]         # entries that are to be read: positions, and
    uint64_t message_ids[STEP_ENTRIES]
    uint32_t cold_count
    uint32_t next                       # the first of them that is not read yet
    uint64_t positions[STEP_ENTRIES]    # entries that are read, and not handed to the queue yet
    content_t *contents[STEP_ENTRIES]
    uint32_t count

cdef struct loader_t:
    uint32_t lock               # a spin lock; innermost but for the actor system's own
    uint32_t stopping           # atomic
    uint32_t live               # atomic: cold_t that are not freed
    uint32_t signal             # futex word: live fell to 0
    actor_system_t *system      # NULL: not started, what is asked for waits in `held`
    actor_t *spare              # takes requests when there are too many actors
    map64_t map                 # address of a queue_t -> cold_t
    cold_t *first
    cold_t *held
    void *owner                 # the ContentLoader
    readers_t readers
    pace_t pace                 # under lock
    shared_reads_t shared       # contents for the other queues that they wait in
    # figures; atomic
    uint64_t loaded             # entries, runs, entries whose content could not be read, pauses for the sake of hot ones
    uint64_t runs
    uint64_t failed
    uint64_t pauses
    int64_t read_ns             # manual clock only: what one read of the log costs

cdef void loader_request(loader_t *loader, queue_t *queue, uint64_t position, uint64_t message_id) noexcept nogil
# log_port_t.load
cdef void store_load(void *context, queue_t *queue, uint64_t position, uint64_t message_id) noexcept nogil

cdef class ContentLoader:
    cdef loader_t loader
    cdef list readers
    cdef ManagedLog messages
    cdef object pages                  # None: nothing is spilled
    cdef object actors                 # ActorSystem
    cdef bint private                  # it is this loader's own
    cdef object limits
    cdef public object on_failed       # (queue id, position, message id): content of a live entry could not be read
    # The message at `hot` is counted by the message log.
    cdef void watch(self, uint64_t *hot) noexcept
    cdef object _told(self, uint64_t queue_id, uint64_t position, uint64_t message_id)
