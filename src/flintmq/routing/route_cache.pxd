# The route cache of one exchange: routing key -> queues, as the routing table answered last time.
#
# The table itself (exchanges, bindings, tries) is Python and needs the GIL; a hit here needs neither. A route is dropped, and
# marked invalid for channels that still hold it, when a binding that can change it changes.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from flintmq.core.keyed_hash cimport hash_key_t
from flintmq.queue.schedule_share cimport schedule_share_t
from flintmq.queue.types cimport queue_t

cpdef enum:                   # destination_t.flags: all there are, in the order of their bits
    DEST_LIMITED = 1          # has x-max-length(-bytes): tell the policy pass after an enqueue
    DEST_REJECT_OVER = 2      # x-overflow reject-publish(-dlx): refuse when the limit is reached
    DEST_REJECT_DEAD_LETTER = 4  # reject-publish-dlx: the refused message is dead-lettered
    DEST_DEAD_LETTERS = 8     # what is dropped for a limit goes to a dead-letter exchange: the policy pass runs in Python
    DEST_STREAM = 16          # a stream: its confirm waits for a ticket of the log port
    DEST_SCHEDULE = 32        # the queue of scheduled messages: what is placed there has its time already
    DEST_BLOCK = 64           # x-overflow block: who publishes over the limit is not read until there is room
    DEST_SHARED = 128         # a shared queue: its messages go to the service
    DEST_ONCE = 256           # x-message-deduplication: a message whose value is there is dropped

cdef struct destination_t:
    queue_t *queue            # counted reference
    uint32_t flags            # DEST_*
    uint32_t ttl_least_ms     # what a message's own expiration is raised to; 0: stays
    int64_t ttl_ms            # x-message-ttl; -1 = none
    schedule_share_t *share   # of a schedule: what its publisher may have there, a counted reference; else NULL

cdef struct route_t:
    uint32_t refs             # atomic
    uint32_t valid            # atomic; 0 once a binding changed
    uint32_t hash
    uint16_t key_len          # exchange and routing key shortstrs, as on the wire
    uint32_t count            # destinations
    uint32_t more_len         # bytes of `more`
    route_t *next             # bucket link
    destination_t *destinations
    uint8_t *key
    uint8_t *more             # further routing keys (CC, BCC) of the one message this route is for, as the session packs them; or NULL

cdef struct exchange_t:
    uint32_t refs             # atomic: the Python wrapper and channels that were authorized for it
    uint32_t lock             # spin lock over the buckets
    uint32_t usable           # atomic; 0: deleted, or its routes depend on headers: nothing is kept, every publish goes the slow way
    uint32_t name_len
    uint8_t name[256]
    uint32_t bucket_count     # power of two
    uint32_t route_count
    uint32_t route_max
    hash_key_t hash_key       # random; another one when a chain became too long
    route_t **buckets
    void *owner               # the RouteCache, borrowed; NULL once it is gone. Read with the GIL held
    uint64_t published        # statistics (one writer per loop: approximate with several)

cdef void exchange_incref(exchange_t *exchange) noexcept nogil
cdef void exchange_decref(exchange_t *exchange) noexcept nogil
# Cached valid route for `key` (exchange and routing key shortstrs) with a reference for the caller; NULL on a miss. O(1).
cdef route_t *exchange_find(exchange_t *exchange, const uint8_t *key, uint32_t key_len) noexcept nogil
cdef void route_incref(route_t *route) noexcept nogil
cdef void route_decref(route_t *route) noexcept nogil
# True when a queue of the route is deleted. O(destinations).
cdef bint route_has_gone(route_t *route) noexcept nogil
# A route that no cache keeps (valid = 0), with a reference for the caller. `destinations`: QueueHandle list; `more`: see route_t.
cdef route_t *route_new(const uint8_t *key, uint32_t key_len, list destinations, bytes appendix) except NULL

cdef class RouteCache:
    cdef exchange_t *exchange
    cdef public object resolver   # (routing key: bytes) -> list of QueueHandle: the routing table's answer
    # Keeps a route in the place of any other of that key, and returns it with a reference for the caller. When the exchange is not
    # usable the route is made all the same, and is not kept.
    cdef route_t *put(self, const uint8_t *key, uint32_t key_len, list destinations) except NULL
