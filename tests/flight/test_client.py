"""A client goes on through everything that passes: servers that come late, go away, are busy; and says clearly when it does not."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from flintmq.dataplane.wire import Refused
from flintmq.flight.client import DataPlane, Patience, Watch
from flintmq.flight.plane_error import PlaneError, code_of, shorten
from flintmq.flight.results import Acquired, Subscription
from tests.flight.fake import FakeBroker, Plane, body_of, table_of
from tests.support.hasty import hasty
from tests.support.servers import free_ports

TICKET = b'{"kind":"set","sub_id":"s","epoch":1,"seq":1,"slice":0,"slices":1}'


def refused(call: Callable[[], Any]) -> PlaneError:
    with pytest.raises(PlaneError) as caught:
        call()
    return caught.value


def test_a_server_that_comes_late_is_waited_for(start: Callable[..., Plane]) -> None:
    """A call made before anybody listens succeeds when somebody does."""
    (port,) = free_ports(1)
    client = DataPlane("127.0.0.1", port, user="ann", password="secret", timeout_s=60)
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(client.status()))
    thread.start()
    broker = FakeBroker()
    broker.answers["status"] = lambda head, _: {"version": "1"}
    start(port=port, broker=broker)
    thread.join(60)
    assert answers and answers[0]["version"] == "1"


def test_nobody_there_is_said_after_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """UNAVAILABLE names the address and the time, in one line."""
    hasty(monkeypatch)
    (port,) = free_ports(1)
    error = refused(lambda: DataPlane("127.0.0.1", port, timeout_s=30.0).status())
    assert error.code == "UNAVAILABLE"
    assert f"127.0.0.1:{port} within 30 s" in error.text
    assert "\n" not in error.text
    assert (
        refused(lambda: DataPlane("127.0.0.1", port, timeout_s=30.0).put("s", [pa.record_batch({"body": pa.array([b"x"])})])).code
        == "UNAVAILABLE"
    )
    assert refused(lambda: next(DataPlane("127.0.0.1", port, timeout_s=30.0).read(TICKET))).code == "UNAVAILABLE"


@pytest.mark.parametrize("before", [0, 2])
def test_a_last_try_without_time_does_not_hide_why(before: int) -> None:
    """Refused, refused, and then out of time: the refusal is told; out of time alone is TIMED_OUT."""
    from pyarrow import flight

    tries = iter([flight.FlightUnavailableError("connection refused")] * before + [flight.FlightTimedOutError("Deadline Exceeded")])

    def call(client: Any, left_s: float) -> None:
        raise next(tries)

    client = DataPlane("127.0.0.1", 1, timeout_s=30)
    error = refused(lambda: client._retried(call, Patience(30)))
    assert error.code == ("UNAVAILABLE" if before else "TIMED_OUT")
    assert "127.0.0.1:1 within 30 s" in error.text and ("connection refused" in error.text) == bool(before)
    assert next(tries, None) is None


@pytest.mark.parametrize("code", ["BUSY", "STOPPING", "STORE_FAILED", "NO_ROOM"])
def test_what_passes_is_tried_again(plane: Plane, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refusals that mean "later" are not the caller's affair, unless they stay."""
    left = [2]

    def status(head: dict[str, Any], _: bytes) -> Any:
        if left[0]:
            left[0] -= 1
            raise Refused(code, "later")
        return {}

    plane.broker.answers["status"] = status
    plane.client(timeout_s=60.0).status()
    assert len(plane.broker.calls("status")) == 3
    left[0] = 1_000_000
    hasty(monkeypatch)
    error = refused(lambda: plane.client(timeout_s=30.0).status())
    assert error.code == code
    assert error.text.endswith("later")


@pytest.mark.parametrize("code", ["FENCED", "NOT_FOUND", "CHECKPOINT_LOST", "INTERNAL", "BAD_ARGUMENT"])
def test_what_is_decided_is_not_tried_again(plane: Plane, code: str) -> None:
    """A refusal comes at once, after one call."""

    def no(head: dict[str, Any], _: bytes) -> Any:
        raise Refused(code, "no")

    plane.broker.answers["status"] = no
    assert refused(lambda: plane.client().status()).code == code
    assert len(plane.broker.calls("status")) == 1


def test_reading_goes_on_where_it_stopped(plane: Plane) -> None:
    """The service breaks off in the middle of a set: every row once, in order."""
    reached = threading.Event()

    def rows(head: dict[str, Any], _: bytes) -> Any:
        first = head["first"]
        count = min(10, 100 - first)
        if first == 50 and not reached.is_set():
            reached.set()
            raise Refused("STOPPING", "the broker stops")
        return {"queues": [["q", count]], "more": first + count < 100}, table_of([(first + i, 2000) for i in range(count)])

    plane.broker.answers["rows"] = rows
    got: list[Any] = []
    for batch in plane.client().read(TICKET):
        got += batch.to_pylist()
    assert reached.is_set()
    assert [row["position"] for row in got] == list(range(100))
    assert [row["body"] for row in got] == [body_of("q", i, 2000) for i in range(100)]


