"""`flintmq ctl check_...` and the rest of rabbitmq-diagnostics: exit code 0: passed, 70: not, 69: no broker answers.

in: what is to be checked. out: one line, or JSON.
"""

from __future__ import annotations

import socket
from typing import Any
from urllib.parse import quote, urlsplit

import click

from flintmq.cli.ctl.session import Session, Verb, failed
from flintmq.errors import OperatorError

# seconds that connecting to a port may take
_CONNECT_S = 10.0


def _check(name: str, path: str, passed: str, help_text: str) -> click.Command:
    """A verb that is one health check of the API."""

    @click.pass_obj
    def run(session: Session) -> None:
        report_of(session, session.remote.check(path), passed)

    return Verb(name, callback=run, help=help_text)


def report_of(session: Session, outcome: dict[str, Any], passed: str) -> None:
    """Says how a check went. Raises: OperatorError 70: it failed."""
    if outcome.get("status") != "ok":
        facts = ", ".join(f"{name} {value}" for name, value in outcome.items() if name not in ("status", "reason"))
        failed(f"{outcome.get('reason', 'failed')}" + (f": {facts}" if facts else ""))
    if session.formatter == "json":
        session.record(outcome | {"result": "ok"})
    else:
        session.say(passed)


@click.command("check_port_listener", cls=Verb)
@click.argument("port", type=click.IntRange(1, 65_535))
@click.pass_obj
def check_port_listener(session: Session, port: int) -> None:
    """Check that the broker listens on PORT."""
    report_of(session, session.remote.check(f"port-listener/{port}"), f"A listener for port {port} is running")


@click.command("check_protocol_listener", cls=Verb)
@click.argument("protocol")
@click.pass_obj
def check_protocol_listener(session: Session, protocol: str) -> None:
    """Check that the broker listens for PROTOCOL: amqp, amqps, http, https and others of `listeners`."""
    path = f"protocol-listener/{quote(protocol, safe='')}"
    report_of(session, session.remote.check(path), f"A listener for protocol {protocol} is running")


@click.command("check_certificate_expiration", cls=Verb)
@click.option("--within", type=click.IntRange(1, 10_000), default=4, show_default=True, help="Units.")
@click.option("--unit", type=click.Choice(["days", "weeks", "months", "years"]), default="weeks", show_default=True)
@click.pass_obj
def check_certificate_expiration(session: Session, within: int, unit: str) -> None:
    """Check that the listeners' certificate does not end within the time."""
    outcome = session.remote.check(f"certificate-expiration/{within}/{unit}")
    report_of(session, outcome, f"No certificate ends within {within} {unit}")


def _listening(session: Session) -> list[dict[str, Any]]:
    listeners: list[dict[str, Any]] = session.remote.ask("GET", "overview")["listeners"]
    return listeners


@click.command("check_port_connectivity", cls=Verb)
@click.option("-a", "--address", help="Address to connect to; default: that of each listener.")
@click.pass_obj
def check_port_connectivity(session: Session, address: str | None) -> None:
    """Connect to each port that the broker listens on."""
    refused = []
    for one in _listening(session):
        host = address or one["ip_address"]
        if host in ("0.0.0.0", "::", "*"):
            host = urlsplit(session.uri).hostname or host
        try:
            socket.create_connection((host, one["port"]), min(session.timeout_s or _CONNECT_S, _CONNECT_S)).close()
        except OSError as error:
            refused.append(f"{one['protocol']} {host}:{one['port']}: {error}")
    if refused:
        failed("connections failed: " + "; ".join(refused))
    session.say("All ports of the broker take connections")


@click.command("listeners", cls=Verb)
@click.pass_obj
def listeners(session: Session) -> None:
    """Where the broker listens."""
    if session.formatter == "json":
        session.record({"listeners": _listening(session)})
        return
    session.rows(_listening(session), ("ip_address", "port", "protocol", "node"))


@click.command("alarms", cls=Verb)
@click.pass_obj
def alarms(session: Session) -> None:
    """The resources for which publishers wait: memory, disk."""
    names = session.remote.check("alarms").get("alarms", [])
    if session.formatter == "json":
        session.record({"alarms": names})
        return
    click.echo("\n".join(names) if names else "No alarms")


@click.command("memory_breakdown", cls=Verb)
@click.option("--unit", type=click.Choice(["bytes", "mb", "mib", "gb", "gib"]), default="bytes", show_default=True, help="Of the amounts.")
@click.pass_obj
def memory_breakdown(session: Session, unit: str) -> None:
    """The memory that the broker's parts hold."""
    own = session.remote.ask("GET", "overview")["node"]
    memory = session.remote.ask("GET", session.path("nodes/{name}/memory", name=own))["memory"]
    flat = {name: one for name, one in memory.items() if isinstance(one, int)}
    flat |= {f"total {name}": one for name, one in memory["total"].items()}
    factor = {"bytes": 1, "mb": 1e6, "mib": 1 << 20, "gb": 1e9, "gib": 1 << 30}[unit]
    session.record({name: one if unit == "bytes" else round(one / factor, 3) for name, one in flat.items()})


def _answering(name: str, question: str, help_text: str) -> click.Command:
    """is_running and is_booting: a sentence, and exit code 0 whatever the answer is, as with RabbitMQ."""

    @click.pass_obj
    def run(session: Session) -> None:
        try:
            runs = session.remote.check("virtual-hosts").get("status") == "ok"
        except OperatorError as error:
            if error.exit_code != 69:
                raise
            runs = False
        positive = runs if question == "running" else False  # a broker that boots does not answer yet
        if session.formatter == "json":
            session.record({question: positive})
        else:
            click.echo(f"The broker is {question}" if positive else f"The broker is not {question}")

    return Verb(name, callback=run, help=help_text)


def add(group: click.Group) -> None:
    """Adds the verbs of this module."""
    single = "There is no replica to lose: classic queues are on one node, shared queues in their engine"
    for command in (
        check_port_listener,
        check_protocol_listener,
        check_certificate_expiration,
        check_port_connectivity,
        listeners,
        alarms,
        memory_breakdown,
        _answering("is_running", "running", "Say whether the broker runs."),
        _answering("is_booting", "booting", "Say whether the broker boots: one that boots does not answer yet."),
        _check("check_running", "virtual-hosts", "The broker is fully booted and running", "Check that the broker runs."),
        _check("check_alarms", "alarms", "The cluster has no alarms", "Check that no publisher waits for memory or disk."),
        _check("check_local_alarms", "local-alarms", "The node has no alarms", "Check that no publisher of this node waits."),
        _check("check_virtual_hosts", "virtual-hosts", "All virtual hosts are running", "Check that the virtual hosts run."),
        _check("check_if_node_is_quorum_critical", "node-is-quorum-critical", single, "Check that the node may be stopped."),
        _check("check_if_node_is_mirror_sync_critical", "node-is-mirror-sync-critical", single, "Check that the node may be stopped."),
        _check(
            "check_if_metadata_store_is_initialized",
            "metadata-store/initialized",
            "The definitions are loaded",
            "Check that the definitions are loaded.",
        ),
        _check(
            "check_if_metadata_store_is_initialized_with_data",
            "metadata-store/initialized/with-data",
            "The definitions are loaded",
            "Check that the definitions are loaded.",
        ),
    ):
        group.add_command(command)
