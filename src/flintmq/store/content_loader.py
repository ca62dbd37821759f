"""Cold reads out of the socket path (see content_loader.pxd).

in: requests of parked deliveries and of read-aheads (queue, position). out: the contents of that entry and of those behind it, up to
the queue's hot window, so that a drain reads the log in runs.

L1  An entry that somebody is parked on is loaded, found unreadable, or given back unloaded when the loader stops: never forgotten.
L2  Parked entries of a queue are served in the order of asking; the rest of a run gives way to them.
L3  One worker at a time serves a queue (actor); a worker serves a queue for one slice, then the run queue decides who is next. The wait for
    the disk is charged.
L4  While messages come to queues that have nothing on disk, cold reads keep a pace (cold_pace.py); a paused queue holds no worker.
L5  What was read comes to the queue in one go: who is parked on the first entry is woken once, not for one entry after the other.
L6  What can't be read for want of a file descriptor or memory is asked for again after a while; it is not set aside.
L7  Behind a full window contents are read for their headers alone, as long as message groups or selectors have to know them, HEADER_ENTRIES
    at most for one who is parked: they take no place in memory.
L9  Entries that left memory (queue/paging.pxd) are read back like contents: who parked on a shell is woken, and parks on the first of them.
L8  A content that waits in several queues is read once for all that want it soon (shared_reads.py).
"""

from __future__ import annotations

import logging

from cython import NULL, address, bint, cast, cclass, cfunc, declare, exceptval, gil, nogil, p_void, pointer, sizeof, void
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import at_add32, at_add64, at_load32, at_load64, at_store32, at_sub32, spin_lock, spin_unlock
from cython.cimports.flintmq.core.content import content_decref, content_t
from cython.cimports.flintmq.core.futex import futex_wait, futex_wake
from cython.cimports.flintmq.core.hash64 import map64_free, map64_get, map64_put, map64_remove
from cython.cimports.flintmq.queue.cold_headers import queue_header_read, queue_headers_read, queue_wants_headers
from cython.cimports.flintmq.queue.paging import PAGE_CAME, PAGE_THERE, queue_page_in
from cython.cimports.flintmq.queue.queue_core import (
    queue_cold_run, queue_content_failed, queue_content_loaded, queue_contents_loaded, queue_decref, queue_incref, queue_is_deleted,
    queue_load_room,
)  # fmt: skip
from cython.cimports.flintmq.queue.types import MESSAGE_STUB_BIT, queue_t
from cython.cimports.flintmq.scheduler.actor import (
    ACTORS_COLD, DISPATCH_CLOSED, DISPATCH_OK, OUTCOME_BUSY, OUTCOME_EMPTY, OUTCOME_EXPIRED, OUTCOME_MESSAGES, PROCESS_AGAIN, PROCESS_DONE,
    PROCESS_PARK, actor_charge_io, actor_dispatch, actor_get, actor_put, actor_should_yield, actor_t, request_answer, request_cancel,
    request_t, system_dispatch, system_now,
)  # fmt: skip
from cython.cimports.flintmq.scheduler.system import ActorSystem
from cython.cimports.flintmq.store.cold_pace import pace_begin, pace_charge
from cython.cimports.flintmq.store.content_reader import ContentReader
from cython.cimports.flintmq.store.log.managed import ManagedLog
from cython.cimports.flintmq.store.message_log import message_log_t
from cython.cimports.flintmq.store.shared_reads import shared_reads_free, shared_reads_get, shared_reads_put, shared_reads_rest
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import calloc, free
from cython.cimports.libc.string import memset

from flintmq.config import Limits

log = logging.getLogger("flintmq.store")

# what a step came to
SLICE_MORE = declare(c_int, 0)
SLICE_END = declare(c_int, 1)
SLICE_LATER = declare(c_int, 2)
# nanoseconds until a read is tried again for which there was no descriptor or memory
LATER_NS = declare(int64_t, 20_000_000)
# bytes of bodies (and STEP_ENTRIES entries) between two looks at the clock, at those who are parked, and at the pace
STEP_BYTES = declare(uint64_t, 64 * 1024)
# ns until a queue for which there was no reader tries again
READER_WAIT = declare(int64_t, 1_000_000)
# milliseconds that a stop waits for the workers between two looks
STOP_LOOK_MS = declare(c_int, 20)


