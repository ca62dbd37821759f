"""The workloads that move messages: run, publish, consume, backlog, latency.

in: checked `Options`. out: one dictionary per run (see docs/PERFORMANCE.md for the fields), with the verdict of the check.

The control connection declares, watches depths and deletes; producers and consumers have a connection each and are run by two
compiled workers, one thread each (one in all with `same_conn`).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from flintmq.perf import report, wire
from flintmq.perf.generator import Worker
from flintmq.perf.options import Options
from flintmq.perf.process import Watch

# seconds between two looks of the main thread at the workers
LOOK_S = 0.005
# seconds between two attempts to reach a broker that is starting
RETRY_S = 0.002
# Called with seconds since the start, messages published and received so far.
Progress = Callable[[float, int, int], None]


@dataclass(frozen=True, slots=True)
class Message:
    """A publish as wire bytes, and the offsets of its patched fields (0: not patched)."""

    data: bytes
    body_at: int
    tail_at: int
    key_at: int
    unique_at: int


def queue_name(options: Options, number: int) -> str:
    return f"{options.prefix}.q{number:05d}"


def routing_key(options: Options, key: int) -> str:
    """The key of fixed width that leads to queue `key % queues`; with random keys its last word differs in every message."""
    if options.exchange == "default":
        return queue_name(options, key)
    if options.random_keys:
        return f"a.rk{key:05d}.{0:010d}"
    return f"a.rk{key:05d}.x" if options.exchange == "topic" else f"rk{key:05d}"


def binding_key(options: Options, key: int) -> str:
    """Matches routing key number `key` and no other. Topics take turns between a plain key and both wildcards."""
    if options.exchange != "topic":
        return routing_key(options, key)
    last = "*" if options.random_keys else "x"
    return (f"a.rk{key:05d}.{last}", f"*.rk{key:05d}.{last}", f"a.rk{key:05d}.#")[key // options.queues % 3]


def build_message(options: Options, key: int, frame_max: int) -> Message:
    """The template of one producer's messages."""
    exchange = "" if options.exchange == "default" else f"{options.prefix}.x"
    text = routing_key(options, key)
    method = wire.publish_method(exchange, text)
    text_at = len(method) - 2 - len(text)  # before it ends: the bits' octet and the frame end
    headers = {"k": f"{key:05d}"} if options.exchange == "headers" else None
    body = bytes(index % 251 for index in range(min(options.size, 251))) * (options.size // 251 + 1)
    content = wire.content(body[: options.size], frame_max=frame_max, persistent=options.persistent, headers=headers)
    header_size = int.from_bytes(content[3:7], "big") + 8
    key_at = text_at + text.rindex(f"{key:05d}", 0, len(text) - 11 if options.random_keys else len(text))
    if headers:
        key_at = len(method) + content.index(f"{key:05d}".encode())
    data = method + content
    return Message(
        data=data,
        body_at=len(method) + header_size + 7,
        tail_at=len(data) - 9 if options.size >= 24 else 0,
        key_at=key_at,
        unique_at=text_at + len(text) - 10 if options.random_keys else 0,
    )


class Traffic:
    """One run against one broker. Use `execute`; the parts are separate for reading."""

    def __init__(self, options: Options, progress: Progress | None = None) -> None:
        self.options = options
        self.progress = progress
        self.control: wire.Client | None = None
        self.clients: list[wire.Client] = []
        self.threads: list[threading.Thread] = []
        self.workers: list[Worker] = []
        self.consuming = options.mode in ("run", "consume", "backlog", "latency")
        self.publishing = options.mode != "consume"
        self.staged = options.mode == "backlog"
        self.error: str | None = None
        self.began_ns = 0

    # --- set-up -------------------------------------------------------------------------------------------------------
    def connect(self) -> wire.Client:
        o = self.options
        return wire.Client(o.host, o.port, o.user, o.password, o.vhost)

    def reach(self) -> wire.Client:
        """The first connection: tried again for `connect_retry_s`, for a broker that is starting. Raises: BrokerError."""
        end = time.monotonic() + self.options.connect_retry_s
        while True:
            try:
                return self.connect()
            except wire.BrokerError:
                if time.monotonic() >= end:
                    raise
            time.sleep(RETRY_S)

    def topology(self) -> None:
        assert self.control is not None
        o = self.options
        arguments = {"x-queue-type": o.queue_type} if o.queue_type else None
        exchange = f"{o.prefix}.x"
        if o.exchange != "default":
            self.control.declare_exchange(exchange, o.exchange, durable=o.durable)
        for number in range(o.queues):
            self.control.declare_queue(queue_name(o, number), durable=o.durable, arguments=arguments)
        if o.exchange == "fanout":
            for number in range(o.queues):
                self.control.bind(queue_name(o, number), exchange, "")
        elif o.exchange != "default":
            for key in range(o.keys):
                match = {"x-match": "all", "k": f"{key:05d}"} if o.exchange == "headers" else None
                self.control.bind(queue_name(o, key % o.queues), exchange, binding_key(o, key), match)

    def cleanup(self) -> None:
        """Deletes what this run declared; never raises."""
        for client in self.clients:
            client.socket.close()
        if self.control is None:
            return
        if not self.options.keep:
            with contextlib.suppress(wire.BrokerError):
                for number in range(self.options.queues):
                    self.control.delete_queue(queue_name(self.options, number))
                if self.options.exchange != "default":
                    self.control.delete_exchange(f"{self.options.prefix}.x")
        self.control.close()

    def worker(self) -> Worker:
        o = self.options
        made = Worker(o.queues, o.producers, o.keys, o.exchange == "fanout")
        self.workers.append(made)
        return made

    def publisher(self, number: int, frame_max: int, start_ns: int) -> dict[str, object]:
        """What a worker must know of producer `number`. Rates are shared out, and the starts spread over one interval."""
        o = self.options
        rotates = o.keys > o.producers
        key = number % o.keys
        message = build_message(o, key, frame_max)
        interval = o.producers / o.rate * 1e9 if o.rate else 0.0
        quota = o.count // o.producers + (number < o.count % o.producers) if o.count else 2**32 - 1
        return {
            "message": message.data,
            "body_at": message.body_at,
            "tail_at": message.tail_at,
            "key_at": message.key_at if rotates else 0,
            "unique_at": message.unique_at,
            "producer": number,
            "key": key,
            "rotates": rotates,
            "batch": max(1, o.batch_bytes // len(message.data)),
            "quota": quota,
            "interval_ns": interval,
            "start_ns": start_ns + int(interval * number / o.producers),
            "window": o.confirm,
        }

    def add_consumers(self, worker: Worker, clients: list[wire.Client]) -> None:
        o = self.options
        for number, client in enumerate(clients):
            queue = number % o.queues
            client.consume(queue_name(o, queue), autoack=o.ack == 0, prefetch=o.prefetch)
            fd, rest = client.release()
            worker.add(fd, rest, None, {"queue": queue, "ack_every": o.ack})

    def start(self, worker: Worker, end_ns: int) -> threading.Thread:
        thread = threading.Thread(target=worker.run, args=(end_ns,), name="perf-worker", daemon=True)
        thread.start()
        self.threads.append(thread)
        return thread

    # --- the run ------------------------------------------------------------------------------------------------------
    def execute(self) -> dict[str, Any]:
        """Raises: BrokerError when the broker is not reachable or refuses the set-up."""
        watch: Watch | None = None
        try:
            self.began_ns = time.monotonic_ns()
            self.control = self.reach()
            began = time.monotonic()
            self.topology()
            if self.options.pid:
                watch = Watch(self.options.pid)
            result = self._run(watch)
            result["total_s"] = round(time.monotonic() - began, 3)
            return result
        finally:
            for worker in self.workers:
                worker.stop()
            for thread in self.threads:
                thread.join()
            if watch:
                watch.stop()
            self.cleanup()

    def _run(self, watch: Watch | None) -> dict[str, Any]:
        o = self.options
        producers = [self.connect() for _ in range(o.producers)] if self.publishing else []
        self.clients += producers
        consumers: list[wire.Client] = []
        if self.consuming and not o.same_conn:
            consumers = [self.connect() for _ in range(o.consumer_count)]
            self.clients += consumers
        if o.confirm:
            for client in producers:
                client.confirm_select()
        cpu_of_generator = time.process_time()
        before = watch.now() if watch else None
        start_ns = time.monotonic_ns()
        out = self.worker() if self.publishing else None
        into = out if o.same_conn else self.worker() if self.consuming else None
        if into is not None and into is not out and not self.staged:
            self.add_consumers(into, consumers)
            self.start(into, 0)
        if out is not None:
            if o.same_conn:
                for number, client in enumerate(producers):
                    client.consume(queue_name(o, number % o.queues), autoack=o.ack == 0, prefetch=o.prefetch)
            origin = time.monotonic_ns() + 1_000_000
            for number, client in enumerate(producers):
                fd, rest = client.release()
                reads = {"queue": number % o.queues, "ack_every": o.ack} if o.same_conn else None
                out.add(fd, rest, self.publisher(number, client.frame_max, origin), reads)
            start_ns = time.monotonic_ns()
            self.start(out, start_ns + int(o.time_s * 1e9) if o.time_s else 0)
        hard_end = time.monotonic() + o.max_time_s + o.time_s
        extra: dict[str, Any] = {}
        if out is not None:
            self._wait_published(start_ns, hard_end)
            if o.mode in ("publish", "backlog") and not self.error:
                extra |= self._settle(out, producers, watch)
        drain_ns = time.monotonic_ns()
        if self.staged and into is not None and not self.error:
            self.add_consumers(into, consumers)
            self.start(into, 0)
        if into is not None and not self.error:
            self._wait_received(start_ns, hard_end)
        after = watch.now() if watch else None
        generator = time.process_time() - cpu_of_generator
        for worker in self.workers:
            worker.stop()
        for thread in self.threads:
            thread.join()
        result = self._result(start_ns, drain_ns, extra)
        result["generator_cpu_s"] = round(generator, 3)
        if watch and before and after:
            result["broker"] = report.broker_figures(
                before, after, watch.peak, published=result["published"] or result["received"], delivered=result["received"]
            )
            result["broker"] |= extra.get("broker", {})
        return result

    def _looks(self, start_ns: int) -> Iterator[dict[str, int]]:
        """The workers' sums, again and again, until one fails; tells the progress."""
        reported_s = 0.0
        while True:
            sums = self.sums()
            yield sums
            for worker in self.workers:
                if worker.error and not self.error:
                    self.error = worker.error
            if self.error:
                return
            elapsed = (time.monotonic_ns() - start_ns) / 1e9
            if self.progress and elapsed - reported_s > 0.5:
                reported_s = elapsed
                self.progress(elapsed, sums["published"], sums["received"])
            time.sleep(LOOK_S)

    def sums(self) -> dict[str, int]:
        total: dict[str, int] = {}
        for worker in self.workers:
            for name, value in worker.counts().items():
                if name in ("first_ns", "first_in_ns"):
                    total[name] = min(filter(None, (total.get(name, 0), value)), default=0)
                elif name in ("last_ns", "last_in_ns"):
                    total[name] = max(total.get(name, 0), value)
                else:
                    total[name] = total.get(name, 0) + value
        return total

    def _wait_published(self, start_ns: int, hard_end: float) -> None:
        """Until every producer is done and every message is confirmed, or nothing moves any more."""
        moved = (-1, -1)
        moved_at = time.monotonic()
        for sums in self._looks(start_ns):
            settled = sums["confirmed"] + sums["nacked"]
            if not sums["publishing"] and (not self.options.confirm or settled >= sums["published"]):
                return
            now = time.monotonic()
            if moved != (sums["published"], settled):
                moved, moved_at = (sums["published"], settled), now
            if now > hard_end or (now - moved_at > self.options.drain_timeout_s and self.options.rate == 0):
                for worker in self.workers:
                    worker.end_publishing()
                return

    def _wait_received(self, start_ns: int, hard_end: float) -> None:
        """Until all that was published came back, or nothing comes any more."""
        o = self.options
        moved, moved_at = -1, time.monotonic()
        for sums in self._looks(start_ns):
            expected = o.count if not self.publishing else sums["published"] * (o.queues if o.exchange == "fanout" else 1)
            now = time.monotonic()
            if sums["received"] != moved:
                moved, moved_at = sums["received"], now
            # different ones: a legal redelivery must not stand for a message that is still on its way
            if sums["distinct"] >= expected or now > hard_end or now - moved_at > o.drain_timeout_s:
                break
        time.sleep(0.05)  # a duplicate would still come; the last acknowledgements leave

    def _settle(self, out: Worker, producers: list[wire.Client], watch: Watch | None) -> dict[str, Any]:
        """After the last publish: everything is in the broker when it answers a declare on the same channel."""
        o = self.options
        assert self.control is not None
        out.stop()
        self.threads[0].join()
        for number, client in enumerate(producers):
            client.take_back(out.rest(number))
            client.declare_queue(queue_name(o, 0), durable=o.durable, passive=True)
        in_ns = time.monotonic_ns()
        wanted = self.sums()["published"] * (o.queues if o.exchange == "fanout" else 1)
        depth = -1
        patience = time.monotonic() + o.drain_timeout_s
        while time.monotonic() < patience:
            seen = sum(self.control.declare_queue(queue_name(o, number), durable=o.durable, passive=True) for number in range(o.queues))
            if seen != depth:
                depth, patience = seen, time.monotonic() + o.drain_timeout_s
            if depth >= wanted:
                break
            time.sleep(0.005)
        time.sleep(o.settle_s)
        extra: dict[str, Any] = {"in_ns": in_ns, "depth": depth}
        if watch:
            extra["broker"] = {"rss_backlog": watch.now().rss}
        return extra

    # --- results ------------------------------------------------------------------------------------------------------
    def _result(self, start_ns: int, drain_ns: int, extra: dict[str, Any]) -> dict[str, Any]:
        o = self.options
        sums = self.sums()
        verdict: dict[str, int] = {}
        for worker in self.workers:
            for name, value in worker.verdict().items():
                verdict[name] = max(verdict.get(name, 0), value) if name == "late_max_ns" else verdict.get(name, 0) + value
        expected = 0
        if self.consuming:
            expected = sums["published"] * (o.queues if o.exchange == "fanout" else 1) if self.publishing else o.count
        published_ns = extra.get("in_ns", sums["last_ns"])
        latency, confirms = (report.merge(part) for part in zip(*(worker.histograms() for worker in self.workers), strict=True))
        result: dict[str, Any] = {
            "mode": o.mode,
            "ok": False,
            "published": sums["published"],
            "confirmed": sums["confirmed"],
            "received": sums["received"],
            "expected": expected,
            "lost": max(0, expected - verdict["distinct"]),
            "duplicates": verdict["duplicates"],
            "disordered": verdict["disordered"],
            "corrupt": verdict["corrupt"],
            "misrouted": verdict["misrouted"],
            "redelivered": verdict["redelivered"],
            "nacked": sums["nacked"],
            "returned": sums["returned"],
            "unconfirmed": sums["published"] - sums["confirmed"] - sums["nacked"] if o.confirm else 0,
            "publish_s": round((published_ns - sums["first_ns"]) / 1e9, 4) if sums["first_ns"] else 0.0,
            "publish_rate": report.rate(sums["published"], sums["first_ns"], published_ns),
            "blocked_s": round(sums["held_ns"] / 1e9, 3),
        }
        if self.consuming:
            result["receive_rate"] = report.rate(sums["received"], sums["first_in_ns"], sums["last_in_ns"])
            result["end_to_end_s"] = round(max(0, sums["last_in_ns"] - start_ns) / 1e9, 4)
            result["end_to_end_rate"] = report.rate(sums["received"], start_ns, sums["last_in_ns"])
        if self.staged:
            result["drain_rate"] = report.rate(sums["received"], drain_ns, sums["last_in_ns"])
        if o.mode == "consume" and sums["first_in_ns"]:
            result["first_delivery_s"] = round((sums["first_in_ns"] - self.began_ns) / 1e9, 4)
            result["last_delivery_s"] = round((sums["last_in_ns"] - self.began_ns) / 1e9, 4)
        if "depth" in extra:
            result["depth"] = extra["depth"]
        if o.mode in ("run", "latency"):
            result["latency_us"] = report.microseconds(latency)
        if o.rate:
            result["late_max_us"] = round(verdict["late_max_ns"] / 1000, 1)
        if o.confirm:
            result["confirm_us"] = report.microseconds(confirms)
        if self.error:
            result["error"] = self.error
        result["ok"] = not self.error and not report.faults(result)
        return result
