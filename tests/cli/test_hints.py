"""What texts of the sources advise can be done: each option and each command that they name exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import flintmq
from flintmq.cli.main import COMMANDS, cli

SOURCES = Path(flintmq.__file__).parent
# options of other programs, which texts name
OTHERS = {"--full-refresh": "spark-pipelines"}
# modules whose options are those of processes that the broker starts, of a style sheet, and of the jobs' own parser
INNER = (
    "dataplane/supervisor.py",
    "links/process.py",
    "flight/__main__.py",
    "shovel/__main__.py",
    "pipeline/jobs/report.py",
)


def options_of(command: click.Command) -> set[str]:
    own = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
    if not isinstance(command, click.Group):
        return own
    context = click.Context(command)
    inner = [command.get_command(context, name) for name in command.list_commands(context)]
    return own.union(*(options_of(one) for one in inner if one is not None))


def _texts() -> Iterator[tuple[str, str]]:
    """(file and line, text) of every string of the sources but docstrings, f-strings without their values."""
    for path in sorted(SOURCES.rglob("*.py")):
        tree = ast.parse(path.read_text())
        quiet = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in quiet:
                yield f"{path.relative_to(SOURCES)}:{node.lineno}", node.value
    for path in sorted((SOURCES / "admin" / "console").rglob("*.js")):
        if "vendor" not in path.parts:
            yield str(path.relative_to(SOURCES)), path.read_text()


@pytest.fixture(scope="module")
def texts() -> list[tuple[str, str]]:
    return list(_texts())


@pytest.fixture(scope="module")
def commands() -> dict[str, click.Command]:
    context = click.Context(cli)
    found = {name: cli.get_command(context, name) for name in COMMANDS}
    return {name: command for name, command in found.items() if command is not None}


def test_every_option_that_a_text_names_exists(commands: dict[str, click.Command], texts: list[tuple[str, str]]) -> None:
    known = set().union(*map(options_of, commands.values())) | {"--help", "--version"} | OTHERS.keys()
    unknown = []
    for place, text in texts:
        if place.partition(":")[0] in INNER or place.endswith(".js"):
            continue
        named = re.findall(r"(?<![\w<!-])--[a-z][a-z-]*[a-z](?![\w-])", text)
        unknown += [f"{place}: {option}" for option in named if option not in known]
    assert not unknown, "\n".join(unknown)
    assert {"--http-port", "--cluster", "--tls-cert"} <= known


def test_every_command_that_a_text_names_exists(commands: dict[str, click.Command], texts: list[tuple[str, str]]) -> None:
    wrong, count = [], 0
    for place, text in texts:
        for first, second in re.findall(r"\bflintmq (ctl|user|vhost|log|tx|cluster|pipeline|db|shared) ([a-z_]+)\b", text):
            group = commands[first]
            assert isinstance(group, click.Group)
            count += 1
            if second not in group.commands:
                wrong.append(f"{place}: flintmq {first} {second}")
        for verb in re.findall(r"\bctl\((?:\s*\"-p\",[^,]+,)?\s*\"([a-z_]+)\"", text):
            count += 1
            ctl = commands["ctl"]
            assert isinstance(ctl, click.Group)
            if verb not in ctl.commands:
                wrong.append(f"{place}: ctl {verb}")
    assert wrong == []
    assert count > 40
