"""T8: a disk that fills up: publishers are told to wait before it is full, consumers and acks go on, and it goes on by itself afterwards.

in: root's right to mount a tmpfs. out: one JSON line; exit 0, or 65 with violations, 69 when it can't be tried here.
D1  Every publisher gets connection.blocked while the disk still has room for ROOM_CONTAINERS containers; the broker never ends.
D2  With publishers blocked, a durable queue can be declared, consumers get and ack everything; the final drain acks in transactions.
D3  Within RESUME_S of the queues being empty the publishers are unblocked and confirmed again, without a restart.
D4  The checker has nothing to say over the whole run, restarts and the final drain included.
D5  SIGTERM ends the broker within STOP_S with exit status 0, also with a full disk; a full store opens again, after kill -9, too.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from tools.faults import journal as j
from tools.faults.client import Gone, Plan, declare
from tools.faults.crew import Crew, crew
from tools.faults.targets import DidNotStart, Flint

MIB = 1 << 20
DISK_MIB = 64
CONTAINER_BYTES = 4 * MIB  # of the broker, unless it is told another
RESUME_S = 5.0
STOP_S = 10.0
ROOM_CONTAINERS = 2
FILL_S_MAX = 60.0
DRAIN_S_MAX = 60.0


def missing() -> str | None:
    """Why no small disk can be had here, or None."""
    if os.geteuid() != 0:
        return "mounting a tmpfs needs root"
    if shutil.which("mount") is None:
        return "mount is missing"
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return f"no tmpfs can be mounted: {done.stderr.strip()}"
        subprocess.run(["umount", folder], check=True)
    return None


@contextlib.contextmanager
def small_disk(folder: Path, mib: int = DISK_MIB) -> Iterator[Path]:
    """A tmpfs of `mib` MiB, mounted while the context lasts."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def free(folder: Path) -> int:
    """Bytes left on the disk."""
    state = os.statvfs(folder)
    return state.f_bavail * state.f_frsize


