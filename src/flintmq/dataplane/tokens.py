"""Tokens of the Flight service's users, made and read by the broker: the service itself has no secret that could make one.

in: subjects: users that were verified, by name, or by the handle of their login (dataplane.logins). out: tokens (text), and whose they are.

T1  A token says its subject and its end under a MAC whose key exists in the broker's process only, anew with each start.
T2  The hash of the user's password is a part of what the MAC covers: a token ends with the password that it was given for, and one of a
    handle ends with the handle.
T3  It grants nothing: permissions are asked for at each call.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
from collections.abc import Callable

from flintmq.clock import Clock
from flintmq.config import Limits

_MAC_BYTES = 32
_END_BYTES = 8
# characters of a token: a subject has at most 256 bytes
_TOKEN_MAX = 1_024


class Tokens:
    """Args: limits: flight_token_s; clock; hash_of: the hash of a subject's password, None when there is no such subject. Thread-safe."""

    def __init__(self, limits: Limits, clock: Clock, hash_of: Callable[[str], str | None]) -> None:
        self._hash_of = hash_of
        self._keep_ns = limits.flight_token_s * 1_000_000_000
        self._clock = clock
        self._key = os.urandom(_MAC_BYTES)

    def create(self, subject: str) -> str:
        """A token that `whose` takes for `flight_token_s` seconds."""
        content = (self._clock.monotonic_ns() + self._keep_ns).to_bytes(_END_BYTES, "big") + subject.encode()
        return base64.urlsafe_b64encode(self._mac(content, self._hash_of(subject) or "") + content).decode()

    def whose(self, token: str) -> str | None:
        """The subject; None: not made by this broker, changed, or too old."""
        if len(token) > _TOKEN_MAX:
            return None
        try:
            raw = base64.b64decode(token.encode("ascii"), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            return None
        mac, content = raw[:_MAC_BYTES], raw[_MAC_BYTES:]
        subject = content[_END_BYTES:].decode("utf-8", "replace")
        known = self._hash_of(subject)
        if known is None or not hmac.compare_digest(mac, self._mac(content, known)):
            return None
        if self._clock.monotonic_ns() >= int.from_bytes(content[:_END_BYTES], "big"):
            return None
        return subject

    def _mac(self, content: bytes, password_hash: str) -> bytes:
        covered = len(content).to_bytes(4, "big") + content + password_hash.encode()
        return hashlib.blake2b(covered, key=self._key, digest_size=_MAC_BYTES, person=b"flight-token").digest()
