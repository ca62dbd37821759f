"""A token's scopes allow what they say, in RabbitMQ's words, and nothing when they can't be read or the token is over."""

from __future__ import annotations

import fnmatch
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flintmq.access.permissions import Permissions
from flintmq.access.token_user import Glob, TokenUser, parse_scopes
from flintmq.access.users import Users
from flintmq.clock import ManualClock
from flintmq.errors import PeerError
from flintmq.ports import PermissionRecord, Resource, UserRecord, Verb
from flintmq.store.definitions import MemoryDefinitions


def user(*scopes: str, name: str = "ann", clock: ManualClock | None = None, end_ms: int = 10**15) -> TokenUser:
    return TokenUser(name, scopes, end_ms, clock or ManualClock())


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        ("", [""], ["a"]),
        ("*", ["", "a", "a/b"], []),
        ("**", ["", "a"], []),
        ("a", ["a"], ["", "b", "ab", "A"]),
        ("a*", ["a", "ab"], ["ba"]),
        ("*a", ["a", "ba", "aba"], ["ab"]),
        ("a*a", ["aa", "aba"], ["a", "ab"]),
        ("a*b*c", ["abc", "axbxc", "abbc"], ["ac", "acb", "abcd"]),
        ("*ab*ab*", ["abab", "xabxabx"], ["ab", "aab"]),
        ("%2F", ["/"], ["%2F"]),
        ("a%2a", ["a*"], ["ab"]),
        ("a+b", ["a b"], ["a+b"]),
        ("%C3%A9*", ["é", "éa"], ["e"]),
        (".*", [".", ".a"], ["a"]),
        ("[a]", ["[a]"], ["a"]),
    ],
)
def test_patterns(pattern: str, good: list[str], bad: list[str]) -> None:
    glob = Glob(pattern)
    assert all(glob.matches(one) for one in good)
    assert not any(glob.matches(one) for one in bad)
    assert glob.is_any == (pattern in ("*", "**"))


@given(st.text("ab*", max_size=8), st.text("ab", max_size=10))
def test_patterns_as_those_of_the_shell(pattern: str, name: str) -> None:
    assert Glob(pattern).matches(name) == bool(re.fullmatch(fnmatch.translate(pattern), name))


@pytest.mark.parametrize("bad", ["%", "%2", "a%zz", "*%"])
def test_patterns_that_cannot_be_read(bad: str) -> None:
    with pytest.raises(ValueError):
        Glob(bad)


@pytest.mark.parametrize(
    "bad",
    ["", "read", "read:", "read:*", "read:a/b/c/d", "Read:*/*", "admin:*/*", "read:%/*", "read:*/%zz", ":*/*", "tag", "tag:root", "tag:"],
)
def test_scopes_that_grant_nothing(bad: str) -> None:
    assert parse_scopes([bad]) == ([], ())


def test_tags() -> None:
    assert parse_scopes(["tag:management", "tag:administrator", "tag:other"])[1] == ("administrator", "management")


@pytest.fixture
def permissions() -> Permissions:
    definitions = MemoryDefinitions()
    definitions.save_permission(PermissionRecord("ann", "/", ".*", ".*", ".*"))
    return Permissions(definitions)


def may(permissions: Permissions, who: str, verb: Verb, kind: str, name: str, vhost: str = "/") -> bool:
    try:
        permissions.authorize(who, vhost, verb, Resource(kind, name))
    except PeerError as error:
        assert f"refused for user '{who}'" in error.text
        return False
    return True


def test_only_the_token_counts(permissions: Permissions) -> None:
    """Not what a user of the broker with the same name may."""
    ann = user("read:%2F/q*", "write:other/*")
    assert may(permissions, "ann", Verb.CONFIGURE, "queue", "x")
    assert may(permissions, ann, Verb.READ, "queue", "q1")
    assert not may(permissions, ann, Verb.READ, "queue", "x")
    assert not may(permissions, ann, Verb.CONFIGURE, "queue", "q1")
    assert not may(permissions, ann, Verb.WRITE, "exchange", "")
    assert may(permissions, ann, Verb.WRITE, "exchange", "", "other")
    assert may(permissions, user("write:*/amq.default"), Verb.WRITE, "exchange", "")
    assert permissions.has_vhost(ann, "/") and permissions.has_vhost(ann, "other") and not permissions.has_vhost(ann, "third")
    with pytest.raises(PeerError, match="access to vhost 'third' refused for user 'ann'"):
        permissions.authorize_vhost(ann, "third")
    assert permissions.grants(ann, "/", Verb.READ) and not permissions.grants(ann, "/", Verb.WRITE)
    permissions.authorize_method(ann, "/", "queue.declare-passive", {"queue": "q1"})
    with pytest.raises(PeerError):
        permissions.authorize_method(ann, "/", "queue.declare", {"queue": "q1"})
    permissions.authorize_method(user("configure:*/*", "write:*/*", "read:*/*"), "/", "queue.declare", {"queue": "q1"})


def test_routing_keys(permissions: Permissions) -> None:
    """A scope without a key grants none of a topic exchange, as on RabbitMQ."""
    permissions.set_topic("ann", "/", "amq.topic", ".*", ".*")

    def topic(who: TokenUser, key: str, verb: Verb = Verb.WRITE) -> bool:
        try:
            permissions.authorize_topic(who, "/", verb, "amq.topic", key)
        except PeerError as error:
            assert error.text == f"{verb.value} access to topic '{key}' in exchange 'amq.topic' in vhost '/' refused for user 'ann'"
            return False
        return True

    assert not topic(user("write:*/*"), "a.b")
    some = user("write:*/amq.*/a.*", "read:*/*/*")
    assert topic(some, "a.b") and not topic(some, "b.a") and topic(some, "b.a", Verb.READ)
    assert not some.may_every_key("/", "write", "amq.topic") and some.may_every_key("/", "read", "amq.topic")
    assert user("write:*/*/*").may_every_key("/", "write", "x")


def test_a_token_that_is_over_may_nothing(permissions: Permissions) -> None:
    clock = ManualClock()
    ann = user("configure:*/*", "write:*/*/*", "read:*/*", "tag:administrator", clock=clock, end_ms=clock.wall_ms() + 1000)
    users = Users(MemoryDefinitions(), clock)
    assert users.get(ann) == UserRecord("ann", "", ("administrator",))
    assert may(permissions, ann, Verb.READ, "queue", "q")
    clock.advance(ms=999)
    assert may(permissions, ann, Verb.READ, "queue", "q") and ann.may_topic("/", "write", "x", "k")
    clock.advance(ms=1)
    assert not may(permissions, ann, Verb.READ, "queue", "q")
    assert not permissions.has_vhost(ann, "/") and not ann.may_topic("/", "write", "x", "k")
    assert users.get(ann) is None
    with pytest.raises(PeerError):
        permissions.authorize_method(ann, "/", "queue.declare", {"queue": "q"})
    users.close()


def test_users_of_tokens_and_of_the_broker_are_others() -> None:
    users = Users(MemoryDefinitions())
    users.put(UserRecord("ann", "", ("administrator",)))
    one, two = user("read:*/*"), user("read:*/*")
    assert users.get(one) == UserRecord("ann")
    assert users.is_user("ann") and users.is_user(one) and not users.is_user("bob")
    assert len({users.born("ann"), users.born(one), users.born(two)}) in (2, 3) and users.born(one) != users.born(two)
    users.close()


def test_what_a_token_keeps_is_bounded() -> None:
    ann = user("read:*/*")
    for number in range(1000):
        assert ann.rights(f"v{number}") is not None
    assert len(ann._rights) <= 16
