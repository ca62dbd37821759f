"""Random faults in containers, as many as wanted: python -m tests.arrow.corruptions [COUNT [SEED]]. Ends with an AssertionError, a crash,
or one line."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.arrow.test_scan import run_corruptions


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 2
    with tempfile.TemporaryDirectory() as directory:
        told = run_corruptions(Path(directory), seed, count)
    print(f"{count} faults, {told} times told, no crash and no wrong row")


if __name__ == "__main__":
    main()
