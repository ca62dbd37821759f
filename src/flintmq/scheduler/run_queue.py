"""The run queue: a heap of actors ordered by policy, the virtual time, and the stack of sleeping workers (see run_queue.pxd).

in: scheduled actors, costs of slices. out: the next actor of a worker.

Start-time fair queueing: each actor has a virtual time `vrun` that grows by cost * 100 / weight, and the smallest runs next. `vmin` is the
smallest vrun of those that run or queue; who becomes runnable starts at vmin less one quantum at best, and a new one is next but charged
a slice in advance: neither a newcomer nor a long sleeper has a claim on the past. Who has more to do after its slice goes back in one
step with its charge: it never counts as having slept.

I1  An actor is in the heap at most once: only who set its SCHEDULED bit puts it here.
I2  The key of an entry never changes while it is in the heap. Ties go by ticket: first come, first served.
I3  vmin never goes back.
I4  A worker sleeps only when it saw the heap empty under the lock, and each put wakes one unless one is on its way: no put is slept over.
    A worker that takes one of several wakes the next.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cfunc, declare, exceptval, inline, nogil, pointer, sizeof, void
from cython.cimports.flintmq.core.atomics import at_load32, at_load64, at_store32, at_store64, spin_lock, spin_unlock
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.futex import futex_wait, futex_wake
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
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import realloc

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
    check(queue.count < queue.room, b"run_queue I1 there is a place for each actor", queue.count, queue.room)
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
    check(at_load32(address(actor.state)) & STATE_SCHEDULED != 0, b"run_queue I1 who runs was scheduled", actor.state, actor.a)
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
    check(worker.running == actor, b"run_queue I1 who is charged was running", actor.state, actor.a)
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
    check(worker.running == NULL, b"run_queue I4 who sleeps has no actor", worker.slices, queue.count)
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
