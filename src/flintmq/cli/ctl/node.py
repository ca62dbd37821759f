"""`flintmq ctl`: the node as a whole: its state, settings, definitions, start and stop.

in: nothing, a file. out: figures; a broker that has started, stopped, or taken a file.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from flintmq import __version__
from flintmq.cli.ctl.lists import LISTS
from flintmq.cli.ctl.output import as_json, printable
from flintmq.cli.ctl.session import Session, Verb, failed
from flintmq.errors import OperatorError

# seconds between two looks, and seconds that a wait takes at most unless --timeout says otherwise (RabbitMQ: 5 minutes)
_LOOK_S = 0.1
_WAIT_S = 300.0
# rabbitmqctl's levels -> ours
LEVELS = {"debug": "debug", "info": "info", "notice": "info", "warning": "warning", "error": "error", "critical": "error", "none": "error"}


@click.command("status", cls=Verb)
@click.option("--unit", type=click.Choice(["B", "MiB"]), default="B", help="Of sizes.")
@click.pass_obj
def status(session: Session, unit: str) -> None:
    """Show what the broker is, where it listens, and how much it has."""
    overview = session.remote.ask("GET", "overview")
    if session.formatter == "json":
        click.echo(as_json(overview))
        return
    click.echo(f"{overview['product_name']} {overview['product_version']}, node {overview['node']}, cluster {overview['cluster_name']}")
    for listener in overview["listeners"]:
        click.echo(f"listens: {listener['protocol']} {listener['ip_address']}:{listener['port']}")
    for name, count in {**overview["object_totals"], **overview["queue_totals"]}.items():
        if isinstance(count, int):
            click.echo(f"{name}: {count}")
    try:
        facts = session.remote.ask("GET", "nodes")[0]
    except OperatorError as error:
        if error.exit_code == 77:  # it needs the tag monitoring
            return
        raise
    click.echo(f"pid: {facts['os_pid']}\nuptime: {facts['uptime'] // 1000} s")
    for name in ("mem_used", "mem_limit", "disk_free", "disk_free_limit"):
        click.echo(f"{name}: {facts[name]} B" if unit == "B" else f"{name}: {facts[name] / (1 << 20):.1f} MiB")
    for name in ("mem_alarm", "disk_free_alarm"):
        click.echo(f"{name}: {'true' if facts[name] else 'false'}")


@click.command("version", cls=Verb)
def version() -> None:
    """The version of this command. No broker is asked."""
    click.echo(__version__)


@click.command("server_version", cls=Verb)
@click.pass_obj
def server_version(session: Session) -> None:
    """The version of the broker."""
    click.echo(session.remote.ask("GET", "overview")["product_version"])


@click.command("cluster_status", cls=Verb)
@click.pass_obj
def cluster_status(session: Session) -> None:
    """The nodes of the cluster, and the alarms of this one."""
    overview, cluster = session.remote.ask("GET", "overview"), session.remote.ask("GET", "v1/cluster")
    alarms = session.remote.check("alarms").get("alarms", [])
    nodes = cluster["nodes"] or [{"name": overview["node"], "state": "up", "version": overview["product_version"]}]
    if session.formatter == "json":
        running = [one["name"] for one in nodes if one["state"] != "down"]
        names = [one["name"] for one in nodes]
        value = {
            "cluster_name": overview["cluster_name"],
            "disk_nodes": names,
            "running_nodes": running,
            "alarms": alarms,
            "partitions": {},
        }
        click.echo(as_json(value | {"nodes": nodes}))
        return
    click.echo(f"cluster name: {overview['cluster_name']}")
    if not cluster["cluster"]:
        click.echo("in no cluster: one node")
    for one in nodes:
        click.echo(f"node: {one['name']}  {one['state']}  {one['version']}")
    click.echo(f"alarms: {', '.join(alarms) or 'none'}")


@click.command("environment", cls=Verb)
@click.pass_obj
def environment(session: Session) -> None:
    """The settings that the broker runs with: options, and limits. Passwords in URLs are not shown."""
    settings = session.remote.ask("GET", "v1/settings")
    if session.formatter == "json":
        click.echo(as_json(settings))
        return
    session.say("Options ...")
    session.record(settings["options"])
    session.say("Limits ...")
    session.record(settings["limits"])


@click.command("report", cls=Verb)
@click.pass_context
def report(context: click.Context) -> None:
    """All that support asks for first: status, cluster, settings, listeners, alarms, and all lists. Passwords and hashes are not in it."""
    session: Session = context.obj
    from flintmq.cli.ctl.checks import alarms, listeners, memory_breakdown

    for command in (status, cluster_status, environment, listeners, alarms, memory_breakdown):
        session.say(f"--- {command.name}")
        assert command.callback is not None
        context.invoke(command.callback, **{one.name: one.get_default(context) for one in command.params if one.expose_value})
    for vhost in session.remote.ask("GET", "vhosts?columns=name"):
        inner = session._replace(vhost=vhost["name"])
        for name, listing in LISTS.items():
            if listing.of or ("{vhost}" not in listing.path and vhost["name"] != "/"):
                continue
            session.say(f"--- {name} of {vhost['name']}")
            rows = inner.remote.ask("GET", inner.path(listing.path))
            inner.rows(rows, [one for one in listing.columns if one not in ("source_kind",)], listing.fields)


@click.command("set_log_level", cls=Verb)
@click.argument("level", type=click.Choice(list(LEVELS)))
@click.pass_obj
def set_log_level(session: Session, level: str) -> None:
    """Set the level of the broker's log until its next start or reload (SIGHUP)."""
    session.remote.ask("PUT", "v1/log-level", {"level": LEVELS[level]})
    session.done("set_log_level")


