"""Weighted rendezvous hashing: which of several places a key belongs to (see rendezvous.pxd).

in: places with a seed and a weight, hashes of keys. out: the number of the place that a key chooses.

I1  Each place draws from (its seed, the key) an exponential variable whose rate is its weight; the least wins. So a place is chosen by
    its share of all weights, and a place that comes, goes or changes its weight moves just the keys that it wins or loses.
I2  A draw depends on seed, key and weight alone: the choice is the same in each run and on each machine.
Source: Schindelhauer and Schomaker, "Weighted distributed hash tables" (2005), the logarithmic method.
"""

from __future__ import annotations

from cython import NULL, cast, cclass, cfunc, declare, double, exceptval, nogil, pointer, sizeof
from cython import int as c_int
from cython.cimports.libc.math import log
from cython.cimports.libc.stdint import uint32_t, uint64_t
from cython.cimports.libc.stdlib import free, realloc

STEP = declare(uint64_t, 0x9E3779B97F4A7C15)
FIRST = declare(uint64_t, 0xBF58476D1CE4E5B9)
SECOND = declare(uint64_t, 0x94D049BB133111EB)


@cfunc
@nogil
@exceptval(check=False)
def _mixed(word: uint64_t) -> uint64_t:
    """The finalizer of SplitMix64: each bit of the word reaches each bit of the result. Source: Steele, Lea, Flood (2014)."""
    word += STEP
    word = (word ^ (word >> 30)) * FIRST
    word = (word ^ (word >> 27)) * SECOND
    return word ^ (word >> 31)


@cfunc
@nogil
@exceptval(check=False)
def _draw(seed: uint64_t, key: uint64_t) -> double:
    """Of (0, 1), 53 bits."""
    return (cast(double, _mixed(seed ^ _mixed(key)) >> 11) + 0.5) * (1.0 / 9007199254740992.0)


@cclass
class Rendezvous:
    """The places. Not thread-safe."""

    def __dealloc__(self):
        free(self.seats)

    def __len__(self) -> int:
        return self.count

    def add(self, seed: int, weight: float) -> None:
        """A further place; its number is the count before. Raises: MemoryError."""
        grown: pointer[seat_t]
        room: uint32_t = self.room * 2 if self.room else 4
        if self.count == self.room:
            grown = cast(pointer[seat_t], realloc(self.seats, room * sizeof(seat_t)))
            if grown == NULL:
                raise MemoryError
            self.seats = grown
            self.room = room
        self.seats[self.count].seed = seed
        self.seats[self.count].weight = weight
        self.count += 1

    def set_weight(self, number: int, weight: float) -> None:
        """Raises: IndexError."""
        if not 0 <= number < self.count:
            raise IndexError(number)
        self.seats[number].weight = weight

    def remove(self, number: int) -> None:
        """The last place takes the number of the one that goes. Raises: IndexError."""
        if not 0 <= number < self.count:
            raise IndexError(number)
        self.count -= 1
        self.seats[number] = self.seats[self.count]

    def choose(self, key: int) -> int:
        """The number of the place that a key (64 bits) belongs to; -1: there is none. O(places)."""
        hashed: uint64_t = key
        best: double = 0.0
        drawn: double
        chosen: c_int = -1
        i: uint32_t
        for i in range(self.count):
            drawn = -log(_draw(self.seats[i].seed, hashed)) / self.seats[i].weight
            if chosen < 0 or drawn < best:
                best = drawn
                chosen = i
        return chosen