class Watch:
    """What the clients have told so far. Reads on where the last look ended: their journals grow to many MiB, and what is waited for is
    timed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.confirmed = 0
        self._read: dict[Path, int] = {}  # bytes
        self._lives: dict[str, int] = {}  # publisher -> its life
        self._blocked: dict[str, bool] = {}  # whether it was last told to wait
        self._unblocked: Counter[str] = Counter()
        self._queues: dict[j.Ref, list[str]] = {}
        self._acked: set[tuple[str, str, int]] = set()  # queue, producer, sequence
        self._waiting: set[tuple[str, str, int]] = set()  # confirmed, not acked

    def look(self) -> None:
        """Reads what was written since the last look."""
        for path in sorted(self.folder.glob("client*.jsonl")):
            with path.open("rb") as journal:
                journal.seek(self._read.get(path, 0))
                lines = journal.read().split(b"\n")
            lines.pop()  # not whole yet
            for line in lines:
                self._take(json.loads(line))
                self._read[path] = self._read.get(path, 0) + len(line) + 1

    def _take(self, event: j.Event) -> None:
        kind, who = event[1], event[2]
        if kind == j.OPEN and event[4] == "confirm":
            self._lives[who], self._blocked[who] = event[3], False
        elif kind == j.NOTE and event[3] in ("blocked", "unblocked"):
            self._blocked[who] = event[3] == "blocked"
            self._unblocked[who] += event[3] == "unblocked"
        elif kind == j.PUBLISH:
            self._queues[who, event[3]] = event[4]
        elif kind == j.CONFIRM and event[4]:
            self.confirmed += len(event[3])
            self._waiting |= {(queue, who, n) for n in event[3] for queue in self._queues[who, n]} - self._acked
        elif kind == j.ACK:
            done = {(event[3], producer, n) for producer, n in event[4]}
            self._acked |= done
            self._waiting -= done

    def publishers(self, life: int) -> list[str]:
        """Those of a life that have begun."""
        return [who for who, of in self._lives.items() if of == life]

    def blocked(self, life: int) -> bool:
        """Whether both publishers of that life were last told to wait."""
        who = self.publishers(life)
        return len(who) == 2 and all(self._blocked[one] for one in who)

    def unblocked(self, life: int) -> dict[str, int]:
        """How often each publisher of that life was told to go on."""
        return {who: self._unblocked[who] for who in self.publishers(life)}

    @property
    def settled(self) -> bool:
        """Whether as much was acked as was confirmed, on every queue."""
        return not self._waiting


class DiskFull:
    """One campaign: fill, drain, fill again."""

    def __init__(self, disk: Path, folder: Path, seed: int, extra: Sequence[str]) -> None:
        self.disk, self.folder = disk, folder
        self.rng = random.Random(seed)
        self.broker = Flint(disk / "store", extra)
        self.plan = Plan(sizes="large", rate=0, window=16, answer_s=30)
        self.violations: list[str] = []
        self.free_at_block: list[int] = []
        self.resume_s: list[float] = []
        self.stop_s: list[float] = []
        size = next((int(value) for name, value in pairwise(extra) if name == "--container-size"), CONTAINER_BYTES)
        self.room = ROOM_CONTAINERS * size
        self.life = 1
        self.watch = Watch(folder / "journals")

    def run(self, cycles: int) -> dict[str, Any]:
        """The whole campaign; the numbers for the summary."""
        with crew(self.watch.folder, 4, self.plan) as people:
            port = self.broker.start()
            people.life(1, "ready")
            people.declare(port, 1, known=False)
            self.publish(people, port)
            done = 0
            try:
                for number in range(1, cycles + 1):
                    port = self.cycle(people, port, number)
                    if not port:
                        break
                    done = number
                if self.alive():
                    people.halt()
                    self.end(people, gentle=True)
                else:
                    self.violations.append(f"D1 the broker ended with {self.broker.code()}: {self.broker.stderr()[-1500:]}")
                    people.life(self.life, "killed")
                    people.finish()
                port = self.begin(people)
                people.drain(port, self.life)
                self.end(people, gentle=True)
            except (DidNotStart, Gone, RuntimeError) as error:
                self.violations.append(f"D4 {str(error)[-1500:]}")
            report = people.verdict()
        self.violations += [f"D4 {text}" for text in report.to_json()["shown"]]
        return {
            "ok": not self.violations, "cycles": done, "violations": len(self.violations), "shown": self.violations[:20],
            "free_at_block_mib": [round(each / MIB, 1) for each in self.free_at_block], "resume_s": [round(s, 2) for s in self.resume_s],
            "stop_s": [round(s, 2) for s in self.stop_s], "lives": self.life, "counts": dict(report.counts),
        }  # fmt: skip

    # --- lives ------------------------------------------------------------------------------------------------------
    def begin(self, people: Crew) -> int:
        """The next life, without clients yet. Returns its port."""
        port = self.broker.start()
        self.life += 1
        people.life(self.life, "ready")
        return port

    def end(self, people: Crew, *, gentle: bool) -> None:
        """Ends the life with SIGTERM or kill -9, whatever its clients do."""
        begun = time.monotonic()
        if gentle:
            code = self.broker.stop()
            self.stop_s.append(time.monotonic() - begun)
            if code or self.stop_s[-1] > STOP_S:
                self.violations.append(f"D5 exit status {code} {self.stop_s[-1]:.1f} s after SIGTERM: {self.broker.stderr()[-8000:]}")
        else:
            self.broker.kill()
        people.life(self.life, "stopped" if gentle else "killed")
        people.finish()
        if complaint := self.broker.complaints():
            self.violations.append(f"D4 the broker's log: {complaint}")

    def publish(self, people: Crew, port: int) -> None:
        """Two publishers that fill the disk."""
        for number in range(2):
            people.begin(number, port, self.life, "confirm", self.rng.getrandbits(32))

    # --- a cycle ----------------------------------------------------------------------------------------------------
    def cycle(self, people: Crew, port: int, number: int) -> int:
        """Fills until both publishers are blocked (in some cycles the broker ends and starts again then), drains, waits until they go
        on. Returns the port; 0: no use to go on."""
        if not self.fill(number):
            return 0
        if number % 3:
            self.end(people, gentle=number % 3 == 1)
            port = self.begin(people)
            self.publish(people, port)
            if not self.fill(number):
                return 0
        return port if self.drain(people, port, number) else 0

    def fill(self, number: int) -> bool:
        """Until both publishers are blocked."""
        if not self.until(lambda: self.watch.blocked(self.life), FILL_S_MAX):
            where = f"{free(self.disk) / MIB:.1f} MiB free" if self.alive() else "the broker ended"
            self.violations.append(f"D1 cycle {number}: publishers were not blocked within {FILL_S_MAX} s, {where}")
            return False
        self.free_at_block.append(free(self.disk))
        if self.free_at_block[-1] < self.room:
            self.violations.append(f"D1 cycle {number}: {self.free_at_block[-1]} bytes were free when publishers were blocked")
        return True

    def drain(self, people: Crew, port: int, number: int) -> bool:
        """Empties the queues and waits until both publishers go on."""
        self.watch.look()
        freed = self.watch.unblocked(self.life)
        declare(port, replace(self.plan, queues=(f"late{number}",), fanout=""), people.own, self.life, known=False)
        people.begin(2, port, self.life, "each", self.rng.getrandbits(32))
        if not self.until(lambda: self.watch.unblocked(self.life) != freed or self.watch.settled, DRAIN_S_MAX):
            self.violations.append(f"D2 cycle {number}: with publishers blocked, the queues were not emptied within {DRAIN_S_MAX} s")
            return False
        empty_at = time.monotonic()
        confirmed = self.watch.confirmed

        def resumed() -> bool:
            now = self.watch.unblocked(self.life)
            return all(now[name] > before for name, before in freed.items()) and self.watch.confirmed > confirmed

        if not self.until(resumed, RESUME_S):
            where = f"{free(self.disk) / MIB:.1f} MiB free; the broker's last words: {self.broker.stderr()[-600:]}"
            self.violations.append(f"D3 cycle {number}: publishers were not let go on within {RESUME_S} s of an empty queue, {where}")
            return False
        self.resume_s.append(time.monotonic() - empty_at)
        people.halt(2)
        return True

    def until(self, condition: Callable[[], bool], seconds: float) -> bool:
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.alive():
            self.watch.look()
            if condition():
                return True
            time.sleep(0.1)
        return False

    def alive(self) -> bool:
        return self.broker.process is not None and self.broker.process.poll() is None


def main(arguments: Sequence[str] | None = None) -> int:
    """Fills a small disk under the broker, drains it and fills it again."""
    parser = argparse.ArgumentParser(prog="python -m tools.faults.disk_full", description=main.__doc__)
    parser.add_argument("--cycles", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--disk-mib", type=int, default=DISK_MIB)
    parser.add_argument("serve", nargs="*", help="more arguments of `flintmq serve` (after --)")
    given = parser.parse_args(arguments)
    if reason := missing():
        print(json.dumps({"campaign": "T8", "skipped": reason}))
        return 69
    with tempfile.TemporaryDirectory() as folder, small_disk(Path(folder, "disk"), given.disk_mib) as disk:
        campaign = DiskFull(disk, Path(folder), given.seed, given.serve)
        try:
            report = campaign.run(given.cycles)
        finally:
            if campaign.alive():
                campaign.broker.kill()
    print(json.dumps({"campaign": "T8", "seed": given.seed, **report}))
    return 0 if report["ok"] else 65


if __name__ == "__main__":
    raise SystemExit(main())
