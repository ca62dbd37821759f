"""Slices (see worker.pxd).

in: the run queue. out: processed requests, charged actors, sleeping workers.

I1  A slice processes at least one request (unless the actor was suspended or closed meanwhile), then goes on until its cost reaches the
    quantum; the state word is looked at before each request.
I2  The cost of a request is the CPU time of the thread plus the I/O wait that process() charged: a worker that the machine takes away from
    costs the actor nothing, a read from the disk does.
I3  A worker touches a request after process() only if it answered PARK, AGAIN or FAILED, and an actor after giving its entry away never.
I4  A worker that ends a slice had its actor SCHEDULED.
I5  A worker runs one actor at a time.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cfunc, declare, exceptval, nogil, pointer, void
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import (
    at_add32, at_add64, at_cas32, at_load32, at_load64, at_store32, at_store64, at_sub32, spin_lock, spin_unlock,
)  # fmt: skip
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.clock import monotonic_ns
from cython.cimports.flintmq.scheduler.actor import (
    HOLD_NONE, OUTCOME_BUSY, OUTCOME_CLOSED, OUTCOME_EMPTY, OUTCOME_EXPIRED, OUTCOME_FAILED, OUTCOME_NONE, PROCESS_AGAIN, PROCESS_FAILED,
    PROCESS_PARK, STATE_CLOSED, STATE_SCHEDULED, actor_arm, actor_finish_close, actor_has_work, actor_put, actor_schedule, actor_system_t,
    actor_t, request_answer, request_t, system_now, worker_t,
)  # fmt: skip
from cython.cimports.flintmq.scheduler.cpu_clock import thread_cpu_ns
from cython.cimports.flintmq.scheduler.lines import (
    mailbox_due, mailbox_park, mailbox_put_back, mailbox_take, run_queue_charge, run_queue_sleep, run_queue_slice, run_queue_take,
)  # fmt: skip
from cython.cimports.flintmq.scheduler.statistics import histogram_add, histogram_quantile
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t, uint8_t

# nanoseconds: a shorter time is charged as it is; for more the CPU clock is asked, which costs half a microsecond
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
    """The time that the thread spent since the last mark (I2). Sets the mark."""
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
    was_parked: bint = request.parked
    due: int64_t
    if at_load32(address(actor.epoch)) != request.epoch:
        at_add64(address(system.wakes_raced), 1)
    elif was_parked:
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
    elif not was_parked and at_load32(address(system.parked)) >= system.parked_max:
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
    outcome: c_int
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
        outcome = request.process(actor, request)
        cost = _cost(system, worker) + actor.io_ns
        charged += cost
        drops = 0
        _note_service(actor, cost)
        at_store64(address(worker.requests), worker.requests + 1)
        if outcome == PROCESS_FAILED:
            at_store64(address(actor.failed), actor.failed + 1)
            actor.failures += 1
            failed[0] = True
            request_answer(request, OUTCOME_FAILED)
            break
        actor.failures = 0
        if outcome == PROCESS_PARK:
            _park(system, actor, request, worker.mark_ns)
        elif outcome == PROCESS_AGAIN:
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
