"""Logins by LDAP over the wire: pika and HTTP against a broker that asks a real slapd, and a directory that misbehaves."""

from __future__ import annotations

import base64
import http.client
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker, ProbableAccessDeniedError, ProbableAuthenticationError

from flintmq.access.ldap import Directory as LdapDirectory
from flintmq.access.ldap import read_server
from flintmq.access.ldap_wire import MESSAGE_BYTES_MAX, Conversation, LdapError, Server, elements, encode
from flintmq.access.throttle import Throttle
from flintmq.clock import SystemClock
from flintmq.config import Config, Limits
from flintmq.errors import OperatorError
from flintmq.ports import PermissionRecord, UserRecord
from tests.support import directory as slapd
from tests.support.broker import self_signed_certificate
from tests.support.servers import Unavailable

GROUPS, PEOPLE = slapd.GROUPS, slapd.PEOPLE
EVERY = "{constant, true}"
ADMINS = f'{{in_group, "cn=admins,{GROUPS}"}}'
_ENTRIES = (
    slapd.person("ann", "ann-password", "description: bob"),
    slapd.person("bob", "bob-password"),
    slapd.person("twin", "twin-password", "mail: twin@example.org"),
    slapd.person("twin2", "twin-password", "mail: twin@example.org"),
    slapd.person("kept", "kept-password"),
    slapd.person("guest", "guest-of-the-directory"),
    slapd.group("admins", slapd.dn_of("ann")),
    slapd.group("team", slapd.dn_of("bob")),
    slapd.group("staff", f"cn=team,{GROUPS}", f"cn=everybody,{GROUPS}"),
    slapd.group("everybody", f"cn=staff,{GROUPS}"),  # a circle
    slapd.group("prod-users", slapd.dn_of("bob")),
)


@pytest.fixture(scope="module")
def certificate() -> Iterator[tuple[str, str]]:
    with self_signed_certificate() as paths:
        yield paths


@pytest.fixture(scope="module")
def ldap(certificate: tuple[str, str]) -> Iterator[slapd.Directory]:
    try:
        with slapd.directory(certificate, *_ENTRIES) as running:
            yield running
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture
def serve(start: Callable[..., Any], ldap: slapd.Directory) -> Callable[..., Any]:
    def make(limits: dict[str, Any] | None = None, **options: Any) -> Any:
        return start(limits, **{"ldap_urls": (ldap.url,), "ldap_user_dn": slapd.USER_DN, "ldap_vhost_query": EVERY} | options)

    return make


@pytest.fixture
def service(tmp_path: Path) -> dict[str, Any]:
    """Options of a broker that looks for users as an account of its own."""
    (tmp_path / "password").write_text(slapd.SERVICE_PASSWORD + "\n")
    return {
        "ldap_user_dn": None,
        "ldap_base": PEOPLE,
        "ldap_bind_dn": slapd.SERVICE,
        "ldap_bind_password_file": str(tmp_path / "password"),
        "ldap_group_base": GROUPS,
    }


def log_in(broker: Any, user: str, password: str, vhost: str = "/") -> pika.BlockingConnection:
    return pika.BlockingConnection(
        pika.ConnectionParameters("127.0.0.1", broker.port, vhost, pika.PlainCredentials(user, password), connection_attempts=1)
    )


def user_of(broker: Any, user: str, password: str) -> str:
    """Whom the broker takes a login for."""
    connection = log_in(broker, user, password)
    (handler,) = broker.node.broker.connections.values()
    name = handler.user
    connection.close()
    return str(name)


def is_refused(broker: Any, user: str, password: str) -> bool:
    with pytest.raises(ProbableAuthenticationError):
        log_in(broker, user, password)
    assert not broker.node.broker.connections
    return True


def ask(broker: Any, user: str, password: str, path: str = "/api/whoami") -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", broker.node.http_port, timeout=60)
    token = base64.b64encode(f"{user}:{password}".encode()).decode()
    connection.request("GET", path, headers={"Authorization": f"Basic {token}"})
    answer = connection.getresponse()
    body = json.loads(answer.read())
    connection.close()
    return answer.status, body


# --- who is let in ------------------------------------------------------------------------------------------------------------


def test_a_user_of_the_directory(serve: Callable[..., Any]) -> None:
    broker = serve()
    connection = log_in(broker, "ann", "ann-password")
    channel: Any = connection.channel()
    channel.queue_declare("q")
    channel.basic_publish("", "q", b"x", pika.BasicProperties(user_id="ann"))
    assert channel.basic_get("q", auto_ack=True)[2] == b"x"
    connection.close()
    assert is_refused(broker, "ann", "bob-password") and is_refused(broker, "nobody", "ann-password")
    pika.BlockingConnection(pika.URLParameters(broker.url)).close()  # the broker's own go on to work


