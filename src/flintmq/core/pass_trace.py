"""Where the time of the passes of a loop or of the log's writer goes (`flintmq perf trace`).

in: marks of the thread (trace_phase, trace_sleeps, trace_wakes), the kernel's counts of it. out: histograms of passes and phases, and the
longest passes with what they were spent with.

T1  Off, a mark is one branch. On, it is a reading of the clock, and a pass is two readings of the kernel's counts more.
T2  Only the thread writes the record; a reader sees figures that are exact when the trace is off and the thread had a pass since.
T3  The record is made with the first trace of a thread, never freed while the thread may run, and bounded.
"""

from __future__ import annotations

from cython import NULL, address, cast, cclass, cfunc, char, declare, exceptval, nogil, p_char, pointer, sizeof, void
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import at_load32, at_load_ptr, at_store32, at_store_ptr
from cython.cimports.flintmq.core.clock import monotonic_ns
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import calloc, free, strtoll
from cython.cimports.libc.string import memset
from cython.cimports.posix.fcntl import O_CLOEXEC, O_RDONLY, open
from cython.cimports.posix.resource import getrusage, rusage
from cython.cimports.posix.unistd import close, pread

# the counts of the calling thread (RUSAGE_THREAD)
OF_THREAD = declare(c_int, 1)
PHASE_NAMES = ("wait", "read", "log", "deliver", "send", "gil", "python", "rest")


@cfunc
@nogil
@exceptval(check=False)
def _step(ns: int64_t) -> uint32_t:
    """The place of a time in a histogram: PART steps for each power of two."""
    power: uint32_t = 3
    value: uint64_t = cast(uint64_t, ns) if ns > 0 else 0
    while value >> (power + 1) and power < 40:
        power += 1
    if value < PART:
        return cast(uint32_t, value)
    return min((power - 2) * PART + cast(uint32_t, (value >> (power - 3)) & (PART - 1)), STEPS - 1)


