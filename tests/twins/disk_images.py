"""What a disk may hold after power loss: the state of a simulated disk along its journal, and the images that it may leave.

in: operations of sim_disk.SimDisk. out: DiskState (synced and un-synced content and names) and Images of it.

The model. Data: what a file's sync covered is there. Of every 512-byte sector written since, the disk holds the synced content, any
version written since, or what a torn write leaves: zeros, garbage, half of the new, the new with one byte wrong, or older content of
that place. Sizes: a growth that was not synced may be missing. Names: a create, rename or unlink whose directory was not synced may be
missing; operations on the same name or file stay in order, all others are independent. A failed sync drops what it covered: reads go
on showing it, no later sync brings it to the disk, but it may have got there.

Forms of operations: ("create" | "make_dir", inode, directory, name), ("write", inode, offset, data), ("allocate", inode, size, zero),
("sync" | "sync failed", inode), ("rename", directory, name, directory, name), ("unlink", directory, name), ("sync_dir", directory).
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

SECTOR = 512
ROOT = 1  # inode of the root directory
# What a sector holds in an image: 0 the synced content, n its nth version since, or one of these.
ZERO, GARBAGE, BIT_FLIP, TORN, STALE = 200, 201, 202, 203, 204
SUBSETS_MAX = 10  # un-synced sectors up to which every subset is an image
STALE_MAX = 3  # older versions of a sector that are remembered


@dataclass(frozen=True, slots=True)
class Image:
    """A disk after power loss. `choice` says which one of those that `position` may leave: DiskState.image(choice) makes it again."""

    position: int
    choice: str
    files: dict[str, bytes] = field(repr=False)
    directories: tuple[str, ...] = field(repr=False)


class FileState:
    """One file: synced bytes, and per sector the versions written since."""

    __slots__ = ("dirty", "dropped", "durable", "old", "sizes")

    def __init__(self, durable: bytes = b"") -> None:
        self.durable = durable
        self.sizes: list[int] = []  # sizes since the last sync, growing
        self.dirty: dict[int, list[bytes]] = {}  # sector -> its versions since the last sync, oldest first
        self.dropped: set[int] = set()  # dirty sectors that a failed sync covered
        self.old: dict[int, list[bytes]] = {}  # sector -> versions before the synced one, newest first

    def clone(self) -> FileState:
        other = FileState(self.durable)
        other.sizes = list(self.sizes)
        other.dirty = {sector: list(versions) for sector, versions in self.dirty.items()}
        other.dropped = set(self.dropped)
        other.old = self.old.copy()
        return other

    @property
    def size(self) -> int:
        return self.sizes[-1] if self.sizes else len(self.durable)

    def synced_sector(self, sector: int) -> bytes:
        return self.durable[sector * SECTOR : (sector + 1) * SECTOR].ljust(SECTOR, b"\0")

    def _grow(self, size: int) -> None:
        if size > self.size:
            self.sizes.append(size)

    def write(self, offset: int, data: bytes) -> None:
        self._grow(offset + len(data))
        at = 0
        while at < len(data):
            sector, start = divmod(offset + at, SECTOR)
            count = min(SECTOR - start, len(data) - at)
            versions = self.dirty.setdefault(sector, [])
            before = versions[-1] if versions else self.synced_sector(sector)
            versions.append(before[:start] + data[at : at + count] + before[start + count :])
            self.dropped.discard(sector)
            at += count

    def allocate(self, size: int, zero: bool) -> None:
        if zero:
            self.write(0, bytes(size))
        self._grow(size)

    def sync(self) -> None:
        content = bytearray(self.durable)
        content.extend(bytes(self.size - len(content)))
        self.sizes.clear()
        for sector in [sector for sector in self.dirty if sector not in self.dropped]:
            versions = self.dirty.pop(sector)
            before = self.synced_sector(sector)
            start = sector * SECTOR
            end = min(start + SECTOR, len(content))
            content[start:end] = versions[-1][: end - start]
            if before != versions[-1] and any(before):
                self.old[sector] = [before, *self.old.get(sector, [])][:STALE_MAX]
        self.durable = bytes(content)

    def sync_failed(self) -> None:
        self.dropped.update(self.dirty)

    def shown(self) -> bytes:
        """What reads give: everything written."""
        return self.build({sector: len(versions) for sector, versions in self.dirty.items()}, self.size)

    def build(self, picks: dict[int, int], size: int) -> bytes:
        if not picks and size == len(self.durable):
            return self.durable
        content = bytearray(self.durable)
        content.extend(bytes(max(0, size - len(content))))
        for sector, pick in picks.items():
            start = sector * SECTOR
            if pick and start < size:
                end = min(start + SECTOR, size)
                content[start:end] = self._sector(sector, pick)[: end - start]
        return bytes(content)

    def _sector(self, sector: int, pick: int) -> bytes:
        versions = self.dirty[sector]
        newest = versions[-1]
        if pick <= len(versions):
            return versions[pick - 1]
        if pick == ZERO:
            return bytes(SECTOR)
        if pick == GARBAGE:
            return random.Random(sector).randbytes(SECTOR)
        if pick == BIT_FLIP:
            at = random.Random(newest).randrange(SECTOR)
            return newest[:at] + bytes([newest[at] ^ (1 << at % 8)]) + newest[at + 1 :]
        if pick == TORN:
            return newest[: SECTOR // 2] + self.synced_sector(sector)[SECTOR // 2 :]
        old = self.old.get(sector, [])
        return old[pick - STALE] if pick - STALE < len(old) else self.synced_sector(sector)


@dataclass(frozen=True, slots=True)
class NameChange:
    """An operation on names: (directory, name) -> inode, or None where the name goes."""

    changes: tuple[tuple[tuple[int, str], int | None], ...]


class DiskState:
    """A disk at one point of its journal: what is synced, and what is not yet."""

    def __init__(self) -> None:
        self.files: dict[int, FileState] = {}
        self.directories: set[int] = {ROOT}
        self.names: dict[tuple[int, str], int] = {}  # synced
        self.pending: list[NameChange] = []  # not synced, in order
        self.next_inode = ROOT + 1

    @staticmethod
    def from_image(image: Image) -> DiskState:
        state = DiskState()
        inodes = {"/": ROOT}
        for path in sorted([*image.directories, *image.files]):
            parent, _, name = path.rpartition("/")
            inode = inodes[path] = state.next_inode
            state.next_inode += 1
            state.names[inodes[parent or "/"], name] = inode
            if path in image.files:
                state.files[inode] = FileState(image.files[path])
            else:
                state.directories.add(inode)
        return state

    def clone(self) -> DiskState:
        other = DiskState()
        other.files = {inode: file.clone() for inode, file in self.files.items()}
        other.directories = set(self.directories)
        other.names = dict(self.names)
        other.pending = list(self.pending)
        other.next_inode = self.next_inode
        return other

    def apply(self, operation: tuple) -> None:  # type: ignore[type-arg]
        """Moves the state over one operation of the journal."""
        kind = operation[0]
        if kind == "write":
            self.files[operation[1]].write(operation[2], operation[3])
        elif kind == "sync":
            self.files[operation[1]].sync()
        elif kind == "sync failed":
            self.files[operation[1]].sync_failed()
        elif kind == "allocate":
            self.files[operation[1]].allocate(operation[2], operation[3])
        elif kind in ("create", "make_dir"):
            _, inode, directory, name = operation
            self.next_inode = max(self.next_inode, inode + 1)
            if kind == "create":
                self.files[inode] = FileState()
            else:
                self.directories.add(inode)
            self.pending.append(NameChange((((directory, name), inode),)))
        elif kind == "rename":
            _, source, name, target, new_name = operation
            inode = self.shown_names()[source, name]
            self.pending.append(NameChange((((source, name), None), ((target, new_name), inode))))
        elif kind == "unlink":
            self.pending.append(NameChange((((operation[1], operation[2]), None),)))
        elif kind == "sync_dir":
            self._sync_dir(operation[1])
        else:
            raise ValueError(f"unknown operation {kind!r}")

    def _sync_dir(self, directory: int) -> None:
        done: set[int] = set()
        for chain in self._chains():
            covered = [index for index in chain if any(place[0] == directory for place, _ in self.pending[index].changes)]
            if covered:  # what a synced operation stands on is synced with it
                done.update(index for index in chain if index <= covered[-1])
        for index in sorted(done):
            self._change(self.names, self.pending[index])
        self.pending = [change for index, change in enumerate(self.pending) if index not in done]
        linked = {*self.names.values(), *(inode for change in self.pending for _, inode in change.changes)}
        for inode in [inode for inode in self.files if inode not in linked]:  # no name can bring it back, though it may still be open
            self.files[inode] = _Gone()

    @staticmethod
    def _change(names: dict[tuple[int, str], int], change: NameChange) -> None:
        for place, inode in change.changes:
            if inode is None:
                names.pop(place, None)
            else:
                names[place] = inode

    def _chains(self) -> list[list[int]]:
        """Un-synced operations on names (indexes of `pending`), those that share a name or a file together, in order."""
        chains: list[tuple[set[object], list[int]]] = []
        for index, change in enumerate(self.pending):
            keys: set[object] = {place for place, _ in change.changes} | {inode for _, inode in change.changes if inode is not None}
            members = [index]
            others = []
            for chain in chains:
                if chain[0] & keys:
                    keys |= chain[0]
                    members = chain[1] + members
                else:
                    others.append(chain)
            chains = [*others, (keys, sorted(members))]
        return [members for _, members in chains]

    def shown_names(self) -> dict[tuple[int, str], int]:
        names = dict(self.names)
        for change in self.pending:
            self._change(names, change)
        return names

    def shown_files(self) -> dict[int, bytes]:
        """inode -> bytes, as a process on this disk sees them."""
        return {inode: file.shown() for inode, file in self.files.items() if not isinstance(file, _Gone)}

    def shown_dirs(self) -> dict[int, dict[str, int]]:
        found: dict[int, dict[str, int]] = {inode: {} for inode in self.directories}
        for (directory, name), inode in self.shown_names().items():
            found[directory][name] = inode
        return found

    # --- images

    def _unsynced(self) -> tuple[list[list[int]], list[int], list[tuple[int, int]]]:
        """What an image can choose: chains of name changes, inodes with un-synced sizes, (inode, sector) un-synced."""
        chains = self._chains()
        linked = {*self.names.values(), *(inode for change in self.pending for _, inode in change.changes)}
        inodes = [inode for inode in sorted(self.files) if inode in linked]
        sizes = [inode for inode in inodes if self.files[inode].sizes]
        sectors = [(inode, sector) for inode in inodes for sector in sorted(self.files[inode].dirty)]
        return chains, sizes, sectors

    def image(self, choice: str, position: int = 0) -> Image:
        """The image of that choice: "name prefixes/sizes/sectors", each a hexadecimal byte per thing that is un-synced."""
        names, sizes, sectors = (tuple(bytes.fromhex(part)) for part in choice.split("/"))
        return self._build(self._unsynced(), names, sizes, sectors, position, choice)

    def _build(
        self,
        unsynced: tuple[list[list[int]], list[int], list[tuple[int, int]]],
        prefixes: tuple[int, ...],
        sizes: tuple[int, ...],
        picks: tuple[int, ...],
        position: int,
        choice: str,
    ) -> Image:
        chains, sized, sectors = unsynced
        if (len(prefixes), len(sizes), len(picks)) != (len(chains), len(sized), len(sectors)):
            raise ValueError("this choice is of another state")
        names = self.names
        if chains:
            names = dict(names)
            applied = sorted(index for chain, count in zip(chains, prefixes, strict=True) for index in chain[:count])
            for index in applied:
                self._change(names, self.pending[index])
        chosen: dict[int, dict[int, int]] = {}
        for (inode, sector), pick in zip(sectors, picks, strict=True):
            chosen.setdefault(inode, {})[sector] = pick
        lengths = {
            inode: ([len(self.files[inode].durable), *self.files[inode].sizes][pick]) for inode, pick in zip(sized, sizes, strict=True)
        }
        children: dict[int, list[tuple[str, int]]] = {}
        for (directory, name), inode in names.items():
            children.setdefault(directory, []).append((name, inode))
        files: dict[str, bytes] = {}
        directories: list[str] = []
        todo = [(ROOT, "")]
        while todo:
            directory, path = todo.pop()
            for name, inode in children.get(directory, ()):
                below = f"{path}/{name}"
                if inode in self.directories:
                    directories.append(below)
                    todo.append((inode, below))
                else:
                    file = self.files[inode]
                    files[below] = file.build(chosen.get(inode, {}), lengths.get(inode, len(file.durable)))
        return Image(position, choice, files, tuple(sorted(directories)))

    def images(self, limit: int = 256, seed: int = 0, position: int = 0) -> Iterator[Image]:
        """Up to `limit` different images; all of those that the rules above give when that is enough. The same seed, the same images."""
        unsynced = self._unsynced()
        chains, sized, sectors = unsynced
        rng = random.Random(f"{seed} {position}")
        seen: set[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = set()
        sources = self._sources(chains, sized, sectors, rng)
        while sources and len(seen) < limit:
            for source in list(sources):
                taken = next(source, None)
                if taken is None:
                    sources.remove(source)
                elif taken not in seen:
                    seen.add(taken)
                    choice = "/".join(bytes(part).hex() for part in taken)
                    yield self._build(unsynced, *taken, position, choice)
                    if len(seen) >= limit:
                        break

    def _sources(
        self, chains: list[list[int]], sized: list[int], sectors: list[tuple[int, int]], rng: random.Random
    ) -> list[Iterator[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]]:
        """Generators of choices, which `images` takes in turn."""
        files = self.files
        newest = tuple(len(files[inode].dirty[sector]) for inode, sector in sectors)
        nothing = (0,) * len(sectors)
        names = tuple(len(chain) for chain in chains)
        no_names = (0,) * len(chains)
        sizes = tuple(len(files[inode].sizes) for inode in sized)
        no_sizes = (0,) * len(sized)

        def damage(index: int) -> list[int]:
            inode, sector = sectors[index]
            return [ZERO, GARBAGE, BIT_FLIP, TORN, *range(STALE, STALE + len(files[inode].old.get(sector, ())))]

        def shuffled() -> list[int]:
            order = list(range(len(sectors)))
            rng.shuffle(order)
            return order

        def one(base: tuple[int, ...], index: int, pick: int) -> tuple[int, ...]:
            return (*base[:index], pick, *base[index + 1 :])

        def corners() -> Iterator[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]:
            yield names, sizes, newest
            yield no_names, no_sizes, nothing
            yield names, sizes, nothing
            yield no_names, sizes, newest
            yield names, no_sizes, newest
            for cut in itertools.islice(itertools.product(*(range(len(chain) + 1) for chain in chains)), 64):
                yield cut, sizes, newest
                yield cut, no_sizes, nothing

        def subsets() -> Iterator[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]:
            if len(sectors) <= SUBSETS_MAX:
                everything = list(itertools.product(*((0, version) for version in newest)))
                rng.shuffle(everything)
                for picks in everything:
                    yield names, sizes, picks
                return
            order = shuffled()
            for index in order:
                yield names, sizes, one(nothing, index, newest[index])  # alone there
                yield names, sizes, one(newest, index, 0)  # alone missing
            for index in order:
                yield names, sizes, newest[:index] + nothing[index:]
            for _ in range(256):
                share = rng.random()
                yield names, sizes, tuple(version if rng.random() < share else 0 for version in newest)

        def damaged() -> Iterator[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]:
            for index in shuffled():
                kinds = damage(index)
                rng.shuffle(kinds)
                for kind in kinds:
                    yield names, sizes, one(newest, index, kind)
                    yield names, sizes, one(nothing, index, kind)

        def versions() -> Iterator[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]:
            for index in shuffled():
                for version in range(1, newest[index]):
                    yield names, sizes, one(newest, index, version)
                    yield names, sizes, one(nothing, index, version)

        def mixed() -> Iterator[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]:
            if not sectors and not chains and not sized:
                return
            for _ in range(256):
                cut = tuple(rng.randint(0, len(chain)) for chain in chains)
                size = tuple(rng.randint(0, count) for count in sizes)
                share, bad = rng.random(), rng.random() * 0.3
                picks = []
                for index, version in enumerate(newest):
                    draw = rng.random()
                    if draw < bad:
                        picks.append(rng.choice(damage(index)))
                    else:
                        picks.append(rng.randint(1, version) if rng.random() < share else 0)
                yield cut, size, tuple(picks)

        return [corners(), subsets(), damaged(), versions(), mixed()]


class _Gone(FileState):
    """A file that no name can bring back: operations on it through an open descriptor leave no trace."""

    __slots__ = ()

    def write(self, offset: int, data: bytes) -> None:
        return

    def allocate(self, size: int, zero: bool) -> None:
        return


def digest(files: dict[str, bytes]) -> str:
    """Short hash of a disk's files: equal for equal disks."""
    total = hashlib.blake2b(digest_size=12)
    for path in sorted(files):
        total.update(f"{path} {len(files[path])} ".encode())
        total.update(files[path])
    return total.hexdigest()
