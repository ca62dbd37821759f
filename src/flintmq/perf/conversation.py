"""The workloads without a stream of messages: churn (short connections) and declare (many idle queues).

in: checked `Options`. out: one dictionary per run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

from flintmq.perf import report, wire
from flintmq.perf.caller import NUMBER, Caller
from flintmq.perf.options import Options
from flintmq.perf.process import Watch
from flintmq.perf.traffic import Progress

# seconds over which the CPU of the broker with idle queues is measured
IDLE_S = 2.0
Step = tuple[bytes, int, int, bool]


def churn_steps(options: Options, channel_max: int, frame_max: int) -> list[Step]:
    """Connect, open, declare an exclusive queue, publish one message, get it, close. A get that comes too early is repeated."""
    number = NUMBER.decode()
    queue = f"{options.prefix}.c{number}"
    publish = wire.publish_method("", queue) + wire.content(NUMBER, frame_max=frame_max, persistent=options.persistent)
    return [
        (wire.PROTOCOL_HEADER, wire.CONNECTION_START, 0, False),
        (wire.start_ok(options.user, options.password), wire.CONNECTION_TUNE, 0, False),
        (wire.tune_ok(channel_max, frame_max), 0, 0, False),
        (wire.connection_open(options.vhost), wire.CONNECTION_OPEN_OK, 0, False),
        (wire.channel_open(), wire.CHANNEL_OPEN_OK, 0, False),
        (wire.queue_declare(queue, exclusive=True), wire.QUEUE_DECLARE_OK, 0, False),
        (publish, 0, 0, False),
        (wire.basic_get(queue), wire.BASIC_GET_OK, wire.BASIC_GET_EMPTY, True),
        (wire.connection_close(), wire.CONNECTION_CLOSE_OK, 0, False),
    ]


def _wait(threads: list[threading.Thread], callers: list[Caller], progress: Progress | None) -> None:
    began = reported_s = time.monotonic()
    try:
        while any(thread.is_alive() for thread in threads):
            threads[0].join(0.05)
            if not threads[0].is_alive():
                for thread in threads:
                    thread.join(0.05)
            if progress and time.monotonic() - reported_s > 0.5:
                reported_s = time.monotonic()
                done = sum(caller.counts()["done"] for caller in callers)
                progress(reported_s - began, done, done)
    finally:
        for caller in callers:
            caller.stop()
        for thread in threads:
            thread.join()


def churn(options: Options, progress: Progress | None = None) -> dict[str, Any]:
    """`clients` threads repeat the conversation for `time_s` seconds or `count` cycles. Raises: BrokerError."""
    probe = wire.Client(options.host, options.port, options.user, options.password, options.vhost)
    steps = churn_steps(options, probe.channel_max, probe.frame_max)
    address = probe.socket.getpeername()[0]
    probe.close()
    if ":" in address:
        raise wire.BrokerError("--mode churn needs an IPv4 address: give --host 127.0.0.1")
    watch = Watch(options.pid) if options.pid else None
    generator = time.process_time()
    start_ns = time.monotonic_ns()
    end_ns = start_ns + int((options.time_s or options.max_time_s) * 1e9)
    callers, threads = [], []
    for number in range(options.clients):
        share = options.count // options.clients + (number < options.count % options.clients)
        if options.count and not share:
            continue
        caller = Caller(address, options.port, steps)
        callers.append(caller)
        threads.append(threading.Thread(target=caller.run, args=(number, options.clients, share, end_ns), name="perf-churn", daemon=True))
    for thread in threads:
        thread.start()
    _wait(threads, callers, progress)
    done = sum(caller.counts()["done"] for caller in callers)
    failures = sum(caller.counts()["failures"] for caller in callers)
    last_ns = max(caller.counts()["last_ns"] for caller in callers)
    result: dict[str, Any] = {
        "mode": "churn",
        "ok": done > 0 and not failures,
        "cycles": done,
        "failures": failures,
        "cycle_rate": report.rate(done, start_ns, last_ns),
        "cycle_us": report.microseconds(report.merge(caller.histogram() for caller in callers)),
        "generator_cpu_s": round(time.process_time() - generator, 3),
    }
    if error := next(filter(None, (caller.error for caller in callers)), None):
        result["error"] = error
    if watch:
        after = watch.stop()
        cpu = after.cpu_s - watch.start.cpu_s
        result["broker"] = {
            "cpu_s": round(cpu, 3),
            "cpu_ms_per_cycle": round(cpu / done * 1000, 4) if done else None,
            "rss_start": watch.start.rss,
            "rss_end": after.rss,
            "rss_peak": watch.peak,
        }
    return result


def _series(options: Options, client: wire.Client, step: Step, progress: Progress | None) -> Caller:
    """One step on one connection, `queues` times."""
    client.socket.settimeout(None)
    client.socket.setblocking(True)
    caller = Caller("", 0, [step], client.socket.fileno())
    end_ns = time.monotonic_ns() + int(options.max_time_s * 1e9)
    thread = threading.Thread(target=caller.run, args=(0, 1, options.queues, end_ns), name="perf-declare", daemon=True)
    thread.start()
    _wait([thread], [caller], progress)
    return caller


def _pipelined(options: Options, client: wire.Client, arguments: Mapping[str, object] | None) -> dict[str, Any]:
    """Declares with up to `pipeline` of them unanswered on one connection. Figures as `_series` gives them. Raises: BrokerError."""
    frames = [
        wire.queue_declare(f"{options.prefix}.q{number:010d}", durable=options.durable, arguments=arguments)
        for number in range(options.queues)
    ]
    sent_ns: list[int] = []
    spans: list[int] = []
    first_ns = time.monotonic_ns()
    end_ns = first_ns + int(options.max_time_s * 1e9)
    while len(spans) < len(frames) and time.monotonic_ns() < end_ns:
        # Topped up by halves: one call for many frames, and never an empty pipe.
        if len(sent_ns) < len(frames) and len(sent_ns) - len(spans) <= options.pipeline // 2:
            upto = min(len(frames), len(spans) + options.pipeline)
            batch = frames[len(sent_ns) : upto]
            sent_ns += [time.monotonic_ns()] * len(batch)
            client.send(b"".join(batch))
        client.wait_for(wire.QUEUE_DECLARE_OK)
        spans.append(time.monotonic_ns() - sent_ns[len(spans)])
    last_ns = time.monotonic_ns()
    spans.sort()
    percentiles = {name: round(spans[min(len(spans) - 1, int(len(spans) * share))] / 1000, 2) for name, share in report.PERCENTILES.items()}
    percentiles |= {"mean": round(sum(spans) / len(spans) / 1000, 2), "max": round(spans[-1] / 1000, 2), "n": len(spans)}
    return {"done": len(spans), "first_ns": first_ns, "last_ns": last_ns, "declare_us": percentiles}


def declare(options: Options, progress: Progress | None = None) -> dict[str, Any]:
    """Declares `queues` queues one after the other, watches the broker idle with them, deletes them. Raises: BrokerError."""
    client = wire.Client(options.host, options.port, options.user, options.password, options.vhost)
    name = f"{options.prefix}.q{NUMBER.decode()}"
    arguments = {"x-queue-type": options.queue_type} if options.queue_type else None
    step = (wire.queue_declare(name, durable=options.durable, arguments=arguments), wire.QUEUE_DECLARE_OK, 0, False)
    watch = Watch(options.pid) if options.pid else None
    error: str | None = None
    counts: dict[str, Any]
    if options.pipeline > 1:
        counts = _pipelined(options, client, arguments)
    else:
        caller = _series(options, client, step, progress)
        error = caller.error
        counts = caller.counts() | {"declare_us": report.microseconds(caller.histogram())}
    done = counts["done"]
    result: dict[str, Any] = {
        "mode": "declare",
        "ok": done == options.queues,
        "queues": done,
        "declare_rate": report.rate(done, counts["first_ns"], counts["last_ns"]),
        "declare_us": counts["declare_us"],
    }
    if error:
        result["error"] = error
    if watch:
        time.sleep(options.settle_s)
        full = watch.now()
        time.sleep(IDLE_S)
        after = watch.stop()
        result["broker"] = {
            "cpu_s": round(full.cpu_s - watch.start.cpu_s, 3),
            "rss_start": watch.start.rss,
            "rss_end": full.rss,
            "rss_peak": watch.peak,
            "bytes_per_queue": round((full.rss - watch.start.rss) / done, 1) if done else None,
            "idle_cores": round((after.cpu_s - full.cpu_s) / IDLE_S, 4),
        }
    if not options.keep and done:
        removal = _series(options, client, (wire.queue_delete(name), wire.QUEUE_DELETE_OK, 0, False), progress).counts()
        result["delete_rate"] = report.rate(removal["done"], removal["first_ns"], removal["last_ns"])
    client.close()
    return result
