"""Slices, and the run queue: which actor runs next, which worker sleeps (see worker.pxd).

in: the run queue. out: processed requests, charged actors, sleeping workers.

I1  A slice processes at least one request (unless the actor was suspended or closed meanwhile), then goes on until its cost reaches the
    quantum; the state word is looked at before each request.
I2  The cost of a request is the CPU time of the thread plus what process() charged as I/O wait: a worker that the machine takes away from
    costs the actor nothing, a read from the disk does.
I3  A worker touches a request after process() only if it answered PARK, AGAIN or FAILED, and an actor after giving its entry away never.
I4  Who ends a slice had its actor SCHEDULED.
I5  A worker runs one actor at a time.

The run queue is a heap of actors ordered by policy, the virtual time, and the stack of sleeping workers. Start-time fair queueing: each
actor has a virtual time `vrun` that grows by cost * 100 / weight, and the smallest runs next. `vmin` is the smallest vrun of the actors
that run or queue; an actor that becomes runnable starts at vmin less one quantum at best, and a new one is next but charged a slice in
advance: neither a newcomer nor a long sleeper has a claim on the past. An actor that has more to do after its slice goes back in one step
with its charge: it never counts as having slept.

I6  An actor is in the heap at most once: only the thread that set its SCHEDULED bit puts it here.
I7  The key of an entry never changes while it is in the heap. Ties go by ticket: first come, first served.
I8  vmin never goes back.
I9  A worker sleeps only when it saw the heap empty under the lock, and each put wakes one unless one is on its way: no put is slept over.
    A worker that takes one of several wakes the next.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cfunc, declare, exceptval, inline, nogil, pointer, sizeof, void
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import (
    at_add32,
    at_add64,
    at_cas32,
    at_load32,
    at_load64,
    at_store32,
    at_store64,
    at_sub32,
    spin_lock,
    spin_unlock,
)
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.clock import monotonic_ns
from cython.cimports.flintmq.core.futex import futex_wait, futex_wake
from cython.cimports.flintmq.scheduler.actor import (
    HOLD_NONE,
    OUTCOME_BUSY,
    OUTCOME_CLOSED,
    OUTCOME_EMPTY,
    OUTCOME_EXPIRED,
    OUTCOME_FAILED,
    OUTCOME_NONE,
    PROCESS_AGAIN,
    PROCESS_FAILED,
    PROCESS_PARK,
    STATE_CLOSED,
    actor_arm,
    actor_finish_close,
    actor_has_work,
    actor_put,
    actor_schedule,
    mailbox_due,
    mailbox_park,
    mailbox_put_back,
    mailbox_take,
    request_answer,
    request_t,
    system_now,
)
from cython.cimports.flintmq.scheduler.cpu_clock import thread_cpu_ns
from cython.cimports.flintmq.scheduler.figures import histogram_add, histogram_quantile
from cython.cimports.flintmq.scheduler.types import (
    POLICY_LAST_RUN,
    POLICY_TOTAL,
    POLICY_VRUNTIME,
    STATE_SCHEDULED,
    WEIGHT_DEFAULT,
    actor_system_t,
    actor_t,
    run_entry_t,
    run_queue_t,
    worker_t,
)
from cython.cimports.libc.stdint import int64_t, uint8_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import realloc

# nanoseconds: what took less is charged as it is; for more the CPU clock is asked, which costs half a microsecond
SHORT_NS = declare(int64_t, 50_000)
# nanoseconds awake after which the CPU clock is read again at the start of a slice
BASE_NS = declare(int64_t, 1_000_000)
# requests that a slice drops without looking at them before others get their turn
DROPS_MAX = declare(uint32_t, 256)
# calls of process between two readings of its median
MEDIAN_EVERY = declare(uint64_t, 16)


# --- cost -------------------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _begin(system: pointer[actor_system_t], worker: pointer[worker_t]) -> void:
    """The clocks at the start of a slice."""
    now: int64_t = system_now(system)
    gap: int64_t = now - worker.mark_ns
    if not system.manual:
        worker.since_cpu_ns += gap
        if gap >= SHORT_NS or worker.since_cpu_ns >= BASE_NS:
            worker.cpu_ns = thread_cpu_ns()
            worker.since_cpu_ns = 0
            now = monotonic_ns()
    worker.mark_ns = now


@cfunc
@nogil
@exceptval(check=False)
def _cost(system: pointer[actor_system_t], worker: pointer[worker_t]) -> int64_t:
    """What the thread spent since the last mark (I2). Sets the mark."""
    now: int64_t = system_now(system)
    spent: int64_t = now - worker.mark_ns
    used: int64_t
    worker.mark_ns = now
    if system.manual:
        return spent
    if spent < SHORT_NS:
        worker.since_cpu_ns += spent
        return spent
    used = thread_cpu_ns()
    now = used - worker.cpu_ns - worker.since_cpu_ns
    worker.cpu_ns = used
    worker.since_cpu_ns = 0
    if now < 0:
        return 0
    return now if now < spent else spent


# --- one request ------------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _drop(system: pointer[actor_system_t], actor: pointer[actor_t], request: pointer[request_t], now: int64_t) -> bint:
    """Answers a request that can't be served before its deadline. False: it can."""
    if request.deadline_ns == 0 or now + actor.service_p50_ns <= request.deadline_ns:
        return False
    if request.deadline_ns > now:
        at_add64(address(system.dropped_estimate), 1)
        # Each such drop takes a bit off the estimate: one slow time must not keep everybody out for ever.
        actor.service_p50_ns -= actor.service_p50_ns // 8 + 1
    else:
        at_add64(address(system.dropped_deadline), 1)
    request_answer(request, OUTCOME_EMPTY if request.parked else OUTCOME_EXPIRED)
    return True


