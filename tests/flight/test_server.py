"""What goes through the service arrives as it was asked, in order and once; whatever goes wrong has a code."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import flight

from flintmq.config import Limits
from flintmq.dataplane.calls import CALLS, Answers
from flintmq.dataplane.wire import Refused
from flintmq.flight.actions import read_object
from flintmq.flight.batches import Piece
from flintmq.flight.link import Caller
from flintmq.flight.plane_error import PlaneError
from tests.flight.fake import Plane, body_of, table_of
from tests.support.broker import wait_until

TICKET = b'{"kind":"set","sub_id":"s","epoch":1,"seq":1,"slice":0,"slices":1}'
BATCH = pa.record_batch({"body": pa.array([b"a", b"b"])})


def serve_rows(plane: Plane, total: int, length: int = 10, *, most: int = 1_000_000, extra: bytes = b"") -> None:
    """The broker has `total` rows and gives at most `most` of them at once."""

    def rows(head: dict[str, Any], payload: bytes) -> Any:
        first = head["first"]
        count = max(0, min(head["count"], most, total - first))
        return {"queues": [["q", count, 7]], "more": first + count < total}, table_of([(first + i, length) for i in range(count)]) + extra

    plane.broker.answers["rows"] = rows


def raw(plane: Plane) -> tuple[flight.FlightClient, flight.FlightCallOptions]:
    """Flight without our client, logged in."""
    return flight.FlightClient(f"grpc://127.0.0.1:{plane.port}"), flight.FlightCallOptions(headers=plane.client()._headers)


def refused(call: Callable[[], Any]) -> PlaneError:
    with pytest.raises(PlaneError) as caught:
        call()
    return caught.value


# --- control calls --------------------------------------------------------------------------------------------------------


def test_every_action_reaches_the_broker_with_the_caller(plane: Plane) -> None:
    """An action's arguments come to the broker as they are, for the user and the vhost of the call."""
    client = plane.client(vhost="a/b ü")
    for name in sorted(name for name, call in CALLS.items() if call.answers is Answers.BROKER):
        plane.broker.answers[name] = lambda head, _: {"count": 1, "call": head["call"]}
        assert client._action(name, {"seq": 3, "name": "ü"})["call"] == name
        head = plane.broker.calls(name)[-1]
        assert (head["user"], head["vhost"], head["seq"], head["name"]) == ("ann", "a/b ü", 3, "ü")


@pytest.mark.parametrize("name", ["auth", "rows", "block", "ready", "", "sub.open\n", "x" * 1000])
def test_what_is_no_action_never_reaches_the_broker(plane: Plane, name: str) -> None:
    """Calls of the service itself, and others that are no action, are NOT_FOUND."""
    plane.broker.answers["status"] = lambda head, _: {}
    client = plane.client()
    client.status()
    seen = len(plane.broker.heads)
    assert refused(lambda: client._action(name, {})).code == "NOT_FOUND"
    assert len(plane.broker.heads) == seen


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b"3",
        b"\xff\xfe",
        b'{"a": NaN}',
        b'{"user": "root"}',
        b'{"vhost": "/x"}',
        b'{"call": "auth"}',
        b"[" * 100_000,
        b'"' + b"a" * 5_000_000,
    ],
)
def test_malformed_arguments_have_a_code(plane: Plane, body: bytes) -> None:
    """JSON that is none, is no object, speaks for somebody else or is too large is BAD_ARGUMENT; the broker never sees it."""
    client, options = raw(plane)
    with pytest.raises(flight.FlightServerError) as caught:
        list(client.do_action(flight.Action("sub.list", body), options))
    assert json.loads(caught.value.extra_info)["code"] == "BAD_ARGUMENT"
    assert str(caught.value).startswith("BAD_ARGUMENT: ")
    assert not plane.broker.calls("sub.list")


@given(st.binary(max_size=200))
def test_reading_arguments_never_raises_anything_else(body: bytes) -> None:
    """Whatever the bytes are: an object, or PlaneError."""
    try:
        assert isinstance(read_object(body, "x", 100), dict)
    except PlaneError as error:
        assert error.code == "BAD_ARGUMENT"


