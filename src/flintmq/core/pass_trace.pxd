# Where the time of a thread's passes goes: see pass_trace.py. Off it is one branch on a word that does not change, some of them in a pass.
from libc.stdint cimport int64_t, uint32_t, uint64_t

cdef enum:                      # what the time of a pass is spent with
    PHASE_WAIT = 0              # it sleeps: the time between two passes
    PHASE_READ = 1              # a loop reads sockets and feeds what it read; the writer takes blocks, under the logs' locks
    PHASE_LOG = 2               # a loop tells the log; the writer writes
    PHASE_DELIVER = 3           # a loop delivers; the writer syncs
    PHASE_SEND = 4              # a loop sends; the writer wakes the loops
    PHASE_GIL = 5               # it waits for the interpreter
    PHASE_PYTHON = 6            # it runs Python
    PHASE_REST = 7
    PHASES = 8

cdef enum:
    LONGEST = 32                # passes that are kept
    PART = 8                    # steps of a histogram from one power of two to the next
    STEPS = 320                 # of all of them: to 2**40 ns

cdef struct traced_pass_t:
    int64_t began_ns            # monotonic
    int64_t total_ns            # without the wait before it
    int64_t phase_ns[PHASES]
    int64_t late_ns             # of the wait before it: it could run, and no processor was free
    int64_t delayed_ns          # the same within the pass
    uint32_t faults             # page faults within the pass
    uint32_t slept              # it waited for something in the kernel (a voluntary switch)
    uint32_t preempted          # another thread got its processor

cdef struct trace_data_t:
    traced_pass_t now
    int64_t marked_ns
    int64_t delay_ns            # of the kernel's count, when it was read last
    uint32_t phase
    uint32_t began              # a pass is traced from its begin on
    uint32_t longest_count
    uint32_t unused
    int64_t faults              # the kernel's counts
    int64_t slept
    int64_t preempted
    uint64_t passes
    traced_pass_t longest[LONGEST]
    uint64_t total[STEPS]       # histograms: of the passes
    uint64_t phases[PHASES][STEPS]
    uint64_t late[STEPS]
    uint64_t delayed[STEPS]

cdef struct trace_t:
    uint32_t on                 # atomic
    int delays                  # the kernel's file with the thread's times; opened by the thread, below 0: it has none
    trace_data_t *data

# The rest of the two below, when the trace is on.
cdef void trace_change(trace_t *trace, uint32_t phase) noexcept nogil
cdef void trace_end(trace_t *trace) noexcept nogil
cdef void trace_begin(trace_t *trace) noexcept nogil

# The thread begins a phase of its pass.
cdef inline void trace_phase(trace_t *trace, uint32_t phase) noexcept nogil:
    if trace.on:
        trace_change(trace, phase)

# The pass is over: the thread is about to sleep; and it is awake again.
cdef inline void trace_sleeps(trace_t *trace) noexcept nogil:
    if trace.on:
        trace_end(trace)

cdef inline void trace_wakes(trace_t *trace) noexcept nogil:
    if trace.on:
        trace_begin(trace)

# The trace of one thread, for the control plane.
cdef class PassTrace:
    cdef trace_t *trace
    cdef object keeper          # what has the record
    cdef readonly str name

# The control plane's view of the record of `keeper`.
cdef PassTrace pass_trace(str name, trace_t *trace, object keeper)
# The thread is over, and its keeper goes.
cdef void trace_free(trace_t *trace) noexcept nogil
