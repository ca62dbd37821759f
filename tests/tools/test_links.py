"""Links of the documents lead to files and headings that exist. `make docs` checks the same of docs/, with its own tools."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ("*.md", "docs/**/*.md", "examples/**/*.md", "src/**/*.md", "tools/**/*.md")


def slug(heading: str) -> str:
    """The anchor of a heading as GitHub makes it."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"[`*]", "", heading))
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")


def test_links_lead_somewhere() -> None:
    found = []
    for page in sorted(path for pattern in PAGES for path in ROOT.glob(pattern)):
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        for link in re.findall(r"\[[^\]]*\]\(([^)\s:]+)\)", text):
            name, _, anchor = link.partition("#")
            target = page.parent / name if name else page
            if not target.exists():
                found.append(f"{page.relative_to(ROOT)}: {link}")
            elif anchor and anchor not in {slug(heading) for heading in re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)}:
                found.append(f"{page.relative_to(ROOT)}: {link}: no such heading")
    assert found == []
