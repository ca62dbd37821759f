"""Every verb of the Flight service, with every set of permissions, on what the caller has itself and on what others have: allowed exactly
where docs/DATAPLANE.md says so. The tables below are that page's; the broker's own are not read."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, combinations
from typing import Any

import pika
import pyarrow as pa
import pytest
from pyarrow import flight

from flintmq.access.users import hash_password
from flintmq.flight.client import DataPlane
from flintmq.flight.plane_error import PlaneError, from_flight
from flintmq.flight.server import FlightService
from flintmq.ports import PermissionRecord, UserRecord
from flintmq.testing.broker import Broker
from tests.support.broker import unique

C, W, R = "configure", "write", "read"
SETS = [frozenset(one) for one in chain.from_iterable(combinations((C, W, R), count) for count in range(4))]
USER = "matrix"
ROWS = [pa.record_batch({"body": pa.array([b"x"])})]
QUEUE, STREAM, SINK, SECRET = "m-q", "m-stream", "m-sink", "secret"
MESSAGES = 400
NOTHING: frozenset[str] = frozenset()
READS, WRITES = frozenset({R}), frozenset({W})


@dataclass
class Things:
    """What one user has. sub, pattern: sub_id and epoch of subscriptions with set 1 prepared and planned."""

    plane: DataPlane
    sub: dict[str, Any] = field(default_factory=dict)
    pattern: dict[str, Any] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    tickets: dict[str, bytes] = field(default_factory=dict)
    browse: str = ""
    stream: dict[str, Any] = field(default_factory=dict)
    scope: str = ""
    epoch: int = 0
    stage: str = ""
    spare: str = ""


def made(plane: DataPlane, queue: str, pattern: str) -> Things:
    things = Things(plane, scope=unique("scope"))
    for kind, chosen, kept in (("sub", {"queues": [queue]}, things.sub), ("pattern", {"pattern": pattern}, things.pattern)):
        name = things.names[kind] = unique(kind)
        opened = plane.calls.sub_open(name=name, **chosen)
        kept.update({key: opened[key] for key in ("sub_id", "epoch")})
        assert plane.calls.sub_acquire(**kept, seq=1, max_messages=2, max_wait_ms=5000)["count"]
        things.tickets[kind] = ticket_of(plane.calls.sub_plan(**kept, seq=1, slices=1))
    browse = plane.calls.browse_open(queues=[queue], slices=1)
    things.browse, things.tickets["browse"] = browse["id"], ticket_of(browse)
    things.stream = plane.calls.stream_plan(queue=STREAM, offset=0, end=1, slices=1)
    things.tickets["stream"] = ticket_of(things.stream)
    things.epoch = plane.scope_open(things.scope)
    things.stage, things.spare = (plane.stage_begin(things.scope, things.epoch, 0).stage_id or "" for _ in range(2))
    return things


def ticket_of(answer: dict[str, Any]) -> bytes:
    return json.dumps(answer["tickets"][0]).encode()


def over(things: Things) -> None:
    """Its places are free again."""
    for name in things.names.values():
        with suppress(PlaneError):  # the test deleted it
            things.plane.calls.sub_reset(name=name, action="delete")
    things.plane.calls.browse_close(id=things.browse)
    things.plane.calls.scope_forget(scope=things.scope)


Ask = Callable[[DataPlane, Things], object]
# (what it needs, how it is asked for, with which code it is refused to those who may)
Case = tuple[frozenset[str], Ask, str]


def read(kind: str) -> Ask:
    return lambda plane, its: sum(batch.num_rows for batch in plane.read(its.tickets[kind]))


def put(plane: DataPlane, its: Things) -> object:
    return plane.put(its.spare, ROWS, routing_key=SINK)  # a refusal fails the whole stage: the other one lives on


def of_sub(kind: str) -> dict[str, Case]:
    """The verbs of a subscription; `kind`: of names, or of a pattern. What ends it comes last."""

    def ask(call: str, **more: Any) -> Ask:
        return lambda plane, its: getattr(plane.calls, call)(**(its.sub if kind == "sub" else its.pattern), **more)

    def by_id(call: str, **more: Any) -> Ask:
        return lambda plane, its: getattr(plane.calls, call)(sub_id=(its.sub if kind == "sub" else its.pattern)["sub_id"], **more)

    def by_name(call: str, **more: Any) -> Ask:
        return lambda plane, its: getattr(plane.calls, call)(name=its.names[kind], **more)

    asks = {
        "sub.tail": by_id("sub_tail"),
        "sub.status": by_name("sub_status"),
        "sub.status by id": by_id("sub_status"),
        "sub.alive": ask("sub_alive"),
        "sub.acquire": ask("sub_acquire", seq=1),
        "sub.plan": ask("sub_plan", seq=1, slices=1),
        "do_get": read(kind),
        "sub.commit": ask("sub_commit", upto=1),
        "sub.acquire of the next": ask("sub_acquire", seq=2, max_messages=1),
        "sub.alive that leaves": ask("sub_alive", leave=True),
        "sub.open that attaches": by_name("sub_open", mode="attach"),
        "sub.open that attaches by id": by_id("sub_open", mode="attach"),
        "sub.reset that commits": by_name("sub_reset", action="commit"),
        "sub.reset that deletes": by_name("sub_reset", action="delete"),
    }
    return {f"{name} ({kind})": (READS, one, "") for name, one in asks.items()}


def foreign(cases: dict[str, Ask], code: str) -> dict[str, Case]:
    return {name: (NOTHING, ask, code) for name, ask in cases.items()}


# scopes, stages and browses are their user's alone
STAGING: dict[str, Ask] = {
    "scope.status": lambda plane, its: plane.scope_status(its.scope),
    "stage.begin": lambda plane, its: plane.stage_begin(its.scope, its.epoch, 1),
    "do_put": put,
    "stage.prepare": lambda plane, its: plane.stage_prepare(its.stage),
    "stage.commit": lambda plane, its: plane.stage_commit(its.scope, its.epoch, 0, [its.stage]),
    "stage.abort": lambda plane, its: plane.stage_abort(its.scope, 0),
    "scope.open": lambda plane, its: plane.calls.scope_open(scope=its.scope),
    "scope.forget": lambda plane, its: plane.scope_forget(its.scope),
}
STREAMS: dict[str, Case] = {
    "stream.open": (READS, lambda plane, its: plane.calls.stream_open(queue=STREAM), ""),
    "stream.next": (READS, lambda plane, its: plane.calls.stream_next(queue=STREAM, offset=0), ""),
    "stream.tail": (READS, lambda plane, its: plane.calls.stream_tail(queue=STREAM), ""),
    "stream.plan": (READS, lambda plane, its: plane.calls.stream_plan(queue=STREAM, offset=0, end=1), ""),
    "do_get (stream)": (READS, read("stream"), ""),
    "stream.release": (READS, lambda plane, its: plane.calls.stream_release(queue=STREAM, pin=its.stream["pin"]), ""),
}
LOGS: dict[str, Case] = foreign(
    {
        "log.snapshot": lambda plane, its: plane.log_snapshot(),
        "log.extend": lambda plane, its: plane.log_extend("none"),
        "log.release": lambda plane, its: plane.log_release("none"),
    },
    "FORBIDDEN",
)
OWN: dict[str, Case] = {
    "status": (NOTHING, lambda plane, its: plane.status(), ""),
    "queue.match": (NOTHING, lambda plane, its: plane.calls.queue_match(pattern="*"), ""),
    "sub.list": (NOTHING, lambda plane, its: plane.sub_list(), ""),
    "scope.list": (NOTHING, lambda plane, its: plane.scope_list(), ""),
    "sub.open": (READS, lambda plane, its: plane.calls.sub_open(name=its.names["sub"] + "-new", queues=[SINK]), ""),
    "sub.open of a pattern": (
        READS,
        lambda plane, its: plane.calls.sub_open(name=its.names["sub"] + "-new", mode="attach", pattern="m-s*"),
        "READER_ACTIVE",
    ),
    **of_sub("sub"),
    **of_sub("pattern"),
    "browse.open": (READS, lambda plane, its: plane.browse_open([QUEUE]), ""),
    "do_get (browse)": (READS, read("browse"), ""),
    "browse.close": (NOTHING, lambda plane, its: plane.browse_close(its.browse), ""),
    **STREAMS,
    **LOGS,
    "scope.open without a name": (WRITES, lambda plane, its: plane.scope_open(), ""),
    "stage.begin with an exchange": (
        WRITES,
        lambda plane, its: plane.calls.stage_begin(scope=its.scope, epoch=its.epoch, batch=9, unroutable="exchange:amq.fanout"),
        "",
    ),
    **{name: (WRITES if name in ("scope.open", "stage.begin", "do_put") else NOTHING, ask, "") for name, ask in STAGING.items()},
}
# what another user has: subscriptions belong to all who may read what they read
FOREIGN: dict[str, Case] = {
    **of_sub("sub"),
    **of_sub("pattern"),
    **foreign({"do_get (browse)": read("browse")}, "NOT_FOUND"),
    "browse.close": (NOTHING, lambda plane, its: plane.browse_close(its.browse), ""),
    "do_get (stream)": STREAMS["do_get (stream)"],
    "stream.release": STREAMS["stream.release"],
    **foreign(STAGING, "FORBIDDEN"),
}
# what another user has on a queue that the caller may not read, and on a pattern that matches one such queue besides others
CLOSED: dict[str, Case] = {name: (needs, ask, "FORBIDDEN") for name, (needs, ask, _) in (of_sub("sub") | of_sub("pattern")).items()}


def code_of(ask: Ask, plane: DataPlane, its: Things) -> str:
    try:
        ask(plane, its)
    except PlaneError as error:
        assert error.code != "INTERNAL", error
        return error.code
    return ""


def expected(cases: dict[str, Case], permissions: frozenset[str]) -> dict[str, str]:
    return {name: code if permissions and needs <= permissions else "FORBIDDEN" for name, (needs, _, code) in cases.items()}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    limits = {"flight_start_s": 90, "subscription_alive_ms": 600_000}
    with Broker(data_dir=str(tmp_path_factory.mktemp("matrix")), flight_port=0, limits=limits) as broker:
        broker.node.users.put(UserRecord(USER, hash_password(USER)))
        fill(broker)
        yield broker


def fill(broker: Broker) -> None:
    """The queues of the tables, with messages."""
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    channel = connection.channel()
    channel.confirm_delivery()
    for queue in (QUEUE, SINK, SECRET):
        channel.queue_declare(queue, durable=True)
    channel.queue_declare(STREAM, durable=True, arguments={"x-queue-type": "stream"})
    for queue in (QUEUE, STREAM, SECRET):
        for _ in range(MESSAGES):
            channel.basic_publish("", queue, b"x", pika.BasicProperties(delivery_mode=2))
    connection.close()


def connected(broker: Broker, user: str, password: str | None = None) -> DataPlane:
    port = broker.node.flight_port()
    assert port is not None
    return DataPlane("127.0.0.1", port, user=user, password=user if password is None else password, timeout_s=60)


@pytest.fixture
def root(broker: Broker) -> Iterator[DataPlane]:
    with connected(broker, "guest") as plane:
        yield plane


@pytest.fixture
def plane(broker: Broker) -> Iterator[DataPlane]:
    with connected(broker, USER) as plane:
        yield plane


def grant(broker: Broker, permissions: frozenset[str]) -> None:
    """Names that begin with `m` or `amq`."""
    configure, write, read = ("^(m|amq)" if verb in permissions else "" for verb in (C, W, R))
    broker.node.permissions.set_permissions(PermissionRecord(USER, "/", configure, write, read))


@pytest.fixture(params=SETS, ids=lambda one: "+".join(sorted(one)) or "none")
def permissions(request: pytest.FixtureRequest, broker: Broker) -> frozenset[str]:
    grant(broker, frozenset(SETS[-1]))
    chosen: frozenset[str] = request.param
    return chosen


def test_on_what_is_the_callers_own(broker: Broker, plane: DataPlane, permissions: frozenset[str]) -> None:
    its = made(plane, QUEUE, "m-q*")
    its.names["new"] = its.names["sub"] + "-new"
    grant(broker, permissions)
    assert {name: code_of(ask, plane, its) for name, (_, ask, _) in OWN.items()} == expected(OWN, permissions)
    if permissions:
        named = set(plane.calls.queue_match(pattern="*")["queues"])
        assert named == ({QUEUE, SINK} if R in permissions else set()), "names of what it may not read are not shown"
    grant(broker, SETS[-1])
    over(its)


def test_on_what_another_user_has(broker: Broker, plane: DataPlane, root: DataPlane, permissions: frozenset[str]) -> None:
    its = made(root, QUEUE, "m-q*")
    pins = root.status()["stream_pins"]
    grant(broker, permissions)
    if permissions:
        assert its.scope not in [one["scope"] for one in plane.scope_list()]
        names = set(its.names.values())
        assert names & {one["name"] for one in plane.sub_list()} == (names if R in permissions else set())
    assert {name: code_of(ask, plane, its) for name, (_, ask, _) in FOREIGN.items()} == expected(FOREIGN, permissions)
    assert root.status()["stream_pins"] == pins, "another user's pin is not released"
    assert code_of(read("browse"), root, its) == "", "nor its browse"
    for name in ("do_put", "stage.prepare", "stage.commit"):
        assert code_of(STAGING[name], root, its) == "", "nor its stage"
    over(its)


def test_on_what_reads_more_than_the_caller_may(broker: Broker, plane: DataPlane, root: DataPlane, permissions: frozenset[str]) -> None:
    """A pattern that matches what the caller may read, and one queue more, is not the caller's: to take it over would be to decide about
    that queue's messages."""
    its = made(root, SECRET, "*")
    grant(broker, permissions)
    assert {name: code_of(ask, plane, its) for name, (_, ask, _) in CLOSED.items()} == expected(CLOSED, permissions)
    queues = its.names["sub"], {"queues": [SINK], "fresh": "continue", "mode": "attach"}
    for name, given in (queues, (its.names["pattern"], {"pattern": "*"}), (its.names["pattern"], queues[1])):
        with pytest.raises(PlaneError) as caught:
            plane.calls.sub_open(name=name, **given)
        assert caught.value.code == "FORBIDDEN", given
    if permissions:
        assert not set(its.names.values()) & {one["name"] for one in plane.sub_list()}
    for kind in ("sub", "pattern"):
        assert root.sub_status(its.names[kind])["prepared"] == 1, "what it holds was not decided"
        assert root.sub_status(its.names[kind])["epoch"] == (its.sub if kind == "sub" else its.pattern)["epoch"], "nor was it fenced"
    over(its)


