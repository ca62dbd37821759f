"""Each command that the console can show works: the table of console/commands.js, in its order, against a broker."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pika
import pytest
from click.testing import CliRunner

from flintmq.admin.static import FOLDER
from flintmq.cli.ctl import ctl
from tests.admin.conftest import Client

TEXT = (FOLDER / "commands.js").read_text()
TABLE: dict[str, list[str]] = json.loads(re.search(r"const COMMANDS = (\{.*?\n\});", TEXT, re.S)[1])  # type: ignore[index]
# what nobody would type without quotes
ODD = 'it\'s a $HOME; "b" & c'
VALUES: dict[str, Any] = {
    "vhost": ODD,
    "user": f"u {ODD}",
    "tags": ["monitoring", "policymaker"],
    **dict.fromkeys(("configure", "write", "read"), "^a|b$"),
    "exchange": "amq.topic",
    "name": f"n {ODD}",
    "pattern": "^(x|y) ",
    "definition": '{"max-length": 10}',
    "priority": "3",
    "to": "queues",
    "limit": "max-connections",
    "component": "federation-upstream",
    "queue": f"-q {ODD}",
    "reason": ODD,
}
OWN = {
    "set_parameter": {"value": '{"uri": "amqp://127.0.0.1:1"}'},
    "set_vhost_limit": {"value": "100"},
    "set_user_limit": {"value": "100"},
    "cancel_scheduled": {"vhost": "/"},
    "purge_scheduled": {"vhost": "/"},
}
KEPT: list[pika.BlockingConnection] = []
# commands that need something that this test has not made: they are told so, and not that they are no commands
ABSENT = {"cancel_scheduled", "delete_shovel"}


def line_of(command: str, **more: str) -> str:
    """The command as the console writes it, but for its beginning. Args: more: values that only the broker knows."""
    values = {**VALUES, **OWN.get(command, {}), **more}
    words: list[str] = []
    before = ""
    for part in TABLE[command]:
        value = str(values.get(part[1:-1], ""))
        if part.startswith("{") and value.startswith("-") and not before.startswith("-"):
            words.append("--")  # a name that begins with a dash is no option
        before = part
        if part.startswith("{$"):
            words.append(f'"${part[2:-1]}"')
        elif part.startswith("{..."):
            words += map(shlex.quote, values[part[4:-1]])
        else:
            words.append(shlex.quote(str(values[part[1:-1]])) if part.startswith("{") else part)
    return " ".join(words)


@pytest.fixture(scope="module")
def lines(shared: Client, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", shared.node.amqp_port))
    name = shared.get("/api/connections").json[0]["name"]
    KEPT.append(connection)
    lines = {command: line_of(command, connection=name, position="1") for command in TABLE}
    file = tmp_path_factory.mktemp("definitions") / "definitions.json"
    return {command: line.replace("definitions.json", str(file)) for command, line in lines.items()}


def test_each_command_of_the_table_does_what_it_says(shared: Client, lines: dict[str, str]) -> None:
    runner = CliRunner(env={"FLINTMQ_PASSWORD": "guest"})
    failed = {}
    for command, line in lines.items():
        if command == "pause_queue":  # names that commands before have made
            declared = runner.invoke(ctl, ["--uri", f"http://127.0.0.1:{shared.port}", "list_vhosts"])
            assert VALUES["vhost"] in declared.output
            path = f"/api/queues/{quote(VALUES['vhost'], safe='')}/{quote(VALUES['queue'], safe='')}"
            assert shared.request("PUT", path, b'{"durable": true}').status == 201
        words = shlex.split(line.replace('"$NEW_PASSWORD"', "secret"))
        result = runner.invoke(ctl, ["--uri", f"http://127.0.0.1:{shared.port}", "-u", "guest", *words])
        expected = 65 if command in ABSENT else 0
        if result.exit_code != expected and getattr(result.exception, "exit_code", None) != expected:
            failed[command] = (line, result.output, result.exception)
    assert not failed


def test_a_command_runs_in_a_shell_as_it_is_shown(shared: Client) -> None:
    program = Path(sys.executable).with_name("flintmq")
    line = f"{shlex.quote(str(program))} ctl --uri http://127.0.0.1:{shared.port} -u guest {line_of('list_queues', vhost='/')}"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=60, env={**os.environ, "FLINTMQ_PASSWORD": "guest"})
    assert done.returncode == 0 and "Listing queues" in done.stdout, done.stderr


def test_pages_show_commands_of_the_table_alone_and_all_of_them() -> None:
    pages = "".join(path.read_text() for path in FOLDER.rglob("*.js") if path.name != "commands.js" and "vendor" not in path.parts)
    used = set(re.findall(r'ctl\("(\w+)"', pages)) | set(re.findall(r'"((?:resume|pause)_queue)"', pages))
    used |= {f"{verb}_{kind}_limit" for verb in ("set", "clear") for kind in ("vhost", "user") if f"ctl(`{verb}_${{of}}_limit`" in pages}
    used |= {verb for one in re.findall(r'verb="(set_\w+)"', pages) for verb in (one, one.replace("set", "clear"))}
    assert used == TABLE.keys()
    # no other way to write a command
    assert "flintmq ctl" not in pages
