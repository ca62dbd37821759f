"""Cold reads out of the socket path (see content_loader.pxd).

in: requests of parked deliveries and of read-aheads (queue, position). out: queue_content_loaded for that entry and for those behind it, up
to the queue's hot window, so that a drain reads the log in runs.

L1  An entry that somebody is parked on is loaded, found unreadable, or given back unloaded when the loader stops: never forgotten.
L2  Parked entries of a queue are served in the order of asking; the rest of a run gives way to them.
L3  One worker at a time serves a queue (actor); a worker serves a queue for one slice, then the run queue decides who is next. The wait for
    the disk is charged.
L4  While messages come to queues that have nothing on disk, cold reads keep a pace (cold_pace.py); a paused queue holds no worker.
L5  What was read comes to the queue in one go: who is parked on the first entry is woken once, not for one entry after the other.
L6  What can't be read for want of a file descriptor or memory is asked for again after a while; it is not set aside.
"""

from __future__ import annotations

import logging

import cython
from cython.cimports.flintmq.core.atomics import at_add32, at_add64, at_load32, at_load64, at_store32, at_sub32, spin_lock, spin_unlock
from cython.cimports.flintmq.core.content import content_decref, content_t
from cython.cimports.flintmq.core.futex import futex_wait, futex_wake
from cython.cimports.flintmq.core.hash64 import map64_free, map64_get, map64_put, map64_remove
from cython.cimports.flintmq.queue.queue_core import (
    queue_content_failed,
    queue_content_loaded,
    queue_decref,
    queue_incref,
    queue_is_deleted,
    queue_load_room,
    queue_next_cold,
)
from cython.cimports.flintmq.queue.types import queue_t
from cython.cimports.flintmq.scheduler.actor import (
    ACTORS_COLD,
    DISPATCH_CLOSED,
    DISPATCH_OK,
    OUTCOME_BUSY,
    OUTCOME_EMPTY,
    OUTCOME_EXPIRED,
    OUTCOME_MESSAGES,
    PROCESS_AGAIN,
    PROCESS_DONE,
    PROCESS_PARK,
    actor_charge_io,
    actor_dispatch,
    actor_get,
    actor_put,
    actor_should_yield,
    actor_t,
    request_answer,
    request_cancel,
    request_t,
    system_dispatch,
    system_now,
)
from cython.cimports.flintmq.scheduler.system import ActorSystem
from cython.cimports.flintmq.store.cold_pace import pace_begin, pace_charge
from cython.cimports.flintmq.store.cold_readers import COLD_READERS_MAX, readers_give, readers_take
from cython.cimports.flintmq.store.content_reader import ContentReader
from cython.cimports.flintmq.store.log.managed import ManagedLog
from cython.cimports.flintmq.store.message_log import message_log_t
from cython.cimports.libc.stdint import int64_t, uint8_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import calloc, free
from cython.cimports.libc.string import memset
from flintmq.config import Limits

log = logging.getLogger("flintmq.store")

# what a step came to
STEP_MORE = cython.declare(cython.int, 0)
STEP_END = cython.declare(cython.int, 1)
STEP_LATER = cython.declare(cython.int, 2)
# nanoseconds until a read is tried again for which there was no descriptor or memory
LATER_NS = cython.declare(int64_t, 20_000_000)
# bytes of bodies (and STEP_ENTRIES entries) between two looks at the clock, at those who are parked, and at the pace
STEP_BYTES = cython.declare(uint64_t, 64 * 1024)
# ns until a queue for which there was no reader tries again
READER_WAIT = cython.declare(int64_t, 1_000_000)
# milliseconds that a stop waits for the workers between two looks
STOP_LOOK_MS = cython.declare(cython.int, 20)


