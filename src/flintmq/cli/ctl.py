"""`flintmq ctl`: a running broker looked at and changed, with the words of rabbitmqctl. It speaks HTTP (docs/HTTP.md, "RabbitMQ's API").

in: a command, the broker's address and a user. out: tables, JSON or CSV; changes. The user's tags decide what is allowed.
"""

from __future__ import annotations

import base64
import csv
import http.client
import json
import ssl
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import click

from flintmq.errors import OperatorError

# seconds that an answer may take
TIMEOUT_S = 60
FORMATTERS = ("table", "json", "csv")
_EXIT_CODES = {400: 65, 401: 77, 403: 77, 404: 65, 409: 65, 413: 65}


class Listing(NamedTuple):
    """A list command. Args: path: of the API; columns: that are shown unless others are asked for; what: for the headline; fields: of
    columns whose field of the API has another name; of: an argument that the path needs."""

    path: str
    columns: tuple[str, ...]
    what: str
    fields: Mapping[str, str] = {}
    of: str = ""


_POLICY = ("vhost", "name", "pattern", "apply-to", "definition", "priority")
LISTS = {
    "list_queues": Listing("queues/{vhost}", ("name", "messages"), "queues for vhost {vhost}"),
    "list_exchanges": Listing("exchanges/{vhost}", ("name", "type"), "exchanges for vhost {vhost}"),
    "list_bindings": Listing(
        "bindings/{vhost}", ("source", "destination", "destination_type", "routing_key", "arguments"), "bindings for vhost {vhost}"
    ),
    "list_connections": Listing("connections", ("user", "peer_host", "peer_port", "state"), "connections"),
    "list_channels": Listing("channels", ("name", "user", "consumer_count", "messages_unacknowledged"), "channels"),
    "list_consumers": Listing(
        "consumers/{vhost}",
        ("queue.name", "channel_details.name", "consumer_tag", "ack_required", "prefetch_count", "active", "arguments"),
        "consumers in vhost {vhost}",
    ),
    "list_users": Listing("users", ("user", "tags"), "users", {"user": "name"}),
    "list_user_permissions": Listing(
        "users/{user}/permissions", ("vhost", "configure", "write", "read"), 'permissions for user "{user}"', {}, "user"
    ),
    "list_vhosts": Listing("vhosts", ("name",), "vhosts"),
    "list_permissions": Listing("vhosts/{vhost}/permissions", ("user", "configure", "write", "read"), "permissions for vhost {vhost}"),
    "list_topic_permissions": Listing(
        "vhosts/{vhost}/topic-permissions", ("user", "exchange", "write", "read"), "topic permissions for vhost {vhost}"
    ),
    "list_policies": Listing("policies/{vhost}", _POLICY, "policies for vhost {vhost}"),
    "list_operator_policies": Listing("operator-policies/{vhost}", _POLICY, "operator policies for vhost {vhost}"),
    "list_parameters": Listing("parameters", ("vhost", "component", "name", "value"), "runtime parameters"),
    "list_global_parameters": Listing("global-parameters", ("name", "value"), "global runtime parameters"),
    "list_vhost_limits": Listing("vhost-limits", ("vhost", "value"), "limits of vhosts"),
    "shovel_status": Listing(
        "shovels/{vhost}",
        ("name", "state", "src_uri", "src_queue", "dest_uri", "dest_queue", "moved", "reason"),
        "shovels of vhost {vhost}",
    ),
    "federation_status": Listing(
        "federation-links/{vhost}",
        ("id", "type", "exchange", "queue", "upstream", "uri", "status", "moved", "error"),
        "links of federation of vhost {vhost}",
    ),
    "list_user_limits": Listing("user-limits", ("user", "value"), "limits of users"),
}


