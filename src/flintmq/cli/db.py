"""`flintmq db`: the definitions database (docs/STORE_SQL.md)."""

from __future__ import annotations

import contextlib
from pathlib import Path

import click

from flintmq.cli.store import store_locked
from flintmq.config import Limits
from flintmq.errors import OperatorError
from flintmq.store.sql.driver import SCHEMA_VERSION, State, check_state
from flintmq.store.sql.location import locate, open_driver
from flintmq.store.sql.migrate import migrate as run_migrations
from flintmq.store.sql.migrate import steps_after, text_of


@click.group()
def db() -> None:
    """Look after the definitions database."""


@db.command()
@click.option("--dry-run", is_flag=True, help="Print the SQL and change nothing.")
@click.option("--connect", help="URL of the SQL database; default: a SQLite file in the store directory.")
@click.option("--catalog", help="Database name (PostgreSQL), or name of the SQLite file without '.db'.")
@click.option("--store-dir", type=click.Path(path_type=Path), help="Directory of the durable store.")
def migrate(dry_run: bool, connect: str | None, catalog: str | None, store_dir: Path | None) -> None:
    """Bring the database to the schema of this version. `serve` does the same at its start; the broker must not be running."""
    location = locate(connect, catalog, store_dir)
    if location.path is not None and not location.path.exists():
        raise OperatorError(f"{location.path} does not exist: 'flintmq serve' makes a new store")
    with contextlib.ExitStack() as stack:
        if location.path is not None and not dry_run:
            stack.enter_context(store_locked(location.path.parent))
        driver = open_driver(location, Limits(), create=False)
        stack.callback(driver.close)
        state, version = check_state(driver)
        if state is State.NEW:
            raise OperatorError(f"{driver.where} is empty: 'flintmq serve' makes its tables")
        if state is State.CURRENT:
            click.echo(f"{driver.where}: schema {version}, nothing to do", err=dry_run)
            return
        if dry_run:
            click.echo(text_of(driver, version), nl=False)
            return
        steps = steps_after(version, driver.dialect)
        run_migrations(driver, version)
        for step in steps:
            click.echo(f"{step.version}: {step.about}")
        click.echo(f"{driver.where}: schema {version} -> {SCHEMA_VERSION}")
