"""`flintmq completion`: the script that makes a shell complete commands and options.

in: a shell's name. out: a script on stdout, which calls `flintmq` to ask what may come next.
"""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

PROGRAM, VARIABLE = "flintmq", "_FLINTMQ_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that makes SHELL complete commands and options.

    bash: flintmq completion bash > ~/.local/share/bash-completion/completions/flintmq;
    zsh: flintmq completion zsh > ~/.zfunc/_flintmq; fish: flintmq completion fish > ~/.config/fish/completions/flintmq.fish
    """
    from flintmq.cli.main import cli

    kind = get_completion_class(shell)
    assert kind is not None  # the choice names those that click has
    # Without its check of the shell's version, which runs the shell: the script may be for another machine.
    made = kind(cli, {}, PROGRAM, VARIABLE)
    click.echo(made.source_template % made.source_vars())
