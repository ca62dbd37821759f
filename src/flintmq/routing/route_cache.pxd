# The route cache of one exchange: routing key -> queues, as the routing table answered last time.
#
# The table itself (exchanges, bindings, tries) is Python and needs the GIL; a hit here needs neither. A route is dropped, and
# marked invalid for channels that still hold it, when a binding that can change it changes.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from flintmq.core.atomics cimport at_load32
from flintmq.core.keyed_hash cimport hash_key_t
from flintmq.queue.schedule_share cimport schedule_share_t
from flintmq.queue.types cimport queue_t
from flintmq.routing.recent cimport recent_t
from flintmq.routing.seen cimport seen_t
from flintmq.routing.sieve cimport sieve_t

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
    DEST_MIRRORED = 512       # a shared queue that this node owns: its confirm waits for the engine (mirror/mirror.pxd)

cpdef enum:                   # route_t.how: a route that is not yet the message's own. Beside channel/types.pxd SLOWLY_*
    ROUTE_BY_CONTENT = 8      # its exchange's routes depend on headers: the message's is in exchange_t.contents
    ROUTE_BY_CHANCE = 16      # one of its destinations
    ROUTE_BY_MEMORY = 32      # exchanges on the way remember messages (route_t.keeping)

cdef struct route_t

cdef struct destination_t:
    queue_t *queue            # counted reference
    uint32_t flags            # DEST_*
    uint32_t ttl_least_ms     # what a message's own expiration is raised to; 0: stays
    int64_t ttl_ms            # x-message-ttl; -1 = none
    schedule_share_t *share   # of a schedule: what its publisher may have there, a counted reference; else NULL

cdef struct generation_t:     # of the routes of a table between two changes
    uint32_t refs             # atomic: the table and its routes
    uint32_t valid            # atomic; 0 once all of them are out of date

cdef struct keeping_t:        # what is remembered of each message of a route
    seen_t *seen              # counted; NULL: no exchange on the way drops messages that it has seen
    route_t *other            # counted: of those messages; NULL without `seen`
    uint32_t count
    recent_t **recents        # counted: exchanges that remember the messages themselves

cdef struct route_t:
    uint32_t refs             # atomic
    uint32_t valid            # atomic; 0: out of date, or no cache's. See route_is_valid
    uint32_t hash
    uint16_t key_len          # exchange and routing key shortstrs, as on the wire
    uint8_t how               # ROUTE_*; 0: a message goes to all destinations
    uint32_t find_len         # bytes of `key`: what it is found by; behind the key of an entry of `contents` stand the deciding bytes
    uint32_t count            # destinations
    uint32_t more_len         # bytes of `more`
    route_t *next             # bucket link
    generation_t *generation  # counted; NULL while no cache has kept it
    destination_t *destinations
    uint8_t *key
    sieve_t *sieve            # ROUTE_BY_CONTENT: says which headers decide, counted; else NULL
    keeping_t *keeping        # ROUTE_BY_MEMORY; else NULL
    uint8_t *more             # further routing keys (CC, BCC) of the one message this route is for, as the session packs them; or NULL

cdef struct grave_t:          # routes that a change took out of a table and that wait to be freed
    grave_t *next
    generation_t *generation
    route_t **buckets
    uint32_t bucket_count
    uint32_t hand             # bucket that is freed next

cdef struct exchange_t:
    uint32_t refs             # atomic: the Python wrapper and channels that were authorized for it
    uint32_t lock             # spin lock over the buckets
    uint32_t usable           # atomic; 0: deleted, or each message is asked for: nothing is kept, every publish goes the slow way
    uint8_t how               # ROUTE_* of each of its routes
    uint32_t name_len
    uint8_t name[256]
    uint32_t bucket_count     # power of two
    uint32_t route_count
    uint32_t route_max
    uint64_t bytes_max        # of the routes; 0: only their number is limited
    uint64_t bytes            # of the routes, when that is limited
    uint32_t hand             # bucket that is emptied next for the limits
    hash_key_t hash_key       # random; another one when a chain became too long
    route_t **buckets
    generation_t *generation  # of the routes in them; NULL: nothing was kept since the last change
    # Routes of messages whose headers decide (CC and BCC, a headers exchange), found by key and deciding bytes. A table of its own: a client
    # who sends ever new headers pushes out no other routes. NULL: this is such a table.
    exchange_t *contents
    void *owner               # the RouteCache, borrowed; NULL once it is gone. Read with the GIL held
    uint64_t published        # statistics (one writer per loop: approximate with several)

cdef void exchange_incref(exchange_t *exchange) noexcept nogil
cdef void exchange_decref(exchange_t *exchange) noexcept nogil
# Cached valid route for `key` (exchange and routing key shortstrs; in `contents` the deciding bytes, too) with a reference for the caller;
# NULL on a miss. *how: route_t.how; when it is not 0 the route is not yet the message's own (channel/deciding). O(1).
cdef route_t *exchange_find(exchange_t *exchange, const uint8_t *key, uint32_t key_len, uint8_t *how) noexcept nogil
# Whether a route says what the routing table says. O(1).
cdef inline bint route_is_valid(route_t *route) noexcept nogil:
    return at_load32(&route.valid) != 0 and at_load32(&route.generation.valid) != 0

cdef void route_incref(route_t *route) noexcept nogil
cdef void route_decref(route_t *route) noexcept nogil
# True when a queue of the route is deleted. O(destinations).
cdef bint route_has_gone(route_t *route) noexcept nogil
# A route to one of the destinations of a route, by chance, with a reference for the caller. NULL: there are none, or no memory.
cdef route_t *route_choose(route_t *route) noexcept nogil
# A route that no cache keeps (valid = 0), with a reference for the caller. `destinations`: QueueHandle list; `more`: see route_t.
cdef route_t *route_new(const uint8_t *key, uint32_t key_len, list destinations, bytes appendix) except NULL

cdef class RouteCache:
    cdef object __weakref__
    cdef exchange_t *exchange
    cdef sieve_t *sieve           # of ROUTE_BY_CONTENT, made when a route first needs it; NULL: not since the last change
    cdef uint64_t changes
    cdef public object resolver   # (routing key: bytes) -> list of QueueHandle: the routing table's answer; None: headers decide
    cdef public object deciding   # () -> routing.deciding.Deciding: the headers that decide, as the routing table says now; None: Python asks each time
    # Keeps a route in the place of any other of that key, and returns it with a reference for the caller. When the exchange is not
    # usable the route is made all the same, and is not kept. `destinations` None: they depend on headers.
    cdef route_t *put(self, const uint8_t *key, uint32_t key_len, list destinations) except NULL
    # The same for one of `contents`: behind the key_len bytes of its key stand the deciding bytes. other_keys: route_t.more.
    cdef route_t *put_content(self, bytes found_by, uint32_t key_len, list destinations, bytes other_keys) except NULL
    cdef bint _prepare(self) except -1
