# What happens to entries and consumers of a queue with message groups (or a sorted one), told to its groups; and who is woken for it.
#
# Any thread, no lock of the queue held unless it is said.
from libc.stdint cimport uint32_t, uint64_t
from flintmq.core.content cimport content_t
from flintmq.queue.types cimport consumer_t, queue_t

# Hooks of list_ops_t.
cdef void grouped_arrived(queue_t *queue, uint64_t position, content_t *content) noexcept nogil
cdef void grouped_returned(queue_t *queue, uint64_t position) noexcept nogil
# An entry ended that somebody held.
cdef void grouped_ended(queue_t *queue, uint64_t position) noexcept nogil
# An entry that a consumer gave back is the broker's until it ends or comes back; `waits`: nothing of its group overtakes it.
cdef void grouped_passed_on(queue_t *queue, uint64_t position, bint waits) noexcept nogil
# Groups of cold entries were learned: who may have one of these is woken.
cdef void grouped_learned(queue_t *queue) noexcept nogil
# Those who wait for content look again.
cdef void grouped_look_again(queue_t *queue) noexcept nogil
# The consumer wants work again: it is told of what its groups have.
cdef void grouped_resumed(queue_t *queue, consumer_t *consumer) noexcept nogil
# It was detached: `most` of its groups are free, those of which it holds entries when these are back. True: it has more; call again.
cdef bint grouped_left(queue_t *queue, consumer_t *consumer, uint32_t most) noexcept nogil