def test_a_refusal_keeps_its_code_and_loses_control_characters(plane: Plane) -> None:
    """The broker's code and text arrive; what could steer a terminal does not."""

    def no(head: dict[str, Any], _: bytes) -> Any:
        raise Refused("FENCED", "epoch 3\n is \x1b[31m old")

    plane.broker.answers["sub.commit"] = no
    error = refused(lambda: plane.client().sub_commit("s", 3, 1))
    assert (error.code, error.text) == ("FENCED", "epoch 3? is ?[31m old")
    client, options = raw(plane)
    with pytest.raises(flight.FlightServerError, match="FENCED: epoch 3"):
        list(client.do_action(flight.Action("sub.commit", b"{}"), options))


@pytest.mark.parametrize("text", ["ü" * 5000, "x" * 5000, "\ud800" * 10, "\U0001f600" * 3000, "%" * 5000])
def test_a_long_text_is_cut_and_arrives(plane: Plane, text: str) -> None:
    """gRPC drops answers whose trailers are too long: a refusal never gets lost in its own words."""

    def no(head: dict[str, Any], _: bytes) -> Any:
        raise Refused("NOT_FOUND", text)

    plane.broker.answers["status"] = no
    error = refused(lambda: plane.client().status())
    assert error.code == "NOT_FOUND"
    assert 10 <= len(error.text.encode()) <= 1000


def test_forbidden_is_unauthorized(plane: Plane) -> None:
    """A missing permission is Flight's UNAUTHORIZED, with our code."""

    def no(head: dict[str, Any], _: bytes) -> Any:
        raise Refused("FORBIDDEN", "read access to queue 'q' refused")

    plane.broker.answers["sub.open"] = no
    assert refused(lambda: plane.client().sub_open("s", ["q"])).code == "FORBIDDEN"
    client, options = raw(plane)
    with pytest.raises(flight.FlightUnauthorizedError):
        list(client.do_action(flight.Action("sub.open", b"{}"), options))


def test_our_own_mistake_is_internal_without_a_trace(plane: Plane, caplog: pytest.LogCaptureFixture) -> None:
    """An exception nobody foresaw: the caller sees INTERNAL and its first line, the log has the trace."""

    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("secret\nTraceback")

    plane.service._plane.ticket = broken
    client, options = raw(plane)
    with pytest.raises(flight.FlightInternalError) as caught:
        client.do_get(flight.Ticket(TICKET), options).read_all()
    assert json.loads(caught.value.extra_info) == {"code": "INTERNAL", "text": "ZeroDivisionError: secret"}
    assert "File" not in str(caught.value)
    assert "ZeroDivisionError" in caplog.text


# --- waiting --------------------------------------------------------------------------------------------------------------


def test_acquire_waits_in_slices(start: Callable[..., Plane]) -> None:
    """A long wait is many short calls, and ends with the first that has messages."""
    plane = start(flight_slice_ms=10)
    counts = iter([0, 0, 0, 5])
    plane.broker.answers["sub.acquire"] = lambda head, _: {"count": next(counts)}
    acquired = plane.client().sub_acquire("s", 1, 1, max_messages=9, max_bytes=9, max_wait_ms=60_000)
    assert acquired.count == 5
    waits = [head["max_wait_ms"] for head in plane.broker.calls("sub.acquire")]
    assert waits == [10, 10, 10, 10]


def test_acquire_that_waits_in_vain_says_so(start: Callable[..., Plane]) -> None:
    """Count 0 comes when the time is over, not before, and not much more often than slices fit into it."""
    plane = start(flight_slice_ms=10, flight_acquire_wait_ms_max=50)
    plane.broker.answers["sub.acquire"] = lambda head, _: {"count": 0}
    assert not plane.client().sub_acquire("s", 1, 1, max_messages=9, max_bytes=9, max_wait_ms=60_000)


def test_waiting_calls_leave_channels_for_others(start: Callable[..., Plane]) -> None:
    """With every waiting place taken, another waiting call polls, and calls that do not wait are answered."""
    plane = start(channels=2, flight_slice_ms=60_000)
    release = threading.Event()

    def acquire(head: dict[str, Any], _: bytes) -> Any:
        if head["max_wait_ms"]:
            release.wait(30)
        return {"count": 1}

    plane.broker.answers["sub.acquire"] = acquire
    plane.broker.answers["status"] = lambda head, _: {}
    client = plane.client()
    waiting = threading.Thread(target=lambda: client.sub_acquire("s", 1, 1, max_messages=1, max_bytes=1, max_wait_ms=30_000))
    waiting.start()
    try:
        wait_until(lambda: plane.broker.calls("sub.acquire"), what="the first waits")
        assert client.sub_acquire("t", 1, 1, max_messages=1, max_bytes=1, max_wait_ms=30_000).count == 1
        assert plane.broker.calls("sub.acquire")[-1]["max_wait_ms"] == 0
        client.status()
    finally:
        release.set()
        waiting.join(10)