def test_an_empty_password_is_no_password(serve: Callable[..., Any]) -> None:
    """slapd takes a bind without a password as anonymous and says yes."""
    broker = serve()
    assert is_refused(broker, "ann", "")
    assert ask(serve(http_port=0), "ann", "")[0] == 401


NAMES = [
    "*",
    "a*",
    "*)(uid=*",
    "ann)(objectClass=*",
    "ann\\2a",
    f"ann,{PEOPLE}",
    "ann,ou=people,dc=example,dc=org\0",
    "ann+cn=ann",
    "ann\\",
    '"ann"',
    "#616e6e",
    "ann;x",
    "ann=ann",
    "uid=ann",
    slapd.dn_of("ann"),
    "",
    "ann\n",
    "ann\u202e",
    "x" * 255,
]


@pytest.mark.parametrize("name", NAMES)
def test_no_name_is_syntax(ldap: slapd.Directory, service: dict[str, Any], name: str) -> None:
    """Neither of a DN nor of a filter: with ann's password each of these is nobody, whichever way entries are found."""
    for options in ({"ldap_user_dn": slapd.USER_DN}, service):
        directory = standing(ldap.url, **options)
        assert directory.verify(name, "ann-password") is None
        assert str(directory.verify("ann", "ann-password")) == "ann"
        directory.close()


def test_a_user_has_one_name(serve: Callable[..., Any]) -> None:
    """The directory compares names without case: the broker goes by its spelling, else one user would be many."""
    broker = serve(ldap_resource_query='{match, "${name}", "^${username}-"}')
    assert user_of(broker, "ANN", "ann-password") == "ann" and user_of(broker, "Ann", "ann-password") == "ann"
    connection = log_in(broker, " ann", "ann-password")
    connection.channel().queue_declare("ann-1")
    connection.close()


def test_an_entry_that_is_looked_for(serve: Callable[..., Any], service: dict[str, Any]) -> None:
    broker = serve(**service)
    assert user_of(broker, "bob", "bob-password") == "bob"
    assert is_refused(broker, "bob", "ann-password") and is_refused(broker, "nobody", "ann-password")


def test_an_entry_that_its_user_looks_for(serve: Callable[..., Any]) -> None:
    """RabbitMQ's as_user: a name that can log in, then a search for the entry; the password must be the entry's."""
    broker = serve(ldap_base=PEOPLE)
    assert user_of(broker, "bob", "bob-password") == "bob"
    assert is_refused(broker, "bob", "ann-password")


def test_the_entry_found_is_the_one_whose_password_it_is(serve: Callable[..., Any]) -> None:
    """Who binds as one entry and is found as another is nobody: here "bob" leads to bob's entry, and the search for it to ann's."""
    broker = serve(ldap_base=PEOPLE, ldap_attribute="description")
    assert is_refused(broker, "bob", "bob-password") and is_refused(broker, "bob", "ann-password")


def test_a_name_of_several_entries_is_nobody(serve: Callable[..., Any], service: dict[str, Any], caplog: Any) -> None:
    broker = serve(**service, ldap_attribute="mail")
    assert is_refused(broker, "twin@example.org", "twin-password")
    assert "stands for several entries" in caplog.text


def test_a_user_of_the_broker_without_a_password(serve: Callable[..., Any]) -> None:
    """RabbitMQ's authn = ldap, authz = internal: the directory has the password, the broker the permissions."""
    broker = serve(ldap_vhost_query=None, http_port=0)
    node = broker.node
    assert is_refused(broker, "kept", "kept-password")
    node.users.put(UserRecord("kept", "", ("monitoring",)))
    node.permissions.set_permissions(PermissionRecord("kept", "/", "", "", "^only$"))
    log_in(broker, "kept", "kept-password").close()
    assert ask(broker, "kept", "kept-password") == (200, {"name": "kept", "tags": ["monitoring"]})
    node.users.delete("kept")
    node.permissions.forget_user("kept")
    assert is_refused(broker, "kept", "kept-password")  # what was verified a moment ago holds for the user that was


