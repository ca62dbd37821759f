"""A log that writes nothing: the twin of the store's log for tests of what waits for durability, content or a transaction.

While held, LSNs are given out but none becomes durable; `release` makes all of them durable at once and wakes who waits. With
`hot_bytes` it keeps contents, so queues may let them go cold; loads wait until `answer_loads`. `transactions` tells what each local
transaction was asked: ("enqueue", queue id, position) and ("dequeue", queue id, position, owner, reason, delivered_us).
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cclass, cfunc, declare, exceptval, longlong, nogil, p_void, pointer, sizeof, void
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import at_add64, at_cas64, at_load32, at_load64, at_store32, at_swap32, spin_lock, spin_unlock
from cython.cimports.flintmq.core.content import content_decref, content_incref, content_t
from cython.cimports.flintmq.queue.enrolment import Enrolment
from cython.cimports.flintmq.queue.log_port import log_port_wake
from cython.cimports.flintmq.queue.queue_core import (
    queue_content_loaded, queue_decref, queue_get_id, queue_incref, queue_next_cold, queue_resident_bytes,
)  # fmt: skip
from cython.cimports.flintmq.queue.types import MESSAGE_SPILLED_BIT, REASON_PURGE, queue_t, slot_t, swept_t
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import free, realloc
from cython.cimports.libc.string import memmove, memset

SPILLED = declare(uint64_t, cast(uint64_t, 1) << MESSAGE_SPILLED_BIT)


@cfunc
@nogil
@exceptval(check=False)
def _append(log: pointer[memory_log_t]) -> uint64_t:
    lsn: uint64_t = at_add64(address(log.last_lsn), 1) + 1
    if not at_load32(address(log.held)):
        _raise_durable(log, lsn)
    return lsn


@cfunc
@nogil
@exceptval(check=False)
def _raise_durable(log: pointer[memory_log_t], lsn: uint64_t) -> void:
    """Durability never goes back, whoever is overtaken here."""
    seen: uint64_t = at_load64(address(log.durable))
    while seen < lsn and not at_cas64(address(log.durable), seen, lsn):
        seen = at_load64(address(log.durable))


@cfunc
@nogil
@exceptval(check=False)
def _keep(kept: pointer[kept_t], content: pointer[content_t]) -> uint64_t:
    """Keeps a reference; returns its id, counted from 1; 0 when out of memory. Under the log's lock."""
    capacity: uint64_t
    grown: pointer[pointer[content_t]]
    if kept.count == kept.capacity:
        capacity = kept.capacity * 2 if kept.capacity else 256
        grown = cast(pointer[pointer[content_t]], realloc(kept.contents, capacity * sizeof(p_void)))
        if grown == NULL:
            return 0
        kept.contents = grown
        kept.capacity = capacity
    content_incref(content)
    kept.contents[kept.count] = content
    kept.count += 1
    return kept.count


def memory_log_find(log: pointer[memory_log_t], message_id: uint64_t) -> pointer[content_t]:
    kept: pointer[kept_t] = address(log.spilled) if message_id & SPILLED else address(log.logged)
    number: uint64_t = message_id & ~SPILLED
    content: pointer[content_t] = NULL
    spin_lock(address(log.lock))
    if number and number <= kept.count:
        content = kept.contents[number - 1]
    if content != NULL:
        content_incref(content)
    spin_unlock(address(log.lock))
    return content


def memory_log_write(log: pointer[memory_log_t], slot: pointer[slot_t]) -> void:
    content: pointer[content_t] = slot.content
    spin_lock(address(log.lock))
    if content.message_id == 0:
        if log.keeps:
            log.message_ids = _keep(address(log.logged), content)
        else:
            log.message_ids += 1
        content.message_id = log.message_ids
    slot.message_id = content.message_id
    spin_unlock(address(log.lock))


@cfunc
@nogil
@exceptval(check=False)
def _enqueue(context: p_void, queue: pointer[queue_t], position: uint64_t, slot: pointer[slot_t], expires_at_ms: int64_t) -> uint64_t:
    log: pointer[memory_log_t] = cast(pointer[memory_log_t], context)
    memory_log_write(log, slot)
    if at_load32(address(log.brief)):
        at_store32(address(log.seen_once), at_swap32(address(log.brief), 0))
    lsn: uint64_t = _append(log)
    at_add64(address(log.enqueues), 1)  # last: a test that waited for it finds everything done
    return lsn


