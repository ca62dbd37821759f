"""Canned jobs over queues and logs (docs/pipeline/jobs.md), by name.

in: a name. out: the job. A job's module is imported when it is asked for.
"""

from __future__ import annotations

import difflib
import importlib
from typing import Any

from flintmq.errors import OperatorError

# name -> (module:class, one line for people)
JOBS: dict[str, tuple[str, str]] = {
    "archive": ("flintmq.pipeline.jobs.archive:Archive", "queues, or a range of the log, into Parquet or Delta by date and queue"),
    "replay": ("flintmq.pipeline.jobs.replay:Replay", "an archive, or a range of the log, back into a queue or exchange, exactly once"),
    "lifecycle": ("flintmq.pipeline.jobs.lifecycle:Lifecycle", "latencies from publishing to settling, per queue, group and exchange"),
    "depth": ("flintmq.pipeline.jobs.depth:Depth", "how many messages stood in each queue over time"),
    "fairness": ("flintmq.pipeline.jobs.fairness:Fairness", "each consumer's share of a queue, and Jain's index"),
    "audit": ("flintmq.pipeline.jobs.audit:Audit", "is every message accounted for: lost, duplicate, orphan, torn (exit code 65)"),
}


def find_job(name: str) -> Any:
    """The `Job` (jobs/job.py) of this name.

    Raises: OperatorError (64) for a name that there is not; (69) when a package that it needs is missing.
    """
    if name not in JOBS:
        near = difflib.get_close_matches(name, JOBS, 1)
        hint = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(JOBS)}"
        raise OperatorError(f"there is no job '{name}': {hint}", 64)
    module, attribute = JOBS[name][0].split(":")
    try:
        return getattr(importlib.import_module(module), attribute)()
    except ImportError as error:
        from flintmq.pipeline.jobs.failures import explained

        raise explained(error, f"job {name}") from error
