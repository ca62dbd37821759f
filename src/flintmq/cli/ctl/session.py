"""What every verb of `flintmq ctl` shares: the options before and behind it, the broker that it asks, the way to say a change.

in: options. out: a Session for each call.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn
from urllib.parse import quote

import click

from flintmq.cli.ctl.output import FORMATTERS, field_of, show_record, show_rows
from flintmq.cli.ctl.remote import TIMEOUT_S, Remote
from flintmq.cli.param_type import ParamType
from flintmq.errors import OperatorError

_NUMBER = re.compile(r"-[0-9.]+")
# seconds
TIMEOUT_S_MAX = 86_400


class Session(NamedTuple):
    """The options. timeout_s: None: it was not given; quiet: no headlines; silent: no names of columns either."""

    uri: str
    user: str
    password: str
    vhost: str = "/"
    node: str = ""
    timeout_s: float | None = None
    quiet: bool = False
    silent: bool = False
    table_headers: bool = True
    formatter: str = "table"

    @property
    def remote(self) -> Remote:
        return Remote(self.uri, self.user, self.password, self.timeout_s or TIMEOUT_S, self.node)

    def path(self, template: str, **names: str) -> str:
        """The path with its names percent-encoded."""
        return template.format(
            **{key: quote(name, safe="", errors="surrogateescape") for key, name in {"vhost": self.vhost, **names}.items()}
        )

    def say(self, text: str) -> None:
        """A headline: for people, not for programs."""
        if not (self.quiet or self.silent or self.formatter in ("json", "csv")):
            click.echo(text)

    def done(self, verb: str) -> None:
        """The end of a change."""
        if self.formatter == "json":
            click.echo(json.dumps({"status": "ok"}))
        else:
            self.say(f"{verb}: done")

    def rows(self, rows: Sequence[Mapping[str, Any]], columns: Sequence[str], fields: Mapping[str, str] = {}) -> None:
        """A list. Args: fields: column -> field of the API that has another name."""
        values = [{column: field_of(row, fields.get(column, column)) for column in columns} for row in rows]
        show_rows(values, columns, self.formatter, self.table_headers and not self.silent)

    def record(self, value: Mapping[str, Any]) -> None:
        """One thing."""
        show_record(value, self.formatter)


class Timeout(ParamType[float]):
    """Seconds, or `infinity`."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if value == "infinity":
            return TIMEOUT_S_MAX
        try:
            seconds = float(value)
        except ValueError:
            seconds = 0.0
        if not 0 < seconds <= TIMEOUT_S_MAX:
            self.fail(f"{value!r} is no number of seconds from 1 to {TIMEOUT_S_MAX}, nor 'infinity'", param, ctx)
        return seconds


def _given(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    """An option that stands before the verb or behind it; the last one counts."""
    if value is not None:
        given: dict[str, Any] = context.meta.setdefault("flintmq.ctl", {})
        given[str(parameter.name)] = value


def _flag(*names: str, help_text: str, value: bool = True) -> click.Option:
    return click.Option(list(names), is_flag=True, flag_value=value, default=None, expose_value=False, callback=_given, help=help_text)


def common_options() -> list[click.Parameter]:
    """Of the group and of each verb."""
    return [
        click.Option(["-p", "--vhost"], expose_value=False, callback=_given, help="Virtual host; default: /."),
        click.Option(
            ["-n", "--node"],
            expose_value=False,
            callback=_given,
            help="Node of the cluster that is to answer. Without a cluster: this broker's name, or rabbit@ANYTHING as scripts have it.",
        ),
        click.Option(
            ["-t", "--timeout", "timeout_s"],
            type=Timeout(),
            expose_value=False,
            callback=_given,
            help="Seconds that an answer may take; default: 60.",
        ),
        _flag("-q", "--quiet", help_text="No headlines."),
        _flag("-s", "--silent", help_text="No headlines, no names of columns."),
        _flag("--no-table-headers", "table_headers", help_text="No names of columns.", value=False),
        click.Option(
            ["--formatter"], type=click.Choice(FORMATTERS), expose_value=False, callback=_given, help="Form of lists; default: table."
        ),
    ]


class Verb(click.Command):
    """A command that takes the options of the group, too, and values that begin with a dash, such as a limit of -1."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        own = {name for one in self.params for name in one.opts}
        self.params += [one for one in common_options() if own.isdisjoint(one.opts)]
        self.context_settings = {**self.context_settings, "ignore_unknown_options": True}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """A word with a dash that is no option and no number is refused: click would take `-secret` for -s and the value `-ecret`."""
        known = [name for one in self.params for name in (*one.opts, *one.secondary_opts) if name[:1] == "-"] + ["-h", "--help"]
        taking = {name for one in self.params if isinstance(one, click.Option) and not one.is_flag for name in one.opts}
        before = ""
        for word in args[: args.index("--")] if "--" in args else args:
            name = word.partition("=")[0] if word.startswith("--") else word
            if name[:1] == "-" and len(name) > 1 and name not in known and before not in taking and not _NUMBER.fullmatch(name):
                near = difflib.get_close_matches(name, known)
                hint = f", did you mean {near[0]}?" if near else ""
                raise click.UsageError(f"No such option: {name}{hint} Values that begin with a dash stand behind --", ctx)
            before = word
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        session: Session = ctx.obj
        ctx.obj = session._replace(**ctx.meta.get("flintmq.ctl", {}))
        return super().invoke(ctx)


def change(
    group: click.Group, name: str, words: str, request: tuple[str, str], make: Callable[..., Any] | None = None, help_text: str = ""
) -> None:
    """Adds a verb that is one request. Args: words: names of its arguments; request: method and path, in which names of arguments stand in
    braces; make: the body, of the arguments; None: there is none."""
    method, path = request

    @click.pass_obj
    def run(session: Session, /, **arguments: str) -> None:
        own = {key: text for key, text in arguments.items() if f"{{{key}}}" in path}
        session.remote.ask(method, session.path(path, **own), None if make is None else make(**arguments))
        session.done(name)

    params: list[click.Parameter] = [click.Argument([each]) for each in words.split()]
    group.add_command(Verb(name, callback=run, params=params, help=help_text))


def json_or_text(text: str) -> Any:
    """A value of a parameter: JSON, or the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def json_of(text: str, name: str) -> Any:
    """Raises: OperatorError 64: it is no JSON."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise OperatorError(f"{name} is no JSON: {error}", 64) from None


def failed(text: str) -> NoReturn:
    """A check that did not pass: exit code 70, as rabbitmq-diagnostics has it. Raises: OperatorError."""
    raise OperatorError(text, 70)