@cfunc
@nogil
@exceptval(check=False)
def _dequeue(
    context: p_void,
    queue: pointer[queue_t],
    position: uint64_t,
    slot: pointer[slot_t],
    owner: uint32_t,
    reason: c_int,
    delivered_us: uint64_t,
) -> uint64_t:
    log: pointer[memory_log_t] = cast(pointer[memory_log_t], context)
    lsn: uint64_t = _append(log)
    spin_lock(address(log.lock))
    log.last_owner = owner
    log.last_reason = cast(uint32_t, reason)
    log.last_delivered_us = delivered_us
    spin_unlock(address(log.lock))
    at_add64(address(log.dequeues), 1)  # last, as with enqueues
    return lsn


@cfunc
@nogil
@exceptval(check=False)
def _sweep(context: p_void, queue: pointer[queue_t], swept: pointer[swept_t], count: uint32_t, ended: bint) -> uint64_t:
    log: pointer[memory_log_t] = cast(pointer[memory_log_t], context)
    lsn: uint64_t = _append(log)
    spin_lock(address(log.lock))
    log.last_owner = 0
    log.last_reason = REASON_PURGE
    log.last_delivered_us = 0
    spin_unlock(address(log.lock))
    at_add64(address(log.dequeues), count)  # last, as with enqueues
    return lsn


@cfunc
@nogil
@exceptval(check=False)
def _placed(context: p_void, content: pointer[content_t]) -> void:
    at_add64(address(cast(pointer[memory_log_t], context).placed), 1)


@cfunc
@nogil
@exceptval(check=False)
def _spill(context: p_void, content: pointer[content_t]) -> uint64_t:
    log: pointer[memory_log_t] = cast(pointer[memory_log_t], context)
    number: uint64_t
    spin_lock(address(log.lock))
    number = _keep(address(log.spilled), content)
    spin_unlock(address(log.lock))
    if number == 0:
        return 0
    at_add64(address(log.spills), 1)
    return number | SPILLED


@cfunc
@nogil
@exceptval(check=False)
def _unspill(context: p_void, message_id: uint64_t) -> void:
    log: pointer[memory_log_t] = cast(pointer[memory_log_t], context)
    number: uint64_t = message_id & ~SPILLED
    content: pointer[content_t] = NULL
    spin_lock(address(log.lock))
    if number and number <= log.spilled.count:
        content = log.spilled.contents[number - 1]
        log.spilled.contents[number - 1] = NULL
    if content == NULL:
        log.misses += 1
    spin_unlock(address(log.lock))
    if content != NULL:
        content_decref(content)
    at_add64(address(log.unspills), 1)


@cfunc
@nogil
@exceptval(check=False)
def _load(context: p_void, queue: pointer[queue_t], position: uint64_t, message_id: uint64_t) -> void:
    log: pointer[memory_log_t] = cast(pointer[memory_log_t], context)
    capacity: uint64_t
    grown: pointer[asked_t]
    spin_lock(address(log.lock))
    if log.asked_count == log.asked_capacity:
        capacity = log.asked_capacity * 2 if log.asked_capacity else 64
        grown = cast(pointer[asked_t], realloc(log.asked, capacity * sizeof(asked_t)))
        if grown == NULL:
            spin_unlock(address(log.lock))
            return
        log.asked = grown
        log.asked_capacity = capacity
    queue_incref(queue)
    log.asked[log.asked_count].queue = queue
    log.asked[log.asked_count].position = position
    log.asked[log.asked_count].message_id = message_id
    log.asked_count += 1
    spin_unlock(address(log.lock))


def memory_log_answer(log: pointer[memory_log_t], run: uint32_t, hot_bytes: uint64_t) -> bint:
    asked: asked_t
    content: pointer[content_t]
    position: uint64_t
    message_id: uint64_t
    found: uint64_t = 0
    spin_lock(address(log.lock))
    if log.asked_count == 0:
        spin_unlock(address(log.lock))
        return False
    asked = log.asked[0]
    log.asked_count -= 1
    memmove(log.asked, log.asked + 1, log.asked_count * sizeof(asked_t))
    spin_unlock(address(log.lock))
    position = asked.position
    message_id = asked.message_id
    if message_id == 0 and not queue_next_cold(asked.queue, position, address(position), address(message_id)):
        queue_decref(asked.queue)
        return True
    while True:
        content = memory_log_find(log, message_id)
        queue_content_loaded(asked.queue, position, content)
        if content != NULL:
            content_decref(content)
        if run == 0 or queue_resident_bytes(asked.queue) >= hot_bytes:
            break
        run -= 1
        if not queue_next_cold(asked.queue, position + 1, address(found), address(message_id)):
            break
        position = found
    queue_decref(asked.queue)
    return True


