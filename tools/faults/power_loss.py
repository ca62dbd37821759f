"""Loss of power, made from a killed process: what it had not synced is rolled back, as a disk without power may have kept any part of it.

in: the undo records that tools/faults/shim.c wrote while the process ran. out: the files under the watched directory, changed.

For every file each 512-byte sector ends as one of the versions it had since its last sync (or as garbage, where a sector of a log was
wholly unsynced); the size falls back or not; of the unsynced creates, unlinks and renames of a directory a prefix survives.
L1  What was synced is never touched: a sync that succeeded covers the writes that were made before it began.
L2  Writes under a failed sync stay unsynced, though later syncs succeed, until the same sector is written and synced again.
"""

from __future__ import annotations

import contextlib
import os
import random
import struct
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from tools.faults.shim import Shim

SECTOR = 512
_RECORD = struct.Struct("<IIQQQQQII")
WRITE, SYNC, POISON, SIZE, CREATE, UNLINK, RENAME = range(1, 8)
# how much of the unsynced goes: all, none, sector by sector, all after a moment, sector by sector with garbage
MODES = ("all", "none", "sectors", "moment", "garbage")
WEIGHTS = (0.3, 0.05, 0.3, 0.2, 0.15)


@dataclass(slots=True)
class _Version:
    """What a sector held before write `seq`. `whole`: the write covered all of it."""

    seq: int
    old: bytes
    whole: bool
    poisoned: bool = False


@dataclass(slots=True)
class _State:
    """Unsynced changes of one file."""

    sectors: defaultdict[int, list[_Version]] = field(default_factory=lambda: defaultdict(list))
    sizes: list[tuple[int, int]] = field(default_factory=list)  # seq, size before

    def synced(self, upto: int) -> None:
        for number in list(self.sectors):
            versions = self.sectors[number]
            newest = max((v.seq for v in versions if v.seq <= upto and not v.poisoned), default=0)
            left = [v for v in versions if v.seq > newest]
            if left:
                self.sectors[number] = left
            else:
                del self.sectors[number]
        self.sizes = [pair for pair in self.sizes if pair[0] > upto]

    def poison(self, upto: int) -> None:
        for versions in self.sectors.values():
            for version in versions:
                version.poisoned |= version.seq <= upto


