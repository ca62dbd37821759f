"""One (queue, group): its pulls, its consumer, its leases (see pull_group.pxd).

in: pulls (any thread), notify_work of the queue (any thread), settlements. out: answered pulls, messages back in their queue.

I1  Every pull that was dispatched is answered exactly once, by the actor system's rule; an answer never waits for anybody.
I2  A message is in an answer and in `leases`, or in neither; who takes a lease out of the table (under lease_lock) settles its message.
I3  The consumer is on the queue's lists (`desired`) exactly while a pull is pending: a pull group that nobody pulls from takes no wake-up
    that was meant for other consumers.
I4  A pull is answered EMPTY only when its last look found nothing to wait for. Was there a message that was not in memory, the pull waits
    for it `load_ns` even without a hold (or with a shorter one), and is answered BUSY when that was not enough.
I5  A lease's number is given once: it names a place in `items` and the serial of its use, so an old number never finds a newer lease.
I6  heap[items[place].heap_at] == place for every lease in use, and no lease stands before its parent in time.

No lost wake. A pull parks only after queue_deliver_single said that there is nothing. By then (docs/QUEUE_CORE.md, I2 and I3 there) the
consumer was counted as wanted, the list lock was passed, and it looked again: an entry that becomes available afterwards finds the
consumer on INTERESTED and calls notify_work = actor_wake_next. Between that look and the park the actor's epoch decides: it is read
before process() runs, actor_wake_next moves it, and a park with an old epoch looks again. So what the queue says is never missed; what
remains is that the queue says nothing while the consumer is on NOTIFIED, because "a notified one will do it" (manager I2). There it is
in four cases, and in each somebody looks:
 1. notify_work has just been called: the oldest waiter looks, and when it is answered the next, until one finds nothing, which puts the
    consumer back on INTERESTED (A chain of actor_wake_next). A pull that is looked at anyway and finds nothing does the same.
 2. A pull was answered with its batch full (or no lease left), so the last queue_deliver_single said yes: before the answer, if other
    pulls are pending, actor_wake_next lets the oldest waiter look.
 3. The last pending pull was answered: the consumer goes to NOT_INTERESTED, and the queue wakes another for what is left.
 4. A waiter that was woken is cancelled or its hold ends before it looks: the actor system passes the wake on to the next waiter; was it
    the last one, case 3.
Interest itself (3) is decided under interest_lock from `pending`, after each change of it: whoever comes last sees the last value. A pull
is counted before it is dispatched, and process() settles the interest before it looks, so a look always happens with the consumer listed.
"""

from __future__ import annotations

import logging

from cython import NULL, address, bint, cast, cfunc, declare, exceptval, gil, inline, nogil, pointer, sizeof, void
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import (
    at_add32, at_add64, at_cas_ptr, at_load32, at_load_ptr, at_store32, at_store64, at_sub32, at_swap32, at_swap_ptr, spin_lock,
    spin_unlock,
)  # fmt: skip
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.clock import wall_ms, wall_us
from cython.cimports.flintmq.core.content import content_decref, content_incref
from cython.cimports.flintmq.core.memory_account import MEMORY_UNACKED, memory_add
from cython.cimports.flintmq.pulls.types import (
    LEASE_DELAYED, LEASE_FREE, LEASE_HELD, LEASE_NONE, PLACE_BITS, answers_t, lease_t, lease_table_t, pull_group_t, pull_t, pulled_t,
)  # fmt: skip
from cython.cimports.flintmq.queue.queue_core import (
    consumer_decref, consumer_new, entry_sent, queue_add_consumer, queue_add_waiter, queue_consumer_leaves, queue_decref,
    queue_deliver_single, queue_get_id, queue_incref, queue_is_deleted, queue_next_expiry, queue_ready_count, queue_release,
    queue_remove_consumer, queue_remove_waiter, queue_set_notify_work_desired, queue_settle,
)  # fmt: skip
from cython.cimports.flintmq.queue.types import CONSUMER_ACQUIRES, REASON_ACK, delivery_t, queue_t, slot_t, target_t, waiter_t
from cython.cimports.flintmq.scheduler.actor import (
    ACTORS_PULL, DISPATCH_CLOSED, DISPATCH_OK, HOLD_NONE, OUTCOME_BUSY, OUTCOME_CLOSED, OUTCOME_EMPTY, OUTCOME_INVALID, OUTCOME_MESSAGES,
    PROCESS_AGAIN, PROCESS_DONE, PROCESS_PARK, actor_close, actor_dispatch, actor_get, actor_put, actor_system_t, actor_t, actor_wake,
    actor_wake_next, request_answer, request_t, system_now,
)  # fmt: skip
from cython.cimports.flintmq.streams.stream_queue import stream_of, stream_release_after
from cython.cimports.flintmq.streams.types import READ_IDLE, seat_t
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import calloc, free, realloc
from cython.cimports.posix.unistd import read, write

