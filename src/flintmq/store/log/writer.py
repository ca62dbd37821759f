"""The writer of all logs of a store (see writer.pxd): takes finished blocks, writes them, syncs, tells the waiting threads.

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
I6  Logs of streams that wait for a container are counted, and so are those of them that have a dead letter. A log that is written, or
    waits, was told dirty.
I7  Written bytes stand behind durable ones, in one container.

Streams are written in waves: all of a wave, then each is synced. The first sync makes the file system write its journal for all of them, so
the others are cheap.
"""

from __future__ import annotations

import threading

from cython import NULL, address, bint, cast, cclass, cfunc, declare, exceptval, inline, nogil, pointer, sizeof, void
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import (
    at_add32, at_load32, at_load64, at_store32, at_store64, at_sub32, at_swap32, spin_lock, spin_unlock,
)  # fmt: skip
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.failpoints import (
    FAIL_COMMIT_SYNCED, FAIL_COMMIT_WRITTEN, FAIL_MESSAGE_SYNCED, FAIL_MESSAGE_WRITTEN, failpoint,
)  # fmt: skip
from cython.cimports.flintmq.core.futex import futex_wait, futex_wake
from cython.cimports.flintmq.core.pass_trace import (
    PHASE_DELIVER, PHASE_GIL, PHASE_LOG, PHASE_PYTHON, PHASE_READ, PHASE_SEND, PassTrace, pass_trace, trace_free, trace_phase, trace_sleeps,
    trace_wakes,
)  # fmt: skip
from cython.cimports.flintmq.queue.log_port import log_port_wake
from cython.cimports.flintmq.store.log.log import log_t, log_take, log_written, piece_t
from cython.cimports.libc.stdint import uint32_t, uint64_t
from cython.cimports.libc.stdlib import calloc, free
from cython.cimports.libc.string import memset

# milliseconds between looks when nothing happens
IDLE_MS = declare(c_int, 500)
# id of the index log (containers.py)
INDEX_LOG = declare(uint32_t, 5)

# why run_until_python returned
STOPPED = declare(c_int, 1)
CALLBACKS = declare(c_int, 2)
FAILED = declare(c_int, 3)


@cfunc
@inline
@nogil
@exceptval(check=False)
def _point(log: pointer[log_t], messages: uint32_t, transactions: uint32_t) -> void:
    if log.id == 1:
        failpoint(messages)
    elif log.id == 2:
        failpoint(transactions)


def writer_has_work(writer: pointer[writer_t]) -> bint:
    i: uint32_t
    for i in range(at_load32(address(writer.log_count))):
        if at_load64(address(writer.logs[i].tail)) > at_load64(address(writer.logs[i].durable)):
            return True
    # An append to a stream took a ticket; the list of dirty logs would not do: a log that is being written is not in it again.
    return writer.port != NULL and at_load64(address(writer.port.stream_ticket)) != at_load64(address(writer.port.durable_ticket))


def writer_kick(writer: pointer[writer_t]) -> void:
    # In this order: a writer that did not find it urgent after it looked at the word does not sleep on that word.
    at_store32(address(writer.urgent), 1)
    at_add32(address(writer.signal), 1)
    if at_load32(address(writer.sleeping)):
        futex_wake(address(writer.signal), 1)


def writer_kick_soon(writer: pointer[writer_t]) -> void:
    if at_swap32(address(writer.soon), 1):
        return
    at_add32(address(writer.signal), 1)
    if at_load32(address(writer.sleeping)) == 1:  # else it looks by itself within `soon_ms`
        futex_wake(address(writer.signal), 1)


@cfunc
@nogil
@exceptval(check=False)
def _push(writer: pointer[writer_t], dirty: pointer[dirty_log_t]) -> void:
    dirty.next = NULL
    spin_lock(address(writer.dirty_lock))
    if writer.dirty_first == NULL:
        writer.dirty_first = dirty
    else:
        writer.dirty_last.next = dirty
    writer.dirty_last = dirty
    spin_unlock(address(writer.dirty_lock))


