"""The child process: takes over the broker's socket pairs, listens, says its port on the first of them, and ends with it.

`python -m flintmq.flight --channels FD,FD,... --host H --port P [--listener FD] --store-dir DIR [--tls-cert F --tls-key F] --log-level L`

in: descriptors of connected sockets (inherited), and of a socket that listens already. out: one frame {"call": "ready", "port": N} on the
first channel; exit code 0 when the broker closed it or on SIGTERM, 69 when it can't listen, 76 when it can't take the listening socket
over (`listener`), 78 for wrong files. Logs go to stderr.
"""

from __future__ import annotations

import argparse
import logging
import os
import resource
import select
import signal
import sys
import time
from pathlib import Path

from flintmq.allocator import limit_kept
from flintmq.config import Limits
from flintmq.dataplane.wire import EXIT_NOT_ADOPTED, Channel
from flintmq.endpoint import endpoint
from flintmq.flight.listener import adopt
from flintmq.loglines import LineFormatter

EXIT_UNAVAILABLE = 69
EXIT_CONFIG = 78
# seconds between two looks at whether calls still run
STOP_LOOK_S = 0.01

log = logging.getLogger("flintmq.flight")


def main(arguments: list[str] | None = None) -> int:
    """Runs the service until the broker is gone. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="flintmq.flight", description="Arrow Flight service of a FlintMQ broker (started by it).")
    parser.add_argument("--channels", required=True, help="descriptors of connected sockets, separated by commas")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--listener", type=int, help="descriptor of a socket that listens already, in place of host and port")
    parser.add_argument("--store-dir", required=True)
    parser.add_argument("--tls-cert")
    parser.add_argument("--tls-key")
    parser.add_argument("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    options = parser.parse_args(arguments)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter())
    logging.basicConfig(level=options.log_level.upper(), handlers=[handler])
    limits = Limits()
    # gRPC's own log lines are about connections of clients; our errors say what matters
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # Ctrl-C in a terminal reaches the whole process group: the broker decides when its child ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    lower_priority(limits.flight_nice)
    no_core_file()
    limit_kept(limits.flight_heap_block_max, limits.flight_heap_kept, limits.flight_heaps)
    try:
        channels = [Channel.inherited(int(number), limits) for number in options.channels.split(",")]
    except (ValueError, OSError) as error:
        log.error("--channels %s: %s", options.channels, error)
        return EXIT_CONFIG
    if options.listener is not None:
        try:
            address = adopt(options.listener)
        except OSError as error:
            log.error("--listener %d: %s", options.listener, error)
            return EXIT_CONFIG
        if address is None:
            return EXIT_NOT_ADOPTED
        options.host, options.port = address
    try:
        return serve(options, channels, limits)
    except ImportError as error:
        log.error("the Flight service needs pyarrow (pip install 'flintmq[flight]'): %s", error)
        return EXIT_UNAVAILABLE


def serve(options: argparse.Namespace, channels: list[Channel], limits: Limits) -> int:
    """Args: options: of the command line; channels: to the broker; limits."""
    import pyarrow as pa

    from flintmq.flight.batches import Codec
    from flintmq.flight.link import Link
    from flintmq.flight.server import FlightService

    tls = None
    if options.tls_cert:
        try:
            key = options.tls_key or options.tls_cert
            tls = (Path(options.tls_cert).read_bytes(), Path(key).read_bytes())
        except OSError as error:
            log.error("the certificate can't be read: %s: %s", error.filename, error.strerror)
            return EXIT_CONFIG
    ended, stop = os.pipe()
    link = Link(channels, limits, lambda: _end(stop))
    codec = Codec(options.store_dir, limits.flight_reader_bytes)
    try:
        service = FlightService(options.host, options.port, link, codec, limits, tls)
    except (pa.ArrowException, OSError) as error:
        log.error("can't listen on %s:%d for Arrow Flight: %s", options.host, options.port, str(error).partition("\n")[0])
        return EXIT_UNAVAILABLE
    signal.signal(signal.SIGTERM, lambda number, frame: _end(stop))
    channels[0].send({"call": "ready", "port": service.port})
    log.info("Arrow Flight on %s://%s", service.scheme, endpoint(options.host, service.port))
    while not wait_for_end(channels[0].socket.fileno(), ended, limits.flight_rest_ms / 2):
        try:
            service.rest()
        except Exception:
            log.exception("memory was not given back")
    link.close()
    # Calls end by themselves now, but for readers that do not read; what is unfinished is asked for again anyway. gRPC's own shutdown
    # would wait for those, and for connections that are idle.
    deadline = time.monotonic() + limits.flight_stop_ms / 1000
    while service.gate.running and time.monotonic() < deadline:
        time.sleep(STOP_LOOK_S)
    logging.shutdown()
    os._exit(0)


def _end(stop: int) -> None:
    os.write(stop, b".")


def wait_for_end(first: int, ended: int, wait_ms: float | None = None) -> bool:
    """Returns True when the peer of the first channel is closed, or the pipe `ended` says so; False after `wait_ms`. Never reads from the
    channel."""
    poller = select.poll()
    poller.register(first, select.POLLRDHUP)
    poller.register(ended, select.POLLIN)
    return bool(poller.poll(wait_ms))


def lower_priority(nice: int) -> None:
    """Bulk reads give way to the broker's loops: what they take is throughput, what a loop would lose is latency.

    SCHED_BATCH: a thread of ours that wakes up does not preempt one that runs (sched(7)).
    """
    try:
        os.nice(nice)
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    except OSError as error:
        log.debug("priority stays as it is: %s", error)


def no_core_file() -> None:
    """What this process holds (the key of the certificate, messages of all tenants) must not be written to a file when it crashes."""
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))


if __name__ == "__main__":
    sys.exit(main())
