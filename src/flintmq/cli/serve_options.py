"""The options of `flintmq serve`: their declarations, the same names as keys of a TOML file, and what excludes what.

in: words of the command line, a file. out: values by option. docs/CONFIGURATION.md is written of this table (tools/reference.py).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from flintmq.access.mechanisms import LOGIN_FROM, MECHANISMS
from flintmq.cli.limit_options import Size, limit_options, limits_of
from flintmq.cli.param_type import ParamType
from flintmq.config import FLIGHT_STARTS, MIB, Config
from flintmq.config.units import share_of, size_of
from flintmq.errors import OperatorError


class Port(ParamType[int | None]):
    """A TCP port, 0 for a free one, or `off`."""

    name = "port|off"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        if value is None or value == "off":
            return None
        try:
            port = int(value)
        except ValueError:
            self.fail(f"{value!r} is neither a port number nor 'off'", param, ctx)
        if not 0 <= port <= 65535:
            self.fail(f"{port} is not between 0 and 65535", param, ctx)
        return port


class Mode(ParamType[int]):
    """Permissions of a file, octal."""

    name = "mode"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            mode = int(value, 8)
        except ValueError:
            self.fail(f"{value!r} is no octal number", param, ctx)
        if not 0 <= mode <= 0o777:
            self.fail(f"{value!r} is not between 0 and 777", param, ctx)
        return mode


class MemoryOrSize(ParamType[int]):
    """Bytes: a size (config.units), or a share of the memory that the process may use. Args: most: the largest share."""

    name = "size|share"

    def __init__(self, most: float) -> None:
        self.most = most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            share = share_of(value, self.most)
            size = size_of(value) if share is None else 0
        except ValueError as error:
            self.fail(f"{error}; or a share of the memory such as 60%", param, ctx)
        if share is not None:
            from flintmq.node import memory_available

            size = int(memory_available() * share)
        if size < 1:
            self.fail(f"{value!r} is less than one byte", param, ctx)
        return size


def from_file(path: str, ctx: click.Context) -> dict[str, Any]:
    """Options of a TOML file: the names of the command line with `_` or `-`. The command line wins."""
    import tomllib  # compiles patterns: a start without a file does not wait for it

    try:
        content = tomllib.loads(Path(path).read_text())
    except OSError as error:
        raise OperatorError(f"--config {path}: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise OperatorError(f"--config {path}: {error}") from error
    known = {param.name: param for param in ctx.command.params if param.name != "config"}
    known["http_host"] = known["http_hosts"]
    known["shovel_host"] = known["shovel_hosts"]
    known["ldap_tag_query"] = known["ldap_tag_queries"]
    known["ldap_url"] = known["ldap_urls"]
    for name in ("auth_mechanism", "oauth_scopes_claim", "oauth_username_claim", "oauth_algorithm", "websocket_origin"):
        known[name] = known[f"{name}s"]
    options = {}
    for key, value in content.items():
        name = key.replace("-", "_")
        if name not in known:
            import difflib

            near = difflib.get_close_matches(name, known, 1)
            raise OperatorError(f"--config {path}: unknown key '{key}'" + (f", did you mean '{near[0]}'?" if near else ""))
        options[known[name].name or name] = _checked(path, name, value, known[name], ctx)
    return options


def _checked(path: str, name: str, value: Any, option: click.Parameter, ctx: click.Context) -> Any:
    """A value of the file, under the same rules as on the command line. Raises: OperatorError (78)."""
    shown = f"--config {path}: {name.replace('_', '-')} = {value!r}"
    if isinstance(option, click.Option) and option.is_flag:
        if not isinstance(value, bool):
            raise OperatorError(f"{shown}: it is either true or false")
        return value
    if option.multiple:
        values = value if isinstance(value, list) else [value]
        if not all(isinstance(one, str) for one in values):
            raise OperatorError(f"{shown}: a string or a list of strings is expected")
        return tuple(values)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise OperatorError(f"{shown}: a string or a number is expected")
    try:
        return option.type.convert(str(value), option, ctx)
    except click.BadParameter as error:
        raise OperatorError(f"{shown}: {error.message}") from error


def refuse_contradictions(options: dict[str, Any]) -> None:
    """Raises: OperatorError, exit code 64: options that exclude or need each other, an unknown mechanism."""
    if options["no_data_dir"] and not options["store_dir"] and not options["memory"]:
        raise OperatorError("--no-data-dir needs --store-dir (or --memory)", 64)
    if options["memory"] and (options["store_dir"] or options["connect"]):
        raise OperatorError("--memory keeps nothing: it can't be combined with --store-dir or --connect", 64)
    if options["cluster"] and options["memory"]:
        raise OperatorError("--cluster names the engine of shared queues: it can't be combined with --memory", 64)
    if options["cluster_ca"] and not (options["cluster"] and options["tls_cert"]):
        raise OperatorError("--cluster-ca is for nodes that reach each other by TLS: it needs --cluster and --tls-cert", 64)
    if options["metrics_port"] is not None and options["http_port"] is None:
        raise OperatorError("--metrics-port is served by the HTTP service: it can't be combined with --http-port off", 64)
    if options["tls_key"] and not options["tls_cert"]:
        raise OperatorError("--tls-key needs --tls-cert", 64)
    if (options["tls_ca"] or options["tls_require_client"]) and not options["tls_cert"]:
        raise OperatorError("--tls-ca and --tls-require-client need --tls-cert", 64)
    if options["tls_require_client"] and not options["tls_ca"]:
        raise OperatorError("--tls-require-client needs --tls-ca: who signs the clients' certificates", 64)
    for name in options["auth_mechanisms"]:
        if name not in MECHANISMS:
            raise OperatorError(f"--auth-mechanism {name}: it is one of {', '.join(MECHANISMS)} (EXTERNAL comes with --tls-ca)", 64)


# in the order of `flintmq serve --help`
_OPTIONS: tuple[Callable[[Callable[..., Any]], Callable[..., Any]], ...] = (
    click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on."),
    click.option("--port", type=Port(), default="5672", show_default=True, help="AMQP port; 0 picks a free one."),
    click.option("--tls-port", type=Port(), default="5671", show_default=True, help="AMQPS port with --tls-cert, or 'off'."),
    click.option("--tls-cert", type=click.Path(), help="Certificate chain (PEM): turns TLS on."),
    click.option("--tls-key", type=click.Path(), help="Private key (PEM) of the certificate."),
    click.option("--tls-ca", type=click.Path(), help="Certificates (PEM) of those who sign clients' certificates: turns EXTERNAL on."),
    click.option("--tls-require-client", is_flag=True, help="Let in no AMQPS client without a certificate."),
    click.option(
        "--tls-login-from",
        type=click.Choice(LOGIN_FROM),
        default=LOGIN_FROM[0],
        show_default=True,
        help="What of a client's certificate names its user.",
    ),
    click.option(
        "--auth-mechanism",
        "auth_mechanisms",
        multiple=True,
        default=("PLAIN", "AMQPLAIN"),
        show_default=True,
        help=f"A SASL mechanism that AMQP offers (repeatable, in the order of preference): {', '.join(MECHANISMS)}.",
    ),
    click.option("--oauth-resource-server-id", help="The name of this broker in the tokens of OAuth 2 (aud): turns them on."),
    click.option("--oauth-jwks", help="Keys that tokens are signed with (JSON Web Key Set): an https URL, or a file."),
    click.option("--oauth-ca", type=click.Path(), help="Certificates (PEM) of those who sign the key server's; default: the system's."),
    click.option("--oauth-issuer", help="What a token must have as its issuer (iss)."),
    click.option("--oauth-scope-prefix", help="Prefix of the scopes for this broker; default: its name and a dot."),
    click.option("--oauth-scopes-claim", "oauth_scopes_claims", multiple=True, help="A claim with scopes besides 'scope' (repeatable)."),
    click.option(
        "--oauth-username-claim",
        "oauth_username_claims",
        multiple=True,
        default=("sub", "client_id"),
        show_default=True,
        help="A claim that names the user (repeatable; the first that is there).",
    ),
    click.option(
        "--oauth-algorithm",
        "oauth_algorithms",
        multiple=True,
        default=("RS256", "ES256", "EdDSA"),
        show_default=True,
        help="An algorithm of signatures that is accepted (repeatable).",
    ),
    click.option("--oauth-verify-audience/--no-oauth-verify-audience", default=True, show_default=True, help="Refuse tokens of others."),
    click.option(
        "--ldap-url", "ldap_urls", multiple=True, help="A directory that checks passwords (repeatable): ldaps://HOST, ldap://HOST."
    ),
    click.option("--ldap-starttls", is_flag=True, help="Begin TLS with STARTTLS at ldap:// servers."),
    click.option("--ldap-ca", type=click.Path(), help="Certificates (PEM) of those who sign the directory's; default: the system's."),
    click.option("--ldap-user-dn", help="DN of a user's entry, with ${username}."),
    click.option("--ldap-base", help="DN below which the entries of users are looked for."),
    click.option("--ldap-attribute", default="uid", show_default=True, help="Attribute that names users there."),
    click.option("--ldap-bind-dn", help="DN of an account that looks for users and groups; default: the user looks."),
    click.option("--ldap-bind-password-file", type=click.Path(), help="File with the password of that account."),
    click.option("--ldap-group-base", help="DN below which groups are looked for; default: --ldap-base."),
    click.option(
        "--ldap-vhost-query",
        help="Who may open a virtual host, as RabbitMQ's vhost_access_query: lets in whom the broker has no record of.",
    ),
    click.option(
        "--ldap-resource-query", default="{constant, true}", show_default=True, help="What such users may do to queues and exchanges."
    ),
    click.option(
        "--ldap-topic-query", default="{constant, true}", show_default=True, help="Routing keys of topic exchanges that they may use."
    ),
    click.option("--ldap-tag-query", "ldap_tag_queries", multiple=True, help="TAG=QUERY: who has a tag of management (repeatable)."),
    click.option(
        "--proxy-from",
        multiple=True,
        help="Address or network of a proxy (repeatable): AMQP's connections from there begin with a header of the PROXY protocol,"
        " v1 or v2.",
    ),
    click.option(
        "--http-proxy-from",
        multiple=True,
        help="Address or network of a proxy (repeatable): HTTP's connections from there begin with a header of the PROXY protocol,"
        " v1 or v2.",
    ),
    click.option("--unix-socket", type=click.Path(), help="Path of a Unix domain socket for AMQP."),
    click.option("--unix-socket-mode", type=Mode(), default="600", show_default=True, help="Permissions of the socket's file, octal."),
    click.option(
        "--websocket-port", type=Port(), default="off", show_default=True, help="Port for AMQP over WebSocket; TLS with --tls-cert."
    ),
    click.option("--websocket-origin", "websocket_origins", multiple=True, help="Origin of pages that may use it (repeatable; '*': any)."),
    click.option(
        "--otel-endpoint", help="URL of an OpenTelemetry collector (OTLP/HTTP): it gets spans of messages whose trace is sampled."
    ),
    click.option(
        "--otel-sample",
        type=click.FloatRange(0, 1, min_open=True),
        default=1.0,
        show_default=True,
        help="Share of the traces that clients sample which get spans here.",
    ),
    click.option("--audit-log", type=click.Path(), help="File for refused accesses and changes of definitions; they are in the log, too."),
    click.option(
        "--log-exchange",
        is_flag=True,
        help="Lines of the log are messages of the exchange amq.rabbitmq.log in virtual host / too: who may read it reads names of"
        " all users.",
    ),
    click.option(
        "--http-port",
        type=Port(),
        default="15672",
        show_default=True,
        help="HTTP port for pulls, figures, metrics and health, 0 for a free one, or 'off'; HTTPS with --tls-cert.",
    ),
    click.option(
        "--http-host",
        "http_hosts",
        multiple=True,
        help="A further name by which HTTP clients call this broker (repeatable; '*': any). Addresses, localhost, --host and this machine's"
        " name are always right.",
    ),
    click.option(
        "--metrics-port",
        type=Port(),
        default="off",
        show_default=True,
        help="Port for metrics and health alone, beside --http-port (RabbitMQ's is 15692).",
    ),
    click.option(
        "--metrics-public",
        is_flag=True,
        help="Metrics need no login. Without this they need none on a --host of this machine only; elsewhere a user with the tag"
        " monitoring.",
    ),
    click.option(
        "--shovel-host",
        "shovel_hosts",
        multiple=True,
        help="A host that shovels and federation may reach (repeatable): a name, '*.domain', an address, a network like 10.0.0.0/8, or '*'."
        " Without one an administrator's links reach any host, other users' links none.",
    ),
    click.option(
        "--flight-port",
        type=Port(),
        default="15680",
        show_default=True,
        help="Arrow Flight port for the data pipeline, 0 for a free one, or 'off'; needs pyarrow, and a store (not --memory).",
    ),
    click.option(
        "--flight-start",
        type=click.Choice(FLIGHT_STARTS),
        default=FLIGHT_STARTS[0],
        show_default=True,
        help="When the process that serves Arrow Flight starts (70 MiB): with the first connection to its port, or with the broker.",
    ),
    click.option("--data-dir", type=click.Path(), help="Directory of the broker; default: flintmq in the user's data directory."),
    click.option("--store-dir", type=click.Path(), help="Directory of the durable store; default: the data directory."),
    click.option("--no-data-dir", is_flag=True, help="Run without a data directory; --store-dir must then be given."),
    click.option("--connect", help="URL of the SQL database for definitions."),
    click.option(
        "--cluster",
        help="Engine of the cluster that this node is a member of: etcd://[USER:PASSWORD@]HOST:PORT,..., postgresql://..., fdb:PATH of a"
        " cluster file, or file:PATH of a file with that; default: none, and shared queues are in the store directory.",
    ),
    click.option(
        "--cluster-ca",
        type=click.Path(),
        help="PEM file of the authorities of other nodes' certificates: nodes reach each other by TLS; default: without TLS.",
    ),
    click.option("--node-name", help="Name of this node, its own in the cluster; default: flintmq@ and the machine's name."),
    click.option("--advertise-host", help="Host by which other machines reach this node; default: --host, or the machine's name."),
    click.option("--catalog", help="SQL database (schema) name."),
    click.option("--container-size", type=Size(1), default=4 * MIB, show_default=True, help="Bytes of a log container."),
    click.option(
        "--initial-containers", type=click.IntRange(1, 10_000), default=2, show_default=True, help="Containers of a new log (at least 2)."
    ),
    click.option(
        "--max-write-buffers",
        type=click.IntRange(1, 4096),
        default=10,
        show_default=True,
        help="MiB of log not written yet before publishers wait.",
    ),
    click.option(
        "--log-retain-bytes",
        type=Size(),
        default=256 * MIB,
        show_default=True,
        help="Dead log containers kept readable; 0: none.",
    ),
    click.option(
        "--log-retain-age",
        type=click.IntRange(0),
        default=86_400,
        show_default=True,
        help="Seconds that dead log containers are kept; 0: not.",
    ),
    click.option("--log-archive-dir", help="Directory for copies of dead log containers; default: none are made."),
    click.option(
        "--direct-io/--no-direct-io",
        default=True,
        show_default=True,
        help="Write the log around the page cache, on ext4 and XFS; else through it. Syncs are the same.",
    ),
    click.option("--memory", is_flag=True, help="Keep nothing on disk."),
    click.option(
        "--memory-limit",
        type=MemoryOrSize(1.0),
        help="Memory held for clients at which publishers are blocked: a size such as 2GB, or a share of the memory; default: 60%.",
    ),
    click.option(
        "--disk-free-limit",
        type=MemoryOrSize(10.0),
        help="Free space of the store's disk below which publishers are blocked: a size such as 5GB, or a share of the memory (100%);"
        " default: what the log needs, some 30 MiB.",
    ),
    click.option(
        "--content-memory",
        type=Size(),
        help="Bytes of message content that queues in motion may keep in memory; default a sixteenth of the memory limit, at most 512 MiB.",
    ),
    click.option("--io-threads", type=click.IntRange(1, 64), default=1, show_default=True, help="I/O threads."),
    click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True),
    click.option("--config", type=click.Path(), help="TOML file with these options; the command line wins."),
)


def with_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: the function takes the options of `flintmq serve`."""
    for option in reversed(_OPTIONS):
        function = option(function)
    own: list[click.Parameter] = function.__click_params__  # type: ignore[attr-defined]  # click's list, the last one first
    own[:0] = reversed(limit_options())
    return function


def config_of(options: dict[str, Any], inherited: tuple[tuple[str, int], ...]) -> Config:
    """The settings that the options name. Args: inherited: listening sockets of the service manager (Config.inherited)."""
    others, limits = limits_of(options)
    config = Config(**others, inherited=inherited)
    return config.with_limits(**limits) if limits else config
