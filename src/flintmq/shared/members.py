"""The nodes of a cluster as rows of its engine: who they are, where clients reach them, which of them are to be drained.

in: what a node says of itself; orders of administrators. out: all nodes at one moment, each with whether it lives.

M1  A node's row names the life (owners.py) that stands behind it, and that life is its lease: where it is over, the node is down.
M2  A name belongs to one store. Another one takes it only when the life behind it is over; its own store ends that life, since the lock
    of a store is one process's.
M3  An order names a life, and ends with it: a node that was drained and comes back serves.
M4  What other nodes wrote is checked: a row that can't be read is left out and counted, and the others stand.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flintmq.config import Limits
from flintmq.kv.engine import Engine, EngineError, Transaction
from flintmq.shared.keys import ID_BYTES, MEMBERS, ORDERS, after, owner_row, text
from flintmq.shared.queue import ALIVE, GONE, Fenced, attempt

UP, DRAINING, DRAINED, DOWN = "up", "draining", "drained", "down"
# what a node may say of itself; that it is down is for others to say
_STATES = (UP, DRAINING, DRAINED)
SERVICES = ("amqp", "amqps", "http", "flight")
FORMAT = 1
# bytes of a row
_ROW_BYTES_MAX = 4_096
_NAME = re.compile(r"[A-Za-z0-9_.@-]{1,128}")
_HOST = re.compile(r"(?:[A-Za-z0-9_.-]{1,128}|\[[0-9A-Fa-f:.%]{2,64}\]):([0-9]{1,5})")
_WORD = re.compile(r"[A-Za-z0-9_.+-]{0,64}")
_ID = re.compile(r"(?:[0-9a-f]{2}){1,16}")


class NameTaken(EngineError):
    """A node that lives has the name."""


class NoMember(EngineError):
    """No node of the cluster has the name."""


class StillUp(EngineError):
    """The node is not down."""


class NotUp(EngineError):
    """The node is down."""


@dataclass(frozen=True, slots=True)
class Member:
    """store: id of the node's store, hex; life: id in the engine; addresses: service -> host:port; since_ms: wall clock of its start; left:
    connections and leases that a drain waits for."""

    name: str
    store: str
    life: bytes
    state: str = UP
    version: str = ""
    addresses: Mapping[str, str] = field(default_factory=dict)
    since_ms: int = 0
    left: int = 0

    def pack(self) -> bytes:
        row = {
            "format": FORMAT,
            "store": self.store,
            "life": self.life.hex(),
            "state": self.state,
            "version": self.version,
            "addresses": dict(self.addresses),
            "since_ms": self.since_ms,
            "left": self.left,
        }
        return json.dumps(row).encode()


def is_name(name: str) -> bool:
    """Whether a node may have this name."""
    return _NAME.fullmatch(name) is not None


def is_address(address: str) -> bool:
    """Whether it is HOST:PORT, in characters that no client and no terminal takes for anything else."""
    match = _HOST.fullmatch(address)
    return match is not None and 0 < int(match[1]) < 65_536


def unpack(name: str, value: bytes) -> Member:
    """Raises: ValueError: it is no row of this version (M4)."""
    if len(value) > _ROW_BYTES_MAX or not is_name(name):
        raise ValueError("a row of a node is too long, or its name is none")
    try:
        row: Any = json.loads(value)
    except RecursionError as error:  # brackets alone
        raise ValueError("a row of a node is nested too deep") from error
    if not isinstance(row, dict) or row.get("format") != FORMAT:
        raise ValueError("a row of a node is none of this version")
    words: dict[str, Any] = {key: row.get(key) for key in ("store", "life", "state", "version")}
    if not all(isinstance(word, str) for word in words.values()):
        raise ValueError("a row of a node lacks a text")
    life, addresses = words["life"], row.get("addresses")
    if len(life) != 2 * ID_BYTES or not _ID.fullmatch(life) or not _ID.fullmatch(words["store"]) or words["state"] not in _STATES:
        raise ValueError("a row of a node has a wrong id or state")
    if not _WORD.fullmatch(words["version"]) or not isinstance(addresses, dict):
        raise ValueError("a row of a node has a wrong version or addresses")
    for service, address in addresses.items():
        if service not in SERVICES or not isinstance(address, str) or not is_address(address):
            raise ValueError("a row of a node has a wrong address")
    numbers: list[Any] = [row.get(key) for key in ("since_ms", "left")]
    if not all(type(number) is int and 0 <= number < 2**53 for number in numbers):
        raise ValueError("a row of a node has a wrong number")
    return Member(name, words["store"], bytes.fromhex(life), words["state"], words["version"], addresses, numbers[0], numbers[1])


def _name_of(key: bytes) -> str:
    """The name of a `MEMBERS` key. Raises: ValueError."""
    rest = key[len(MEMBERS) :]
    if not rest.endswith(b"\0\0"):
        raise ValueError("no key of a node")
    return rest[:-2].decode("ascii")


def _row(transaction: Transaction, name: str) -> Member | None:
    """None: there is no row, or none that this version can read."""
    value = transaction.get(MEMBERS + text(name))
    try:
        return None if value is None else unpack(name, value)
    except ValueError:
        return None


def _lives(transaction: Transaction, life: bytes, snapshot: bool = False) -> bool:
    return transaction.get(owner_row(life, b"e"), snapshot) == ALIVE


def write_member(engine: Engine, member: Member, patience_ms: int) -> None:
    """Says what a node is from now on (M2). Twice is no harm. Raises: NameTaken; Fenced: its life is over; EngineError."""

    def body(transaction: Transaction) -> None:
        if not _lives(transaction, member.life):
            raise Fenced("this node was declared gone by another one")
        before = _row(transaction, member.name)
        if before is not None and before.life != member.life and _lives(transaction, before.life):
            if before.store != member.store:
                raise NameTaken(f"node {member.name!r} is another one, and it lives")
            transaction.set(owner_row(before.life, b"e"), GONE)
        transaction.set(MEMBERS + text(member.name), member.pack())

    attempt(engine, body, patience_ms)


def read_members(engine: Engine, limits: Limits) -> tuple[list[tuple[Member, bool]], int]:
    """All nodes by name, each with whether it lives; and rows that can't be read. O(nodes), shared_nodes_max at most."""
    members: list[tuple[Member, bool]] = []
    refused = 0
    transaction = engine.begin()
    try:
        for key, value in transaction.range(MEMBERS, after(MEMBERS), limits.shared_nodes_max, snapshot=True):
            try:
                member = unpack(_name_of(key), value)
            except ValueError:
                refused += 1
                continue
            members.append((member, _lives(transaction, member.life, snapshot=True)))
    finally:
        transaction.close()
    return members, refused


