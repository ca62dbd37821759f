"""Source mutants: lines of the scheduler made wrong. Also the program that applies one to a copy: mutants_source.py NAME DIRECTORY.

in: the scheduler's sources. out: the same with one replacement. A mutant whose text is no longer there is an error: it has to follow the code.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class SourceMutant:
    """file: of src/flintmq/scheduler; old -> new, exactly once; mix: which is looked at first; wrong: what is made wrong."""

    name: str
    file: str
    old: str
    new: str
    mix: str
    wrong: str


SOURCES: tuple[SourceMutant, ...] = ()


def apply(name: str, directory: Path) -> None:
    """Writes the mutated text beside the copy, as build.sh wants it (`x.py.new`)."""
    mutant = next(one for one in SOURCES if one.name == name)
    path = directory / f"{mutant.file}.new"
    text = path.read_text()
    if text.count(mutant.old) != 1:
        raise SystemExit(f"mutant {name}: its text is {text.count(mutant.old)} times in {mutant.file}, not once")
    path.write_text(text.replace(mutant.old, mutant.new))


if __name__ == "__main__":
    apply(sys.argv[1], Path(sys.argv[2]))
