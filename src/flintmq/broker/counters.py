"""Counts of what a node did since its start: one object, which every service adds to and management reads.

in: calls of loops and services. out: plain numbers.

C1  Nothing is dropped in silence: a message that left without reaching a consumer is in `drops`, by reason.
C2  `drops` and `dead_lettered` are exact: any thread adds to them, under a lock. The other numbers are figures for an operator's eye; two
    loops that add at the same moment may count one.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping


class Counters:
    """Attributes: drops: reason -> messages; dead_lettered: reason -> messages that went to a dead-letter exchange."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.drops: Counter[str] = Counter()
        self.dead_lettered: Counter[str] = Counter()
        # what Python did for single messages, by kind: 0 of each after the first use of a key (docs/PERFORMANCE.md). A figure
        self.in_python: Counter[str] = Counter()
        self.connections_opened = 0
        self.connections_closed = 0
        self.channels_opened = 0
        self.channels_closed = 0
        self.queues_declared = 0
        self.queues_created = 0
        self.queues_deleted = 0
        self.gets_empty = 0  # basic.get on a queue without a message

    def drop(self, reason: str, count: int = 1) -> None:
        """Counts messages that left without reaching a consumer (C1). Any thread."""
        with self._lock:
            self.drops[reason] += count

    def add_drops(self, drops: Mapping[str, int]) -> None:
        """Adds what a connection counted itself. Any thread."""
        if drops:
            with self._lock:
                self.drops.update(drops)

    def add_letters(self, letters: Mapping[str, int]) -> None:
        """Adds the dead letters that a connection counted itself. Any thread."""
        if letters:
            with self._lock:
                self.dead_lettered.update(letters)

    def dead_letter(self, reason: str) -> None:
        """Counts a message that was published to its dead-letter exchange. Any thread."""
        with self._lock:
            self.dead_lettered[reason] += 1