# outcomes of _take
TAKEN = declare(c_int, 0)
NOTHING = declare(c_int, 1)
FULL = declare(c_int, 2)
LOADING = declare(c_int, 3)
FIRST_ROOM = declare(uint32_t, 8)


# --- life -------------------------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _notify(target: pointer[target_t]) -> void:
    """The queue says that there is work. Under its manager lock."""
    pull_group: pointer[pull_group_t] = cast(pointer[pull_group_t], target.context)
    actor_wake_next(pull_group.actor)


@cfunc
@nogil
@exceptval(check=False)
def _head_changed(waiter: pointer[waiter_t]) -> void:
    """The queue tells its waiters of many things; the one that consumers are not told of is its end."""
    pull_group: pointer[pull_group_t] = cast(pointer[pull_group_t], waiter.context)
    if queue_is_deleted(pull_group.queue):
        actor_wake(pull_group.actor)


def pull_group_new(
    system: pointer[actor_system_t], queue: pointer[queue_t], serial: uint64_t, leases_max: uint32_t
) -> pointer[pull_group_t]:
    pull_group: pointer[pull_group_t] = cast(pointer[pull_group_t], calloc(1, sizeof(pull_group_t)))
    if pull_group == NULL:
        return NULL
    pull_group.target.notify_work = _notify
    pull_group.target.context = pull_group
    pull_group.target.consumers = pull_group.consumers
    pull_group.target.consumer_count = 1
    pull_group.waiter.wake = _head_changed
    pull_group.waiter.context = pull_group
    pull_group.system = system
    pull_group.leases_max = leases_max
    leases_init(address(pull_group.leases))
    # It joins the queue as one that wants nothing: I3.
    pull_group.target.suspended = 1
    pull_group.actor = actor_get(system, ACTORS_PULL, queue_get_id(queue), serial, 0)
    pull_group.consumer = consumer_new(queue, address(pull_group.target), 0, CONSUMER_ACQUIRES, 0)
    if pull_group.actor == NULL or pull_group.consumer == NULL:
        if pull_group.actor != NULL:
            actor_put(pull_group.actor)
        if pull_group.consumer != NULL:
            consumer_decref(pull_group.consumer)
        free(pull_group)
        return NULL
    pull_group.consumers[0] = pull_group.consumer
    pull_group.consumer.context = pull_group
    pull_group.queue = queue
    queue_incref(queue)
    pull_group.used_ns = system_now(system)
    return pull_group


def pull_group_attach(pull_group: pointer[pull_group_t]) -> bint:
    if not queue_add_consumer(pull_group.queue, pull_group.consumer):
        return False
    # It came in as NOT_INTERESTED (suspended); from here on only interest decides.
    at_store32(address(pull_group.target.suspended), 0)
    queue_add_waiter(pull_group.queue, address(pull_group.waiter))
    return True


def pull_group_pause(pull_group: pointer[pull_group_t], paused: bint) -> void:
    spin_lock(address(pull_group.interest_lock))
    at_store32(address(pull_group.target.suspended), 1 if paused else 0)
    queue_set_notify_work_desired(pull_group.queue, pull_group.consumer, not paused and pull_group.desired != 0)
    spin_unlock(address(pull_group.interest_lock))
    if not paused:
        actor_wake(pull_group.actor)


def pull_group_close(pull_group: pointer[pull_group_t]) -> void:
    at_store32(address(pull_group.closed), 1)
    actor_close(pull_group.actor)


