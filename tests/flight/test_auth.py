"""Nobody gets past the gate without a password that the broker knows, and no password stays behind it."""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import flight

from flintmq.config import Limits
from flintmq.dataplane.wire import Refused
from flintmq.flight.auth import REFUSED, Vault, address_of, from_this_machine
from flintmq.flight.client import ADDRESSES_MAX, DataPlane, location_of, locations_of
from flintmq.flight.headers import basic_header, vhost_header
from flintmq.flight.plane_error import PlaneError
from tests.flight.fake import Plane
from tests.support.broker import self_signed_certificate, wait_until
from tests.support.hasty import hasty

TICKET = flight.Ticket(b'{"kind":"set"}')


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def call(plane: Plane, *headers: tuple[bytes, bytes]) -> Any:
    """A status call with these headers and nothing else."""
    client = flight.FlightClient(f"grpc://127.0.0.1:{plane.port}")
    return list(client.do_action(flight.Action("status", b""), flight.FlightCallOptions(headers=list(headers))))


def header(text: str) -> tuple[bytes, bytes]:
    return b"authorization", text.encode()


@pytest.fixture
def ready(plane: Plane) -> Plane:
    plane.broker.answers["status"] = lambda head, _: {}
    return plane


# --- refusals ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Basic",
        "Basic !!!",
        "Basic " + base64.b64encode(b"ann").decode(),
        "Basic " + base64.b64encode(b"ann:\xff").decode(),
        "Digest x",
        "Bearer x",
        "Bearer " + base64.urlsafe_b64encode(b"x" * 60).decode(),
        basic_header("ann", "wrong"),
        basic_header("nobody", "secret"),
        basic_header("", ""),
        "Basic " + "A" * 5000,
    ],
)
def test_wrong_credentials_are_unauthenticated(ready: Plane, text: str) -> None:
    """Whatever is wrong with them: UNAUTHENTICATED with a code, and the broker's calls stay closed."""
    with pytest.raises(flight.FlightUnauthenticatedError) as caught:
        call(ready, header(text))
    assert json.loads(caught.value.extra_info)["code"] == "UNAUTHENTICATED"
    assert not ready.broker.calls("status")


def test_a_wrong_user_and_a_wrong_password_look_alike(ready: Plane) -> None:
    """The refusal does not say whether the user exists."""
    texts = set()
    for credentials in (("ann", "wrong"), ("nobody", "secret")):
        with pytest.raises(PlaneError) as caught:
            ready.client(user=credentials[0], password=credentials[1]).status()
        assert caught.value.code == "UNAUTHENTICATED"
        texts.add(caught.value.text)
    assert texts == {REFUSED}


def test_two_headers_are_refused(ready: Plane) -> None:
    """Which of them counts must not be a matter of taste."""
    with pytest.raises(flight.FlightUnauthenticatedError):
        call(ready, header(basic_header("ann", "secret")), header(basic_header("guest", "guest")))


def test_every_kind_of_call_is_guarded(ready: Plane) -> None:
    """No RPC answers a stranger anything but UNAUTHENTICATED."""
    client = flight.FlightClient(f"grpc://127.0.0.1:{ready.port}")
    descriptor = flight.FlightDescriptor.for_path("q")
    calls: list[Callable[[], Any]] = [
        lambda: list(client.do_action(flight.Action("status", b""))),
        lambda: client.list_actions(),
        lambda: list(client.list_flights()),
        lambda: client.get_flight_info(descriptor),
        lambda: client.do_get(TICKET).read_all(),
    ]
    for one in calls:
        with pytest.raises(flight.FlightUnauthenticatedError):
            one()
    assert not ready.broker.heads


def test_a_broker_that_can_not_say_is_no_refusal(plane: Plane) -> None:
    """When the check itself fails, the caller learns that, not that its password is wrong."""

    def busy(head: dict[str, Any], _: bytes) -> Any:
        raise Refused("INTERNAL", "argon2 is ill")

    plane.broker.answers["auth"] = busy
    with pytest.raises(PlaneError) as caught:
        plane.client().status()
    assert caught.value.code == "INTERNAL"


# --- who it is --------------------------------------------------------------------------------------------------------------


