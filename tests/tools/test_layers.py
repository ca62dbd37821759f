"""The layer check sees each thing that it forbids: planted in a small tree, and in a copy of src; the real tree keeps to its table."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.layers import ROOT, TABLE, Check, circles, way_round

# A tree that keeps to its table: low < middle < high, and a script that starts high.
FILES = {
    "pyproject.toml": '[project]\nscripts = { small = "flintmq.high.main:main" }\n',
    "src/flintmq/__init__.py": "",
    "src/flintmq/low/__init__.py": "",
    "src/flintmq/low/bits.pxd": "from libc.stdint cimport uint64_t\ncdef uint64_t bits(uint64_t value) noexcept nogil\n",
    "src/flintmq/low/bits.py": "def bits(value): return value\n",
    "src/flintmq/middle/__init__.py": "",
    "src/flintmq/middle/table.pxd": "from flintmq.low.bits cimport bits\n",
    "src/flintmq/middle/table.py": "from cython.cimports.flintmq.low.bits import bits\nimport json\n",
    "src/flintmq/high/__init__.py": "",
    "src/flintmq/low/README.md": "# low\nIn: bits.\nOut: bits.\nMay use: nothing of FlintMQ.\nNever: tables.\n",
    "src/flintmq/middle/README.md": "# middle\nIn: bits.\nOut: tables.\nMay use: `low`.\nNever: people.\n",
    "src/flintmq/high/README.md": "# high\nIn: words.\nOut: tables.\nMay use: `middle`.\nNever: bits.\n",
    "src/flintmq/high/main.py": "import click\nfrom flintmq.middle import table\n",
}
LAYERS = """
[layers.0]
flintmq = ""
low = ""
[layers.1]
middle = "low"
[layers.2]
high = "middle"
[libraries]
click = "high"
[banned]
pickle = "code of bytes"
[never]
middle = ["click", "middle is bare"]
"""


def plant(root: Path, files: dict[str, str], layers: str = LAYERS) -> list[str]:
    """Findings of the small tree with these files beside or instead of its own."""
    for name, text in {**FILES, **files, TABLE: layers}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Check(root).run()


def test_a_tree_that_keeps_to_its_table_has_no_findings(tmp_path: Path) -> None:
    assert plant(tmp_path, {}) == []


@pytest.mark.parametrize(
    ("name", "text", "place"),
    [
        (
            "src/flintmq/middle/table.py",
            "from cython.cimports.flintmq.low.bits import bits\nfrom flintmq.high import main\n",
            "middle/table.py:2",
        ),
        (
            "src/flintmq/middle/table.py",
            "def f():\n    from flintmq.low import bits\n    from flintmq.high.main import main\n",
            "middle/table.py:3",
        ),
        (
            "src/flintmq/middle/table.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import flintmq.high.main\n",
            "middle/table.py:3",
        ),
        ("src/flintmq/middle/table.py", "from cython.cimports.flintmq.high.main import main\n", "middle/table.py:1"),
        ("src/flintmq/middle/table.py", "import importlib\nimportlib.import_module('flintmq.high.main')\n", "middle/table.py:2"),
        ("src/flintmq/middle/table.py", "from ..high import main\n", "middle/table.py:1"),
        ("src/flintmq/middle/table.pyi", "from flintmq.high.main import main\n", "middle/table.pyi:1"),
        (
            "src/flintmq/middle/table.pxd",
            "# why\nfrom flintmq.low.bits cimport bits\nfrom flintmq.high.main cimport thing_t\n",
            "middle/table.pxd:3",
        ),
        ("src/flintmq/middle/table.pxd", "from flintmq.high.main cimport (\n    one_t,  # first\n    two_t,\n)\n", "middle/table.pxd:1"),
        ("src/flintmq/middle/table.pxd", "cimport flintmq.high.main as main\n", "middle/table.pxd:1"),
        ("src/flintmq/middle/table.pxd", "from flintmq.high cimport \\\n    main\n", "middle/table.pxd:1"),
    ],
)
def test_an_import_of_a_higher_layer_is_found(tmp_path: Path, name: str, text: str, place: str) -> None:
    findings = plant(tmp_path, {name: text})
    (line,) = [line for line in findings if "middle may not use high" in line]
    assert line.startswith(f"src/flintmq/{place}: ") and "not in a lower layer" in line


def test_an_import_of_a_lower_layer_that_the_table_does_not_name_is_found(tmp_path: Path) -> None:
    (line,) = plant(
        tmp_path, {"src/flintmq/high/main.py": "import click\nfrom flintmq.middle import table\nfrom flintmq.low import bits\n"}
    )
    assert line.startswith("src/flintmq/high/main.py:3: high may not use low (low.bits")


def test_a_name_that_nothing_uses_any_more_is_found(tmp_path: Path) -> None:
    readme = FILES["src/flintmq/high/README.md"].replace("`middle`", "`low`, `middle`")
    (line,) = plant(tmp_path, {"src/flintmq/high/README.md": readme}, LAYERS.replace('high = "middle"', 'high = "low middle"'))
    assert line == f"{TABLE}: high may use low and doesn't any more: delete low from its line"


def test_a_table_that_is_no_layering_is_found(tmp_path: Path) -> None:
    found = plant(
        tmp_path, {"src/flintmq/low/bits.py": "def f():\n    import flintmq.middle.table\n"}, LAYERS.replace('low = ""', 'low = "middle"')
    )
    assert any(line.startswith(f"{TABLE}: low (layer 0) may not use middle (layer 1)") for line in found)
    assert any(line.startswith("circle between packages: low > middle > low (src/flintmq/low/bits.py:2, ") for line in found)


def test_a_package_without_a_line_and_a_line_without_a_package_are_found(tmp_path: Path) -> None:
    lines = plant(
        tmp_path,
        {"src/flintmq/high/main.py": "import click\nimport flintmq.middle.table, flintmq.new\n", "src/flintmq/new.py": ""},
        LAYERS + "\n",
    )
    assert lines == [f"src/flintmq/new.py: new has no line in {TABLE}: give it a layer and what it may use"]
    assert f"{TABLE}: gone is no package of src: delete its line" in plant(tmp_path, {}, LAYERS.replace('low = ""', 'low = ""\ngone = ""'))


@pytest.mark.parametrize("other", ["import flintmq.low.bits\n", "from cython.cimports.flintmq.low.bits import bits\n"])
def test_a_circle_between_modules_is_found(tmp_path: Path, other: str) -> None:
    files = {"src/flintmq/low/bits.pxd": "from flintmq.low.more cimport more_t\n", "src/flintmq/low/more.py": other}
    (line,) = plant(tmp_path, files)
    assert line.startswith("circle between modules: low.bits > low.more > low.bits (src/flintmq/low/bits.pxd:1, src/flintmq/low/more.py:1)")
    known = LAYERS + '[circles]\n"low.bits low.more" = "known"\n'
    assert plant(tmp_path, files, known) == [line]
    for closing in (f"def f():\n    {other}", f"if TYPE_CHECKING:\n    {other}"):
        later = {**files, "src/flintmq/low/more.py": closing}
        assert len(plant(tmp_path, later)) == 1
        assert plant(tmp_path, later, known) == []


def test_known_things_are_quiet_and_only_shrink(tmp_path: Path) -> None:
    files = {"src/flintmq/middle/table.py": "from flintmq.low import bits\nif TYPE_CHECKING:\n    import flintmq.high.main\n"}
    known = '[exceptions]\n"middle.table > high.main" = "known"\n[circles]\n"high.main middle.table" = "known"\n'
    assert plant(tmp_path, files, LAYERS + known) == []
    main = FILES["src/flintmq/high/main.py"] + "import flintmq.middle.other\n"
    more = {**files, "src/flintmq/middle/other.py": "if TYPE_CHECKING:\n    import flintmq.high.main\n", "src/flintmq/high/main.py": main}
    new = next(line for line in plant(tmp_path, more, LAYERS + known) if "middle/other" in line and "may not" in line)
    assert new.startswith("src/flintmq/middle/other.py:2: middle may not use high")
    shutil.rmtree(tmp_path)
    stale, circle = plant(tmp_path, {}, LAYERS + known)
    assert stale == f"{TABLE}: the exception middle.table > high.main is gone from the code, or allowed: delete its line"
    assert "the circle high.main middle.table is gone" in circle
    (stale,) = plant(tmp_path, {}, LAYERS + '[circles]\n"low.bits low.more" = "known"\n')
    assert "the circle low.bits low.more is gone" in stale


def test_libraries_stay_where_they_belong(tmp_path: Path) -> None:
    (line,) = plant(tmp_path, {"src/flintmq/middle/table.py": "def f():\n    from click.testing import x\nimport flintmq.low.bits"})
    assert line.startswith("src/flintmq/middle/table.py:2: middle may not use the library click (inside)")
    (line,) = plant(tmp_path, {"src/flintmq/middle/table.py": "import flintmq.low.bits, pickle"})
    assert line == "src/flintmq/middle/table.py:1: pickle is imported nowhere: code of bytes"
    (line,) = plant(
        tmp_path, {"src/flintmq/high/main.py": "import flintmq.middle.table", "src/flintmq/middle/table.py": "import flintmq.low.bits"}
    )
    assert line == f"{TABLE}: high may use the library click and doesn't any more: delete it there"


def test_what_is_never_reached_is_not_reached_by_way_of_others(tmp_path: Path) -> None:
    layers = LAYERS.replace('click = "high"', 'click = "high low"')
    (line,) = plant(tmp_path, {"src/flintmq/low/bits.py": "import click"}, layers)
    assert line == f"{TABLE}: middle reaches click (middle > low > click), which it never may: middle is bare"


class TestUsers:
    """L5: a module in src that only tests import."""

    ALONE = {"src/flintmq/middle/twin.py": "from flintmq.low import bits\n", "tests/test_twin.py": "from flintmq.middle import twin\n"}

    def test_it_is_found(self, tmp_path: Path) -> None:
        (line,) = plant(tmp_path, self.ALONE)
        assert line.startswith("src/flintmq/middle/twin.py: only tests import middle.twin, or nobody does")

    def test_two_that_import_each_other_are_found(self, tmp_path: Path) -> None:
        files = {
            "src/flintmq/middle/one.py": "if TYPE_CHECKING:\n    from flintmq.middle import two\n",
            "src/flintmq/middle/two.py": "import flintmq.middle.one\n",
        }
        circle, *unused = plant(tmp_path, files)
        assert circle.startswith("circle between modules: middle.one > middle.two > middle.one")
        assert [line.split(":")[0] for line in unused] == ["src/flintmq/middle/one.py", "src/flintmq/middle/two.py"]

    def test_a_comment_or_a_docstring_is_no_user(self, tmp_path: Path) -> None:
        main = '"""See flintmq.middle.twin."""\nimport click\nfrom flintmq.middle import table  # flintmq.middle.twin\n'
        assert len(plant(tmp_path, {**self.ALONE, "src/flintmq/high/main.py": main})) == 1

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("src/flintmq/high/main.py", 'import click\nfrom flintmq.middle import table\nLAZY = {"twin": "flintmq.middle.twin:run"}\n'),
            ("src/flintmq/high/main.py", 'import click\nfrom flintmq.middle import table\nNAME = f"flintmq.middle.{click}"\n'),
            ("Makefile", "twin:\n\t@.venv/bin/python -m flintmq.middle.twin\n"),
            ("docs/TWINS.md", "Run `python -m flintmq.middle.twin`.\n"),
            ("tools/run.py", 'command = [sys.executable, "-m", "flintmq.middle.twin"]\n'),
            (
                "pyproject.toml",
                FILES["pyproject.toml"] + '[project.entry-points."flintmq.queue_kinds"]\ntwin = "flintmq.middle.twin:Twin"\n',
            ),
        ],
    )
    def test_lazy_imports_and_entry_points_are_users(self, tmp_path: Path, name: str, text: str) -> None:
        assert plant(tmp_path, {**self.ALONE, name: text}) == []

    def test_known_ones_are_quiet_and_only_shrink(self, tmp_path: Path) -> None:
        known = LAYERS + '[only_tests]\n"middle.twin" = "on its way out"\n'
        assert plant(tmp_path, self.ALONE, known) == []
        assert plant(tmp_path, self.ALONE, LAYERS + '[outside]\n"middle.twin" = "users load it"\n') == []
        (tmp_path / "src/flintmq/middle/twin.py").unlink()
        (stale,) = plant(tmp_path, {}, known)
        assert stale == f"{TABLE}: middle.twin is no longer a module that only tests import: delete its line"


def test_the_document_shows_the_layers(tmp_path: Path) -> None:
    page = "| layer | packages | what |\n|---|---|---|\n| 2 | `high` | top |\n| 1 | `middle` | |\n| 0 | `flintmq`, `low` | |\n"
    assert plant(tmp_path, {"docs/ARCHITECTURE.md": page}) == []
    assert plant(tmp_path, {"docs/ARCHITECTURE.md": page.replace("`middle`", "`center`")}) == [
        f"docs/ARCHITECTURE.md: layer 1 is middle in {TABLE}"
    ]


def test_each_package_says_what_it_is(tmp_path: Path) -> None:
    readme, text = "src/flintmq/high/README.md", FILES["src/flintmq/high/README.md"]
    (line,) = plant(tmp_path, {readme: text.replace("`middle`", "`low`, `middle`")})
    assert line == f'{readme}: the line "May use" is not as the table has it: python tools/layers.py --write'
    Check(tmp_path).write_readmes()
    assert (tmp_path / readme).read_text() == text
    (line,) = plant(tmp_path, {readme: text.replace("Never: bits.\n", "")})
    assert line == f'{readme}: no line begins with "Never:"'
    (line,) = plant(tmp_path, {readme: text + "more\n" * 11})
    assert line.startswith(f"{readme}: 16 lines, at most 15")
    shutil.rmtree(tmp_path)
    plant(tmp_path, {})
    (tmp_path / readme).unlink()
    (line,) = Check(tmp_path).run()
    assert line.startswith(f"{readme}: high has none")


def test_circles_of_a_graph() -> None:
    graph = {"a": ["b", "d"], "b": ["c"], "c": ["a", "e"], "d": ["e"], "e": ["f"], "f": ["e"], "g": ["g"]}
    assert circles(graph) == [["a", "b", "c"], ["e", "f"]]
    assert way_round(graph, ["a", "b", "c"]) == ["a", "b", "c", "a"]
    assert circles({str(number): [str(number + 1)] for number in range(5000)}) == []


# What the table of today must see, in the real tree: (file, line to add, what the finding says).
PLANTED = [
    ("queue/pull.py", "from flintmq.net import sockets\n", "queue may not use net"),
    ("queue/pull.py", "from cython.cimports.flintmq.net.sockets import sock_send\n", "queue may not use net"),
    ("queue/types.pxd", "from flintmq.store.message_log cimport message_log_t\n", "queue may not use store"),
    ("store/directory.py", "\ndef planted():\n    from flintmq.session import broker\n", "store may not use session"),
    ("node.py", "import pyarrow\n", "node may not use the library pyarrow"),
    ("vhost/changes.py", "import pickle\n", "pickle is imported nowhere"),
]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of all that the check reads, with everything of PLANTED in it."""
    root = tmp_path_factory.mktemp("tree")
    for name in ("src", "docs", "examples", "tools"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("*.so", "*.c", "__pycache__", "specs", "img"))
    for name in ("Makefile", "README.md", "pyproject.toml"):
        shutil.copy(ROOT / name, root / name)
    for name, text, _ in PLANTED:
        path = root / "src/flintmq" / name
        path.write_text(path.read_text() + text)
    return root


def test_what_is_planted_in_the_real_tree_is_found(copy: Path) -> None:
    findings = Check(copy).run()
    for name, _, what in PLANTED:
        assert any(line.startswith(f"src/flintmq/{name}:") and what in line for line in findings), (name, what, findings)


def test_the_command_fails_when_something_is_found(copy: Path) -> None:
    run = subprocess.run([sys.executable, ROOT / "tools/layers.py", copy], capture_output=True, text=True, timeout=60)
    assert run.returncode == 1 and "queue may not use net" in run.stdout
    assert "tools/layers.py" in (ROOT / "tools/lint.sh").read_text()


def test_the_real_tree_keeps_to_its_table() -> None:
    check = Check(ROOT)
    assert check.run() == []
    # Nothing is left to mend: whoever adds something known here says why in the review.
    assert not check.table.exceptions and not check.table.only_tests and not check.table.circles
