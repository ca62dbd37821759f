"""The directory of a broker's data, checked and made, and the size of the containers in it."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import Any

from flintmq.config import Config
from flintmq.errors import OperatorError, StoreError
from flintmq.store.log.containers import round_container_size
from flintmq.store.log.file_port import OsFiles
from flintmq.store.sql.failures import DISK_ERRORS

log = logging.getLogger("flintmq.store")


def default_data_dir() -> Path:
    """Where a broker keeps its data when nothing is said: the user's data directory."""
    base = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(base).expanduser() / "flintmq"


def store_directory(config: Config) -> Path:
    """--store-dir, which defaults to --data-dir. Raises: OperatorError (64) for --no-data-dir alone."""
    if config.store_dir:
        return Path(config.store_dir).absolute()
    if config.no_data_dir:
        raise OperatorError("--no-data-dir needs --store-dir (or --memory)", 64)
    return Path(config.data_dir).absolute() if config.data_dir else default_data_dir()


def make_directory(path: Path, files: Any = None) -> None:
    """Makes the directory and those above it that are missing, each one's name durable: a confirmed message must not go with the name of
    the directory that it is in. One that is there may be the work of a start that died before its sync, so its name is synced as well,
    where this user may. Args: files: the file port, None for the operating system. Raises: OSError.
    """
    port: Any = files or OsFiles()
    missing = [path, *path.parents]
    missing = missing[: next((index for index, one in enumerate(missing) if one.is_dir()), len(missing))]
    for one in reversed(missing):
        port.make_dir(str(one))
    if not missing:
        with contextlib.suppress(PermissionError):
            port.sync_dir(str(path.parent))


def open_directory(config: Config) -> Path:
    """The directory of the broker, made if need be; this user may write it. Raises: OperatorError; StoreError: the disk's fault."""
    directory = store_directory(config)
    try:
        make_directory(directory)
    except OSError as error:
        if error.errno in DISK_ERRORS:
            raise StoreError(f"cannot make the store directory {directory}: {error.strerror}") from error
        raise OperatorError(f"cannot make the store directory {directory}: {error.strerror}. Choose another --data-dir.", 69) from error
    if not os.access(directory, os.W_OK | os.X_OK):
        raise OperatorError(f"the store directory {directory} is not writable for this user", 69)
    return directory


def container_size(config: Config) -> int:
    """--container-size by the rules of seed 003: below 512 KiB and to a multiple of 4 KiB rounded up, with a line in the log."""
    size = round_container_size(config.container_size, config.limits.container_bytes_min)
    if size > config.limits.container_bytes_max:
        raise OperatorError(f"--container-size {config.container_size} is above the limit of {config.limits.container_bytes_max} bytes", 64)
    if size != config.container_size:
        log.info("--container-size of %d bytes is rounded up to %d", config.container_size, size)
    return size