def bound_ns(step: int) -> int:
    """The upper end of a step, nanoseconds."""
    if step < PART:
        return step
    return ((PART + step % PART + 1) << (step // PART - 1)) - 1


@cfunc
@nogil
@exceptval(check=False)
def _delay(trace: pointer[trace_t]) -> int64_t:
    """Nanoseconds that the thread could have run and had no processor, since it is there. 0: the kernel does not say."""
    text: char[64]
    rest: p_char = NULL
    count: c_int
    if trace.delays == 0:
        trace.delays = open(b"/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC)
    if trace.delays < 0:
        return 0
    count = cast(c_int, pread(trace.delays, text, 63, 0))
    if count <= 0:
        return 0
    text[count] = 0
    strtoll(text, address(rest), 10)
    return strtoll(rest, NULL, 10)


@cfunc
@nogil
@exceptval(check=False)
def _counts(data: pointer[trace_data_t], usage: pointer[rusage]) -> void:
    data.faults = usage.ru_minflt + usage.ru_majflt
    data.slept = usage.ru_nvcsw
    data.preempted = usage.ru_nivcsw


def trace_change(trace: pointer[trace_t], phase: uint32_t) -> void:
    data: pointer[trace_data_t] = trace.data
    now: int64_t = monotonic_ns()
    if data.began:
        data.now.phase_ns[data.phase] += now - data.marked_ns
    data.marked_ns = now
    data.phase = phase


def trace_begin(trace: pointer[trace_t]) -> void:
    data: pointer[trace_data_t] = trace.data
    usage: rusage
    delay: int64_t = _delay(trace)
    now: int64_t = monotonic_ns()
    waited: int64_t = now - data.marked_ns
    late: int64_t = delay - data.delay_ns
    getrusage(OF_THREAD, address(usage))
    _counts(data, address(usage))
    memset(address(data.now), 0, sizeof(traced_pass_t))
    data.delay_ns = delay
    data.phase = PHASE_READ
    data.now.began_ns = now
    if data.began:
        data.now.phase_ns[PHASE_WAIT] = waited
        data.now.late_ns = late
    data.began = 1
    data.marked_ns = now


def trace_end(trace: pointer[trace_t]) -> void:
    data: pointer[trace_data_t] = trace.data
    usage: rusage
    delay: int64_t
    i: uint32_t
    least: uint32_t = 0
    now: int64_t = monotonic_ns()
    if not data.began:
        return
    data.now.phase_ns[data.phase] += now - data.marked_ns
    data.now.total_ns = now - data.now.began_ns
    delay = _delay(trace)
    data.now.delayed_ns = delay - data.delay_ns
    data.delay_ns = delay
    getrusage(OF_THREAD, address(usage))
    data.now.faults = cast(uint32_t, usage.ru_minflt + usage.ru_majflt - data.faults)
    data.now.slept = cast(uint32_t, usage.ru_nvcsw - data.slept)
    data.now.preempted = cast(uint32_t, usage.ru_nivcsw - data.preempted)
    data.passes += 1
    data.total[_step(data.now.total_ns)] += 1
    data.late[_step(data.now.late_ns)] += 1
    data.delayed[_step(data.now.delayed_ns)] += 1
    for i in range(PHASES):
        data.phases[i][_step(data.now.phase_ns[i])] += 1
    if data.longest_count < LONGEST:
        data.longest[data.longest_count] = data.now
        data.longest_count += 1
    else:
        for i in range(1, LONGEST):
            if _cost(address(data.longest[i])) < _cost(address(data.longest[least])):
                least = i
        if _cost(address(data.now)) > _cost(address(data.longest[least])):
            data.longest[least] = data.now
    data.marked_ns = monotonic_ns()


@cfunc
@nogil
@exceptval(check=False)
def _cost(one: pointer[traced_pass_t]) -> int64_t:
    """What a message that came with its begin waited for, at most."""
    return one.total_ns + one.late_ns


@cclass
class PassTrace:
    """The trace of one thread. Made by its loop or writer, which outlives nobody who has it."""

    def start(self) -> None:
        """Traces from the thread's next pass on, anew. Raises: MemoryError."""
        data: pointer[trace_data_t] = cast(pointer[trace_data_t], at_load_ptr(address(self.trace.data)))
        if at_load32(address(self.trace.on)):
            return
        if data == NULL:
            data = cast(pointer[trace_data_t], calloc(1, sizeof(trace_data_t)))
            if data == NULL:
                raise MemoryError("no memory for a trace")
            at_store_ptr(address(self.trace.data), data)
        else:
            memset(data, 0, sizeof(trace_data_t))
        at_store32(address(self.trace.on), 1)

    def stop(self) -> None:
        """Ends it. The thread may still write what it has begun (T2)."""
        at_store32(address(self.trace.on), 0)

    def report(self) -> dict:
        """passes; times: name -> [(upper end of a step in ns, passes)] of the whole pass, each phase, `late` and `delayed`; longest: the
        longest passes with their lateness, the longest first."""
        data: pointer[trace_data_t] = cast(pointer[trace_data_t], at_load_ptr(address(self.trace.data)))
        i: uint32_t
        times: dict = {}
        longest: list = []
        if data == NULL:
            return {"name": self.name, "passes": 0, "times": times, "longest": longest}
        times["pass"] = _histogram(data.total)
        times["late"] = _histogram(data.late)
        times["delayed"] = _histogram(data.delayed)
        for i in range(PHASES):
            times[PHASE_NAMES[i]] = _histogram(data.phases[i])
        for i in range(data.longest_count):
            longest.append(_shown(address(data.longest[i])))
        longest.sort(key=lambda one: -one["total_ns"] - one["late_ns"])
        return {"name": self.name, "passes": data.passes, "times": times, "longest": longest}


@cfunc
def _histogram(steps: pointer[uint64_t]) -> list:
    i: uint32_t
    shown: list = []
    for i in range(STEPS):
        if steps[i]:
            shown.append((bound_ns(i), steps[i]))
    return shown


@cfunc
def _shown(one: pointer[traced_pass_t]) -> dict:
    i: uint32_t
    phases: dict = {}
    for i in range(PHASES):
        phases[PHASE_NAMES[i]] = one.phase_ns[i]
    return {
        "began_ns": one.began_ns,
        "total_ns": one.total_ns,
        "late_ns": one.late_ns,
        "delayed_ns": one.delayed_ns,
        "faults": one.faults,
        "slept": one.slept,
        "preempted": one.preempted,
        "phases": phases,
    }


def pass_trace(name: str, trace: pointer[trace_t], keeper: object) -> PassTrace:
    view: PassTrace = PassTrace()
    view.name = name
    view.trace = trace
    view.keeper = keeper
    return view


def trace_free(trace: pointer[trace_t]) -> void:
    if trace.delays > 0:
        close(trace.delays)
    free(trace.data)
