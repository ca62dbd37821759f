"""What is killed where: all pairs of a named point and a victim, in an order that visits every point once before any comes again.

in: a seed, whether executors are processes of their own. out: an endless series of `Kill`s.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

QUERIES = ("files", "copy")
BOTH, FILES, COPY = QUERIES, ("files",), ("copy",)

_SERVERS = ("driver", "broker", "flight", "driver+broker")
_READER = (*_SERVERS, "reader")
_TASK = (*_SERVERS, "worker", "task", "reader", "executor")
_RANDOM = ("driver", "broker", "flight", "reader", "worker", "daemon", "executor")

# name: (queries, victims). Points of hooks.py; `seen-...` are files that Spark writes; failpoints are those of the broker's store.
POINTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "latest-enter": (BOTH, (*_READER, "zombie")),
    "latest-exit": (BOTH, _READER),
    "partitions-enter": (BOTH, (*_READER, "zombie")),
    "partitions-exit": (BOTH, _READER),
    "commit-enter": (BOTH, (*_READER, "zombie")),
    "commit-exit": (BOTH, _READER),
    "read-begin": (BOTH, _TASK),
    "read-middle": (BOTH, _TASK),
    "read-end": (BOTH, _TASK),
    "write-begin": (COPY, _TASK),
    "prepare-enter": (COPY, (*_TASK, "zombie")),
    "prepare-exit": (COPY, _TASK),
    "write-prepared": (COPY, _TASK),
    "sinkcommit-enter": (COPY, (*_SERVERS, "self", "zombie")),
    "sinkcommit-exit": (COPY, (*_SERVERS, "self")),
    "seen-offset": (BOTH, _READER),
    "seen-metadata": (FILES, _READER),
    "seen-commit": (BOTH, _READER),
    "message-written": (BOTH, ("broker",)),
    "message-synced": (BOTH, ("broker",)),
    "commit-written": (BOTH, ("broker",)),
    "commit-synced": (BOTH, ("broker",)),
    "random": (BOTH, _RANDOM),
}
FAILPOINTS = ("message-written", "message-synced", "commit-written", "commit-synced")
# Random times come so often in each round.
RANDOM_SHARE = 5


@dataclass(frozen=True)
class Kill:
    """query: whose process is at the point, or whose reader is killed."""

    query: str
    point: str
    victim: str

    def __str__(self) -> str:
        return f"{self.query}/{self.point}/{self.victim}"

    @classmethod
    def parse(cls, text: str) -> Kill:
        """QUERY/POINT/VICTIM. Raises: ValueError."""
        query, point, victim = text.split("/")
        if query not in QUERIES or (point not in POINTS and point not in ("write-twice",)):
            raise ValueError(f"{text}: query is one of {QUERIES}, point one of {sorted(POINTS)}")
        return cls(query, point, victim)


def series(seed: int, *, cluster: bool) -> Iterator[Kill]:
    """See module."""
    dice = random.Random(seed)
    decks: dict[str, list[Kill]] = {}
    while True:
        names = [*POINTS, *["random"] * (RANDOM_SHARE - 1)]
        dice.shuffle(names)
        for name in names:
            if not decks.get(name):
                queries, victims = POINTS[name]
                decks[name] = [Kill(query, name, victim) for query in queries for victim in victims if cluster or victim != "executor"]
                dice.shuffle(decks[name])
            yield decks[name].pop()
