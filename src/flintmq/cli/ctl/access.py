"""`flintmq ctl`: users, permissions, virtual hosts and limits.

in: names and values. out: one request each; users and virtual hosts that must be new are refused when they are there, by the broker.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import click

from flintmq.cli.ctl.session import Session, Verb, change, json_or_text
from flintmq.errors import OperatorError

# RFC 9110: the request makes something new; it changes something that is there
NEW, THERE = {"If-None-Match": "*"}, {"If-Match": "*"}
_SHA256 = "rabbit_password_hashing_sha256"


def _asked_for(password: str | None) -> str:
    """A password that is no argument, since others see those: typed, or a line of stdin. Raises: OperatorError 65: there is none."""
    if password is None:
        password = click.prompt("Password", hide_input=True) if sys.stdin.isatty() else sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise OperatorError("the password is empty: give it as an argument, or as a line on stdin", 65)
    return password


def _user(session: Session, method: str, name: str, value: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> None:
    session.remote.ask(method, session.path("users/{name}", name=name), value, headers)


@click.command("add_user", cls=Verb)
@click.argument("name")
@click.argument("password", required=False)
@click.option("--pre-hashed-password", is_flag=True, help="PASSWORD is a hash, as hash_password prints it.")
@click.pass_obj
def add_user(session: Session, name: str, password: str | None, pre_hashed_password: bool) -> None:
    """Add a user, without tags and permissions. One that is there is not changed (exit code 70). Without PASSWORD: typed, or from stdin."""
    text = _asked_for(password)
    own = {"password_hash": text, "hashing_algorithm": _SHA256} if pre_hashed_password else {"password": text}
    _user(session, "PUT", name, {**own, "tags": ""}, NEW)
    session.done("add_user")


@click.command("change_password", cls=Verb)
@click.argument("name")
@click.argument("password", required=False)
@click.pass_obj
def change_password(session: Session, name: str, password: str | None) -> None:
    """Change a user's password; its tags stay. Without PASSWORD: typed, or from stdin."""
    _user(session, "PATCH", name, {"password": _asked_for(password)})
    session.done("change_password")


@click.command("clear_password", cls=Verb)
@click.argument("name")
@click.pass_obj
def clear_password(session: Session, name: str) -> None:
    """Take a user's password away: it logs in by a certificate or a token alone."""
    _user(session, "PATCH", name, {"password": None})
    session.done("clear_password")


@click.command("set_user_tags", cls=Verb)
@click.argument("name")
@click.argument("tags", nargs=-1)
@click.pass_obj
def set_user_tags(session: Session, name: str, tags: tuple[str, ...]) -> None:
    """Set a user's tags: those that are given, no others; its password stays."""
    _user(session, "PATCH", name, {"tags": list(tags)})
    session.done("set_user_tags")


@click.command("authenticate_user", cls=Verb)
@click.argument("name")
@click.argument("password", required=False)
@click.pass_obj
def authenticate_user(session: Session, name: str, password: str | None) -> None:
    """Ask whether this is a user's password; exit code 65: it is not."""
    text = _asked_for(password)
    session.say(f'Authenticating user "{name}" ...')
    try:
        session.remote.of(name, text).ask("GET", "whoami")
    except OperatorError as error:
        # A user without management has logged in all the same.
        if error.exit_code == 77 and "Login failed" in str(error):
            raise OperatorError(f'failed to authenticate user "{name}"', 65) from None
        if error.exit_code != 77:
            raise
    session.say("Success")


@click.command("hash_password", cls=Verb)
@click.argument("password", required=False)
@click.pass_obj
def hash_password(session: Session, password: str | None) -> None:
    """Print a hash for definitions files and for add_user --pre-hashed-password. No broker is asked."""
    import os

    from flintmq.access.hashes import rabbitmq_hash

    click.echo(rabbitmq_hash(_asked_for(password), os.urandom(4)))


_METADATA = (
    click.option("--description", help="A text for people."),
    click.option("--tags", help="Tags, separated by commas."),
    click.option("--default-queue-type", help="Type of queues that are declared without one: classic, quorum, stream."),
)


