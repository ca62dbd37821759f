"""The secret of an engine's nodes: the first one makes it, and a proof of it is good for one connection and one side."""

from __future__ import annotations

import asyncio

import pytest

from flintmq.config import Limits
from flintmq.engines.engine import Commit, UnknownOutcome
from flintmq.engines.opening import open_engine
from flintmq.shared.node_secret import CALLED, CALLER, SECRET_BYTES, NodeId, is_proof, node_secret, proof

A, B = NodeId("a", "1"), NodeId("b", "2")
NONCES = b"n" * 32, b"m" * 32
SECRET = b"s" * SECRET_BYTES


def test_all_nodes_get_the_secret_of_the_first_one() -> None:
    async def run() -> list[bytes]:
        engine = open_engine("memory:", Limits())
        return [*await asyncio.gather(*(node_secret(engine) for _ in range(5))), await node_secret(engine)]

    answers = asyncio.run(run())
    assert len(set(answers)) == 1 and len(answers[0]) == SECRET_BYTES


def test_a_commit_whose_outcome_is_unknown_is_looked_at() -> None:
    class Uncertain:
        def __init__(self) -> None:
            self.engine = open_engine("memory:", Limits())
            self.get = self.engine.get

        async def commit(self, commit: Commit) -> bool:
            await self.engine.commit(commit)
            raise UnknownOutcome("?")

    async def run() -> tuple[bytes, bytes]:
        engine = Uncertain()
        return await node_secret(engine), await node_secret(engine.engine)  # type: ignore[arg-type]

    one, other = asyncio.run(run())
    assert one == other


def test_a_row_that_is_no_secret_is_refused_without_being_shown() -> None:
    async def run() -> None:
        engine = open_engine("memory:", Limits())
        await engine.commit(Commit((), {b"k/nodes": b"topsecret"}))
        await node_secret(engine)

    with pytest.raises(ValueError, match="k/nodes") as refused:
        asyncio.run(run())
    assert "topsecret" not in str(refused.value)


def test_a_proof_is_of_one_side_one_pair_of_nodes_and_one_pair_of_nonces() -> None:
    given = proof(SECRET, CALLER, NONCES, B, A)
    assert is_proof(given, SECRET, CALLER, NONCES, B, A)
    assert not is_proof(given, SECRET, CALLED, NONCES, B, A)
    assert not is_proof(given, SECRET, CALLER, NONCES, A, B)
    assert not is_proof(given, SECRET, CALLER, NONCES[::-1], B, A)
    assert not is_proof(given, SECRET, CALLER, NONCES, NodeId("b", "3"), A)
    assert not is_proof(given, b"t" * SECRET_BYTES, CALLER, NONCES, B, A)
    assert not is_proof(b"", SECRET, CALLER, NONCES, B, A)


@pytest.mark.parametrize("data", [b"", b"name", b"\0life", b"name\0", b"\xff\0life"])
def test_what_names_no_node_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        NodeId.unpack(data)
    assert NodeId.unpack(A.pack()) == A
