"""A log with its files (see managed.pxd): opens it, keeps containers ready in front of the tail, moves the base, recycles.

in: what a scan found; the store's maintenance, one thread at a time. out: container files through the file port; the table of containers
in log_t.

I1  A container below the base goes only when the base on disk has passed it (base_durable) and every record that ended something in
    it is durable.
I2  A container is READY in the table only after its directory was synced.
I3  The base moves forward, and never past the tail.
I4  A container's final name appears only after its header is durable, and counts only after the directory's fsync.
I5  Opening is idempotent: a crash at any point of it leaves a store that opens to the same state.
I6  Nothing is trusted because a read showed it, not even after a clean stop: at every start the containers from the durable hint's to
    the tail's are written to new files and synced before anything is confirmed (after a failed sync the page cache may show bytes that
    the disk does not have).

Source: seed 003 ("Log Usage", container options); facts of recycling in docs/RELIABILITY.md.
"""

from __future__ import annotations

import errno
import logging
import os

from cython import NULL, address, bint, cast, cclass, p_char, pointer
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import at_load64, at_store32, at_store64, spin_lock, spin_unlock
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.store.log.log import (
    CONTAINER_ABSENT, CONTAINER_READY, CONTAINER_SEALED, LSN_NEVER, container_t, log_append, log_append_done, log_begin, log_container,
    log_continue, log_dead, log_dirty, log_end, log_forget_containers, log_forget_deaths, log_free, log_is_live, log_live, log_live_bytes,
    log_new, log_read_buffered, log_time, log_trim, log_where,
)  # fmt: skip
from cython.cimports.flintmq.store.log.record import (
    BLOCK_CLEAN, BLOCK_HEADER, CONTAINER_HEADER, RECORD_TRANSACTION, RECORD_UNDO_NEXT, SECTOR, align8, record_encode, record_prefix, set64,
)  # fmt: skip
from cython.cimports.flintmq.store.log.writer import LogWriter
from cython.cimports.libc.stdint import uint16_t, uint32_t, uint64_t, uint8_t
from cython.cimports.libc.string import memcpy

from flintmq.slotted import replaced
from flintmq.core import failpoints
from flintmq.core.checksum import crc32c_of
from flintmq.errors import StoreError
from flintmq.store.log.containers import (
    HEADER_SIZE,
    TEMPORARY,
    ContainerHeader,
    LogSettings,
    container_name,
    in_present_format,
    sequence_of,
)

log = logging.getLogger("flintmq.store")

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
# what the process may run out of, and gets back: no failure of the disk, so it is tried again
NO_MEANS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
# dead containers that are kept for reuse, besides what retention keeps
SPARE_DEAD = 1
# files that a log may have unless it is told otherwise
UNBOUNDED = 1 << 30