class Remote:
    """The API of one broker. Args: uri: of its HTTP port; user, password."""

    def __init__(self, uri: str, user: str, password: str) -> None:
        self._uri = uri
        self._credentials = base64.b64encode(f"{user}:{password}".encode()).decode()

    def of(self, user: str, password: str) -> Remote:
        """The same broker, asked by somebody else."""
        return Remote(self._uri, user, password)

    def ask(self, method: str, path: str, value: Any = None, headers: Mapping[str, str] | None = None) -> Any:
        """The answer's JSON, or None. Raises: OperatorError: 69 not reachable, 65 refused or not there, 77 not allowed, 70 otherwise."""
        body = None if value is None else json.dumps(value).encode()
        sent = {"Authorization": f"Basic {self._credentials}", "Content-Type": "application/json", **(headers or {})}
        connection = self._connection()
        try:
            connection.request(method, f"/api/{path}", body, sent)
            response = connection.getresponse()
            raw = response.read()
        except (OSError, http.client.HTTPException) as error:
            text = f"no broker answers at {self._uri}: {error}. Is it running, and is this its --http-port (--uri)?"
            raise OperatorError(text, 69) from None
        finally:
            connection.close()
        answer = json.loads(raw) if raw and "json" in response.headers.get("content-type", "") else None
        if response.status >= 400:
            reason = answer.get("reason", "") if isinstance(answer, dict) else ""
            raise OperatorError(f"{reason or response.reason} ({response.status})", _EXIT_CODES.get(response.status, 70))
        return answer

    def _connection(self) -> http.client.HTTPConnection:
        parts = urlsplit(self._uri)
        try:
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        if parts.scheme not in ("http", "https") or not host:
            raise OperatorError(f"--uri is {self._uri!r}: it must be like http://127.0.0.1:15672", 64)
        if parts.scheme == "https":
            return http.client.HTTPSConnection(host, port or 15671, timeout=TIMEOUT_S, context=ssl.create_default_context())
        return http.client.HTTPConnection(host, port or 15672, timeout=TIMEOUT_S)


class Session(NamedTuple):
    """What the options of the group say."""

    remote: Remote
    vhost: str
    quiet: bool
    formatter: str

    def path(self, template: str, **names: str) -> str:
        """The path with its names percent-encoded."""
        return template.format(**{key: quote(name, safe="") for key, name in {"vhost": self.vhost, **names}.items()})

    def say(self, text: str) -> None:
        if not self.quiet:
            click.echo(text)


def _at(value: Any, path: str) -> Any:
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _cell(value: Any) -> str:
    """As rabbitmqctl writes it."""
    if value is None:
        return ""
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return f"[{', '.join(value)}]"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def show(session: Session, rows: Sequence[dict[str, Any]], columns: Sequence[str], fields: Mapping[str, str] = {}) -> None:
    """A list in the form that was asked for. Args: fields: see Listing."""
    values = [{column: _at(row, fields.get(column, column)) for column in columns} for row in rows]
    if session.formatter == "json":
        click.echo(json.dumps(values, ensure_ascii=False))
        return
    lines = [columns, *([_cell(row[column]) for column in columns] for row in values)]
    if session.formatter == "csv":
        csv.writer(sys.stdout, lineterminator="\n").writerows(lines)
        return
    for line in lines[1:] if session.quiet else lines:
        click.echo("\t".join(cell.replace("\t", " ").replace("\n", " ") for cell in line))