@cfunc
@nogil
@exceptval(check=False)
def _durable(context: p_void) -> uint64_t:
    return at_load64(address(cast(pointer[memory_log_t], context).durable))


@cfunc
@nogil
@exceptval(check=False)
def _kick(context: p_void, awaited: bint) -> void:
    at_add64(address(cast(pointer[memory_log_t], context).kicks), 1)


@cfunc
@nogil
@exceptval(check=False)
def _pressure(context: p_void) -> c_int:
    log: pointer[memory_log_t] = cast(pointer[memory_log_t], context)
    if at_load32(address(log.seen_once)):
        return cast(c_int, at_swap32(address(log.seen_once), 0))
    return cast(c_int, at_load32(address(log.pressure)))


@cfunc
@exceptval(True, check=True)
def _write_enqueue(context: p_void, queue: pointer[queue_t], position: uint64_t, slot: pointer[slot_t], expires_at_ms: longlong) -> bint:
    work: MemoryEnrolment = cast(MemoryEnrolment, context)
    work.log._refusal()
    memory_log_write(address(work.log.log), slot)
    _append(address(work.log.log))
    work.log.transactions[work.tx].append(("enqueue", queue_get_id(queue), position))
    return True


@cfunc
@exceptval(True, check=True)
def _write_dequeue(
    context: p_void,
    queue: pointer[queue_t],
    position: uint64_t,
    slot: pointer[slot_t],
    owner: uint32_t,
    reason: c_int,
    delivered_us: uint64_t,
) -> bint:
    work: MemoryEnrolment = cast(MemoryEnrolment, context)
    try:
        work.log._refusal()
    except KeyError:
        return False  # its queue was deleted
    _append(address(work.log.log))
    work.log.transactions[work.tx].append(("dequeue", queue_get_id(queue), position, owner, reason, delivered_us))
    return True


@cclass
class MemoryEnrolment:
    """A transaction of a MemoryLog, which keeps what it was asked."""

    def __cinit__(self):
        self.port.context = cast(p_void, self)
        self.port.enqueue = _write_enqueue
        self.port.dequeue = _write_dequeue

    def decide(self) -> c_int:
        self.log._refusal()
        self._goes("open", "committed")
        self.lsn = _append(address(self.log.log))
        return 0

    def durable(self) -> bint:
        if self.log.fail is not None:
            error = self.log.fail
            self.log.fail = None
            raise error
        return at_load64(address(self.log.log.durable)) >= self.lsn

    def applied(self) -> c_int:
        self._goes("committed", "applied")
        return 0

    def abandon(self) -> None:
        self.undo()
        self._goes("open", "abandoned")

    def _goes(self, before, after):
        if self.log.states[self.tx] != before:
            raise ValueError(f"transaction {self.tx} is {self.log.states[self.tx]}")
        self.log.states[self.tx] = after