def writer_dirty(writer: pointer[writer_t], dirty: pointer[dirty_log_t]) -> bint:
    if dirty.state != DIRTY_NOT:
        return False
    dirty.state = DIRTY_QUEUED
    _push(writer, dirty)
    return True


def writer_resume(writer: pointer[writer_t], dirty: pointer[dirty_log_t]) -> void:
    spin_lock(address(dirty.log.lock))
    dirty.waived = False
    if dirty.state == DIRTY_STARVED:
        dirty.state = DIRTY_QUEUED
        # In this order: a pass that finds no log waiting finds this one among the dirty.
        _push(writer, dirty)
        check(at_sub32(address(writer.starved_logs), 1) > 0, b"writer I6 a log that goes on was counted as waiting", dirty.log.tail, 0)
        if dirty.letter:
            check(
                at_sub32(address(writer.letters_starved), 1) > 0,
                b"writer I6 a dead letter that goes on was counted as waiting",
                dirty.letter,
                dirty.log.tail,
            )
    spin_unlock(address(dirty.log.lock))


def writer_letter(writer: pointer[writer_t], dirty: pointer[dirty_log_t]) -> void:
    spin_lock(address(dirty.log.lock))
    if dirty.state != DIRTY_NOT and not dirty.waived:  # else it is durable
        if dirty.state == DIRTY_STARVED and dirty.letter == 0:
            at_add32(address(writer.letters_starved), 1)
            at_add32(address(writer.letters_late), 1)
        dirty.letter = dirty.log.tail
        at_store32(address(writer.letters), 1)
    spin_unlock(address(dirty.log.lock))


def writer_waive(writer: pointer[writer_t], dirty: pointer[dirty_log_t]) -> bint:
    waived: bint = False
    spin_lock(address(dirty.log.lock))
    if dirty.state == DIRTY_STARVED:
        dirty.waived = True
        if dirty.letter:
            dirty.letter = 0
            check(at_sub32(address(writer.letters_starved), 1) > 0, b"writer I6 a waived dead letter was counted", dirty.log.tail, 0)
            waived = True
    spin_unlock(address(dirty.log.lock))
    return waived