class PowerLoss:
    """Arms a broker on `data` and strikes after its death. `lies`: kinds of sync that do nothing (on files that end with `suffix`)."""

    def __init__(self, data: Path, folder: Path, *, lies: tuple[str, ...] = (), suffix: str = "") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.shim = Shim(data, folder, record=True)
        self.root = data.resolve()
        self.lies, self.suffix = lies, suffix

    def arm(self) -> dict[str, str]:
        """Environment for the next life."""
        self.shim.reset()
        self.shim.lie(*self.lies, suffix=self.suffix)
        return self.shim.env

    def strike(self, rng: random.Random, mode: str = "") -> dict[str, int]:
        """Rolls a random part of what was not synced back, in a random or the given mode. Returns what was done, as counts."""
        states, names = self._read()
        counts: Counter[str] = Counter(strikes=1)
        if self.shim.shared.overflow:
            return {"overflow": 1}
        mode = mode or rng.choices(MODES, WEIGHTS)[0]
        counts[f"mode_{mode}"] += 1
        inodes = self._inodes()
        moment = rng.uniform(0, self.shim.shared.seq)
        for number in range(len(self.shim.shared.files)):
            entry = self.shim.shared.files[number]
            state = states.get(entry.id)
            if entry.ino and state is not None and entry.ino in inodes:
                self._roll_back(inodes[entry.ino], state, mode, moment, rng, counts)
        # names last: the files were found by inode
        for steps in names.values():
            keep = {"all": 0, "none": len(steps)}.get(mode, rng.randint(0, len(steps)))
            for kind, seq, path, old in reversed(steps[keep:]):
                counts["names"] += 1
                self._undo_name(kind, seq, path, old)
        for index in self.root.rglob("*-shm"):
            index.unlink()
        return dict(counts)

    # --- reading ----------------------------------------------------------------------------------------------------
    def _read(self) -> tuple[dict[int, _State], dict[int, list[tuple[int, int, str, str]]]]:
        shared, data = self.shim.shared, self.shim.map
        assert data is not None
        states: defaultdict[int, _State] = defaultdict(_State)
        names: defaultdict[int, list[tuple[int, int, str, str]]] = defaultdict(list)
        at = shared.first
        while at < shared.tail:
            length, kind, seq, file, offset, extent, old_size, size, size2 = _RECORD.unpack_from(data, at)
            payload = data[at + _RECORD.size : at + _RECORD.size + size + size2]
            at += length
            if kind == WRITE:
                self._written(states[file], seq, offset, extent, old_size, payload)
            elif kind == SIZE:
                states[file].sizes.append((seq, old_size))
            elif kind == SYNC:
                states[file].synced(offset)
                names[file] = [step for step in names[file] if step[1] > offset]
            elif kind == POISON:
                states[file].poison(offset)
            else:
                path, old = payload[: size - 1].decode(), payload[size : size + max(0, size2 - 1)].decode()
                names[file].append((kind, seq, path, old))
        return states, names

    @staticmethod
    def _written(state: _State, seq: int, offset: int, extent: int, old_size: int, old: bytes) -> None:
        start = offset // SECTOR
        for number in range(start, (offset + extent + SECTOR - 1) // SECTOR):
            at = (number - start) * SECTOR
            whole = number * SECTOR >= offset and (number + 1) * SECTOR <= offset + extent
            state.sectors[number].append(_Version(seq, old[at : at + SECTOR], whole))
        if offset + extent > old_size:
            state.sizes.append((seq, old_size))

    def _inodes(self) -> dict[int, Path]:
        found: dict[int, Path] = {}
        for top in (self.shim.side, self.root):
            for path in top.rglob("*"):
                with contextlib.suppress(FileNotFoundError):
                    found[path.stat(follow_symlinks=False).st_ino] = path
        return found

    # --- undoing ----------------------------------------------------------------------------------------------------
    def _roll_back(self, path: Path, state: _State, mode: str, moment: float, rng: random.Random, counts: Counter[str]) -> None:
        if mode == "none" or not (state.sectors or state.sizes):
            return
        counts["files"] += 1
        fd = os.open(path, os.O_RDWR)
        try:
            size = os.fstat(fd).st_size
            for number, versions in sorted(state.sectors.items()):
                counts["unsynced"] += 1
                if mode == "all":
                    chosen: int = 0
                elif mode == "moment":
                    chosen = sum(v.seq <= moment for v in versions)
                else:
                    chosen = rng.randint(0, len(versions))
                if chosen == len(versions):
                    continue
                counts["sectors"] += 1
                old = versions[chosen].old
                if mode == "garbage" and rng.random() < 0.3 and path.suffix in (".flog", ".tmp") and all(v.whole for v in versions):
                    counts["garbage"] += 1
                    old = rng.randbytes(SECTOR)
                # beyond the old end there was nothing: zeros, as a hole would read
                old = old.ljust(min(SECTOR, max(0, size - number * SECTOR)), b"\0")
                os.pwrite(fd, old, number * SECTOR)
            if state.sizes:
                # the size is one of those it had since the last sync; a shorter one takes sectors with it
                before = [old for seq, old in state.sizes]
                back = before[0] if mode == "all" else rng.choice([*before, size])
                if back != size:
                    counts["sizes"] += 1
                    os.ftruncate(fd, back)
                else:
                    os.ftruncate(fd, size)
        finally:
            os.close(fd)

    def _undo_name(self, kind: int, seq: int, path: str, old: str) -> None:
        kept = self.shim.side / str(seq)
        if kind == CREATE:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        elif kind == UNLINK:
            if kept.exists() and not os.path.exists(path):
                os.link(kept, path)
        elif kind == RENAME and os.path.exists(path):
            os.rename(path, old)
            if kept.exists():
                os.link(kept, path)
