"""The pages for users say what works: every command of them is run."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tools import newcomer

PROGRAMS = Path(sys.executable).parent
# what a line of a block begins with that somebody would paste into a shell
_COMMAND = re.compile(r"^\s*(\$ )?(flintmq|curl|make|pip|docker|kubectl|rabbitmq\w*) ", re.MULTILINE)


@pytest.mark.parametrize("page", newcomer.PAGES)
def test_what_a_page_says_works(page: str) -> None:
    newcomer.follow(page, PROGRAMS)


def test_no_command_hides_in_a_block_without_a_language() -> None:
    for page in newcomer.PAGES:
        text = (newcomer.ROOT / page).read_text()
        for found in re.finditer(r"^ *```(\w*)\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL):
            assert found[1] in ("sh", "python") or not _COMMAND.search(found[2]), f"{page}: {found[2]}"


def page_of(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> str:
    (folder / "PAGE.md").write_text(text)
    monkeypatch.setattr(newcomer, "ROOT", folder)
    return "PAGE.md"


def test_a_command_that_fails_is_seen_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = page_of(tmp_path, "# Title\n\n```sh\ntrue\nflintmq ctl no_such_verb\ntrue\n```\n", monkeypatch)
    with pytest.raises(SystemExit, match=r"PAGE\.md:3 sh failed"):
        newcomer.follow(page, PROGRAMS)


def test_blocks_have_what_earlier_ones_made_and_a_reason_keeps_one_from_being_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        "```sh\nexport NAME=x\ntouch made\n```\n<!-- run: no, it would fail -->\n```sh\nfalse\n```\n"
        "```sh\ntest -e made\ntest $NAME = x\n```\n```\nno language\n```\n1. item\n\n   ```sh\n   test -e made\n   ```\n"
    )
    lines = newcomer.follow(page_of(tmp_path, text, monkeypatch), PROGRAMS)
    assert [line.split(": ", 1)[1] for line in lines] == ["2 lines, done", "not run: it would fail", "2 lines, done", "1 lines, done"]
