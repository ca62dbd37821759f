"""Users whom a token or a directory names, over Flight: the verbs of test_permission_matrix with every set of permissions, no hole more."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from flintmq.flight.client import DataPlane
from flintmq.flight.plane_error import PlaneError, from_flight
from flintmq.testing.broker import Broker
from tests.flight.test_permission_matrix import (
    FOREIGN,
    NOTHING,
    OWN,
    QUEUE,
    ROWS,
    SETS,
    SINK,
    Case,
    R,
    code_of,
    connected,
    expected,
    fill,
    made,
    options,
    over,
)
from tests.support import directory as slapd
from tests.support.broker import self_signed_certificate
from tests.support.issuer import AUDIENCE, Issuer
from tests.support.servers import Unavailable

ISSUER = Issuer()
VERBS = ("configure", "write", "read")
LIMITS = {"flight_start_s": 90, "subscription_alive_ms": 600_000}


def label(permissions: frozenset[str]) -> str:
    return "-".join(sorted(permissions)) or "none"


def token(permissions: frozenset[str], **claims: Any) -> str:
    """For names that begin with `m` or `amq`, as the tables want them."""
    return ISSUER.token(*(f"{verb}:%2F/{names}" for verb in permissions for names in ("m*", "amq*")), **claims)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    base = tmp_path_factory.mktemp("tokens")
    keys = ISSUER.write(base / "jwks.json")
    where = str(base / "store")
    with Broker(data_dir=where, flight_port=0, limits=LIMITS, oauth_resource_server_id=AUDIENCE, oauth_jwks=keys) as broker:
        fill(broker)
        yield broker


@pytest.fixture(params=SETS, ids=label)
def permissions(request: pytest.FixtureRequest) -> frozenset[str]:
    chosen: frozenset[str] = request.param
    return chosen


def test_the_matrix_of_tokens(broker: Broker, permissions: frozenset[str]) -> None:
    """On what is the caller's own, by another token of the same name, and on what another user has."""
    with connected(broker, "", token(SETS[-1])) as full, connected(broker, "", token(permissions)) as plane:
        its = made(full, QUEUE, "m-q*")
        its.names["new"] = its.names["sub"] + "-new"
        assert {name: code_of(ask, plane, its) for name, (_, ask, _) in OWN.items()} == expected(OWN, permissions)
        if permissions:
            assert set(plane.calls.queue_match(pattern="*")["queues"]) == ({QUEUE, SINK} if R in permissions else set())
        over(its)
        with connected(broker, "guest") as root:
            its = made(root, QUEUE, "m-q*")
            assert {name: code_of(ask, plane, its) for name, (_, ask, _) in FOREIGN.items()} == expected(FOREIGN, permissions)
            over(its)


@pytest.fixture(scope="module")
def ldap_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    groups = slapd.GROUPS
    entries = [slapd.person(f"u-{label(one)}", "secret") for one in SETS]
    entries += [slapd.group(f"m-{verb}", *(slapd.dn_of(f"u-{label(one)}") for one in SETS if verb in one)) for verb in VERBS]
    verbs = ", ".join(f'{{permission, {verb}, {{in_group, "cn=m-{verb},{groups}"}}}}' for verb in VERBS)
    query = f'{{\'and\', [{{match, "${{name}}", "^(m|amq)"}}, {{for, [{verbs}]}}]}}'
    with contextlib.ExitStack() as stack:
        certificate = stack.enter_context(self_signed_certificate())
        try:
            running = stack.enter_context(slapd.directory(certificate, *entries))
        except Unavailable as reason:
            pytest.skip(str(reason))
        broker = stack.enter_context(
            Broker(
                data_dir=str(tmp_path_factory.mktemp("ldap")),
                flight_port=0,
                limits=LIMITS,
                ldap_urls=(running.url,),
                ldap_user_dn=slapd.USER_DN,
                ldap_group_base=groups,
                ldap_vhost_query="{constant, true}",
                ldap_resource_query=query,
            )
        )
        fill(broker)
        yield broker


def asked(cases: dict[str, Case], permissions: frozenset[str]) -> dict[str, str]:
    """What a directory allows is known for a name alone: nobody is told that it may do nothing, but each name is refused."""
    return {name: code if needs <= permissions else "FORBIDDEN" for name, (needs, _, code) in cases.items()}


