"""Sessions of the console: a cookie logs in again, only with the console's header, only as its user, and only for as long as it should."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from flintmq.admin.auth import Caller
from flintmq.admin.sessions import CHALLENGE, PATH, Sessions, cookie, cookie_name, token_of
from flintmq.clock import ManualClock
from flintmq.config import Limits
from flintmq.testing.broker import Broker
from tests.admin.api import Api
from tests.admin.conftest import Answer, Client, basic

ASK = "/api/v1/overview"
CONSOLE = {"X-FlintMQ-Console": "1"}


def login(client: Client, user: str = "guest", password: str = "guest", **headers: str) -> Answer:
    """Header names: with _ for -."""
    more = {name.replace("_", "-"): value for name, value in headers.items()}
    return client.request("POST", PATH, None, {**basic(user, password), **CONSOLE, **more})


def pair(answer: Answer) -> str:
    """The cookie as a browser sends it back."""
    assert answer.status == 200, answer.raw
    return answer.headers["set-cookie"].split(";")[0]


def ask(client: Client, cookie_pair: str, path: str = ASK, method: str = "GET", **headers: str) -> Answer:
    more = {name.replace("_", "-"): value for name, value in headers.items()}
    return client.request(method, path, None, {**CONSOLE, "Cookie": cookie_pair, **more})


@pytest.fixture
def api(shared: Client) -> Api:
    return Api(shared)


def test_a_cookie_logs_in_again_and_no_script_reads_it(shared: Client) -> None:
    answer = login(shared)
    attributes = answer.headers["set-cookie"].split("; ")[1:]
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(attributes) and "Secure" not in attributes
    assert pair(answer).startswith(f"FlintMQ-Session-{shared.port}=") and len(pair(answer).partition("=")[2]) == 43
    assert answer.headers["cache-control"] == "no-store" and pair(answer).partition("=")[2].encode() not in answer.raw
    assert ask(shared, pair(answer)).json["user"] == "guest"
    assert ask(shared, f"other=1; {pair(answer)}; more=2").json["user"] == "guest"


def test_a_cookie_without_the_header_is_nothing(shared: Client) -> None:
    cookie_pair = pair(login(shared))
    for headers in ({}, {"X-FlintMQ-Request": "1"}):
        answer = shared.request("GET", ASK, None, {"Cookie": cookie_pair, **headers})
        assert answer.status == 401 and answer.headers["www-authenticate"].startswith("Basic")
    for path in ("/api/overview", "/api/definitions", "/metrics/detailed"):
        assert shared.request("GET", path, None, {"Cookie": cookie_pair, "Authorization": "Basic eDp5"}).status == 401
    octets = {"Cookie": cookie_pair, "Content-Type": "application/json"}
    assert shared.request("POST", "/api/exchanges/%2F/amq.default/publish", b"{}", octets).status == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
)
def test_another_origin_neither_uses_a_session_nor_makes_one(shared: Client, headers: dict[str, str]) -> None:
    assert ask(shared, pair(login(shared)), **headers).status == 403
    assert login(shared, **headers).status == 403
    assert ask(shared, pair(login(shared)), PATH, "DELETE", **headers).status == 403


def test_another_name_of_the_host_gets_no_session(shared: Client) -> None:
    assert login(shared, Host="evil.example").status == 421


def test_nobody_answers_the_question_of_a_browser_before_it_sends_the_header(shared: Client) -> None:
    asked = {"Origin": "http://evil.example", "Access-Control-Request-Headers": "x-flintmq-console", "Access-Control-Request-Method": "GET"}
    answer = shared.request("OPTIONS", "/api/overview", None, asked)
    assert answer.status == 403 and not any(name.startswith("access-control") for name in answer.headers)


def test_a_session_is_never_fixed_by_a_client(shared: Client) -> None:
    name = f"FlintMQ-Session-{shared.port}"
    chosen = f"{name}={'A' * 43}"
    assert ask(shared, chosen).status == 401
    made = pair(login(shared, Cookie=chosen))
    assert made != chosen and ask(shared, chosen).status == 401
    following = pair(login(shared, Cookie=made))
    assert following != made and ask(shared, made).status == 401 and ask(shared, following).status == 200


@pytest.mark.parametrize("value", ["", "x", "A" * 43, "A" * 8000, "\xff" * 43, "../../x", "%00"])
def test_a_text_that_is_no_token_is_refused_without_a_window_of_the_browser(shared: Client, value: str) -> None:
    answer = ask(shared, f"FlintMQ-Session-{shared.port}={value}")
    assert answer.status == 401 and answer.headers["www-authenticate"] == CHALLENGE["www-authenticate"]


def test_the_console_is_its_session_alone(shared: Client) -> None:
    """Credentials that the browser remembers of another page are no login of the console."""
    assert shared.request("GET", ASK, None, {**basic(), **CONSOLE}).status == 401


def test_a_wrong_password_makes_no_session(shared: Client) -> None:
    answer = login(shared, "guest", "wrong")
    assert (
        answer.status == 401 and "set-cookie" not in answer.headers and answer.headers["www-authenticate"] == CHALLENGE["www-authenticate"]
    )


def test_a_session_without_the_console_is_refused(shared: Client) -> None:
    answer = shared.request("POST", PATH, None, basic())
    assert answer.status == 403 and "set-cookie" not in answer.headers


def test_who_has_no_tag_gets_no_session(api: Api, shared: Client) -> None:
    api.user("plain", "")
    answer = login(shared, "plain", "plain")
    assert answer.status in (401, 403) and "set-cookie" not in answer.headers


def test_a_logout_ends_the_session_and_the_cookie(shared: Client) -> None:
    one, other = pair(login(shared)), pair(login(shared))
    answer = ask(shared, one, PATH, "DELETE")
    assert answer.json == {"closed": True} and "Max-Age=0" in answer.headers["set-cookie"]
    assert ask(shared, one).status == 401 and ask(shared, other).status == 200


def test_a_tenant_sees_what_it_saw_with_its_password(api: Api, shared: Client) -> None:
    api.user("tenant", "management")
    cookie_pair = pair(login(shared, "tenant", "tenant"))
    by_cookie, by_password = ask(shared, cookie_pair).json, shared.get(ASK, basic("tenant", "tenant")).json
    assert by_cookie.pop("now").keys() == by_password.pop("now").keys() and by_cookie == by_password and by_cookie["user"] == "tenant"
    for path in ("/api/users", "/api/definitions", "/api/v1/samples"):
        assert ask(shared, cookie_pair, path).status == shared.get(path, basic("tenant", "tenant")).status in (401, 403)
        assert ask(shared, pair(login(shared)), path).status == 200


@pytest.mark.parametrize("change", ["password", "deleted", "made anew"])
def test_a_user_that_changes_ends_its_sessions(api: Api, shared: Client, change: str) -> None:
    name = f"u-{change.replace(' ', '-')}"
    api.user(name, "management")
    cookie_pair = pair(login(shared, name, name))
    assert ask(shared, cookie_pair).status == 200
    if change == "password":
        assert api.ask("PUT", f"users/{name}", {"password": "other", "tags": "management"}).status == 204
    else:
        assert api.ask("DELETE", f"users/{name}").status == 204
        if change == "made anew":
            api.user(name, "administrator")
    assert ask(shared, cookie_pair).status == 401


def test_tags_and_permissions_are_those_of_now(api: Api, shared: Client) -> None:
    api.user("changes", "administrator")
    cookie_pair = pair(login(shared, "changes", "changes"))
    record = api.ask("GET", "users/changes").json
    assert ask(shared, cookie_pair, "/api/users").status == 200
    kept = {"password_hash": record["password_hash"], "hashing_algorithm": record["hashing_algorithm"], "tags": "management"}
    assert api.ask("PUT", "users/changes", kept).status == 204
    assert ask(shared, cookie_pair, "/api/users").status == 401


def test_a_logout_ends_the_streams_of_its_session(shared: Client) -> None:
    cookie_pair = pair(login(shared))
    connection = shared.connection(10)
    connection.request("GET", "/api/v1/events?topics=events", None, {**CONSOLE, "Cookie": cookie_pair})
    response = connection.getresponse()
    assert response.status == 200
    assert ask(shared, cookie_pair, PATH, "DELETE").status == 200
    assert b"event: end" in response.read() or response.isclosed()
    connection.close()


def test_under_tls_the_cookie_is_secure_and_of_this_host_alone() -> None:
    scope = {"scheme": "https", "headers": [(b"host", b"mq.example:15671"), (b"cookie", b"a=b; __Host-FlintMQ-Session-15671=t")]}
    assert cookie(scope, "t", 60_000) == "__Host-FlintMQ-Session-15671=t; Path=/; Max-Age=60; HttpOnly; SameSite=Strict; Secure"
    assert token_of(scope) == "t"
    assert cookie_name({"scheme": "https", "headers": [(b"host", b"mq.example")]}) == "__Host-FlintMQ-Session-443"
    assert cookie_name({"scheme": "http", "headers": [(b"host", b"[::1]")]}) == "FlintMQ-Session-80"


# --- limits, with a clock by hand ---------------------------------------------------------------------------------------------------


class _Users:
    def get(self, name: str) -> Any:
        return SimpleNamespace(password_hash="", tags=("management",))

    def born(self, name: str) -> int:
        return 1


@pytest.fixture
def made() -> Callable[..., tuple[Sessions, Any]]:
    def make(**limits: int) -> tuple[Sessions, Any]:
        broker = SimpleNamespace(users=_Users(), clock=ManualClock(), limits=Limits(**limits))
        return Sessions(broker), broker

    return make


def test_a_session_ends_without_requests_and_after_its_life(made: Callable[..., tuple[Sessions, Any]]) -> None:
    sessions, broker = made(http_session_ms=10_000, http_session_idle_ms=4_000)
    token, life_ms = sessions.open(Caller.of("u", broker))
    assert life_ms == 10_000
    idle, _ = sessions.open(Caller.of("u", broker))
    for _ in range(3):
        broker.clock.advance(ms=3_000)
        assert sessions.find(token) is not None
    assert sessions.find(idle) is None and len(sessions) == 1
    broker.clock.advance(ms=1_000)
    assert sessions.find(token) is None and len(sessions) == 0


def test_logins_without_end_keep_no_more_than_the_limits(made: Callable[..., tuple[Sessions, Any]]) -> None:
    sessions, broker = made(http_sessions_max=50, http_sessions_user_max=10)
    quiet, _ = sessions.open(Caller.of("quiet", broker))
    tokens = [sessions.open(Caller.of("flood", broker))[0] for _ in range(1_000)]
    assert len(sessions) == 11 and sessions.find(quiet) is not None, "one user ends its own sessions alone"
    assert [sessions.find(one) is not None for one in tokens[-11:]] == [False, *[True] * 10]
    for number in range(1_000):
        sessions.open(Caller.of(f"u{number}", broker))
    assert len(sessions) == 50 and len(sessions._users) == 50


def test_a_login_takes_out_no_more_sessions_than_the_loop_has_time_for(made: Callable[..., tuple[Sessions, Any]]) -> None:
    sessions, broker = made(http_session_idle_ms=1_000)
    for number in range(1_000):
        sessions.open(Caller.of(f"u{number}", broker))
    broker.clock.advance(ms=1_000)
    counts = []
    while not counts or counts[-1]:
        before = len(sessions)
        sessions.open(Caller.of("one", broker))
        counts.append(before + 1 - len(sessions))
    assert max(counts) <= 64 and sum(counts) == 1_000, "all of them go, in pieces"


def test_the_broker_keeps_no_token(made: Callable[..., tuple[Sessions, Any]]) -> None:
    sessions, broker = made()
    token, _ = sessions.open(Caller.of("u", broker))
    assert token.encode() not in b"".join(sessions._all) and token not in repr(vars(sessions))


def test_a_page_never_acts_for_the_user_of_another_tab(api: Api, shared: Client) -> None:
    assert api.ask("PUT", "users/zo%C3%AB%20%25", {"password": "zo\u00eb %", "tags": "management"}).status == 201
    cookie_pair = pair(login(shared, "zo\u00eb %", "zo\u00eb %"))
    assert ask(shared, cookie_pair, X_FlintMQ_Console="zo%C3%AB%20%25").status == 200
    assert ask(shared, cookie_pair, X_FlintMQ_Console="guest").status == 401
    assert ask(shared, cookie_pair).status == 200


def test_a_restart_ends_all_sessions() -> None:
    def run(cookie_pair: str) -> tuple[int, str]:
        with Broker(http_port=0) as broker:
            client = Client(broker)
            name = f"FlintMQ-Session-{client.port}={cookie_pair}"
            return ask(client, name).status, pair(login(client)).partition("=")[2]

    _, token = run("x")
    assert run(token)[0] == 401


def test_who_lost_its_tags_still_logs_out(api: Api, shared: Client) -> None:
    api.user("demoted", "management")
    cookie_pair = pair(login(shared, "demoted", "demoted"))
    record = api.ask("GET", "users/demoted").json
    kept = {"password_hash": record["password_hash"], "hashing_algorithm": record["hashing_algorithm"], "tags": ""}
    assert api.ask("PUT", "users/demoted", kept).status == 204
    assert ask(shared, cookie_pair).status == 403
    assert ask(shared, cookie_pair, PATH, "DELETE").json == {"closed": True}
    assert ask(shared, cookie_pair).status == 401
