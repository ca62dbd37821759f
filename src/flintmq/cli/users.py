"""`flintmq user` and `flintmq vhost`: who may use a broker, and its virtual hosts, in the definitions of a stopped broker.

in: the store directory or the database. out: lists; changes, durable when the command ends. A running broker has its own copy, so while one
runs this is refused (on PostgreSQL by the broker's lock).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import click

from flintmq.access.permissions import checked
from flintmq.access.tags import TAGS
from flintmq.access.users import default_user, hash_password
from flintmq.cli.store import store_locked, store_options
from flintmq.config import Config
from flintmq.errors import OperatorError
from flintmq.ports import LimitsRecord, PermissionRecord, UserRecord, VhostRecord
from flintmq.store.directory import store_directory
from flintmq.store.sql.definitions import SqlDefinitions
from flintmq.store.sql.location import locate

NAME_MAX = 255


@contextlib.contextmanager
def _opened(options: dict[str, Any], first: Sequence[Any] | None = None) -> Iterator[SqlDefinitions]:
    """The definitions, with brokers kept out.

    Args: first: records that a new store is made with, in its first transaction; None: no store is made by looking for one.
    Raises: OperatorError 69 when there are none, or a broker runs; 74 when the directory can't be made.
    """
    config = Config(port=None, **options)
    directory = store_directory(config)
    location = locate(config.connect, config.catalog, directory)
    if first is None and location.path is not None and not location.path.exists():
        raise OperatorError(f"{location.path} does not exist: 'flintmq user add' or 'flintmq serve' makes a new store", 69)
    if first is not None:
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise OperatorError(f"cannot make the store directory {directory}: {error.strerror}", 74) from None
    with (
        store_locked(directory),
        contextlib.closing(SqlDefinitions.open(directory, config.connect, config.catalog, first=first or ())) as definitions,
    ):
        yield definitions


def _name(value: str, kind: str) -> str:
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        size = 0
    if not 1 <= size <= NAME_MAX:
        raise OperatorError(f"the name of a {kind} has 1 to {NAME_MAX} bytes of UTF-8", 64)
    return value


def _user(definitions: SqlDefinitions, name: str) -> UserRecord:
    for record in definitions.load_users():
        if record.name == name:
            return record
    raise OperatorError(f"there is no user '{name}': 'flintmq user list' shows those that are there", 69)


def _hash(password: str) -> str:
    if not password:
        raise OperatorError("the password is empty: nobody could log in with it", 64)
    return hash_password(password)


password_option = click.password_option(envvar="FLINTMQ_PASSWORD", help="Else the variable FLINTMQ_PASSWORD; else it is asked for.")
tag_option = click.option(
    "--tag",
    "tags",
    multiple=True,
    type=click.Choice(TAGS),
    help="As on RabbitMQ; monitoring: figures over HTTP, too. administrator: that, the log, queue patterns, every change.",
)


@click.group()
def user() -> None:
    """Look after users and their permissions. The broker must not be running."""


@user.command("list")
@store_options
def list_users(**options: Any) -> None:
    """Show every user with its tags and limits, and what it may configure, write and read in each virtual host."""
    with _opened(options) as definitions:
        permissions = definitions.load_permissions()
        limits = _limits_of(definitions, "user")
        for record in sorted(definitions.load_users(), key=lambda one: one.name):
            click.echo(f"{record.name}  [{', '.join(record.tags)}]{limits.get(record.name, '')}")
            for one in permissions:
                if one.user == record.name:
                    click.echo(f"    {one.vhost}: configure {one.configure!r}, write {one.write!r}, read {one.read!r}")


@user.command()
@click.argument("name")
@password_option
@tag_option
@store_options
def add(name: str, password: str, tags: tuple[str, ...], **options: Any) -> None:
    """Add a user. It may log in from anywhere, and do nothing until `grant`. A store that it makes has this user, and no guest."""
    record = UserRecord(_name(name, "user"), _hash(password), tuple(dict.fromkeys(tags)))
    with _opened(options, (record,)) as definitions:
        if not definitions.created:
            if any(known.name == name for known in definitions.load_users()):
                raise OperatorError(f"there is a user '{name}' already: 'flintmq user password' and 'flintmq user tags' change it", 69)
            definitions.save_user(record)
    click.echo(f"user {name} added: 'flintmq user grant {name}' lets it work")


@user.command()
@click.argument("name")
@password_option
@store_options
def password(name: str, password: str, **options: Any) -> None:
    """Change a user's password."""
    with _opened(options) as definitions:
        definitions.save_user(replace(_user(definitions, name), password_hash=_hash(password)))
    click.echo(f"user {name}: password changed")


@user.command("tags")
@click.argument("name")
@tag_option
@store_options
def set_tags(name: str, tags: tuple[str, ...], **options: Any) -> None:
    """Set a user's tags: those that are given, no others."""
    with _opened(options) as definitions:
        definitions.save_user(replace(_user(definitions, name), tags=tuple(dict.fromkeys(tags))))
    click.echo(f"user {name}: [{', '.join(dict.fromkeys(tags))}]")


@user.command()
@click.argument("name")
@store_options
def delete(name: str, **options: Any) -> None:
    """Delete a user and its permissions. With the last one gone nobody can log in until `add`: guest is not made again."""
    with _opened(options) as definitions:
        definitions.delete_user(_user(definitions, name).name)
        for record in definitions.load_parameters("topic-permission"):
            if json.loads(record.name)[0] == name:
                definitions.delete_parameter(record)
    click.echo(f"user {name} deleted")


