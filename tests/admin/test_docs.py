"""docs/HTTP.md shows commands that work."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.admin.conftest import Client

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "HTTP.md"


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_commands_of_the_document_work(start: Callable[..., Client]) -> None:
    """Each curl command is run as it stands (another port, shorter holds) and answers as the document says."""
    client = start()
    client.queue("tasks")
    block = re.search(r"```sh\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert block is not None
    script = block[1].replace("15672", str(client.port)).replace("hold=20", "hold=1")
    script = re.sub(r"^(curl .*)$", r"\1 || exit 1\necho @@", script, flags=re.MULTILINE)
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    answers = [answer.strip() for answer in done.stdout.split("@@")]
    published, raw, pulled, group, acked, nacked, extended, figures, actors, metrics, health, _ = answers
    assert json.loads(published)["position"] == 1 and json.loads(raw)["position"] == 2
    assert [message["body"] for message in json.loads(pulled)["messages"]] == ["hello"]
    assert [message["body"] for message in json.loads(group)["messages"]] == ["hello, too"]
    for settled in (acked, nacked, extended):
        assert json.loads(settled)["gone"] == ["6e3d2f411.1000000"]
    assert json.loads(figures)["messages_unacked"] == 2
    assert json.loads(actors)["actors"]["wakes_lost_total"] == 0
    assert metrics.startswith("# HELP flintmq_") and json.loads(health) == {"status": "ok"}


def test_the_document_names_the_limits() -> None:
    """Numbers of the document are those of the configuration."""
    from flintmq.config import KIB, MIB, Limits

    limits, text = Limits(), DOCUMENT.read_text()
    assert (limits.pull_hold_ms_max, limits.pull_messages_max, limits.pull_bytes_max) == (60_000, 1_000, 8 * MIB)
    assert (limits.pull_visibility_ms, limits.pull_visibility_ms_min, limits.pull_visibility_ms_max) == (30_000, 1_000, 43_200_000)
    assert (limits.http_connections_max, limits.http_head_bytes_max, limits.http_leases_max) == (4_096, 16 * KIB, 1_000)
    assert (limits.http_json_bytes_max, limits.http_publish_bytes_max, limits.http_request_ms) == (128 * KIB, 16 * MIB, 20_000)
    assert (limits.pull_leases_max, limits.pull_groups_max) == (100_000, 10_000)
    for number in ("60", "1,000", "8 MiB", "43,200", "4,096", "16 KiB", "128 KiB", "16 MiB", "100,000", "10,000"):
        assert number in text
