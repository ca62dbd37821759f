"""T3: a run of the shipped process under strace: nothing but the log's file port and SQLite changes the data directory, and no
confirm leaves before a sync of what it confirms.

in: a data directory (new). out: one JSON line; exit 0, or 65 with violations. Needs strace and the right to trace own children.
N1  Under the data directory only the calls of ALLOWED are made, on files with these endings.
N2  No file there is mapped writable and shared, SQLite's -shm index excepted.
N3  Between two confirms (one message open at a time) lie a write to a log file and, after it, a sync of one; the same for tx.commit-ok.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.rawamqp import RawChannel, RawConnection
from tests.support.servers import ensure_debian_packages
from tools.faults.targets import Flint

WRITES = ("pwrite64", "pwritev", "pwritev2")
SIZES = ("fallocate", "ftruncate")
SYNCS = ("fsync", "fdatasync")
NAMES = ("rename", "renameat", "renameat2", "unlink", "unlinkat", "mkdir", "mkdirat")
OTHERS = (
    "write", "writev", "truncate", "sync_file_range", "syncfs", "msync", "link", "linkat", "symlink", "symlinkat", "copy_file_range",
    "sendfile", "splice", "io_uring_setup", "io_submit", "rmdir", "mknod", "mknodat", "creat",
)  # fmt: skip
# ending of the file's name -> calls that may change it
ALLOWED: dict[str, frozenset[str]] = {
    ".flog": frozenset([*WRITES, *SIZES, *SYNCS, *NAMES, "openat"]),
    ".tmp": frozenset([*WRITES, *SIZES, *SYNCS, *NAMES, "openat"]),
    "definitions.db": frozenset(["pwrite64", "ftruncate", *SYNCS, "openat"]),
    "definitions.db-wal": frozenset(["pwrite64", "ftruncate", *SYNCS, "openat", "unlink"]),
    "definitions.db-journal": frozenset(["pwrite64", "ftruncate", *SYNCS, "openat", "unlink"]),
    # rebuilt from the WAL after a crash: not data. SQLite writes its last byte to give it a size.
    "definitions.db-shm": frozenset(["write", "pwrite64", "ftruncate", "openat", "unlink", "mmap"]),
    "lock": frozenset(["openat", "pwrite64", "write", "ftruncate"]),
}
TAKE_NAMES = ("openat", "open", *NAMES, "truncate", "link", "linkat", "symlink", "symlinkat", "rmdir", "mknod", "mknodat", "creat")
DIRECTORY = frozenset(["fsync", "fdatasync", "mkdir", "mkdirat"])
TRACED = ("openat", "open", "mmap", "sendto", "sendmsg", *WRITES, *SIZES, *SYNCS, *NAMES, *OTHERS)
CONFIRM = "\\x00\\x3c\\x00\\x50"
COMMIT_OK = "\\x00\\x5a\\x00\\x15"


@dataclass(slots=True)
class Findings:
    """Calls seen under the data directory, and what is wrong."""

    calls: Counter[str] = field(default_factory=Counter)
    answers: int = 0
    violations: list[str] = field(default_factory=list)


def missing() -> str | None:
    """Installs strace when it may; why it can't be used, or None."""
    return None if shutil.which("strace") else ensure_debian_packages(["strace"])


def lines_of(trace: Path) -> Iterator[tuple[str, str]]:
    """(call, rest of the line) of finished calls in order of their end. A call that was cut in two is put together again."""
    open_calls: dict[str, str] = {}
    for line in trace.read_text(errors="replace").splitlines():
        thread, _, text = line.partition(" ")
        text = text.strip()
        if text.endswith("<unfinished ...>"):
            open_calls[thread] = text.removesuffix("<unfinished ...>")
            continue
        if text.startswith("<... "):
            text = open_calls.pop(thread, "") + text.partition("resumed>")[2]
        name, bracket, rest = text.partition("(")
        if bracket and name.replace("_", "").isalnum():
            yield name, rest


def paths_in(name: str, rest: str) -> list[str]:
    """Paths of a call's arguments: quoted ones (relative ones joined to their directory's descriptor), or those behind descriptors."""
    if name not in TAKE_NAMES:
        # quoted strings are data
        rest = "".join(part for at, part in enumerate(rest.split('"')) if not at % 2)
    found: list[str] = []
    for at, part in enumerate(rest.split('"')):
        if at % 2:
            path = unhex(part)
            found.append(path if path.startswith("/") or not found else found.pop() + "/" + path)
        else:
            found += [unhex(piece.partition(">")[0]) for piece in part.split("<")[1:]]
    return [path for path in found if path.startswith("/")]