# --- asking -------------------------------------------------------------------------------------------------------------


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _find(loader: cython.pointer(loader_t), queue: cython.pointer(queue_t)) -> cython.pointer(cold_t):
    """Under the lock."""
    found: uint64_t = 0
    if not map64_get(cython.address(loader.map), cython.cast(uint64_t, queue), cython.address(found)):
        return cython.NULL
    return cython.cast(cython.pointer(cold_t), found)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _enlist(loader: cython.pointer(loader_t), cold: cython.pointer(cold_t)) -> cython.bint:
    """Under the lock. False: no memory."""
    if not map64_put(cython.address(loader.map), cython.cast(uint64_t, cold.queue), cython.cast(uint64_t, cold)):
        return False
    cold.listed = True
    cold.next = loader.first
    if loader.first != cython.NULL:
        loader.first.prev = cold
    loader.first = cold
    at_add32(cython.address(loader.live), 1)
    return True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _unlist(cold: cython.pointer(cold_t)) -> cython.void:
    """Under the lock: nobody finds it any more."""
    loader: cython.pointer(loader_t) = cold.loader
    if not cold.listed:
        return
    cold.listed = False
    map64_remove(cython.address(loader.map), cython.cast(uint64_t, cold.queue))
    if cold.prev != cython.NULL:
        cold.prev.next = cold.next
    else:
        loader.first = cold.next
    if cold.next != cython.NULL:
        cold.next.prev = cold.prev


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _drop(cold: cython.pointer(cold_t)) -> cython.void:
    """One reference less; the last one frees it, which nobody finds any more."""
    loader: cython.pointer(loader_t) = cold.loader
    last: cython.bint
    stopping: cython.bint = at_load32(cython.address(loader.stopping)) != 0
    spin_lock(cython.address(loader.lock))
    cold.refs -= 1
    last = cold.refs == 0
    spin_unlock(cython.address(loader.lock))
    if not last:
        return
    queue_decref(cold.queue)
    free(cold)
    # The very last look at the loader: a stop that waits may go on, and the loader with it. (A wake-up only needs the address.)
    if at_sub32(cython.address(loader.live), 1) == 1 and stopping:
        futex_wake(cython.address(loader.live), 1)


def loader_request(loader, queue, position, message_id):
    cold: cython.pointer(cold_t) = cython.NULL
    made: cython.pointer(cold_t) = cython.NULL
    wanted: cython.pointer(wanted_t) = cython.NULL
    refused: cython.bint = False
    if message_id:
        wanted = cython.cast(cython.pointer(wanted_t), calloc(1, cython.sizeof(wanted_t)))
        if wanted == cython.NULL:
            queue_content_loaded(queue, position, cython.NULL)  # no memory now: the next delivery attempt asks again
            return
        wanted.position = position
    while True:
        spin_lock(cython.address(loader.lock))
        refused = at_load32(cython.address(loader.stopping)) != 0
        cold = cython.NULL if refused else _find(loader, queue)
        if cold == cython.NULL and made != cython.NULL and not refused:
            if _enlist(loader, made):
                queue_incref(queue)
                cold = made
            else:
                refused = True
        if cold != cython.NULL:
            if wanted == cython.NULL:
                if not cold.ahead:
                    cold.ahead = position
            elif cold.first == cython.NULL:
                cold.first = wanted
                cold.last = wanted
            else:
                cold.last.next = wanted
                cold.last = wanted
        spin_unlock(cython.address(loader.lock))
        if cold != cython.NULL or refused:
            break
        made = cython.cast(cython.pointer(cold_t), calloc(1, cython.sizeof(cold_t)))
        if made == cython.NULL:
            refused = True
            break
        made.loader = loader
        made.queue = queue
        made.refs = 1
    if cold != cython.NULL and cold == made:
        _dispatch(cold)
        return
    free(made)
    if refused and wanted != cython.NULL:
        free(wanted)
        queue_content_loaded(queue, position, cython.NULL)


def store_load(context, queue, position, message_id):
    ml: cython.pointer(message_log_t) = cython.cast(cython.pointer(message_log_t), context)
    loader_request(cython.cast(cython.pointer(loader_t), ml.loader), queue, position, message_id)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _dispatch(cold: cython.pointer(cold_t)) -> cython.void:
    """Hands the queue's request to its actor. Nobody else has it."""
    loader: cython.pointer(loader_t) = cold.loader
    result: cython.int = DISPATCH_CLOSED
    memset(cython.address(cold.request), 0, cython.sizeof(request_t))
    cold.request.process = _process
    cold.request.answer = _answer
    cold.request.context = cold
    if loader.system != cython.NULL and not at_load32(cython.address(loader.stopping)):
        result = system_dispatch(loader.system, ACTORS_COLD, cold.queue.id, 0, 0, cython.address(cold.request))
        if result != DISPATCH_OK and loader.spare != cython.NULL:
            result = actor_dispatch(loader.spare, cython.address(cold.request))
    if result == DISPATCH_OK:
        return
    # No place now, not started yet, or the end: the next slice of any queue, the start or the stop sees to it.
    spin_lock(cython.address(loader.lock))
    cold.held_next = loader.held
    loader.held = cold
    spin_unlock(cython.address(loader.lock))


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _retry_held(loader: cython.pointer(loader_t)) -> cython.void:
    """Those for which there was no place before, once each."""
    cold: cython.pointer(cold_t)
    following: cython.pointer(cold_t)
    if loader.held == cython.NULL:
        return
    spin_lock(cython.address(loader.lock))
    cold = loader.held
    loader.held = cython.NULL
    spin_unlock(cython.address(loader.lock))
    while cold != cython.NULL:
        following = cold.held_next
        cold.held_next = cython.NULL
        _dispatch(cold)
        cold = following


