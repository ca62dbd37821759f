"""The data plane as its callers see it: control calls as methods, sets as iterators of record batches, stages as something to put into.

in: where the service is and who asks. out: typed answers, record batches; PlaneError with a code for everything that goes wrong.

C1  Calls are idempotent, so a call whose answer was lost is made again, until `timeout_s` have passed without an answer. BUSY is an answer:
    the service is there and says when to come again, for up to `busy_s`.
C2  `read` goes on behind the last row it gave: the service gives a set's rows in the same order each time.
C3  `put` sends rows when it has them, and only when the service has let it in. Until then it is tried again as other calls are; rows that
    were sent are not sent again: what arrived of them is not known. The caller gives the stage up and begins another one.
C4  pyarrow and gRPC are imported by the first call: a process may fork before, and must not afterwards.
C5  A password appears in no text that this module makes.
C6  Several addresses are those of one broker, tried in turn: the store of the first one that answers is the only one that is talked to,
    so a call never goes on at a broker that knows nothing of the calls before it. With `cluster` they are nodes of one engine of shared
    queues, which knows of all calls about those.
"""

from __future__ import annotations

import itertools
import json
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from flintmq.endpoint import endpoint
from flintmq.flight.calls import Calls, Place
from flintmq.flight.headers import ADMITTED, QUERY_HEADER, TURN_ENDS, VHOST_HEADER, basic_header, query_header, vhost_header
from flintmq.flight.plane_error import BUSY, PROTOCOL, TIMED_OUT, UNAUTHENTICATED, UNAVAILABLE, PlaneError, from_flight
from flintmq.flight.results import (
    Acquired,
    Browse,
    Committed,
    Prepared,
    Put,
    Snapshot,
    StageBegun,
    Subscription,
    Tail,
)

__all__ = ["DEFAULT_PORT", "DataPlane", "PlaneError", "location_of", "locations_of"]

DEFAULT_PORT = 15_680
# addresses of one broker
ADDRESSES_MAX = 16
# seconds between two tries: the first pause, doubled up to the second
PAUSE_S, PAUSE_S_MAX = 0.05, 2.0
# rows of one record batch on the wire, and bytes: the service makes blocks of it, and takes what fits into memory many times over
PUT_ROWS, PUT_BYTES = 64_000, 8 * 1024 * 1024
# bytes of rows that are sent with one call: they are gathered before, as a call that waits for rows takes a place from those that have some
GATHERED_BYTES = 16 * 1024 * 1024
# times `timeout_s` that such a call may take
SEND_TIMES = 4
# seconds: the longest wait that a service may ask for
BUSY_PAUSE_S_MAX = 10.0
# arguments that name the query which calls, the first one that is there
QUERY_ARGUMENTS = ("scope", "sub_id", "name", "stream", "id")

T = TypeVar("T")


def location_of(where: str, tls: bool = False) -> tuple[str, str | None, str | None, str | None]:
    """`grpc://[user:password@]HOST[:PORT][/VHOST]` (or grpc+tls, or HOST[:PORT]) taken apart: gRPC location, user, password, vhost.

    Raises: ValueError, without repeating the URL: it may hold a password.
    """
    parts = urlsplit(where if "://" in where else f"grpc://{where}")
    if parts.scheme not in ("grpc", "grpc+tcp", "grpc+tls") or parts.query or parts.fragment:
        raise ValueError("the address of a data plane is grpc://HOST:PORT or grpc+tls://HOST:PORT")
    try:
        host, port = parts.hostname, parts.port or DEFAULT_PORT
    except ValueError:
        raise ValueError("the address of a data plane has a port that is no number from 1 to 65535") from None
    if not host:
        raise ValueError("the address of a data plane needs a host")
    scheme = "grpc+tls" if tls or parts.scheme == "grpc+tls" else "grpc+tcp"
    user = unquote(parts.username) if parts.username else None
    password = unquote(parts.password) if parts.password is not None else None
    vhost = unquote(parts.path[1:]) if len(parts.path) > 1 else None
    return f"{scheme}://{endpoint(host, port)}", user, password, vhost