def test_a_verified_password_is_remembered_for_a_while(start: Callable[..., Plane]) -> None:
    """The broker checks once, and again when the time is over; another password is always asked for."""
    clock = Clock()
    plane = start(vault=Vault(Limits(flight_auth_cache_ms=5000), clock))
    plane.broker.answers["status"] = lambda head, _: {}
    client = plane.client()
    client.status()
    client.status()
    assert len(plane.broker.calls("auth")) == 1
    with pytest.raises(PlaneError):
        plane.client(password="wrong").status()
    assert len(plane.broker.calls("auth")) == 2
    clock.now += 5.001
    plane.broker.users["ann"] = "changed"
    with pytest.raises(PlaneError):
        client.status()


def test_a_refusal_is_not_remembered(ready: Plane) -> None:
    """A password that becomes right is right at once."""
    client = ready.client(password="new")
    with pytest.raises(PlaneError):
        client.status()
    ready.broker.users["ann"] = "new"
    client.status()


def test_passwords_leave_no_trace(ready: Plane, caplog: pytest.LogCaptureFixture) -> None:
    """Neither logs nor errors nor what is remembered nor a client's repr contain one."""
    caplog.set_level(logging.DEBUG)
    ready.client(password="secret").status()
    with pytest.raises(PlaneError) as caught:
        ready.client(password="hunter2-wrong").status()
    with pytest.raises(ValueError, match="address") as address:
        DataPlane("http://ann:hunter2-wrong@h")
    vault = ready.service.gate._vault
    for text in (caplog.text, str(caught.value), str(address.value), repr(vault._known), repr(ready.client(password="hunter2-wrong"))):
        assert "hunter2" not in text
        assert "secret" not in text


def test_the_token_of_a_handshake_stands_for_the_password(start: Callable[..., Plane]) -> None:
    """Bearer works without another check of a password, for its user, until the broker says that it is too old."""
    clock = Clock()
    plane = start(vault=Vault(Limits(flight_auth_cache_ms=5000), clock))
    plane.broker.answers["status"] = lambda head, _: {}
    client = flight.FlightClient(f"grpc://127.0.0.1:{plane.port}")
    token = client.authenticate_basic_token("ann", "secret")
    assert token[1].startswith(b"Bearer ")
    call(plane, token)
    call(plane, token)
    assert plane.broker.calls("status")[0]["user"] == "ann"
    assert len(plane.broker.calls("auth")) == len(plane.broker.calls("token")) == 1
    plane.broker.tokens.clear()
    clock.now += 6
    with pytest.raises(flight.FlightUnauthenticatedError):
        call(plane, token)
    with pytest.raises(flight.FlightUnauthenticatedError):
        client.authenticate_basic_token("ann", "wrong")


def test_the_service_has_no_secret_that_makes_a_token(ready: Plane) -> None:
    """Whoever reads all of its memory finds tokens that the broker made, and nothing that makes others."""
    client = flight.FlightClient(f"grpc://127.0.0.1:{ready.port}")
    client.authenticate_basic_token("ann", "secret")
    with pytest.raises(flight.FlightUnauthenticatedError):
        call(ready, header("Bearer " + base64.urlsafe_b64encode(ready.service.gate._vault._key * 2).decode()))
    assert ready.broker.calls("token"), "a token that is not known is the broker's to judge"
    assert not hasattr(Vault, "token")


@given(st.tuples(st.text(), st.text()), st.tuples(st.text(), st.text()))
def test_other_credentials_have_another_mac(one: tuple[str, str], other: tuple[str, str]) -> None:
    """Also where user and password together read the same."""
    try:
        "".join(one + other).encode()
    except UnicodeEncodeError:
        return
    vault = Vault(Limits())
    assert (vault.mac(*one) == vault.mac(*other)) == (one == other)
    assert vault.mac("ab", "c") != vault.mac("a", "bc")


def test_a_user_of_this_machine_only(ready: Plane) -> None:
    """guest gets in over loopback, with a vhost that survives its header; from elsewhere it would be FORBIDDEN."""
    ready.client(user="guest", password="guest", vhost="ü/%41").status()
    head = ready.broker.calls("status")[0]
    assert (head["user"], head["vhost"]) == ("guest", "ü/%41")
    session = ready.service.gate
    made = session.start_call(_Info(), {"authorization": [basic_header("guest", "guest")]})
    with pytest.raises(PlaneError) as caught:
        made.caller("ipv4:192.0.2.1:4711")
    assert caught.value.code == "FORBIDDEN"
    made.call_completed(None)
    made = session.start_call(_Info(), {"authorization": [basic_header("ann", "secret")]})
    assert made.caller("ipv4:192.0.2.1:4711").vhost == "/"
    made.call_completed(None)


