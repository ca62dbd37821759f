"""Instructions that the broker needs for a message, counted by valgrind: `python -m bench.instructions [OTHER_CHECKOUT]`.

    python -m bench.instructions [OTHER] [--only transient,confirmed,...] [--functions 12]

in: this checkout, built, and perhaps another one; valgrind (Debian: apt-get install valgrind). out: for each workload the instructions per
message (churn: per connection, declare: per queue) in the compiled modules, the C library and the interpreter, and
with OTHER the functions that differ most. Exit code 0; 64 when OTHER is none;
69 without valgrind; 65 when a broker did not start or perf found messages missing.

A count does not depend on what else the machine does, so that small changes are seen that times hide. It does not
know caches, atomic operations and system calls: `make bench-beside` on a quiet machine has the last word.

Each workload runs twice on a fresh broker, with few and with many messages: the difference is the messages' alone.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.support.servers import free_ports

ROOT = Path(__file__).resolve().parents[1]
# of the two runs: messages, short connections, queues
FEW, MANY = 10_000, 60_000
FEW_CONNECTIONS, MANY_CONNECTIONS = 200, 1_200
FEW_QUEUES, MANY_QUEUES = 500, 3_500
# seconds; a broker under valgrind is some 50 times slower
START_S_MAX, RUN_S_MAX = 300.0, 1200.0
PARTS = ("flintmq", "libc", "python")
CHURN, DECLARE = "churn", "declare"
# workload: (arguments of perf, durable)
WORKLOADS = {
    "transient": (("--size", "16"), False),
    "transient-1k": (("--size", "1024"), False),
    "fanout": (("--exchange", "fanout", "--queues", "10", "--size", "100"), False),
    "topic": (("--exchange", "topic", "--queues", "10", "--bindings", "1000", "--size", "100"), False),
    "topic-new-keys": (("--exchange", "topic", "--queues", "10", "--bindings", "1000", "--size", "100", "--random-keys"), False),
    "acked": (("--size", "16", "--ack", "1", "--prefetch", "1000"), False),
    "confirmed": (("--size", "1024", "--persistent", "--durable", "--confirm", "1000", "--ack", "100", "--prefetch", "2000"), True),
    # all published before the first is consumed (W5b's shape)
    "backlog": (
        ("--mode", "backlog", "--durable", "--persistent", "--size", "1024", "--confirm", "1000", "--ack", "100", "--prefetch", "2000"),
        True,
    ),
    CHURN: (("--mode", "churn", "--clients", "4"), False),
    DECLARE: (("--mode", "declare"), False),
}
LINE = re.compile(r"\s*([\d,]+) \(\s*[\d.]+%\)\s+(\S+):(\S+)(?: \[(.*)\])?")
Counts = collections.Counter[tuple[str, str]]


class Failed(Exception):
    """A run that did not work; the text says which and why."""


def counted(path: Path) -> Counts:
    """(one of PARTS, function) -> instructions of a callgrind file."""
    done = subprocess.run(["callgrind_annotate", "--auto=no", "--threshold=100", str(path)], capture_output=True, text=True, check=True)
    found: Counts = collections.Counter()
    lines = [matched for line in done.stdout.splitlines() if (matched := LINE.match(line))]
    # What a function has from other files (inlined, or by the lines of the Cython sources) stands on lines of its own, without the library.
    libraries = {matched.group(3): matched.group(4) for matched in lines if matched.group(4)}
    for matched in lines:
        library = libraries.get(matched.group(3), "")
        if matched.group(3).startswith("0x"):
            continue  # code without a name: of whatever library, it is none of ours
        part = "flintmq" if "/flintmq/" in library else "libc" if "/libc" in library else "python" if "python" in library else ""
        if part:
            # Static functions that the compiler cut into parts count as one.
            name = re.sub(r"\.(constprop|part|isra|cold)(\.\d+)?", "", matched.group(3)).replace("__pyx_f_7flintmq_", "")
            found[part, name] += int(matched.group(1).replace(",", ""))
    return found


def wait_ready(port: int, broker: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + START_S_MAX
    while time.monotonic() < end and broker.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.2)
    raise Failed("the broker did not start under valgrind")


def run(checkout: Path, arguments: tuple[str, ...], durable: bool, count: int) -> Counts:
    """One broker under callgrind, `count` messages through it. Raises: Failed."""
    with tempfile.TemporaryDirectory(prefix="flintmq-instructions-") as directory:
        port = free_ports(1)[0]
        out = Path(directory) / "callgrind"
        python = str(checkout / ".venv/bin/python")
        store = ("--data-dir", f"{directory}/store") if durable else ("--memory",)
        serve = (python, "-m", "flintmq.cli.main", "serve", "--port", str(port), "--http-port", "off", "--flight-port", "off", *store)
        valgrind = ("valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", f"--log-file={directory}/valgrind")
        broker = subprocess.Popen([*valgrind, *serve], cwd=checkout, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_ready(port, broker)
            perf = [
                python,
                "-m",
                "flintmq.cli.main",
                "perf",
                "--json",
                "--port",
                str(port),
                "--queues" if "declare" in arguments else "--count",
                str(count),
                "--drain-timeout",
                "120",
            ]
            done = subprocess.run(
                [*perf, "--max-time", "1100", *arguments], cwd=checkout, capture_output=True, text=True, timeout=RUN_S_MAX
            )
            lines = done.stdout.strip().splitlines()
            if not lines or not json.loads(lines[-1]).get("ok"):
                raise Failed(f"perf: {(lines or [done.stderr.strip()])[-1][-300:]}")
        finally:
            broker.send_signal(signal.SIGTERM)
            broker.wait(timeout=RUN_S_MAX)
        return counted(out)


def per_message(checkout: Path, name: str) -> dict[tuple[str, str], float]:
    """(part, function) -> instructions per message."""
    arguments, durable = WORKLOADS[name]
    less, more = {CHURN: (FEW_CONNECTIONS, MANY_CONNECTIONS), DECLARE: (FEW_QUEUES, MANY_QUEUES)}.get(name, (FEW, MANY))
    few, many = run(checkout, arguments, durable, less), run(checkout, arguments, durable, more)
    return {key: (many[key] - few[key]) / (more - less) for key in many}


def show(name: str, mine: dict[tuple[str, str], float], other: dict[tuple[str, str], float] | None, functions: int) -> None:
    for part in PARTS:
        ours = sum(value for key, value in mine.items() if key[0] == part)
        if other is None:
            print(f"| {name} | {part} | {ours:.0f} | | |", flush=True)
        else:
            theirs = sum(value for key, value in other.items() if key[0] == part)
            print(f"| {name} | {part} | {ours:.0f} | {theirs:.0f} | {ours / theirs if theirs else 0:.3f} |", flush=True)
    if other is not None:
        changes = {key: mine.get(key, 0.0) - other.get(key, 0.0) for key in mine.keys() | other.keys()}
        for key in sorted(changes, key=lambda each: -abs(changes[each]))[:functions]:
            print(f"|   | {key[1]} | {mine.get(key, 0.0):.1f} | {other.get(key, 0.0):.1f} | {changes[key]:+.1f} |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench/instructions.py", description="Instructions per message, counted by valgrind.")
    parser.add_argument("other", type=Path, nargs="?", help="another checkout, built, to compare with")
    parser.add_argument("--only", default=",".join(WORKLOADS), help=f"workloads (default {','.join(WORKLOADS)})")
    parser.add_argument("--functions", type=int, default=12, help="functions shown that differ most")
    options = parser.parse_args()
    if shutil.which("valgrind") is None or shutil.which("callgrind_annotate") is None:
        print("valgrind is missing: install it (Debian: apt-get install valgrind)", file=sys.stderr)
        return 69
    if options.other is not None and not (options.other / ".venv/bin/python").exists():
        print(f"{options.other} is no built checkout of FlintMQ: run 'make build' there", file=sys.stderr)
        return 64
    print("| workload | part or function | this | other | ratio or difference |\n|---|---|---:|---:|---:|", flush=True)
    try:
        for name in options.only.split(","):
            mine = per_message(ROOT, name)
            show(name, mine, per_message(options.other.resolve(), name) if options.other is not None else None, options.functions)
    except Failed as failure:
        print(failure, file=sys.stderr)
        return 65
    return 0


if __name__ == "__main__":
    sys.exit(main())