def _wait(session: Session, reached: Callable[[], bool], text: str) -> None:
    """Raises: OperatorError 75: it did not come about in time."""
    limit_s = session.timeout_s or _WAIT_S
    end_s = time.monotonic() + limit_s
    while not reached():
        if time.monotonic() > end_s:
            raise OperatorError(f"{text} within {limit_s:g} s (--timeout)", 75)
        time.sleep(_LOOK_S)


def _answers(session: Session) -> bool:
    try:
        return session.remote.check("virtual-hosts").get("status") == "ok"
    except OperatorError as error:
        if error.exit_code in (69, 75):
            return False
        raise


@click.command("await_startup", cls=Verb)
@click.pass_obj
def await_startup(session: Session) -> None:
    """Wait until the broker answers; at most 300 s, or --timeout."""
    _wait(session, lambda: _answers(session), "the broker did not start")
    session.done("await_startup")


@click.command("await_online_nodes", cls=Verb)
@click.argument("count", type=click.IntRange(1, 1_000))
@click.pass_obj
def await_online_nodes(session: Session, count: int) -> None:
    """Wait until the cluster has COUNT nodes that run; at most 300 s, or --timeout."""

    def online() -> int:
        try:
            return sum(bool(one.get("running")) for one in session.remote.ask("GET", "nodes"))
        except OperatorError as error:
            if error.exit_code in (69, 75):
                return 0
            raise

    _wait(session, lambda: online() >= count, f"{count} nodes did not come online")
    session.done("await_online_nodes")


@click.command("stop", cls=Verb)
@click.option("--idempotent", is_flag=True, help="No broker there is no error.")
@click.pass_obj
def stop(session: Session, idempotent: bool) -> None:
    """Stop the broker as SIGTERM does, and wait for its end. A service manager may start it again: there, use the manager."""
    try:
        session.remote.ask("POST", "v1/stop")
    except OperatorError as error:
        if idempotent and error.exit_code == 69:
            return
        raise

    def is_gone() -> bool:
        try:
            session.remote.ask("GET", "whoami")
        except OperatorError as error:
            return error.exit_code == 69
        return False

    _wait(session, is_gone, "the broker did not stop")
    session.done("stop")


@click.command("ping", cls=Verb)
@click.pass_obj
def ping(session: Session) -> None:
    """Ask whether the broker answers."""
    session.remote.ask("GET", "whoami")
    session.say("Ping succeeded")


@click.command("node_health_check", cls=Verb)
@click.pass_obj
def node_health_check(session: Session) -> None:
    """Ask whether the broker is healthy and has no alarm."""
    for path in ("virtual-hosts", "alarms"):
        outcome = session.remote.check(path)
        if outcome.get("status") != "ok":
            failed(f"health check failed: {outcome.get('reason', '')}")
    session.say("Health check passed")


def read_json(file: Path) -> Any:
    """The file's JSON. Raises: OperatorError 65: it has none; 74: it can't be read."""
    try:
        return json.loads(file.read_text("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise OperatorError(f"{file} is no JSON: {error}", 65) from None
    except OSError as error:
        raise OperatorError(f"{file} can't be read: {error.strerror}", 74) from None


@click.command("export_definitions", cls=Verb)
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path, allow_dash=True))
@click.pass_obj
def export_definitions(session: Session, file: Path) -> None:
    """Write users, virtual hosts, permissions, policies, queues, exchanges and bindings to FILE, or - for stdout; it has password hashes
    (mode 0600)."""
    text = json.dumps(session.remote.ask("GET", "definitions"), indent=1, ensure_ascii=False)
    if str(file) == "-":
        click.echo(text)
        return
    try:
        file.touch(mode=0o600)
        file.write_text(text + "\n")
    except OSError as error:
        raise OperatorError(f"{file} can't be written: {error.strerror}", 74) from None
    session.say(f"export_definitions: {file}")


def say_passed_over(answer: Any) -> None:
    """A line on stderr for each object of a definitions file that the broker passed over."""
    passed_over = answer.get("passed_over", []) if isinstance(answer, dict) else []
    for one in passed_over:
        where = f" in vhost '{one['vhost']}'" if one["vhost"] else ""
        click.echo(printable(f"passed over: {one['section']} '{one['name']}'{where}: {one['reason']}"), err=True)
    if passed_over and answer["passed_over_count"] > len(passed_over):
        click.echo(f"passed over: {answer['passed_over_count'] - len(passed_over)} more", err=True)


@click.command("import_definitions", cls=Verb)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.pass_obj
def import_definitions(session: Session, file: Path) -> None:
    """Read a definitions FILE of RabbitMQ, LavinMQ or FlintMQ. It adds and replaces, and deletes nothing."""
    say_passed_over(session.remote.ask("POST", "definitions", read_json(file)))
    session.say(f"import_definitions: {file}")


def add(group: click.Group) -> None:
    """Adds the verbs of this module."""
    for command in (
        status,
        version,
        server_version,
        cluster_status,
        environment,
        report,
        set_log_level,
        await_startup,
        await_online_nodes,
        stop,
        ping,
        node_health_check,
        export_definitions,
        import_definitions,
    ):
        group.add_command(command)
    shutdown = Verb("shutdown", callback=stop.callback, params=[click.Option(["--idempotent"], is_flag=True)], help=stop.help)
    group.add_command(shutdown)
