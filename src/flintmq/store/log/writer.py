"""The writer of all logs of a store (see writer.pxd): takes finished blocks, writes them, syncs, tells who waits.

in: logs with something appended, kicks. out: bytes on disk, durable LSNs, wake-ups of loops.

I1  Logs are taken last to first and written first to last, and a later log waits while something of an earlier one is left over: a
    record of a later log (transactions) never is on disk before the records of an earlier one (messages) that were appended before it.
I2  After the first failed write or sync nothing is written and no durable LSN moves (never retried: facts of fsync).
I3  A log's durable LSN moves only after every descriptor that its bytes went to was synced.
I4  Logs of streams depend on no other log: they are written after the others, those that were told dirty and no others. The ticket
    that a pass began with is durable when the pass wrote everything that was dirty then: an append marks its log dirty first, then
    takes its ticket.
I5  But for dead letters in them (writer_letter): a pass that takes what may end an original writes the streams first, and nothing of the
    other logs while one with a letter waits for a container. It does not wait on a full disk (writer_waive): what ends messages makes room.

Streams are written in waves: all of a wave, then each is synced. The first sync makes the file system write its journal for all of them, so
the others are cheap.
"""

from __future__ import annotations

import threading

import cython
from cython.cimports.flintmq.core.atomics import (
    at_add32,
    at_load32,
    at_load64,
    at_store32,
    at_store64,
    at_sub32,
    at_swap32,
    spin_lock,
    spin_unlock,
)
from cython.cimports.flintmq.core.futex import futex_wait, futex_wake
from cython.cimports.flintmq.queue.log_port import log_port_wake
from cython.cimports.flintmq.store.failpoints import (
    FAIL_COMMIT_SYNCED,
    FAIL_COMMIT_WRITTEN,
    FAIL_MESSAGE_SYNCED,
    FAIL_MESSAGE_WRITTEN,
    failpoint,
)
from cython.cimports.flintmq.store.log.log import log_t, log_take, log_written, piece_t
from cython.cimports.libc.stdint import uint32_t, uint64_t
from cython.cimports.libc.stdlib import calloc, free
from cython.cimports.libc.string import memset

# milliseconds between looks when nothing happens
IDLE_MS = cython.declare(cython.int, 500)

# why run_until_python returned
STOPPED = cython.declare(cython.int, 1)
CALLBACKS = cython.declare(cython.int, 2)
FAILED = cython.declare(cython.int, 3)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _point(log: cython.pointer(log_t), messages: uint32_t, transactions: uint32_t) -> cython.void:
    if log.id == 1:
        failpoint(messages)
    elif log.id == 2:
        failpoint(transactions)


def writer_kick(writer):
    # In this order: a writer that did not find it urgent after it looked at the word does not sleep on that word.
    at_store32(cython.address(writer.urgent), 1)
    at_add32(cython.address(writer.signal), 1)
    if at_load32(cython.address(writer.sleeping)):
        futex_wake(cython.address(writer.signal), 1)


def writer_kick_soon(writer):
    if at_swap32(cython.address(writer.soon), 1):
        return
    at_add32(cython.address(writer.signal), 1)
    if at_load32(cython.address(writer.sleeping)):
        futex_wake(cython.address(writer.signal), 1)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _push(writer: cython.pointer(writer_t), dirty: cython.pointer(dirty_log_t)) -> cython.void:
    dirty.next = cython.NULL
    spin_lock(cython.address(writer.dirty_lock))
    if writer.dirty_first == cython.NULL:
        writer.dirty_first = dirty
    else:
        writer.dirty_last.next = dirty
    writer.dirty_last = dirty
    spin_unlock(cython.address(writer.dirty_lock))


def writer_dirty(writer, dirty):
    if dirty.state != DIRTY_NOT:
        return False
    dirty.state = DIRTY_QUEUED
    _push(writer, dirty)
    return True


def writer_resume(writer, dirty):
    spin_lock(cython.address(dirty.log.lock))
    dirty.waived = False
    if dirty.state == DIRTY_STARVED:
        dirty.state = DIRTY_QUEUED
        # In this order: a pass that finds no log waiting finds this one among the dirty.
        _push(writer, dirty)
        at_sub32(cython.address(writer.starved_logs), 1)
        if dirty.letter:
            at_sub32(cython.address(writer.letters_starved), 1)
    spin_unlock(cython.address(dirty.log.lock))