def locations_of(where: str, tls: bool = False) -> tuple[tuple[str, ...], str | None, str | None, str | None]:
    """Several addresses of one broker, separated by commas: gRPC locations, and user, password, vhost of those that have them.

    Those behind the first one may leave their scheme out. Raises: ValueError, as `location_of`.
    """
    parts = [part.strip() for part in where.split(",")]
    if len(parts) > ADDRESSES_MAX:
        raise ValueError(f"the address of a data plane names {len(parts)} brokers; at most {ADDRESSES_MAX} are tried")
    scheme = parts[0].partition("://")[0] if "://" in parts[0] else "grpc"
    logins = [location_of(part if "://" in part else f"{scheme}://{part}", tls) for part in parts]
    locations = tuple(dict.fromkeys(one[0] for one in logins))
    if len({location.partition("://")[0] for location in locations}) > 1:
        raise ValueError("the address of a data plane has brokers with TLS and without: a password would be sent to both")
    login = [dict.fromkeys(one[place] for one in logins if one[place] is not None) for place in (1, 2, 3)]
    if any(len(values) > 1 for values in login):
        raise ValueError("the address of a data plane has two users, passwords or virtual hosts")
    user, password, vhost = (next(iter(values), None) for values in login)
    return locations, user, password, vhost


class DataPlane:
    """A client of the Flight service. Thread-safe; not to be carried into another process. Connects with its first call.

    A password that is a function is asked for now, and once more when a login is refused: it may have been changed meanwhile.

    Args: where: `grpc://HOST:PORT` and so on (see locations_of), or a host with `port`; user, password, vhost: as in AMQP;
    tls_ca: authorities to trust, PEM, as bytes or as the path of a file; given, it turns TLS on; timeout_s: seconds a call may take,
    tries and pauses included (waiting for messages comes on top); busy_s: seconds for which a call that hears BUSY comes again, by default
    timeout_s; store: with several addresses, the UUID of the store that is meant,
    by default that of the first broker that answers; cluster: the addresses are nodes with shared queues on one engine, to which scopes and
    stages write then, and `store` says which engine is meant. Attributes: store: the same, once it is known; empty with one address.
    Raises: ValueError, OSError for wrong arguments.
    """

    def __init__(
        self,
        where: str = "127.0.0.1",
        port: int | None = None,
        *,
        user: str | None = None,
        password: str | Callable[[], str] | None = None,
        vhost: str | None = None,
        tls_ca: bytes | str | Path | None = None,
        timeout_s: float = 30.0,
        busy_s: float | None = None,
        store: str = "",
        cluster: bool = False,
    ) -> None:
        if port is not None and "://" not in where:
            where = f"grpc://{f'[{where}]' if ':' in where else where}:{port}"
        self._locations, url_user, url_password, url_vhost = locations_of(where, tls=bool(tls_ca))
        self.location = ",".join(self._locations)
        self.store = store
        self._cluster = cluster
        self._shared = True if cluster else None  # of scopes and stages
        self.user = user or url_user or "guest"
        self.vhost = vhost or url_vhost or "/"
        self.timeout_s = timeout_s
        self.busy_s = timeout_s if busy_s is None else busy_s
        # what the calls of now are for, as the service is told: it divides its places among queries
        self._query = ""
        self._password = password if callable(password) else None
        secret = password() if callable(password) else password
        self._headers = self._login(secret if secret is not None else url_password if url_password is not None else "guest")
        self._roots = tls_ca if isinstance(tls_ca, bytes) or not tls_ca else Path(tls_ca).read_bytes()
        self._lock = threading.Lock()
        self._client: Any = None
        # Which address is next, and the client whose broker has the store that is meant.
        self._turn = 0
        self._checked: Any = None
        self._closed = False

    def _login(self, secret: str) -> list[tuple[bytes, bytes]]:
        return [
            (b"authorization", basic_header(self.user, secret).encode()),
            (VHOST_HEADER.encode(), vhost_header(self.vhost).encode()),
        ]

    def _login_changed(self) -> bool:
        """Asks for the password again. Returns: whether it is another one."""
        if self._password is None:
            return False
        headers = self._login(self._password())
        changed, self._headers = headers != self._headers, headers
        return changed

    def __repr__(self) -> str:
        return f"DataPlane({self.location}, user {self.user!r}, vhost {self.vhost!r})"

    def __enter__(self) -> DataPlane:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError("a DataPlane is not carried into another process: make a new one there")

    def close(self) -> None:
        """Ends the connection. Calls that run end with an error. Again is no error."""
        with self._lock:
            self._closed = True
            client, self._client = self._client, None
        if client is not None:
            client.close()

    @property
    def calls(self) -> Calls:
        """All control calls, with their answers as they come."""
        return Calls(self._action)

    # --- subscriptions ------------------------------------------------------------------------------------------------

    def sub_open(self, name: str, queues: Sequence[str], *, mode: str = "create", start: Place = "earliest") -> Subscription:
        """Opens a subscription: every older epoch of it is fenced from now on. Raises: PlaneError NOT_FOUND, FORBIDDEN, QUEUES_DIFFER."""
        return Subscription.read(self.calls.sub_open(name=name, queues=queues, mode=mode, start=start))

    def sub_acquire(
        self, sub_id: str, epoch: int, seq: int, *, max_messages: int, max_bytes: int, max_wait_ms: int = 0, onlost: str | None = None
    ) -> Acquired:
        """Prepares the set `seq`, or tells what it is when it is prepared. Raises: PlaneError FENCED, CHECKPOINT_BEHIND, _AHEAD, _LOST."""
        limits = {"max_messages": max_messages, "max_bytes": max_bytes, "max_wait_ms": max_wait_ms}
        return Acquired.read(self.calls.sub_acquire(sub_id=sub_id, epoch=epoch, seq=seq, onlost=onlost, **limits))

    def sub_plan(self, sub_id: str, epoch: int, seq: int, slices: int) -> list[bytes]:
        """Tickets of the prepared set, for `read`. Raises: PlaneError FENCED, NOT_PREPARED, CHECKPOINT_BEHIND."""
        return _tickets(self.calls.sub_plan(sub_id=sub_id, epoch=epoch, seq=seq, slices=slices))

    def sub_commit(self, sub_id: str, epoch: int, upto: int) -> int:
        """Commits the sets up to `upto`; returns what is committed now. Raises: PlaneError FENCED, CHECKPOINT_AHEAD, NOT_FOUND."""
        return int(_field(self.calls.sub_commit(sub_id=sub_id, epoch=epoch, upto=upto), "committed"))

    def sub_tail(self, sub_id: str, *, drain: bool = False, epoch: int | None = None) -> Tail:
        """The messages that wait in the subscription's queues. Args: drain: later sets end with those of now; epoch: fences a drain."""
        return Tail.read(self.calls.sub_tail(sub_id=sub_id, drain=drain, epoch=epoch))

    def sub_alive(self, sub_id: str, epoch: int, *, leave: bool = False) -> None:
        """The reader works, or ends. Raises: PlaneError FENCED."""
        self.calls.sub_alive(sub_id=sub_id, epoch=epoch, leave=leave)

    def sub_list(self) -> list[dict[str, Any]]:
        """All subscriptions of the vhost whose queues the user may read."""
        return list(_field(self.calls.sub_list(), "subscriptions"))

    def sub_status(self, name: str) -> dict[str, Any]:
        """One subscription, by name."""
        return _object(self.calls.sub_status(name=name))

    def sub_reset(self, name: str, action: str, *, seq: int | None = None, may_duplicate: bool = True) -> dict[str, Any]:
        """For operators: `redeliver` rolls the prepared set back, `commit` commits it unread, `delete` forgets the subscription.

        Args: may_duplicate: False: a set that was planned is not given back. Raises: PlaneError MAY_DUPLICATE.
        """
        return _object(self.calls.sub_reset(name=name, action=action, seq=seq, may_duplicate=may_duplicate))

    # --- stages -------------------------------------------------------------------------------------------------------

    def scope_open(self, scope: str | None = None) -> int:
        """An epoch above all given out before. Args: scope: its name, when the service asks for one."""
        return int(_field(self.calls.scope_open(scope=scope, shared=self._shared), "epoch"))

    def stage_begin(
        self,
        scope: str,
        epoch: int,
        batch: int,
        *,
        part: int = 0,
        attempt: int = 0,
        unroutable: str | None = None,
        over_limit: str | None = None,
        kind: str | None = None,
    ) -> StageBegun:
        """Begins a stage for one task attempt. Args: unroutable, over_limit, kind: as docs/DATAPLANE.md has them.

        Raises: PlaneError FENCED.
        """
        task = {"epoch": epoch, "batch": batch, "part": part, "attempt": attempt}
        begun = self.calls.stage_begin(scope=scope, unroutable=unroutable, over_limit=over_limit, kind=kind, shared=self._shared, **task)
        return StageBegun.read(begun)

    def stage_prepare(self, stage_id: str) -> Prepared:
        """Makes the stage durable; from now on only `stage_commit` and `stage_abort` decide. Raises: PlaneError NOT_FOUND, STAGE_FAILED."""
        return Prepared.read(self.calls.stage_prepare(stage_id=stage_id))

    def stage_commit(self, scope: str, epoch: int, batch: int, stage_ids: Sequence[str]) -> Committed:
        """Publishes these stages, all or none, and rolls back all others of the scope up to `batch`.

        Raises: PlaneError FENCED, NOT_PREPARED.
        """
        return Committed.read(self.calls.stage_commit(scope=scope, epoch=epoch, batch=batch, stage_ids=stage_ids, shared=self._shared))

    def stage_abort(self, scope: str, batch: int, *, epoch: int | None = None, stage_id: str | None = None) -> Any:
        """Rolls back what the scope staged for the batch; returns what the service says about it.

        Args: epoch: stages up to it, and none later; stage_id: that one alone.
        """
        return self.calls.stage_abort(scope=scope, batch=batch, epoch=epoch, stage_id=stage_id, shared=self._shared)

    def scope_status(self, scope: str) -> dict[str, Any]:
        """committed, and the open stages."""
        return _object(self.calls.scope_status(scope=scope, shared=self._shared))

    def scope_list(self) -> list[dict[str, Any]]:
        """All scopes of the vhost."""
        scopes: list[dict[str, Any]] = []
        goes_on = True
        while goes_on:
            answer = self.calls.scope_list(after=scopes[-1]["scope"] if scopes else None, shared=self._shared)
            scopes += _field(answer, "scopes")
            goes_on = bool(answer.get("more")) and bool(answer["scopes"])
        return scopes

    def scope_forget(self, scope: str) -> Any:
        """Forgets a scope that nobody writes to any more: its batches could be written twice afterwards."""
        return self.calls.scope_forget(scope=scope, shared=self._shared)

    # --- log, queues, service -------------------------------------------------------------------------------------------

    def log_snapshot(self, *, ttl_s: int = 60, logs: Sequence[str] | None = None) -> Snapshot:
        """Keeps the log containers of now for `ttl_s` seconds. Raises: PlaneError FORBIDDEN unless the user is an administrator."""
        return Snapshot.read(self.calls.log_snapshot(ttl_s=ttl_s, logs=logs))

    def log_extend(self, snapshot_id: str, ttl_s: int = 60) -> Any:
        """Keeps them for `ttl_s` seconds from now. Raises: PlaneError NOT_FOUND when it was let go."""
        return self.calls.log_extend(id=snapshot_id, ttl_s=ttl_s)

    def log_release(self, snapshot_id: str) -> Any:
        """Lets them go."""
        return self.calls.log_release(id=snapshot_id)

    def browse_open(
        self,
        queues: Sequence[str],
        *,
        start: Place | None = None,
        end: Place | None = None,
        max_messages: int | None = None,
        slices: int | None = None,
    ) -> Browse:
        """Tickets for messages that stay in their queues. Args: start, end: {"position": n}, {"lsn": n} or {"time_us": t}.

        Raises: PlaneError NOT_FOUND, FORBIDDEN.
        """
        answer = _object(self.calls.browse_open(queues=queues, start=start, end=end, max_messages=max_messages, slices=slices))
        return Browse.read({**answer, "tickets": _tickets(answer)})

    def queue_match(self, pattern: str) -> list[str]:
        """Names of the queues that match now and may be read."""
        return list(_field(self.calls.queue_match(pattern=pattern), "queues"))

    def stream_open(self, queue: str, *, start: Place | None = None, stream: str | None = None) -> dict[str, Any]:
        """A stream's identity and bounds, and the offset of a place. Raises: PlaneError NOT_A_STREAM, STREAM_REPLACED."""
        return _object(self.calls.stream_open(queue=queue, start=start, stream=stream))

    def stream_next(
        self,
        queue: str,
        stream: str,
        offset: int,
        *,
        upto: int | None = None,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        release: str | None = None,
    ) -> int:
        """Where a batch from `offset` on ends. Args: release: a pin that is not needed any more. Raises: PlaneError STREAM_REPLACED."""
        limits = {"upto": upto, "max_messages": max_messages, "max_bytes": max_bytes}
        return int(_field(self.calls.stream_next(queue=queue, stream=stream, offset=offset, release=release, **limits), "offset"))

    def stream_tail(self, queue: str, offset: int, *, stream: str | None = None) -> dict[str, Any]:
        """The messages behind an offset."""
        return _object(self.calls.stream_tail(queue=queue, offset=offset, stream=stream))

    def stream_plan(
        self,
        queue: str,
        stream: str,
        offset: int,
        end: int,
        slices: int = 1,
        *,
        key: str | None = None,
        tolerant: bool | None = None,
        release: str | None = None,
    ) -> tuple[list[bytes], str]:
        """Tickets of a range of offsets, and the pin that keeps its containers, for `stream_release`. Raises: PlaneError TRUNCATED."""
        place = {"queue": queue, "stream": stream}
        answer = self.calls.stream_plan(**place, offset=offset, end=end, slices=slices, key=key, tolerant=tolerant, release=release)
        return _tickets(answer), str(_field(answer, "pin"))

    def stream_release(self, queue: str, pin: str) -> None:
        """Lets the containers go."""
        self.calls.stream_release(queue=queue, pin=pin)

    def browse_close(self, browse_id: str) -> Any:
        """Lets a browse go before its time. Again is no error."""
        return self.calls.browse_close(id=browse_id)

    def status(self) -> dict[str, Any]:
        """Version, store UUID, figures of service and broker."""
        return _object(self.calls.status())

    def _action(self, name: str, arguments: Mapping[str, Any], wait_s: float = 0.0) -> Any:
        """A control call. Args: wait_s: seconds that the call itself waits; arguments: JSON values.

        Returns: the answer, JSON values. Raises: PlaneError.
        """
        body = json.dumps(arguments).encode()
        self._is_for(arguments)

        def once(client: Any, left_s: float) -> Any:
            from pyarrow import flight

            options = flight.FlightCallOptions(timeout=left_s + wait_s, headers=self._told_headers())
            results = list(client.do_action(flight.Action(name, body), options))
            if len(results) != 1:
                raise PlaneError(PROTOCOL, f"{name}: {len(results)} results instead of one")
            return json.loads(results[0].body.to_pybytes())

        return self._retried(once, self._patience(wait_s))

    def _is_for(self, arguments: Mapping[str, Any]) -> None:
        """Remembers the query that a call names: those without a name are for the same one."""
        name = next((arguments[key] for key in QUERY_ARGUMENTS if isinstance(arguments.get(key), str)), "")
        if name:
            self._query = name

    def _told_headers(self) -> list[tuple[bytes, bytes]]:
        return [*self._headers, (QUERY_HEADER.encode(), query_header(self._query).encode())]

    def _patience(self, wait_s: float = 0.0) -> Patience:
        return Patience(self.timeout_s, wait_s, self.busy_s)

    # --- data -----------------------------------------------------------------------------------------------------------

    def read(self, ticket: bytes, *, columns: Sequence[str] | None = None, body: str | None = None) -> Iterator[Any]:
        """The record batches of a ticket, in order. Args: columns: names to give, in the schema's order; body: `none` or `prefix:N`.

        An iterator that is closed before its end tells the service. Raises: PlaneError, from the iterator.
        """
        asked = json.loads(ticket)
        if columns is not None:
            asked["columns"] = list(columns)
        if body is not None:
            asked["body"] = body
        self._is_for(asked)
        done = int(asked.get("first", 0))
        patience = self._patience()
        while True:
            asked["first"] = done
            reader, watch = self._retried(lambda client, left_s: self._get(client, asked), patience)
            try:
                while True:
                    try:
                        with watch:
                            chunk = reader.read_chunk()
                    except StopIteration:
                        return
                    except Exception as error:
                        self._pause(_plane_error(error), patience)
                        break
                    patience = self._patience()
                    if chunk.app_metadata is not None and chunk.app_metadata.to_pybytes() == TURN_ENDS:
                        break
                    if chunk.data is not None and chunk.data.num_rows:
                        done += chunk.data.num_rows
                        yield chunk.data
            finally:
                watch.end()
                reader.cancel()

    def _get(self, client: Any, asked: Mapping[str, Any]) -> tuple[Any, Watch]:
        from pyarrow import flight

        reader = client.do_get(flight.Ticket(json.dumps(asked).encode()), flight.FlightCallOptions(headers=self._told_headers()))
        watch = Watch(reader.cancel, self.timeout_s / 2)
        try:
            with watch:
                _ = reader.schema  # the first bytes of the answer: a refusal comes here
        except BaseException:
            watch.end()
            raise
        return reader, watch

    def put(self, stage_id: str, batches: Iterable[Any], **options: Any) -> Put:
        """Stages record batches; all have the schema of the first. Rows that were sent are not sent again (C3).

        Args: options: `exchange`, `routing_key`, `constants` of the codec's EncodeOptions, for values without a column.
        Returns: what was staged; nothing is for no batches. Raises: PlaneError: BAD_ROW names row and column.
        """
        command = {**options, "stage_id": stage_id}
        count = size = 0
        schema: Any = None
        for gathered in _gathered(batches):
            if schema is None:
                schema = gathered[0].schema
            if count:
                command["first_row"] = count
            staged = self._send(json.dumps(command).encode(), schema, gathered)
            count, size = count + staged.count, size + staged.bytes
        return Put(count, size)

    def _send(self, command: bytes, schema: Any, batches: Sequence[Any]) -> Put:
        """One do_put. Raises: PlaneError."""
        writer, reader = self._retried(lambda client, left_s: self._admitted(client, command, schema), self._patience())
        sent = 0
        try:
            for part in itertools.chain.from_iterable(_parts(batch) for batch in batches):
                writer.write_batch(part)
                sent += part.num_rows
            writer.done_writing()
            answer_bytes = reader.read()
        except Exception as error:
            raise self._broken(_ended(writer) or _plane_error(error)) from error
        except BaseException:
            _ended(writer)
            raise
        wrong = _ended(writer)
        if wrong is not None:
            raise self._broken(wrong)
        if answer_bytes is None:
            raise PlaneError(PROTOCOL, "do_put ended without an answer")
        answer = _object(json.loads(answer_bytes.to_pybytes()))
        if answer.get("count") != sent:
            raise PlaneError(PROTOCOL, f"do_put: {sent} rows were sent, the service counted {answer.get('count')}")
        return Put(sent, int(answer.get("bytes", 0)))

    def _admitted(self, client: Any, command: bytes, schema: Any) -> tuple[Any, Any]:
        """A do_put that may send its rows: the service has a place for it. Until then nothing was sent."""
        from pyarrow import flight

        options = flight.FlightCallOptions(timeout=self.timeout_s * SEND_TIMES, headers=self._told_headers())
        writer, reader = client.do_put(flight.FlightDescriptor.for_command(command), schema, options)
        try:
            admission = reader.read()
        except Exception as error:
            raise _ended(writer) or error from error
        if admission is None or admission.to_pybytes() != ADMITTED:
            raise _ended(writer) or PlaneError(PROTOCOL, "do_put was not let in, and not refused")
        return writer, reader

    def _broken(self, error: PlaneError) -> PlaneError:
        """An error of a put whose rows were sent: what would be tried again before is a connection that broke now."""
        if error.code == TIMED_OUT:
            return PlaneError(UNAVAILABLE, f"{self.location} did not take the rows within {self.timeout_s * SEND_TIMES:g} s")
        return PlaneError(UNAVAILABLE, f"{self.location} took a part of the rows: {error.text}") if error.code == BUSY else error

    # --- tries ----------------------------------------------------------------------------------------------------------

    def _retried(self, call: Callable[[Any, float], T], patience: Patience) -> T:
        """C1. Raises: PlaneError: the service's refusal, or UNAVAILABLE, BUSY, TIMED_OUT when the time is over."""
        while True:
            try:
                client = self._connected()
                if len(self._locations) > 1 and client is not self._checked:
                    self._check_store(client, max(0.05, patience.left_s))
                return call(client, max(0.05, patience.left_s))
            except Exception as error:
                self._pause(_plane_error(error), patience)

    def _check_store(self, client: Any, left_s: float) -> None:
        """C6. Raises: ConnectionError for a broker with another store: it is passed over as one that is away."""
        from pyarrow import flight

        options = flight.FlightCallOptions(timeout=left_s, headers=self._told_headers())
        (answer,) = client.do_action(flight.Action("status", b"{}"), options)
        status = json.loads(answer.body.to_pybytes())
        store = str(_field(status, "cluster") if self._cluster else _field(_field(status, "store"), "uuid"))
        if not store:
            raise ConnectionError(
                "one of these addresses leads to a broker that has heard of no engine of shared queues, and is passed over"
            )
        with self._lock:
            self.store = self.store or store
            if store == self.store:
                self._checked = client
                return
        raise ConnectionError(
            f"one of these addresses leads to a broker with another {'engine' if self._cluster else 'store'} ({store}, not {self.store}), "
            "which knows nothing of this one's messages, and is passed over"
        )

    def _pause(self, error: PlaneError, patience: Patience) -> None:
        """Waits before another try. Raises: `error` when there is no use in one, or no time."""
        if error.code == TIMED_OUT:
            # The last try may have had too little time to hear what those before it heard.
            code, why = (TIMED_OUT, "") if patience.heard is None else (patience.heard.code, f": {patience.heard.text}")
            raise PlaneError(code, f"no answer from {self.location} within {self.timeout_s:g} s{why}") from None
        if error.code == BUSY and not self._closed:
            wait = patience.busy(error)
            if wait is None:
                raise PlaneError(BUSY, f"{self.location} was busy for {self.busy_s:g} s: {error.text}") from None
            time.sleep(wait)
            return
        if error.code == UNAUTHENTICATED and not self._closed and patience.left_s > 0 and self._login_changed():
            return
        if not error.may_retry or self._closed or _hopeless(error.text):
            raise error from None
        patience.missed += 1
        # Another address is tried at once; after the last of them there is a pause.
        another = error.code == UNAVAILABLE and patience.missed % len(self._locations) != 0 and patience.left_s > 0
        pause = 0.0 if another else patience.pause()
        if pause is None:
            raise PlaneError(error.code, f"no answer from {self.location} within {self.timeout_s:g} s: {error.text}") from None
        patience.heard = error
        if error.code == UNAVAILABLE:
            # A new connection at once, instead of gRPC's own pauses of up to two minutes.
            with self._lock:
                client, self._client = self._client, None
                self._turn += client is not None
            del client  # calls of other threads may still run on it: it ends with the last of them
        if pause:
            time.sleep(pause)

    def _connected(self) -> Any:
        with self._lock:
            if self._closed:
                raise PlaneError(UNAVAILABLE, "this client is closed")
            if self._client is None:
                from pyarrow import flight

                self._client = flight.FlightClient(
                    self._locations[self._turn % len(self._locations)],
                    tls_root_certs=self._roots,
                    generic_options=[
                        # not through a proxy of the environment: a broker is reached directly
                        ("grpc.enable_http_proxy", 0),
                        # a connection of this client's own, with its own idea of when to try again
                        ("grpc.use_local_subchannel_pool", 1),
                        ("grpc.initial_reconnect_backoff_ms", 100),
                        ("grpc.min_reconnect_backoff_ms", 1_000),
                        ("grpc.max_reconnect_backoff_ms", 1_000),
                    ],
                )
            return self._client


