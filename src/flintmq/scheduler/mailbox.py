"""The requests of one actor (see mailbox.pxd).

in: accepted requests. out: the next one to look at; those whose time is over.

I1  A request is in exactly one of mailbox, waiters, woken, `again`, or in none (RUNNING); `place` says which.
I2  Everything in one of them that has a deadline (or, parked, an end of hold) is in the heap, and nothing else.
I3  waiters and woken are each in the order of arrival. A wake of all puts the waiters before those still woken, which arrived later:
    the oldest is always served first.
I4  The mailbox never holds more than actor_system_t.mailbox_max requests: an unfinished one waits in `again`, parked ones elsewhere.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cfunc, declare, exceptval, inline, nogil, pointer, sizeof, void
from cython.cimports.flintmq.core.atomics import at_load32, at_store32, at_swap32
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.scheduler.types import (
    PLACE_AGAIN,
    PLACE_MAILBOX,
    PLACE_NONE,
    PLACE_RUNNING,
    PLACE_WAITING,
    actor_t,
    list_t,
    request_t,
)
from cython.cimports.libc.stdint import int64_t, uint32_t
from cython.cimports.libc.stdlib import free, realloc

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
    check(actor.waiting > 0, b"mailbox I1 a parked request that leaves was counted", actor.waiting, request.arrival)
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
    check(request.heap_place == 0, b"mailbox I2 a request stands in the heap once", request.heap_place, request.arrival)
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
        b"mailbox I2 a request knows its place in the heap",
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
    check(actor.mailbox.count <= actor.system.mailbox_max, b"mailbox I4 a mailbox keeps its limit", actor.mailbox.count, actor.a)
    return True


def mailbox_take(actor: pointer[actor_t]) -> pointer[request_t]:
    request: pointer[request_t]
    if actor.again != NULL:
        request = actor.again
        check(request.place == PLACE_AGAIN, b"mailbox I1 an unfinished request is in its place", request.place, request.arrival)
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
    check(actor.again == NULL, b"mailbox I1 an actor has one unfinished request", request.place, request.arrival)
    check(request.place == PLACE_RUNNING, b"mailbox I1 a request that is put back was running", request.place, request.arrival)
    request.place = PLACE_AGAIN
    actor.again = request
    return True


def mailbox_park(actor: pointer[actor_t], request: pointer[request_t]) -> bint:
    request.parked = True
    if not _heap_add(actor, request):
        request.parked = False
        return False
    check(request.place == PLACE_RUNNING, b"mailbox I1 a request that is parked was running", request.place, request.arrival)
    request.place = PLACE_WAITING
    actor.chain = False
    _insert_by_arrival(address(actor.waiters), request)
    at_store32(address(actor.waiting), actor.waiting + 1)
    return True


def mailbox_remove(actor: pointer[actor_t], request: pointer[request_t]) -> bint:
    if request.place == PLACE_MAILBOX:
        check(actor.mailbox.count > 0, b"mailbox I4 a request that leaves the mailbox was counted", actor.mailbox.count, request.arrival)
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
    check(mailbox_remove(actor, request), b"mailbox I2 what is in the heap is in a list", request.place, request.arrival)
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