def order_drain(engine: Engine, name: str, patience_ms: int) -> None:
    """Asks a node to be drained; it does so by itself (M3). Raises: NoMember, NotUp; EngineError."""

    def body(transaction: Transaction) -> None:
        member = _row(transaction, name)
        if member is None:
            raise NoMember(f"there is no node {name!r}")
        if not _lives(transaction, member.life):
            raise NotUp(f"node {name!r} is down")
        transaction.set(ORDERS + text(name), member.life)

    attempt(engine, body, patience_ms)


def is_ordered(engine: Engine, name: str, life: bytes) -> bool:
    """Whether this life of the node is to be drained."""
    transaction = engine.begin()
    try:
        return transaction.get(ORDERS + text(name), snapshot=True) == life
    finally:
        transaction.close()


def remove_member(engine: Engine, name: str, patience_ms: int) -> None:
    """Forgets a node that is down. Raises: NoMember, StillUp; EngineError."""

    def body(transaction: Transaction) -> None:
        key = MEMBERS + text(name)
        if transaction.get(key) is None:
            raise NoMember(f"there is no node {name!r}")
        member = _row(transaction, name)  # one that can't be read is nobody's, and goes, too
        if member is not None and _lives(transaction, member.life):
            raise StillUp(f"node {name!r} is not down: drain it, and stop it")
        transaction.clear(key)
        transaction.clear(ORDERS + text(name))

    attempt(engine, body, patience_ms)
