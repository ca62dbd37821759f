"""`flintmq perf`: load generator and checker for any AMQP 0-9-1 broker.

Exit codes: 0 ok; 64 usage; 65 the check found loss, duplicates, disorder or damage; 69 the broker is not available or closed.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from flintmq.perf.options import EXCHANGES, MODES, Options, UsageError

EXIT_DATA = 65
EXIT_UNAVAILABLE = 69


def run(options: Options, progress: Any = None) -> dict[str, Any]:
    """One run of any mode. Raises: UsageError, BrokerError."""
    options.check()
    # Compiled modules: imported when used, so that --help works in a tree that is not built.
    from flintmq.perf import conversation, traffic

    if options.mode == "churn":
        return conversation.churn(options, progress)
    if options.mode == "declare":
        return conversation.declare(options, progress)
    return traffic.Traffic(options, progress).execute()


def describe(result: dict[str, Any]) -> str:
    """The figures for people, one per line."""
    lines = []
    for name, unit, label in (
        ("published", "", "published"),
        ("received", "", "received"),
        ("publish_rate", "msg/s", "published"),
        ("receive_rate", "msg/s", "received"),
        ("end_to_end_rate", "msg/s", "end to end"),
        ("drain_rate", "msg/s", "drained"),
        ("cycle_rate", "/s", "cycles"),
        ("declare_rate", "/s", "declared"),
        ("delete_rate", "/s", "deleted"),
        ("blocked_s", "s", "blocked by the broker"),
        ("generator_cpu_s", "s", "generator's CPU"),
    ):
        value = result.get(name)
        if value:
            lines.append(f"{label:<24}{value:>16,.{0 if value == int(value) or value > 1000 else 3}f} {unit}")
    for name, label in (("latency_us", "latency"), ("confirm_us", "confirm"), ("cycle_us", "cycle"), ("declare_us", "declare")):
        if figures := result.get(name):
            parts = ", ".join(f"{key} {figures[key] / 1000:.3f}" for key in ("p50", "p99", "p999", "max"))
            lines.append(f"{label + ', ms':<24}{parts}")
    if broker := result.get("broker"):
        for name, label in (
            ("cpu_s", "broker's CPU, s"),
            ("cpu_s_per_million", "  per million, s"),
            ("cpu_s_per_million_deliveries", "  per million out, s"),
            ("cpu_ms_per_cycle", "  per cycle, ms"),
            ("idle_cores", "  idle, cores"),
        ):
            if broker.get(name) is not None:
                lines.append(f"{label:<24}{broker[name]:>16,.3f}")
        for name, label in (("rss_start", "start"), ("rss_backlog", "with backlog"), ("rss_peak", "peak")):
            if name in broker:
                lines.append(f"{'broker RSS ' + label:<24}{broker[name] / 2**20:>16,.1f} MiB")
        if broker.get("bytes_per_queue") is not None:
            lines.append(f"{'  per queue':<24}{broker['bytes_per_queue'] / 1024:>16,.2f} KiB")
    return "\n".join(lines)


def verdict(result: dict[str, Any]) -> str:
    from flintmq.perf import report

    if result["ok"]:
        return "ok"
    faults = report.faults(result)
    if result.get("failures"):
        faults.append(f"{result['failures']:,} failed cycles")
    if result.get("error"):
        faults.append(str(result["error"]))
    return "FAILED: " + (", ".join(faults) or "not everything was done")


def exit_code(result: dict[str, Any]) -> int:
    """A broker that closes is unavailable (69); one that stays and gets messages wrong is bad data (65)."""
    if result["ok"]:
        return 0
    return EXIT_UNAVAILABLE if result.get("error") else EXIT_DATA


class _Perf(click.Group):
    """The generator, which needs no word, and `trace`, whose module is imported when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return ["trace"]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name != "trace":
            return None
        from flintmq.cli.passes import trace

        return trace


