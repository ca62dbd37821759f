"""The `flintmq` command. Sub-commands are imported when used, so that `--help` stays quick."""

from __future__ import annotations

import importlib
import sys

import click

from flintmq import __version__
from flintmq.errors import OperatorError, StoreError

# sub-command -> module:attribute
COMMANDS = {
    "backup": "flintmq.cli.backup:backup",
    "cluster": "flintmq.cli.cluster:cluster",
    "completion": "flintmq.cli.completion:completion",
    "ctl": "flintmq.cli.ctl:ctl",
    "db": "flintmq.cli.db:db",
    "doctor": "flintmq.cli.doctor:doctor",
    "import": "flintmq.cli.convert:convert",
    "log": "flintmq.cli.log:log",
    "restore": "flintmq.cli.backup:restore",
    "serve": "flintmq.cli.serve:serve",
    "shared": "flintmq.cli.shared:shared",
    "perf": "flintmq.cli.perf:perf",
    "pipeline": "flintmq.cli.pipeline:pipeline",
    "top": "flintmq.cli.top:top",
    "tx": "flintmq.cli.tx:tx",
    "user": "flintmq.cli.users:user",
    "vhost": "flintmq.cli.users:vhost",
}


class LazyGroup(click.Group):
    """Imports a sub-command's module when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        target = COMMANDS.get(name)
        if target is None:
            return None
        module, attribute = target.split(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="flintmq")
def cli() -> None:
    """FlintMQ: a durable, strictly ordered AMQP message broker."""


def main() -> None:
    """Entry point. Exit codes are those of sysexits: 64 usage, 65 bad data, 69 unavailable, 70 internal, 74 the store failed,
    75 a checkpoint conflict, 78 configuration."""
    try:
        result = cli.main(standalone_mode=False)
    except click.exceptions.Exit as leave:
        sys.exit(leave.exit_code)
    except click.UsageError as error:
        error.show()
        sys.exit(64)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        sys.exit(130)
    except OperatorError as error:
        # a broker's answer may have names in it that others chose
        from flintmq.loglines import one_line

        click.echo("\n".join(map(one_line, f"flintmq: {error}".splitlines())), err=True)
        sys.exit(error.exit_code)
    except StoreError as error:
        click.echo(f"flintmq: {error}", err=True)
        sys.exit(74)
    sys.exit(result if isinstance(result, int) else 0)


if __name__ == "__main__":
    main()
