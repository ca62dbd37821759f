"""The lines of the scheduler: actors in the run queue, requests in the lines of their actor (see lines.pxd).

in: scheduled actors, costs of slices; accepted requests. out: the next actor of a worker, its next request; requests whose time is over.

The run queue is a heap of actors ordered by policy, the virtual time, and the stack of sleeping workers.

Start-time fair queueing: each actor has a virtual time `vrun` that grows by cost * 100 / weight, and the smallest runs next. `vmin` is the
smallest vrun of the actors that run or queue; an actor that becomes runnable starts at vmin less one quantum at best, and a new actor is
next but charged a slice in advance: neither a newcomer nor a long sleeper has a claim on the past. An actor with more work after its slice
goes back in one step with its charge: it never counts as having slept.

I1  An actor is in the heap at most once: only the thread that set its SCHEDULED bit puts it here.
I2  The key of an entry never changes while it is in the heap. Ties go by ticket: first come, first served.
I3  vmin never goes back.
I4  A worker sleeps only when it saw the heap empty under the lock, and each put wakes one unless one is on its way: no put is slept over.
    A worker that takes one of several wakes the next.

The requests of one actor:

I5  A request is in exactly one of mailbox, waiters, woken, `again`, or in none (RUNNING); `place` says which.
I6  Everything in one of them that has a deadline (or, parked, an end of hold) is in the heap of deadlines, and nothing else.
I7  waiters and woken are each in the order of arrival. A wake of all puts the waiters before those still woken, which arrived later:
    the oldest is always served first.
I8  The mailbox never holds more than actor_system_t.mailbox_max requests: an unfinished one waits in `again`, parked ones elsewhere.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cfunc, declare, exceptval, inline, nogil, pointer, sizeof, void
from cython.cimports.flintmq.core.atomics import at_load32, at_load64, at_store32, at_store64, at_swap32, spin_lock, spin_unlock
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.futex import futex_wait, futex_wake
from cython.cimports.flintmq.scheduler.types import (
    PLACE_AGAIN, PLACE_MAILBOX, PLACE_NONE, PLACE_RUNNING, PLACE_WAITING, POLICY_LAST_RUN, POLICY_TOTAL, POLICY_VRUNTIME, STATE_SCHEDULED,
    WEIGHT_DEFAULT, actor_system_t, actor_t, list_t, request_t, run_entry_t, run_queue_t, worker_t,
)  # fmt: skip
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import free, realloc

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
    check(queue.count < queue.room, b"lines I1 there is a place for each actor", queue.count, queue.room)
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
    check(at_load32(address(actor.state)) & STATE_SCHEDULED != 0, b"lines I1 who runs was scheduled", actor.state, actor.a)
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
    check(worker.running == actor, b"lines I1 who is charged was running", actor.state, actor.a)
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
    check(worker.running == NULL, b"lines I4 who sleeps has no actor", worker.slices, queue.count)
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


# --- the requests of one actor. Every function wants the actor's lock held --------------------------------------------------------

# places of the heap that an actor keeps while it has nothing to do
HEAP_KEPT = declare(uint32_t, 16)


# --- lists ------------------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _append(line: pointer[list_t], request: pointer[request_t]) -> void:
    request.next = NULL
    request.prev = line.last
    if line.last != NULL:
        line.last.next = request
    else:
        line.first = request
    line.last = request
    line.count += 1


@cfunc
@nogil
@exceptval(check=False)
def _unlink(line: pointer[list_t], request: pointer[request_t]) -> void:
    if request.prev != NULL:
        request.prev.next = request.next
    else:
        line.first = request.next
    if request.next != NULL:
        request.next.prev = request.prev
    else:
        line.last = request.prev
    request.next = NULL
    request.prev = NULL
    line.count -= 1


@cfunc
@nogil
@exceptval(check=False)
def _insert_by_arrival(line: pointer[list_t], request: pointer[request_t]) -> void:
    """Nearly always the place is one of the two ends; only a mix of new and re-parked requests walks."""
    after: pointer[request_t] = line.last
    if line.first != NULL and request.arrival < line.first.arrival:
        after = NULL
    while after != NULL and after.arrival > request.arrival:
        after = after.prev
    request.prev = after
    if after != NULL:
        request.next = after.next
        after.next = request
    else:
        request.next = line.first
        line.first = request
    if request.next != NULL:
        request.next.prev = request
    else:
        line.last = request
    line.count += 1


@cfunc
@nogil
@exceptval(check=False)
def _unlink_parked(actor: pointer[actor_t], request: pointer[request_t]) -> void:
    """Only the ends of the two lists of parked requests tell them apart: inside, unlinking needs no list."""
    if actor.woken.first == request or actor.woken.last == request:
        _unlink(address(actor.woken), request)
    else:
        _unlink(address(actor.waiters), request)
    check(actor.waiting > 0, b"lines I5 a parked request that leaves was counted", actor.waiting, request.arrival)
    at_store32(address(actor.waiting), actor.waiting - 1)


@cfunc
@nogil
@exceptval(check=False)
def _wake_waiters(actor: pointer[actor_t]) -> void:
    """Puts all waiters before those still woken."""
    if actor.waiters.first == NULL:
        return
    if actor.woken.first != NULL:
        actor.waiters.last.next = actor.woken.first
        actor.woken.first.prev = actor.waiters.last
    else:
        actor.woken.last = actor.waiters.last
    actor.woken.first = actor.waiters.first
    actor.waiters.first = NULL
    actor.waiters.last = NULL


# --- heap of deadlines ------------------------------------------------------------------------------------------------


@cfunc
@inline
@nogil
@exceptval(check=False)
def _due(request: pointer[request_t]) -> int64_t:
    """When the request must be answered wherever it is; 0: never."""
    if request.parked and request.hold_ns > 0 and (request.deadline_ns == 0 or request.hold_ns < request.deadline_ns):
        return request.hold_ns
    return request.deadline_ns


@cfunc
@inline
@nogil
@exceptval(check=False)
def _earlier(one: pointer[request_t], other: pointer[request_t]) -> bint:
    due: int64_t = _due(one)
    other_due: int64_t = _due(other)
    return due < other_due or (due == other_due and one.arrival < other.arrival)


@cfunc
@nogil
@exceptval(check=False)
def _sift_up(actor: pointer[actor_t], place: uint32_t, request: pointer[request_t]) -> void:
    """Places count from 1; entry n is heap[n - 1]."""
    parent: pointer[request_t]
    while place > 1:
        parent = actor.heap[place // 2 - 1]
        if not _earlier(request, parent):
            break
        actor.heap[place - 1] = parent
        parent.heap_place = place
        place //= 2
    actor.heap[place - 1] = request
    request.heap_place = place


@cfunc
@nogil
@exceptval(check=False)
def _sift_down(actor: pointer[actor_t], place: uint32_t, request: pointer[request_t]) -> void:
    child: uint32_t
    while place * 2 <= actor.heap_count:
        child = place * 2
        if child < actor.heap_count and _earlier(actor.heap[child], actor.heap[child - 1]):
            child += 1
        if not _earlier(actor.heap[child - 1], request):
            break
        actor.heap[place - 1] = actor.heap[child - 1]
        actor.heap[place - 1].heap_place = place
        place = child
    actor.heap[place - 1] = request
    request.heap_place = place


@cfunc
@nogil
@exceptval(check=False)
def _heap_add(actor: pointer[actor_t], request: pointer[request_t]) -> bint:
    grown: pointer[pointer[request_t]]
    room: uint32_t
    if _due(request) == 0:
        return True
    check(request.heap_place == 0, b"lines I6 a request stands in the heap once", request.heap_place, request.arrival)
    if actor.heap_count == actor.heap_room:
        room = actor.heap_room * 2 if actor.heap_room else 4
        grown = cast(pointer[pointer[request_t]], realloc(actor.heap, room * sizeof(pointer[request_t])))
        if grown == NULL:
            return False
        actor.heap = grown
        actor.heap_room = room
    actor.heap_count += 1
    _sift_up(actor, actor.heap_count, request)
    return True


@cfunc
@nogil
@exceptval(check=False)
def _heap_remove(actor: pointer[actor_t], request: pointer[request_t]) -> void:
    place: uint32_t = request.heap_place
    last: pointer[request_t]
    if place == 0:
        return
    check(
        place <= actor.heap_count and actor.heap[place - 1] == request,
        b"lines I6 a request knows its place in the heap",
        place,
        actor.heap_count,
    )
    request.heap_place = 0
    last = actor.heap[actor.heap_count - 1]
    actor.heap_count -= 1
    if last != request:
        if place > 1 and _earlier(last, actor.heap[place // 2 - 1]):
            _sift_up(actor, place, last)
        else:
            _sift_down(actor, place, last)
    elif actor.heap_count == 0 and actor.heap_room > HEAP_KEPT:
        mailbox_free(actor)


# --- requests ---------------------------------------------------------------------------------------------------------


def mailbox_put(actor: pointer[actor_t], request: pointer[request_t]) -> bint:
    if actor.mailbox.count >= actor.system.mailbox_max:
        return False
    request.parked = False
    request.heap_place = 0
    if not _heap_add(actor, request):
        return False
    actor.arrivals += 1
    request.arrival = actor.arrivals
    request.place = PLACE_MAILBOX
    _append(address(actor.mailbox), request)
    check(actor.mailbox.count <= actor.system.mailbox_max, b"lines I8 a mailbox keeps its limit", actor.mailbox.count, actor.a)
    return True


def mailbox_take(actor: pointer[actor_t]) -> pointer[request_t]:
    request: pointer[request_t]
    if actor.again != NULL:
        request = actor.again
        check(request.place == PLACE_AGAIN, b"lines I5 an unfinished request is in its place", request.place, request.arrival)
        actor.again = NULL
        _heap_remove(actor, request)
        request.place = PLACE_RUNNING
        return request
    if at_load32(address(actor.look_all)) and at_swap32(address(actor.look_all), 0):
        _wake_waiters(actor)
    if at_load32(address(actor.look_next)) and at_swap32(address(actor.look_next), 0):
        actor.chain = True
    if actor.waiters.first == NULL:
        actor.chain = False
    if actor.woken.first != NULL:
        request = actor.woken.first
    elif actor.chain:
        request = actor.waiters.first
    else:
        request = actor.mailbox.first
        if request == NULL:
            return NULL
    mailbox_remove(actor, request)
    request.place = PLACE_RUNNING
    return request


def mailbox_put_back(actor: pointer[actor_t], request: pointer[request_t]) -> bint:
    request.parked = False
    if not _heap_add(actor, request):
        return False
    check(actor.again == NULL, b"lines I5 an actor has one unfinished request", request.place, request.arrival)
    check(request.place == PLACE_RUNNING, b"lines I5 a request that is put back was running", request.place, request.arrival)
    request.place = PLACE_AGAIN
    actor.again = request
    return True


def mailbox_park(actor: pointer[actor_t], request: pointer[request_t]) -> bint:
    request.parked = True
    if not _heap_add(actor, request):
        request.parked = False
        return False
    check(request.place == PLACE_RUNNING, b"lines I5 a request that is parked was running", request.place, request.arrival)
    request.place = PLACE_WAITING
    actor.chain = False
    _insert_by_arrival(address(actor.waiters), request)
    at_store32(address(actor.waiting), actor.waiting + 1)
    return True


def mailbox_remove(actor: pointer[actor_t], request: pointer[request_t]) -> bint:
    if request.place == PLACE_MAILBOX:
        check(actor.mailbox.count > 0, b"lines I8 a request that leaves the mailbox was counted", actor.mailbox.count, request.arrival)
        _unlink(address(actor.mailbox), request)
    elif request.place == PLACE_WAITING:
        _unlink_parked(actor, request)
    elif request.place == PLACE_AGAIN:
        actor.again = NULL
    else:
        return False
    _heap_remove(actor, request)
    request.place = PLACE_NONE
    return True


def mailbox_expired(actor: pointer[actor_t], now: int64_t) -> pointer[request_t]:
    request: pointer[request_t]
    if actor.heap_count == 0:
        return NULL
    request = actor.heap[0]
    if _due(request) > now:
        return NULL
    check(mailbox_remove(actor, request), b"lines I6 what is in the heap is in a list", request.place, request.arrival)
    return request


def mailbox_due(actor: pointer[actor_t]) -> int64_t:
    return _due(actor.heap[0]) if actor.heap_count else 0


def mailbox_clear(actor: pointer[actor_t]) -> pointer[request_t]:
    chain: pointer[request_t] = NULL
    request: pointer[request_t]
    # From the back, so that the chain is in the order of service.
    while True:
        if actor.mailbox.last != NULL:
            request = actor.mailbox.last
        elif actor.waiters.last != NULL:
            request = actor.waiters.last
        elif actor.woken.last != NULL:
            request = actor.woken.last
        elif actor.again != NULL:
            request = actor.again
        else:
            return chain
        mailbox_remove(actor, request)
        request.next = chain
        chain = request


def mailbox_free(actor: pointer[actor_t]) -> void:
    free(actor.heap)
    actor.heap = NULL
    actor.heap_room = 0
    actor.heap_count = 0