def pull_group_is_idle(pull_group: pointer[pull_group_t]) -> bint:
    # `inside` is raised while the pull still counts as pending, and lowered when its answer is out: in this order both are seen.
    return at_load32(address(pull_group.pending)) == 0 and at_load32(address(pull_group.inside)) == 0


def pull_group_free(pull_group: pointer[pull_group_t]) -> void:
    lease: pointer[lease_t]
    queue_remove_waiter(pull_group.queue, address(pull_group.waiter))
    while True:
        spin_lock(address(pull_group.lease_lock))
        lease = leases_first(address(pull_group.leases))
        if lease == NULL:
            spin_unlock(address(pull_group.lease_lock))
            break
        _go_back(pull_group, lease, True)
    queue_remove_consumer(pull_group.queue, pull_group.consumer)
    # On the thread of the HTTP door, without its GIL: each slice gives the queue's locks up.
    while queue_consumer_leaves(pull_group.queue, pull_group.consumer):
        pass
    actor_put(pull_group.actor)
    consumer_decref(pull_group.consumer)
    queue_decref(pull_group.queue)
    leases_free(address(pull_group.leases))
    free(pull_group)


# --- pulls ------------------------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _interest(pull_group: pointer[pull_group_t]) -> void:
    """Brings the consumer's place in the queue's lists in line with `pending`. Whoever changed `pending` calls it afterwards."""
    wanted: uint32_t
    spin_lock(address(pull_group.interest_lock))
    wanted = 1 if at_load32(address(pull_group.pending)) else 0
    if wanted != pull_group.desired:
        pull_group.desired = wanted
        queue_set_notify_work_desired(pull_group.queue, pull_group.consumer, wanted != 0)
    spin_unlock(address(pull_group.interest_lock))


def pull_group_pull(pull_group: pointer[pull_group_t], pull: pointer[pull_t], hold_ns: int64_t) -> c_int:
    now: int64_t = system_now(pull_group.system)
    dispatched: c_int
    if at_load32(address(pull_group.closed)):
        return DISPATCH_CLOSED
    pull.pull_group = pull_group
    pull.asked_ns = now
    pull.request.process = _process
    pull.request.answer = _answer
    pull.request.context = pull
    pull.hold_ns = now + hold_ns if hold_ns > 0 else HOLD_NONE
    pull.request.hold_ns = pull.hold_ns
    pull.request.deadline_ns = now + hold_ns + pull_group.grace_ns
    at_store64(cast(pointer[uint64_t], address(pull_group.used_ns)), now)
    at_add32(address(pull_group.pending), 1)
    dispatched = actor_dispatch(pull_group.actor, address(pull.request))
    if dispatched != DISPATCH_OK:
        at_sub32(address(pull_group.pending), 1)
        _interest(pull_group)
    else:
        at_add64(address(pull_group.pulls), 1)
    return dispatched


@cfunc
@nogil
@exceptval(check=False)
def _answer(request: pointer[request_t]) -> void:
    """The actor system's last word on a pull: worker, timer or cancelling thread."""
    pull: pointer[pull_t] = cast(pointer[pull_t], request)
    pull_group: pointer[pull_group_t] = pull.pull_group
    now: int64_t = system_now(pull_group.system)
    pull.answered_ns = now
    if (
        pull.loading
        and request.outcome == OUTCOME_EMPTY
        and (stream_of(pull_group.queue) != NULL or queue_ready_count(pull_group.queue) != 0)
    ):
        request.outcome = OUTCOME_BUSY  # I4
    at_add32(address(pull_group.inside), 1)
    at_store64(cast(pointer[uint64_t], address(pull_group.used_ns)), now)
    if at_sub32(address(pull_group.pending), 1) == 1:
        _interest(pull_group)
    answers_push(pull.answers, pull)  # the pull may be gone after it
    at_sub32(address(pull_group.inside), 1)  # and the pull group after this


