"""Shared queues with one owner each: on etcd of three members, PostgreSQL and the embedded engine, beside RabbitMQ's quorum queue.

    python -m bench.shared [--seconds S] [--size BYTES] [--sites etcd,postgres] [--rows owner,window-1]

in: nothing. out: one line of JSON for each row. Messages are durable and confirmed; the load generator is `flintmq perf`.

Where consumers keep up, most messages end before their row is due, and need none (docs/adr/0015, R8): the rows without consumers show what
the engine takes. `cpu_us` is the time of processors that brokers and engine took for one message, the load generator's not included;
`engine_us` the engine's part. `load` is that of the machine at the end of a row: compare rows of one run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pika

from flintmq.perf.process import tree, usage
from tests.support.etcd import etcd_cluster
from tests.support.postgres import postgres_server, standbys
from tests.support.rabbitmq_cluster import rabbitmq_cluster
from tests.support.servers import Server, Unavailable, flintmq

ROOT = Path(__file__).resolve().parents[1]
SHARED = {"x-queue-type": "shared"}
# messages that are published and not confirmed, and that a consumer may have unacked; acks are for 100 at a time
_WINDOW, _PREFETCH, _ACK = 2_000, 2_000, 100
# seconds that an idle broker is looked at, and that a killed owner's queue may take to be served again
_IDLE_S, _SERVED_S_MAX = 5.0, 60.0
_RUN_S_MAX = 300.0
Figure = dict[str, Any]


@dataclass(slots=True)
class Site:
    """Brokers on one engine. engine: pids of the engine's processes; kind: the queues' x-queue-type."""

    name: str
    ports: list[int]
    brokers: list[int] = field(default_factory=list)
    engine: list[int] = field(default_factory=list)
    kind: str = "shared"

    def cpu_s(self, roots: Sequence[int]) -> float:
        return usage([pid for root in roots for pid in tree(root)]).cpu_s


class Bench:
    """Args: options: the command line's. Each row has queues of its own."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self._number = 0

    def prefix(self) -> str:
        self._number += 1
        return f"bench-{self._number}"

    # --- the load ---------------------------------------------------------------------------------------------------------

    def perf(self, port: int, prefix: str, kind: str, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "flintmq.cli.main", "perf", "--json", "--port", str(port), "--prefix", prefix, "--keep"]
        command += ["--durable", "--persistent", "--queue-type", kind, "--size", str(self.options.size), *words]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(ROOT / "src")}
        )

    @staticmethod
    def result(process: subprocess.Popen[str]) -> Figure:
        try:
            said, complaint = process.communicate(timeout=_RUN_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            said, complaint = process.communicate()
        lines = said.strip().splitlines()
        return json.loads(lines[-1]) if lines else {"ok": False, "error": complaint.strip()[-300:] or "perf said nothing"}

    def run(self, site: Site, row: str, loads: Sequence[tuple[int, str, Sequence[str]]], **more: Any) -> Figure:
        """Load generators beside each other. Args: loads: number of the broker, prefix, words."""
        before, engine_before = site.cpu_s(site.brokers), site.cpu_s(site.engine)
        running = [self.perf(site.ports[at], prefix, site.kind, *words) for at, prefix, words in loads]
        results = [self.result(one) for one in running]
        brokers_s, engine_s = site.cpu_s(site.brokers) - before, site.cpu_s(site.engine) - engine_before
        published = sum(one.get("published", 0) for one in results)
        received = sum(one.get("received", 0) for one in results)
        figure: Figure = {"row": row, "site": site.name, "published": published, "received": received, **more}
        figure["publish_rate"] = round(sum(one.get("publish_rate", 0.0) for one in results))
        figure["end_to_end_rate"] = round(sum(one.get("end_to_end_rate", 0.0) for one in results))
        if site.brokers and published:
            figure["cpu_us"] = round((brokers_s + engine_s) / published * 1e6, 1)
            figure["engine_us"] = round(engine_s / published * 1e6, 1)
        confirms = [one["confirm_us"]["p50"] for one in results if one.get("confirm_us")]
        if confirms:
            figure["confirm_p50_ms"] = round(statistics.median(confirms) / 1000, 2)
        if errors := [one.get("error") or _faults(one) for one in results if not one.get("ok")]:
            figure["errors"] = errors
        return tell(figure)

    def words(self, *more: str, window: int = _WINDOW) -> list[str]:
        seconds = ("--time", str(self.options.seconds))
        return [*seconds, "--confirm", str(window), "--ack", str(_ACK), "--prefetch", str(_PREFETCH), "--drain-timeout", "20", *more]

    def declare(self, site: Site, at: int, prefix: str, count: int, clients: int = 1) -> None:
        """Queues that this broker owns; of several clients, each with names of its own."""
        words = ["--mode", "declare", "--queues", str(count // clients), "--pipeline", "64"]
        names = [prefix] if clients == 1 else [f"{prefix}-{number}" for number in range(clients)]
        for done in map(self.result, [self.perf(site.ports[at], name, site.kind, *words) for name in names]):
            if not done.get("ok"):
                raise Unavailable(f"queues were not declared: {done}")

    # --- rows -------------------------------------------------------------------------------------------------------------

    def one_on_owner(self, site: Site) -> None:
        self.run(site, "one queue, publisher and consumer on its owner", [(0, self.prefix(), self.words())])

    def one_elsewhere(self, site: Site) -> None:
        prefix = self.prefix()
        _declare_one(site, 0, prefix)
        self.run(site, "one queue, publisher and consumer on another node", [(1, prefix, self.words())])

    def three_queues(self, site: Site) -> None:
        self.run(site, "three brokers, a queue of each", [(at, self.prefix(), self.words()) for at in range(3)])

    def one_by_three(self, site: Site) -> None:
        """Publishers on all brokers, then consumers on all: a load generator knows only what it published itself."""
        prefix = self.prefix()
        for at in range(3):
            _declare_one(site, at, prefix)
        publish = self.words("--mode", "publish")
        figure = self.run(site, "one queue, publishers on three brokers", [(at, prefix, publish) for at in range(3)])
        take = ["--mode", "consume", "--count", str(max(1, figure["published"] // 3 - _PREFETCH)), "--ack", str(_ACK)]
        take += ["--prefetch", str(_PREFETCH), "--drain-timeout", "5"]
        began = time.monotonic()
        processes = [self.perf(site.ports[at], prefix, site.kind, *take) for at in range(3)]
        results = [self.result(one) for one in processes]
        received = sum(one.get("received", 0) for one in results)
        rate = sum(one.get("receive_rate", 0.0) for one in results)
        row = "one queue, consumers on three brokers"
        tell(
            {"row": row, "site": site.name, "received": received, "receive_rate": round(rate), "all_s": round(time.monotonic() - began, 1)}
        )

    def window_of_one(self, site: Site) -> None:
        self.run(site, "confirm window 1", [(0, self.prefix(), self.words(window=1))])

    def many_consumers(self, site: Site) -> None:
        words = self.words("--consumers", "64", "--producers", "4")
        words[words.index("--prefetch") + 1] = "200"
        self.run(site, "64 consumers", [(0, self.prefix(), words)])

    def many_queues(self, site: Site) -> None:
        prefix = self.prefix()
        self.declare(site, 0, prefix, 100)
        self.run(site, "100 queues", [(0, prefix, self.words("--queues", "100", "--producers", "4"))])

    def idle_beside(self, site: Site) -> None:
        self.declare(site, 0, self.prefix(), 100)
        before = site.cpu_s([*site.brokers, *site.engine])
        time.sleep(_IDLE_S)
        cores = (site.cpu_s([*site.brokers, *site.engine]) - before) / _IDLE_S
        words = self.words(window=1)
        self.run(site, "confirm window 1, 100 idle queues", [(0, self.prefix(), words)], idle_cores=round(cores, 3))

    def idle_many(self, site: Site) -> None:
        """Of one broker, before and after it has so many queues that nothing happens to."""
        count = self.options.idle
        for queues in (0, count):
            began = time.monotonic()
            if queues:
                self.declare(site, 0, self.prefix(), queues, clients=8)
            declared_s = time.monotonic() - began
            time.sleep(_IDLE_S / 2)  # what follows a declaration is over
            words = self.words(window=1)
            broker, engine = site.cpu_s(site.brokers), site.cpu_s(site.engine)
            time.sleep(_IDLE_S)
            cores = [(site.cpu_s(roots) - before) / _IDLE_S for roots, before in ((site.brokers, broker), (site.engine, engine))]
            more = {"idle_cores": round(cores[0], 3), "engine_cores": round(cores[1], 3), "declared_s": round(declared_s, 1)}
            self.run(site, f"confirm window 1, {queues} idle queues", [(0, self.prefix(), words)], **more)

    def publish_only(self, site: Site) -> None:
        self.run(site, "publish only", [(0, self.prefix(), self.words("--mode", "publish"))])

    def owner_killed(self, site: Site) -> None:
        """The last row of a site: a broker is gone afterwards."""
        prefix = self.prefix()
        for at in (0, 1):
            _declare_one(site, at, prefix)
        with _connection(site.ports[1]) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.basic_publish("", _queue(prefix), b"before", pika.BasicProperties(delivery_mode=2))
            os.killpg(site.brokers[0], 9)
            began = time.monotonic()
            while True:
                with contextlib.suppress(pika.exceptions.NackError):
                    channel.basic_publish("", _queue(prefix), b"after", pika.BasicProperties(delivery_mode=2))
                    break
                if time.monotonic() - began > _SERVED_S_MAX:
                    break
                connection.sleep(0.02)
            tell({"row": "owner killed: until a confirm of another node", "site": site.name, "s": round(time.monotonic() - began, 2)})


def _queue(prefix: str) -> str:
    return f"{prefix}.q00000"


def _connection(port: int) -> Any:
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, heartbeat=0))


def _declare_one(site: Site, at: int, prefix: str) -> None:
    """The first broker that declares a queue owns it."""
    with _connection(site.ports[at]) as connection:
        connection.channel().queue_declare(_queue(prefix), durable=True, arguments={"x-queue-type": site.kind})


def _faults(result: Figure) -> str:
    return ", ".join(f"{result[name]} {name}" for name in ("lost", "duplicates", "disordered", "nacked", "unconfirmed") if result.get(name))


def tell(figure: Figure) -> Figure:
    print(json.dumps({**figure, "load": round(os.getloadavg()[0], 1)}), flush=True)
    return figure


# --- sites ------------------------------------------------------------------------------------------------------------
def _brokers(stack: contextlib.ExitStack, count: int, *words: str) -> list[Server]:
    """Each with a directory of its own; node-N of the cluster when `words` name one."""
    servers = []
    for number in range(count):
        place = stack.enter_context(tempfile.TemporaryDirectory(prefix="flintmq-bench-"))
        name = ["--node-name", f"node-{number}"] if "--cluster" in words else []
        options = ["--http-port", "off", "--flight-port", "off", "--data-dir", place, *words, *name]
        # until it is the only form
        servers.append(stack.enter_context(flintmq(*options)))
    return servers


@contextlib.contextmanager
def on_etcd() -> Iterator[Site]:
    with etcd_cluster(3) as cluster, contextlib.ExitStack() as stack:
        url = "etcd://" + ",".join(one.removeprefix("http://") for one in cluster.endpoints)
        servers = _brokers(stack, 3, "--cluster", url)
        members = [one.pid for one in cluster.processes if one is not None]
        yield Site("etcd, 3 members", [one.port for one in servers], [one.pid for one in servers], members)


# a broker that may have more shared queues than the limit allows
_MANY = """
import signal, sys
from flintmq.testing.broker import Broker
limits = {"shared_queues_max": 100_000, "shared_vhost_queues_max": 100_000}
with Broker(limits=limits, store_dir=sys.argv[1], cluster=sys.argv[2], node_name="many") as broker:
    print(broker.port, flush=True)
    signal.sigwait({signal.SIGTERM})
"""


@contextlib.contextmanager
def with_many() -> Iterator[Site]:
    with etcd_cluster(3) as cluster, tempfile.TemporaryDirectory(prefix="flintmq-bench-") as place:
        url = "etcd://" + ",".join(one.removeprefix("http://") for one in cluster.endpoints)
        process = subprocess.Popen([sys.executable, "-c", _MANY, place, url], stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            members = [one.pid for one in cluster.processes if one is not None]
            yield Site("etcd, 3 members; one broker", [port], [process.pid], members)
        finally:
            process.kill()
            process.wait()


@contextlib.contextmanager
def on_postgres() -> Iterator[Site]:
    with postgres_server() as server, standbys(server, 2) as others, contextlib.ExitStack() as stack:
        servers = _brokers(stack, 3, "--cluster", server.url())
        pids = [server.pid, *others]
        yield Site("PostgreSQL, 2 synchronous standbys", [one.port for one in servers], [one.pid for one in servers], pids)


@contextlib.contextmanager
def embedded() -> Iterator[Site]:
    with contextlib.ExitStack() as stack:
        servers = _brokers(stack, 1)
        yield Site("embedded", [one.port for one in servers], [one.pid for one in servers])


@contextlib.contextmanager
def on_rabbitmq() -> Iterator[Site]:
    with rabbitmq_cluster(3) as ports:
        yield Site("RabbitMQ, quorum queue of 3", ports, kind="quorum")


Row = Callable[[Bench, Site], None]
CLUSTER: dict[str, Row] = {
    "publish": Bench.publish_only,
    "owner": Bench.one_on_owner,
    "elsewhere": Bench.one_elsewhere,
    "three": Bench.three_queues,
    "by-three": Bench.one_by_three,
    "window-1": Bench.window_of_one,
    "consumers": Bench.many_consumers,
    "queues": Bench.many_queues,
    "idle": Bench.idle_beside,
    "killed": Bench.owner_killed,
}
SITES: dict[str, tuple[Callable[[], contextlib.AbstractContextManager[Site]], dict[str, Row]]] = {
    "etcd": (on_etcd, CLUSTER),
    "many": (with_many, {"idle-many": Bench.idle_many}),
    "postgres": (on_postgres, CLUSTER),
    "embedded": (embedded, {"publish": Bench.publish_only, "owner": Bench.one_on_owner, "window-1": Bench.window_of_one}),
    "rabbitmq": (on_rabbitmq, {name: row for name, row in CLUSTER.items() if name not in ("idle", "killed")}),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5, help="of publishing in each row")
    parser.add_argument("--size", type=int, default=256, help="bytes of a body")
    parser.add_argument("--idle", type=int, default=10_000, help="idle queues of the row idle-many")
    parser.add_argument("--sites", default=",".join(SITES), help="with commas")
    parser.add_argument("--rows", default="", help="with commas; all of them without it")
    options = parser.parse_args()
    bench = Bench(options)
    rows = options.rows.split(",") if options.rows else None
    failed = False
    for name in options.sites.split(","):
        begin, table = SITES[name]
        try:
            with begin() as site:
                for row, measure in table.items():
                    if rows is None or row in rows:
                        measure(bench, site)
        except Unavailable as error:
            print(f"{name}: {error}", file=sys.stderr)
            failed = True
    return 69 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
