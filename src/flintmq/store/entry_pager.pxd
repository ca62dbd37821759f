# Entries that leave memory, on the store's side: runs in the index log, and a thread that makes them and that buries those that a purge ended.
from libc.stdint cimport uint32_t, uint64_t, uint8_t
from flintmq.queue.log_port cimport LogPort
from flintmq.queue.pager cimport Pager
from flintmq.queue.types cimport log_port_t, queue_t, restored_t
from flintmq.store.index_log cimport index_log_t
from flintmq.store.message_log cimport message_log_t

cdef struct burial_t:           # a run whose entries ended together
    burial_t *next
    uint64_t run
    uint64_t queue_id
    uint64_t by                 # LSN behind the record that says so

cdef struct entry_pager_t:
    message_log_t *ml
    index_log_t *index
    log_port_t *port
    uint8_t *bytes              # of the run that is written: the pager's thread only
    # --- under the message log's lock
    burial_t *first
    burial_t *last
    uint64_t burials            # atomic: those that are not done
    # figures; atomic
    uint64_t buried             # runs
    uint64_t unread             # runs that could not be read
    uint32_t stopping           # atomic

# log_port_t.page_out, page_in, page_end, page_bury; the context is the message log.
cdef uint64_t entry_page_out(void *context, queue_t *queue, restored_t *entries, uint32_t count) noexcept nogil
cdef uint32_t entry_page_in(void *context, uint64_t run, restored_t *entries, uint32_t room) noexcept nogil
cdef void entry_page_end(void *context, uint64_t run) noexcept nogil
cdef uint64_t entry_page_bury(void *context, queue_t *queue, uint64_t run, uint64_t first, uint64_t last, bint ended) noexcept nogil
# A start: what is in this run ended by a record of the log: it is counted out later.
cdef void pager_bury(entry_pager_t *pager, uint64_t run, uint64_t queue_id) noexcept nogil
# The messages of the oldest burial are counted out. False: none waits.
cdef bint pager_bury_one(entry_pager_t *pager, restored_t *entries) noexcept nogil

cdef class EntryPager:
    cdef entry_pager_t pager
    cdef LogPort log
    cdef Pager rounds
    cdef restored_t *entries
    cdef object thread
    cdef public object after_round     # () called behind each round, by its thread; None: nothing is
    cdef public object on_failed      # (text): a run could not be read, and the store must stop
    cdef void fill_port(self, log_port_t *port) noexcept
