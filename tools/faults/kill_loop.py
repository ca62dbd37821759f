"""T4 and T5: load, kill -9 (or loss of power) at a random time or a named point, restart, and again; nothing confirmed may be missing.

in: `--cycles`, `--seed`, a broker. out: one JSON line (violations, what was hit, longest restart), exit 0, or 65 with violations.

Every cycle draws its decisions from (seed, cycle): replay with the same `--seed`, `--first` and `--cycles`. The machine's timing is not
replayed; `--keep DIR` leaves journals and data of the failing epoch, and `python -m tools.faults.checker DIR/journals/*` judges again.
Cycles are grouped into epochs: at the end of one all queues are drained and judged; the store lives on through all of them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tools.faults.broken import FakeBroker
from tools.faults.client import Gone, Plan
from tools.faults.crew import Crew, crew
from tools.faults.power_loss import PowerLoss
from tools.faults.targets import DidNotStart, Fake, Flint, Rabbit, Target

FAILPOINTS = (
    "message-written", "message-synced", "commit-written", "commit-synced", "container-created", "container-recycled", "copy-forward",
    "sql-committed", "restart-marked",
)  # fmt: skip
# these are hit seldom: by a change of the definitions, by a stop, when a container dies under load
RARE = ("sql-committed", "restart-marked", "container-recycled")
# an exit status of the failpoint's own kill; anything else that ends by itself is a fault of the broker
KILLED = -9
CLIENTS = 5
# so that containers are used again
NO_RETENTION = ("--log-retain-bytes", "0", "--log-retain-age", "0")
# so that a life has checkpoints: each half a second a broker without work looks whether one is due; share of the lives that have these
OFTEN = ("--checkpoint-bytes", "64KiB")
OFTEN_SHARE = 0.5
OFTEN_S = 0.6


@dataclass(slots=True)
class Summary:
    """What the campaign did and found."""

    cycles: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    failpoints: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    violations: Counter[str] = field(default_factory=Counter)
    shown: list[str] = field(default_factory=list)
    power: Counter[str] = field(default_factory=Counter)
    restart_s_max: float = 0.0
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return not self.violations

    def fault(self, kind: str, text: str) -> None:
        """Notes a fault that the loop itself saw."""
        self.violations[kind] += 1
        self.shown.append(f"{kind}: {text}")

    def to_json(self) -> dict[str, Any]:
        return {
            "ok": self.ok, "cycles": self.cycles, "violations": dict(self.violations), "shown": self.shown[:20], "ends": dict(self.ends),
            "failpoints": dict(self.failpoints), "counts": dict(self.counts), "power": dict(self.power),
            "restart_s_max": round(self.restart_s_max, 2), "seconds": round(self.seconds, 1),
        }  # fmt: skip


class KillLoop:
    """One campaign over one target. Shares of cycles: `failpoints` end at a named point; `gentle` end with SIGTERM; `checkpoints` write
    checkpoints often."""

    CREW: type[Crew] = Crew

    def __init__(
        self, target: Target, plan: Plan, folder: Path, *, seed: int, epoch: int = 10, failpoints: float = 0.0, gentle: float = 0.1,
        load_s: tuple[float, float] = (0.1, 0.7), power: PowerLoss | None = None, keep: Path | None = None,
        remembers: bool = True, checkpoints: float = 0.0,
    ) -> None:  # fmt: skip
        self.target, self.plan, self.folder, self.seed, self.epoch = target, plan, folder, seed, epoch
        self.failpoints, self.gentle, self.load_s = failpoints, gentle, load_s
        self.power, self.keep, self.checkpoints = power, keep, checkpoints
        self.summary = Summary()
        self.remembers = remembers  # False: declarations are made anew in each life (a broker without a disk)
        self.declared = False

    def run(self, cycles: int, first: int = 0) -> Summary:
        """All cycles; stops after the first epoch with a violation."""
        begun = time.monotonic()
        for start in range(first, first + cycles, self.epoch):
            journals = self.folder / "journals"
            shutil.rmtree(journals, ignore_errors=True)
            end = min(start + self.epoch, first + cycles)
            with crew(journals, CLIENTS, self.plan, self.CREW) as people:
                try:
                    for cycle in range(start, end):
                        self.cycle(people, cycle)
                        self.summary.cycles += 1
                    self.final(people, end)
                except (DidNotStart, RuntimeError) as error:
                    self.summary.fault("broken", f"cycles {start}-{end}: {error}")
                    with contextlib.suppress(Exception):
                        self.target.kill()
            if not self.summary.ok:
                self.summary.shown.insert(0, f"replay: --seed {self.seed} --first {start} --cycles {end - start}")
                if self.keep is not None:
                    shutil.copytree(self.folder, self.keep, dirs_exist_ok=True)
                break
        self.summary.seconds = time.monotonic() - begun
        return self.summary

    # --- one life ---------------------------------------------------------------------------------------------------
    def start(self, life: int, failpoint: str = "") -> int:
        """Starts the broker and returns its port, or 0 when the failpoint ended it during recovery."""
        env = {"FLINTMQ_FAILPOINT": failpoint} if failpoint else {}
        if isinstance(self.target, Flint):
            self.target.of_life = OFTEN if self.is_often(life) else ()
        if self.power is not None:
            env |= self.power.arm()
        try:
            port = self.target.start(env)
        except DidNotStart as error:
            if failpoint and error.code == KILLED:
                return 0
            raise
        self.summary.restart_s_max = max(self.summary.restart_s_max, self.target.start_s)
        return port

    def is_often(self, life: int) -> bool:
        """Whether a life writes checkpoints often."""
        return random.Random(f"{self.seed}:{life}:checkpoints").random() < self.checkpoints

    def cycle(self, people: Crew, cycle: int) -> None:
        """Start, load, end, in the way that (seed, cycle) says."""
        rng = random.Random(f"{self.seed}:{cycle}")
        life = cycle + 1
        end = "kill"
        failpoint = ""
        choice = rng.random()
        if choice < self.gentle:
            end = "stop"
        elif choice < self.gentle + self.failpoints:
            # in turn, from a start that differs by seed: a run meets all of them soon
            end = FAILPOINTS[(self.seed + cycle) % len(FAILPOINTS)]
            failpoint = f"{end}:{rng.choice((1, 1, 2, 3) if end in RARE else (1, 1, 2, 3, 10, 50, 200))}"
            failpoint = f"{end}:1" if end == "restart-marked" else failpoint
        load_s = rng.uniform(*self.load_s) + (OFTEN_S if self.is_often(life) else 0.0)
        roles = self.roles(rng)
        seeds = [rng.getrandbits(32) for _ in range(CLIENTS)]
        alone = self.declared and rng.random() < 0.3
        port = self.start(life, failpoint)
        if not port:
            people.life(life, "unborn")
            self.finished(f"{end}@start", end)
            return
        people.life(life, "ready")
        died = False
        try:
            people.declare(port, life, known=self.declared)
            self.declared = self.remembers
            if alone:
                people.begin(0, port, life, "partdrain", seeds[0])
                people.finish()
            for number, role in enumerate(roles):
                people.begin(number, port, life, role, seeds[number])
            if end == "sql-committed":
                for number in range(3):
                    people.declare(port, life, known=False, plan=replace(self.plan, queues=(f"late{life}x{number}",), fanout=""))
        except Gone as gone:
            died = self.target.wait(1.0)
            if not died:
                self.summary.fault("refused", f"cycle {cycle}: declarations failed on a broker that lives: {gone}")
        died = self.target.wait(3.0 if failpoint and not died and end != "restart-marked" else load_s) or died
        if end == "restart-marked" and not died:
            died = self.target.stop() == KILLED
            if not died:
                self.summary.fault("stop", f"cycle {cycle}: SIGTERM ended the broker before {failpoint}")
        if end == "stop" and not died:
            code = self.target.stop()
            if code != 0:
                self.summary.fault("stop", f"cycle {cycle}: exit status {code} after SIGTERM")
            people.life(life, "stopped")
        else:
            if died and not (failpoint and self.target.code() == KILLED):
                text = f"cycle {cycle}: the broker ended by itself with {self.target.code()} ({failpoint or 'no failpoint'})"
                self.summary.fault("died", f"{text}: {self.target.stderr()[-1500:]}")
            self.target.kill()
            people.life(life, "killed")
        people.finish()
        self.listen(f"cycle {cycle}")
        if self.power is not None and end != "stop":
            self.summary.power.update(self.power.strike(random.Random(f"{self.seed}:{cycle}:power")))
        self.finished(end if died or not failpoint else "kill", end if died and failpoint else "")

    def listen(self, where: str) -> None:
        """What the broker itself called wrong: damage that it found and tracebacks are faults, also when no client noticed."""
        (self.folder / "stderr").mkdir(exist_ok=True)
        text = self.target.stderr()
        (self.folder / "stderr" / where.replace(" ", "-")).write_text(text)
        self.summary.counts["starts_from_checkpoints"] += ": from a checkpoint, " in text
        if complaint := self.target.complaints():
            self.summary.fault("error", f"{where}: {complaint}")

    def finished(self, end: str, failpoint: str) -> None:
        self.summary.ends[end] += 1
        if failpoint:
            self.summary.failpoints[failpoint] += 1

    def roles(self, rng: random.Random) -> list[str]:
        """Publishers always; consumers in most lives, so that backlog builds up in the others."""
        roles = ["confirm", "txpublish"]
        if rng.random() < 0.75:
            roles += rng.sample(["each", "multiple", "requeue", "move", "move"], rng.randint(1, 3))
        return roles

    def final(self, people: Crew, life: int) -> None:
        """The drain in a life without faults, and the verdict."""
        life += 1
        port = self.start(life)
        people.life(life, "ready")
        people.declare(port, life, known=self.declared)
        people.drain(port, life)
        report = people.verdict()
        self.summary.counts.update(report.counts)
        self.summary.violations.update(report.kinds)
        self.summary.shown += report.to_json()["shown"]
        code = self.target.stop()
        self.listen("drain")
        if code != 0:
            self.summary.fault("stop", f"after the drain: exit status {code} after SIGTERM")
        people.life(life, "stopped")


@contextlib.contextmanager
def folder_of(given: Path | None) -> Iterator[Path]:
    """The given folder, made if need be, or a temporary one."""
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        yield given
        return
    path = Path(tempfile.mkdtemp(prefix="flintmq-faults-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def campaign_options(parser: argparse.ArgumentParser, *, load_s: tuple[float, float]) -> None:
    """What every campaign of kills can be asked for. Args: load_s: seconds of load in a cycle when nothing else is said, least and most."""
    parser.add_argument("--cycles", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="number of the first cycle (to replay)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--epoch", type=int, default=10, help="cycles between two drains and verdicts")
    parser.add_argument("--failpoints", type=float, default=0.3, help="share of cycles that end at a named point")
    parser.add_argument("--power-loss", action="store_true", help="T5: roll back what was not synced after every kill")
    parser.add_argument("--load-s", type=float, nargs=2, default=load_s, metavar=("LEAST", "MOST"))
    parser.add_argument("--work-dir", type=Path, help="journals and data (default: temporary)")
    parser.add_argument("--keep", type=Path, help="where journals and data of a failing epoch are copied to")
    parser.add_argument("--json", action="store_true", help="print only the JSON line")
    parser.add_argument("serve", nargs="*", help="more arguments of `flintmq serve` (after --)")


def main(arguments: Sequence[str] | None = None) -> int:
    """Kills a broker again and again and checks what its clients saw."""
    parser = argparse.ArgumentParser(prog="python -m tools.faults.kill_loop", description=main.__doc__)
    campaign_options(parser, load_s=(0.1, 0.7))
    parser.add_argument("--broker", choices=["flintmq", "memory", "rabbitmq", "fake"], default="flintmq")
    parser.add_argument("--defect", default="", help="of the fake broker")
    parser.add_argument("--sizes", default="mixed", choices=["small", "mixed", "kilobyte", "large"])
    parser.add_argument("--rate", type=float, default=1500.0)
    given = parser.parse_args(arguments)
    with folder_of(given.work_dir) as folder:
        power = None
        data = folder / "data"
        data.mkdir(exist_ok=True)
        target: Target
        if given.broker in ("flintmq", "memory"):
            target = Flint(data if given.broker == "flintmq" else None, [*NO_RETENTION, *given.serve])
            if given.power_loss:
                power = PowerLoss(data, folder / "shim")
        elif given.broker == "rabbitmq":
            target = Rabbit(data)
        else:
            target = Fake(FakeBroker(given.defect, seed=given.seed))
        failpoints = given.failpoints if given.broker == "flintmq" else 0.0
        loop = KillLoop(
            target, Plan(sizes=given.sizes, rate=given.rate), folder, seed=given.seed, epoch=given.epoch, failpoints=failpoints,
            load_s=tuple(given.load_s), power=power, keep=given.keep, remembers=given.broker != "memory",
            checkpoints=OFTEN_SHARE if given.broker == "flintmq" else 0.0,
        )  # fmt: skip
        summary = loop.run(given.cycles, given.first)
    if not given.json:
        for line in summary.shown:
            print(line, file=sys.stderr)
    print(json.dumps({"campaign": "T5" if given.power_loss else "T4", "broker": given.broker, "seed": given.seed, **summary.to_json()}))
    return 0 if summary.ok else 65


if __name__ == "__main__":
    raise SystemExit(main())