@user.command()
@click.argument("name")
@click.option("--vhost", default="/", show_default=True, help="Virtual host.")
@click.option("--configure", default=".*", show_default=True, help="Regular expression of names it may declare and delete.")
@click.option("--write", default=".*", show_default=True, help="Of those it may publish to; the default exchange is called amq.default.")
@click.option("--read", default=".*", show_default=True, help="Of those it may consume from.")
@store_options
def grant(name: str, vhost: str, configure: str, write: str, read: str, **options: Any) -> None:
    """Let a user work in a virtual host; replaces what it could there. '' allows nothing."""
    for option, pattern in (("--configure", configure), ("--write", write), ("--read", read)):
        try:
            checked(pattern)
        except ValueError as error:
            raise OperatorError(f"{option}={pattern!r} is {error}", 64) from None
    with _opened(options) as definitions:
        if vhost not in [record.name for record in definitions.load_vhosts()]:
            raise OperatorError(f"there is no virtual host '{vhost}': 'flintmq vhost add' makes it", 69)
        definitions.save_permission(PermissionRecord(_user(definitions, name).name, vhost, configure, write, read))
    click.echo(f"user {name} may use {vhost}")


@user.command()
@click.argument("name")
@click.option("--vhost", default="/", show_default=True, help="Virtual host.")
@store_options
def revoke(name: str, vhost: str, **options: Any) -> None:
    """Keep a user out of a virtual host."""
    with _opened(options) as definitions:
        definitions.delete_permission(_user(definitions, name).name, vhost)
    click.echo(f"user {name} may not use {vhost}")


def _limit_option(name: str, help_text: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.option(f"--{name}", type=click.IntRange(min=-1), help=f"{help_text} -1: any number.")


def _limit(definitions: SqlDefinitions, kind: str, name: str, limits: dict[str, int | None]) -> None:
    """Sets those that were given, and no others."""
    given = {key.replace("_", "-"): value for key, value in limits.items() if value is not None}
    definitions.save_limits(LimitsRecord(kind, name, given))
    shown = ", ".join(f"{key} {value}" for key, value in given.items()) or "none of its own"
    click.echo(f"{'user' if kind == 'user' else 'virtual host'} {name}: limits: {shown}")


def _limits_of(definitions: SqlDefinitions, kind: str) -> dict[str, str]:
    """Name -> what `list` shows behind it."""
    records = [record for record in definitions.load_limits() if record.kind == kind]
    return {record.name: "  " + ", ".join(f"{key} {value}" for key, value in record.limits.items()) for record in records}


@user.command("limit")
@click.argument("name")
@_limit_option("max-connections", "Connections it may have open.")
@_limit_option("max-channels", "Channels on all of them.")
@_limit_option("max-consumers", "Consumers on all of them.")
@store_options
def limit_user(name: str, max_connections: int | None, max_channels: int | None, max_consumers: int | None, **options: Any) -> None:
    """Set a user's limits: those that are given, no others; for the others the broker's defaults hold."""
    limits = {"max_connections": max_connections, "max_channels": max_channels, "max_consumers": max_consumers}
    with _opened(options) as definitions:
        _limit(definitions, "user", _user(definitions, name).name, limits)


@click.group()
def vhost() -> None:
    """Look after virtual hosts. The broker must not be running."""


@vhost.command("list")
@store_options
def list_vhosts(**options: Any) -> None:
    """Show the virtual hosts, one a line, with the limits that are set for them."""
    with _opened(options) as definitions:
        limits = _limits_of(definitions, "vhost")
        for record in sorted(definitions.load_vhosts(), key=lambda one: one.name):
            click.echo(record.name + limits.get(record.name, ""))


@vhost.command("add")
@click.argument("name")
@store_options
def add_vhost(name: str, **options: Any) -> None:
    """Add a virtual host. Nobody may use it until `flintmq user grant USER --vhost NAME`. A store that it makes has the user guest."""
    record = VhostRecord(_name(name, "virtual host"))
    if name == "/":
        raise OperatorError("there is a virtual host '/' already, in every store", 69)
    with _opened(options, (*default_user(), record)) as definitions:
        if not definitions.created:
            if any(known.name == name for known in definitions.load_vhosts()):
                raise OperatorError(f"there is a virtual host '{name}' already", 69)
            definitions.save_vhost(record)
    click.echo(f"virtual host {name} added")


@vhost.command("limit")
@click.argument("name")
@_limit_option("max-connections", "Connections that may use it.")
@_limit_option("max-queues", "Queues in it.")
@_limit_option("max-exchanges", "Exchanges in it, the predeclared ones not counted.")
@_limit_option("max-bindings", "Bindings in it.")
@store_options
def limit_vhost(
    name: str,
    max_connections: int | None,
    max_queues: int | None,
    max_exchanges: int | None,
    max_bindings: int | None,
    **options: Any,
) -> None:
    """Set a virtual host's limits: those that are given, no others; for the others the broker's defaults hold."""
    limits = {
        "max_connections": max_connections,
        "max_queues": max_queues,
        "max_exchanges": max_exchanges,
        "max_bindings": max_bindings,
    }
    with _opened(options) as definitions:
        if name not in [record.name for record in definitions.load_vhosts()]:
            raise OperatorError(f"there is no virtual host '{name}': 'flintmq vhost add' makes it", 69)
        _limit(definitions, "vhost", name, limits)
