"""What documents and messages tell people to install can be installed: every extra of flintmq that is named exists."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_extra_that_is_named_exists() -> None:
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    named: dict[str, list[str]] = {}
    files = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*"), *(ROOT / "src").rglob("*.py")]
    for file in files:
        if file.is_file() and file.suffix in (".md", ".py", ".yml"):
            for names in re.findall(r"flintmq\\?\[([\w, -]+)\\?\]", file.read_text()):
                for name in names.split(","):
                    named.setdefault(name.strip(), []).append(str(file.relative_to(ROOT)))
    assert {"spark", "pipelines", "delta"} <= set(named)
    assert {name: files for name, files in named.items() if name not in extras} == {}
