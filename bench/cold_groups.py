"""One group drains an old backlog from disk while ten hot queues get a steady flow: what that costs the hot ones.

`python bench/cold_groups.py [--count 10000000] [--rate 5000] [--seconds 4] [--rounds 3] [--skip-peer | --skip-ours] [--write]`

in: messages of the backlog (100 bytes, persistent, with confirms), the hot flow. out: publish -> deliver p99 of the hot flow, in turns
without and with the drain beside it, for FlintMQ and RabbitMQ with the same commands; bench/results/cold-DATE.jsonl; with --write the
part of docs/FAIRNESS.md between its marks. Exit code 1: FlintMQ's figure misses the goal, 65: it has none, 69: nobody has one.

C1  The backlog lies on disk before anything is measured, and some of it is left when the last measurement ends: a figure of a drain that
    had ended is thrown away.
C2  The hot flow is durable and persistent too: ten queues, one publisher and one consumer each, every delivery acknowledged.
    A fifth of its rate flows all the time, beside both measurements: the flow is steady, the drain comes and goes.
C3  The drain is one consumer with a prefetch window, as fast as it can: a client of its own, at low priority (--drain-nice), since on a
    machine of few cores it would else take them from the hot clients, which says nothing about the broker. Same for both brokers.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:  # started as a file
    sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from bench.brokers import FLINTMQ, RABBITMQ, Broker  # noqa: E402
from bench.runners import busy_s, perf  # noqa: E402
from flintmq.perf.wire import Client  # noqa: E402
from tests.support import servers  # noqa: E402

RESULTS = ROOT / "bench/results"
DOCUMENT = ROOT / "docs/FAIRNESS.md"
BEGIN, END = "<!-- cold groups: begin -->", "<!-- cold groups: end -->"
# bytes of a body; hot queues; the drain's window and how often it acknowledges
BODY, HOT_QUEUES, PREFETCH, ACK_EVERY = 100, 10, 1000, 100
# what the hot flow's p99 may rise by
GOAL = 1.2
# seconds for the drain to be under way, and for a queue to be filled
RUN_IN_S, FILL_S_MAX = 0.5, 1500.0
COLD = "cold"
HOT = (
    "--mode", "latency", "--durable", "--persistent", "--size", str(BODY), "--queues", str(HOT_QUEUES), "--producers", str(HOT_QUEUES),
    "--ack", "1", "--prefetch", "200",
)  # fmt: skip


def depth(port: int) -> int:
    """Ready messages of the backlog, as the broker says."""
    client = Client("127.0.0.1", port, "guest", "guest", "/")
    try:
        return int(client.declare_queue(f"{COLD}.q00000", durable=True, passive=True))
    finally:
        client.close()


def fill(server: Any, count: int) -> dict[str, Any]:
    """Publishes the backlog with confirms. Raises: RuntimeError when it is not all there."""
    result = perf(
        server,
        ("--mode", "publish", "--prefix", COLD, "--durable", "--persistent", "--keep", "--size", str(BODY), "--count", str(count),
         "--confirm", "2000", "--max-time", str(FILL_S_MAX), "--drain-timeout", "60", "--settle", "2"),
        FILL_S_MAX + 60,
    )  # fmt: skip
    if not result.get("ok"):
        raise RuntimeError(f"the backlog was not filled: {result.get('error') or result}")
    return result


def hot(server: Any, rate: float, seconds: float) -> dict[str, Any]:
    """The paced flow over ten queues. Raises: RuntimeError when a message was lost or the flow could not be kept."""
    result = perf(
        server,
        (*HOT, "--prefix", "hot", "--rate", str(rate), "--time", str(seconds)),
        seconds + 60,
    )
    if not result.get("ok"):
        raise RuntimeError(f"the hot flow failed: {result.get('error') or result}")
    return result


@contextlib.contextmanager
def steady(server: Any, rate: float) -> Iterator[None]:
    """A flow that is there all the time; its figures don't count."""
    process = client(server, *HOT, "--prefix", "steady", "--rate", str(rate), "--time", str(FILL_S_MAX))
    time.sleep(RUN_IN_S)
    try:
        yield
    finally:
        end(process)


