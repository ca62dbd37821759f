"""A crowd at the service: whoever finds no place is told when to come again, and comes; nothing is lost or sent twice."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from flintmq.dataplane.wire import Refused
from flintmq.flight.client import BUSY_PAUSE_S_MAX, DataPlane, Patience
from flintmq.flight.headers import basic_header
from flintmq.flight.line import Line
from flintmq.flight.plane_error import PlaneError, from_flight
from tests.flight.fake import Plane, table_of
from tests.support.broker import wait_until
from tests.support.hasty import hasty

TICKET = b'{"kind":"set","sub_id":"s","epoch":1,"seq":1,"slice":0,"slices":1}'
BATCH = pa.record_batch({"body": pa.array([b"x"] * 10)})


def refused(call: Callable[[], Any]) -> PlaneError:
    with pytest.raises(PlaneError) as caught:
        call()
    return caught.value


def raw(plane: Plane, call: Callable[[flight.FlightClient, flight.FlightCallOptions], Any], user: str = "ann") -> PlaneError:
    """What a client of Flight hears that does not try again."""
    client = flight.FlightClient(f"grpc://127.0.0.1:{plane.port}")
    options = flight.FlightCallOptions(headers=[(b"authorization", basic_header(user, "secret").encode())])
    with pytest.raises(flight.FlightUnavailableError) as caught:
        call(client, options)
    told = json.loads(caught.value.extra_info)
    assert told["code"] == "BUSY" and isinstance(told["wait_ms"], int) and told["wait_ms"] > 0
    return from_flight(caught.value)


def status(client: flight.FlightClient, options: flight.FlightCallOptions) -> Any:
    return list(client.do_action(flight.Action("status", b""), options))


@pytest.fixture
def napping(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses of the client, each of which is over at once."""
    pauses: list[float] = []
    monkeypatch.setattr("flintmq.flight.client.time.sleep", pauses.append)
    return pauses


# --- what is told -------------------------------------------------------------------------------------------------------


def test_each_busy_says_when_to_come_again_whoever_refused(start: Callable[..., Plane]) -> None:
    """The gate, the line of each kind of calls, the channels to the broker, the broker itself."""
    raw(start(flight_calls_max=0), status)
    full = start(flight_actions_max=0, flight_reads_max=0, flight_writes_max=0, flight_waits_max=0, flight_line_ms=0)
    raw(full, status)
    raw(full, lambda client, options: list(client.list_actions(options)))
    raw(full, lambda client, options: client.get_flight_info(flight.FlightDescriptor.for_path("q"), options))
    raw(full, lambda client, options: client.do_get(flight.Ticket(TICKET), options).read_all())
    waiting = start(flight_waits_max=0, flight_line_ms=0)
    body = b'{"sub_id":"s","epoch":1,"seq":1,"max_wait_ms":1000}'
    raw(waiting, lambda client, options: list(client.do_action(flight.Action("sub.acquire", body), options)))

    def put(client: flight.FlightClient, options: flight.FlightCallOptions) -> None:
        writer, reader = client.do_put(flight.FlightDescriptor.for_command(b'{"stage_id":"s"}'), BATCH.schema, options)
        try:
            reader.read()
        finally:
            writer.close()

    raw(full, put)
    brokers = start(flight_busy_ms=77)

    def no(head: dict[str, Any], payload: bytes) -> Any:
        raise Refused("BUSY", "the engine has much to do")

    brokers.broker.answers["status"] = brokers.broker.answers["rows"] = no
    assert raw(brokers, status).wait_ms == 77
    assert raw(brokers, lambda client, options: client.do_get(flight.Ticket(TICKET), options).read_all()).wait_ms == 77
    channels = start(channels=1, flight_wait_ms=1)
    release = threading.Event()
    channels.broker.answers["scope.open"] = lambda head, _: release.wait(60) and {"epoch": 1}
    channels.broker.answers["status"] = lambda head, _: {}
    channels.client().status()  # the login is remembered
    holder = threading.Thread(target=lambda: channels.client().scope_open())
    holder.start()
    try:
        wait_until(lambda: channels.broker.calls("scope.open"), what="the channel is taken")
        assert "busy with other calls" in raw(channels, status).text
    finally:
        release.set()
        holder.join(60)


