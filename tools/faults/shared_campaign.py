"""Three brokers and three members of etcd, or a PostgreSQL, each on a machine (network namespace) of its own; what breaks one at a time.

    python -m tools.faults.shared_campaign --seconds 180 --seed 1
    python -m tools.faults.shared_campaign --seconds 60 --engine postgres --faults kill-owner,stop-member

| fault | |
|---|---|
| kill-owner, kill-other, kill-member | kill -9 of the queue's owner, of another broker, of a member of the engine; a start 2 to 6 s later |
| stop-owner, stop-other, stop-member | SIGSTOP for 2 to 10 s (the lease is 5 s), and SIGCONT |
| term-owner, roll | SIGTERM and a new start, of the owner; of each broker in turn |
| part-member | a member of etcd is cut off from everybody |
| part-owner, part-other | a broker is cut off from etcd; clients and brokers still reach it |
| part-half | a broker reaches one member of etcd alone |
| part-brokers | two brokers are cut off from each other, and reach etcd |
| deaf-owner, mute-owner | the owner does not hear the members of etcd, which hear it; the other way round |
| deaf-brokers | a broker does not hear another one, which hears it |
| deaf-member | a member of etcd does not hear the others, which hear it |
| clock-owner, clock-other | the wall clock of a broker jumps an hour forward, or back, and jumps again 3 to 8 s later |
| engine-gone | SIGSTOP of all members for 8 to 20 s |
| full-disk | the disk of a member has no byte left; the member is started again when it has |
| full-quota | etcd takes no rows for 5 s; the brokers have to end its alarm |

Prints one JSON line. Exit 0, 65 (violations), 69 (can't be tried here). What must hold: nothing that was confirmed is lost; what comes
twice is flagged (so two owners never both settle); enqueues that did not overlap, and those of one publisher, do not swap; somebody (each
broker has a publisher that stays with it) has a confirm again within the lease and 2 s, and each publisher that looks for another broker
within the lease and --grace seconds (after engine-gone, part-brokers, part-owner and the deaf and mute ones: of their end, as clients of
a broker that is cut off wait for it; after full-quota within 60 s, as the brokers have to defragment etcd first). A jump of a clock is no
reason for another owner: somebody has a confirm within 2 s. The next fault waits until all have confirms. Beside them, windows of 200
operations of clients on all brokers have to be linearizable (shared_windows.py).
Clocks of etcd are not jumped: Go programs ask the kernel themselves, and the clock of the machine is everybody's.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.servers import Unavailable
from tools.faults.shared_checker import longest_gap_s, violations
from tools.faults.shared_clients import Clients
from tools.faults.shared_cluster import Cluster
from tools.faults.shared_engines import ENGINES
from tools.faults.shared_net import come_back, enter_network, why_not
from tools.faults.shared_process import Process
from tools.faults.shared_windows import Windows

MODULE = "tools.faults.shared_campaign"
LEASE_S = 5.0
# seconds beyond the lease after which the queue is served again, whatever happened to its owner
SERVED_S = 2.0
# seconds until a fault that has not been overcome is given up
OVERCOME_S_MAX = 60.0
# seconds at the end of a run in which nobody consumes: what the order is judged by
BACKLOG_S = 6.0
# seconds of a jump of a clock: more than any lease, heartbeat or patience
_JUMP_S = 3_600


class Faults:
    """Breaks one thing at a time, and mends it."""

    def __init__(self, cluster: Cluster, chance: random.Random) -> None:
        self.cluster = cluster
        self.chance = chance
        self.done: dict[str, int] = {}
        self.kinds: dict[str, Callable[[], None]] = {
            "kill-owner": lambda: self._kill(self._owner()),
            "kill-other": lambda: self._kill(self._other()),
            "kill-member": lambda: self._kill(self.chance.choice(self.cluster.members)),
            "stop-owner": lambda: self._stop(2, 10, self._owner()),
            "stop-other": lambda: self._stop(2, 10, self._other()),
            "stop-member": lambda: self._stop(2, 10, self.chance.choice(self.cluster.members)),
            "term-owner": lambda: self._restart(self._owner()),
            "roll": lambda: self._restart(*self.cluster.brokers),
            "part-member": self._part_member,
            "part-owner": lambda: self._part_broker(self._owner(), 3),
            "part-other": lambda: self._part_broker(self._other(), 3),
            "part-half": lambda: self._part_broker(self._owner(), 2),
            "part-brokers": self._part_brokers,
            "deaf-owner": lambda: self._deafen([self._owner()], self.cluster.members),
            "mute-owner": lambda: self._deafen(self.cluster.members, [self._owner()]),
            "deaf-brokers": self._deaf_brokers,
            "deaf-member": self._deaf_member,
            "clock-owner": lambda: self._jump(self._owner()),
            "clock-other": lambda: self._jump(self._other()),
            "engine-gone": lambda: self._stop(8, 20, *self.cluster.members),
            "full-disk": self._full_disk,
            "full-quota": self._full_quota,
        }
        for kind in cluster.engine.without:
            del self.kinds[kind]

    def one(self, kind: str) -> None:
        self.kinds[kind]()
        self.done[kind] = self.done.get(kind, 0) + 1

    def _owner(self) -> Process:
        return self.cluster.owner() or self.chance.choice(self.cluster.brokers)

    def _other(self) -> Process:
        owner = self._owner()
        return self.chance.choice([one for one in self.cluster.brokers if one is not owner])

    def _pause(self, low_s: float, high_s: float) -> None:
        time.sleep(self.chance.uniform(low_s, high_s))

    def _kill(self, process: Process) -> None:
        process.kill()
        self._pause(2, 6)
        process.start()

    def _stop(self, low_s: float, high_s: float, *processes: Process) -> None:
        for process in processes:
            process.send(signal.SIGSTOP)
        self._pause(low_s, high_s)
        for process in processes:
            process.send(signal.SIGCONT)

    def _restart(self, *brokers: Process) -> None:
        for broker in brokers:
            broker.stop()
            broker.start()
            self.cluster.wait_ready([broker])

    def _part_member(self) -> None:
        machine = self.chance.choice(self.cluster.members).machine
        others = [one for one in self.cluster.machines if one is not machine]
        machine.cut(others)
        self._pause(3, 12)
        machine.join(others)

    def _part_broker(self, broker: Process, count: int) -> None:
        machine = broker.machine
        members = [one.machine for one in self.chance.sample(self.cluster.members, min(count, len(self.cluster.members)))]
        machine.cut(members)
        self._pause(3, 12)
        machine.join(members)

    def _part_brokers(self) -> None:
        one, other = self.chance.sample(self.cluster.brokers, 2)
        one.machine.cut([other.machine])
        self._pause(3, 12)
        one.machine.join([other.machine])

    def _deafen(self, deaf: Sequence[Process], others: Sequence[Process]) -> None:
        for one in deaf:
            one.machine.deafen([other.machine for other in others])
        self._pause(3, 12)
        for one in deaf:
            one.machine.hear([other.machine for other in others])

    def _deaf_brokers(self) -> None:
        one, other = self.chance.sample(self.cluster.brokers, 2)
        self._deafen([one], [other])

    def _deaf_member(self) -> None:
        member = self.chance.choice(self.cluster.members)
        self._deafen([member], [one for one in self.cluster.members if one is not member])

    def _jump(self, broker: Process) -> None:
        assert broker.clock is not None
        broker.clock.jump(self.chance.choice((-_JUMP_S, _JUMP_S)))
        self._pause(3, 8)
        broker.clock.jump(0)

    def _full_disk(self) -> None:
        number = self.chance.randrange(len(self.cluster.members))
        disk, member = self.cluster.engine.disks[number], self.cluster.members[number]
        disk.fill()
        self._pause(4, 8)
        disk.free()
        if not member.runs:
            member.start()

    def _full_quota(self) -> None:
        self.cluster.engine.fill_quota()
        self._pause(5, 5)
        self.cluster.engine.free_quota()


# faults in which nobody can have a confirm, and in which a publisher may wait for the end
_NOBODY = {"engine-gone", "full-quota"}
_WAITS = {"engine-gone", "full-quota", "part-brokers", "part-owner", "deaf-owner", "mute-owner", "deaf-brokers"}
# of an engine with one member both hold for its faults, too
_OF_MEMBER = {"kill-member", "stop-member", "part-member", "full-disk"}
# faults after which nobody may be without a confirm for as long as a lease: they are no reason for another owner
_NO_LEASE = {"clock-owner", "clock-other"}


@dataclass(frozen=True, slots=True)
class Gap:
    """The longest time without a confirm around one fault: of all publishers together, and of the one that had none for longest, without
    those that stay with their broker. overcome: all have confirms again."""

    kind: str
    anybody_s: float
    each_s: float
    overcome: bool = True


class Gaps:
    """Watches that each fault is overcome. Args: roaming, staying: numbers of publishers; alone: the engine has one member."""

    def __init__(self, clients: Clients, roaming: int, staying: int, alone: bool = False) -> None:
        self._nobody = _NOBODY | _OF_MEMBER if alone else _NOBODY
        self._waits = _WAITS | _OF_MEMBER if alone else _WAITS
        self._clients = clients
        self._roaming = roaming
        self._publishers = roaming + staying
        self.all: list[Gap] = []

    def around(self, kind: str, fault: Callable[[], None]) -> None:
        """Runs it, and waits until each publisher has two confirms after its end."""
        begin_s = time.monotonic()
        sent = len(self._clients.sent)
        fault()
        mended_s = time.monotonic()
        while not self._all_served(sent, mended_s) and time.monotonic() < mended_s + OVERCOME_S_MAX:
            time.sleep(0.1)
        end_s = time.monotonic()
        times = self._confirms(sent)
        anybody_s = longest_gap_s([*itertools.chain(*times)], mended_s if kind in self._nobody else begin_s, end_s)
        each_s = max(longest_gap_s(one, mended_s if kind in self._waits else begin_s, end_s) for one in times[: self._roaming])
        self.all.append(Gap(kind, round(anybody_s, 1), round(each_s, 1), self._all_served(sent, mended_s)))

    def _confirms(self, since: int) -> list[list[float]]:
        """Times of confirms of each publisher, of messages from the one with that number on."""
        times: list[list[float]] = [[] for _ in range(self._publishers)]
        for record in itertools.islice(self._clients.sent, since, None):
            if record.confirmed_s is not None:
                times[record.key[0]].append(record.confirmed_s)
        return times

    def _all_served(self, since: int, mended_s: float) -> bool:
        return all(sum(one > mended_s for one in times) >= 2 for times in self._confirms(since))

    def worst(self) -> dict[str, list[float]]:
        """Of each kind of fault: see Gap."""
        worst: dict[str, list[float]] = {}
        for gap in self.all:
            before = worst.get(gap.kind, [0.0, 0.0])
            worst[gap.kind] = [max(before[0], gap.anybody_s), max(before[1], gap.each_s)]
        return worst

    def violations(self, grace_s: float) -> list[str]:
        late = [f"{one.kind}: a publisher had none {OVERCOME_S_MAX:.0f} s after its end" for one in self.all if not one.overcome]
        bound = [one for one in self.all if one.kind != "full-quota"]
        for one in bound:
            if one.anybody_s > SERVED_S + LEASE_S * (one.kind not in _NO_LEASE):
                late.append(f"{one.kind}: nobody had a confirm for {one.anybody_s} s")
        return late + [f"{one.kind}: a publisher had no confirm for {one.each_s} s" for one in bound if one.each_s > LEASE_S + grace_s]


def run(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    chance = random.Random(options.seed)
    cluster = Cluster(folder, options.engine)
    clients = Clients(cluster)
    windows = Windows(clients, options.seed)
    try:
        cluster.wait_ready()
        faults = Faults(cluster, chance)
        kinds = options.faults.split(",") if options.faults else list(faults.kinds)
        clients.declare()
        time.sleep(2)  # the other brokers have the queue within a second
        clients.start(options.publishers, options.crowds, options.consumers)
        windows.start()
        gaps = Gaps(clients, options.publishers + options.crowds, len(cluster.brokers), len(cluster.members) == 1)
        begin_s = time.monotonic()
        while time.monotonic() < begin_s + options.seconds - BACKLOG_S:
            time.sleep(chance.uniform(1, 3))
            kind = chance.choice(kinds)
            gaps.around(kind, functools.partial(faults.one, kind))
        windows.stop()
        clients.consuming.clear()
        time.sleep(BACKLOG_S)
        clients.publishing.clear()
        ended = clients.join(60)
        time.sleep(LEASE_S + options.grace)  # what nodes that died held is back
        clients.drain(LEASE_S + options.grace, time.monotonic() + 300)
        return report(options, clients, windows, faults, gaps, ended)
    finally:
        come_back()
        if options.keep:
            cluster.keep_logs(Path(options.keep) / str(options.seed))
            windows.keep(Path(options.keep) / str(options.seed))
        cluster.close()


def report(options: argparse.Namespace, clients: Clients, windows: Windows, faults: Faults, gaps: Gaps, ended: bool) -> dict[str, object]:
    found = violations(clients.sent, clients.seen, clients.drained)
    if clients.errors or not ended:
        found.append(f"clients: {clients.errors[:2] or 'one of them did not end'}")
    found += gaps.violations(options.grace) + windows.violations
    seen = {one.key for one in clients.seen}
    return {
        "engine": options.engine,
        "seed": options.seed,
        "seconds": options.seconds,
        "faults": faults.done,
        "sent": len(clients.sent),
        "confirmed": sum(one.confirmed_s is not None for one in clients.sent),
        "delivered": len(seen),
        "redelivered": sum(one.redelivered for one in clients.seen),
        "drained_in_order": len(clients.drained),
        "reconnects": clients.reconnects,
        "windows": windows.checked,
        "windows_not_decided": windows.undecided,
        "longest_without_confirm_s": gaps.worst(),
        "violations": len(found),
        "shown": found[:10],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--engine", choices=sorted(ENGINES), default="etcd")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", default="", help="kinds, with commas; all of them without it")
    parser.add_argument("--publishers", type=int, default=4)
    parser.add_argument("--crowds", type=int, default=2, help="publishers with many messages under way")
    parser.add_argument("--consumers", type=int, default=3)
    parser.add_argument("--grace", type=float, default=5, help="seconds beyond the lease for a recovery")
    parser.add_argument("--runs", type=int, default=1, help="one after the other, with seeds from --seed on")
    parser.add_argument("--keep", default="", help="a folder for the logs of brokers and members, and the histories of wrong windows")
    options = parser.parse_args()
    if reason := why_not():
        print(reason, file=sys.stderr)
        return 69
    code = enter_network(MODULE)
    if code is not None:
        return code
    failed = 0
    for _ in range(options.runs):
        folder = Path(tempfile.mkdtemp(prefix="flintmq-campaign-"))
        try:
            result = run(options, folder)
        except Unavailable as error:
            print(error, file=sys.stderr)
            return 69
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        print(json.dumps(result), flush=True)
        failed += bool(result["violations"])
        options.seed += 1
    return 65 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