@cfunc
@nogil
@exceptval(check=False)
def _note_wait(system: pointer[actor_system_t], actor: pointer[actor_t], request: pointer[request_t], now: int64_t) -> void:
    woken: int64_t
    if not request.looked:
        histogram_add(address(actor.queue_wait), now - request.enqueued_ns)
    elif request.parked:
        woken = cast(int64_t, at_load64(address(actor.woken_ns)))
        if woken:
            at_store64(address(actor.woken_ns), 0)
            spin_lock(address(system.figures_lock))
            histogram_add(address(system.wake_wait), now - woken)
            spin_unlock(address(system.figures_lock))


@cfunc
@nogil
@exceptval(check=False)
def _note_service(actor: pointer[actor_t], cost: int64_t) -> void:
    served: uint64_t = at_load64(address(actor.served)) + 1
    at_store64(address(actor.served), served)
    histogram_add(address(actor.service), cost)
    if served <= MEDIAN_EVERY or served % MEDIAN_EVERY == 0:
        actor.service_p50_ns = histogram_quantile(address(actor.service), 0.5)


@cfunc
@nogil
@exceptval(check=False)
def _park(system: pointer[actor_system_t], actor: pointer[actor_t], request: pointer[request_t], now: int64_t) -> void:
    """process() found nothing: the request waits, or is answered if it must not."""
    outcome: uint8_t = OUTCOME_NONE
    again: bint = request.parked
    due: int64_t
    if at_load32(address(actor.epoch)) != request.epoch:
        at_add64(address(system.wakes_raced), 1)
    elif again:
        at_add64(address(system.wakes_spurious), 1)
    spin_lock(address(actor.lock))
    if at_load32(address(actor.state)) & STATE_CLOSED:
        outcome = OUTCOME_CLOSED
    elif (
        request.hold_ns == HOLD_NONE
        or (request.hold_ns > 0 and request.hold_ns <= now)
        or (request.deadline_ns and request.deadline_ns <= now)
    ):
        outcome = OUTCOME_EMPTY
    elif not again and at_load32(address(system.parked)) >= system.parked_max:
        at_add64(address(system.dropped_parked), 1)
        outcome = OUTCOME_BUSY
    elif mailbox_park(actor, request):
        at_add32(address(system.parked), 1)
        due = mailbox_due(actor)
        if due:
            actor_arm(actor, due)
    else:
        outcome = OUTCOME_BUSY
    spin_unlock(address(actor.lock))
    if outcome != OUTCOME_NONE:
        request_answer(request, outcome)


@cfunc
@nogil
@exceptval(check=False)
def _put_back(actor: pointer[actor_t], request: pointer[request_t]) -> void:
    outcome: uint8_t = OUTCOME_NONE
    due: int64_t
    spin_lock(address(actor.lock))
    if at_load32(address(actor.state)) & STATE_CLOSED:
        outcome = OUTCOME_CLOSED
    elif mailbox_put_back(actor, request):
        due = mailbox_due(actor)
        if due:
            actor_arm(actor, due)
    else:
        outcome = OUTCOME_BUSY
    spin_unlock(address(actor.lock))
    if outcome != OUTCOME_NONE:
        request_answer(request, outcome)


