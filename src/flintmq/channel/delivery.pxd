# Frames that carry content to a client: basic.deliver, basic.get-ok, basic.return; and the confirms. Appends to the output buffer.
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from flintmq.core.content cimport content_t
from flintmq.queue.types cimport delivery_t
from flintmq.channel.types cimport connection_t, subscription_t

cdef enum:
    # bytes; a body of so many is sent from the message's own memory: a copy for each of its readers would cost more than two more pieces
    # of a send, and slow readers would hold a copy each. Such a content has its memory for itself, so that a reader pins no others'.
    REFER_SIZE = 65536

# All return false when memory is exhausted; nothing was written then.
cdef bint write_deliver(connection_t *connection, subscription_t *subscription, delivery_t *delivery, uint64_t tag) noexcept nogil
cdef bint write_get_ok(connection_t *connection, uint16_t channel, delivery_t *delivery, uint64_t tag, uint32_t remaining) noexcept nogil
cdef bint write_return(connection_t *connection, uint16_t channel, uint16_t code, const char *text, content_t *content) noexcept nogil
cdef bint write_confirm(connection_t *connection, uint16_t channel, uint32_t method, uint64_t tag, bint multiple) noexcept nogil
cdef void subscription_set_prefix(subscription_t *subscription, uint16_t channel, const uint8_t *tag, uint8_t tag_len) noexcept nogil
