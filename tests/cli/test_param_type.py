"""Commands load with the versions of click that pyproject.toml allows: before 8.4 its types of options are not generic."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import importlib
import click


def refuse(cls, kind):
    raise TypeError("type 'ParamType' is not subscriptable")


click.ParamType.__class_getitem__ = classmethod(refuse)
from flintmq.cli.main import COMMANDS

for target in COMMANDS.values():
    module, _, name = target.partition(":")
    assert getattr(importlib.import_module(module), name)
from flintmq.cli.serve import serve

assert serve.make_context("serve", ["--port", "off"]).params["port"] is None
print(len(COMMANDS))
"""


def test_commands_load_when_types_of_options_are_not_generic() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 10