@cfunc
@nogil
@exceptval(check=False)
def _take(pull_group: pointer[pull_group_t], pull: pointer[pull_t]) -> c_int:
    """One message into the pull's batch, leased."""
    delivery: delivery_t
    items: pointer[pulled_t]
    item: pointer[pulled_t]
    room: uint32_t
    lease: uint64_t
    if pull.count == pull.room:
        room = pull.room * 2 if pull.room else FIRST_ROOM
        items = cast(pointer[pulled_t], realloc(pull.items, room * sizeof(pulled_t)))
        if items == NULL:
            return FULL
        pull.items = items
        pull.room = room
    # Only this pull group's actor adds: what is free now is free below.
    if pull_group_leases(pull_group) >= pull_group.leases_max:
        return FULL
    delivery.position = 0
    if not queue_deliver_single(pull_group.queue, pull_group.consumer, address(delivery)):
        return LOADING if delivery.position or _is_reading(pull_group) else NOTHING
    content_incref(delivery.content)
    entry_sent(delivery.slot)
    spin_lock(address(pull_group.lease_lock))
    lease = leases_add(
        address(pull_group.leases),
        delivery.slot,
        delivery.position,
        system_now(pull_group.system) + pull.visibility_ns,
        wall_us() if pull_group.logged else 0,
    )
    spin_unlock(address(pull_group.lease_lock))
    if lease == 0:
        queue_release(pull_group.queue, delivery.slot, delivery.position, pull_group.consumer.id, False)
        content_decref(delivery.content)
        return FULL
    item = address(pull.items[pull.count])
    item.lease = lease
    item.position = delivery.position
    item.content = delivery.content
    item.delivery_count = delivery.delivery_count
    item.redelivered = 1 if delivery.redelivered else 0
    pull.count += 1
    pull.bytes += cast(uint64_t, delivery.content.body_len) + delivery.content.header_len + delivery.content.route_len
    return TAKEN


@cfunc
@nogil
@exceptval(check=False)
def _process(actor: pointer[actor_t], request: pointer[request_t]) -> c_int:
    """One pull's turn, on a worker."""
    pull_group: pointer[pull_group_t] = cast(pointer[pull_t], request).pull_group
    outcome: c_int
    at_add32(address(pull_group.inside), 1)
    outcome = _serve(pull_group, actor, request)
    at_sub32(address(pull_group.inside), 1)
    return outcome


@cfunc
@nogil
@exceptval(check=False)
def _serve(pull_group: pointer[pull_group_t], actor: pointer[actor_t], request: pointer[request_t]) -> c_int:
    pull: pointer[pull_t] = cast(pointer[pull_t], request)
    taken: c_int = TAKEN
    expiry: int64_t
    until: int64_t
    if at_load32(address(pull.gone)):
        request_answer(request, OUTCOME_INVALID)
        return PROCESS_DONE
    if queue_is_deleted(pull_group.queue):
        request_answer(request, OUTCOME_CLOSED)
        return PROCESS_DONE
    # Expiry is housekeeping's, but what is past its time must not be delivered before that comes round.
    expiry = queue_next_expiry(pull_group.queue)
    if expiry != 0 and expiry <= wall_ms() and not _expire(pull_group):
        return PROCESS_AGAIN  # more of them: others have the worker before the next slice
    _interest(pull_group)
    while taken == TAKEN and pull.count < pull.most and (pull.count == 0 or pull.bytes < pull.bytes_max):
        taken = _take(pull_group, pull)
    pull.loading = 1 if taken == LOADING else 0
    if (taken == TAKEN or taken == FULL) and at_load32(address(pull_group.pending)) > 1:
        actor_wake_next(actor)  # case 2 of the module's text
    if pull.count:
        at_add64(address(pull_group.delivered), pull.count)
        request_answer(request, OUTCOME_MESSAGES)
        return PROCESS_DONE
    if taken == FULL:
        request_answer(request, OUTCOME_BUSY)
        return PROCESS_DONE
    request.hold_ns = pull.hold_ns
    if pull.loading:  # I4. The queue tells when it is in memory; should it be so already, this pull is looked at again at once.
        until = system_now(pull_group.system) + pull_group.load_ns
        if request.hold_ns < until:
            request.hold_ns = until
    return PROCESS_PARK


