"""Only the right password gets in, what was verified is remembered as long as promised, and nothing shows a secret."""

from __future__ import annotations

import base64
import hashlib
import threading

import pytest

from flintmq.access import argon
from flintmq.access.hashes import is_foreign, matches, rabbitmq_hash, shown_hash, stored_hash
from flintmq.access.secret import Secret
from flintmq.access.users import Users, default_user, hash_password, is_loopback
from flintmq.clock import ManualClock
from flintmq.config import Limits
from flintmq.ports import UserRecord
from flintmq.store.definitions import MemoryDefinitions


class Desk:
    """Users with a clock in hand."""

    def __init__(self) -> None:
        self.definitions = MemoryDefinitions()
        self.clock = ManualClock()
        permission, guest = default_user()
        self.definitions.save_permission(permission)
        self.definitions.save_user(guest)
        self.users = Users(self.definitions, self.clock)

    def ask(self, user: str, password: str) -> bool:
        """submit_check, waited for."""
        done = threading.Event()
        answers: list[bool] = []

        def answer(good: bool) -> None:
            answers.append(good)
            done.set()

        self.users.submit_check(user, password, answer)
        assert done.wait(30)
        assert len(answers) == 1
        return answers[0]


@pytest.fixture
def desk():  # type: ignore[no-untyped-def]
    made = Desk()
    yield made
    made.users.close()


def test_guest_is_there_with_all_permissions(desk: Desk) -> None:
    assert desk.ask("guest", "guest")
    assert [record.configure for record in desk.definitions.load_permissions()] == [".*"]


@pytest.mark.parametrize(("user", "password"), [("guest", "Guest"), ("guest", ""), ("nobody", "guest"), ("nobody", ""), ("", "")])
def test_wrong_credentials_are_refused_and_not_remembered(desk: Desk, user: str, password: str) -> None:
    assert not desk.ask(user, password)
    assert desk.users.check_cached(user, password) is None


def test_a_user_without_a_password_cannot_log_in(desk: Desk) -> None:
    desk.users.put(UserRecord("empty"))
    assert not desk.ask("empty", "")


def test_a_stored_hash_of_another_kind_is_a_no(desk: Desk) -> None:
    desk.users.put(UserRecord("old", "not a hash"))
    assert not desk.ask("old", "not a hash")


def test_a_verified_credential_is_remembered_for_the_promised_time(desk: Desk) -> None:
    assert desk.users.check_cached("guest", "guest") is None
    assert desk.ask("guest", "guest")
    assert desk.users.check_cached("guest", "guest") is True
    assert desk.users.check_cached("guest", "other") is None
    desk.clock.advance(ms=Limits().credential_cache_ms - 1)
    assert desk.users.check_cached("guest", "guest") is True
    desk.clock.advance(ms=1)
    assert desk.users.check_cached("guest", "guest") is None


def test_a_changed_user_is_forgotten_at_once(desk: Desk) -> None:
    assert desk.ask("guest", "guest")
    desk.users.set_password("guest", Secret("new"))
    assert desk.users.check_cached("guest", "guest") is None
    assert not desk.ask("guest", "guest")
    assert desk.ask("guest", "new")
    assert desk.users.delete("guest")
    assert not desk.users.delete("guest")
    assert desk.users.check_cached("guest", "new") is None
    assert not desk.ask("guest", "new")


def test_a_check_under_way_while_the_user_changes_says_no(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    from flintmq.access import argon as module

    class Slow:
        def verify(self, stored: str, password: str) -> bool:
            desk.users.put(UserRecord("guest", "changed"))
            return True

    monkeypatch.setattr(module, "_HASHER", Slow())
    assert desk.users.check("guest", "guest") is False
    assert desk.users.check_cached("guest", "guest") is None


def test_unknown_users_cost_a_check_too(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    from argon2 import PasswordHasher, extract_parameters

    from flintmq.access import argon as module

    real = module._HASHER
    checked: list[str] = []

    class Counting:
        def verify(self, stored: str, password: str) -> bool:
            checked.append(stored)
            return real.verify(stored, password)

    monkeypatch.setattr(module, "_HASHER", Counting())
    desk.users.put(UserRecord("empty"))
    for user in ("guest", "nobody", "empty"):
        assert not desk.users.check(user, "wrong")
    parameters = {repr(extract_parameters(stored)) for stored in checked}
    assert len(checked) == 3
    assert parameters == {repr(extract_parameters(PasswordHasher(2, 19 * 1024, 1).hash("x")))}


def test_an_error_in_a_check_is_answered_with_no(desk: Desk) -> None:
    assert desk.ask("guest", "\ud800") is False


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("", True),
        ("10.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("fe80::1%eth0", False),
        ("localhost.evil.example", False),
    ],
)
def test_loopback(desk: Desk, address: str, expected: bool) -> None:
    assert is_loopback(address) is expected
    assert desk.users.refused_from("guest", address) is not expected
    assert not desk.users.refused_from("someone", address)


def test_a_secret_shows_itself_only_on_purpose() -> None:
    secret = Secret("canary")
    assert "canary" not in repr(secret)
    assert "canary" not in repr([secret]) + f"{secret!r}"
    assert secret == "canary"


def test_hashes_of_rabbitmq() -> None:
    """Its own examples: salt and digest in base64, by the algorithm that the file names; nothing else is taken."""
    salted = "2lmoth8l4H0DViLaK9Fxi6l9ds8="  # md5 of RabbitMQ's documentation has 20 bytes: salt and digest
    assert stored_hash("rabbit_password_hashing_md5", salted) == f"rabbit_password_hashing_md5${salted}"
    for name, digest in (("sha256", hashlib.sha256), ("sha512", hashlib.sha512), ("md5", hashlib.md5)):
        text = base64.b64encode(b"salt" + digest(b"salt" + "pässword".encode()).digest()).decode()
        stored = stored_hash(f"rabbit_password_hashing_{name}", text)
        assert matches(stored, "pässword") and not matches(stored, "password") and not matches(stored, "")
        assert shown_hash(stored) == (text, f"rabbit_password_hashing_{name}") and is_foreign(stored)
    # rabbitmqctl hash_password test12, as its documentation shows it
    assert matches("rabbit_password_hashing_sha256$kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR", "test12")
    for algorithm, text in (
        ("rabbit_password_hashing_sha256", "YWJj"),
        ("rabbit_password_hashing_sha256", "%"),
        ("foo", "YWJj"),
        ("flintmq_argon2id", "x"),
    ):
        with pytest.raises(ValueError, match=r"password hash"):
            stored_hash(algorithm, text)
    phc = hash_password("x")
    assert stored_hash(*reversed(shown_hash(phc))) == phc and not is_foreign(phc)


def test_a_foreign_hash_costs_the_same_work(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """I3: whoever has a hash of RabbitMQ costs one argon2 check, right or wrong."""
    desk.users.put(UserRecord("old", stored_hash("rabbit_password_hashing_sha256", rabbitmq_hash("secret", b"salt"))))
    checked: list[str] = []
    verify = argon._HASHER.verify

    class Hasher:
        def verify(self, stored: str, password: str) -> bool:
            checked.append(stored)
            return bool(verify(stored, password))

    monkeypatch.setattr(argon, "_HASHER", Hasher())
    assert desk.users.check("old", "secret") and not desk.users.check("old", "wrong")
    assert len(checked) == 2 and all(one.startswith("$argon2id$") for one in checked)