def test_a_user_of_the_broker_with_a_password_is_not_the_directorys(serve: Callable[..., Any], caplog: Any) -> None:
    broker = serve(ldap_base=PEOPLE, ldap_attribute="cn", ldap_user_dn=slapd.USER_DN)
    assert is_refused(broker, "guest", "guest-of-the-directory")
    assert is_refused(broker, "GUEST", "guest-of-the-directory")  # it is asked about, and then it is guest
    assert "is a user of the broker with a password" in caplog.text
    log_in(broker, "guest", "guest").close()


# --- what they may ------------------------------------------------------------------------------------------------------------


def test_virtual_hosts_and_verbs(serve: Callable[..., Any], service: dict[str, Any]) -> None:
    broker = serve(
        **service,
        ldap_vhost_query=f"""{{'or', [{ADMINS}, {{in_group, "cn=${{vhost}}-users,{GROUPS}"}}]}}""",
        ldap_resource_query=f"""{{for, [{{permission, configure, {{'or', [{ADMINS}, {{match, "${{name}}", "^${{username}}-"}}]}}}},
                                        {{permission, write, {EVERY}}}, {{permission, read, {EVERY}}}]}}""",
        ldap_topic_query='{equals, "${routing_key}", "allowed"}',
    )
    broker.node.broker.add_vhost("prod")
    log_in(broker, "ann", "ann-password").close()
    with pytest.raises(ProbableAccessDeniedError, match=r"access to vhost ./. refused for user .bob."):
        log_in(broker, "bob", "bob-password")
    connection = log_in(broker, "bob", "bob-password", "prod")
    channel: Any = connection.channel()
    channel.queue_declare("bob-1")
    for refuse in (lambda one: one.queue_declare("ann-1"), lambda one: one.exchange_declare("x")):
        with pytest.raises(ChannelClosedByBroker, match="configure access to"):
            refuse(connection.channel())
    channel.confirm_delivery()
    channel.basic_publish("amq.topic", "allowed", b"x")
    with pytest.raises(ChannelClosedByBroker, match="write access to topic 'other'"):
        channel.basic_publish("amq.topic", "other", b"x")
    connection.close()


def test_tags_over_http(serve: Callable[..., Any], service: dict[str, Any]) -> None:
    broker = serve(**service, http_port=0, ldap_tag_queries=(f"administrator={ADMINS}", f"management={EVERY}"))
    assert ask(broker, "ann", "ann-password") == (200, {"name": "ann", "tags": ["administrator", "management"]})
    assert ask(broker, "bob", "bob-password") == (200, {"name": "bob", "tags": ["management"]})
    assert ask(broker, "ann", "ann-password", "/api/users")[0] == 200 and ask(broker, "bob", "bob-password", "/api/users")[0] == 401
    assert ask(broker, "ann", "wrong")[0] == 401


def test_groups_of_groups(serve: Callable[..., Any], service: dict[str, Any]) -> None:
    flat, nested = (f'{{{kind}, "cn=staff,{GROUPS}"}}' for kind in ("in_group", "in_group_nested"))
    broker = serve(**service, ldap_vhost_query=nested)
    log_in(broker, "bob", "bob-password").close()
    with pytest.raises(ProbableAccessDeniedError):
        log_in(broker, "ann", "ann-password")
    with pytest.raises(ProbableAccessDeniedError):
        log_in(serve(**service, ldap_vhost_query=flat), "bob", "bob-password")


def test_groups_that_are_not_all_read_are_none(serve: Callable[..., Any], service: dict[str, Any], caplog: Any) -> None:
    """With some of the groups a `not` would let in who is to stay out."""
    query = f"{{'not', {{in_group, \"cn=team,{GROUPS}\"}}}}"
    broker = serve({"ldap_groups_max": 1}, **service, ldap_vhost_query=query)
    assert is_refused(broker, "bob", "bob-password")  # team and prod-users
    assert "who is refused: 127.0.0.1" in caplog.text
    log_in(broker, "ann", "ann-password").close()


# --- TLS ----------------------------------------------------------------------------------------------------------------------


def test_tls(serve: Callable[..., Any], ldap: slapd.Directory, certificate: tuple[str, str], caplog: Any) -> None:
    for options in ({"ldap_urls": (ldap.tls_url,)}, {"ldap_starttls": True}):
        log_in(serve(ldap_ca=certificate[0], **options), "ann", "ann-password").close()
        caplog.clear()
        assert is_refused(serve(**options), "ann", "ann-password")  # whom the system trusts did not sign that
        assert "CERTIFICATE_VERIFY_FAILED" in caplog.text and "ann-password" not in caplog.text


def test_the_certificate_is_the_servers(ldap: slapd.Directory, certificate: tuple[str, str]) -> None:
    context = ssl.create_default_context(cafile=certificate[0])
    with pytest.raises(LdapError, match=r"not valid for '127\.0\.0\.2'"):
        Conversation(Server("127.0.0.2", relayed(ldap.tls_port), True), context, False, far())


