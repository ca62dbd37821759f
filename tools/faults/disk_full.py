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

    def run(self, cycles: int) -> dict[str, Any]:
        """The whole campaign; the numbers for the summary."""
        with crew(self.folder / "journals", 4, self.plan) as people:
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
                self.violations.append(f"D5 exit status {code} {self.stop_s[-1]:.1f} s after SIGTERM: {self.broker.stderr()[-800:]}")
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
        if not self.fill(people, number):
            return 0
        if number % 3:
            self.end(people, gentle=number % 3 == 1)
            port = self.begin(people)
            self.publish(people, port)
            if not self.fill(people, number):
                return 0
        return port if self.drain(people, port, number) else 0

    def fill(self, people: Crew, number: int) -> bool:
        """Until both publishers are blocked."""
        if not self.until(lambda: all(self.blocked(people)), FILL_S_MAX):
            where = f"{free(self.disk) / MIB:.1f} MiB free" if self.alive() else "the broker ended"
            self.violations.append(f"D1 cycle {number}: publishers were not blocked within {FILL_S_MAX} s, {where}")
            return False
        self.free_at_block.append(free(self.disk))
        if self.free_at_block[-1] < self.room:
            self.violations.append(f"D1 cycle {number}: {self.free_at_block[-1]} bytes were free when publishers were blocked")
        return True

    def drain(self, people: Crew, port: int, number: int) -> bool:
        """Empties the queues and waits until both publishers go on."""
        freed = self.unblocked(people)
        declare(port, replace(self.plan, queues=(f"late{number}",), fanout=""), people.own, self.life, known=False)
        people.begin(2, port, self.life, "each", self.rng.getrandbits(32))
        if not self.until(lambda: self.unblocked(people) != freed or self.settled(people), DRAIN_S_MAX):
            self.violations.append(f"D2 cycle {number}: with publishers blocked, the queues were not emptied within {DRAIN_S_MAX} s")
            return False
        empty_at = time.monotonic()
        confirmed = self.confirmed(people)

        def resumed() -> bool:
            now = self.unblocked(people)
            return all(now[name] > before for name, before in freed.items()) and self.confirmed(people) > confirmed

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
            if condition():
                return True
            time.sleep(0.1)
        return False

    def alive(self) -> bool:
        return self.broker.process is not None and self.broker.process.poll() is None

    def blocked(self, people: Crew) -> list[bool]:
        """Whether each publisher of this life was last told to wait."""
        state: dict[str, bool] = {}
        for event in people.events():
            if event[1] == j.OPEN and event[3] == self.life and event[4] == "confirm":
                state[event[2]] = False
            elif event[1] == j.NOTE and event[2] in state and event[3] in ("blocked", "unblocked"):
                state[event[2]] = event[3] == "blocked"
        return list(state.values()) if len(state) == 2 else [False]

    def unblocked(self, people: Crew) -> dict[str, int]:
        """How often each publisher of this life was told to go on."""
        counts = {e[2]: 0 for e in people.events() if e[1] == j.OPEN and e[3] == self.life and e[4] == "confirm"}
        for event in people.events():
            if event[1] == j.NOTE and event[2] in counts and event[3] == "unblocked":
                counts[event[2]] += 1
        return counts

    @staticmethod
    def confirmed(people: Crew) -> int:
        return sum(len(event[3]) for event in people.events() if event[1] == j.CONFIRM and event[4])

    @staticmethod
    def settled(people: Crew) -> bool:
        """Whether as much was acked as was confirmed, on every queue."""
        published = {(e[2], e[3]): e[4] for e in people.events() if e[1] == j.PUBLISH}
        confirmed = {(e[2], n) for e in people.events() if e[1] == j.CONFIRM and e[4] for n in e[3]}
        acked = {(e[3], pid, n) for e in people.events() if e[1] == j.ACK for pid, n in e[4]}
        # What was published since the first line was read is not settled.
        return all(ref in published and all((queue, *ref) in acked for queue in published[ref]) for ref in confirmed)


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