class Patience:
    """How long a call is tried, and why it was not answered so far. Args: timeout_s: of silence; wait_s: seconds on top, that the call
    itself waits; busy_s: of BUSY, by default timeout_s."""

    def __init__(self, timeout_s: float, wait_s: float = 0.0, busy_s: float | None = None) -> None:
        self.heard: PlaneError | None = None
        # tries that failed
        self.missed = 0
        self._silence_s = timeout_s + wait_s
        now = time.monotonic()
        self._end = now + self._silence_s
        self._busy_end = now + (timeout_s if busy_s is None else busy_s)
        self._next = PAUSE_S

    @property
    def left_s(self) -> float:
        return self._end - time.monotonic()

    def pause(self) -> float | None:
        """Seconds before the next try, with some chance in it, or None when it would come too late."""
        pause = self._next * random.uniform(0.7, 1.3)
        self._next = min(self._next * 2, PAUSE_S_MAX)
        rest_s = self.left_s
        return None if rest_s <= 0.01 else min(pause, rest_s)

    def busy(self, error: PlaneError) -> float | None:
        """The same after a BUSY: a sign of life, so the time of silence begins anew."""
        now = time.monotonic()
        if now >= self._busy_end:
            return None
        if error.wait_ms > 0:
            pause = min(error.wait_ms / 1000, BUSY_PAUSE_S_MAX) * random.uniform(0.9, 1.2)
        else:  # of a service that does not say when to come again
            pause = self._next * random.uniform(0.7, 1.3)
            self._next = min(self._next * 2, PAUSE_S_MAX)
        self.heard, self.missed = error, 0
        pause = min(pause, self._busy_end - now)
        self._end = now + pause + self._silence_s
        return pause


