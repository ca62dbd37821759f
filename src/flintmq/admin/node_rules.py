"""Rules of the diagnosis about the node, its users, its links, and names that lead nowhere.

in: parts of the node, facts that the operating system was asked for, the calling user. out: cards (admin.diagnosis).

R1  A rule is here or in admin.diagnosis once: `flintmq doctor` and the console show the same cards.
R2  Looks at all queues or exchanges are made in pieces; what the user does not see is in no card, and in no count of one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from flintmq.admin.api_names import shown
from flintmq.admin.counts import is_hidden
from flintmq.admin.node_facts import alarms_of, blocked_count, descriptors, disk_free, federation_of, shovels_of
from flintmq.admin.parts import Parts
from flintmq.core.memory_account import bytes_held

ERROR, WARNING, HINT = "error", "warning", "hint"
# descriptors below which connections and streams run out early
_DESCRIPTORS = 4_096
# part of a limit (memory, descriptors) from which it is said that it comes near; free bytes of the disk are compared with so many limits
_NEAR, _DISK_NEAR = 0.8, 4
# messages without a queue, within UNROUTABLE_S, that are worth a card
_UNROUTABLE = 1
UNROUTABLE_S = 300
# queues or exchanges that are looked at in one piece, and names that one card shows
_PIECE, _NAMES_MAX = 500, 3
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


class Facts(NamedTuple):
    """What the operating system says. fds, fds_max: descriptors of the process; free: bytes of the store's disk, None: there is none."""

    fds: int
    fds_max: int
    free: int | None


def facts_of(parts: Parts) -> Facts:
    """Asks the operating system: in a thread."""
    return Facts(*descriptors(), disk_free(parts))


def card(level: str, title: str, text: str, advice: str, page: str) -> dict[str, Any]:
    return {"level": level, "title": title, "text": text, "advice": advice, "page": page}


def node_cards(parts: Parts, facts: Facts, lost: tuple[int, int]) -> Iterator[dict[str, Any]]:
    """Of the process. Args: lost: messages that led to no queue, and in how many seconds. O(connections)."""
    yield from _resources(parts, facts)
    if parts.store is not None and parts.store.failure is not None:
        yield card(ERROR, "The disk failed", "nothing is confirmed any more", "See the log, and restart on a good disk", "node")
    count, seconds = lost
    if count >= _UNROUTABLE:
        text = f"{count} messages of the last {seconds} s were published to exchanges that led to no queue"
        yield card(WARNING, "Messages go nowhere", text, "Test the route, or give the exchange an alternate exchange", "why")
    service = {} if parts.pipeline is None else parts.pipeline()["flight"]
    if service and service["failed_starts"] and service["state"] != "up":
        text = f"{service['failed_starts']} starts of the service for Arrow Flight failed: Spark can't reach this broker"
        yield card(WARNING, "The Flight service does not start", text, "See the log: it says why", "node")
    plain = sorted({kind for kind, address, _ in parts.listeners() if address not in _LOOPBACK and kind in ("amqp", "http")})
    if plain:
        text = f"{' and '.join(plain)} without TLS can be reached from other machines"
        yield card(HINT, "Passwords go over the network as they are", text, "Give certificates (--tls-cert), or listen on loopback", "node")
    yield from _members(parts)


def _resources(parts: Parts, facts: Facts) -> Iterator[dict[str, Any]]:
    memory, disk = alarms_of(parts)
    blocked = blocked_count(parts)
    effect = f"{blocked} connections of publishers are blocked" if blocked else "publishers will be blocked: none is so far"
    held, limit = bytes_held(), parts.memory_limit
    if memory:
        advice = "Consume messages, or give the broker memory"
        yield card(ERROR, "Memory is short", f"clients hold {_mib(held)} of {_mib(limit)} MiB, and {effect}", advice, "node")
    elif held > _NEAR * limit > 0:
        text = f"clients hold {_mib(held)} MiB, and publishers will be blocked at {_mib(limit)}"
        yield card(WARNING, "Memory is nearly short", text, "Consume messages, or give the broker memory", "node")
    floor = parts.disk_reserve
    if disk:
        yield card(ERROR, "The disk is full", effect, "Free space in the store's directory", "node")
    elif facts.free is not None and floor and facts.free < _DISK_NEAR * floor:
        text = f"{_mib(facts.free)} MiB are free, and publishers will be blocked below {_mib(floor)}"
        yield card(WARNING, "The disk is nearly full", text, "Free space, or consume messages", "node")
    if facts.fds_max < _DESCRIPTORS:
        text = f"the broker may open {facts.fds_max} files, and each connection and stream takes one"
        yield card(WARNING, "Few descriptors", text, "Raise ulimit -n (LimitNOFILE)", "node")
    elif facts.fds > _NEAR * facts.fds_max:
        text = f"{facts.fds} of {facts.fds_max} files are open"
        yield card(WARNING, "Descriptors run out", text, "Raise ulimit -n (LimitNOFILE), or close connections", "node")