# --- asking -------------------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _find(loader: pointer[loader_t], queue: pointer[queue_t]) -> pointer[cold_t]:
    """Under the lock."""
    position: uint64_t = 0
    if not map64_get(address(loader.map), cast(uint64_t, queue), address(position)):
        return NULL
    return cast(pointer[cold_t], position)


@cfunc
@nogil
@exceptval(check=False)
def _enlist(loader: pointer[loader_t], cold: pointer[cold_t]) -> bint:
    """Under the lock. False: no memory."""
    if not map64_put(address(loader.map), cast(uint64_t, cold.queue), cast(uint64_t, cold)):
        return False
    cold.listed = True
    cold.next = loader.first
    if loader.first != NULL:
        loader.first.prev = cold
    loader.first = cold
    at_add32(address(loader.live), 1)
    return True


@cfunc
@nogil
@exceptval(check=False)
def _unlist(cold: pointer[cold_t]) -> void:
    """Under the lock: nobody finds it any more."""
    loader: pointer[loader_t] = cold.loader
    if not cold.listed:
        return
    cold.listed = False
    map64_remove(address(loader.map), cast(uint64_t, cold.queue))
    if cold.prev != NULL:
        cold.prev.next = cold.next
    else:
        loader.first = cold.next
    if cold.next != NULL:
        cold.next.prev = cold.prev


@cfunc
@nogil
@exceptval(check=False)
def _drop(cold: pointer[cold_t]) -> void:
    """One reference less; the last one frees it, which nobody finds any more."""
    loader: pointer[loader_t] = cold.loader
    last: bint
    stopping: bint = at_load32(address(loader.stopping)) != 0
    spin_lock(address(loader.lock))
    cold.refs -= 1
    last = cold.refs == 0
    spin_unlock(address(loader.lock))
    if not last:
        return
    queue_decref(cold.queue)
    free(cold)
    # The very last look at the loader: a stop that waits may go on, and the loader with it. (A wake-up only needs the address.)
    if at_sub32(address(loader.live), 1) == 1 and stopping:
        futex_wake(address(loader.live), 1)


def loader_request(loader: pointer[loader_t], queue: pointer[queue_t], position: uint64_t, message_id: uint64_t) -> void:
    cold: pointer[cold_t] = NULL
    made: pointer[cold_t] = NULL
    wanted: pointer[wanted_t] = NULL
    refused: bint = False
    if message_id:
        wanted = cast(pointer[wanted_t], calloc(1, sizeof(wanted_t)))
        if wanted == NULL:
            queue_content_loaded(queue, position, NULL)  # no memory now: the next delivery attempt asks again
            return
        wanted.position = position
    while True:
        spin_lock(address(loader.lock))
        refused = at_load32(address(loader.stopping)) != 0
        cold = NULL if refused else _find(loader, queue)
        if cold == NULL and made != NULL and not refused:
            if _enlist(loader, made):
                queue_incref(queue)
                cold = made
            else:
                refused = True
        if cold != NULL:
            if wanted == NULL:
                if not cold.ahead:
                    cold.ahead = position
            elif cold.first == NULL:
                cold.first = wanted
                cold.last = wanted
            else:
                cold.last.next = wanted
                cold.last = wanted
        spin_unlock(address(loader.lock))
        if cold != NULL or refused:
            break
        made = cast(pointer[cold_t], calloc(1, sizeof(cold_t)))
        if made == NULL:
            refused = True
            break
        made.loader = loader
        made.queue = queue
        made.refs = 1
    if cold != NULL and cold == made:
        _dispatch(cold)
        return
    free(made)
    if refused and wanted != NULL:
        free(wanted)
        queue_content_loaded(queue, position, NULL)


def store_load(context: p_void, queue: pointer[queue_t], position: uint64_t, message_id: uint64_t) -> void:
    ml: pointer[message_log_t] = cast(pointer[message_log_t], context)
    loader_request(cast(pointer[loader_t], ml.loader), queue, position, message_id)


