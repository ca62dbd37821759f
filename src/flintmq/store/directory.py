"""Where a broker keeps its data."""

from __future__ import annotations

import os
from pathlib import Path

from flintmq.config import Config
from flintmq.errors import OperatorError


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