@cclass
class LogWriter:
    """One writer. Logs are added in the order in which they must reach the disk. Callbacks are plain attributes."""

    def __cinit__(self, files):
        memset(address(self.writer), 0, sizeof(writer_t))
        self.files = files
        self.writer.batches = cast(pointer[batch_t], calloc(LOGS_MAX, sizeof(batch_t)))
        self.writer.wave = cast(pointer[wave_t], calloc(WAVE_MAX, sizeof(wave_t)))
        if self.writer.batches == NULL or self.writer.wave == NULL:
            raise MemoryError
        self.on_callbacks = None
        self.on_failed = None
        self.thread = None

    def __dealloc__(self):
        trace_free(address(self.trace))
        free(self.writer.batches)
        free(self.writer.wave)

    def add(self, log: pointer[log_t]) -> c_int:
        if self.writer.log_count == LOGS_MAX:
            raise MemoryError("too many logs for one writer")
        spin_lock(address(self.writer.lock))
        self.writer.logs[self.writer.log_count] = log
        at_store32(address(self.writer.log_count), self.writer.log_count + 1)
        spin_unlock(address(self.writer.lock))
        return 0

    # --- thread -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the writer thread."""
        self.thread = threading.Thread(target=self._run, name="flintmq-log-writer", daemon=True)
        self.thread.start()

    def stop(self) -> None:
        """Writes what is there, then ends the thread."""
        at_store32(address(self.writer.stopping), 1)
        writer_kick(address(self.writer))
        if self.thread is not None:
            self.thread.join()
            self.thread = None

    def kick(self) -> None:
        """There is something to write, or a container is ready now."""
        writer_kick(address(self.writer))

    def want_callbacks(self, count: int) -> None:
        """How many Python callbacks wait for durability: 0 spares the writer the GIL."""
        at_store32(address(self.writer.callbacks), count)

    def wait_progress(self, seen: int, timeout_s: float) -> int:
        """Sleeps until a log went on to another container, or waits for one, since this returned `seen`; at most `timeout_s`. Returns what
        to give the next time. The writer tells so without the GIL: it never waits for who maintains the containers."""
        before: uint32_t = seen
        most_ms: c_int = max(1, int(timeout_s * 1000))
        with nogil:
            if at_load32(address(self.writer.progress)) == before:
                futex_wait(address(self.writer.progress), before, most_ms)
        return at_load32(address(self.writer.progress))

    def tell_progress(self) -> None:
        """Ends a wait_progress, as if there had been progress."""
        self._tell_progress()

    def _tell_progress(self) -> void:
        at_add32(address(self.writer.progress), 1)
        futex_wake(address(self.writer.progress), 1)

    def flush(self, flags: int = 0) -> int:
        """One pass on the caller's thread (only while no writer thread runs). Returns a PASS_*; callbacks are called."""
        outcome: c_int
        wanted: uint32_t = flags
        with nogil:
            outcome = self.one_pass(wanted)
        self._tell(FAILED if outcome == PASS_FAILED else 0)
        if at_load32(address(self.writer.callbacks)) and self.on_callbacks is not None:
            self.on_callbacks()
        return outcome

    def passes(self) -> PassTrace:
        """Where the time of its passes goes: `read` takes blocks, `log` writes, `deliver` syncs, `send` wakes the loops."""
        return pass_trace("log writer", address(self.trace), self)

    @property
    def figures(self) -> dict:
        """passes (group commits) and syncs so far."""
        return {"passes": self.writer.passes, "syncs": self.writer.syncs}

    @property
    def durable_ticket(self) -> int:
        """The last ticket of streams up to which everything is durable."""
        return at_load64(address(self.writer.port.durable_ticket)) if self.writer.port != NULL else 0

    def _run(self):
        outcome: c_int
        while True:
            with nogil:
                outcome = self.run_until_python()
                trace_phase(address(self.trace), PHASE_GIL)
            trace_phase(address(self.trace), PHASE_PYTHON)
            self._tell(outcome)
            if outcome == STOPPED or outcome == FAILED:
                return

    def _tell(self, event):
        if event == FAILED and self.on_failed is not None:
            self.on_failed(
                self.writer.failed_errno, self.writer.failed_log, self.writer.failed_lsn, "sync" if self.writer.failed_sync else "write"
            )
        elif event == CALLBACKS and self.on_callbacks is not None:
            self.on_callbacks()

    def run_until_python(self) -> c_int:
        signal: uint32_t
        outcome: c_int
        sequence: uint64_t
        naps: bint
        while True:
            trace_phase(address(self.trace), PHASE_READ)
            signal = at_load32(address(self.writer.signal))
            at_store32(address(self.writer.urgent), 0)
            # Swapped before anything is taken: what is appended after that sets it again.
            at_swap32(address(self.writer.soon), 0)
            outcome = self.one_pass(0)
            if outcome == PASS_FAILED:
                return FAILED
            if outcome == PASS_PROGRESS:
                self.writer.starved_told = False
                sequence = (
                    self.writer.logs[0].tail // self.writer.logs[0].container_size if self.writer.log_count else self.writer.last_container
                )
                if sequence != self.writer.last_container or at_swap32(address(self.writer.wanting), 0):
                    self.writer.last_container = sequence
                    self._tell_progress()
                if at_load32(address(self.writer.callbacks)):
                    return CALLBACKS
                if self.writer.left_over:
                    continue
                # A record that came meanwhile without a kick (acks, which nobody waits for) goes with the next group.
            if outcome == PASS_STARVED and not self.writer.starved_told:
                self.writer.starved_told = True
                self.writer.last_container = 0
                self._tell_progress()
                continue
            if at_load32(address(self.writer.stopping)) and outcome != PASS_PROGRESS:  # who stops it sees to a full disk
                return STOPPED
            # While records come, the writer looks again after `soon_ms` by itself: what nobody waits for (acks) then wakes it with no kick,
            # and takes no processor from a loop. `sleeping` 2 says so. It sleeps soundly after a pass that had nothing to do.
            naps = (
                outcome == PASS_PROGRESS
                and at_load32(address(self.writer.signal)) == signal
                and not at_load32(address(self.writer.stopping))
            )
            # Say that we sleep, then look at the word: a kick after the look changes it.
            at_store32(address(self.writer.sleeping), 2 if naps else 1)
            trace_sleeps(address(self.trace))
            futex_wait(address(self.writer.signal), signal, self.writer.soon_ms if naps else IDLE_MS)
            signal = at_load32(address(self.writer.signal))
            if not naps and at_load32(address(self.writer.soon)) and not at_load32(address(self.writer.urgent)):
                at_store32(address(self.writer.sleeping), 2)
                futex_wait(address(self.writer.signal), signal, self.writer.soon_ms)
            trace_wakes(address(self.trace))
            at_store32(address(self.writer.sleeping), 0)

    # --- a pass -------------------------------------------------------------------------------------------------------

    def one_pass(self, flags: uint32_t) -> c_int:
        i: uint32_t
        j: uint32_t
        count: uint32_t
        error: c_int
        progress: bint = False
        starved: bint = False
        streams: c_int = PASS_IDLE
        ticket: uint64_t = 0
        starvations: uint64_t = self.writer.starvations
        waits: bint = at_load32(address(self.writer.starved_logs)) != 0
        batch: pointer[batch_t]
        piece: pointer[piece_t]
        spin_lock(address(self.writer.lock))
        count = self.writer.log_count
        spin_unlock(address(self.writer.lock))
        if at_load32(address(self.writer.failed)):
            return PASS_IDLE
        for i in range(count):
            if at_load32(address(self.writer.logs[i].failed)):
                return PASS_IDLE
        if self.writer.port != NULL:
            ticket = at_load64(address(self.writer.port.stream_ticket))
        i = count
        while i > 0:
            i -= 1
            batch = address(self.writer.batches[i])
            if batch.count == 0:  # else it waits since an earlier pass
                batch.log = self.writer.logs[i]
                batch.count = log_take(batch.log, batch.pieces, address(batch.upto), address(batch.complete), flags)
        self.writer.held = (self.writer.held or at_load32(address(self.writer.letters)) != 0) and not self._letters_first(
            flags, address(streams)
        )
        if streams == PASS_FAILED:
            return PASS_FAILED
        progress = streams == PASS_PROGRESS
        starved = self.writer.held
        for i in range(count):
            batch = address(self.writer.batches[i])
            if starved:
                break  # what is left over of an earlier log may be older than this (I1)
            starved = not batch.complete
            if batch.count == 0:
                continue
            if batch.log.id == INDEX_LOG and progress and self.writer.port != NULL:
                log_port_wake(self.writer.port)  # nobody waits for the index
            trace_phase(address(self.trace), PHASE_LOG)
            for j in range(batch.count):
                piece = address(batch.pieces[j])
                check(
                    piece.lsn >= at_load64(address(batch.log.durable)),
                    b"writer I7 nothing durable is written again",
                    piece.lsn,
                    batch.log.durable,
                )
                check(
                    piece.lsn % batch.log.container_size + piece.size <= batch.log.container_size,
                    b"writer I7 a write stays in its container",
                    piece.lsn,
                    piece.size,
                )
                error = self.files.write_at(self.files.context, piece.fd, piece.bytes, piece.size, piece.lsn % batch.log.container_size)
                if error:
                    return self._fail(batch.log, piece.lsn, error, False, count)
            _point(batch.log, FAIL_MESSAGE_WRITTEN, FAIL_COMMIT_WRITTEN)
            trace_phase(address(self.trace), PHASE_DELIVER)
            if batch.log.syncs:
                for j in range(batch.count):
                    piece = address(batch.pieces[j])
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
        if self.writer.dirty_first != NULL:
            if progress and self.writer.port != NULL:
                log_port_wake(self.writer.port)  # nobody waits for streams who does not have to
            streams = self._write_dirty(flags)
            if streams == PASS_FAILED:
                return PASS_FAILED
            progress = progress or streams == PASS_PROGRESS
        if (
            self.writer.port != NULL
            # None waited when the pass began, and none came to: one that went on meanwhile is written by the next pass only.
            and not waits
            and self.writer.starvations == starvations
            and at_load64(address(self.writer.port.durable_ticket)) != ticket
        ):
            check(
                ticket > self.writer.port.durable_ticket,
                b"writer I4 tickets become durable in their order",
                ticket,
                self.writer.port.durable_ticket,
            )
            at_store64(address(self.writer.port.durable_ticket), ticket)
            progress = True  # also when all that was dirty was deleted
        if not progress:
            return PASS_STARVED if starved or at_load32(address(self.writer.starved_logs)) else PASS_IDLE
        self.writer.passes += 1
        trace_phase(address(self.trace), PHASE_SEND)
        if self.writer.port != NULL:
            log_port_wake(self.writer.port)
        return PASS_PROGRESS

    def _letters_first(self, flags: uint32_t, result: pointer[c_int]) -> bint:
        """Writes the streams, for a dead letter among them. False: one with a letter waits for a container (I5)."""
        late: uint32_t
        waiting: uint32_t
        at_store32(address(self.writer.letters), 0)
        # Before the list is taken: one that goes on meanwhile is in it, or was seen waiting.
        late = at_load32(address(self.writer.letters_late))
        waiting = at_load32(address(self.writer.letters_starved))
        result[0] = self._write_dirty(flags)
        return waiting == 0 and at_load32(address(self.writer.letters_late)) == late

    def _write_dirty(self, flags: uint32_t) -> c_int:
        """Writes the logs of streams that were told dirty before this."""
        count: uint32_t
        outcome: c_int
        result: c_int = PASS_IDLE
        dirty: pointer[dirty_log_t]
        spin_lock(address(self.writer.dirty_lock))
        dirty = self.writer.dirty_first
        self.writer.dirty_first = NULL
        spin_unlock(address(self.writer.dirty_lock))
        while dirty != NULL:
            count = 0
            while dirty != NULL and count < WAVE_MAX:
                self.writer.wave[count].dirty = dirty
                dirty = dirty.next
                count += 1
            outcome = self._write_wave(count, flags)
            if outcome == PASS_FAILED:
                return PASS_FAILED
            if outcome == PASS_PROGRESS:
                result = outcome
        return result

    def _write_wave(self, count: uint32_t, flags: uint32_t) -> c_int:
        """Writes what these logs had when their turn came, container by container."""
        i: uint32_t
        error: c_int
        result: c_int = PASS_IDLE
        is_done: bint = True
        one: pointer[wave_t]
        log: pointer[log_t]
        for i in range(count):
            one = address(self.writer.wave[i])
            log = one.dirty.log
            one.dead = False
            one.ended = False
            spin_lock(address(log.lock))
            one.target = log.tail
            spin_unlock(address(log.lock))
        while is_done:
            is_done = False
            for i in range(count):
                one = address(self.writer.wave[i])
                if not one.ended and self._take_one(one, flags) != 0:
                    return PASS_FAILED
            for i in range(count):
                one = address(self.writer.wave[i])
                if one.ended:
                    continue
                if one.count:
                    error = self._sync_one(one)
                    if error:
                        return PASS_FAILED
                    result = PASS_PROGRESS
                one.ended = one.complete or one.count == 0 or one.upto >= one.target
                is_done = is_done or not one.ended
        for i in range(count):
            self._end_one(address(self.writer.wave[i]))
        return result

    def _take_one(self, one: pointer[wave_t], flags: uint32_t) -> c_int:
        """Takes up to one container of it, and writes that. Not 0: it failed."""
        log: pointer[log_t] = one.dirty.log
        piece: pointer[piece_t]
        i: uint32_t
        error: c_int
        one.count = 0
        if at_load32(address(log.failed)):
            one.dead = True
            one.ended = True
            return 0
        one.count = log_take(log, one.pieces, address(one.upto), address(one.complete), flags)
        for i in range(one.count):
            piece = address(one.pieces[i])
            check(
                piece.lsn >= at_load64(address(log.durable)),
                b"writer I7 nothing durable of a stream is written again",
                piece.lsn,
                log.durable,
            )
            check(
                piece.lsn % log.container_size + piece.size <= log.container_size,
                b"writer I7 a write of a stream stays in its container",
                piece.lsn,
                piece.size,
            )
            error = self.files.write_at(self.files.context, piece.fd, piece.bytes, piece.size, piece.lsn % log.container_size)
            if error:
                self._fail(log, piece.lsn, error, False, self.writer.log_count)
                return error
        return 0

    def _sync_one(self, one: pointer[wave_t]) -> c_int:
        """Syncs what was written, and tells so. Not 0: it failed."""
        log: pointer[log_t] = one.dirty.log
        container: uint64_t = at_load64(address(log.durable)) // log.container_size
        i: uint32_t
        error: c_int
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
            at_store32(address(self.writer.wanting), 1)
        return 0

    def _end_one(self, one: pointer[wave_t]) -> void:
        """Its turn is over: it waits for a container, or for its next turn, or is let go."""
        dirty: pointer[dirty_log_t] = one.dirty
        log: pointer[log_t] = dirty.log
        spin_lock(address(log.lock))
        check(dirty.state == DIRTY_QUEUED, b"writer I6 a log whose turn ends was told dirty", dirty.state, log.tail)
        if one.dead or at_load64(address(log.durable)) >= dirty.letter:
            dirty.letter = 0
        if not one.dead and not one.complete and one.count == 0:
            # A container is missing. Under the lock: whoever makes one then finds the log waiting.
            dirty.state = DIRTY_STARVED
            self.writer.starvations += 1
            at_add32(address(self.writer.starved_logs), 1)
            if dirty.letter:
                at_add32(address(self.writer.letters_starved), 1)
                at_add32(address(self.writer.letters_late), 1)
            at_store32(address(self.writer.wanting), 1)
            self.writer.starved_told = False
            spin_unlock(address(log.lock))
            return
        if not one.dead and (not one.complete or log.block != 0 or (log.last != NULL and log.last.taken < log.last.used)):
            _push(address(self.writer), dirty)  # more came meanwhile
            spin_unlock(address(log.lock))
            return
        dirty.state = DIRTY_NOT
        spin_unlock(address(log.lock))
        dirty.done(dirty)

    def _fail(self, log: pointer[log_t], lsn: uint64_t, error: c_int, sync: bint, count: uint32_t) -> c_int:
        """Latches the failure in every log of the store."""
        i: uint32_t
        self.writer.failed_errno = error
        self.writer.failed_log = log.id
        self.writer.failed_lsn = lsn
        self.writer.failed_sync = sync
        at_store32(address(log.failed), cast(uint32_t, error))
        at_store32(address(self.writer.failed), cast(uint32_t, error))
        for i in range(count):
            at_store32(address(self.writer.logs[i].failed), cast(uint32_t, error))
        return PASS_FAILED
