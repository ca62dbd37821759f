"""How a workload is run: `flintmq perf` alone, or with what only the bench can see (the disk, the store's files, a kill and a restart).

in: a workload, a broker. out: perf's result with more keys; a runner is chosen by `Workload.runner`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench import append, disk
from bench.brokers import FLINTMQ, RESTART_S_MAX, Broker
from bench.workloads import Result, Workload
from tests.support.servers import Server

ROOT = Path(__file__).resolve().parents[1]
# seconds of the disk's own figure, before and after the run that is compared with it
PROBE_S = 0.75
# bytes of one write of it: what a confirm of one small message costs at least
PROBE_SIZE = 4096


def perf(server: Server, arguments: Sequence[str], timeout_s: float) -> Result:
    """One run of `flintmq perf` against a broker. Never raises: what went wrong is in `error`."""
    command = [sys.executable, "-m", "flintmq.cli.main", "perf", "--json", "--port", str(server.port), "--pid", str(server.pid), *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        return {"ok": False, "error": f"not done after {timeout_s:.0f} s"}
    lines = done.stdout.strip().splitlines()
    if not lines:
        return {"ok": False, "error": done.stderr.strip()[-300:] or "perf said nothing"}
    result: Result = json.loads(lines[-1])
    return result


def plain(workload: Workload, broker: Broker, arguments: Sequence[str]) -> Result:
    """perf alone."""
    return perf(broker.server(fresh=workload.fresh, durable=workload.durable), arguments, workload.timeout_s)


def with_disk(workload: Workload, broker: Broker, arguments: Sequence[str]) -> Result:
    """perf between two measurements of what one write and one sync cost on the same file system: `disk` is their mean."""
    server = broker.server(fresh=workload.fresh, durable=workload.durable)
    assert broker.directory is not None
    before = disk.synced_writes(broker.directory, PROBE_SIZE, seconds=PROBE_S)
    result = perf(server, arguments, workload.timeout_s)
    after = disk.synced_writes(broker.directory, PROBE_SIZE, seconds=PROBE_S)
    result["disk"] = {"rate": (before["rate"] + after["rate"]) / 2, "before": before, "after": after}
    return result


def with_written(workload: Workload, broker: Broker, arguments: Sequence[str]) -> Result:
    """perf, and the bytes that the disk under the broker wrote meanwhile (whoever wrote: for a quiet machine)."""
    server = broker.server(fresh=workload.fresh, durable=workload.durable)
    assert broker.directory is not None
    os.sync()
    before = disk.written_bytes(broker.directory)
    result = perf(server, arguments, workload.timeout_s)
    os.sync()
    after = disk.written_bytes(broker.directory)
    result["disk_written"] = after - before if before is not None and after is not None else None
    return result


def store_size(workload: Workload, broker: Broker, arguments: Sequence[str]) -> Result:
    """Publishes and leaves the backlog, reads the size of the log, then consumes all of it: `publish`, `consume`, `log_bytes`, `count`."""
    server = broker.server(fresh=True, durable=True)
    count = int(arguments[arguments.index("--count") + 1])
    common = ("--prefix", "b", "--durable", *arguments)
    published = perf(server, ("--mode", "publish", "--persistent", "--keep", "--settle", "2", *common), workload.timeout_s)
    result = {**published, "mode": "store-size", "count": count}
    if broker.name == FLINTMQ:
        result["log_bytes"], result["log_containers"] = disk.folder_bytes(broker.store / "messages", ".flog")
    if not published["ok"]:
        return result
    consumed = perf(server, ("--mode", "consume", "--ack", "1000", "--prefetch", "5000", *common), workload.timeout_s)
    result["consume"] = consumed
    result["ok"] = published["ok"] and consumed["ok"]
    if not consumed["ok"]:
        result["error"] = f"consume: {consumed.get('error') or 'the check'}"
    return result


def restart(workload: Workload, broker: Broker, arguments: Sequence[str]) -> Result:
    """Publishes with confirms, kills the broker, starts it again: seconds from then to the first and to the last delivery.

    The consumer is in this process, all of it loaded before: a generator that starts beside the broker would be part of the figure.
    """
    from flintmq.perf.options import Options
    from flintmq.perf.traffic import Traffic
    from flintmq.perf.wire import BrokerError

    server = broker.server(fresh=True, durable=True)
    count = int(arguments[arguments.index("--count") + 1])
    size = int(arguments[arguments.index("--size") + 1])
    publishing = ("--mode", "publish", "--prefix", "b", "--durable", "--persistent", "--confirm", "1000", "--keep", "--settle", "0.5")
    published = perf(server, (*publishing, "--drain-timeout", "30", *arguments), workload.timeout_s)
    if not published["ok"]:
        return published | {"error": f"publish: {published.get('error') or 'the check'}"}
    broker.kill()
    options = Options(
        port=server.port, mode="consume", prefix="b", durable=True, size=size, count=count, ack=100, prefetch=1000, keep=True,
        connect_retry_s=RESTART_S_MAX, drain_timeout_s=60.0, max_time_s=workload.timeout_s,
    ).check()  # fmt: skip
    traffic = Traffic(options)
    before_ns, starting = broker.restart()
    try:
        result = traffic.execute()
    except BrokerError as error:
        result = {"ok": False, "error": f"consume: {error}"}
    starting.join(RESTART_S_MAX)
    if "first_delivery_s" in result:
        late_s = (traffic.began_ns - before_ns) / 1e9
        result["restart_first_s"] = round(result["first_delivery_s"] + late_s, 4)
        result["restart_all_s"] = round(result["last_delivery_s"] + late_s, 4)
    result["publish_rate"] = published["publish_rate"]
    broker.stop()
    return result


def ceiling(workload: Workload, broker: Broker, arguments: Sequence[str]) -> Result:
    """The log without a broker, against the disk without a log."""
    from bench.brokers import disk_directory

    return append.measure(disk_directory(), total=int(arguments[0]), record=int(arguments[1]))


RUNNERS: dict[str, Callable[[Workload, Broker, Sequence[str]], Result]] = {
    "perf": plain,
    "disk": with_disk,
    "written": with_written,
    "store-size": store_size,
    "restart": restart,
    "append": ceiling,
}


def busy_s() -> float:
    """Seconds of CPU that the whole machine has used."""
    ticks = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


def measure(workload: Workload, broker: Broker, *, quick: bool, arguments: Sequence[str] = ()) -> dict[str, Any]:
    """One run: its result, and how many cores everything else used meanwhile (the noise). `arguments` replace the workload's."""
    given = tuple(arguments) or (workload.quick if quick else workload.arguments)
    if workload.needs_broker:
        broker.server(fresh=workload.fresh, durable=workload.durable)
    began, busy, own = time.monotonic(), busy_s(), os.times()
    result = RUNNERS[workload.runner](workload, broker, given)
    elapsed, after = time.monotonic() - began, os.times()
    ours = sum(getattr(after, name) - getattr(own, name) for name in ("user", "system", "children_user", "children_system"))
    other = busy_s() - busy - ours - result.get("broker", {}).get("cpu_s", 0.0)
    if not result.get("ok"):
        broker.stop()  # what is left of a failed run would disturb the next
    return {
        "result": result,
        "elapsed_s": round(elapsed, 2),
        "other_cores": round(max(0.0, other) / max(elapsed, 1e-9), 2),
        "arguments": given,
    }