@click.group(cls=_Perf, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--host", default="127.0.0.1", show_default=True, help="Broker's address.")
@click.option("--port", default=5672, show_default=True, type=click.IntRange(1, 65535))
@click.option("--user", default="guest", show_default=True)
@click.option("--password", default="guest", show_default=True)
@click.option("--vhost", default="/", show_default=True)
@click.option("--mode", type=click.Choice(MODES), default="run", show_default=True, help="What to do; see docs/PERFORMANCE.md.")
@click.option("--producers", default=1, show_default=True, help="Publishing connections.")
@click.option("--consumers", default=None, type=int, help="Consuming connections.  [default: one per queue]")
@click.option("--queues", default=1, show_default=True)
@click.option("--size", default=16, show_default=True, help="Body, bytes (at least 16: id and time).")
@click.option("--count", default=0, help="Messages in all (cycles with --mode churn).")
@click.option("--time", "time_s", default=0.0, help="Publish for this many seconds.")
@click.option("--rate", default=0.0, help="Messages per second in all; 0: as fast as it goes.")
@click.option("--exchange", type=click.Choice(EXCHANGES), default="default", show_default=True)
@click.option("--bindings", default=0, help="Routing keys, each bound to one queue in turn; publishes rotate over them.")
@click.option("--random-keys", is_flag=True, help="A routing key that was never used before on every message.")
@click.option("--confirm", default=0, help="Publisher confirms with at most this many outstanding; 0: none.")
@click.option("--ack", default=0, help="Acknowledge every N deliveries; 0: automatic, 1: each by itself.")
@click.option("--prefetch", default=0, help="Unacknowledged deliveries per consumer; 0: no limit.")
@click.option("--persistent", is_flag=True, help="Delivery mode 2.")
@click.option("--durable", is_flag=True, help="Durable queues and exchange.")
@click.option("--queue-type", default="", help="x-queue-type of the queues.")
@click.option("--same-conn", is_flag=True, help="Each connection both publishes and consumes.")
@click.option("--clients", default=4, show_default=True, help="Threads of --mode churn.")
@click.option("--pipeline", default=1, show_default=True, help="Declares of --mode declare that are on their way at once.")
@click.option("--connect-retry", "connect_retry_s", default=0.0, help="Seconds for which a broker that does not answer yet is tried again.")
@click.option("--pid", default=0, help="Measure CPU and memory of this process and its children.")
@click.option("--prefix", default=None, help="Start of all names.  [default: flintmq-perf-PID]")
@click.option("--keep", is_flag=True, help="Leave queues and exchange in the broker.")
@click.option("--drain-timeout", "drain_timeout_s", default=10.0, show_default=True, help="Seconds without progress after which it ends.")
@click.option("--max-time", "max_time_s", default=300.0, show_default=True, help="Seconds after which it ends in any case.")
@click.option("--settle", "settle_s", default=1.0, show_default=True, help="Seconds to wait between filling and draining a backlog.")
@click.option("--batch-bytes", default=65536, show_default=True, help="Bytes given to the socket at once, at most.")
@click.option("--json", "as_json", is_flag=True, help="One JSON line on stdout instead of text.")
@click.pass_context
def perf(context: click.Context, /, as_json: bool, prefix: str | None, **values: Any) -> None:
    """Loads a broker and checks that no message is lost, doubled, out of order or damaged; `trace` looks into a running one."""
    if context.invoked_subcommand is not None:
        return
    options = Options(**values)
    if prefix is not None:
        options.prefix = prefix

    def progress(elapsed: float, published: int, received: int) -> None:
        print(f"\r{elapsed:7.1f} s  {published:>13,} in  {received:>13,} out", end="", file=sys.stderr, flush=True)

    terminal = sys.stderr.isatty() and not as_json
    from flintmq.perf.wire import BrokerError

    try:
        result = run(options, progress if terminal else None)
    except UsageError as error:
        # click's own exit code for usage is 2; the contract says 64, which the caller's UsageError handler gives.
        raise click.UsageError(str(error), context) from error
    except BrokerError as error:
        if as_json:
            click.echo(json.dumps({"mode": options.mode, "ok": False, "error": str(error)}))
        else:
            click.echo(f"flintmq perf: {error}", err=True)
        context.exit(EXIT_UNAVAILABLE)
    finally:
        if terminal:
            print("\r" + " " * 60 + "\r", end="", file=sys.stderr, flush=True)
    if as_json:
        click.echo(json.dumps(result))
    else:
        click.echo(describe(result))
        click.echo(verdict(result), err=not result["ok"])
    context.exit(exit_code(result))


if __name__ == "__main__":
    perf()