class _Info:
    method = flight.FlightMethod.DO_ACTION


@pytest.mark.parametrize(
    ("peer", "here"),
    [
        ("ipv4:127.0.0.1:1", True),
        ("ipv4:127.9.9.9:1", True),
        ("ipv4:192.0.2.1:1", False),
        ("ipv6:[::1]:1", True),
        ("ipv6:%5B::1%5D:1", True),
        ("ipv6:[::ffff:127.0.0.1]:1", True),
        ("ipv6:%5Bfe80::1%25eth0%5D:1", False),
        ("ipv6:[2001:db8::1]:1", False),
        ("unix:", True),
        ("", False),
        ("ipv4:", False),
        ("what:127.0.0.1:1", False),
    ],
)
def test_where_a_peer_is(peer: str, here: bool) -> None:
    """What gRPC does not clearly name as this machine is elsewhere."""
    assert from_this_machine(peer) is here


def test_names_in_headers() -> None:
    """A vhost may have any characters, a user no colon."""
    assert vhost_header("/") == "/"
    assert vhost_header("a b/ü%") == "a%20b/%C3%BC%25"
    with pytest.raises(ValueError, match="colon"):
        basic_header("a:b", "c")


def test_a_password_is_checked_for_the_address_that_it_comes_from(ready: Plane) -> None:
    """The broker is told the peer's address, so one stranger's guesses are no other's; handshakes have none and are one source."""
    ready.client().status()
    assert [head["source"] for head in ready.broker.calls("auth")] == ["127.0.0.1"]
    client = flight.FlightClient(f"grpc://127.0.0.1:{ready.port}")
    client.authenticate_basic_token("guest", "guest")
    assert ready.broker.calls("auth")[-1]["source"] == "flight handshakes"


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:192.0.2.7:5000", "192.0.2.7"),
        ("ipv6:%5B2001:db8::1%5D:5000", "2001:db8::1"),
        ("ipv6:[2001:db8::1]:5000", "2001:db8::1"),
        ("unix:", "unix:"),
        ("", ""),
    ],
)
def test_addresses_of_peers(peer: str, address: str) -> None:
    assert address_of(peer) == address


