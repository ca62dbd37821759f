"""Actors: the state word, dispatch, wake-ups, suspension, closing (see actor.pxd).

in: requests, wakes, suspensions from any thread. out: scheduled actors, answers.

I1  The state word is CLOSED | SCHEDULED | 4 * suspensions and changes by compare-and-swap only. SCHEDULED is set by exactly one thread at a
    time, which then owns the one entry in the run queue (and a reference): one actor never runs twice at once.
I2  No lost work: who adds work (dispatch, wake, resume) does so first and reads the state word by a read-modify-write after it; who ends a
    slice clears SCHEDULED first and looks for work after it. One of the two sees the other.
I3  A wake before the worker's look is seen by the look; a wake after it leaves look_all/look_next set, which the worker reads before its
    slice ends, when the request that found nothing is parked already. So no wake falls between look and park.
I4  A request leaves its list under the actor's lock before it is answered: by the worker, the timer, a cancel or the close, by one of them.
"""

from __future__ import annotations

import cython
from cython.cimports.flintmq.core.atomics import (
    at_add32,
    at_add64,
    at_cas32,
    at_load32,
    at_load64,
    at_store32,
    at_store64,
    at_store_ptr,
    at_sub32,
    spin_lock,
    spin_unlock,
)
from cython.cimports.flintmq.core.clock import monotonic_ns
from cython.cimports.flintmq.scheduler.mailbox import mailbox_clear, mailbox_put, mailbox_remove
from cython.cimports.flintmq.scheduler.run_queue import run_queue_put
from cython.cimports.flintmq.scheduler.table import table_drop, table_get, table_remove, table_retire
from cython.cimports.flintmq.scheduler.timers import timers_arm, timers_kick
from cython.cimports.libc.stdint import int64_t, uint8_t, uint32_t, uint64_t


def system_now(system):
    if system.manual:
        return cython.cast(int64_t, at_load64(cython.address(system.manual_ns)))
    return monotonic_ns()


def actor_get(system, space, a, b, weight):
    first: cython.bint = at_load32(cython.address(system.actors)) == 0
    actor: cython.pointer(actor_t) = table_get(system, space, a, b, weight, True)
    if first and actor != cython.NULL and not system.manual:
        timers_kick(cython.address(system.timers))  # samples and sweeps begin
    return actor


def actor_find(system, space, a, b):
    return table_get(system, space, a, b, 0, False)


def actor_incref(actor):
    at_add32(cython.address(actor.refs), 1)


def actor_put(actor):
    table_drop(actor)


# --- requests ---------------------------------------------------------------------------------------------------------


def actor_dispatch(actor, request):
    system: cython.pointer(actor_system_t) = actor.system
    due: int64_t
    at_store_ptr(cython.address(request.actor), actor)
    request.system = system
    request.outcome = OUTCOME_NONE
    request.looked = False
    request.enqueued_ns = system_now(system)
    spin_lock(cython.address(actor.lock))
    if at_load32(cython.address(actor.state)) & STATE_CLOSED:
        spin_unlock(cython.address(actor.lock))
        at_add64(cython.address(system.refused_closed), 1)
        return DISPATCH_CLOSED
    if not mailbox_put(actor, request):
        spin_unlock(cython.address(actor.lock))
        at_add64(cython.address(system.refused_busy), 1)
        return DISPATCH_BUSY
    due = request.deadline_ns
    if due:
        actor_arm(actor, due)
    spin_unlock(cython.address(actor.lock))
    # From here on the request may be answered and gone. The actor is the caller's.
    at_add64(cython.address(system.dispatched), 1)
    actor_schedule(actor)
    return DISPATCH_OK


def system_dispatch(system, space, a, b, weight, request):
    actor: cython.pointer(actor_t) = cython.NULL
    before: cython.pointer(actor_t) = cython.NULL
    what: cython.int = DISPATCH_CLOSED
    while True:
        actor = actor_get(system, space, a, b, weight)
        if actor == cython.NULL:
            if not at_load32(cython.address(system.stopping)):
                at_add64(cython.address(system.refused_busy), 1)
                what = DISPATCH_BUSY
            break
        if actor == before:  # not retired: it is being closed
            actor_put(actor)
            break
        what = actor_dispatch(actor, request)
        if before != cython.NULL:
            actor_put(before)
        before = actor
        if what != DISPATCH_CLOSED:
            break
    if before != cython.NULL:
        actor_put(before)
    return what


def request_answer(request, outcome):
    at_add64(cython.address(request.system.outcomes[outcome]), 1)
    request.outcome = outcome
    request.answer(request)


def request_cancel(request):
    actor: cython.pointer(actor_t) = request.actor
    parked: cython.bint
    there: cython.bint
    spin_lock(cython.address(actor.lock))
    parked = request.place == PLACE_WAITING
    there = mailbox_remove(actor, request)
    spin_unlock(cython.address(actor.lock))
    if not there:
        return False
    if parked:
        at_sub32(cython.address(actor.system.parked), 1)
    request_answer(request, OUTCOME_INVALID)
    return True


# --- the state word ---------------------------------------------------------------------------------------------------