def test_a_stream_that_falls_silent_is_given_up_and_tried_again(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that says nothing any more does not hold its reader: the rest comes from another call."""
    # Silence is noticed after a second, and there is time for many other tries.
    monkeypatch.setattr("flintmq.flight.client.Watch", lambda cancel, stall_s: Watch(cancel, stall_s / 15))
    release = threading.Event()
    silent = [True]

    def rows(head: dict[str, Any], _: bytes) -> Any:
        first = head["first"]
        if first >= 20 and silent[0]:
            silent[0] = False
            release.wait(30)
        return {"queues": [["q", 10]], "more": first < 30}, table_of([(first + i, 10) for i in range(10)])

    plane.broker.answers["rows"] = rows
    try:
        got = [row for batch in plane.client(timeout_s=30.0).read(TICKET) for row in batch["position"].to_pylist()]
    finally:
        release.set()
    assert got == list(range(40))


def _of_store(store: str, engine: str = "") -> FakeBroker:
    """A broker whose status names its store, and the engine of its shared queues."""
    broker = FakeBroker()
    broker.answers["status"] = lambda head, _: {"store": {"uuid": store}, "cluster": engine}
    broker.answers["sub.list"] = lambda head, _: {"subscriptions": [store]}
    return broker


def _client_of(*ports: int, **options: Any) -> DataPlane:
    where = "grpc://" + ",".join(f"127.0.0.1:{port}" for port in ports)
    return DataPlane(where, user="ann", password="secret", timeout_s=60.0, **options)


def test_an_address_where_nobody_is_costs_no_pause(start: Callable[..., Plane], monkeypatch: pytest.MonkeyPatch) -> None:
    """The next address is tried at once, and stays for the calls that follow."""
    (nobody,) = free_ports(1)
    plane = start(broker=_of_store("one"))

    def sleep(seconds: float) -> None:
        raise AssertionError("there was another address to try")

    monkeypatch.setattr("flintmq.flight.client.time.sleep", sleep)
    with _client_of(nobody, plane.port) as client:
        assert client.sub_list() == ["one"] == client.sub_list()
        assert client.store == "one"
    assert len(plane.broker.calls("status")) == 1


def test_a_broker_that_comes_back_at_another_address_is_found(start: Callable[..., Plane]) -> None:
    """Calls and a stream of rows go on there, each row once."""
    first = start(broker=_of_store("one"))
    (port,) = free_ports(1)
    moved: list[Plane] = []

    def rows(head: dict[str, Any], _: bytes) -> Any:
        at = head["first"]
        if at == 50 and not moved:
            second = _of_store("one")
            second.answers["rows"] = rows
            moved.append(start(port=port, broker=second))
            threading.Thread(target=first.service.close, daemon=True).start()
            raise Refused("STOPPING", "the broker stops")
        return {"queues": [["q", 10]], "more": at + 10 < 100}, table_of([(at + i, 100) for i in range(10)])

    first.broker.answers["rows"] = rows
    with _client_of(first.port, port) as client:
        got = [row["position"] for batch in client.read(TICKET) for row in batch.to_pylist()]
        assert got == list(range(100))
        first.service.close()
        assert client.sub_list() == ["one"]
    assert moved[0].broker.calls("sub.list")


def test_a_broker_with_another_store_is_passed_over(start: Callable[..., Plane], monkeypatch: pytest.MonkeyPatch) -> None:
    """What one broker was told is not asked of another one: no call but the question for its store reaches it."""
    hasty(monkeypatch)
    one, other = start(broker=_of_store("one")), start(broker=_of_store("other"))
    with _client_of(one.port, other.port) as client:
        assert client.sub_list() == ["one"]
        one.service.close()
        error = refused(client.sub_list)
        assert error.code == "UNAVAILABLE"
    # A task that was told the store asks nobody else, whoever is the first that answers.
    with _client_of(other.port, store="one") as client:
        assert client.sub_list() == ["other"], "a single address is taken at its word"
    with _client_of(other.port, one.port, store="one") as client:
        assert "another store (other, not one)" in refused(client.sub_list).text
    assert len(other.broker.calls("sub.list")) == 1


def test_a_node_of_the_same_engine_goes_on_and_another_is_passed_over(start: Callable[..., Plane], monkeypatch: pytest.MonkeyPatch) -> None:
    hasty(monkeypatch)
    kinds = (("one", "e"), ("two", "e"), ("alone", "other"), ("new", ""))
    one, two, alone, new = (start(broker=_of_store(*kind)) for kind in kinds)
    with _client_of(one.port, new.port, alone.port, two.port, cluster=True) as client:
        assert client.sub_list() == ["one"]
        assert client.store == "e"
        one.service.close()
        assert client.sub_list() == ["two"] == client.sub_list()
    with _client_of(alone.port, new.port, cluster=True, store="e") as client:
        assert refused(client.sub_list).code == "UNAVAILABLE"
    assert not alone.broker.calls("sub.list") and not new.broker.calls("sub.list")


def test_a_password_that_was_changed_is_asked_for_again(plane: Plane) -> None:
    """When a login is refused, and while the answer is a new one; a wrong one that stays is refused."""
    plane.broker.answers["status"] = lambda head, _: {}
    told = ["secret", "not yet", "changed", "changed"]
    client = plane.client(password=lambda: told.pop(0))
    client.status()
    assert len(told) == 3, "a password that works is not asked for again"
    plane.broker.users["ann"] = "changed"
    plane.service.gate._vault._known.clear()
    client.status()
    assert told == ["changed"]
    plane.broker.users["ann"] = "other"
    plane.service.gate._vault._known.clear()
    assert refused(client.status).code == "UNAUTHENTICATED"
    assert told == []


def test_no_answer_in_time_is_said(plane: Plane) -> None:
    """TIMED_OUT names the address and the time."""
    release = threading.Event()
    plane.broker.answers["status"] = lambda head, _: release.wait(30) and {}
    try:
        error = refused(lambda: plane.client(timeout_s=1.5).status())
    finally:
        release.set()
    assert error.code == "TIMED_OUT"
    assert "within 1.5 s" in error.text


def test_put_is_not_repeated(plane: Plane) -> None:
    """A block refused for now fails the put: what arrived is unknown to its caller."""
    calls = []

    def block(head: dict[str, Any], payload: bytes) -> Any:
        calls.append(payload)
        raise Refused("LOW_DISK", "later")

    plane.broker.answers["block"] = block
    assert refused(lambda: plane.client().put("s", [pa.record_batch({"body": pa.array([b"x"])})])).code == "LOW_DISK"
    assert len(calls) == 1


def test_batches_of_another_schema_are_the_callers_mistake(plane: Plane) -> None:
    """BAD_ARGUMENT, and the call ends."""
    plane.broker.answers["block"] = lambda head, payload: None
    batches = [pa.record_batch({"body": pa.array([b"x"])}), pa.record_batch({"other": pa.array([1])})]
    assert refused(lambda: plane.client().put("s", batches)).code == "BAD_ARGUMENT"


def test_a_closed_client_says_so(plane: Plane) -> None:
    """At once, without tries; closing twice is no error."""
    client = plane.client()
    client.close()
    client.close()
    assert "closed" in refused(client.status).text


def test_answers_are_typed(plane: Plane) -> None:
    """Known fields have names, new ones are kept, missing ones are PROTOCOL."""
    answer = {"sub_id": "x", "epoch": 4, "committed": 0, "prepared": None, "planned": False, "queues": ["q"], "since": 1}
    plane.broker.answers["sub.open"] = lambda head, _: answer
    opened = plane.client().sub_open("s", ["q"])
    assert opened == Subscription("x", 4, 0, None, False, ["q"])
    assert opened.more == {"since": 1}
    assert bool(Acquired.read({"count": 0})) is False
    del answer["epoch"]
    assert refused(lambda: plane.client().sub_open("s", ["q"])).code == "PROTOCOL"
    plane.broker.answers["stage.begin"] = lambda head, _: {"already": True, "committed": 9}
    begun = plane.client().stage_begin("sc", 1, 9)
    assert (begun.stage_id, begun.already, begun.committed) == (None, True, 9)
    plane.broker.answers["sub.plan"] = lambda head, _: {"tickets": [{"kind": "set", "slice": 0}]}
    assert [json.loads(ticket) for ticket in plane.client().sub_plan("x", 1, 1, 1)] == [{"kind": "set", "slice": 0}]


def test_errors_travel_between_processes_and_clients_do_not() -> None:
    """Spark pickles exceptions; a client has threads and a password."""
    error = pickle.loads(pickle.dumps(PlaneError("FENCED", "x")))
    assert (error.code, error.text, str(error)) == ("FENCED", "x", "FENCED: x")
    with pytest.raises(TypeError, match="another process"):
        pickle.dumps(DataPlane())


def test_importing_the_client_is_light() -> None:
    """Neither pyarrow nor gRPC is there before the first call: workers fork."""
    code = "import sys; from flintmq.flight.client import DataPlane; DataPlane('h', 1); print('pyarrow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("FENCED: old. Detail: Failed. gRPC client debug context: UNKNOWN", "FENCED: old"),
        ("Flight returned unavailable error, with message: nobody there. gRPC client debug context: x. Client context: OK", "nobody there"),
        ("plain", "plain"),
    ],
)
def test_what_grpc_adds_is_taken_away(text: str, short: str) -> None:
    """People read one sentence, without debug context."""
    assert shorten(text) == short


def test_codes_in_messages() -> None:
    """A message that begins with a code gives it; another does not."""
    assert code_of("NOT_FOUND: queue 'a: b'") == ("NOT_FOUND", "queue 'a: b'")
    assert code_of("Not found: x") is None
    assert code_of("x") is None