@cfunc
@nogil
@exceptval(check=False)
def _is_reading(pull_group: pointer[pull_group_t]) -> bint:
    """Whether the group's place of a stream is being read from disk, or was and has not been looked at."""
    seat: pointer[seat_t]
    if stream_of(pull_group.queue) == NULL:
        return False
    seat = cast(pointer[seat_t], pull_group.consumer.reader)
    return at_load32(address(seat.group.fresh.reading)) != READ_IDLE or at_load32(address(seat.group.again.reading)) != READ_IDLE


@cfunc
@nogil
@exceptval(check=False)
def _expire(pull_group: pointer[pull_group_t]) -> bint:
    """A slice of what is past its time ends. False: there is more of it."""
    done: bint = True
    with gil:
        try:
            if pull_group.owner != NULL:
                done = cast(object, pull_group.owner).expire_now()
        except Exception:
            logging.getLogger("flintmq.pulls").exception("internal error: expiry failed")
    return done


# --- leases -----------------------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _go_back(pull_group: pointer[pull_group_t], lease: pointer[lease_t], delivered: bint) -> bint:
    """Ends a lease whose message is available again. Called with, and gives up, lease_lock."""
    slot: pointer[slot_t] = lease.slot
    position: uint64_t = lease.position
    leases_remove(address(pull_group.leases), lease)
    spin_unlock(address(pull_group.lease_lock))
    if delivered and stream_of(pull_group.queue) != NULL:
        return stream_release_after(pull_group.queue, slot, position, pull_group.consumer.id, 0)
    return queue_release(pull_group.queue, slot, position, pull_group.consumer.id, delivered)


def pull_group_settle(pull_group: pointer[pull_group_t], lease: uint64_t, reason: c_int) -> bint:
    found: pointer[lease_t]
    taken: lease_t
    spin_lock(address(pull_group.lease_lock))
    found = leases_find(address(pull_group.leases), lease)
    if found == NULL or found.state != LEASE_HELD:
        spin_unlock(address(pull_group.lease_lock))
        return False
    taken = found[0]
    leases_remove(address(pull_group.leases), found)
    spin_unlock(address(pull_group.lease_lock))
    if reason == REASON_ACK:
        at_add64(address(pull_group.acked), 1)
    else:
        at_add64(address(pull_group.nacked), 1)
    return queue_settle(pull_group.queue, taken.slot, taken.position, pull_group.consumer.id, reason, taken.delivered_us)


def pull_group_take(pull_group: pointer[pull_group_t], lease: uint64_t) -> uint64_t:
    found: pointer[lease_t]
    position: uint64_t = 0
    spin_lock(address(pull_group.lease_lock))
    found = leases_find(address(pull_group.leases), lease)
    if found != NULL and found.state == LEASE_HELD:
        position = found.position
        leases_remove(address(pull_group.leases), found)
    spin_unlock(address(pull_group.lease_lock))
    return position


def pull_group_finish(pull_group: pointer[pull_group_t], position: uint64_t, reason: c_int) -> bint:
    at_add64(address(pull_group.nacked), 1)
    return queue_settle(pull_group.queue, NULL, position, pull_group.consumer.id, reason, 0)


def pull_group_return(pull_group: pointer[pull_group_t], position: uint64_t, delivered: bint) -> bint:
    return queue_release(pull_group.queue, NULL, position, pull_group.consumer.id, delivered)


