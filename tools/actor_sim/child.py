"""The process that runs interleavings and loads for somebody else: one JSON request a line in, one JSON answer a line out.

in: {"mix", "first", "count", "mutant": [site, mutation] | null, "trace": bool}, {"sites": true}, {"toy": [program, seed]},
{"load": {...}}, {"measure": {...}} or {"dispatch": {...}}. out: what the simulation, the load or the measurement tells. It is a process of
its own because the modules of the copies have the names of the real ones, and because a mutant may crash.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from tools.actor_sim import load


def answer(wanted: dict[str, Any]) -> Any:
    if "load" in wanted:
        from flintmq.actor_sim import load as loads

        return loads.run(**wanted["load"])
    if "measure" in wanted or "dispatch" in wanted:
        from flintmq.actor_sim import parked

        return parked.measure(**wanted["measure"]) if "measure" in wanted else parked.dispatch_cost(**wanted["dispatch"])
    from flintmq.actor_sim import run, runtime, toy

    if "toy" in wanted:
        return toy.run(*wanted["toy"])
    if "sites" in wanted:
        return runtime.sites()
    mutant = wanted.get("mutant")
    if mutant and not runtime.mutate(mutant[0], mutant[1]):
        return {"unknown": mutant[0]}
    runtime.tracing(bool(wanted.get("trace")))
    begin = time.monotonic()
    seed, failure, runs, passed, switches = run.run_many(wanted["mix"], wanted["first"], wanted["count"])
    told: dict[str, Any] = {"seed": seed, "failure": failure, "runs": runs, "sites": passed, "switches": switches}
    told["seconds"] = time.monotonic() - begin
    if wanted.get("trace"):
        told["trace"] = runtime.trace(wanted.get("last", 120))
    if mutant:
        runtime.mutate(mutant[0], "right")
    return told


def main() -> None:
    load.use(Path(sys.argv[1]))
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
