"""Upstreams of federation: what their parameters and policies may say, and the plan of one link.

in: values of `federation-upstream` and `federation-upstream-set`, definitions of policies. out: errors as lines; plans.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from flintmq.moves import values
from flintmq.moves.shovels import ACK_MODES
from flintmq.moves.values import Rule, boolean, members, number, one_of, shown_value, text, uris, whole

UPSTREAM, UPSTREAM_SET = "federation-upstream", "federation-upstream-set"
POLICY_KEYS = ("federation-upstream", "federation-upstream-set", "federation-upstream-pattern")
# the set of all upstreams of a virtual host
ALL = "all"
RECONNECT_S, PREFETCH, HOPS = 5, 1_000, 1
ELEMENTS_MAX = 64

_SHARED = [
    *(Rule(name, text) for name in ("exchange", "queue", "consumer-tag")),
    Rule("prefetch-count", whole(0, 65_535)),
    Rule("reconnect-delay", number()),
    Rule("max-hops", whole(1, 255)),
    Rule("expires", whole(1)),
    Rule("message-ttl", whole(0)),
    Rule("trust-user-id", boolean),
    Rule("ack-mode", one_of(*ACK_MODES)),
    Rule("resource-cleanup-mode", one_of("default", "never")),
    Rule("ha-policy", text),
    Rule("bind-nowait", boolean),
    Rule("channel-use-mode", one_of("multiple", "single")),
]
_UPSTREAM = [Rule("uri", uris, True), *_SHARED]
_ELEMENT = [Rule("upstream", text, True), *_SHARED]


def check(component: str, name: str, value: Any) -> list[str]:
    """The mistake in the value of a parameter, in RabbitMQ's words."""
    if component == UPSTREAM:
        return members(name, _UPSTREAM, value) if isinstance(value, Mapping) else [f"the value of {shown_value(name)} should be an object"]
    if not isinstance(value, list) or not all(isinstance(one, Mapping) for one in value):
        return [f"the value of {shown_value(name)} should be a list of objects"]
    if len(value) > ELEMENTS_MAX:
        return [f"the set {shown_value(name)} has more than {ELEMENTS_MAX} members"]
    return [line for one in value for line in members(name, _ELEMENT, one)]


def check_policy(definition: Mapping[str, Any]) -> str | None:
    """The mistake in the keys of federation in a policy; the pattern is checked as patterns of policies are."""
    keys = [key for key in POLICY_KEYS if key in definition]
    if len(keys) > 1:
        return "cannot specify federation-upstream, federation-upstream-set or federation-upstream-pattern together"
    for key in keys:
        if not isinstance(definition[key], str):
            return f"{shown_value(definition[key])} is not a valid {key.replace('-', ' ')} name"
    return None


def settings(name: str, upstream: Mapping[str, Any], element: Mapping[str, Any]) -> dict[str, Any]:
    """What a link does: the member of the set, then the upstream, then RabbitMQ's defaults. Where to is the upstream's alone: the link acts
    for its owner, who may reach more than the maker of the set."""
    own = {key: one for key, one in element.items() if key not in ("upstream", "uri")}
    defaults = {
        "consumer-tag": f"federation-link-{name}",
        "prefetch-count": PREFETCH,
        "reconnect-delay": RECONNECT_S,
        "max-hops": HOPS,
        "ack-mode": "on-confirm",
        "trust-user-id": False,
        "resource-cleanup-mode": "default",
    }
    return {**defaults, **upstream, **own}


def local_uri(vhost: str) -> str:
    """A virtual host of this node."""
    return f"amqp:///{quote(vhost, safe='')}"


def plan(kind: str, vhost: str, name: str, cluster: str, chosen: Mapping[str, Any], thing: Mapping[str, Any]) -> dict[str, Any]:
    """Args: kind: "exchange" or "queue"; chosen: settings; thing: how the exchange or queue is declared here (`declared`)."""
    return {
        "kind": kind,
        "name": name,
        "vhost": vhost,
        "cluster": cluster,
        "remote": chosen.get(kind) or name,
        "src-uris": values.uris_of(chosen["uri"]),
        "dest-uris": [local_uri(vhost)],
        "ack-mode": chosen["ack-mode"],
        "reconnect-s": float(chosen["reconnect-delay"]),
        "prefetch": chosen["prefetch-count"],
        "delete-after": "never",
        "max-hops": chosen["max-hops"],
        "expires": chosen.get("expires"),
        "message-ttl": chosen.get("message-ttl"),
        "trust-user-id": chosen["trust-user-id"],
        "consumer-tag": chosen["consumer-tag"],
        "cleanup": chosen["resource-cleanup-mode"] != "never",
        "declared": dict(thing),
    }


def link_id(kind: str, vhost: str, name: str, upstream: str) -> str:
    """Eight digits that name a link in lists and commands."""
    return f"{zlib.crc32(repr((kind, vhost, name, upstream)).encode('utf-8', 'surrogatepass')):08x}"
