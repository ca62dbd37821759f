"""`flintmq doctor`: what is wrong, or soon will be, with a running broker, this machine, or the directory of a broker that does not run.

in: the broker's HTTP port and a user, or a directory. out: findings with a level, a cause and one thing to do; exit code 1 when one
of them is more than a hint.

D1  One look that fails is a finding of its own; the others go on.
D2  Nothing is changed, no file of a store is written, and names of clients are shown printable.
"""

from __future__ import annotations

import json
import os
import resource
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click

from flintmq import __version__
from flintmq.errors import OperatorError
from flintmq.loglines import one_line

ERROR, WARNING, HINT = "error", "warning", "hint"
_ORDER = (ERROR, WARNING, HINT)
# descriptors below which connections and streams run out early; bytes of free disk; a clock that is this far off
_DESCRIPTORS, _FREE_BYTES, _CLOCK_S = 4_096, 1 << 30, 5
# file systems that lose what was synced, and those whose locks or syncs depend on another machine
_VOLATILE, _REMOTE = ("tmpfs", "ramfs"), ("nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "glusterfs", "fuse.sshfs")


class Finding(NamedTuple):
    level: str
    title: str
    text: str
    advice: str


Findings = Iterator[Finding]


@click.command()
@click.option("--uri", envvar="FLINTMQ_URI", default="http://127.0.0.1:15672", show_default=True, help="The running broker's HTTP port.")
@click.option("-u", "--user", envvar="FLINTMQ_USER", default="guest", show_default=True, help="Who asks; an administrator sees most.")
@click.option("--password", envvar="FLINTMQ_PASSWORD", default="guest", help="Better the variable FLINTMQ_PASSWORD: others see arguments.")
@click.option("--data-dir", type=click.Path(path_type=Path), help="Look at this directory instead, of a broker that need not run.")
@click.option("--deep", is_flag=True, help="With --data-dir: read every byte, as flintmq log verify.")
@click.option("--json", "as_json", is_flag=True, help="One line of JSON.")
@click.pass_context
def doctor(context: click.Context, /, uri: str, user: str, password: str, data_dir: Path | None, deep: bool, as_json: bool) -> None:
    """Look for present and coming trouble: with a running broker, or with the directory of one that is stopped.

    The exit code is 1 when something is found that is more than a hint.
    """
    if data_dir is not None:
        looks = _of_directory(data_dir.absolute(), deep)
        subject = str(data_dir)
    else:
        looks = _of_broker(uri, user, password)
        subject = uri
    cards = sorted(_all(looks), key=lambda one: _ORDER.index(one.level))
    bad = any(one.level != HINT for one in cards)
    if as_json:
        click.echo(json.dumps({"ok": not bad, "of": subject, "findings": [one._asdict() for one in cards]}))
    else:
        for one in cards:
            click.echo(one_line(f"{one.level}: {one.title}: {one.text}. {one.advice}."))
        click.echo(f"{len(looks)} looks at {subject}: " + (f"{len(cards)} findings" if cards else "all is well"))
    context.exit(1 if bad else 0)


def _all(looks: list[tuple[str, Callable[[], Findings]]]) -> Findings:
    """D1."""
    for name, look in looks:
        try:
            yield from look()
        except OperatorError as error:
            if error.exit_code == 69:
                raise
            needs = "Ask as an administrator" if error.exit_code == 77 else "See that it can be read"
            yield Finding(HINT, f"No look at {name}", str(error), needs)
        except (OSError, sqlite3.Error, KeyError, TypeError, ValueError) as error:
            yield Finding(WARNING, f"No look at {name}", f"{type(error).__name__}: {error}", "See that it can be read")


# --- a running broker -------------------------------------------------------------------------------------------------------


def _of_broker(uri: str, user: str, password: str) -> list[tuple[str, Callable[[], Findings]]]:
    from flintmq.cli.ctl import Remote

    remote = Remote(uri, user, password)
    overview = remote.ask("GET", "v1/overview")  # who is not let in at all is told so
    return [
        ("the diagnosis", lambda: _cards(remote)),
        ("versions and clocks", lambda: _versions(overview)),
        *([("the login", lambda: _login(overview))] if user == password == "guest" else []),
    ]


def _cards(remote: Any) -> Findings:
    """What the broker says: the rules are its own (admin.diagnosis), as the console shows them."""
    diagnosis = remote.ask("GET", "v1/diagnosis")
    for card in diagnosis["cards"]:
        where = f" (vhost {card['vhost']})" if "vhost" in card else ""
        yield Finding(card["level"], card["title"], card["text"] + where, card["advice"])
    for subject, tag in diagnosis["left_out"].items():
        needs = "Ask as an administrator" if tag == "administrator" else f"Ask as a user with the tag {tag}"
        yield Finding(HINT, f"No look at {subject}", "the user may not see that", needs)


def _versions(overview: dict[str, Any]) -> Findings:
    if overview["version"] != __version__:
        text = f"the broker is FlintMQ {overview['version']}, this command {__version__}"
        yield Finding(HINT, "Versions differ", text, "Use the command of the broker's installation")
    off = overview["now"]["at_ms"] / 1000 - time.time()
    if abs(off) > _CLOCK_S:
        text = f"the broker's clock is {off:+.0f} s off this machine's"
        yield Finding(WARNING, "Clocks differ", text, "Expiry and schedules go by the broker's: run a time service on both")


def _login(overview: dict[str, Any]) -> Findings:
    """Asked with user guest and its password, which the command knows and the broker does not keep."""
    far = [one for one in overview["listeners"] if one["address"] not in ("127.0.0.1", "::1", "localhost")]
    text = "user guest has the password guest; it may come from this machine only"
    yield Finding(WARNING if far else HINT, "The password that everybody knows", text, "Change it, or delete the user")


# --- a directory ------------------------------------------------------------------------------------------------------------


def _of_directory(path: Path, deep: bool) -> list[tuple[str, Callable[[], Findings]]]:
    from flintmq.store.log.inspect import check_store, is_locked

    check_store(path)
    live = is_locked(path)
    return [
        ("whether a broker runs", lambda: _running(live)),
        ("its permissions", lambda: _permissions(path)),
        ("its file system", lambda: _file_system(path)),
        ("limits of this machine", _machine),
        ("its definitions", lambda: _definitions(path)),
        ("its logs", lambda: _verified(path) if deep else _headers(path, live)),
        ("what was left beside it", lambda: _leftovers(path)),
    ]


def _running(live: bool) -> Findings:
    if live:
        yield Finding(HINT, "A broker has it open", "what it writes now is not looked at", "Without --data-dir the broker itself is asked")


def _permissions(path: Path) -> Findings:
    facts = path.stat()
    if facts.st_mode & 0o077:
        text = f"mode {facts.st_mode & 0o777:04o}: other users of this machine may read messages and password hashes"
        yield Finding(WARNING, "The directory is open to others", text, f"chmod 700 {path}")
    strange = [file.name for file in path.iterdir() if file.stat().st_uid != facts.st_uid]
    if strange:
        text = f"{', '.join(sorted(strange)[:5])} belong to another user than the directory"
        yield Finding(ERROR, "The broker may not open its files", text, f"chown -R {facts.st_uid} {path}")


def _kind_of(path: Path) -> str:
    """The type of the file system that a path is on."""
    best, kind = -1, ""
    real = os.path.realpath(path)
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, behind = line.partition(" - ")
        point = before.split()[4].encode().decode("unicode_escape")
        if len(point) >= best and (real == point or real.startswith(point.rstrip("/") + "/")):
            best, kind = len(point), behind.split()[0]
    return kind


def _file_system(path: Path) -> Findings:
    kind = _kind_of(path)
    if kind in _VOLATILE:
        yield Finding(ERROR, "Nothing is durable there", f"{path} is on {kind}, which is memory", "Choose a directory on a disk")
    elif kind in _REMOTE:
        text = f"{path} is on {kind}: its locks and syncs are as good as the server's"
        yield Finding(WARNING, "The store is on another machine", text, "Choose a local disk")
    elif kind == "overlay":
        yield Finding(WARNING, "The store goes with its container", f"{path} is on a layer of a container image", "Mount a volume there")
    space = os.statvfs(path)
    free = space.f_bavail * space.f_frsize
    if free < _FREE_BYTES:
        yield Finding(WARNING, "The disk is nearly full", f"{free >> 20} MiB are free at {path}", "Free space")
    if space.f_files and space.f_favail < 10_000:
        yield Finding(WARNING, "Few inodes are left", f"{space.f_favail} at {path}", "Each container of a log is a file: free some")


def _machine() -> Findings:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if 0 <= hard < _DESCRIPTORS:
        text = f"a broker started from here may open {hard} files"
        yield Finding(WARNING, "Few descriptors", text, "Raise ulimit -n (LimitNOFILE)")
    if time.time() < 1_700_000_000:
        yield Finding(
            ERROR, "The clock is wrong", time.strftime("it is %Y-%m-%d %H:%M UTC", time.gmtime()), "Set it before the broker starts"
        )


def _definitions(path: Path) -> Findings:
    file = path / "definitions.db"
    if not file.exists():
        yield Finding(HINT, "No definitions here", "they are in another database, or the broker never started", "See its option --connect")
        return
    connection = sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True, timeout=5)
    try:
        problems = [row[0] for row in connection.execute("PRAGMA quick_check(3)")]
    finally:
        connection.close()
    if problems != ["ok"]:
        yield Finding(ERROR, "The definitions are damaged", "; ".join(map(str, problems)), "Restore a backup (flintmq restore)")


