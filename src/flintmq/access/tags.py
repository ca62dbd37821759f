"""Tags of users: what a user with a tag may manage, in one table for the definitions service and for HTTP.

in: a verb of management, a user with its tags, the virtual host it is about. out: nothing, or `NotAuthorised` with RabbitMQ's text.

Tags and rules are those of RabbitMQ 3.10 (tests/admin/test_api_tags.py asks both). `management`: may look at its own objects;
`policymaker`: that, and policies and parameters of its virtual hosts;
`monitoring`: may look at everything; `administrator`: everything. Its virtual hosts are those in which it has permissions. An action on
queues, exchanges and messages needs AMQP's permissions besides (access.permissions).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

ADMINISTRATOR, MONITORING, POLICYMAKER, MANAGEMENT = "administrator", "monitoring", "policymaker", "management"
TAGS = (ADMINISTRATOR, MONITORING, POLICYMAKER, MANAGEMENT)

# which virtual hosts a verb is for
ANY = "any"  # it is about none, or what it shows is picked out (`sees`)
SEEN = "seen"  # one in which the user has permissions; with `monitoring` every one
OWN = "own"  # one in which the user has permissions


class Rule(NamedTuple):
    """The allowed callers: tags, one of which is needed (an administrator always may), the virtual hosts, and the words of a refusal."""

    tags: frozenset[str]
    vhosts: str
    refusal: str


def _rule(tags: str, vhosts: str = ANY, refusal: str = "Not management user") -> Rule:
    return Rule(frozenset(tags.split()) | {ADMINISTRATOR}, vhosts, refusal)


_EVERY = "monitoring policymaker management"
_VHOST = "User not authorised to access virtual host"
_OBJECT = "User not authorised to access object"
RULES: Mapping[str, Rule] = {
    "look": _rule(_EVERY),
    "vhost.look": _rule(_EVERY, SEEN, _VHOST),
    "vhost.use": _rule(_EVERY, OWN, _VHOST),
    "node.look": _rule("monitoring", ANY, "Not monitor user"),
    "policy.look": _rule("policymaker", OWN, _OBJECT),
    "parameter.look": _rule("policymaker", OWN, _OBJECT),
    "policy.change": _rule("policymaker", OWN, _OBJECT),
    "parameter.change": _rule("policymaker", OWN, _OBJECT),
    "global-parameter.change": _rule("policymaker", ANY, _OBJECT),
    "operator-policy.change": _rule("", ANY, "Not administrator user"),
    "user.look": _rule("", ANY, "Not administrator user"),
    "user.change": _rule("", ANY, "Not administrator user"),
    "permission.change": _rule("", ANY, "Not administrator user"),
    "limit.change": _rule("", ANY, "Not administrator user"),
    "vhost.change": _rule("", ANY, "Not administrator user"),
    "definitions.export": _rule("", ANY, "Not administrator user"),
    "definitions.import": _rule("", ANY, "Not administrator user"),
    "node.change": _rule("", ANY, "Not administrator user"),
}


class NotAuthorised(Exception):
    """The user may not. `str` is RabbitMQ's text."""


def authorize(verb: str, tags: Collection[str], has_vhost: bool) -> None:
    """Raises: NotAuthorised; KeyError for a verb without a rule.

    Args: has_vhost: the user has permissions in the virtual host that the verb is about; not looked at when it is about none.
    """
    rule = RULES[verb]
    if not any(tag in TAGS for tag in tags):
        raise NotAuthorised("Not management user")
    if not any(tag in rule.tags for tag in tags):
        raise NotAuthorised(rule.refusal)
    if rule.vhosts == ANY or has_vhost or ADMINISTRATOR in tags or (rule.vhosts == SEEN and MONITORING in tags):
        return
    raise NotAuthorised(rule.refusal)


def sees_everything(tags: Collection[str]) -> bool:
    """Whether lists show the user what is in virtual hosts of others, and connections of others."""
    return ADMINISTRATOR in tags or MONITORING in tags
