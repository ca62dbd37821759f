"""Counts of what a node did since its start: one object, which every service adds to and management reads.

in: calls of loops and services. out: plain numbers.

C1  Nothing is dropped in silence: a message that left without reaching a consumer is in `drops`, by reason. One that became a dead letter
    is in `dead_lettered` instead, never in both: broker.dead_letters and channel/letters count it where they know what became of it, and
    whoever ends a message that may become a letter counts nothing (tests/session/test_features_together.py). A letter that is lost on its
    way, to a full queue or round in a circle, is a drop of its own.
C2  `drops` and `dead_lettered` are exact: any thread adds to them, under a lock. The other numbers are figures for an operator's eye; two
    loops that add at the same moment may count one.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any

from flintmq.vhost.names import SCHEDULE

# reasons that are shown before their first drop, with 0: a rate of a counter that appears with 1 misses that one
REASONS = (
    "dead_letter_cycle",
    "dead_letter_failed",
    "dead_letter_refused",
    "delivery_limit",
    "expired",
    "maxlen",
    "no_dead_letter_exchange",
    "refused",
    "rejected",
    "unreadable_content",
    "unreadable_properties",
    "unroutable",
)
DEATHS = ("delivery_limit", "expired", "maxlen", "rejected")
# protocols of logins, as RabbitMQ's metrics name them
AMQP, HTTP = "amqp091", "http"
# reasons of drops. passed_on: of those refused, what its queue dead-letters (reject-publish-dlx): no drop
NO_EXCHANGE, REFUSED, PASSED = "no_dead_letter_exchange", "refused", "passed_on"


def totals_of(core: Any) -> dict[str, int]:
    """What of a queue is added up over all queues, those that are gone included. O(its consumers)."""
    return {"enqueued": core.enqueued_total(), "delivered": core.delivered_total()}


class Counters:
    """Attributes: drops: reason -> messages; dead_lettered: reason -> messages that went to a dead-letter exchange; homeless: reason of the
    death -> those of `drops` whose dead-letter exchange does not exist."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.drops: Counter[str] = Counter()
        self.dead_lettered: Counter[str] = Counter()
        self.homeless: Counter[str] = Counter()
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
        # (protocol, succeeded) -> logins that were tried
        self.logins: Counter[tuple[str, bool]] = Counter()
        # virtual host -> what its deleted queues had counted (totals_of): a total of all queues never falls
        self._gone: dict[str, Counter[str]] = {}

    def drop(self, reason: str, count: int = 1) -> None:
        """Counts messages that left without reaching a consumer (C1). Any thread."""
        with self._lock:
            self.drops[reason] += count

    def add_drops(self, drops: Mapping[str, int]) -> None:
        """Adds what a connection counted itself. Any thread."""
        if drops:
            with self._lock:
                self.drops.update(drops)
                passed = self.drops.pop(PASSED, 0)
                if passed:
                    self.drops[REFUSED] -= passed

    def drop_homeless(self, death: str) -> None:
        """Counts a message whose dead-letter exchange does not exist. Args: death: reason, as of dead letters. Any thread."""
        with self._lock:
            self.drops[NO_EXCHANGE] += 1
            self.homeless[death] += 1

    def login(self, protocol: str, succeeded: bool) -> None:
        """Counts a login that was tried. Any thread."""
        with self._lock:
            self.logins[protocol, succeeded] += 1

    def queue_leaves(self, queues: dict[int, Any], queue: Any) -> None:
        """Takes a deleted queue out of `queues`; what it counted stays in the totals. O(its consumers). Any thread."""
        counted = {} if queue.name == SCHEDULE else totals_of(queue.core)
        with self._lock:
            if queues.pop(queue.queue_id, None) is not None:
                self._gone.setdefault(queue.vhost, Counter()).update(counted)

    def vhost_leaves(self, vhost: str) -> None:
        """The totals of a deleted virtual host belong to the node from now on. Any thread."""
        with self._lock:
            self._gone.setdefault("", Counter()).update(self._gone.pop(vhost, {}))

    def with_gone(self, queues: Mapping[int, Any]) -> tuple[list[Any], dict[str, Counter[str]]]:
        """The queues that are there, and by virtual host what those before had counted ("": of virtual hosts that are gone): of one moment,
        so that a queue deleted meanwhile is in one of both. O(queues). Any thread."""
        with self._lock:
            return list(queues.values()), {vhost: Counter(counts) for vhost, counts in self._gone.items()}

    def add_letters(self, letters: Mapping[str, int]) -> None:
        """Adds the dead letters that a connection counted itself. Any thread."""
        if letters:
            with self._lock:
                self.dead_lettered.update(letters)

    def dead_letter(self, reason: str) -> None:
        """Counts a message that was published to its dead-letter exchange. Any thread."""
        with self._lock:
            self.dead_lettered[reason] += 1