@cfunc
@nogil
@exceptval(check=False)
def _dispatch(cold: pointer[cold_t]) -> void:
    """Hands the queue's request to its actor. Nobody else has it."""
    loader: pointer[loader_t] = cold.loader
    result: c_int = DISPATCH_CLOSED
    memset(address(cold.request), 0, sizeof(request_t))
    cold.request.process = _process
    cold.request.answer = _answer
    cold.request.context = cold
    if loader.system != NULL and not at_load32(address(loader.stopping)):
        result = system_dispatch(loader.system, ACTORS_COLD, cold.queue.id, 0, 0, address(cold.request))
        if result != DISPATCH_OK and loader.spare != NULL:
            result = actor_dispatch(loader.spare, address(cold.request))
    if result == DISPATCH_OK:
        return
    # No place now, not started yet, or the end: the next slice of any queue, the start or the stop sees to it.
    spin_lock(address(loader.lock))
    cold.held_next = loader.held
    loader.held = cold
    spin_unlock(address(loader.lock))


@cfunc
@nogil
@exceptval(check=False)
def _retry_held(loader: pointer[loader_t]) -> void:
    """Those for which there was no place before, once each."""
    cold: pointer[cold_t]
    following: pointer[cold_t]
    if loader.held == NULL:
        return
    spin_lock(address(loader.lock))
    cold = loader.held
    loader.held = NULL
    spin_unlock(address(loader.lock))
    while cold != NULL:
        following = cold.held_next
        cold.held_next = NULL
        _dispatch(cold)
        cold = following


# --- serving --------------------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _next_run(cold: pointer[cold_t]) -> bint:
    """L2: the next one that somebody is parked on, else the run goes on, else a read-ahead. False: nothing is left, and it is unlisted."""
    loader: pointer[loader_t] = cold.loader
    wanted: pointer[wanted_t]
    fresh: bint = False
    goes_on: bint = True
    spin_lock(address(loader.lock))
    wanted = cold.first
    if wanted != NULL:
        cold.first = wanted.next
        cold.position = wanted.position
        fresh = True
    elif not cold.in_run:
        if cold.ahead:
            cold.position = cold.ahead
            fresh = True
        else:
            goes_on = False
            _unlist(cold)
    if fresh:
        cold.ahead = 0
    spin_unlock(address(loader.lock))
    free(wanted)
    if fresh:
        cold.in_run = True
        cold.room = queue_load_room(cold.queue)
        cold.loaded = 0
        cold.learned = 0
        cold.count = 0
        at_add64(address(loader.runs), 1)
    return goes_on


@cfunc
@nogil
@exceptval(check=False)
def _read(loader: pointer[loader_t], reader: ContentReader, message_id: uint64_t) -> pointer[content_t]:
    """A content, read for another queue just now or from the log (L8); NULL: as ContentReader.read."""
    content: pointer[content_t] = shared_reads_get(address(loader.shared), message_id)
    if content != NULL:
        reader.no_means = False
        return content
    content = reader.read(message_id)
    if content != NULL:
        shared_reads_put(address(loader.shared), content)
    return content


@cfunc
@nogil
@exceptval(check=False)
def _page_in(queue: pointer[queue_t], position: uint64_t) -> c_int:
    """The entries of a shell come back; the next look finds the first of them (L9). Else it is tried again: they are on their way out, or
    memory is short; a run that can't be read stops the store."""
    paged: c_int = queue_page_in(queue, position)
    return SLICE_MORE if paged == PAGE_CAME or paged == PAGE_THERE else SLICE_LATER


@cfunc
@nogil
@exceptval(check=False)
def _look(cold: pointer[cold_t], batch: pointer[batch_t]) -> bint:
    """Whether there is an entry to read, from `cold.position` on: one look at the list finds those of a step."""
    if batch.next == batch.cold_count:
        batch.cold_count = queue_cold_run(cold.queue, cold.position, batch.cold, batch.message_ids, STEP_ENTRIES)
        batch.next = 0
    return batch.cold_count != 0


