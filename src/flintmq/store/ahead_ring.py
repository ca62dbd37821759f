"""Pieces of the log ahead of a reader (see ahead_ring.pxd).

in: where a run of reads stands. out: the log's bytes there, read around the page cache: what a drained backlog needs once would push out
of it what others need, and be copied on its way through it.

G1  Only containers that are on disk to their end are read; what is in them never changes while their container has that number.
G2  A log that is not synced is not read like this: it was written through the page cache and is still there, or was hardly ever on disk.
G3  Memory is given back, and a descriptor closed, only when no read of it is under way.
"""

from __future__ import annotations

from errno import EINVAL, EOPNOTSUPP

from cython import NULL, address, bint, cast, cclass, no_gc_clear, pointer, void
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import at_load64
from cython.cimports.flintmq.store.log.file_port import DIRECT_ALIGN, direct_memory
from cython.cimports.flintmq.store.log.managed import ManagedLog
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import free
from cython.cimports.libc.string import memcpy


@no_gc_clear  # its end needs what it has
@cclass
class AheadRing:
    """Args: files: the file port of the logs."""

    def __cinit__(self, files):
        self.files = files
        self.reads = None
        self.fd = -1

    def __dealloc__(self):
        if self.on:
            AheadRing.stop(self)

    def start(self, owner: ManagedLog | None, lsn: uint64_t) -> bint:
        self.stop()
        self.owner = owner
        self.log = owner.log
        if self.refused or not self.log.syncs or self.log.container_size % DIRECT_ALIGN:  # G2
            return False
        if self.reads is None:
            self.reads = self.files.direct_reads(AHEAD_PIECES)
            self.refused = self.reads is None
        if self.refused:
            return False
        self.memory = cast(pointer[uint8_t], direct_memory(AHEAD_PIECES * (AHEAD_CARRY + AHEAD_PIECE), True))
        if self.memory == NULL:
            return False
        self.on = True
        self.next_lsn = lsn - lsn % self.log.container_size % AHEAD_PIECE
        self._fill()
        if self.count == 0:
            self.stop()
        return self.on

    def piece(self, lsn: uint64_t, least: uint64_t) -> pointer[ahead_piece_t]:
        found: pointer[ahead_piece_t]
        end: uint64_t
        while self.count:
            found = address(self.pieces[self.first])
            end = found.lsn + found.read.size
            if lsn < found.begin or lsn >= self.next_lsn + AHEAD_PIECE:
                return NULL
            if lsn < end:
                self.reads.wait(address(found.read))
                if found.read.result != cast(int64_t, found.read.size):
                    return NULL
                if lsn + least <= end:
                    return found
                if not self._carry(lsn):
                    return NULL
            self._release()
            self._fill()
        return NULL

    def _carry(self, lsn: uint64_t) -> bint:
        """What the oldest piece has from `lsn` on goes before the next one. False: that one has nothing to do with it, or is not there."""
        piece: pointer[ahead_piece_t] = address(self.pieces[self.first])
        following: pointer[ahead_piece_t] = address(self.pieces[(self.first + 1) % AHEAD_PIECES])
        size: uint64_t = piece.lsn + piece.read.size - lsn
        if self.count < 2 or piece.last or size > AHEAD_CARRY:
            return False
        memcpy(
            cast(pointer[uint8_t], following.read.data) - size,
            cast(pointer[uint8_t], piece.read.data) + cast(int64_t, lsn - piece.lsn),
            size,
        )
        following.begin = lsn
        return True

    def stop(self) -> void:
        while self.count:
            self._release()
        if self.fd >= 0:
            self._close(self.fd)
        self.fd = -1
        self.on = False
        free(self.memory)
        self.memory = NULL

    def _release(self) -> void:
        """The oldest piece goes."""
        piece: pointer[ahead_piece_t] = address(self.pieces[self.first])
        self.reads.wait(address(piece.read))
        if piece.last:
            self._close(piece.read.fd)
        self.first = (self.first + 1) % AHEAD_PIECES
        self.count -= 1

    def _fill(self) -> void:
        """Asks for as many pieces as there is room for."""
        size: uint64_t = self.log.container_size
        slot: uint32_t
        inside: uint64_t
        piece: pointer[ahead_piece_t]
        while self.count < AHEAD_PIECES:
            inside = self.next_lsn % size
            # G1
            if self.next_lsn - inside + size > at_load64(address(self.log.durable)):
                return
            if self.fd < 0 and not self._open(self.next_lsn // size):
                return
            slot = (self.first + self.count) % AHEAD_PIECES
            piece = address(self.pieces[slot])
            piece.lsn = piece.begin = self.next_lsn
            piece.read.fd = self.fd
            piece.read.data = self.memory + slot * (AHEAD_CARRY + AHEAD_PIECE) + AHEAD_CARRY
            piece.read.offset = inside
            piece.read.size = min(cast(uint64_t, AHEAD_PIECE), size - inside)
            piece.last = inside + piece.read.size == size
            if not self.reads.begin(address(piece.read)):
                return
            self.count += 1
            self.next_lsn += piece.read.size
            if piece.last:
                self.fd = -1  # the piece has it now

    def _open(self, sequence: uint64_t) -> bint:
        try:
            self.fd = self.files.open_direct(self.owner.path_of(sequence))
        except OSError as error:
            # Else it was recycled or unlinked, since nothing in it is needed, or it is damaged: who reads it by other means will tell.
            self.refused = error.errno in (EINVAL, EOPNOTSUPP)
            self.fd = -1
        return self.fd >= 0

    def _close(self, fd: c_int) -> void:
        try:
            self.files.close(fd)
        except OSError:
            pass  # it was only read
