"""`flintmq import`: what an installation of RabbitMQ has, for this broker: rabbitmq.conf as options of `flintmq serve`, definitions into a
running broker.

in: a file. out: TOML for `flintmq serve --config`; a line for each key that has no place there, and why; a broker with the definitions.

C1  No line of the file is passed over: each key is in the output, explained, or named as unknown.
C2  A value that can't be read ends nothing: its key is named with the mistake. Passwords are not shown.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from flintmq.access.mechanisms import LOGIN_FROM
from flintmq.cli.limit_options import LIMIT_OPTIONS, LimitOption
from flintmq.config.units import share_of, size_of
from flintmq.errors import OperatorError
from flintmq.loglines import one_line

# bytes of a file that are read
FILE_BYTES_MAX = 16 << 20
_LEVELS = {"debug": "debug", "info": "info", "notice": "info", "warning": "warning", "error": "error", "critical": "error", "none": "error"}


class Wrong(ValueError):
    """A value that can't be read. `str`: why."""


@dataclass(slots=True)
class Result:
    """options: of `flintmq serve`, in TOML's types; notes: what has no place there, by key; unknown: keys nobody knows, by line."""

    options: dict[str, str | int | bool] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and int(text) <= 65_535):
        raise Wrong("is no port")
    return int(text)


def _boolean(text: str) -> bool:
    if text not in ("true", "false", "on", "off", "yes", "no"):
        raise Wrong("is neither true nor false")
    return text in ("true", "on", "yes")


def _bytes(text: str) -> int:
    try:
        return size_of(text)
    except ValueError:
        raise Wrong("is no size such as 2GB") from None


def _listener(result: Result, text: str, port: str) -> None:
    if text == "none":
        result.options[port] = "off"
        return
    host, colon, number = text.rpartition(":")
    result.options[port] = _port(number)
    if colon:
        _host(result, host.strip("[]"))


def _host(result: Result, host: str) -> None:
    """There is one address for all listeners."""
    before = result.options.get("host")
    if before not in (None, host):
        raise Wrong(f"is another address than {before}: FlintMQ listens on one (0.0.0.0 is all)")
    result.options["host"] = host


def _relative(option: str, most: float) -> Callable[[Result, str], None]:
    """A share of the memory, which stays one: the file may go to another machine."""

    def put(result: Result, text: str) -> None:
        try:
            share = share_of(text if "." in text else f"{text}.0", most)
        except ValueError:
            share = None
        if share is None:
            raise Wrong(f"is no share above 0 and at most {most:g}")
        result.options[option] = f"{share * 100:.10g}%"

    return put


def _limit(option: LimitOption) -> Callable[[Result, str], None]:
    """A number, or a size, within the range that the option takes."""

    def put(result: Result, text: str) -> None:
        try:
            result.options[option.name] = option.kind.convert(text, None, None)
        except click.BadParameter as error:
            raise Wrong(f"can't be {option.name}: {error.message}") from None

    return put


def _level(result: Result, text: str) -> None:
    if text not in _LEVELS:
        raise Wrong(f"is none of {', '.join(_LEVELS)}")
    result.options["log-level"] = _LEVELS[text]


def _login_from(result: Result, text: str) -> None:
    if text not in LOGIN_FROM:
        raise Wrong(f"is none of {', '.join(LOGIN_FROM)}")
    result.options["tls-login-from"] = text


def _required(result: Result, text: str) -> None:
    if _boolean(text):
        result.options["tls-require-client"] = True
    else:
        result.notes.append("ssl_options.fail_if_no_peer_cert: clients without a certificate are let in, as ever")


def _set(option: str, read: Callable[[str], str | int | bool] = str) -> Callable[[Result, str], None]:
    def put(result: Result, text: str) -> None:
        result.options[option] = read(text)

    return put