def _headers(path: Path, live: bool) -> Findings:
    """Headers and chains of the logs; damage of a log that is written now is not believed."""
    from flintmq.cli.log import describe
    from flintmq.store.log.inspect import open_store, open_streams

    view = open_store(path)
    damage = [one for source in (*view.logs.values(), *open_streams(path, live).logs.values()) for one in source.damage]
    yield from _damage([] if live else [describe(one) for one in damage])


def _verified(path: Path) -> Findings:
    from flintmq.cli.log import describe, inspect
    from flintmq.store.log.inspect import check_stream, open_streams

    view, _, damage = inspect(path)
    for source in open_streams(path, view.live).logs.values():
        damage = damage + check_stream(source)[1]
    yield from _damage([describe(one) for one in damage])


def _damage(lines: list[str]) -> Findings:
    if lines:
        text = f"{lines[0]}" + (f" ({len(lines)} findings in all)" if len(lines) > 1 else "")
        yield Finding(ERROR, "A log is damaged", text, "See flintmq log verify, and flintmq log repair or a backup")


def _leftovers(path: Path) -> Findings:
    partial = path.with_name(f"{path.name}.partial")
    if partial.exists():
        yield Finding(HINT, "A restore was interrupted", f"{partial} is what is there of it", "Restore again, or remove it")