@pytest.mark.parametrize("wait", [-1, "5", 1.5, True])
def test_a_wrong_wait_is_refused(plane: Plane, wait: Any) -> None:
    """max_wait_ms must be a whole number, not negative."""
    assert refused(lambda: plane.client()._action("sub.acquire", {"max_wait_ms": wait})).code == "BAD_ARGUMENT"


# --- do_get ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [1, 7, 1_000_000])
def test_all_rows_in_order(plane: Plane, most: int) -> None:
    """However few rows the broker gives at once, all come, once and in order."""
    serve_rows(plane, 25, most=most)
    table = pa.Table.from_batches(plane.client().read(TICKET))
    assert table["position"].to_pylist() == list(range(25))
    assert table["body"].to_pylist() == [body_of("q", i, 10) for i in range(25)]


def test_an_empty_slice_has_no_batches(plane: Plane) -> None:
    """A ticket without rows is an end, not an error."""
    serve_rows(plane, 0)
    assert list(plane.client().read(TICKET)) == []


@pytest.mark.parametrize("extra", [b"", b"inline contents"])
def test_a_piece_is_bounded_by_bytes(start: Callable[..., Plane], extra: bytes) -> None:
    """Bodies above flight_piece_bytes are not decoded together; a message larger than that comes alone."""
    plane = start(flight_piece_bytes=1000)
    serve_rows(plane, 9, length=400, extra=extra)
    sizes = [batch.num_rows for batch in plane.client().read(TICKET)]
    assert sizes == [2, 2, 2, 2, 1]
    serve_rows(plane, 3, length=4000, extra=extra)
    assert [batch.num_rows for batch in plane.client().read(TICKET)] == [1, 1, 1]


def test_several_queues_stay_apart(start: Callable[..., Plane]) -> None:
    """Where a piece is cut, the queues' names stay with their rows."""
    plane = start(flight_piece_bytes=30)
    names = ["a", "a", "b", "b", "b", "c"]

    def rows(head: dict[str, Any], _: bytes) -> Any:
        chosen = names[head["first"] : head["first"] + head["count"]]
        queues = [[name, chosen.count(name), 1] for name in sorted(set(chosen))]
        return {"queues": queues, "more": head["first"] + len(chosen) < 6}, table_of([(head["first"] + i, 10) for i in range(len(chosen))])

    plane.broker.answers["rows"] = rows
    table = pa.Table.from_batches(plane.client().read(TICKET))
    assert table["queue"].to_pylist() == names
    assert table["position"].to_pylist() == list(range(6))


def test_columns_are_passed_on(plane: Plane) -> None:
    """A ticket may ask for fewer columns; the broker is not told."""
    serve_rows(plane, 2)
    batch = next(plane.client().read(TICKET, columns=["position"]))
    assert batch.schema.names == ["position"]
    assert "columns" not in plane.broker.calls("rows")[0]
    assert refused(lambda: next(plane.client().read(TICKET, columns=["x"]))).code == "BAD_ARGUMENT"
    assert refused(lambda: next(plane.client().read(TICKET, body="half"))).code == "BAD_ARGUMENT"


def test_moved_records_are_asked_for_again(plane: Plane) -> None:
    """A record that was copied forward meanwhile comes from its new place."""
    asked = []

    def rows(head: dict[str, Any], _: bytes) -> Any:
        asked.append((head["first"], head["count"]))
        return {"queues": [["q", 2]], "more": False}, table_of([(0, 5), (1, 5)], where=64 if len(asked) > 2 else 13)

    plane.broker.answers["rows"] = rows
    assert [batch.num_rows for batch in plane.client().read(TICKET)] == [2]
    assert asked[1:] == [(0, 2), (0, 2)]


