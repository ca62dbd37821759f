"""`flintmq top`: what it shows of a running broker, in a terminal, too."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from typing import Any

from click.testing import CliRunner

from flintmq.cli.main import cli
from flintmq.cli.top import Frame, lines
from flintmq.testing.broker import Broker
from tests.admin.conftest import Client
from tests.support.broker import wait_until

NASTY = "evil\x1b[2J\x07\u202equeue"


def row(name: str, publish: int = 0, got: int = 0, **more: Any) -> dict[str, Any]:
    counts = {"messages_ready": 7, "messages_unacknowledged": 0, "consumers": 1}
    stats = {"publish": publish, "deliver_get": got}
    return {"name": name, "vhost": "/", "state": "running", **counts, "message_stats": stats, **more}


def frame(at_s: float, *rows: dict[str, Any], enqueued: int = 0) -> Frame:
    now = dict.fromkeys(("connections", "channels", "consumers", "queues", "messages_ready", "messages_unacked", "delivered"), 0)
    return Frame(at_s, now | {"enqueued": enqueued}, "node", list(rows))


def test_rates_are_between_two_looks() -> None:
    first, second = frame(10.0, row("a", 100), enqueued=100), frame(12.0, row("a", 300, 50), row("new", 9), enqueued=20_300)
    shown = lines(second, first, "i", 120)
    assert "in 10.1k/s, out 0/s" in shown[1]
    assert shown[4].split() == ["a", "/", "running", "7", "0", "100", "25", "1"]
    assert shown[5].split() == ["new", "/", "running", "7", "0", "-", "-", "1"]  # not seen before: no rate is made up
    assert "in/s*" in shown[3]


def test_no_line_is_wider_than_the_terminal_and_no_name_is_a_command_of_it() -> None:
    looked = frame(1.0, row(NASTY), row("x" * 300), row("long vhost", vhost="v" * 99))
    for width in (1, 20, 60, 80, 200):
        shown = lines(looked, None, "m", width)
        assert all(len(line) <= width and line.isprintable() for line in shown)


def test_once_without_a_terminal() -> None:
    with Broker(http_port=0) as broker:
        client = Client(broker)
        for name, count in (("few", 1), ("many", 3), (NASTY, 2)):
            client.queue(name)
            client.publish(*["x"] * count, name=name)
        # sums over queues are made once a second
        wait_until(lambda: client.get("/api/v1/overview").json["now"]["messages_ready"] == 6)
        uri = f"http://127.0.0.1:{broker.node.http_port}"
        result = CliRunner().invoke(cli, ["top", "--once", "--uri", uri, "-n", "0.5"])
        assert result.exit_code == 0, result.output
        names = [line.split()[0] for line in result.output.splitlines()[4:]]
        assert names[0] == "many" and names[2] == "few" and "\x1b" not in result.output
        assert "6 ready" in result.output
        assert CliRunner().invoke(cli, ["top", "--once", "--uri", uri, "-u", "nobody"]).exception is not None


def read_on(terminal: int) -> bytes | None:
    """What comes within a moment; None: the other end is closed."""
    try:
        return os.read(terminal, 65_536) if select.select([terminal], [], [], 0.2)[0] else b""
    except OSError:  # EIO
        return None


def test_in_a_terminal_until_q() -> None:
    with Broker(http_port=0) as broker:
        Client(broker).queue("shown")
        uri = f"http://127.0.0.1:{broker.node.http_port}"
        ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "flintmq.cli.main", "top", "--uri", uri, "-n", "0.5"]
        process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        seen, end, pressed = b"", time.monotonic() + 60, b""
        while (piece := read_on(ours)) is not None:
            assert time.monotonic() < end, seen
            seen += piece
            if pressed == b"" and b"shown" in seen:
                os.write(ours, pressed := b"n")
            elif pressed == b"n" and b"queue*" in seen:
                os.write(ours, pressed := b"q")
        assert process.wait(60) == 0
        os.close(ours)
        assert re.search(rb"\x1b\[\?1049h.*\x1b\[\?1049l", seen, re.DOTALL)  # the screen that was there before is back
