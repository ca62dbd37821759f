"""Spark's Python processes import the PySpark that is compiled, and other entries of their path stay."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

import pyspark

from pyspark_flintmq import queue_stream, quick
from pyspark_flintmq.quick import quick_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOME = Path(pyspark.__file__).parent
ARCHIVES = [str(HOME / "python/lib/pyspark.zip"), *map(str, (HOME / "python/lib").glob("py4j-*-src.zip"))]
SHOW = "import json, os, sys, py4j, pyspark; print(json.dumps([pyspark.__file__, os.environ['PYTHONPATH'], sys.argv[1:], sys.executable]))"


def shown(python: str, path: list[str], *arguments: str) -> list[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path)}
    done = subprocess.run([python, "-c", SHOW, *arguments], env=environment, capture_output=True, text=True, check=True, timeout=60)
    return list(json.loads(done.stdout))


def test_the_archives_of_the_installation_are_left_out_and_nothing_else(tmp_path: Path) -> None:
    other = tmp_path / "a dir * of pyspark.zip"
    foreign = tmp_path / "python/lib/pyspark.zip"
    other.mkdir()
    foreign.parent.mkdir(parents=True)
    with zipfile.ZipFile(foreign, "w") as archive:
        archive.writestr("something.py", "")
    script = quick_python(tmp_path)
    kept = [str(other), str(foreign)]
    assert "pyspark.zip" in shown(sys.executable, [*ARCHIVES, *kept])[0], "this is how Spark starts it"
    file, path, arguments, executable = shown(script, [*ARCHIVES, *kept], "an argument", "* $HOME 'x'", "")
    assert Path(file) == HOME / "__init__.py"
    assert path == os.pathsep.join(kept)
    assert arguments == ["an argument", "* $HOME 'x'", ""]
    assert executable == sys.executable


def test_without_a_path_nothing_is_in_it(tmp_path: Path) -> None:
    assert shown(quick_python(tmp_path), [])[1] == ""


def test_memory_is_given_back_unless_the_environment_says_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of a worker's memory were record batches that nobody had any more."""
    for name in quick.MEMORY:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MALLOC_ARENA_MAX", "4")
    code = f"import json, os; print(json.dumps({{name: os.environ[name] for name in {list(quick.MEMORY)}}}))"
    done = subprocess.run([quick_python(tmp_path), "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(done.stdout) == quick.MEMORY | {"MALLOC_ARENA_MAX": "4"}


def test_a_pyspark_that_is_an_archive_alone_stays_one(tmp_path: Path) -> None:
    """A Spark without pip: its Python has no other PySpark."""
    code = "import sys; from pyspark_flintmq.quick import quick_python; sys.stdout.write(quick_python(sys.argv[1]))"
    source = Path(quick.__file__).resolve().parents[1]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*ARCHIVES, str(source)])}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == sys.executable
    assert not list(tmp_path.iterdir())


def test_where_nothing_may_be_executed_the_interpreter_is_the_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick.os, "access", lambda path, mode: False)
    assert quick_python(tmp_path) == sys.executable


def test_a_directory_that_is_not_there_is_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkey = pytest.MonkeyPatch()
    with monkey.context() as patch:
        patch.setattr(sys, "argv", ["quick", str(tmp_path / "missing")])
        assert quick.main() == 1
        patch.setattr(sys, "argv", ["quick"])
        assert quick.main() == 2
    assert "missing" in capsys.readouterr().err


def test_a_worker_passes_over_what_it_imported_once() -> None:
    code = (
        "import gc; from pyspark_flintmq.queue_stream import settle; settle(); count = gc.get_freeze_count(); assert count > 10_000, count;"
        "kept = [[] for _ in range(1_000)]; settle(); assert gc.get_freeze_count() == count"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(queue_stream.__file__).resolve().parents[1])}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=60)


def test_what_a_daemon_imported_is_out_of_the_sight_of_its_workers_collector(tmp_path: Path) -> None:
    """And so it stays shared; the daemon gets the name of its workers' module as Spark gave it."""
    package = tmp_path / "path/pyspark"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("kept = [[] for _ in range(20_000)]")
    manager = "def manager():\n    print(json.dumps([sys.argv[1:], gc.get_freeze_count()]))\n"
    (package / "daemon.py").write_text(f"import gc, json, sys\n\n\n{manager}")
    script, environment = quick_python(tmp_path), os.environ | {"PYTHONPATH": str(package.parent)}
    done = subprocess.run(
        [script, "-m", "pyspark.daemon", "pyspark.worker"], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    arguments, frozen = json.loads(done.stdout)
    assert arguments == ["pyspark.worker"] and frozen > 20_000


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_the_workers_of_our_session_import_what_is_compiled(spark: SparkSession) -> None:
    assert spark.sparkContext.parallelize([0], 1).map(lambda _: pyspark.__file__).collect() == [str(HOME / "__init__.py")]
