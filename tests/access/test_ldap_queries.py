"""Queries of RabbitMQ's LDAP backend: what they decide, and that no mistake and no name of a client makes them grant more."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flintmq.access.ldap_names import folded, read_dn
from flintmq.access.ldap_queries import LdapFacts, LdapUser, Queries, parse
from flintmq.access.permissions import Permissions
from flintmq.errors import PeerError
from flintmq.ports import Resource, Verb
from flintmq.store.definitions import MemoryDefinitions

GROUPS = "ou=groups,dc=example"


def facts(*groups: str, user: str = "ann", nested: bool = False) -> LdapFacts:
    return LdapFacts(
        user, f"uid={user},ou=people", {("member", nested): frozenset(folded(read_dn(f"cn={one},{GROUPS}")) for one in groups)}
    )


def answer(text: str, kind: str = "vhost", known: LdapFacts | None = None, **values: str) -> bool:
    return parse(text, kind).decide(known or facts("admins"), {"username": "ann", "user_dn": "uid=ann,ou=people", "vhost": "/", **values})


def user(known: LdapFacts, vhost: str | None, resource: str = "{constant, true}", topic: str = "{constant, true}", **tags: str) -> LdapUser:
    queries = Queries(
        None if vhost is None else parse(vhost, "vhost"),
        parse(resource, "resource"),
        parse(topic, "topic"),
        {name: parse(text, "tag") for name, text in tags.items()},
    )
    return LdapUser(known, queries)


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("{constant, true}", True),
        (" { constant , false } ", False),
        ('{in_group, "CN=Admins,OU=Groups,DC=Example"}', True),
        (f'{{in_group, "cn=users,{GROUPS}"}}', False),
        (f'{{in_group, "cn=admins,{GROUPS}", "uniqueMember"}}', False),
        ('{equals, "${username}", "ann"}', True),
        ('{equals, {string, "${username}"}, {string, "ANN"}}', False),
        ('{match, {string, "${vhost}"}, {string, "^/$"}}', True),
        ('{match, "${vhost}", "^${username}-"}', False),
        ("{'not', {constant, false}}", True),
        ("{'and', [{constant, true}, {constant, false}]}", False),
        ("{'or', [{constant, true}, {constant, false}]}", True),
        ("{or, [{constant, false}]}", False),
    ],
)
def test_what_a_query_decides(text: str, good: bool) -> None:
    assert answer(text) is good


def test_for_is_of_a_verb_and_a_kind() -> None:
    """The example of RabbitMQ's documentation: exchanges are configured by administrators, queues by those who are named by them."""
    text = f"""{{for, [{{permission, configure, {{for, [{{resource, exchange, {{in_group, "cn=admins,{GROUPS}"}}}},
                                                     {{resource, queue, {{match, "${{name}}", "^${{username}}-"}}}}]}}}},
                      {{permission, write, {{constant, true}}}}]}}"""
    ann, bob = user(facts("admins"), "{constant, true}", text), user(facts(user="bob"), "{constant, true}", text)
    for one, verb, kind, name, good in (
        (ann, "configure", "exchange", "x", True),
        (bob, "configure", "exchange", "x", False),
        (bob, "configure", "queue", "bob-1", True),
        (bob, "configure", "queue", "ann-1", False),
        (bob, "write", "queue", "ann-1", True),
        (bob, "read", "queue", "bob-1", False),
    ):
        rights = one.rights("/")
        assert rights is not None and rights.allows(verb, kind, name) is good, (str(one), verb, kind, name)


def test_the_virtual_host_of_a_group() -> None:
    ann = user(facts("prod-users"), f'{{in_group, "cn=${{vhost}}-users,{GROUPS}"}}')
    assert ann.rights("prod") is not None and ann.rights("test") is None
    assert ann.rights(f"prod-users,{GROUPS}") is None and ann.rights("prod-users,ou=groups,dc=example,cn=x") is None


