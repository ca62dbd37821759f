"""What the commands that work on a stopped broker's store share: the options that name it, and the lock that keeps brokers out.

in: a click command; a directory. out: the command with its options; a context in which no broker can open the store.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from flintmq.errors import OperatorError


def store_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options that say which store."""
    for option in (
        click.option("--catalog", help="SQL database (schema) name."),
        click.option("--connect", help="URL of the SQL database for definitions."),
        click.option("--store-dir", type=click.Path(), help="Directory of the durable store; default: the data directory."),
        click.option("--data-dir", type=click.Path(), help="Directory of the broker."),
    ):
        command = option(command)
    return command


@contextlib.contextmanager
def store_locked(directory: Path) -> Iterator[None]:
    """Keeps brokers out of a store directory. Raises: OperatorError, 69 when one is in it, 74 when the lock can't be opened.

    The file is the broker's, and made where it is missing: a broker that starts meanwhile for the first time is kept out, too. Without
    the directory (definitions on a server) there is nothing to lock.
    """
    try:
        lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        yield
        return
    except OSError as error:
        raise OperatorError(f"{directory / 'lock'}: {error.strerror}", 74) from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OperatorError(f"{directory} is in use: stop the broker first", 69) from None
        yield
    finally:
        os.close(lock)
