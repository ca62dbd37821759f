"""`flintmq completion`: scripts that shells read, and what they are answered."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
from click.testing import CliRunner

from flintmq.cli.main import COMMANDS, cli


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_for_each_shell(shell: str) -> None:
    result = CliRunner().invoke(cli, ["completion", shell])
    assert result.exit_code == 0 and "_FLINTMQ_COMPLETE" in result.output
    found = shutil.which(shell)
    if found is not None:
        assert subprocess.run([found, "-n"], input=result.output, text=True, capture_output=True).returncode == 0


def test_what_may_come_next() -> None:
    def ask(words: str, last: int) -> list[str]:
        env = {**os.environ, "_FLINTMQ_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(last)}
        done = subprocess.run(
            [sys.executable, "-c", "import sys; sys.argv = ['flintmq']; from flintmq.cli.main import main; main()"],
            env=env,
            text=True,
            capture_output=True,
            timeout=60,
        )
        return [line.partition(",")[2] for line in done.stdout.splitlines()]

    assert set(ask("flintmq ", 1)) == set(COMMANDS)
    assert "purge_queue" in ask("flintmq ctl pur", 2) and "--vhost" in ask("flintmq ctl --v", 2)
