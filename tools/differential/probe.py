"""`python -m tools.differential.probe`: runs every scenario on FlintMQ and on RabbitMQ, and compares the transcripts.

in: scenarios; `differences.txt`: those that are meant, with a reason each. out: what differs otherwise; exit code 1 when anything does, or
when a difference is listed that is none any more. Without RabbitMQ (apt: rabbitmq-server) it says so and ends with 69.

`differences.txt`: lines `pattern | reason`; the pattern (shell's *) is of scenario names; lines that begin with # are comments.

P1  Both brokers are started here, on free loopback ports with directories of their own, and ended by pid (tests.support.servers).
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import fnmatch
import socket
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support import servers
from tools.differential import managed
from tools.differential.client import Client
from tools.differential.scenarios import PLUGINS, Scenario, all_scenarios

DIFFERENCES = Path(__file__).with_name("differences.txt")
# scenarios that run at once: most of their time is waiting for nothing to come
AT_ONCE = 8
EX_UNAVAILABLE = 69
# seconds that RabbitMQ's API may take after its AMQP port answers
API_S_MAX = 60.0


def transcript(port: int, run: Scenario, prefix: str, http_port: int = 0) -> list[str]:
    """What a broker says. Raises: nothing; an exception of the script is a line of it."""
    lines: list[str] = []
    try:
        client = Client(port, http_port=http_port)
        client.lines = lines
        try:
            run(client, prefix)
        finally:
            client.drop()
    except Exception as error:
        lines.append(f"(the script failed: {type(error).__name__} {error})")
    return lines


def justified() -> dict[str, str]:
    """Pattern -> reason."""
    found = {}
    for line in DIFFERENCES.read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            pattern, _, reason = line.partition(" | ")
            assert reason.strip(), f"{DIFFERENCES.name}: no reason for {pattern}"
            found[pattern.strip()] = reason.strip()
    return found


def compare(
    port: int, other: int, chosen: dict[str, Scenario], http: tuple[int, int] = (0, 0)
) -> Iterator[tuple[str, list[str], list[str]]]:
    """(name, transcript of the first, of the second) of every scenario, in order. http: ports of their APIs; 0: none, and
    scenarios that need one are left out."""

    if not all(http):
        chosen = {name: run for name, run in chosen.items() if name not in managed.MANAGED}

    def one(numbered: tuple[int, tuple[str, Scenario]]) -> tuple[str, list[str], list[str]]:
        number, (name, run) = numbered
        prefix = f"d{number}."
        return name, transcript(port, run, prefix, http[0]), transcript(other, run, prefix, http[1])

    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield from pool.map(one, enumerate(chosen.items()))


def _matching(name: str, patterns: dict[str, str]) -> str | None:
    return next((pattern for pattern in patterns if fnmatch.fnmatchcase(name.replace("[", "("), pattern.replace("[", "("))), None)


def report(results: Iterator[tuple[str, list[str], list[str]]], patterns: dict[str, str]) -> tuple[int, int, int, set[str]]:
    """(scenarios, meant differences, others, patterns that were met); what differs is printed."""
    count = meant = different = 0
    met: set[str] = set()
    for name, ours, theirs in results:
        count += 1
        if ours == theirs:
            continue
        pattern = _matching(name, patterns)
        if pattern is not None:
            met.add(pattern)
            meant += 1
            continue
        different += 1
        print(f"=== {name}")
        for line in difflib.unified_diff(theirs, ours, "RabbitMQ", "FlintMQ", lineterm="", n=1):
            if not line.startswith(("---", "+++", "@@")):
                print(f"  {line[:400]}")
    return count, meant, different, met


def _brokers(stack: contextlib.ExitStack) -> tuple[list[int], tuple[int, int]]:
    """(ports of AMQP, ports of the APIs) of both brokers, which are started. Raises: servers.Unavailable."""
    ours = stack.enter_context(servers.flintmq("--http-port", "0", "--flight-port", "off", "--memory", "--log-exchange"))
    (http_port,) = servers.free_ports(1)
    config = managed.CONFIG + str(http_port)
    theirs = stack.enter_context(servers.rabbitmq(plugins=(*PLUGINS, *managed.PLUGINS), config=config, advanced=managed.ADVANCED))
    until = time.monotonic() + API_S_MAX
    while True:
        try:
            socket.create_connection(("127.0.0.1", http_port), timeout=1).close()
            break
        except OSError:
            if time.monotonic() > until:
                raise servers.Unavailable("RabbitMQ's API does not answer") from None
            time.sleep(0.1)
    return [ours.port, theirs.port], (int(str(ours.ready["http_port"])), http_port)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pattern", nargs="?", default="*", help="of scenario names (shell's *)")
    parser.add_argument("--ports", nargs=2, type=int, metavar=("FLINTMQ", "RABBITMQ"), help="brokers that run already")
    parser.add_argument("--http-ports", nargs=2, type=int, metavar=("FLINTMQ", "RABBITMQ"), help="of their APIs")
    options = parser.parse_args()
    chosen = {name: run for name, run in all_scenarios().items() if fnmatch.fnmatchcase(name, options.pattern)}
    patterns = justified()
    with contextlib.ExitStack() as stack:
        try:
            ports, http = options.ports, tuple(options.http_ports or (0, 0))
            if not ports:
                ports, http = _brokers(stack)
        except servers.Unavailable as reason:
            print(f"not compared: {reason}", file=sys.stderr)
            return EX_UNAVAILABLE
        count, meant, different, met = report(compare(*ports, chosen, http), patterns)
    stale = set(patterns) - met if options.pattern == "*" else set()
    for pattern in sorted(stale):
        print(f"=== {DIFFERENCES.name} lists a difference that is none: {pattern}")
    print(f"{count} scenarios: {count - meant - different} alike, {meant} differ as meant, {different} differ")
    return 1 if different or stale else 0


if __name__ == "__main__":
    sys.exit(main())
