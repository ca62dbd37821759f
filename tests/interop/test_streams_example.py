"""Property: examples/streams_pika.py runs as it stands, twice: groups go on where they were, the report begins at the first event."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.broker import Broker

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "streams_pika.py"


def run(broker: Broker) -> list[str]:
    done = subprocess.run([sys.executable, str(EXAMPLE), broker.url], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_example_runs_twice(broker: Broker) -> None:
    """Each group sees each event once over both runs; two workers of a group share them."""
    for start in (0, 20):
        lines = run(broker)
        offsets = {line.split(":")[0]: [int(one) for one in line.split("[")[1].rstrip("]").split(",")] for line in lines}
        assert offsets["shipping-0"] == list(range(start, start + 20))
        assert offsets["billing-0"] and offsets["billing-1"]
        assert sorted(offsets["billing-0"] + offsets["billing-1"]) == list(range(start, start + 20))
        assert offsets["first events of the north"] == [0, 2, 4, 6, 8]
