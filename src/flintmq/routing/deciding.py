"""The headers that decide the routes of exchanges that look at them.

in: bindings. out: names of headers, and the values that they are compared with (for routing/sieve).
"""

from __future__ import annotations

from collections.abc import Iterable


class Deciding:
    """Args: most: names and values up to which values are remembered (Limits.deciding_headers_max); names beyond it make `too_many`."""

    __slots__ = ("_count", "_most", "names", "others", "too_many")

    def __init__(self, most: int) -> None:
        self.names: dict[bytes, set[bytes] | None] = {}  # -> strings that it is compared with; None: its value decides as it stands
        self.others: set[bytes] = set()  # names that are compared with values of other types, too
        self.too_many = False
        self._most = most
        self._count = 0

    def add_whole(self, names: Iterable[str]) -> None:
        """The values of these headers decide."""
        for name in names:
            self.names[name.encode("utf-8", "surrogateescape")] = None
            if len(self.names) > self._most:
                self.too_many = True
                return

    def has_room(self, count: int) -> bool:
        """Whether so many names and values may be added one by one; else `add_whole` is the way."""
        self._count += count
        return self._count <= self._most

    def add(self, name: str, value: object) -> None:
        """A header is compared with a string (bytes), with a value of another type, or with nothing (None): its presence counts."""
        octets = name.encode("utf-8", "surrogateescape")
        values = self.names.setdefault(octets, set())
        if isinstance(value, bytes):
            if values is not None:
                values.add(value)
        elif value is not None:
            self.others.add(octets)