# --- serving --------------------------------------------------------------------------------------------------------------


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _next_run(cold: cython.pointer(cold_t)) -> cython.bint:
    """L2: the next one that somebody is parked on, else the run goes on, else a read-ahead. False: nothing is left, and it is unlisted."""
    loader: cython.pointer(loader_t) = cold.loader
    wanted: cython.pointer(wanted_t)
    fresh: cython.bint = False
    more: cython.bint = True
    spin_lock(cython.address(loader.lock))
    wanted = cold.first
    if wanted != cython.NULL:
        cold.first = wanted.next
        cold.position = wanted.position
        fresh = True
    elif not cold.in_run:
        if cold.ahead:
            cold.position = cold.ahead
            fresh = True
        else:
            more = False
            _unlist(cold)
    if fresh:
        cold.ahead = 0
    spin_unlock(cython.address(loader.lock))
    free(wanted)
    if fresh:
        cold.in_run = True
        cold.room = queue_load_room(cold.queue)
        cold.loaded = 0
        cold.count = 0
        at_add64(cython.address(loader.runs), 1)
    return more


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _step(
    cold: cython.pointer(cold_t), reader: cython.p_void, entries: cython.pointer(uint64_t), bytes_: cython.pointer(uint64_t)
) -> cython.int:
    """Some entries of the run: read first, then handed over from the last to the first, the one that somebody may be parked on (L5)."""
    loader: cython.pointer(loader_t) = cold.loader
    queue: cython.pointer(queue_t) = cold.queue
    found: uint64_t = 0
    message_id: uint64_t = 0
    content: cython.pointer(content_t)
    stopping: cython.bint
    batch: batch_t
    result: cython.int = STEP_MORE
    batch.count = 0
    while entries[0] < STEP_ENTRIES and bytes_[0] < STEP_BYTES:
        stopping = at_load32(cython.address(loader.stopping)) != 0
        if stopping and cold.count == 0:
            queue_content_loaded(queue, cold.position, cython.NULL)  # it may have been asked for: L1
        if (
            stopping
            or queue_is_deleted(queue)
            or (cold.count and cold.loaded >= cold.room)
            or not queue_next_cold(queue, cold.position, cython.address(found), cython.address(message_id))
        ):
            result = STEP_END
            break
        content = cython.cast(ContentReader, reader).read(message_id)
        if content == cython.NULL and cython.cast(ContentReader, reader).no_means:
            cold.position = found  # L6
            result = STEP_LATER
            break
        entries[0] += 1
        cold.count += 1
        cold.position = found + 1
        if content == cython.NULL:
            # It may have been taken meanwhile: then nothing is wrong.
            if queue_content_failed(queue, found):
                at_add64(cython.address(loader.failed), 1)
                _tell(loader, queue.id, found, message_id)
                result = STEP_END
                break
            continue
        batch.positions[batch.count] = found
        batch.contents[batch.count] = content
        batch.count += 1
        cold.loaded += content.body_len
        bytes_[0] += content.body_len
    at_add64(cython.address(loader.loaded), batch.count)
    while batch.count:
        batch.count -= 1
        content = batch.contents[batch.count]
        queue_content_loaded(queue, batch.positions[batch.count], content)
        content_decref(content)
    return result


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _process(actor: cython.pointer(actor_t), request: cython.pointer(request_t)) -> cython.int:
    """A slice of a queue's cold reads."""
    cold: cython.pointer(cold_t) = cython.cast(cython.pointer(cold_t), request.context)
    loader: cython.pointer(loader_t) = cold.loader
    started: int64_t = system_now(loader.system)
    number: cython.int
    reader: cython.p_void
    result: cython.int = PROCESS_AGAIN
    what: cython.int
    entries: uint64_t
    bytes_: uint64_t
    pause: int64_t
    _retry_held(loader)
    number = readers_take(cython.address(loader.readers), cold.queue.id)
    if number < 0:  # more workers than readers, all at work
        request.hold_ns = started + READER_WAIT
        return PROCESS_PARK
    reader = loader.readers.readers[number]
    while not at_load32(cython.address(loader.stopping)):
        if not _next_run(cold):
            result = PROCESS_DONE
            break
        entries = 0
        bytes_ = 0
        what = _step(cold, reader, cython.address(entries), cython.address(bytes_))
        if what == STEP_END:
            cold.in_run = False
        if loader.system.manual:
            cython.cast(ContentReader, reader).io_ns = loader.read_ns * entries
        if cython.cast(ContentReader, reader).io_ns:
            actor_charge_io(actor, cython.cast(ContentReader, reader).io_ns)
            if loader.system.manual:
                started -= cython.cast(ContentReader, reader).io_ns  # as if the clock had gone on
            cython.cast(ContentReader, reader).io_ns = 0
        pause = _pace(loader, cold.queue, entries, bytes_)
        if what == STEP_LATER:
            pause = max(pause, system_now(loader.system) + LATER_NS)
        if pause:
            request.hold_ns = pause
            result = PROCESS_PARK
            break
        if actor_should_yield(actor, started):
            break
    else:
        result = PROCESS_DONE
    readers_give(cython.address(loader.readers), number)
    if result == PROCESS_DONE:
        request_answer(request, OUTCOME_MESSAGES)
    return result


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _answer(request: cython.pointer(request_t)) -> cython.void:
    """The scheduler has done with the request: a pause is over, nothing is left, or the end has come."""
    cold: cython.pointer(cold_t) = cython.cast(cython.pointer(cold_t), request.context)
    outcome: uint8_t = request.outcome
    if outcome == OUTCOME_EMPTY or outcome == OUTCOME_EXPIRED or outcome == OUTCOME_BUSY:
        if not at_load32(cython.address(cold.loader.stopping)):
            _dispatch(cold)
            return
    if outcome != OUTCOME_MESSAGES or cold.listed:
        _give_up(cold)
    _drop(cold)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _give_up(cold: cython.pointer(cold_t)) -> cython.void:
    """Stopping: entries that are asked for lose their mark, so that nobody takes them for being on their way."""
    loader: cython.pointer(loader_t) = cold.loader
    wanted: cython.pointer(wanted_t)
    following: cython.pointer(wanted_t)
    spin_lock(cython.address(loader.lock))
    _unlist(cold)
    wanted = cold.first
    cold.first = cython.NULL
    spin_unlock(cython.address(loader.lock))
    while wanted != cython.NULL:
        following = wanted.next
        queue_content_loaded(cold.queue, wanted.position, cython.NULL)
        free(wanted)
        wanted = following


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _pace(loader: cython.pointer(loader_t), queue: cython.pointer(queue_t), entries: uint64_t, bytes_: uint64_t) -> int64_t:
    """Counts what was loaded. Until when the queue must pause; 0: it need not (L4)."""
    until: int64_t
    now: int64_t = system_now(loader.system)
    spin_lock(cython.address(loader.lock))
    until = pace_charge(cython.address(loader.pace), now, queue.id, at_load64(cython.address(queue.entries.enqueued)), entries, bytes_)
    spin_unlock(cython.address(loader.lock))
    if until:
        at_add64(cython.address(loader.pauses), 1)
    return until


