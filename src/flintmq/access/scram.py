"""SCRAM-SHA-256 (RFC 5802, RFC 7677): the server's half of the conversation, and the keys that stand for a password.

in: a client's two messages; a password when keys are made. out: the server's two messages, or a refusal.

S1  The keys let a client in and let the broker prove that it knows them; from them alone nobody can log in.
S2  Everybody gets a salt and the same count of iterations, whoever the user is: the salt is a MAC of the name under a key of the node, so
    that it says neither whether the user is there, nor whether it has keys, nor that its password was changed. Unknown users take the same
    steps with keys that nobody has.
S3  No channel binding is offered: a client that asks for one is refused, and the two messages of a client must say the same about it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
import stringprep
import unicodedata
from collections.abc import Callable
from typing import NamedTuple

from flintmq.access.mechanisms import SCRAM
from flintmq.access.secret import Secret

_PREFIX = SCRAM + "$"
_SALT_BYTES = 16
_KEY_BYTES = 32
_NONCE_BYTES = 18
# characters of a client's message, of its nonce: a message without extensions has fewer than 600
_MESSAGE_MAX = 2_048
_NONCE_MAX = 256
# characters that RFC 4013 forbids
_FORBIDDEN = (
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
    stringprep.in_table_a1,
)


class ScramError(ValueError):
    """A message of a client that can't be read, or asks for a feature that is not offered. `str` is for the log."""


class Keys(NamedTuple):
    """The secret that a password stands for."""

    iterations: int
    salt: bytes
    stored: bytes
    server: bytes


def prepared(password: str) -> bytes:
    """A password as both sides derive keys from it: SASLprep (RFC 4013), or as it is where that forbids a character."""
    raw = password.encode("utf-8", "surrogatepass")
    if password.isascii():
        return raw
    mapped = "".join(" " if stringprep.in_table_c12(one) else one for one in password if not stringprep.in_table_b1(one))
    text = unicodedata.ucd_3_2_0.normalize("NFKC", mapped)
    if not text or any(forbidden(one) for one in text for forbidden in _FORBIDDEN):
        return raw
    if any(map(stringprep.in_table_d1, text)) and (
        any(map(stringprep.in_table_d2, text)) or not (stringprep.in_table_d1(text[0]) and stringprep.in_table_d1(text[-1]))
    ):
        return raw
    return text.encode()


def make_keys(password: Secret | str, salt: bytes, iterations: int) -> Keys:
    """Derives the keys of a password: some 30 ms for 100,000 iterations, without the interpreter's lock. Not on a loop."""
    salted = hashlib.pbkdf2_hmac("sha256", prepared(password), salt, iterations)
    client = hmac.digest(salted, b"Client Key", "sha256")
    return Keys(iterations, salt, hashlib.sha256(client).digest(), hmac.digest(salted, b"Server Key", "sha256"))


def written(keys: Keys) -> str:
    """Keys as text, as PostgreSQL writes them: SCRAM-SHA-256$iterations:salt$stored:server."""
    salt, stored, server = (base64.b64encode(part).decode() for part in keys[1:])
    return f"{_PREFIX}{keys.iterations}:{salt}${stored}:{server}"


def read(text: str) -> Keys | None:
    """What `written` wrote. None: it is something else."""
    if not text.startswith(_PREFIX):
        return None
    try:
        head, _, tail = text[len(_PREFIX) :].partition("$")
        iterations, _, salt = head.partition(":")
        stored, _, server = tail.partition(":")
        parts = [base64.b64decode(part, validate=True) for part in (salt, stored, server)]
        keys = Keys(int(iterations), *parts)
    except (binascii.Error, ValueError):
        return None
    return keys if len(keys.stored) == len(keys.server) == _KEY_BYTES and keys.iterations > 0 else None


class Stranger:
    """The salts of a node's users, and the keys of those who have none (S2). Args: key: a secret that the node keeps; iterations."""

    def __init__(self, key: bytes, iterations: int) -> None:
        self._key = key
        self._iterations = iterations

    def keys_for(self, user: str, password: Secret | str) -> Keys:
        """The keys of a password of this user. Slow: see make_keys."""
        return make_keys(password, self._part(user, b"salt")[:_SALT_BYTES], self._iterations)

    def nobody(self, user: str) -> Keys:
        """Keys that look like those of the user, and that no password has."""
        salt = self._part(user, b"salt")[:_SALT_BYTES]
        return Keys(self._iterations, salt, self._part(user, b"stored"), self._part(user, b"server"))

    def _part(self, user: str, label: bytes) -> bytes:
        return hmac.digest(self._key, label + b"\0" + user.encode("utf-8", "surrogatepass"), "sha256")