# --- a slice ----------------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _requests(
    system: pointer[actor_system_t],
    worker: pointer[worker_t],
    actor: pointer[actor_t],
    quantum: int64_t,
    failed: pointer[bint],
) -> int64_t:
    """Processes requests of the actor for one slice. Returns its cost."""
    request: pointer[request_t]
    what: c_int
    cost: int64_t
    charged: int64_t = 0
    drops: uint32_t = 0
    while at_load32(address(actor.state)) == STATE_SCHEDULED and not at_load32(address(system.stopping)):
        spin_lock(address(actor.lock))
        request = mailbox_take(actor)
        spin_unlock(address(actor.lock))
        if request == NULL:
            break
        if request.parked:
            check(at_sub32(address(system.parked), 1) > 0, b"worker I3 a parked request that is looked at was counted", actor.a, 0)
        if _drop(system, actor, request, worker.mark_ns):
            drops += 1
            if drops == DROPS_MAX:
                break
            continue
        _note_wait(system, actor, request, worker.mark_ns)
        request.looked = True
        request.epoch = at_load32(address(actor.epoch))
        actor.io_ns = 0
        what = request.process(actor, request)
        cost = _cost(system, worker) + actor.io_ns
        charged += cost
        drops = 0
        _note_service(actor, cost)
        at_store64(address(worker.requests), worker.requests + 1)
        if what == PROCESS_FAILED:
            at_store64(address(actor.failed), actor.failed + 1)
            actor.failures += 1
            failed[0] = True
            request_answer(request, OUTCOME_FAILED)
            break
        actor.failures = 0
        if what == PROCESS_PARK:
            _park(system, actor, request, worker.mark_ns)
        elif what == PROCESS_AGAIN:
            _put_back(actor, request)
            break
        if charged >= quantum:
            break
    if drops:
        charged += _cost(system, worker)
    return charged


@cfunc
@nogil
@exceptval(check=False)
def _pause(system: pointer[actor_system_t], actor: pointer[actor_t], now: int64_t) -> void:
    """After a failure: the actor stays SCHEDULED, but the timer puts it into the run queue, not we."""
    pause: int64_t = system.pause_ns
    n: uint32_t = 1
    while n < actor.failures and pause < system.pause_max_ns:
        pause *= 2
        n += 1
    if pause > system.pause_max_ns:
        pause = system.pause_max_ns
    at_add64(address(system.paused), 1)
    spin_lock(address(actor.lock))
    actor.pause_until_ns = now + pause
    at_store32(address(actor.went_idle), 1)
    actor_arm(actor, actor.pause_until_ns)
    spin_unlock(address(actor.lock))


@cfunc
@nogil
@exceptval(check=False)
def _end(system: pointer[actor_system_t], actor: pointer[actor_t]) -> void:
    """The actor leaves the schedule; work that came meanwhile brings it back (I2 of actor.py)."""
    state: uint32_t
    work: bint
    at_store32(address(actor.went_idle), 1)
    at_store64(address(actor.woken_ns), 0)
    while True:
        state = at_load32(address(actor.state))
        if at_cas32(address(actor.state), state, state & ~cast(uint32_t, STATE_SCHEDULED)):
            break
    check(state & STATE_SCHEDULED != 0, b"worker I4 a slice that ends was scheduled", state, actor.a)
    if state & STATE_CLOSED:
        actor_finish_close(actor)
    else:
        spin_lock(address(actor.lock))
        work = actor_has_work(actor)
        spin_unlock(address(actor.lock))
        if work:
            actor_schedule(actor)
    actor_put(actor)


@cfunc
@nogil
@exceptval(check=False)
def _slice(system: pointer[actor_system_t], worker: pointer[worker_t], actor: pointer[actor_t], runnable: uint32_t) -> void:
    quantum: int64_t = run_queue_slice(system, runnable)
    cost: int64_t
    failed: bint = False
    back: bint
    _begin(system, worker)
    actor.last_run_ns = worker.mark_ns
    if at_load32(address(system.ran)) == 0:
        at_store32(address(system.ran), 1)
    cost = _requests(system, worker, actor, quantum, address(failed))
    at_store64(address(worker.slices), worker.slices + 1)
    actor.idle_ns = worker.mark_ns
    if failed:
        run_queue_charge(system, worker, actor, cost, False)
        _pause(system, actor, worker.mark_ns)
        return
    spin_lock(address(actor.lock))
    back = at_load32(address(actor.state)) == STATE_SCHEDULED and actor_has_work(actor)
    spin_unlock(address(actor.lock))
    run_queue_charge(system, worker, actor, cost, back)
    if not back:
        _end(system, actor)


