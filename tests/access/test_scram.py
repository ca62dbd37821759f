"""The server's half of SCRAM-SHA-256 is RFC 7677's; nobody without the password gets through, and nobody learns which users there are."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flintmq.access import scram
from flintmq.access.hashes import hash_of, keys_of, matches, shown_hash, stored_hash
from flintmq.access.scram import Conversation, Keys, ScramError, Stranger, make_keys, prepared, read, written
from flintmq.access.users import Users
from flintmq.clock import ManualClock
from flintmq.config import Limits
from flintmq.ports import UserRecord
from flintmq.store.definitions import MemoryDefinitions

# RFC 7677, section 3: user "user", password "pencil"
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
NONCE, OWN = "rOprNGfwEbeRWgbNEkqO", "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
FIRST = f"n,,n=user,r={NONCE}".encode()
CHALLENGE = f"r={NONCE}{OWN},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
FINAL = f"c=biws,r={NONCE}{OWN},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode()
ANSWER = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
PENCIL = make_keys("pencil", SALT, 4096)


def conversation(keys: Keys = PENCIL) -> Conversation:
    return Conversation(lambda user: keys, OWN)


def client(challenge: bytes, password: str, first: bytes = FIRST) -> bytes:
    """A client's last message, by the words of RFC 5802."""
    fields = dict(part.split("=", 1) for part in challenge.decode().split(","))
    header, bare = first.decode().rsplit(",", 2)[0] + ",", first.decode().split(",", 2)[2]
    salted = hashlib.pbkdf2_hmac("sha256", prepared(password), base64.b64decode(fields["s"]), int(fields["i"]))
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    without = f"c={base64.b64encode(header.encode()).decode()},r={fields['r']}"
    signature = hmac.digest(hashlib.sha256(client_key).digest(), f"{bare},{challenge.decode()},{without}".encode(), "sha256")
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(client_key, signature))).decode()
    return f"{without},p={proof}".encode()


def test_the_conversation_of_the_standard() -> None:
    talk = conversation()
    assert talk.first(FIRST) == CHALLENGE
    assert talk.user == "user"
    assert talk.final(FINAL) == ANSWER


def test_a_wrong_password_proves_nothing() -> None:
    for password in ("Pencil", "", "pencil "):
        talk = conversation()
        assert talk.final(client(talk.first(FIRST), password)) is None
    talk = conversation()
    assert talk.final(client(talk.first(FIRST), "pencil")) == ANSWER


def test_who_has_the_stored_keys_cannot_log_in() -> None:
    """The proof is a client's key, of which the broker has the hash only (S1)."""
    talk = conversation()
    challenge = talk.first(FIRST)
    without = FINAL.rpartition(b",p=")[0].decode()
    signature = hmac.digest(PENCIL.stored, f"n=user,r={NONCE},{challenge.decode()},{without}".encode(), "sha256")
    for guess in (PENCIL.stored, PENCIL.server, bytes(32)):
        proof = base64.b64encode(bytes(a ^ b for a, b in zip(guess, signature))).decode()
        assert talk.final(f"{without},p={proof}".encode()) is None


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n",
        b"n,,",
        b"n,,n=user",
        b"n,,r=abc,n=user",
        b"n,,m=x,n=user,r=abc",
        b"p=tls-unique,,n=user,r=abc",
        b"p=tls-server-end-point,,n=user,r=abc",
        b"x,,n=user,r=abc",
        b"n,a=root,n=user,r=abc",
        b"n,root,n=user,r=abc",
        b"n,,n=us=er,r=abc",
        b"n,,n=us=2cer,r=abc",
        b"n,,n=,r=abc",
        b"n,,n=a\0b,r=abc",
        b"n,,n=user,r=",
        b"n,,n=user,r=a b",
        b"n,,n=user,r=\xc3\xa9",
        b"n,,n=user,r=" + b"a" * 257,
        b"n,,n=\xff,r=abc",
        b"n,,n=" + b"u" * 3000 + b",r=abc",
    ],
)
def test_first_messages_that_are_refused(message: bytes) -> None:
    with pytest.raises(ScramError):
        conversation().first(message)


@pytest.mark.parametrize(
    ("header", "name"),
    [("n,,", "user"), ("y,,", "user"), ("n,a=user,", "user"), ("n,a=a=2Cb=3Dc,", "a=2Cb=3Dc")],
)
def test_headers_that_are_good(header: str, name: str) -> None:
    talk = conversation()
    first = f"{header}n={name},r={NONCE},x=later".encode()
    challenge = talk.first(first)
    assert talk.user == ("user" if name == "user" else "a,b=c")
    bare_first = f"{header}n={name},r={NONCE},x=later".encode()
    fields = dict(part.split("=", 1) for part in challenge.decode().split(","))
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", base64.b64decode(fields["s"]), 4096)
    key = hmac.digest(salted, b"Client Key", "sha256")
    without = f"c={base64.b64encode(header.encode()).decode()},r={fields['r']}"
    said = f"{bare_first.decode()[len(header) :]},{challenge.decode()},{without}".encode()
    proof = bytes(a ^ b for a, b in zip(key, hmac.digest(hashlib.sha256(key).digest(), said, "sha256")))
    assert talk.final(f"{without},p={base64.b64encode(proof).decode()}".encode()) is not None