class Conversation:
    """One login. Args: keys_of: (user) -> its keys, or those of nobody. `user` is set by `first`."""

    def __init__(self, keys_of: Callable[[str], Keys], nonce: str = "") -> None:
        self._keys_of = keys_of
        self._own_nonce = nonce or secrets.token_urlsafe(_NONCE_BYTES)
        self.user = ""
        self._binding = ""
        self._nonce = ""
        self._said = ""
        self.keys: Keys | None = None

    def cancel(self) -> None:
        """The connection ends: nothing is under way that had to be stopped."""

    def first(self, message: bytes) -> bytes:
        """The client's first message -> the server's. Raises: ScramError."""
        text = _text(message)
        parts = text.split(",", 2)
        if len(parts) != 3:
            raise ScramError("its first message has no header")
        flag, authorization, bare = parts
        if flag not in ("n", "y"):
            raise ScramError(
                "it asks for a channel binding, which is not offered" if flag.startswith("p=") else "its first message is none"
            )
        attributes = bare.split(",")
        if len(attributes) < 2 or not attributes[0].startswith("n=") or not attributes[1].startswith("r="):
            raise ScramError("its first message has no name and nonce in their places, or a mandatory extension")
        self.user = _name(attributes[0][2:])
        if authorization and (not authorization.startswith("a=") or _name(authorization[2:]) != self.user):
            raise ScramError("it wants to act for another user")
        nonce = attributes[1][2:]
        if not 1 <= len(nonce) <= _NONCE_MAX or not all("!" <= one <= "~" for one in nonce):
            raise ScramError("its nonce is not of printable characters, or too long")
        self.keys = keys = self._keys_of(self.user)
        self._binding = base64.b64encode(f"{flag},{authorization},".encode()).decode()
        self._nonce = nonce + self._own_nonce
        answer = f"r={self._nonce},s={base64.b64encode(keys.salt).decode()},i={keys.iterations}"
        self._said = f"{bare},{answer},"
        return answer.encode()

    def final(self, message: bytes) -> bytes | None:
        """The client's last message -> the server's; None: the proof is wrong. Raises: ScramError."""
        keys = self.keys
        if keys is None:
            raise ScramError("its last message came first")
        text = _text(message)
        without_proof, separator, proof_text = text.rpartition(",p=")
        attributes = without_proof.split(",")
        if not separator or len(attributes) < 2 or not attributes[0].startswith("c=") or not attributes[1].startswith("r="):
            raise ScramError("its last message has no binding, nonce and proof in their places")
        if attributes[0][2:] != self._binding:
            raise ScramError("its two messages say different things about channel binding")
        if not hmac.compare_digest(attributes[1][2:].encode(), self._nonce.encode()):
            raise ScramError("its last message has another nonce")
        try:
            proof = base64.b64decode(proof_text, validate=True)
        except (binascii.Error, ValueError):
            raise ScramError("its proof is no base64") from None
        if len(proof) != _KEY_BYTES:
            raise ScramError(f"its proof does not have {_KEY_BYTES} bytes")
        said = (self._said + without_proof).encode()
        signature = hmac.digest(keys.stored, said, "sha256")
        client = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        answer = b"v=" + base64.b64encode(hmac.digest(keys.server, said, "sha256"))
        return answer if hmac.compare_digest(hashlib.sha256(client).digest(), keys.stored) else None


def _text(message: bytes) -> str:
    if len(message) > _MESSAGE_MAX:
        raise ScramError(f"its message has more than {_MESSAGE_MAX} bytes")
    try:
        return message.decode("utf-8")
    except UnicodeDecodeError:
        raise ScramError("its message is no UTF-8") from None


def _name(text: str) -> str:
    """A name without its escapes: =2C is a comma, =3D an equals sign, and there is no other one."""
    pieces = text.split("=")
    name = pieces[0]
    for piece in pieces[1:]:
        escaped = {"2C": ",", "3D": "="}.get(piece[:2])
        if escaped is None:
            raise ScramError("its user name has an equals sign that escapes nothing")
        name += escaped + piece[2:]
    if not name or "\0" in name:
        raise ScramError("its user name is empty, or has a zero in it")
    return name
