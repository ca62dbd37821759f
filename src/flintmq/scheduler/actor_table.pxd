# The table of actors: key -> actor, in shards with a lock each.
from libc.stdint cimport uint32_t, uint64_t
from flintmq.scheduler.types cimport actor_system_t, actor_t

# The actor of a key with one more reference; made if `make`. NULL: there is none, or no memory, or too many.
cdef actor_t *table_get(actor_system_t *system, uint32_t space, uint64_t a, uint64_t b, uint32_t weight, bint make) noexcept nogil
# Takes a closed actor out (once; later calls do nothing) and drops the table's reference.
cdef void table_remove(actor_t *actor) noexcept nogil
# Closes and takes out an actor that has nothing to do. False: it has, or is suspended, or closed. The caller holds a reference.
cdef bint table_retire(actor_t *actor) noexcept nogil
# Retires what only the table knows and what has been idle since `idle_since`, in one shard. Returns how many.
cdef uint32_t table_sweep(actor_system_t *system, uint32_t shard_number, long long idle_since) noexcept nogil
# Up to `room` actors of a shard, each with a reference. Returns how many.
cdef uint32_t table_some(actor_system_t *system, uint32_t shard_number, actor_t **actors, uint32_t room) noexcept nogil
cdef void table_drop(actor_t *actor) noexcept nogil     # drops one reference; the last one frees