@cfunc
@nogil
@exceptval(check=False)
def _hand_over(queue: pointer[queue_t], batch: pointer[batch_t]) -> void:
    """From the last to the first (L5)."""
    queue_contents_loaded(queue, batch.positions, batch.contents, batch.count)
    while batch.count:
        batch.count -= 1
        content_decref(batch.contents[batch.count])


@cfunc
@nogil
@exceptval(check=False)
def _step(cold: pointer[cold_t], reader: p_void, entries: pointer[uint64_t], bytes_: pointer[uint64_t]) -> c_int:
    """Some entries of the run: read first, then handed over from the last to the first, the one that somebody may be parked on (L5)."""
    loader: pointer[loader_t] = cold.loader
    queue: pointer[queue_t] = cold.queue
    position: uint64_t
    message_id: uint64_t
    content: pointer[content_t]
    stopping: bint
    full: bint = False
    learned: bint = False
    batch: batch_t
    result: c_int = SLICE_MORE
    batch.count = 0
    batch.next = 0
    batch.cold_count = 0
    while entries[0] < (HEADER_ENTRIES if full else STEP_ENTRIES) and bytes_[0] < STEP_BYTES:
        full = cold.count != 0 and cold.loaded >= cold.room
        stopping = at_load32(address(loader.stopping)) != 0
        if stopping and cold.count == 0:
            queue_content_loaded(queue, cold.position, NULL)  # it may have been asked for: L1
        if stopping or queue_is_deleted(queue) or (full and not queue_wants_headers(queue)) or not _look(cold, address(batch)):
            result = SLICE_END
            break
        position = batch.cold[batch.next]
        message_id = batch.message_ids[batch.next]
        batch.next += 1
        if message_id >> MESSAGE_STUB_BIT == 1:
            cold.position = position
            result = _page_in(queue, position)
            if result == SLICE_MORE:
                continue
            break
        content = _read(loader, cast(ContentReader, reader), message_id)
        if content == NULL and cast(ContentReader, reader).no_means:
            cold.position = position  # L6
            result = SLICE_LATER
            break
        entries[0] += 1
        cold.count += 1
        cold.position = position + 1
        if content == NULL:
            # It may have been taken meanwhile: then nothing is wrong.
            if queue_content_failed(queue, position):
                at_add64(address(loader.failed), 1)
                _tell(loader, queue.id, position, message_id)
                result = SLICE_END
                break
            continue
        if queue_wants_headers(queue):
            learned = queue_header_read(queue, cold.learned, position, content)
            cold.learned = position if learned else 0
        if full:  # L7
            bytes_[0] += content.body_len
            content_decref(content)
            if not learned:
                result = SLICE_END
                break
            continue
        batch.positions[batch.count] = position
        batch.contents[batch.count] = content
        batch.count += 1
        cold.loaded += content.body_len
        bytes_[0] += content.body_len
    at_add64(address(loader.loaded), batch.count)
    _hand_over(queue, address(batch))
    if cold.learned:
        queue_headers_read(queue)
    return SLICE_END if full else result


@cfunc
@nogil
@exceptval(check=False)
def _process(actor: pointer[actor_t], request: pointer[request_t]) -> c_int:
    """A slice of a queue's cold reads."""
    cold: pointer[cold_t] = cast(pointer[cold_t], request.context)
    loader: pointer[loader_t] = cold.loader
    started: int64_t = system_now(loader.system)
    number: c_int
    reader: p_void
    result: c_int = PROCESS_AGAIN
    outcome: c_int
    entries: uint64_t
    bytes_: uint64_t
    pause: int64_t
    _retry_held(loader)
    number = readers_take(address(loader.readers), cold.queue.id)
    if number < 0:  # more workers than readers, all at work
        request.hold_ns = started + READER_WAIT
        return PROCESS_PARK
    reader = loader.readers.readers[number]
    while not at_load32(address(loader.stopping)):
        if not _next_run(cold):
            result = PROCESS_DONE
            break
        entries = 0
        bytes_ = 0
        outcome = _step(cold, reader, address(entries), address(bytes_))
        if outcome == SLICE_END:
            cold.in_run = False
        if loader.system.manual:
            cast(ContentReader, reader).io_ns = loader.read_ns * entries
        if cast(ContentReader, reader).io_ns:
            actor_charge_io(actor, cast(ContentReader, reader).io_ns)
            if loader.system.manual:
                started -= cast(ContentReader, reader).io_ns  # as if the clock had gone on
            cast(ContentReader, reader).io_ns = 0
        pause = _pace(loader, cold.queue, entries, bytes_)
        if outcome == SLICE_LATER:
            pause = max(pause, system_now(loader.system) + LATER_NS)
        if pause:
            request.hold_ns = pause
            result = PROCESS_PARK
            break
        if actor_should_yield(actor, started):
            break
    else:
        result = PROCESS_DONE
    readers_give(address(loader.readers), number)
    if result == PROCESS_DONE:
        request_answer(request, OUTCOME_MESSAGES)
    return result


