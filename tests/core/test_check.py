"""A broken invariant ends the process at once, and the log says which one it was; a whole one costs nothing but a comparison."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.core.check_scenes import NAMES, SCENES

ROOT = Path(__file__).resolve().parents[2]
LINE = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}Z \[CRITICAL\] flintmq\.check: invariant broken: (.+) at (\S+\.(?:py|pxd)):(\d+), state (.+);"
    r" the process ends\n"
)
# where the text of a check is looked for: compiled modules know their file from the folder of packages on
FOLDERS = (ROOT, ROOT / "src")


Run = Callable[[str, str], tuple[int, str, str]]


@pytest.fixture(scope="module")
def run() -> Run:
    """(exit code, output, errors) of a scene, whole or broken. Each is a process of its own, forked from one that has what they import."""
    made = subprocess.run([sys.executable, "-m", "tests.core.check_scenes"], cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert (made.returncode, made.stderr) == (0, "")
    lines = [json.loads(line) for line in made.stdout.splitlines()]
    done = {(line["scene"], line["how"]): (line["code"], line["out"], line["err"]) for line in lines}
    return lambda scene, how: done[scene, how]


@pytest.mark.parametrize("scene", sorted(SCENES))
def test_a_whole_record_passes_without_a_word(scene: str, run: Run) -> None:
    """What a scene does with a record that nobody broke is ordinary: so it is the flaw that ends the process below."""
    assert run(scene, "whole") == (0, "", "")


@pytest.mark.parametrize("scene", sorted(SCENES))
def test_a_broken_record_ends_the_process(scene: str, run: Run) -> None:
    """By SIGABRT, after one line with the name of the invariant, the place of the check in the sources, and the state."""
    code, out, err = run(scene, "broken")
    assert code == -signal.SIGABRT
    assert out == ""
    told = LINE.fullmatch(err)
    assert told is not None, err
    name, file, number, state = told.groups()
    assert name == NAMES[scene]
    assert len(state.split(" ")) >= 1
    (source,) = [folder / file for folder in FOLDERS if (folder / file).exists()]
    lines = source.read_text().splitlines()
    here = "".join(lines[max(0, int(number) - 2) : int(number) + 6])
    assert f'"{name}"' in here, f"{file}:{number} does not stand at the check"


def test_the_state_is_told_whole(run: Run) -> None:
    """Two numbers of 64 bits each; Python's values with escapes, so that no value writes a line of its own."""
    assert ", state 7 18446744073709551615;" in run("compiled", "broken")[2]
    assert r", state 7 'a\nb';" in run("python", "broken")[2]


def test_a_log_that_nobody_reads_keeps_no_broken_process_alive() -> None:
    """The pipe is full and stays so: the process ends all the same, a second later."""
    script = (
        "import fcntl, os, sys\n"
        "fcntl.fcntl(2, fcntl.F_SETFL, os.O_NONBLOCK)\n"
        "try:\n    while True: os.write(2, bytes(4096))\nexcept BlockingIOError: pass\n"
        "fcntl.fcntl(2, fcntl.F_SETFL, 0)\n"
        "from tests.drivers import check_driver\ncheck_driver.insist(False, 1, 2, False)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stderr=subprocess.PIPE)
    try:
        assert child.wait(60) == -signal.SIGABRT
    finally:
        child.kill()
        child.communicate()
