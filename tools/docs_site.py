"""What the documentation site needs besides the pages of docs/ (mkdocs.yml; `make docs`).

in: README.md, docs/README.md, CONTRIBUTING.md, CHANGELOG.md, docs. out: pages of the site.

The pages are written for GitHub, too, where links leave docs/ and a list needs no empty line before it. Links to the four pages above are
turned; a link to another file of the repository becomes its text, and a link to nothing stays, so that the strict build fails.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
# page of the site -> file of the repository
OUTSIDE = {"index.md": "README.md", "PAGES.md": "docs/README.md", "CONTRIBUTING.md": "CONTRIBUTING.md", "CHANGELOG.md": "CHANGELOG.md"}
_LINK = re.compile(r"\[([^\[\]]*)\]\(([^)\s:]+)\)")
_FENCE = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)
_ITEM = re.compile(r"^(?:[*-]|\d+\.) ")


def on_config(config: Any) -> Any:
    """All pages of docs/adr are in the navigation, in their order."""
    for entry in config.nav:
        if "Decisions" in entry:
            entry["Decisions"] = [path.relative_to(ROOT / "docs").as_posix() for path in sorted((ROOT / "docs/adr").glob("*.md"))]
    return config


def on_files(files: Files, config: Any) -> Files:
    for page, source in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    return files


def turned(text: str, target: str, page: str) -> str:
    """A link of `page` as the site has it. Args: target: with its anchor, relative to the file that GitHub shows."""
    path, _, anchor = target.partition("#")
    if not path:
        return f"[{text}]({target})"
    here = posixpath.dirname(OUTSIDE.get(page, f"docs/{page}"))
    file = posixpath.normpath(posixpath.join(here, path))
    pages = {source: name for name, source in OUTSIDE.items()}
    if file in pages:
        name = pages[file]
    elif file.startswith("docs/") and (ROOT / file).is_file():
        name = file.removeprefix("docs/")
    elif (ROOT / file).exists() and not file.startswith(".."):
        return text  # source, an example, a folder: no part of the site
    else:
        return f"[{text}]({target})"
    link = posixpath.relpath(name, posixpath.dirname(page) or ".")
    return f"[{text}]({link}{'#' + anchor if anchor else ''})"


def spaced(text: str) -> str:
    """An empty line before each list that follows a paragraph."""
    lines: list[str] = []
    for line in text.split("\n"):
        before = lines[-1] if lines else ""
        if _ITEM.match(line) and before.strip() and not before.startswith((" ", "|", "#")) and not _ITEM.match(before):
            lines.append("")
        lines.append(line)
    return "\n".join(lines)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    parts = _FENCE.split(markdown)
    for number in range(0, len(parts), 2):  # between the fences
        parts[number] = _LINK.sub(lambda match: turned(match[1], match[2], page.file.src_uri), spaced(parts[number]))
    return "".join(parts)
