"""T6: corruption. `python -m tools.crash.corrupt --images 200000`.

Stores that random workloads left, stopped cleanly or not, are damaged: one bit flipped, a file cut short, two sectors swapped, a block
written to another block's place, a sector zeroed, a container missing. Opening must notice: refuse by name, or report the damage and
serve the rest; what it serves has the right bytes; what it can't have noticed (the last group of an unclean stop, which looks like a
torn tail) must be cut off as a whole. Where only bytes changed that nobody reads (padding, dead containers), everything must be there.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import struct
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from flintmq.errors import StoreError
from tests.twins.disk_images import Image
from tests.twins.sim_disk import SimDisk
from tools.crash.campaign import Failure, Violation, explain
from tools.crash.model import State
from tools.crash.workload import DIRECTORY, Life, StoreRecording, check_contents, open_store, read_state

SECTOR = 512
_BLOCK = struct.Struct("<IIQIIQQQQII")
_BLOCK_MAGIC = 0x4B4C4246
LOGS = ("messages", "transactions")
KINDS = ("flip", "flip", "flip", "truncate", "swap", "misdirect", "zero", "missing")


@dataclass(frozen=True, slots=True)
class Block:
    """A commit block as docs/FORMAT.md has it, found without the store's code."""

    path: str
    offset: int
    length: int
    lsn: int
    hint: int
    base: int
    records: tuple[tuple[int, int], ...]


@dataclass
class Layout:
    """What of one log is read by recovery. `end`: LSN behind the last block; `hint`: below it everything is known to be durable."""

    blocks: list[Block] = field(default_factory=list)
    base: int = 0
    hint: int = 0
    end: int = 0

    def ranges(self, size: int) -> Iterator[tuple[str, int, int, int]]:
        """(path, start, end, LSN; 0 for a header) of bytes that matter: headers and blocks of containers from the base's on."""
        seen = set()
        for block in self.blocks:
            if block.lsn // size < self.base // size:
                continue
            if block.path not in seen:
                seen.add(block.path)
                yield block.path, 0, SECTOR, 0
            yield block.path, block.offset, block.offset + _BLOCK.size, block.lsn
            for start, end in block.records:  # the padding between them is not covered
                yield block.path, start, end, block.lsn


