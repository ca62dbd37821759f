"""Verbs of a cluster on its nodes and queues, whoever asks: a node, or an administrator's program at the engine itself.

in: nodes as the asker judges them (nodes.py), names. out: orders in the engine's rows, or the reason why there is none.
"""

from __future__ import annotations

from flintmq.engines.engine import Engine
from flintmq.errors import PeerError, ReplyCode
from flintmq.shared.layout import Owner, owner_key
from flintmq.shared.node_facts import DOWN, UP, NodeFacts, facts_of
from flintmq.shared.nodes import Node, Nodes
from flintmq.shared.orders import forget_orders, order_move, order_state


def shown(nodes: Nodes, name: str, facts: NodeFacts, lives: bool) -> dict[str, object]:
    """A node, for people and programs. sign_age_s: seconds since its row changed, as the asker saw it; None: it never did."""
    silent_s = nodes.silent_s(name)
    return {
        "name": name,
        "state": facts.state if lives else DOWN,
        "version": facts.version,
        "addresses": dict(facts.addresses),
        "since_ms": facts.since_ms,
        "left": facts.left if lives else 0,
        "queues": facts.queues if lives else 0,
        "sign_age_s": None if silent_s is None else round(silent_s, 3),
    }


def described(vhost: str, queue: str) -> str:
    return f"queue '{queue}' in vhost '{vhost}'"


def living(nodes: Nodes, name: str) -> Node:
    """Raises: PeerError: 404 no such node, 406 it is down."""
    if name not in nodes.known:
        raise PeerError(ReplyCode.NOT_FOUND, f"there is no node {name!r}")
    node = nodes.living.get(name)
    if node is None:
        raise PeerError(ReplyCode.PRECONDITION_FAILED, f"node {name!r} is down")
    return node


async def order(engine: Engine, nodes: Nodes, name: str, drained: bool) -> None:
    """A node is to be drained, or to serve again. Raises: PeerError: as `living`; EngineError."""
    await order_state(engine, name, living(nodes, name).life, drained)


async def remove(engine: Engine, nodes: Nodes, name: str) -> None:
    """Forgets a node that is down, and the orders to it. Raises: PeerError: 404 no such node, 406 it is not down; EngineError."""
    if name not in nodes.known:
        raise PeerError(ReplyCode.NOT_FOUND, f"there is no node {name!r}")
    if name in nodes.living or not await nodes.forget(name):
        raise PeerError(ReplyCode.PRECONDITION_FAILED, f"node {name!r} is not down: drain it, and stop it")
    await forget_orders(engine, name)


async def move(engine: Engine, nodes: Nodes, queue: bytes, text: str, to: str) -> None:
    """Asks the owner of a queue to give it to the node `to`.

    Args: queue: its id; text: the queue for people. Raises: PeerError: 404 no such node, 406 it is down or drained, or nobody owns the
    queue now; EngineError; ValueError: the owner's row can't be read.
    """
    facts = facts_of(living(nodes, to))
    if facts is None or facts.state != UP:
        raise PeerError(ReplyCode.PRECONDITION_FAILED, f"node {to!r} is drained")
    (value,) = await engine.get([owner_key(queue)])
    owner = None if value is None else Owner.unpack(value)
    if owner is None or nodes.is_gone(owner.node, owner.life):
        raise PeerError(ReplyCode.PRECONDITION_FAILED, f"{text} has no owner now: it gets one by itself")
    if owner.node != to:
        await order_move(engine, owner.node, owner.life, queue, to)
