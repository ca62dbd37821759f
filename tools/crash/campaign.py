"""Crash campaigns: takes recordings of workloads on the simulated disk, lets power fail everywhere, and checks what recovery finds.

in: a subject that records a workload by seed and checks an image of it. out: counts, and failures that one command replays.
"""

from __future__ import annotations

import multiprocessing
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from tests.twins.disk_images import Image
from tests.twins.sim_disk import SimDisk

NESTED_EVERY = 29  # every so many images the recovery itself is crashed everywhere, too
FAILURES_MAX = 10  # failures after which a campaign stops


class Violation(AssertionError):
    """What was promised does not hold."""


class Recording(Protocol):
    """A workload that ran once on `disk`."""

    disk: SimDisk

    def check(self, image: Image, nested: bool) -> int:
        """Recovers the image and raises Violation, or returns how many images it looked at (nested: crashes of the recovery, too)."""
        ...


class Subject(Protocol):
    def record(self, seed: int) -> Recording: ...


@dataclass
class Failure:
    """One image whose recovery broke a promise. `replay` is what the command line takes to see it again."""

    seed: int
    position: int
    choice: str
    nested: bool
    text: str

    @property
    def replay(self) -> str:
        return f"{self.seed}:{self.position}:{self.choice}" + (":nested" if self.nested else "")


def explain(error: Exception) -> str:
    """One line for a violation; for anything else its last frames, too."""
    if isinstance(error, Violation):
        return str(error)
    return f"{type(error).__name__}: {error}\n" + "".join(traceback.format_tb(error.__traceback__)[-4:])


@dataclass
class Outcome:
    """What a campaign did. seconds: wall time."""

    images: int = 0
    recordings: int = 0
    positions: int = 0
    seconds: float = 0.0
    failures: list[Failure] = field(default_factory=list)

    def add(self, other: Outcome) -> None:
        self.images += other.images
        self.recordings += other.recordings
        self.positions += other.positions
        self.failures += other.failures


def crash_recording(recording: Recording, seed: int, budget: int, outcome: Outcome, failures_max: int = FAILURES_MAX) -> None:
    """Checks about `budget` images, spread over all positions of the recording's journal."""
    disk = recording.disk
    state = disk.origin.clone()
    left_positions = len(disk.journal) + 1
    spent = 0
    turn = 0
    for position in range(len(disk.journal) + 1):
        if position:
            state.apply(disk.journal[position - 1])
        share = max(1, 2 * (budget - spent) // left_positions)  # many positions have but one image: the others get more
        left_positions -= 1
        outcome.positions += 1
        for image in state.images(share, seed, position):
            turn += 1
            nested = turn % NESTED_EVERY == 7
            try:
                spent += recording.check(image, nested)
            except Exception as error:  # a Violation, or recovery raised: it must not on what power loss leaves
                outcome.failures.append(Failure(seed, position, image.choice, nested, explain(error)))
            if len(outcome.failures) >= failures_max:
                outcome.images += spent
                return
    outcome.images += spent


def crash_seeds(
    subject: Subject, first_seed: int, step: int, images: int, per_recording: int, seconds: float, failures_max: int = FAILURES_MAX
) -> Outcome:
    """Records workloads first_seed, first_seed + step, ... until `images` images were checked, `seconds` are over or enough failed."""
    outcome = Outcome()
    started = time.monotonic()
    seed = first_seed
    while outcome.images < images and len(outcome.failures) < failures_max and time.monotonic() - started < seconds:
        try:
            recording = subject.record(seed)
        except Exception as error:  # already the workload saw a promise broken, or the store refused what it must do
            outcome.failures.append(Failure(seed, -1, "", False, explain(error)))
            seed += step
            continue
        crash_recording(recording, seed, min(per_recording, images - outcome.images), outcome, failures_max)
        outcome.recordings += 1
        seed += step
    outcome.seconds = time.monotonic() - started
    return outcome


def crash_parallel(
    make: Callable[[], Subject], seed: int, images: int, per_recording: int = 2_500, jobs: int = 2, seconds: float = 1e9
) -> Outcome:
    """The same by `jobs` processes, each with its own seeds. make: a module-level function (it is called in each process)."""
    if jobs == 1:
        return crash_seeds(make(), seed, 1, images, per_recording, seconds)
    started = time.monotonic()
    total = Outcome()
    context = multiprocessing.get_context("fork")
    with context.Pool(jobs) as pool:
        parts = [pool.apply_async(_part, (make, seed + job, jobs, -(-images // jobs), per_recording, seconds)) for job in range(jobs)]
        for part in parts:
            total.add(part.get())
    total.seconds = time.monotonic() - started
    return total


def _part(make: Callable[[], Subject], seed: int, step: int, images: int, per_recording: int, seconds: float) -> Outcome:
    return crash_seeds(make(), seed, step, images, per_recording, seconds)


def replay(subject: Subject, text: str) -> Failure | None:
    """Does one failure again: "seed:position:choice[:nested]"; None when the promise holds now."""
    parts = text.split(":")
    seed, position, choice, nested = int(parts[0]), int(parts[1]), parts[2], parts[3:] == ["nested"]
    try:
        recording = subject.record(seed)
        if position >= 0:
            recording.check(recording.disk.state(position).image(choice, position), nested)
    except Exception as error:
        return Failure(seed, position, choice, nested, explain(error))
    return None