def test_a_refusal_that_is_none_of_busy_has_no_wait(plane: Plane) -> None:
    def no(head: dict[str, Any], payload: bytes) -> Any:
        raise Refused("FENCED", "x")

    plane.broker.answers["status"] = no
    assert refused(plane.client().status).wait_ms == 0


# --- the client's patience ------------------------------------------------------------------------------------------------


def test_busy_is_a_sign_of_life(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that says "busy" for longer than the client waits for one that says nothing is waited for, up to `busy_s`."""
    hasty(monkeypatch)
    left = [9]

    def answer(head: dict[str, Any], payload: bytes) -> Any:
        left[0] -= 1
        if left[0] >= 0:
            raise Refused("BUSY", "much to do")
        return {}

    plane.broker.answers["status"] = answer
    with plane.client(timeout_s=30.0, busy_s=3600.0) as client:
        client.status()  # nine pauses of 20 s
        left[0] = 1_000_000
        error = refused(client.status)
        assert error.code == "BUSY" and "was busy for 3600 s" in error.text and error.text.endswith("much to do")
        assert "no answer" not in error.text
    left[0] = 1_000_000
    with plane.client(timeout_s=30.0) as client:
        assert "was busy for 30 s" in refused(client.status).text


def test_the_service_says_how_long_a_pause_is(plane: Plane, napping: list[float]) -> None:
    """With some chance in it; not longer than a client believes; its own pauses where the service does not say."""
    patience = Patience(30.0, busy_s=3600.0)
    told = [patience.busy(PlaneError("BUSY", "x", wait_ms)) or 0 for wait_ms in (100, 100, 100, 10**9, 0, 0, 0)]
    assert all(0.09 <= pause <= 0.12 for pause in told[:3]) and len(set(told[:3])) > 1
    assert told[3] <= BUSY_PAUSE_S_MAX * 1.2 and told[4] < 0.1 < told[6]
    assert patience.left_s > 30, "silence is counted from the last word"
    left = [3]

    def answer(head: dict[str, Any], payload: bytes) -> Any:
        left[0] -= 1
        if left[0] >= 0:
            raise Refused("BUSY", "much to do")
        return {}

    plane.broker.answers["status"] = answer
    plane.client().status()
    waited_s = plane.limits.flight_busy_ms / 1000
    assert len(napping) == 3 and all(0.9 * waited_s <= pause <= 1.2 * waited_s for pause in napping)


# --- writing --------------------------------------------------------------------------------------------------------------


def _block(plane: Plane) -> None:
    plane.broker.answers["block"] = lambda head, payload: plane.broker.payloads.append(payload)


def test_a_put_that_finds_no_place_has_sent_nothing_and_is_made_again(start: Callable[..., Plane]) -> None:
    """Neither in the service nor on its way are any rows while it waits; then all of them arrive once."""
    plane = start(flight_writes_max=1, flight_line_ms=0)
    _block(plane)
    held = plane.service.gate.lines.writes.enter("ben", "another query")
    found: list[Any] = []
    putting = threading.Thread(target=lambda: found.append(plane.client(busy_s=600.0).put("s", [BATCH, BATCH])))
    putting.start()
    try:
        wait_until(lambda: plane.service.gate.lines.writes.refused > 2, what="it came again")
        assert not plane.broker.calls("block")
    finally:
        held.release()
        putting.join(60)
    assert found[0].count == 20 and b"".join(plane.broker.payloads) == b"x" * 20


def test_rows_that_are_not_there_yet_hold_no_place(plane: Plane) -> None:
    """A task whose rows come slowly has no call at the service while it waits for them."""
    _block(plane)
    busy: list[int] = []
    line = plane.service.gate.lines.writes

    def rows() -> Iterator[pa.RecordBatch]:
        for _ in range(3):
            wait_until(lambda: line.running == 0, what="the call before is over")
            busy.append(line.running)
            yield BATCH

    assert plane.client().put("s", rows()).count == 30
    assert busy == [0, 0, 0] and len(plane.broker.calls("block")) == 3


def test_many_rows_go_in_several_calls_in_their_order(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is gathered is bounded; an error names the row that it has in the put."""
    monkeypatch.setattr("flintmq.flight.client.GATHERED_BYTES", 1)
    _block(plane)
    batches = [pa.record_batch({"body": pa.array([b"%d" % number] * 10)}) for number in range(4)]
    with plane.client() as client:
        assert client.put("s", batches).count == 40
        assert b"".join(plane.broker.payloads) == b"".join(b"%d" % number * 10 for number in range(4))
        bad = pa.record_batch({"body": pa.array([b"x", None])})
        assert "row 11, column body" in refused(lambda: client.put("s", [BATCH, bad])).text


def test_busy_in_the_middle_of_rows_is_a_put_that_broke(plane: Plane) -> None:
    """What of them arrived is not known: it is not made again here, and its code says that another stage may do."""
    calls = []

    def block(head: dict[str, Any], payload: bytes) -> Any:
        calls.append(payload)
        raise Refused("BUSY", "later")

    plane.broker.answers["block"] = block
    error = refused(lambda: plane.client().put("s", [BATCH]))
    assert error.code == "UNAVAILABLE" and "a part of the rows" in error.text and len(calls) == 1


def test_a_client_that_knows_no_turns_puts_as_before(plane: Plane) -> None:
    """Flight as others speak it: rows at once, one answer."""
    _block(plane)
    client = flight.FlightClient(f"grpc://127.0.0.1:{plane.port}")
    options = flight.FlightCallOptions(headers=[(b"authorization", basic_header("ann", "secret").encode())])
    writer, reader = client.do_put(flight.FlightDescriptor.for_command(b'{"stage_id":"s"}'), BATCH.schema, options)
    writer.write_batch(BATCH)
    writer.done_writing()
    assert json.loads(reader.read().to_pybytes())["count"] == 10
    writer.close()


def test_a_query_of_many_tasks_lets_one_of_few_in(start: Callable[..., Plane]) -> None:
    """All places that one query may have are held, and more of its calls wait: another query is served at once."""
    plane = start(flight_line_ms=0)
    plane.broker.answers["stage.begin"] = lambda head, _: {"stage_id": "s"}
    lines = plane.service.gate.lines
    with plane.client() as large, plane.client(busy_s=600.0) as small:
        large.stage_begin("large", 1, 1)
        query = large._told_headers()[-1][1].decode()
        held = []
        with pytest.raises(PlaneError, match="BUSY"):
            while True:
                held.append(lines.writes.enter("ann", query))
        assert refused(lambda: plane.client(timeout_s=0.2).stage_begin("large", 1, 1)).code == "BUSY"
        assert small.stage_begin("small", 1, 1).stage_id == "s"
        assert lines.writes.refused >= 2
        for one in held:
            one.release()


# --- reading --------------------------------------------------------------------------------------------------------------


def _serve(plane: Plane, total: int, most: int = 10) -> None:
    def rows(head: dict[str, Any], _: bytes) -> Any:
        first = head["first"]
        count = min(most, total - first, head["count"])
        return {"queues": [["q", count]], "more": first + count < total}, table_of([(first + i, 10) for i in range(count)])

    plane.broker.answers["rows"] = rows


def test_a_reader_gives_way_when_others_wait_and_goes_on(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row once, in order; its place is free between its turns. Who asks for all at once, or knows no turns, is not interrupted."""
    _serve(plane, 100)
    reads = plane.service.gate.lines.reads
    seen: list[int] = []
    enter = reads.enter

    def counted(*arguments: Any) -> Any:
        seen.append(reads.running)
        return enter(*arguments)

    reads.enter = counted  # type: ignore[method-assign]
    monkeypatch.setattr(Line, "crowded", True)
    with plane.client() as client:
        got = [row for batch in client.read(TICKET) for row in batch["position"].to_pylist()]
        assert got == list(range(100)) and len(seen) == 10 and max(seen) <= 1
        seen.clear()
        tolerant = TICKET[:-1] + b',"tolerant":true}'
        assert sum(batch.num_rows for batch in client.read(tolerant)) == 100 and len(seen) == 1
        options = flight.FlightCallOptions(headers=[(b"authorization", basic_header("ann", "secret").encode())])
        table = flight.FlightClient(f"grpc://127.0.0.1:{plane.port}").do_get(flight.Ticket(TICKET), options).read_all()
        assert table.num_rows == 100 and len(seen) == 2
        monkeypatch.setattr(Line, "crowded", False)
        assert sum(batch.num_rows for batch in client.read(TICKET)) == 100 and len(seen) == 3


def test_a_reader_that_is_told_to_wait_between_its_turns_goes_on(
    start: Callable[..., Plane], napping: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    plane = start(flight_reads_max=1, flight_line_ms=0)
    _serve(plane, 30)
    reads = plane.service.gate.lines.reads
    monkeypatch.setattr(Line, "crowded", True)
    batches = plane.client(busy_s=600.0).read(TICKET)
    got = next(batches)["position"].to_pylist()
    wait_until(lambda: reads.running == 0, what="its turn is over")
    held = reads.enter("ben", "q")
    monkeypatch.setattr(Line, "crowded", False)
    threading.Thread(target=lambda: (wait_until(lambda: reads.refused > 2, what="it came again"), held.release())).start()
    got += [row for batch in batches for row in batch["position"].to_pylist()]
    assert got == list(range(30)) and len(napping) > 2


# --- logins ---------------------------------------------------------------------------------------------------------------


def test_a_thousand_logins_with_one_password_are_one_check(start: Callable[..., Plane]) -> None:
    """Those who come while it runs wait for its answer, yes or no."""
    plane = start(channels=4, flight_auth_cache_ms=3_600_000)
    gate = plane.service.gate
    release, check = threading.Event(), plane.broker.answers["auth"]

    def slow(head: dict[str, Any], payload: bytes) -> Any:
        release.wait(60)
        return check(head, payload)

    plane.broker.answers["auth"] = slow
    found: list[str] = []

    def login(mac: bytes, password: str) -> None:
        try:
            found.append(gate._ask(mac, "ann", password, "192.0.2.7").user)
        except PlaneError as error:
            found.append(error.code)

    threads = [threading.Thread(target=login, args=(password.encode(), password)) for password in ["secret", "wrong"] * 40]
    for thread in threads:
        thread.start()
    wait_until(lambda: gate._joined == 78, what="all wait for two checks")
    release.set()
    for thread in threads:
        thread.join(60)
    assert sorted(found) == ["UNAUTHENTICATED"] * 40 + ["ann"] * 40
    assert len(plane.broker.calls("auth")) == 2 and gate._joined == 0 and not gate._asking and not gate._in_line


def test_who_joins_a_check_is_bounded(start: Callable[..., Plane]) -> None:
    """A thread each: there are not more than places for it, and one more is told when to come again."""
    plane = start(flight_waiting_max=2)
    gate = plane.service.gate
    gate._joined = 4
    from flintmq.flight.auth import _Check

    gate._asking[b"mac"] = _Check()
    error = refused(lambda: gate._ask(b"mac", "ann", "secret", "192.0.2.7"))
    assert error.code == "BUSY" and "too many logins" in error.text and error.wait_ms > 0
    assert gate._joined == 4


def test_a_hundred_clients_at_once_all_write(start: Callable[..., Plane]) -> None:
    """Few places, short lines, many tasks: each begins, puts and prepares, and none fails."""
    plane = start(flight_writes_max=3, flight_line_max=6, flight_line_ms=20, flight_busy_ms=1)
    _block(plane)
    plane.broker.answers["stage.begin"] = lambda head, _: {"stage_id": str(head["part"])}
    plane.broker.answers["stage.prepare"] = lambda head, _: {"stage_id": head["stage_id"], "count": 10, "bytes": 10, "crc": 0}
    wrong: list[Exception] = []

    def task(number: int) -> None:
        try:
            with DataPlane("127.0.0.1", plane.port, user="ann", password="secret", timeout_s=60.0, busy_s=600.0) as client:
                begun = client.stage_begin("scope", 1, 1, part=number)
                assert client.put(str(begun.stage_id), [BATCH]).count == 10
                client.stage_prepare(str(begun.stage_id))
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=task, args=(number,)) for number in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not wrong
    assert len(plane.broker.calls("block")) == 100 and len(plane.broker.calls("stage.prepare")) == 100
    wait_until(lambda: plane.service.gate.lines.counts()["writes"] == 0, what="all places are free")
    assert plane.service.gate.lines.writes.refused > 0
