"""Three brokers and three members of etcd, each on a machine (network namespace) of its own, and what breaks one of them at a time.

    python -m tools.faults.shared_campaign --seconds 180 --seed 1
    python -m tools.faults.shared_campaign --seconds 60 --faults kill-broker,stop-member

| fault | |
|---|---|
| kill-broker, kill-member | kill -9, and a start 2 to 6 s later |
| stop-broker, stop-member | SIGSTOP for 2 to 16 s (the lease is 10 s), and SIGCONT |
| part-member | a member of etcd is cut off from everybody |
| part-broker | a broker is cut off from etcd; its clients still reach it |
| part-half | a broker reaches one member of etcd alone |
| full-disk | the disk of a member has no byte left; the member is started again when it has |

Prints one JSON line. Exit 0, 65 (violations), 69 (can't be tried here). What must hold: nothing that was confirmed is lost; what comes
twice is flagged; enqueues that did not overlap do not swap; each publisher has a confirm again within the lease and --grace seconds.
Clocks of etcd are not jumped: libfaketime is not seen by Go programs, which ask the kernel themselves, and the clock of the machine is
everybody's.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.support.servers import Unavailable
from tools.faults.shared_checker import longest_gap_s, violations
from tools.faults.shared_clients import Clients
from tools.faults.shared_cluster import Cluster, Process
from tools.faults.shared_net import enter_network, why_not

MODULE = "tools.faults.shared_campaign"
LEASE_S = 10.0
# seconds at the end of a run in which nobody consumes: what the order is judged by
BACKLOG_S = 6.0


class Faults:
    """Breaks one thing at a time, and mends it."""

    def __init__(self, cluster: Cluster, chance: random.Random) -> None:
        self.cluster = cluster
        self.chance = chance
        self.done: dict[str, int] = {}
        self.kinds: dict[str, Callable[[], None]] = {
            "kill-broker": lambda: self._kill(self.cluster.brokers),
            "kill-member": lambda: self._kill(self.cluster.members),
            "stop-broker": lambda: self._stop(self.cluster.brokers),
            "stop-member": lambda: self._stop(self.cluster.members),
            "part-member": self._part_member,
            "part-broker": lambda: self._part_broker(3),
            "part-half": lambda: self._part_broker(2),
            "full-disk": self._full_disk,
        }

    def one(self, kind: str) -> None:
        self.kinds[kind]()
        self.done[kind] = self.done.get(kind, 0) + 1

    def _pause(self, low_s: float, high_s: float) -> None:
        time.sleep(self.chance.uniform(low_s, high_s))

    def _kill(self, processes: list[Process]) -> None:
        process = self.chance.choice(processes)
        process.kill()
        self._pause(2, 6)
        process.start()

    def _stop(self, processes: list[Process]) -> None:
        process = self.chance.choice(processes)
        process.send(signal.SIGSTOP)
        self._pause(2, 16)
        process.send(signal.SIGCONT)

    def _part_member(self) -> None:
        machine = self.chance.choice(self.cluster.members).machine
        others = [one for one in self.cluster.machines if one is not machine]
        machine.cut(others)
        self._pause(3, 12)
        machine.join(others)

    def _part_broker(self, count: int) -> None:
        machine = self.chance.choice(self.cluster.brokers).machine
        members = [one.machine for one in self.chance.sample(self.cluster.members, count)]
        machine.cut(members)
        self._pause(3, 14)
        machine.join(members)

    def _full_disk(self) -> None:
        number = self.chance.randrange(3)
        self.cluster.fill(number)
        self._pause(4, 8)
        self.cluster.free(number)
        if not self.cluster.members[number].runs:
            self.cluster.members[number].start()


def run(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    chance = random.Random(options.seed)
    cluster = Cluster(folder)
    try:
        cluster.wait_ready()
        faults, clients = Faults(cluster, chance), Clients(cluster)
        kinds = options.faults.split(",") if options.faults else list(faults.kinds)
        clients.declare()
        time.sleep(2)  # the other brokers have the queue within a second
        clients.start(options.publishers, options.consumers)
        begin_s = time.monotonic()
        while time.monotonic() < begin_s + options.seconds - BACKLOG_S:
            time.sleep(chance.uniform(1, 3))
            faults.one(chance.choice(kinds))
        clients.consuming.clear()
        time.sleep(BACKLOG_S)
        end_s = time.monotonic()
        clients.publishing.clear()
        ended = clients.join(60)
        time.sleep(LEASE_S + options.grace)  # what nodes that died held is back
        clients.drain(LEASE_S + options.grace, time.monotonic() + 300)
        return report(options, clients, faults, (begin_s, end_s), ended)
    finally:
        if options.keep:
            cluster.keep_logs(Path(options.keep))
        cluster.close()


def report(options: argparse.Namespace, clients: Clients, faults: Faults, span: tuple[float, float], ended: bool) -> dict[str, object]:
    found = violations(clients.sent, clients.seen, clients.drained)
    if clients.errors or not ended:
        found.append(f"clients: {clients.errors[:2] or 'one of them did not end'}")
    gaps = []
    for publisher in range(options.publishers):
        times = [one.confirmed_s for one in clients.sent if one.key[0] == publisher and one.confirmed_s is not None]
        gaps.append(round(longest_gap_s(times, *span), 1))
    if max(gaps) > LEASE_S + options.grace:
        found.append(f"a publisher had no confirm for {max(gaps)} s")
    seen = {one.key for one in clients.seen}
    return {
        "seed": options.seed,
        "seconds": options.seconds,
        "faults": faults.done,
        "sent": len(clients.sent),
        "confirmed": sum(one.confirmed_s is not None for one in clients.sent),
        "delivered": len(seen),
        "redelivered": sum(one.redelivered for one in clients.seen),
        "drained_in_order": len(clients.drained),
        "reconnects": clients.reconnects,
        "longest_without_confirm_s": gaps,
        "violations": len(found),
        "shown": found[:10],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", default="", help="kinds, with commas; all of them without it")
    parser.add_argument("--publishers", type=int, default=4)
    parser.add_argument("--consumers", type=int, default=3)
    parser.add_argument("--grace", type=float, default=5, help="seconds beyond the lease for a recovery")
    parser.add_argument("--runs", type=int, default=1, help="one after the other, with seeds from --seed on")
    parser.add_argument("--keep", default="", help="a folder for the logs of brokers and members")
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