def actor_has_work(actor):
    if actor.again != cython.NULL or actor.mailbox.first != cython.NULL or actor.woken.first != cython.NULL:
        return True
    if actor.waiters.first == cython.NULL:
        return False
    return actor.chain or at_load32(cython.address(actor.look_all)) or at_load32(cython.address(actor.look_next))


def actor_schedule(actor):
    # A read-modify-write, not a load: it sees the newest word (I2).
    state: uint32_t = at_add32(cython.address(actor.state), 0)
    while state == 0:
        if at_cas32(cython.address(actor.state), 0, STATE_SCHEDULED):
            actor_incref(actor)
            run_queue_put(actor.system, actor)
            return True
        state = at_load32(cython.address(actor.state))
    return False


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _woken(actor: cython.pointer(actor_t)) -> cython.void:
    system: cython.pointer(actor_system_t) = actor.system
    at_add32(cython.address(actor.epoch), 1)
    at_add64(cython.address(system.wakes), 1)
    # The read-modify-write orders the look at `waiting` behind the end of the slice that parked (I2).
    if at_add32(cython.address(actor.state), 0) == 0 and at_load32(cython.address(actor.waiting)):
        if at_load64(cython.address(actor.woken_ns)) == 0:
            at_store64(cython.address(actor.woken_ns), cython.cast(uint64_t, system_now(system)))
        actor_schedule(actor)


def actor_wake(actor):
    at_store32(cython.address(actor.look_all), 1)
    _woken(actor)


def actor_wake_next(actor):
    at_store32(cython.address(actor.look_next), 1)
    _woken(actor)


def actor_suspend(actor):
    slot: uint32_t
    state: uint32_t
    token: uint64_t = 0
    spin_lock(cython.address(actor.lock))
    if not at_load32(cython.address(actor.state)) & STATE_CLOSED:
        for slot in range(SUSPENSIONS_MAX):
            if actor.suspensions & (cython.cast(uint32_t, 1) << slot):
                continue
            actor.suspensions = cython.cast(uint8_t, actor.suspensions | (cython.cast(uint32_t, 1) << slot))
            actor.generation += 1
            if actor.generation == 0:
                actor.generation = 1
            actor.suspension[slot] = actor.generation
            token = (cython.cast(uint64_t, actor.generation) << 3) | slot
            while True:
                state = at_load32(cython.address(actor.state))
                if at_cas32(cython.address(actor.state), state, state + STATE_SUSPEND):
                    break
            break
    spin_unlock(cython.address(actor.lock))
    if token:
        at_add64(cython.address(actor.system.suspended), 1)
    return token


def actor_resume(actor, token):
    slot: uint32_t = cython.cast(uint32_t, token & (SUSPENSIONS_MAX - 1))
    state: uint32_t
    work: cython.bint = False
    known: cython.bint
    spin_lock(cython.address(actor.lock))
    known = token != 0 and (actor.suspensions >> slot) & 1 and actor.suspension[slot] == token >> 3
    if known:
        actor.suspensions = cython.cast(uint8_t, actor.suspensions & ~(cython.cast(uint32_t, 1) << slot))
        while True:
            state = at_load32(cython.address(actor.state))
            if at_cas32(cython.address(actor.state), state, state - STATE_SUSPEND):
                break
        work = actor_has_work(actor)
    spin_unlock(cython.address(actor.lock))
    if known:
        at_add64(cython.address(actor.system.resumed), 1)
    else:
        at_add64(cython.address(actor.system.resumed_stale), 1)
    if work:
        actor_schedule(actor)
    return known


# --- the end ----------------------------------------------------------------------------------------------------------


def actor_close(actor):
    request: cython.pointer(request_t)
    following: cython.pointer(request_t)
    state: uint32_t
    parked: uint32_t
    spin_lock(cython.address(actor.lock))
    while True:
        state = at_load32(cython.address(actor.state))
        if state & STATE_CLOSED:
            spin_unlock(cython.address(actor.lock))
            return
        if at_cas32(cython.address(actor.state), state, state | STATE_CLOSED):
            break
    parked = at_load32(cython.address(actor.waiting))
    request = mailbox_clear(actor)
    spin_unlock(cython.address(actor.lock))
    at_sub32(cython.address(actor.system.parked), parked)
    while request != cython.NULL:
        following = request.next
        request_answer(request, OUTCOME_CLOSED)
        request = following
    if not state & STATE_SCHEDULED:
        actor_finish_close(actor)


def actor_finish_close(actor):
    table_remove(actor)


def actor_retire(actor):
    return table_retire(actor)


# --- for process() ----------------------------------------------------------------------------------------------------


def actor_charge_io(actor, ns):
    if ns > 0:
        actor.io_ns += ns


def actor_should_yield(actor, started_ns):
    system: cython.pointer(actor_system_t) = actor.system
    if at_load32(cython.address(actor.state)) != STATE_SCHEDULED or at_load32(cython.address(system.stopping)):
        return True
    return system_now(system) - started_ns >= system.quantum_ns


def actor_arm(actor, at_ns):
    timers_arm(cython.address(actor.system.timers), actor, at_ns)
