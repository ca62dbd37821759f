"""`flintmq serve`: starts a broker node and waits for SIGTERM or SIGINT."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import json
import logging
import os
import resource
import signal
import sys
import time
from typing import Any

import click

from flintmq.access.audit import AuditFile
from flintmq.allocator import limit_kept
from flintmq.cli.logs import flush_logs, log_to_stderr
from flintmq.cli.serve_options import config_of, from_file, refuse_contradictions, with_options
from flintmq.cli.signals import Signals
from flintmq.cli.systemd import Notifier, inherited
from flintmq.errors import OperatorError
from flintmq.store.directory import store_directory
from flintmq.store.read_ahead import read_ahead

# seconds between two writes of log lines that are not urgent
LOG_FLUSH_S = 0.5
# seconds between two signs of life to the service manager, at most
WATCHDOG_S = 5.0
# sysexits EX_IOERR: a write or sync of the store failed
EXIT_IO_ERROR = 74
# objects that a start made, above which nobody looks for garbage among them: the look grows with them
COLLECTED_MAX = 150_000


def _raise_descriptors() -> None:
    """As many descriptors as the system lets us have: connections and streams take one each, and the usual soft limit is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _import_early() -> None:
    """What Python would import in the moment of an error, when there may be no descriptor to open it with."""
    for name in ("ast", "linecache"):
        importlib.import_module(name)


def _reload(ctx: click.Context, config: str | None, node: Any) -> None:
    """SIGHUP: the level of the log, and the certificate files. A file that can't be read changes nothing, and the log says so."""
    log = logging.getLogger("flintmq.node")
    try:
        options = {} if config is None else from_file(config, ctx)
        node.reload_tls()
    except (OperatorError, OSError) as error:
        log.error("SIGHUP: nothing was reloaded: %s", error)
        return
    level = options.get("log_level")
    if level is not None and ctx.get_parameter_source("log_level") != click.core.ParameterSource.COMMANDLINE:
        logging.getLogger().setLevel(level.upper())
    log.info("SIGHUP: the certificates and the level of the log were read again; other options need a restart")


@click.command()
@with_options
@click.pass_context
def serve(ctx: click.Context, /, config: str | None, **options: Any) -> int:
    """Run a broker. Prints one JSON line on stdout when it accepts connections."""
    if config is not None:
        given = {name for name in options if ctx.get_parameter_source(name) == click.core.ParameterSource.COMMANDLINE}
        options.update({name: value for name, value in from_file(config, ctx).items() if name not in given})
    refuse_contradictions(options)
    gc.disable()  # a start makes what stays: the collector would look for garbage in it a dozen times
    log_to_stderr(options["log_level"])
    notifier = Notifier()
    settings = config_of(options, inherited())
    if not settings.memory:
        read_ahead(store_directory(settings), settings.limits.start_read_ahead_bytes)
    from flintmq.node import Node  # takes its time, while the disk reads

    _raise_descriptors()
    limit_kept(settings.limits.heap_block_max, settings.limits.heap_kept)
    _import_early()
    # Loops, HTTP and the store's threads share the interpreter: one that waits for it gets it after this long, not after the usual 5 ms.
    sys.setswitchinterval(settings.limits.interpreter_switch_us / 1_000_000)
    node = Node(settings)
    audit = AuditFile(settings.audit_log, settings.limits) if settings.audit_log else None
    if audit is not None:
        audit.start()
    signals = Signals()
    signals.take()
    node.stop_process = lambda: os.kill(os.getpid(), signal.SIGTERM)
    node.start()
    ready = {
        "ready": True,
        "amqp_port": node.amqp_port,
        "amqps_port": node.amqps_port,
        **({} if node.websocket_port is None else {"websocket_port": node.websocket_port}),
        "http_port": node.http_port,
        **({} if node.metrics_port is None else {"metrics_port": node.metrics_port}),
        "flight_port": node.flight_port(lambda: signals.stop != 0),
        "store_dir": str(node.store.directory) if node.store is not None else None,
    }
    print(json.dumps(ready), flush=True)
    logging.getLogger("flintmq.node").info("%s", node.summary())
    notifier.tell("READY=1", f"STATUS=AMQP on port {node.amqp_port}")
    # What start-up made stays: the collector need not look at it again, and connections come and go without cycles.
    # Of very many definitions even this look would keep the first clients waiting: what garbage there is stays, too.
    if gc.get_count()[0] < COLLECTED_MAX:
        gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    gc.enable()
    alive_s = 0.0
    while not signals.stop and not node.failed.is_set():
        signals.wait(LOG_FLUSH_S)
        alive_s += LOG_FLUSH_S
        if notifier.watchdog_s is not None and alive_s >= min(notifier.watchdog_s, WATCHDOG_S) and node.is_alive():
            alive_s = 0.0
            notifier.tell("WATCHDOG=1")
        if signals.hang_up:
            signals.hang_up = False
            notifier.tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
            _reload(ctx, config, node)
            notifier.tell("READY=1")
        flush_logs()
    _stop(node, signals.stop, notifier, audit)
    return EXIT_IO_ERROR if node.failed.is_set() else 0


def _stop(node: Any, number: int, notifier: Notifier, audit: AuditFile | None) -> None:
    """Ends the node and its log. One that takes long says where its threads are, whatever holds them. number: the signal, 0 for none."""
    if number:
        logging.getLogger("flintmq.node").info("stopping on %s", signal.Signals(number).name)
        flush_logs()
    notifier.tell("STOPPING=1")
    if sys.__stderr__ is not None:
        faulthandler.dump_traceback_later(node.config.limits.stop_report_ms / 1000, file=sys.__stderr__)
    node.stop()
    if audit is not None:
        audit.stop()
    flush_logs()
    faulthandler.cancel_dump_traceback_later()
