"""`flintmq backup` and `flintmq restore`: a copy of a store, of a running broker's too, and a store made of a copy.

in: a directory; the broker's HTTP port and an administrator, or the directory of a store that nobody has open. out: a checked copy.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from flintmq import __version__
from flintmq.errors import OperatorError

# seconds between two words to the broker, which keeps the containers for 120 s after each
_KEEP_S = 20.0


@click.command()
@click.argument("target", type=click.Path(path_type=Path))
@click.option("--uri", envvar="FLINTMQ_URI", default="http://127.0.0.1:15672", show_default=True, help="The running broker's HTTP port.")
@click.option("-u", "--user", envvar="FLINTMQ_USER", default="guest", show_default=True, help="An administrator.")
@click.option("--password", envvar="FLINTMQ_PASSWORD", default="guest", help="Better the variable FLINTMQ_PASSWORD: others see arguments.")
@click.option("--store-dir", type=click.Path(path_type=Path), help="Copy this store, which no broker has open, instead.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def backup(target: Path, uri: str, user: str, password: str, store_dir: Path | None, quiet: bool) -> None:
    """Copy the store of a running broker to the new directory TARGET, and check the copy.

    This command reads the broker's files itself: run it on the broker's machine, as a user who may read them.
    """
    from flintmq.cli.ctl import Remote
    from flintmq.store import backup as copies

    target = target.absolute()
    if store_dir is not None:
        facts = _closed(store_dir.absolute())
        partial = copies.take(facts | {"version": __version__}, target, lambda: None, _teller("copied", copies.size_of(facts), quiet))
    else:
        remote = Remote(uri, user, password)
        facts = remote.ask("POST", "backups", {})
        if facts["database"] != "file" or facts["catalog"] is not None:
            remote.ask("DELETE", f"backups/{facts['id']}")
            text = (
                "this broker keeps its definitions in another database: back that up with its own tools, and the store while it is stopped"
            )
            raise OperatorError(text, 69)
        try:
            keep = _keeper(remote, facts["id"])
            partial = copies.take(facts | {"version": __version__}, target, keep, _teller("copied", copies.size_of(facts), quiet))
        finally:
            remote.ask("DELETE", f"backups/{facts['id']}")
    _check_store(partial)
    copies.finish(partial, target)
    click.echo(f"{target}: store {facts['uuid']}, {len(copies.manifest(target)['files'])} files, checked")


@click.command()
@click.argument("source", type=click.Path(path_type=Path))
@click.option("--store-dir", type=click.Path(path_type=Path), help="Directory of the new store; it must be empty, or not there.")
@click.option("--check", is_flag=True, help="Only read the backup and say whether it is whole.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def restore(source: Path, store_dir: Path | None, check: bool, quiet: bool) -> None:
    """Make a store of the backup SOURCE; the broker that is started on it is as after a crash at the moment of the backup."""
    from flintmq.store import backup as copies

    value = copies.manifest(source)
    total = sum(fact["size"] for fact in value["files"].values())
    copies.check(source, value, _teller("checked", total, quiet))
    if check:
        click.echo(f"{source}: store {value['uuid']}, {len(value['files'])} files, whole")
        return
    if store_dir is None:
        raise OperatorError("--store-dir says where the store is to be (or --check: only look)", 64)
    copies.restore(source, store_dir.absolute(), _teller("restored", total, quiet))
    click.echo(f"{store_dir}: restored. Start it with: flintmq serve --data-dir {store_dir}")


def _keeper(remote: Any, identity: str) -> Any:
    last = [time.monotonic()]

    def keep() -> None:
        if time.monotonic() - last[0] >= _KEEP_S:
            last[0] = time.monotonic()
            remote.ask("POST", f"backups/{identity}", {})

    return keep


def _teller(label: str, total: int, quiet: bool) -> Any:
    """A line on stderr for each second of work."""
    done, last = [0], [time.monotonic()]

    def tell(count: int) -> None:
        done[0] += count
        if not quiet and time.monotonic() - last[0] >= 1:
            last[0] = time.monotonic()
            click.echo(f"{label} {done[0] >> 20} of {total >> 20} MiB", err=True)

    return tell


def _closed(store: Path) -> dict[str, Any]:
    """Facts of a store that nobody has open. Raises: OperatorError."""
    from flintmq.store import backup as copies
    from flintmq.store.log.inspect import open_store, open_streams

    view = open_store(store)
    if view.live:
        raise OperatorError(f"{store}: a broker has it open: leave --store-dir out, and the broker is asked", 69)
    logs = {**view.logs, **open_streams(store, False).logs}
    containers: dict[str, list[tuple[int, int]]] = {}
    for name, log in logs.items():
        for one in log.containers.values():
            if one.header is None:
                raise OperatorError(f"{one.path} is damaged: see flintmq log verify {store}", 65)
            containers.setdefault(name, []).append((one.sequence, one.header.size))
    return copies.facts_of_closed(store, containers, view.uuid.hex())


def _check_store(store: Path) -> None:
    """Every byte that a checksum covers, and that records find what they refer to: as `flintmq log verify`. Raises: OperatorError (65)."""
    from flintmq.cli.log import describe, inspect
    from flintmq.store.log.inspect import check_stream, open_streams

    _, _, findings = inspect(store)
    for source in open_streams(store, False).logs.values():
        findings += check_stream(source)[1]
    if findings:
        raise OperatorError(f"the copy is damaged, no backup was made: {describe(findings[0])} ({len(findings)} findings in all)", 65)
