"""StreamStore: the streams of a store, each a log of its own below `streams/`; and the places of their consumer groups.

in: declares and deletes of stream queues, the store's maintenance, group states of the stream core. out: open Streams; files that come
and go; notes in the transaction log.

I1  A directory below `streams/` belongs to a queue that SQL knows, or it is removed at the next start: a declare commits to SQL before
    the first file is made, a delete commits before the first file goes, and a queue id is never given out twice.
I2  A group's note goes with its stream: at the delete, else at the next start.
I3  Damage in one stream hinders no other stream.
"""

from __future__ import annotations

import logging
import struct
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from flintmq.errors import StoreError
from flintmq.store.log.containers import STREAMS, LogSettings, round_container_size, sequence_of
from flintmq.store.log.space import page_reserves
from flintmq.store.stream.stream_files import ESHUTDOWN, Stream, remove_files
from flintmq.store.stream.stream_log import StreamSpace

log = logging.getLogger("flintmq.store")

# kind of the notes that hold a group's place (0 is the run's, 1-4 are the data plane's)
NOTE_GROUP = 5
# streams that are opened, or get a container, at a time: their time goes into syncs, and a disk does many syncs at once
OVERLAP = 16
_QUEUE = struct.Struct("<Q")


class StreamStore:
    """The streams of a store. Made by the store when it opens.

    Args: store: the LogStore (files, directory, clock, writer, notes); options: its StoreOptions; with threads, its file port may be
    called by several of them at a time. Raises: StoreError for files of a queue id above queue_high_water.
    """

    def __init__(self, store: Any, options: Any) -> None:
        self._store = store
        self._files = store.files
        self._limits = options.limits
        self._directory = f"{store.directory}/streams"
        self._container_size = options.container_size
        self._reserves = page_reserves(store.messages.reserves)  # a stream must not take the room of records that end messages
        self._lock = threading.RLock()
        self._streams: dict[int, Stream] = {}
        self._bounds: dict[int, tuple[int, int]] = {}
        self._deleted: list[Stream] = []
        self._found: dict[int, Stream] = {}  # opened at the start; nobody has asked for them yet
        self._groups: dict[int, dict[bytes, bytes]] = {}  # places that are noted
        self._overlap = options.threads
        self.space = StreamSpace(self._limits.stream_hot_bytes, self._limits.streams_hot_bytes_max, self._limits.stream_hot_bytes_least)
        known = set(options.known_queues)
        self._clear_orphans(known, options.queue_high_water)
        if self._overlap:
            self._open_found(known)

    def _clear_orphans(self, known: set[int], high_water: int) -> None:
        """Removes the files and notes of deleted streams that a crash left (I1, I2)."""
        for name in self._files.list_dir(self._directory):
            queue_id = int(name) if name.isascii() and name.isdigit() else 0
            if queue_id == 0 or queue_id in known:
                continue
            if queue_id > high_water:
                raise StoreError(
                    f"{self._directory}/{name} belongs to queue id {queue_id}, but the definitions know none above {high_water}: "
                    "the logs and the definitions are not of the same store"
                )
            remove_files(self._files, f"{self._directory}/{name}")
        for key, state in self._store.notes(NOTE_GROUP).items():
            queue_id = _QUEUE.unpack_from(key)[0]
            if queue_id in known:
                self._groups.setdefault(queue_id, {})[key[_QUEUE.size :]] = state
            else:
                self._store.note(NOTE_GROUP, key, b"")

    def _open_found(self, known: set[int]) -> None:
        """Opens all streams that have files: each takes some syncs after a crash, one after the other they would add up."""

        def one(queue_id: int) -> Stream | None:
            if all(sequence_of(name) is None for name in self._files.list_dir(f"{self._directory}/{queue_id}")):
                return None
            try:
                return self._open(queue_id, 0)
            except (OSError, StoreError):
                return None  # `open` tries again, and says so

        names = [int(name) for name in self._files.list_dir(self._directory) if name.isascii() and name.isdigit()]
        for stream in self._each(one, [queue_id for queue_id in names if queue_id in known]):
            if stream is not None:
                self._found[stream.queue_id] = stream

    def _each(self, call: Callable[[Any], Any], things: Iterable[Any]) -> list[Any]:
        """Calls it for each, several at a time unless the disk is so full that one call may take the room that another has looked at."""
        things = list(things)
        free = self._store.messages.free_bytes()
        most = OVERLAP * self._limits.stream_container_bytes_max
        if not self._overlap or len(things) < 2 or (free is not None and free - most < self._reserves.roomy):
            return [call(one) for one in things]
        with ThreadPoolExecutor(min(OVERLAP, len(things)), "flintmq-streams-files") as pool:
            return list(pool.map(call, things))

    # --- streams ------------------------------------------------------------------------------------------------------------

    def open(self, queue_id: int, *, max_bytes: int = 0, max_age_ms: int = 0, segment_bytes: int = 0) -> Stream:
        """Opens the stream of a queue that SQL knows, or begins an empty one.

        Args: max_bytes, max_age_ms: retention, 0: no bound; segment_bytes: container size of a new stream, 0: the store's. It is
        rounded as --container-size is, and bounded by Limits.stream_container_bytes_max.
        A stream whose log can't be read at all is opened `broken` and named in the broker's log: it takes and gives nothing.
        Raises: StoreError: too many streams; OSError.
        """
        with self._lock:
            stream = self._streams.get(queue_id)
            if stream is None:
                if len(self._streams) >= self._limits.streams_max:
                    raise StoreError(f"a node has at most {self._limits.streams_max} streams")
                stream = self._found.pop(queue_id, None) or self._open(queue_id, segment_bytes)
                self._streams[queue_id] = stream
            self._bounds[queue_id] = (max_bytes, max_age_ms)
            return stream

    def _open(self, queue_id: int, segment_bytes: int) -> Stream:
        settings = LogSettings(
            name=f"streams/{queue_id}",
            log_id=STREAMS,
            store_uuid=self._store.messages.store_uuid,
            container_size=self._size_of(segment_bytes),
            clock=self._store.clock,
            reserves=self._reserves,
        )
        return Stream.open(self._files, self._store.directory, queue_id, settings, self._store.writer, self.space)

    def _size_of(self, segment_bytes: int) -> int:
        wanted = min(segment_bytes or self._container_size, self._limits.stream_container_bytes_max)
        return round_container_size(wanted, self._limits.container_bytes_min)

    def get(self, queue_id: int) -> Stream | None:
        """The open stream of a queue, or None."""
        return self._streams.get(queue_id)

    def __len__(self) -> int:
        return len(self._streams)

    def letter(self, queue_id: int) -> None:
        """A dead letter was appended to the stream of a queue (if it has one): the records that follow in the log, and so the end
        of the original, are on disk after it. A power failure leaves one of the two, or both. Not on a full disk: there the letter may be
        lost."""
        stream = self._streams.get(queue_id)
        if stream is not None:
            stream.letter()

    def delete(self, queue_id: int) -> None:
        """The queue was deleted, and SQL knows: appends and reads end now, files and notes go soon. Unknown is no error."""
        with self._lock:
            stream = self._streams.pop(queue_id, None)
            self._bounds.pop(queue_id, None)
            if stream is None:
                return
            stream.delete()
            self._deleted.append(stream)
            try:
                for group in self._groups.pop(queue_id, {}):
                    self._store.note(NOTE_GROUP, _QUEUE.pack(queue_id) + group, b"")
            except StoreError:
                pass  # the log has failed; the next start does it
        self._store.writer.tell_progress()  # the files go with the next pass of the maintenance

    # --- places of groups -----------------------------------------------------------------------------------------------------

    def save_group(self, queue_id: int, group: bytes, state: bytes) -> int:
        """Notes a group's place, durable once the returned ticket of the store is; an empty state removes it.

        Raises: StoreError: the log has failed, or the state is too large for a record.
        """
        with self._lock:
            if queue_id not in self._streams:
                return 0  # deleted meanwhile
            try:
                ticket = int(self._store.note(NOTE_GROUP, _QUEUE.pack(queue_id) + group, state))
            except (ValueError, struct.error) as error:
                raise StoreError(f"the place of a group of stream {queue_id} takes {len(state)} bytes: {error}") from error
            groups = self._groups.setdefault(queue_id, {})
            if state:
                groups[group] = state
            else:
                groups.pop(group, None)
            return ticket

    def groups(self, queue_id: int) -> dict[bytes, bytes]:
        """Group -> state of every group of a stream whose place is noted."""
        with self._lock:
            return dict(self._groups.get(queue_id, {}))

    # --- maintenance ----------------------------------------------------------------------------------------------------------

    def forget_hot(self) -> None:
        """The hot windows of all streams go; the next message begins a new one. Any thread. O(messages in them)."""
        with self._lock:
            streams = list(self._streams.values())
        for stream in streams:
            stream.forget_hot()

    def set_bounds(self, queue_id: int, max_bytes: int, max_age_ms: int) -> None:
        """Sets the bounds of a stream from now on; 0: no bound. The next pass of the maintenance follows it."""
        with self._lock:
            if queue_id in self._bounds:
                self._bounds[queue_id] = (max_bytes, max_age_ms)

    def maintain(self) -> bool:
        """One pass over all streams, on the maintenance's thread. True: it should come again soon. Raises: OSError."""
        busy = False
        self.prepare()
        with self._lock:
            streams = list(self._streams.items())
            deleted, self._deleted = self._deleted, []
        try:
            for queue_id, stream in streams:
                if stream.maintain(*self._bounds.get(queue_id, (0, 0))):
                    busy = True
        except BaseException:
            with self._lock:
                self._deleted += deleted
            raise
        remaining = list(deleted)
        try:
            for stream in deleted:
                if stream.finish():
                    remaining.remove(stream)
        finally:  # also when the files of one of them could not be removed now
            with self._lock:
                self._deleted += remaining
        return busy or bool(remaining)

    def prepare(self) -> int:
        """Makes the containers that the writer waits for. Returns how many, 0: it can't go on. Raises: OSError."""
        with self._lock:
            streams = [stream for stream in self._streams.values() if stream.starved]
        return sum(self._each(Stream.prepare, streams)) if streams else 0

    @property
    def low(self) -> bool:
        """Whether a stream waits for a container that the disk has no room for."""
        with self._lock:
            return any(stream.managed.low and stream.starved for stream in self._streams.values())

    def latch(self, error: int) -> None:
        """The disk failed: nothing is appended any more."""
        with self._lock:
            for stream in self._streams.values():
                stream.managed.latch(error)

    def failed_path(self, lsn: int) -> str:
        """Path of the container in which a write or sync of a stream failed."""
        with self._lock:
            for stream in (*self._streams.values(), *self._deleted):
                if stream.managed.failed not in (0, ESHUTDOWN):
                    return str(stream.managed.path_of(lsn // stream.managed.container_size))
        return self._directory

    def mark(self) -> bool:
        """Before a clean stop: proves the ends of all streams, so that the next start need not write them anew. True: flush now."""
        with self._lock:
            marked = [stream.mark() for stream in self._streams.values()]
            return any(marked)

    def close(self) -> None:
        """Closes all files. The writer has stopped."""
        with self._lock:
            for stream in (*self._streams.values(), *self._found.values(), *self._deleted):
                stream.close()
            self._streams.clear()
            self._found.clear()
            self._deleted.clear()

    @property
    def was_clean(self) -> bool:
        """Whether the last run ended cleanly: then the noted places are those that the groups had at its end."""
        return bool(self._store.was_clean)

    @property
    def durable_ticket(self) -> int:
        """Every ticket of an append up to this one stands for a durable message."""
        return int(self._store.writer.durable_ticket)

    def figures(self) -> dict[str, int]:
        """streams, their bytes on disk, memory of hot windows, bytes not written yet."""
        with self._lock:
            streams = list(self._streams.values())
        return {
            "streams": len(streams),
            "bytes": sum(stream.bytes for stream in streams),
            "hot_bytes": self.space.hot_bytes,
            "unwritten_bytes": self.space.unwritten,
        }
