"""An example in a process of its own, which stops where a test wants to kill it.

`python -m tests.pipeline.example_driver STOP MARK EXAMPLE [ARGUMENT ...]`. STOP: empty, or MODULE:NAME:COUNT:before|behind: call COUNT of
that function touches the file MARK and stands still, before its work or behind it.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import runpy
import sys
import time
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[2] / "examples"


def stop_at(stop: str, mark: Path) -> None:
    """Wraps the function that `stop` names."""
    module, name, count, place = stop.split(":")
    *path, last = name.split(".")
    owner = functools.reduce(getattr, path, importlib.import_module(module))
    work, calls = getattr(owner, last), itertools.count(1)

    def stand() -> None:
        mark.touch()
        time.sleep(3600)

    @functools.wraps(work)
    def stopping(*arguments: Any, **options: Any) -> Any:
        here = next(calls) == int(count)
        if here and place == "before":
            stand()
        result = work(*arguments, **options)
        if here:
            stand()
        return result

    setattr(owner, last, stopping)


def main(stop: str, mark: str, example: str, *arguments: str) -> None:
    if stop:
        stop_at(stop, Path(mark))
    sys.path.insert(0, str(FOLDER))
    sys.argv = [example, *arguments]
    runpy.run_path(str(FOLDER / example), run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
