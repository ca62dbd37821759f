"""The walks through the code name files and functions that exist, and as many files as they say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| `([\w/]+\.(?:py|pxd))` \| ((?:`\w+`(?:, )?)+) \|", re.MULTILINE)
WALKS = {
    "publish": ("CONTRIBUTING.md", "## A persistent publish in fifteen minutes", r"names (\d+) files"),
    "declare": ("CONTRIBUTING.md", "## A durable queue.declare in ten minutes", r"names (\d+) files"),
    "pull": ("docs/ARCHITECTURE.md", "#### A pull of a stream's group over HTTP", r"That is (\d+) files"),
    "recovery": ("docs/ARCHITECTURE.md", "#### Recovery", r"That is (\d+) files"),
}


def section(page: str, heading: str) -> str:
    """The text from `heading` to the next heading of its level or above."""
    text = (ROOT / page).read_text()
    level = len(heading) - len(heading.lstrip("#"))
    return re.split(rf"^#{{1,{level}}} ", text.split(heading + "\n")[1], flags=re.MULTILINE)[0]


@pytest.mark.parametrize("walk", WALKS)
def test_what_a_walk_names_exists(walk: str) -> None:
    page, heading, count = WALKS[walk]
    text = section(page, heading)
    files = set()
    for name, functions in ROW.findall(text):
        files.add(name)
        path = ROOT / "src/flintmq" / name
        assert path.exists(), f"{page}, {heading}: {name} is gone"
        source = path.read_text()
        for function in re.findall(r"\w+", functions):
            assert re.search(rf"^\s*(?:async )?def {function}\(", source, re.MULTILINE), f"{page}: {name} has no {function}"
    stated = re.search(count, text)
    assert stated is not None
    assert len(files) == int(stated[1]), f"{page}, {heading}: correct the number of files"