@cfunc
@nogil
@exceptval(check=False)
def _answer(request: pointer[request_t]) -> void:
    """The scheduler has done with the request: a pause is over, nothing is left, or the end has come."""
    cold: pointer[cold_t] = cast(pointer[cold_t], request.context)
    outcome: uint8_t = request.outcome
    if outcome == OUTCOME_EMPTY or outcome == OUTCOME_EXPIRED or outcome == OUTCOME_BUSY:
        if not at_load32(address(cold.loader.stopping)):
            _dispatch(cold)
            return
    if outcome != OUTCOME_MESSAGES or cold.listed:
        _give_up(cold)
    _drop(cold)


@cfunc
@nogil
@exceptval(check=False)
def _give_up(cold: pointer[cold_t]) -> void:
    """Stopping: entries that are asked for lose their mark, so that nobody takes them for being on their way."""
    loader: pointer[loader_t] = cold.loader
    wanted: pointer[wanted_t]
    following: pointer[wanted_t]
    spin_lock(address(loader.lock))
    _unlist(cold)
    wanted = cold.first
    cold.first = NULL
    spin_unlock(address(loader.lock))
    while wanted != NULL:
        following = wanted.next
        queue_content_loaded(cold.queue, wanted.position, NULL)
        free(wanted)
        wanted = following


@cfunc
@nogil
@exceptval(check=False)
def _pace(loader: pointer[loader_t], queue: pointer[queue_t], entries: uint64_t, bytes_: uint64_t) -> int64_t:
    """Counts what was loaded. Until when the queue must pause; 0: it need not (L4)."""
    until: int64_t
    now: int64_t = system_now(loader.system)
    spin_lock(address(loader.lock))
    until = pace_charge(address(loader.pace), now, queue.id, at_load64(address(queue.entries.enqueued)), entries, bytes_)
    spin_unlock(address(loader.lock))
    if until:
        at_add64(address(loader.pauses), 1)
    return until


# --- the end ----------------------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _stop(loader: pointer[loader_t]) -> void:
    """Takes back every request; returns when no worker is in this loader any more."""
    cold: pointer[cold_t]
    following: pointer[cold_t]
    running: uint32_t
    spin_lock(address(loader.lock))
    at_store32(address(loader.stopping), 1)  # under the lock: who asks sees it, or is in the list already
    spin_unlock(address(loader.lock))
    while True:
        spin_lock(address(loader.lock))
        cold = loader.held
        loader.held = NULL
        spin_unlock(address(loader.lock))
        while cold != NULL:
            following = cold.held_next
            _give_up(cold)
            _drop(cold)
            cold = following
        # Paused and waiting ones are taken out; one that runs sees `stopping` and ends by itself.
        while True:
            spin_lock(address(loader.lock))
            cold = loader.first
            if cold != NULL:
                _unlist(cold)
                cold.refs += 1
            spin_unlock(address(loader.lock))
            if cold == NULL:
                break
            if loader.system != NULL:
                request_cancel(address(cold.request))
            _give_up(cold)
            _drop(cold)
        running = at_load32(address(loader.live))
        if running == 0:
            return
        futex_wait(address(loader.live), running, STOP_LOOK_MS)


