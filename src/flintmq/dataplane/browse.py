"""Browsing: what stands in queues, read without taking it.

in: the browse.open call, tickets of its slices. out: rows and contents, as for a set.

Positions are noted when a browse is opened; contents are read when they are asked for. A message that was consumed in between is left
out: a browse is a look, not a promise. Ranges are of positions, LSNs or times.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from flintmq.arguments import is_whole
from flintmq.dataplane.arguments import Arguments
from flintmq.dataplane.sets import rows_at_once, timed
from flintmq.dataplane.shared import Caller, Plane
from flintmq.dataplane.snapshots import Pins
from flintmq.dataplane.times import Comings, LogTimes
from flintmq.dataplane.wire import Refused
from flintmq.errors import StoreError
from flintmq.ports import Verb

_NUMBER_MAX = 2**64 - 1
# positions that are looked at together
_PIECE = 4096
_KINDS = ("position", "lsn", "time_us")


class Slice:
    """A part of a browse: positions by queue. Messages that are gone by then are taken out, so that a reader that counts its rows knows
    where to go on. `lock`: one reader at a time."""

    def __init__(self, parts: list[tuple[int, str, array[int]]], appended: int) -> None:
        self.parts = parts
        self.appended = appended  # tail of the message log when they were found
        self.lock = threading.Lock()
        self.was_read = False  # to its end

    def __len__(self) -> int:
        return sum(len(positions) for _, _, positions in self.parts)


def _cut(parts: list[tuple[int, str, array[int]]], slices: int, appended: int) -> list[Slice]:
    """`slices` parts of about equal numbers of messages."""
    total = sum(len(positions) for _, _, positions in parts)
    pieces = []
    for number in range(slices):
        begin, end = total * number // slices, total * (number + 1) // slices
        start, mine = 0, []
        for queue_id, name, positions in parts:
            chosen = positions[max(0, begin - start) : max(0, end - start)]
            if chosen:
                mine.append((queue_id, name, chosen))
            start += len(positions)
        pieces.append(Slice(mine, appended))
    return pieces


class Browses:
    """See module. Threading: any thread but I/O loops."""

    def __init__(self, plane: Plane, pins: Pins, times: LogTimes) -> None:
        self._plane = plane
        self._comings = Comings(plane.limits.arrival_looks_max, plane.limits.arrival_samples_max)
        self._pins = pins
        self._times = times

    def watch(self) -> None:
        """Once per housekeeping pass: remembers how far queues have come (I/O loop)."""
        self._comings.look(self._plane.broker.queues, self._plane.now_ms() * 1000)

    def open(self, caller: Caller, arguments: Arguments) -> dict[str, Any]:
        """browse.open."""
        plane, limits = self._plane, self._plane.limits
        names = arguments.texts("queues", limits.name_bytes_max, limits.subscription_matches_max)
        start = self._place(arguments, "start")
        end = self._place(arguments, "end")
        most = min(arguments.integer("max_messages", 1, _NUMBER_MAX, limits.browse_max), limits.browse_max)
        slices = arguments.integer("slices", 1, limits.slices_max, 1)
        arguments.done()
        plane.authorize(caller, Verb.READ, "queue", names)
        queues = [plane.queue(caller.vhost, name) for name in names]
        pin = self._pins.take(caller, "browse", limits.browse_ttl_s, ())
        try:
            parts, room = [], most
            for queue in queues:
                positions = self._positions(queue.core, start, end, room)
                parts.append((queue.queue_id, queue.name, positions))
                room -= len(positions)
            slices = max(1, min(slices, most - room))
            pin.browse = _cut(parts, slices, plane.store.messages.tail)
        except BaseException:
            self._pins.release(pin.identity)
            raise
        tickets = [{"kind": "browse", "id": pin.identity, "slice": number} for number in range(slices)]
        facts = [{"queue": name, "count": len(positions), "last": positions[-1] if positions else 0} for _, name, positions in parts]
        return {"id": pin.identity, "count": most - room, "queues": facts, "tickets": tickets, "more": room == 0}

    def _place(self, arguments: Arguments, name: str) -> tuple[str, int] | None:
        value = arguments.raw(name, None)
        if value is None or value == ("earliest" if name == "start" else "latest"):
            return None
        if isinstance(value, dict) and len(value) == 1:
            kind, number = next(iter(value.items()))
            if kind in _KINDS and is_whole(number, 0, _NUMBER_MAX):
                return ("lsn", self._times.lsn_at(number)) if kind == "time_us" else (kind, number)
        raise arguments.refuse(name, '{"position": n}, {"lsn": n} or {"time_us": t}', value)

    @staticmethod
    def _positions(core: Any, start: tuple[str, int] | None, end: tuple[str, int] | None, most: int) -> array[int]:
        """Positions from `start` (included) to `end` (not included). An entry without LSN (not logged) goes with the one before it."""
        positions: array[int] = array("Q")
        inside = start is None or start[0] == "position"
        first = start[1] if start is not None and inside else 0
        position = core.next_available(first)
        while position and len(positions) < most:
            if end is not None and end[0] == "position" and position >= end[1]:
                break
            if not inside or (end is not None and end[0] == "lsn"):
                message_id = core.message_id_at(position)
                if message_id and end is not None and end[0] == "lsn" and message_id >= end[1]:
                    break
                if not inside and start is not None and message_id and message_id >= start[1]:
                    inside = True
            if inside:
                positions.append(position)
            position = core.next_available(position + 1)
        return positions

    def close(self, caller: Caller, arguments: Arguments) -> dict[str, Any]:
        """browse.close. Again is no error."""
        identity = arguments.text("id", 64)
        arguments.done()
        try:
            self._pins.find(caller, identity, "browse")
        except Refused:
            return {"id": identity, "released": False}
        return {"id": identity, "released": self._pins.release(identity)}

    def rows(self, caller: Caller, arguments: Arguments) -> tuple[dict[str, Any], list[bytes]]:
        """rows of a ticket of kind browse."""
        limits = self._plane.limits
        pin = self._pins.find(caller, arguments.text("id", 64), "browse")
        slices: list[Slice] = pin.browse
        number = arguments.integer("slice", 0, len(slices) - 1, 0)
        first = arguments.integer("first", 0, _NUMBER_MAX, 0)
        count = min(arguments.integer("count", 1, _NUMBER_MAX, limits.dataplane_rows_max), limits.dataplane_rows_max)
        arguments.done()
        mine = slices[number]
        self._plane.authorize(caller, Verb.READ, "queue", [name for _, name, _ in mine.parts])
        self._pins.extend(pin, limits.browse_ttl_s)
        with mine.lock:
            return self._read(mine, first, count)

    def _read(self, mine: Slice, first: int, count: int) -> tuple[dict[str, Any], list[bytes]]:
        limits = self._plane.limits
        queues: list[list[Any]] = []
        rows: list[bytes] = []
        contents: list[bytes] = []
        inline = total = 0
        now_us = self._plane.now_ms() * 1000
        for number, (queue_id, name, positions) in enumerate(mine.parts):
            queue = self._plane.broker.queues.get(queue_id)
            start = min(first, len(positions))
            first -= start
            begin, alive = start, array("Q")
            while start < len(positions) and total < count and inline < limits.dataplane_inline_max:
                piece = positions[start : start + min(_PIECE, count - total)]
                start += len(piece)
                for looked, some, payload in () if queue is None else self._looks(queue.core, piece, mine.appended):
                    alive.extend(looked)
                    rows.append(some)
                    contents += timed(some, payload, partial(self._comings.time_of, queue_id, now_us=now_us))
                    total += len(looked)
                    inline += sum(map(len, payload))
            if start - begin != len(alive):
                positions = positions[:begin] + alive + positions[start:]
                mine.parts[number] = (queue_id, name, positions)
                start = begin + len(alive)
            if alive:
                queues.append([name, len(alive), queue_id])
            if start < len(positions):
                return {"queues": queues, "more": True}, [*rows, *contents]
        mine.was_read = True
        return {"queues": queues, "more": False}, [*rows, *contents]

    def _looks(self, core: Any, positions: array[int], appended: int) -> Iterator[tuple[list[int], bytes, list[bytes]]]:
        """Those that are there, with their rows and inline contents, a few at a time where they are large."""
        seen = self._plane.store.bulk.look(core, positions, appended)
        if not seen.count:
            return
        step = rows_at_once(seen)
        positions = seen.positions()
        for start in range(0, len(positions), step):
            try:
                yield positions[start : start + step], *seen.rows(start, step)
            except (KeyError, StoreError):  # one was consumed since, or can't be read: leave that one out
                for one in range(start, min(start + step, len(positions))):
                    with suppress(KeyError, StoreError):
                        yield positions[one : one + 1], *seen.rows(one, 1)
