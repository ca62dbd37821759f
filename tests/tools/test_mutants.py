"""Mutants of the source: the text that each of them changes is still there, so that a campaign does not find out hours later."""

from __future__ import annotations

import pytest

from tools.actor_sim.mutants_source import SCHEDULER, SOURCES, SourceMutant
from tools.crash.mutants import MUTANTS, ROOT, STORE, Mutant


@pytest.mark.parametrize("mutant", SOURCES, ids=lambda mutant: mutant.name)
def test_a_mutant_of_the_scheduler_finds_its_text(mutant: SourceMutant) -> None:
    assert (SCHEDULER / mutant.file).read_text().count(mutant.old) == 1


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_of_the_store_finds_its_text(mutant: Mutant) -> None:
    for edit in mutant.edits():
        text = (ROOT / STORE / edit.file).read_text()
        assert edit.old in text[text.index(edit.after) :]
