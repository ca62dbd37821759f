"""T1: crash points of the log, enumerated. `python -m tools.crash.enumerate --images 1000000`.

Random workloads run on the store over the simulated disk; at every step of the journal power fails, images of the disk are made
(tests.twins.disk_images), each is recovered and checked against the oracle (model.py). Exit code 1 and a line to replay per failure.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys

from tools.crash.campaign import Outcome, crash_parallel, replay
from tools.crash.workload import StoreSubject


def make_subject() -> StoreSubject:
    return StoreSubject()


def run(images: int, seed: int = 1, jobs: int = 2, per_recording: int = 300, seconds: float = 1e9) -> Outcome:
    """A campaign of about `images` images. seconds: stop after that long all the same."""
    return crash_parallel(make_subject, seed, images, per_recording, jobs, seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1, help="the first workload's")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--per-recording", type=int, default=300, help="images of one workload")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after that long")
    parser.add_argument("--replay", metavar="SEED:POSITION:CHOICE", help="check one image again")
    arguments = parser.parse_args()
    if arguments.replay:
        failure = replay(make_subject(), arguments.replay)
        print("it holds now" if failure is None else failure.text)
        return 0 if failure is None else 1
    logging.disable(logging.CRITICAL)
    outcome = run(arguments.images, arguments.seed, arguments.jobs, arguments.per_recording, arguments.seconds)
    for failure in outcome.failures:
        print(f"python -m tools.crash.enumerate --replay '{failure.replay}'\n  {failure.text}", file=sys.stderr)
    figures = {
        "campaign": "T1",
        "images": outcome.images,
        "workloads": outcome.recordings,
        "crash_points": outcome.positions,
        "violations": len(outcome.failures),
        "seconds": round(outcome.seconds, 1),
        "images_per_s": round(outcome.images / max(outcome.seconds, 1e-9)),
    }
    print(json.dumps(figures))
    return 1 if outcome.failures else 0


if __name__ == "__main__":
    sys.exit(main())