# --- the end ----------------------------------------------------------------------------------------------------------------


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _stop(loader: cython.pointer(loader_t)) -> cython.void:
    """Takes back every request; returns when no worker is in this loader any more."""
    cold: cython.pointer(cold_t)
    following: cython.pointer(cold_t)
    left: uint32_t
    spin_lock(cython.address(loader.lock))
    at_store32(cython.address(loader.stopping), 1)  # under the lock: who asks sees it, or is in the list already
    spin_unlock(cython.address(loader.lock))
    while True:
        spin_lock(cython.address(loader.lock))
        cold = loader.held
        loader.held = cython.NULL
        spin_unlock(cython.address(loader.lock))
        while cold != cython.NULL:
            following = cold.held_next
            _give_up(cold)
            _drop(cold)
            cold = following
        # Paused and waiting ones are taken out; one that runs sees `stopping` and ends by itself.
        while True:
            spin_lock(cython.address(loader.lock))
            cold = loader.first
            if cold != cython.NULL:
                _unlist(cold)
                cold.refs += 1
            spin_unlock(cython.address(loader.lock))
            if cold == cython.NULL:
                break
            if loader.system != cython.NULL:
                request_cancel(cython.address(cold.request))
            _give_up(cold)
            _drop(cold)
        left = at_load32(cython.address(loader.live))
        if left == 0:
            return
        futex_wait(cython.address(loader.live), left, STOP_LOOK_MS)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _tell(loader: cython.pointer(loader_t), queue_id: uint64_t, position: uint64_t, message_id: uint64_t) -> cython.void:
    with cython.gil:
        try:
            cython.cast(ContentLoader, loader.owner)._told(queue_id, position, message_id)
        except Exception:
            log.exception("internal error: a message that can't be read was not told")