# a pattern of keys (`*`: one part of it) -> what is done with its value
_MAPPED: dict[str, Callable[[Result, str], None]] = {
    "listeners.tcp": lambda result, text: _listener(result, text, "port"),
    "listeners.tcp.*": lambda result, text: _listener(result, text, "port"),
    "listeners.ssl": lambda result, text: _listener(result, text, "tls-port"),
    "listeners.ssl.*": lambda result, text: _listener(result, text, "tls-port"),
    "ssl_options.certfile": _set("tls-cert"),
    "ssl_options.keyfile": _set("tls-key"),
    "ssl_options.cacertfile": _set("tls-ca"),
    "ssl_options.fail_if_no_peer_cert": _required,
    "ssl_cert_login_from": _login_from,
    "management.tcp.port": _set("http-port", _port),
    "management.listener.port": _set("http-port", _port),
    "management.tcp.ip": lambda result, text: _host(result, text),
    "management.listener.ip": lambda result, text: _host(result, text),
    "prometheus.tcp.port": _set("metrics-port", _port),
    "log.console.level": _level,
    "log.file.level": _level,
    "log.level": _level,
    "log.exchange": _set("log-exchange", _boolean),
    "auth_ldap.user_dn_pattern": _set("ldap-user-dn"),
    "auth_ldap.dn_lookup_base": _set("ldap-base"),
    "auth_ldap.dn_lookup_attribute": _set("ldap-attribute"),
    "auth_ldap.group_lookup_base": _set("ldap-group-base"),
    "vm_memory_high_watermark.relative": _relative("memory-limit", 1.0),
    "vm_memory_high_watermark.absolute": _set("memory-limit", _bytes),
    "disk_free_limit.relative": _relative("disk-free-limit", 10.0),
    "disk_free_limit.absolute": _set("disk-free-limit", _bytes),
    **{one.rabbitmq: _limit(one) for one in LIMIT_OPTIONS if one.rabbitmq},
}
# RabbitMQ's other names of the same: of 4.x, and of old files
_MAPPED |= {
    "max_connections": _MAPPED["connection_max"],
    "max_channels_per_connection": _MAPPED["channel_max"],
    "vm_memory_high_watermark": _MAPPED["vm_memory_high_watermark.relative"],
}

