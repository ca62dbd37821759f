"""A token lets in whom its issuer says, for this broker, until its end; what was changed, borrowed or made up lets nobody in."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from flintmq.access.secret import Secret
from flintmq.access.token_user import TokenUser, is_token
from flintmq.clock import ManualClock
from flintmq.config import Config, Limits
from flintmq.errors import OperatorError
from tests.support.issuer import AUDIENCE, Issuer, KeyServer, jwt, public  # first: it skips where PyJWT is not there

from flintmq.access.oauth import BadToken, OAuth  # isort: skip
from flintmq.access.oauth_keys import KeySet, read_keys  # isort: skip

ISSUER = Issuer()  # keys take a while


class Clock(ManualClock):
    """Begins now: tokens say times of the world."""

    def __init__(self) -> None:
        super().__init__()
        self.began = time.time_ns() // 1_000_000 - super().wall_ms()

    def wall_ms(self) -> int:
        return self.began + super().wall_ms()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., OAuth]]:
    made: list[OAuth] = []

    def build(limits: dict[str, Any] | None = None, users: tuple[str, ...] = (), **options: Any) -> OAuth:
        options.setdefault("oauth_jwks", ISSUER.write(tmp_path / "jwks.json"))
        config = Config(oauth_resource_server_id=AUDIENCE, **options).with_limits(**(limits or {}))
        made.append(OAuth(config, Clock(), lambda name: name in users))
        return made[-1]

    yield build
    for one in made:
        one.close()


def why(oauth: OAuth, token: str) -> str:
    with pytest.raises(BadToken) as refused:
        oauth.verify(Secret(token))
    return str(refused.value)


@pytest.mark.parametrize("key", ["rsa", "ec", "ed"])
def test_a_good_token(make: Callable[..., OAuth], key: str) -> None:
    oauth = make()
    user = oauth.verify(ISSUER.token("read:*/*", "tag:monitoring", key=key))
    assert (str(user), user.tags, user.texts) == ("ann", ("monitoring",), {"read:*/*", "tag:monitoring"})
    assert is_token(ISSUER.token(key=key))


@pytest.mark.parametrize("audience", ["other", ["other", "another"], "", [], f"{AUDIENCE}2", None, 7])
def test_tokens_for_others(make: Callable[..., OAuth], audience: Any) -> None:
    assert "the token" in why(make(), ISSUER.token(aud=audience))
    with_it = make(oauth_verify_audience=False)
    if audience != 7:
        assert with_it.verify(ISSUER.token(aud=audience))


def test_one_audience_of_several(make: Callable[..., OAuth]) -> None:
    assert make().verify(ISSUER.token(aud=["other", AUDIENCE]))


def test_the_issuer(make: Callable[..., OAuth]) -> None:
    oauth = make(oauth_issuer="https://id.example")
    assert oauth.verify(ISSUER.token(iss="https://id.example"))
    assert why(oauth, ISSUER.token(iss="https://id.example/")) == "the token is of another issuer"
    why(oauth, ISSUER.token())


def test_times(make: Callable[..., OAuth]) -> None:
    oauth = make()
    assert why(oauth, ISSUER.token(seconds=-3600)) == "the token is expired"
    assert "can't be read: MissingRequiredClaimError" in why(oauth, ISSUER.token(exp=None))
    now = oauth._clock.wall_ms() / 1000
    assert why(oauth, ISSUER.token(nbf=now + 60)) == "the token is not valid yet"
    assert oauth.verify(ISSUER.token(nbf=now + 5, iat=now + 5))
    for bad in ("soon", True, [], 10**400, -(10**400), 1e308):
        why(oauth, ISSUER.token(exp=bad))


def changed(token: str, header: dict[str, Any] | None = None, claims: dict[str, Any] | None = None, signature: bytes | None = None) -> str:
    """A token with other parts, its signature as it was unless one is given."""
    parts = token.split(".")
    for index, more in ((0, header), (1, claims)):
        if more is not None:
            old = json.loads(base64.urlsafe_b64decode(parts[index] + "=="))
            parts[index] = encoded(json.dumps({**old, **more}).encode())
    if signature is not None:
        parts[2] = encoded(signature)
    return ".".join(parts)


def encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def test_no_algorithm_is_taken_for_another(make: Callable[..., OAuth]) -> None:
    """`none` in all spellings; a public key as the secret of an HMAC; a key of one kind for the algorithm of another."""
    everything = ("RS256", "RS384", "PS256", "ES256", "ES384", "EdDSA", "HS256", "HS384", "HS512")
    for oauth in (make(), make(oauth_algorithms=everything)):
        good = ISSUER.token("tag:administrator", key="rsa")
        for name in ("none", "None", "NONE", "nOnE", "", None, 5, ["RS256"], {"a": 1}):
            for signature in (b"", None, b"x"):
                why(oauth, changed(good, {"alg": name}, signature=signature))
        key = ISSUER.keys["rsa"][1].public_key()
        forms = [
            key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo),
            key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo),
            json.dumps(public("RS256", ISSUER.keys["rsa"][1])).encode(),
            b"",
        ]
        for secret in forms:
            for key_id in ("rsa", None, "", "ec"):
                forged = changed(good, {"alg": "HS256", "kid": key_id})
                said = forged.rpartition(".")[0].encode()
                why(oauth, changed(forged, signature=hmac.digest(secret, said, hashlib.sha256)))
        for algorithm in ("ES256", "EdDSA", "PS256"):
            why(oauth, changed(good, {"alg": algorithm}))
        why(oauth, changed(ISSUER.token(key="ec"), {"kid": "rsa"}))
        why(oauth, changed(ISSUER.token(key="ec"), {"kid": "ed"}))


def test_what_was_changed_is_refused(make: Callable[..., OAuth]) -> None:
    oauth = make()
    token = ISSUER.token("read:*/*")
    assert oauth.verify(token)
    assert why(oauth, changed(token, claims={"sub": "root"})) == "the signature of the token is wrong"
    assert why(oauth, changed(token, claims={"scope": f"{AUDIENCE}.tag:administrator"})) == "the signature of the token is wrong"
    why(oauth, changed(token, signature=bytes(64)))
    why(oauth, changed(token, signature=b""))
    stranger = ec.generate_private_key(ec.SECP256R1())
    claims = jwt.decode(token, options={"verify_signature": False})
    why(oauth, jwt.encode(claims, stranger, "ES256", {"kid": "ec"}))
    own = public("ES256", stranger)
    for header in ({"jwk": own}, {"jku": "http://127.0.0.1:1/"}, {"x5u": "http://127.0.0.1:1/"}):
        why(oauth, jwt.encode(claims, stranger, "ES256", {"kid": "ec", **header}))  # a key that the token brings along
    for header in ({"crit": ["exp"]}, {"crit": ["b64"], "b64": False}, {"b64": False}):
        why(oauth, ISSUER.token(headers=header))


def test_which_key(make: Callable[..., OAuth], tmp_path: Path) -> None:
    oauth = make()
    for key_id in ("other", "../ec", "", 7, ["ec"], "k" * 5000):
        why(oauth, changed(ISSUER.token(), {"kid": key_id}))
    bare = jwt.encode(jwt.decode(ISSUER.token(), options={"verify_signature": False}), ISSUER.keys["ec"][1], "ES256")
    assert oauth.verify(bare)  # one key alone is for that algorithm
    two = json.loads(Path(ISSUER.write(tmp_path / "two.json", "ec")).read_text())
    two["keys"].append({**public("ES256", ec.generate_private_key(ec.SECP256R1())), "kid": "second"})
    (tmp_path / "two.json").write_text(json.dumps(two))
    assert "which of several keys" in why(make(oauth_jwks=str(tmp_path / "two.json")), bare)


def test_what_cannot_be_read(make: Callable[..., OAuth]) -> None:
    oauth = make()
    deep = encoded(b'{"alg":"ES256","x":' + b"[" * 3000 + b"]" * 3000 + b"}")
    bad = [
        "",
        "a",
        "a.b.c",
        "....",
        "eyJ.eyJ.",
        "é.é.é",
        "\udc80.a.b",
        f"{deep}.e30.AA",
        f"{encoded(b'[]')}.e30.AA",
        f"{encoded(b'null')}.e30.AA",
    ]
    bad += [f"{encoded(b'{}')}.{encoded(b'7')}.AA", f"eyJhbGciOiJFUzI1NiJ9.{deep}.AA", "eyJhbGciOiJFUzI1NiJ9.e30." + "A" * 9000]
    for token in bad:
        why(oauth, token)
    for claims in ([], 7, "x", None):
        header = encoded(json.dumps({"alg": "ES256", "kid": "ec"}).encode())
        said = f"{header}.{encoded(json.dumps(claims).encode())}"
        signature = jwt.get_algorithm_by_name("ES256").sign(said.encode(), ISSUER.keys["ec"][1])
        why(oauth, f"{said}.{encoded(signature)}")
    assert "more than 8192 characters" in why(oauth, ISSUER.token(more="x" * 9000))


@pytest.mark.parametrize("name", ["", 7, None, ["ann"], {"a": 1}, "a" * 256, "a\nb", "a\0"])
def test_names(make: Callable[..., OAuth], name: Any) -> None:
    oauth = make(oauth_username_claims=("user_name", "client_id"))
    token = changed(ISSUER.token(), claims={})
    claims = {**jwt.decode(token, options={"verify_signature": False}), "user_name": name, "client_id": "app"}
    assert "no user name in user_name or client_id" in why(oauth, jwt.encode(claims, ISSUER.keys["ec"][1], "ES256", {"kid": "ec"}))
    assert oauth.verify(ISSUER.token(client_id="app")) == "app"
    why(oauth, ISSUER.token())


def test_a_user_of_the_broker_is_not_named_by_a_token(make: Callable[..., OAuth]) -> None:
    oauth = make(users=("ann",))
    assert "a user of the broker is called 'ann', too" in why(oauth, ISSUER.token())
    assert oauth.verify(ISSUER.token(sub="bob")) == "bob"


def test_scopes(make: Callable[..., OAuth]) -> None:
    def texts(oauth: OAuth, **claims: Any) -> set[str]:
        return set(oauth.verify(ISSUER.token(**claims)).texts)

    oauth = make()
    assert texts(oauth, scope="rabbitmq.read:a/b other.read:*/* rabbitmqread:*/* read:*/* rabbitmq.tag:x") == {"read:a/b", "tag:x"}
    assert texts(oauth, scope=["rabbitmq.read:a/b", 7, None]) == {"read:a/b"}
    assert texts(oauth, scope=None) == texts(oauth, scope=7) == texts(oauth, scope={"other": "rabbitmq.read:*/*"}) == set()
    more = make(oauth_scopes_claims=("roles", "extra"), oauth_scope_prefix="mq:")
    assert texts(more, scope="mq:read:a/b", roles={AUDIENCE: ["mq:write:*/*"], "other": ["mq:tag:administrator"]}) == {
        "read:a/b",
        "write:*/*",
    }
    assert texts(make(oauth_scope_prefix=""), scope="read:*/*") == {"read:*/*"}


def test_secrets_are_for_files_and_for_who_asks(make: Callable[..., OAuth], tmp_path: Path) -> None:
    secret = b"s" * 32
    entry = {"kty": "oct", "kid": "shared", "k": encoded(secret)}
    (tmp_path / "secret.json").write_text(json.dumps({"keys": [entry]}))
    claims = {"sub": "ann", "aud": AUDIENCE, "exp": time.time() + 60}
    token = jwt.encode(claims, secret, "HS256", {"kid": "shared"})
    assert make(oauth_jwks=str(tmp_path / "secret.json"), oauth_algorithms=("HS256",)).verify(token) == "ann"
    assert "'HS256' is not accepted" in why(make(oauth_jwks=str(tmp_path / "secret.json")), token)
    assert not read_keys(json.dumps({"keys": [entry]}).encode(), False, 9)  # as of a URL
    assert not read_keys(json.dumps({"keys": [{**entry, "k": encoded(b"short")}]}).encode(), True, 9)


def test_keys_that_are_left_out() -> None:
    good = ISSUER.key_set("rsa", "ec", "ed")["keys"]

    def left(*entries: Any) -> list[str]:
        return sorted(read_keys(json.dumps({"keys": [*entries]}).encode(), False, 13))

    assert left(*good) == ["ec", "ed", "rsa"]
    small = public("RS256", rsa.generate_private_key(65537, 1024))
    bad = [
        {**good[0], "use": "enc"},
        {**good[0], "key_ops": ["encrypt"]},
        {**good[0], "alg": "RSA-OAEP"},
        {**good[0], "alg": "ES256"},
        {**good[1], "crv": "secp256k1"},
        {**good[1], "x": "AA"},
        {**good[2], "x": 7},
        {**small, "kid": "small"},
        {"kty": "RSA"},
        {"kty": ["RSA"]},
        {},
        {**good[0], "kid": 7},
    ]
    assert left(*bad, good[1]) == ["ec"]
    for raw in (b"", b"[]", b'{"keys": 7}', b'{"keys": [7]}', b"[" * 100_000, json.dumps({"keys": good * 5}).encode()):
        with pytest.raises(ValueError):
            read_keys(raw, False, 13)
    assert read_keys(json.dumps({"keys": [{**good[0], "alg": "RS512"}]}).encode(), False, 9)["rsa"][0].algorithms == ("RS512",)


@pytest.mark.parametrize(
    "options",
    [
        {"oauth_jwks": None},
        {"oauth_jwks": "/nowhere/jwks.json"},
        {"oauth_jwks": "ftp://id.example/jwks"},
        {"oauth_jwks": "http://id.example/jwks"},
        {"oauth_jwks": "https://id.example/jwks", "oauth_ca": "/nowhere/ca.pem"},
        {"oauth_algorithms": ("none",)},
        {"oauth_algorithms": ("RS256", "rs256")},
    ],
)
def test_what_an_operator_is_told(make: Callable[..., OAuth], options: dict[str, Any]) -> None:
    with pytest.raises(OperatorError):
        make(**options)


@pytest.fixture
def server() -> Iterator[KeyServer]:
    made = KeyServer(json.dumps(ISSUER.key_set("ec")).encode())
    yield made
    made.close()


def until(condition: Callable[[], bool]) -> None:
    """Waits for what is sure to come."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