@given(st.text(max_size=30))
def test_a_name_is_no_syntax(name: str) -> None:
    """A queue's name reaches neither a DN nor an expression but as a value."""
    query = parse(f'{{in_group, "cn=${{name}},{GROUPS}"}}', "resource")
    values = {"username": "ann", "user_dn": "d", "vhost": "/", "resource": "queue", "permission": "read", "name": name}
    assert query.decide(facts("admins"), values) is (" ".join(name.casefold().split()) == "admins")
    starts = parse('{match, "${name}", "^${username}-$"}', "resource")
    assert starts.decide(facts(), {**values, "username": name, "name": "x-"}) is (name == "x")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "true",
        "constant",
        "{}",
        "{constant}",
        "{constant, yes}",
        '{constant, "true"}',
        "{constant, true",
        "{constant, true} {constant, true}",
        "{constant, true, true}",
        '{in_group, "admins"}',
        '{in_group, "cn=a", "member)(x"}',
        "{in_group, admins}",
        '{exists, "cn=a"}',
        '{in_group, "cn=${password}"}',
        '{in_group, "cn=${name}"}',  # a virtual host's query has no name
        '{match, "x", "("}',
        "{'not', [{constant, true}]}",
        "{'and', {constant, true}}",
        "{'and', [true]}",
        "{for, [{permission, write, {constant, true}}]}",  # a virtual host's query has no verb
        '{for, [{vhost, "/"}]}',
        "{" * 100,
        "[" * 1000,
        '"x',
        "{constant, true}; x",
    ],
)
def test_what_is_no_query(text: str) -> None:
    with pytest.raises(ValueError):
        parse(text, "vhost")


@pytest.mark.parametrize("name", ["name", "routing_key", "user_dn"])
def test_what_a_client_chooses_is_no_expression(name: str) -> None:
    with pytest.raises(ValueError, match="can't stand in"):
        parse(f'{{match, "x", "${{{name}}}"}}', "topic")


def test_permissions_ask_the_user() -> None:
    permissions = Permissions(MemoryDefinitions())
    ann = user(facts("admins"), '{equals, "${vhost}", "/"}', '{match, "${name}", "^a"}', '{equals, "${routing_key}", "k"}')
    permissions.authorize_vhost(ann, "/")
    permissions.authorize(ann, "/", Verb.READ, Resource("queue", "ab"))
    permissions.authorize_topic(ann, "/", Verb.WRITE, "amq.topic", "k")
    assert permissions.grants(ann, "/", Verb.READ) and not permissions.grants(ann, "other", Verb.READ)
    assert permissions.has_vhost(ann, "/") and not permissions.has_vhost(ann, "other")
    for refuse in (
        lambda: permissions.authorize_vhost(ann, "other"),
        lambda: permissions.authorize(ann, "/", Verb.READ, Resource("queue", "b")),
        lambda: permissions.authorize(ann, "other", Verb.READ, Resource("queue", "ab")),
        lambda: permissions.authorize_method(ann, "/", "queue.declare", {"queue": "b"}),
        lambda: permissions.authorize_topic(ann, "/", Verb.WRITE, "amq.topic", "other"),
        lambda: permissions.authorize_topic(ann, "other", Verb.WRITE, "amq.topic", "k"),
    ):
        with pytest.raises(PeerError):
            refuse()


def test_tags_and_a_user_without_a_query_of_virtual_hosts() -> None:
    admins: Any = f'{{in_group, "cn=admins,{GROUPS}"}}'
    ann = user(facts("admins"), "{constant, true}", administrator=admins, management="{constant, true}", monitoring="{constant, false}")
    record = ann.record()
    assert record is not None and record.tags == ("administrator", "management") and record.name == "ann"
    assert user(facts(), "{constant, true}", administrator=admins).tags == ()
    assert user(facts("admins"), None).rights("/") is None
    assert ann.may_every_key("/", "write", "x") and not user(facts(), "{constant, true}", topic='{equals, "a", "a"}').may_every_key(
        "/", "write", "x"
    )


def test_a_match_that_is_not_decided_is_a_no_also_behind_a_not() -> None:
    """A pattern that runs out of its budget must not let in whom {'not', ...} keeps out."""
    query = parse("""{'not', {match, "${name}", "(a+)+[bc]"}}""", "resource")
    values = {"username": "u", "user_dn": "x", "vhost": "/", "resource": "queue", "permission": "read"}
    assert query.allows(facts(), {**values, "name": "x"})
    assert not query.allows(facts(), {**values, "name": "ab"})
    assert not query.allows(facts(), {**values, "name": "a" * 60})
