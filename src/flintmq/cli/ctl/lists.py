"""`flintmq ctl list_...`: objects of the API as tables.

in: columns. out: rows. A column that nobody knows is an error that names those that are known.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, NamedTuple

import click

from flintmq.cli.ctl.session import Session, Verb
from flintmq.errors import OperatorError


class Listing(NamedTuple):
    """A list command. Args: path: of the API; columns: that are shown unless others are asked for; title: for the headline; fields: of
    columns whose field of the API has another name; further: columns that may be asked for, besides the fields of the API; of: an
    argument that the path needs; flags: options of rabbitmqctl that choose nothing on one node."""

    path: str
    columns: tuple[str, ...]
    title: str
    fields: Mapping[str, str] = {}
    further: str = ""
    of: str = ""
    flags: tuple[str, ...] = ()


_POLICY = ("vhost", "name", "pattern", "apply-to", "definition", "priority")
# the columns of RabbitMQ 3.13 and 4: those that mean nothing here are empty
_QUEUE = (
    "name durable auto_delete arguments policy operator_policy effective_policy_definition pid owner_pid exclusive exclusive_consumer_pid"
    " exclusive_consumer_tag messages_ready messages_unacknowledged messages messages_ready_ram messages_unacknowledged_ram messages_ram"
    " messages_persistent message_bytes message_bytes_ready message_bytes_unacknowledged message_bytes_ram message_bytes_persistent"
    " head_message_timestamp disk_reads disk_writes consumers consumer_utilisation consumer_capacity memory state type leader members"
    " online effective_arguments ignored_arguments vhost node"
)
_CONNECTION = (
    "pid name port host peer_port peer_host ssl ssl_protocol ssl_key_exchange ssl_cipher ssl_hash peer_cert_subject peer_cert_issuer"
    " peer_cert_serial_number peer_cert_validity state channels protocol auth_mechanism user vhost container_id timeout frame_max"
    " channel_max client_properties recv_oct recv_cnt send_oct send_cnt send_pend connected_at user_provided_name node"
)
_CHANNEL = (
    "pid connection name number user vhost transactional confirm consumer_count messages_unacknowledged messages_uncommitted"
    " acks_uncommitted messages_unconfirmed prefetch_count node"
)
LISTS = {
    "list_queues": Listing(
        "queues/{vhost}",
        ("name", "messages"),
        "queues for vhost {vhost}",
        {"pid": "node", "leader": "node", "owner_pid": "owner_pid_details.name"},
        _QUEUE,
        flags=("--online", "--local"),
    ),
    "list_exchanges": Listing(
        "exchanges/{vhost}",
        ("name", "type"),
        "exchanges for vhost {vhost}",
        {},
        "name type durable auto_delete internal arguments policy vhost user_who_performed_action",
    ),
    "list_bindings": Listing(
        "bindings/{vhost}",
        ("source_name", "source_kind", "destination_name", "destination_kind", "routing_key", "arguments"),
        "bindings for vhost {vhost}",
        {"source_name": "source", "destination_name": "destination", "destination_kind": "destination_type"},
        "source destination destination_type vhost properties_key",
    ),
    "list_connections": Listing("connections", ("user", "peer_host", "peer_port", "state"), "connections", {"pid": "name"}, _CONNECTION),
    "list_channels": Listing(
        "channels", ("pid", "user", "consumer_count", "messages_unacknowledged"), "channels", {"pid": "name"}, _CHANNEL
    ),
    "list_consumers": Listing(
        "consumers/{vhost}",
        ("queue_name", "channel_pid", "consumer_tag", "ack_required", "prefetch_count", "active", "arguments"),
        "consumers in vhost {vhost}",
        {"queue_name": "queue.name", "channel_pid": "channel_details.name"},
        "activity_status exclusive queue.name channel_details.name",
    ),
    "list_users": Listing("users", ("user", "tags"), "users", {"user": "name"}, "name limits hashing_algorithm"),
    "list_user_permissions": Listing(
        "users/{user}/permissions", ("vhost", "configure", "write", "read"), 'permissions for user "{user}"', {}, "user", "user"
    ),
    "list_user_topic_permissions": Listing(
        "users/{user}/topic-permissions",
        ("vhost", "exchange", "write", "read"),
        'topic permissions for user "{user}"',
        {},
        "user",
        "user",
    ),
    "list_vhosts": Listing("vhosts", ("name",), "vhosts", {}, "tracing cluster_state description tags default_queue_type metadata"),
    "list_permissions": Listing(
        "vhosts/{vhost}/permissions", ("user", "configure", "write", "read"), "permissions for vhost {vhost}", {}, "vhost"
    ),
    "list_topic_permissions": Listing(
        "vhosts/{vhost}/topic-permissions", ("user", "exchange", "write", "read"), "topic permissions for vhost {vhost}", {}, "vhost"
    ),
    "list_policies": Listing("policies/{vhost}", _POLICY, "policies for vhost {vhost}"),
    "list_operator_policies": Listing("operator-policies/{vhost}", _POLICY, "operator policies for vhost {vhost}"),
    "list_parameters": Listing("parameters", ("vhost", "component", "name", "value"), "runtime parameters"),
    "list_global_parameters": Listing("global-parameters", ("name", "value"), "global runtime parameters"),
    "list_vhost_limits": Listing("vhost-limits", ("vhost", "value"), "limits of vhosts", flags=("--global",)),
    "list_user_limits": Listing("user-limits", ("user", "value"), "limits of users", flags=("--global",)),
    "shovel_status": Listing(
        "shovels/{vhost}",
        ("name", "state", "src_uri", "src_queue", "dest_uri", "dest_queue", "moved", "reason"),
        "shovels of vhost {vhost}",
        {},
        "vhost node",
    ),
    "federation_status": Listing(
        "federation-links/{vhost}",
        ("id", "type", "exchange", "queue", "upstream", "uri", "status", "moved", "error"),
        "links of federation of vhost {vhost}",
        {},
        "vhost node",
        flags=("--only-down",),
    ),
}


def _checked(listing: Listing, name: str, asked: tuple[str, ...], rows: list[dict[str, Any]]) -> tuple[str, ...]:
    """The columns that were asked for, with commas or without. Raises: OperatorError 64: there is no such column."""
    columns = tuple(one for word in asked for one in word.split(",") if one) or listing.columns
    known = {*listing.columns, *listing.fields, *listing.further.split(), *(rows[0] if rows else ())}
    for column in columns:
        if column not in known and column.partition(".")[0] not in known:
            near = difflib.get_close_matches(column, known, 1)
            hint = f": did you mean '{near[0]}'?" if near else "."
            raise OperatorError(f"{name} has no column '{column}'{hint} Its columns: {', '.join(sorted(known))}", 64)
    return columns


def _list_command(name: str, listing: Listing) -> click.Command:
    @click.pass_obj
    def run(session: Session, /, columns: tuple[str, ...], only_down: bool = False, **given: Any) -> None:
        of = {listing.of: given[listing.of]} if listing.of else {}
        rows = session.remote.ask("GET", session.path(listing.path, **of))
        shown = _checked(listing, name, columns, rows)
        if only_down:
            rows = [one for one in rows if one["status"] != "running"]
        if name == "list_bindings":
            rows = [{"source_kind": "exchange", **one} for one in rows]
        session.say(f"Listing {listing.title.format(vhost=session.vhost, **of)} ...")
        session.rows(rows, shown, listing.fields)

    params: list[click.Parameter] = [click.Argument([listing.of])] if listing.of else []
    params.append(click.Argument(["columns"], nargs=-1, required=False))
    for flag in listing.flags:
        text = "Links that do not run." if flag == "--only-down" else "As rabbitmqctl has it: on this broker it chooses nothing."
        params.append(click.Option([flag], is_flag=True, help=text))
    title = listing.title.format(vhost="of -p", **({listing.of: listing.of.upper()} if listing.of else {}))
    help_text = f"List {title}. COLUMNS: fields of the API, else {' '.join(listing.columns)}."
    return Verb(name, callback=run, params=params, help=help_text)


def add(group: click.Group) -> None:
    """Adds the verbs of this module."""
    for name, listing in LISTS.items():
        group.add_command(_list_command(name, listing))
