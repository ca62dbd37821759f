"""The secret that the nodes of an engine share, and what they prove with it to each other (docs/adr/0015, "Others forward").

in: the engine's row; nonces, names and lives of two nodes. out: the secret; proofs.

P1  Whoever reads the engine's rows is a node: the secret stands there alone, and in no text, log or error.
P2  A proof is of one connection: both nonces are in it, and which side gives it, so that none can be used again or sent back.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass

from flintmq.engines.engine import Commit, Engine, UnknownOutcome

_KEY = b"k/nodes"
SECRET_BYTES = 32
NONCE_BYTES = 32
PROOF_BYTES = 32
# sides of a connection
CALLER, CALLED = b"caller", b"called"


@dataclass(frozen=True, slots=True)
class NodeId:
    """A node of the cluster, as its row has it (shared/nodes.py). life: of its process."""

    name: str
    life: str

    def pack(self) -> bytes:
        return self.name.encode() + b"\0" + self.life.encode()

    @staticmethod
    def unpack(data: bytes) -> NodeId:
        """Raises: ValueError."""
        name, separator, life = data.partition(b"\0")
        if not separator or not name or not life:
            raise ValueError("it names no node")
        return NodeId(name.decode(), life.decode())


async def node_secret(engine: Engine) -> bytes:
    """The secret of the engine's nodes; the first one that asks makes it. Raises: EngineError; ValueError: the row is none."""
    fresh = secrets.token_bytes(SECRET_BYTES)
    while True:
        (row,) = await engine.get([_KEY])
        if row is not None:
            if len(row) != SECRET_BYTES:
                raise ValueError(
                    "the engine's row with the secret of its nodes is damaged: stop all nodes, delete it (key k/nodes), start them"
                )
            return row
        try:
            await engine.commit(Commit([(_KEY, None)], {_KEY: fresh}))
        except UnknownOutcome:
            continue  # the read tells


def engine_identity(secret: bytes) -> str:
    """Which engine it is, the same on all of its nodes, for anybody: it tells nothing of the secret."""
    return hmac.new(secret, b"FLINTMQ-ENGINE", hashlib.sha256).hexdigest()[:32]


def proof(secret: bytes, side: bytes, nonces: tuple[bytes, bytes], caller: NodeId, called: NodeId) -> bytes:
    """What `side` shows of the secret. Args: nonces: of caller and called."""
    parts = (b"FLINTMQ-NODE", side, *nonces, caller.pack(), called.pack())
    text = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return hmac.new(secret, text, hashlib.sha256).digest()


def is_proof(given: bytes, secret: bytes, side: bytes, nonces: tuple[bytes, bytes], caller: NodeId, called: NodeId) -> bool:
    """Whether `given` is what `side` would show. The time does not depend on how much of it is right."""
    return hmac.compare_digest(given, proof(secret, side, nonces, caller, called))