class Watch:
    """Cancels a stream that says nothing for `stall_s` seconds while somebody waits for it (`with`): gRPC itself would wait for ever for
    a host that is gone without a word. Half of the time of a call, so that there is time for another try."""

    def __init__(self, cancel: Callable[[], None], stall_s: float) -> None:
        self._cancel = cancel
        self._stall_s = stall_s
        self._since: float | None = None
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="flintmq-flight-watch", daemon=True).start()

    def __enter__(self) -> None:
        self._since = time.monotonic()

    def __exit__(self, *exc: object) -> None:
        self._since = None

    def end(self) -> None:
        """Nobody waits any more."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(min(1.0, self._stall_s / 4)):
            since = self._since
            if since is not None and time.monotonic() - since > self._stall_s:
                self._cancel()
                return


def _plane_error(error: BaseException) -> PlaneError:
    return error if isinstance(error, PlaneError) else from_flight(error)


def _hopeless(text: str) -> bool:
    """A certificate that is not trusted now is not trusted in a second either."""
    return "CERTIFICATE_VERIFY_FAILED" in text or "certificate verify failed" in text


def _ended(writer: Any) -> PlaneError | None:
    """Closes a do_put. A fault of the other side is said there; a write that failed knows only that it failed."""
    try:
        writer.close()
    except Exception as said:
        return _plane_error(said)
    return None


def _gathered(batches: Iterable[Any]) -> Iterator[list[Any]]:
    """The batches, as many at a time as have GATHERED_BYTES."""
    gathered, size = [], 0
    for batch in batches:
        if batch.num_rows:
            gathered.append(batch)
            size += batch.nbytes
        if size >= GATHERED_BYTES:
            yield gathered
            gathered, size = [], 0
    if gathered:
        yield gathered


def _parts(batch: Any) -> Iterator[Any]:
    """The batch, or slices of it that are not larger than PUT_BYTES (where rows are about equal) and PUT_ROWS."""
    if not batch.num_rows:
        return
    rows = min(PUT_ROWS, max(1, PUT_BYTES * batch.num_rows // max(1, batch.nbytes)))
    if batch.num_rows <= rows:
        yield batch
        return
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def _tickets(answer: Any) -> list[bytes]:
    tickets = _field(answer, "tickets")
    return [ticket.encode() if isinstance(ticket, str) else json.dumps(ticket).encode() for ticket in tickets]


def _object(answer: Any) -> dict[str, Any]:
    if not isinstance(answer, dict):
        raise PlaneError(PROTOCOL, f"the service answered with {type(answer).__name__}, not with an object")
    return answer


def _field(answer: Any, name: str) -> Any:
    if name not in _object(answer):
        raise PlaneError(PROTOCOL, f"the service's answer lacks '{name}'")
    return answer[name]