def system_step(system: pointer[actor_system_t], number: uint32_t) -> bint:
    worker: pointer[worker_t] = address(system.workers[number])
    runnable: uint32_t = 0
    check(worker.running == NULL, b"worker I5 a worker that looks for work has none", number, worker.slices)
    actor: pointer[actor_t] = run_queue_take(system, worker, address(runnable))
    if actor == NULL:
        return False
    _slice(system, worker, actor, runnable)
    return True


def worker_run(system: pointer[actor_system_t], number: uint32_t) -> void:
    while not at_load32(address(system.stopping)):
        if not system_step(system, number) and not run_queue_sleep(system, address(system.workers[number])):
            return


# --- the run queue -------------------------------------------------------------------------------------------------------------------

# runnable actors up to which each gets a whole quantum; more share as much time
WHOLE_SLICES = declare(int64_t, 8)


@cfunc
@inline
@nogil
@exceptval(check=False)
def _before(one: pointer[run_entry_t], other: pointer[run_entry_t]) -> bint:
    return one.key < other.key or (one.key == other.key and one.ticket < other.ticket)


def run_queue_slice(system: pointer[actor_system_t], runnable: uint32_t) -> int64_t:
    slice_ns: int64_t = system.quantum_ns
    if runnable > WHOLE_SLICES:
        slice_ns = slice_ns * WHOLE_SLICES // runnable
        if slice_ns < system.slice_min_ns:
            slice_ns = system.slice_min_ns
    return slice_ns


def run_queue_reserve(system: pointer[actor_system_t], actors: uint32_t) -> bint:
    queue: pointer[run_queue_t] = address(system.queue)
    grown: pointer[run_entry_t]
    room: uint32_t
    done: bint = True
    if at_load32(address(queue.room)) >= actors:
        return True
    spin_lock(address(queue.lock))
    if queue.room < actors:
        room = queue.room * 2 if queue.room * 2 > actors else actors + 64
        grown = cast(pointer[run_entry_t], realloc(queue.entries, room * sizeof(run_entry_t)))
        if grown == NULL:
            done = False
        else:
            queue.entries = grown
            at_store32(address(queue.room), room)
    spin_unlock(address(queue.lock))
    return done


@cfunc
@nogil
@exceptval(check=False)
def _wake_one(queue: pointer[run_queue_t]) -> pointer[worker_t]:
    """Under the lock: the worker to be woken after it is given back, or NULL."""
    worker: pointer[worker_t] = queue.idle
    if worker == NULL or queue.waking:
        return NULL
    queue.idle = worker.idle_next
    queue.waking = True
    at_store32(address(worker.signal), 1)
    return worker


