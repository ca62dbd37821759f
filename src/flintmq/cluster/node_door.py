"""The way in for other nodes: SASL mechanism FLINTMQ-NODE, and the user as whom such a connection acts.

in: the messages of a login. out: a user with all rights in the virtual host of nodes (node_vhost.py), or a refusal.

    caller: start-ok   nonce (32), name, life
    called: secure     nonce (32), proof of the called side (32)
    caller: secure-ok  proof of the caller (32)

D1  Both sides prove that they know the engine's secret; neither proof is of use on another connection (shared/node_secret.py).
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from flintmq.access.outside_user import OutsideUser
from flintmq.shared.node_secret import CALLED, CALLER, NONCE_BYTES, PROOF_BYTES, NodeId, is_proof, proof

if TYPE_CHECKING:
    from flintmq.cluster.node_vhost import NodeVhost

MECHANISM = "FLINTMQ-NODE"
# bytes of the first message: nonce, name (shared/nodes.py), life
_FIRST_MAX = NONCE_BYTES + 255 * 4 + 64


class _Everything:
    """See access.outside_user.Rights."""

    everything = True

    def allows(self, verb: str, kind: str, name: str) -> bool:
        return True

    def grants(self, verb: str) -> bool:
        return True


_EVERYTHING = _Everything()


class NodeUser(OutsideUser):
    """Another node. is_node: no quota of users refuses it (channel/quotas.py)."""

    __slots__ = ()
    is_node = True

    def __new__(cls, name: str) -> NodeUser:
        made = super().__new__(cls, f"node:{name}")
        made.tags = ()
        made.born = cls.birth()
        return made

    def rights(self, vhost: str) -> _Everything:
        return _EVERYTHING

    def may_topic(self, vhost: str, verb: str, exchange: str, key: str) -> bool:
        return True

    def may_every_key(self, vhost: str, verb: str, exchange: str) -> bool:
        return True


class Greeting:
    """A login under way: `challenge` is for the caller."""

    def __init__(self, secret: bytes, nonces: tuple[bytes, bytes], caller: NodeId, called: NodeId) -> None:
        self.user = NodeUser(caller.name)
        self._asked = secret, CALLER, nonces, caller, called
        self.challenge = nonces[1] + proof(secret, CALLED, nonces, caller, called)

    def is_proved(self, message: bytes) -> bool:
        """Whether the caller knows the secret."""
        return is_proof(message, *self._asked)

    def cancel(self) -> None:
        """The connection has ended."""


class NodeDoor:
    """Args: me: this node; secret: of the engine's nodes; vhost: of their connections."""

    mechanism = MECHANISM

    def __init__(self, me: NodeId, secret: bytes, vhost: NodeVhost, channels_max: int) -> None:
        self.vhost = vhost
        self.channels_max = channels_max
        self._me = me
        self._secret = secret

    def greet(self, message: bytes) -> Greeting:
        """The answer to the first message. Raises: ValueError: it is none, with the reason."""
        if not NONCE_BYTES < len(message) <= _FIRST_MAX:
            raise ValueError("its first message is none of a node")
        caller = NodeId.unpack(message[NONCE_BYTES:])
        return Greeting(self._secret, (message[:NONCE_BYTES], secrets.token_bytes(NONCE_BYTES)), caller, self._me)


class Caller:
    """The other side of a login. Args: called: the node that is to answer. `first`: the first message."""

    def __init__(self, me: NodeId, called: NodeId, secret: bytes) -> None:
        self._me = me
        self._called = called
        self._secret = secret
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self.first = self._nonce + me.pack()

    def answer(self, challenge: bytes) -> bytes:
        """The proof for a challenge. Raises: ValueError: whoever sent it is another node, or none."""
        nonces = self._nonce, challenge[:NONCE_BYTES]
        if len(challenge) != NONCE_BYTES + PROOF_BYTES or not is_proof(
            challenge[NONCE_BYTES:], self._secret, CALLED, nonces, self._me, self._called
        ):
            raise ValueError(f"node {self._called.name!r} does not answer there: its address is another node's by now, or of no node")
        return proof(self._secret, CALLER, nonces, self._me, self._called)
