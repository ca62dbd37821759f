"""The I/O loops of a node as its services use them: which thread runs a piece of work, and in which slices.

in: work of services and verbs. out: the same on the right loop's thread.

While no loop runs (a start, a tool, a unit test) everything runs at once, on the caller's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from flintmq.channel.loop_port import LoopPort

# nanoseconds of one step of a job
STEP_NS = 50_000


class OnLoop(Protocol):
    """Whatever belongs to one loop: a client."""

    loop: LoopPort


class Loops:
    """Any thread. Empty until `start`."""

    def __init__(self) -> None:
        self._loops: Sequence[LoopPort] = ()

    def start(self, loops: Sequence[LoopPort]) -> None:
        """The loops of the node; the first of them is its home."""
        self._loops = loops

    def __len__(self) -> int:
        return len(self._loops)

    def __iter__(self) -> Iterator[LoopPort]:
        return iter(self._loops)

    def is_current(self) -> bool:
        """Whether the caller is the thread of a loop."""
        return any(loop.is_current() for loop in self._loops)

    def call_home(self, function: Callable[[], object]) -> None:
        """Runs `function` soon on the home loop."""
        if self._loops:
            self._loops[0].call(function)
        else:
            function()

    def run_on(self, client: OnLoop, function: Callable[[], object]) -> None:
        """Runs `function` on the thread that owns the client: at once when the caller is that thread."""
        if client.loop.is_current():
            function()
        else:
            client.loop.call(function)

    def in_slices(self, step: Callable[[], bool], ended: Callable[[bool], object] | None = None) -> None:
        """Long work in slices (Loop.job): `step` is called until it returns True, then `ended(True)`; `ended(False)` when the loop ends
        first. On the calling loop, or on the home loop when no loop calls."""
        if not self._loops:
            while not step():
                pass
            if ended is not None:
                ended(True)
            return
        loop = next((one for one in self._loops if one.is_current()), self._loops[0])
        loop.job(step, ended)
