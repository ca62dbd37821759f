# Cold reads of streams on the actor system: one actor per group or lone consumer, so a group that reads a backlog from the disk takes
# its share of the workers and no more.
from flintmq.scheduler.actor cimport actor_system_t, actor_t, request_t
from flintmq.streams.types cimport cursor_t

cdef struct cold_read_t:
    request_t request           # first: the request is the read
    cursor_t *cursor
    bint done
