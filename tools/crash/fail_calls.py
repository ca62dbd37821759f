"""T7: every call of the disk fails once, and from then on. `python -m tools.crash.fail_calls --scripts 20`.

A script of 50 random operations runs on the simulated disk; for each kind of call and each N its Nth call fails, once or for ever.
Then: nothing becomes durable after a failed write or sync; the store says which file and why; after a restart (the cache shows what
the disk does not have) and after power loss everything that was confirmed is there and nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import logging
import os
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

from flintmq.errors import StoreError
from tests.twins.disk_images import Image
from tests.twins.sim_disk import SimDisk
from tools.crash.campaign import Failure, Violation, explain
from tools.crash.model import State
from tools.crash.workload import Life, StoreRecording, check_contents, check_unharmed, content_of, open_store, read_state

STEPS = 50
# kinds of calls, the error that each gets; a full disk is no failure of the store, so allocations get both
POINTS = (
    ("write", errno.EIO),
    ("write", errno.ENOSPC),
    ("sync", errno.EIO),
    ("rename", errno.EIO),
    ("allocate", errno.EIO),
    ("allocate", errno.ENOSPC),
    ("create", errno.EIO),
    ("sync_dir", errno.EIO),
    ("unlink", errno.EIO),
)
LATCHING = ("write", "sync")  # in the data path
AFTER = 12  # operations after the failure
IMAGES = 3  # of power loss, per fault point


class Script(StoreRecording):
    """A recording whose only life meets a fault."""

    def __init__(self, seed: int) -> None:
        self.prepare(seed, open_store)
        self.rng = random.Random(seed)

    def play(self, kind: str = "", nth: int = 0, error: int = 0, forever: bool = False) -> tuple[Life | None, int | None]:
        """Runs the script. Returns its life (None: not even the opening worked) and the journal position of the first failure."""
        if nth:
            self.disk.fail(kind, nth, error, forever)
        try:
            self.life = Life(self, self.rng, self.empty(), 0)
        except (StoreError, OSError) as problem:
            if not self.disk.failures:
                raise
            name_cause(problem, self.disk)
            return None, 0
        failed_at: int | None = None
        steps = STEPS
        while steps > 0:
            steps -= 1
            choice = self.rng.choice(self.life.kinds) if failed_at is None else self.rng.choice(("publish", "flush", "fan", "maintain"))
            try:
                self.life.step(choice)
            except OSError as problem:  # of the maintenance, which runs on this thread here: its own thread latches it like this
                if not self.disk.failures:
                    raise
                self.life.store.failed(StoreError(f"{problem.filename or 'a container'}: {problem.strerror}"))
            except StoreError:
                if not self.disk.failures:
                    raise
            if self.disk.failures and failed_at is None:
                failed_at = self.disk.position
                steps = AFTER
        if failed_at is None:
            with contextlib.suppress(StoreError, OSError):
                self.life.store.close(clean=True)
        return self.life, failed_at


def name_cause(problem: BaseException, disk: SimDisk) -> None:
    """Raises Violation unless the text names a file of the store and the cause."""
    text = str(problem)
    kind, path, number = disk.failures[0]
    if not any(os.strerror(number) in text and os.path.dirname(path) in text for _, path, number in disk.failures):
        raise Violation(f"{kind} of {path} failed with {os.strerror(number)!r}, and the store says {text!r}")


@dataclass
class Fault:
    """One fault point."""

    seed: int
    kind: str
    error: int
    nth: int
    forever: bool

    @property
    def replay(self) -> str:
        return f"{self.seed}:{self.kind}:{errno.errorcode[self.error]}:{self.nth}:{'forever' if self.forever else 'once'}"

    @staticmethod
    def parse(text: str) -> Fault:
        seed, kind, error, nth, how = text.split(":")
        return Fault(int(seed), kind, getattr(errno, error), int(nth), how == "forever")


@dataclass
class Result:
    """What T7 did."""

    points: int = 0
    latched: int = 0
    images: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)


def check_fault(fault: Fault, result: Result) -> None:
    """Runs the script with the fault. Raises Violation."""
    script = Script(fault.seed)
    life, failed_at = script.play(fault.kind, fault.nth, fault.error, fault.forever)
    disk = script.disk
    if not disk.failures:
        return
    result.points += 1
    result.kinds[fault.kind] += 1
    disk.heal()
    if life is not None and life.store.failure is not None:
        result.latched += 1
        name_cause(life.store.failure, disk)
        if failed_at is not None:
            check_latched(life, failed_at)
    elif life is not None and failed_at is not None and fault.error == errno.EIO and fault.kind != "unlink":
        raise Violation(f"{fault.kind} failed, and the store has no failure")
    position = disk.position
    # the process restarts on the same machine: reads show what was written, synced or not
    again = disk.restart()
    shown = recover(script, again, position)
    for image in again.images(limit=IMAGES, seed=fault.seed):  # and then power fails after all
        compare(script, image, position, shown)
        result.images += 1
    # the same, and it goes on: what is confirmed now must not rest on what only the cache shows
    again = disk.restart()
    store = script.open(again, position)
    told: list[bool] = []
    message = store.append_content(content_of(-1, 100))
    queue = min(script.defined(position)[0])
    store.on_durable(store.enqueue(queue, 1 << 42, message), lambda: told.append(True))
    for _ in range(2):  # a pass ends where a container does
        store.flush()
    if not told:
        raise Violation("after the restart nothing becomes durable")
    for image in again.images(limit=IMAGES, seed=fault.seed):
        compare(script, image, position, shown | {(queue, 1 << 42, message, 0, False)})
        result.images += 1
    for image in disk.images(position, IMAGES, fault.seed):
        recover(script, SimDisk.from_image(image), position)
        result.images += 1


def compare(script: Script, image: Image, position: int, expected: State) -> None:
    store = script.open(SimDisk.from_image(image), position)
    found, _ = read_state(store, range(1, script.defined(position)[1] + 1))
    if found != expected:
        raise Violation(f"after a restart and power loss ({image.choice}): {sorted(map(str, expected ^ found))[:6]}")
    check_unharmed(store)


def check_latched(life: Life, failed_at: int) -> None:
    """After the failure nothing is told durable, nothing more is taken."""
    told = [operation for operation in life.oracle.operations if failed_at < operation.told < 1 << 60]
    if told:
        raise Violation(f"{told[0].kind} was called durable at {told[0].told}, after the failure at {failed_at}")
    before = life.store.durable_lsn
    late: list[bool] = []
    with contextlib.suppress(StoreError):
        life.store.on_durable(
            life.store.enqueue(life.queues[0], 1 << 41, life.store.append_content(life.content())), lambda: late.append(True)
        )
    for _ in range(3):
        try:
            life.store.flush()
            life.store.maintain()
        except (StoreError, OSError):
            pass
    if late or life.store.durable_lsn != before:
        raise Violation("something became durable after the store had failed")


def recover(script: Script, disk: SimDisk, position: int) -> State:
    store = script.open(disk, position)
    shown, entries = read_state(store, range(1, script.defined(position)[1] + 1))
    if hasattr(script, "life"):
        if shown not in script.acceptable(script.life, position):
            raise Violation(script.life.oracle.closest(shown, position))
    elif shown:
        raise Violation(f"a store that could not be made shows {sorted(map(str, shown))[:3]}")
    check_contents(store, entries, script.contents)
    check_unharmed(store)
    return shown


def run(scripts: int = 1, seed: int = 1, seconds: float = 1e9, every: int = 1, failures_max: int = 10) -> Result:
    """All fault points of `scripts` scripts (every: only each so-manieth N)."""
    result = Result()
    started = time.monotonic()
    for number in range(seed, seed + scripts):
        plain = Script(number)
        plain.play()
        for kind, error in POINTS:
            for nth in range(1, plain.disk.calls.get(kind, 0) + 1, every):
                for forever in (False, True):
                    fault = Fault(number, kind, error, nth, forever)
                    try:
                        check_fault(fault, result)
                    except Exception as problem:
                        result.failures.append(Failure(number, nth, fault.replay, False, explain(problem)))
                    if len(result.failures) >= failures_max or time.monotonic() - started > seconds:
                        return result
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scripts", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--replay", metavar="SEED:KIND:ERROR:N:once|forever")
    arguments = parser.parse_args()
    if arguments.replay:
        try:
            check_fault(Fault.parse(arguments.replay), Result())
        except Violation as violation:
            print(violation)
            return 1
        print("it holds now")
        return 0
    logging.disable(logging.CRITICAL)
    started = time.monotonic()
    result = run(arguments.scripts, arguments.seed, arguments.seconds)
    for failure in result.failures:
        print(f"python -m tools.crash.fail_calls --replay '{failure.choice}'\n  {failure.text}", file=sys.stderr)
    print(
        json.dumps(
            {
                "campaign": "T7",
                "fault_points": result.points,
                "by_kind": dict(result.kinds),
                "latched": result.latched,
                "images": result.images,
                "violations": len(result.failures),
                "seconds": round(time.monotonic() - started, 1),
            }
        )
    )
    return 1 if result.failures else 0


if __name__ == "__main__":
    sys.exit(main())