def test_a_pattern_whose_queues_are_gone_stays_its_users(broker: Broker, plane: DataPlane, root: DataPlane) -> None:
    """ "All that it reads" is nothing then, which everybody may read."""
    vhost = broker.node.broker.vhosts["/"]
    vhost.run(vhost.declare_queue("gone", durable=True))
    opened = root.calls.sub_open(name="g", pattern="gone*")
    vhost.run(vhost.delete_queue("gone"))
    assert root.calls.sub_acquire(sub_id=opened["sub_id"], epoch=opened["epoch"], seq=1)["count"] == 0
    grant(broker, SETS[-1])
    given = {"sub_id": opened["sub_id"]}
    for name, arguments in (
        ("sub_status", {"name": "g"}),
        ("sub_tail", given),
        ("sub_open", {"name": "g", "pattern": "gone*"}),
        ("sub_reset", {"name": "g", "action": "delete"}),
    ):
        assert code_of(lambda plane, _, call=name, its=arguments: getattr(plane.calls, call)(**its), plane, Things(plane)) == "FORBIDDEN", (
            name
        )
    assert "g" not in {one["name"] for one in plane.sub_list()}
    assert root.sub_reset("g", "delete")["deleted"]


# --- the calls of Flight itself ---------------------------------------------------------------------------------------------