@cfunc
@nogil
@exceptval(check=False)
def _tell(loader: pointer[loader_t], queue_id: uint64_t, position: uint64_t, message_id: uint64_t) -> void:
    with gil:
        try:
            cast(ContentLoader, loader.owner)._told(queue_id, position, message_id)
        except Exception:
            log.exception("internal error: a message that can't be read was not told")


@cclass
class ContentLoader:
    """Args: messages, pages: the logs (pages may be None); limits: cold_*."""

    def __cinit__(self, messages: ManagedLog, pages, limits: object = None):
        memset(address(self.loader), 0, sizeof(loader_t))
        self.loader.owner = cast(p_void, self)
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
        self.loader.shared.bytes_max = self.limits.cold_shared_bytes

    def __dealloc__(self):
        with nogil:
            _stop(address(self.loader))
        map64_free(address(self.loader.map))
        shared_reads_free(address(self.loader.shared))
        if self.loader.spare != NULL:
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
            self.loader.readers.readers[self.loader.readers.count] = cast(p_void, reader)
            self.loader.readers.count += 1
        self.loader.spare = actor_get(system.system, ACTORS_COLD, 0, 0, 0)
        pace_begin(address(self.loader.pace), system_now(system.system))
        self.loader.system = system.system
        _retry_held(address(self.loader))

    def stop(self) -> None:
        """Ends: what waits is given back unloaded, no worker is here any more when this returns. Again is no error."""
        with nogil:
            _stop(address(self.loader))
        if self.loader.spare != NULL:
            actor_put(self.loader.spare)
            self.loader.spare = NULL
        shared_reads_free(address(self.loader.shared))
        for reader in self.readers:
            reader.close()
        self.readers = []
        self.loader.readers.count = 0
        if self.private and self.actors is not None:
            self.actors.stop()
        self.actors = None

    @property
    def figures(self) -> dict:
        """Entries loaded, runs, entries whose content could not be read, pauses for hot messages; contents that several queues wanted and
        that were read once for them; queues that wait now."""
        return {
            "loaded": at_load64(address(self.loader.loaded)),
            "runs": at_load64(address(self.loader.runs)),
            "failed": at_load64(address(self.loader.failed)),
            "pauses": at_load64(address(self.loader.pauses)),
            "shared": self.loader.shared.hits,
            "queues": at_load32(address(self.loader.live)),
        }

    @property
    def kept_bytes(self) -> int:
        """Of contents that were read back for several queues."""
        return self.loader.shared.bytes

    def rest(self) -> None:
        """Once or twice a second, on any thread: lets go of contents that no other queue asked for."""
        with nogil:
            shared_reads_rest(address(self.loader.shared))

    def watch(self, hot: pointer[uint64_t]) -> void:
        self.loader.pace.hot = hot

    def _told(self, queue_id: uint64_t, position: uint64_t, message_id: uint64_t) -> object:
        log.error(
            "the content of message %d (queue id %d, position %d) can't be read from the log: the entry is set aside",
            message_id,
            queue_id,
            position,
        )
        if self.on_failed is not None:
            self.on_failed(queue_id, position, message_id)


# --- who reads for the cold reader ------------------------------------------------------------------------------------------------


def readers_take(readers: pointer[readers_t], queue_id: uint64_t) -> c_int:
    i: uint32_t
    best: c_int = -1
    spin_lock(address(readers.lock))
    for i in range(readers.count):
        if readers.busy[i]:
            continue
        if readers.last_queue[i] == queue_id:
            best = i
            break
        if best < 0 or readers.last_used[i] < readers.last_used[best]:
            best = i
    if best >= 0:
        readers.uses += 1
        readers.busy[best] = True
        readers.last_queue[best] = queue_id
        readers.last_used[best] = readers.uses
    spin_unlock(address(readers.lock))
    return best


def readers_give(readers: pointer[readers_t], number: c_int) -> void:
    spin_lock(address(readers.lock))
    readers.busy[number] = False
    spin_unlock(address(readers.lock))