_SAME = "nothing to set"
_OAUTH = "tokens of OAuth 2 have options of their own: --oauth-resource-server-id, --oauth-jwks and others (docs/ACCESS.md)"
# a pattern of keys (`**`: any number of parts) -> why it has no place in the output; {value} is shown only where no secret can stand
_EXPLAINED: dict[str, str] = {
    "default_user": "flintmq user add NAME, before the first start or while it runs (flintmq ctl add_user)",
    "default_pass": "flintmq ctl change_password; a password does not stand in a file",
    "default_pass.*": "flintmq ctl change_password",
    "default_user_tags.*": "flintmq ctl set_user_tags",
    "default_vhost": "flintmq ctl add_vhost",
    "default_permissions.*": "flintmq ctl set_permissions",
    "default_users.*.*": "flintmq ctl add_user, set_user_tags and set_permissions",
    "default_policies.*": "flintmq ctl set_policy and set_operator_policy",
    "default_limits.*": "flintmq ctl set_vhost_limit",
    "load_definitions": "flintmq import {value}, when the broker runs",
    "definitions.*": "flintmq import FILE, when the broker runs",
    "management.load_definitions": "flintmq import {value}, when the broker runs",
    "loopback_users": "user guest may come from this machine only: give other users permissions instead",
    "loopback_users.*": "user guest may come from this machine only: give other users permissions instead",
    "channel_max_per_node": "flintmq ctl set_user_limit NAME max-channels bounds a user",
    "session_max_per_connection": f"{_SAME}: it is of AMQP 1.0",
    "initial_frame_max": "frames before a login have at most 8 KiB",
    "default_consumer_prefetch.*": "clients set theirs (basic.qos)",
    "vm_memory_high_watermark_paging_ratio": f"{_SAME}: bodies leave memory by queue_hot_bytes",
    "vm_memory_calculation_strategy": f"{_SAME}: what clients make the broker hold is counted",
    "memory_monitor_interval": _SAME,
    "total_memory_available_override_value": "memory-limit may be a size such as 2GB",
    "background_gc_enabled": _SAME,
    "background_gc_target_interval": _SAME,
    "collect_statistics": f"{_SAME}: counters cost nothing",
    "collect_statistics_interval": f"{_SAME}: samples are taken each second",
    "management.rates_mode": f"{_SAME}: counters cost nothing",
    "management.sample_retention_policies.*.*": f"{_SAME}: five minutes, an hour and a day are kept",
    "management.ssl.*": "HTTP is HTTPS with the certificate of tls-cert",
    "management.http_log_dir": "the log has what is refused; audit-log is a file of changes",
    "management.path_prefix": "not there: let a proxy take the prefix off",
    "management.cors.*": "not there: pages of other sites are refused",
    "management.cors.*.*": "not there: pages of other sites are refused",
    "management.csp.policy": f"{_SAME}: the console has a strict one",
    "management.hsts.policy": "let a proxy in front say it",
    "management.login_session_timeout": "a session of the console has a time of its own (docs/CONFIGURATION.md)",
    "management.disable_stats": f"{_SAME}: counters cost nothing",
    "management_agent.disable_metrics_collector": _SAME,
    "prometheus.tcp.ip": "metrics are at http-port, path /metrics",
    "prometheus.path": "metrics are at /metrics, /metrics/per-object and /metrics/detailed",
    "prometheus.return_per_object_metrics": "ask for /metrics/per-object",
    "prometheus.ssl.*": "HTTP is HTTPS with the certificate of tls-cert",
    "log.console": "lines of the log go to stderr: the service manager keeps them",
    "log.file": "lines of the log go to stderr: the service manager keeps them",
    "log.file.*": "lines of the log go to stderr: the service manager keeps and rotates them",
    "log.file.*.*": "lines of the log go to stderr: the service manager keeps and rotates them",
    "log.dir": "lines of the log go to stderr: the service manager keeps them",
    "log.console.*": "lines of the log are plain text",
    "log.*.level": "there is one level for all: log-level",
    "log.exchange.level": "there is one level for all: log-level",
    "log.exchange.*": "lines of the exchange are plain text",
    "log.syslog": "lines of the log go to stderr: the service manager keeps them",
    "log.syslog.*": "lines of the log go to stderr: the service manager keeps them",
    "log.syslog.*.*": "lines of the log go to stderr: the service manager keeps them",
    "log.journald": "lines of the log go to stderr: the service manager keeps them",
    "log.journald.*": "lines of the log go to stderr: the service manager keeps them",
    "ssl_options.verify": "clients' certificates are checked when tls-ca is given",
    "ssl_options.versions.*": f"{_SAME}: TLS 1.2 and 1.3",
    "ssl_options.ciphers.*": f"{_SAME}: those of OpenSSL's default",
    "ssl_options.depth": _SAME,
    "ssl_options.password": "give a key without a password, readable by the broker alone",
    "ssl_options.honor_cipher_order": _SAME,
    "ssl_options.honor_ecc_order": _SAME,
    "ssl_options.client_renegotiation": f"{_SAME}: there is none",
    "ssl_options.secure_renegotiate": f"{_SAME}: there is none",
    "auth_mechanisms.*": "all that the broker has are offered",
    "auth_backends.*": "users are those of the broker's definitions; --oauth-... and --ldap-... let in others",
    "auth_backends.*.*": "users are those of the broker's definitions; --oauth-... and --ldap-... let in others",
    "tcp_listen_options": _SAME,
    "tcp_listen_options.*": f"{_SAME}: TCP_NODELAY is on, the backlog is large",
    "tcp_listen_options.*.*": _SAME,
    "num_acceptors.*": "io-threads; one is enough for most",
    "reverse_dns_lookups": f"{_SAME}: there are none",
    "proxy_protocol": "--proxy-from ADDRESS: the proxies whose header is believed",
    "hipe_compile": _SAME,
    "delegate_count": _SAME,
    "queue_index_embed_msgs_below": _SAME,
    "queue_master_locator": f"{_SAME}: nodes of a cluster are joined by --cluster",
    "queue_leader_locator": f"{_SAME}: nodes of a cluster are joined by --cluster",
    "default_queue_type": "flintmq ctl add_vhost NAME --default-queue-type {value}; update_vhost_metadata for those that are there",
    "cluster_name": "flintmq ctl set_cluster_name '{value}'",
    "cluster_partition_handling": f"{_SAME}: nodes of a cluster are joined by --cluster",
    "cluster_partition_handling.*.*": f"{_SAME}: nodes of a cluster are joined by --cluster",
    "cluster_keepalive_interval": f"{_SAME}: nodes of a cluster are joined by --cluster",
    "cluster_formation.*": f"{_SAME}: nodes of a cluster are joined by --cluster",
    "cluster_formation.*.*": f"{_SAME}: nodes of a cluster are joined by --cluster",
    "cluster_formation.*.*.*": f"{_SAME}: nodes of a cluster are joined by --cluster",
    "net_ticktime": f"{_SAME}: nodes of a cluster are joined by --cluster",
    "distribution.*.*": f"{_SAME}: nodes of a cluster are joined by --cluster",
    "raft.*": f"{_SAME}: nodes of a cluster are joined by --cluster",
    "quorum_queue.*": _SAME,
    "quorum_queue.*.*": _SAME,
    "classic_queue.*": _SAME,
    "mirroring_sync_batch_size": f"{_SAME}: nodes of a cluster are joined by --cluster",
    "mnesia_table_loading_retry_timeout": _SAME,
    "mnesia_table_loading_retry_limit": _SAME,
    "msg_store_file_size_limit": "container-size",
    "mqtt.*": "MQTT is not there",
    "mqtt.*.*": "MQTT is not there",
    "mqtt.*.*.*": "MQTT is not there",
    "stomp.*": "STOMP is not there",
    "stomp.*.*": "STOMP is not there",
    "stomp.*.*.*": "STOMP is not there",
    "stream.*": "RabbitMQ's stream protocol is not there: streams are read by basic.consume and over HTTP",
    "stream.*.*": "RabbitMQ's stream protocol is not there: streams are read by basic.consume and over HTTP",
    "web_mqtt.*.*": "MQTT is not there",
    "web_stomp.*.*": "STOMP is not there",
    "amqp1_0.*": "AMQP 1.0 is not there",
    "auth_ldap.servers.*": "--ldap-url ldaps://{value}, or ldap://{value} with --ldap-starttls",
    "auth_ldap.dn_lookup_bind.*": "--ldap-bind-dn and --ldap-bind-password-file; without them the user looks (as_user)",
    "auth_ldap.ssl_options.*": "--ldap-ca; the server's certificate and its name are always checked",
    "auth_ldap.*": "directories have options of their own: --ldap-url, --ldap-vhost-query and others (docs/ACCESS.md)",
    "auth_ldap.*.*": "directories have options of their own: --ldap-url, --ldap-vhost-query and others (docs/ACCESS.md)",
    "auth_http.*": "an HTTP backend is not there",
    "auth_oauth2.*": _OAUTH,
    "auth_oauth2.*.*": _OAUTH,
    "auth_cache.*": _SAME,
    "trace_vhosts.*": "flintmq ctl trace_on",
    "amqp10_client.**": "shovels and federation reach other brokers by AMQP 0-9-1; TLS options stand in their URIs",
    "amqp_client.**": "TLS options of shovels and federation stand in their URIs",
    "anonymous_login_*": "nobody logs in without a name: give such clients a user of their own",
    "auth_cache.**": _SAME,
    "auth_http.**": "an HTTP backend is not there",
    "auth_ldap.**": "directories have options of their own: --ldap-url, --ldap-vhost-query and others (docs/ACCESS.md)",
    "aws.**": "nodes find each other by --cluster",
    "channel_interceptor.**": f"{_SAME}: there are no interceptors of channels",
    "message_interceptors.**": f"{_SAME}: there are no interceptors of messages",
    "cluster_exchange_limit": "flintmq ctl set_vhost_limit max-exchanges bounds a virtual host",
    "cluster_queue_limit": "flintmq ctl set_vhost_limit max-queues bounds a virtual host; --queue-max is for all of them",
    "cluster_formation.**": f"{_SAME}: nodes find each other by --cluster",
    "cluster_partition_handling.**": f"{_SAME}: the engine of --cluster decides",
    "cluster_tags.*": f"{_SAME}: names of nodes tell them apart",
    "node_tags.*": f"{_SAME}: names of nodes tell them apart",
    "consumer_disconnected_timeout": _SAME,
    "credential_validator.*": "not there: administrators alone set passwords",
    "password_hashing_module": f"{_SAME}: new passwords are hashed by argon2id; hashes of definitions files are taken as they are",
    "default_limits.**": "flintmq ctl set_vhost_limit",
    "default_policies.**": "flintmq ctl set_policy and set_operator_policy",
    "default_worker_pool_size": _SAME,
    "definitions.**": "flintmq import FILE, when the broker runs",
    "distribution.**": f"{_SAME}: nodes reach each other on the ports of AMQP and HTTP",
    "erlang.*": _SAME,
    "event_exchange.*": f"{_SAME}: exchange amq.rabbitmq.event is in virtual host /",
    "exchange_types.**": f"{_SAME}: all types are there",
    "queue_types.**": f"{_SAME}: all types are there",
    "federation.**": _SAME,
    "http_dispatch.**": "HTTP asks the same users as AMQP; its refusals are in the log",
    "link_max_per_session": f"{_SAME}: it is of AMQP 1.0",
    "log.**": "lines of the log go to stderr: the service manager keeps and rotates them",
    "management.credential_encryption_secret": f"{_SAME}: URIs are kept as they are, and shown without passwords",
    "management.db_cache_multiplier": _SAME,
    "management.definitions.**": _SAME,
    "management.delegate_count": _SAME,
    "management.disable_basic_auth": "not there: HTTP logs in by Basic, or by a token of OAuth 2",
    "management.enable_queue_totals": f"{_SAME}: totals are always there",
    "management.headers.*": f"{_SAME}: answers have strict ones",
    "management.http.*": _SAME,
    "management.listener.**": "HTTP is HTTPS with the certificate of tls-cert; its times and sizes are in docs/CONFIGURATION.md",
    "management.tcp.**": "times and sizes of HTTP are in docs/CONFIGURATION.md",
    "management.ssl.**": "HTTP is HTTPS with the certificate of tls-cert",
    "management.oauth_**": _OAUTH,
    "management.require_auth_for_api_reference": f"{_SAME}: it needs a login",
    "management.restrictions.**": "not there: operator policies are an administrator's",
    "management_agent.*": _SAME,
    "message_store_shutdown_timeout": "stop-timeout",
    "metadata_store.**": _SAME,
    "mirroring_*": f"{_SAME}: there are no mirrors",
    "motd_file": _SAME,
    "mqtt.**": "MQTT is not there",
    "prevent_startup_if_node_was_reset": f"{_SAME}: a store that lost a part does not start",
    "product.*": _SAME,
    "prometheus.authentication.enabled": "metrics need a login unless --metrics-public is given",
    "prometheus.**": "metrics are at http-port, path /metrics, and at --metrics-port",
    "raft.**": _SAME,
    "ranch_connection_max": "connection-max",
    "runtime_parameters.**": "limits of parameters are in docs/CONFIGURATION.md",
    "shovel.**": _SAME,
    "socket_writer.*": _SAME,
    "ssl_allow_poodle_attack": f"{_SAME}: TLS 1.2 and 1.3",
    "ssl_cert_login_san_*": "tls-login-from = subject_alternative_name takes the first name",
    "ssl_options.**": _SAME,
    "stream.**": "RabbitMQ's stream protocol is not there: streams are read by basic.consume and over HTTP",
    "sysmon_handler.**": _SAME,
    "tracing.*": "flintmq ctl trace_on copies to exchange amq.rabbitmq.trace",
    "trust_store.**": "clients' certificates are checked with tls-ca",
    "vhost_restart_strategy": f"{_SAME}: virtual hosts do not stop by themselves",
    "web_mqtt.**": "MQTT is not there",
    "web_stomp.**": "STOMP is not there",
}