def layout_of(files: dict[str, bytes], log: str, size: int) -> Layout:
    found = Layout()
    for path in sorted(files):
        name = path.rpartition("/")[2]
        if not path.startswith(f"{DIRECTORY}/{log}/") or not name.endswith(".flog"):
            continue
        data, sequence = files[path], int(name[:20])
        offset = SECTOR
        while offset + _BLOCK.size <= len(data):
            magic, length, lsn, _, _, hint, base, _, _, _, _ = _BLOCK.unpack_from(data, offset)
            if magic != _BLOCK_MAGIC or lsn != sequence * size + offset:
                offset += SECTOR
                continue
            records = []
            at = offset + _BLOCK.size
            while at < offset + length:
                size_of_record = int.from_bytes(data[at : at + 4], "little")
                records.append((at, at + size_of_record))
                at += -(-size_of_record // 8) * 8
            found.blocks.append(Block(path, offset, length, lsn, hint, base, tuple(records)))
            offset += -(-length // SECTOR) * SECTOR
    if found.blocks:
        found.base = found.blocks[-1].base
        found.hint = max(block.hint for block in found.blocks)
        found.end = found.blocks[-1].lsn + found.blocks[-1].length
    return found


class Victim(StoreRecording):
    """A store to be damaged, and what it holds."""

    def __init__(self, seed: int, steps: int) -> None:
        rng = random.Random(seed)
        self.prepare(seed, open_store)
        self.life = Life(self, rng, self.empty(), 0)
        self.clean = seed % 2 == 0
        for _ in range(steps):
            self.life.step(rng.choice(self.life.kinds))
        while self.life.store.flush() == 1:
            self.life.store.maintain()
        if self.clean:
            self.life.store.close(clean=True)
        self.position = self.disk.position
        self.files = next(iter(self.disk.images(limit=1))).files
        self.directories = next(iter(self.disk.images(limit=1))).directories
        self.layouts = {log: layout_of(self.files, log, self.container_size) for log in LOGS}
        self.truth = self.look(self.files)[0]
        if self.truth is None or self.truth not in self.acceptable(self.life, self.position):
            raise Violation(f"the undamaged store: {self.life.oracle.closest(self.truth or frozenset(), self.position)}")
        self.cut: set[State] | None = None

    def look(self, files: dict[str, bytes]) -> tuple[State | None, bool]:
        """What the store shows and whether it reported damage; (None, True) when it refused. Raises Violation for wrong bytes."""
        disk = SimDisk.from_image(Image(self.position, "", files, self.directories))
        try:
            store = self.open(disk, self.position)
        except StoreError:
            return None, True
        shown, entries = read_state(store, range(1, self.defined(self.position)[1] + 1))
        reported = bool(store.report.damage or store.report.lost_count or store.report.malformed)
        readable = []
        for message in entries:
            try:
                store.content(message)
                readable.append(message)
            except (KeyError, StoreError):
                if not reported:
                    raise Violation(f"message {message} can't be read, and no damage was reported") from None
        check_contents(store, readable, self.contents)
        for _ in range(2):  # a damaged store goes on working
            store.flush()
            store.maintain()
        return shown, reported

    def shorter(self) -> set[State]:
        """States that cutting off the last operations of either log gives: any number of them, a container may be gone."""
        if self.cut is None:
            queues, _ = self.defined(self.position)
            _, asked, _, asked_tx = self.life.oracle.bounds(self.position)
            self.cut = {
                frozenset(item for item in self.life.oracle.fold(upto, upto_tx).state() if len(item) == 2 or item[0] in queues)
                for upto in range(asked + 1)
                for upto_tx in range(asked_tx + 1)
            }
        return self.cut

    def possible(self) -> set[tuple[object, ...]]:
        """Every entry that ever stood in a queue."""
        found: set[tuple[object, ...]] = set()
        live = self.life.oracle.base.copy()
        for operation in self.life.oracle.operations:
            before = set(live.entries)
            live.apply(operation)
            for place in set(live.entries) - before:
                message, expires = live.entries[place]
                found.add((*place, message, expires))
        return found


def damage(victim: Victim, rng: random.Random) -> tuple[str, dict[str, bytes]]:
    """One random damage of a log's files: what it is, and the files."""
    files = dict(victim.files)
    size = victim.container_size
    paths = sorted(path for path in files if path.endswith(".flog") and path.split("/")[2] in LOGS)
    blocks = [block for layout in victim.layouts.values() for block in layout.blocks]
    kind = rng.choice(KINDS)
    path = rng.choice(paths)
    if rng.random() < 0.8:  # where something is
        path = rng.choice(blocks).path
    data = bytearray(files[path])
    if kind == "flip":
        at = rng.randrange(len(data))
        inside = [block for block in blocks if block.path == path]
        if inside and rng.random() < 0.8:
            block = rng.choice(inside)
            at = rng.choice((rng.randrange(SECTOR), block.offset + rng.randrange(block.length)))
        data[at] ^= 1 << rng.randrange(8)
        text = f"one bit of {path} at {at}"
    elif kind == "truncate":
        del data[rng.randrange(len(data)) :]
        text = f"{path} cut to {len(data)} bytes"
    elif kind == "missing":
        del files[path]
        return f"{path} removed", files
    elif kind == "zero":
        at = rng.randrange(size // SECTOR) * SECTOR
        data[at : at + SECTOR] = bytes(SECTOR)
        text = f"sector {at // SECTOR} of {path} zeroed"
    elif kind == "swap":
        other = rng.choice(paths) if rng.random() < 0.5 else path
        one, two = (rng.randrange(size // SECTOR) * SECTOR for _ in range(2))
        there = data if other == path else bytearray(files[other])
        data[one : one + SECTOR], there[two : two + SECTOR] = there[two : two + SECTOR], data[one : one + SECTOR]
        if other != path:
            files[other] = bytes(there)
        text = f"sector {one // SECTOR} of {path} swapped with {two // SECTOR} of {other}"
    else:
        source = rng.choice(blocks)
        at = rng.choice(blocks).offset if rng.random() < 0.7 else rng.randrange(1, size // SECTOR) * SECTOR
        moved = files[source.path][source.offset : source.offset + -(-source.length // SECTOR) * SECTOR][: size - at]
        data[at : at + len(moved)] = moved
        text = f"block at {source.offset} of {source.path} written to {at} of {path}"
    files[path] = bytes(data)
    return text, files


def same(victim: Victim, files: dict[str, bytes], path: str, start: int, end: int) -> bool:
    return files.get(path, b"")[start:end] == victim.files[path][start:end]


def check_damage(victim: Victim, files: dict[str, bytes], figures: Counter[str], strict: bool = False) -> None:
    """Raises Violation. strict: an entry in the right queue at a position that it never had is one, too."""
    harmed = torn = False
    for layout in victim.layouts.values():
        # what is left tells up to where the log was durable; a header is durable before the container has its name
        left = [block for block in layout.blocks if same(victim, files, block.path, block.offset, block.offset + block.length)]
        hint = max((block.hint for block in left if same(victim, files, block.path, 0, SECTOR)), default=0)
        for path, start, end, lsn in layout.ranges(victim.container_size):
            if not same(victim, files, path, start, end):
                durable = lsn < hint if lsn else path in files
                # so is its size: a short container is damaged, whatever else
                durable = durable or len(files.get(path, victim.files[path])) < victim.container_size
                harmed = harmed or durable
                torn = torn or not durable
    shown, reported = victim.look(files)
    if shown is None:
        figures["refused"] += 1
        return
    if reported:
        figures["reported"] += 1
        strangers = {item[:4] for item in shown if len(item) == 5} - victim.possible()
        places = {(item[0], item[2], item[3]) for item in victim.possible()}
        if not strict and all((item[0], item[2], item[3]) in places for item in strangers):
            figures["positions shifted"] += bool(strangers)
            strangers = set()
        if strangers:
            known = {item for item in victim.possible() if item[2] in {one[2] for one in strangers}}
            raise Violation(f"entries that never were: {sorted(map(str, strangers))[:4]}, but {sorted(map(str, known))[:4]}")
        return
    if harmed:
        raise Violation(
            f"known durable bytes were damaged and nothing was said; missing {sorted(map(str, victim.truth - shown))[:4]}, "  # type: ignore[operator]
            f"new {sorted(map(str, shown - victim.truth))[:4]}"  # type: ignore[operator]
        )
    if torn:
        figures["cut off as a torn tail"] += 1
        # Each log has a tail of its own: a transaction log cut off behind a whole message log gives states that no crash gives.
        cut_messages = all(
            same(victim, files, path, start, end) for path, start, end, _ in victim.layouts["transactions"].ranges(victim.container_size)
        )
        if cut_messages and shown not in victim.shorter():
            raise Violation("a torn tail was cut off, and what is left is no state there ever was")
        return
    figures["harmless"] += 1
    if shown != victim.truth:
        raise Violation("bytes that nobody reads were changed, and the state differs")


@dataclass
class Result:
    """What T6 did."""

    images: int = 0
    victims: int = 0
    figures: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)


def run(
    images: int, seed: int = 1, per_victim: int = 250, steps: int = 120, seconds: float = 1e9, failures_max: int = 10, strict: bool = False
) -> Result:
    """About `images` damaged stores."""
    result = Result()
    started = time.monotonic()
    number = seed
    while result.images < images and len(result.failures) < failures_max and time.monotonic() - started < seconds:
        victim = Victim(number, steps)
        result.victims += 1
        for index in range(min(per_victim, images - result.images)):
            text, files = damage(victim, random.Random(f"{number} {index}"))
            result.images += 1
            try:
                check_damage(victim, files, result.figures, strict)
            except Exception as error:
                result.failures.append(Failure(number, index, "", False, f"{text}: {explain(error)}"))
                if len(result.failures) >= failures_max:
                    break
        number += 1
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=5_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--strict", action="store_true", help="positions that damage shifted are violations, too")
    parser.add_argument("--replay", metavar="SEED:INDEX")
    arguments = parser.parse_args()
    if arguments.replay:
        seed, index = map(int, arguments.replay.split(":"))
        victim = Victim(seed, 120)
        text, files = damage(victim, random.Random(f"{seed} {index}"))
        print(text)
        try:
            check_damage(victim, files, Counter(), arguments.strict)
        except Violation as violation:
            print(violation)
            return 1
        print("it holds now")
        return 0
    logging.disable(logging.CRITICAL)
    started = time.monotonic()
    result = run(arguments.images, arguments.seed, seconds=arguments.seconds, strict=arguments.strict)
    for failure in result.failures:
        print(f"python -m tools.crash.corrupt --replay {failure.seed}:{failure.position}\n  {failure.text}", file=sys.stderr)
    print(
        json.dumps(
            {
                "campaign": "T6",
                "images": result.images,
                "stores": result.victims,
                **result.figures,
                "violations": len(result.failures),
                "seconds": round(time.monotonic() - started, 1),
            }
        )
    )
    return 1 if result.failures else 0


if __name__ == "__main__":
    sys.exit(main())
