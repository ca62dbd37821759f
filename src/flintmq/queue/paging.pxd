# Entries that leave memory: a segment whose entries are all available and cold becomes a shell, and its entries a run in the index log; who
# comes near asks for them, as for a content that is cold. See docs/adr/0016.
from libc.stdint cimport int64_t, uint32_t, uint64_t
from flintmq.queue.types cimport log_port_t, queue_t, restored_t, segment_t

cdef enum:                      # queue_page_in
    PAGE_THERE = 0              # the entries at that position were in memory, or nothing stands there
    PAGE_CAME = 4               # they came back
    PAGE_BUSY = 1               # they leave memory just now, or a purge ends them: look again
    PAGE_FAILED = 2             # their run can't be read
    PAGE_NO_MEMORY = 3

cdef enum:
    PAGE_NOT_NOW = 1            # page_out_t: the index log takes nothing now

cdef enum:                      # queue_page_out
    OUT_NOT = 0
    OUT_GONE = 1
    OUT_LATER = 2               # it rests
    OUT_REFUSED = 3             # the log takes no run now

cdef enum:                      # shell_redelivered: how many of its entries were delivered before
    SHELL_NONE = 0
    SHELL_SOME = 1
    SHELL_ALL = 2

cdef enum:                      # segments at either end of a level that stay: what is taken next, and what arrives
    KEPT_FIRST = 2
    KEPT_LAST = 2

cdef struct shell_t:            # facts of a shell, for a checkpoint; or of a segment that is written down as it stands
    uint64_t base
    uint32_t count              # slots
    uint32_t live               # entries of the run
    uint64_t bytes              # of their bodies
    uint32_t redelivered        # those that were delivered before
    uint32_t spilled            # those that a restart forgets
    int64_t expiry_min          # 0: nothing expires
    uint64_t flagged_upto       # index up to which all its entries count as delivered before, whatever the run says
    uint64_t run                # LSN in the index log; 0: it is none
    bint leaves                 # its entries leave memory just now, or end: look again

# The pager has work. Any thread.
cdef void paging_wake(log_port_t *port) noexcept nogil
# The queue may have segments for the pager: it is on log_port_t.paging from now on. Any thread.
cdef void queue_paging_wanted(queue_t *queue) noexcept nogil
# Brings the entries of the shell at this position back. Blocks for a disk read: never on a loop, nor under a lock.
cdef int queue_page_in(queue_t *queue, uint64_t position) noexcept nogil
# Asks for the entries of the shell at this position; who parked on its stub, and what expires, is told when they are back. Never blocks.
cdef void shell_ask(queue_t *queue, uint64_t position) noexcept nogil
# The same for the first shell among the segments behind this position that is taken next, for a reader that needs no contents.
cdef void shell_ask_ahead(queue_t *queue, uint64_t position) noexcept nogil
# They can't be had now (no memory, a stop): who wants them asks again. Nothing for a position that is in no shell.
cdef void shell_refused(queue_t *queue, uint64_t position) noexcept nogil
# One segment of a level becomes a shell: the one at place `place` of its directory. `entries`: room for LARGE_SLOTS. OUT_*.
cdef int queue_page_out(queue_t *queue, uint32_t level, uint32_t place, restored_t *entries) noexcept nogil
# Whether the queue's kind knows its entries by nothing but their positions, and its log takes runs.
cdef bint queue_pages(queue_t *queue) noexcept nogil
# SHELL_* of the shell at this position; SHELL_NONE when there is no shell.
cdef int shell_redelivered(queue_t *queue, uint64_t position) noexcept nogil
# Ends all entries of the shell at this position, for REASON_PURGE, or REASON_NONE with their queue, as one record of the log says (`*lsn` is
# raised to where it ends). Returns how many; 0: there is no shell, or its entries are on their way out of memory. O(1).
cdef uint64_t shell_bury(queue_t *queue, uint64_t position, int reason, uint64_t *lsn) noexcept nogil
# The stub of a shell that is new. With the list lock.
cdef void shell_mark(segment_t *segment) noexcept nogil
# The shell that has this position; NULL: none. With the list lock.
cdef segment_t *shell_locked(queue_t *queue, uint64_t position) noexcept nogil
