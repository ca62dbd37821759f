"""What a deduplication exchange remembers, in plain Python: what tests compare routing/seen.py with."""

from __future__ import annotations

import collections
import itertools
from typing import Any

# of routing/seen.py
LOOKED_AT, OWN_LOOKED_AT = 2, 32


class Oracle:
    """Args: count_max: values; ttl_ms: 0: none; total_max, user_max: in values. Values are of one user or of nobody (None)."""

    def __init__(self, count_max: int, ttl_ms: int, total_max: int, user_max: int) -> None:
        self._count_max, self._ttl_ms, self._total_max, self._user_max = count_max, ttl_ms, total_max, user_max
        # value -> when it is over (0: never), and whose it is; the oldest first
        self.values: collections.OrderedDict[Any, tuple[int, Any]] = collections.OrderedDict()

    def _lets(self, user: Any) -> bool:
        return user is None or sum(owner == user for _, owner in self.values.values()) < self._user_max

    def is_new(self, value: Any, user: Any, ttl_ms: int, now_ms: int) -> tuple[bool, bool]:
        """Whether it is the first one, and whether it is remembered."""
        known = self.values.get(value)
        if known is not None and (known[0] == 0 or now_ms < known[0]):
            return False, False
        self.values.pop(value, None)
        for oldest in list(itertools.islice(self.values, LOOKED_AT)):
            if 0 < self.values[oldest][0] <= now_ms:
                del self.values[oldest]
        if not self._lets(user):
            for oldest, (_, owner) in list(itertools.islice(self.values.items(), OWN_LOOKED_AT)):
                if owner == user:
                    del self.values[oldest]
                    break
            if not self._lets(user):
                return True, False
        while self.values and (len(self.values) >= self._count_max or len(self.values) >= self._total_max):
            self.values.popitem(last=False)
        if not self._count_max or not self._total_max:
            return True, False
        ttl_ms = ttl_ms or self._ttl_ms
        self.values[value] = (now_ms + ttl_ms if ttl_ms else 0), user
        return True, True