@cfunc
@nogil
@exceptval(check=False)
def _insert(system: pointer[actor_system_t], actor: pointer[actor_t], vrun: int64_t) -> void:
    """Under the lock. vrun: its place by virtual time; a newcomer's is before its own."""
    queue: pointer[run_queue_t] = address(system.queue)
    entry: run_entry_t
    at: uint32_t
    if queue.policy == POLICY_VRUNTIME:
        entry.key = vrun
    elif queue.policy == POLICY_LAST_RUN:
        entry.key = actor.last_run_ns
    elif queue.policy == POLICY_TOTAL:
        entry.key = cast(int64_t, actor.total_ns)
    else:
        entry.key = 0
    queue.ticket += 1
    entry.ticket = queue.ticket
    entry.actor = actor
    check(queue.count < queue.room, b"worker I6 there is a place for each actor", queue.count, queue.room)
    at = queue.count
    queue.count += 1
    while at > 0 and _before(address(entry), address(queue.entries[(at - 1) // 2])):
        queue.entries[at] = queue.entries[(at - 1) // 2]
        at = (at - 1) // 2
    queue.entries[at] = entry


def run_queue_put(system: pointer[actor_system_t], actor: pointer[actor_t]) -> void:
    queue: pointer[run_queue_t] = address(system.queue)
    worker: pointer[worker_t]
    vrun: int64_t
    spin_lock(address(queue.lock))
    vrun = queue.vmin
    if actor.vrun == VRUN_NEW:
        actor.vrun = vrun + run_queue_slice(system, queue.count + 1)
    elif queue.policy == POLICY_VRUNTIME and actor.vrun < queue.vmin - system.quantum_ns:
        actor.vrun = queue.vmin - system.quantum_ns
        vrun = actor.vrun
    else:
        vrun = actor.vrun
    _insert(system, actor, vrun)
    worker = _wake_one(queue)
    spin_unlock(address(queue.lock))
    if worker != NULL:
        futex_wake(address(worker.signal), 1)


@cfunc
@nogil
@exceptval(check=False)
def _move_vmin(system: pointer[actor_system_t]) -> void:
    """Under the lock. The smallest vrun of the running and queued actors; under other policies of the running ones, near enough."""
    i: uint32_t
    least: int64_t = -1
    if system.queue.policy == POLICY_VRUNTIME and system.queue.count:
        least = system.queue.entries[0].key
    running: pointer[actor_t]
    for i in range(system.worker_count):
        running = system.workers[i].running
        if running != NULL and (least < 0 or running.vrun < least):
            least = running.vrun
    if least > system.queue.vmin:
        system.queue.vmin = least


def run_queue_take(system: pointer[actor_system_t], worker: pointer[worker_t], runnable: pointer[uint32_t]) -> pointer[actor_t]:
    queue: pointer[run_queue_t] = address(system.queue)
    other: pointer[worker_t] = NULL
    actor: pointer[actor_t]
    last: run_entry_t
    at: uint32_t
    child: uint32_t
    spin_lock(address(queue.lock))
    if queue.count == 0:
        spin_unlock(address(queue.lock))
        return NULL
    runnable[0] = queue.count
    actor = queue.entries[0].actor
    queue.count -= 1
    last = queue.entries[queue.count]
    at = 0
    child = 1
    while child < queue.count:
        if child + 1 < queue.count and _before(address(queue.entries[child + 1]), address(queue.entries[child])):
            child += 1
        if not _before(address(queue.entries[child]), address(last)):
            break
        queue.entries[at] = queue.entries[child]
        at = child
        child = at * 2 + 1
    queue.entries[at] = last
    check(at_load32(address(actor.state)) & STATE_SCHEDULED != 0, b"worker I6 who runs was scheduled", actor.state, actor.a)
    worker.running = actor
    _move_vmin(system)
    if queue.count:
        other = _wake_one(queue)
    spin_unlock(address(queue.lock))
    if other != NULL:
        futex_wake(address(other.signal), 1)
    return actor


def run_queue_charge(
    system: pointer[actor_system_t], worker: pointer[worker_t], actor: pointer[actor_t], cost_ns: int64_t, back: bint
) -> void:
    queue: pointer[run_queue_t] = address(system.queue)
    weight: int64_t = at_load32(address(actor.weight))
    if cost_ns < 1:
        cost_ns = 1
    spin_lock(address(queue.lock))
    check(worker.running == actor, b"worker I6 who is charged was running", actor.state, actor.a)
    actor.vrun += (cost_ns * WEIGHT_DEFAULT + weight - 1) // weight
    at_store64(address(actor.total_ns), at_load64(address(actor.total_ns)) + cast(uint64_t, cost_ns))
    worker.running = NULL
    if back:
        _insert(system, actor, actor.vrun)
    spin_unlock(address(queue.lock))


def run_queue_sleep(system: pointer[actor_system_t], worker: pointer[worker_t]) -> bint:
    queue: pointer[run_queue_t] = address(system.queue)
    spin_lock(address(queue.lock))
    if queue.stopping or queue.count:
        spin_unlock(address(queue.lock))
        return not queue.stopping
    at_store32(address(worker.signal), 0)
    check(worker.running == NULL, b"worker I9 who sleeps has no actor", worker.slices, queue.count)
    worker.idle_next = queue.idle
    queue.idle = worker
    spin_unlock(address(queue.lock))
    while at_load32(address(worker.signal)) == 0:
        futex_wait(address(worker.signal), 0, -1)
    spin_lock(address(queue.lock))
    queue.waking = False
    spin_unlock(address(queue.lock))
    return not at_load32(address(queue.stopping))


def run_queue_stop(system: pointer[actor_system_t]) -> void:
    queue: pointer[run_queue_t] = address(system.queue)
    worker: pointer[worker_t]
    spin_lock(address(queue.lock))
    at_store32(address(queue.stopping), 1)
    worker = queue.idle
    queue.idle = NULL
    while worker != NULL:
        at_store32(address(worker.signal), 1)
        futex_wake(address(worker.signal), 1)
        worker = worker.idle_next
    spin_unlock(address(queue.lock))