def _shape(pattern: str) -> re.Pattern[str]:
    return re.compile(re.escape(pattern).replace(r"\*\*", ".+").replace(r"\*", r"[^.]+"))


_SHAPES = [(_shape(pattern), pattern) for pattern in (*_MAPPED, *_EXPLAINED)]


def _pattern_of(key: str) -> str | None:
    """The entry of the tables that a key is for: its own, else one with `*`."""
    if key in _MAPPED or key in _EXPLAINED:
        return key
    return next((pattern for shape, pattern in _SHAPES if shape.fullmatch(key)), None)


def read(text: str) -> Result:
    """What a rabbitmq.conf says. C1, C2."""
    result = Result()
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        key, equals, value = (part.strip() for part in line.partition("="))
        # a comment behind a value, as cuttlefish reads it
        value = re.sub(r"\s+#.*$", "", value)
        if not equals or not key:
            result.unknown.append(f"line {number}: no line of the form key = value")
            continue
        pattern = _pattern_of(key)
        if pattern is None:
            near = difflib.get_close_matches(key, [*_MAPPED, *_EXPLAINED], 1, 0.8)
            result.unknown.append(f"line {number}: {key}" + (f" (did you mean {near[0]}?)" if near else ""))
        elif pattern in _MAPPED:
            try:
                _MAPPED[pattern](result, value.strip("'\""))
            except Wrong as error:
                result.unknown.append(f"line {number}: {key}: {value[:80]!r} {error}")
        else:
            result.notes.append(f"{key}: {_EXPLAINED[pattern].replace('{value}', value[:200])}")
    if result.options.get("tls-key") and not result.options.get("tls-cert"):
        result.notes.append("ssl_options.keyfile: there is no ssl_options.certfile")
    return result


