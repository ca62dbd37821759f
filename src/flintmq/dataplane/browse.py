"""Browsing: what stands in queues, read without taking it.

in: the browse.open call, tickets of its slices. out: rows and contents, as for a set.

Positions are noted when a browse is opened; contents are read when they are asked for. A message that was consumed in between is left
out: a browse is a look, not a promise. Ranges are of positions, LSNs or times.
"""

from __future__ import annotations

import threading
from array import array
from typing import Any

from flintmq.dataplane.arguments import Arguments
from flintmq.dataplane.plane import Caller, Plane
from flintmq.dataplane.snapshots import Pins
from flintmq.dataplane.times import LogTimes
from flintmq.dataplane.wire import Refused
from flintmq.errors import StoreError
from flintmq.ports import Verb
from flintmq.transactions.bulk import INLINE, ROW, ROW_REDELIVERED

_NUMBER_MAX = 2**64 - 1
_KINDS = ("position", "lsn", "time_us")


class Slice:
    """A part of what a browse found: positions by queue. What is gone when it is read is taken out, so that a reader that counts its rows
    knows where to go on. `lock`: one reader at a time."""

    def __init__(self, parts: list[tuple[int, str, array[int]]]) -> None:
        self.parts = parts
        self.lock = threading.Lock()
        self.was_read = False  # to its end

    def __len__(self) -> int:
        return sum(len(positions) for _, _, positions in self.parts)


def _cut(parts: list[tuple[int, str, array[int]]], slices: int) -> list[Slice]:
    """`slices` parts of about equal numbers of messages."""
    total = sum(len(positions) for _, _, positions in parts)
    found = []
    for number in range(slices):
        begin, end = total * number // slices, total * (number + 1) // slices
        start, mine = 0, []
        for queue_id, name, positions in parts:
            chosen = positions[max(0, begin - start) : max(0, end - start)]
            if chosen:
                mine.append((queue_id, name, chosen))
            start += len(positions)
        found.append(Slice(mine))
    return found


class Browses:
    """See module. Threading: any thread but I/O loops."""

    def __init__(self, plane: Plane, pins: Pins, times: LogTimes) -> None:
        self._plane = plane
        self._pins = pins
        self._times = times

    def open(self, caller: Caller, arguments: Arguments) -> dict[str, Any]:
        """browse.open."""
        plane, limits = self._plane, self._plane.limits
        names = arguments.texts("queues", limits.name_bytes_max, limits.subscription_queues_max)
        start = self._place(arguments, "start")
        end = self._place(arguments, "end")
        most = min(arguments.integer("max_messages", 1, _NUMBER_MAX, limits.browse_max), limits.browse_max)
        slices = arguments.integer("slices", 1, limits.slices_max, 1)
        arguments.done()
        plane.authorize(caller, Verb.READ, "queue", names)
        queues = [plane.queue(caller.vhost, name) for name in names]
        pin = self._pins.take(caller, "browse", limits.browse_ttl_s, ())
        try:
            parts, left = [], most
            for queue in queues:
                positions = self._positions(queue.core, start, end, left)
                parts.append((queue.queue_id, queue.name, positions))
                left -= len(positions)
            slices = max(1, min(slices, most - left))
            pin.browse = _cut(parts, slices)
        except BaseException:
            self._pins.release(pin.identity)
            raise
        tickets = [{"kind": "browse", "id": pin.identity, "slice": number} for number in range(slices)]
        facts = [{"queue": name, "count": len(positions)} for _, name, positions in parts]
        return {"id": pin.identity, "count": most - left, "queues": facts, "tickets": tickets, "more": left == 0}

    def _place(self, arguments: Arguments, name: str) -> tuple[str, int] | None:
        value = arguments.raw(name, None)
        if value is None or value == ("earliest" if name == "start" else "latest"):
            return None
        if isinstance(value, dict) and len(value) == 1:
            kind, number = next(iter(value.items()))
            if kind in _KINDS and isinstance(number, int) and not isinstance(number, bool) and 0 <= number <= _NUMBER_MAX:
                return ("lsn", self._times.lsn_at(number)) if kind == "time_us" else (kind, number)
        raise arguments.refuse(name, '{"position": n}, {"lsn": n} or {"time_us": t}', value)

    @staticmethod
    def _positions(core: Any, start: tuple[str, int] | None, end: tuple[str, int] | None, most: int) -> array[int]:
        """From `start` (included) to `end` (not included). What is not in the log has no LSN: it goes with the entry before it."""
        found: array[int] = array("Q")
        inside = start is None or start[0] == "position"
        first = start[1] if start is not None and inside else 0
        position = core.next_available(first)
        while position and len(found) < most:
            if end is not None and end[0] == "position" and position >= end[1]:
                break
            if not inside or (end is not None and end[0] == "lsn"):
                message_id = core.message_id_at(position)
                if message_id and end is not None and end[0] == "lsn" and message_id >= end[1]:
                    break
                if not inside and start is not None and message_id and message_id >= start[1]:
                    inside = True
            if inside:
                found.append(position)
            position = core.next_available(position + 1)
        return found

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
        queues: list[list[Any]] = []
        rows: list[bytes] = []
        contents: list[bytes] = []
        inline = 0
        for number, (queue_id, name, positions) in enumerate(mine.parts):
            queue = self._plane.broker.queues.get(queue_id)
            at, before = min(first, len(positions)), len(rows)
            first -= at
            begin, alive = at, array("Q")
            while at < len(positions) and len(rows) < count and inline < self._plane.limits.dataplane_inline_max:
                row = None if queue is None else self._row(queue.core, positions[at])
                if row is not None:
                    rows.append(row[0])
                    contents.append(row[1])
                    inline += len(row[1])
                    alive.append(positions[at])
                at += 1
            if at - begin != len(alive):
                positions = positions[:begin] + alive + positions[at:]
                mine.parts[number] = (queue_id, name, positions)
                at = begin + len(alive)
            if len(rows) > before:
                queues.append([name, len(rows) - before, queue_id])
            if at < len(positions):
                return {"queues": queues, "more": True}, [b"".join(rows), *contents]
        mine.was_read = True
        return {"queues": queues, "more": False}, [b"".join(rows), *contents]

    @staticmethod
    def _row(core: Any, position: int) -> tuple[bytes, bytes] | None:
        """The row and its content; None when the entry is gone, or can't be read."""
        facts = core.entry_facts(position)
        if facts is None:
            return None
        message_id = core.message_id_at(position)
        try:
            exchange, key, header, body = core.message_at(position)
        except (KeyError, StoreError):
            return None
        _, deliveries, _ = facts
        run = bytes([len(exchange)]) + exchange + bytes([len(key)]) + key + header + body
        row = ROW.pack(position, message_id, 0, len(body), deliveries, ROW_REDELIVERED if deliveries else 0, 0)
        return row, INLINE.pack(len(run), len(header), 0) + run
