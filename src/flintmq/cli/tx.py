"""`flintmq tx`: transactions in doubt of a stopped broker's store (docs/TRANSACTIONS.md). An operator decides where the manager is lost.

in: the store directory, and its definitions. out: a list; heuristic decisions, durable when the command ends.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from flintmq.cli.logs import log_to_stderr
from flintmq.cli.store import store_locked, store_options
from flintmq.config import Config
from flintmq.errors import OperatorError
from flintmq.transactions import Outcome, TransactionCoordinator, TransactionRefused, XaStatus, Xid

if TYPE_CHECKING:
    from flintmq.node import Node

# seconds; longer than any disk that is not broken needs for one record
ANSWER_S = 60


@click.group()
def tx() -> None:
    """Look at transactions in doubt, and decide them. The broker must not be running."""


@contextlib.contextmanager
def _opened(options: dict[str, Any]) -> Iterator[tuple[Node, TransactionCoordinator]]:
    """The store, recovered as a broker would, with its queues; nobody can connect."""
    from flintmq.node import Node
    from flintmq.store.directory import store_directory

    log_to_stderr("error")
    config = Config(port=None, **options)
    directory = store_directory(config)
    if not (directory / "messages").is_dir():
        raise OperatorError(f"{directory} holds no store", 69)
    with store_locked(directory):
        pass
    node = Node(config)
    try:
        transactions = node.broker.transactions
        assert transactions is not None
        yield node, transactions
    finally:
        node.stop()


@tx.command("list")
@store_options
def list_(**options: Any) -> None:
    """Show every transaction that waits: its name, its state, and per queue what would enter it and what is held."""
    with _opened(options) as (node, transactions):
        names = {number: f"{queue.vhost}/{queue.name}" for number, queue in node.broker.queues.items()}
        waiting = transactions.list()
        if not waiting:
            click.echo("no transaction waits", err=True)
        for view in waiting:
            click.echo(f"{view.xid}  {view.state.value}")
            for number, (enters, held) in sorted(view.queues.items()):
                click.echo(f"    {names.get(number, number)}: {enters} to enter, {held} held")


def _decide(text: str, options: dict[str, Any], decision: Callable[[TransactionCoordinator, Xid], Outcome]) -> None:
    try:
        xid = Xid.parse(text)
    except TransactionRefused as refused:
        raise OperatorError(f"{refused}, as 'flintmq tx list' prints it", 64) from None
    try:
        with _opened(options) as (_, transactions):
            status = decision(transactions, xid).result(ANSWER_S)
    except TransactionRefused as refused:
        raise OperatorError(str(refused), 69) from None
    words = {
        XaStatus.XA_HEURCOM: "committed; remembered until the manager, or 'flintmq tx forget', forgets it",
        XaStatus.XA_HEURRB: "rolled back; remembered until the manager, or 'flintmq tx forget', forgets it",
    }
    click.echo(f"{xid}  {words.get(status, 'forgotten')}")


@tx.command()
@click.argument("xid")
@store_options
def commit(xid: str, **options: Any) -> None:
    """Commit a prepared transaction without its manager: ask the manager's own log first."""
    _decide(xid, options, TransactionCoordinator.heuristic_commit)


@tx.command()
@click.argument("xid")
@store_options
def rollback(xid: str, **options: Any) -> None:
    """Roll a prepared transaction back without its manager: ask the manager's own log first."""
    _decide(xid, options, TransactionCoordinator.heuristic_rollback)


@tx.command()
@click.argument("xid")
@store_options
def forget(xid: str, **options: Any) -> None:
    """Forget an operator's decision: the manager knows of it, or will never ask."""
    _decide(xid, options, TransactionCoordinator.forget)