def _metadata(options: Mapping[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in options.items() if value is not None}


def _vhost_verb(name: str, headers: Mapping[str, str], help_text: str) -> click.Command:
    @click.pass_obj
    def run(session: Session, /, name: str, **options: str | None) -> None:
        try:
            session.remote.ask("PUT", session.path("vhosts/{name}", name=name), _metadata(options), headers)
        except OperatorError as error:
            # of rabbitmqctl, too (3.8 and later): scripts that run twice add virtual hosts without asking
            if headers is not NEW or "(412)" not in str(error):
                raise
            session.say(f"vhost '{name}' already exists: nothing is changed")
        session.done(verb)

    verb, function = name, run
    for option in reversed(_METADATA):
        function = option(function)
    return click.command(name, cls=Verb, help=help_text)(click.argument("name")(function))


@click.command("set_vhost_tags", cls=Verb)
@click.argument("name")
@click.argument("tags", nargs=-1)
@click.pass_obj
def set_vhost_tags(session: Session, name: str, tags: tuple[str, ...]) -> None:
    """Set a virtual host's tags: those that are given, no others."""
    session.remote.ask("PUT", session.path("vhosts/{name}", name=name), {"tags": list(tags)}, THERE)
    session.done("set_vhost_tags")


def _trace(name: str, on: bool) -> click.Command:
    @click.pass_obj
    def run(session: Session) -> None:
        session.remote.ask("PUT", session.path("vhosts/{vhost}"), {"tracing": on}, THERE)
        if on:
            session.say(f"Copies of what is published and delivered in vhost {session.vhost} go to its exchange amq.rabbitmq.trace.")
        session.done(name)

    text = (
        "Copy what is published and delivered in -p to its exchange amq.rabbitmq.trace." if on else "No more copies to amq.rabbitmq.trace."
    )
    return Verb(name, callback=run, help=text)


@click.command("set_permissions_globally", cls=Verb)
@click.argument("user")
@click.argument("configure")
@click.argument("write")
@click.argument("read")
@click.pass_obj
def set_permissions_globally(session: Session, user: str, configure: str, write: str, read: str) -> None:
    """Let a user work in all virtual hosts that there are now."""
    for vhost in session.remote.ask("GET", "vhosts?columns=name"):
        path = session.path("permissions/{name}/{user}", name=vhost["name"], user=user)
        session.remote.ask("PUT", path, {"configure": configure, "write": write, "read": read})
    session.done("set_permissions_globally")


def _limits_verbs(kind: str, of: str) -> list[click.Command]:
    """rabbitmqctl's: all limits at once. Args: kind: "vhost" or "user"; of: the argument that names it, "": it is -p."""

    def put(session: Session, limits: Mapping[str, Any], given: Mapping[str, str]) -> None:
        name = given.get(of, session.vhost)
        known = session.remote.ask("GET", session.path(f"{kind}-limits/{{name}}", name=name))
        for limit in sorted({limit for one in known for limit in one["value"]} - limits.keys()):
            session.remote.ask("DELETE", session.path(f"{kind}-limits/{{name}}/{{limit}}", name=name, limit=limit))
        for limit, value in limits.items():
            session.remote.ask("PUT", session.path(f"{kind}-limits/{{name}}/{{limit}}", name=name, limit=limit), {"value": value})

    @click.pass_obj
    def set_all(session: Session, /, definition: str, **given: str) -> None:
        limits = json_or_text(definition)
        if not isinstance(limits, dict):
            raise OperatorError('DEFINITION must be a JSON object, like {"max-connections": 64}', 64)
        put(session, limits, given)
        session.done(f"set_{kind}_limits")

    @click.pass_obj
    def clear_all(session: Session, /, limit: str | None, **given: str) -> None:
        if limit in (None, "all"):
            put(session, {}, given)
        else:
            name = given.get(of, session.vhost)
            session.remote.ask("DELETE", session.path(f"{kind}-limits/{{name}}/{{limit}}", name=name, limit=str(limit)))
        session.done(f"clear_{kind}_limits")

    def arguments() -> list[click.Parameter]:
        return [click.Argument([of])] if of else []

    whose = f"of {of.upper()}" if of else "of the virtual host"
    text = f'Set all limits {whose}: a DEFINITION like {{"max-connections": 64}} takes the place of those that there are.'
    params = [*arguments(), click.Argument(["limit"], required=False)]
    return [
        Verb(f"set_{kind}_limits", callback=set_all, params=[*arguments(), click.Argument(["definition"])], help=text),
        Verb(f"clear_{kind}_limits", callback=clear_all, params=params, help=f"Take a limit {whose} away; without LIMIT, or 'all': all."),
    ]


def add(group: click.Group) -> None:
    """Adds the verbs of this module."""
    for command in (
        add_user,
        change_password,
        clear_password,
        set_user_tags,
        authenticate_user,
        hash_password,
        set_vhost_tags,
        set_permissions_globally,
        _vhost_verb("add_vhost", NEW, "Add a virtual host; the asking user may do everything in it. One that is there stays as it is."),
        _vhost_verb("update_vhost_metadata", THERE, "Change description, tags or default queue type of a virtual host."),
        _trace("trace_on", True),
        _trace("trace_off", False),
        *_limits_verbs("vhost", ""),
        *_limits_verbs("user", "user"),
    ):
        group.add_command(command)
    for name, words, request, make, text in (
        ("delete_user", "name", ("DELETE", "users/{name}"), None, "Delete a user; its connections are closed."),
        (
            "set_permissions",
            "user configure write read",
            ("PUT", "permissions/{vhost}/{user}"),
            lambda user, **patterns: patterns,
            "Let a user work in the virtual host: regular expressions of names.",
        ),
        ("clear_permissions", "user", ("DELETE", "permissions/{vhost}/{user}"), None, "Keep a user out of the virtual host."),
        (
            "set_topic_permissions",
            "user exchange write read",
            ("PUT", "topic-permissions/{vhost}/{user}"),
            lambda user, **patterns: patterns,
            "Bound a user's routing keys at a topic exchange.",
        ),
        ("clear_topic_permissions", "user", ("DELETE", "topic-permissions/{vhost}/{user}"), None, "Take those bounds away."),
        ("delete_vhost", "name", ("DELETE", "vhosts/{name}"), None, "Delete a virtual host with all that is in it."),
        (
            "set_vhost_limit",
            "limit value",
            ("PUT", "vhost-limits/{vhost}/{limit}"),
            lambda limit, value: {"value": json_or_text(value)},
            "Set max-connections, max-queues and the like of the virtual host; -1: any number.",
        ),
        ("clear_vhost_limit", "limit", ("DELETE", "vhost-limits/{vhost}/{limit}"), None, "Take a limit of the virtual host away."),
        (
            "set_user_limit",
            "user limit value",
            ("PUT", "user-limits/{user}/{limit}"),
            lambda user, limit, value: {"value": json_or_text(value)},
            "Set max-connections, max-channels or max-consumers of a user.",
        ),
        ("clear_user_limit", "user limit", ("DELETE", "user-limits/{user}/{limit}"), None, "Take a limit of a user away."),
    ):
        change(group, name, words, request, make, text)
