"""The micro-batch logic on streams: which offsets a batch has. Nothing is kept in the broker; Spark's checkpoint alone decides.

In: offsets from Spark, answers of the data plane. Out: offsets `{"streams": {queue: {"stream", "from", "offset"}}}`, tickets.
Invariants:
  * a batch is the messages from `from` to `offset` (not included) of each stream: the same offsets are the same messages, always;
  * only offsets that are durable in the broker are named, so no restart of it takes one back;
  * `stream` is the identity of a stream, which one that was deleted and declared again does not share: offsets of one are never used on
    the other;
  * an end names its own beginning: with `startingOffsets=latest` a first batch that is planned again begins where it did the first time.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec

from flintmq.flight.calls import Calls
from pyspark_flintmq.claim import IDLE_FIRST_S, IDLE_MAX_S, LAG_AGE_S, Offset, Plane
from pyspark_flintmq.errors import NEW_CHECKPOINT, UNREAD_STREAM, SourceError
from pyspark_flintmq.queue_options import Position, QueueOptions

log = logging.getLogger(__name__)

P = ParamSpec("P")

# Options of queues that say nothing about a stream, and why.
_QUEUES_ONLY = {
    "subscription": "a stream needs no subscription: the query's place is in its checkpoint alone",
    "onLostCheckpoint": "nothing is taken from a stream: a new checkpoint begins at 'startingOffsets'",
}
# A data plane that knows no streams has no such action; everything else is told by the opened stream.
_NO_STREAM = ("NOT_A_STREAM", "NOT_FOUND", "FORBIDDEN", "UNAUTHENTICATED", "LOGIN_REFUSED", "BAD_ARGUMENT")


def are_streams(options: QueueOptions, connect: Callable[[], Plane]) -> bool:
    """Whether the queues are streams; checks that the options fit what they are.

    Raises: SourceError OPTION_VALUE: options of the other kind, queues of both kinds; UNREACHABLE.
    """
    if options.pattern:
        if options.key:
            raise keys_of_queues(options)
        return False  # the subscription refuses streams by name
    with options.connection.errors():
        plane = connect()
        try:
            kinds = {name: _is_stream(plane, name) for name in options.queues}
        finally:
            plane.close()
    streams = [name for name, stream in kinds.items() if stream]
    if streams and len(streams) < len(kinds):
        other = next(name for name, stream in kinds.items() if not stream)
        raise SourceError("OPTION_VALUE", f"option 'queues': '{streams[0]}' is a stream, '{other}' is not: read them with two queries")
    for which, place in (("starting", options.start), ("ending", options.end)):
        kind = next(iter(place)) if isinstance(place, dict) else ""
        if kind == "lsn" and streams:
            raise SourceError("OPTION_VALUE", f"option '{which}Offsets': {options.what} is a stream: give an offset or a time, not an LSN")
        if kind == "offset" and not streams:
            raise SourceError("OPTION_VALUE", f"option '{which}Offsets': {options.what} is no stream: it has no offsets")
    if options.key and not streams:
        raise keys_of_queues(options)
    for name in sorted(options.given & _QUEUES_ONLY.keys()) if streams else ():
        raise SourceError("OPTION_VALUE", f"option '{name}': {options.what} is a stream; {_QUEUES_ONLY[name]}")
    return bool(streams)


def keys_of_queues(options: QueueOptions) -> SourceError:
    """The error for partitions by key of a queue that is no stream."""
    names = " and ".join(f"'{name}'" for name in ("partitions", "keyColumn") if name in options.given)
    return SourceError(
        "OPTION_VALUE",
        f"option {names}: {options.what} is no stream, whose messages alone are read by key. Use 'minPartitions', and "
        "repartition(n, 'routing_key').sortWithinPartitions('queue', 'position') where a key's messages belong together",
    )


def _is_stream(plane: Plane, queue: str) -> bool:
    try:
        plane.calls.stream_open(queue=queue)
    except Exception as error:
        if getattr(error, "code", "") in _NO_STREAM:
            return False
        raise
    return True


def by_offset(place: Position) -> Position:
    """A place of an option as `stream.open` takes it: the position in a stream is its offset."""
    return {"offset": place["position"]} if isinstance(place, dict) and "position" in place else place


def lost(subject: str, text: str) -> SourceError:
    """The error for messages that are not there any more."""
    return SourceError("DATA_LOSS", f"{subject}: {text}. Option failOnDataLoss=false goes on without them; or {NEW_CHECKPOINT}")


def note_missing(ticket: str, rows: int) -> None:
    """Logs how many messages of a tolerant ticket could not be read: offsets have no gaps. Of parts by key the service logs it."""
    asked = json.loads(ticket)
    if asked.get("kind") == "stream" and asked.get("tolerant") and "key" not in asked:
        missing = asked["end_offset"] - asked["first_offset"] - rows
        if missing:
            log.warning(
                "stream '%s': %d of the messages from offset %d to %d are gone or damaged, and were left out",
                *(asked["queue"], missing, asked["first_offset"], asked["end_offset"] - 1),
            )


class Cursor:
    """One streaming query's place in its streams. Not thread-safe: Spark calls its reader from one thread."""

    # What the offsets of a query on streams have.
    KEYS = frozenset({"streams"})

    def __init__(self, options: QueueOptions, connect: Callable[[], Plane], now: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._connect = connect
        self._now = now
        self._plane: Plane | None = None
        # AvailableNow: offsets at which this run ends
        self._draining = False
        self._marks: dict[str, int] = {}
        # where the last batch that was named ends, and what Spark has been told of
        self._at: dict[str, dict[str, Any]] = {}
        self._pins: dict[str, str] = {}
        # The end of a checkpoint's first batch, until Spark plans that batch.
        self._unplanned: Offset | None = None
        self._lost = 0
        self._idle_s = IDLE_FIRST_S
        self._last_batch = float("-inf")
        self._lag: tuple[float, dict[str, int]] | None = None

    # --- called by the reader -----------------------------------------------------------------------------------------

    def drain(self) -> None:
        """From now on, stop at what the streams hold now (trigger AvailableNow)."""
        self._draining = True
        self._marks = {name: int(self._call(Calls.stream_open, queue=name)["next"]) for name in self._options.queues}

    def initial(self) -> Offset:
        """Where a query without a checkpoint begins."""
        places = {}
        for name in self._options.queues:
            opened = self._call(Calls.stream_open, queue=name, start=by_offset(self._options.start))
            places[name] = {"stream": opened["stream"], "offset": int(opened["offset"])}
        self._at = places
        return {"streams": places, "initial": True}

    def owns(self, offset: Offset) -> bool:
        """Whether an offset is of these streams: a query may have more sources than this one."""
        streams = offset["streams"]
        return isinstance(streams, dict) and streams.keys() == set(self._options.queues)

    def before(self, end: Offset) -> Offset | None:
        """Where the first batch of a checkpoint begins; None: where a query without one does, for its end says the rest."""
        return None

    def latest(self, start: Offset, max_messages: int, max_bytes: int) -> Offset:
        """The end of the batch that begins at `start`; `start` itself when there is nothing, or not enough yet.

        Raises: SourceError CHECKPOINT_FOREIGN, CHECKPOINT_AHEAD, DATA_LOSS, UNREACHABLE ...
        """
        places = self._places(start)
        if start == self._unplanned and not self._options.unread_is_done:
            raise SourceError(
                "BATCH_UNREAD",
                f"the first batch of {self._options.what} is in Spark's commit log, and was not planned: the sink left it out, because it "
                f"has a batch with its number from an earlier checkpoint (a file sink: in _spark_metadata of its path). {UNREAD_STREAM}. A "
                "foreachBatch that leaves out its first batch on purpose needs option onUnreadBatch=commit",
            )
        self._at = places
        if self._too_early():
            return start
        share, bytes_share = -(-max_messages // len(places)), -(-max_bytes // len(places))
        ends, room, options = {}, max_messages, []
        for name, place in places.items():
            answer = self._next(name, place, place["offset"], min(share, room), bytes_share)
            ends[name] = int(answer["offset"])
            room = max(1, room - (ends[name] - max(place["offset"], int(answer["first"]))))
            if ends[name] < answer["next"]:
                options.append(name)
        taken = sum(ends[name] - place["offset"] for name, place in places.items())
        for name in options if len(places) > 1 else ():
            # what others did not need
            if taken < max_messages:
                end = int(self._next(name, places[name], ends[name], max_messages - taken, bytes_share)["offset"])
                taken += end - ends[name]
                ends[name] = end
        if taken <= 0:
            if not self._draining:
                self._idle()
            return start
        self._last_batch = self._now()
        self._idle_s = IDLE_FIRST_S
        self._lag = None
        self._at = {name: {"stream": place["stream"], "from": place["offset"], "offset": ends[name]} for name, place in places.items()}
        if start.get("initial"):
            self._unplanned = {"streams": self._at}
        return {"streams": self._at}

    def commit(self, end: Offset) -> None:
        """Spark's notice that `end` is committed. The checkpoint has it: nothing is to be done."""

    def tickets(self, start: Offset, end: Offset) -> list[str]:
        """What the tasks of the batch from `start` to `end` read. The same ranges for the same offsets, however often it is asked.

        Raises: SourceError DATA_LOSS, CHECKPOINT_FOREIGN, CHECKPOINT_AHEAD ...
        """
        self._unplanned = None
        begins, ends = self._places(start), self._places(end)
        if start.get("initial"):
            # `latest` has moved since the first batch was named; where it began stands in its end.
            begins = {name: {**place, "offset": place.get("from", begins[name]["offset"])} for name, place in ends.items()}
        counts = {name: max(0, place["offset"] - begins[name]["offset"]) for name, place in ends.items()}
        total = sum(counts.values())
        tickets: list[str] = []
        for name, count in counts.items():
            if not count:
                continue
            planned = self._call(
                Calls.stream_plan,
                queue=name,
                stream=ends[name]["stream"],
                offset=begins[name]["offset"],
                end=ends[name]["offset"],
                slices=self._options.partitions if self._options.key else max(1, round(self._options.partitions * count / total)),
                key=self._options.key or None,
                tolerant=not self._options.fail_on_loss,
                release=self._pins.get(name),
            )
            self._pins[name] = planned["pin"]
            self._missed(name, begins[name]["offset"], int(planned["lost"]))
            tickets += [json.dumps(ticket) for ticket in planned["tickets"]]
        return tickets

    def lag(self) -> dict[str, int]:
        """messages_behind, bytes_behind (of the log, not yet in a batch), oldest_age_ms (of the oldest of them; 0: none)."""
        if not self._at:
            return {}
        if self._lag is None or self._now() - self._lag[0] >= LAG_AGE_S:
            tails = [self._call(Calls.stream_tail, queue=name, offset=place["offset"]) for name, place in self._at.items()]
            figures = {
                "messages_behind": sum(int(tail["behind_messages"]) for tail in tails),
                "bytes_behind": sum(int(tail["behind_bytes"]) for tail in tails),
                "oldest_age_ms": max(int(tail["oldest_age_ms"]) for tail in tails),
            }
            if self._lost:
                figures["messages_lost"] = self._lost
            self._lag = (self._now(), figures)
        return self._lag[1]

    @property
    def store(self) -> str:
        """Of a broker with several addresses: where the streams are (`Connection.store`)."""
        return getattr(self._plane, "store", "")

    def close(self) -> None:
        """Lets the connection go. Pins end by themselves: tasks may still read."""
        plane, self._plane = self._plane, None
        if plane is not None:
            plane.close()

    # --- offsets ------------------------------------------------------------------------------------------------------

    def _places(self, offset: Offset) -> dict[str, dict[str, Any]]:
        try:
            places = {
                str(name): {key: value if key == "stream" else int(value) for key, value in place.items()}
                for name, place in offset["streams"].items()
            }
            if not all({"stream", "offset"} <= place.keys() for place in places.values()):
                raise KeyError("stream")
        except (KeyError, TypeError, ValueError, AttributeError):
            raise SourceError(
                "CHECKPOINT_FOREIGN",
                f"the checkpoint holds {str(offset)[:100]}, which no query on a stream wrote: use its own checkpoint, or {NEW_CHECKPOINT}",
            ) from None
        if places.keys() != set(self._options.queues):
            raise SourceError(
                "QUEUES_DIFFER",
                f"the checkpoint is of {', '.join(sorted(places))}, not of {', '.join(self._options.queues)}: name the same streams, "
                f"or {NEW_CHECKPOINT}",
            )
        return places

    def _next(self, name: str, place: dict[str, Any], offset: int, max_messages: int, max_bytes: int) -> Any:
        upto = self._marks[name] if self._draining else None
        limits = {"max_messages": max_messages, "max_bytes": max_bytes, "upto": upto}
        # What Spark asks for now follows the batch that the pin was for: nobody reads that one any more.
        release = self._pins.pop(name, None)
        answer = self._call(Calls.stream_next, queue=name, stream=place["stream"], offset=offset, release=release, **limits)
        if offset > answer["next"]:
            raise SourceError(
                "CHECKPOINT_AHEAD",
                f"the checkpoint stands at offset {offset} of stream '{name}', which ends before {answer['next']}: the broker's store "
                f"is an older copy. To go on, {NEW_CHECKPOINT}",
            )
        if answer["first"] > offset and self._options.fail_on_loss:
            text = f"retention took the messages from offset {offset} to {answer['first'] - 1} of stream '{name}' before they were read"
            raise lost(self._options.what, text)
        return answer

    def _missed(self, name: str, offset: int, count: int) -> None:
        if count:
            self._lost += count
            log.warning("stream '%s': retention took %d messages from offset %d on before they were read", name, count, offset)

    def _too_early(self) -> bool:
        options = self._options
        if self._draining or options.min_messages <= 1 or self._now() - self._last_batch >= options.max_delay_s:
            return False
        if self.lag().get("messages_behind", 0) >= options.min_messages:
            return False
        self._idle()
        return True

    def _idle(self) -> None:
        time.sleep(self._idle_s)
        self._idle_s = min(2 * self._idle_s, IDLE_MAX_S)

    # --- calls and their errors ---------------------------------------------------------------------------------------

    def _call(self, call: Callable[Concatenate[Calls, P], Any], /, *nothing: P.args, **arguments: P.kwargs) -> Any:
        """Args: call: a method of `Calls`; arguments: its own."""
        try:
            with self._options.connection.errors():
                if self._plane is None:
                    self._plane = self._connect()
                return call(self._plane.calls, *nothing, **arguments)
        except SourceError as e:
            raise self._explained(e, str(arguments.get("queue"))) from e.__cause__

    def _explained(self, error: SourceError, name: str) -> SourceError:
        where = self._options.connection.where
        if error.code == "STREAM_REPLACED":
            return SourceError(
                "CHECKPOINT_FOREIGN",
                f"the checkpoint belongs to another stream '{name}' than that at {where}: it was deleted and declared again, or the broker "
                f"is another one. To go on, {NEW_CHECKPOINT}",
            )
        if error.code in ("NOT_A_STREAM", "NOT_FOUND"):
            return SourceError("QUEUE_MISSING", f"{where}: {error.text}")
        if error.code in ("TRUNCATED", "DAMAGED"):
            return lost(self._options.what, error.text)
        return error
