"""The campaign: messages flow from queues through Spark into files and into a queue, something is killed every few seconds, all is counted.

in: a number of kills, a seed, a Spark master. out: a line for each kill on stderr, a JSON summary on stdout; exit code 1 when a
message was lost or came twice, something that was staged stayed behind, or nothing went on after a kill. What failed keeps its
directory: broker's store and log, checkpoints, output, logs of the drivers, `sent.json`.

`python -m tools.crash.spark.campaign [--kills 50] [--minutes N] [--seed 1] [--master local[2,4]] [--only QUERY/POINT/VICTIM ...]
[--mutants] [--scenes]`
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.crash.spark import check, plan, processes, publisher
from tools.crash.spark.broker import Broker
from tools.crash.spark.plan import Kill
from tools.crash.spark.reserve import Driver
from tools.crash.spark.scenes import Scenes

if TYPE_CHECKING:
    from flintmq.flight.client import DataPlane

KEYS = ("k0", "k1", "k2")
RATE = 40.0  # messages per second: a loaded machine must keep up with them, or the end takes long
ROWS = 1000  # messages of a micro-batch at most
# Seconds: for a point to be reached; for both queries to commit a batch after a kill; for the queues to be read to their end.
REACH_S, RECOVER_S, DRAIN_S = 20.0, 180.0, 300.0
STEP_S = 0.02
RANDOM_S_MAX = 1.5
# Kills of the driver that wait for the next driver's session, at most.
LATE_MAX = 12
# Hits of a failpoint before it kills, at most: messages are written for each publish, decisions a few times in a second.
FAILPOINT_HITS = {"message": 400, "commit": 40}
# A query may end with these after a kill and is started again. Any other code of ours is a finding.
ENDS = frozenset({"FLINTMQ_UNREACHABLE", "FLINTMQ_DATA_LOSS", "FLINTMQ_STOPPING", "FLINTMQ_CONNECTION_LOST"})
# With a dead driver's queries or tasks still about: the younger reader has fenced them.
ENDS_OF_ZOMBIES = frozenset({"FLINTMQ_FENCED", "FLINTMQ_TICKET_GONE"})


class Stuck(AssertionError):
    """Nothing goes on."""


class Campaign:
    """See module. A context manager: everything it started is gone afterwards."""

    def __init__(self, directory: Path, *, seed: int, master: str = "local[2,4]", rate: float = RATE, quiet: bool = False) -> None:
        self.directory, self.seed, self.master, self.quiet = directory, seed, master, quiet
        self.crash = directory / "crash"
        self.dice = random.Random(seed)
        self.broker = Broker(directory, seed)
        self.rate = rate
        self.kills: Counter[str] = Counter()
        self.points: Counter[str] = Counter()
        self.ends: Counter[str] = Counter()
        self.zombies: Counter[str] = Counter()
        self.findings: list[str] = []
        self.unreached = 0
        self.done = 0
        self._number = itertools.count(1)
        self._buried: list[Driver] = []
        self._late: list[Kill] = []
        self._drivers = 0
        self._broker_kills = 0

    # --- life -----------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Campaign:
        for name in ("crash", "scratch"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        try:
            self.broker.start()
            publisher.declare(self.broker.port, KEYS)
            self.publisher = publisher.Publisher(self.broker.port, KEYS, self.seed, self.rate)
            self.driver = self._new_driver()
            self.driver.go()
            self.publisher.start()
            self.publisher.resume()
            self.progress(dict.fromkeys(plan.QUERIES, -1), "the start")
            self.reserve: Driver | None = None
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        with contextlib.suppress(AttributeError):
            self.publisher.finish()
        for driver in [*self._buried, getattr(self, "driver", None), getattr(self, "reserve", None)]:
            if driver is not None:
                driver.end()
        self.broker.stop()

    def _new_driver(self) -> Driver:
        self._drivers += 1
        job = {
            "directory": str(self.directory), "crash": str(self.crash), "flight_port": self.broker.flight_port, "keys": KEYS,
            "master": self.master, "rows": ROWS, "scratch": str(self.directory / "scratch"),
        }  # fmt: skip
        return Driver(job, self.directory / "driver.log")

    def plane(self) -> DataPlane:
        """A client of the data plane; close it."""
        from flintmq.flight.client import DataPlane

        return DataPlane(f"grpc://127.0.0.1:{self.broker.flight_port}")

    def say(self, text: str) -> None:
        if not self.quiet:
            print(text, file=sys.stderr, flush=True)

    # --- progress -------------------------------------------------------------------------------------------------------

    def commits(self) -> dict[str, int]:
        """The last batch in each query's commit log."""
        return {name: _last(self.directory / f"checkpoint.{name}" / "commits") for name in plan.QUERIES}

    def progress(self, before: dict[str, int], after: str) -> None:
        """Returns when both queries have committed a batch more than `before`; a dead driver is replaced. Raises: Stuck."""
        until = time.monotonic() + RECOVER_S
        while True:
            self._tend()
            now = self.commits()
            if all(now[name] > before[name] for name in before) and self.broker.up:
                return
            if time.monotonic() > until:
                ends = [end["codes"] or end["text"][-300:] for end in self.driver.ends[-2:]]
                raise Stuck(f"no batch was committed for {RECOVER_S:.0f} s after {after}: {before} -> {now}; queries ended: {ends}")
            time.sleep(STEP_S)

    def _tend(self) -> None:
        if self.publisher.error is not None:
            raise Stuck(f"the publisher: {self.publisher.error!r}")
        if len(self.broker.unexpected) > 3:
            raise Stuck(self.broker.unexpected[-1])
        if self.driver.alive:
            return
        dead, self.driver = self.driver, self.reserve or self._new_driver()
        self.reserve = None
        self._note_ends(dead)
        dead.bury()
        self._buried.append(dead)
        self.driver.go()

    def _keep_reserve(self) -> None:
        if self.reserve is None:
            self.reserve = self._new_driver()

    def _note_ends(self, driver: Driver) -> None:
        for end in driver.ends:
            codes = [code for code in end["codes"].split(",") if code]
            for code in codes or ["Spark"]:
                self.ends[code.split(" ")[0]] += 1
            wrong = [code for code in codes if code.startswith("FLINTMQ_") and code not in ENDS | ENDS_OF_ZOMBIES]
            if wrong:
                self.findings.append(f"query {end['query']} ended with {', '.join(wrong)}: {end['text'][-300:]}")
        driver.ends.clear()

    # --- one kill -------------------------------------------------------------------------------------------------------

    def strike(self, kill: Kill) -> bool:
        """One kill, and the way back. Returns whether it happened (a point may not be reached in time). Raises: Stuck."""
        number = next(self._number)
        before = self.commits()
        began = time.monotonic()
        if kill.point in plan.FAILPOINTS:
            happened = self._by_failpoint(kill)
        elif kill.point == "random":
            time.sleep(self.dice.uniform(0, RANDOM_S_MAX))
            happened = self._kill(kill.victim, kill.query)
        elif kill.point.startswith("seen-"):
            happened = self._by_file(kill)
        else:
            happened = self.at_point(kill, number)
        if not happened:
            self.unreached += 1
            self.say(f"     {kill}: not reached")
            return False
        struck = time.monotonic()
        mutant = kill.victim in ("drop", "double", "twice")
        self.done += not mutant
        self.kills[kill.victim] += 1
        self.points[kill.point] += 1
        self.progress({name: max(before[name], at) for name, at in self.commits().items()}, f"kill {number} ({kill})")
        if kill.victim == "zombie":
            self._wake(number, kill)
        self._note_ends(self.driver)
        now = self.commits()
        self.say(
            f"{self.done:4} {kill}: reached in {struck - began:.1f} s, back in {time.monotonic() - struck:.1f} s;"
            f" batches {now['files']} {now['copy']}"
        )
        return True

    def _pids(self) -> dict[str, int]:
        return {"broker": self.broker.pid, "driver": self.driver.jvm}

    def at_point(self, kill: Kill, number: int = 0) -> bool:
        """Arms a point of hooks.py. Returns whether somebody came there."""
        number = number or next(self._number)
        arm, fired = self.crash / "arm.json", self.crash / f"fired.{number}.json"
        armed = {"id": number, "query": kill.query, "point": kill.point, "victim": kill.victim, **self._pids()}
        draft = self.crash / "arm.new"
        draft.write_text(json.dumps(armed))
        draft.rename(arm)
        if self.wait(fired.exists, REACH_S):
            return True
        try:
            arm.unlink()
        except FileNotFoundError:
            return True  # in this moment
        return False

    def _by_file(self, kill: Kill) -> bool:
        where = {
            "seen-offset": self.directory / f"checkpoint.{kill.query}" / "offsets",
            "seen-commit": self.directory / f"checkpoint.{kill.query}" / "commits",
            "seen-metadata": self.directory / "files" / "_spark_metadata",
        }[kill.point]
        last = _last(where)
        return self.wait(lambda: _last(where) > last, REACH_S, 0.001) and self._kill(kill.victim, kill.query)

    def _by_failpoint(self, kill: Kill) -> bool:
        """The broker is killed, and comes up to be killed again at the point."""
        self.broker.armed = f"{kill.point}:{self.dice.randint(1, FAILPOINT_HITS[kill.point.split('-')[0]])}"
        starts = self.broker.starts
        self.broker.kill()
        self.wait(lambda: self.broker.starts > starts, REACH_S)
        return self.wait(lambda: self.broker.starts > starts + 1, REACH_S)

    def _kill(self, victim: str, query: str) -> bool:
        """Kills one from here. Returns False when there is none."""
        found = []
        for one in victim.split("+"):
            if one in ("broker", "driver"):
                pid = self._pids()[one]
            elif one == "flight":
                pid = processes.child(self.broker.pid, "flintmq.flight")
            elif one == "reader":
                pid = _number_in(self.crash / f"reader.{query}")
                pid = pid if pid in processes.descendants(self.driver.jvm) else 0
            elif one == "executor":
                pid = processes.child(self.driver.jvm, "CoarseGrainedExecutorBackend")
            else:
                workers = processes.workers(self.driver.jvm)
                pid = self.dice.choice(workers) if workers else 0
                if one == "daemon" and pid:
                    pid = (processes.facts(pid) or ("", 0, 0))[1]
            found.append(pid)
        for pid in found:
            processes.kill(pid)
        return all(found)

    def _wake(self, number: int, kill: Kill) -> None:
        """A process that was left behind goes on with its call: it must be refused."""
        (self.crash / f"awake.{number}").touch()
        told = self.crash / f"zombie.{number}.json"
        if not self.wait(told.exists, 60):
            self.findings.append(f"{kill}: the process left behind did nothing")
            return
        time.sleep(STEP_S)
        note = json.loads(told.read_text())
        came = note["came"]
        word = next((one for one in ("FENCED", "CHECKPOINT_BEHIND", "NOT_FOUND", "STAGE_FAILED") if one in came), came[:60])
        self.zombies[f"{kill.point}: {word}"] += 1
        allowed = ("FENCED",) if kill.point != "prepare-enter" else ("FENCED", "NOT_FOUND", "STAGE_FAILED")
        if word not in allowed and (note["asks"] or came != "done"):
            self.findings.append(f"{kill}: the process left behind was not refused: {came}")

    @staticmethod
    def wait(condition: Callable[[], Any], seconds: float, step: float = STEP_S) -> bool:
        until = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > until:
                return False
            time.sleep(step)
        return True

    # --- the end --------------------------------------------------------------------------------------------------------

    def settle(self) -> dict[str, Any]:
        """Lets everything flow to its end, with one more commit, and looks at what is left and at what came out. Returns the counts."""
        (self.crash / "arm.json").unlink(missing_ok=True)
        self.publisher.pause()
        self.drained()
        # One more commit: what lost attempts of the last batch had staged must be gone with it.
        before = self.commits()
        self.publisher.resume()
        self.progress(before, "the last commit")
        self.publisher.pause()
        self.drained()
        self._left_behind()
        self.driver.stop()
        self._note_ends(self.driver)
        sent = self.publisher.sent
        (self.directory / "sent.json").write_text(sent.to_json())
        files = check.parquet_rows(self.directory / "files")
        if (self.directory / "second" / "_spark_metadata").exists():
            # The second query of scenes.py: what it took is missing in the first one.
            files = sorted(files + check.parquet_rows(self.directory / "second"), key=lambda row: row.position)
        copies = publisher.drain(self.broker.port, "copy")
        (self.directory / "copy.json").write_text(json.dumps([[*check.named(body), name] for body, name in copies]))
        streamed = publisher.kept(self.broker.port, publisher.STREAM, len(copies))
        found = [*check.check("files", sent, files), *check.check("copy", sent, check.queue_rows(copies))]
        found += check.check("stream", sent, check.queue_rows(streamed))
        self.findings += map(str, found)
        for queue, depth in publisher.depths(self.broker.port, _queues()).items():
            if depth:
                self.findings.append(f"queue {queue} still holds {depth} messages")
        self.broker.stop()
        self.findings += self.broker.unexpected
        counts = Counter({"lost": 0, "duplicate": 0, "alien": 0, "disorder": 0})
        for one in found:
            counts[one.kind] += one.count
        return {
            "messages": len(sent.sure), "unconfirmed_or_transient": len(sent.maybe), "rows": len(files), "copies": len(copies),
            "streamed": len(streamed), **counts,
        }  # fmt: skip

    def drained(self) -> None:
        """Returns when both queries have read their queues to the end, and their last sets are committed. Raises: Stuck."""
        until = time.monotonic() + DRAIN_S
        while True:
            self._tend()
            with contextlib.suppress(Exception), contextlib.closing(self.plane()) as plane:
                # A set that is taken between the two questions is in neither answer: the same before and after, or it is asked again.
                before = _sets(plane)
                empty = not any(publisher.depths(self.broker.port, _queues()).values())
                if empty and before == _sets(plane) and all(prepared is None for _, prepared in before.values()):
                    return
            if time.monotonic() > until:
                raise Stuck(f"the queues were not read to their end in {DRAIN_S:.0f} s")
            time.sleep(0.2)

    def _left_behind(self) -> None:
        """No stage, no prepared set."""
        with contextlib.closing(self.plane()) as plane:
            garbage = [scope for scope in plane.scope_list() if scope["open"] or scope["prepared"]]
            self.garbage = sum(scope["open"] + scope["prepared"] for scope in garbage)
            if garbage:
                self.findings.append(f"staged and left behind: {garbage}")
            held = [name for name, (_, prepared) in _sets(plane).items() if prepared is not None]
            if held:
                self.findings.append(f"prepared sets left behind: {held}")

    def _next(self, kills: Iterator[Kill]) -> Kill | None:
        """The next kill; those of the driver wait until the next driver is warm, while others go first."""
        warm = self.reserve is not None and self.reserve.ready
        if self._late and (warm or len(self._late) >= LATE_MAX):
            return self._late.pop(0)
        for kill in kills:
            if self.reserve is None or warm or not ("driver" in kill.victim or kill.victim == "zombie"):
                return kill
            self._late.append(kill)
            if len(self._late) >= LATE_MAX:
                break
        return self._late.pop(0) if self._late else None

    # --- all of it ------------------------------------------------------------------------------------------------------

    def run(
        self, kills: Iterator[Kill], count: int, *, reserve: bool = True, scenes: bool = False, seconds_max: float = 1e9
    ) -> dict[str, Any]:
        """`count` kills of the series, then the end. Returns the summary; never raises for a pipeline that is wrong."""
        began = time.monotonic()
        garbage: int | None = None
        counts: dict[str, Any] = {}
        passed: list[str] = []
        try:
            while self.done < count and self.unreached <= count and time.monotonic() - began < seconds_max:
                if reserve:
                    self._keep_reserve()
                kill = self._next(kills)
                if kill is None:
                    break
                self.strike(kill)
            if scenes:
                passed = Scenes(self).run()
            counts = self.settle()
            garbage = self.garbage
        except Stuck as e:
            self.findings.append(f"stuck: {e}")
        seconds = time.monotonic() - began
        return {
            "kills": self.done, "seed": self.seed, "master": self.master, "seconds": round(seconds, 1), **counts, "garbage": garbage,
            "named_points": len([point for point in self.points if point != "random"]), "points": dict(sorted(self.points.items())),
            "victims": dict(sorted(self.kills.items())), "not_reached": self.unreached, "zombies": dict(sorted(self.zombies.items())),
            "scenes": passed, "queries_ended": dict(sorted(self.ends.items())), "drivers": self._drivers, "brokers": self.broker.starts,
            "findings": self.findings,
        }  # fmt: skip


