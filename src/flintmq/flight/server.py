"""The Flight service: gRPC's calls become calls to the broker.

in: Flight calls of verified callers. out: JSON answers, record batches, errors with a code.

S1  No call leaves as a bare trace: whatever is raised goes through `errors.to_flight`, and what is our own fault is logged with its trace.
S2  A call that waits (`sub.acquire`) holds a channel to the broker for `flight_slice_ms` at most, and waiting calls never hold all of them.
    It has a place among those that wait, not among those that work.
S3  Memory that is kept for the next transfer, warm readers and freed pages, goes back after a rest of `flight_rest_ms`.
S4  A client that knows turns sends no rows before its call is in: what waits has none of its rows here. Its reading ends at the end of a
    piece when others wait, and it comes again for the rest: a reader that does not read keeps its place for one piece.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyarrow import flight

from flintmq.allocator import give_back
from flintmq.config import Limits
from flintmq.dataplane.calls import CALLS, Answers
from flintmq.endpoint import endpoint
from flintmq.flight import auth
from flintmq.flight.actions import read_object, whole
from flintmq.flight.batches import Plane
from flintmq.flight.headers import ADMITTED, TURN_ENDS
from flintmq.flight.line import Line, Turn
from flintmq.flight.link import Caller, Link
from flintmq.flight.plane_error import BAD_ARGUMENT, INTERNAL, NOT_FOUND, RETRIED, PlaneError, to_flight
from flintmq.flight.uses import Uses

log = logging.getLogger("flintmq.flight")

# seconds between two looks at a subscription for a caller that waits while all waiting places are taken
POLL_S = 0.05


class FlightService(flight.FlightServerBase):  # type: ignore[misc]
    """Serves when it is constructed. Args: host, port (0: a free one); link; codec: plane.Codec; limits; tls: (certificate, key), PEM.

    Raises: pyarrow.ArrowException when it can't listen or the certificate can't be used.
    """

    def __init__(
        self,
        host: str,
        port: int,
        link: Link,
        codec: Any,
        limits: Limits,
        tls: tuple[bytes, bytes] | None = None,
        vault: auth.Vault | None = None,
    ) -> None:
        self._link = link
        self._limits = limits
        self._plane = Plane(link, codec, limits)
        self._codec = codec
        self._uses = Uses()
        self._rests = 0
        self.gate = auth.Gate(link, limits, vault)
        # half of the channels, at least one free for those who do not wait
        self._waits = threading.Semaphore(link.size // 2) if link.size > 1 else threading.Semaphore(0)
        self.scheme = "grpc+tls" if tls else "grpc+tcp"
        super().__init__(
            location=f"{self.scheme}://{endpoint(host, port)}",
            auth_handler=auth.NoHandshake(),
            tls_certificates=[flight.CertKeyPair(*tls)] if tls else None,
            middleware={auth.KEY: self.gate},
        )

    def close(self) -> None:
        """Ends all calls and stops. Waits for handlers that run."""
        self.shutdown()
        self._plane.close()

    def rest(self) -> None:
        """To be called now and then: when nothing was transferred for a while, memory that is kept for the next transfer goes back (S3)."""
        if self._uses.over(self._limits.flight_rest_ms / 1000):
            self._plane.rest()
            pa.default_memory_pool().release_unused()
            give_back()
            self._rests += 1

    def _guard(self, subject: str) -> Guard:
        return Guard(subject, self._limits.flight_busy_ms)

    # --- control calls --------------------------------------------------------------------------------------------------

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        with self._guard("list_actions"):
            _caller(context)
            return [(name, call.text) for name, call in CALLS.items() if call.answers is not Answers.INSIDE]
        raise AssertionError  # Guard never swallows

    def do_action(self, context: Any, action: Any) -> Iterator[bytes]:
        with self._guard("do_action"):
            name = str(action.type)
            caller = _caller(context, self.gate.lines.of_action(name))
            call = CALLS.get(name)
            if call is None or call.answers is Answers.INSIDE:
                raise PlaneError(NOT_FOUND, f"there is no action '{name[:64]}'")
            arguments = read_object(action.body.to_pybytes(), f"the argument of {name}", self._limits.flight_action_bytes_max)
            if name == "sub.acquire":
                if whole(arguments, "max_wait_ms", 0):
                    _session(context).move(self.gate.lines.waits, caller)
                answer = self._acquire(caller, arguments, context.is_cancelled)
            elif call.answers is Answers.SERVICE:
                answer = self._plane.streams.action(name, caller, arguments)
            else:
                answer, _ = self._link.call(name, caller, arguments)
            if name == "status" and isinstance(answer, dict):
                answer.setdefault("flight", {}).update(calls=self.gate.running, rests=self._rests, line=self.gate.lines.counts())
            return iter([json.dumps(answer).encode()])
        raise AssertionError  # Guard never swallows

    def _acquire(self, caller: Caller, arguments: dict[str, Any], cancelled: Callable[[], bool]) -> Any:
        """`sub.acquire` waits in slices. Count 0 means "ask again" to the caller too, so the wait may end before its time."""
        wait_ms = whole(arguments, "max_wait_ms", 0)
        deadline = time.monotonic() + min(wait_ms, self._limits.flight_acquire_wait_ms_max) / 1000
        while True:
            left_ms = max(0, round((deadline - time.monotonic()) * 1000))
            holding = left_ms > 0 and self._waits.acquire(blocking=False)
            try:
                part = min(left_ms, self._limits.flight_slice_ms) if holding else 0
                answer, _ = self._link.call("sub.acquire", caller, {**arguments, "max_wait_ms": part})
            finally:
                if holding:
                    self._waits.release()
            if not left_ms or not isinstance(answer, dict) or answer.get("count") != 0 or cancelled():
                return answer
            if not holding:
                time.sleep(min(POLL_S, left_ms / 1000))

    # --- data -----------------------------------------------------------------------------------------------------------

    def do_get(self, context: Any, ticket: Any) -> Any:
        with self._guard("do_get"):
            caller = _caller(context)
            asked = self._plane.ticket(ticket.ticket)
            session = _session(context)
            turn = Turn(self.gate.lines.reads if session.query else None)
            return flight.GeneratorStream(asked.schema, self._given(asked.schema, self._plane.read(caller, asked, turn), turn))

    def _given(self, schema: Any, batches: Iterator[Any], turn: Turn) -> Iterator[Any]:
        """The batches, and behind them the word that they are not all (S4)."""
        with self._guard("do_get"), self._uses:
            yield from batches
            if turn.ended:
                yield pa.RecordBatch.from_arrays([pa.array([], one.type) for one in schema], schema=schema), pa.py_buffer(TURN_ENDS)

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        with self._guard("do_put"), self._uses:
            caller = _caller(context)
            if _session(context).query:
                writer.write(pa.py_buffer(ADMITTED))
            if descriptor.descriptor_type != flight.DescriptorType.CMD:
                raise PlaneError(BAD_ARGUMENT, "do_put needs a command descriptor")
            outcome = self._plane.put(caller, descriptor.command, (chunk.data for chunk in reader))
            writer.write(pa.py_buffer(outcome))

    # --- for clients that know Flight and not FlintMQ ---------------------------------------------------------------------

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        """A command is a ticket; a path is names of queues, opened for browsing: one endpoint per ticket."""
        with self._guard("get_flight_info"):
            tickets = self._tickets(_caller(context), descriptor)
            endpoints = [flight.FlightEndpoint(ticket, []) for ticket in tickets]
            return flight.FlightInfo(
                self._plane.ticket(tickets[0]).schema if tickets else self._codec.schema(None), descriptor, endpoints, -1, -1
            )

    def get_schema(self, context: Any, descriptor: Any) -> Any:
        with self._guard("get_schema"):
            _caller(context)
            if descriptor.descriptor_type == flight.DescriptorType.CMD:
                return flight.SchemaResult(self._plane.ticket(descriptor.command).schema)
            return flight.SchemaResult(self._codec.schema(None))

    def _tickets(self, caller: Caller, descriptor: Any) -> list[bytes]:
        if descriptor.descriptor_type == flight.DescriptorType.CMD:
            return [descriptor.command]
        queues = [name.decode("utf-8", "replace") for name in descriptor.path]
        answer, _ = self._link.call("browse.open", caller, {"queues": queues})
        return [ticket.encode() if isinstance(ticket, str) else json.dumps(ticket).encode() for ticket in answer["tickets"]]

    def list_flights(self, context: Any, criteria: Any) -> Iterator[Any]:
        """None are listed: queues are found by name, over AMQP or the management interface."""
        with self._guard("list_flights"):
            _caller(context)
        return iter(())

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        with self._guard("do_exchange"):
            _caller(context)
            raise PlaneError(NOT_FOUND, "there is no do_exchange here")


class Guard:
    """A context that lets nothing out but Flight errors with a code (S1). Args: subject: the call, for the log; busy_ms: see to_flight."""

    def __init__(self, subject: str, busy_ms: int) -> None:
        self._subject = subject
        self._busy_ms = busy_ms

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None or isinstance(error, GeneratorExit):
            return
        report(self._subject, error)
        raise to_flight(error, self._busy_ms) from None


def report(subject: str, error: BaseException) -> None:
    """Our own mistakes go to the log with their trace; refusals are the caller's affair, and what ends with a connection is nobody's."""
    if isinstance(error, PlaneError):
        if error.code == INTERNAL:
            log.error("%s: %s", subject, error)
        elif error.code not in RETRIED:
            log.debug("%s refused: %s", subject, error)
    elif isinstance(error, flight.FlightError | pa.ArrowException | pa.ArrowCancelled):
        log.info("%s ended: %s", subject, str(error).partition("\n")[0])
    else:
        log.error("%s failed", subject, exc_info=error)


def _session(context: Any) -> auth.Session:
    session = context.get_middleware(auth.KEY)
    if session is None:
        raise PlaneError(INTERNAL, "a call that nobody verified")
    known: auth.Session = session
    return known


def _caller(context: Any, place: tuple[Line, bool] | None = None) -> Caller:
    """Who calls, once it is the call's turn. Args: place: see Session.caller."""
    return _session(context).caller(context.peer(), place)
