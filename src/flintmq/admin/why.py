"""Why a message goes where it goes: the bindings of each exchange on its way, which of them match, and why the others do not.

in: an exchange, a routing key, headers. out: the queues (asked of the routing table itself), and a step for each exchange.

W1  Where the message goes is what `VirtualHost.route_keys` says; this module only explains it. A binding is said to match when its
    destination is among those that the exchange itself names, so that explanation and routing agree for every kind of exchange.
W2  At most Limits.why_bindings_max bindings are explained, in at most Limits.why_steps_max steps; the others are counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flintmq.admin.messages import plain
from flintmq.errors import PeerError, ReplyCode
from flintmq.routing.exchange import loose

# exchanges on the way of one message that are explained, and tries to look at bindings that change meanwhile
_EXCHANGES_MAX, _TRIES = 100, 5


def text(name: bytes | str) -> str:
    raw = name if isinstance(name, bytes) else name.encode("utf-8", "surrogateescape")
    return raw.decode("utf-8", "replace")


class Why:
    """Args: vhost: of the message; limits."""

    def __init__(self, vhost: Any, limits: Any) -> None:
        self._vhost = vhost
        self._bindings = limits.why_bindings_max
        self._steps = limits.why_steps_max

    def explain(self, exchange: str, key: bytes, headers: Mapping[str, Any]) -> dict[str, Any]:
        """The answer. Raises: PeerError 404, 406."""
        queues = self._vhost.route_keys(exchange, [key], headers)
        steps: list[dict[str, Any]] = []
        seen, pending = {exchange}, [(exchange, "it is published there")]
        while pending and len(steps) < _EXCHANGES_MAX:
            name, how = pending.pop(0)
            known = self._vhost.exchanges.get(name)
            if known is None:
                steps.append({"exchange": text(name), "reached": how, "missing": True, "matched": 0, "bindings": [], "left_out": 0})
                continue
            step, following = self._step(known, how, key, headers)
            steps.append(step)
            if not step["matched"] and known.alternate is not None:
                following = [(known.alternate, f"alternate of '{text(name)}', which matched nothing")]
            for target in following:
                if target[0] not in seen:
                    seen.add(target[0])
                    pending.append(target)
        return {
            "routed": bool(queues),
            "queues": sorted(text(one.name) for one in queues)[:1000],
            "queue_count": len(queues),
            "steps": steps,
            "advice": self._advice(queues, steps),
        }

    def _step(self, exchange: Any, how: str, key: bytes, headers: Mapping[str, Any]) -> tuple[dict[str, Any], list[tuple[str, str]]]:
        matched = _matched(exchange, key, headers)
        rows: list[dict[str, Any]] = []
        left_out = 0
        bindings = list(exchange.bindings.values())
        # Those that lead somewhere first: they are what the limit must not cut.
        for binding in sorted(bindings, key=lambda one: one.destination not in matched):
            if self._bindings <= 0 or self._steps <= 0:
                left_out += 1
                continue
            self._bindings -= 1
            reason = self._reason(exchange.kind, binding, key, headers)
            rows.append(
                {
                    "destination": text(binding.destination.name),
                    "destination_type": binding.destination.destination_kind,
                    "routing_key": text(binding.routing_key),
                    "arguments": binding.arguments,
                    "matches": binding.destination in matched and reason == "",
                    "reason": reason or ("it matches" if binding.destination in matched else "its exchange does not choose it"),
                }
            )
        if not exchange.name:
            name = text(key)
            there = bool(matched)
            reason = "a queue has this name" if there else "no queue has this name: the default exchange takes the routing key for one"
            rows.append(
                {
                    "destination": name,
                    "destination_type": "queue",
                    "routing_key": name,
                    "arguments": {},
                    "matches": there,
                    "reason": reason,
                }
            )
        following = [(one.name, f"bound to '{text(exchange.name)}'") for one in matched if one.destination_kind == "exchange"]
        step = {
            "exchange": text(exchange.name),
            "type": exchange.kind,
            "reached": how,
            "matched": len(matched),
            "bindings": rows,
            "left_out": left_out,
            "alternate": None if exchange.alternate is None else text(exchange.alternate),
        }
        return step, following

    def _reason(self, kind: str, binding: Any, key: bytes, headers: Mapping[str, Any]) -> str:
        """Why a binding does not match; "" when nothing speaks against it."""
        if kind == "direct":
            self._steps -= 1
            return _direct(binding.routing_key, key)
        if kind == "topic":
            return self._topic(binding.routing_key, key)
        if kind == "headers":
            return self._headers(binding.arguments, headers)
        self._steps -= 1
        return ""

    def _topic(self, pattern: bytes, key: bytes) -> str:
        """A set of states, one for each word of the pattern that may come next: no backtracking."""
        words, wanted = key.split(b".") if key else [], pattern.split(b".") if pattern else []
        states = _closed({0}, wanted)
        for count, word in enumerate(words):
            self._steps -= len(states)
            following = {
                index if wanted[index] == b"#" else index + 1
                for index in states
                if index < len(wanted) and wanted[index] in (b"#", b"*", word)
            }
            if not following:
                expected = sorted({text(wanted[index]) for index in states if index < len(wanted)})[:5]
                end = f"the pattern asks for {' or '.join(map(repr, expected))}" if expected else "the pattern ends before it"
                return f"word {count + 1} of the key is {text(word)!r}: {end}"
            states = _closed(following, wanted)
        self._steps -= 1
        if len(wanted) in states:
            return ""
        return f"the key has {len(words)} word{'s' * (len(words) != 1)}, and the pattern asks for more"

    def _headers(self, arguments: Mapping[str, Any], headers: Mapping[str, Any]) -> str:
        mode = arguments.get("x-match", "all")
        with_x = mode in ("all-with-x", "any-with-x")
        wanted = {name: value for name, value in arguments.items() if name != "x-match" and (with_x or not name.startswith("x-"))}
        misses = []
        for name, value in wanted.items():
            self._steps -= 1
            if name not in headers:
                misses.append(f"header {text(name)!r} is not there")
            elif value is not None and loose(value) != loose(headers[name]):
                misses.append(f"header {text(name)!r} is {plain(headers[name])!r}, not {value!r}"[:200])
        if mode in ("any", "any-with-x"):
            if wanted and len(misses) < len(wanted):
                return ""
            return "x-match is any, and none matches: " + "; ".join(misses[:5]) if wanted else "x-match is any, and it asks for no header"
        return "; ".join(misses[:5])

    def _advice(self, queues: list[Any], steps: list[dict[str, Any]]) -> str:
        """One sentence for whoever asks why nothing came."""
        if queues:
            return ""
        first = steps[0]
        if not first["bindings"] and not first["left_out"]:
            return f"exchange '{first['exchange']}' has no bindings: bind a queue to it."
        near = next((row for step in steps for row in step["bindings"] if "but for" in row["reason"]), None)
        if near is not None:
            return f"the binding key {near['routing_key']!r} is the same but for its letters' case or spaces."
        if any(step.get("missing") for step in steps):
            return "the alternate exchange that is named does not exist: declare it."
        if any(row["matches"] and row["destination_type"] == "exchange" for step in steps for row in step["bindings"]):
            return "an exchange passes it on to another one, which has no binding that matches."
        return "no binding matches: compare the key and the headers with the reasons, or give the exchange an alternate exchange."


def _matched(exchange: Any, key: bytes, headers: Mapping[str, Any]) -> set[Any]:
    """What the exchange itself chooses. Raises: PeerError 406, or 506 when its bindings change faster than they can be looked at."""
    for _ in range(_TRIES):
        try:
            return set(exchange.match(key, headers))
        except RuntimeError:  # a binding came or went meanwhile: this thread has not the virtual host's lock
            continue
    raise PeerError(ReplyCode.RESOURCE_ERROR, f"the bindings of exchange '{exchange.name}' change too fast to be looked at")


def _closed(states: set[int], wanted: list[bytes]) -> set[int]:
    """With what `#` may leave out."""
    reached, pending = set(states), list(states)
    while pending:
        state = pending.pop()
        if state < len(wanted) and wanted[state] == b"#" and state + 1 not in reached:
            reached.add(state + 1)
            pending.append(state + 1)
    return reached


def _direct(wanted: bytes, key: bytes) -> str:
    if wanted == key:
        return ""
    if text(wanted).strip().lower() == text(key).strip().lower():
        return f"its key is {text(wanted)!r}: the same but for case or spaces"
    return f"its key is {text(wanted)!r}"
