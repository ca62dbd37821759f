"""Actors: the state word, dispatch, wake-ups, suspension, closing (see actor.pxd).

in: requests, wakes, suspensions from any thread. out: scheduled actors, answers.

I1  The state word is CLOSED | SCHEDULED | 4 * suspensions and changes by compare-and-swap only. SCHEDULED is set by exactly one thread at a
    time, which then owns the one entry in the run queue (and a reference): one actor never runs twice at once.
I2  No lost work: a thread that adds work (dispatch, wake, resume) adds it first and reads the state word by a read-modify-write after it;
    the worker that ends a slice clears SCHEDULED first and looks for work after it. One of the two sees the other.
I3  A wake before the worker's look is seen by the look; a wake after it leaves look_all/look_next set, which the worker reads before its
    slice ends, when the request that found nothing is parked already. So no wake falls between look and park.
I4  A request leaves its list under the actor's lock before it is answered: by the worker, the timer, a cancel or the close, by one of them.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cfunc, exceptval, nogil, pointer, void
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import (
    at_add32, at_add64, at_cas32, at_load32, at_load64, at_load_ptr, at_store32, at_store64, at_store_ptr, at_sub32, spin_lock, spin_unlock,
)  # fmt: skip
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.clock import monotonic_ns
from cython.cimports.flintmq.scheduler.actor_table import table_drop, table_get, table_remove, table_retire
from cython.cimports.flintmq.scheduler.lines import mailbox_clear, mailbox_put, mailbox_remove, run_queue_put
from cython.cimports.flintmq.scheduler.timers import timers_arm, timers_kick
from cython.cimports.flintmq.scheduler.types import actor_system_t, actor_t, request_t
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t, uint8_t


def system_now(system: pointer[actor_system_t]) -> int64_t:
    if system.manual:
        return cast(int64_t, at_load64(address(system.manual_ns)))
    return monotonic_ns()


def actor_get(system: pointer[actor_system_t], space: uint32_t, a: uint64_t, b: uint64_t, weight: uint32_t) -> pointer[actor_t]:
    first: bint = at_load32(address(system.actors)) == 0
    actor: pointer[actor_t] = table_get(system, space, a, b, weight, True)
    if first and actor != NULL and not system.manual:
        timers_kick(address(system.timers))  # samples and sweeps begin
    return actor


def actor_find(system: pointer[actor_system_t], space: uint32_t, a: uint64_t, b: uint64_t) -> pointer[actor_t]:
    return table_get(system, space, a, b, 0, False)


def actor_incref(actor: pointer[actor_t]) -> void:
    at_add32(address(actor.refs), 1)


def actor_put(actor: pointer[actor_t]) -> void:
    table_drop(actor)


# --- requests ---------------------------------------------------------------------------------------------------------


def actor_dispatch(actor: pointer[actor_t], request: pointer[request_t]) -> c_int:
    system: pointer[actor_system_t] = actor.system
    due: int64_t
    at_store_ptr(address(request.actor), actor)
    request.system = system
    request.outcome = OUTCOME_NONE
    request.looked = False
    request.enqueued_ns = system_now(system)
    spin_lock(address(actor.lock))
    if at_load32(address(actor.state)) & STATE_CLOSED:
        spin_unlock(address(actor.lock))
        at_add64(address(system.refused_closed), 1)
        return DISPATCH_CLOSED
    if not mailbox_put(actor, request):
        spin_unlock(address(actor.lock))
        at_add64(address(system.refused_busy), 1)
        return DISPATCH_BUSY
    due = request.deadline_ns
    if due:
        actor_arm(actor, due)
    spin_unlock(address(actor.lock))
    # From here on the request may be answered and gone. The actor is the caller's.
    at_add64(address(system.dispatched), 1)
    actor_schedule(actor)
    return DISPATCH_OK


def system_dispatch(
    system: pointer[actor_system_t], space: uint32_t, a: uint64_t, b: uint64_t, weight: uint32_t, request: pointer[request_t]
) -> c_int:
    actor: pointer[actor_t] = NULL
    before: pointer[actor_t] = NULL
    outcome: c_int = DISPATCH_CLOSED
    while True:
        actor = actor_get(system, space, a, b, weight)
        if actor == NULL:
            if not at_load32(address(system.stopping)):
                at_add64(address(system.refused_busy), 1)
                outcome = DISPATCH_BUSY
            break
        if actor == before:  # not retired: it is being closed
            actor_put(actor)
            break
        outcome = actor_dispatch(actor, request)
        if before != NULL:
            actor_put(before)
        before = actor
        if outcome != DISPATCH_CLOSED:
            break
    if before != NULL:
        actor_put(before)
    return outcome


def request_answer(request: pointer[request_t], outcome: uint8_t) -> void:
    check(request.outcome == OUTCOME_NONE, b"actor I4 a request is answered once", request.outcome, outcome)
    at_add64(address(request.system.outcomes[outcome]), 1)
    request.outcome = outcome
    request.answer(request)


def request_cancel(request: pointer[request_t]) -> bint:
    actor: pointer[actor_t] = cast(pointer[actor_t], at_load_ptr(address(request.actor)))
    parked: bint
    there: bint
    if actor == NULL:
        return False  # another thread is about to dispatch it
    spin_lock(address(actor.lock))
    parked = request.place == PLACE_WAITING
    there = mailbox_remove(actor, request)
    spin_unlock(address(actor.lock))
    if not there:
        return False
    if parked:
        check(at_sub32(address(actor.system.parked), 1) > 0, b"actor I4 a parked request that is cancelled was counted", actor.a, 0)
    request_answer(request, OUTCOME_INVALID)
    return True


# --- the state word ---------------------------------------------------------------------------------------------------


def actor_has_work(actor: pointer[actor_t]) -> bint:
    if actor.again != NULL or actor.mailbox.first != NULL or actor.woken.first != NULL:
        return True
    if actor.waiters.first == NULL:
        return False
    return actor.chain or at_load32(address(actor.look_all)) or at_load32(address(actor.look_next))


def actor_schedule(actor: pointer[actor_t]) -> bint:
    # A read-modify-write, not a load: it sees the newest word (I2).
    state: uint32_t = at_add32(address(actor.state), 0)
    while state == 0:
        if at_cas32(address(actor.state), 0, STATE_SCHEDULED):
            actor_incref(actor)
            run_queue_put(actor.system, actor)
            return True
        state = at_load32(address(actor.state))
    return False


@cfunc
@nogil
@exceptval(check=False)
def _woken(actor: pointer[actor_t]) -> void:
    system: pointer[actor_system_t] = actor.system
    at_add32(address(actor.epoch), 1)
    at_add64(address(system.wakes), 1)
    # The read-modify-write orders the look at `waiting` behind the end of the slice that parked (I2).
    if at_add32(address(actor.state), 0) == 0 and at_load32(address(actor.waiting)):
        if at_load64(address(actor.woken_ns)) == 0:
            at_store64(address(actor.woken_ns), cast(uint64_t, system_now(system)))
        actor_schedule(actor)


def actor_wake(actor: pointer[actor_t]) -> void:
    at_store32(address(actor.look_all), 1)
    _woken(actor)


def actor_wake_next(actor: pointer[actor_t]) -> void:
    at_store32(address(actor.look_next), 1)
    _woken(actor)


def actor_suspend(actor: pointer[actor_t]) -> uint64_t:
    slot: uint32_t
    state: uint32_t
    token: uint64_t = 0
    spin_lock(address(actor.lock))
    if not at_load32(address(actor.state)) & STATE_CLOSED:
        for slot in range(SUSPENSIONS_MAX):
            if actor.suspensions & (cast(uint32_t, 1) << slot):
                continue
            actor.suspensions = cast(uint8_t, actor.suspensions | (cast(uint32_t, 1) << slot))
            actor.generation += 1
            if actor.generation == 0:
                actor.generation = 1
            actor.suspension[slot] = actor.generation
            token = (cast(uint64_t, actor.generation) << 3) | slot
            while True:
                state = at_load32(address(actor.state))
                if at_cas32(address(actor.state), state, state + STATE_SUSPEND):
                    break
            break
    spin_unlock(address(actor.lock))
    if token:
        at_add64(address(actor.system.suspended), 1)
    return token


def actor_resume(actor: pointer[actor_t], token: uint64_t) -> bint:
    slot: uint32_t = cast(uint32_t, token & (SUSPENSIONS_MAX - 1))
    state: uint32_t
    work: bint = False
    known: bint
    spin_lock(address(actor.lock))
    known = token != 0 and (actor.suspensions >> slot) & 1 and actor.suspension[slot] == token >> 3
    if known:
        actor.suspensions = cast(uint8_t, actor.suspensions & ~(cast(uint32_t, 1) << slot))
        while True:
            state = at_load32(address(actor.state))
            check(state >= STATE_SUSPEND, b"actor I1 a suspension that ends was counted", state, actor.a)
            if at_cas32(address(actor.state), state, state - STATE_SUSPEND):
                break
        work = actor_has_work(actor)
    spin_unlock(address(actor.lock))
    if known:
        at_add64(address(actor.system.resumed), 1)
    else:
        at_add64(address(actor.system.resumed_stale), 1)
    if work:
        actor_schedule(actor)
    return known


# --- the end ----------------------------------------------------------------------------------------------------------


def actor_close(actor: pointer[actor_t]) -> void:
    request: pointer[request_t]
    following: pointer[request_t]
    state: uint32_t
    parked: uint32_t
    spin_lock(address(actor.lock))
    while True:
        state = at_load32(address(actor.state))
        if state & STATE_CLOSED:
            spin_unlock(address(actor.lock))
            return
        if at_cas32(address(actor.state), state, state | STATE_CLOSED):
            break
    parked = at_load32(address(actor.waiting))
    request = mailbox_clear(actor)
    spin_unlock(address(actor.lock))
    check(
        at_sub32(address(actor.system.parked), parked) >= parked,
        b"actor I4 parked requests of a closed actor were counted",
        parked,
        actor.a,
    )
    while request != NULL:
        following = request.next
        request_answer(request, OUTCOME_CLOSED)
        request = following
    if not state & STATE_SCHEDULED:
        actor_finish_close(actor)


def actor_finish_close(actor: pointer[actor_t]) -> void:
    table_remove(actor)


def actor_retire(actor: pointer[actor_t]) -> bint:
    return table_retire(actor)


# --- for process() ----------------------------------------------------------------------------------------------------


def actor_charge_io(actor: pointer[actor_t], ns: int64_t) -> void:
    if ns > 0:
        actor.io_ns += ns


def actor_should_yield(actor: pointer[actor_t], started_ns: int64_t) -> bint:
    system: pointer[actor_system_t] = actor.system
    if at_load32(address(actor.state)) != STATE_SCHEDULED or at_load32(address(system.stopping)):
        return True
    return system_now(system) - started_ns >= system.quantum_ns


def actor_arm(actor: pointer[actor_t], at_ns: int64_t) -> void:
    timers_arm(address(actor.system.timers), actor, at_ns)