def _sets(plane: DataPlane) -> dict[str, tuple[int, int | None]]:
    """Of each query's subscription: the last set that was committed, and the one that is prepared."""
    states = map(plane.sub_status, plan.QUERIES)
    return {state["name"]: (state["committed"], state["prepared"]) for state in states}


def _queues() -> list[str]:
    return [f"{letter}.{key}" for letter in "ab" for key in KEYS]


def _last(directory: Path) -> int:
    """The highest number among Spark's log files; -1: none."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return -1
    return max((int(name.partition(".")[0]) for name in names if name.partition(".")[0].isdigit()), default=-1)


def _number_in(file: Path) -> int:
    with contextlib.suppress(OSError, ValueError):
        return int(file.read_text())
    return 0


# Faults of a pipeline that is wrong, and the findings that must name them.
MUTANTS = (Kill("files", "partitions-exit", "drop"), Kill("files", "partitions-exit", "double"), Kill("copy", "write-twice", "twice"))


def mutants_are_caught(summary: dict[str, Any]) -> bool:
    """Whether the checker saw a batch that was dropped, one that was doubled, and a stage that was published twice."""
    found = " ".join(summary["findings"])
    return all(any(f"{where}: " in one and kind in one for one in summary["findings"]) for where, kind in (
        ("files", " lost"), ("files", " duplicate"), ("copy", " duplicate"),
    )) and bool(found)  # fmt: skip


def arguments(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tools.crash.spark.campaign", description="Kills everything around a Spark pipeline, and counts.")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1e6, help="no kill begins after so long")
    parser.add_argument("--master", default="local[2,4]", help="local[2,4] or local-cluster[2,1,1024]")
    parser.add_argument(
        "--only", action="append", type=Kill.parse, help="QUERY/POINT/VICTIM, may be given several times; repeated in order"
    )
    parser.add_argument("--mutants", action="store_true", help="a pipeline that is wrong in three ways: the checker must see all three")
    parser.add_argument("--scenes", action="store_true", help="then what people do to checkpoints: scenes.py")
    parser.add_argument("--directory", type=Path, help="a new directory, kept; default: a temporary one, kept when something was found")
    return parser.parse_args(given)


def main(given: list[str] | None = None) -> int:
    options = arguments(given)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is ended then, too
    directory = options.directory or Path(tempfile.mkdtemp(prefix="flintmq-crash-spark-"))
    directory.mkdir(parents=True, exist_ok=True)
    kills: Iterator[Kill] = plan.series(options.seed, cluster=options.master.startswith("local-cluster"))
    if options.only:
        kills = itertools.cycle(options.only)
    if options.mutants:
        kills, options.kills = iter(MUTANTS), len(MUTANTS)
    try:
        with Campaign(directory, seed=options.seed, master=options.master) as campaign:
            summary = campaign.run(
                kills, options.kills, reserve=not options.mutants, scenes=options.scenes, seconds_max=60 * options.minutes
            )
    except Stuck as e:
        summary = {"kills": 0, "seed": options.seed, "findings": [f"stuck: {e}"]}
    if options.mutants:
        summary["mutants_caught"] = good = mutants_are_caught(summary)
    else:
        good = not summary["findings"]
    if options.directory is None and good:
        shutil.rmtree(directory, ignore_errors=True)
    else:
        summary["kept"] = str(directory)
    print(json.dumps(summary), flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
