# The pointer of basic.get and of the broker's own takes, made with the first of them: most queues of very many have consumers, or nobody.
from libc.stdlib cimport calloc, free
from flintmq.core.atomics cimport at_cas_ptr, at_load_ptr
from flintmq.queue.types cimport puller_t, queue_t

# The queue's own puller. NULL: no memory. Any thread.
cdef inline puller_t *queue_puller(queue_t *queue) noexcept nogil:
    cdef puller_t *shared = <puller_t *> at_load_ptr(<void **> &queue.puller)
    cdef puller_t *own
    if not shared.nobody:
        return shared
    own = <puller_t *> calloc(1, sizeof(puller_t))
    if own == NULL:
        return NULL
    if not at_cas_ptr(<void **> &queue.puller, shared, own):
        free(own)  # another thread was first
    return <puller_t *> at_load_ptr(<void **> &queue.puller)