@cython.cclass
class ContentLoader:
    """Args: messages, pages: the logs (pages may be None); limits: cold_*."""

    def __cinit__(self, messages: ManagedLog, pages, limits: object = None):
        memset(cython.address(self.loader), 0, cython.sizeof(loader_t))
        self.loader.owner = cython.cast(cython.p_void, self)
        self.messages = messages
        self.pages = pages
        self.readers = []
        self.actors = None
        self.private = False
        self.limits = limits or Limits()
        self.on_failed = None
        self.loader.pace.rate = self.limits.cold_pace
        self.loader.pace.bytes_rate = self.limits.cold_pace_bytes
        self.loader.pace.hot_rate = self.limits.cold_hot_rate

    def __dealloc__(self):
        with cython.nogil:
            _stop(cython.address(self.loader))
        map64_free(cython.address(self.loader.map))
        if self.loader.spare != cython.NULL:
            actor_put(self.loader.spare)

    def start(self, actors: object = None) -> None:
        """Serves what is asked for, on the workers of `actors` (an ActorSystem; None: a small one of its own)."""
        system: ActorSystem
        if actors is None:
            from flintmq.scheduler.system import ActorSystem as System

            self.private = True
            actors = System(self.limits, workers=2)
            actors.start()
        system = actors
        self.actors = actors
        for _ in range(min(max(1, system.system.worker_count), COLD_READERS_MAX)):
            reader = ContentReader(self.messages, self.pages, ahead=True)
            self.readers.append(reader)
            self.loader.readers.readers[self.loader.readers.count] = cython.cast(cython.p_void, reader)
            self.loader.readers.count += 1
        self.loader.spare = actor_get(system.system, ACTORS_COLD, 0, 0, 0)
        pace_begin(cython.address(self.loader.pace), system_now(system.system))
        self.loader.system = system.system
        _retry_held(cython.address(self.loader))

    def stop(self) -> None:
        """Ends: what waits is given back unloaded, no worker is here any more when this returns. Again is no error."""
        with cython.nogil:
            _stop(cython.address(self.loader))
        if self.loader.spare != cython.NULL:
            actor_put(self.loader.spare)
            self.loader.spare = cython.NULL
        for reader in self.readers:
            reader.close()
        self.readers = []
        self.loader.readers.count = 0
        if self.private and self.actors is not None:
            self.actors.stop()
        self.actors = None

    @property
    def figures(self) -> dict:
        """Entries loaded, runs, entries whose content could not be read, pauses for hot messages; queues that wait now."""
        return {
            "loaded": at_load64(cython.address(self.loader.loaded)),
            "runs": at_load64(cython.address(self.loader.runs)),
            "failed": at_load64(cython.address(self.loader.failed)),
            "pauses": at_load64(cython.address(self.loader.pauses)),
            "queues": at_load32(cython.address(self.loader.live)),
        }

    def watch(self, hot):
        self.loader.pace.hot = hot

    def _told(self, queue_id, position, message_id):
        log.error(
            "the content of message %d (queue id %d, position %d) can't be read from the log: the entry is set aside",
            message_id,
            queue_id,
            position,
        )
        if self.on_failed is not None:
            self.on_failed(queue_id, position, message_id)
