"""T4 and T5 over streams: lone readers, consumer groups and publishers while the broker is killed, or loses power, again and again.

in: `--cycles`, `--seed`. out: one JSON line (violations, what was hit, longest restart, how far groups were taken back), exit 0, or 65.

As tools.faults.kill_loop, with its decisions from (seed, cycle) and its epochs; roles are tools.faults.stream_client's, the verdict is
tools.faults.stream_checker's. At the end of an epoch every stream and group is read to its end and judged, then all streams are deleted,
and the life that did so ends by SIGTERM or kill -9: the next epoch declares the same names, and must find nothing of the old ones.
"""

from __future__ import annotations

import argparse
import base64
import json
import random
import sys
import urllib.request
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.faults import journal as j
from tools.faults import stream_client
from tools.faults.checker import Report
from tools.faults.client import Gone, Plan
from tools.faults.crew import Crew
from tools.faults.kill_loop import NO_RETENTION, KillLoop, campaign_options, folder_of
from tools.faults.power_loss import PowerLoss
from tools.faults.stream_checker import REWIND_S, check
from tools.faults.targets import Flint

PLAN = Plan(queues=tuple(stream_client.STREAMS), fanout="sfan", fan_queues=tuple(stream_client.STREAMS), rate=500.0)
# share of lives that last longer: groups settle things well before the kill
LONG = 0.15
LONG_S = (REWIND_S + 0.5, REWIND_S + 1.5)
# seconds without a delivery after which a group is taken to have nothing more; the second one when something is missing
QUIET_S = (0.4, 5.0)
# violations of a kind that are shown
SHOWN_EACH = 4
SMALL = ("--container-size", str(512 << 10))


class StreamCrew(Crew):
    """Clients of streams and their verdict."""

    MODULE = "tools.faults.stream_client"

    def declare(self, port: int, life: int, *, known: bool, plan: Plan | None = None) -> None:
        stream_client.declare(port, self.own, life, plan or self.plan, known=known)

    def drain(self, port: int, life: int, quiet_s: float = QUIET_S[0]) -> None:
        self.begin(0, port, life, f"drain-{round(1000 * quiet_s)}", 0)
        if not self.clients[0].idle(600):
            raise RuntimeError("the drain did not end within 600 s")

    def verdict(self, *, rewind_s: float = REWIND_S) -> Report:
        return check(self.events(), rewind_s=rewind_s)


