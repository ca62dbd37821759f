"""Streams by offset: control calls that are answered here, from the containers, and messages of a range of offsets.

in: calls and tickets of clients; facts of the broker (its call `stream`); containers, read only. out: answers, record batches.

R1  Every call asks the broker first: for the permission, for the durable end, for the kept beginning. Nothing else is believed for longer.
R2  Rows of a ticket are those of its offsets, in order: a reader that comes again with `first` goes on where it stopped.
R3  What retention took, or what does not check, is an error that says which offsets; a `tolerant` ticket leaves it out.
R4  A ticket with a `key` is one part of its range: the messages whose key belongs to it. Its reader goes through the whole range.

Sizes are bytes of the log: bodies, headers, routes and what records add. They follow from LSNs, so no message is read to know them.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any

from flintmq.config import Limits
from flintmq.dataplane.calls import CALLS
from flintmq.flight.actions import whole
from flintmq.flight.ahead import ahead, behind
from flintmq.flight.line import Turn
from flintmq.flight.link import Caller, Link
from flintmq.flight.plane_error import BAD_ARGUMENT, BUSY, DAMAGED, UNAVAILABLE, PlaneError
from flintmq.scheduler.outcomes import Outcome, Space
from flintmq.scheduler.system import ActorSystem, Failed

log = logging.getLogger("flintmq.flight")

TRUNCATED = "TRUNCATED"
# record batches that wait for gRPC to take them
AHEAD = 2
# part of a piece after which a reader gives way to those who wait
TURN_PART = 4
# weight of one reader's batch (the default of an actor)
WEIGHT = 100
SLICES = 65_536


class Streams:
    """Args: link: to the broker; codec: with `open_stream` and `stream_damaged`; limits; actors: decode when it is their turn.

    Threading: any; a reader of containers is used by one thread at a time.
    """

    def __init__(self, link: Link, codec: Any, limits: Limits, actors: ActorSystem) -> None:
        self._link = link
        self._codec = codec
        self._limits = limits
        self._actors = actors
        self._lock = threading.Lock()
        self._idle: list[tuple[str, Any]] = []

    def close(self) -> None:
        """Forgets idle readers; they hold neither files nor memory."""
        with self._lock:
            self._idle.clear()

    # --- control calls --------------------------------------------------------------------------------------------------

    def action(self, name: str, caller: Caller, arguments: dict[str, Any]) -> dict[str, Any]:
        """A call that the service answers (dataplane.calls). Raises: PlaneError."""
        known = CALLS[name].arguments
        for key in arguments:
            if key not in known:
                raise PlaneError(BAD_ARGUMENT, f"{name}: there is no argument '{key[:80]}'")
        if name == "stream.open":
            return self._open(caller, arguments)
        if name == "stream.next":
            return self._next(caller, arguments)
        if name == "stream.tail":
            return self._tail(caller, arguments)
        if name == "stream.plan":
            return self._plan(caller, arguments)
        self._facts(caller, arguments.get("queue"), release=_text(arguments, "pin"))
        return {"released": True}

    def _open(self, caller: Caller, arguments: dict[str, Any]) -> dict[str, Any]:
        facts = self._facts(caller, arguments.get("queue"), stream=arguments.get("stream"))
        first, following = facts["first"], facts["next"]
        start = arguments.get("start")
        if start is None or start == "earliest":
            offset = first
        elif start == "latest":
            offset = following
        elif isinstance(start, dict) and len(start) == 1 and set(start) <= {"offset", "time_us"}:
            ((kind, _),) = start.items()
            number = whole(start, kind)
            if kind == "time_us" and first < following:
                with self._reader(facts) as files:
                    place = files.offset_since(number)
                offset = following if place is None else place
            else:
                offset = number if kind == "offset" else following
            offset = max(first, min(following, offset))
        else:
            raise PlaneError(BAD_ARGUMENT, 'stream.open: start must be "earliest", "latest", {"offset": n} or {"time_us": t}')
        return {**_shown(facts), "offset": offset}

    def _next(self, caller: Caller, arguments: dict[str, Any]) -> dict[str, Any]:
        """Where a batch from `offset` on ends: at most max_messages, about max_bytes (one message at least), not behind `upto`."""
        release = _text(arguments, "release", None)
        facts = self._facts(caller, arguments.get("queue"), stream=arguments.get("stream"), release=release)
        offset = max(whole(arguments, "offset"), facts["first"])
        end = min(facts["next"], whole(arguments, "upto", facts["next"]), offset + whole(arguments, "max_messages", 2**62, least=1))
        size = whole(arguments, "max_bytes", 2**62, least=1)
        if end > offset + 1 and size < facts["bytes"]:
            with self._reader(facts) as files:
                end = self._within(files, facts, offset, end, size)
        return {**_shown(facts), "offset": max(offset, end)}

    def _within(self, files: Any, facts: dict[str, Any], offset: int, end: int, size: int) -> int:
        try:
            lsn, _ = files.place(offset)
            behind = files.offset_behind(lsn + size)
            # The message before the first one that starts behind the limit may go on behind it.
            if behind is None:
                behind = facts["next"] if lsn + size >= facts["end"] else facts["next"] - 1
            elif files.place(behind)[0] > lsn + size:
                behind -= 1
        except self._codec.stream_damaged:
            return end  # what is damaged has no size; who reads it is told
        return max(offset + 1, min(end, int(behind)))

    def _tail(self, caller: Caller, arguments: dict[str, Any]) -> dict[str, Any]:
        """The messages behind `offset` (default: all)."""
        facts = self._facts(caller, arguments.get("queue"), stream=arguments.get("stream"))
        offset = max(whole(arguments, "offset", facts["first"]), facts["first"])
        answer = {**_shown(facts), "behind_messages": max(0, facts["next"] - offset), "behind_bytes": 0, "oldest_age_ms": 0}
        if offset < facts["next"]:
            with contextlib.suppress(self._codec.stream_damaged), self._reader(facts) as files:
                lsn, time_us = files.place(offset)
                answer["behind_bytes"] = max(0, facts["end"] - lsn)
                answer["oldest_age_ms"] = max(0, (facts["now_us"] - time_us) // 1000)
        return answer

    def _plan(self, caller: Caller, arguments: dict[str, Any]) -> dict[str, Any]:
        """Tickets of the offsets [offset, end), and a pin on their containers. The same offsets give the same slices."""
        name, stream = arguments.get("queue"), arguments.get("stream")
        facts = self._facts(caller, name, stream=stream)
        offset, end = whole(arguments, "offset"), whole(arguments, "end")
        key = self._key(arguments)
        slices = whole(arguments, "slices", 1, least=1, most=self._limits.slices_max if key is None else self._limits.key_slices_max)
        tolerant = bool(arguments.get("tolerant", False))
        if end > facts["next"]:
            raise PlaneError("CHECKPOINT_AHEAD", f"stream '{name}' ends before offset {facts['next']}, {end} was asked for")
        lost = max(0, min(end, facts["first"]) - offset)
        if lost and not tolerant:
            raise _truncated(facts, offset)
        begin = offset + lost
        sequence = 0
        if begin < end:
            with self._reader(facts) as files:
                try:
                    sequence = files.place(begin)[0] // files.size
                except self._codec.stream_damaged:
                    sequence = files.low
        release = _text(arguments, "release", None)
        pinned = self._facts(caller, name, stream=stream, sequence=sequence, release=release)
        total = end - begin
        if key is None:
            slices = min(slices, total)
            ranges = [(begin + total * number // slices, begin + total * (number + 1) // slices) for number in range(slices)]
        else:
            # As many as were asked for, also of a few messages: a key keeps its number from batch to batch.
            ranges = [(begin, end)] * (slices if total > 0 else 0)
        common = {"kind": "stream", "queue": name, "stream": facts["stream"], "pin": pinned["pin"], "container": sequence}
        common |= {"tolerant": tolerant, "slices": slices} | ({} if key is None else {"key": key})
        tickets = [{**common, "first_offset": first, "end_offset": last, "slice": number} for number, (first, last) in enumerate(ranges)]
        return {**_shown(pinned), "pin": pinned["pin"], "count": max(0, total), "lost": lost, "tickets": tickets}

    # --- data -----------------------------------------------------------------------------------------------------------

    def read(self, caller: Caller, ticket: Any, turn: Turn) -> Iterator[Any]:
        """Record batches of a ticket. Args: turn: ends the reading behind a batch. Raises: PlaneError, here and from the iterator."""
        source = ticket.source
        offset, end = whole(source, "first_offset"), whole(source, "end_offset")
        tolerant = bool(source.get("tolerant", False))
        part = self._part(source)
        # Whose rows are not all of the range can't say by their number where it goes on: what its reader has is passed over.
        skip = ticket.first if tolerant or part is not None else 0
        facts = self._facts(caller, source.get("queue"), stream=source.get("stream"))
        offset += ticket.first - skip
        if end > facts["next"]:
            raise PlaneError(BAD_ARGUMENT, f"the ticket ends at offset {end}, the stream at {facts['next']}")
        if offset < min(end, facts["first"]):
            if not tolerant:
                raise _truncated(facts, offset)
            offset = min(end, facts["first"])
        self._keep(caller, source)
        ended = threading.Event()
        if tolerant or part is not None:
            turn = Turn()  # coming again costs all that was read before
        batches = self._batches(caller, ticket, facts, range(offset, end), part, turn, ended)
        if skip:
            batches = behind(batches, skip)
        return ahead(batches, AHEAD, ended) if end - offset > self._limits.flight_piece_rows // 4 else batches

    def _batches(
        self, caller: Caller, ticket: Any, facts: dict[str, Any], offsets: range, part: Any, turn: Turn, ended: threading.Event
    ) -> Generator[Any, None, None]:
        rows = size = 0
        kept, tolerant = time.monotonic(), bool(ticket.source.get("tolerant", False))
        asked = {"queue": facts["queue"], "columns": ticket.columns, "body": ticket.body, "tolerant": tolerant, "part": part}
        with self._reader(facts) as files:
            try:
                batches = files.batches(offsets.start, offsets.stop, **asked)
                while (batch := self._turn(ticket.source, lambda: next(batches, None))) is not None:
                    if ended.is_set():
                        return
                    if time.monotonic() - kept > self._limits.stream_pin_s / 4:
                        self._keep(caller, ticket.source)
                        kept = time.monotonic()
                    rows, size = rows + batch.num_rows, size + batch.nbytes
                    yield batch
                    if rows < len(offsets) and self._is_turn(rows, size) and turn.is_over():
                        return
                if part is not None and part.part == 0 and files.lost:
                    # The readers of parts can't tell a message that is left out from one of another part.
                    text = "stream '%s': %d of the messages from offset %d to %d are gone or damaged, and were left out"
                    log.warning(text, facts["queue"], files.lost, offsets.start, offsets.stop - 1)
            except self._codec.stream_damaged as error:
                now = self._facts(caller, facts["queue"], stream=facts["stream"])
                if error.offset < now["first"]:
                    raise _truncated(now, error.offset) from None
                raise PlaneError(DAMAGED, f"stream '{facts['queue']}': {error}") from None

    # --- inside -----------------------------------------------------------------------------------------------------------

    def _is_turn(self, rows: int, size: int) -> bool:
        """Whether a reader that had so much had a turn: less is not worth a call."""
        return rows >= self._limits.flight_piece_rows // TURN_PART or size >= self._limits.flight_piece_bytes // TURN_PART

    def _turn(self, source: dict[str, Any], work: Callable[[], Any]) -> Any:
        """Decodes one record batch when it is the turn of this range: a batch's ranges share one weight, however many there are."""
        number, slices = whole(source, "slice", 0, most=SLICES), whole(source, "slices", 1, least=1, most=SLICES)
        subject = hash(f"{source.get('stream')} {source.get('pin')}") % 2**64
        try:
            return self._actors.call(Space.FLIGHT, subject, number, work, weight=max(1, WEIGHT // slices))
        except Failed as error:
            if error.outcome is Outcome.BUSY:
                raise PlaneError(BUSY, "too many reads at once") from None
            raise PlaneError(UNAVAILABLE, "the service stops") from None

    def _key(self, arguments: dict[str, Any]) -> str | None:
        """The column of a key among the arguments. Raises: PlaneError BAD_ARGUMENT."""
        key = arguments.get("key")
        if key is not None and not isinstance(key, str):
            raise PlaneError(BAD_ARGUMENT, "'key' must be a string")
        if key is not None:
            with _refusing():
                self._codec.key_part(key, 0, 1)
        return key

    def _part(self, source: dict[str, Any]) -> Any:
        """What a ticket's `key`, `slice` and `slices` leave of its range; None: all. Raises: PlaneError BAD_ARGUMENT."""
        key = self._key(source)
        if key is None:
            return None
        slices = whole(source, "slices", least=1, most=self._limits.key_slices_max)
        return self._codec.key_part(key, whole(source, "slice", most=slices - 1), slices)

    def _keep(self, caller: Caller, source: dict[str, Any]) -> None:
        """The pin's time begins anew; or, when it was over, it is there again."""
        if source.get("pin") is not None:
            pin, sequence = _text(source, "pin"), whole(source, "container", 0)
            self._facts(caller, source.get("queue"), stream=source.get("stream"), pin=pin, sequence=sequence)

    def _facts(self, caller: Caller, queue: Any, **arguments: Any) -> dict[str, Any]:
        given = {name: value for name, value in arguments.items() if value is not None}
        answer, _ = self._link.call("stream", caller, {"queue": queue, **given})
        facts: dict[str, Any] = answer
        return facts

    @contextlib.contextmanager
    def _reader(self, facts: dict[str, Any]) -> Iterator[Any]:
        """A reader of the stream's containers for this thread, given back when nothing went wrong."""
        identity = facts["stream"]
        files = None
        with self._lock:
            for number, (known, one) in enumerate(self._idle):
                if known == identity:
                    files = one
                    del self._idle[number]
                    break
        if files is None:
            files = self._codec.open_stream(facts["directory"], bytes.fromhex(facts["uuid"]), facts["container_size"])
        good = False
        try:
            files.bounds(facts["end"])
            yield files
            good = True
        except self._codec.stream_damaged:
            good = True
            raise
        finally:
            files.close()  # its memory; it keeps its place, which the next batch begins at
            if good:
                with self._lock:
                    self._idle.append((identity, files))
                    del self._idle[: -self._link.size]


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise PlaneError(BAD_ARGUMENT, str(error)) from None


def _shown(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: facts[name] for name in ("queue", "stream", "first", "next", "bytes")}


def _truncated(facts: dict[str, Any], offset: int) -> PlaneError:
    name, first = facts["queue"], facts["first"]
    return PlaneError(TRUNCATED, f"stream '{name}': retention took the messages from offset {offset} to {first - 1}; {first} is the first")


def _text(arguments: dict[str, Any], name: str, *default: Any) -> Any:
    value = arguments.get(name)
    if value is None and default:
        return default[0]
    if not isinstance(value, str) or not 0 < len(value) <= 64:
        raise PlaneError(BAD_ARGUMENT, f"'{name}' must be a string of 1 to 64 characters")
    return value
