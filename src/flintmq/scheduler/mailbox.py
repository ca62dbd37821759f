"""The requests of one actor (see mailbox.pxd).

in: accepted requests. out: the next one to look at; those whose time is over.

I1  A request is in exactly one of mailbox, waiters, woken, `again`, or in none (RUNNING); `place` says which.
I2  Everything in one of them that has a deadline (or, parked, an end of hold) is in the heap, and nothing else.
I3  waiters and woken are each in the order of arrival. A wake of all puts the waiters before those still woken, which arrived later:
    the oldest is always served first.
I4  The mailbox never holds more than actor_system_t.mailbox_max requests: an unfinished one waits in `again`, parked ones elsewhere.
"""

from __future__ import annotations

import cython
from cython.cimports.flintmq.core.atomics import at_load32, at_store32, at_swap32
from cython.cimports.flintmq.scheduler.actor import (
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
HEAP_KEPT = cython.declare(uint32_t, 16)


# --- lists ------------------------------------------------------------------------------------------------------------


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _append(line: cython.pointer(list_t), request: cython.pointer(request_t)) -> cython.void:
    request.next = cython.NULL
    request.prev = line.last
    if line.last != cython.NULL:
        line.last.next = request
    else:
        line.first = request
    line.last = request
    line.count += 1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _unlink(line: cython.pointer(list_t), request: cython.pointer(request_t)) -> cython.void:
    if request.prev != cython.NULL:
        request.prev.next = request.next
    else:
        line.first = request.next
    if request.next != cython.NULL:
        request.next.prev = request.prev
    else:
        line.last = request.prev
    request.next = cython.NULL
    request.prev = cython.NULL
    line.count -= 1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _insert_by_arrival(line: cython.pointer(list_t), request: cython.pointer(request_t)) -> cython.void:
    """Nearly always the place is one of the two ends; only a mix of new and re-parked requests walks."""
    after: cython.pointer(request_t) = line.last
    if line.first != cython.NULL and request.arrival < line.first.arrival:
        after = cython.NULL
    while after != cython.NULL and after.arrival > request.arrival:
        after = after.prev
    request.prev = after
    if after != cython.NULL:
        request.next = after.next
        after.next = request
    else:
        request.next = line.first
        line.first = request
    if request.next != cython.NULL:
        request.next.prev = request
    else:
        line.last = request
    line.count += 1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _unlink_parked(actor: cython.pointer(actor_t), request: cython.pointer(request_t)) -> cython.void:
    """Only the ends of the two lists of parked requests tell them apart: inside, unlinking needs no list."""
    if actor.woken.first == request or actor.woken.last == request:
        _unlink(cython.address(actor.woken), request)
    else:
        _unlink(cython.address(actor.waiters), request)
    at_store32(cython.address(actor.waiting), actor.waiting - 1)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _wake_waiters(actor: cython.pointer(actor_t)) -> cython.void:
    """Puts all waiters before those still woken."""
    if actor.waiters.first == cython.NULL:
        return
    if actor.woken.first != cython.NULL:
        actor.waiters.last.next = actor.woken.first
        actor.woken.first.prev = actor.waiters.last
    else:
        actor.woken.last = actor.waiters.last
    actor.woken.first = actor.waiters.first
    actor.waiters.first = cython.NULL
    actor.waiters.last = cython.NULL


# --- heap of deadlines ------------------------------------------------------------------------------------------------


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _due(request: cython.pointer(request_t)) -> int64_t:
    """When the request must be answered wherever it is; 0: never."""
    if request.parked and request.hold_ns > 0 and (request.deadline_ns == 0 or request.hold_ns < request.deadline_ns):
        return request.hold_ns
    return request.deadline_ns


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _earlier(one: cython.pointer(request_t), other: cython.pointer(request_t)) -> cython.bint:
    due: int64_t = _due(one)
    other_due: int64_t = _due(other)
    return due < other_due or (due == other_due and one.arrival < other.arrival)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _sift_up(actor: cython.pointer(actor_t), place: uint32_t, request: cython.pointer(request_t)) -> cython.void:
    """Places count from 1; entry n is heap[n - 1]."""
    parent: cython.pointer(request_t)
    while place > 1:
        parent = actor.heap[place // 2 - 1]
        if not _earlier(request, parent):
            break
        actor.heap[place - 1] = parent
        parent.heap_place = place
        place //= 2
    actor.heap[place - 1] = request
    request.heap_place = place


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _sift_down(actor: cython.pointer(actor_t), place: uint32_t, request: cython.pointer(request_t)) -> cython.void:
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


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _heap_add(actor: cython.pointer(actor_t), request: cython.pointer(request_t)) -> cython.bint:
    grown: cython.pointer(cython.pointer(request_t))
    room: uint32_t
    if _due(request) == 0:
        return True
    if actor.heap_count == actor.heap_room:
        room = actor.heap_room * 2 if actor.heap_room else 4
        grown = cython.cast(cython.pointer(cython.pointer(request_t)), realloc(actor.heap, room * cython.sizeof(cython.pointer(request_t))))
        if grown == cython.NULL:
            return False
        actor.heap = grown
        actor.heap_room = room
    actor.heap_count += 1
    _sift_up(actor, actor.heap_count, request)
    return True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _heap_remove(actor: cython.pointer(actor_t), request: cython.pointer(request_t)) -> cython.void:
    place: uint32_t = request.heap_place
    last: cython.pointer(request_t)
    if place == 0:
        return
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


def mailbox_put(actor, request):
    if actor.mailbox.count >= actor.system.mailbox_max:
        return False
    request.parked = False
    request.heap_place = 0
    if not _heap_add(actor, request):
        return False
    actor.arrivals += 1
    request.arrival = actor.arrivals
    request.place = PLACE_MAILBOX
    _append(cython.address(actor.mailbox), request)
    return True


def mailbox_take(actor):
    request: cython.pointer(request_t)
    if actor.again != cython.NULL:
        request = actor.again
        actor.again = cython.NULL
        _heap_remove(actor, request)
        request.place = PLACE_RUNNING
        return request
    if at_load32(cython.address(actor.look_all)) and at_swap32(cython.address(actor.look_all), 0):
        _wake_waiters(actor)
    if at_load32(cython.address(actor.look_next)) and at_swap32(cython.address(actor.look_next), 0):
        actor.chain = True
    if actor.waiters.first == cython.NULL:
        actor.chain = False
    if actor.woken.first != cython.NULL:
        request = actor.woken.first
    elif actor.chain:
        request = actor.waiters.first
    else:
        request = actor.mailbox.first
        if request == cython.NULL:
            return cython.NULL
    mailbox_remove(actor, request)
    request.place = PLACE_RUNNING
    return request


def mailbox_put_back(actor, request):
    request.parked = False
    if not _heap_add(actor, request):
        return False
    request.place = PLACE_AGAIN
    actor.again = request
    return True


def mailbox_park(actor, request):
    request.parked = True
    if not _heap_add(actor, request):
        request.parked = False
        return False
    request.place = PLACE_WAITING
    actor.chain = False
    _insert_by_arrival(cython.address(actor.waiters), request)
    at_store32(cython.address(actor.waiting), actor.waiting + 1)
    return True


def mailbox_remove(actor, request):
    if request.place == PLACE_MAILBOX:
        _unlink(cython.address(actor.mailbox), request)
    elif request.place == PLACE_WAITING:
        _unlink_parked(actor, request)
    elif request.place == PLACE_AGAIN:
        actor.again = cython.NULL
    else:
        return False
    _heap_remove(actor, request)
    request.place = PLACE_NONE
    return True


def mailbox_expired(actor, now):
    request: cython.pointer(request_t)
    if actor.heap_count == 0:
        return cython.NULL
    request = actor.heap[0]
    if _due(request) > now:
        return cython.NULL
    mailbox_remove(actor, request)
    return request


def mailbox_due(actor):
    return _due(actor.heap[0]) if actor.heap_count else 0


def mailbox_clear(actor):
    chain: cython.pointer(request_t) = cython.NULL
    request: cython.pointer(request_t)
    # From the back, so that the chain is in the order of service.
    while True:
        if actor.mailbox.last != cython.NULL:
            request = actor.mailbox.last
        elif actor.waiters.last != cython.NULL:
            request = actor.waiters.last
        elif actor.woken.last != cython.NULL:
            request = actor.woken.last
        elif actor.again != cython.NULL:
            request = actor.again
        else:
            return chain
        mailbox_remove(actor, request)
        request.next = chain
        chain = request


def mailbox_free(actor):
    free(actor.heap)
    actor.heap = cython.NULL
    actor.heap_room = 0
    actor.heap_count = 0
