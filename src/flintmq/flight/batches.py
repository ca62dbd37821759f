"""The data of the data plane: rows of a set or of a browse become record batches, record batches become blocks of staged messages.

in: tickets, batches of clients; the broker's rows; log containers (read only). out: batches of `messages_schema`; `block` calls.

P1  Memory of a reading caller is bounded: one piece of at most `flight_piece_bytes` of bodies (or one message) is decoded at a time,
    and the next one when gRPC has taken all but AHEAD batches of the last.
P2  Rows and their order depend on the ticket alone: a reader that comes again with `first` goes on where it stopped.
P3  A record that moved meanwhile is asked for again. One that stays unreadable, or whose content contradicts itself, is an error that
    names queue and position; a `tolerant` ticket of a set leaves it out, and the log says so.
P4  Pieces are decoded on an actor system, one actor per slice of a ticket's subject, weighted so that a subscription (or browse) gets the
    same share of the cores however many readers it has.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterator
from typing import Any

from flintmq.arrow import schema
from flintmq.config import Limits
from flintmq.flight.actions import read_object, whole
from flintmq.flight.ahead import ahead, behind
from flintmq.flight.line import Turn
from flintmq.flight.link import Caller, Link
from flintmq.flight.plane_error import BAD_ARGUMENT, BAD_ROW, BUSY, DAMAGED, INTERNAL, UNAVAILABLE, PlaneError
from flintmq.flight.streams import Streams
from flintmq.scheduler.outcomes import Outcome, Space
from flintmq.scheduler.system import ActorSystem, Failed

log = logging.getLogger("flintmq.flight")

# bytes of a row of the `rows` call, and where its body length stands (in u32)
ROW = 32
BODY_LENGTH = 6
KINDS = ("set", "browse", "stream")
# arguments of a ticket that are for this service: which columns, how much of a body, how many rows the reader has already; of a set
# also whether to leave out what can't be read
OWN_ARGUMENTS = ("columns", "body", "first")
TOLERANT = "tolerant"
# seconds before a record that moved is asked for again: a copy is durable, and its place known, a moment later
MOVED_PAUSE_S = 0.005
# record batches that wait for gRPC to take them
AHEAD = 2
# weight of a whole subscription (the default of an actor), and slices that are told apart
WEIGHT, SLICES = 100, 65_536


class Codec:
    """flintmq.arrow as this module uses it; a test may give another."""

    def __init__(self, store_dir: str, memory: int) -> None:
        """Args: store_dir: of the broker; memory: bytes of containers that one reader keeps."""
        blocks, containers, keys, messages, streams = (
            importlib.import_module(f"flintmq.arrow.{name}") for name in ("blocks", "containers", "keys", "messages", "streams")
        )
        self._keys: Any = keys
        self._streams: Any = streams
        self.stream_damaged: type[Exception] = streams.StreamDamaged
        self._containers: Any = containers
        self._messages: Any = messages
        self._blocks: Any = blocks
        self._store_dir = store_dir
        self._memory = memory
        self.moved: type[Exception] = messages.Moved
        self.unreadable: type[Exception] = messages.Unreadable
        self.encode_error: type[Exception] = blocks.EncodeError

    def schema(self, columns: list[str] | None) -> Any:
        return schema.messages_schema(columns)

    def body_limit(self, body: str | None) -> int:
        return schema.body_limit(body)

    def open(self) -> Any:
        """A reader of containers for one thread at a time."""
        return self._containers.Containers(f"{self._store_dir}/messages", memory=self._memory)

    def open_stream(self, directory: str, store_uuid: bytes, container_size: int) -> Any:
        """A reader of a stream's containers for one thread at a time. Args: directory: below the store's."""
        return self._streams.StreamFiles(f"{self._store_dir}/{directory}", store_uuid, container_size, self._memory)

    def key_part(self, column: str, part: int, parts: int) -> Any:
        """Part of a range of a stream by key. Raises: ValueError: no such key."""
        return self._keys.KeyPart(column, part, parts)

    def decode(
        self, reader: Any, payload: Any, queues: list[Any], columns: list[str] | None, body: str | None, left_out: Collection[int]
    ) -> list[Any]:
        """Raises: `moved`, `unreadable`, both with `rows`; ValueError, OSError."""
        result: list[Any] = self._messages.rows_to_batches(reader, bytes(payload), queues, columns=columns, body=body, left_out=left_out)
        return result

    def options(self, arguments: dict[str, Any]) -> Any:
        """What a client may choose about its blocks: their size is not among it. Raises: TypeError, ValueError."""
        for name, kind in (("exchange", str), ("routing_key", str), ("constants", dict)):
            if not isinstance(arguments.get(name, kind()), kind):
                raise TypeError(f"'{name}' must be {'an object' if kind is dict else 'a string'}")
        unknown = arguments.keys() - {"exchange", "routing_key", "constants"}
        if unknown:
            raise ValueError(f"'{min(unknown)[:80]}' is not an argument")
        return self._blocks.EncodeOptions(**arguments)

    def encode(self, batch: Any, options: Any, first_row: int) -> Iterator[tuple[list[Any], Any]]:
        blocks: Iterator[tuple[list[Any], Any]] = self._blocks.blocks_of(batch, options, first_row=first_row)
        return blocks


class Readers:
    """Readers of containers, kept for the next caller: their caches are warm. At most `idle_max` wait."""

    def __init__(self, make: Callable[[], Any], idle_max: int) -> None:
        self._make = make
        self._idle_max = idle_max
        self._idle: list[Any] = []
        self._lock = threading.Lock()

    def take(self) -> Any:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return self._make()

    def give_back(self, reader: Any) -> None:
        with self._lock:
            if len(self._idle) < self._idle_max:
                self._idle.append(reader)
                return
        reader.close()

    def close(self) -> None:
        """Closes those that wait; the next caller gets a new one."""
        with self._lock:
            idle, self._idle = self._idle, []
        for reader in idle:
            reader.close()


class Plane:
    """Args: link: to the broker; codec; limits."""

    def __init__(self, link: Link, codec: Any, limits: Limits) -> None:
        self._link = link
        self._codec = codec
        self._limits = limits
        self._readers = Readers(codec.open, link.size)
        # As many pieces are decoded at once as there are cores: which ones is the run queue's decision (P4).
        self._actors = ActorSystem(limits, workers=len(os.sched_getaffinity(0)))
        self._actors.start()
        self.streams = Streams(link, codec, limits, self._actors)

    def close(self) -> None:
        self._actors.stop()
        self._readers.close()
        self.streams.close()

    def rest(self) -> None:
        """Gives up what is kept for the next reader: containers that were read."""
        self._readers.close()

    # --- reading ------------------------------------------------------------------------------------------------------

    def ticket(self, body: bytes) -> Ticket:
        """What a ticket asks for. Raises: PlaneError BAD_ARGUMENT."""
        asked = read_object(body, "the ticket", self._limits.flight_ticket_bytes_max)
        kind = asked.get("kind")
        if kind not in KINDS:
            raise PlaneError(BAD_ARGUMENT, f"the ticket's kind must be one of {', '.join(KINDS)}")
        columns, text = asked.get("columns"), asked.get("body")
        if columns is not None and not (isinstance(columns, list) and columns and all(isinstance(name, str) for name in columns)):
            raise PlaneError(BAD_ARGUMENT, "the ticket's 'columns' must be a list of names")
        if text is not None and not isinstance(text, str):
            raise PlaneError(BAD_ARGUMENT, "the ticket's 'body' must be full, none or prefix:N")
        first = whole(asked, "first", 0)
        if "count" in asked:
            raise PlaneError(BAD_ARGUMENT, "the ticket: 'count' is not an argument")
        try:
            self._codec.body_limit(text)
            table = self._codec.schema(columns)
        except ValueError as error:
            raise PlaneError(BAD_ARGUMENT, f"the ticket: {error}") from None
        source = {name: value for name, value in asked.items() if name not in OWN_ARGUMENTS}
        tolerant = source.pop(TOLERANT, False) if kind == "set" else False
        if not isinstance(tolerant, bool):
            raise PlaneError(BAD_ARGUMENT, "the ticket's 'tolerant' must be true or false")
        return Ticket(source, first, columns, text, table, tolerant)

    def read(self, caller: Caller, ticket: Ticket, turn: Turn | None = None) -> Iterator[Any]:
        """Record batches of the ticket, from its first row on. The first piece is asked for before this returns, so that a refusal is
        the call's own answer.

        Args: turn: ends the reading at the end of a piece. Raises: PlaneError, here and from the iterator.
        """
        if ticket.source["kind"] == "stream":
            return self.streams.read(caller, ticket, turn or Turn())
        # Rows that are left out are not counted by the reader: it goes on by passing over the rows that it has.
        begin, skip = (0, ticket.first) if ticket.tolerant else (ticket.first, 0)
        if ticket.tolerant:
            turn = None  # coming again costs all that was read before
        first = self._rows(caller, ticket, begin, self._limits.flight_piece_rows)
        ended = threading.Event()
        batches = self._batches(caller, ticket, first, turn or Turn(), ended)
        if skip:
            batches = behind(batches, skip)
        # Records are decoded while gRPC sends the batches before: two cores' work. One piece is not worth a thread.
        return ahead(batches, AHEAD, ended) if first.more else batches

    def _batches(self, caller: Caller, ticket: Ticket, piece: Piece, turn: Turn, ended: threading.Event) -> Generator[Any, None, None]:
        """`ended`: the reader is gone (see ahead.H3)."""
        limits = self._limits
        reader = self._readers.take()
        ended_well = False
        try:
            while True:
                batches, tries = None, 0
                left_out: set[int] = set()
                count = piece.within(limits.flight_piece_bytes)
                if count < piece.rows:
                    if piece.inline:
                        # where the contents in the payload end is not known here: ask for what fits
                        piece = self._rows(caller, ticket, piece.first, count)
                    else:
                        piece = piece.cut(count)
                while batches is None:
                    try:
                        batches = self._decode(reader, piece, ticket, left_out)
                    except self._codec.unreadable as wrong:
                        left_out |= _given_up(ticket, piece, wrong, "its properties contradict its bytes")
                    except self._codec.moved as moved:
                        tries += 1
                        if tries > limits.flight_moved_max:
                            left_out |= _given_up(ticket, piece, moved, "the store is damaged there")
                            continue
                        time.sleep(MOVED_PAUSE_S * tries)
                        if ended.is_set():
                            return
                        piece = self._rows(caller, ticket, piece.first, piece.rows)
                yield from batches
                if not piece.more or ended.is_set() or turn.is_over():
                    break
                # as many rows as fit, judged by the last ones
                ask = max(1, min(limits.flight_piece_rows, piece.estimate(limits.flight_piece_bytes)))
                piece = self._rows(caller, ticket, piece.first + piece.rows, ask)
            ended_well = True
        finally:
            # After an error nothing is known of the reader's cache; a generator that is dropped ends here as well.
            if ended_well:
                self._readers.give_back(reader)
            else:
                reader.close()

    def _decode(self, reader: Any, piece: Piece, ticket: Ticket, left_out: Collection[int]) -> list[Any]:
        """One piece, when it is the turn of its slice (P4). Raises: what the codec raises; PlaneError UNAVAILABLE, BUSY."""
        subject, number, weight = ticket.actor

        def work() -> list[Any]:
            batches: list[Any] = self._codec.decode(reader, piece.payload, piece.queues, ticket.columns, ticket.body, left_out)
            return batches

        try:
            result: list[Any] = self._actors.call(Space.FLIGHT, subject, number, work, weight=weight)
        except Failed as error:
            if error.outcome is Outcome.BUSY:
                raise PlaneError(BUSY, "too many reads at once") from None
            raise PlaneError(UNAVAILABLE, "the service stops") from None
        return result

    def _rows(self, caller: Caller, ticket: Ticket, first: int, count: int) -> Piece:
        answer, payload = self._link.call("rows", caller, {**ticket.source, "first": first, "count": count})
        try:
            piece = Piece(first, [list(entry) for entry in answer["queues"]], payload, bool(answer["more"]))
        except (KeyError, TypeError, ValueError) as error:
            raise PlaneError(INTERNAL, f"the broker's answer to rows can't be read: {error!r}") from None
        if piece.rows > count or (piece.more and not piece.rows):
            raise PlaneError(INTERNAL, f"the broker gave {piece.rows} rows of {count}, and says that there are more: {piece.more}")
        return piece

    # --- writing ------------------------------------------------------------------------------------------------------

    def put(self, caller: Caller, command: bytes, chunks: Iterator[Any]) -> bytes:
        """Stages the batches of a caller. Args: command: {"stage_id", and optionally "exchange", "routing_key", "constants", "first_row":
        number of the first row, for errors}.

        Returns: JSON {"count", "bytes"}: messages, and bytes of blocks. Raises: PlaneError; what was sent before stays in the stage,
        which its caller gives up.
        """
        arguments = read_object(command, "the descriptor", self._limits.flight_action_bytes_max)
        stage_id = arguments.pop("stage_id", None)
        if not isinstance(stage_id, str):
            raise PlaneError(BAD_ARGUMENT, "the descriptor needs 'stage_id'")
        first_row = whole(arguments, "first_row", 0)
        arguments.pop("first_row", None)
        try:
            options = self._codec.options(arguments)
        except (TypeError, ValueError) as error:
            raise PlaneError(BAD_ARGUMENT, f"the descriptor: {error}") from None
        count = size = 0
        for batch in chunks:
            self._check_batch(batch)
            made = 0
            try:
                for routes, payload in self._codec.encode(batch, options, first_row + count):
                    made += len(payload)
                    if made > self._limits.flight_put_made_max:
                        text = f"a batch that becomes more than {self._limits.flight_put_made_max} bytes of messages: send smaller ones"
                        raise PlaneError(BAD_ARGUMENT, text)
                    asked = {"stage_id": stage_id, "routes": routes}
                    self._link.call("block", caller, asked, payload, self._limits.flight_block_wait_ms)
            except self._codec.encode_error as error:
                raise PlaneError(BAD_ROW, str(error)) from None
            size += made
            count += batch.num_rows
        return json.dumps({"count": count, "bytes": size}).encode()

    def _check_batch(self, batch: Any) -> None:
        """Its size, before anything looks into it: `nbytes` would follow offsets that nobody has checked yet."""
        limits = self._limits
        taken = batch.get_total_buffer_size()
        if taken > limits.flight_put_bytes_max:
            raise PlaneError(BAD_ARGUMENT, f"a batch of {taken} bytes; at most {limits.flight_put_bytes_max} are taken")
        if not 0 <= batch.num_rows <= limits.flight_put_rows_max:
            raise PlaneError(BAD_ARGUMENT, f"a batch of {batch.num_rows} rows; at most {limits.flight_put_rows_max} are taken")


def _given_up(ticket: Ticket, piece: Piece, error: Exception, why: str) -> set[int]:
    """Rows of `piece` to leave out because they can't be read. Raises: PlaneError DAMAGED for a reader that wants all (P3)."""
    rows: list[int] = error.rows  # type: ignore[attr-defined]
    suffix = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
    text = f"{piece.named(error)}{suffix} can't be read: {why}"
    if not ticket.tolerant:
        raise PlaneError(DAMAGED, text) from None
    log.warning("%s; left out, as the reader wants it (failOnDataLoss=false)", text)
    return set(rows)