def test_the_matrix_of_a_directory(ldap_broker: Broker, permissions: frozenset[str]) -> None:
    user = f"u-{label(permissions)}"
    with connected(ldap_broker, user.upper(), "secret") as plane, connected(ldap_broker, "guest") as root:
        its = made(root, QUEUE, "m-q*")
        assert {name: code_of(ask, plane, its) for name, (_, ask, _) in FOREIGN.items()} == asked(FOREIGN, permissions)
        over(its)
        assert set(plane.calls.queue_match(pattern="*")["queues"]) == ({QUEUE, SINK} if R in permissions else set())
        # A scope names nothing: a directory can't say that its user may write to nothing at all. Each exchange is asked for.
        scope = plane.scope_open(f"scope-{user}")
        for unroutable, needed in (("exchange:amq.fanout", {"write"}), ("exchange:secret", {"nobody has that"})):
            begun = code_of(
                lambda plane, its, where=unroutable: plane.calls.stage_begin(scope=f"scope-{user}", epoch=scope, batch=0, unroutable=where),
                plane,
                its,
            )
            assert begun == ("" if needed <= permissions else "FORBIDDEN"), unroutable
        stage = plane.stage_begin(f"scope-{user}", scope, 1).stage_id or ""
        put = code_of(lambda plane, _: plane.put(stage, ROWS, routing_key=SINK), plane, its)
        assert put == ("" if "write" in permissions else "FORBIDDEN"), "amq.default is the default exchange's name there"


def test_wrong_passwords_of_a_directory(ldap_broker: Broker) -> None:
    for user, password in (("u-read", "wrong"), ("u-read", ""), ("nobody", "secret"), ("*", "secret")):
        with pytest.raises(PlaneError) as caught, connected(ldap_broker, user, password) as plane:
            plane.status()
        assert caught.value.code == "UNAUTHENTICATED"


def bearer(text: str) -> flight.FlightCallOptions:
    return flight.FlightCallOptions(timeout=60, headers=[(b"authorization", b"Bearer " + text.encode())])


def code(ask: Callable[[], object]) -> str:
    try:
        ask()
    except (flight.FlightError, pa.ArrowException, OSError) as error:
        return from_flight(error).code
    return ""


def test_a_token_as_bearer_and_by_a_handshake(broker: Broker) -> None:
    """Programs without our client send it themselves, or a handshake's token from then on."""
    with flight.FlightClient(f"grpc://127.0.0.1:{broker.node.flight_port()}") as client:
        good = token(SETS[-1])
        assert list(client.do_action(flight.Action("status", b""), bearer(good)))
        assert client.get_flight_info(flight.FlightDescriptor.for_path(QUEUE), bearer(good))
        header = client.authenticate_basic_token("", good)
        assert list(client.do_action(flight.Action("status", b""), flight.FlightCallOptions(headers=[header])))
        wrong = [good[:-8] + "AAAAAAAA", token(NOTHING, aud="other"), "eyJ.x.y", token(SETS[-1], sub="guest")]
        for one in wrong:
            assert code(lambda one=one: list(client.do_action(flight.Action("status", b""), bearer(one)))) == "UNAUTHENTICATED"
        long = token(SETS[-1], more="x" * 2_700)
        assert 3_900 < len(long) <= 4_096
        for how in (bearer(long), options("", long)):
            assert list(client.do_action(flight.Action("status", b""), how)), "tokens of 4,096 characters fit"


def test_a_client_fetches_a_new_token_when_its_own_is_over(broker: Broker, tmp_path: Path) -> None:
    """As Spark's option passwordFile does: whoever renews tokens writes the file."""
    issued: list[float] = []

    def fresh() -> str:
        issued.append(time.time())
        return token(SETS[-1], seconds=2.0 if len(issued) == 1 else 600.0)

    port = broker.node.flight_port()
    assert port is not None
    with DataPlane("127.0.0.1", port, user="ann", password=fresh, timeout_s=60) as plane:
        deadline = time.monotonic() + 60
        while len(issued) < 2 and time.monotonic() < deadline:
            plane.status()
            time.sleep(0.05)
        assert len(issued) == 2, "the service keeps no token beyond its end"
        plane.status()