@cclass
class MemoryLog:
    """See module.

    Args: hot_bytes: bytes of bodies a queue keeps in memory before its arrivals go cold; None: nothing ever does.
    """

    def __cinit__(self, hot_bytes: int | None = None):
        memset(address(self.log), 0, sizeof(memory_log_t))
        self.port.context = address(self.log)
        self.port.enqueue = _enqueue
        self.port.dequeue = _dequeue
        self.port.sweep = _sweep
        self.port.placed = _placed
        self.port.durable_lsn = _durable
        self.port.kick = _kick
        self.port.pressure = _pressure
        self.port.hot_bytes = ~cast(uint64_t, 0)
        if hot_bytes is not None:
            self.log.keeps = 1
            self.port.hot_bytes = hot_bytes
            self.port.load = _load
            self.port.spill = _spill
            self.port.unspill = _unspill
        self.transactions = {}
        self.awaited = []
        self.states = {}
        self.consumers = {}

    def __dealloc__(self):
        i: uint64_t
        for i in range(self.log.logged.count):
            if self.log.logged.contents[i] != NULL:
                content_decref(self.log.logged.contents[i])
        for i in range(self.log.spilled.count):
            if self.log.spilled.contents[i] != NULL:
                content_decref(self.log.spilled.contents[i])
        for i in range(self.log.asked_count):
            queue_decref(self.log.asked[i].queue)
        free(self.log.logged.contents)
        free(self.log.spilled.contents)
        free(self.log.asked)

    # --- durability -----------------------------------------------------------------------------------------------------

    def hold(self) -> None:
        """From now on nothing becomes durable."""
        at_store32(address(self.log.held), 1)

    def release(self) -> None:
        """Everything logged so far is durable; wakes who waits and calls on_durable."""
        at_store32(address(self.log.held), 0)
        _raise_durable(address(self.log), at_load64(address(self.log.last_lsn)))
        self.wake()

    def wake(self) -> None:
        """What the log's writer does after every sync."""
        with nogil:
            log_port_wake(address(self.port))
        durable = at_load64(address(self.log.durable))
        for one in [one for one in self.awaited if one[0] <= durable]:
            self.awaited.remove(one)
            one[1]()
        if self.on_durable is not None:
            self.on_durable()

    def when_durable(self, lsn: int, callback: object) -> None:
        """See LogPort."""
        if lsn <= at_load64(address(self.log.durable)):
            callback()
        else:
            self.awaited.append((lsn, callback))

    def tail_lsn(self) -> int:
        """See LogPort."""
        return at_load64(address(self.log.last_lsn))

    def set_brief_pressure(self, pressure: int) -> None:
        """The next enqueue brings this pressure (2: disk), and the first look at it is the last one: whoever read that publisher looks."""
        at_store32(address(self.log.brief), pressure)

    def set_pressure(self, pressure: int) -> None:
        """PRESSURE_*: 0 none, 1 buffers, 2 disk. Falling pressure wakes who waits."""
        at_store32(address(self.log.pressure), pressure)
        if pressure == 0:
            self.wake()

    # --- content --------------------------------------------------------------------------------------------------------

    @property
    def loads(self) -> list[tuple[int, int, int]]:
        """Loads that wait for an answer: (queue id, position, message id)."""
        asked: list = []
        i: uint64_t
        spin_lock(address(self.log.lock))
        for i in range(self.log.asked_count):
            asked.append((queue_get_id(self.log.asked[i].queue), self.log.asked[i].position, self.log.asked[i].message_id))
        spin_unlock(address(self.log.lock))
        return asked

    def answer_loads(self) -> int:
        """Answers every load that waits, oldest first; returns how many there were."""
        answered: c_int = 0
        while memory_log_answer(address(self.log), 0, 0):
            answered += 1
        return answered

    def lose(self, message_id: int) -> None:
        """The content can't be read any more."""
        content: pointer[content_t] = NULL
        spin_lock(address(self.log.lock))
        if 0 < message_id <= self.log.logged.count:
            content = self.log.logged.contents[message_id - 1]
            self.log.logged.contents[message_id - 1] = NULL
        spin_unlock(address(self.log.lock))
        if content != NULL:
            content_decref(content)

    def load_now(self, message_id: uint64_t) -> pointer[content_t]:
        content: pointer[content_t] = memory_log_find(address(self.log), message_id)
        if content == NULL:
            raise KeyError(message_id)
        return content

    # --- local transactions ---------------------------------------------------------------------------------------------

    def _refusal(self) -> c_int:
        if self.refuse is not None:
            error = self.refuse
            self.refuse = None
            raise error
        return 0

    def enrol(self) -> Enrolment:
        self.next_tx += 1
        self.transactions[self.next_tx] = []
        self.states[self.next_tx] = "open"
        found: MemoryEnrolment = MemoryEnrolment()
        found.log = self
        found.tx = self.next_tx
        return found

    def note_consumer(self, consumer_id: uint32_t, tag: bytes | None, group: bytes | None) -> c_int:
        self.consumers[consumer_id] = (tag, group)
        return 0

    # --- what it was told -----------------------------------------------------------------------------------------------

    @property
    def last_lsn(self) -> int:
        return at_load64(address(self.log.last_lsn))

    @property
    def enqueues(self) -> int:
        """Logged enqueues outside of transactions."""
        return at_load64(address(self.log.enqueues))

    @property
    def dequeues(self) -> int:
        """Logged dequeues outside of transactions."""
        return at_load64(address(self.log.dequeues))

    @property
    def last_dequeue(self) -> tuple[int, int, int]:
        """(owner, reason, delivered_us) of the last dequeue."""
        return (self.log.last_owner, self.log.last_reason, self.log.last_delivered_us)

    @property
    def placed(self) -> int:
        return at_load64(address(self.log.placed))

    @property
    def kicks(self) -> int:
        return at_load64(address(self.log.kicks))

    @property
    def spills(self) -> int:
        return at_load64(address(self.log.spills))

    @property
    def unspills(self) -> int:
        return at_load64(address(self.log.unspills))

    @property
    def misses(self) -> int:
        """Unspills of what is not there (any more): always a fault."""
        return at_load64(address(self.log.misses))
