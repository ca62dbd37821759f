from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .rig import Rig


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """A node with queue `q`."""
    with Rig(tmp_path / "store") as made:
        made.declare("q")
        yield made
