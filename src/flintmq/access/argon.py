"""argon2id, as this broker uses it. Loaded with the first password: the library and what it stands on take 1 MiB."""

from __future__ import annotations

from hmac import compare_digest

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

# OWASP's argon2id: 19 MiB, two passes, one lane (30 to 50 ms on a small server).
_HASHER = PasswordHasher(time_cost=2, memory_cost=19 * 1024, parallelism=1)


def hashed(password: str) -> str:
    """A hash with a fresh salt, in PHC form. Some 50 ms and 19 MiB."""
    return _HASHER.hash(password)


def verified(stored: str, password: str) -> bool:
    """Whether the password is that of a hash in PHC form; False for another form, too. Some 50 ms and 19 MiB."""
    try:
        return _HASHER.verify(stored, password)
    except (VerificationError, InvalidHashError):
        return False


def same(mac: bytes, other: bytes) -> bool:
    """Whether two MACs are equal, in a time that does not tell where they differ."""
    return compare_digest(mac, other)