@cclass
class ManagedLog:
    """One log of a store. Args: files: the file port; directory: of the containers; settings: LogSettings."""

    def __cinit__(self, files, directory, settings):
        self.files = files
        self.directory = directory
        self.name = settings.name
        self.store_uuid = settings.store_uuid
        self.clock = settings.clock
        self.log = log_new(settings.log_id, settings.container_size, settings.container_size, settings.syncs)
        if self.log == NULL:
            raise MemoryError
        self._dead = []
        self._sealed_ms = {}
        self.ahead = 2
        self.retain_bytes = settings.retain_bytes
        self.retain_ms = settings.retain_s * 1000
        self.pins = None
        self.archive = settings.archive
        self._archived = set()
        self.reserves = settings.reserves
        self.needed = 2
        self.tight = False
        self.most = UNBOUNDED
        self.keep_from = LSN_NEVER

    def __dealloc__(self):
        if self.log != NULL:
            log_free(self.log)

    # --- opening ------------------------------------------------------------------------------------------------------

    def open_new(self, initial: int, epoch: int = 1) -> None:
        """A log that has no container yet: makes `initial` of them (at least 2, as CLFS asks for). Raises: StoreError when there is no room
        for the first: the other logs of the store must not be written while a log that they name things of is not there."""
        self.files.make_dir(self.directory)
        self.log.epoch = epoch
        self.ahead = max(2, initial)
        self.prepare(True)
        if self.log.container_count == 0:
            cause = os.strerror(errno.ENOSPC)
            raise StoreError(f"can't make the first container in {self.directory}: {cause}; {self.log.container_size:,} bytes are needed")

    def open_later(self, ahead: int, epoch: int) -> None:
        """A log without a container: the first ones are made when something was appended, by `prepare`."""
        self.log.epoch = epoch
        self.ahead = ahead
        self._unmade = True

    def open_at(self, tail: int, last_block: int, epoch: int, base: int) -> None:
        """Goes on behind what a scan found. The containers from the base on must be adopted afterwards."""
        log_continue(self.log, tail, last_block, epoch, base)

    def adopt(self, sequence: int) -> None:
        """An existing container from the base's on; ascending. Those before the tail's are sealed."""
        container: pointer[container_t]
        tail_sequence: uint64_t = self.log.tail // self.log.container_size
        spin_lock(address(self.log.lock))
        while self.log.container_count and self.log.first_sequence + self.log.container_count < sequence:
            container = log_container(self.log, self.log.first_sequence + self.log.container_count)
            if container == NULL:
                break
            container.state = CONTAINER_SEALED  # missing: damage, which recovery has named
        container = log_container(self.log, sequence)
        spin_unlock(address(self.log.lock))
        if container == NULL:
            raise MemoryError
        if sequence < tail_sequence:
            container.state = CONTAINER_SEALED
            self._sealed_ms[sequence] = self.clock.monotonic_ns() // 1_000_000  # retention counts from now: no earlier time is known
        else:
            container.fd = self.files.open(self.path_of(sequence))
            if self.log.syncs:
                self.files.make_direct(container.fd)
            container.state = CONTAINER_READY
            at_store64(address(self.log.ready_end), (sequence + 1) * self.log.container_size)

    def adopt_dead(self, sequence: int) -> None:
        """A container below the base that is kept for readers; ascending."""
        self._dead_held = True
        self._dead.append(sequence)
        self._sealed_ms[sequence] = self.clock.monotonic_ns() // 1_000_000

    def release_dead(self) -> None:
        """A block of this run is durable: its hint covers the block that told the base, so what the base has passed may go."""
        self._dead_held = False

    def path_of(self, sequence: int) -> str:
        """Path of a container."""
        return f"{self.directory}/{container_name(sequence)}"

    # --- maintenance --------------------------------------------------------------------------------------------------

    def prepare(self, zero: bool, most: int = UNBOUNDED) -> int:
        """Makes up to `most` containers until `ahead` are ready in front of the tail's, or the log has all the files it may have, but
        `needed` ones then; dead ones are reused first. Returns how many.

        zero: fill new ones with zeros (cheaper syncs later, twice the writing now). A full disk sets `low` and is no error. Raises: OSError
        of another kind; of NO_MEANS the log is as it was, and this can be called again.
        """
        tail: uint64_t = self.log.tail // self.log.container_size
        following: uint64_t = at_load64(address(self.log.ready_end)) // self.log.container_size
        sequence: uint64_t
        made: list = []
        container: pointer[container_t]
        if self._unmade:
            self.files.make_dir(self.directory)
            self._unmade = False
        last: uint64_t = min(tail + self.ahead, max(tail + self.needed, following - self.file_count + self.most - 1))
        sequence = following
        while sequence <= last and len(made) < most:
            try:
                fd = self._next_file(sequence, zero and self.log.syncs)
            except OSError as error:
                if error.errno in NO_MEANS and made:
                    break  # those that could be made are of use
                if error.errno not in NO_SPACE:
                    raise
                was_roomy = not self.low
                self.low = 1
                if was_roomy and self._expendable() is not None:
                    continue  # what only retention kept makes room
                break
            made.append((sequence, fd))
            if self.log.container_count == 0 and len(made) == 1:
                self._sync_made(made)  # else a later one could be there without the first: no log begins like that
            sequence += 1
        else:
            self.low = 0
        if made:
            self._sync_made(made)
            spin_lock(address(self.log.lock))
            for number, fd in made:
                container = log_container(self.log, number)
                check(
                    container != NULL and container.state == CONTAINER_ABSENT,
                    b"managed I2 a container is made once",
                    number,
                    self.log.first_sequence,
                )
                container.fd = fd
                container.state = CONTAINER_READY
            at_store64(address(self.log.ready_end), sequence * self.log.container_size)
            spin_unlock(address(self.log.lock))
        return len(made)

    def _sync_made(self, made):
        """Their names become durable. Without a descriptor for that nobody has seen them: they go again."""
        try:
            self.files.sync_dir(self.directory)
        except OSError as error:
            if error.errno in NO_MEANS:
                for number, fd in reversed(made):
                    self.files.close(fd)
                    self.files.unlink(self.path_of(number))
            raise

    def _next_file(self, sequence, zero):
        header = ContainerHeader(
            self.store_uuid,
            self.log.id,
            self.log.epoch,
            sequence,
            self.log.container_size,
            self.clock.wall_ms() * 1000,
        )
        old = self._expendable()
        if old is not None:
            fd = recycle_container(self.files, self.directory, old, header, bool(self.log.syncs))
            self._forget_dead(old)
            failpoints.hit("container-recycled")
            return fd
        if not self._has_room(sequence):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path_of(sequence))
        # What nobody waits for (the page log) is left to the page cache: most of it is dead before the cache is written.
        fd = make_container(self.files, self.directory, header, zero, bool(self.log.syncs))
        failpoints.hit("container-created")
        return fd

    def _has_room(self, sequence):
        """Whether the disk has room for this container and for what must stay free: the less is ready, the less that is."""
        free = self.free_bytes()
        if free is None:
            return True
        ahead = sequence - self.log.tail // self.log.container_size
        reserve = self.reserves.last if ahead <= 1 else self.reserves.tight if ahead <= self.needed else self.reserves.roomy
        return free - self.log.container_size >= reserve

    def free_bytes(self) -> int | None:
        """Bytes free on the disk that the log is on; None: unknown."""
        return self.files.free_bytes(self.directory)

    def _expendable(self):
        """The oldest dead container that nobody needs any more, or None."""
        if not self._dead or self._dead_held:
            return None
        oldest = self._dead[0]
        if self.archive is not None and oldest not in self._archived:
            return None
        if self.pins is not None:
            pinned = self.pins()
            if pinned is not None and oldest >= pinned:
                return None
        if self.low or self.tight:
            return oldest  # readers of the past must not stop the present
        kept = len(self._dead) * self.log.container_size
        age = self.clock.monotonic_ns() // 1_000_000 - self._sealed_ms.get(oldest, 0)
        if kept <= self.retain_bytes and age <= self.retain_ms:
            return None
        return oldest

    def archive_dead(self, most: int) -> int:
        """Copies up to `most` dead containers to the archive, oldest first; only then may their files go. Returns how many.

        A container counts as archived once its name in the archive is durable. Raises: OSError; what is dead then stays.
        """
        missing = [sequence for sequence in self._dead if sequence not in self._archived]
        if self.archive is None or not missing:
            return 0
        self.files.make_dir(self.archive)
        archived, copied = archive_containers(self.files, self.directory, f"{self.archive}/{self.name}", missing, most)
        self._archived.update(archived)
        return copied

    def seal(self) -> None:
        """Closes the descriptors of containers that are full and durable."""
        i: uint32_t
        durable: uint64_t = at_load64(address(self.log.durable))
        fd: c_int
        closing: list = []
        spin_lock(address(self.log.lock))
        for i in range(self.log.container_count):
            if self.log.containers[i].state == CONTAINER_READY and (
                (self.log.containers[i].sequence + 1) * self.log.container_size <= durable
                or (
                    # The end of a container may be left unused: then the tail has passed it.
                    self.log.first != NULL
                    and self.log.first.taken // self.log.container_size > self.log.containers[i].sequence
                    and durable // self.log.container_size > self.log.containers[i].sequence
                )
            ):
                self.log.containers[i].state = CONTAINER_SEALED
                fd = self.log.containers[i].fd
                self.log.containers[i].fd = -1
                if self.log.containers[i].live_count == 0:
                    log_forget_deaths(address(self.log.containers[i]))
                closing.append((self.log.containers[i].sequence, fd))
        spin_unlock(address(self.log.lock))
        now = self.clock.monotonic_ns() // 1_000_000
        for sequence, descriptor in closing:
            self._sealed_ms[sequence] = now
            if descriptor >= 0:
                self.files.close(descriptor)

    def base_target(self) -> int:
        """LSN up to which nothing lives any more: where advance_base would move the base."""
        i: uint32_t
        durable: uint64_t = at_load64(address(self.log.durable))
        tail: uint64_t = self.log.tail // self.log.container_size
        to: uint64_t = at_load64(address(self.log.base))
        spin_lock(address(self.log.lock))
        for i in range(self.log.container_count):
            if (
                self.log.containers[i].sequence >= tail
                or self.log.containers[i].live_count
                or self.log.containers[i].ended_at > durable  # LSN behind the record
                or self.log.containers[i].ended_at >= self.keep_from
                or self.log.containers[i].state != CONTAINER_SEALED
            ):
                break
            to = (self.log.containers[i].sequence + 1) * self.log.container_size
        spin_unlock(address(self.log.lock))
        return to

    def advance_base(self) -> bool:
        """Moves the base past containers in which nothing lives any more. True when it moved."""
        to: uint64_t = self.base_target()
        if to <= at_load64(address(self.log.base)):
            return False
        check(to <= self.log.tail, b"managed I3 the base is not above the tail", to, self.log.tail)
        at_store64(address(self.log.base), to)
        return True

    def retire(self) -> int:
        """Containers that the base on disk has passed become dead: to be recycled when retention lets them. Returns how many."""
        gone: uint64_t
        first: uint64_t = self.log.first_sequence
        if not self.log.syncs:
            # Nobody ever recovers it: its base need not be on disk.
            at_store64(address(self.log.base_durable), at_load64(address(self.log.base)))
        gone = at_load64(address(self.log.base_durable)) // self.log.container_size
        if gone <= first:
            return 0
        names = self.files.list_dir(self.directory)  # first: when it can't be read, they are retired later
        check(gone * self.log.container_size <= self.log.base, b"managed I1 the base on disk is not above the base", gone, self.log.base)
        spin_lock(address(self.log.lock))
        log_forget_containers(self.log, gone)
        spin_unlock(address(self.log.lock))
        self._dead.extend(number for number in range(first, gone) if container_name(number) in names)
        return gone - first

    def trim(self) -> int:
        """Removes dead containers that retention no longer keeps and that the log won't need soon. Returns how many."""
        removed = 0
        spare = 0 if self.file_count >= self.most else min(self.ahead, SPARE_DEAD)
        kept = 0 if self.tight else self.retain_bytes + spare * self.log.container_size
        while len(self._dead) * self.log.container_size > kept:
            oldest = self._expendable()
            if oldest is None:
                break
            self._forget_dead(oldest)
            self.files.unlink(self.path_of(oldest))
            removed += 1
        if removed:
            self.files.sync_dir(self.directory)
        return removed

    def _forget_dead(self, sequence):
        self._dead.remove(sequence)
        self._sealed_ms.pop(sequence, None)
        self._archived.discard(sequence)

    def shed(self) -> int:
        """Gives containers back that are ready and that nobody uses: all but `needed` on a disk that is nearly full, else what is more
        than the log may have. Returns how many."""
        given: list = []
        ready: uint64_t
        keep: uint64_t
        last: pointer[container_t]
        spin_lock(address(self.log.lock))
        ready = self.log.ready_end // self.log.container_size
        keep = self.log.tail // self.log.container_size + self.needed + 1
        if not self.tight and self.log.container_count:
            keep = max(keep, self.log.first_sequence + self.most)
        while ready > keep and self.log.container_count:
            last = address(self.log.containers[self.log.container_count - 1])
            if last.sequence != ready - 1 or last.state != CONTAINER_READY:
                break
            given.append((last.sequence, last.fd))
            self.log.container_count -= 1
            ready -= 1
        at_store64(address(self.log.ready_end), ready * self.log.container_size)
        spin_unlock(address(self.log.lock))
        for sequence, fd in given:  # from the last one down: a crash in between leaves no gap
            self.files.close(fd)
            self.files.unlink(self.path_of(sequence))
        if given:
            self.files.sync_dir(self.directory)
        return len(given)

    def set_ahead(self, count: int) -> None:
        """How many containers are kept ready in front of the tail."""
        self.ahead = count

    def set_reserves(self, reserves) -> None:
        """space.Reserves: what stays free of the disk."""
        self.reserves = reserves

    def set_needed(self, count: int) -> None:
        """How many containers in front of the tail's are made although the disk is tight."""
        self.needed = count

    def set_most(self, count: int) -> None:
        """How many files the log may have, dead ones left aside."""
        self.most = count

    def give_back_buffers(self) -> None:
        """The write buffers that wait for reuse go: the log fills slowly."""
        log_trim(self.log)

    def set_tight(self, tight: bool) -> None:
        """Whether the disk is nearly full: dead containers are then not kept for anybody."""
        self.tight = tight

    def set_keep(self, lsn: int) -> None:
        """A container in which something ended at or behind this LSN stays, for who began to write down what lived there."""
        self.keep_from = lsn

    def set_pins(self, pins) -> None:
        """`pins()` gives the lowest sequence that a reader needs, or None."""
        self.pins = pins

    def close(self) -> None:
        """Closes every descriptor, and forgets who reads: a closed log leads to nobody (LogStore.close)."""
        i: uint32_t
        self.pins = None
        for i in range(self.log.container_count):
            if self.log.containers[i].fd >= 0:
                self.files.close(self.log.containers[i].fd)
                self.log.containers[i].fd = -1

    # --- records that are not on the message path -----------------------------------------------------------------------

    def append(
        self, kind: int, payload: bytes = b"", undo_prev: int = 0, tx: int = 0, flags: int = 0, undo_next: int = 0, stream: int = 0
    ) -> tuple:
        """Appends one record. Returns (its LSN, the LSN behind it: what to wait for). undo_next: not together with tx.

        Raises: StoreError when the log has failed; ValueError when it is larger than a window of the log.
        """
        lsn: uint64_t = 0
        record: pointer[uint8_t]
        own: pointer[uint8_t]
        bits: uint16_t = flags | (RECORD_TRANSACTION if tx else 0) | (RECORD_UNDO_NEXT if undo_next else 0)
        length: uint32_t = record_prefix(bits) + len(payload)
        if align8(length) + BLOCK_HEADER + CONTAINER_HEADER > self.log.buffer_size:
            raise ValueError(f"a record of {length} bytes does not fit into a write buffer of {self.log.buffer_size}")
        log_begin(self.log)
        record = log_append(self.log, length, address(lsn))
        if record != NULL:
            own = record_encode(record, length, kind, stream, bits, log_time(self.log), undo_prev, tx, 0)
            if undo_next:
                set64(own, undo_next)
                own += 8
            memcpy(own, cast(p_char, payload), len(payload))
            log_append_done(self.log, record, length, lsn)
        log_end(self.log)
        if record == NULL:
            raise StoreError(f"log {self.name} has failed: errno {self.log.failed}")
        return lsn, lsn + length

    def read(self, lsn: int, size: int) -> bytes:
        """Up to `size` bytes at `lsn`, inside its container: as they are in memory, else as the file has them (empty: it is gone)."""
        buffer: bytearray
        data: p_char
        count: uint64_t
        offset: uint64_t = lsn % self.log.container_size
        size = min(size, self.log.container_size - offset)
        buffer = bytearray(size)
        data = buffer
        count = log_read_buffered(self.log, lsn, cast(pointer[uint8_t], data), size)
        if count:
            return bytes(buffer[:count])
        try:
            fd = self.files.open(self.path_of(lsn // self.log.container_size))
        except FileNotFoundError:
            return b""
        try:
            return self.files.read(fd, size, offset)
        finally:
            self.files.close(fd)

    def written_by(self, writer: LogWriter) -> None:
        """The writer that puts this log on disk, after the logs it has already. Raises: MemoryError when it has too many."""
        writer.add(self.log)

    def mark_live(self, lsn: int, size: int) -> None:
        """A thing (transaction, note) lives at this LSN."""
        log_begin(self.log)
        log_live(self.log, lsn, size)
        log_end(self.log)

    def mark_dead(self, lsn: int, by: int) -> None:
        """It ended, by the record at LSN `by`."""
        log_begin(self.log)
        log_dead(self.log, lsn, by)
        log_end(self.log)

    def is_live(self, thing: int) -> bool:
        """Whether the message (transaction, note) with this id lives."""
        alive: bint
        log_begin(self.log)
        alive = log_is_live(self.log, log_where(self.log, thing))
        log_end(self.log)
        return alive

    def latch(self, error: int) -> None:
        """The disk failed: nothing is appended or becomes durable any more."""
        if not self.log.failed:
            at_store32(address(self.log.failed), error)

    # --- figures ------------------------------------------------------------------------------------------------------

    @property
    def container_size(self) -> int:
        return self.log.container_size

    @property
    def tail(self) -> int:
        """LSN of the next record."""
        return self.log.tail

    @property
    def base(self) -> int:
        return at_load64(address(self.log.base))

    @property
    def base_durable(self) -> int:
        """The base as the last durable block tells it: what a restart would start from."""
        return at_load64(address(self.log.base_durable))

    @property
    def dirty(self) -> bool:
        """Whether something waits for the writer."""
        return log_dirty(self.log)

    @property
    def durable_lsn(self) -> int:
        return at_load64(address(self.log.durable))

    @property
    def dead(self) -> list:
        """Sequences of dead containers that still exist, oldest first."""
        return list(self._dead)

    @property
    def failed(self) -> int:
        return self.log.failed

    @property
    def ready_ahead(self) -> int:
        """Containers that are ready behind the tail's."""
        ready: uint64_t = at_load64(address(self.log.ready_end)) // self.log.container_size
        tail: uint64_t = self.log.tail // self.log.container_size
        return ready - tail - 1 if ready > tail else 0

    @property
    def ready_bytes(self) -> int:
        """Bytes that can be appended and written before a container must be made."""
        ready: uint64_t = at_load64(address(self.log.ready_end))
        return ready - self.log.tail if ready > self.log.tail else 0

    @property
    def file_count(self) -> int:
        """Files from the base on disk to the last container that is ready."""
        if self.log.container_count == 0:
            return 0
        return at_load64(address(self.log.ready_end)) // self.log.container_size - self.log.first_sequence

    @property
    def used_bytes(self) -> int:
        """Bytes from the base's container to the tail."""
        return self.log.tail - at_load64(address(self.log.base))

    @property
    def live_bytes(self) -> int:
        """Bytes of the live records, without the dead ones of the containers."""
        bytes_: uint64_t
        spin_lock(address(self.log.lock))
        bytes_ = log_live_bytes(self.log)
        spin_unlock(address(self.log.lock))
        return bytes_

    @property
    def live_count(self) -> int:
        return self.log.live_count

    def containers(self) -> list:
        """(sequence, live count, count, state, bytes of all that was ever live) of every container from the base on."""
        i: uint32_t
        result: list = []
        for i in range(self.log.container_count):
            one = address(self.log.containers[i])
            result.append((one.sequence, one.live_count, one.count, one.state, one.bytes))
        return result


# --- files ---------------------------------------------------------------------------------------------------------------------


def make_container(files: object, directory: str, header: ContainerHeader, zero: bool, direct: bool) -> int:
    """A new container under its final name (the caller syncs the directory). Returns its descriptor, which is for writing only.

    zero: it is filled with zeros, else reserved only; direct: it is written around the page cache, if that can be. Raises: OSError,
    nothing is left.
    """
    temporary = f"{directory}/{header.sequence:020d}{TEMPORARY}"
    if f"{header.sequence:020d}{TEMPORARY}" in files.list_dir(directory):
        files.unlink(temporary)
    fd: int = files.open(temporary, create=True)
    try:
        files.allocate(fd, header.size, zero)
        files.write(fd, header.encode(), 0)
        files.sync(fd)
        files.rename(temporary, f"{directory}/{container_name(header.sequence)}")
    except OSError as error:
        error.filename = error.filename or temporary
        files.close(fd)
        files.unlink(temporary)
        raise
    if not (direct and files.make_direct(fd)) and not zero:
        files.warm(fd, header.size)
    return fd


def recycle_container(files: object, directory: str, old_sequence: int, header: ContainerHeader, direct: bool) -> int:
    """The file of a dead container becomes another one (the caller syncs the directory). Returns its descriptor, which is for writing
    only. direct: it is written around the page cache, if that can be.

    The old header goes first: from then on the file is no container, whatever else happens. Raises: OSError.
    """
    temporary = f"{directory}/{header.sequence:020d}{TEMPORARY}"
    old = f"{directory}/{container_name(old_sequence)}"
    fd: int = files.open(old)  # first: without a descriptor nothing has happened
    try:
        files.rename(old, temporary)
        if direct:
            files.make_direct(fd)
        files.write(fd, header.encode(), 0)
        files.sync(fd)
        files.rename(temporary, f"{directory}/{container_name(header.sequence)}")
    except OSError as error:
        error.filename = error.filename or temporary
        files.close(fd)
        raise
    return fd


def copy_file(files: object, path: str, directory: str, name: str) -> None:
    """Copies a file into `directory` under its final name, its bytes synced (the caller syncs the directory). Raises: OSError."""
    source = files.open(path)
    try:
        data = files.read(source, files.size(path), 0)
    finally:
        files.close(source)
    temporary = f"{name}{TEMPORARY}"
    if temporary in files.list_dir(directory):
        files.unlink(f"{directory}/{temporary}")
    fd = files.open(f"{directory}/{temporary}", create=True)
    try:
        files.write(fd, data, 0)
        files.sync(fd)
    finally:
        files.close(fd)
    files.rename(f"{directory}/{temporary}", f"{directory}/{name}")


def _check_copy(files: object, path: str, copy: str) -> None:
    """Raises: FileExistsError when the headers differ."""
    headers = []
    for one in (path, copy):
        fd = files.open(one)
        try:
            headers.append(files.read(fd, HEADER_SIZE, 0))
        finally:
            files.close(fd)
    if headers[0] != headers[1]:
        text = "it is no copy of this store's container: give each store an archive of its own (--log-archive-dir)"
        raise FileExistsError(errno.EEXIST, text, copy)


def archive_containers(files: object, source: str, directory: str, sequences: list, most: int) -> tuple:
    """Copies up to `most` containers of a log into `directory`, which is made if need be. Returns those that are there now, their names
    durable, and how many of them were copied. Raises: OSError; FileExistsError for a file that is no copy of this log's container: another
    store's archive is neither taken for this one's nor written over."""
    files.make_dir(directory)
    there = set(files.list_dir(directory))
    archived: list = []
    copied = 0
    for sequence in sequences:
        name = container_name(sequence)
        if name in there:
            _check_copy(files, f"{source}/{name}", f"{directory}/{name}")
        else:
            if copied == most:
                break
            copy_file(files, f"{source}/{name}", directory, name)
            copied += 1
        archived.append(sequence)
    files.sync_dir(directory)
    return archived, copied


def clear_temporaries(files: object, directory: str) -> None:
    """Removes what a crash left of containers in the making."""
    temporaries = [name for name in files.list_dir(directory) if name.endswith(TEMPORARY)]
    for name in temporaries:
        files.unlink(f"{directory}/{name}")
    if temporaries:
        files.sync_dir(directory)


# --- opening: what a scan found becomes a log that is ready to append. docs/RELIABILITY.md has the rules ----------------------------


def open_log(files: object, directory: str, scan: object, settings: LogSettings, initial: int, epoch: int) -> ManagedLog:
    """The log in `directory` as `scan` found it, or a new one: its ManagedLog, ready to append.

    Args: settings: of which an existing log keeps its own container size; initial: containers of a new log. Raises: OSError, StoreError.
    """
    if scan.container_size and scan.container_size != settings.container_size:
        log.warning("%s keeps its container size of %d bytes: --container-size is ignored", settings.name, scan.container_size)
        settings = replaced(settings, container_size=scan.container_size)
    container_size = settings.container_size
    managed = ManagedLog(files, directory, settings)
    managed.set_ahead(max(2, initial))
    if not scan.container_size:
        clear_temporaries(files, directory)
        managed.open_new(initial, epoch)
        return managed
    # Also after a clean stop: that a read shows its last block does not say that the block was synced.
    repair_tail(files, directory, scan.tail, container_size, scan.hint)
    clear_temporaries(files, directory)
    managed.open_at(scan.tail, scan.last_block, epoch, scan.base)
    first = scan.base // container_size
    here = sorted(number for number in map(sequence_of, files.list_dir(directory)) if number is not None)
    ahead = [number for number in here if number > scan.tail // container_size]
    useless = [number for place, number in enumerate(ahead, scan.tail // container_size + 1) if number != place]
    for number in reversed(useless):  # behind a gap that a crash left: nothing was ever written there
        files.unlink(managed.path_of(number))
    if useless:
        files.sync_dir(directory)
    for sequence in [number for number in here if number not in useless]:
        if sequence < first:
            managed.adopt_dead(sequence)
        else:
            managed.adopt(sequence)
    managed.prepare(True)
    return managed


def repair_tail(files: object, directory: str, tail: int, container_size: int, durable: int, *, zero: bool = True) -> None:
    """Writes the containers anew that may hold something which was never synced: from the durable hint's to the tail's, zeros behind the
    tail; and removes those behind it.

    zero: the zeros are written, which makes later syncs cheaper; else the room is only reserved and reads as zeros. Not in place: the
    confirmed blocks above the hint would be in flight once more, and a power failure may spoil a sector that is being written.
    """
    sequence = tail // container_size
    names = {number: name for name in files.list_dir(directory) if (number := sequence_of(name)) is not None}
    # From the last one down: a crash in between leaves no gap. First, so that a full disk has room for the rest.
    behind = sorted((number for number in names if number > sequence), reverse=True)
    for later in behind:
        files.unlink(f"{directory}/{container_name(later)}")
    if behind:
        files.sync_dir(directory)
    for number in range(min(durable // container_size, sequence), sequence + 1):
        if number in names:
            _write_anew(files, directory, number, tail % container_size if number == sequence else container_size, container_size, zero)
    files.sync_dir(directory)


def _write_anew(files: object, directory: str, sequence: int, kept: int, size: int, zero: bool) -> None:
    """Replaces a container by a copy of its first `kept` bytes and zeros."""
    path = f"{directory}/{container_name(sequence)}"
    temporary = f"{directory}/{sequence:020d}{TEMPORARY}"
    fd = files.open(path)
    try:
        data = files.read(fd, kept, 0)
    finally:
        files.close(fd)
    if len(data) < SECTOR:
        return
    if f"{sequence:020d}{TEMPORARY}" in files.list_dir(directory):
        files.unlink(temporary)
    fd = files.open(temporary, create=True)
    try:
        files.allocate(fd, size, zero)
        files.write(fd, in_present_format(data), 0)
        files.sync(fd)
    finally:
        files.close(fd)
    files.rename(temporary, path)


def take_back_clean(files: object, managed: object, last_block: int) -> None:
    """The last block of a clean stop becomes an ordinary one, in its place: it holds nothing else, so it may be torn by that.

    For a start that can't write a block of its own, since the disk is full: what it delivers must count as delivered after the next stop.
    Raises: OSError.
    """
    fd = files.open(managed.path_of(last_block // managed.container_size))
    try:
        offset = last_block % managed.container_size
        header = bytearray(files.read(fd, SECTOR, offset))
        flags = int.from_bytes(header[56:60], "little") & ~BLOCK_CLEAN
        header[56:60] = flags.to_bytes(4, "little")
        header[60:64] = crc32c_of(bytes(header[:60])).to_bytes(4, "little")
        files.write(fd, bytes(header), offset)
        files.sync(fd)
    finally:
        files.close(fd)


def set_damage_aside(files: object, store_dir: str, log_name: str, damage: object, container_size: int) -> None:
    """Names every damaged place in the broker's log and keeps a copy of its container in the quarantine directory."""
    for one in damage:
        copy = quarantine(files, store_dir, log_name, f"{store_dir}/{log_name}", one.lsn // container_size)
        log.error("damaged container: %s%s", one, f"; copied to {copy}" if copy else "")


def quarantine(files: object, store_dir: str, log_name: str, directory: str, sequence: int) -> str | None:
    """Copies a damaged container to the quarantine directory, once. Returns the copy's path, None when it was there already."""
    target_dir = f"{store_dir}/quarantine"
    files.make_dir(target_dir)
    name = f"{log_name}-{container_name(sequence)}"
    if name in files.list_dir(target_dir) or container_name(sequence) not in files.list_dir(directory):
        return None
    copy_file(files, f"{directory}/{container_name(sequence)}", target_dir, name)
    files.sync_dir(target_dir)
    return f"{target_dir}/{name}"
