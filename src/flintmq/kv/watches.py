"""Watches of an engine that sees every commit of its rows.

in: keys that transactions changed. out: one call for each watch of such a key.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection

from flintmq.guard import guarded


class KeyWatch:
    """One watch. Any thread."""

    __slots__ = ("_owner", "key", "on_change")

    def __init__(self, owner: Watches, key: bytes, on_change: Callable[[], None]) -> None:
        self._owner = owner
        self.key = key
        self.on_change = on_change

    def cancel(self) -> None:
        self._owner.remove(self)


class Watches:
    """All watches of an engine. Any thread; no callback runs under its lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_key: dict[bytes, list[KeyWatch]] = {}

    def add(self, watch: KeyWatch) -> None:
        with self._lock:
            self._by_key.setdefault(watch.key, []).append(watch)

    def remove(self, watch: KeyWatch) -> None:
        with self._lock:
            known = self._by_key.get(watch.key)
            if known is not None and watch in known:
                known.remove(watch)
                if not known:
                    del self._by_key[watch.key]

    def tell(self, keys: Collection[bytes], cleared: Collection[tuple[bytes, bytes]]) -> None:
        """These keys and ranges changed."""
        if not self._by_key:
            return
        with self._lock:
            gone = {key for key in keys if key in self._by_key}
            for begin, end in cleared:
                gone.update(key for key in self._by_key if begin <= key < end)
            due = [watch for key in gone for watch in self._by_key.pop(key)]
        for watch in due:
            guarded("watches of an engine", repr(watch.key), watch.on_change)

    def __len__(self) -> int:
        with self._lock:
            return sum(map(len, self._by_key.values()))
