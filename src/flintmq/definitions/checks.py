"""Checks of requests about definitions: names, tags, limits, values of parameters. Texts are RabbitMQ's where it has some.

in: values of JSON. out: the same, checked, or Refused("bad_request").
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from flintmq.arguments import is_text, is_whole
from flintmq.definitions.change_line import Refused
from flintmq.moves import shovels, upstreams
from flintmq.patterns import SHORT_BYTES_MAX, check
from flintmq.vhost.policies import APPLY_TO, check_definition

NAME_BYTES_MAX = 255
TAGS_MAX = 32
# levels of lists and objects in the value of a parameter
DEPTH_MAX = 32
LIMITS = {
    "vhost": ("max-connections", "max-queues", "max-exchanges", "max-bindings"),
    "user": ("max-connections", "max-channels", "max-consumers"),
}
SHOVEL = "shovel"
# members of a virtual host that are kept as its metadata
VHOST_METADATA = ("tags", "default_queue_type")
DEFAULT_QUEUE_TYPES = ("classic", "quorum", "stream")
# as RabbitMQ's modules are called, which its files and tools may have instead
_OLD_TYPES = {f"rabbit_{kind}_queue": kind for kind in DEFAULT_QUEUE_TYPES}
# parameters of links
COMPONENTS = ("federation-upstream", "federation-upstream-set", SHOVEL)


def bad(reason: str) -> Refused:
    return Refused("bad_request", reason)


def check_name(name: Any, kind: str) -> str:
    """A name of 1 to 255 bytes of UTF-8."""
    if not isinstance(name, str):
        raise bad(f"the name of the {kind} must be a text")
    if not is_text(name, 1, NAME_BYTES_MAX):
        raise bad(f"the name of a {kind} has 1 to {NAME_BYTES_MAX} bytes of UTF-8")
    return name


def parse_tags(tags: Any) -> tuple[str, ...]:
    """Tags of a list, or of a text with commas."""
    parts = [part.strip() for part in tags.split(",")] if isinstance(tags, str) else tags
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise bad("tags must be a list of texts, or a text with commas")
    names = tuple(dict.fromkeys(part for part in parts if part))
    if len(names) > TAGS_MAX or any(len(part) > NAME_BYTES_MAX for part in names):
        raise bad(f"at most {TAGS_MAX} tags, of at most {NAME_BYTES_MAX} characters each")
    return names


def is_queue_type(kind: str) -> bool:
    """Whether a virtual host may have it as the type of its queues."""
    return _OLD_TYPES.get(kind, kind) in ("", "undefined", *DEFAULT_QUEUE_TYPES)


def vhost_metadata(value: Mapping[str, Any]) -> dict[str, Any]:
    """The stored facts of a virtual host besides its description: tags, and the type of queues declared without one (None: classic)."""
    metadata: dict[str, Any] = {}
    if "tags" in value:
        metadata["tags"] = list(parse_tags(value["tags"]))
    if "default_queue_type" in value:
        kind = value["default_queue_type"]
        kind = _OLD_TYPES.get(kind, kind) if isinstance(kind, str) else kind
        if kind is not None and not (isinstance(kind, str) and is_queue_type(kind)):
            raise bad(f"default_queue_type must be one of {', '.join(DEFAULT_QUEUE_TYPES)}, not {str(kind)[:80]!r}")
        metadata["default_queue_type"] = kind if kind in ("quorum", "stream") else None
    return metadata


def check_patterns(patterns: Mapping[str, Any]) -> None:
    """Regular expressions of permissions."""
    for name, pattern in patterns.items():
        reason = check(pattern)
        if reason is not None:
            raise bad(f"'{name}': {reason}")


def check_limit(kind: str, limit: str, value: Any) -> int:
    """Args: kind: "user" or "vhost"."""
    if limit not in LIMITS[kind]:
        raise bad(f"Validation failed\n\nUnrecognised terms [{limit}] in limits\n")
    if not is_whole(value, -1, 2**31 - 1):
        raise bad(f"Validation failed\n\n{limit} should be a number, actually was {str(value)[:80]}\n")
    return value


def check_policy(value: Mapping[str, Any], *, operator: bool) -> dict[str, Any]:
    """The value of a policy as it is kept."""
    pattern, apply_to, priority = value.get("pattern"), value.get("apply-to") or "all", value.get("priority") or 0
    if not isinstance(pattern, str):
        raise bad("Validation failed\n\npattern should be a text\n")
    reason = check(pattern, SHORT_BYTES_MAX)
    if reason is not None:
        raise bad(f"Validation failed\n\npattern should be regular expression but is invalid: {reason}\n")
    if apply_to not in APPLY_TO:
        raise bad(f"Validation failed\n\napply-to '{str(apply_to)[:80]}' unrecognised; should be 'queues', 'exchanges' or 'all'\n")
    if not is_whole(priority, 1 - 2**31, 2**31 - 1):
        raise bad(f"Validation failed\n\npriority should be a number, actually was {str(priority)[:80]}\n")
    definition = value.get("definition")
    reason = check_definition(definition, operator)
    if reason is not None:
        raise bad(reason)
    assert isinstance(definition, Mapping)
    reason = upstreams.check_policy(definition)
    if reason is None and (upstream_pattern := definition.get("federation-upstream-pattern")) is not None:
        wrong = check(upstream_pattern, SHORT_BYTES_MAX)
        reason = None if wrong is None else f"could not compile pattern {upstream_pattern[:80]} to a regular expression. Error: {wrong}"
    if reason is not None:
        raise bad(f"Validation failed\n\n{reason}\n")
    return {"pattern": pattern, "apply-to": apply_to, "priority": priority, "definition": dict(definition)}


def check_value(value: Any, bytes_max: int) -> Any:
    """A value of a parameter. One that is nested as deep as JSON can be read could not be shown in a list, nor the others with it."""
    level = [value]
    for _ in range(DEPTH_MAX + 1):
        inner = [one.values() if isinstance(one, Mapping) else one for one in level if isinstance(one, Mapping | list)]
        level = [one for many in inner for one in many]
    if level:
        raise bad(f"a value is nested deeper than {DEPTH_MAX}")
    if len(json.dumps(value)) > bytes_max:
        raise bad(f"a value has at most {bytes_max} bytes as JSON")
    return value


def check_link(component: str, name: str, value: Any) -> None:
    """A parameter of links. Refused with RabbitMQ's texts, one line for each mistake."""
    errors = shovels.check(name, value) if component == SHOVEL else upstreams.check(component, name, value)
    if errors:
        raise bad("Validation failed\n\n" + "\n".join(errors) + "\n")


def members(value: Mapping[str, Any], names: Iterable[str]) -> list[Any]:
    """The members that must be there, in order. Refused when some are not."""
    names = tuple(names)
    missing = [f"'{name}'" for name in names if name not in value]
    if missing:
        raise bad(f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing")
    return [value[name] for name in names]