def test_one_address_has_a_part_of_the_line_only(ready: Plane) -> None:
    """Logins that wait from one address leave places for those of others."""
    gate = ready.service.gate
    gate._in_line["192.0.2.7"] = ready.limits.flight_waiting_max // 4
    with pytest.raises(PlaneError, match="too many logins"):
        gate._ask(b"", "ann", "secret", "192.0.2.7")
    assert gate._ask(b"", "ann", "secret", "192.0.2.8").user == "ann"
    assert gate._in_line == {"192.0.2.7": ready.limits.flight_waiting_max // 4}


# --- bounds -----------------------------------------------------------------------------------------------------------------


def test_calls_above_the_limit_are_busy_and_all_places_come_back(start: Callable[..., Plane]) -> None:
    """flight_calls_max bounds what runs; refused, failed and finished calls leave nothing behind."""
    plane = start(flight_calls_max=0)
    with pytest.raises(flight.FlightUnavailableError, match="BUSY: "):
        call(plane, header(basic_header("ann", "secret")))
    other = start(flight_calls_max=1)
    other.broker.answers["status"] = lambda head, _: {}
    client = other.client()
    for _ in range(3):
        client.status()
        with pytest.raises(PlaneError, match="UNAUTHENTICATED"):
            other.client(password="wrong").status()
        with pytest.raises(PlaneError, match="BAD_ARGUMENT"):
            list(client.read(b'{"kind":"none"}'))
    wait_until(lambda: other.service.gate.running == 0, what="all calls have ended")


def test_strangers_do_not_keep_those_who_are_known_out(start: Callable[..., Plane]) -> None:
    """With slow checks under way, and others in line, a verified user is served; one more stranger is BUSY after a while or at once."""
    # What is known stays known, however long the test takes.
    plane = start(channels=4, flight_wait_ms=100, flight_waiting_max=1, flight_auth_cache_ms=3_600_000)
    plane.broker.answers["status"] = lambda head, _: {}
    known = plane.client()
    known.status()
    release, check = threading.Event(), plane.broker.answers["auth"]

    def slow(head: dict[str, Any], payload: bytes) -> Any:
        release.wait(30)
        return check(head, payload)

    plane.broker.answers["auth"] = slow
    strangers = [threading.Thread(target=_try, args=(plane.client(user=f"u{n}"),)) for n in range(2)]
    for thread in strangers:
        thread.start()
    try:
        wait_until(lambda: len(plane.broker.calls("auth")) == 3, what="two checks run")
        known.status()
        with pytest.raises(PlaneError) as caught:
            plane.client(user="u9", timeout_s=2.0).status()
        assert caught.value.code in ("BUSY", "TIMED_OUT")
        plane.service.gate._in_line["192.0.2.7"] = 1
        with pytest.raises(flight.FlightUnavailableError, match="BUSY: too many logins"):
            call(plane, header(basic_header("u8", "x")))
        known.status()
    finally:
        release.set()
        for thread in strangers:
            thread.join(60)


def _try(client: DataPlane) -> None:
    with contextlib.suppress(PlaneError):
        client.status()


# --- TLS --------------------------------------------------------------------------------------------------------------------


def test_tls_with_the_brokers_certificate(start: Callable[..., Plane], monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that trusts the certificate gets in; one that does not fails at once, and one without TLS does not get in."""
    with self_signed_certificate() as (certificate, key):
        plane = start(tls=(certificate, key))
        plane.broker.answers["status"] = lambda head, _: {"ok": 1}
        with DataPlane(f"grpc+tls://127.0.0.1:{plane.port}", user="ann", password="secret", tls_ca=certificate) as client:
            assert client.status()["ok"] == 1
        with open(certificate, "rb") as file:
            pem = file.read()
        assert plane.client(tls_ca=pem).status()["ok"] == 1
        hasty(monkeypatch)
        with self_signed_certificate() as (stranger, _):
            for wrong in (plane.client(tls_ca=stranger, timeout_s=30.0), plane.client(timeout_s=30.0)):
                with pytest.raises(PlaneError) as caught:
                    wrong.status()
                assert caught.value.code == "UNAVAILABLE"


@pytest.mark.parametrize(
    ("where", "tls", "told"),
    [
        ("h", False, ("grpc+tcp://h:15680", None, None, None)),
        ("h:1", True, ("grpc+tls://h:1", None, None, None)),
        ("grpc+tls://u:p%40@h:1/%2F", False, ("grpc+tls://h:1", "u", "p@", "/")),
        ("grpc://[::1]:9/v", False, ("grpc+tcp://[::1]:9", None, None, "v")),
    ],
)
def test_addresses(where: str, tls: bool, told: Any) -> None:
    """What an address may say."""
    assert location_of(where, tls) == told


@pytest.mark.parametrize("where", ["http://h", "grpc://", "grpc://h:x", "grpc://h:99999", "grpc://h?x=1"])
def test_wrong_addresses(where: str) -> None:
    """What it may not."""
    with pytest.raises(ValueError, match="address of a data plane"):
        location_of(where)


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ("grpc://a", (("grpc+tcp://a:15680",), None, None, None)),
        ("a, b:1", (("grpc+tcp://a:15680", "grpc+tcp://b:1"), None, None, None)),
        ("grpc+tls://u:p@a:1,b:2/v", (("grpc+tls://a:1", "grpc+tls://b:2"), "u", "p", "v")),
        ("grpc://u@a,grpc://u@b,grpc://a", (("grpc+tcp://a:15680", "grpc+tcp://b:15680"), "u", None, None)),
    ],
)
def test_several_addresses(where: str, told: Any) -> None:
    """Of one broker, with one login; each once, in their order."""
    assert locations_of(where) == told


@pytest.mark.parametrize("where", ["grpc://a,", "grpc+tls://a,grpc://b", "grpc://u@a,grpc://v@b", ",".join(["h"] * (ADDRESSES_MAX + 1))])
def test_wrong_lists_of_addresses(where: str) -> None:
    """A password goes to no broker without TLS because another one has it."""
    with pytest.raises(ValueError, match="address of a data plane"):
        locations_of(where)
