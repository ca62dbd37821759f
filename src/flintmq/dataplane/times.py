"""Times of records and messages: time of a log record, LSN of a time, age of a queue's oldest message.

in: containers of the message log (the page cache, mostly), samples of the queues' tails taken every housekeeping pass. out: microseconds
of the wall clock, LSNs.

T1  Nothing read here decides what becomes of a message: a wrong time would be a wrong figure, or another start of a new subscription.
"""

from __future__ import annotations

import os
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flintmq.ports import POSITION_INDEX_BITS
from flintmq.store.log.containers import HEADER_SIZE, MESSAGES, container_name, sequence_of
from flintmq.store.log.reader import block_at, blocks_in, record_in, records_in

if TYPE_CHECKING:
    from flintmq.store.log.inspect import Block

# samples of one level of a queue; when there are more, every other one goes
_SAMPLES_MAX = 1_024
# levels whose oldest message is looked at
_LEVELS_MAX = 32
# containers whose blocks are remembered: 24 KiB each at most, with containers of 4 MiB
_INDEXES_MAX = 64
_INDEX_MASK = (1 << POSITION_INDEX_BITS) - 1


class LogTimes:
    """Times of the message log. Args: managed: its ManagedLog. Threading: any thread."""

    def __init__(self, managed: Any) -> None:
        self._managed = managed
        self._size: int = managed.container_size
        self._directory = Path(managed.directory)
        # sequence -> where its blocks begin and end, and their times: the oldest messages of a thousand queues stand in a few containers
        self._indexes: OrderedDict[int, _Index] = OrderedDict()
        self._lock = threading.Lock()

    def sequences(self) -> list[int]:
        """Sequence numbers of all containers that exist, dead ones included, oldest first."""
        return sorted(sequence for name in os.listdir(self._directory) if (sequence := sequence_of(name)) is not None)

    def lsn_at(self, time_us: int) -> int:
        """LSN of the first record that was written at that time or later; the log's tail when there is none."""
        sequences = self.sequences()
        low, high = 0, len(sequences)
        while low < high:  # the last container whose first block is not later
            middle = (low + high) // 2
            block = self._first_block(sequences[middle])
            if block is not None and block.time_us <= time_us:
                low = middle + 1
            else:
                high = middle
        for sequence in sequences[max(0, low - 1) :]:
            data, start = self._load(sequence)
            blocks = _blocks(data, start)
            behind = bisect_right([block.time_us for block in blocks], time_us)
            for block in blocks[max(0, behind - 1) :]:
                for record in records_in(data[block.lsn - start : block.lsn - start + block.length], block.lsn, block.time_us):
                    if len(record) > 2 and record[4] >= time_us:
                        return int(record[0])
        tail: int = self._managed.tail
        return tail

    def time_of(self, lsn: int) -> int | None:
        """When the record at this LSN was written; None when it is not there any more, or not yet on disk."""
        sequence = lsn // self._size
        time_us = self._indexed(sequence, lsn)
        if time_us is None:
            return None
        try:
            descriptor = os.open(self._path(sequence), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            offset = lsn - sequence * self._size
            length = int.from_bytes(os.pread(descriptor, 4, offset), "little")
            record = record_in(os.pread(descriptor, min(length, self._size - offset), offset), lsn)
        except OSError:
            return None
        finally:
            os.close(descriptor)
        return None if record is None else time_us + record[4]

    def _indexed(self, sequence: int, lsn: int) -> int | None:
        """Time of the block that the record is in; None: there is none there. A container is read whole once, and again when it grew."""
        with self._lock:
            index = self._indexes.get(sequence)
        if index is None or lsn >= index.end:
            index = _Index(*self._load(sequence))  # not under the lock: it waits for the disk
        with self._lock:
            self._indexes[sequence] = index
            self._indexes.move_to_end(sequence)
            if len(self._indexes) > _INDEXES_MAX:
                self._indexes.popitem(last=False)
        return index.time_at(lsn)

    def _path(self, sequence: int) -> str:
        return f"{self._directory}/{container_name(sequence)}"

    def _first_block(self, sequence: int) -> Block | None:
        # loaded when somebody asks for a time: a start does not wait for it
        from flintmq.store.log.inspect import BLOCK_HEADER, Block

        try:
            descriptor = os.open(self._path(sequence), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            data = os.pread(descriptor, BLOCK_HEADER, HEADER_SIZE)
        except OSError:
            return None
        finally:
            os.close(descriptor)
        # the whole block need not be there: for the times of its first record the header will do
        block = block_at(data, sequence * self._size + HEADER_SIZE, self._size - HEADER_SIZE, MESSAGES)
        return Block(*block) if block else None

    def _load(self, sequence: int) -> tuple[bytes, int]:
        try:
            return Path(self._path(sequence)).read_bytes(), sequence * self._size
        except OSError:
            return b"", sequence * self._size


class _Index:
    """The blocks of a container, as far as they were written when it was read. Cost: 24 bytes a block."""

    def __init__(self, data: bytes, start: int) -> None:
        blocks = blocks_in(data, start, MESSAGES)
        self._begins = array("Q", (block[0] for block in blocks))
        self._ends = array("Q", (block[0] + block[1] for block in blocks))
        self._times = array("Q", (block[6] for block in blocks))

    @property
    def end(self) -> int:
        """LSN behind the last block."""
        return self._ends[-1] if self._ends else 0

    def time_at(self, lsn: int) -> int | None:
        """Time base of the block that has the record."""
        index = bisect_left(self._begins, lsn) - 1
        return self._times[index] if index >= 0 and lsn < self._ends[index] else None


def _blocks(data: bytes, start: int) -> list[Block]:
    from flintmq.store.log.inspect import Block

    return [Block(*block) for block in blocks_in(data, start, MESSAGES)]


class Arrivals:
    """When the entries of a queue came, as it was known at one moment: the same answers as often as it is asked.

    Args: samples: by level, (tail, microseconds of the wall clock) in their order."""

    def __init__(self, samples: Iterable[Iterable[tuple[int, int]]]) -> None:
        self._levels = [tuple(zip(*level, strict=True)) for level in samples]

    def time_of(self, position: int) -> int:
        """Microseconds, right to one housekeeping pass; of an entry that was there before anybody looked: of the first look."""
        tails, times = self._levels[position >> POSITION_INDEX_BITS]
        return int(times[min(bisect_left(tails, position & _INDEX_MASK), len(times) - 1)])


class Comings:
    """When the entries came that wait in any queue, for those of which no log tells it: at each look how far a queue had come.

    A pass looks at `arrival_looks_max` levels of queues, the next pass at the next ones; a queue that is empty is forgotten. A time is
    right to one round, and to an eighth of the time that the samples of its queue cover where more than `arrival_samples_max` were made.
    Threading: `look` from one thread at a time, `time_of` from any. Cost: 16 bytes a sample, of queues with messages.
    """

    def __init__(self, looks_max: int, samples_max: int) -> None:
        self._looks_max = looks_max
        self._samples_max = samples_max
        self._round: list[int] = []
        self._known: list[tuple[int, int]] = []  # what this round looks at for queues that are gone
        # queue id and level -> tails and times in turn, ascending; replaced, never changed
        self._samples: dict[tuple[int, int], array[int]] = {}

    def look(self, queues: Mapping[int, Any], now_us: int) -> None:
        """A part of the round. Args: queues: by id; those without a core of their own are left out."""
        looks = self._looks_max
        if not self._round:
            self._round, self._known = list(queues), list(self._samples)
        for _ in range(min(self._looks_max, len(self._known))):
            key = self._known.pop()
            if key[0] not in queues:
                self._samples.pop(key, None)
        while looks > 0 and self._round:
            queue = queues.get(self._round.pop())
            if queue is None or queue.policy.is_stream or queue.policy.is_shared:
                looks -= 1
                continue
            core = queue.core
            levels = core.priorities()
            looks -= levels
            waits = core.ready_count() or core.unacked_count()
            for level in range(levels):
                if waits:
                    self._sample(core, (queue.queue_id, level), now_us)
                else:
                    self._samples.pop((queue.queue_id, level), None)

    def _sample(self, core: Any, key: tuple[int, int], now_us: int) -> None:
        tail, known = core.tail(key[1]), self._samples.get(key)
        if known is None:
            self._samples[key] = array("Q", (tail, now_us))
        elif known[-2] != tail:
            known = known + array("Q", (tail, now_us))
            if len(known) > 2 * self._samples_max:
                first = core.next_available(key[1] << POSITION_INDEX_BITS | 1)
                gone = bisect_left(known[::2], first & _INDEX_MASK) if first >> POSITION_INDEX_BITS == key[1] else 0
                known = known[2 * gone :]
            if len(known) > 2 * self._samples_max:
                known = self._thinned(known)
            self._samples[key] = known

    def _thinned(self, known: array[int]) -> array[int]:
        """Half as many, at about equal distances in time, with the first and the last."""
        step = 2 * (known[-1] - known[1]) // self._samples_max
        kept, last = known[:2], known[1]
        for index in range(2, len(known) - 2, 2):
            if known[index + 1] - last >= step:
                last = known[index + 1]
                kept += known[index : index + 2]
        return kept + known[-2:]

    def time_of(self, queue_id: int, position: int, now_us: int) -> int:
        """Microseconds: of the first look that saw it; now, when none did."""
        known = self._samples.get((queue_id, position >> POSITION_INDEX_BITS))
        if known is None:
            return now_us
        index = bisect_left(known[::2], position & _INDEX_MASK)
        return int(known[2 * index + 1]) if 2 * index < len(known) else now_us


class QueueWatch:
    """How far a queue had come when: the age of any entry that came since, logged or not, without reading anything.

    Threading: `sample` from one thread at a time, the rest from any."""

    def __init__(self, core: Any, times: LogTimes, now_us: int) -> None:
        self.core = core
        self._times = times
        self._samples: list[deque[tuple[int, int]]] = [deque() for _ in range(core.priorities())]
        self._before: tuple[int, int] = (0, 0)  # (position, time) of the last entry that was looked up in the log
        self.sample(now_us)

    def sample(self, now_us: int) -> None:
        """Remembers the tails. Cheap: for every housekeeping pass."""
        for level, samples in enumerate(self._samples):
            tail = self.core.tail(level)
            if samples and samples[-1][0] == tail:
                continue
            samples.append((tail, now_us))
            if len(samples) > _SAMPLES_MAX:
                kept = list(samples)
                self._samples[level] = deque(kept[::2] if len(kept) % 2 else [*kept[::2], kept[-1]])

    def arrivals(self) -> Arrivals:
        """The times that are known now."""
        return Arrivals([tuple(samples) for samples in self._samples])

    def oldest_us(self) -> int | None:
        """When the oldest available entry came, to one housekeeping pass; None when there is none."""
        times: list[int] = []
        for level in range(min(len(self._samples), _LEVELS_MAX)):
            position = self.core.next_available(level << POSITION_INDEX_BITS | 1)
            if position and position >> POSITION_INDEX_BITS == level:
                times.append(self.time_of(position))
        return min(times, default=None)

    def time_of(self, position: int) -> int:
        """When the entry came."""
        samples = tuple(self._samples[position >> POSITION_INDEX_BITS])  # in one step: `sample` goes on in another thread
        index = position & _INDEX_MASK
        if samples[0][0] >= index:  # it was there before we looked
            before = self._before
            if before[0] != position:
                message_id = self.core.message_id_at(position)
                written = self._times.time_of(message_id) if message_id else None
                before = self._before = (position, samples[0][1] if written is None else written)
            return before[1]
        return next((time_us for tail, time_us in samples if tail >= index), samples[-1][1])


def position_before(core: Any, lsn: int) -> int:
    """Position of the last entry that stands before the first one with this LSN or a later one, in position order; 0: there is none.

    Entries that are not in the log have no LSN: they belong to the logged one behind them.
    """
    last = 0
    position = core.next_available(0)
    while position:
        message_id = core.message_id_at(position)
        if message_id >= lsn:
            break
        if message_id:
            last = position
        position = core.next_available(position + 1)
    return last


def last_position(core: Any) -> int:
    """The position up to which entries of the queue were given out; 0: none were."""
    level: int = core.priorities() - 1
    if level == 0:
        return int(core.tail(0))
    if not any(core.tail(one) for one in range(level + 1)):
        return 0
    return (level << POSITION_INDEX_BITS) + int(core.tail(level))