@pytest.mark.parametrize(
    "change",
    [
        (b"c=biws", b"c=eSws"),  # "y,,": somebody on the way took the channel binding out
        (b"c=biws", b"c="),
        (b"c=biws", b"x=biws"),
        (b"r=rOpr", b"r=rOpR"),
        (OWN.encode(), b""),
        (b",p=", b",q="),
        (b"p=dHzb", b"p=dHz"),
        (b"p=dHzb", b"p=dHzbdHzb"),
        (b"p=dHzb", b"p=d*zb"),
        (FINAL, b""),
        (FINAL, b"\xff"),
        (FINAL, b"c=biws,r=," + b"p" * 3000),
    ],
)
def test_last_messages_that_are_refused(change: tuple[bytes, bytes]) -> None:
    talk = conversation()
    talk.first(FIRST)
    with pytest.raises(ScramError):
        talk.final(FINAL.replace(*change))


def test_the_last_message_comes_last() -> None:
    with pytest.raises(ScramError):
        conversation().final(FINAL)


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_no_bytes_make_anything_else_happen(first: bytes, final: bytes) -> None:
    talk = conversation()
    try:
        talk.first(first)
        assert talk.final(final) is None
    except ScramError:
        pass


def test_keys_are_written_and_read() -> None:
    text = written(PENCIL)
    assert text == "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$" + text.partition("==$")[2]
    assert read(text) == PENCIL
    for bad in ("", "SCRAM-SHA-256$", text[:-5], text.replace("4096", "x"), text.replace("4096", "0"), text.replace("SCRAM", "Scram")):
        assert read(bad) is None


@pytest.mark.parametrize(
    ("password", "expected"),
    [
        ("pencil", b"pencil"),
        ("I\u00adX", b"IX"),  # RFC 4013, section 3
        ("\u00aa", b"a"),
        ("\u2168", b"IX"),
        ("a\u00a0b", b"a b"),
        ("é", "é".encode()),
        ("e\u0301", "é".encode()),
        ("é\u0007", "é\u0007".encode()),  # forbidden: as it is
        ("\u06271", "\u06271".encode()),
        ("é\udc80", "é\udc80".encode("utf-8", "surrogatepass")),
    ],
)
def test_passwords_are_prepared_as_by_clients(password: str, expected: bytes) -> None:
    assert prepared(password) == expected


class Desk:
    """Users with SCRAM on, few iterations, and whoever keeps their keys."""

    def __init__(self, definitions: MemoryDefinitions | None = None) -> None:
        self.definitions = definitions or MemoryDefinitions()
        self.clock = ManualClock()
        self.users = Users(self.definitions, self.clock, Limits().replace(scram_iterations=4096, login_user_failures=3), scram=True)
        self.users.on_keys = lambda known, fresh: self.users.put(fresh)

    def log_in(self, user: str, password: str) -> bool | None:
        talk = self.users.conversation()
        first = f"n,,n={user},r=abc".encode()
        good, answer = self.users.prove(talk, client(talk.first(first), password, first), "192.0.2.1")
        assert bool(good) == bool(answer)
        return good


@pytest.fixture
def desk():  # type: ignore[no-untyped-def]
    made = Desk()
    yield made
    made.users.close()


def test_a_password_that_is_set_gets_keys(desk: Desk) -> None:
    desk.users.put(UserRecord("ann"))
    assert desk.log_in("ann", "") is False
    desk.users.set_password("ann", "secret")
    assert desk.log_in("ann", "secret")
    assert desk.log_in("ann", "Secret") is False
    assert desk.users.check("ann", "secret")


def test_a_good_login_by_password_makes_keys_once(desk: Desk) -> None:
    from flintmq.access.users import hash_password

    hashed = hash_password("secret")
    desk.users.put(UserRecord("ann", hashed, ("management",)))
    assert desk.log_in("ann", "secret") is False
    assert not desk.users.check("ann", "wrong")
    assert not keys_of(desk.users.get("ann").password_hash)  # type: ignore[union-attr]
    assert desk.users.check("ann", "secret")
    record = desk.users.get("ann")
    assert record is not None
    assert (hash_of(record.password_hash), record.tags) == (hashed, ("management",))
    assert desk.users.check_cached("ann", "secret")  # its hash is the same: what was verified holds
    assert desk.log_in("ann", "secret")
    assert desk.users.check("ann", "secret")
    assert desk.users.get("ann") is record
    assert shown_hash(record.password_hash) == (hashed, "flintmq_argon2id")
    with pytest.raises(ValueError, match="no argon2id string"):
        stored_hash("flintmq_argon2id", record.password_hash)


