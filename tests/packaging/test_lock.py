"""What set-up installs is what the requirements ask for, each file named by its hash."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent.parent
PARTS = ["dev", "test", "spark", "docs"]


def locked(part: str) -> dict[str, list[tuple[str, int]]]:
    """Package -> (version, number of hashes) of each of its lines."""
    entries: dict[str, list[tuple[str, int]]] = {}
    for entry in re.split(r"\n(?=\S)", (ROOT / f"requirements-{part}.lock").read_text()):
        if not entry.startswith("#"):
            name, version = re.match(r"([\w.\-]+)(?:\[[\w,\-]+\])?==([\w.+!]+)", entry).groups()  # type: ignore[union-attr]
            entries.setdefault(canonicalize_name(name), []).append((version, entry.count("--hash=sha256:")))
    return entries


@pytest.mark.parametrize("part", PARTS)
def test_requirements_are_locked(part: str) -> None:
    entries = locked(part)
    for line in (ROOT / f"requirements-{part}.txt").read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            wanted = Requirement(line)
            versions = [version for version, _ in entries[canonicalize_name(wanted.name)]]
            assert all(wanted.specifier.contains(version) for version in versions), f"{line}: make lock"


@pytest.mark.parametrize("part", PARTS)
def test_every_version_has_hashes(part: str) -> None:
    assert [name for name, lines in locked(part).items() if not all(hashes for _, hashes in lines)] == []


def test_parts_agree() -> None:
    versions: dict[str, set[str]] = {}
    for part in PARTS:
        for name, lines in locked(part).items():
            versions.setdefault(name, set()).add(",".join(version for version, _ in lines))
    assert {name: found for name, found in versions.items() if len(found) > 1} == {}
