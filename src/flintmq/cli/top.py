"""`flintmq top`: the queues that work most, and the node in a few numbers, over and over in a terminal.

in: the broker's HTTP port and a user; keys. out: a screen every few seconds; without a terminal, or with --once, plain lines.

T1  Names of clients are shown printable: they are no commands of the terminal. No line is longer than the terminal is wide.
T2  Whatever ends it, the terminal is as it was before.
"""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import quote

import click

from flintmq.errors import OperatorError
from flintmq.loglines import one_line

# key -> (what it sorts by, member of the API's rows, largest first)
SORTS = {
    "m": ("messages", "messages", True),
    "u": ("unacked", "messages_unacknowledged", True),
    "i": ("in", "message_stats.publish", True),
    "o": ("out", "message_stats.deliver_get", True),
    "n": ("name", "name", False),
}
_HEAD = ("queue", "vhost", "state", "ready", "unacked", "in/s", "out/s", "consumers")
_WIDTHS = (0, 12, 8, 12, 10, 10, 10, 9)  # the first one takes what is left
_NAME_LEAST = 12
HELP = "q quits; sort by m messages, u unacked, i in, o out, n name"


class Frame(NamedTuple):
    """What one look found. at_s: monotonic seconds."""

    at_s: float
    now: dict[str, Any]
    name: str
    queues: list[dict[str, Any]]


@click.command()
@click.option("--uri", envvar="FLINTMQ_URI", default="http://127.0.0.1:15672", show_default=True, help="The broker's HTTP port.")
@click.option("-u", "--user", envvar="FLINTMQ_USER", default="guest", show_default=True, help="Who asks; its tags decide what is shown.")
@click.option("--password", envvar="FLINTMQ_PASSWORD", default="guest", help="Better the variable FLINTMQ_PASSWORD: others see arguments.")
@click.option("-p", "--vhost", help="Queues of this virtual host alone.")
@click.option("-n", "--interval", type=click.FloatRange(0.5, 3600), default=2.0, show_default=True, help="Seconds between two looks.")
@click.option("-s", "--sort", type=click.Choice(list(SORTS)), default="m", show_default=True, help=HELP)
@click.option("--once", is_flag=True, help="One look (two, for rates), as plain lines.")
def top(uri: str, user: str, password: str, vhost: str | None, interval: float, sort: str, once: bool) -> None:
    """Watch the queues that work most."""
    from flintmq.cli.ctl import Remote

    remote = Remote(uri, user, password)
    if once or not (sys.stdin.isatty() and sys.stdout.isatty()):
        before = look(remote, vhost, sort, 100)
        time.sleep(interval)
        click.echo("\n".join(lines(look(remote, vhost, sort, 100), before, sort, 120)))
        return
    with _keys():
        _watch(remote, vhost, interval, sort)


def _watch(remote: Any, vhost: str | None, interval: float, sort: str) -> None:
    before: Frame | None = None
    while True:
        size = os.get_terminal_size()
        width, height = size.columns or 80, size.lines or 24
        try:
            frame = look(remote, vhost, sort, max(1, height - 5))
            shown, before = lines(frame, before, sort, width), frame
        except OperatorError as error:
            if error.exit_code not in (69, 70):  # who may not look is told so, and a broker that starts again is waited for
                raise
            shown = [one_line(str(error))[:width]]
        shown = [*shown[: height - 1], HELP[:width]]
        # home, each line with its rest erased, then what is below
        sys.stdout.write("\x1b[H" + "\x1b[K\r\n".join(shown) + "\x1b[K\x1b[J")
        sys.stdout.flush()
        key = _key(interval)
        if key in ("q", "\x03", "\x04"):
            return
        sort = key if key in SORTS else sort


@contextmanager
def _keys() -> Iterator[None]:
    """Keys come one by one, on a screen of their own. T2."""
    fd = sys.stdin.fileno()
    kept = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd)
        sys.stdout.write("\x1b[?1049h\x1b[?25l")
        yield
    except KeyboardInterrupt:
        pass
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, kept)
        sys.stdout.write("\x1b[?25h\x1b[?1049l")
        sys.stdout.flush()


def _key(wait_s: float) -> str:
    ready, _, _ = select.select([sys.stdin], [], [], wait_s)
    return os.read(sys.stdin.fileno(), 1).decode("ascii", "replace") if ready else ""


def look(remote: Any, vhost: str | None, sort: str, most: int) -> Frame:
    """One look. Args: most: queues. Raises: OperatorError."""
    where = "" if vhost is None else "/" + quote(vhost, safe="")
    _, member, down = SORTS[sort]
    overview = remote.ask("GET", "v1/overview")
    page = remote.ask("GET", f"queues{where}?page=1&page_size={min(most, 500)}&sort={member}&sort_reverse={str(down).lower()}")
    return Frame(time.monotonic(), overview["now"], overview["node"], page["items"])


def _rate(now: int, before: int | None, seconds: float) -> str:
    return "-" if before is None or seconds <= 0 else _short(max(0, now - before) / seconds)


def _short(value: float) -> str:
    for size, sign in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            return f"{value / (1e3 if sign == 'k' else size):.1f}{sign}"
    return f"{value:.0f}"


def _cells(row: dict[str, Any], before: dict[str, Any] | None, seconds: float) -> tuple[str, ...]:
    stats, earlier = row["message_stats"], None if before is None else before["message_stats"]
    rates = (_rate(stats[key], None if earlier is None else earlier[key], seconds) for key in ("publish", "deliver_get"))
    counts = (_short(row["messages_ready"]), _short(row["messages_unacknowledged"]))
    return one_line(row["name"]), one_line(row["vhost"]), row["state"], *counts, *rates, str(row["consumers"])


def _line(cells: tuple[str, ...], width: int) -> str:
    """T1."""
    name = max(_NAME_LEAST, width - sum(_WIDTHS) - len(_WIDTHS) + 1)
    texts = []
    for index, (cell, size) in enumerate(zip(cells, _WIDTHS, strict=True)):
        room = size or name
        cell = cell if len(cell) <= room else cell[: room - 1] + "~"
        texts.append(cell.ljust(room) if index < 3 else cell.rjust(room))
    return " ".join(texts)[:width].rstrip()


def lines(frame: Frame, before: Frame | None, sort: str, width: int) -> list[str]:
    """The screen of one look. Args: before: the look that rates are compared with."""
    now, seconds = frame.now, 0.0 if before is None else frame.at_s - before.at_s
    known = {} if before is None else {(one["vhost"], one["name"]): one for one in before.queues}
    totals = {key: _rate(now[key], None if before is None else before.now[key], seconds) for key in ("enqueued", "delivered")}
    memory = f", memory {now['memory_bytes'] >> 20} of {now['memory_limit'] >> 20} MiB" if "memory_bytes" in now else ""
    alarms = f", BLOCKED: low on {', '.join(now['alarms'])}" if now.get("alarms") else ""
    head = [
        f"{one_line(frame.name)}: " + ", ".join(f"{now[one]} {one}" for one in ("connections", "channels", "consumers", "queues")),
        f"{now['messages_ready']} ready, {now['messages_unacked']} unacked, in {totals['enqueued']}/s, out {totals['delivered']}/s"
        f"{memory}{alarms}",
        "",
    ]
    rows = [_cells(row, known.get((row["vhost"], row["name"])), seconds) for row in frame.queues]
    title = tuple(f"{text}*" if text.partition("/")[0] == SORTS[sort][0] or (text, sort) == ("queue", "n") else text for text in _HEAD)
    return [line[:width] for line in head] + [_line(title, width), *(_line(cells, width) for cells in rows)]
