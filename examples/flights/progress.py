"""Progress on stderr: a bar on a terminal, else one line every few seconds.

In: counts. Out: text. Invariant: what is printed never decides anything.
"""

from __future__ import annotations

import sys
from typing import TextIO

from flintmq.clock import Clock, SystemClock

_BAR_EVERY_NS = 100_000_000
_LINE_EVERY_NS = 5_000_000_000
_WIDTH = 30


class Progress:
    """Counts up to `total`. `show` may be called as often as one likes."""

    def __init__(self, label: str, total: int, stream: TextIO | None = None, clock: Clock | None = None) -> None:
        self._what = label
        self._total = total
        self._stream = stream if stream is not None else sys.stderr
        self._clock = clock if clock is not None else SystemClock()
        self._terminal = self._stream.isatty()
        self._every = _BAR_EVERY_NS if self._terminal else _LINE_EVERY_NS
        self._began = self._shown = self._clock.monotonic_ns()
        self._done = 0

    def show(self, done: int) -> None:
        """`done` of the total are through."""
        self._done = done
        now = self._clock.monotonic_ns()
        if now - self._shown >= self._every:
            self._shown = now
            self._write(self._text(now), end="" if self._terminal else "\n")

    def end(self, note: str) -> None:
        """The last line, with the rate over the whole time."""
        self._write(f"{self._text(self._clock.monotonic_ns())}, {note}", end="\n")

    def _text(self, now: int) -> str:
        seconds = max((now - self._began) / 1e9, 1e-9)
        counts = f"{self._done:,} of {self._total:,}, {self._done / seconds:,.0f}/s"
        if not self._terminal:
            return f"{self._what}: {counts}"
        filled = _WIDTH * min(self._done, self._total) // max(self._total, 1)
        return f"{self._what} [{'#' * filled}{' ' * (_WIDTH - filled)}] {counts}"

    def _write(self, text: str, end: str) -> None:
        # Clears to the end of the line first: the next text may be shorter.
        self._stream.write(f"\r\x1b[K{text}{end}" if self._terminal else f"{text}{end}")
        self._stream.flush()
