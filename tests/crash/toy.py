"""A small log with the store's discipline, and broken variants of it: what proves that the crash campaign finds such faults.

Containers of eight sectors: a header sector, then blocks of whole sectors. A block carries its LSN and the CRC of the block before it.
Records are numbered; "ended below n" is a record too, and a container whose records it covers is recycled once it is durable.
"""

from __future__ import annotations

import functools
import random
import struct
import zlib
from collections.abc import Callable

from tests.twins.disk_images import Image
from tests.twins.sim_disk import SimDisk
from tools.crash.campaign import Violation

CONTAINER = 4096
SECTOR = 512
HEAD = struct.Struct("<4sQ")  # magic, sequence; then CRC
BLOCK = struct.Struct("<4sIIQ")  # magic, length, CRC of the previous block, LSN; then CRC
RECORD = struct.Struct("<HBI")  # length, kind (0 numbered, 1 ended below), number
DIRECTORY = "/toy"

# what the variant leaves out or does wrongly
VARIANTS = (
    "no sync",
    "no directory sync",
    "no CRC",
    "recycle before durable",
    "stale accepted",
    "told before sync",
)


def body(number: int) -> bytes:
    return bytes([number % 251 + 1]) * (number * 37 % 600)


class ToyLog:
    """See module. `numbers`: live records as recovery found them; `told`: how many appended records were called durable so far."""

    def __init__(self, files: SimDisk, variant: str = "") -> None:
        self.files = files
        self.variant = variant
        self.buffer: list[tuple[int, int]] = []
        self.told = 0
        self.ended = self.ended_durable = 0
        self.chain = 0
        self.highest: dict[int, int] = {}  # container -> highest number in it
        self.numbers: list[int] = []
        self.on_told: Callable[[], None] = lambda: None
        files.make_dir(DIRECTORY)
        self._recover()

    def path(self, sequence: int) -> str:
        return f"{DIRECTORY}/{sequence:08d}.toy"

    def _recover(self) -> None:
        files = self.files
        names = files.list_dir(DIRECTORY)
        tail = last = 0
        first = True
        for name in names:
            fd = files.open(f"{DIRECTORY}/{name}")
            data = files.read(fd, CONTAINER, 0)
            files.close(fd)
            if name.endswith(".tmp"):
                files.unlink(f"{DIRECTORY}/{name}")
                continue
            sequence = int(name[:8])
            last = max(last, sequence)
            head = HEAD.pack(b"TOYC", sequence)
            if len(data) < CONTAINER or data[: len(head)] != head or not self._checks(head, data[len(head) : len(head) + 4]):
                files.unlink(self.path(sequence))
                continue
            offset = SECTOR
            while offset < CONTAINER:
                size = self._block(data, offset, sequence, first)
                if size == 0:
                    break
                first, tail = False, sequence
                offset += size
            self.highest.setdefault(sequence, -1)
        for sequence in [sequence for sequence in self.highest if sequence > tail]:
            files.unlink(self.path(sequence))
            del self.highest[sequence]
        if self.variant != "no directory sync":
            files.sync_dir(DIRECTORY)
        self.ended_durable = self.ended
        self._container(last + 1)

    def _checks(self, data: bytes, crc: bytes) -> bool:
        return self.variant == "no CRC" or zlib.crc32(data) == int.from_bytes(crc, "little")

    def _block(self, data: bytes, offset: int, sequence: int, first: bool) -> int:
        magic, length, previous, lsn = BLOCK.unpack_from(data, offset)
        start = offset + BLOCK.size + 4
        if magic != b"TOYB" or not BLOCK.size + 4 <= length <= CONTAINER - offset:
            return 0
        if not self._checks(data[offset : offset + BLOCK.size] + data[start : offset + length], data[offset + BLOCK.size : start]):
            return 0
        if self.variant != "stale accepted" and (lsn != sequence * CONTAINER + offset or (not first and previous != self.chain)):
            return 0
        self.chain = int.from_bytes(data[offset + BLOCK.size : start], "little")
        while start + RECORD.size <= offset + length:
            size, kind, number = RECORD.unpack_from(data, start)
            if kind:
                self.ended = max(self.ended, number)
            else:
                self.numbers.append(number if data[start + RECORD.size : start + RECORD.size + size] == body(number) else -1)
                self.highest[sequence] = max(number, self.highest.get(sequence, -1))
            start += RECORD.size + size
        return -(-length // SECTOR) * SECTOR

    def _container(self, sequence: int) -> None:
        files = self.files
        temporary = f"{DIRECTORY}/{sequence:08d}.tmp"
        ended = self.ended_durable
        if self.variant == "recycle before durable":
            ended = max([ended, *(number for kind, number in self.buffer if kind)])
        dead = [old for old, highest in sorted(self.highest.items()) if highest < ended]
        if dead:
            files.rename(self.path(dead[0]), temporary)
            del self.highest[dead[0]]
            self.fd = files.open(temporary)
        else:
            self.fd = files.open(temporary, create=True)
            files.allocate(self.fd, CONTAINER, False)
        head = HEAD.pack(b"TOYC", sequence)
        files.write(self.fd, head + zlib.crc32(head).to_bytes(4, "little"), 0)
        files.sync(self.fd)
        files.rename(temporary, self.path(sequence))
        if self.variant != "no directory sync":
            files.sync_dir(DIRECTORY)
        self.sequence, self.offset = sequence, SECTOR
        self.highest[sequence] = -1

    def _tell(self, count: int) -> None:
        self.told += count
        self.on_told()

    def flush(self) -> None:
        """Writes and syncs what is in `buffer`."""
        while self.buffer:
            payload = b""
            taken = []
            room = CONTAINER - self.offset - BLOCK.size - 4
            while self.buffer:
                kind, number = self.buffer[0]
                record = RECORD.pack(0 if kind else len(body(number)), kind, number) + (b"" if kind else body(number))
                if len(payload) + len(record) > room:
                    break
                payload += record
                taken.append(self.buffer.pop(0))
            if not taken:
                self._container(self.sequence + 1)
                continue
            head = BLOCK.pack(b"TOYB", BLOCK.size + 4 + len(payload), self.chain, self.sequence * CONTAINER + self.offset)
            self.chain = zlib.crc32(head + payload)
            data = head + self.chain.to_bytes(4, "little") + payload
            numbered = [number for kind, number in taken if not kind]
            self.highest[self.sequence] = max([self.highest[self.sequence], *numbered])
            self.ended = max([self.ended, *(number for kind, number in taken if kind)])
            if self.variant == "told before sync":
                self._tell(len(numbered))
            self.files.write(self.fd, data, self.offset)
            if self.variant != "no sync":
                self.files.sync(self.fd)
            self.ended_durable = self.ended
            if self.variant != "told before sync":
                self._tell(len(numbered))
            self.offset += -(-len(data) // SECTOR) * SECTOR


class ToySubject:
    """Numbered records, of which the oldest are ended now and then. After a crash there is exactly a range of them: it begins no later
    than the last end that is found, which is the last durable one or newer, and ends behind the last durable record."""

    def __init__(self, variant: str = "") -> None:
        self.variant = variant

    def record(self, seed: int) -> ToyRecording:
        return ToyRecording(self.variant, seed)


class ToyRecording:
    """One run of the toy, over one or two lives of the process with power loss between them."""

    def __init__(self, variant: str, seed: int) -> None:
        rng = random.Random(seed)
        self.variant = variant
        self.seed = seed
        self.disk = SimDisk()
        self.log: ToyLog
        self._leg(rng, 0, 0)
        if rng.random() < 0.7:
            position = rng.randrange(self.disk.position // 2, self.disk.position + 1)
            images = list(self.disk.images(position, 20, seed))
            image = rng.choice(images)
            self.disk = SimDisk.from_image(image)
            self._leg(rng, None, None)

    def _leg(self, rng: random.Random, count: int | None, ended: int | None) -> None:
        self.steps: list[tuple[int, int, int, int, tuple[int, ...]]] = []
        log = ToyLog(self.disk, self.variant)
        if count is None:
            count, ended = (log.numbers[-1] + 1, log.ended) if log.numbers else (log.ended, log.ended)
            log.told = count
        else:
            self.steps.append((0, 0, 0, 0, (0,)))
        assert ended is not None
        marks = [ended]
        self._step(log, count, ended, marks)
        for _ in range(12):
            for _ in range(rng.randint(1, 4)):
                log.buffer.append((0, count))
                count += 1
            if rng.random() < 0.3 and count > 6:
                marks.append(rng.randint(marks[-1], count - 3))
                log.buffer.append((1, marks[-1]))
            self._step(log, count, ended, marks)
            log.on_told = functools.partial(self._step, log, count, ended, marks)
            log.flush()
            ended = marks[-1]
            self._step(log, count, ended, marks)

    def _step(self, log: ToyLog, count: int, ended: int, marks: list[int]) -> None:
        """(position, appended, durable, ended for sure, ends that were asked for)"""
        self.steps.append((self.disk.position, count, log.told, ended, tuple(mark for mark in marks if mark >= ended)))

    def check(self, image: Image, nested: bool) -> int:
        """Raises Violation. Returns the number of images looked at."""
        before = [step for step in self.steps if step[0] <= image.position]
        after = [step for step in self.steps if step[0] > image.position]
        durable, ended = (before[-1][2], before[-1][3]) if before else (self.steps[0][2], self.steps[0][3])
        asked = (after or before)[0 if after else -1]
        disk = SimDisk.from_image(image)
        log = ToyLog(disk, self.variant)
        numbers = log.numbers
        if log.ended not in {ended, *asked[4]}:
            raise Violation(f"the end found is {log.ended}, those asked for are {ended} and {asked[4]}")
        if numbers != list(range(numbers[0], numbers[-1] + 1) if numbers else []):
            raise Violation(f"gaps, strangers or wrong order: {numbers}")
        begin, end = (numbers[0], numbers[-1] + 1) if numbers else (log.ended, log.ended)
        if begin > log.ended or not max(durable, log.ended) <= max(end, log.ended) <= asked[1]:
            raise Violation(f"{durable} records are durable of {asked[1]}, those below {log.ended} ended, {begin} to {end} were found")
        images = 1
        live = [number for number in numbers if number >= log.ended]
        if nested:
            for position in range(1, disk.position + 1):
                for second in disk.images(position, 4, self.seed):
                    images += 1
                    again = ToyLog(SimDisk.from_image(second), self.variant).numbers
                    if [number for number in again if number >= log.ended] != live:
                        raise Violation(f"a second crash, at {position} of the recovery, {second.choice}: {numbers} became {again}")
        return images