def test_keys_of_a_url_are_read_anew_for_an_unknown_key(make: Callable[..., OAuth], server: KeyServer) -> None:
    """And however many tokens ask, once in jwks_pause_ms."""
    oauth = make(oauth_jwks=server.url)
    clock = oauth._clock
    oauth.start()
    until(lambda: len(oauth.keys) == 1)
    assert server.asked == 1
    assert oauth.verify(ISSUER.token(key="ec"))
    server.body = json.dumps(ISSUER.key_set("ec", "rsa")).encode()
    for number in range(50):
        assert "no key" in why(oauth, changed(ISSUER.token(key="rsa"), {"kid": f"made up {number}"}))
    assert server.asked == 1
    clock.advance(ms=Limits().jwks_pause_ms)  # type: ignore[attr-defined]
    why(oauth, ISSUER.token(key="rsa"))
    until(lambda: len(oauth.keys) == 2)
    assert oauth.verify(ISSUER.token(key="rsa"))
    for number in range(50):
        why(oauth, changed(ISSUER.token(key="rsa"), {"kid": f"made up {number}"}))
    assert server.asked == 2


@pytest.mark.parametrize("fault", ["status", "nonsense", "long", "redirect", "gone"])
def test_a_server_that_fails_takes_no_key_away(make: Callable[..., OAuth], server: KeyServer, fault: str, caplog: Any) -> None:
    oauth = make({"jwks_bytes_max": 2048}, oauth_jwks=server.url)
    oauth.start()
    until(lambda: len(oauth.keys) == 1)
    if fault == "status":
        server.status = 500
    elif fault == "nonsense":
        server.body = b"<html>"
    elif fault == "long":
        server.body = b" " * 4096 + server.body
    elif fault == "redirect":
        server.status, server.headers = 302, {"location": server.url + "2"}
    else:
        server.close()
    oauth._clock.advance(ms=Limits().jwks_pause_ms)  # type: ignore[attr-defined]
    assert oauth.keys.refresh()
    until(lambda: "1 keys stay" in caplog.text)
    assert oauth.verify(ISSUER.token(key="ec"))


