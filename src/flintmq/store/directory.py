"""Where a broker keeps its data."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from flintmq.config import Config
from flintmq.errors import OperatorError
from flintmq.store.log.file_port import OsFiles


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
    missing = missing[: next((at for at, one in enumerate(missing) if one.is_dir()), len(missing))]
    for one in reversed(missing):
        port.make_dir(str(one))
    if not missing:
        with contextlib.suppress(PermissionError):
            port.sync_dir(str(path.parent))
