"""T9: a disk whose syncs take from 10 ms to seconds and then stall: the broker stays alive for its clients and claims nothing early.

in: bounds of the delay, length of the stall. out: one JSON line; exit 0, or 65 with violations, 69 without a compiler for the shim.
W1  An idle connection with a heartbeat of HEARTBEAT_S hears something at least every 2 x HEARTBEAT_S.
W2  No message published after a stall began is confirmed before it ended.
W3  With publishers that never wait for confirms, memory grows by no more than `--rss-mib` (the broker holds them back).
W4  After the stall everything is confirmed; the checker has nothing to say, a kill -9 and the final drain included.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.support.rawamqp import ConnectionLost, RawConnection
from tools.faults import journal as j
from tools.faults import shim as shim_module
from tools.faults.client import Plan
from tools.faults.crew import crew
from tools.faults.shim import Shim
from tools.faults.targets import Flint

HEARTBEAT_S = 2
MARGIN_S = 0.05
MIB = 1 << 20


class Listener(threading.Thread):
    """An idle connection that measures the longest silence of the broker (s)."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.raw = RawConnection("127.0.0.1", port).open(heartbeat=HEARTBEAT_S, product="listener")
        self.longest = 0.0
        self.lost = ""
        self.stop = threading.Event()

    def run(self) -> None:
        last = time.monotonic()
        try:
            while not self.stop.is_set():
                self.raw.send(b"\x08\x00\x00\x00\x00\x00\x00\xce")
                before = self.raw.heartbeats
                with contextlib.suppress(TimeoutError):
                    self.raw.recv_any(0.5)
                if self.raw.heartbeats != before:
                    last = time.monotonic()
                self.longest = max(self.longest, time.monotonic() - last)
        except (OSError, ConnectionLost) as error:
            self.lost = str(error) or "lost"
        self.raw.drop()


