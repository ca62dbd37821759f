"""`flintmq ctl`: a running broker looked at and changed, with the words of rabbitmqctl and rabbitmq-diagnostics. It speaks HTTP
(docs/HTTP.md, "RabbitMQ's API").

in: a command, the broker's address and a user. out: tables, JSON or CSV; changes. The user's tags decide what is allowed.
"""

from __future__ import annotations

import difflib

import click

from flintmq.cli.ctl import access, checks, lists, node, things
from flintmq.cli.ctl.node import say_passed_over
from flintmq.cli.ctl.remote import Remote
from flintmq.cli.ctl.session import Session, common_options

__all__ = ["Remote", "ctl", "say_passed_over"]


class Verbs(click.Group):
    """The verbs. One of RabbitMQ that means nothing here is answered, and a word that is none gets the nearest one."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self.commands and not ctx.resilient_parsing:
            from flintmq.cli.ctl.unsupported import ANSWERS

            if name in ANSWERS:
                raise click.UsageError(f"{name}: {ANSWERS[name]}", ctx)
            near = difflib.get_close_matches(name, self.commands, 1)
            hint = f", did you mean '{near[0]}'?" if near else ": flintmq ctl help lists the verbs"
            raise click.UsageError(f"there is no verb '{name}'{hint}", ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=Verbs)
@click.option("--uri", envvar="FLINTMQ_URI", default="http://127.0.0.1:15672", show_default=True, help="The broker's HTTP port.")
@click.option("-u", "--user", envvar="FLINTMQ_USER", default="guest", show_default=True, help="Who asks; its tags decide what is allowed.")
@click.option("--password", envvar="FLINTMQ_PASSWORD", default="guest", help="Better the variable FLINTMQ_PASSWORD: others see arguments.")
@click.pass_context
def ctl(context: click.Context, uri: str, user: str, password: str) -> None:
    """Look at a running broker and change it, with the words of rabbitmqctl: flintmq ctl list_queues name messages -p shop.

    All options but the first three may stand behind the verb, too.
    """
    context.obj = Session(uri, user, password)


ctl.params += common_options()


@ctl.command("help")
@click.argument("verb", required=False)
@click.pass_context
def show_help(context: click.Context, verb: str | None) -> None:
    """The verbs, or what VERB does."""
    parent = context.parent
    assert parent is not None
    if verb is None:
        click.echo(ctl.get_help(parent))
        return
    _, command, _ = ctl.resolve_command(parent, [verb])
    assert command is not None
    click.echo(command.get_help(click.Context(command, parent, verb)))


for _part in (lists, access, things, node, checks):
    _part.add(ctl)
