"""What only tests use is compiled in a checkout, and is in no wheel."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import setuptools

ROOT = Path(__file__).resolve().parent.parent.parent


def compiled(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> set[str]:
    """First parts of the names of what `python setup.py arguments` compiles."""
    monkeypatch.setattr("sys.argv", ["setup.py", *arguments])
    monkeypatch.setattr(setuptools, "setup", lambda **_: None)
    names: dict[str, Any] = runpy.run_path(str(ROOT / "setup.py"))["compiled_modules"]()
    return {name.split(".")[0] for name in names}


def test_a_wheel_has_no_twins(monkeypatch: pytest.MonkeyPatch) -> None:
    assert compiled(monkeypatch) == {"flintmq"}


def test_a_checkout_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert compiled(monkeypatch, "--inplace") == {"flintmq", "tests"}