class SlowDisk:
    """One campaign."""

    def __init__(self, folder: Path, seed: int, extra: Sequence[str]) -> None:
        self.folder, self.rng = folder, random.Random(seed)
        data = folder / "data"
        data.mkdir()
        self.shim = Shim(data, folder / "shim", record=False)
        self.broker = Flint(data, extra, env=self.shim.env)
        self.violations: list[str] = []

    def run(self, slow_s: float, delay_ms: tuple[float, float], stall_s: float, rss_mib: float) -> dict[str, Any]:
        """Slow for `slow_s`, then one stall, then kill -9, restart and drain."""
        patient = Plan(sizes="kilobyte", rate=2000, window=256, answer_s=stall_s + 4 * delay_ms[1] / 1000 + 30)
        pushy = replace(patient, rate=0, window=1 << 30, limit=200_000)
        with crew(self.folder / "journals", 4, patient) as people:
            port = self.broker.start()
            people.life(1, "ready")
            people.declare(port, 1, known=False)
            listener = Listener(port)
            listener.start()
            base = highest = self.broker.rss()
            self.shim.delay(*delay_ms)
            people.begin(0, port, 1, "confirm", self.rng.getrandbits(32))
            people.begin(1, port, 1, "multiple", self.rng.getrandbits(32))
            people.begin(2, port, 1, "confirm", self.rng.getrandbits(32), pushy)
            highest = max(highest, self.watch(slow_s))
            syncs = self.shim.count("sync")
            # a container is prepared under another name: that sync holds no confirm back
            self.shim.stall(int(stall_s * 1000), "messages/", ".flog")
            before, begun = self.until_taken(10)
            taken = begun != 0
            highest = max(highest, self.watch(stall_s))
            # It began between both stamps: what is published after the later one and confirmed before this is early for sure.
            ended = before + int((stall_s - MARGIN_S) * 1e9)
            self.shim.heal()
            people.halt()
            listener.stop.set()
            listener.join()
            alive = self.broker.process is not None and self.broker.process.poll() is None
            if not alive:
                self.violations.append(f"the broker ended: {self.broker.stderr()[-1500:]}")
            self.broker.kill()
            people.life(1, "killed")
            early = self.early(people.events(), begun, ended) if taken else 0
            complaints = [self.broker.complaints()]
            port = self.broker.start()
            people.life(2, "ready")
            people.drain(port, 2)
            self.broker.stop()
            complaints.append(self.broker.complaints())
            report = people.verdict()
        if not taken:
            self.violations.append("no sync took the stall within 10 s: nothing was written?")
        if listener.lost or listener.longest > 2 * HEARTBEAT_S:
            self.violations.append(f"W1 silent for {listener.longest:.1f} s {listener.lost}")
        if early:
            self.violations.append(f"W2 {early} messages confirmed while the only sync stalled")
        if highest - base > rss_mib * MIB:
            self.violations.append(f"W3 memory grew by {(highest - base) / MIB:.0f} MiB, allowed {rss_mib} MiB")
        self.violations += [f"W4 the broker's log: {text}" for text in complaints if text]
        self.violations += [f"W4 {text}" for text in report.to_json()["shown"]]
        return {
            "ok": not self.violations, "violations": len(self.violations), "shown": self.violations[:20],
            "longest_silence_s": round(listener.longest, 2), "rss_growth_mib": round((highest - base) / MIB, 1), "syncs_slow": syncs,
            "counts": dict(report.counts),
        }  # fmt: skip

    def watch(self, seconds: float) -> int:
        """Highest RSS (bytes) over so many seconds."""
        end, highest = time.monotonic() + seconds, 0
        while time.monotonic() < end and self.broker.process is not None and self.broker.process.poll() is None:
            highest = max(highest, self.broker.rss())
            time.sleep(0.05)
        return highest

    def until_taken(self, seconds: float) -> tuple[int, int]:
        """Waits until a sync has begun its stall: the time (ns) of the last look at which it had not, and of the first at which it had
        (0: none has)."""
        before = time.monotonic_ns()
        end = before + int(seconds * 1e9)
        while before < end:
            looked = time.monotonic_ns()
            if not self.shim.shared.stall_ms:
                return before, time.monotonic_ns()
            before = looked
            time.sleep(0.001)
        return before, 0

    @staticmethod
    def early(events: list[j.Event], begun: int, ended: int) -> int:
        """Messages published after the stall began and confirmed before it ended (stamps in ns)."""
        published = {(e[2], e[3]) for e in events if e[1] == j.PUBLISH and begun < e[0] < ended}
        return sum((e[2], n) in published for e in events if e[1] == j.CONFIRM and e[4] and e[0] < ended for n in e[3])


def main(arguments: Sequence[str] | None = None) -> int:
    """Makes the disk of a broker slow, then stall."""
    parser = argparse.ArgumentParser(prog="python -m tools.faults.slow_disk", description=main.__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--slow-s", type=float, default=20.0)
    parser.add_argument("--delay-ms", type=float, nargs=2, default=(10.0, 5000.0))
    parser.add_argument("--stall-s", type=float, default=30.0)
    parser.add_argument("--rss-mib", type=float, default=192.0)
    parser.add_argument("--keep", type=Path, help="where journals and data of a failing run are copied to")
    parser.add_argument("serve", nargs="*", help="more arguments of `flintmq serve` (after --)")
    given = parser.parse_args(arguments)
    if reason := shim_module.missing():
        print(json.dumps({"campaign": "T9", "skipped": reason}))
        return 69
    with tempfile.TemporaryDirectory() as folder:
        campaign = SlowDisk(Path(folder), given.seed, given.serve)
        try:
            report = campaign.run(given.slow_s, tuple(given.delay_ms), given.stall_s, given.rss_mib)
        finally:
            process = campaign.broker.process
            if process is not None and process.poll() is None:
                campaign.broker.kill()
            if given.keep and campaign.violations:
                shutil.copytree(folder, given.keep, dirs_exist_ok=True, ignore=shutil.ignore_patterns("undo"))
    print(json.dumps({"campaign": "T9", "seed": given.seed, **report}))
    return 0 if report["ok"] else 65


if __name__ == "__main__":
    raise SystemExit(main())