def client(server: Any, *arguments: str, nice: int = 0) -> subprocess.Popen[bytes]:
    """`flintmq perf` beside us."""
    return subprocess.Popen(
        [sys.executable, "-m", "flintmq.cli.main", "perf", "--json", "--port", str(server.port), *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: lowered(nice) if nice else None,
    )


def lowered(nice: int) -> None:
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    os.nice(nice)


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


@contextlib.contextmanager
def drain(server: Any, count: int, nice: int) -> Iterator[None]:
    """A consumer of the backlog, as fast as it can; gone afterwards (what it held goes back)."""
    process = client(
        server, "--mode", "consume", "--prefix", COLD, "--durable", "--keep", "--size", str(BODY), "--count", str(count),
        "--ack", str(ACK_EVERY), "--prefetch", str(PREFETCH), "--max-time", str(FILL_S_MAX), "--drain-timeout", "60", nice=nice,
    )  # fmt: skip
    try:
        before = depth(server.port)
        deadline = time.monotonic() + 60
        while depth(server.port) >= before:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the drain does not begin")
            time.sleep(0.1)
        time.sleep(RUN_IN_S)
        yield
    finally:
        end(process)


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """One broker: fill, then rounds of quiet and beside the drain."""
    broker = Broker(name)
    record: dict[str, Any] = {"broker": name, "count": options.count, "rate": options.rate, "seconds": options.seconds, "rounds": []}
    try:
        server = broker.server(fresh=True, durable=True)
        record["fill_rate"] = fill(server, options.count)["publish_rate"]
        hot(server, options.rate, 1.0)  # warms both ends up
        with steady(server, options.rate / 5):
            for number in range(options.rounds):
                before = hot(server, options.rate, options.seconds)
                with drain(server, options.count, options.drain_nice):
                    left, began, busy = depth(server.port), time.monotonic(), busy_s()
                    during = hot(server, options.rate, options.seconds)
                    elapsed, rest = time.monotonic() - began, depth(server.port)
                    used = busy_s() - busy
                one = {
                    "before_us": before["latency_us"],
                    "during_us": during["latency_us"],
                    "drain_rate": round((left - rest) / elapsed),
                    "left": rest,
                    "cores": round(used / elapsed, 2),
                    "late_us": (before.get("late_max_us"), during.get("late_max_us")),
                }
                ended = rest < PREFETCH
                print(f"{name} round {number + 1}: {told(one)}{'  the drain ended: thrown away' if ended else ''}", flush=True)
                if ended:
                    break  # C1
                record["rounds"].append(one)
    finally:
        broker.stop()
    return record


def told(one: dict[str, Any]) -> str:
    before, during = one["before_us"], one["during_us"]
    return (
        f"p50 {before['p50']:.0f} -> {during['p50']:.0f} us, p99 {before['p99']:.0f} -> {during['p99']:.0f} us "
        f"(x{during['p99'] / before['p99']:.2f}), drain {one['drain_rate']:,}/s, {one['left']:,} left, {one['cores']} cores"
    )


def summary(record: dict[str, Any]) -> dict[str, float] | None:
    """Medians over the rounds; `ratio`: the median of each round's p99 during the drain by its p99 before; `mean`: their geometric mean."""
    rounds = record["rounds"]
    if not rounds:
        return None
    found = {
        f"{name}_{when}": statistics.median(one[f"{when}_us"][name] for one in rounds)
        for name in ("p50", "p99")
        for when in ("before", "during")
    }
    ratios = sorted(one["during_us"]["p99"] / one["before_us"]["p99"] for one in rounds)
    found |= {"ratio": statistics.median(ratios), "mean": statistics.geometric_mean(ratios), "least": ratios[0], "most": ratios[-1]}
    found["drain"] = statistics.median(one["drain_rate"] for one in rounds)
    return found


def render(records: list[dict[str, Any]], about: dict[str, Any]) -> str:
    """The part of the document."""
    lines = [
        "| broker | hot p50 before / during, µs | hot p99 before / during, µs | p99 rises to | backlog drained at |",
        "|---|---|---|---|---|",
    ]
    for record in records:
        found = summary(record)
        if found is None:
            lines.append(f"| {record['broker']} | no figure: {record.get('error', 'the drain ended')} | | | |")
            continue
        verdict = ""
        if record["broker"] == FLINTMQ:
            verdict = " (goal: at most 1.20x, met)" if found["ratio"] <= GOAL else " (goal: at most 1.20x, **missed**)"
        lines.append(
            f"| {record['broker']} | {found['p50_before']:,.0f} / {found['p50_during']:,.0f} | {found['p99_before']:,.0f} / "
            f"{found['p99_during']:,.0f} | {found['ratio']:.2f}x{verdict}; geometric mean {found['mean']:.2f}x, "
            f"rounds {found['least']:.2f}x to {found['most']:.2f}x | "
            f"{found['drain']:,.0f}/s |"
        )
    counts = " and ".join(sorted({f"{record['count']:,} ({record['broker']})" for record in records}))
    rounds = max(len(record["rounds"]) for record in records)
    noise = f"The machine was not quiet (load {about['load']}): all but the drain ran with real-time priority (chrt -r). "
    lines += [
        "",
        f"{about['date']}, commit {about['commit']}, {about['cores']} cores, RabbitMQ {about['rabbitmq']}. "
        f"Backlog of {counts} persistent messages of {BODY} bytes on disk; hot flow of {about['rate']:,.0f} messages/s over {HOT_QUEUES} "
        "durable queues, persistent, each acknowledged; "
        f"{about['seconds']:g} s a run, medians of {rounds} rounds of before and during. "
        f"Drain: one consumer, prefetch {PREFETCH}, ack every {ACK_EVERY}, its client at nice {about['drain_nice']}. "
        f"{noise if about['real_time'] else ''}Command: `python bench/cold_groups.py --write`.",
    ]
    return "\n".join(lines)


def write(text: str) -> None:
    """Puts the text between the marks of the document; a document without them gets a section at its end."""
    old = DOCUMENT.read_text() if DOCUMENT.exists() else "# Fairness\n"
    if BEGIN not in old:
        old = f"{old.rstrip()}\n\n## Cold reads out of the way\n\n{BEGIN}\n{END}\n"
    head, _, rest = old.partition(BEGIN)
    DOCUMENT.write_text(f"{head}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}")


def exit_code(records: list[dict[str, Any]]) -> int:
    """See module; the other broker has no goal. Says on stderr what was missed."""
    if not any(record["rounds"] for record in records):
        return 69
    for record in records:
        if record["broker"] != FLINTMQ:
            continue
        found = summary(record)
        if found is None:
            return 65
        if found["ratio"] > GOAL:
            print(f"goal missed: the hot p99 rises to {found['ratio']:.3f}x, at most {GOAL:.2f}x", file=sys.stderr)
            return 1
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench/cold_groups.py", description="What the drain of a cold backlog costs hot queues.")
    parser.add_argument("--count", type=int, default=10_000_000, help="messages of the backlog (default 10 M)")
    parser.add_argument("--peer-count", type=int, default=0, help="messages of RabbitMQ's backlog (default: the same)")
    parser.add_argument("--rate", type=float, default=5000.0, help="messages/s of the hot flow in all (default 5,000)")
    parser.add_argument("--seconds", type=float, default=4.0, help="of one run of the hot flow (default 4)")
    parser.add_argument("--rounds", type=int, default=3, help="of before and during (default 3)")
    parser.add_argument("--drain-nice", type=int, default=19, help="priority of the draining client (default 19)")
    parser.add_argument("--skip-peer", action="store_true", help="FlintMQ alone")
    parser.add_argument("--skip-ours", action="store_true", help="RabbitMQ alone")
    parser.add_argument("--write", action="store_true", help="write the part of docs/FAIRNESS.md")
    return parser.parse_args()


def main() -> int:
    options = parse()
    chosen = ([] if options.skip_ours else [FLINTMQ]) + ([] if options.skip_peer else [RABBITMQ])
    if RABBITMQ in chosen and (reason := servers.rabbitmq_missing()):
        print(f"without RabbitMQ: {reason}", file=sys.stderr)
        chosen.remove(RABBITMQ)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    now = datetime.datetime.now(datetime.UTC)
    about = {
        "date": f"{now:%Y-%m-%d %H:%M} UTC",
        "commit": commit,
        "cores": len(os.sched_getaffinity(0)),
        "rabbitmq": servers.rabbitmq_version(),
        "real_time": os.sched_getscheduler(0) in (os.SCHED_RR, os.SCHED_FIFO),
        "load": round(os.getloadavg()[0], 1),
        **{name: getattr(options, name) for name in ("rate", "seconds", "drain_nice")},
    }
    records = []
    for name in chosen:
        asked = argparse.Namespace(**vars(options))
        if name == RABBITMQ and options.peer_count:
            asked.count = options.peer_count
        try:
            records.append(measure(name, asked))
        except (RuntimeError, OSError, servers.Unavailable) as error:
            print(f"{name}: {error}", file=sys.stderr)
            records.append({"broker": name, "count": asked.count, "rounds": [], "error": str(error)[:200]})
    RESULTS.mkdir(parents=True, exist_ok=True)
    with (RESULTS / f"cold-{now:%Y%m%d-%H%M%S}.jsonl").open("w") as file:
        for line in ({"conditions": about}, *records):
            print(json.dumps(line), file=file)
    text = render(records, about)
    print(f"\n{text}")
    if options.write and any(record["rounds"] for record in records):
        write(text)
        print(f"written: {DOCUMENT.relative_to(ROOT)}")
    return exit_code(records)


if __name__ == "__main__":
    raise SystemExit(main())
