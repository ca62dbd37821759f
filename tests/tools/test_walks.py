"""The walks through the code name files and functions that exist, and no more files than they may."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| `([\w/]+\.(?:py|pxd))` \| ((?:`\w+`(?:, )?)+) \|", re.MULTILINE)
CONTRIBUTING = "CONTRIBUTING.md"
# (page, heading) -> the most files that the walk may name, so that a verb stays readable from top to bottom
WALKS = {
    (CONTRIBUTING, "## A persistent publish in fifteen minutes"): 18,
    ("docs/ARCHITECTURE.md", "#### A pull of a stream's group over HTTP"): 18,
}


def sections(page: str) -> dict[str, str]:
    """heading -> its text, up to the next heading of its level or above."""
    text = (ROOT / page).read_text()
    found = {}
    for match in re.finditer(r"^(#+) .*$", text, re.MULTILINE):
        rest = text[match.end() :]
        end = re.search(rf"^#{{1,{len(match[1])}}} ", rest, re.MULTILINE)
        found[match[0]] = rest[: end.start()] if end else rest
    return found


def test_every_walk_has_a_bound() -> None:
    """A section of CONTRIBUTING with rows of a walk is checked below, by itself or with the one that it is in."""
    checked = [sections(page)[heading] for page, heading in WALKS]
    for heading, text in sections(CONTRIBUTING).items():
        if not heading.startswith("# ") and ROW.search(text):
            assert any(text in walk for walk in checked), f"{heading}: add it to WALKS with the most files that it may name"


@pytest.mark.parametrize("page, heading", WALKS)
def test_a_walk_names_files_and_functions_that_exist(page: str, heading: str) -> None:
    text = sections(page)[heading]
    files = set()
    for name, functions in ROW.findall(text):
        files.add(name)
        path = next((path for root in ("src/flintmq", "src") if (path := ROOT / root / name).exists()), None)
        assert path is not None, f"{page}, {heading}: {name} is gone"
        source = path.read_text()
        for function in re.findall(r"\w+", functions):
            assert re.search(rf"^\s*(?:async )?def {function}\(", source, re.MULTILINE), f"{page}: {name} has no {function}"
    assert 0 < len(files) <= WALKS[page, heading], f"{page}, {heading}: {len(files)} files"
