"""Interleavings on request: a child process with the simulated scheduler, restarted when a mutant crashes it.

in: names of mixes, seeds. out: Result. A crash (SIGSEGV in the child) and a run that does not come back are failures like any other.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.actor_sim import load, mixes

ROOT = Path(__file__).resolve().parent.parent.parent


@dataclass
class Result:
    """What a row of interleavings told. seed: of the first that failed, -1: none did."""

    failure: str = ""
    seed: int = -1
    runs: int = 0
    sites: int = 0
    switches: int = 0
    seconds: float = 0.0
    trace: list[tuple[int, str, int]] = field(default_factory=list)


class Simulator:
    """Builds (if need be) and starts the child at first use. Not thread safe."""

    def __init__(self, copy: str = "", patch: str = "", plain: bool = False) -> None:
        self.source = load.build(copy, patch, plain)
        self._child: subprocess.Popen[str] | None = None

    def _ask(self, wanted: dict[str, Any]) -> Any:
        if self._child is None:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "tools.actor_sim.child", str(self.source)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=ROOT,
            )
        child = self._child
        assert child.stdin and child.stdout and child.stderr
        try:
            child.stdin.write(json.dumps(wanted) + "\n")
            child.stdin.flush()
            line = child.stdout.readline()
        except BrokenPipeError:
            line = ""
        if line:
            return json.loads(line)
        words = child.stderr.read().strip()
        self.close()
        return {"crash": words[-2000:] or "the child ended without a word"}

    def run(self, mix: str, first: int, count: int, *, mutant: tuple[str, str] | None = None, trace: bool = False) -> Result:
        """Interleavings `first`.. of a mix, until one fails. mutant: (site, mutation). trace: keep the last sites passed."""
        told = self._ask({"mix": mixes.bits(mix), "first": first, "count": count, "mutant": mutant, "trace": trace})
        if "crash" in told:
            words = told["crash"].splitlines()
            seed = next((int(line.split("seed ")[1].split(",")[0]) for line in words if "simulation: signal" in line), first)
            return Result(failure="memory: crash: " + (words[-1] if words else ""), seed=seed, runs=max(1, seed - first + 1))
        if "unknown" in told:
            return Result(failure="", runs=0)
        told["trace"] = [(thread, site, at) for thread, site, at in told.get("trace", [])]
        return Result(**told)

    def sites(self) -> list[dict[str, Any]]:
        """The places where threads could switch, as far as the runs of this child came to them."""
        found: list[dict[str, Any]] = self._ask({"sites": True})
        return found

    def toy(self, program: str, seed: int) -> tuple[str, int, int, int]:
        """A program with a known answer: (verdict, count, switches, simulated ns)."""
        verdict, count, switches, at = self._ask({"toy": [program, seed]})
        return verdict, count, switches, at

    def load(self, **wanted: Any) -> list[dict[str, Any]]:
        """A load of groups (scenes/load.py), in simulated time or, in the plain build, on real threads."""
        return self._figures({"load": wanted})

    def measure(self, **wanted: Any) -> dict[str, Any]:
        """A crowd of parked requests (scenes/parked.py); plain build only."""
        return self._figures({"measure": wanted})

    def dispatch(self, **wanted: Any) -> dict[str, Any]:
        """The cost of a dispatch (scenes/parked.py); plain build only."""
        return self._figures({"dispatch": wanted})

    def _figures(self, wanted: dict[str, Any]) -> Any:
        told = self._ask(wanted)
        if isinstance(told, dict) and "crash" in told:
            raise RuntimeError(told["crash"])
        return told

    def close(self) -> None:
        if self._child is not None:
            for pipe in (self._child.stdin, self._child.stdout, self._child.stderr):
                if pipe:
                    pipe.close()
            self._child.kill()
            self._child.wait()
            self._child = None

    def __enter__(self) -> Simulator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