def pull_group_release(pull_group: pointer[pull_group_t], lease: uint64_t, delay_ns: int64_t, delivered: bint) -> bint:
    found: pointer[lease_t]
    slot: pointer[slot_t]
    position: uint64_t
    spin_lock(address(pull_group.lease_lock))
    found = leases_find(address(pull_group.leases), lease)
    if found == NULL or found.state != LEASE_HELD:
        spin_unlock(address(pull_group.lease_lock))
        return False
    if delivered:
        at_add64(address(pull_group.nacked), 1)
    else:
        at_add64(address(pull_group.given_back), 1)
    if delay_ns and delivered and stream_of(pull_group.queue) != NULL:
        # A stream's group keeps what comes back, and when.
        slot = found.slot
        position = found.position
        leases_remove(address(pull_group.leases), found)
        spin_unlock(address(pull_group.lease_lock))
        return stream_release_after(pull_group.queue, slot, position, pull_group.consumer.id, delay_ns // 1000000 if delay_ns > 0 else -1)
    if delay_ns > 0:
        found.state = LEASE_DELAYED
        leases_move(address(pull_group.leases), found, system_now(pull_group.system) + delay_ns)
        spin_unlock(address(pull_group.lease_lock))
        return True
    return _go_back(pull_group, found, delivered)


def pull_group_extend(pull_group: pointer[pull_group_t], lease: uint64_t, visibility_ns: int64_t) -> bint:
    found: pointer[lease_t]
    known: bint = False
    spin_lock(address(pull_group.lease_lock))
    found = leases_find(address(pull_group.leases), lease)
    if found != NULL and found.state == LEASE_HELD:
        leases_move(address(pull_group.leases), found, system_now(pull_group.system) + visibility_ns)
        known = True
    spin_unlock(address(pull_group.lease_lock))
    return known


def pull_group_due(pull_group: pointer[pull_group_t], now_ns: int64_t, most: uint32_t) -> uint32_t:
    lease: pointer[lease_t]
    done: uint32_t = 0
    while done < most:
        spin_lock(address(pull_group.lease_lock))
        lease = leases_first(address(pull_group.leases))
        if lease == NULL or cast(int64_t, lease.until_ns) > now_ns:
            spin_unlock(address(pull_group.lease_lock))
            break
        if lease.state == LEASE_HELD:
            at_add64(address(pull_group.expired), 1)
        _go_back(pull_group, lease, True)
        done += 1
    return done


def pull_group_leases(pull_group: pointer[pull_group_t]) -> uint32_t:
    return at_load32(address(pull_group.leases.count))


def pull_group_next_due(pull_group: pointer[pull_group_t]) -> int64_t:
    lease: pointer[lease_t]
    at_ns: int64_t = 0
    spin_lock(address(pull_group.lease_lock))
    lease = leases_first(address(pull_group.leases))
    if lease != NULL:
        at_ns = cast(int64_t, lease.until_ns)
    spin_unlock(address(pull_group.lease_lock))
    return at_ns


# --- answers ----------------------------------------------------------------------------------------------------------------


def answers_push(answers: pointer[answers_t], pull: pointer[pull_t]) -> void:
    last: pointer[pull_t]
    one: uint64_t = 1
    while True:
        last = cast(pointer[pull_t], at_load_ptr(address(answers.last)))
        pull.next = last
        if at_cas_ptr(address(answers.last), last, pull):
            break
    if not at_swap32(address(answers.told), 1):
        write(answers.descriptor, address(one), 8)


def answers_take(answers: pointer[answers_t]) -> pointer[pull_t]:
    count: uint64_t = 0
    pull: pointer[pull_t]
    before: pointer[pull_t] = NULL
    after: pointer[pull_t]
    # First the descriptor, then the flag, then the stack: whoever pushes after the stack was taken finds the flag down and writes anew.
    read(answers.descriptor, address(count), 8)
    at_swap32(address(answers.told), 0)
    pull = cast(pointer[pull_t], at_swap_ptr(address(answers.last), NULL))
    while pull != NULL:
        after = pull.next
        pull.next = before
        before = pull
        pull = after
    return before


# --- leases by number and by time ---------------------------------------------------------------------------------------------------

FIRST_CAPACITY = declare(uint32_t, 16)
PLACE_MASK = declare(uint64_t, (1 << PLACE_BITS) - 1)


def leases_init(table: pointer[lease_table_t]) -> void:
    table.items = NULL
    table.heap = NULL
    table.capacity = 0
    table.count = 0
    table.free = LEASE_NONE
    table.serial = 0


def leases_free(table: pointer[lease_table_t]) -> void:
    memory_add(MEMORY_UNACKED, -cast(int64_t, table.capacity * (sizeof(lease_t) + sizeof(uint32_t))))
    free(table.items)
    free(table.heap)
    leases_init(table)


@cfunc
@nogil
@exceptval(check=False)
def _grow(table: pointer[lease_table_t]) -> bint:
    capacity: uint32_t = table.capacity * 2 if table.capacity else FIRST_CAPACITY
    place: uint32_t
    items: pointer[lease_t]
    heap: pointer[uint32_t]
    if capacity > cast(uint32_t, 1) << PLACE_BITS:
        return False
    items = cast(pointer[lease_t], realloc(table.items, capacity * sizeof(lease_t)))
    if items == NULL:
        return False
    table.items = items
    heap = cast(pointer[uint32_t], realloc(table.heap, capacity * sizeof(uint32_t)))
    if heap == NULL:
        return False
    table.heap = heap
    memory_add(MEMORY_UNACKED, (capacity - table.capacity) * (sizeof(lease_t) + sizeof(uint32_t)))
    place = capacity
    while place > table.capacity:
        place -= 1
        items[place].number = 0
        items[place].state = LEASE_FREE
        items[place].heap_at = table.free
        table.free = place
    table.capacity = capacity
    return True


@cfunc
@inline
@nogil
@exceptval(check=False)
def _put(table: pointer[lease_table_t], at: uint32_t, place: uint32_t) -> void:
    table.heap[at] = place
    table.items[place].heap_at = at


@cfunc
@nogil
@exceptval(check=False)
def _sift(table: pointer[lease_table_t], at: uint32_t) -> void:
    """Brings the lease at heap index `at` to its place, up or down."""
    place: uint32_t = table.heap[at]
    time: uint64_t = table.items[place].until_ns
    up: uint32_t
    child: uint32_t
    while at > 0:
        up = (at - 1) // 2
        if table.items[table.heap[up]].until_ns <= time:
            break
        _put(table, at, table.heap[up])
        at = up
    while True:
        child = 2 * at + 1
        if child >= table.count:
            break
        if child + 1 < table.count and table.items[table.heap[child + 1]].until_ns < table.items[table.heap[child]].until_ns:
            child += 1
        if table.items[table.heap[child]].until_ns >= time:
            break
        _put(table, at, table.heap[child])
        at = child
    _put(table, at, place)


def leases_add(
    table: pointer[lease_table_t], slot: pointer[slot_t], position: uint64_t, until_ns: uint64_t, delivered_us: uint64_t
) -> uint64_t:
    lease: pointer[lease_t]
    place: uint32_t
    if table.free == LEASE_NONE and not _grow(table):
        return 0
    place = table.free
    lease = address(table.items[place])
    check(place < table.capacity and lease.number == 0, b"pull_group I5 a place that is given is free", lease.number, place)
    table.free = lease.heap_at
    table.serial += 1
    lease.number = (table.serial << PLACE_BITS) | place
    lease.slot = slot
    lease.position = position
    lease.until_ns = until_ns
    lease.delivered_us = delivered_us
    lease.state = LEASE_HELD
    _put(table, table.count, place)
    table.count += 1
    _sift(table, lease.heap_at)
    return lease.number


def leases_find(table: pointer[lease_table_t], number: uint64_t) -> pointer[lease_t]:
    place: uint64_t = number & PLACE_MASK
    if number == 0 or place >= table.capacity or table.items[place].number != number:
        return NULL
    return address(table.items[place])


def leases_move(table: pointer[lease_table_t], lease: pointer[lease_t], until_ns: uint64_t) -> void:
    check(
        lease.heap_at < table.count and table.heap[lease.heap_at] == lease.number & PLACE_MASK,
        b"pull_group I6 a lease that is moved stands in the heap",
        lease.number,
        lease.heap_at,
    )
    lease.until_ns = until_ns
    _sift(table, lease.heap_at)


def leases_remove(table: pointer[lease_table_t], lease: pointer[lease_t]) -> void:
    at: uint32_t = lease.heap_at
    last: uint32_t = table.heap[table.count - 1]
    place: uint32_t = cast(uint32_t, lease.number & PLACE_MASK)
    check(at < table.count and table.heap[at] == place, b"pull_group I6 a lease that ends stands in the heap", lease.number, at)
    table.count -= 1
    if at < table.count:
        _put(table, at, last)
        _sift(table, at)
    lease.number = 0
    lease.state = LEASE_FREE
    lease.slot = NULL
    lease.heap_at = table.free
    table.free = place


def leases_first(table: pointer[lease_table_t]) -> pointer[lease_t]:
    if table.count == 0:
        return NULL
    return address(table.items[table.heap[0]])
