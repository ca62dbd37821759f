"""Orders to nodes as rows of the engine: drain, serve again, give a queue to another node.

in: orders of administrators, given at any node. out: rows below the name of the node that is to obey, which watches them.

X1  An order names a life, and ends with it: a node that was drained and comes back serves.
X2  The order about the state stands until another one replaces it; a move is deleted by the node that begins it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from flintmq.engines.engine import Commit, Engine, Range
from flintmq.shared.node_facts import DRAINED, UP

# moves that one look reads; the next look has the others
MOVES_AT_ONCE = 1_000


@dataclass(frozen=True, slots=True)
class Orders:
    """Of one node. is_drained: it is to be; moves: (id of a queue, name of the node that is to own it)."""

    is_drained: bool
    moves: list[tuple[bytes, str]]


def _prefix(node: str) -> bytes:
    return b"c/" + node.encode() + b"/"


def orders_of(node: str) -> Range:
    """All rows of orders to a node."""
    prefix = _prefix(node)
    return prefix, prefix[:-1] + b"0"


async def order_state(engine: Engine, node: str, life: str, drained: bool) -> None:
    """That life of the node is to be drained, or to serve again. Raises: EngineError."""
    await _put(engine, _prefix(node) + b"s", {"life": life, "state": DRAINED if drained else UP})


async def order_move(engine: Engine, node: str, life: str, queue: bytes, to: str) -> None:
    """That life of the node gives its queue to the node `to`. Raises: EngineError."""
    await _put(engine, _prefix(node) + b"m/" + queue, {"life": life, "to": to})


async def _put(engine: Engine, key: bytes, row: dict[str, str]) -> None:
    await engine.commit(Commit(puts={key: json.dumps(row, sort_keys=True).encode()}))


async def take_orders(engine: Engine, node: str, life: str) -> Orders:
    """The orders to this life; those of moves are deleted, and so are those to earlier lives. Raises: EngineError."""
    begin, end = orders_of(node)
    drained, moves, done = False, [], []
    for key, value in await engine.scan(begin, end, MOVES_AT_ONCE, 1 << 20):
        row = _row(value)
        is_state = key == begin + b"s"
        if row.get("life") != life or not is_state:
            done.append((key, value))
        if row.get("life") == life:
            if is_state:
                drained = row.get("state") == DRAINED
            elif isinstance(row.get("to"), str):
                moves.append((key.rpartition(b"/")[2], row["to"]))
    for key, value in done:
        await engine.commit(Commit([(key, value)], deletes=[key]))  # one that was replaced meanwhile stays
    return Orders(drained, moves)


async def forget_orders(engine: Engine, node: str) -> None:
    """The node is forgotten. Raises: EngineError."""
    await engine.commit(Commit(clears=[orders_of(node)]))


def _row(value: bytes) -> dict[str, Any]:
    """One that can't be read is nobody's order."""
    try:
        row = json.loads(value)
    except (ValueError, RecursionError):
        return {}
    return row if isinstance(row, dict) else {}