def judge(trace: Path, data: Path) -> Findings:
    """Reads a trace (strace -f -y -xx for strings of sends only) and applies N1-N3."""
    found = Findings()
    root = str(data.resolve())
    written = synced = False
    for name, rest in lines_of(trace):
        failed = rest.rpartition(" = ")[2].startswith("-1")
        if name in ("sendto", "sendmsg"):
            if CONFIRM in rest or COMMIT_OK in rest:
                found.answers += 1
                if not (written and synced):
                    found.violations.append(f"N3 answer {found.answers} without a write ({written}) and a later sync ({synced}) of the log")
                written = synced = False
            continue
        if failed or name == "open":
            continue
        for path in paths_in(name, rest):
            if not (path == root or path.startswith(root + "/")):
                continue
            if name == "openat" and not any(flag in rest for flag in ("O_CREAT", "O_TRUNC", "O_TMPFILE")):
                continue
            if name == "mmap" and not ("PROT_WRITE" in rest and "MAP_SHARED" in rest):
                continue
            file = path.rpartition("/")[2]
            found.calls[f"{name} {ending(file)}"] += 1
            directory = Path(path).is_dir()
            allowed = DIRECTORY if directory else ALLOWED.get(ending(file), frozenset())
            if name not in allowed:
                found.violations.append(f"N{2 if name == 'mmap' else 1} {name} on {path.removeprefix(root) or '/'}")
            if ending(file) == ".flog":
                written = written or name in WRITES
                synced = (synced or name in SYNCS) and written
    return found


def unhex(text: str) -> str:
    """A path as strace -xx writes it, or plain."""
    if text.startswith("\\x"):
        return bytes.fromhex(text.replace("\\x", "")).decode(errors="replace")
    return text


def ending(file: str) -> str:
    """The key of ALLOWED for a file's name, or the name."""
    return next((key for key in ALLOWED if file.endswith(key)), file)


def script(port: int, operations: int) -> None:
    """Declarations, confirmed publishes one at a time, transactions, acks, a purge and a delete: the run to look at.

    The first half has no acks, so that every write to the log between two answers is that of the message (N3).
    """
    with RawConnection("127.0.0.1", port) as connection:
        connection.open(product="syscalls")
        plain, tx = connection.channel(1), connection.channel(2)
        for name in ("s1", "s2", "s3"):
            plain.queue(name, durable=True)
        plain.call("exchange.declare", exchange="sx", type="fanout", durable=True)
        for name in ("s1", "s2"):
            plain.call("queue.bind", queue=name, exchange="sx")
        plain.call("confirm.select")
        tx.call("tx.select")
        for number in range(operations):
            body = bytes([number % 256]) * (number * 37 % 3000 if number % 20 else 200_000)
            if number % 4 == 3:
                for name in ("s2", "s3"):
                    tx.publish(body, routing_key=name, delivery_mode=2)
                if number > operations // 2:
                    take(tx, "s1")
                tx.call("tx.commit")
            else:
                plain.publish(body, routing_key="s1" if number % 2 else "", exchange="" if number % 2 else "sx", delivery_mode=2)
                plain.expect("basic.ack")
                if number > operations // 2:
                    take(plain, "s2")
        plain.call("queue.purge", queue="s1")
        plain.call("queue.delete", queue="s2")
        connection.close()


def take(channel: RawChannel, queue: str) -> None:
    """Gets and acks one message, when there is one."""
    channel.send("basic.get", queue=queue)
    got = channel.connection.recv(channel.number)
    if got.name == "basic.get-ok":
        channel.send("basic.ack", delivery_tag=got.delivery_tag)


def run(data: Path, trace: Path, operations: int, extra: Sequence[str] = ()) -> Findings:
    """The script against a traced broker, stopped gracefully, then the verdict."""
    command = ["strace", "-f", "-qq", "-y", "-xx", "-s", "400", "--signal=none", "-e", "trace=" + ",".join(TRACED), "-o", str(trace)]
    broker = Flint(data, extra, command=command)
    port = broker.start()
    try:
        script(port, operations)
    finally:
        # strace hands the signal on to nobody: its child is asked
        for child in Path(f"/proc/{broker.pid}/task/{broker.pid}/children").read_text().split():
            os.kill(int(child), signal.SIGTERM)
        broker.wait(60)
    return judge(trace, data)


def main(arguments: Sequence[str] | None = None) -> int:
    """Traces one run and prints which calls changed the data directory."""
    parser = argparse.ArgumentParser(prog="python -m tools.faults.syscalls", description=main.__doc__)
    parser.add_argument("--operations", type=int, default=200)
    parser.add_argument("--keep", type=Path, help="where the trace is copied to")
    parser.add_argument("serve", nargs="*")
    given = parser.parse_args(arguments)
    if reason := missing():
        print(json.dumps({"campaign": "T3", "skipped": reason}))
        return 69
    with tempfile.TemporaryDirectory() as folder:
        found = run(Path(folder, "data"), Path(folder, "trace"), given.operations, given.serve)
        if given.keep:
            shutil.copy(Path(folder, "trace"), given.keep)
    report: dict[str, Any] = {
        "campaign": "T3",
        "ok": not found.violations,
        "answers": found.answers,
        "calls": dict(sorted(found.calls.items())),
    }
    report |= {"violations": len(found.violations), "shown": found.violations[:20]}
    print(json.dumps(report))
    return 65 if found.violations else 0


if __name__ == "__main__":
    raise SystemExit(main())