def _behind_the_verb(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    """Callback of an option of the group that stands behind the verb, as with rabbitmqctl: it counts then."""

    def given(context: click.Context, _parameter: click.Parameter, value: Any) -> None:
        if value is not None and value is not False:
            session: Session = context.obj
            context.obj = session._replace(**{name: value})
            if name == "formatter" and value != "table":
                context.obj = context.obj._replace(quiet=True)

    return given


class Verbs(click.Group):
    """Commands that take options of the group, too; and values that begin with a dash, such as a limit of -1."""

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        cmd.params += [
            click.Option(["-p", "--vhost"], expose_value=False, callback=_behind_the_verb("vhost"), help="Virtual host."),
            click.Option(["-q", "--quiet"], is_flag=True, expose_value=False, callback=_behind_the_verb("quiet"), help="No headlines."),
            click.Option(["--formatter"], type=click.Choice(FORMATTERS), expose_value=False, callback=_behind_the_verb("formatter")),
        ]
        cmd.context_settings = {**cmd.context_settings, "ignore_unknown_options": True}
        super().add_command(cmd, name)


@click.group(cls=Verbs)
@click.option("--uri", envvar="FLINTMQ_URI", default="http://127.0.0.1:15672", show_default=True, help="The broker's HTTP port.")
@click.option("-u", "--user", envvar="FLINTMQ_USER", default="guest", show_default=True, help="Who asks; its tags decide what is allowed.")
@click.option("--password", envvar="FLINTMQ_PASSWORD", default="guest", help="Better the variable FLINTMQ_PASSWORD: others see arguments.")
@click.option("-p", "--vhost", default="/", show_default=True, help="Virtual host.")
@click.option("-q", "--quiet", is_flag=True, help="No headlines.")
@click.option("--formatter", type=click.Choice(FORMATTERS), default="table", show_default=True)
@click.pass_context
def ctl(context: click.Context, uri: str, user: str, password: str, vhost: str, quiet: bool, formatter: str) -> None:
    """Look at a running broker and change it, with the words of rabbitmqctl: flintmq ctl list_queues name messages."""
    context.obj = Session(Remote(uri, user, password), vhost, quiet or formatter != "table", formatter)


def _list_command(name: str, listing: Listing) -> click.Command:
    @click.pass_obj
    def run(session: Session, /, columns: tuple[str, ...], **of: str) -> None:
        shown = columns or listing.columns
        session.say(f"Listing {listing.what.format(vhost=session.vhost, **of)} ...")
        show(session, session.remote.ask("GET", session.path(listing.path, **of)), shown, listing.fields)

    columns = click.Argument(["columns"], nargs=-1, required=False)
    params: list[click.Parameter] = [*([click.Argument([listing.of])] if listing.of else []), columns]
    title = listing.what.format(vhost="of -p", **({listing.of: listing.of.upper()} if listing.of else {}))
    help_text = f"List {title}. COLUMNS: fields of the API, else {' '.join(listing.columns)}."
    return click.Command(name, callback=run, params=params, help=help_text)


for _name, _listing in LISTS.items():
    ctl.add_command(_list_command(_name, _listing))


def _change(name: str, words: str, method: str, path: str, make: Callable[..., Any], help_text: str) -> None:
    """Adds a command that is one request. Args: words: names of its arguments; make: the body, of the arguments (None: there is none)."""
    names = words.split()

    @click.pass_obj
    def run(session: Session, /, **arguments: str) -> None:
        session.remote.ask(
            method, session.path(path, **{key: text for key, text in arguments.items() if f"{{{key}}}" in path}), make(**arguments)
        )
        session.say(f"{name}: done")

    params: list[click.Parameter] = [click.Argument([each]) for each in names]
    ctl.add_command(click.Command(name, callback=run, params=params, help=help_text))


def _nothing(**_: str) -> None:
    return None


def _number(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


_change("add_user", "name password", "PUT", "users/{name}", lambda name, password: {"password": password, "tags": ""}, "Add a user.")
_change("delete_user", "name", "DELETE", "users/{name}", _nothing, "Delete a user; its connections are closed.")
_change(
    "set_permissions",
    "user configure write read",
    "PUT",
    "permissions/{vhost}/{user}",
    lambda user, **patterns: patterns,
    "Let a user work in the virtual host: regular expressions of names.",
)
_change("clear_permissions", "user", "DELETE", "permissions/{vhost}/{user}", _nothing, "Keep a user out of the virtual host.")
_change(
    "set_topic_permissions",
    "user exchange write read",
    "PUT",
    "topic-permissions/{vhost}/{user}",
    lambda user, **patterns: patterns,
    "Bound a user's routing keys at a topic exchange.",
)
_change("clear_topic_permissions", "user", "DELETE", "topic-permissions/{vhost}/{user}", _nothing, "Take those bounds away.")
_change("add_vhost", "name", "PUT", "vhosts/{name}", _nothing, "Add a virtual host; the asking user may do everything in it.")
_change("delete_vhost", "name", "DELETE", "vhosts/{name}", _nothing, "Delete a virtual host with all that is in it.")


def _trace_command(name: str, on: bool) -> None:
    @click.pass_obj
    def run(session: Session) -> None:
        path = session.path("vhosts/{vhost}")
        session.remote.ask("GET", path)  # a PUT alone would create it
        session.remote.ask("PUT", path, {"tracing": on})
        session.say(f"{name}: done")

    text = (
        "Copy what is published and delivered in -p to its exchange amq.rabbitmq.trace." if on else "No more copies to amq.rabbitmq.trace."
    )
    ctl.add_command(click.Command(name, callback=run, help=text))


_trace_command("trace_on", True)
_trace_command("trace_off", False)
_change(
    "set_vhost_limit",
    "limit value",
    "PUT",
    "vhost-limits/{vhost}/{limit}",
    lambda limit, value: {"value": _number(value)},
    "Set max-connections, max-queues and the like of the virtual host; -1: any number.",
)
_change("clear_vhost_limit", "limit", "DELETE", "vhost-limits/{vhost}/{limit}", _nothing, "Take a limit of the virtual host away.")
_change(
    "set_user_limit",
    "user limit value",
    "PUT",
    "user-limits/{user}/{limit}",
    lambda user, limit, value: {"value": _number(value)},
    "Set max-connections, max-channels or max-consumers of a user.",
)
_change("clear_user_limit", "user limit", "DELETE", "user-limits/{user}/{limit}", _nothing, "Take a limit of a user away.")


def _limits_commands(kind: str, of: str) -> None:
    """rabbitmqctl's: all limits at once. Args: kind: "vhost" or "user"; of: the argument that names it, "": it is -p."""
    names = [of] if of else []

    def put(session: Session, limits: Mapping[str, Any], given: Mapping[str, str]) -> None:
        name = given.get(of, session.vhost)
        known = session.remote.ask("GET", session.path(f"{kind}-limits/{{name}}", name=name))
        for limit in sorted({limit for one in known for limit in one["value"]} - limits.keys()):
            session.remote.ask("DELETE", session.path(f"{kind}-limits/{{name}}/{{limit}}", name=name, limit=limit))
        for limit, value in limits.items():
            session.remote.ask("PUT", session.path(f"{kind}-limits/{{name}}/{{limit}}", name=name, limit=limit), {"value": value})

    @click.pass_obj
    def set_all(session: Session, /, definition: str, **given: str) -> None:
        limits = _number(definition)
        if not isinstance(limits, dict):
            raise OperatorError('DEFINITION must be a JSON object, like {"max-connections": 64}', 64)
        put(session, limits, given)
        session.say(f"set_{kind}_limits: done")

    @click.pass_obj
    def clear_all(session: Session, /, **given: str) -> None:
        put(session, {}, given)
        session.say(f"clear_{kind}_limits: done")

    arguments: list[click.Parameter] = [click.Argument([name]) for name in names]
    whose = f"of {of.upper()}" if of else "of the virtual host"
    text = f'Set all limits {whose}: a DEFINITION like {{"max-connections": 64}} takes the place of those that there are.'
    ctl.add_command(click.Command(f"set_{kind}_limits", callback=set_all, params=[*arguments, click.Argument(["definition"])], help=text))
    ctl.add_command(click.Command(f"clear_{kind}_limits", callback=clear_all, params=[*arguments], help=f"Take all limits {whose} away."))


_limits_commands("vhost", "")
_limits_commands("user", "user")


@ctl.command("authenticate_user")
@click.argument("name")
@click.argument("password")
@click.pass_obj
def authenticate_user(session: Session, name: str, password: str) -> None:
    """Ask whether this is a user's password; exit code 65: it is not."""
    session.say(f'Authenticating user "{name}" ...')
    try:
        session.remote.of(name, password).ask("GET", "whoami")
    except OperatorError as error:
        # A user without management has logged in all the same.
        if error.exit_code == 77 and "Login failed" in str(error):
            raise OperatorError(f'failed to authenticate user "{name}"', 65) from None
        if error.exit_code != 77:
            raise
    session.say("Success")


_change("clear_policy", "name", "DELETE", "policies/{vhost}/{name}", _nothing, "Delete a policy.")
_change("clear_operator_policy", "name", "DELETE", "operator-policies/{vhost}/{name}", _nothing, "Delete an operator policy.")
_change(
    "set_global_parameter", "name value", "PUT", "global-parameters/{name}", lambda name, value: {"value": _number(value)}, "VALUE is JSON."
)
_change("clear_global_parameter", "name", "DELETE", "global-parameters/{name}", _nothing, "Delete a global parameter.")
_change(
    "set_parameter",
    "component name value",
    "PUT",
    "parameters/{component}/{vhost}/{name}",
    lambda component, name, value: {"value": _number(value)},
    "Set a parameter, of component shovel, federation-upstream or federation-upstream-set. VALUE is JSON.",
)
_change("clear_parameter", "component name", "DELETE", "parameters/{component}/{vhost}/{name}", _nothing, "Delete a parameter.")
_change("restart_shovel", "name", "DELETE", "shovels/vhost/{vhost}/{name}/restart", _nothing, "Let a shovel begin again.")
_change(
    "restart_federation_link",
    "id",
    "DELETE",
    "federation-links/vhost/{vhost}/{id}/restart",
    _nothing,
    "Let a link of federation begin again; its ID is in federation_status.",
)
_change("delete_shovel", "name", "DELETE", "shovels/vhost/{vhost}/{name}", _nothing, "Delete a shovel.")
_change("pause_queue", "queue", "PUT", "queues/{vhost}/{queue}/pause", _nothing, "Let deliveries of a queue rest; publishes go on.")
_change("resume_queue", "queue", "PUT", "queues/{vhost}/{queue}/resume", _nothing, "Let deliveries of a paused queue go on.")
_change("purge_queue", "queue", "DELETE", "queues/{vhost}/{queue}/contents", _nothing, "Delete all ready messages of a queue.")
_change(
    "cancel_scheduled", "position", "DELETE", "v1/schedules/{vhost}/{position}", _nothing, "Cancel a scheduled message, by its position."
)
_change("purge_scheduled", "", "DELETE", "v1/schedules/{vhost}", _nothing, "Cancel all scheduled messages of the virtual host.")


@ctl.command("list_scheduled")
@click.option("--count", type=int, default=50, show_default=True)
@click.option("--position", default="", help="Where to go on: `next` of the call before.")
@click.pass_obj
def list_scheduled(session: Session, count: int, position: str) -> None:
    """Messages that wait for their time, as JSON."""
    path = session.path("v1/schedules/{vhost}") + f"?count={count}" + (f"&position={quote(position, safe='')}" if position else "")
    click.echo(json.dumps(session.remote.ask("GET", path), indent=2))


_change("delete_queue", "queue", "DELETE", "queues/{vhost}/{queue}", _nothing, "Delete a queue.")


def _policy_command(name: str, path: str) -> None:
    @click.option("--priority", type=int, default=0, show_default=True)
    @click.option("--apply-to", default="all", show_default=True)
    @click.argument("policy")
    @click.argument("pattern")
    @click.argument("definition")
    @click.pass_obj
    def run(session: Session, policy: str, pattern: str, definition: str, priority: int, apply_to: str) -> None:
        try:
            value = json.loads(definition)
        except ValueError as error:
            raise OperatorError(f"DEFINITION is no JSON: {error}", 64) from None
        body = {"pattern": pattern, "definition": value, "priority": priority, "apply-to": apply_to}
        session.remote.ask("PUT", session.path(path, name=policy), body)
        session.say(f"{name}: done")

    ctl.command(name, help='Apply a DEFINITION like {"max-length": 1000} to queues or exchanges whose names match.')(run)


_policy_command("set_policy", "policies/{vhost}/{name}")
_policy_command("set_operator_policy", "operator-policies/{vhost}/{name}")


def _user_with(session: Session, name: str, **changed: Any) -> None:
    """A user with something changed and the rest kept."""
    path = session.path("users/{name}", name=name)
    known = session.remote.ask("GET", path)
    kept = {member: known[member] for member in ("password_hash", "hashing_algorithm", "tags")}
    session.remote.ask("PUT", path, kept | changed)


@ctl.command("set_user_tags")
@click.argument("name")
@click.argument("tags", nargs=-1)
@click.pass_obj
def set_user_tags(session: Session, name: str, tags: tuple[str, ...]) -> None:
    """Set a user's tags: those that are given, no others."""
    _user_with(session, name, tags=list(tags))
    session.say("set_user_tags: done")


@ctl.command("change_password")
@click.argument("name")
@click.argument("password")
@click.pass_obj
def change_password(session: Session, name: str, password: str) -> None:
    """Change a user's password."""
    _user_with(session, name, password=password, password_hash="")
    session.say("change_password: done")


@ctl.command("close_connection")
@click.argument("connection")
@click.argument("reason", default="closed by an operator")
@click.pass_obj
def close_connection(session: Session, connection: str, reason: str) -> None:
    """Close a connection, by its name in list_connections name; the client is told the REASON."""
    session.remote.ask("DELETE", session.path("connections/{name}", name=connection), None, {"X-Reason": reason})
    session.say("close_connection: done")


@ctl.command("status")
@click.pass_obj
def status(session: Session) -> None:
    """Show what the broker is, where it listens, and how much it has."""
    overview = session.remote.ask("GET", "overview")
    if session.formatter == "json":
        click.echo(json.dumps(overview))
        return
    click.echo(f"{overview['product_name']} {overview['product_version']}, node {overview['node']}, cluster {overview['cluster_name']}")
    for listener in overview["listeners"]:
        click.echo(f"listens: {listener['protocol']} {listener['ip_address']}:{listener['port']}")
    for name, count in {**overview["object_totals"], **overview["queue_totals"]}.items():
        if isinstance(count, int):
            click.echo(f"{name}: {count}")


@ctl.command("ping")
@click.pass_obj
def ping(session: Session) -> None:
    """Ask whether the broker answers."""
    session.remote.ask("GET", "whoami")
    session.say("Ping succeeded")


@ctl.command("export_definitions")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.pass_obj
def export_definitions(session: Session, file: Path) -> None:
    """Write users, virtual hosts, permissions, policies, queues, exchanges and bindings to FILE; it has password hashes (mode 0600)."""
    text = json.dumps(session.remote.ask("GET", "definitions"), indent=1, ensure_ascii=False)
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
        click.echo(f"passed over: {one['section']} '{one['name']}'{where}: {one['reason']}", err=True)
    if passed_over and answer["passed_over_count"] > len(passed_over):
        click.echo(f"passed over: {answer['passed_over_count'] - len(passed_over)} more", err=True)


@ctl.command("import_definitions")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.pass_obj
def import_definitions(session: Session, file: Path) -> None:
    """Read a definitions FILE of RabbitMQ, LavinMQ or FlintMQ. It adds and replaces, and deletes nothing."""
    try:
        value = json.loads(file.read_text())
    except ValueError as error:
        raise OperatorError(f"{file} is no JSON: {error}", 65) from None
    say_passed_over(session.remote.ask("POST", "definitions", value))
    session.say(f"import_definitions: {file}")