class StreamKillLoop(KillLoop):
    """One campaign over one broker that serves HTTP, too (its figures of groups). `rewind_s`: stream_checker.REWIND_S."""

    CREW = StreamCrew

    def __init__(
        self, target: Flint, folder: Path, *, rewind_s: float = REWIND_S, long: float = LONG, plan: Plan = PLAN, **rest: Any
    ) -> None:
        super().__init__(target, plan, folder, **rest)
        self.flint, self.rewind_s, self.long, self.short_s = target, rewind_s, long, self.load_s
        self.rewind_us_max = 0

    def cycle(self, people: Crew, cycle: int) -> None:
        rng = random.Random(f"{self.seed}:{cycle}:long")
        self.load_s = LONG_S if rng.random() < self.long else self.short_s
        super().cycle(people, cycle)

    def roles(self, rng: random.Random) -> list[str]:
        """Up to five: most lives have publishers, groups have none, one or two members, streams a reader of their own or none."""
        roles = ["confirm"] if rng.random() < 0.85 else []
        roles += ["txpublish"] if rng.random() < 0.4 else []
        return roles + rng.sample(["member-ga", "member-ga", "member-gb", "member-gc", "lone", "lone"], rng.randint(2, 3))

    def final(self, people: Crew, life: int) -> None:
        """The drain in a life without faults, the verdict, and the end of all streams."""
        assert isinstance(people, StreamCrew)
        life += 1
        rng = random.Random(f"{self.seed}:{life}:end")
        port = self.start(life)
        people.life(life, "ready")
        try:
            people.declare(port, life, known=self.declared)
            report = self.judged(people, port, life)
            stream_client.delete(port, people.own, life, self.plan)
        except (Gone, OSError) as error:
            raise RuntimeError(f"life {life}, without a fault: {error}") from error
        self.declared = False
        self.rewind_us_max = max(self.rewind_us_max, report.counts.pop("rewind_us_max", 0))
        self.summary.counts.update(report.counts)
        self.summary.violations.update(report.kinds)
        shown: Counter[str] = Counter()
        for one in report.violations:
            shown[one.kind] += 1
            if shown[one.kind] <= SHOWN_EACH:
                self.summary.shown.append(f"{one.kind} {one.queue} {one.message}: {one.detail}")
        if rng.random() < 0.5:
            self.target.kill()
            people.life(life, "killed")
            if self.power is not None:
                self.summary.power.update(self.power.strike(rng))
        elif (code := self.target.stop()) != 0:
            self.summary.fault("stop", f"after the drain: exit status {code} after SIGTERM")
        self.listen(f"drain {life}")

    def judged(self, people: StreamCrew, port: int, life: int) -> Report:
        """The verdict behind a drain; behind a more patient one when something has not come yet."""
        report = Report()
        for quiet_s in QUIET_S:
            people.drain(port, life, quiet_s)
            self.figures(people)
            report = people.verdict(rewind_s=self.rewind_s)
            if not set(report.kinds) & {"skipped", "dropped", "unburied"}:
                break
        return report

    def figures(self, people: Crew) -> None:
        """Journals what the broker says of its streams."""
        secret = base64.b64encode(b"guest:guest").decode()
        for stream in (*self.plan.queues, stream_client.LETTER_STREAM):
            url = f"http://127.0.0.1:{self.flint.ready['http_port']}/api/v1/queues/%2F/{stream}"
            request = urllib.request.Request(url, headers={"Authorization": f"Basic {secret}"})
            with urllib.request.urlopen(request, timeout=30) as answer:
                said = json.load(answer)["stream"]
            lost = {name: group["lost"] for name, group in said["groups"].items()}
            people.own.add(j.FIGURES, stream, said["first_offset"], lost)
        people.own.sync()


def broker(data: Path, extra: Sequence[str] = SMALL) -> Flint:
    """A broker that the campaign can use."""
    return Flint(data, [*NO_RETENTION, "--http-port", "0", *extra])


def main(arguments: Sequence[str] | None = None) -> int:
    """Kills a broker that serves streams again and again and checks what its clients saw."""
    parser = argparse.ArgumentParser(prog="python -m tools.faults.stream_kill_loop", description=main.__doc__)
    campaign_options(parser, load_s=(0.2, 0.9))
    parser.add_argument("--rewind-s", type=float, default=REWIND_S, help="seconds before a kill from which on a settlement must stay")
    given = parser.parse_args(arguments)
    with folder_of(given.work_dir) as folder:
        data = folder / "data"
        data.mkdir(exist_ok=True)
        loop = StreamKillLoop(
            broker(data, given.serve or SMALL), folder, seed=given.seed, epoch=given.epoch, failpoints=given.failpoints,
            load_s=tuple(given.load_s), power=PowerLoss(data, folder / "shim") if given.power_loss else None, keep=given.keep,
            rewind_s=given.rewind_s,
        )  # fmt: skip
        summary = loop.run(given.cycles, given.first)
    if not given.json:
        for line in summary.shown:
            print(line, file=sys.stderr)
    campaign = "T5 streams" if given.power_loss else "T4 streams"
    rewind_ms = loop.rewind_us_max / 1000
    print(json.dumps({"campaign": campaign, "seed": given.seed, **summary.to_json(), "rewind_ms_max": round(rewind_ms, 1)}))
    return 0 if summary.ok else 65


if __name__ == "__main__":
    raise SystemExit(main())