@pytest.mark.parametrize(
    "url",
    [
        "ldap://directory.example",
        "ldap://192.0.2.1:389",
        "http://127.0.0.1",
        "ldap://u:p@127.0.0.1",
        "ldap://127.0.0.1/x",
        "ldap://",
        "ldap://127.0.0.1:x",
    ],
)
def test_a_place_that_is_refused(url: str) -> None:
    with pytest.raises(OperatorError) as refused:
        read_server(url, False)
    assert refused.value.exit_code == 78 and "u:p" not in str(refused.value)


def test_a_place_that_is_taken() -> None:
    assert read_server("ldaps://directory.example", False) == Server("directory.example", 636, True)
    assert read_server("ldap://directory.example", True) == Server("directory.example", 389, False)
    assert read_server("ldap://[::1]:1389", False) == Server("::1", 1389, False)


# --- a directory that fails ---------------------------------------------------------------------------------------------------


class Script:
    """A server that gives each connection the next of some answers, after the first bytes came; then it says nothing more, or hangs up."""

    def __init__(self, *answers: bytes, hold: bool = False) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._answers = list(answers)
        self._hold = hold
        self._held: list[socket.socket] = []
        self.came = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            peer.settimeout(60)
            peer.recv(65_536)
            self.came.set()
            if self._answers:
                peer.sendall(self._answers.pop(0))
            if self._hold:
                self._held.append(peer)
            else:
                peer.close()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(60)
        for peer in self._held:
            peer.close()


def relayed(port: int) -> int:
    """A port of 127.0.0.2 that leads there, for one connection."""
    listener = socket.create_server(("127.0.0.2", 0))

    def run() -> None:
        with listener, listener.accept()[0] as near, socket.create_connection(("127.0.0.1", port)) as far_end:
            threading.Thread(target=copy, args=(far_end, near), daemon=True).start()
            copy(near, far_end)

    def copy(source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65_536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    threading.Thread(target=run, daemon=True).start()
    return int(listener.getsockname()[1])


def far() -> float:
    import time

    return time.monotonic() + 60


def standing(*urls: str, limits: dict[str, Any] | None = None, **options: Any) -> Any:
    """A Directory by itself: no user of the broker."""
    made = Limits(**(limits or {}))
    config = Config(ldap_urls=urls, limits=made, **{"ldap_vhost_query": EVERY, **options})
    return LdapDirectory(config, SystemClock(), lambda name: None, Throttle(SystemClock(), made))


def result(tag: int, code: int, number: int = 1) -> bytes:
    body = encode(0x0A, bytes((code,))) + encode(0x04, b"") + encode(0x04, b"")
    return encode(0x30, encode(0x02, bytes((number,))) + encode(tag, body))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"", "it hung up"),
        (b"\x30", "it hung up"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "no LDAP"),
        (b"\x30\x80", "a length that LDAP does not have"),
        (b"\x30\x85\x01\x00\x00\x00\x00", "a length that LDAP does not have"),
        (b"\x30\x84\x7f\xff\xff\xff", "too large"),
        (b"\x30\x84" + (MESSAGE_BYTES_MAX + 1).to_bytes(4, "big"), "too large"),
        (b"\x30\x03\x02\x05\x01", "cut short"),
        (b"\x30\x00", "an answer to nothing"),
        (result(0x61, 0, number=2), "an answer to nothing"),
        (result(0x65, 0), "can't be read"),
        (encode(0x30, encode(2, b"\x01") + encode(0x61, b"")), "can't be read"),
        (encode(0x30, encode(2, b"\x01") + encode(0x61, encode(0x0A, b""))), "can't be read"),
        (result(0x61, 51), "result 51"),
        (encode(0x30, encode(2, b"\x00") + encode(0x78, b"")), "an answer to nothing"),  # notice of disconnection
    ],
)
def test_an_answer_that_is_none(answer: bytes, words: str) -> None:
    server = Script(answer)
    directory = standing(f"ldap://127.0.0.1:{server.port}", ldap_user_dn=slapd.USER_DN)
    with pytest.raises(LdapError, match=words):
        directory.verify("ann", "secret")
    assert not directory.check("ann", "secret")
    directory.close()
    server.close()