class Ticket:
    """A ticket taken apart. source: what the broker reads; first: row to begin with; columns, body: for the decoder; schema; tolerant:
    what can't be read is left out (sets; a stream's is in its source)."""

    __slots__ = ("body", "columns", "first", "schema", "source", "tolerant")

    def __init__(
        self, source: dict[str, Any], first: int, columns: list[str] | None, body: str | None, schema: Any, tolerant: bool = False
    ) -> None:
        self.tolerant = tolerant
        self.source = source
        self.first = first
        self.columns = columns
        self.body = body
        self.schema = schema

    @property
    def actor(self) -> tuple[int, int, int]:
        """Whose turn it must be to decode this: subject, slice, and the slice's share of the subject's weight."""
        subject = self.source.get("sub_id") or self.source.get("id")
        number, slices = self.source.get("slice"), self.source.get("slices")
        return (
            hash(subject) % 2**64 if isinstance(subject, str) else 0,
            number if isinstance(number, int) and 0 <= number < SLICES else 0,
            max(1, WEIGHT // slices) if isinstance(slices, int) and 1 <= slices <= SLICES else WEIGHT,
        )


class Piece:
    """Rows as the broker gave them. queues: [[queue name, rows, ...]]; payload: rows of 32 bytes, then contents that stand nowhere else."""

    __slots__ = ("_lengths", "first", "inline", "more", "payload", "queues", "rows")

    def __init__(self, first: int, queues: list[list[Any]], payload: Any, has_more: bool) -> None:
        self.first = first
        self.queues = queues
        self.more = has_more
        self.payload = payload
        self.rows = sum(int(entry[1]) for entry in queues)
        table = memoryview(payload).cast("B")
        end = self.rows * ROW
        if any(entry[1] < 0 for entry in queues) or len(table) < end:
            raise ValueError(f"{self.rows} rows in {len(table)} bytes")
        self._lengths = table[:end].cast("I")[BODY_LENGTH :: ROW // 4].tolist()
        self.inline = len(table) > end

    def within(self, size: int) -> int:
        """How many rows from the first on have bodies of at most `size` bytes in all; at least one when there are any."""
        if sum(self._lengths) <= size:
            return self.rows
        total = 0
        for index, length in enumerate(self._lengths):
            total += length
            if total > size:
                return max(1, index)
        return self.rows

    def estimate(self, size: int) -> int:
        """How many rows like these have `size` bytes of bodies."""
        return max(1, size * self.rows // max(1, sum(self._lengths))) if self.rows else 1

    def cut(self, count: int) -> Piece:
        """The first `count` rows; only of a piece without contents in its payload."""
        rest, queues = count, []
        for entry in self.queues:
            taken = min(rest, int(entry[1]))
            if taken:
                queues.append([entry[0], taken, *entry[2:]])
            rest -= taken
        return Piece(self.first, queues, memoryview(self.payload)[: count * ROW], True)

    def named(self, moved: Exception) -> str:
        """The first of the rows that moved, for people."""
        rows = getattr(moved, "rows", None) or [0]
        index = int(rows[0])
        before = 0
        for entry in self.queues:
            if index < before + int(entry[1]):
                break
            before += int(entry[1])
        else:
            return "a message"
        table = memoryview(self.payload).cast("B")
        position = int.from_bytes(table[index * ROW : index * ROW + 8], "little")
        return f"the message at position {position} of queue '{entry[0]}'"
