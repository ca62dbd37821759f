"""Counts of deliveries in the transaction log: notes about entries that came back, written by the thread that gave them back.

in: returns of logged entries (log_port_t.counted), notes that recovery read. out: notes, and one record for many of them that ended.

C1  A note is written without waiting for the disk: a crash may lose the counts of its last moments, never more.
C2  Positions are never used again, so a note that outlives its entry means nothing. Each new note is paid for with a look at LOOKS old
    ones, in turn: notes of entries that have ended are about as many as the others, at most, and NOTES_AT_ONCE.
C3  The end of a note takes no record of its own: its entry ended by a record that was logged before, and one filler behind that frees the
    containers of many notes. `ended` and the list together are the notes that live in the log.
C4  The list is in the order of LSNs: what lives below an LSN is found at its beginning (copy_below).
C5  What a note takes is in the account of memory.

Threading: any thread, with the GIL or without it.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cclass, cfunc, declare, exceptval, nogil, p_void, pointer, sizeof, void
from cython.cimports.flintmq.core.atomics import spin_lock, spin_unlock
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.hash64 import map64_free, map64_get, map64_put, map64_remove
from cython.cimports.flintmq.core.memory_account import MEMORY_ENTRIES, memory_add
from cython.cimports.flintmq.queue.control import QueueHandle
from cython.cimports.flintmq.queue.queue_core import queue_decref, queue_facts, queue_incref, queue_is_deleted
from cython.cimports.flintmq.queue.types import queue_t
from cython.cimports.flintmq.store.log.log import LSN_NEVER, log_append, log_append_done, log_begin, log_dead, log_end, log_live, log_time
from cython.cimports.flintmq.store.log.record import RECORD_NOTE, record_encode, record_prefix, set16, set32
from cython.cimports.flintmq.store.logs import Logs
from cython.cimports.flintmq.store.message_log import message_log_t, ml_kick
from cython.cimports.libc.stdint import int64_t, uint16_t, uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import calloc, free
from cython.cimports.libc.string import memset

from flintmq.errors import StoreError
from flintmq.ports import NOTE_DELIVERIES

KIND = declare(uint16_t, NOTE_DELIVERIES)
KEY_BYTES = declare(uint16_t, 16)
VALUE_BYTES = declare(uint32_t, 2)
# bytes of a note in memory: itself, and its place in the table
NOTE_BYTES = declare(int64_t, 128)


@cfunc
@nogil
@exceptval(check=False)
def _set_big(place: pointer[uint8_t], value: uint64_t, size: uint32_t) -> void:
    i: uint32_t
    for i in range(size):
        place[i] = cast(uint8_t, value >> (8 * (size - 1 - i)))


@cfunc
@nogil
@exceptval(check=False)
def _write(notes: pointer[count_notes_t], queue_id: uint64_t, position: uint64_t, count: uint32_t, old: uint64_t) -> uint64_t:
    """A note in the log, instead of the one at LSN `old` (0: there is none). Returns its LSN, or LSN_NEVER."""
    length: uint32_t = record_prefix(0) + 8 + KEY_BYTES + VALUE_BYTES
    lsn: uint64_t = 0
    own: pointer[uint8_t]
    record: pointer[uint8_t]
    log_begin(notes.log)
    record = log_append(notes.log, length, address(lsn))
    if record != NULL:
        own = record_encode(record, length, RECORD_NOTE, 0, 0, log_time(notes.log), 0, 0, 0)
        set16(own, KIND)
        set16(own + 2, KEY_BYTES)
        set32(own + 4, VALUE_BYTES)
        _set_big(own + 8, queue_id, 8)
        _set_big(own + 16, position, 8)
        _set_big(own + 24, count, 2)
        log_append_done(notes.log, record, length, lsn)
        log_live(notes.log, lsn, length)
        if old:
            check(lsn > old, b"count_notes C4 a note stands behind the one that it replaces", lsn, old)
            log_dead(notes.log, old, lsn + length)
    log_end(notes.log)
    return LSN_NEVER if record == NULL else lsn


@cfunc
@nogil
@exceptval(check=False)
def _end(notes: pointer[count_notes_t]) -> bint:
    """Notes whose entries have ended go. False: the log refuses."""
    length: uint32_t = record_prefix(0) + 8
    lsn: uint64_t = 0
    i: uint32_t
    own: pointer[uint8_t]
    record: pointer[uint8_t]
    if notes.ended_count == 0:
        return True
    log_begin(notes.log)
    record = log_append(notes.log, length, address(lsn))
    if record != NULL:
        own = record_encode(record, length, RECORD_NOTE, 0, 0, log_time(notes.log), 0, 0, 0)
        memset(own, 0, 8)
        log_append_done(notes.log, record, length, lsn)
        for i in range(notes.ended_count):
            log_dead(notes.log, notes.ended[i], lsn + length)
        notes.ended_count = 0
    log_end(notes.log)
    return record != NULL


# --- the table --------------------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _key(queue_id: uint64_t, position: uint64_t) -> uint64_t:
    key: uint64_t = (queue_id * cast(uint64_t, 0x9E3779B97F4A7C15)) ^ position
    return key if key else 1


@cfunc
@nogil
@exceptval(check=False)
def _chain(notes: pointer[count_notes_t], key: uint64_t) -> pointer[count_note_t]:
    word: uint64_t = 0
    if not map64_get(address(notes.by_place), key, address(word)):
        return NULL
    return cast(pointer[count_note_t], cast(p_void, word))


@cfunc
@nogil
@exceptval(check=False)
def _find(notes: pointer[count_notes_t], queue: pointer[queue_t], position: uint64_t) -> pointer[count_note_t]:
    note: pointer[count_note_t] = _chain(notes, _key(queue.id, position))
    while note != NULL and (note.queue != queue or note.position != position):
        note = note.same
    return note


@cfunc
@nogil
@exceptval(check=False)
def _link(notes: pointer[count_notes_t], note: pointer[count_note_t], lsn: uint64_t) -> void:
    """Puts it behind the others."""
    check(notes.last == NULL or lsn > notes.last.lsn, b"count_notes C4 notes are in the order of their LSNs", lsn, notes.count)
    note.lsn = lsn
    note.next = NULL
    note.previous = notes.last
    if notes.last == NULL:
        notes.first = note
    else:
        notes.last.next = note
    notes.last = note


@cfunc
@nogil
@exceptval(check=False)
def _unlink(notes: pointer[count_notes_t], note: pointer[count_note_t]) -> void:
    if notes.cursor == note:
        notes.cursor = note.next
    if note.previous == NULL:
        notes.first = note.next
    else:
        note.previous.next = note.next
    if note.next == NULL:
        notes.last = note.previous
    else:
        note.next.previous = note.previous


@cfunc
@nogil
@exceptval(check=False)
def _add(notes: pointer[count_notes_t], queue: pointer[queue_t], position: uint64_t) -> pointer[count_note_t]:
    """A new one, on no list yet. NULL: no memory."""
    key: uint64_t = _key(queue.id, position)
    note: pointer[count_note_t] = cast(pointer[count_note_t], calloc(1, sizeof(count_note_t)))
    if note == NULL:
        return NULL
    note.same = _chain(notes, key)
    if not map64_put(address(notes.by_place), key, cast(uint64_t, note)):
        free(note)
        return NULL
    note.queue = queue
    note.position = position
    queue_incref(queue)
    notes.count += 1
    memory_add(MEMORY_ENTRIES, NOTE_BYTES)
    return note


@cfunc
@nogil
@exceptval(check=False)
def _remove(notes: pointer[count_notes_t], note: pointer[count_note_t]) -> void:
    """Takes it out and frees it; the caller gives its reference to the queue back."""
    key: uint64_t = _key(note.queue.id, note.position)
    before: pointer[count_note_t] = _chain(notes, key)
    if before == note:
        if note.same == NULL:
            map64_remove(address(notes.by_place), key)
        else:
            map64_put(address(notes.by_place), key, cast(uint64_t, note.same))
    else:
        while before.same != note:
            before = before.same
        before.same = note.same
    _unlink(notes, note)
    check(notes.count > 0, b"count_notes C5 a note that goes was counted", note.lsn, note.position)
    notes.count -= 1
    memory_add(MEMORY_ENTRIES, -NOTE_BYTES)
    free(note)


@cfunc
@nogil
@exceptval(check=False)
def _look(notes: pointer[count_notes_t], most: uint32_t, queues: pointer[pointer[queue_t]]) -> uint32_t:
    """Looks at so many; those whose entry has ended go. Returns how many did; the caller gives the references in `queues` back, outside of
    the lock."""
    ended: uint32_t = 0
    message_id: uint64_t = 0
    expires_at_ms: int64_t = 0
    note: pointer[count_note_t]
    while most:
        most -= 1
        note = notes.cursor if notes.cursor != NULL else notes.first
        if note == NULL:
            break
        notes.cursor = note.next
        if not queue_is_deleted(note.queue) and queue_facts(note.queue, note.position, address(message_id), address(expires_at_ms)):
            continue
        if notes.ended_count == NOTES_AT_ONCE and not _end(notes):
            break
        notes.ended[notes.ended_count] = note.lsn
        notes.ended_count += 1
        queues[ended] = note.queue
        ended += 1
        _remove(notes, note)
    return ended


def counts_note(context: p_void, queue: pointer[queue_t], position: uint64_t, count: uint32_t) -> bint:
    ml: pointer[message_log_t] = cast(pointer[message_log_t], context)
    notes: pointer[count_notes_t] = cast(pointer[count_notes_t], ml.counts)
    queues: pointer[queue_t][LOOKS_MOST]
    note: pointer[count_note_t]
    lsn: uint64_t
    i: uint32_t
    ended: uint32_t
    spin_lock(address(notes.lock))
    note = _find(notes, queue, position)
    lsn = _write(notes, queue.id, position, count, 0 if note == NULL else note.lsn)
    if lsn != LSN_NEVER:
        if note != NULL:
            _unlink(notes, note)
        else:
            note = _add(notes, queue, position)
        if note != NULL:
            note.count = count
            _link(notes, note, lsn)
        else:
            log_begin(notes.log)
            log_dead(notes.log, lsn, lsn)  # it is in the log until its container goes: the count is kept that long
            log_end(notes.log)
    ended = _look(notes, LOOKS, queues)
    spin_unlock(address(notes.lock))
    for i in range(ended):
        queue_decref(queues[i])
    ml_kick(context, False)
    return lsn != LSN_NEVER


@cclass
class CountNotes:
    """See module. Args: logs: of the store, open."""

    def __cinit__(self, logs: Logs):
        memset(address(self.notes), 0, sizeof(count_notes_t))
        self.logs = logs
        self.notes.log = logs.transaction_records.log
        logs.ml.counts = address(self.notes)

    def __dealloc__(self):
        self.clear()

    def __len__(self) -> int:
        """Notes that live in the log."""
        return self.notes.count + self.notes.ended_count

    def adopt(self, handle: QueueHandle, position: int, count: int, lsn: int) -> None:
        """A note of the log that recovery read, about an entry that is there. In the order of LSNs. Raises: MemoryError."""
        note: pointer[count_note_t]
        place: uint64_t = position
        own_lsn: uint64_t = lsn
        number: uint32_t = count
        spin_lock(address(self.notes.lock))
        note = _add(address(self.notes), handle.queue, place)
        if note != NULL:
            note.count = number
            _link(address(self.notes), note, own_lsn)
        spin_unlock(address(self.notes.lock))
        if note == NULL:
            raise MemoryError("no memory for the delivery counts of a queue")

    def drop(self, lsn: int) -> None:
        """A note of the log that recovery read, whose entry is gone. Raises: StoreError."""
        if self.notes.ended_count == NOTES_AT_ONCE:
            self.end()
        self.notes.ended[self.notes.ended_count] = lsn
        self.notes.ended_count += 1

    def look(self, most: int) -> int:
        """Looks at so many notes, 32 at most; those whose entry has ended go. Returns how many did."""
        queues: pointer[queue_t][LOOKS_MOST]
        count: uint32_t = min(most, LOOKS_MOST)
        ended: uint32_t
        i: uint32_t
        with nogil:
            spin_lock(address(self.notes.lock))
            ended = _look(address(self.notes), count, queues)
            spin_unlock(address(self.notes.lock))
            for i in range(ended):
                queue_decref(queues[i])
        return ended

    def end(self) -> None:
        """Frees the containers of notes that were found to have ended. Raises: StoreError."""
        done: bint
        spin_lock(address(self.notes.lock))
        done = _end(address(self.notes))
        spin_unlock(address(self.notes.lock))
        if not done:
            raise self.logs.failure or StoreError("the log has failed")

    def copy_below(self, lsn: int) -> int:
        """Writes the notes that live below `lsn` anew, so that the base can pass. Returns how many; its cost is O(that).
        Raises: StoreError."""
        copied: uint64_t = 0
        copy: uint64_t = 0
        limit: uint64_t = lsn
        note: pointer[count_note_t]
        self.end()
        with nogil:
            while copy != LSN_NEVER:
                spin_lock(address(self.notes.lock))
                note = self.notes.first
                if note == NULL or note.lsn >= limit:
                    spin_unlock(address(self.notes.lock))
                    break
                copy = _write(address(self.notes), note.queue.id, note.position, note.count, note.lsn)
                if copy != LSN_NEVER:
                    _unlink(address(self.notes), note)
                    _link(address(self.notes), note, copy)
                    copied += 1
                spin_unlock(address(self.notes.lock))
        if copy == LSN_NEVER:
            raise self.logs.failure or StoreError("the log has failed")
        return copied

    def clear(self) -> None:
        """Forgets all, and the queues: the store is closed."""
        note: pointer[count_note_t]
        queue: pointer[queue_t]
        while True:
            spin_lock(address(self.notes.lock))
            note = self.notes.first
            queue = NULL
            if note != NULL:
                queue = note.queue
                _remove(address(self.notes), note)
            spin_unlock(address(self.notes.lock))
            if queue == NULL:
                break
            queue_decref(queue)
        self.notes.ended_count = 0
        map64_free(address(self.notes.by_place))