def options(user: str, password: str, vhost: str = "/") -> flight.FlightCallOptions:
    basic = base64.b64encode(f"{user}:{password}".encode())
    return flight.FlightCallOptions(timeout=60, headers=[(b"authorization", b"Basic " + basic), (b"x-flintmq-vhost", vhost.encode())])


CALLS: dict[str, tuple[frozenset[str] | None, Callable[[Any, Any], object], str]] = {
    # None: it says nothing of the broker, to whoever has a password
    "list_actions": (None, lambda client, how: list(client.list_actions(how)), ""),
    "list_flights": (None, lambda client, how: list(client.list_flights(b"", how)), ""),
    "do_exchange": (
        None,
        lambda client, how: client.do_exchange(flight.FlightDescriptor.for_command(b""), how)[1].read_chunk(),
        "NOT_FOUND",
    ),
    "get_schema": (None, lambda client, how: client.get_schema(flight.FlightDescriptor.for_path(SECRET), how), ""),
    "get_flight_info": (READS, lambda client, how: client.get_flight_info(flight.FlightDescriptor.for_path(QUEUE), how), ""),
    "get_flight_info of another's": (
        READS,
        lambda client, how: client.get_flight_info(flight.FlightDescriptor.for_path(SECRET), how),
        "FORBIDDEN",
    ),
    "do_action": (NOTHING, lambda client, how: list(client.do_action(flight.Action("status", b""), how)), ""),
    **{
        f"do_action of the service's own {name}": (
            None,
            lambda client, how, name=name: list(client.do_action((name, b"{}"), how)),
            "NOT_FOUND",
        )
        for name in ("auth", "token", "rows", "block", "stream")
    },
    **{
        f"do_action that names its {name}": (
            None,
            lambda client, how, name=name: list(client.do_action(("status", json.dumps({name: "guest"}).encode()), how)),
            "BAD_ARGUMENT",
        )
        for name in ("user", "vhost", "call", "outside")
    },
}
# these go through the tables above, and through the client
DATA = {"do_get", "do_put"}


