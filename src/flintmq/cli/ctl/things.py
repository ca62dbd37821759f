"""`flintmq ctl`: queues, connections, policies, parameters, links, scheduled messages.

in: names and values. out: one request each, as a rule.
"""

from __future__ import annotations

import json
import time
from urllib.parse import quote

import click

from flintmq.cli.ctl.session import Session, Verb, change, json_of, json_or_text
from flintmq.errors import OperatorError

REASON = "closed by an operator"


def _told(reason: str) -> dict[str, str]:
    """The header that tells clients a reason: one line, in UTF-8, which http.client takes as characters of Latin 1."""
    return {"X-Reason": " ".join(reason.split()).encode("utf-8", "replace").decode("latin-1")}


@click.command("list_scheduled", cls=Verb)
@click.option("--count", type=int, default=50, show_default=True)
@click.option("--position", default="", help="Where to go on: `next` of the call before.")
@click.pass_obj
def list_scheduled(session: Session, count: int, position: str) -> None:
    """Messages that wait for their time, as JSON."""
    path = session.path("v1/schedules/{vhost}") + f"?count={count}" + (f"&position={quote(position, safe='')}" if position else "")
    click.echo(json.dumps(session.remote.ask("GET", path), indent=2))


def _policy_verb(name: str, path: str) -> click.Command:
    @click.option("--priority", type=int, default=0, show_default=True)
    @click.option("--apply-to", default="all", show_default=True)
    @click.argument("policy")
    @click.argument("pattern")
    @click.argument("definition")
    @click.pass_obj
    def run(session: Session, policy: str, pattern: str, definition: str, priority: int, apply_to: str) -> None:
        body = {"pattern": pattern, "definition": json_of(definition, "DEFINITION"), "priority": priority, "apply-to": apply_to}
        session.remote.ask("PUT", session.path(path, name=policy), body)
        session.done(name)

    text = 'Apply a DEFINITION like {"max-length": 1000} to queues or exchanges whose names match.'
    return click.command(name, cls=Verb, help=text)(run)


@click.command("delete_queue", cls=Verb)
@click.argument("queue")
@click.option("-e", "--if-empty", is_flag=True, help="Not when it has messages.")
@click.option("-u", "--if-unused", is_flag=True, help="Not when it has consumers.")
@click.pass_obj
def delete_queue(session: Session, queue: str, if_empty: bool, if_unused: bool) -> None:
    """Delete a queue."""
    only = [name for name, on in (("if-empty", if_empty), ("if-unused", if_unused)) if on]
    query = "?" + "&".join(f"{name}=true" for name in only) if only else ""
    session.remote.ask("DELETE", session.path("queues/{vhost}/{queue}", queue=queue) + query)
    session.done("delete_queue")


@click.command("close_connection", cls=Verb)
@click.argument("connection")
@click.argument("reason", default=REASON)
@click.pass_obj
def close_connection(session: Session, connection: str, reason: str) -> None:
    """Close a connection, by its name in list_connections name; the client is told the REASON."""
    session.remote.ask("DELETE", session.path("connections/{name}", name=connection), None, _told(reason))
    session.done("close_connection")


@click.command("close_all_connections", cls=Verb)
@click.argument("reason", default=REASON)
@click.option("--global", "everywhere", is_flag=True, help="Of all virtual hosts, not of -p alone.")
@click.option("--limit", type=click.IntRange(0), default=0, help="So many at most; 0: all.")
@click.option("--per-connection-delay", type=click.IntRange(0, 60_000), default=0, help="Milliseconds between two.")
@click.pass_obj
def close_all_connections(session: Session, reason: str, everywhere: bool, limit: int, per_connection_delay: int) -> None:
    """Close all connections to the virtual host; the clients are told the REASON."""
    path = "connections" if everywhere else session.path("vhosts/{vhost}/connections")
    names = [one["name"] for one in session.remote.ask("GET", f"{path}?columns=name")]
    closed = 0
    for name in names[: limit or None]:
        try:
            session.remote.ask("DELETE", session.path("connections/{name}", name=name), None, _told(reason))
            closed += 1
        except OperatorError as error:
            if "(404)" not in str(error):  # it went by itself
                raise
        time.sleep(per_connection_delay / 1000)
    session.say(f"Closed {closed} connections")
    session.done("close_all_connections")


@click.command("close_all_user_connections", cls=Verb)
@click.argument("user")
@click.argument("reason", default=REASON)
@click.pass_obj
def close_all_user_connections(session: Session, user: str, reason: str) -> None:
    """Close all connections of a user; the clients are told the REASON."""
    session.remote.ask("DELETE", session.path("connections/username/{user}", user=user), None, _told(reason))
    session.done("close_all_user_connections")


def add(group: click.Group) -> None:
    """Adds the verbs of this module."""
    for command in (
        list_scheduled,
        delete_queue,
        close_connection,
        close_all_connections,
        close_all_user_connections,
        _policy_verb("set_policy", "policies/{vhost}/{name}"),
        _policy_verb("set_operator_policy", "operator-policies/{vhost}/{name}"),
    ):
        group.add_command(command)
    for name, words, path, text in (
        ("clear_policy", "name", "policies/{vhost}/{name}", "Delete a policy."),
        ("clear_operator_policy", "name", "operator-policies/{vhost}/{name}", "Delete an operator policy."),
        ("clear_global_parameter", "name", "global-parameters/{name}", "Delete a global parameter."),
        ("clear_parameter", "component name", "parameters/{component}/{vhost}/{name}", "Delete a parameter."),
        ("restart_shovel", "name", "shovels/vhost/{vhost}/{name}/restart", "Let a shovel begin again."),
        (
            "restart_federation_link",
            "id",
            "federation-links/vhost/{vhost}/{id}/restart",
            "Let a link of federation begin again; its ID is in federation_status.",
        ),
        ("delete_shovel", "name", "shovels/vhost/{vhost}/{name}", "Delete a shovel."),
        ("purge_queue", "queue", "queues/{vhost}/{queue}/contents", "Delete all ready messages of a queue."),
        ("cancel_scheduled", "position", "v1/schedules/{vhost}/{position}", "Cancel a scheduled message, by its position."),
        ("purge_scheduled", "", "v1/schedules/{vhost}", "Cancel all scheduled messages of the virtual host."),
    ):
        change(group, name, words, ("DELETE", path), None, text)
    for name, words, path, make, text in (
        (
            "set_global_parameter",
            "name value",
            "global-parameters/{name}",
            lambda name, value: {"value": json_or_text(value)},
            "VALUE is JSON.",
        ),
        (
            "set_parameter",
            "component name value",
            "parameters/{component}/{vhost}/{name}",
            lambda component, name, value: {"value": json_or_text(value)},
            "Set a parameter, of component shovel, federation-upstream or federation-upstream-set. VALUE is JSON.",
        ),
        ("set_cluster_name", "name", "cluster-name", lambda name: {"name": name}, "Name the cluster: clients are told it."),
        ("pause_queue", "queue", "queues/{vhost}/{queue}/pause", None, "Let deliveries of a queue rest; publishes go on."),
        ("resume_queue", "queue", "queues/{vhost}/{queue}/resume", None, "Let deliveries of a paused queue go on."),
    ):
        change(group, name, words, ("PUT", path), make, text)
