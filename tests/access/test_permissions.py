"""Nobody does what the patterns do not allow, for every method and every combination of permissions, with RabbitMQ's texts."""

from __future__ import annotations

from itertools import product

import pytest

from flintmq.access.permissions import NEEDS, Permissions
from flintmq.errors import PeerError, ReplyCode
from flintmq.ports import PermissionRecord, Resource, Verb
from flintmq.store.definitions import MemoryDefinitions

NAMES = {
    "queue": "q",
    "exchange": "x",
    "source": "s",
    "destination": "d",
    "alternate_exchange": "ae",
    "dead_letter_exchange": "dlx",
}


def permissions(configure: str = "", write: str = "", read: str = "") -> Permissions:
    made = Permissions(MemoryDefinitions())
    made.set_permissions(PermissionRecord("u", "/", configure, write, read))
    return made


def allowed(made: Permissions, method: str, names: dict[str, str | None]) -> bool:
    try:
        made.authorize_method("u", "/", method, names)
    except PeerError as error:
        assert error.code is ReplyCode.ACCESS_REFUSED
        assert error.text.endswith("in vhost '/' refused for user 'u'")
        return False
    return True


@pytest.mark.parametrize("method", sorted(NEEDS))
@pytest.mark.parametrize("optional", [True, False])
def test_every_method_with_every_set_of_permissions(method: str, optional: bool) -> None:
    names: dict[str, str | None] = {
        name: value if optional or not any(need.only_if == name for need in NEEDS[method]) else None for name, value in NAMES.items()
    }
    needs = [need for need in NEEDS[method] if not need.only_if or names[need.only_if] is not None]
    for granted in product((False, True), repeat=3):
        given_verbs = {verb for verb, yes in zip(Verb, granted, strict=True) if yes}
        made = permissions(*(".*" if yes else "" for yes in granted))
        expected = all(need.verb in given_verbs if need.verb is not None else bool(given_verbs) for need in needs)
        assert allowed(made, method, names) is expected


@pytest.mark.parametrize("method", sorted(NEEDS))
def test_permission_on_another_name_is_no_permission(method: str) -> None:
    # Each needed resource in turn is the one that the patterns leave out.
    for need in NEEDS[method]:
        left_out = f"^(?!{NAMES[need.name]}$)"
        assert not allowed(permissions(left_out, left_out, left_out), method, dict(NAMES))


def test_texts() -> None:
    made = permissions()
    with pytest.raises(PeerError) as refused:
        made.authorize("u", "/", Verb.WRITE, Resource("exchange", ""))
    assert refused.value.text == "write access to exchange 'amq.default' in vhost '/' refused for user 'u'"
    with pytest.raises(PeerError) as refused:
        made.authorize("u", "/", Verb.READ, Resource("queue", "q"))
    assert refused.value.text == "read access to queue 'q' in vhost '/' refused for user 'u'"
    with pytest.raises(PeerError) as refused:
        made.authorize_vhost("u", "other")
    assert (refused.value.code, refused.value.text) == (ReplyCode.NOT_ALLOWED, "access to vhost 'other' refused for user 'u'")
    made.authorize_vhost("u", "/")


def test_a_pattern_is_searched_and_the_empty_one_matches_only_the_empty_name() -> None:
    made = permissions(configure="^a-", write="b", read="")
    made.authorize("u", "/", Verb.CONFIGURE, Resource("queue", "a-1"))
    made.authorize("u", "/", Verb.WRITE, Resource("queue", "abc"))
    for verb, name in ((Verb.CONFIGURE, "ba-"), (Verb.WRITE, "xyz"), (Verb.READ, "q")):
        with pytest.raises(PeerError):
            made.authorize("u", "/", verb, Resource("queue", name))


def test_a_name_is_never_a_pattern() -> None:
    made = permissions(read="^q$")
    for name in (".*", "q|x", "^q$", "q.", "["):
        with pytest.raises(PeerError):
            made.authorize("u", "/", Verb.READ, Resource("queue", name))


def test_a_bad_pattern_is_refused_and_changes_nothing() -> None:
    made = permissions(read=".*")
    with pytest.raises(ValueError):
        made.set_permissions(PermissionRecord("u", "/", "(", ".*", ""))
    made.authorize("u", "/", Verb.READ, Resource("queue", "q"))
    with pytest.raises(PeerError):
        made.authorize("u", "/", Verb.WRITE, Resource("queue", "q"))


def test_changes_count_at_once_and_come_back_from_definitions() -> None:
    definitions = MemoryDefinitions()
    made = Permissions(definitions)
    made.set_permissions(PermissionRecord("u", "/", ".*", ".*", ".*"))
    Permissions(definitions).authorize("u", "/", Verb.READ, Resource("queue", "q"))
    made.clear_permissions("u", "/")
    with pytest.raises(PeerError):
        made.authorize("u", "/", Verb.READ, Resource("queue", "q"))
    with pytest.raises(PeerError):
        Permissions(definitions).authorize_vhost("u", "/")
    made.set_permissions(PermissionRecord("u", "/", ".*", ".*", ".*"))
    made.forget_user("u")
    with pytest.raises(PeerError):
        made.authorize_vhost("u", "/")


def test_names_in_patterns_of_routing_keys_are_text() -> None:
    """What a user is called is no part of a regular expression, and no variable of it."""
    made = Permissions(MemoryDefinitions())

    def may(pattern: str, user: str, vhost: str, key: str) -> bool:
        made.set_topic(user, vhost, "t", pattern, "")
        try:
            made.authorize_topic(user, vhost, Verb.WRITE, "t", key)
        except PeerError:
            return False
        return True

    assert may("^{username}-{vhost}$", "a.c|.*", "v*", "a.c|.*-v*")
    for key in ("abc", "a.c|xx-v*", "a.c|.*-vvv"):
        assert not may("^{username}-{vhost}$", "a.c|.*", "v*", key)
    assert may("^{username}$", "{vhost}", "all", "{vhost}")
    assert not may("^{username}$", "{vhost}", "all", "all")


def test_what_is_not_decided_is_refused() -> None:
    made = Permissions(MemoryDefinitions())
    made.set_permissions(PermissionRecord("u", "/", "(a+)+$|x", ".*", ".*"))
    made.authorize("u", "/", Verb.CONFIGURE, Resource("queue", "x"))
    with pytest.raises(PeerError, match="configure access to queue"):
        made.authorize("u", "/", Verb.CONFIGURE, Resource("queue", "a" * 60 + "b" * 60))
    made.set_topic("u", "/", "t", "(a+)+[bc]|.*", "(a+)+[bc]|.*")
    with pytest.raises(PeerError, match="write access to topic"):
        made.authorize_topic("u", "/", Verb.WRITE, "t", "a" * 60)
    made.authorize_topic("u", "/", Verb.WRITE, "t", "x")


def test_stored_patterns_of_another_engine_refuse_and_do_not_stop_a_start(caplog: pytest.LogCaptureFixture) -> None:
    definitions = MemoryDefinitions()
    definitions.save_permission(PermissionRecord("u", "/", r"^\N{DIGIT ONE}$", "^own", ".*"))
    made = Permissions(definitions)
    assert "the stored permission pattern" in caplog.text and "matches nothing" in caplog.text
    made.authorize("u", "/", Verb.WRITE, Resource("queue", "own"))
    with pytest.raises(PeerError):
        made.authorize("u", "/", Verb.CONFIGURE, Resource("queue", "1"))
    with pytest.raises(ValueError, match="not a regular expression"):
        made.set_permissions(PermissionRecord("u", "/", r"^\N{DIGIT ONE}$", "", ""))
