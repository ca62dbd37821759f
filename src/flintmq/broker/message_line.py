"""A line of messages that the broker holds: a position and a number for each, in 16 bytes."""

from __future__ import annotations

from array import array

# numbers that are used up before they are given back
USED_MAX = 4096
# bytes of a line, and of one message in it, for the memory account
LINE_BYTES, ENTRY_BYTES = 400, 16


class Line:
    """First in, first out. Not for several threads at once."""

    __slots__ = ("_first", "_numbers")

    def __init__(self) -> None:
        self._numbers = array("q")
        self._first = 0

    def __len__(self) -> int:
        return (len(self._numbers) - self._first) // 2

    def add(self, position: int, number: int) -> None:
        # Positions have 64 bits without a sign.
        self._numbers.append(position - 2**64 if position >= 2**63 else position)
        self._numbers.append(number)

    @property
    def number(self) -> int:
        """The number of the first one."""
        return self._numbers[self._first + 1]

    @property
    def first(self) -> tuple[int, int]:
        """Position and number of the first one."""
        position = self._numbers[self._first]
        return (position if position >= 0 else position + 2**64), self._numbers[self._first + 1]

    def take(self) -> tuple[int, int]:
        """Position and number of the first one, which leaves."""
        position, number = self._numbers[self._first], self._numbers[self._first + 1]
        self._first += 2
        if self._first >= USED_MAX and self._first * 2 >= len(self._numbers):
            del self._numbers[: self._first]
            self._first = 0
        return (position if position >= 0 else position + 2**64), number