def test_what_came_before_tls_is_no_answer_within_it() -> None:
    server = Script(result(0x78, 0) + result(0x61, 0, number=2))
    directory = standing(f"ldap://127.0.0.1:{server.port}", ldap_user_dn=slapd.USER_DN, ldap_starttls=True)
    with pytest.raises(LdapError, match="STARTTLS is refused"):
        directory.verify("ann", "secret")
    directory.close()
    server.close()


def test_a_server_that_says_nothing_is_waited_for_once(serve: Callable[..., Any], ldap: slapd.Directory, caplog: Any) -> None:
    """Its share of the time, and from then on others are asked before it. Users of the broker do not wait at all."""
    silent = Script(hold=True)
    url = f"ldap://127.0.0.1:{silent.port}"
    broker = serve({"ldap_answer_ms": 1_000, "ldap_checks_max": 1}, ldap_urls=(url, ldap.url))
    log_in(broker, "ann", "ann-password").close()
    assert silent.came.is_set()
    silent.came.clear()
    log_in(broker, "bob", "bob-password").close()
    assert not silent.came.is_set()
    silent.close()


def test_no_server_at_all(serve: Callable[..., Any], caplog: Any) -> None:
    """The login is refused, the log says why, nobody is taken for a guesser, and users of the broker log in meanwhile."""
    silent = Script(hold=True)
    broker = serve({"ldap_answer_ms": 300, "login_user_failures": 1}, ldap_urls=(f"ldap://127.0.0.1:{silent.port}",))
    for _ in range(3):
        assert is_refused(broker, "ann", "ann-password")
        log_in(broker, "guest", "guest").close()
    assert caplog.text.count("the directory can't say whether user 'ann' may log in, who is refused") == 3
    assert "ann-password" not in caplog.text
    silent.close()


def test_guesses_are_slowed_whatever_the_spelling(serve: Callable[..., Any]) -> None:
    broker = serve({"login_user_failures": 2, "login_user_failure_s": 3_600})
    assert is_refused(broker, "ann", "wrong") and is_refused(broker, "ANN", "wrong")
    with pytest.raises(ProbableAuthenticationError, match="too many logins"):
        log_in(broker, "aNN", "ann-password")
    log_in(broker, "bob", "bob-password").close()


def test_a_login_is_remembered_and_forgotten(ldap: slapd.Directory) -> None:
    directory = standing(ldap.url, ldap_user_dn=slapd.USER_DN, limits={"ldap_cache_max": 1})
    assert directory.check("ann", "ann-password") and str(directory.cached("ann", "ann-password")) == "ann"
    assert directory.cached("ann", "wrong") is None and directory.cached("bob", "ann-password") is None
    assert directory.check("bob", "bob-password") and directory.cached("ann", "ann-password") is None
    assert "ann-password" not in repr(vars(directory))
    directory.close()


# --- options ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "how a user's entry is found"),
        ({"ldap_user_dn": "uid=ann,dc=x"}, "everybody would be one user"),
        ({"ldap_user_dn": "${username}@example.org"}, "needs --ldap-base"),
        ({"ldap_base": PEOPLE, "ldap_attribute": "uid)(x"}, "the name of an attribute"),
        ({"ldap_base": PEOPLE, "ldap_bind_dn": "cn=x"}, "go together"),
        ({"ldap_base": PEOPLE, "ldap_bind_dn": "cn=x", "ldap_bind_password_file": "/does/not/exist"}, "/does/not/exist"),
        ({"ldap_user_dn": slapd.USER_DN, "ldap_vhost_query": ADMINS}, "needs --ldap-group-base"),
        ({"ldap_user_dn": slapd.USER_DN, "ldap_vhost_query": "{constant, maybe}"}, "--ldap-vhost-query"),
        ({"ldap_user_dn": slapd.USER_DN, "ldap_tag_queries": ("root={constant, true}",)}, "TAG=QUERY"),
        (
            {"ldap_user_dn": slapd.USER_DN, "ldap_vhost_query": None, "ldap_tag_queries": (f"management={EVERY}",)},
            "needs --ldap-vhost-query",
        ),
        ({"ldap_user_dn": slapd.USER_DN, "ldap_starttls": True, "ldap_ca": "/does/not/exist"}, "--ldap-ca"),
    ],
)
def test_options_that_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(OperatorError, match=words) as refused:
        standing("ldap://127.0.0.1", **options)
    assert refused.value.exit_code == 78


def test_elements_are_all_there() -> None:
    assert list(elements(encode(4, b"x" * 200) + encode(2, b"\x01"))) == [(4, b"x" * 200), (2, b"\x01")]
    with pytest.raises(LdapError):
        list(elements(encode(4, b"x" * 200)[:-1]))
