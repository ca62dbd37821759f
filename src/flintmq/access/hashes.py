"""Password hashes of RabbitMQ: what its definitions files bring along, kept as they are and checked.

in: base64 of a salt and a digest, with the name of RabbitMQ's algorithm. out: text for UserRecord.password_hash, yes or no to a password.

Ours are argon2id in PHC form. One of RabbitMQ is kept as "algorithm$base64"; its user logs in as before, and a new password is argon2id.
Behind either, and a space, may stand the keys that SCRAM needs (access.scram). Definitions files and tokens know the hash alone.
"""

from __future__ import annotations

import base64
import binascii

# our own: what the definitions that are exported call it
ARGON2 = "flintmq_argon2id"
_PREFIX = "$argon2"
_SALT_BYTES = 4
# digest, and its bytes
_DIGESTS = {
    "rabbit_password_hashing_sha256": ("sha256", 32),
    "rabbit_password_hashing_sha512": ("sha512", 64),
    "rabbit_password_hashing_md5": ("md5", 16),
}


def is_known(algorithm: str) -> bool:
    """Whether hashes of it can be checked."""
    return algorithm == ARGON2 or algorithm in _DIGESTS


def algorithm_of(text: str) -> str:
    """The algorithm of a hash that comes without one, by its size (files of RabbitMQ 3.5 have MD5)."""
    for name, (_, size) in _DIGESTS.items():
        if len(text) == 4 * -(-(_SALT_BYTES + size) // 3):
            return name
    return "rabbit_password_hashing_sha256"


def stored_hash(algorithm: str, text: str) -> str:
    """The hash of a definitions file as it is kept. Args: text: base64, or a PHC string of ours. Raises: ValueError with the reason."""
    if algorithm == ARGON2:
        if not text.startswith(_PREFIX + "id$") or len(text) > 255 or " " in text:
            raise ValueError("the password hash is no argon2id string")
        return text
    digest = _DIGESTS.get(algorithm)
    if digest is None:
        raise ValueError(f"unknown password hashing algorithm '{algorithm[:80]}': known are {', '.join((*_DIGESTS, ARGON2))}")
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("the password hash is no base64") from None
    if len(raw) != _SALT_BYTES + digest[1]:
        raise ValueError(f"the password hash has {len(raw)} bytes, which is no salt and digest of {algorithm}")
    return f"{algorithm}${text}"


def hash_of(stored: str) -> str:
    """The hash of a stored text, without keys."""
    return stored.partition(" ")[0]


def keys_of(stored: str) -> str:
    """The keys in a stored text; "": there are none."""
    return stored.partition(" ")[2]


def with_keys(stored: str, keys: str) -> str:
    """A hash with the text of its keys."""
    return f"{hash_of(stored)} {keys}"


def shown_hash(stored: str) -> tuple[str, str]:
    """(hash, algorithm) as definitions files have them."""
    stored = hash_of(stored)
    algorithm, dollar, text = stored.partition("$")
    if dollar and algorithm in _DIGESTS:
        return text, algorithm
    return stored, ARGON2 if stored else "rabbit_password_hashing_sha256"


def is_foreign(stored: str) -> bool:
    """Whether `matches` checks it; else argon2 does."""
    return stored.partition("$")[0] in _DIGESTS


def matches(stored: str, password: str) -> bool:
    """Whether a password is that of a hash of RabbitMQ. Microseconds: the caller adds the work that hides it."""
    import hashlib
    import hmac

    algorithm, _, text = hash_of(stored).partition("$")
    raw = base64.b64decode(text)
    salted = raw[:_SALT_BYTES] + password.encode("utf-8", "surrogatepass")
    digest = hashlib.new(_DIGESTS[algorithm][0], salted, usedforsecurity=False)
    return hmac.compare_digest(digest.digest(), raw[_SALT_BYTES:])


def rabbitmq_hash(password: str, salt: bytes) -> str:
    """What `rabbitmqctl hash_password` prints: base64 of the salt and SHA-256 of salt and password. Args: salt: 4 bytes."""
    import hashlib

    return base64.b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode()
