"""T7 on the shipped process: the Nth sync, write, rename, create or allocation fails, once or for ever, N = 1 until a run passes untouched.

in: a script of clients over a new store per point, faults by the shim. out: one JSON line; exit 0, or 65 with violations.
F1  A failed sync or write of the log, or a failed commit of definitions that was not answered with an error, ends the broker with
    exit status 74 (a disk that is full may block publishers instead); its log names what failed.
F2  Nothing is confirmed that the disk may not have: after the end all unsynced bytes are taken away (a failed sync made nothing durable).
F3  Without the fault the store opens again, and the checker has nothing to say after the drain.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.faults import shim as shim_module
from tools.faults.client import Gone, Plan
from tools.faults.crew import crew
from tools.faults.power_loss import PowerLoss
from tools.faults.targets import DidNotStart, Flint

OPS = ("sync", "pwrite", "rename", "create", "fallocate", "dirsync", "unlink", "truncate")
EXIT_IO = 74
# a run ends by itself when its publishers have done this much
MESSAGES = 25
RUN_S_MAX = 15.0
# seconds within which the broker ends after a failure that it must not survive
END_S_MAX = 10.0


@dataclass(frozen=True, slots=True)
class Point:
    """One fault: `after` operations of the kind pass, the next fails, or all from then on."""

    op: str
    after: int
    forever: bool
    code: int = errno.EIO

    def __str__(self) -> str:
        return f"{self.op}:{self.after}:{'ever' if self.forever else 'once'}:{errno.errorcode[self.code]}"


@dataclass(slots=True)
class Outcome:
    """What a point led to. `struck`: whether the fault happened at all."""

    struck: bool = False
    exit: int | None = None
    at_start: bool = False
    file: str = ""
    violations: list[str] = field(default_factory=list)
    confirmed: int = 0


def latched(point: Point, power: PowerLoss) -> bool:
    """Whether the broker must end: a write or sync of the messages' or transactions' log failed."""
    file = power.shim.failed_name()
    log = file.endswith(".flog") and not file.startswith("pages")
    return log and point.op in ("sync", "pwrite") and point.code == errno.EIO


def run_point(point: Point, folder: Path, seed: int, extra: Sequence[str] = ()) -> Outcome:
    """One run with the fault, power loss, one without, the verdict."""
    outcome = Outcome()
    shutil.rmtree(folder, ignore_errors=True)
    data = folder / "data"
    data.mkdir(parents=True)
    power = PowerLoss(data, folder / "shim")
    broker = Flint(data, extra)
    plan = Plan(sizes="mixed", rate=400, window=8, limit=MESSAGES, answer_s=10)
    rng = random.Random(seed)
    with crew(folder / "journals", 3, plan) as people:
        env = power.arm()
        power.shim.fail(point.op, code=point.code, after=point.after, forever=point.forever)
        port, declared = 0, False
        try:
            port = broker.start(env)
            people.life(1, "ready")
        except DidNotStart as error:
            outcome.at_start, outcome.exit = True, error.code
            people.life(1, "ready")
        if port:
            with contextlib.suppress(Gone):
                people.declare(port, 1, known=False)
                declared = True
                for number, role in enumerate(("confirm", "txpublish", "multiple")):
                    people.begin(number, port, 1, role, rng.getrandbits(32))
            end = time.monotonic() + RUN_S_MAX
            while time.monotonic() < end and not broker.wait(0.02):
                if all(client.idle(0) for client in people.clients[:2]):
                    break
            if broker.wait((END_S_MAX if latched(point, power) else 0.3) if power.shim.failed() else 0):
                assert broker.process is not None
                outcome.exit = broker.process.returncode
            else:
                people.halt(2)
                if latched(point, power) and broker.wait(END_S_MAX):  # it struck only now
                    outcome.exit = broker.code()
                else:
                    broker.kill()
        people.life(1, "killed")
        people.finish()
        outcome.struck = power.shim.failed() > 0
        said = broker.stderr()
        if outcome.struck and outcome.exit not in (None, EXIT_IO):
            outcome.violations.append(f"F1 exit status {outcome.exit}: {said[-800:]}")
        outcome.file = power.shim.failed_name()
        if latched(point, power) and outcome.exit is None:
            outcome.violations.append(f"F1 the broker goes on after a failed {point.op} of {outcome.file}")
        named = (".flog", "definitions", "lock", ".tmp", *([str(data)] if outcome.at_start else []))
        last = [line for line in said.splitlines() if "[CRITICAL]" in line and str(data) in line]
        if outcome.exit == EXIT_IO and not last and not any(word in said for word in named):
            outcome.violations.append(f"F1 the log names no file: {said[-800:]}")
        power.strike(rng, "all")
        try:
            port = broker.start()
            people.life(2, "ready")
            people.declare(port, 2, known=declared)
            people.drain(port, 2)
            broker.stop()
        except (DidNotStart, Gone, RuntimeError) as error:
            outcome.violations.append(f"F3 {str(error)[-1000:]}")
            with contextlib.suppress(AssertionError):
                broker.kill()
            return outcome
        report = people.verdict()
    outcome.confirmed = report.counts["confirmed"] + report.counts["tx_ok"]
    outcome.violations += [f"F2 {text}" for text in report.to_json()["shown"]]
    return outcome


def main(arguments: Sequence[str] | None = None) -> int:
    """Fails every operation once and for ever."""
    parser = argparse.ArgumentParser(prog="python -m tools.faults.io_errors", description=main.__doc__)
    parser.add_argument("--ops", nargs="*", default=list(OPS), choices=OPS)
    parser.add_argument("--step", type=int, default=1, help="1: every point; more: every so many (a sample)")
    parser.add_argument("--most", type=int, default=10_000, help="highest N")
    parser.add_argument("--point", help="one point, as it is printed: op:after:once|ever:CODE")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="where the store and journals of a failing point are copied to")
    parser.add_argument("serve", nargs="*", help="more arguments of `flintmq serve` (after --)")
    given = parser.parse_args(arguments)
    if reason := shim_module.missing():
        print(json.dumps({"campaign": "T7", "skipped": reason}))
        return 69
    points = struck = 0
    exits: Counter[str] = Counter()
    shown: list[str] = []
    with tempfile.TemporaryDirectory() as folder:

        def one(point: Point) -> bool:
            nonlocal points, struck
            outcome = run_point(point, Path(folder, "point"), given.seed, given.serve)
            points, struck = points + 1, struck + outcome.struck
            if outcome.struck:
                exits[f"{outcome.exit}{'@start' if outcome.at_start else ''}"] += 1
            print(f"{points:5} {point}: {outcome.file or 'not reached'}, exit {outcome.exit}", file=sys.stderr, flush=True)
            shown.extend(f"--point {point} --seed {given.seed}: {text}" for text in outcome.violations)
            if outcome.violations and given.keep:
                shutil.copytree(Path(folder, "point"), given.keep / str(point).replace(":", "-"), dirs_exist_ok=True)
            return outcome.struck

        if given.point:
            op, after, how, code = given.point.split(":")
            one(Point(op, int(after), how == "ever", getattr(errno, code)))
        else:
            for op in given.ops:
                for forever in (False, True):
                    for code in (errno.EIO, errno.ENOSPC) if op in ("pwrite", "fallocate") else (errno.EIO,):
                        for after in range(0, given.most, given.step):
                            if not one(Point(op, after, forever, code)):
                                break
    report: dict[str, Any] = {"ok": not shown, "points": points, "struck": struck, "exits": dict(exits), "violations": len(shown)}
    print(json.dumps({"campaign": "T7", "seed": given.seed, **report, "shown": shown[:20]}))
    return 65 if shown else 0


if __name__ == "__main__":
    raise SystemExit(main())