def toml(result: Result, source: str) -> str:
    """The file for `flintmq serve --config`."""
    head = f"# of {one_line(source)}, for flintmq serve --config\n"
    body = "".join(f"{key} = {_toml_value(value)}\n" for key, value in sorted(result.options.items()))
    return head + body


def _toml_value(value: str | int | bool) -> str:
    # JSON's texts and numbers are TOML's, but for DEL, and for pairs of escapes where one character is meant
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def kind_of(file: Path, text: str) -> str:
    """Tells "definitions" (JSON, whole or broken), "advanced" (Erlang terms) and "conf" (lines of key = value) apart.

    A first line with a key and an equals sign makes a conf of it, whatever the name is; else a bracket or a quote at its start, or the
    name, tells. So JSON that was cut at its head is JSON still, and its mistake is named.
    """
    lines = (line.strip() for line in text.splitlines())
    first = next((line for line in lines if line and line[0] not in "#%"), "")
    if re.match(r"[A-Za-z0-9_.$-]+\s*=", first):
        return "conf"
    if first[:1] == "[" and not file.name.endswith(".json"):
        return "advanced"
    return "definitions" if first[:1] in ("{", "[", '"', "}", "]") or file.name.endswith(".json") else "conf"


@click.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the options to this new file, not to stdout.")
@click.option("--strict", is_flag=True, help="Exit with 65 when a key is not known.")
@click.option("--uri", envvar="FLINTMQ_URI", default="http://127.0.0.1:15672", show_default=True, help="The running broker's HTTP port.")
@click.option("-u", "--user", envvar="FLINTMQ_USER", default="guest", show_default=True, help="An administrator, for definitions.")
@click.option("--password", envvar="FLINTMQ_PASSWORD", default="guest", help="Better the variable FLINTMQ_PASSWORD: others see arguments.")
@click.pass_context
def convert(context: click.Context, /, file: Path, output: Path | None, strict: bool, uri: str, user: str, password: str) -> None:
    """Take over FILE of RabbitMQ: rabbitmq.conf becomes options for flintmq serve --config, definitions go to the running broker."""
    try:
        with file.open("rb") as opened:
            raw = opened.read(FILE_BYTES_MAX + 1)
        text = raw.decode("utf-8-sig")
    except OSError as error:
        raise OperatorError(f"{file} can't be read: {error.strerror}", 74) from None
    except UnicodeDecodeError:
        raise OperatorError(f"{file} is no text in UTF-8", 65) from None
    if len(raw) > FILE_BYTES_MAX:
        raise OperatorError(f"{file} has more than {FILE_BYTES_MAX >> 20} MiB", 65)
    kind = kind_of(file, text)
    if kind == "definitions":
        _definitions(file, text, uri, user, password)
        return
    if kind == "advanced":
        raise OperatorError(f"{file} is an advanced.config (Erlang terms): only rabbitmq.conf and definitions.json are read", 65)
    result = read(text)
    if result.unknown and not result.options and not result.notes:
        raise OperatorError(f"{file} is neither JSON nor a rabbitmq.conf: none of its lines has a key of RabbitMQ", 65)
    made = toml(result, str(file))
    if output is None:
        click.echo(made, nl=False)
    else:
        try:
            with output.open("x", encoding="utf-8") as written:
                written.write(made)
        except OSError as error:
            raise OperatorError(f"{output} can't be written: {error.strerror}", 74) from None
    for note in result.notes:
        click.echo(one_line(f"not an option: {note}"), err=True)
    for line in result.unknown:
        click.echo(one_line(f"NOT KNOWN: {line}"), err=True)
    click.echo(f"{len(result.options)} options, {len(result.notes)} explained, {len(result.unknown)} not known", err=True)
    context.exit(65 if strict and result.unknown else 0)


def _definitions(file: Path, text: str, uri: str, user: str, password: str) -> None:
    from flintmq.cli.ctl import Remote, say_passed_over

    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise OperatorError(f"{file} is no JSON: {error}", 65) from None
    say_passed_over(Remote(uri, user, password).ask("POST", "definitions", value))
    click.echo(f"{file}: users, virtual hosts, permissions, policies, queues, exchanges and bindings are in the broker")
