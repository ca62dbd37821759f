"""Contents that were read back lately and wait in several queues (a fan-out): each is read and checked once, and in memory once.

in: contents as the cold reader brings them. out: the same contents, for the other queues that want them soon after.

S1  What is kept has a bound in bytes and in number (the one read longest ago goes), and is let go when nobody asked for half a second
    or so.
S2  Only contents of the message log with CONTENT_SHARED are kept: any other one waits in one queue, which has it then.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cfunc, declare, exceptval, nogil, pointer, sizeof, void
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import spin_lock, spin_unlock
from cython.cimports.flintmq.core.content import CONTENT_SHARED, content_decref, content_incref, content_t
from cython.cimports.flintmq.core.hash64 import map64_free, map64_get, map64_put, map64_remove
from cython.cimports.libc.stdint import uint32_t, uint64_t
from cython.cimports.libc.stdlib import free, malloc

# contents that are let go of under one hold of the lock
DROPPED_AT_ONCE = declare(c_int, 1024)


@cfunc
@nogil
@exceptval(check=False)
def _size(content: pointer[content_t]) -> uint64_t:
    return cast(uint64_t, content.body_len) + content.header_len


@cfunc
@nogil
@exceptval(check=False)
def shared_reads_get(reads: pointer[shared_reads_t], message_id: uint64_t) -> pointer[content_t]:
    place: uint64_t = 0
    content: pointer[content_t] = NULL
    if reads.count == 0:  # a look without the lock: who comes too early reads it once more
        return NULL
    spin_lock(address(reads.lock))
    if map64_get(address(reads.map), message_id, address(place)):
        content = reads.ring[place - 1]
        content_incref(content)
        reads.used = True
        reads.hits += 1
    spin_unlock(address(reads.lock))
    return content


@cfunc
@nogil
@exceptval(check=False)
def _drop_first(reads: pointer[shared_reads_t]) -> void:
    content: pointer[content_t] = reads.ring[reads.first]
    reads.first = (reads.first + 1) % SHARED_READS_MAX
    reads.count -= 1
    reads.bytes -= _size(content)
    map64_remove(address(reads.map), content.message_id)
    content_decref(content)


@cfunc
@nogil
@exceptval(check=False)
def shared_reads_put(reads: pointer[shared_reads_t], content: pointer[content_t]) -> void:
    place: uint32_t
    known: uint64_t = 0
    if not content.flags & CONTENT_SHARED or content.message_id == 0 or _size(content) > reads.bytes_max // 8:
        return
    spin_lock(address(reads.lock))
    if reads.ring == NULL:
        reads.ring = cast(pointer[pointer[content_t]], malloc(SHARED_READS_MAX * sizeof(pointer[content_t])))
    if reads.ring != NULL and not map64_get(address(reads.map), content.message_id, address(known)):
        while reads.count and (reads.count == SHARED_READS_MAX or reads.bytes + _size(content) > reads.bytes_max):
            _drop_first(reads)
        place = (reads.first + reads.count) % SHARED_READS_MAX
        if map64_put(address(reads.map), content.message_id, cast(uint64_t, place) + 1):
            content_incref(content)
            reads.ring[place] = content
            reads.count += 1
            reads.bytes += _size(content)
            reads.used = True
    spin_unlock(address(reads.lock))


@cfunc
@nogil
@exceptval(check=False)
def shared_reads_rest(reads: pointer[shared_reads_t]) -> void:
    used: bint
    spin_lock(address(reads.lock))
    used = reads.used
    reads.used = False
    spin_unlock(address(reads.lock))
    if not used and reads.ring != NULL:
        shared_reads_free(reads)


@cfunc
@nogil
@exceptval(check=False)
def shared_reads_free(reads: pointer[shared_reads_t]) -> void:
    i: uint32_t
    empty: bint = False
    while not empty:
        spin_lock(address(reads.lock))
        for i in range(DROPPED_AT_ONCE):
            if reads.count == 0:
                break
            _drop_first(reads)
        empty = reads.count == 0
        if empty:
            map64_free(address(reads.map))
            free(reads.ring)
            reads.ring = NULL
        spin_unlock(address(reads.lock))