def writer_letter(writer, dirty):
    spin_lock(cython.address(dirty.log.lock))
    if dirty.state != DIRTY_NOT and not dirty.waived:  # else it is durable
        if dirty.state == DIRTY_STARVED and dirty.letter == 0:
            at_add32(cython.address(writer.letters_starved), 1)
            at_add32(cython.address(writer.letters_late), 1)
        dirty.letter = dirty.log.tail
        at_store32(cython.address(writer.letters), 1)
    spin_unlock(cython.address(dirty.log.lock))


def writer_waive(writer, dirty):
    waived: cython.bint = False
    spin_lock(cython.address(dirty.log.lock))
    if dirty.state == DIRTY_STARVED:
        dirty.waived = True
        if dirty.letter:
            dirty.letter = 0
            at_sub32(cython.address(writer.letters_starved), 1)
            waived = True
    spin_unlock(cython.address(dirty.log.lock))
    return waived


@cython.cclass
class LogWriter:
    """One writer. Logs are added in the order in which they must reach the disk. Callbacks are plain attributes."""

    def __cinit__(self, files):
        memset(cython.address(self.writer), 0, cython.sizeof(writer_t))
        self.files = files
        self.writer.batches = cython.cast(cython.pointer(batch_t), calloc(LOGS_MAX, cython.sizeof(batch_t)))
        self.writer.wave = cython.cast(cython.pointer(wave_t), calloc(WAVE_MAX, cython.sizeof(wave_t)))
        if self.writer.batches == cython.NULL or self.writer.wave == cython.NULL:
            raise MemoryError
        self.on_callbacks = None
        self.on_failed = None
        self.thread = None

    def __dealloc__(self):
        free(self.writer.batches)
        free(self.writer.wave)

    def add(self, log):
        if self.writer.log_count == LOGS_MAX:
            raise MemoryError("too many logs for one writer")
        spin_lock(cython.address(self.writer.lock))
        self.writer.logs[self.writer.log_count] = log
        self.writer.log_count += 1
        spin_unlock(cython.address(self.writer.lock))
        return 0

    # --- thread -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the writer thread."""
        self.thread = threading.Thread(target=self._run, name="flintmq-log-writer", daemon=True)
        self.thread.start()

    def stop(self) -> None:
        """Writes what is there, then ends the thread."""
        at_store32(cython.address(self.writer.stopping), 1)
        writer_kick(cython.address(self.writer))
        if self.thread is not None:
            self.thread.join()
            self.thread = None

    def kick(self) -> None:
        """There is something to write, or a container is ready now."""
        writer_kick(cython.address(self.writer))

    def want_callbacks(self, count: int) -> None:
        """How many Python callbacks wait for durability: 0 spares the writer the GIL."""
        at_store32(cython.address(self.writer.callbacks), count)

    def wait_progress(self, seen: int, timeout_s: float) -> int:
        """Sleeps until a log went on to another container, or waits for one, since this returned `seen`; at most `timeout_s`. Returns what
        to give the next time. The writer tells so without the GIL: it never waits for who maintains the containers."""
        before: uint32_t = seen
        most_ms: cython.int = max(1, int(timeout_s * 1000))
        with cython.nogil:
            if at_load32(cython.address(self.writer.progress)) == before:
                futex_wait(cython.address(self.writer.progress), before, most_ms)
        return at_load32(cython.address(self.writer.progress))

    def tell_progress(self) -> None:
        """Ends a wait_progress, as if there had been progress."""
        self._tell_progress()

    def _tell_progress(self):
        at_add32(cython.address(self.writer.progress), 1)
        futex_wake(cython.address(self.writer.progress), 1)

    def flush(self, flags: int = 0) -> int:
        """One pass on the caller's thread (only while no writer thread runs). Returns a PASS_*; callbacks are called."""
        what: cython.int
        wanted: uint32_t = flags
        with cython.nogil:
            what = self.one_pass(wanted)
        self._tell(FAILED if what == PASS_FAILED else 0)
        if at_load32(cython.address(self.writer.callbacks)) and self.on_callbacks is not None:
            self.on_callbacks()
        return what

    @property
    def figures(self) -> dict:
        """passes (group commits) and syncs so far."""
        return {"passes": self.writer.passes, "syncs": self.writer.syncs}

    @property
    def durable_ticket(self) -> int:
        """The last ticket of streams up to which everything is durable."""
        return at_load64(cython.address(self.writer.port.durable_ticket)) if self.writer.port != cython.NULL else 0

    def _run(self):
        what: cython.int
        while True:
            with cython.nogil:
                what = self.run_until_python()
            self._tell(what)
            if what == STOPPED or what == FAILED:
                return

    def _tell(self, what):
        if what == FAILED and self.on_failed is not None:
            self.on_failed(
                self.writer.failed_errno, self.writer.failed_log, self.writer.failed_lsn, "sync" if self.writer.failed_sync else "write"
            )
        elif what == CALLBACKS and self.on_callbacks is not None:
            self.on_callbacks()

    def run_until_python(self):
        signal: uint32_t
        what: cython.int
        at: uint64_t
        while True:
            signal = at_load32(cython.address(self.writer.signal))
            at_store32(cython.address(self.writer.urgent), 0)
            # Swapped before anything is taken: what is appended after that sets it again.
            at_swap32(cython.address(self.writer.soon), 0)
            what = self.one_pass(0)
            if what == PASS_FAILED:
                return FAILED
            if what == PASS_PROGRESS:
                self.writer.starved_told = False
                at = self.writer.logs[0].tail // self.writer.logs[0].container_size if self.writer.log_count else self.writer.last_container
                if at != self.writer.last_container or at_swap32(cython.address(self.writer.wanting), 0):
                    self.writer.last_container = at
                    self._tell_progress()
                if at_load32(cython.address(self.writer.callbacks)):
                    return CALLBACKS
                if self.writer.left_over:
                    continue
                # What came meanwhile without a kick (acks, which nobody waits for) goes with the next group.
            if what == PASS_STARVED and not self.writer.starved_told:
                self.writer.starved_told = True
                self.writer.last_container = 0
                self._tell_progress()
                continue
            if at_load32(cython.address(self.writer.stopping)) and what != PASS_PROGRESS:  # who stops it sees to a full disk
                return STOPPED
            # Say that we sleep, then look at the word: a kick after the look changes it.
            at_store32(cython.address(self.writer.sleeping), 1)
            futex_wait(cython.address(self.writer.signal), signal, IDLE_MS)
            signal = at_load32(cython.address(self.writer.signal))
            if at_load32(cython.address(self.writer.soon)) and not at_load32(cython.address(self.writer.urgent)):
                at_store32(cython.address(self.writer.sleeping), 2)
                futex_wait(cython.address(self.writer.signal), signal, self.writer.soon_ms)
            at_store32(cython.address(self.writer.sleeping), 0)

    # --- a pass -------------------------------------------------------------------------------------------------------

    def one_pass(self, flags):
        i: uint32_t
        j: uint32_t
        count: uint32_t
        error: cython.int
        progress: cython.bint = False
        starved: cython.bint = False
        streams: cython.int = PASS_IDLE
        ticket: uint64_t = 0
        starvations: uint64_t = self.writer.starvations
        waits: cython.bint = at_load32(cython.address(self.writer.starved_logs)) != 0
        batch: cython.pointer(batch_t)
        piece: cython.pointer(piece_t)
        spin_lock(cython.address(self.writer.lock))
        count = self.writer.log_count
        spin_unlock(cython.address(self.writer.lock))
        if at_load32(cython.address(self.writer.failed)):
            return PASS_IDLE
        for i in range(count):
            if at_load32(cython.address(self.writer.logs[i].failed)):
                return PASS_IDLE
        if self.writer.port != cython.NULL:
            ticket = at_load64(cython.address(self.writer.port.stream_ticket))
        i = count
        while i > 0:
            i -= 1
            batch = cython.address(self.writer.batches[i])
            if batch.count == 0:  # else it waits since an earlier pass
                batch.log = self.writer.logs[i]
                batch.count = log_take(batch.log, batch.pieces, cython.address(batch.upto), cython.address(batch.complete), flags)
        self.writer.held = (self.writer.held or at_load32(cython.address(self.writer.letters)) != 0) and not self._letters_first(
            flags, cython.address(streams)
        )
        if streams == PASS_FAILED:
            return PASS_FAILED
        progress = streams == PASS_PROGRESS
        starved = self.writer.held
        for i in range(count):
            batch = cython.address(self.writer.batches[i])
            if starved:
                break  # what is left over of an earlier log may be older than this (I1)
            starved = not batch.complete
            if batch.count == 0:
                continue
            for j in range(batch.count):
                piece = cython.address(batch.pieces[j])
                error = self.files.write_at(self.files.context, piece.fd, piece.bytes, piece.size, piece.lsn % batch.log.container_size)
                if error:
                    return self._fail(batch.log, piece.lsn, error, False, count)
            _point(batch.log, FAIL_MESSAGE_WRITTEN, FAIL_COMMIT_WRITTEN)
            if batch.log.syncs:
                for j in range(batch.count):
                    piece = cython.address(batch.pieces[j])
                    if j + 1 < batch.count and batch.pieces[j + 1].fd == piece.fd:
                        continue
                    error = self.files.sync_data(self.files.context, piece.fd)
                    self.writer.syncs += 1
                    if error:
                        return self._fail(batch.log, piece.lsn, error, True, count)
                _point(batch.log, FAIL_MESSAGE_SYNCED, FAIL_COMMIT_SYNCED)
            log_written(batch.log, batch.upto)
            batch.count = 0
            progress = True
        self.writer.left_over = starved
        if self.writer.dirty_first != cython.NULL:
            if progress and self.writer.port != cython.NULL:
                log_port_wake(self.writer.port)  # nobody waits for streams who does not have to
            streams = self._write_dirty(flags)
            if streams == PASS_FAILED:
                return PASS_FAILED
            progress = progress or streams == PASS_PROGRESS
        if (
            self.writer.port != cython.NULL
            # None waited when the pass began, and none came to: one that went on meanwhile is written by the next pass only.
            and not waits
            and self.writer.starvations == starvations
            and at_load64(cython.address(self.writer.port.durable_ticket)) != ticket
        ):
            at_store64(cython.address(self.writer.port.durable_ticket), ticket)
            progress = True  # also when all that was dirty was deleted
        if not progress:
            return PASS_STARVED if starved or at_load32(cython.address(self.writer.starved_logs)) else PASS_IDLE
        self.writer.passes += 1
        if self.writer.port != cython.NULL:
            log_port_wake(self.writer.port)
        return PASS_PROGRESS

    def _letters_first(self, flags, result):
        """Writes the streams, for a dead letter among them. False: one with a letter waits for a container (I5)."""
        late: uint32_t
        waiting: uint32_t
        at_store32(cython.address(self.writer.letters), 0)
        # Before the list is taken: one that goes on meanwhile is in it, or was seen waiting.
        late = at_load32(cython.address(self.writer.letters_late))
        waiting = at_load32(cython.address(self.writer.letters_starved))
        result[0] = self._write_dirty(flags)
        return waiting == 0 and at_load32(cython.address(self.writer.letters_late)) == late

    def _write_dirty(self, flags):
        """Writes the logs of streams that were told dirty before this."""
        count: uint32_t
        what: cython.int
        result: cython.int = PASS_IDLE
        dirty: cython.pointer(dirty_log_t)
        spin_lock(cython.address(self.writer.dirty_lock))
        dirty = self.writer.dirty_first
        self.writer.dirty_first = cython.NULL
        spin_unlock(cython.address(self.writer.dirty_lock))
        while dirty != cython.NULL:
            count = 0
            while dirty != cython.NULL and count < WAVE_MAX:
                self.writer.wave[count].dirty = dirty
                dirty = dirty.next
                count += 1
            what = self._write_wave(count, flags)
            if what == PASS_FAILED:
                return PASS_FAILED
            if what == PASS_PROGRESS:
                result = what
        return result

    def _write_wave(self, count, flags):
        """Writes what these logs had when their turn came, container by container."""
        i: uint32_t
        error: cython.int
        result: cython.int = PASS_IDLE
        left: cython.bint = True
        one: cython.pointer(wave_t)
        log: cython.pointer(log_t)
        for i in range(count):
            one = cython.address(self.writer.wave[i])
            log = one.dirty.log
            one.dead = False
            one.ended = False
            spin_lock(cython.address(log.lock))
            one.target = log.tail
            spin_unlock(cython.address(log.lock))
        while left:
            left = False
            for i in range(count):
                one = cython.address(self.writer.wave[i])
                if not one.ended and self._take_one(one, flags) != 0:
                    return PASS_FAILED
            for i in range(count):
                one = cython.address(self.writer.wave[i])
                if one.ended:
                    continue
                if one.count:
                    error = self._sync_one(one)
                    if error:
                        return PASS_FAILED
                    result = PASS_PROGRESS
                one.ended = one.complete or one.count == 0 or one.upto >= one.target
                left = left or not one.ended
        for i in range(count):
            self._end_one(cython.address(self.writer.wave[i]))
        return result

    def _take_one(self, one, flags):
        """Takes up to one container of it, and writes that. Not 0: it failed."""
        log: cython.pointer(log_t) = one.dirty.log
        piece: cython.pointer(piece_t)
        i: uint32_t
        error: cython.int
        one.count = 0
        if at_load32(cython.address(log.failed)):
            one.dead = True
            one.ended = True
            return 0
        one.count = log_take(log, one.pieces, cython.address(one.upto), cython.address(one.complete), flags)
        for i in range(one.count):
            piece = cython.address(one.pieces[i])
            error = self.files.write_at(self.files.context, piece.fd, piece.bytes, piece.size, piece.lsn % log.container_size)
            if error:
                self._fail(log, piece.lsn, error, False, self.writer.log_count)
                return error
        return 0

    def _sync_one(self, one):
        """Syncs what was written, and tells so. Not 0: it failed."""
        log: cython.pointer(log_t) = one.dirty.log
        container: uint64_t = at_load64(cython.address(log.durable)) // log.container_size
        i: uint32_t
        error: cython.int
        for i in range(one.count):
            if i + 1 < one.count and one.pieces[i + 1].fd == one.pieces[i].fd:
                continue
            error = self.files.sync_data(self.files.context, one.pieces[i].fd)
            self.writer.syncs += 1
            if error:
                self._fail(log, one.pieces[i].lsn, error, True, self.writer.log_count)
                return error
        log_written(log, one.upto)
        one.dirty.moved(one.dirty)
        if one.upto // log.container_size != container:
            at_store32(cython.address(self.writer.wanting), 1)
        return 0

    def _end_one(self, one):
        """Its turn is over: it waits for a container, or for its next turn, or is let go."""
        dirty: cython.pointer(dirty_log_t) = one.dirty
        log: cython.pointer(log_t) = dirty.log
        spin_lock(cython.address(log.lock))
        if one.dead or at_load64(cython.address(log.durable)) >= dirty.letter:
            dirty.letter = 0
        if not one.dead and not one.complete and one.count == 0:
            # A container is missing. Under the lock: whoever makes one then finds the log waiting.
            dirty.state = DIRTY_STARVED
            self.writer.starvations += 1
            at_add32(cython.address(self.writer.starved_logs), 1)
            if dirty.letter:
                at_add32(cython.address(self.writer.letters_starved), 1)
                at_add32(cython.address(self.writer.letters_late), 1)
            at_store32(cython.address(self.writer.wanting), 1)
            self.writer.starved_told = False
            spin_unlock(cython.address(log.lock))
            return
        if not one.dead and (not one.complete or log.block != 0 or (log.last != cython.NULL and log.last.taken < log.last.used)):
            _push(cython.address(self.writer), dirty)  # more came meanwhile
            spin_unlock(cython.address(log.lock))
            return
        dirty.state = DIRTY_NOT
        spin_unlock(cython.address(log.lock))
        dirty.done(dirty)

    def _fail(self, log, lsn, error, sync, count):
        """Latches the failure in every log of the store."""
        i: uint32_t
        self.writer.failed_errno = error
        self.writer.failed_log = log.id
        self.writer.failed_lsn = lsn
        self.writer.failed_sync = sync
        at_store32(cython.address(log.failed), cython.cast(uint32_t, error))
        at_store32(cython.address(self.writer.failed), cython.cast(uint32_t, error))
        for i in range(count):
            at_store32(cython.address(self.writer.logs[i].failed), cython.cast(uint32_t, error))
        return PASS_FAILED