def test_a_record_that_stays_unreadable_is_damage(start: Callable[..., Plane]) -> None:
    """It is named, and nothing is left out instead."""
    plane = start(flight_moved_max=2)
    plane.broker.answers["rows"] = lambda head, _: ({"queues": [["q", 1]], "more": False}, table_of([(41, 5)], where=13))
    error = refused(lambda: list(plane.client().read(TICKET)))
    assert error.code == "DAMAGED"
    assert "position 41 of queue 'q'" in error.text


def serve_places(plane: Plane, places: list[int]) -> None:
    """Rows at positions 100, 101 ... in two queues, one piece of three rows at a time; `places`: see fake.Codec."""

    def rows(head: dict[str, Any], _: bytes) -> Any:
        first = head["first"]
        part = places[first : first + min(3, head["count"])]
        payload = b"".join(table_of([(100 + first + i, 5)], where=where) for i, where in enumerate(part))
        queues = [["a", min(1, len(part)), 1], ["b", max(0, len(part) - 1), 2]]
        return {"queues": queues, "more": first + len(part) < len(places)}, payload

    plane.broker.answers["rows"] = rows


def test_a_content_that_contradicts_itself_is_damage_and_named(plane: Plane) -> None:
    """Who wants all gets a refusal with queue and position, not one without a name."""
    serve_places(plane, [64, 14, 14])
    error = refused(lambda: list(plane.client().read(TICKET)))
    assert error.code == "DAMAGED"
    assert error.text == "the message at position 101 of queue 'b' and 1 more can't be read: its properties contradict its bytes"


@pytest.mark.parametrize("first", range(7))
def test_a_tolerant_ticket_leaves_out_what_cannot_be_read(
    start: Callable[..., Plane], first: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The other rows come, in order and once, also to a reader that comes again in their middle; the log names what is missing."""
    plane = start(flight_moved_max=1)
    serve_places(plane, [14, 64, 13, 14, 14, 14, 64, 64, 14, 64])
    ticket = json.dumps({**json.loads(TICKET), "tolerant": True, "first": first}).encode()
    found = [position for batch in plane.client().read(ticket) for position in batch.column("position").to_pylist()]
    assert found == [101, 106, 107, 109][first:]
    assert "the message at position 102 of queue 'b' can't be read: the store is damaged there; left out" in caplog.text
    assert "the message at position 103 of queue 'a' and 2 more can't be read" in caplog.text
    assert all("tolerant" not in head for head in plane.broker.calls("rows"))


def test_only_sets_can_be_read_with_gaps(plane: Plane) -> None:
    """A browse has no such argument: the broker is told, and refuses it. Anything but true and false is refused here."""

    def rows(head: dict[str, Any], _: bytes) -> Any:
        raise Refused("BAD_ARGUMENT", "tolerant" if "tolerant" in head else "not told")

    plane.broker.answers["rows"] = rows
    assert refused(lambda: list(plane.client().read(b'{"kind":"browse","id":"b","tolerant":true}'))).text == "tolerant"
    assert refused(lambda: list(plane.client().read(TICKET[:-1] + b',"tolerant":1}'))).code == "BAD_ARGUMENT"


def test_a_read_uses_nothing_that_ends_with_its_call(plane: Plane) -> None:
    """Rows are made in another thread, an item longer than the call lives: pyarrow's context of it is freed memory by then."""
    serve_rows(plane, 100_000)

    class Context:
        def peer(self) -> str:
            return "ipv4:127.0.0.1:1"

        def get_middleware(self, key: str) -> Any:
            return SimpleNamespace(caller=lambda peer, place: Caller("ann", "/"), query="")

    # anything else that is asked of it is an AttributeError
    assert plane.service.do_get(Context(), flight.Ticket(TICKET)) is not None
    batches = plane.service._plane.read(Caller("ann", "/"), plane.service._plane.ticket(TICKET))
    assert sum(batch.num_rows for batch in batches) == 100_000


@pytest.mark.parametrize(
    "ticket",
    [
        b"",
        b"{}",
        b"junk",
        b'{"kind":"other"}',
        b'{"kind":"set","first":-1}',
        b'{"kind":"set","count":3}',
        b'{"kind":"set","user":"root"}',
        b'{"kind":"set","columns":[]}',
    ],
)
def test_malformed_tickets_have_a_code(plane: Plane, ticket: bytes) -> None:
    """The broker is not asked for them."""
    client, options = raw(plane)
    with pytest.raises(flight.FlightServerError) as caught:
        client.do_get(flight.Ticket(ticket), options).read_all()
    assert json.loads(caught.value.extra_info)["code"] == "BAD_ARGUMENT"
    assert not plane.broker.calls("rows")


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"queues": 3, "more": False},
        {"queues": [["q", 9]], "more": False},
        {"queues": [["q", -1]], "more": False},
        {"queues": [], "more": True},
    ],
)
def test_an_answer_of_rows_that_can_not_be(plane: Plane, answer: Any) -> None:
    """A broker that answers nonsense is INTERNAL, never a crash or an endless loop."""
    plane.broker.answers["rows"] = lambda head, _: (answer, b"x" * 32)
    client, options = raw(plane)
    with pytest.raises(flight.FlightInternalError) as caught:
        client.do_get(flight.Ticket(TICKET), options).read_all()
    assert json.loads(caught.value.extra_info)["code"] == "INTERNAL"


