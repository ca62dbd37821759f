"""EXTERNAL: who has a certificate that is trusted is who it says; certificates are read again without a restart."""

from __future__ import annotations

import datetime
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from flintmq.access.mechanisms import certificate_user
from flintmq.errors import OperatorError
from flintmq.ports import PermissionRecord, UserRecord
from tests.support.broker import wait_until


class Authority:
    """Signs certificates; its own is in `path`."""

    def __init__(self, directory: Path, name: str) -> None:
        self.directory = directory
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.path = directory / f"{name}.pem"
        self.path.write_bytes(self._signed(self.name, self.key, ca=True).public_bytes(serialization.Encoding.PEM))

    def _signed(self, subject: x509.Name, key: Any, *, ca: bool = False, expired: bool = False) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.DNSName("client.example")])
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=2))
            .not_valid_after(now + datetime.timedelta(days=-1 if expired else 1))
            .add_extension(names, critical=False)
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .sign(self.key, hashes.SHA256())
        )

    def issue(self, file: str, *parts: tuple[x509.ObjectIdentifier, str], expired: bool = False) -> tuple[str, str]:
        """Paths of a certificate and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(*part) for part in parts])
        paths = self.directory / f"{file}.crt", self.directory / f"{file}.key"
        paths[0].write_bytes(self._signed(subject, key, expired=expired).public_bytes(serialization.Encoding.PEM))
        form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        paths[1].write_bytes(key.private_bytes(*form))
        return str(paths[0]), str(paths[1])


CLIENT = ((NameOID.ORGANIZATION_NAME, "Org, Inc"), (NameOID.COMMON_NAME, "ann"))


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "ca")


@pytest.fixture
def serve(start: Callable[..., Any], authority: Authority) -> Callable[..., Any]:
    server = authority.issue("server", (NameOID.COMMON_NAME, "localhost"))

    def make(*users: str, **options: Any) -> Any:
        broker = start({}, tls_cert=server[0], tls_key=server[1], tls_port=0, tls_ca=str(authority.path), **options)
        for user in users:
            broker.node.users.put(UserRecord(user, "", ()))
            broker.node.permissions.set_permissions(PermissionRecord(user, "/", ".*", ".*", ".*"))
        return broker

    return make


def connect(broker: Any, authority: Authority, pair: tuple[str, str] | None, credentials: Any = None) -> pika.BlockingConnection:
    context = ssl.create_default_context(cafile=str(authority.path))
    if pair is not None:
        context.load_cert_chain(*pair)
    return pika.BlockingConnection(
        pika.ConnectionParameters(
            "127.0.0.1",
            broker.node.amqps_port,
            credentials=credentials or pika.credentials.ExternalCredentials(),
            ssl_options=pika.SSLOptions(context, "localhost"),
        )
    )


@pytest.mark.parametrize(
    ("login_from", "user"),
    [("distinguished_name", "CN=ann,O=Org\\, Inc"), ("common_name", "ann"), ("subject_alternative_name", "localhost")],
)
def test_the_certificate_names_the_user(serve: Callable[..., Any], authority: Authority, login_from: str, user: str) -> None:
    broker = serve(user, tls_login_from=login_from)
    connection = connect(broker, authority, authority.issue("client", *CLIENT))
    (handler,) = broker.node.broker.connections.values()
    assert (handler.user, handler.mechanism) == (user, "EXTERNAL")
    channel: Any = connection.channel()
    channel.queue_declare("q")
    channel.basic_publish("", "q", b"x")
    connection.close()


def test_who_is_not_named_is_not_let_in(serve: Callable[..., Any], authority: Authority, tmp_path: Path) -> None:
    """No certificate, none of a user, one of another authority, one that is over; a password goes on to work."""
    broker = serve("CN=ann,O=Org\\, Inc", tls_login_from="distinguished_name")
    (tmp_path / "other").mkdir()
    stranger = Authority(tmp_path / "other", "other").issue("client", *CLIENT)
    bob = authority.issue("bob", (NameOID.COMMON_NAME, "bob"))
    over = authority.issue("over", *CLIENT, expired=True)
    for pair in (None, bob):
        with pytest.raises(pika.exceptions.AMQPConnectionError) as refused:
            connect(broker, authority, pair)
        assert not isinstance(refused.value, pika.exceptions.AMQPHeartbeatTimeout)
    for pair in (stranger, over):
        with pytest.raises((pika.exceptions.AMQPConnectionError, OSError)):
            connect(broker, authority, pair)
    wait_until(lambda: not broker.node.broker.connections)
    connect(broker, authority, None, pika.PlainCredentials("guest", "guest")).close()


def test_a_certificate_can_be_made_a_must(serve: Callable[..., Any], authority: Authority) -> None:
    broker = serve("ann", tls_login_from="common_name", tls_require_client=True)
    with pytest.raises((pika.exceptions.AMQPConnectionError, OSError)):
        connect(broker, authority, None, pika.PlainCredentials("guest", "guest"))
    connect(broker, authority, authority.issue("client", *CLIENT)).close()


def test_external_is_nothing_without_tls(start: Callable[..., Any]) -> None:
    broker = start({})
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        pika.BlockingConnection(
            pika.ConnectionParameters("127.0.0.1", broker.port, credentials=pika.credentials.ExternalCredentials(), connection_attempts=1)
        )


def test_certificates_are_read_again(serve: Callable[..., Any], authority: Authority, tmp_path: Path) -> None:
    broker = serve()
    held = connect(broker, authority, None, pika.PlainCredentials("guest", "guest"))
    before = (tmp_path / "server.crt").read_bytes()
    authority.issue("server", (NameOID.COMMON_NAME, "localhost"))
    broker.node.reload_tls()
    shown = ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate(("127.0.0.1", broker.node.amqps_port)))
    assert shown == ssl.PEM_cert_to_DER_cert((tmp_path / "server.crt").read_text()) != ssl.PEM_cert_to_DER_cert(before.decode())
    (tmp_path / "server.key").write_text("no key")
    with pytest.raises(OperatorError):
        broker.node.reload_tls()
    connect(broker, authority, None, pika.PlainCredentials("guest", "guest")).close()
    held.channel()  # it lives on
    held.close()


def test_names_that_look_like_other_names() -> None:
    """One value is one value, whatever stands in it."""

    def subject(*parts: tuple[str, str]) -> dict[str, Any]:
        return {"subject": tuple((part,) for part in parts)}

    name = "distinguished_name"
    assert certificate_user(subject(("commonName", "a,CN=root")), name) == "CN=a\\,CN=root"
    assert certificate_user(subject(("commonName", "#a+b ")), name) == "CN=\\#a\\+b\\ "
    assert certificate_user(subject(("commonName", 'x"\\<>;\0')), name) == 'CN=x\\"\\\\\\<\\>\\;\\00'
    assert certificate_user({"subject": ((("commonName", "a"), ("userId", "b")),)}, name) == "CN=a+UID=b"
    assert certificate_user(subject(("commonName", "a"), ("commonName", "b")), "common_name") is None
    assert certificate_user({}, name) is certificate_user({}, "common_name") is certificate_user({}, "subject_alternative_name") is None