def _mib(size: int) -> int:
    return size >> 20


def _members(parts: Parts) -> Iterator[dict[str, Any]]:
    broker = parts.broker
    cluster = broker.cluster
    for other in () if cluster is None else cluster.members():
        if other["name"] == cluster.name:
            continue
        if other["state"] == "down":
            yield card(WARNING, "A node is down", str(other["name"]), "Start it, or forget it: flintmq cluster remove", "node")
        elif other["state"] in ("draining", "drained"):
            yield card(HINT, "A node is drained", str(other["name"]), "Stop it, and start it again: it takes no clients", "node")
    if broker.draining:
        yield card(HINT, "A node is drained", parts.node_name, "Stop it, and start it again: it takes no clients", "node")


def user_cards(parts: Parts) -> Iterator[dict[str, Any]]:
    """Of users, for administrators. O(users)."""
    users = parts.broker.users
    known = [record for record in map(users.get, users.names()) if record is not None]
    empty = [shown(record.name) for record in known if not record.password_hash and record.tags]
    if empty:
        text = ", ".join(empty[:10])
        yield card(HINT, "Users without a password", text, "Only a certificate lets them in: is that meant", "users")


def link_cards(parts: Parts, sees: Callable[[str], bool]) -> Iterator[dict[str, Any]]:
    """Of shovels and links of federation. Args: sees: whether the user sees a virtual host. O(links)."""
    for one in shovels_of(parts):
        if one["state"] == "terminated" and sees(one["vhost"]):
            text = f"shovel '{shown(one['name'])}' in vhost '{one['vhost']}': {one.get('reason', '')}"
            advice = "Mend its cause; flintmq ctl restart_shovel tries at once"
            yield card(WARNING, "A shovel does not run", text, advice, "shovels") | {"vhost": one["vhost"]}
    for one in federation_of(parts):
        if one["status"] == "error" and sees(one["vhost"]):
            text = f"{one['type']} '{shown(one[one['type']])}' in vhost '{one['vhost']}' from '{one['upstream']}': {one.get('error', '')}"
            advice = "Mend its cause; flintmq ctl restart_federation_link"
            yield card(WARNING, "A link of federation does not run", text, advice, "federation") | {"vhost": one["vhost"]}


async def target_cards(vhosts: Iterable[Any]) -> list[dict[str, Any]]:
    """Exchanges that are named, and do not exist: messages that are led to them are lost. In pieces. O(queues + exchanges)."""
    texts: Mapping[str, list[str]] = {"queue": [], "exchange": []}  # of the first
    missing = {"queue": 0, "exchange": 0}
    for vhost in vhosts:
        for kind, things in (("queue", list(vhost.queues.values())), ("exchange", list(vhost.exchanges.values()))):
            for start in range(0, len(things), _PIECE):
                sentences = list(_missing(vhost, kind, things[start : start + _PIECE]))
                missing[kind] += len(sentences)
                texts[kind].extend(sentences[: _NAMES_MAX - len(texts[kind])])
                await asyncio.sleep(0)
    cards = []
    for kind, title in (("queue", "A dead-letter exchange is missing"), ("exchange", "An alternate exchange is missing")):
        if missing[kind]:
            suffix = f" and {missing[kind] - _NAMES_MAX} more" if missing[kind] > _NAMES_MAX else ""
            text = "; ".join(texts[kind]) + suffix + ": messages are lost"
            cards.append(card(WARNING, title, text, "Declare it, or change the name", "exchanges"))
    return cards


def _missing(vhost: Any, kind: str, things: Iterable[Any]) -> Iterator[str]:
    for thing in things:
        if kind == "queue" and is_hidden(thing):
            continue
        target = thing.policy.dead_letter_exchange if kind == "queue" else thing.alternate
        if target and target not in vhost.exchanges:
            yield f"{kind} '{shown(thing.name)}' in vhost '{vhost.name}' names '{shown(target)}'"