def test_a_refusal_in_the_middle_comes_after_the_rows_before(plane: Plane) -> None:
    """Rows that came are good; the error has the broker's code."""

    def rows(head: dict[str, Any], _: bytes) -> Any:
        if head["first"] >= 4:
            raise Refused("FENCED", "somebody opened it")
        return {"queues": [["q", 2]], "more": True}, table_of([(head["first"], 1), (head["first"] + 1, 1)])

    plane.broker.answers["rows"] = rows
    got: list[int] = []

    def read() -> None:
        for batch in plane.client().read(TICKET):
            got.extend(batch["position"].to_pylist())

    assert refused(read).code == "FENCED"
    assert got == [0, 1, 2, 3]


def test_a_slow_reader_holds_the_service_back(plane: Plane) -> None:
    """The broker is asked for what the reader takes, not for all; a reader that leaves ends the call."""
    plane.broker.answers["rows"] = lambda head, _: (
        {"queues": [["q", 100]], "more": True},
        table_of([(head["first"] + i, 100_000) for i in range(100)]),
    )
    reader = plane.client().read(TICKET)
    next(reader)
    assert len(plane.broker.calls("rows")) < 20
    reader.close()
    wait_until(lambda: plane.service.gate.running == 0, what="the call ends")


@given(
    st.lists(st.integers(0, 50), max_size=30).flatmap(
        lambda lengths: st.tuples(st.just(lengths), st.integers(1, 200), st.integers(0, len(lengths)))
    )
)
def test_pieces_fit(case: tuple[list[int], int, int]) -> None:
    """`within` is the longest prefix that fits (at least one row), and a cut keeps every queue's share."""
    lengths, size, split = case
    piece = Piece(0, [["a", split], ["b", len(lengths) - split]], table_of(list(enumerate(lengths))), False)
    count = piece.within(size)
    assert sum(lengths[:count]) <= size or count == 1
    assert count == len(lengths) or sum(lengths[: count + 1]) > size
    cut = piece.cut(count)
    assert sum(entry[1] for entry in cut.queues) == count == cut.rows
    assert all(entry[1] == (min(count, split) if entry[0] == "a" else count - min(count, split)) for entry in cut.queues)


# --- do_put ---------------------------------------------------------------------------------------------------------------


def test_blocks_reach_the_broker_in_order(plane: Plane) -> None:
    """Batches become blocks of the stage, in order; the answer counts them."""
    blocks: list[bytes] = []
    plane.broker.answers["block"] = lambda head, payload: blocks.append(payload)
    put = plane.client().put("st", (pa.record_batch({"body": pa.array([b"%d," % i])}) for i in range(50)), exchange="x")
    assert b"".join(blocks) == b"".join(b"%d," % i for i in range(50))
    assert (put.count, put.bytes) == (50, len(b"".join(blocks)))
    assert {(head["stage_id"], head["user"], str(head["routes"])) for head in plane.broker.calls("block")} == {
        ("st", "ann", "[['', 'key']]")
    }


