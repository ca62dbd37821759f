"""What the short campaigns share: on a busy machine little happens in a short life, so they go on until it is enough to say something."""

from __future__ import annotations

from collections.abc import Callable

from tools.faults.kill_loop import KillLoop, Summary


def until_found(loop: KillLoop, cycles: int) -> Summary:
    """So many cycles; again, five times at most, as long as nothing was found."""
    for first in range(0, 5 * cycles, cycles):
        if not (summary := loop.run(cycles, first)).ok:
            break
    return summary


def until_enough(loop: KillLoop, cycles: int, enough: Callable[[Summary], bool], times: int = 3) -> Summary:
    """So many cycles without a violation; again, `times` in all at most, as long as too little happened."""
    for first in range(0, times * cycles, cycles):
        summary = loop.run(cycles, first)
        assert summary.ok and summary.cycles == first + cycles, summary.to_json()
        if enough(summary):
            return summary
    raise AssertionError(f"too little happened: {summary.to_json()}")
