# A purge, or the end of a deleted queue, for Python: `Sweep(core, ending)`, `step(most)` until that is true.
from flintmq.queue.purge cimport sweep_t

cdef class Sweep:
    cdef sweep_t sweep
    cdef object core            # QueueHandle: keeps the log alive