def test_a_hash_of_rabbitmq_gets_keys_and_stays(desk: Desk) -> None:
    foreign = "rabbit_password_hashing_sha256$" + base64.b64encode(b"salt" + hashlib.sha256(b"saltpw").digest()).decode()
    desk.users.put(UserRecord("old", foreign))
    assert desk.users.check("old", "pw")
    record = desk.users.get("old")
    assert record is not None and matches(record.password_hash, "pw") and keys_of(record.password_hash)
    assert desk.log_in("old", "pw")
    assert desk.users.check("old", "pw")


def test_nobody_learns_who_is_there(desk: Desk) -> None:
    """Salt and iterations are the same for a name before it is a user, as one with keys, with a new password, and after a restart."""

    def challenge(at: Desk) -> str:
        return at.users.conversation().first(b"n,,n=ann,r=abc").decode().partition(",")[2]

    before = challenge(desk)
    assert before != desk.users.conversation().first(b"n,,n=bob,r=abc").decode().partition(",")[2]
    desk.users.put(UserRecord("ann"))
    assert challenge(desk) == before
    for password in ("one", "two"):
        desk.users.set_password("ann", password)
        assert challenge(desk) == before
    again = Desk(desk.definitions)
    assert challenge(again) == before
    again.users.close()
    other = Desk()
    assert challenge(other) != before
    other.users.close()


def test_unknown_users_take_the_same_steps(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A guess for a user, for one without keys and for nobody computes the same MACs."""
    desk.users.put(UserRecord("plain"))
    desk.users.put(UserRecord("ann"))
    desk.users.set_password("ann", "secret")
    counted: list[int] = []
    digest = hmac.digest

    class Counting:
        compare_digest = staticmethod(hmac.compare_digest)

        @staticmethod
        def digest(*arguments: object) -> bytes:
            counted[-1] += 1
            return digest(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(scram, "hmac", Counting)
    for user in ("ann", "plain", "nobody"):
        talk = desk.users.conversation()
        counted.append(0)
        talk.first(f"n,,n={user},r=abc".encode())
        proof = base64.b64encode(bytes(32)).decode()
        assert desk.users.prove(talk, f"c=biws,r={talk._nonce},p={proof}".encode(), "192.0.2.1")[0] is False
    assert len(set(counted)) == 1


def test_guesses_are_slowed_with_those_of_passwords(desk: Desk) -> None:
    desk.users.put(UserRecord("ann"))
    desk.users.set_password("ann", "secret")
    talk = desk.users.conversation()
    talk.first(b"n,,n=ann,r=abc")
    with pytest.raises(ScramError):
        desk.users.prove(talk, b"nonsense", "192.0.2.1")  # counts as well
    assert desk.log_in("ann", "1") is False
    assert desk.log_in("ann", "2") is False
    assert desk.log_in("ann", "secret") is None
    assert desk.users.throttle.refuses("ann", "192.0.2.1")
    desk.clock.advance(ms=Limits().login_user_failure_s * 1000)
    assert desk.log_in("ann", "secret")
    assert not desk.users.throttle.refuses("ann", "192.0.2.1")


def test_keys_that_changed_in_the_middle_let_nobody_in(desk: Desk) -> None:
    desk.users.put(UserRecord("ann"))
    desk.users.set_password("ann", "secret")
    talk = desk.users.conversation()
    final = client(talk.first(b"n,,n=ann,r=abc"), "secret", b"n,,n=ann,r=abc")
    assert desk.users.prove(talk, final, "192.0.2.1")[0]
    assert desk.users.still(talk)
    desk.users.set_password("ann", "new")
    assert not desk.users.still(talk)
    desk.users.delete("ann")
    assert not desk.users.still(talk)


def test_salts_of_a_node() -> None:
    assert Stranger(bytes(32), 4096).keys_for("ann", "x").salt == Stranger(bytes(32), 4096).nobody("ann").salt
    assert Stranger(bytes(32), 4096).nobody("ann") != Stranger(b"k" * 32, 4096).nobody("ann")


def test_without_scram_nothing_is_made_or_kept() -> None:
    definitions = MemoryDefinitions()
    users = Users(definitions, ManualClock())
    users.put(UserRecord("ann"))
    users.set_password("ann", "secret")
    assert " " not in users.get("ann").password_hash  # type: ignore[union-attr]
    assert not definitions.load_parameters("scram-salts")
    users.close()