def test_large_batches_are_sliced(plane: Plane) -> None:
    """A batch of many bytes goes in several messages, all of it."""
    blocks: list[bytes] = []
    plane.broker.answers["block"] = lambda head, payload: blocks.append(payload)
    batch = pa.record_batch({"body": pa.array([bytes([i]) * 1_000_000 for i in range(20)])})
    assert plane.client().put("st", [batch]).count == 20
    assert len(blocks) > 1
    assert b"".join(blocks) == b"".join(batch["body"].to_pylist())


def test_no_batches_are_no_call(plane: Plane) -> None:
    """Nothing to stage asks nothing."""
    assert plane.client().put("st", []).count == 0
    assert not plane.broker.heads


def test_a_row_that_can_not_be_a_message_is_named(plane: Plane) -> None:
    """The row's number counts over all batches of the put."""
    plane.broker.answers["block"] = lambda head, payload: None
    error = refused(lambda: plane.client().put("st", [BATCH, pa.record_batch({"body": pa.array([b"a", None])})]))
    assert (error.code, error.text) == ("BAD_ROW", "row 3, column body: null")


@pytest.mark.parametrize("batches", [1, 3000])
def test_a_refused_block_has_the_brokers_code(plane: Plane, batches: int) -> None:
    """Also when the client is still sending."""

    def no(head: dict[str, Any], _: bytes) -> Any:
        raise Refused("FORBIDDEN", "write access to exchange 'x' refused")

    plane.broker.answers["block"] = no
    error = refused(lambda: plane.client().put("st", [BATCH] * batches))
    assert (error.code, error.text) == ("FORBIDDEN", "write access to exchange 'x' refused")


def test_a_descriptor_without_stage_is_refused(plane: Plane) -> None:
    """So are options that there are not, and paths."""
    assert refused(lambda: plane.client().put(None, [BATCH])).code == "BAD_ARGUMENT"  # type: ignore[arg-type]
    assert refused(lambda: plane.client().put("st", [BATCH], unknown=1)).code == "BAD_ARGUMENT"
    client, options = raw(plane)
    writer, _ = client.do_put(flight.FlightDescriptor.for_path("x"), BATCH.schema, options)
    with pytest.raises(flight.FlightServerError, match="BAD_ARGUMENT"):
        writer.close()


def test_a_batch_above_the_limit_is_refused(start: Callable[..., Plane]) -> None:
    """flight_put_bytes_max holds for one record batch."""
    plane = start(flight_put_bytes_max=1000)
    plane.broker.answers["block"] = lambda head, payload: None
    assert refused(lambda: plane.client().put("st", [pa.record_batch({"body": pa.array([b"x" * 2000])})])).code == "BAD_ARGUMENT"


def test_a_callers_own_error_comes_out_of_put(plane: Plane) -> None:
    """The iterator's exception is not dressed up, and the call ends."""
    plane.broker.answers["block"] = lambda head, payload: None

    def batches() -> Any:
        yield BATCH
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        plane.client().put("st", batches())
    wait_until(lambda: plane.service.gate.running == 0, what="the call ends")


# --- other calls of Flight --------------------------------------------------------------------------------------------------


def test_flight_info_of_queues_and_tickets(plane: Plane) -> None:
    """A path opens a browse of these queues, a command is a ticket; both can be read by any Flight client."""
    plane.broker.answers["browse.open"] = lambda head, _: {"id": "b", "tickets": [{"kind": "browse", "id": "b", "slice": 0}]}
    serve_rows(plane, 3)
    client, options = raw(plane)
    for descriptor in (flight.FlightDescriptor.for_path("q1", "q2"), flight.FlightDescriptor.for_command(TICKET)):
        info = client.get_flight_info(descriptor, options)
        assert client.do_get(info.endpoints[0].ticket, options).read_all().num_rows == 3
        assert client.get_schema(descriptor, options).schema == info.schema
    assert plane.broker.calls("browse.open")[0]["queues"] == ["q1", "q2"]
    assert [one.type for one in client.list_actions(options)] == [
        name for name, call in CALLS.items() if call.answers is not Answers.INSIDE
    ]
    assert list(client.list_flights(options=options)) == []


def test_limits_of_pieces_are_sane() -> None:
    """A piece is never smaller than one batch of the contract: 10,000 rows, 8 MiB."""
    limits = Limits()
    assert limits.flight_piece_rows >= 10_000
    assert limits.flight_piece_bytes >= 8 << 20