def test_a_start_does_not_wait_for_ever(server: KeyServer) -> None:
    """The server accepts and says nothing."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        keys = KeySet(f"http://127.0.0.1:{silent.getsockname()[1]}/", None, ManualClock(), Config().with_limits(jwks_ms=50).limits)
        keys.start()
        assert len(keys) == 0
        keys.stop()


def ask(oauth: OAuth, token: str, source: str = "192.0.2.1") -> TokenUser | str | None:
    done = threading.Event()
    answers: list[TokenUser | str | None] = []

    def answer(found: TokenUser | str | None) -> None:
        answers.append(found)
        done.set()

    oauth.submit(Secret(token), source, answer)
    assert done.wait(60)
    return answers[0]


def test_verified_tokens_are_remembered_until_they_end(make: Callable[..., OAuth]) -> None:
    oauth = make()
    token = ISSUER.token("read:*/*", seconds=30)
    assert oauth.cached(token) is None
    user = ask(oauth, token)
    assert isinstance(user, TokenUser)
    assert oauth.cached(token) is user
    assert oauth.cached(changed(token, claims={"sub": "root"})) is None
    oauth._clock.advance(ms=3_600_000)  # type: ignore[attr-defined]
    assert oauth.cached(token) is None and user.is_over
    assert ask(oauth, token) == "the token is expired"
    text = repr(vars(oauth)) + repr(oauth._verified)
    assert token not in text


def test_memory_of_tokens_is_bounded(make: Callable[..., OAuth]) -> None:
    oauth = make({"token_cache_max": 4})
    for number in range(9):
        assert oauth.check(ISSUER.token(sub=f"u{number}"))
        assert not oauth.check(f"eyJ{number}.a.b")
    assert len(oauth._verified) == 4 and len(oauth._reasons) <= Limits().password_waiting_max


def test_a_bad_token_is_slowed_and_others_are_not(make: Callable[..., OAuth]) -> None:
    oauth = make({"login_user_failures": 3})
    stale, good = ISSUER.token(seconds=-3600), ISSUER.token()
    assert [ask(oauth, stale) for _ in range(4)] == ["the token is expired"] * 3 + [None]
    assert isinstance(ask(oauth, good), TokenUser)
    assert ask(oauth, stale, "192.0.2.2") == "the token is expired"


def test_a_source_that_guesses_is_slowed(make: Callable[..., OAuth]) -> None:
    oauth = make({"login_source_failures": 5})
    answers = [ask(oauth, f"eyJ{number}.a.b") for number in range(6)]
    assert answers[5] is None and None not in answers[:5]
    assert isinstance(ask(oauth, ISSUER.token(), "192.0.2.2"), TokenUser)


def test_a_new_user_of_the_broker_ends_what_was_remembered(make: Callable[..., OAuth]) -> None:
    oauth = make()
    token = ISSUER.token()
    assert isinstance(ask(oauth, token), TokenUser)
    oauth._is_user = lambda name: True
    assert oauth.cached(token) is None
    assert "a user of the broker" in str(ask(oauth, token))