def code_of_call(ask: Callable[[Any, Any], object], client: Any, how: Any) -> str:
    try:
        ask(client, how)
    except (flight.FlightError, pa.ArrowException, OSError) as error:
        return from_flight(error).code
    return ""


@pytest.fixture
def client(broker: Broker) -> Iterator[Any]:
    with flight.FlightClient(f"grpc://127.0.0.1:{broker.node.flight_port()}") as client:
        yield client


def test_flights_own_calls(broker: Broker, client: Any, permissions: frozenset[str]) -> None:
    grant(broker, permissions)
    how = options(USER, USER)
    allowed = {
        name: code if needs is None or (permissions and needs <= permissions) else "FORBIDDEN" for name, (needs, _, code) in CALLS.items()
    }
    assert {name: code_of_call(ask, client, how) for name, (_, ask, _) in CALLS.items()} == allowed


@pytest.mark.parametrize(("user", "password", "vhost", "code"), [("", "", "/", "UNAUTHENTICATED"), (USER, USER, "other", "FORBIDDEN")])
def test_strangers(broker: Broker, client: Any, user: str, password: str, vhost: str, code: str) -> None:
    """Without a password no call is answered; a virtual host is opened to those who have permissions there."""
    grant(broker, SETS[-1])
    how = options(user, password, vhost)
    asked = {name: ask for name, (needs, ask, _) in CALLS.items() if needs is not None or not user}
    assert {name: code_of_call(ask, client, how) for name, ask in asked.items()} == dict.fromkeys(asked, code)


def test_the_tables_are_whole(client: Any) -> None:
    """A verb that is new has its line here before it has a caller."""
    actions = {name.split(" ")[0] for name in OWN}
    assert {action.type for action in client.list_actions(options("guest", "guest"))} == actions - DATA
    verbs = {name for name in vars(FlightService) if not name.startswith("_") and hasattr(flight.FlightServerBase, name)}
    assert verbs - {"close"} - DATA == {name.split(" ")[0] for name in CALLS}
