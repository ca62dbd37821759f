"""Property: unmodified amqplib for Node.js works; the checks are in node_amqplib.js."""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.broker import Broker

HERE = Path(__file__).resolve().parent
CACHE = HERE.parents[1] / "build" / "node"
VERSION = "^0.10.5 || ^1 || ^2"


@pytest.fixture(scope="module")
def amqplib() -> Path:
    """The folder with node_modules/amqplib, installed by npm once; skips with the reason when that can't be."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node or npm is not installed")
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (CACHE / "node_modules" / "amqplib" / "package.json").exists():
            (CACHE / "package.json").write_text(json.dumps({"private": True, "dependencies": {"amqplib": VERSION}}))
            done = subprocess.run(
                ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts"], cwd=CACHE, capture_output=True, text=True, timeout=240
            )
            if done.returncode:
                pytest.skip("npm can't install amqplib: " + done.stderr.strip()[-200:])
    return CACHE


def test_script(broker: Broker, amqplib: Path) -> None:
    """Every check of the script passes."""
    done = subprocess.run(
        ["node", str(HERE / "node_amqplib.js"), broker.url.removesuffix("/%2F"), str(amqplib)], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "ok": ["consume", "return", "confirm", "get", "recover", "reply-to", "large", "large headers", "cancel", "errors", "heartbeat"]
    }
